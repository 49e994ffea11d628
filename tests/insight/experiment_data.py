"""Requests and applies for the tests of the before/after card."""

import random
from collections.abc import Iterable
from typing import Any

from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyRecord, Change, Role
from specdash.core.readings import Source
from specdash.insight.request import ServedRequest

T = 1_790_000_000.0
"""When the apply of most tests began."""
CHANGE = Change(Role.BACKEND, "LLAMA_DRAFT_MAX", "4", "12")


def record(number: int = 1, at: float = T, **fields: Any) -> ApplyRecord:
    """An apply of 10 s, whose restart began after 4 s."""
    told: dict[str, Any] = {
        "kind": ApplyKind.APPLY,
        "outcome": ApplyOutcome.APPLIED,
        "changes": (CHANGE,),
        "step_seconds": {"lock": 0.5, "hold": 0.5, "drain": 2.5, "write": 0.5, "restart": 1.0, "health": 4.0},
        **fields,
    }
    return ApplyRecord(number, at, told.pop("ended_at", at + 10.0), **told)


def requests(
    rng: random.Random,
    start: float,
    count: int,
    *,
    speed: float = 50.0,
    rate: float = 0.6,
    noise: float = 0.2,
    likeness: float = 10.0,
) -> list[ServedRequest]:
    """Requests one after the other from `start`: lognormal speeds, and acceptance that varies from one to the next, the
    less the greater their `likeness`."""
    found = []
    began = start
    for _ in range(count):
        drafted = max(5, int(rng.lognormvariate(5, 0.8)))
        share = rng.betavariate(rate * likeness, (1 - rate) * likeness)
        accepted = min(drafted, max(0, round(rng.gauss(drafted * share, (drafted * share * (1 - share)) ** 0.5))))
        rates = speed * rng.lognormvariate(0, noise), 20 * speed * rng.lognormvariate(0, noise)
        found.append(
            ServedRequest(
                began=began,
                ended=began + 2.0,
                source=Source.PROXY_EVENTS,
                prompt_total_tokens=500,
                prompt_cached=100,
                decode_tokens=drafted,
                draft_generated=drafted,
                draft_accepted=accepted,
                proxy_rates=rates[::-1],
                proxy_ttft_s=10 / speed * rng.lognormvariate(0, noise),
            )
        )
        began += 2.5
    return found


def sides(before: Iterable[ServedRequest], after: Iterable[ServedRequest]) -> Any:
    """As `experiments.compare` wants them."""
    return tuple(before), tuple(after)
