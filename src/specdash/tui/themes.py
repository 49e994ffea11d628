"""Colours: every role a span can name, per theme, and the Textual themes built from the same values."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from rich.style import Style
from textual.theme import BUILTIN_THEMES, Theme

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of one theme. A role is one of its keys, optionally followed by ` bold`, ` dim`, ` reverse`,
    ` underline` or ` track` (on the background of a bar)."""

    name: str
    dark: bool
    colors: Mapping[str, str] = field(hash=False)
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
