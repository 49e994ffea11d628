"""What drafting cost while something was measured, from the `statistics` lines of the server's log.

They are totals since the server's start, one for each way to draft, printed at the end of a request from log level 4
on.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.core.log_facts import SpeculativeStatistics
from specdash.llama.log_parser import LogParser

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdash.core.log_facts import LogFact

_LOOKED_BACK = 1024 * 1024
_PATIENCE_S = 1.0
_PAUSE_S = 0.05


class DraftTime:
    """Begins when it is made."""

    def __init__(self, log: str) -> None:
        self._path = Path(log)
        self.why = ""
        """Why nothing is known."""
        self._begin: dict[str, SpeculativeStatistics] = {}
        try:
            self._size = self._path.stat().st_size
            with self._path.open("rb") as file:
                file.seek(max(0, self._size - _LOOKED_BACK))
                self._note(self._begin, LogParser().feed(file.read(_LOOKED_BACK)).facts)
        except OSError as error:
            self._size = 0
            self.why = f"{log}: {error.strerror}"

    def begin_again(self, drafted: int) -> None:
        """Leave out what was drafted since it was made: these tokens, of a warm-up. The log comes late, so it waits."""
        latest = self._once_drafted(drafted) if drafted else None
        if latest is not None:
            self._begin |= latest
        self.why = ""

    def seconds(self, drafted: int) -> float | None:
        """Since it began, in which `drafted` tokens were drafted; None when the log tells of others, or nothing."""
        if not drafted:
            return 0.0
        latest = self._once_drafted(drafted)
        if latest is None:
            return None
        spent = sum(sum(one.durations_ms) - self._before_ms(one) for one in latest.values())
        return spent / 1000.0 if spent > 0 else None

    def _once_drafted(self, drafted: int) -> dict[str, SpeculativeStatistics] | None:
        """The totals, once they have grown by so many tokens."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            latest, error = self._latest()
            if latest is None:
                self.why = error
                return None
            moved = sum(one.tokens_generated - self._before(one) for one in latest.values())
            if moved == drafted:
                return latest
            if time.monotonic() > deadline:
                self.why = (
                    f"{self._path} has no statistics lines (they come from --log-verbosity 4 on)"
                    if not latest
                    else f"{self._path} tells of {moved} drafted tokens where {drafted} were measured"
                )
                return None
            time.sleep(_PAUSE_S)

    def _latest(self) -> tuple[dict[str, SpeculativeStatistics] | None, str]:
        found: dict[str, SpeculativeStatistics] = {}
        try:
            with self._path.open("rb") as file:
                file.seek(self._size)
                parser = LogParser()
                while block := file.read(_LOOKED_BACK):
                    self._note(found, parser.feed(block).facts)
        except OSError as error:
            return None, f"{self._path}: {error.strerror}"
        return found, ""

    @staticmethod
    def _note(found: dict[str, SpeculativeStatistics], facts: Iterable[LogFact]) -> None:
        for fact in facts:
            if isinstance(fact, SpeculativeStatistics):
                found[fact.type] = fact

    def _before(self, one: SpeculativeStatistics) -> int:
        before = self._begin.get(one.type)
        return before.tokens_generated if before is not None else 0

    def _before_ms(self, one: SpeculativeStatistics) -> float:
        before = self._begin.get(one.type)
        return sum(before.durations_ms) if before is not None else 0.0
