"""Figures as alerts word them."""

from __future__ import annotations

import time

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def duration(seconds: float | None) -> str:
    """`7 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`; `--` when unknown."""
    if seconds is None:
        return "--"
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return _pair(whole, _MINUTE, "min", 1, "s")
    if whole < _DAY:
        return _pair(whole, _HOUR, "h", _MINUTE, "min")
    return _pair(whole, _DAY, "d", _HOUR, "h")


def _pair(seconds: int, large: int, name: str, small: int, rest_name: str) -> str:
    rest = seconds % large // small
    return f"{seconds // large} {name} {rest} {rest_name}" if rest else f"{seconds // large} {name}"


def clock(wall: float) -> str:
    """Local time of day, `02:13:45`."""
    try:
        return time.strftime("%H:%M:%S", time.localtime(wall))
    except (OverflowError, ValueError, OSError):
        return "--"


def percent(share: float) -> str:
    """A fraction as `25 %`."""
    return f"{share * 100:.0f} %"
