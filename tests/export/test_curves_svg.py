"""Curves as SVG: well-formed whatever they are made of, with every point inside."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from specdash.export.curves_svg import Curve, Curves, draw_curves
from specdash.export.plots_svg import HEIGHT, WIDTH

NS = "{http://www.w3.org/2000/svg}"
points = st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e6)), max_size=20).map(tuple)
curves = st.lists(st.builds(Curve, st.text(max_size=20), points), max_size=4).map(tuple)


@given(st.text(max_size=30), st.text(max_size=10), curves)
def test_any_curves_make_a_document_with_every_point_inside(title: str, unit: str, drawn: tuple[Curve, ...]) -> None:
    root = ET.fromstring(draw_curves(Curves(title, unit, "tokens", drawn)))  # noqa: S314 - our own
    marks = [one for one in root.iter() if (one.get("class") or "").startswith("mark")]
    assert len(marks) == len(drawn) + sum(len(curve.points) for curve in drawn)
    for mark in marks:
        x, y = (float(one) for one in (mark.get("d") or f"M{mark.get('cx')} {mark.get('cy')}")[1:].split()[:2])
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT


def test_series_differ_in_shape_and_not_in_colour_alone() -> None:
    drawn = tuple(Curve(name, ((1.0, 1.0),)) for name in ("cold", "warm", "third", "fourth"))
    root = ET.fromstring(draw_curves(Curves("T", "s", "tokens", drawn)))  # noqa: S314 - our own
    marks = [one for one in root.iter() if (one.get("class") or "").startswith("mark")]
    shapes = {(one.tag, (one.get("d") or "").count("L"), (one.get("d") or "").count("h")) for one in marks}
    assert len(shapes) == 4


def test_no_values_are_said_to_be_none() -> None:
    assert "no values" in draw_curves(Curves("T", "s", "tokens", (Curve("cold", ()),)))
