"""Screenshots that need no special font."""

from __future__ import annotations

from specdash.tui.export import portable_svg

TEXT = '<text class="r1" x="12.2" y="44.4" textLength="48.8" clip-path="url(#a)">%s</text>'


def test_braille_and_blocks_become_paths_and_letters_stay_text() -> None:
    svg = portable_svg(TEXT % "a⣿█b")
    assert "⣿" not in svg
    assert "█" not in svg
    assert svg.count("<path") == 1
    assert ">a</text>" in svg
    assert ">b</text>" in svg


def test_a_dot_of_braille_is_drawn_where_it_belongs() -> None:
    (path,) = [part for part in portable_svg(TEXT % "⠁   ").split("<") if part.startswith("path")]
    assert path.count("M") == 1
    assert 'd="M13.7 27.4' in path


def test_plain_text_is_left_alone() -> None:
    line = TEXT % "slot&#160;&lt;1&gt;"
    assert portable_svg(line) == line


def test_web_fonts_are_left_out() -> None:
    assert "@font-face" not in portable_svg("<style>@font-face { src: url('https://example.org/x') }</style>")
