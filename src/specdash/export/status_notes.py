"""The status line's fields of a picture, and the note that a dashboard or recorder leaves of them once a second."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from typing import TYPE_CHECKING, Any

from specdash.core import paths
from specdash.core.readings import Source
from specdash.core.status import FRESH_S, StatusNote
from specdash.insight.picture import SlotPhase
from specdash.insight.speedup.verdict import interval, ratio, verdict
from specdash.system import files
from specdash.system.text import UNKNOWN, clean, percent, rate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from specdash.core.readings import Reading
    from specdash.insight.picture import Picture

EVERY_S = 1.0
UNCHANGED_S = FRESH_S / 3
"""A note that would say the same is left again after this: a second's file costs as much as a second's questions."""
WINDOW_S = 300.0


def status_fields(picture: Picture) -> dict[str, str]:
    """Every field of `STATUS_FIELDS`."""
    backend, speedup, judged = picture.backend, picture.speedup, verdict(picture)
    acceptance, active = backend.speculation.acceptance, len(picture.alerts.active)
    share = acceptance.window.value if acceptance.window.value is not None else acceptance.lifetime.value
    busy = sum(slot.phase is not SlotPhase.IDLE for slot in backend.slots or ())
    return {
        "verdict": judged.headline,
        "speedup": ratio(speedup.value) if speedup.value is not None else UNKNOWN,
        "interval": interval(speedup) or UNKNOWN,
        "why": judged.because,
        "better": judged.better,
        "acceptance": percent(share),
        "decode": rate(backend.decode.value),
        "prefill": rate(backend.prefill.value),
        "busy": f"{busy}/{len(backend.slots)}" if backend.slots is not None else UNKNOWN,
        "alerts": f"{active} alert{'s' if active > 1 else ''}" if active else "",
        "alert": clean(picture.alerts.cause, 200),
        "state": str(backend.state),
        "model": clean(backend.model or UNKNOWN, 60),
        "url": backend.url,
    }


class StatusNotes:
    """A sink of readings that leaves the note, at a look at the server: once a second at most, the same one seldom."""

    def __init__(
        self,
        picture: Callable[[float, float, float], Picture],
        env: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`picture` derives one, of a moment and a window, as `TargetState.picture` does."""
        self._picture = picture
        self._directory = paths.status_notes_dir(env)
        self._clock = clock
        self._looked = self._written = float("-inf")
        self._fields: dict[str, str] = {}
        self._file: Path | None = None
        self._ended = False

    def on_reading(self, reading: Reading[Any]) -> None:
        """Leave a note when it is time. A disk that takes none is no reason to stop watching."""
        now = self._clock()
        if self._ended or reading.source is not Source.HEALTH or now - self._looked < EVERY_S:
            return
        self._looked = now
        wall = time.time()
        picture = self._picture(now, wall, WINDOW_S)
        fields = status_fields(picture)
        if fields == self._fields and now - self._written < UNCHANGED_S:
            return
        self._fields, self._written = fields, now
        note = StatusNote(picture.backend.url, wall, os.getpid(), fields)
        # A program each: of two that watch one server, the end of the first takes nothing from the second.
        digest = hashlib.blake2b(note.url.encode(), digest_size=6).hexdigest()
        self._file = self._directory / f"{digest}-{os.getpid()}.json"
        with contextlib.suppress(OSError):
            files.replace(self._file, note.to_json().encode(), durable=False)

    def close(self) -> None:
        """Take the note back: the watch is over."""
        self._ended = True
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink()
