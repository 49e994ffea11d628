"""The vocabulary of trials: that settings are tried on a server, by whom, and how far that is.

The note itself, with the settings from before, is `control.trial`'s; this is what others may know of it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_COMMAND = re.compile(r"[a-z][a-z ]{0,30}")
_NAME = re.compile(r"[\w.@:+-]{1,100}")


@dataclass(frozen=True, slots=True)
class TrialNote:
    """A trial that is under way, or that was when its process died (`alive` False)."""

    what: str
    """The command: `bench ab`, `tune`."""
    service: str
    at: float
    """When it began, in Unix time."""
    alive: bool = True
    boot: int | None = None
    """The boot that is made now, from 1; None between the boots that are counted."""
    planned: int | None = None
    """Boots in all, as far as it is known."""

    @property
    def words(self) -> str:
        """``on trial by `specdash tune`, boot 4 of 12``."""
        if not self.alive:
            return f"left on trial: `specdash {self.what}` was cut short; `specdash recover` puts its settings back"
        text = f"on trial by `specdash {self.what}`"
        if self.boot is None:
            return text
        of = f" of {self.planned}" if self.planned is not None and self.planned >= self.boot else ""
        return f"{text}, boot {self.boot}{of}"


@dataclass(frozen=True, slots=True)
class WrittenTrial:
    """What the file says: the note, whose process it is, and of which server it is; no setting."""

    note: TrialNote
    pid: int
    pid_started: float
    url: str | None


def read_note(text: str) -> WrittenTrial | None:
    """The public part of the note; None for what is none."""
    try:
        data: Any = json.loads(text)
        what, service = str(data["what"]), str(data["service"])
        note = TrialNote(
            what if _COMMAND.fullmatch(what) else "tune",
            service if _NAME.fullmatch(service) else "the service",
            float(data["at"]),
            boot=_count(data.get("boot")),
            planned=_count(data.get("planned")),
        )
        url = data.get("url")
        return WrittenTrial(note, int(data["pid"]), float(data["pid_started"]), str(url) if url else None)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1_000_000 else None
