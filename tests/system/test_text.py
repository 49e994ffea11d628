"""One spelling each for numbers, shares, times, sizes, moments and tables; what is unknown is never a zero."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.system import text

FINITE = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e15, max_value=1e15)
SPANS = st.floats(min_value=0, max_value=1e9)
COUNTS = st.floats(min_value=0, max_value=1e17)
GIB = 1024**3
AT = 1_795_313_625.4
FIGURES: tuple[Callable[[float | None], str], ...] = (
    text.plain, text.number, text.significant, text.rate, text.compact, text.context, text.percent, text.change,
    text.times, text.size, text.duration, text.age, text.seconds,
)  # fmt: skip


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (text.number(1234.56), "1,235"),
        (text.number(0.666, 2), "0.67"),
        (text.number(51.24, 1, "W"), "51.2 W"),
        (text.significant(57.612, 4), "57.61"),
        (text.significant(25_031.4), "25,031"),
        (text.rate(0.0), "0.00"),
        (text.rate(12_345.0), "12.3k"),
        (text.compact(999_950), "1.00M"),
        (text.compact(-2_000), "-2.00k"),
        (text.billions(8e8), "0.8B"),
        (text.billions(1.2e6), "1.20M"),
        (text.context(12904), "12.6k"),
        (text.percent(0.672), "67 %"),
        (text.percent(0.9961), "100 %"),
        (text.percent(0.9961, bounded=True), "over 99 %"),
        (text.percent(0.0042, unit="%", bounded=True), "0.42%"),
        (text.percent(0.00001, bounded=True), "under 0.01 %"),
        (text.change(-0.0001), "+0.0 %"),
        (text.change(float("inf")), "more than ×10"),
        (text.gain(0.118, 0.06, 0.179), "+11.8 % [+6.0, +17.9]"),
        (text.gain(-0.05, None, None), "-5.0 %"),
        (text.times(1.837), "x1.84"),
        (text.size(7.429 * GIB, exact=True), "7.43 GiB"),
        (text.size_pair(21.3 * GIB, 24 * GIB), "21.3/24.0 GiB"),
        (text.size_pair(None, 24 * GIB), "--/24.0 GiB"),
        (text.size_pair(GIB / 2, 24 * GIB), "512 MiB/24.0 GiB"),
        (text.duration(185), "3 min 5 s"),
        (text.duration(3600), "1 h"),
        (text.duration(308, short=True), "5m08s"),
        (text.duration(1_051_200, short=True), "12d04h"),
        (text.duration(900, short=True), "15m"),
        (text.age(0.4), "now"),
        (text.age(90), "90s"),
        (text.age(90_000), "1d"),
        (text.seconds(0.0), "0.00 s"),
        (text.seconds(0.0668), "66.8 ms"),
        (text.seconds(0.9996), "1.00 s"),
        (text.seconds(910), "15m10s"),
        (text.counted(1, "boot"), "1 boot"),
        (text.counted(1200, "boot"), "1,200 boots"),
        (text.counted(2, "prompt was", "prompts were"), "2 prompts were"),
        (text.clean("\x1b[31mred\x1b[0m \x1b]0;title\x07[bold]x[/]"), "red [bold]x[/]"),
    ],
)
def test_each_figure_has_one_spelling(written: str, shown: str) -> None:
    assert written == shown


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), float("-inf")])
def test_what_is_unknown_is_never_a_number(value: float | None) -> None:
    shown = [figure(value) for figure in FIGURES if not (figure is text.change and value == float("inf"))]
    assert set(shown) == {"--"}
    assert not re.search("nan|inf", text.gain(value, 0.1, 0.2) + text.gain(0.1, value, value))
    if value is not None:
        moments = (text.clock, text.timestamp, text.file_timestamp)
        assert {moment(value) for moment in moments} == {"--"}
        assert not re.search("nan|inf", text.size_pair(value, 1e9) + text.size_pair(1e9, value) + text.billions(value))


@given(FINITE, st.integers(0, 3))
def test_what_rounds_to_zero_has_no_minus_sign(value: float, digits: int) -> None:
    small = value / 1e22
    for shown in (text.number(small, digits), text.percent(small, digits), text.change(small, digits, ""),
                  text.compact(small), text.size(small)):  # fmt: skip
        assert "-" not in shown, shown
    assert float(text.number(value, digits).replace(",", "")) == pytest.approx(value, rel=1e-12, abs=0.51 * 10**-digits)


@given(st.floats(0, 1))
def test_a_bounded_share_is_all_or_nothing_only_if_it_is(share: float) -> None:
    words = text.percent(share, bounded=True)
    assert (words == "0 %") == (share == 0)
    assert (words == "100 %") == (share == 1)


@given(st.none() | st.floats(allow_nan=True, allow_infinity=True), st.integers(0, 3))
def test_no_change_is_written_with_four_digits_before_the_point(share: float | None, digits: int) -> None:
    for words in (text.change(share, digits), text.gain(share, share, share, digits)):
        assert all(float(entry) < 1000 for entry in re.findall(r"\+(\d+(?:\.\d+)?)", words)), words


@given(COUNTS, st.booleans())
def test_no_size_has_a_thousand_of_a_unit_and_a_count_takes_at_most_five_cells(count: float, exact: bool) -> None:
    shown, unit = text.size(count, exact=exact).split()
    assert float(shown) < 1000
    assert float(shown) * 1024 ** ("B", "KiB", "MiB", "GiB", "TiB", "PiB").index(unit) == pytest.approx(
        count, rel=0.06, abs=0.51
    )
    assert len(text.compact(count)) <= 5


@given(SPANS)
def test_no_unit_of_time_is_full_and_a_clock_shows_no_second_that_is_not_over(seconds: float) -> None:
    worth, most = {"s": 1, "min": 60, "h": 3600, "d": 86_400}, {"s": 59, "min": 59, "h": 23, "d": 10**6}
    units = {unit: int(count) for count, unit in re.findall(r"(\d+) (\w+)", text.duration(seconds))}
    assert all(count <= most[unit] for unit, count in units.items())
    shown = sum(count * worth[unit] for unit, count in units.items())
    assert seconds - max(60, 0.04 * seconds) <= shown <= seconds + 0.51
    short = {unit: int(count) for count, unit in re.findall(r"(\d+)([smhd])", text.duration(seconds, short=True))}
    assert sum(count * worth["min" if unit == "m" else unit] for unit, count in short.items()) <= seconds
    assert len(text.seconds(min(seconds, 9999.0))) <= 7


@pytest.mark.usefixtures("utc")
def test_moments_have_one_form_for_each_use() -> None:
    assert (text.clock(AT), text.clock(AT, seconds=False)) == ("02:13:45", "02:13")
    assert text.timestamp(AT) == "2026-11-22 02:13:45"
    assert text.timestamp(AT, year=False, seconds=False) == "11-22 02:13"
    assert text.timestamp(AT, utc=True, seconds=False) == "2026-11-22 02:13 UTC"
    assert (text.moment(AT, AT + 60), text.moment(AT, AT + 86_400)) == ("02:13:45", "11-22 02:13:45")
    assert (text.file_timestamp(AT), text.file_timestamp(AT, utc=True)) == ("20261122-021345", "20261122T021345Z")
    assert [text.scale_time(AT, span) for span in (60, 200_000)] == ["02:13", "11-22 02:13"]


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


@given(st.text(alphabet=st.characters(), max_size=200), st.integers(0, 30))
def test_cleaned_text_holds_nothing_a_terminal_would_obey_and_cut_text_has_its_length(foreign: str, limit: int) -> None:
    cleaned = text.clean(foreign)
    assert not any(ord(char) < 0x20 or 0x7F <= ord(char) <= 0x9F or 0xD800 <= ord(char) <= 0xDFFF for char in cleaned)
    assert not any(0x202A <= ord(char) <= 0x202E for char in cleaned)
    cleaned.encode("utf-8")
    assert len(text.shortened(foreign, limit)) <= limit
    assert text.shortened(foreign, len(foreign)) == foreign
    assert len(text.clean(foreign * 100_000, 500)) <= 500
