"""`python tools/svg_to_png.py IN.svg OUT.png`: a screenshot or a snapshot of the tests as PNG, to look at.

Text is DejaVu Sans Mono (Debian: fonts-dejavu-core); braille and block characters are drawn dot by dot, because that
font has no braille. Needs Pillow.
"""

from __future__ import annotations

import html
import re
import sys
from functools import cache
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT, FONT_SIZE = 12, 25, 20
"""Pixels of a cell, which is `CELL` units of the SVG, and of the font that fills it."""
CELL = (12.2, 24.4)
FONTS = Path("/usr/share/fonts/truetype/dejavu")
BACKGROUND = "#121212"
DOTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))
"""Column and row of each bit of a braille pattern."""
QUADRANTS = {
    "▖": "c",
    "▗": "d",
    "▘": "a",
    "▙": "acd",
    "▚": "ad",
    "▛": "abc",
    "▜": "abd",
    "▝": "b",
    "▞": "bc",
    "▟": "bcd",
}

_STYLE = re.compile(r"\.(terminal-[\w-]*r\d+) \{ fill: (#\w+);?([^}]*)\}")
_RECT = re.compile(r'<rect fill="(#\w+)" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"')
_TEXT = re.compile(
    r'<text class="(terminal-[\w-]*r\d+)" x="([\d.]+)" y="[\d.]+" textLength="[\d.]+" '
    r'clip-path="url\(#terminal-[\w-]*line-(\d+)\)">([^<]*)<'
)


@cache
def font(weight: str) -> ImageFont.FreeTypeFont:
    """The font, "" or "-Bold"."""
    return ImageFont.truetype(str(FONTS / f"DejaVuSansMono{weight}.ttf"), FONT_SIZE)


def picture(svg: str) -> Image.Image:
    """The screen that Textual exported as SVG, without the window around it."""
    rects, texts = _RECT.findall(svg), _TEXT.findall(svg)
    columns = max(round((float(x) + float(width)) / CELL[0]) for _, x, _, width in rects)
    rows = max(int(float(y) / CELL[1]) for _, _, y, _ in rects) + 1
    image = Image.new("RGB", (columns * WIDTH, rows * HEIGHT), BACKGROUND)
    pen = ImageDraw.Draw(image)
    for color, x, y, width in rects:
        left, top = round(float(x) / CELL[0]) * WIDTH, int(float(y) / CELL[1]) * HEIGHT
        right = left + round(float(width) / CELL[0]) * WIDTH
        if right > left:
            pen.rectangle((left, top, right - 1, top + HEIGHT - 1), fill=color)
    styles = {name: (color, "-Bold" if "bold" in more else "") for name, color, more in _STYLE.findall(svg)}
    for name, x, row, escaped in texts:
        color, weight = styles[name]
        left = round(float(x) / CELL[0])
        for at, char in enumerate(html.unescape(escaped)):
            _draw(pen, char, (left + at) * WIDTH, int(row) * HEIGHT, color, weight)
    return image


def _draw(pen: ImageDraw.ImageDraw, char: str, x: int, y: int, color: str, weight: str) -> None:
    boxes = _boxes(char)
    if boxes is None:
        pen.text((x, y + 1), char, font=font(weight), fill=color)
        return
    for left, top, right, bottom in boxes:
        box = (x + left * WIDTH, y + top * HEIGHT, x + right * WIDTH - 1, y + bottom * HEIGHT - 1)
        pen.rectangle(tuple(map(round, box)), fill=color)


def _boxes(char: str) -> list[tuple[float, float, float, float]] | None:
    """What of its cell the character fills, as shares of the cell; None for a letter."""
    code = ord(char)
    if 0x2800 <= code <= 0x28FF:
        dots = [place for bit, place in enumerate(DOTS) if (code - 0x2800) >> bit & 1]
        return [(c / 2 + 0.12, r / 4 + 0.06, c / 2 + 0.38, r / 4 + 0.2) for c, r in dots]
    if char == "▀":
        return [(0, 0, 1, 0.5)]
    if 0x2581 <= code <= 0x2588:
        return [(0, 1 - (code - 0x2580) / 8, 1, 1)]
    if 0x2589 <= code <= 0x258F:
        return [(0, 0, (0x2590 - code) / 8, 1)]
    corners = {"a": (0, 0), "b": (0.5, 0), "c": (0, 0.5), "d": (0.5, 0.5)}
    if char in QUADRANTS:
        return [(x, y, x + 0.5, y + 0.5) for x, y in (corners[name] for name in QUADRANTS[char])]
    return None


if __name__ == "__main__":
    picture(Path(sys.argv[1]).read_text(encoding="utf-8")).save(sys.argv[2], optimize=True)
