"""`specdash tune`: the fastest way to speculate, found by measuring on the real service (docs/tuner.md)."""

from __future__ import annotations

import os
import shlex
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec.structs import replace

from specdash.bench.report import StepProgress
from specdash.cli.changes.apply_run import confirm, deployment_of, exit_code, report
from specdash.cli.options import MOST_SEED, add_settings, print_answer, print_json, within
from specdash.cli.signals import cancelled_by_signals, stopped_by_signals, undisturbed
from specdash.control.change import await_trial_end
from specdash.core.changes import Role
from specdash.core.config import APPLY_SETTINGS, SERVICE_SETTINGS
from specdash.core.errors import ExitCode, SpecdashError, UsageError
from specdash.core.masking import MASK
from specdash.core.paths import tune_runs_dir
from specdash.core.structs import json_of
from specdash.system.text import duration, file_timestamp, gain, number, percent, significant, timestamp
from specdash.tune.model.gains import gains
from specdash.tune.run.status import Ending, TuneStep, gains_of, newest_run, read_run

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from specdash.bench.compare.beds import OwnBed, ServiceBed
    from specdash.core.changes import ApplyProgress
    from specdash.tune.model.gains import Gain
    from specdash.tune.model.problem import Point, Task
    from specdash.tune.run.loop import Loop
    from specdash.tune.run.planning import PreparedRun, TuneOptions
    from specdash.tune.run.status import Boot, CurrentStep, RunEnd, RunPlan, TuneRun, TuneRunRecord


# What `specdash tune` prints: the plan, a line a boot, and the end.

_MOST_KNOB = 60


def plan_lines(plan: RunPlan) -> list[str]:
    """What will be done, and what it costs."""
    lines = [
        f"tune {plan.service} for {plan.objective}",
        f"  now        {plan.start.name}",
        f"  points     {plan.points} to choose from",
    ]
    for knob in plan.knobs:
        values = knob.values if len(knob.values) <= _MOST_KNOB else f"{knob.values[:_MOST_KNOB]}…"
        lines.append(f"             {knob.key}: {values}")
    shares = ", ".join(f"{kind} {percent(share)}" for kind, share in plan.workload.shares if share)
    lines += [
        f"  asked      {plan.prompts} prompts in every boot ({shares})",
        f"             {plan.workload_words}",
        *(f"  limit      {limit}" for limit in plan.limits),
        f"  worth it   from a gain of {percent(plan.least_gain)} on, surely above 0",
    ]
    minutes = f" or {plan.budget.minutes:g} min" if plan.budget.minutes is not None else ""
    lines.append(f"  budget     {plan.budget.restarts} restarts{minutes}")
    if plan.downtime_s:
        lines.append(f"  downtime   about {duration(plan.downtime_s)} in all; clients of the proxy wait meanwhile")
    return [*lines, *(f"  note       {note}" for note in plan.notes)]


class TunePrinter:
    """Shows on stderr what goes on: `loop.Observer`."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._progress = StepProgress(0.0, quiet=quiet)
        self._boots: list[Boot] = []
        self._task: Task | None = None
        self._now: CurrentStep | None = None

    def begin(self, prepared: PreparedRun) -> None:
        self._task = prepared.task
        self._progress = StepProgress(float(self._task.budget.restarts), quiet=self._quiet)

    def text(self, lines: Iterable[str]) -> None:
        if not self._quiet:
            self.end()
            print("\n".join(lines), file=sys.stderr, flush=True)

    def say(self, words: str) -> None:
        self._progress.say(words)

    def end(self) -> None:
        self._progress.end()

    def progress(self, reported: ApplyProgress) -> None:
        """A step of an apply."""
        point = f" {self._now.point.name}" if self._now is not None and self._now.point is not None else ""
        left = self._now.left_s if self._now is not None else None
        self._progress.show(len(self._boots), f"restart{point}: {reported.step}", left)

    def now(self, now: CurrentStep) -> None:
        self._now = now
        done = float(len(self._boots))
        if now.step is TuneStep.MEASURE and now.done and now.total:
            done += now.done / now.total
        total = self._task.budget.restarts if self._task is not None else 0
        number = f"{now.number} of {total} " if now.number is not None else ""
        words = f"{number}{now.point.name if now.point is not None else ''}: {now.step}"
        self._progress.show(done, words, now.left_s)

    def booted(self, boot: Boot) -> None:
        self._boots.append(boot)
        if self._task is not None:
            known = gains([each.result for each in self._boots], self._task.start, self._task.workload)
            self.text([boot_line(boot, known[-1], self._task.budget.restarts)])

    def discarded(self, why: str) -> None:
        self.say(f"discarded, and done again: {why}")


def boot_line(boot: Boot, known: Gain | None, total: int) -> str:
    """One boot: its number, point, speed, what that is beside the start, and why it was made."""
    head = f"{boot.number:3} of {total}  {boot.result.point.name:<34}"
    why = f"  ({boot.stage}{f': {boot.why}' if boot.why else ''})"
    if boot.excluded:
        return f"{head}{significant(boot.speed, 4):>8} tok/s  out by a limit: {boot.excluded}{why}"
    if boot.result.failure:
        return f"{head}  not usable: {boot.result.failure}{why}"
    speed = significant(boot.speed) if boot.speed is not None and boot.speed < 10 else number(boot.speed, 1)
    beside = gain(known.gain, known.low, known.high) if known is not None else ""
    return f"{head}{speed:>8} tok/s  {beside:<24}{why}"


def run_lines(run: TuneRun) -> list[str]:
    """The boots, and how it ended, with the evidence and what to do now."""
    plan, known = run.plan, gains_of(run)
    lines = []
    for boot in run.boots:
        lines += [f"discarded: {why}" for why in boot.discarded]
        lines.append(boot_line(boot, known.get(boot.number), plan.budget.restarts))
    return [*lines, "", *ending_lines(run)]


def ending_lines(run: TuneRun) -> list[str]:
    """How it ended, with the evidence, and what to do now."""
    end, now = run.end, run.now
    if end is None and run.alive and now is not None:
        point = f" {now.point.name}" if now.point is not None else ""
        left = f", {duration(now.left_s)} left" if now.left_s is not None else ""
        return [f"now: {now.step}{point}{left}"]
    if end is None:
        return [] if run.alive else ["its process is gone, and the backend puts the original back by itself"]
    outcome = end.outcome
    lines = []
    if end.error:
        lines.append(f"failed: {end.error}")
    elif end.ending is Ending.STOPPED:
        lines.append("stopped: nothing is recommended, and what was measured is kept")
    elif outcome is not None and outcome.improved:
        lines.append(f"better: {outcome.chosen.name}, {gain(outcome.gain, outcome.low, outcome.high)}")
        lines += [f"  {key}={value}" if value else f"  {key} unset" for key, value in end.settings]
        words = [shlex.quote(f"{key}={value}") if value else f"--unset {key}" for key, value in end.settings]
        lines.append(f"  apply it  {' '.join(['specdash apply', *words])}")
        if any(MASK in value for _, value in end.settings):
            lines.append(f"            where {MASK} stands for your key; `specdash tune --apply` knows it")
    elif outcome is not None:
        lines.append(f"no improvement found; {run.plan.start.name} stays in force")
        if outcome.gain:
            lines.append(f"  the best other point: {gain(outcome.gain, outcome.low, outcome.high)}")
    if outcome is not None and outcome.why:
        lines.append(f"  because   {outcome.why}")
    if outcome is not None and outcome.noise is not None:
        lines.append(f"  noise     the same settings differ by {outcome.noise_words} from boot to boot")
    return [*lines, f"  in force  {end.in_force or 'unknown'}", f"  report    {end.report}"]


def report_words(run: TuneRun) -> str:
    """The report for people: what is printed of a run."""
    when = timestamp(run.head.at, seconds=False, utc=True)
    lines = [*plan_lines(run.plan), "", *run_lines(run)]
    return "\n".join([f"# Tuning {run.plan.service}, {when}", "", "```", *lines, "```", ""])


def status(*, as_json: bool) -> int:
    """How the newest run stands; 0 also when there is none."""
    run = newest_run(os.environ)
    if run is None:
        print_answer(None, "nothing was tuned yet", as_json=as_json)
        return ExitCode.OK
    spent = f"{len(run.boots)} of {run.plan.budget.restarts} restarts"
    lines = [f"{run.state}: {run.plan.service}, {spent}  ({run.directory})", *run_lines(run)]
    print_answer({**json_of(run), "state": str(run.state)}, lines, as_json=as_json)
    return ExitCode.OK


class TuneCommand:
    """One run: prepare, show, ask, run, report, and apply where that is wanted."""

    def __init__(self, args: argparse.Namespace, options: TuneOptions, env: Mapping[str, str]) -> None:
        self._args, self._options, self._env = args, options, env
        self._printer = TunePrinter(quiet=args.json)
        self._deployment, self._apply_options = deployment_of(args)

    def run(self) -> int:
        """Everything; the exit code."""
        from specdash.tune.run.planning import prepare
        from specdash.tune.run.status import RunPlan

        args, printer = self._args, self._printer
        with self._bed() as bed:
            try:
                prepared = prepare(self._options, bed.values, bed.words, self._served_at(bed), self._env)
            except UsageError as error:
                if not (args.dry_run and args.json):
                    raise
                print_json(json_of(RunPlan(bed.words, problem=str(error))))
                return error.exit_code
            if args.dry_run:
                print_answer(json_of(prepared.plan), plan_lines(prepared.plan), as_json=args.json)
                return ExitCode.OK
            printer.text(plan_lines(prepared.plan))
            restarts = f"Restart {prepared.plan.service} up to {prepared.plan.budget.restarts} times, and measure?"
            if not confirm("Begin?" if self._options.beside else restarts, args.yes, "tune"):
                printer.say("nothing was touched")
                return ExitCode.OK
            return self._carried_out(bed, prepared)

    @contextmanager
    def _bed(self) -> Iterator[ServiceBed | OwnBed]:
        from specdash.bench.compare.beds import OwnBed, ServiceBed
        from specdash.cli.demo import private_directory
        from specdash.control.plan import service_of
        from specdash.core.paths import backend_env_file

        options, deployment, env = self._options, self._deployment, self._env
        if not options.beside:
            await_trial_end(env)
            bed = ServiceBed(
                deployment,
                self._apply_options,
                self._printer.progress,
                env,
                what="tune",
                guard=cancelled_by_signals,
                restore_guard=lambda _: undisturbed(),
            )
            bed.check()
            yield bed
            return
        if self._args.apply:
            service_of(deployment, Role.BACKEND)
        with private_directory("specdash-tune-") as logs:
            service = deployment.backend
            file = options.env_file or str(service.env_file if service is not None else backend_env_file(env))
            yield OwnBed(file, logs, engine=options.engine, force=options.force, env=env)

    def _served_at(self, bed: ServiceBed | OwnBed) -> str:
        """Where the service answers, if it does."""
        from specdash.backend.auto import settings_of
        from specdash.backend.start_check import healthy

        url = settings_of(bed.values, self._env).url
        return url if healthy(url) else ""

    def _carried_out(self, bed: ServiceBed | OwnBed, prepared: PreparedRun) -> int:
        from specdash.collect.gpu import GpuLooks
        from specdash.tune.model.tuner import SpecTuner
        from specdash.tune.run.knobs import configuration
        from specdash.tune.run.loop import REPEATS, Loop
        from specdash.tune.run.measuring import Measurer
        from specdash.tune.run.run_report import write_report
        from specdash.tune.run.status import TuneRunRecord

        record = TuneRunRecord(_new_directory(self._env))
        loop: Loop | None = None
        self._printer.begin(prepared)
        try:
            with stopped_by_signals() as run:
                loop = Loop(
                    prepared.task,
                    prepared.plan,
                    SpecTuner(prepared.task),
                    bed,
                    Measurer(prepared.prompts, prepared.measure, GpuLooks(), run.asked),
                    lambda point: configuration(point, bed.values, self._env),
                    record,
                    self._printer,
                    limits=prepared.limits,
                    repeats=0 if self._options.busy_ok else REPEATS,
                    stop=run.asked,
                    command=" ".join(["specdash", *sys.argv[1:]]),
                    report=str(record.directory / "report.md"),
                )
                try:
                    end = loop.run()
                except KeyboardInterrupt:
                    # At a moment at which the loop could not take it.
                    bed.restore()
                    raise
        except SpecdashError:
            self._printer.end()
            write_report(record.directory, report_words)
            if loop is not None and loop.boots:
                self._printer.say(f"what was measured is in {record.directory}")
            raise
        finally:
            self._printer.end()
        write_report(record.directory, report_words)
        return self._concluded(bed, end, record)

    def _concluded(self, bed: ServiceBed | OwnBed, end: RunEnd, record: TuneRunRecord) -> int:
        """Report how it ended, apply what is to be applied; the exit code."""
        from specdash.tune.run.run_report import write_report

        code = ExitCode.INCONCLUSIVE
        if end.ending is Ending.STOPPED:
            code = ExitCode.INTERRUPTED
        elif end.outcome is not None and end.outcome.improved:
            code = ExitCode.OK
        run = read_run(record.directory)
        self._printer.text(["", *ending_lines(run)] if run is not None else [])
        if code is ExitCode.OK and end.outcome is not None and self._args.apply:
            code = self._applied(bed.values, end.outcome.chosen)
            if code is ExitCode.OK:
                record.add(replace(end, at=time.time(), in_force="the chosen settings"))
                write_report(record.directory, report_words)
        if self._args.json:
            print((record.directory / "report.json").read_text(encoding="utf-8"), end="")
        return code

    def _applied(self, values: Mapping[str, str], chosen: Point) -> ExitCode:
        """An ordinary apply of what was found."""
        from specdash.control.change import Apply
        from specdash.control.plan import plan_apply
        from specdash.tune.run.knobs import configuration

        wanted = {key: value or None for key, value in configuration(chosen, values, self._env).items()}
        plan = plan_apply(self._deployment, {Role.BACKEND: wanted}, env=self._env)
        if not plan.edits:
            self._printer.say("the chosen settings are in force already")
            return ExitCode.OK
        apply = Apply(plan, self._apply_options, self._printer.progress, self._env)
        with cancelled_by_signals(apply):
            done = apply.run()
        if not self._args.json:
            report(done, as_json=False)
        return exit_code(done, apply.error, changed=apply.changed)


def _new_directory(env: Mapping[str, str]) -> Path:
    base = tune_runs_dir(env) / file_timestamp(time.time(), utc=True)
    found, number = base, 2
    while found.exists():
        found, number = base.with_name(f"{base.name}-{number}"), number + 1
    return found


_EPILOG = (
    "Exit code 0: something better was found and confirmed; 14: nothing better was found, the original is untouched; "
    "1: nothing could be measured, or the run failed; 3, 4, 7: bad input, no answer, refused before anything was "
    "touched; 12: the service could not be put back; 130: stopped, and put back."
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    what = parser.add_argument_group("what is tuned")
    what.add_argument("--beside", action="store_true", help="engines of its own beside the service, left alone")
    what.add_argument("--env-file", metavar="FILE", help="with --beside: the settings (default: the service's)")
    what.add_argument("--engine", choices=("auto", "llama-server", "xllamacpp"), help="with --beside")
    what.add_argument("--allow-types", metavar="TYPES", help="also other spec types: all, or chains as ngram-mod,draft")
    asked = parser.add_argument_group("what is asked")
    asked.add_argument("--prompts", metavar="FILE", help="your own prompts: JSON, JSON Lines, or texts")
    asked.add_argument("--transcript", metavar="FILE", help="calls of a recorded session")
    asked.add_argument("--each", type=int, metavar="N", help="prompts of a class (default: 6)")
    asked.add_argument("--tokens", type=int, metavar="N", help="tokens of each answer (default: 256)")
    asked.add_argument("--seed", type=int, metavar="N", help="of orders and draws (default: 1)")
    limits = parser.add_argument_group("limits")
    limits.add_argument("--restarts", type=int, metavar="N", help="most starts of the engine (default: 12)")
    limits.add_argument("--minutes", type=float, metavar="M", help="most minutes")
    limits.add_argument("--least-gain", type=float, metavar="SHARE", help="minimum gain worth applying (default: 0.02)")
    limits.add_argument("--ttft", type=float, metavar="SHARE", help="growth of the first token's time (default: 0.05)")
    limits.add_argument("--free-vram", dest="free_mib", type=int, metavar="MIB", help="kept free (default: 256)")
    limits.add_argument("--busy-ok", action="store_true", help="do not discard what others disturb")
    doing = parser.add_argument_group("doing it")
    doing.add_argument("--dry-run", action="store_true", help="show the points and what it will cost, and end")
    doing.add_argument("--apply", action="store_true", help="apply what was confirmed to be better")
    doing.add_argument("--yes", "-y", action="store_true", help="do not ask")
    doing.add_argument("--force", action="store_true", help="cut off requests that do not end; with little memory, too")
    doing.add_argument("--status", action="store_true", help="how the run stands that was begun last")
    doing.add_argument("--json", action="store_true", help="print JSON")
    add_settings(parser, (*APPLY_SETTINGS, *SERVICE_SETTINGS))


def run(args: argparse.Namespace) -> int:
    """See `_EPILOG` for the exit codes."""
    if args.status and args.dry_run:
        raise UsageError("--status and --dry-run exclude each other")
    if args.status:
        return status(as_json=args.json)
    return TuneCommand(args, options_from(args), os.environ).run()


def options_from(args: argparse.Namespace) -> TuneOptions:
    """What the command line asks for. Raises `UsageError`."""
    from specdash.tune.run.planning import TuneOptions

    for option, value, least, most in (
        ("--restarts", args.restarts, 3, 1000),
        ("--minutes", args.minutes, 0.1, 10_080),
        ("--least-gain", args.least_gain, 0.0, 10.0),
        ("--each", args.each, 2, 1000),
        ("--tokens", args.tokens, 16, 8192),
        ("--seed", args.seed, 0, MOST_SEED),
        ("--ttft", args.ttft, 0.0, 100.0),
        ("--free-vram", args.free_mib, 0, 10_000_000),
    ):
        within(option, value, None, least, most)
    given = {name: getattr(args, name) for name in TuneOptions.__struct_fields__ if getattr(args, name) is not None}
    options = replace(TuneOptions(), **given)
    if args.apply and options.env_file is not None:
        raise UsageError("--apply is for the service, and --env-file is not its settings; leave one of them out")
    if not options.beside and (options.env_file is not None or options.engine is not None):
        raise UsageError("--env-file and --engine are for engines of our own: add --beside, or leave them out")
    return options
