"""Charts as SVG: well-formed whatever they are made of, on their own, and legible on both kinds of page."""

import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.export.charts_svg import HEIGHT, WIDTH, Marker, Plot, draw

NS = "{http://www.w3.org/2000/svg}"
SINCE = 1.7e9
texts = st.text(max_size=60)
values = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.floats(0, 1))
offsets = st.floats(-100, 1100)
markers = st.builds(
    lambda at, kind, label, lasts: Marker(SINCE + at, kind, label, SINCE + at + lasts if lasts is not None else None),
    offsets,
    st.sampled_from(["critical", "warning", "notice", "apply", "<odd>"]),
    texts,
    st.one_of(st.none(), st.floats(0, 5000)),
)
plots = st.builds(
    lambda title, unit, points, marks, low, high: Plot(
        title, unit, tuple((SINCE + at, value) for at, value in points), SINCE, SINCE + 1000, tuple(marks), low, high
    ),
    texts,
    st.sampled_from(["%", "tok/s", "/min", "<&>"]),
    st.lists(st.tuples(offsets, values), max_size=40),
    st.lists(markers, max_size=6),
    st.sampled_from([0.0, None]),
    st.sampled_from([None, 1.0]),
)


def a_plot(*points: tuple[float, float | None], marks: tuple[Marker, ...] = (), unit: str = "tok/s") -> Plot:
    return Plot("Decode", unit, tuple((SINCE + at, value) for at, value in points), SINCE, SINCE + 1000, marks)


def tree(plot: Plot) -> ET.Element:
    return ET.fromstring(draw(plot))  # noqa: S314 - our own


@given(plots)
def test_whatever_is_drawn_is_well_formed_and_stays_on_the_page(plot: Plot) -> None:
    svg = draw(plot)
    root = ET.fromstring(svg)  # noqa: S314
    assert root.tag == f"{NS}svg"
    assert "nan" not in re.sub(r">[^<]*<|aria-label=\"[^\"]*\"", "", svg).lower()
    for element in root.iter():
        for name in ("x", "x1", "x2", "cx"):
            assert -1 <= float(element.get(name, "0")) <= WIDTH + 1
        for name in ("y", "y1", "y2", "cy"):
            assert -1 <= float(element.get(name, "0")) <= HEIGHT + 1


@given(plots)
def test_nothing_outside_is_asked_for(plot: Plot) -> None:
    root = tree(plot)
    assert {element.tag.removeprefix(NS) for element in root.iter()} <= {
        "svg", "style", "rect", "text", "line", "path", "circle", "title",
    }  # fmt: skip
    assert not any("href" in name for element in root.iter() for name in element.attrib)
    style = root.find(f"{NS}style")
    assert style is not None
    assert "url(" not in str(style.text)
    assert "@import" not in str(style.text)


def test_a_gap_breaks_the_line_and_a_lone_value_is_a_dot() -> None:
    root = tree(a_plot((0, 1.0), (10, 2.0), (20, None), (30, 3.0), (40, None), (50, 1.0), (60, 2.0)))
    assert len(root.findall(f"{NS}path")) == 2
    assert len(root.findall(f"{NS}circle")) == 1


def test_higher_values_are_drawn_higher() -> None:
    (path,) = tree(a_plot((0, 1.0), (500, 5.0), (1000, 2.0))).findall(f"{NS}path")
    heights = [float(pair.split()[1]) for pair in str(path.get("d"))[1:].split(" L")]
    assert heights[1] < heights[2] < heights[0]


def test_fractions_are_told_in_percent() -> None:
    plot = Plot("Acceptance", "%", ((SINCE, 0.5), (SINCE + 9, 0.7)), SINCE, SINCE + 10, (), 0.0, 1.0)
    labels = {str(text.text) for text in tree(plot).iter(f"{NS}text")}
    assert {"0", "50", "100", "%"} <= labels


def test_alerts_and_applies_are_marked_with_their_names_and_spans() -> None:
    marks = (Marker(SINCE + 100, "critical", "Backend down", SINCE + 300), Marker(SINCE + 500, "apply", "apply 7"))
    root = tree(a_plot((0, 1.0), (1000, 1.0), marks=marks))
    labels = {str(text.text) for text in root.iter(f"{NS}text")}
    assert {"Backend down", "apply 7"} <= labels
    (band,) = [rect for rect in root.iter(f"{NS}rect") if "band" in str(rect.get("class"))]
    assert float(str(band.get("width"))) == pytest.approx((WIDTH - 84) * 0.2, abs=1)


def test_what_lies_outside_the_span_is_not_marked() -> None:
    root = tree(a_plot((0, 1.0), (9, 1.0), marks=(Marker(SINCE - 50, "critical", "before", SINCE - 10),)))
    assert not [line for line in root.iter(f"{NS}line") if "mark" in str(line.get("class"))]


def test_a_plot_without_values_says_so() -> None:
    plot = a_plot((0, None))
    assert plot.is_empty
    assert "no values in this span" in draw(plot)


def test_both_colour_schemes_are_there() -> None:
    assert "prefers-color-scheme:dark" in draw(a_plot((0, 1.0), (1, 2.0)))
