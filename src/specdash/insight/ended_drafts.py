"""What the log says of drafts at the end of requests, for a server whose /metrics nobody can read. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdash.insight.requests import LoggedRequest


@dataclass(frozen=True, slots=True)
class EndedDrafts:
    """Sums over requests that drafted."""

    tokens: int = 0
    """Generated, the first of each request apart: it is the prompt's."""
    seconds: float = 0.0
    drafted: int = 0
    accepted: int = 0
    steps: float = 0.0
    """From the printed mean length, which has two decimals; replays not counted."""
    positions: tuple[float, ...] = ()
    """Mean share accepted per position, by steps; empty where a request does not tell (verbosity 4 does)."""

    @property
    def calls(self) -> int:
        """Decode calls of the target, replays included: each brings one token beside those accepted."""
        return self.tokens - self.accepted


def ended_drafts(requests: Iterable[tuple[float, LoggedRequest]], since: float) -> EndedDrafts:
    """Over the requests that ended after monotonic `since`; `requests` come with their ends, the newest first."""
    tokens = drafted = accepted = 0
    seconds = steps = 0.0
    sums: list[float] = []
    all_tell = True
    for at, one in requests:
        if at < since:
            break
        own = _steps(one)
        if own is None or not one.decode_tokens or not one.draft_generated or one.draft_accepted is None:
            continue
        tokens += one.decode_tokens - 1
        seconds += (one.decode_ms or 0.0) / 1000.0
        drafted += one.draft_generated
        accepted += min(one.draft_accepted, one.decode_tokens - 1)
        steps += own
        rates = one.acceptance_per_position
        all_tell = all_tell and rates is not None
        for place, rate in enumerate(rates or ()):
            if place == len(sums):
                sums.append(0.0)
            sums[place] += own * rate
    while sums and sums[-1] == 0.0:
        sums.pop()
    positions = tuple(min(1.0, one / steps) for one in sums) if all_tell and steps else ()
    return EndedDrafts(tokens, seconds, drafted, accepted, steps, positions)


def _steps(request: LoggedRequest) -> float | None:
    if request.steps:
        return float(request.steps)
    if not request.draft_accepted or request.mean_accepted_length is None or request.mean_accepted_length <= 1.0:
        return None
    return request.draft_accepted / (request.mean_accepted_length - 1.0)
