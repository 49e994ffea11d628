"""Is speculation paying? What the picture shows, what it does not dare to, and in which words."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from insight.scenes import (
    MODEL,
    NOW,
    OK,
    WALL,
    add,
    baseline,
    measured,
    read_log,
    record,
    request,
    row_of,
    server,
    tell,
)
from specdash.core.changes import ApplyRecord, Change, Role
from specdash.core.readings import Counters, FailureKind, ReadingStatus, Slot, Slots
from specdash.core.records import Baseline, BaselineMethod, Drafting
from specdash.export.snapshot import speedup_json
from specdash.insight.picture import (
    BackendPicture,
    BackendState,
    Basis,
    DrafterPicture,
    DraftingPicture,
    Paying,
    Picture,
    SpeculationPicture,
    SpeculationViews,
    SpeedUpPicture,
)
from specdash.insight.request import ServedRequest
from specdash.insight.speedup.baselines import DecodingServer, Reference, matching
from specdash.insight.speedup.estimate import effort_of, leviathan
from specdash.insight.speedup.speedup import TOO_GOOD, derive
from specdash.insight.speedup.verdict import ENOUGH, VerdictKind, VerdictStep, judged, kind_of, verdict
from specdash.insight.state import TargetState

BASE = (baseline(),)
BY_TWO_TOKENS = (baseline(method=BaselineMethod.TWO_TOKENS),)
EST, MEAS = Basis.ESTIMATED, Basis.MEASURED
PAYING, HURTING, UNKNOWN = Paying.PAYING, Paying.HURTING, Paying.UNKNOWN
SHORT_DRAFTS = {"tokens": 101, "accepted": 39, "drafted": 60}
"""Of a draft length of 1: 1.64 tokens a step, 65 % accepted."""
BESIDE = [request(WALL - 10 - 5 * place + shift, rate=30.0) for place in range(20)[::-1] for shift in (0.0, 0.5, 1.0)]
"""Three at a time."""
UNCOVERED = [request(WALL - 200 - 21 * place, rate=10.0, prompt_total_tokens=30_000) for place in range(10)][::-1]
"""Ten that no baseline covers, at 10 tok/s."""
SPREAD = [request(WALL - 10 - 5 * place, rate=60.0 + 10 * place) for place in range(9)][::-1]


def seen(made: TargetState, window_s: float = 300.0) -> SpeedUpPicture:
    return derive(made, NOW, WALL, window_s)


def test_a_server_that_is_twice_as_fast_as_its_baseline_gains_two() -> None:
    picture = seen(measured(row_of(20), BASE))
    assert (picture.basis, picture.verdict) == (MEAS, PAYING)
    assert picture.value == pytest.approx(2.0)
    assert picture.low is not None
    assert picture.high is not None
    assert 1.8 < picture.low <= 2.0 <= picture.high < 2.2
    assert (picture.requests, picture.baseline) == (20, BASE[0])


@pytest.mark.parametrize(
    ("samples", "baselines", "basis", "verdict", "value", "words"),
    [
        # A few requests give a value and no verdict, but for one that no spread explains: 200 tok/s became 5.
        (row_of(ENOUGH - 1), BASE, MEAS, UNKNOWN, 2.0, f"{ENOUGH} are needed"),
        (row_of(1, rate=4.0), BASE, MEAS, HURTING, 0.08, ""),
        (row_of(1, rate=35.0), BASE, MEAS, UNKNOWN, 0.7, ""),
        # It names the method of the baseline.
        (row_of(20), BASE, MEAS, PAYING, 2.0, "recorded without speculation"),
        (row_of(20), BY_TWO_TOKENS, MEAS, PAYING, 2.0, "measured by completions of two tokens"),
        # A step of two tokens gains two at most: the baseline is of a busy machine. On a CPU whose kernel for two
        # tokens is the faster one, a little more was seen.
        (row_of(20), (baseline(rate=5.0),), EST, UNKNOWN, None, TOO_GOOD),
        *((row_of(20, rate=rate, **SHORT_DRAFTS), BASE, MEAS, PAYING, rate / 50, "") for rate in (95.5, 98.5, 102.0)),
        (row_of(20, rate=140.0, **SHORT_DRAFTS), BASE, EST, UNKNOWN, None, TOO_GOOD),
        # Requests beside others, and longer than any baseline, want another one; the rest is compared without them.
        (BESIDE, BASE, EST, UNKNOWN, None, "--concurrency 4"),
        (row_of(20, prompt_total_tokens=30_000, rate=50.0), BASE, EST, UNKNOWN, None, "--context 30100"),
        ([*UNCOVERED, *row_of(10)], BASE, MEAS, PAYING, 2.0, ""),
        (row_of(20), (), EST, UNKNOWN, None, "assumed"),
        (row_of(20), (), EST, UNKNOWN, None, "specdash baseline record"),
    ],
)  # fmt: skip
def test_what_requests_and_baselines_give(
    samples: list[ServedRequest],
    baselines: tuple[Baseline, ...],
    basis: Basis,
    verdict: Paying,
    value: float | None,
    words: str,
) -> None:
    picture = seen(measured(samples, baselines))
    assert (picture.basis, picture.verdict, words in picture.why) == (basis, verdict, True), picture.why
    assert (picture.baseline is None) is (basis is EST)
    if value is not None:
        assert picture.value == pytest.approx(value)
        assert (picture.decode_rate, picture.baseline_rate) == pytest.approx((50 * value, 50))
    else:
        assert picture.low is not None
        assert picture.value is not None
        assert picture.high is not None
        assert picture.low < picture.value < picture.high


def test_a_server_that_does_not_speculate_has_no_speed_up() -> None:
    picture = seen(measured(row_of(20), BASE, speculative=False))
    assert (picture.value, picture.verdict) == (None, UNKNOWN)
    assert "does not speculate" in picture.why


def test_a_loss_by_the_estimates_best_case_is_called_one_at_once_and_a_gain_waits_for_more_requests() -> None:
    for count in (2, 20):
        picture = seen(measured(row_of(count, accepted=2, drafted=600)))
        assert (picture.basis, picture.verdict) == (EST, HURTING)
    assert seen(measured(row_of(ENOUGH - 2, accepted=190, drafted=200))).verdict is UNKNOWN


@pytest.mark.parametrize(
    ("accepted", "drafted", "steps", "verdict"),
    [(0, 15_614, 5205, HURTING), (11, 6963, 2321, HURTING), (70, 6963, 2321, HURTING),
     (2, 30, 10, UNKNOWN), (3000, 6963, 2321, UNKNOWN)],
    ids=["none", "next to none", "one in a hundred", "too few steps to decide", "many"],
)  # fmt: skip
def test_drafts_that_are_hardly_ever_right_cost_by_the_counters_alone(
    accepted: float, drafted: float, steps: float, verdict: Paying
) -> None:
    def total(share: float) -> Counters:
        return Counters(
            predicted_tokens=share * (steps + accepted),
            predicted_seconds=share * 60.0,
            draft_tokens=share * drafted,
            accepted_tokens=share * accepted,
            verification_steps=share * steps,
        )

    made = tell(tell(measured([]), NOW - 60, metrics=total(0.0)), NOW - 1, metrics=total(1.0))
    assert (seen(made).basis, seen(made).verdict) == (EST, verdict)
    assert seen(tell(measured([]), NOW - 1, metrics=total(1.0))).verdict is verdict, "never seen to move"


def test_where_the_window_has_too_few_the_newest_stand_for_it() -> None:
    old = [replace(one, began=one.began - 600, ended=one.ended - 600) for one in row_of(10)]
    picture = seen(measured([*old, *row_of(2)], BASE), 60.0)
    assert (picture.requests, "the newest ones" in picture.why) == (12, True)


def test_requests_beside_a_prompt_or_beside_unknown_work_do_not_count() -> None:
    prefill = ServedRequest(began=WALL - 30.5, ended=WALL - 5.0, prompt_total_tokens=9000, decode_tokens=1)
    picture = seen(measured([*row_of(8, every_s=20.0), prefill], BASE))
    assert picture.requests == 6, "those that ended 10 and 30 s ago ran beside it"
    made = measured([], BASE)
    for at in range(60):
        tell(made, NOW - 60 + at, slots=Slots((Slot(0, True), Slot(1, at < 30))))
    tell(made, NOW, slots=Slots((Slot(0, False, 8192, True),)))
    add(made, [request(WALL - 56 + 4.0 * place, tokens=391, accepted=200) for place in range(14)])
    assert 5 <= seen(made).requests <= 8


def test_requests_of_the_server_before_or_from_before_an_apply_do_not_count() -> None:
    made = measured(row_of(20), BASE)
    made.log.newest_s, made.log.newest_at = 60.0, NOW
    assert seen(made).requests == 10
    made = measured(row_of(20), BASE)
    made.experiments.records = (record(1, WALL - 70, ended_at=WALL - 60, downtime_s=2.0),)
    assert seen(made).requests == 10


@pytest.mark.parametrize(("made", "needed"), [(baseline(), False), (baseline(low=30.0, high=80.0), True)])
def test_a_wide_interval_needs_what_makes_most_of_it(made: Baseline, needed: bool) -> None:
    assert seen(measured(SPREAD, (made,))).needs_baseline is needed


def test_a_real_log_shows_what_each_type_drafted() -> None:
    (draft,) = seen(read_log(server(), "llama_draft75_lv4")).by_type
    assert (draft.type, draft.drafts_generated, draft.tokens_generated) == ("draft-simple", 36, 282)
    assert draft.tokens_accepted == 202
    assert draft.length == pytest.approx(6.61, abs=0.005), "as the server prints it"


samples = st.lists(
    st.builds(
        lambda ended, rate, tokens, accepted, drafted, prompt: request(
            WALL - ended, rate=rate, tokens=tokens, accepted=accepted, drafted=drafted, prompt_total_tokens=prompt
        ),
        st.floats(0, 2000),
        st.floats(1, 500),
        st.integers(1, 2000),
        st.integers(0, 2000),
        st.integers(0, 2000),
        st.none() | st.integers(0, 100_000),
    ),
    max_size=30,
)


@given(samples, st.booleans(), st.sampled_from([60.0, 300.0, 3600.0]))
def test_whatever_ran_the_picture_is_consistent(
    found: list[ServedRequest], has_baseline: bool, window_s: float
) -> None:
    made = measured(sorted(found, key=lambda one: one.ended), BASE if has_baseline else ())
    picture = seen(made, window_s)
    if picture.value is not None and picture.low is not None and picture.high is not None:
        assert 0 < picture.low <= picture.value <= picture.high
    assert picture.verdict is not HURTING or (picture.high or 1) < 1
    assert picture.verdict is not PAYING or (picture.low or 1) > 1
    if picture.value is not None and picture.break_even_length is not None:
        assert picture.mean_accepted_length == pytest.approx(picture.value * picture.break_even_length)
    assert picture.basis is not MEAS or picture.baseline is not None
    assert picture.why


# The arithmetic


def test_the_published_formula_is_the_upper_bound() -> None:
    # Leviathan et al. 2023: E = (1 - a^(g+1)) / (1 - a), speed-up E / (g c + 1), here for a = 0.8, g = 5, c = 0.1.
    length, drafted, cost = (1 - 0.8**6) / (1 - 0.8), 5, 0.1
    assert leviathan(length, drafted, (0.0, 0.2, 0.8), (cost,) * 3).high == pytest.approx(length / (drafted * cost + 1))


def test_replays_are_among_the_decode_calls_that_tokens_tell() -> None:
    # Counted by a real server (n_decode_total): 60 tokens, 40 accepted in 9 steps, 9 replays, 1 step without a draft.
    effort = effort_of([request(tokens=60, accepted=40, drafted=72)])
    assert effort.drafts.steps == 19


# Which baselines hold for a server, and what they give between and beyond what was recorded


SERVER = DecodingServer(MODEL, 1000, ("b1-abc",), "H100")


@pytest.mark.parametrize(
    ("fields", "server", "reason"),
    [
        ({"model_bytes": 1000, "gpu": "H100"}, SERVER, ""),
        ({"model": "n.gguf"}, SERVER, "no baseline of m.gguf"),
        ({"model_bytes": 999}, SERVER, "another file"),
        ({"engine": "b2-def"}, SERVER, "another engine"),
        ({"gpu": "T4"}, SERVER, "another GPU"),
        # An engine known by name differs from another that calls itself the same.
        ({"engine": "xllamacpp 1"}, DecodingServer(MODEL, engines=("xllamacpp 1", "b0-unknown")), ""),
        ({"engine": "llama-server 2"}, DecodingServer(MODEL, engines=("xllamacpp 1", "b0-unknown")), "another engine"),
        ({"engine": "llama-server 2"}, DecodingServer(MODEL, engines=("b0-unknown",)), ""),
    ],
)
def test_a_baseline_holds_for_its_model_engine_and_gpu(
    fields: dict[str, object], server: DecodingServer, reason: str
) -> None:
    found, why = matching([replace(baseline(), **fields)], server)
    assert (bool(found), reason in why) == (not reason, True)
    assert not why or "specdash baseline record" in why


def test_one_from_before_a_change_of_threads_does_not_hold_until_it_is_changed_back() -> None:
    def changed(number: int, key: str, old: str, new: str) -> ApplyRecord:
        return record(number, WALL + 60 * number, changes=(Change(Role.BACKEND, key, old, new),))

    first, second = changed(0, "LLAMA_THREADS", "4", "8"), changed(1, "LLAMA_THREADS", "8", "4")
    assert "LLAMA_THREADS" in matching([baseline()], SERVER, [first])[1]
    assert matching([baseline()], SERVER, [first, second])[0]
    assert matching([replace(baseline(), at=WALL + 30)], SERVER, [first])[0]
    assert matching([baseline()], SERVER, [changed(0, "LLAMA_DRAFT_MAX", "4", "8")])[0]


LINE = [baseline(448, 1, 50.0), baseline(3948, 1, 25.0), baseline(448, 4, 20.0), baseline(3948, 4, 10.0)]
SLOPE = (1 / 25 - 1 / 50) / 3500
NOISY, ALONE = [baseline(448, 1, 50.0), baseline(948, 1, 52.0)], [baseline(8192)]


@pytest.mark.parametrize(
    ("recorded", "context", "concurrency", "seconds"),
    [
        # Between contexts and concurrencies a token's time lies on a straight line, which goes on a little beyond.
        (LINE, 2250, 1, (1 / 50 + 1 / 25) / 2),
        (LINE, 500, 2, 1 / 50 + (1 / 20 - 1 / 50) / 3),
        (LINE, 100, 1, 1 / 50 - 400 * SLOPE),
        (LINE, 6000, 1, 1 / 25 + 2000 * SLOPE),
        (LINE, 7000, 1, None),
        (LINE, 500, 5, None),
        ([baseline(448, 2)], 500, 1, None),
        # A line that falls is noise and not followed.
        (NOISY, 0, 1, 1 / 50),
        (NOISY, 1500, 1, 1 / 52),
        # A single long context is no measure of short ones.
        (ALONE, 100, 1, None),
        (ALONE, 6000, 1, 1 / 50),
        ([*ALONE, baseline(64)], 100, 1, 1 / 50),
    ],
)
def test_a_reference_lies_between_what_was_recorded_and_a_little_beyond(
    recorded: list[Baseline], context: float, concurrency: int, seconds: float | None
) -> None:
    found = Reference(recorded).at(context, concurrency)
    assert found == (None if seconds is None else pytest.approx(seconds, rel=0.01))


def two_tokens(context: int = 448, rate: float = 40.0, **fields: object) -> Baseline:
    """What completions of two tokens gave now."""
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
    assert matching([baseline(rate=60.0, at=WALL), baseline(rate=40.0)], SERVER)[0] == (baseline(rate=60.0, at=WALL),)


def test_a_baseline_of_this_start_is_surer_and_an_old_one_is_less() -> None:
    def deviation(**known: float) -> float:
        return Reference([now], **known).deviation(now)

    now = two_tokens()
    assert deviation(wall=WALL, started=WALL - 60) < deviation(wall=WALL, started=WALL + 60)
    assert deviation(wall=WALL) < deviation(wall=WALL + 4 * 3600) < deviation(wall=WALL + 8 * 3600)
    assert deviation(wall=WALL + 30 * 86400) == deviation(wall=WALL + 60 * 86400)


# The verdict in words


PAYS = SpeedUpPicture(
    value=1.6,
    low=1.5,
    high=1.71,
    basis=MEAS,
    verdict=PAYING,
    requests=42,
    why="42 requests against the baseline",
    decode_rate=57.6,
    baseline_rate=36.0,
    mean_accepted_length=2.84,
    break_even_length=1.78,
    break_even_acceptance=0.3,
)


def shown(
    speedup: SpeedUpPicture = PAYS,
    drafter: DrafterPicture | None = None,
    drafting: DraftingPicture | None = None,
    log: ReadingStatus | None = None,
    active: bool | None = True,
    **backend: Any,
) -> Picture:
    """A picture of a live server with this speed-up."""
    made = BackendPicture("http://127.0.0.1:8080", **{"state": BackendState.LIVE, **backend})
    made = replace(made, speculation=replace(SpeculationPicture(), active=active))
    views = SpeculationViews(
        drafting=drafting or DraftingPicture(Drafting.YES), drafter=drafter or DrafterPicture(effective_length=4)
    )
    picture = Picture(NOW, WALL, 300.0, made, speedup=speedup, views=views)
    return replace(picture, log=replace(picture.log, status=log)) if log is not None else picture


def interval(value: float, low: float | None, high: float | None, **fields: Any) -> SpeedUpPicture:
    """With the verdict that the interval has."""
    paying = {VerdictKind.PAYS: PAYING, VerdictKind.COSTS: HURTING}.get(judged(low, high), Paying.EVEN)
    return replace(PAYS, **{"value": value, "low": low, "high": high, "verdict": paying, **fields})


WIDE = interval(0.77, 0.33, 2.26, basis=EST, verdict=UNKNOWN)


@pytest.mark.parametrize(
    ("speedup", "more", "headline"),
    [
        (PAYS, {}, "PAYS 1.6×"),
        (interval(1.064, 1.03, 1.1), {}, "PAYS 1.06×"),
        (interval(0.77, 0.7, 0.85), {}, "COSTS 23 %"),
        (interval(1.01, 0.97, 1.04), {}, "NO DIFFERENCE"),
        (interval(0.975, 0.955, 0.99), {}, "NO DIFFERENCE"),
        (interval(1.03, 1.01, 1.05), {}, "NO DIFFERENCE"),
        # What it needs to know more.
        (interval(1.1, 0.9, 1.3), {}, "CAN'T TELL YET (needs more requests)"),
        (interval(1.1, 0.9, 1.3, needs_baseline=True), {}, "CAN'T TELL YET (needs a new baseline)"),
        (interval(1.5, 1.2, 1.9, requests=5, verdict=UNKNOWN), {}, "CAN'T TELL YET (needs 1 more request)"),
        (interval(1.6, None, None, requests=2, verdict=UNKNOWN), {}, "CAN'T TELL YET (needs 4 more requests)"),
        (WIDE, {}, "CAN'T TELL YET (needs a baseline)"),
        (replace(WIDE, requests=0), {}, "CAN'T TELL YET (needs the server's log)"),
        (replace(WIDE, requests=0), {"log": ReadingStatus.KNOWN}, "CAN'T TELL YET (needs a finished request)"),
        (SpeedUpPicture(), {}, "CAN'T TELL YET (needs a finished request)"),
        (SpeedUpPicture(), {"state": BackendState.DOWN}, "CAN'T TELL YET (needs the server)"),
        (SpeedUpPicture(), {"state": BackendState.UNAUTHORIZED}, "CAN'T TELL YET (needs the API key)"),
        (SpeedUpPicture(), {"state": BackendState.LOADING}, "CAN'T TELL YET (needs the model, which is loading)"),
    ],
)
def test_the_interval_gives_the_headline(speedup: SpeedUpPicture, more: dict[str, Any], headline: str) -> None:
    assert verdict(shown(speedup, **more)).headline == headline


FAILED = DraftingPicture(Drafting.FAILED, "the draft model did not load", "name another draft model")
OFF = DraftingPicture(Drafting.OFF, "no speculation type is set")


def test_it_has_its_reason_and_the_next_step() -> None:
    found = verdict(shown())
    assert found.because == "71 % of draft tokens are accepted; 30 % would break even."
    assert found.rates == "57.6 tok/s, 36.0 without speculation"
    assert (found.better, found.command) == ("", "")
    wide = verdict(shown(WIDE))
    assert (wide.step, wide.command) == (VerdictStep.BASELINE, "specdash baseline record")
    assert wide.because == "So far 0.33 to 2.26×, an estimate."
    off = verdict(shown(SpeedUpPicture(), drafting=OFF, active=False))
    assert (off.kind, off.headline) == (VerdictKind.OFF, "NOT SPECULATING")
    assert off.because == "No speculation type is set."
    broken = verdict(shown(SpeedUpPicture(), drafting=FAILED))
    assert (broken.because, broken.better) == ("The draft model did not load.", "name another draft model")


@pytest.mark.parametrize(
    ("value", "length", "gain", "better", "command"),
    [
        (0.9, 1, 0.54, "draft length 1 would be 54 % faster", "specdash apply LLAMA_DRAFT_MAX=1"),
        (1.6, 2, 0.1, "draft length 2 would be 10 % faster", "specdash apply LLAMA_DRAFT_MAX=2"),
        (0.5, 1, 0.2, "without speculation it would be 100 % faster", "specdash apply LLAMA_SPEC_TYPE=none"),
        (0.8, None, None, "without speculation it would be 25 % faster", "specdash apply LLAMA_SPEC_TYPE=none"),
        (1.6, 4, 0.0, "", ""),
        (1.6, 3, 0.01, "", ""),
    ],
)
def test_it_names_what_would_be_better_and_the_command_for_it(
    value: float, length: int | None, gain: float | None, better: str, command: str
) -> None:
    drafter = DrafterPicture(effective_length=4, best_length=length, best_gain=gain)
    found = verdict(shown(interval(value, value - 0.05, value + 0.05), drafter))
    assert (found.better, found.command) == (better, command)


@given(st.floats(0.2, 3.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.sampled_from(Paying))
def test_every_reader_has_the_same_verdict(value: float, below: float, above: float, kept: Paying) -> None:
    made = interval(value, value * (1 - below), value * (1 + above), **({"verdict": kept} if kept is UNKNOWN else {}))
    picture = shown(made)
    words, named = verdict(picture).headline, speedup_json(picture)["verdict"]
    assert words.startswith("PAYS") is (named == "paying")
    assert words.startswith("COSTS") is (named == "hurting")
    assert words != "NO DIFFERENCE" or named == "no clear gain"
    assert kind_of(picture.speedup) is verdict(picture).kind


def test_without_metrics_and_log_it_names_what_is_missing() -> None:
    slots = Slots((Slot(0, False, 4096, True, speculative_types=("draft-mtp",)),))
    made = tell(server(), NOW - 1, health=OK, slots=slots, metrics=(FailureKind.DISABLED, "no metrics here"))
    picture = made.picture(NOW, WALL)
    assert verdict(picture).headline == "CAN'T TELL YET (needs --metrics or the server's log)"
    assert picture.views.drafter.verdict == "Drafts cannot be seen: it needs --metrics or the server's log."
    assert "cannot be seen without --metrics or the server's log" in picture.views.drafting.because
