"""Steps and acceptance per position of single requests, from what /metrics counted between them.

The counters move when a request ends. What they moved by is the request's only if it agrees with what the request says
of itself; where others use the server at the same time, it does not, and nothing is told.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from specdash.bench.line import get, of_model
from specdash.llama.bodies import ParseError
from specdash.llama.metrics import parse_metrics

if TYPE_CHECKING:
    from specdash.bench.samples import Place, Sample
    from specdash.core.observations import Counters

_ANSWER_S = 5.0
_PATIENCE_S = 0.5
_PAUSE_S = 0.01
_EXACT_BELOW = 1e6
"""llama.cpp prints six significant digits."""


class CounterWatch:
    """Looks at /metrics after each request that ran alone. Not for several threads at once."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._path = f"/metrics{of_model(place)}"
        self.why = ""
        """Why it is not usable."""
        self._last = self._look()

    @property
    def usable(self) -> bool:
        """Whether /metrics answers and counts speculation at all."""
        if self._last is not None and self._last.draft_tokens is None:
            self.why = "this build's /metrics does not count drafts"
            return False
        return self._last is not None

    def after(self, sample: Sample) -> tuple[int | None, tuple[int, ...]]:
        """Verification steps and accepted tokens per position of the request that has just ended."""
        before, deadline = self._last, time.monotonic() + _PATIENCE_S
        while True:
            now = self._look()
            if now is None or before is None:
                self._last = now
                return None, ()
            moved = _moved(before, now)
            if sample.accepted is not None and sum(moved) == sample.accepted and _has_moved(before, now, sample):
                self._last = now
                return _steps(before, now), moved if sample.drafted else ()
            if time.monotonic() > deadline:
                self._last = now
                return None, ()
            time.sleep(_PAUSE_S)

    def _look(self) -> Counters | None:
        try:
            reply = get(self._place, self._path, _ANSWER_S)
        except OSError as error:
            self.why = f"/metrics does not answer ({error})"
            return None
        if reply.status != 200:
            hint = "; start the server with --metrics" if reply.status == 501 else ""
            self.why = f"/metrics answers HTTP {reply.status}{hint}"
            return None
        try:
            return parse_metrics(reply.body)
        except ParseError as error:
            self.why = f"/metrics: {error}"
            return None


def _moved(before: Counters, now: Counters) -> tuple[int, ...]:
    old, new = before.accepted_per_position or (), now.accepted_per_position or ()
    padded = (*old, *[0] * (len(new) - len(old)))
    moved = [later - earlier for later, earlier in zip(new, padded, strict=False)]
    while moved and moved[-1] == 0:
        moved.pop()
    return tuple(moved)


def _has_moved(before: Counters, now: Counters, sample: Sample) -> bool:
    """Whether the request is counted already, and no other one is."""
    if before.predicted_tokens is None or now.predicted_tokens is None or sample.predicted_tokens is None:
        return False
    rounding = 0.5 if now.predicted_tokens < _EXACT_BELOW else 10.0 ** (len(str(int(now.predicted_tokens))) - 6)
    return abs(now.predicted_tokens - before.predicted_tokens - sample.predicted_tokens) <= rounding


def _steps(before: Counters, now: Counters) -> int | None:
    if before.verification_steps is None or now.verification_steps is None or now.verification_steps >= _EXACT_BELOW:
        return None
    return round(now.verification_steps - before.verification_steps)
