"""The alerts' part of the picture. Frozen data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdash.core.alerts import Alert


@dataclass(frozen=True, slots=True)
class AlertsPicture:
    """Active and past alerts of one server."""

    active: tuple[Alert, ...] = ()
    """Worst first, then the newest."""
    past: tuple[Alert, ...] = ()
    """Those that are over, newest first; bounded."""
    cause: str = ""
    """The likely cause of what is wrong, in one sentence without a full stop; empty when nothing is."""
    cause_key: tuple[str, str] | None = None
    """The alert that names it."""
    unjudged: tuple[tuple[str, str], ...] = ()
    """Rules that cannot be judged now, and why."""
    judged: tuple[str, ...] = ()
    """Rules that are judged now: neither among those, nor switched off."""
