"""One spelling each for numbers, shares, times, sizes, moments and tables; what is unknown is never a zero."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.system import text

FINITE = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e15, max_value=1e15)
SPANS = st.floats(min_value=0, max_value=1e9)


@given(FINITE, st.integers(0, 3))
def test_what_rounds_to_zero_has_no_minus_sign(value: float, digits: int) -> None:
    small = value / 1e22
    for shown in (text.number(small, digits), text.percent(small, digits), text.change(small, digits, ""),
                  text.compact(small), text.size(small)):  # fmt: skip
        assert "-" not in shown, shown
    assert float(text.number(value, digits).replace(",", "")) == pytest.approx(value, rel=1e-12, abs=0.51 * 10**-digits)


def test_what_is_unknown_is_never_a_number() -> None:
    plain = (text.number, text.significant, text.rate, text.compact, text.context, text.percent, text.change,
             text.times, text.size, text.duration, text.about, text.age, text.ago, text.seconds)  # fmt: skip
    assert [function(None) for function in plain] == ["--"] * len(plain)
    nowhere = float("nan")
    assert text.number(nowhere) == text.percent(nowhere) == text.duration(nowhere) == text.seconds(nowhere) == "--"
    assert text.gain(None, 0.1, 0.2) == text.size_pair(None, None) == "--"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_no_figure_is_written_that_is_none(value: float) -> None:
    figures: tuple[Callable[[float], str], ...] = (
        *(
            text.plain,
            text.number,
            text.significant,
            text.rate,
            text.compact,
            text.billions,
            text.context,
            text.percent,
        ),
        *(text.change, text.times, text.size, text.duration, text.about, text.age, text.ago, text.seconds),
        *(text.window, text.clock, text.timestamp, text.utc_timestamp, text.file_timestamp),
    )
    pairs = (
        *(text.size_pair(value, 1e9), text.size_pair(1e9, value)),
        *(text.gain(0.1, value, value), text.gain(value, 0.1, 0.2), text.moment(value, 0.0)),
    )
    for shown in (*(function(value) for function in figures), *pairs):
        assert not re.search("nan|inf", shown, re.IGNORECASE), shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (57.61234567, "57.6123"),
        (1_234_567.89, "1234568"),
        (1e15, "1000000000000000"),
        (123_456.0, "123456"),
        (0.00001234567, "0.000012345670"[:-1]),
        (0, "0"),
        (1e-30, "0"),
    ],
)
def test_a_number_for_programs_has_no_exponent(value: float, shown: str) -> None:
    assert text.decimal(value) == shown


def test_a_number_has_its_decimals_its_unit_and_groups_of_thousands() -> None:
    assert (text.number(1234.56), text.number(0.666, 2), text.number(51.24, 1, "W")) == ("1,235", "0.67", "51.2 W")
    assert (text.significant(57.612, 4), text.significant(25_031.4), text.significant(0.05, 4)) == (
        "57.61", "25,031", "0.05")  # fmt: skip
    assert (text.billions(8e8), text.billions(35e9), text.billions(1.2e6)) == ("0.8B", "35B", "1.20M")


@pytest.mark.parametrize(
    ("share", "shown", "bounded"),
    [(0.0, "0 %", "0 %"), (0.00001, "0 %", "under 0.01 %"), (0.0042, "0 %", "0.42 %"), (0.5, "50 %", "50 %"),
     (0.9961, "100 %", "over 99 %"), (1.0, "100 %", "100 %")],
)  # fmt: skip
def test_a_bounded_share_is_all_or_nothing_only_if_it_is(share: float, shown: str, bounded: str) -> None:
    assert text.percent(share) == shown
    assert text.percent(share, unit="%") == shown.replace(" ", "")
    assert text.percent(share, bounded=True) == bounded


@given(st.floats(0, 1))
def test_every_bounded_share_is(share: float) -> None:
    words = text.percent(share, bounded=True)
    assert (words == "0 %") == (share == 0)
    assert (words == "100 %") == (share == 1)


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.1234, "+12.3 %"), (-0.05, "-5.0 %"), (0.0, "+0.0 %"), (-0.0001, "+0.0 %"), (float("nan"), "--"),
     (26.77, "more than ×10"), (float("inf"), "more than ×10")],
)  # fmt: skip
def test_a_change_is_a_percentage_or_more_than_ten_times(share: float, words: str) -> None:
    assert text.change(share) == words


def test_a_gain_has_its_interval_behind_it() -> None:
    assert text.gain(0.118, 0.06, 0.179) == "+11.8 % [+6.0, +17.9]"
    assert text.gain(0.118, 0.06, 0.179, 0, "pp") == "+12pp [+6, +18]"
    assert text.gain(-0.05, None, None) == "-5.0 %"


@given(st.none() | st.floats(allow_nan=True, allow_infinity=True), st.integers(0, 3))
def test_no_change_is_written_with_four_digits_before_the_point(share: float | None, digits: int) -> None:
    for words in (text.change(share, digits), text.gain(share, share, share, digits)):
        assert all(float(entry) < 1000 for entry in re.findall(r"\+(\d+(?:\.\d+)?)", words)), words


@given(st.floats(min_value=0, max_value=1e17), st.booleans())
def test_no_size_has_a_thousand_of_a_unit(count: float, exact: bool) -> None:
    shown, unit = text.size(count, exact=exact).split()
    assert float(shown) < 1000
    assert float(shown) * 1024 ** ("B", "KiB", "MiB", "GiB", "TiB", "PiB").index(unit) == pytest.approx(
        count, rel=0.06, abs=0.51
    )


@pytest.mark.parametrize(
    ("seconds", "words", "about"),
    [(0.4, "0 s", "under 1 s"), (59.4, "59 s", "59 s"), (185, "3 min 5 s", "3 min"), (7800, "2 h 10 min", "2.2 h"),
     (3600, "1 h", "60 min"), (360_000, "4 d 4 h", "4.2 d")],
)  # fmt: skip
def test_durations_are_told_in_one_or_two_units(seconds: float, words: str, about: str) -> None:
    assert text.duration(seconds) == words
    assert text.about(seconds) == about


@given(SPANS)
def test_no_unit_of_time_is_full(seconds: float) -> None:
    most = {"s": 59, "min": 59, "h": 23, "d": 10**6}
    units = {unit: int(count) for count, unit in re.findall(r"(\d+) (\w+)", text.duration(seconds))}
    assert all(count <= most[unit] for unit, count in units.items())
    worth = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
    told = sum(count * worth[unit] for unit, count in units.items())
    assert seconds - max(60, 0.04 * seconds) <= told <= seconds + 0.51
    # A clock never shows a second that is not over.
    short = {unit: int(count) for count, unit in re.findall(r"(\d+)([smhd])", text.duration(seconds, short=True))}
    assert sum(count * worth["min" if unit == "m" else unit] for unit, count in short.items()) <= seconds


def test_how_long_ago_in_a_sentence() -> None:
    assert [text.ago(seconds) for seconds in (0, 90, 200, 7200)] == [
        "under 1 s ago", "90 s ago", "3 min ago", "2.0 h ago"]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "shown", "fine"),
    [(0.00821, "0.01 s", "8.21 ms"), (0.0668, "0.07 s", "66.8 ms"), (0.9996, "1.00 s", "1.00 s"),
     (8.214, "8.21 s", "8.21 s"), (74.06, "74.1 s", "74.1 s"), (123.4, "123.4 s", "123 s"), (910, "15m10s", "910 s")],
)  # fmt: skip
def test_measured_times_have_about_three_digits(value: float, shown: str, fine: str) -> None:
    assert (text.seconds(value), text.seconds(value, ms=True)) == (shown, fine)


@given(SPANS)
def test_a_narrow_time_leaves_room_beside_it(value: float) -> None:
    assert len(text.seconds(min(value, 9999.0), ms=True, narrow=True)) <= 6


def test_a_chosen_span_is_short() -> None:
    assert [text.window(seconds) for seconds in (0.5, 2, 60, 90, 900, 3600)] == ["0.5s", "2s", "1m", "90s", "15m", "1h"]


@pytest.mark.usefixtures("utc")
def test_moments_have_one_form_for_each_use() -> None:
    at = 1_795_313_625.4
    assert (text.clock(at), text.clock(at, seconds=False)) == ("02:13:45", "02:13")
    assert text.timestamp(at) == "2026-11-22 02:13:45"
    assert text.timestamp(at, year=False, seconds=False) == "11-22 02:13"
    assert text.timestamp(at, utc=True, seconds=False) == "2026-11-22 02:13 UTC"
    assert (text.moment(at, at + 60), text.moment(at, at + 86_400)) == ("02:13:45", "11-22 02:13:45")
    assert text.utc_timestamp(at) == "2026-11-22T02:13:45Z"
    assert (text.file_timestamp(at), text.file_timestamp(at, utc=True)) == ("20261122-021345", "20261122T021345Z")
    assert [text.scale_time(at, *span) for span in ((60, 10), (3600, 60), (200_000, 3600))] == [
        "02:13:45", "02:13", "11-22 02:13"]  # fmt: skip
    assert text.clock(1e300) == "--"


def test_counts_agree_with_their_nouns() -> None:
    assert (text.counted(1, "boot"), text.counted(0, "boot"), text.counted(1200, "boot")) == (
        "1 boot", "0 boots", "1,200 boots")  # fmt: skip
    assert text.counted(2, "prompt was", "prompts were") == "2 prompts were"
    assert [text.ordinal(count) for count in (1, 2, 3, 4, 11, 12, 13, 21, 102, 111)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th"]  # fmt: skip


@given(st.text(max_size=30), st.integers(0, 30))
def test_shortened_text_has_at_most_its_length(words: str, limit: int) -> None:
    assert len(text.shortened(words, limit)) <= limit
    assert text.shortened(words, len(words)) == words


def test_columns_of_a_table_stand_under_each_other() -> None:
    rows = [("name", "count", "note"), ("a", "5", ""), ("long name", "12", "x")]
    assert text.table(rows, indent="  ", right={1}) == [
        "  name       count  note", "  a              5", "  long name     12  x"]  # fmt: skip
    assert text.table([]) == []


@given(st.lists(st.lists(st.text(max_size=8), min_size=3, max_size=3), min_size=1, max_size=4))
def test_no_cell_ends_its_row_of_a_markdown_table(rows: list[list[str]]) -> None:
    lines = text.markdown_table(rows).splitlines()
    assert len(lines) == len(rows) + 1
    assert lines[1] == "|---|---|---|"
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 4 for line in lines)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "--"), (0.0, "0.00"), (8.416, "8.42"), (45.12, "45.1"), (1234.0, "1,234"), (12_345.0, "12.3k")],
)
def test_a_rate_has_three_significant_digits_and_unknown_is_never_zero(value: float | None, shown: str) -> None:
    assert text.rate(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (999, "999"), (12_345, "12.3k"), (999_950, "1.00M"), (1_161_371, "1.16M"), (-2_000, "-2.00k")],
)
def test_a_compact_count_keeps_three_digits(value: float, shown: str) -> None:
    assert text.compact(value) == shown


@given(st.floats(min_value=0, max_value=1e17))
def test_a_compact_count_takes_at_most_five_cells(value: float) -> None:
    assert len(text.compact(value)) <= 5


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "--"), (0.4, "now"), (12, "12s"), (90, "90s"), (120, "2m"), (3600, "1h"), (90_000, "1d")],
)
def test_an_age_is_one_number_and_one_unit(seconds: float | None, shown: str) -> None:
    assert text.age(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(None, "--"), (42, "42s"), (308, "5m08s"), (11_530, "3h12m"), (1_051_200, "12d04h")]
)
def test_a_duration_shows_its_two_largest_units(seconds: float | None, shown: str) -> None:
    assert text.duration(seconds, short=True) == shown


def test_sizes_are_binary_and_a_pair_shares_its_unit() -> None:
    gib = 1024**3
    assert text.size(None) == "--"
    assert text.size(3.25 * gib) == "3.2 GiB"
    assert text.size_pair(21.3 * gib, 24 * gib) == "21.3/24.0 GiB"
    assert text.size_pair(None, 24 * gib) == "--/24.0 GiB"


@given(st.text(alphabet=st.characters(), max_size=200))
def test_cleaned_text_holds_nothing_a_terminal_would_obey(foreign: str) -> None:
    cleaned = text.clean(foreign)
    assert not any(ord(char) < 0x20 or 0x7F <= ord(char) <= 0x9F or 0xD800 <= ord(char) <= 0xDFFF for char in cleaned)
    assert not any(0x202A <= ord(char) <= 0x202E for char in cleaned)
    cleaned.encode("utf-8")


def test_escape_sequences_vanish_whole_and_markup_stays_as_it_is() -> None:
    assert text.clean("\x1b[31mred\x1b[0m \x1b]0;title\x07[bold]x[/]") == "red [bold]x[/]"


def test_a_line_of_ten_megabytes_is_cut() -> None:
    assert len(text.clean("x" * 10_000_000, 500)) == 500
