"""Moments as people name them on a command line: a time of day, so long ago, a date; and lengths of time.

`02:00`  the last time it was that late (local time)      `-3h`, `3h`  so long ago      `now`
`2026-03-01`, `2026-03-01T02:00`, with `Z` or an offset: that moment; without one it is local time.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from specdash.core.errors import UsageError

UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_STEPS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)


def even_step(seconds: float) -> float:
    """The shortest step of a clock's that is no shorter; at most a day."""
    return float(next((step for step in _STEPS_S if step >= seconds), _STEPS_S[-1]))


def parse_length(text: str) -> float:
    """Seconds of `90s`, `15m`, `1h30m`, `7d`; raises `UsageError`."""
    parts = _LENGTH.findall(text)
    if not parts or _LENGTH.sub("", text).strip():
        raise UsageError(f"{text!r} is no length of time; write 90s, 15m, 1h30m or 7d")
    return sum(float(number) * UNITS_S[unit] for number, unit in parts)


def parse_moment(text: str, now: float) -> float:
    """The Unix time that is meant when it is `now`; raises `UsageError`. A time of day is the last such."""
    meant = text.strip()
    if meant == "now":
        return now
    clock = _CLOCK.fullmatch(meant)
    if clock is not None:
        return _time_of_day(meant, clock, now)
    if _LENGTH.fullmatch(meant) or re.fullmatch(rf"-?(?:{_LENGTH.pattern})+", meant):
        return now - parse_length(meant.removeprefix("-"))
    try:
        return datetime.fromisoformat(meant).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"{text!r} is no moment; write 02:00, -3h, now or 2026-03-01T02:00") from None


def _time_of_day(text: str, clock: re.Match[str], now: float) -> float:
    hour, minute, second = (int(part or 0) for part in clock.groups())
    today = datetime.fromtimestamp(now, UTC).astimezone()
    try:
        # Local wall time, so that the change to summer time is the calendar's and not ours.
        meant = today.replace(tzinfo=None, hour=hour, minute=minute, second=second, microsecond=0)
    except ValueError:
        raise UsageError(f"{text!r} is no time of day; write 02:00 or 14:30:15") from None
    if meant.timestamp() > now:
        meant -= timedelta(days=1)
    return meant.timestamp()
