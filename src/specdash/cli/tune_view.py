"""What `specdash tune` prints: the plan, a line a boot, and the end."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from specdash.bench.progress import Progress, duration
from specdash.core.change_words import between_words, change_words
from specdash.core.errors import ExitCode
from specdash.core.masking import MASK
from specdash.tune.gains import gains
from specdash.tune.objective import unit_of
from specdash.tune.run_files import newest_run, read_run
from specdash.tune.run_report import measured_gain
from specdash.tune.status import Ending, RunState, Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from specdash.core.applies import Progress as ApplyProgress
    from specdash.tune.planning import Prepared
    from specdash.tune.problem import Point, Workload
    from specdash.tune.status import Boot, Now, Run, RunEnd

_MOST_KNOB = 60


def plan_lines(prepared: Prepared) -> list[str]:
    """What will be done, and what it costs."""
    plan, options = prepared.plan, prepared.options
    lines = [
        f"tune {plan.service} for {plan.objective}",
        f"  now        {plan.start.name}",
        f"  points     {plan.points} to choose from",
    ]
    for knob in plan.knobs:
        values = knob.values if len(knob.values) <= _MOST_KNOB else f"{knob.values[:_MOST_KNOB]}…"
        lines.append(f"             {knob.key}: {values}")
    shares = ", ".join(f"{kind} {share:.0%}" for kind, share in plan.workload.shares if share)
    lines += [
        f"  asked      {plan.prompts} prompts in every boot, answers of up to {options.tokens} tokens ({shares})",
        f"             {plan.workload_words}",
        *(f"  limit      {one}" for one in plan.limits),
        f"  worth it   from a gain of {plan.least_gain:.0%} on, surely above 0",
    ]
    minutes = f" or {plan.budget.minutes:g} min" if plan.budget.minutes is not None else ""
    lines.append(f"  budget     {plan.budget.restarts} restarts{minutes}")
    if options.check_texts and not prepared.synthetic:
        lines.append("             and 2 to 4 more at the end, to compare texts, if something better was found")
    if plan.eta_s is not None:
        lines.append(f"  takes      about {duration(plan.eta_s)}")
    if plan.downtime_s:
        lines.append(f"  downtime   about {duration(plan.downtime_s)} in all; clients of the proxy wait meanwhile")
    lines += [f"  note       {one}" for one in plan.notes]
    return lines


class Printer:
    """Tells on stderr what goes on: `loop.Observer`."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._progress = Progress(0.0, quiet=quiet)
        self._boots: list[Boot] = []
        self._total = 0
        self._start: Point | None = None
        self._workload: Workload | None = None
        self._unit = "tok/s"
        self._now: Now | None = None

    def begin(self, prepared: Prepared) -> None:
        """A run begins."""
        self._total = prepared.task.budget.restarts
        self._start, self._workload = prepared.task.start, prepared.task.workload
        self._unit = prepared.objective.unit
        self._progress = Progress(float(self._total), quiet=self._quiet)

    def text(self, lines: Iterable[str]) -> None:
        """Lines as they are."""
        if not self._quiet:
            self.end()
            print("\n".join(lines), file=sys.stderr, flush=True)

    def say(self, words: str) -> None:
        """A line that stays."""
        self._progress.say(words)

    def end(self) -> None:
        """Clear the running line."""
        self._progress.end()

    def detail(self, words: str) -> None:
        """What the present step waits for."""
        if words:
            self._progress.show(len(self._boots), words)

    def progress(self, told: ApplyProgress) -> None:
        """A step of an apply."""
        point = f" {self._now.point.name}" if self._now is not None and self._now.point is not None else ""
        left = self._now.left_s if self._now is not None else None
        self._progress.show(len(self._boots), f"restart{point}: {told.step}", left)

    def now(self, now: Now) -> None:
        """See `loop.Observer`."""
        self._now = now
        done = float(len(self._boots))
        if now.step is Step.MEASURE and now.done and now.total:
            done += now.done / now.total
        number = f"{now.number} of {self._total} " if now.number is not None else ""
        words = f"{number}{now.point.name if now.point is not None else ''}: {now.detail or now.step}"
        self._progress.show(done, words, now.left_s)

    def booted(self, boot: Boot, again: bool) -> None:
        """See `loop.Observer`."""
        self._boots.append(boot)
        if again or self._quiet:
            return
        self._progress.end()
        print(self._line(boot), file=sys.stderr, flush=True)

    def discarded(self, why: str) -> None:
        """See `loop.Observer`."""
        self.say(f"discarded, and done again: {why}")

    def _line(self, boot: Boot) -> str:
        assert self._start is not None  # noqa: S101 - a run has begun
        assert self._workload is not None  # noqa: S101
        return boot_line(boot, self._boots, self._start, self._workload, self._total, self._unit)


def boot_line(boot: Boot, boots: Sequence[Boot], start: Point, workload: Workload, total: int, unit: str) -> str:
    """One boot: its number, point, speed, what that is beside the start, and why it was made."""
    head = f"{boot.number:3} of {total}  {boot.result.point.name:<34}"
    why = f"  ({boot.stage}{f': {boot.why}' if boot.why else ''})"
    if boot.excluded:
        speed = "--" if boot.speed is None else f"{boot.speed:.4g}"
        return f"{head}{speed:>8} {unit}  out by a limit: {boot.excluded}{why}"
    if boot.result.failure:
        return f"{head}  not usable: {boot.result.failure}{why}"
    if boot.broke:
        why = f"  (this once: {boot.broke}){why}"
    speed = "--" if boot.speed is None else f"{boot.speed:.3g}" if boot.speed < 10 else f"{boot.speed:.1f}"
    told = gains([one.result for one in boots], start, workload)[list(boots).index(boot)]
    beside = "the start" if boot.result.point == start else ""
    if told is not None:
        beside = interval_words(told.gain, told.low, told.high)
    return f"{head}{speed:>8} {unit}  {beside:<24}{why}"


def interval_words(gain: float | None, low: float | None, high: float | None) -> str:
    """`+12.3% (+8.1% to +16.4%)`."""
    return change_words(gain) + ("" if low is None or high is None else f" ({between_words(low, high)})")


def ending_lines(end: RunEnd, prepared: Prepared, directory: Path) -> list[str]:
    """How it ended, with the evidence, and what to do now."""
    outcome = end.outcome
    lines = [""]
    if end.ending is Ending.STOPPED:
        left = (
            "the service was left alone" if prepared.options.beside else f"{prepared.plan.service} runs {end.in_force}"
        )
        lines.append(f"stopped; {left}, and what was measured is kept")
        lines.append(f"  go on with `specdash tune --resume {shlex.quote(str(directory))}`")
    elif outcome is not None and outcome.improved:
        lines.append(f"better: {outcome.chosen.name}, {interval_words(outcome.gain, outcome.low, outcome.high)}")
        run = read_run(directory)
        told = measured_gain(run, outcome.chosen) if run is not None else None
        if told is not None:
            lines.append(f"  measured  {interval_words(told.gain, told.low, told.high)} by its own boots alone")
        lines += [f"  {key}={value}" if value else f"  {key} unset" for key, value in end.settings]
        lines.append(f"  texts     {end.texts or 'not compared'}")
        lines.append(f"  apply it  {apply_command(end.settings)}")
        if any(MASK in value for _, value in end.settings):
            lines.append(f"            where {MASK} stands for your key; `specdash tune --apply` knows it")
    elif outcome is not None:
        lines.append(f"no improvement found; {prepared.plan.start.name} stays in force")
        if outcome.gain:
            lines.append(f"  the best other point: {interval_words(outcome.gain, outcome.low, outcome.high)}")
    if outcome is not None and outcome.why:
        lines.append(f"  because   {outcome.why}")
    if outcome is not None and outcome.noise is not None:
        lines.append(f"  noise     the same settings differ by {outcome.noise_words} from boot to boot")
    return [*lines, f"  report    {directory / 'report.md'}"]


def apply_command(settings: Iterable[tuple[str, str]]) -> str:
    """The ordinary apply of these settings."""
    words = [shlex.quote(f"{key}={value}") if value else f"--unset {key}" for key, value in settings]
    return " ".join(["specdash apply", *words])


def status(*, as_json: bool) -> int:
    """How the newest run stands; 0 also when there is none."""
    run = newest_run(os.environ)
    if as_json:
        print(json.dumps(None if run is None else {**asdict(run), "state": str(run.state)}, indent=1))
    elif run is None:
        print("nothing was tuned yet")
    else:
        print("\n".join(status_lines(run)))
    return ExitCode.OK


def users_words(now: Now) -> str:
    """Who waits, as far as that is known."""
    held = f"{now.held} {'request waits' if now.held == 1 else 'requests wait'} at the proxy"
    queued = f"{now.queued} {'request queues' if now.queued == 1 else 'requests queue'} for a slot"
    return ", ".join(words for words, known in ((held, now.held), (queued, now.queued)) if known is not None)


def status_lines(run: Run) -> list[str]:
    """A run as text."""
    plan = run.plan
    lines = [f"{run.state}: {plan.service}, {len(run.boots)} of {plan.budget.restarts} restarts  ({run.directory})"]
    unit, total = unit_of(plan.objective), plan.budget.restarts
    lines += [boot_line(one, run.boots, plan.start, plan.workload, total, unit) for one in run.boots]
    if run.now is not None and run.alive:
        point = f" {run.now.point.name}" if run.now.point is not None else ""
        left = f", {duration(run.now.left_s)} left" if run.now.left_s is not None else ""
        lines.append(f"now: {run.now.step}{point}{f': {run.now.detail}' if run.now.detail else ''}{left}")
        users = users_words(run.now)
        lines += [f"     {users}"] if users else []
    if run.end is not None:
        outcome = run.end.outcome
        if run.end.error:
            lines.append(f"ended: {run.end.error}")
        if outcome is not None and outcome.improved:
            lines.append(f"better: {outcome.chosen.name}, {interval_words(outcome.gain, outcome.low, outcome.high)}")
            lines.append(f"  {apply_command(run.end.settings)}")
        elif outcome is not None and run.end.ending is Ending.FINISHED:
            lines.append("no improvement found")
        lines.append(f"in force: {run.end.in_force or 'unknown'}")
    if run.state is RunState.CUT_SHORT:
        lines.append("go on with `specdash tune --resume`, or end it with `specdash tune --abort`")
    return lines
