"""What an action of the dashboard is, and the screens it may belong to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Place(StrEnum):
    """The screens that have a footer of their own."""

    OVERVIEW = "overview"
    PROXY = "proxy"
    TUNE = "tune"
    INCIDENTS = "incidents"
    SPECULATION = "speculation"
    TUNER = "tuner"


@dataclass(frozen=True, slots=True)
class Label:
    """An action in the footer of one screen: a short word, and its rank: a narrow terminal's footer leaves out those of
    the highest rank first."""

    place: Place
    text: str
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do. `labels` are its words in footers, `places` where it makes sense (empty: everywhere)."""

    id: str
    keys: tuple[str, ...]
    title: str
    group: str
    handler: str
    labels: tuple[Label, ...] = ()
    places: tuple[Place, ...] = ()
    armed_only: bool = False
    """It changes a service or what the server holds."""

    @property
    def description(self) -> str:
        """What it does, and whether only while the dashboard is armed."""
        return self.title + ("; armed only" if self.armed_only else "")

    def label(self, place: Place) -> Label | None:
        """Its word in the footer of a screen, None when that footer does not show it."""
        return next((one for one in self.labels if one.place is place), None)

    @property
    def shown_keys(self) -> str:
        """The keys as a person reads them: `+ / =`."""
        return "  ".join(SHOWN.get(key, key) for key in self.keys)


SHOWN = {
    "space": "space",
    "slash": "/",
    "colon": ":",
    "question_mark": "?",
    "plus": "+",
    "equals_sign": "=",
    "minus": "-",
    "comma": ",",
    "full_stop": ".",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "exclamation_mark": "!",
    "escape": "esc",
    "pageup": "pgup",
    "pagedown": "pgdn",
    "shift+tab": "shift+tab",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
}
"""Textual's names of keys, as people write them."""


def in_place(place: Place, text: str, rank: int = 0) -> tuple[Label, ...]:
    """A label on one screen."""
    return (Label(place, text, rank),)


def on_overview(text: str, rank: int = 0) -> tuple[Label, ...]:
    """A label on the overview."""
    return in_place(Place.OVERVIEW, text, rank)
