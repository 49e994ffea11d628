"""Lines of styled text as plain data, and the glyphs they are drawn with.

A span is (text, role); a role names a meaning (`dim`, `bad`, `decode`), which the theme turns into a style. No
markup exists at this level, so text from outside can never be taken for any.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from msgspec import Struct
from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.strip import Strip
from textual.theme import BUILTIN_THEMES, Theme

from specdash.core.readings import ReadingStatus
from specdash.system.text import UNKNOWN, age, clean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from specdash.insight.picture import MeasuredFigure


# Colours: every role a span can name, per theme, and the Textual themes built from the same values.


class Palette(Struct, frozen=True):
    """The colours of one theme. A role is one of its keys, optionally followed by ` bold`, ` dim`, ` reverse`,
    ` underline` or ` track` (on the background of a bar)."""

    name: str
    dark: bool
    colors: Mapping[str, str]
    ansi: bool = False

    def style(self, role: str) -> Style:
        """The style of a role; an unknown role is plain text."""
        return _style(self.name, role)


def _fills(background: str, colors: Mapping[str, str], strength: float) -> dict[str, str]:
    """The area under a chart's line: the series' colour mixed into the background."""
    base = [int(background[i : i + 2], 16) for i in (1, 3, 5)]
    fills = {}
    for name in SERIES:
        color = [int(colors[name][i : i + 2], 16) for i in (1, 3, 5)]
        mixed = (round(b + (c - b) * strength) for b, c in zip(base, color, strict=True))
        fills[f"{name}.fill"] = "#" + "".join(f"{part:02x}" for part in mixed)
    return fills


SERIES = ("acceptance", "prefill", "decode", "gain", "machine")

_NIGHT = {
    "background": "#0d1117",
    "surface": "#1a212b",
    "track": "#1c242e",
    "text": "#d3dae3",
    "dim": "#808b98",
    "faint": "#394350",
    "accent": "#6cb6ff",
    "good": "#56c288",
    "warn": "#e0af45",
    "bad": "#ff7066",
    "acceptance": "#6cb6ff",
    "prefill": "#bc8cff",
    "decode": "#4cc9b0",
    "gain": "#e0af45",
    "machine": "#8b98a8",
    "banner": "#0d1117",
}
_DAY = {
    "background": "#fbfcfd",
    "surface": "#e9edf2",
    "track": "#e1e7ed",
    "text": "#1d242c",
    "dim": "#626d79",
    "faint": "#c3cad2",
    "accent": "#0b62c4",
    "good": "#17793a",
    "warn": "#8f5b00",
    "bad": "#c4232b",
    "acceptance": "#0b62c4",
    "prefill": "#7a45d1",
    "decode": "#0c7566",
    "gain": "#8f5b00",
    "machine": "#5b6672",
    "banner": "#ffffff",
}
_CONTRAST = {
    "background": "#000000",
    "surface": "#1c1c1c",
    "track": "#2a2a2a",
    "text": "#ffffff",
    "dim": "#c4c4c4",
    "faint": "#6e6e6e",
    "accent": "#5fd7ff",
    "good": "#5fff87",
    "warn": "#ffd75f",
    "bad": "#ff8787",
    "acceptance": "#5fd7ff",
    "prefill": "#d7afff",
    "decode": "#5fffaf",
    "gain": "#ffd75f",
    "machine": "#d0d0d0",
    "banner": "#000000",
}
_TERMINAL = {
    "background": "default",
    "surface": "default",
    "track": "default",
    "text": "default",
    "dim": "bright_black",
    "faint": "bright_black",
    "accent": "cyan",
    "good": "green",
    "warn": "yellow",
    "bad": "red",
    "acceptance": "cyan",
    "prefill": "magenta",
    "decode": "green",
    "gain": "yellow",
    "machine": "blue",
    "banner": "black",
    **{f"{name}.fill": "bright_black" for name in SERIES},
}

PALETTES: dict[str, Palette] = {
    palette.name: palette
    for palette in (
        Palette("night", dark=True, colors=_NIGHT | _fills(_NIGHT["background"], _NIGHT, 0.34)),
        Palette("day", dark=False, colors=_DAY | _fills(_DAY["background"], _DAY, 0.26)),
        Palette("contrast", dark=True, colors=_CONTRAST | _fills(_CONTRAST["background"], _CONTRAST, 0.45)),
        Palette("terminal", dark=True, colors=_TERMINAL, ansi=True),
    )
}
THEME_NAMES = tuple(PALETTES)
"""Our own themes, in the order in which the key for the next one shows them."""


def theme_after(name: str) -> str:
    """The next theme of specdash; the first after one of Textual's."""
    at = THEME_NAMES.index(name) + 1 if name in THEME_NAMES else 0
    return THEME_NAMES[at % len(THEME_NAMES)]


def _mixed(color: str, base: str, share: float) -> str:
    return Color.parse(base).blend(Color.parse(color), share).hex6


def _of_textual(theme: Theme) -> Palette:
    """A theme of Textual's own, its colours in specdash's roles."""
    base = "#121212" if theme.dark else "#e0e0e0"
    background = theme.background or base
    text = theme.foreground or Color.parse(background).get_contrast_text().hex6
    accent, second = theme.primary, theme.secondary or theme.primary
    good, warn, bad = theme.success or accent, theme.warning or accent, theme.error or accent
    colors = {
        **dict.fromkeys(("surface", "track"), theme.surface or _mixed(text, background, 0.1)),
        "background": background,
        "text": text,
        "banner": background,
        "accent": accent,
        "machine": text,
        "dim": _mixed(text, background, 0.65),
        "faint": _mixed(text, background, 0.3),
        "good": good,
        "warn": warn,
        "bad": bad,
        "gain": warn,
        "acceptance": accent,
        "prefill": theme.accent or second,
        "decode": good,
    }
    colors = {role: Color.parse(color).hex6.lower() for role, color in colors.items()}
    return Palette(theme.name, theme.dark, colors | _fills(colors["background"], colors, 0.34))


PALETTES |= {name: _of_textual(theme) for name, theme in BUILTIN_THEMES.items() if not theme.ansi}


@cache
def _style(palette_name: str, role: str) -> Style:
    palette = PALETTES[palette_name]
    name, *modifiers = role.split(" ")
    if name.startswith("banner."):
        return _banner(palette, name.removeprefix("banner."))
    color = palette.colors.get(name, palette.colors["text"])
    return Style(
        color=color,
        bgcolor=palette.colors["track" if "track" in modifiers else "background"],
        bold="bold" in modifiers or None,
        dim="dim" in modifiers or None,
        reverse="reverse" in modifiers or None,
        underline="underline" in modifiers or None,
    )


def _banner(palette: Palette, severity: str) -> Style:
    if palette.ansi:
        # Reverse video survives NO_COLOR, a background colour does not.
        return Style(color=palette.colors.get(severity, "default"), bgcolor="default", bold=True, reverse=True)
    return Style(
        color=palette.colors["banner"], bgcolor=palette.colors.get(severity, palette.colors["accent"]), bold=True
    )


def textual_theme(palette: Palette) -> Theme:
    """The theme that Textual's own widgets (palette, prompt, notifications) take."""
    colors = {key: f"ansi_{value}" if palette.ansi else value for key, value in palette.colors.items()}
    return Theme(
        name=palette.name,
        dark=palette.dark,
        ansi=palette.ansi,
        primary=colors["accent"],
        secondary=colors["prefill"],
        accent=colors["accent"],
        warning=colors["warn"],
        error=colors["bad"],
        success=colors["good"],
        foreground=colors["text"],
        background=colors["background"],
        surface=colors["surface"],
        panel=colors["surface"],
        variables=BUILTIN_THEMES["ansi-dark"].variables if palette.ansi else {},
    )


def default_theme(env: Mapping[str, str]) -> str:
    """`terminal` (the 16 colours of the user's own scheme) where colour is unwanted or scarce, else `night`."""
    if env.get("NO_COLOR") is not None:
        return "terminal"
    term = env.get("TERM", "")
    rich_colors = env.get("COLORTERM", "").lower() in ("truecolor", "24bit") or "256" in term or "kitty" in term
    return "night" if rich_colors or "direct" in term or "ghostty" in term else "terminal"


Span = tuple[str, str]
Line = tuple[Span, ...]

BLANK: Line = ()


class Glyphs(Struct, frozen=True):
    """The non-letters of the screen."""

    rule: str = "─"
    live: str = "●"
    busy: str = "◐"
    stale: str = "○"
    loading: str = "◔"
    restarted: str = "↻"
    down: str = "✖"
    unknown: str = "?"
    alert: str = "▲"
    note: str = "·"


GLYPHS = Glyphs()


def fit(text: str, width: int, *, right: bool = False) -> str:
    """`text` in exactly `width` cells: padded, or cut with an ellipsis."""
    length = len(text) if text.isascii() else cell_len(text)
    if length > width:
        return set_cell_size(text, max(width - 1, 0)) + "…" * (width > 0)
    return " " * (width - length) + text if right else text + " " * (width - length)


def middle(text: str, width: int) -> str:
    """External text in at most `width` cells, shortened in its middle: identifiers differ at their ends."""
    shown = clean(text)
    if cell_len(shown) <= width:
        return shown
    tail = max((width - 1) // 2, 0)
    return set_cell_size(shown, max(width - 1 - tail, 0)).rstrip() + "…" + (shown[-tail:] if tail else "")


def session_name(identifier: str | None, width: int) -> str:
    """A proxy's session in at most `width` cells, without how the proxy recognised it: of `hdr:review-1` the client's
    own `review-1`. Details have the whole identifier."""
    return middle((identifier or "").removeprefix("hdr:").removeprefix("meta:"), width) or UNKNOWN


def bar(fraction: float | None, width: int) -> tuple[str, str]:
    """The filled and the empty part of a horizontal bar `width` cells long, in eighths of a cell."""
    if fraction is None:
        return "", " " * width
    share = min(max(fraction, 0.0), 1.0)
    eighths = round(share * width * 8)
    filled = "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]
    return filled, " " * (width - len(filled))


def column_bar(fraction: float | None, height: int) -> str:
    """A vertical bar as one character per row, top first."""
    share = min(max(fraction or 0.0, 0.0), 1.0)
    eighths = round(share * height * 8)
    if fraction and not eighths:
        eighths = 1
    full, rest = divmod(eighths, 8)
    return (" " * height + ("", "▁", "▂", "▃", "▄", "▅", "▆", "▇")[rest] + "█" * full)[-height:] if height else ""


def add_up(counts: Sequence[int], width: int) -> list[int]:
    """Counts in at most `width` columns: neighbours are added up, in whole groups that end at the newest."""
    group = max(-(-len(counts) // max(width, 1)), 1)
    first = len(counts) % group
    sums = [sum(counts[:first])] if first else []
    return sums + [sum(counts[at : at + group]) for at in range(first, len(counts), group)]


def sparkline(counts: Sequence[int], highest: int) -> str:
    """Counts as columns one character high; `highest` is that of a full one. Anything above zero is seen."""
    levels = " ▁▂▃▄▅▆▇█"
    top = max(highest, 1)
    return "".join(levels[-(-min(count, top) * (len(levels) - 1) // top)] for count in counts)


def line_width(line: Sequence[Span]) -> int:
    """Cells a line takes."""
    return sum([len(text) if text.isascii() else cell_len(text) for text, _ in line])


def spread(left: Sequence[Span], right: Sequence[Span], width: int, fill: str = " ", fill_role: str = "text") -> Line:
    """`left` and `right` at the two ends of `width` cells; `right` is dropped where both do not fit."""
    gap = width - line_width(left) - line_width(right)
    if gap < 1 and right:
        return spread(left, (), width, fill, fill_role)
    return (*left, (fill * max(gap, 0), fill_role), *right)


def value_span(text: str, role: str = "text") -> Span:
    """A value in a table: dim where it is unknown."""
    return (text, "dim" if text in (UNKNOWN, "") else role)


def figure(measured: MeasuredFigure, text: str, unit: str, role: str) -> Line:
    """A key figure: bold when it is fresh, dim with its age when it is held, `--` when it is unknown."""
    if measured.value is None or measured.status is ReadingStatus.UNKNOWN:
        return ((UNKNOWN, "dim"),)
    tail = (f" {unit}", "dim") if unit else ("", "dim")
    if measured.status is ReadingStatus.STALE:
        held = f" held {age(measured.age_s)}" if measured.age_s is not None else " held"
        return ((text, "dim"), tail, (held, "dim"))
    return ((text, f"{role} bold"), tail)


def wrap(text: str, width: int, most: int) -> list[str]:
    """`text` in at most `most` lines of `width` cells, broken at spaces; the last line is cut."""
    lines: list[str] = []
    rest = " ".join(text.split())
    while rest and width > 0 and len(lines) < most:
        if cell_len(rest) <= width or len(lines) == most - 1:
            lines.append(fit(rest, width).rstrip())
            break
        words, taken = rest.split(" "), ""
        while words and cell_len(f"{taken} {words[0]}".strip()) <= width:
            taken = f"{taken} {words.pop(0)}".strip()
        if not taken:
            taken, words = rest[:width], [rest[width:]]
        lines.append(taken)
        rest = " ".join(words)
    return lines


def to_strip(line: Line, width: int, style: Callable[[str], Style]) -> Strip:
    """A line as what Textual paints, cut or padded to `width` cells; `style` is that of a role. Neighbours that look
    alike are one segment, because each segment is written to the terminal with its whole style."""
    segments: list[Segment] = []
    for text, role in (*line, (" " * max(width - line_width(line), 0), "text")):
        look, last = style(role), segments[-1].style if segments else None
        is_blank = last is not None and not text.strip(" ") and _blank_look(look) == _blank_look(last)
        if not text:
            continue
        if look == last or is_blank:
            segments[-1] = Segment(segments[-1].text + text, last)
        else:
            segments.append(Segment(text, look))
    return Strip(segments).adjust_cell_length(width)


def _blank_look(style: Style) -> tuple[object, ...]:
    """What of a style is seen where there is no text."""
    return style.bgcolor, style.underline, style.color if style.reverse else None
