"""Where in time the screen is: the words in the header, and the strip under them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdash.core.timeline import EventKind
from specdash.tui.formatting import clean, duration, fit
from specdash.tui.marks import APPLIED, Look, look_of_event
from specdash.tui.spans import Line, Span, line_width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.core.timeline import TimelineEvent
    from specdash.history.player import Player
    from specdash.tui.spans import Glyphs

SPAN_WINDOWS = 12
"""The strip is so many windows wide, or as wide as the record."""
LEAST_SPAN_S = 900.0
_DAY_S = 86_400.0
_NOTED = Look("", "·", "", ".", "dim", "other event")
_LEAST_STRIP = 20


@dataclass(frozen=True, slots=True)
class Travelling:
    """A replay as the header shows it. Moments are Unix times; `now` is the real one."""

    position: float
    now: float
    first: float
    last: float
    playing: bool = False
    speed: float = 1.0
    loading: bool = False
    """The moment is not shown yet, or not all that is counted by then."""
    at_end: bool = False
    problem: str = ""
    can_return: bool = True
    """There is a live server to go back to."""
    events: Sequence[TimelineEvent] = ()


def travelling(player: Player, now: float, *, can_return: bool) -> Travelling:
    """What there is to show of a player."""
    session = player.session
    return Travelling(
        position=session.position,
        now=now,
        first=session.first,
        last=session.last,
        playing=player.playing,
        speed=player.speed,
        loading=player.seeking or not session.is_deep,
        at_end=player.at_end,
        problem=player.problem,
        can_return=can_return,
        events=session.events,
    )


def moment(wall: float, now: float) -> str:
    """`02:13:45`, with the date where it is another day than today."""
    day = "%b %d " if time.localtime(wall)[:3] != time.localtime(now)[:3] else ""
    return time.strftime(f"{day}%H:%M:%S", time.localtime(wall))


def travel_badge(travel: Travelling, glyphs: Glyphs) -> str:
    """` REPLAY 02:13:45 (-3h12m) ▶ 5x `, or LOADING RECORD for as long as not all is shown."""
    ago = duration(max(0.0, travel.now - travel.position))
    play = (">" if glyphs.ascii_only else "▶") if travel.playing else ("=" if glyphs.ascii_only else "⏸")
    pace = f" {travel.speed:g}x" if travel.playing or travel.speed > 1 else ""
    word = f"{glyphs.loading} LOADING RECORD" if travel.loading else "REPLAY"
    return f" {word} {moment(travel.position, travel.now)} (-{ago}) {play}{pace} "


def travel_line(travel: Travelling, window_s: float, width: int, glyphs: Glyphs) -> Line:
    """The strip: the record around the moment, what happened in it, and what the keys do."""
    if travel.problem:
        return ((" " + fit(f"cannot read the record: {clean(travel.problem, 200)}", width - 1), "bad"),)
    begin, end = _stretch(travel, window_s)
    form = "%H:%M" if end - begin <= _DAY_S else "%m-%d %H:%M"
    left = f" {time.strftime(form, time.localtime(begin))} "
    right = " now" if travel.can_return and end >= travel.last else f" {time.strftime(form, time.localtime(end))}"
    hint = "  L live" if travel.can_return else ""
    hint = ("  space plays  , . step  < > events" + hint) if width >= 2 * len(left) + 90 else hint
    room = width - len(left) - len(right) - len(hint) - 1
    if room < _LEAST_STRIP:
        hint, room = "", width - len(left) - len(right) - 1
    strip = _strip(travel, begin, end, max(room, 1), glyphs)
    spans: list[Span] = [(left, "dim"), *strip, (right, "dim"), (hint, "dim")]
    blank = width - line_width(spans)
    return (*spans, (" " * max(blank, 0), "text"))


def _stretch(travel: Travelling, window_s: float) -> tuple[float, float]:
    """The part of the record that the strip shows: around the moment, within the record."""
    length = min(max(window_s * SPAN_WINDOWS, LEAST_SPAN_S), max(travel.last - travel.first, 1.0))
    begin = min(max(travel.position - length / 2, travel.first), travel.last - length)
    return begin, begin + length


def _strip(travel: Travelling, begin: float, end: float, width: int, glyphs: Glyphs) -> list[Span]:
    line = "-" if glyphs.ascii_only else "─"
    cells: list[Span] = [(line, "faint")] * width
    ranked: list[tuple[int, Look]] = []
    for event in travel.events:
        if begin <= event.at <= end:
            look = look_of_event(event) or (APPLIED if event.kind is EventKind.APPLY else _NOTED)
            ranked.append((_cell(event.at, begin, end, width), look))
    for cell, look in sorted(ranked, key=lambda one: one[1] is not _NOTED):
        cells[cell] = (look.ascii_head if glyphs.ascii_only else look.head, look.role)
    here = _cell(travel.position, begin, end, width)
    cells[here] = ("#" if glyphs.ascii_only else "█", "accent bold")
    joined: list[Span] = []
    for text, role in cells:
        if joined and joined[-1][1] == role:
            joined[-1] = (joined[-1][0] + text, role)
        else:
            joined.append((text, role))
    return joined


def _cell(at: float, begin: float, end: float, width: int) -> int:
    return min(max(int((at - begin) / (end - begin) * width), 0), width - 1)
