"""Which baselines hold for a server, and what they say between and beyond what was recorded."""

import pytest
from msgspec.structs import replace

from insight.experiment_data import record
from insight.speedup_data import MODEL, WALL, baseline
from specdash.core.changes import Change, Role
from specdash.core.records import Baseline, BaselineMethod
from specdash.insight.speedup.baselines import DecodingServer, Reference, matching

SERVER = DecodingServer(MODEL, 1000, ("b1-abc",), "H100")


def reason(server: DecodingServer = SERVER, **fields: object) -> str:
    found, why = matching([replace(baseline(), **fields)], server)
    assert bool(found) is not bool(why)
    return why


def test_one_of_the_same_model_engine_and_gpu_holds() -> None:
    assert reason(model_bytes=1000, gpu="H100") == ""


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"model": "n.gguf"}, "no baseline of m.gguf"),
        ({"model_bytes": 999}, "another file"),
        ({"engine": "b2-def"}, "another engine"),
        ({"gpu": "T4"}, "another GPU"),
    ],
)
def test_another_one_does_not_and_the_reason_names_what_differs(fields: dict[str, object], named: str) -> None:
    why = reason(SERVER, **fields)
    assert named in why
    assert "specdash baseline record" in why


def test_an_engine_known_by_name_is_told_from_another_that_says_the_same_of_itself() -> None:
    named = DecodingServer(MODEL, engines=("xllamacpp 1", "b0-unknown"))
    assert matching([replace(baseline(), engine="xllamacpp 1")], named)[0]
    assert not matching([replace(baseline(), engine="llama-server 2")], named)[0]
    assert matching([replace(baseline(), engine="llama-server 2")], DecodingServer(MODEL, engines=("b0-unknown",)))[0]


def test_the_newest_of_one_key_counts() -> None:
    old, new = baseline(rate=40.0), replace(baseline(rate=60.0), at=WALL)
    assert matching([new, old], SERVER)[0] == (new,)


def test_one_from_before_a_change_of_threads_does_not_hold_until_it_is_changed_back() -> None:
    change = Change(Role.BACKEND, "LLAMA_THREADS", "4", "8")
    back = Change(Role.BACKEND, "LLAMA_THREADS", "8", "4")
    first, second = record(1, WALL, changes=(change,)), record(2, WALL + 60, changes=(back,))
    assert "LLAMA_THREADS" in matching([baseline()], SERVER, [first])[1]
    assert matching([baseline()], SERVER, [first, second])[0]
    assert matching([replace(baseline(), at=WALL + 30)], SERVER, [first])[0]


def test_a_change_of_drafts_does_not_matter_to_it() -> None:
    change = Change(Role.BACKEND, "LLAMA_DRAFT_MAX", "4", "8")
    assert matching([baseline()], SERVER, [record(1, WALL, changes=(change,))])[0]


LINE = Reference([baseline(448, 1, 50.0), baseline(3948, 1, 25.0), baseline(448, 4, 20.0), baseline(3948, 4, 10.0)])


def seconds(context: float, concurrency: int) -> float:
    found = LINE.at(context, concurrency)
    assert found is not None
    return found


def test_between_contexts_and_concurrencies_a_tokens_time_lies_on_a_straight_line() -> None:
    assert seconds(2250, 1) == pytest.approx((1 / 50 + 1 / 25) / 2)
    assert seconds(500, 2) == pytest.approx(1 / 50 + (1 / 20 - 1 / 50) / 3)


def test_the_line_is_followed_to_shorter_and_longer_contexts() -> None:
    slope = (1 / 25 - 1 / 50) / 3500
    assert seconds(100, 1) == pytest.approx(1 / 50 - 400 * slope)
    assert seconds(6000, 1) == pytest.approx(1 / 25 + 2000 * slope)


def test_a_line_that_falls_is_noise_and_not_followed() -> None:
    noisy = Reference([baseline(448, 1, 50.0), baseline(948, 1, 52.0)])
    assert (noisy.at(0, 1), noisy.at(1500, 1)) == (1 / 50, 1 / 52)


def test_nothing_is_said_of_what_was_not_recorded() -> None:
    assert LINE.at(7000, 1) is None
    assert LINE.at(500, 5) is None
    assert Reference([baseline(448, 2)]).at(500, 1) is None


def test_a_single_long_context_says_nothing_of_short_ones() -> None:
    line = Reference([baseline(8192)])
    assert line.at(100, 1) is None
    assert line.at(6000, 1) is not None
    assert Reference([baseline(8192), baseline(64)]).at(100, 1) is not None


def two_tokens(context: int = 448, rate: float = 40.0, **fields: object) -> Baseline:
    """What completions of two tokens told now."""
    return replace(baseline(context, rate=rate), at=WALL, method=BaselineMethod.TWO_TOKENS, decode_tokens=2, **fields)


def test_the_method_used_last_counts_and_the_other_one_reaches_further() -> None:
    recorded = [baseline(context, count, rate) for context, count, rate in ((448, 1, 50), (9000, 1, 25), (448, 4, 30))]
    found, _ = matching([*recorded, two_tokens()], SERVER)
    assert [(entry.context, entry.concurrency, entry.decode_rate) for entry in found] == [
        (448, 1, 40.0),
        (9000, 1, 25.0),
        (448, 4, 30.0),
    ]
    again, _ = matching([two_tokens(), *(replace(entry, at=WALL + 1) for entry in recorded)], SERVER)
    assert {entry.method for entry in again} == {BaselineMethod.WITHOUT}


def deviation(entry: Baseline, **known: float) -> float:
    return Reference([entry], **known).deviation(entry)


def test_a_baseline_of_this_start_is_surer_and_an_old_one_is_less() -> None:
    now = two_tokens()
    assert deviation(now, wall=WALL, started=WALL - 60) < deviation(now, wall=WALL, started=WALL + 60)
    assert deviation(now, wall=WALL) < deviation(now, wall=WALL + 4 * 3600) < deviation(now, wall=WALL + 8 * 3600)
    assert deviation(now, wall=WALL + 30 * 86400) == deviation(now, wall=WALL + 60 * 86400)
