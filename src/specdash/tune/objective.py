"""What "better" means: the figure that a tuner maximises, made of what a boot measured.

A tuner compares times of prompts (`problem.mixture_speed`). Another objective gives it another kind of time: whole
latencies of the slowest requests, or joules.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

from specdash.tune.problem import PromptResult, Workload

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specdash.bench.samples import Sample
    from specdash.tune.measuring import Measured

TAIL = "the slowest"
"""The class of the prompts that decide a latency's 95th percentile."""


class Objective(StrEnum):
    """What is to become better."""

    DECODE = "decode"
    LATENCY = "latency-p95"
    PER_WATT = "per-watt"

    @property
    def words(self) -> str:
        """For people."""
        return {
            Objective.DECODE: "decode tok/s",
            Objective.LATENCY: "latency of the slowest requests (p95), as tok/s with the prompt's time",
            Objective.PER_WATT: "tokens per joule",
        }[self]

    @property
    def unit(self) -> str:
        """Of what is maximised."""
        return "tok/J" if self is Objective.PER_WATT else "tok/s"

    def workload(self, workload: Workload) -> Workload:
        """The shares by which this objective weighs the classes."""
        if self is not Objective.LATENCY:
            return workload
        return Workload(((TAIL, 1.0), *((kind, 0.0) for kind, _ in workload.shares)))


def unit_of(words: str) -> str:
    """The unit of an objective that is given in words, as runs keep it: `tok/s`, `tok/J`."""
    return next((one.unit for one in Objective if one.words == words), "tok/s")


def is_of_the_tail(workload: Workload) -> bool:
    """Whether the slowest prompts are all that counts."""
    return dict(workload.shares).get(TAIL, 0.0) == 1.0


def plain_results(samples: Iterable[Sample], *, every_step: bool = True) -> tuple[PromptResult, ...]:
    """Each prompt with its decode time. Several runs of one prompt are added up; failed requests are left out.

    `every_step`: every step has a draft (`Point.drafts_every_step`), so that counters of fewer are wrong. Where some
    have none, only those with one are counted, which is not the number of steps; positions are told all the same.
    """
    found: dict[str, PromptResult] = {}
    for one in samples:
        if one.failed or not one.predicted_ms or not one.predicted_tokens or one.predicted_tokens < 2:
            continue
        before = found.get(one.prompt) or PromptResult(one.prompt, one.kind, 0, 0.0)
        tokens, steps, accepted = one.predicted_tokens - 1, one.steps or 0, one.accepted or 0
        sound = conserved(tokens, steps, accepted)
        told = sound or (not every_step and steps + accepted <= tokens)
        found[one.prompt] = PromptResult(
            prompt=one.prompt,
            kind=one.kind,
            tokens=before.tokens + tokens,
            seconds=before.seconds + one.predicted_ms / 1000.0,
            drafted=before.drafted + (one.drafted or 0),
            accepted=before.accepted + accepted,
            steps=before.steps + (steps if sound else 0),
            accepted_per_position=_added(before.accepted_per_position, one.accepted_per_position if told else ()),
        )
    return tuple(found[name] for name in sorted(found))


def conserved(tokens: int, steps: int, accepted: int) -> bool:
    """Whether counters fit together, with a draft in every step: a step emits what was accepted and one token more
    (llama.cpp #25682)."""
    return not steps or abs(tokens - steps - accepted) <= 2 + 0.02 * tokens


def results_of(
    objective: Objective, measured: Measured, *, every_step: bool = True
) -> tuple[tuple[PromptResult, ...], float | None]:
    """What a tuner is told: the prompts with the objective's times, and what drafting cost, where that is a time.

    Joules need a driver that tells them; a boot for which it did not has no results.
    """
    plain = plain_results(measured.samples, every_step=every_step)
    if objective is Objective.DECODE:
        return plain, measured.draft_s
    if objective is Objective.PER_WATT:
        watts = measured.seen.watts
        return (tuple(replace(one, seconds=one.seconds * watts) for one in plain) if watts else ()), None
    whole: dict[str, float] = {}
    for one in measured.samples:
        if not one.failed and one.latency_s is not None:
            whole[one.prompt] = whole.get(one.prompt, 0.0) + one.latency_s
    return tuple(replace(one, seconds=whole.get(one.prompt, one.seconds)) for one in plain), measured.draft_s


def workload_of(kinds: Iterable[str], shares: Mapping[str, float] | None = None) -> Workload:
    """Shares of the classes that there are prompts of; all alike where none are given."""
    known = list(dict.fromkeys(kinds))
    given = {kind: (shares or {}).get(kind, 0.0) for kind in known} if shares else dict.fromkeys(known, 1.0)
    total = sum(given.values())
    if total <= 0:
        given, total = dict.fromkeys(known, 1.0), float(len(known))
    return Workload(tuple((kind, given[kind] / total) for kind in known))


def _added(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    length = max(len(one), len(other))
    padded = [(*row, *[0] * (length - len(row))) for row in (one, other)]
    return tuple(a + b for a, b in zip(*padded, strict=True))
