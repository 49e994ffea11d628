"""Numbers, units, ages and foreign text as the screen shows them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from specdash.tui import formatting as fmt


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "--"), (0.0, "0.00"), (8.416, "8.42"), (45.12, "45.1"), (1234.0, "1,234"), (12_345.0, "12.3k")],
)
def test_a_rate_has_three_significant_digits_and_unknown_is_never_zero(value: float | None, shown: str) -> None:
    assert fmt.rate(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (999, "999"), (12_345, "12.3k"), (999_950, "1.00M"), (1_161_371, "1.16M"), (-2_000, "-2.00k")],
)
def test_a_compact_count_keeps_three_digits(value: float, shown: str) -> None:
    assert fmt.compact(value) == shown


@given(st.floats(min_value=0, max_value=1e17))
def test_a_compact_count_takes_at_most_five_cells(value: float) -> None:
    assert len(fmt.compact(value)) <= 5


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "--"), (0.4, "now"), (12, "12s"), (90, "90s"), (120, "2m"), (3600, "1h"), (90_000, "1d")],
)
def test_an_age_is_one_number_and_one_unit(seconds: float | None, shown: str) -> None:
    assert fmt.age(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(None, "--"), (42, "42s"), (308, "5m08s"), (11_530, "3h12m"), (1_051_200, "12d04h")]
)
def test_a_duration_shows_its_two_largest_units(seconds: float | None, shown: str) -> None:
    assert fmt.duration(seconds) == shown


def test_sizes_are_binary_and_a_pair_shares_its_unit() -> None:
    gib = 1024**3
    assert fmt.size(None) == "--"
    assert fmt.size(3.25 * gib) == "3.2 GiB"
    assert fmt.size_pair(21.3 * gib, 24 * gib) == "21.3/24.0 GiB"
    assert fmt.size_pair(None, 24 * gib) == "--/24.0 GiB"


@given(st.text(max_size=60), st.integers(min_value=0, max_value=40), st.booleans())
def test_fitted_text_takes_exactly_its_cells(text: str, width: int, right: bool) -> None:
    assert cell_len(fmt.fit(fmt.clean(text), width, right=right)) == width


@given(st.text(alphabet=st.characters(), max_size=200))
def test_cleaned_text_holds_nothing_a_terminal_would_obey(text: str) -> None:
    cleaned = fmt.clean(text)
    assert not any(ord(char) < 0x20 or 0x7F <= ord(char) <= 0x9F or 0xD800 <= ord(char) <= 0xDFFF for char in cleaned)
    assert not any(0x202A <= ord(char) <= 0x202E for char in cleaned)
    cleaned.encode("utf-8")


def test_escape_sequences_vanish_whole_and_markup_stays_as_it_is() -> None:
    assert fmt.clean("\x1b[31mred\x1b[0m \x1b]0;title\x07[bold]x[/]") == "red [bold]x[/]"


def test_a_line_of_ten_megabytes_is_cut() -> None:
    assert len(fmt.clean("x" * 10_000_000, 500)) == 500


@given(st.floats(min_value=0, max_value=1), st.integers(min_value=0, max_value=60), st.booleans())
def test_a_bar_and_its_rest_fill_the_width(share: float, width: int, ascii_only: bool) -> None:
    filled, rest = fmt.bar(share, width, ascii_only=ascii_only)
    assert len(filled) + len(rest) == width


@given(st.floats(min_value=0, max_value=1), st.integers(min_value=0, max_value=20), st.booleans())
def test_an_upright_bar_has_one_character_a_row(share: float, height: int, ascii_only: bool) -> None:
    assert len(fmt.column_bar(share, height, ascii_only=ascii_only)) == height


def test_an_unknown_share_draws_no_bar() -> None:
    assert fmt.bar(None, 10) == ("", " " * 10)


@given(st.floats(min_value=1e-6, max_value=1e12))
def test_the_top_of_a_chart_is_round_and_close_above_the_data(value: float) -> None:
    top = fmt.nice_ceiling(value)
    assert value <= top * (1 + 1e-6)
    assert top <= value * 2.0 * (1 + 1e-6)
