"""Charts as SVG: well-formed whatever they are made of, on their own, and legible on both kinds of page."""

import re
import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from specdash.export.charts_svg import (
    HEIGHT,
    WIDTH,
    Curve,
    Curves,
    FigureRow,
    Rows,
    draw_curves,
    draw_rows,
)

NS = "{http://www.w3.org/2000/svg}"


def parsed(chart: Rows) -> ET.Element:
    return ET.fromstring(draw_rows(chart))  # noqa: S314 - our own


def test_a_row_has_its_value_its_interval_and_its_single_values() -> None:
    root = parsed(Rows("Decode", "tokens/s", (FigureRow("coding", 50.0, 40.0, 60.0, (45.0, 55.0, 58.0)),)))
    classes = [element.get("class") for element in root.iter()]
    assert (classes.count("tick"), classes.count("span"), classes.count("dot")) == (3, 1, 1)
    assert "50 [40, 60]" in draw_rows(Rows("x", "y", (FigureRow("coding", 50.0, 40.0, 60.0),)))


def test_the_value_lies_between_its_bounds_on_the_page() -> None:
    root = parsed(Rows("x", "y", (FigureRow("a", 50.0, 40.0, 60.0),)))
    [span] = [element for element in root.iter(f"{NS}line") if element.get("class") == "span"]
    [dot] = list(root.iter(f"{NS}circle"))
    assert float(span.get("x1", "")) < float(dot.get("cx", "")) < float(span.get("x2", ""))


def test_an_unknown_value_is_dashes_and_no_dot() -> None:
    text = draw_rows(Rows("x", "%", (FigureRow("a", None),)))
    assert ">--<" in text
    assert "<circle" not in text


def test_fractions_are_shown_in_percent() -> None:
    assert "62.5 [50, 75]" in draw_rows(Rows("x", "%", (FigureRow("a", 0.625, 0.5, 0.75),)))


def test_the_best_row_and_the_line_of_no_difference_stand_out() -> None:
    text = draw_rows(
        Rows("x", "%", (FigureRow("a", 0.1, 0.0, 0.2, is_best=True), FigureRow("b", -0.1)), None, reference=0.0)
    )
    assert len(re.findall('class="(?:span|dot) best"', text)) == 3
    assert ">best<" in text
    assert 'class="axis"' in text
    assert ">no difference<" in text
    assert ">+10 [0, +20]<" in text


def test_the_best_row_has_a_shape_of_its_own() -> None:
    both = draw_rows(Rows("x", "y", (FigureRow("a", 1.0, is_best=True), FigureRow("b", 2.0))))
    assert both.count("<circle") == 1


def test_the_figures_say_their_unit_at_the_axis_and_above_the_column() -> None:
    text = draw_rows(Rows("x", "tokens/s", (FigureRow("a", 1114.0, 1000.0, 1250.0),)))
    assert ">tokens/s<" in text
    assert ">tokens/s [low, high]<" in text
    assert ">1,114 [1,000, 1,250]<" in text


def test_an_interval_that_says_nothing_does_not_squeeze_the_values() -> None:
    rows = (FigureRow("a", -0.37, -0.89, 2.47), FigureRow("b", -0.54, -0.99, 35.6))
    text = draw_rows(Rows("x", "%", rows, None, reference=0.0))
    dots = [float(entry) for entry in re.findall(r'<circle[^>]* cx="([0-9.]+)"', text)]
    assert dots[0] - dots[1] > 20
    assert text.count('class="arrow') == 2
    assert "+3,560" in text


@given(st.lists(st.floats(0.1, 1e4), min_size=1, max_size=5), st.floats(0, 0.3))
def test_intervals_of_the_usual_width_are_drawn_in_full(values: list[float], share: float) -> None:
    rows = tuple(FigureRow("a", value, value * (1 - share / 2), value * (1 + share / 2)) for value in values)
    assert 'class="arrow' not in draw_rows(Rows("x", "y", rows))


@given(
    st.lists(st.floats(-1e9, 1e9) | st.none(), max_size=5),
    st.text(max_size=50),
    st.sampled_from(["%", "tokens/s"]),
    st.sampled_from([0.0, None]),
)
def test_any_values_and_labels_make_a_well_formed_page(
    values: list[float | None], label: str, unit: str, origin: float | None
) -> None:
    root = parsed(Rows(label, unit, tuple(FigureRow(label, value, value, value) for value in values), origin))
    for element in root.iter(f"{NS}circle"):
        assert 0 <= float(element.get("cx", "")) <= float(root.get("width", ""))


curve_points = st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e6)), max_size=20).map(tuple)
curves = st.lists(st.builds(Curve, st.text(max_size=20), curve_points), max_size=4).map(tuple)


@given(st.text(max_size=30), st.text(max_size=10), curves)
def test_any_curves_make_a_document_with_every_point_inside(title: str, unit: str, drawn: tuple[Curve, ...]) -> None:
    root = ET.fromstring(draw_curves(Curves(title, unit, "tokens", drawn)))  # noqa: S314 - our own
    marks = [element for element in root.iter() if (element.get("class") or "").startswith("mark")]
    assert len(marks) == len(drawn) + sum(len(curve.points) for curve in drawn)
    for mark in marks:
        x, y = (float(part) for part in (mark.get("d") or f"M{mark.get('cx')} {mark.get('cy')}")[1:].split()[:2])
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT


def test_series_differ_in_shape_and_not_in_colour_alone() -> None:
    drawn = tuple(Curve(name, ((1.0, 1.0),)) for name in ("cold", "warm", "third", "fourth"))
    root = ET.fromstring(draw_curves(Curves("T", "s", "tokens", drawn)))  # noqa: S314 - our own
    marks = [element for element in root.iter() if (element.get("class") or "").startswith("mark")]
    shapes = {(mark.tag, (mark.get("d") or "").count("L"), (mark.get("d") or "").count("h")) for mark in marks}
    assert len(shapes) == 4


def test_no_values_are_said_to_be_none() -> None:
    assert "no values" in draw_curves(Curves("T", "s", "tokens", (Curve("cold", ()),)))
