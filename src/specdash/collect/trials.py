"""The note of a trial to readings: whoever tries settings on the server, the dashboard hears of it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specdash.collect.discover import concerns, place
from specdash.collect.processes import same_process
from specdash.core import paths
from specdash.core.readings import FailureKind, Reading, Source
from specdash.core.trials import TrialNote, WrittenTrial, read_note

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LOOK_S = 0.25
"""Between two looks: a trial is noted before its first restart, and that is to be known before it is seen."""
MAX_BYTES = 4 << 20


class TrialCollector:
    """Publishes the trials on one server, none or one, whenever that is something else. A look costs one stat while
    nothing is on trial, and a look at its process while something is."""

    def __init__(
        self,
        url: str,
        publish: Callable[[Reading[Any]], None],
        env: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`url` is the server's base address; a note without an address concerns every server."""
        self._place = place(url)
        self._publish = publish
        self._path = paths.trial_file(env)
        self._clock = clock
        self._seen: object = None
        self._written: WrittenTrial | None = None
        self._told: tuple[TrialNote, ...] | str | None = None

    def step(self) -> float:
        """One look; the seconds until the next."""
        found = self._look()
        if found != self._told:
            self._told = found
            self._publish(
                Reading.unknown(Source.TRIAL, self._clock(), FailureKind.UNAVAILABLE, found)
                if isinstance(found, str)
                else Reading.known(Source.TRIAL, self._clock(), found)
            )
        return LOOK_S

    def _look(self) -> tuple[TrialNote, ...] | str:
        """The trials, or why they cannot be known."""
        try:
            state = self._path.stat()
            seen = (state.st_ino, state.st_mtime_ns, state.st_size)
            if seen != self._seen:
                with self._path.open("rb") as file:
                    self._written = read_note(file.read(MAX_BYTES).decode("utf-8", "replace"))
                self._seen = seen
        except FileNotFoundError:
            self._seen = self._written = None
            return ()
        except OSError as error:
            self._seen = None
            return f"{self._path}: {error.strerror or error}"
        written = self._written
        if written is None:
            return f"{self._path} is no note of this version of specdash"
        if not concerns(written.url, self._place):
            return ()
        return (replace(written.note, alive=same_process(written.pid, written.pid_started)),)
