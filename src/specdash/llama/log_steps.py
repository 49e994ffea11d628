"""Verification steps added up: with `LLAMA_TRACE=1` nearly every line of a log is one, and all want only their sums."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

from specdash.core.log_facts import ServerEvent, TaskLaunched, TaskReleased, VerificationSteps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdash.core.log_facts import LogFact

RUN_S: Final = 1.0
"""A run of steps covers at most this long, so that whoever dates it by its end is at most that far off."""
_MAX_SLOTS = 1024


@dataclass(slots=True)
class _Run:
    slot: int
    task: int
    origin: int | None
    first_s: float | None
    replay: bool
    """Whether the next step is one."""
    last_s: float | None = None
    """When its last step ended, or before its first one, when the restore was that this one follows."""
    steps: int = 0
    accepted: int = 0
    generated: int = 0
    replays: int = 0
    restored: int = 0
    replayed: int = 0
    replay_s: float = 0.0
    until_s: float = inf
    """Steps after this time stamp are another run."""


class StepAdder:
    """Adds up the steps of each slot that have no other fact between them, and tells replays from steps that count.

    A step repeats tokens counted already if a checkpoint was restored after the slot's last step.
    """

    def __init__(self) -> None:
        self._runs: dict[tuple[int | None, int], _Run] = {}
        """Runs under way by origin and slot, in the order of their last steps."""
        self._restored: dict[tuple[int | None, int], float | None] = {}
        """Origin and slot of those whose next step is a replay, and when the restore was; runs under way left out."""

    def added_up(self, facts: Iterable[LogFact]) -> list[LogFact]:
        """The next facts of a log, with the steps, which are facts of their own in `facts`, added up."""
        found: list[LogFact] = []
        run: _Run | None = None
        for fact in facts:
            if not isinstance(fact, VerificationSteps):
                if run is not None:
                    self._end_runs(found)
                    run = None
                if self._restored:
                    self._forget(fact)
                found.append(fact)
                continue
            at = fact.at_s
            if (
                run is None
                or fact.slot != run.slot
                or fact.task != run.task
                or fact.origin != run.origin
                or (at is not None and at > run.until_s)
            ):
                run = self._run_of(fact, found)
            if run.replay:
                run.replays += 1
                # Of the draft tokens and the one before them, all but the last were decoded before.
                run.replayed += fact.generated
                if at is not None and run.last_s is not None:
                    run.replay_s += max(0.0, at - run.last_s)
            else:
                run.steps += 1
                run.accepted += fact.accepted
                run.generated += fact.generated
            run.last_s = at
            run.restored += fact.restored
            run.replay = fact.restored > 0
        self._end_runs(found)
        return found

    def _run_of(self, step: VerificationSteps, found: list[LogFact]) -> _Run:
        key = (step.origin, step.slot)
        run = self._runs.get(key)
        if run is not None and (run.task != step.task or (step.at_s is not None and step.at_s > run.until_s)):
            self._end_runs(found)
            run = None
        if run is None:
            run = _Run(step.slot, step.task, step.origin, step.at_s, key in self._restored, self._restored.get(key))
            if step.at_s is not None:
                run.until_s = step.at_s + RUN_S
        else:
            del self._runs[key]
        self._runs[key] = run
        return run

    def _end_runs(self, found: list[LogFact]) -> None:
        for key, run in self._runs.items():
            found.append(
                VerificationSteps(
                    run.slot, run.task, run.steps, run.accepted, run.generated, run.replays, run.restored, run.first_s,
                    run.last_s, run.origin, run.replayed, round(run.replay_s, 6),
                )
            )  # fmt: skip
            if not run.replay:
                self._restored.pop(key, None)
            elif len(self._restored) < _MAX_SLOTS:
                self._restored[key] = run.last_s
        self._runs.clear()

    def _forget(self, fact: LogFact) -> None:
        """The first step of a task or of a server repeats nothing."""
        if isinstance(fact, (TaskLaunched, TaskReleased)):
            self._restored.pop((fact.origin, fact.slot), None)
        elif isinstance(fact, ServerEvent) and fact.name == "restarted":
            self._restored = {
                key: at for key, at in self._restored.items() if fact.origin is not None and key[0] != fact.origin
            }
