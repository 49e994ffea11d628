"""Figures with their intervals as SVG."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st

from specdash.export.rows_svg import Row, Rows, draw_rows

NS = "{http://www.w3.org/2000/svg}"


def parsed(chart: Rows) -> ET.Element:
    return ET.fromstring(draw_rows(chart))  # noqa: S314 - our own


def test_a_row_has_its_value_its_interval_and_its_single_values() -> None:
    root = parsed(Rows("Decode", "tokens/s", (Row("coding", 50.0, 40.0, 60.0, (45.0, 55.0, 58.0)),)))
    classes = [one.get("class") for one in root.iter()]
    assert (classes.count("tick"), classes.count("span"), classes.count("dot")) == (3, 1, 1)
    assert "50 [40, 60]" in draw_rows(Rows("x", "y", (Row("coding", 50.0, 40.0, 60.0),)))


def test_the_value_lies_between_its_bounds_on_the_page() -> None:
    root = parsed(Rows("x", "y", (Row("a", 50.0, 40.0, 60.0),)))
    [span] = [one for one in root.iter(f"{NS}line") if one.get("class") == "span"]
    [dot] = list(root.iter(f"{NS}circle"))
    assert float(span.get("x1", "")) < float(dot.get("cx", "")) < float(span.get("x2", ""))


def test_an_unknown_value_is_dashes_and_no_dot() -> None:
    text = draw_rows(Rows("x", "%", (Row("a", None),)))
    assert ">--<" in text
    assert "<circle" not in text


def test_fractions_are_shown_in_percent() -> None:
    assert "62.5 [50, 75]" in draw_rows(Rows("x", "%", (Row("a", 0.625, 0.5, 0.75),)))


def test_the_best_row_and_the_line_of_no_difference_stand_out() -> None:
    text = draw_rows(Rows("x", "%", (Row("a", 0.1, 0.0, 0.2, is_best=True), Row("b", -0.1)), None, reference=0.0))
    assert len(re.findall('class="(?:span|dot) best"', text)) == 3
    assert ">best<" in text
    assert 'class="axis"' in text
    assert ">no difference<" in text
    assert ">+10 [0, +20]<" in text


def test_the_best_row_has_a_shape_of_its_own() -> None:
    both = draw_rows(Rows("x", "y", (Row("a", 1.0, is_best=True), Row("b", 2.0))))
    assert both.count("<circle") == 1


def test_the_figures_say_their_unit_at_the_axis_and_above_the_column() -> None:
    text = draw_rows(Rows("x", "tokens/s", (Row("a", 1114.0, 1000.0, 1250.0),)))
    assert ">tokens/s<" in text
    assert ">tokens/s [low, high]<" in text
    assert ">1,114 [1,000, 1,250]<" in text


def test_an_interval_that_says_nothing_does_not_squeeze_the_values() -> None:
    rows = (Row("a", -0.37, -0.89, 2.47), Row("b", -0.54, -0.99, 35.6))
    text = draw_rows(Rows("x", "%", rows, None, reference=0.0))
    dots = [float(one) for one in re.findall(r'<circle[^>]* cx="([0-9.]+)"', text)]
    assert dots[0] - dots[1] > 20
    assert text.count('class="arrow') == 2
    assert "+3,560" in text


@given(st.lists(st.floats(0.1, 1e4), min_size=1, max_size=5), st.floats(0, 0.3))
def test_intervals_of_the_usual_width_are_drawn_in_full(values: list[float], share: float) -> None:
    rows = tuple(Row("a", one, one * (1 - share / 2), one * (1 + share / 2)) for one in values)
    assert 'class="arrow' not in draw_rows(Rows("x", "y", rows))


@settings(max_examples=60)
@given(
    st.lists(st.floats(-1e9, 1e9) | st.none(), max_size=5),
    st.text(max_size=50),
    st.sampled_from(["%", "tokens/s"]),
    st.sampled_from([0.0, None]),
)
def test_any_values_and_labels_make_a_well_formed_page(
    values: list[float | None], label: str, unit: str, origin: float | None
) -> None:
    root = parsed(Rows(label, unit, tuple(Row(label, value, value, value) for value in values), origin))
    for one in root.iter(f"{NS}circle"):
        assert 0 <= float(one.get("cx", "")) <= float(root.get("width", ""))
