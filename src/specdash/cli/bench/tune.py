"""`specdash tune`: the fastest way to speculate, found by measuring on the real service (docs/tuner.md)."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from specdash.bench.report import StepProgress
from specdash.cli.changes.apply_run import confirm, deployment_of, exit_code, report
from specdash.cli.options import MOST_SEED, add_settings, within
from specdash.cli.signals import cancelled_by_signals, stopped_by_signals, undisturbed
from specdash.control.change import await_trial_end
from specdash.core.changes import Role
from specdash.core.config import APPLY_SETTINGS, SERVICE_SETTINGS
from specdash.core.errors import ConflictError, ExitCode, InputError, RefusedError, SpecdashError, UsageError
from specdash.core.masking import MASK
from specdash.core.paths import tune_runs_dir
from specdash.core.structs import json_of
from specdash.system.text import counted, duration, file_timestamp, gain, number, percent, significant
from specdash.tune.model.gains import gains
from specdash.tune.run.run_report import measured_gain
from specdash.tune.run.status import Ending, RunEnd, RunState, TuneStep, newest_run, read_run

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from specdash.bench.compare.beds import OwnBed, ServiceBed
    from specdash.bench.load.samples import EngineAddress
    from specdash.collect.gpu import GpuLooks
    from specdash.control.deployment import Deployment
    from specdash.control.plan import ApplyOptions
    from specdash.core.changes import ApplyProgress
    from specdash.core.flag import Flag
    from specdash.tune.model.problem import Point, WorkloadShares
    from specdash.tune.run.loop import Loop, LoopParts
    from specdash.tune.run.planning import PreparedRun, TuneOptions
    from specdash.tune.run.status import Boot, CurrentStep, TuneRun, TuneRunRecord


# What `specdash tune` prints: the plan, a line a boot, and the end.

_MOST_KNOB = 60


def plan_lines(prepared: PreparedRun) -> list[str]:
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
    shares = ", ".join(f"{kind} {percent(share)}" for kind, share in plan.workload.shares if share)
    lines += [
        f"  asked      {plan.prompts} prompts in every boot, answers of up to {options.tokens} tokens ({shares})",
        f"             {plan.workload_words}",
        *(f"  limit      {limit}" for limit in plan.limits),
        f"  worth it   from a gain of {percent(plan.least_gain)} on, surely above 0",
    ]
    minutes = f" or {plan.budget.minutes:g} min" if plan.budget.minutes is not None else ""
    lines.append(f"  budget     {plan.budget.restarts} restarts{minutes}")
    if options.check_texts and not prepared.synthetic:
        lines.append("             and 2 to 4 more at the end, to compare texts, if something better was found")
    if plan.downtime_s:
        lines.append(f"  downtime   about {duration(plan.downtime_s)} in all; clients of the proxy wait meanwhile")
    lines += [f"  note       {note}" for note in plan.notes]
    return lines


class TunePrinter:
    """Prints on stderr what goes on: `loop.Observer`."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._progress = StepProgress(0.0, quiet=quiet)
        self._boots: list[Boot] = []
        self._total = 0
        self._start: Point | None = None
        self._workload: WorkloadShares | None = None
        self._now: CurrentStep | None = None

    def begin(self, prepared: PreparedRun) -> None:
        self._total = prepared.task.budget.restarts
        self._start, self._workload = prepared.task.start, prepared.task.workload
        self._progress = StepProgress(float(self._total), quiet=self._quiet)

    def text(self, lines: Iterable[str]) -> None:
        if not self._quiet:
            self.end()
            print("\n".join(lines), file=sys.stderr, flush=True)

    def say(self, words: str) -> None:
        self._progress.say(words)

    def end(self) -> None:
        self._progress.end()

    def detail(self, words: str) -> None:
        """What the present step waits for."""
        if words:
            self._progress.show(len(self._boots), words)

    def progress(self, step: ApplyProgress) -> None:
        """A step of an apply."""
        point = f" {self._now.point.name}" if self._now is not None and self._now.point is not None else ""
        left = self._now.left_s if self._now is not None else None
        self._progress.show(len(self._boots), f"restart{point}: {step.step}", left)

    def now(self, now: CurrentStep) -> None:
        self._now = now
        done = float(len(self._boots))
        if now.step is TuneStep.MEASURE and now.done and now.total:
            done += now.done / now.total
        number = f"{now.number} of {self._total} " if now.number is not None else ""
        words = f"{number}{now.point.name if now.point is not None else ''}: {now.detail or now.step}"
        self._progress.show(done, words, now.left_s)

    def booted(self, boot: Boot, again: bool) -> None:
        self._boots.append(boot)
        if again or self._quiet:
            return
        self._progress.end()
        print(self._line(boot), file=sys.stderr, flush=True)

    def discarded(self, why: str) -> None:
        self.say(f"discarded, and done again: {why}")

    def _line(self, boot: Boot) -> str:
        assert self._start is not None  # noqa: S101 - a run has begun
        assert self._workload is not None  # noqa: S101
        return boot_line(boot, self._boots, self._start, self._workload, self._total)


def boot_line(boot: Boot, boots: Sequence[Boot], start: Point, workload: WorkloadShares, total: int) -> str:
    """One boot: its number, point, speed, what that is beside the start, and why it was made."""
    head = f"{boot.number:3} of {total}  {boot.result.point.name:<34}"
    why = f"  ({boot.stage}{f': {boot.why}' if boot.why else ''})"
    if boot.excluded:
        return f"{head}{significant(boot.speed, 4):>8} tok/s  out by a limit: {boot.excluded}{why}"
    if boot.result.failure:
        return f"{head}  not usable: {boot.result.failure}{why}"
    speed = significant(boot.speed) if boot.speed is not None and boot.speed < 10 else number(boot.speed, 1)
    gained = gains([boot.result for boot in boots], start, workload)[list(boots).index(boot)]
    beside = "the start" if boot.result.point == start else ""
    if gained is not None:
        beside = gain(gained.gain, gained.low, gained.high)
    return f"{head}{speed:>8} tok/s  {beside:<24}{why}"


def ending_lines(end: RunEnd, prepared: PreparedRun, directory: Path) -> list[str]:
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
        lines.append(f"better: {outcome.chosen.name}, {gain(outcome.gain, outcome.low, outcome.high)}")
        run = read_run(directory)
        gained = measured_gain(run, outcome.chosen) if run is not None else None
        if gained is not None:
            lines.append(f"  measured  {gain(gained.gain, gained.low, gained.high)} by its own boots alone")
        lines += [f"  {key}={value}" if value else f"  {key} unset" for key, value in end.settings]
        lines.append(f"  texts     {end.texts or 'not compared'}")
        lines.append(f"  apply it  {apply_command(end.settings)}")
        if any(MASK in value for _, value in end.settings):
            lines.append(f"            where {MASK} stands for your key; `specdash tune --apply` knows it")
    elif outcome is not None:
        lines.append(f"no improvement found; {prepared.plan.start.name} stays in force")
        if outcome.gain:
            lines.append(f"  the best other point: {gain(outcome.gain, outcome.low, outcome.high)}")
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
        print(json.dumps(None if run is None else {**json_of(run), "state": str(run.state)}, indent=1))
    elif run is None:
        print("nothing was tuned yet")
    else:
        print("\n".join(status_lines(run)))
    return ExitCode.OK


def status_lines(run: TuneRun) -> list[str]:
    plan = run.plan
    lines = [f"{run.state}: {plan.service}, {len(run.boots)} of {plan.budget.restarts} restarts  ({run.directory})"]
    lines += [boot_line(boot, run.boots, plan.start, plan.workload, plan.budget.restarts) for boot in run.boots]
    if run.now is not None and run.alive:
        point = f" {run.now.point.name}" if run.now.point is not None else ""
        left = f", {duration(run.now.left_s)} left" if run.now.left_s is not None else ""
        lines.append(f"now: {run.now.step}{point}{f': {run.now.detail}' if run.now.detail else ''}{left}")
        if run.now.held is not None:
            lines.append(f"     {counted(run.now.held, 'request waits', 'requests wait')} at the proxy")
    if run.end is not None:
        outcome = run.end.outcome
        if run.end.error:
            lines.append(f"ended: {run.end.error}")
        if outcome is not None and outcome.improved:
            lines.append(f"better: {outcome.chosen.name}, {gain(outcome.gain, outcome.low, outcome.high)}")
            lines.append(f"  {apply_command(run.end.settings)}")
        elif outcome is not None and run.end.ending is Ending.FINISHED:
            lines.append("no improvement found")
        lines.append(f"in force: {run.end.in_force or 'unknown'}")
    if run.state is RunState.CUT_SHORT:
        lines.append("go on with `specdash tune --resume`, or end it with `specdash tune --abort`")
    return lines


# Does what `specdash tune` was asked for: prepare, show, ask, run, report, and apply where that is wanted.


class TuneTarget(Struct, frozen=True):
    """Where it is tuned: the bed, and what is known of the service."""

    bed: ServiceBed | OwnBed
    values: Mapping[str, str]
    words: str
    place: EngineAddress | None
    deployment: Deployment
    options: ApplyOptions


def tune(args: argparse.Namespace, options: TuneOptions, directory: Path | None, env: Mapping[str, str]) -> int:
    """One run, new or taken up again; the exit code."""
    from specdash.collect.gpu import GpuLooks
    from specdash.tune.run.planning import options_of
    from specdash.tune.run.status import read_setup

    earlier: TuneRun | None = None
    if args.resume is not None:
        earlier = _cut_short(directory, env)
        setup = read_setup(Path(earlier.directory))
        options = options_of(setup.options)
    printer = TunePrinter(quiet=args.json)
    with _ground(args, options, printer, env) as ground:
        gpus = GpuLooks()
        try:
            prepared = _prepared(options, ground, gpus, env)
        except UsageError as error:
            if not (args.dry_run and args.json):
                raise
            return _no_plan(ground, error)
        if args.dry_run:
            print(_json(prepared.plan) if args.json else "\n".join(plan_lines(prepared)))
            return ExitCode.OK
        if earlier is not None:
            _check_same(setup.fingerprint, prepared, earlier)
        printer.text(plan_lines(prepared))
        if earlier is not None:
            printer.say(f"{len(earlier.boots)} boots were measured already, in {earlier.directory}")
        if not confirm(_question(prepared), args.yes, "tune"):
            printer.say("nothing was touched")
            return ExitCode.OK
        return _carried_out(args, ground, prepared, gpus, printer, earlier, env)


def _question(prepared: PreparedRun) -> str:
    if prepared.options.beside:
        return "Begin?"
    return f"Restart {prepared.plan.service} up to {prepared.plan.budget.restarts} times, and measure?"


def _prepared(options: TuneOptions, ground: TuneTarget, gpus: GpuLooks, env: Mapping[str, str]) -> PreparedRun:
    from specdash.tune.run.planning import prepare

    return prepare(options, ground.values, ground.words, ground.place, gpus, env)


def _no_plan(ground: TuneTarget, error: SpecdashError) -> int:
    from specdash.tune.run.status import RunPlan

    print(_json(RunPlan(ground.words, problem=str(error))))
    return error.exit_code


def _cut_short(directory: Path | None, env: Mapping[str, str]) -> TuneRun:
    """The run to go on with. Raises `InputError` and `ConflictError` saying why there is none."""
    from specdash.tune.run.status import newest_run, read_run

    found = newest_run(env) if directory is None else read_run(directory.expanduser())
    if found is None:
        raise InputError(f"{directory or tune_runs_dir(env)}: no run of `specdash tune` to go on with")
    if found.alive:
        raise ConflictError(f"the run in {found.directory} goes on (pid {found.head.pid})")
    if found.end is not None and found.end.ending is Ending.FINISHED:
        raise InputError(f"the run in {found.directory} has ended; begin a new one")
    return found


def _check_same(before: Mapping[str, str], prepared: PreparedRun, earlier: TuneRun) -> None:
    """Raise `RefusedError` where what was measured is of something else."""
    from specdash.tune.run.status import changed

    lines = changed(before, prepared.fingerprint)
    if lines:
        raise RefusedError(
            f"{earlier.directory} measured something else: {'; '.join(lines)}; start a new run, or put that back"
        )


@contextmanager
def _ground(
    args: argparse.Namespace, options: TuneOptions, printer: TunePrinter, env: Mapping[str, str]
) -> Iterator[TuneTarget]:
    from specdash.bench.compare.beds import OwnBed, ServiceBed
    from specdash.cli.demo import private_directory
    from specdash.control.plan import promise, service_of

    deployment, apply_options = deployment_of(args)
    if not options.beside:
        await_trial_end(env)
        bed = ServiceBed(
            deployment,
            apply_options,
            printer.progress,
            env,
            what="tune",
            guard=cancelled_by_signals,
            restore_guard=lambda _: undisturbed(),
        )
        bed.check()
        yield TuneTarget(bed, bed.values, bed.words, _place(promise(bed.values, env)), deployment, apply_options)
        return
    if args.apply:
        service_of(deployment, Role.BACKEND)
    with private_directory("specdash-tune-") as logs:
        file = options.env_file or _service_env(deployment, env)
        own = OwnBed(file, logs, engine=options.engine, force=options.force, env=env)
        yield TuneTarget(own, own.values, own.words, _place(promise(own.values, env)), deployment, apply_options)


def _service_env(deployment: Deployment, env: Mapping[str, str]) -> str:
    from specdash.core.paths import backend_env_file

    return str(deployment.backend.env_file if deployment.backend is not None else backend_env_file(env))


def _place(promised: Any) -> EngineAddress | None:
    """Where the service answers, if it does."""
    from specdash.backend.start_check import healthy
    from specdash.bench.load.samples import EngineAddress

    return EngineAddress(promised.url, promised.key, log=promised.log) if healthy(promised.url) else None


def _carried_out(
    args: argparse.Namespace,
    ground: TuneTarget,
    prepared: PreparedRun,
    gpus: GpuLooks,
    printer: TunePrinter,
    earlier: TuneRun | None,
    env: Mapping[str, str],
) -> int:
    from specdash.tune.run.run_report import write_report
    from specdash.tune.run.status import Setup, TuneRunRecord

    directory = Path(earlier.directory) if earlier is not None else _new_directory(env)
    record = TuneRunRecord(directory)
    if earlier is None:
        record.write_setup(Setup(json_of(prepared.options), prepared.fingerprint))
    loop: Loop | None = None
    printer.begin(prepared)
    error: SpecdashError | None = None
    end: RunEnd | None = None
    try:
        with stopped_by_signals() as run:
            loop = _loop(ground, prepared, gpus, printer, earlier, record, run.asked, env)
            try:
                end = loop.run()
            except KeyboardInterrupt:
                # At a moment at which the loop could not take it.
                ground.bed.restore()
                raise
    except SpecdashError as found:
        error = found
    finally:
        printer.end()
    write_report(record)
    if error is not None:
        if loop is not None and loop.boots:
            printer.say(f"what was measured is in {directory}")
        raise error
    assert end is not None  # noqa: S101 - without an error there is an end
    return _concluded(args, ground, prepared, end, record, printer, env)


def _new_directory(env: Mapping[str, str]) -> Path:
    base = tune_runs_dir(env) / file_timestamp(time.time(), utc=True)
    found, number = base, 2
    while found.exists():
        found, number = base.with_name(f"{base.name}-{number}"), number + 1
    return found


def _loop(
    ground: TuneTarget,
    prepared: PreparedRun,
    gpus: GpuLooks,
    printer: TunePrinter,
    earlier: TuneRun | None,
    record: TuneRunRecord,
    stop: Flag,
    env: Mapping[str, str],
) -> Loop:
    from specdash.tune.run.loop import Loop
    from specdash.tune.run.measuring import StartFigures
    from specdash.tune.run.status import known_warnings

    gear = _gear(ground, prepared, gpus, printer, record, stop, env)
    boots = earlier.boots if earlier is not None else ()
    norm = StartFigures()
    if boots:
        of_start = [
            boot.number for boot in boots if boot.result.point == prepared.task.start and not boot.result.failure
        ]
        norm.warnings = known_warnings(record.directory, of_start)
    path = str(record.directory / "report.md")
    return Loop(prepared.task, prepared.plan, gear, boots, stop, " ".join(["specdash", *sys.argv[1:]]), path, norm=norm)


def _gear(
    ground: TuneTarget,
    prepared: PreparedRun,
    gpus: GpuLooks,
    printer: TunePrinter,
    record: TuneRunRecord,
    stop: Flag,
    env: Mapping[str, str],
) -> LoopParts:
    from specdash.tune.model.tuner import SpecTuner
    from specdash.tune.run import measuring
    from specdash.tune.run.knobs import configuration
    from specdash.tune.run.loop import REPEATS, SYNTHETIC, LoopParts, TextCheck
    from specdash.tune.run.measuring import LONGEST_WAIT_S, Measurer

    options = prepared.options

    def configure(point: Any) -> dict[str, str]:
        return configuration(point, ground.values, env)

    gear = LoopParts(
        tuner=SpecTuner(prepared.task),
        bed=ground.bed,
        measure=Measurer(prepared.prompts, prepared.measure, gpus, stop),
        configure=configure,
        record=record,
        observer=printer,
        limits=prepared.limits,
        repeats=0 if options.busy_ok else REPEATS,
    )
    if not options.beside and ground.place is not None:
        service = ground.place
        gear = replace(gear, users=lambda: measuring.waiting_at_proxies(service, env))
    if options.check_texts and not prepared.synthetic:
        gear = replace(gear, verify=TextCheck(ground.bed, configure))
    elif prepared.synthetic:
        printer.say(SYNTHETIC)
    if not options.busy_ok:
        minutes = options.minutes
        limit_s = LONGEST_WAIT_S if minutes is None else min(LONGEST_WAIT_S, 60 * minutes)
        return replace(gear, before_boot=measuring.wait_for_idle_machine(stop, limit_s))
    return gear


def _concluded(
    args: argparse.Namespace,
    ground: TuneTarget,
    prepared: PreparedRun,
    end: RunEnd,
    record: TuneRunRecord,
    printer: TunePrinter,
    env: Mapping[str, str],
) -> int:
    """Say how it ended, apply what is to be applied; the exit code."""
    from specdash.tune.run.run_report import write_report

    code = ExitCode.INCONCLUSIVE
    if end.ending is Ending.STOPPED:
        code = ExitCode.INTERRUPTED
    elif end.outcome is not None and end.outcome.improved:
        code = ExitCode.OK
    printer.text(ending_lines(end, prepared, record.directory))
    if code is ExitCode.OK and args.apply:
        applied = _applied(args, ground, end, printer, env)
        if applied is ExitCode.OK:
            end = replace(end, at=time.time(), in_force="the chosen settings")
            record.add(end)
            write_report(record)
        code = applied
    if args.json:
        print((record.directory / "report.json").read_text(encoding="utf-8"), end="")
    return code


def _applied(
    args: argparse.Namespace, ground: TuneTarget, end: RunEnd, printer: TunePrinter, env: Mapping[str, str]
) -> ExitCode:
    """An ordinary apply of what was found."""
    from specdash.control.change import Apply
    from specdash.control.plan import plan_apply
    from specdash.tune.run.knobs import configuration

    assert end.outcome is not None  # noqa: S101 - something was found
    wanted = configuration(end.outcome.chosen, ground.values, env)
    plan = plan_apply(ground.deployment, {Role.BACKEND: {k: v or None for k, v in wanted.items()}}, env=env)
    if plan.empty:
        printer.say("the chosen settings are in force already")
        return ExitCode.OK
    apply = Apply(plan, ground.options, printer.progress, env)
    with cancelled_by_signals(apply):
        done = apply.run()
    if not args.json:
        report(done, as_json=False)
    return exit_code(done, apply.error, changed=apply.changed)


def abort() -> int:
    """End a run that was cut short: the service as it was before, and the run marked as stopped."""
    from specdash.tune.run.run_report import write_report
    from specdash.tune.run.status import TuneRunRecord, newest_run

    env = os.environ
    run = newest_run(env)
    if run is not None and run.alive:
        raise ConflictError(
            f"the run in {run.directory} goes on (pid {run.head.pid}); stop it with Ctrl-C, or kill {run.head.pid}"
        )
    await_trial_end(env)
    if run is None or run.end is not None:
        print("no run was cut short; the service runs its own settings")
        return ExitCode.OK
    record = TuneRunRecord(Path(run.directory))
    record.add(RunEnd(time.time(), Ending.STOPPED, in_force="the original", restored=True, error="aborted"))
    write_report(record)
    print(f"the run of {len(run.boots)} boots is ended, and the original is in force; see {run.directory}")
    return ExitCode.OK


def _json(value: Any) -> str:
    return json.dumps(json_of(value), indent=1)


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
    limits.add_argument("--allow-warnings", action="store_true", help="also with new warnings in the log")
    limits.add_argument("--busy-ok", action="store_true", help="do not wait for others, nor discard what they disturb")
    limits.add_argument("--no-check", dest="check_texts", action="store_false", help="do not compare texts at the end")
    doing = parser.add_argument_group("doing it")
    doing.add_argument("--dry-run", action="store_true", help="show the points and what it will cost, and end")
    doing.add_argument("--apply", action="store_true", help="apply what was confirmed to be better")
    doing.add_argument("--yes", "-y", action="store_true", help="do not ask")
    doing.add_argument("--force", action="store_true", help="cut off requests that do not end; with little memory, too")
    doing.add_argument("--status", action="store_true", help="how the run stands that was begun last")
    doing.add_argument("--resume", nargs="?", const="", metavar="DIR", help="go on with a run that was cut short")
    doing.add_argument("--abort", action="store_true", help="end a run that was cut short, and put the service back")
    doing.add_argument("--json", action="store_true", help="print JSON")
    add_settings(parser, (*APPLY_SETTINGS, *SERVICE_SETTINGS))


def run(args: argparse.Namespace) -> int:
    """See `_EPILOG` for the exit codes."""
    asked = [name for name in ("status", "abort", "dry_run") if getattr(args, name)]
    if args.resume is not None:
        asked.append("resume")
    if len(asked) > 1:
        raise UsageError(f"--{asked[0].replace('_', '-')} and --{asked[1].replace('_', '-')} exclude each other")
    if args.status:
        return status(as_json=args.json)
    if args.abort:
        return abort()

    return tune(args, options_from(args), Path(args.resume) if args.resume else None, os.environ)


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
