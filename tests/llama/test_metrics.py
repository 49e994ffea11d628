"""GET /metrics becomes typed counters: every name llama-server prints, and nothing that it does not."""

import contextlib
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
    told = {name: value for name, value in to_builtins(counters).items() if value}
    assert told.items() >= {
        "prompt_tokens": 482, "prompt_seconds": 0.025794, "predicted_tokens": 1500, "predicted_seconds": 1.47132,
        "decode_calls": 35, "tokens_max": 1981, "draft_tokens": 1492, "accepted_tokens": 1465,
        "verification_steps": 34, "predicted_tokens_per_second": 1018.81, "busy_slots_per_decode": 1,
    }.items()  # fmt: skip
    assert counters.unrecognised == ()


def test_a_fresh_server_has_counters_of_zero_and_no_positions() -> None:
    counters = parse_metrics((DATA / "metrics_fresh.txt").read_bytes())
    assert counters.draft_tokens == 0
    assert counters.accepted_per_position is None


POSITIONS = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
SPECULATIVE = """llamacpp:spec_decode_num_draft_tokens_total 10
llamacpp:spec_decode_num_accepted_tokens_total 7
llamacpp:spec_decode_num_drafts_total 4
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 4
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 3
"""


@pytest.mark.parametrize(
    ("body", "counters"),
    [
        ("llamacpp:n_decode_total 3\n", Counters(decode_calls=3)),
        ("llamacpp:n_decode_total 3\r\nllamacpp:n_tokens_max 9\r\n", Counters(decode_calls=3, tokens_max=9)),
        ("llamacpp:n_decode_total 3\n" * 2, Counters(decode_calls=3)),
        (
            SPECULATIVE,
            Counters(draft_tokens=10, accepted_tokens=7, verification_steps=4, accepted_per_position=(4, 3)),
        ),
        # In any order, and a gap was never counted; exact where a float would round.
        (
            f'{POSITIONS}{{position="3"}} 1\n{POSITIONS}{{position="0"}} 9\n{POSITIONS}{{position="1"}} 5\n',
            Counters(accepted_per_position=(9, 5, 0, 1)),
        ),
        (f'{POSITIONS}{{position="0"}} 9007199254740993\n', Counters(accepted_per_position=(9007199254740993,))),
        # Labels and time stamps.
        (
            (
                'llamacpp:n_decode_total{model="a } b",note="say \\"hi\\""} 5 1700000000\n'
                f'{POSITIONS}{{model="m",position="0"}} 2\n'
            ),
            Counters(decode_calls=5, accepted_per_position=(2,)),
        ),
        # A speed that the server divided by no time; names of others, and unknown ones of its own.
        ("llamacpp:predicted_tokens_seconds inf\nllamacpp:n_decode_total 3\n", Counters(decode_calls=3)),
        ("# HELP llamacpp:n_decode_total 99\npython_gc 4\nllamacpp:n_decode_total 3\n", Counters(decode_calls=3)),
        (
            'llamacpp:zeta 1\nllamacpp:kv_cache_tokens{a="1"} 2\nllamacpp:zeta 3\n',
            Counters(unrecognised=("kv_cache_tokens", "zeta")),
        ),
    ],
)
def test_a_scrape_becomes_counters_and_what_is_not_there_is_unknown(body: str, counters: Counters) -> None:
    assert parse_metrics(body) == counters


@pytest.mark.parametrize("position", [str(MAX_POSITIONS), "999999999999", "-1", "x", ""])
def test_an_unbelievable_position_is_left_out(position: str) -> None:
    counters = parse_metrics(
        f'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{{position="{position}"}} 1\n'
        "llamacpp:n_decode_total 1\n"
    )
    assert counters.accepted_per_position is None


IMPOSSIBLE = ["NaN", "nan", "+Inf", "-Inf", "inf", "oops", "-1", "1e300", "1_000"]


@pytest.mark.parametrize("written", IMPOSSIBLE)
@pytest.mark.parametrize("name", ["n_decode_total", 'spec_decode_num_accepted_tokens_per_pos_total{position="0"}'])
def test_one_number_that_cannot_be_makes_the_whole_scrape_an_error(name: str, written: str) -> None:
    with pytest.raises(ParseError, match="no number from zero on") as error:
        parse_metrics(f"llamacpp:prompt_tokens_total 5\nllamacpp:{name} {written}\n")
    assert written not in str(error.value).split()


def test_a_metric_that_is_there_twice_must_say_the_same() -> None:
    with pytest.raises(ParseError, match="n_decode_total is there twice"):
        parse_metrics("llamacpp:n_decode_total 3\nllamacpp:n_decode_total 4\n")


@given(st.integers(1, 10**6))
def test_a_scrape_that_is_cut_off_within_a_line_is_an_error(place: int) -> None:
    whole = (DATA / "metrics_after_1.txt").read_bytes()
    part = whole[: place % len(whole)]
    if not part.endswith(b"\n"):
        with pytest.raises(ParseError):
            parse_metrics(part)


@pytest.mark.parametrize("body", ["", b"", "<html>llamacpp: no</html>", b"\x00\xff" * 99, "# HELP llamacpp:x 1\n"])
def test_a_body_without_any_llamacpp_line_is_an_error(body: bytes | str) -> None:
    with pytest.raises(ParseError):
        parse_metrics(body)


def test_a_broken_label_set_as_long_as_a_body_may_be_is_no_trap() -> None:
    with pytest.raises(ParseError):
        parse_metrics("llamacpp:x{" + 'a="\\' * 1_000_000)


@given(st.lists(st.from_regex(r"llamacpp:[a-z_]{0,9}(\{[^\n]{0,20}\})?[ \t]*[^\n]{0,12}", fullmatch=True)))
def test_nothing_but_the_documented_error_is_raised_for_lines_that_look_right(lines: list[str]) -> None:
    with contextlib.suppress(ParseError):
        parse_metrics("\n".join(lines))


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
