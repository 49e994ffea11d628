"""GET /metrics becomes typed counters: every name llama-server prints, and nothing that it does not."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins

from specdash.core.readings import Counters
from specdash.llama.server_answers import FIELD_OF_METRIC, MAX_POSITIONS, PREFIX, ParseError, parse_metrics

DATA = Path(__file__).parents[1] / "data" / "http"


def test_a_real_scrape_is_understood_whole() -> None:
    counters = parse_metrics((DATA / "metrics_after_1.txt").read_bytes())
    positions = counters.accepted_per_position or ()
    assert (len(positions), sum(positions)) == (64, counters.accepted_tokens)
    assert to_builtins(counters).items() >= {
        "prompt_tokens": 482, "prompt_seconds": 0.025794, "predicted_tokens": 1500, "predicted_seconds": 1.47132,
        "decode_calls": 35, "tokens_max": 1981, "draft_tokens": 1492, "accepted_tokens": 1465,
        "verification_steps": 34, "predicted_tokens_per_second": 1018.81, "busy_slots_per_decode": 1,
    }.items()  # fmt: skip
    assert counters.unrecognised == ()


def test_a_fresh_server_has_counters_of_zero_and_no_positions() -> None:
    counters = parse_metrics((DATA / "metrics_fresh.txt").read_bytes())
    assert (counters.draft_tokens, counters.accepted_per_position) == (0, None)


POSITIONS = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
CALLS = "llamacpp:n_decode_total"


@pytest.mark.parametrize(
    ("body", "counters"),
    [
        (f"{CALLS} 3\n", Counters(decode_calls=3)),
        (f"{CALLS} 3\r\nllamacpp:n_tokens_max 9\r\n", Counters(decode_calls=3, tokens_max=9)),
        (f"{CALLS} 3\n" * 2, Counters(decode_calls=3)),
        # In any order, and a gap was never counted; exact where a float would round.
        (
            f'{POSITIONS}{{position="3"}} 1\n{POSITIONS}{{position="0"}} 9\n{POSITIONS}{{position="1"}} 5\n',
            Counters(accepted_per_position=(9, 5, 0, 1)),
        ),
        (f'{POSITIONS}{{position="0"}} 9007199254740993\n', Counters(accepted_per_position=(9007199254740993,))),
        *(
            (f'{POSITIONS}{{position="{unbelievable}"}} 1\n{CALLS} 1\n', Counters(decode_calls=1))
            for unbelievable in (MAX_POSITIONS, 999999999999, -1, "x", "")
        ),
        # Labels and time stamps.
        (
            f'{CALLS}{{model="a }} b",note="say \\"hi\\""}} 5 1700000000\n{POSITIONS}{{model="m",position="0"}} 2\n',
            Counters(decode_calls=5, accepted_per_position=(2,)),
        ),
        # A speed that the server divided by no time; names of others, and unknown ones of its own.
        (f"llamacpp:predicted_tokens_seconds inf\n{CALLS} 3\n", Counters(decode_calls=3)),
        (f"# HELP {CALLS} 99\npython_gc 4\n{CALLS} 3\n", Counters(decode_calls=3)),
        (
            'llamacpp:zeta 1\nllamacpp:kv_cache_tokens{a="1"} 2\nllamacpp:zeta 3\n',
            Counters(unrecognised=("kv_cache_tokens", "zeta")),
        ),
    ],
)
def test_a_scrape_becomes_counters_and_what_is_not_there_is_unknown(body: str, counters: Counters) -> None:
    assert parse_metrics(body) == counters


WRONG = ["NaN", "+Inf", "inf", "oops", "-1", "1e300", "1_000"]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        *((f"{CALLS} {number}\n", "n_decode_total is no number from zero on") for number in WRONG),
        *((f'{POSITIONS}{{position="0"}} {number}\n', "no number from zero on") for number in WRONG),
        (f"{CALLS} 3\n{CALLS} 4\n", "n_decode_total is there twice"),
        *((body, "no llamacpp: metric") for body in ("", "<html>llamacpp: no</html>", "# HELP llamacpp:x 1\n")),
        (b"\x00\xff" * 99, "no llamacpp: metric in 198 bytes"),
        (f"{CALLS} 3\nllamacpp:x{{" + 'a="\\' * 1_000_000, "without a value"),
    ],
    ids=lambda value: repr(value[:40]),
)
def test_one_thing_that_cannot_be_makes_the_whole_scrape_an_error(body: bytes | str, error: str) -> None:
    with pytest.raises(ParseError, match=error):
        parse_metrics(body)


@given(st.integers(1, 10**6))
def test_a_scrape_that_is_cut_off_within_a_line_is_an_error(place: int) -> None:
    whole = (DATA / "metrics_after_1.txt").read_bytes()
    part = whole[: place % len(whole)]
    if not part.endswith(b"\n"):
        with pytest.raises(ParseError):
            parse_metrics(part)


@given(
    st.dictionaries(st.sampled_from(sorted(FIELD_OF_METRIC)), st.integers(0, 999_999), min_size=1),
    st.lists(st.integers(0, 10**15), max_size=64),
    st.randoms(use_true_random=False),
)
def test_what_is_printed_is_what_is_read(values: dict[str, int], series: list[int], order: random.Random) -> None:
    by_field = {FIELD_OF_METRIC[name]: (name, value) for name, value in values.items()}
    lines = [f"{PREFIX}{name} {value}" for name, value in by_field.values()]
    lines += [
        f'{PREFIX}spec_decode_num_accepted_tokens_per_pos_total{{position="{position}"}} {count}'
        for position, count in enumerate(series)
    ]
    order.shuffle(lines)
    counters = parse_metrics("\n".join(lines) + "\n")
    assert counters == Counters(
        **{field: float(value) for field, (_, value) in by_field.items()},  # type: ignore[arg-type]
        accepted_per_position=tuple(series) or None,
    )
