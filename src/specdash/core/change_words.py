"""How a change is written: `+12.3%`, and not as a figure where it is beyond belief."""

from __future__ import annotations

from math import isfinite

UNKNOWN = "--"
_MOST = 10.0
"""Times as much: what is more came of a reference that was disturbed, or of nothing. Its digits mean nothing."""


def change_words(share: float | None, digits: int = 1, unit: str = "%") -> str:
    """A change as a share of what it was before: 0.123 is `+12.3%`, 26.8 is `more than ×10`; `--` when not known."""
    if share is None or not (isfinite(share) or share > 0):
        return UNKNOWN
    if 1 + share > _MOST:
        return f"more than ×{_MOST:g}"
    return f"{share * 100:+.{digits}f}{unit}"


def between_words(low: float | None, high: float | None) -> str:
    """`+8.1% to +16.4%`; `--` without an interval."""
    return UNKNOWN if low is None or high is None else f"{change_words(low)} to {change_words(high)}"
