"""Screenshots that look alike everywhere: braille and block characters become shapes, because most fonts lack or
misalign them and an SVG shown on a web page cannot bring its own."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

from specdash.core.paths import state_dir
from specdash.system.text import file_timestamp

if TYPE_CHECKING:
    from pathlib import Path

    from textual.app import App

_TEXT = re.compile(
    r'<text class="(?P<cls>[^"]+)" x="(?P<x>[\d.]+)" y="(?P<y>[\d.]+)" textLength="(?P<len>[\d.]+)"(?P<rest>[^>]*)>'
    r"(?P<body>[^<]*)</text>"
)
_DRAWN = re.compile("[\u2800-\u28ff\u2580-\u258f\u2595\u2500]+|[^\u2800-\u28ff\u2580-\u258f\u2595\u2500]+")
_FONT_FACE = re.compile(r"@font-face\s*\{.*?\}", re.DOTALL)
_FONT_FAMILY = re.compile(r"font-family: ?[^;]*;")
_LINE, _RISE = 24.4, 18.5
# Bit of a braille pattern -> (column, row) of its dot.
_DOTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))


def save_screen(app: App[None], folder: Path | None, wall: float) -> None:
    """Save what is seen at the moment `wall` as SVG in a folder (None: the state directory's), and say where."""
    path = (folder or state_dir() / "screenshots") / f"specdash-{file_timestamp(wall)}.svg"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(portable_svg(app.export_screenshot(title="specdash")), encoding="utf-8")
    except OSError as error:
        app.notify(f"cannot save {path}: {error.strerror}", severity="error", markup=False)
    else:
        home = path.home()
        shown = f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
        app.notify(f"saved {shown}", markup=False)


def portable_svg(svg: str) -> str:
    """Textual's SVG screenshot without web fonts, and with braille and blocks as paths."""
    svg = _FONT_FACE.sub("", svg)
    svg = _FONT_FAMILY.sub("font-family: DejaVu Sans Mono, Menlo, Consolas, monospace;", svg, count=0)
    return _TEXT.sub(_replace, svg)


def _replace(match: re.Match[str]) -> str:
    body = html.unescape(match["body"])
    if not any(map(_is_drawn, body)):
        return match[0]
    cell = float(match["len"]) / max(len(body), 1)
    left, baseline = float(match["x"]), float(match["y"])
    parts: list[str] = []
    for run in _DRAWN.finditer(body):
        x = left + run.start() * cell
        text = run[0]
        if _is_drawn(text[0]):
            path = "".join(_shape(char, x + i * cell, baseline - _RISE, cell) for i, char in enumerate(text))
            if path:
                parts.append(f'<path class="{match["cls"]}" d="{path}"/>')
        elif text.strip(" \xa0"):
            escaped = html.escape(text).replace(" ", "&#160;").replace("\xa0", "&#160;")
            parts.append(
                f'<text class="{match["cls"]}" x="{x:.1f}" y="{match["y"]}" textLength="{len(text) * cell:.1f}"'
                f"{match['rest']}>{escaped}</text>"
            )
    return "".join(parts)


def _is_drawn(char: str) -> bool:
    return "\u2580" <= char <= "\u258f" or char in "\u2595\u2500" or "\u2800" <= char <= "\u28ff"


def _shape(char: str, x: float, y: float, cell: float) -> str:
    code = ord(char)
    if code >= 0x2800:
        return "".join(
            _rect(x + (0.5 + 2 * column) * cell / 4, y + (0.5 + 2 * row) * _LINE / 8, cell / 4, _LINE / 8)
            for bit, (column, row) in enumerate(_DOTS)
            if (code - 0x2800) >> bit & 1
        )
    if code == 0x2500:
        return _rect(x, y + _LINE / 2 - 0.6, cell, 1.2)
    if code == 0x2580:
        return _rect(x, y, cell, _LINE / 2)
    if code <= 0x2588:
        height = _LINE * (code - 0x2580) / 8
        return _rect(x, y + _LINE - height, cell, height)
    if code == 0x2595:
        return _rect(x + cell * 7 / 8, y, cell / 8, _LINE)
    return _rect(x, y, cell * (0x2590 - code) / 8, _LINE)


def _rect(x: float, y: float, width: float, height: float) -> str:
    return f"M{x:.1f} {y:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z"
