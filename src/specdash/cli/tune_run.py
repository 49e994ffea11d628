"""Does what `specdash tune` was asked for: prepare, show, ask, run, report, and apply where that is wanted."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.cli.apply_run import deployment_of, settle_unfinished
from specdash.cli.apply_view import StepPrinter, confirm, exit_code, report
from specdash.cli.signals import cancelled_by_signals, stopped_by_signals, undisturbed
from specdash.core.changes import ChangeSet, Role
from specdash.core.errors import ConflictError, ExitCode, InputError, RefusedError, SpecdashError, UsageError
from specdash.core.paths import tune_runs_dir
from specdash.tune.status import Ending, RunEnd

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from specdash.bench.beds import OwnBed, ServiceBed
    from specdash.bench.samples import Place
    from specdash.cli.tune_view import Printer
    from specdash.collect.gpu_looks import GpuLooks
    from specdash.control.apply import ApplyOptions
    from specdash.control.services import Deployment
    from specdash.core.flag import Flag
    from specdash.tune.loop import Gear, Loop
    from specdash.tune.planning import Prepared, TuneOptions
    from specdash.tune.run_setup import RunRecord
    from specdash.tune.status import Run


@dataclass(frozen=True, slots=True)
class Ground:
    """Where it is tuned: the bed, and what is known of the service."""

    bed: ServiceBed | OwnBed
    values: Mapping[str, str]
    words: str
    place: Place | None
    deployment: Deployment
    options: ApplyOptions


def tune(args: argparse.Namespace, options: TuneOptions, directory: Path | None, env: Mapping[str, str]) -> int:
    """One run, new or taken up again; the exit code."""
    from specdash.cli.tune_view import Printer, plan_lines
    from specdash.collect.gpu_looks import GpuLooks
    from specdash.tune.planning import options_of
    from specdash.tune.run_setup import read_setup

    earlier: Run | None = None
    if args.resume is not None:
        earlier = _cut_short(directory, env)
        setup = read_setup(Path(earlier.directory))
        options = options_of(setup.options)
    printer = Printer(quiet=args.json)
    with _ground(args, options, printer, env, may_settle=args.yes or earlier is not None) as ground:
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


def _question(prepared: Prepared) -> str:
    if prepared.options.beside:
        return "Begin?"
    return f"Restart {prepared.plan.service} up to {prepared.plan.budget.restarts} times, and measure?"


def _prepared(options: TuneOptions, ground: Ground, gpus: GpuLooks, env: Mapping[str, str]) -> Prepared:
    try:
        import numpy as np  # noqa: F401 - it is asked for here, before anything is touched
    except ImportError:
        raise SpecdashError("`specdash tune` needs numpy; install it with `pip install 'specdash[tune]'`") from None
    from specdash.tune.planning import prepare

    return prepare(options, ground.values, ground.words, ground.place, gpus, env)


def _no_plan(ground: Ground, error: SpecdashError) -> int:
    from specdash.tune.status import RunPlan

    print(_json(RunPlan(ground.words, problem=str(error))))
    return error.exit_code


def _cut_short(directory: Path | None, env: Mapping[str, str]) -> Run:
    """The run to go on with. Raises `InputError` and `ConflictError` saying why there is none."""
    from specdash.tune.run_files import newest_run, read_run

    found = newest_run(env) if directory is None else read_run(directory.expanduser())
    if found is None:
        raise InputError(f"{directory or tune_runs_dir(env)}: no run of `specdash tune` to go on with")
    if found.alive:
        raise ConflictError(f"the run in {found.directory} goes on (pid {found.head.pid})")
    if found.end is not None and found.end.ending is Ending.FINISHED:
        raise InputError(f"the run in {found.directory} has ended; begin a new one")
    return found


def _check_same(before: Mapping[str, str], prepared: Prepared, earlier: Run) -> None:
    """Raise `RefusedError` where what was measured is of something else."""
    from specdash.tune.run_setup import changed

    lines = changed(before, prepared.fingerprint)
    if lines:
        raise RefusedError(
            f"{earlier.directory} measured something else: {'; '.join(lines)}; begin anew, or put that back"
        )


@contextmanager
def _ground(
    args: argparse.Namespace, options: TuneOptions, printer: Printer, env: Mapping[str, str], *, may_settle: bool
) -> Iterator[Ground]:
    from specdash.bench.beds import OwnBed, ServiceBed
    from specdash.cli.demo import private_directory
    from specdash.control.apply_engine import promise
    from specdash.control.apply_plan import service_of

    deployment, apply_options = deployment_of(args)
    if not options.beside:
        if not args.dry_run:
            settle_unfinished(deployment, allowed=may_settle, printer=StepPrinter())
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
        yield Ground(bed, bed.values, bed.words, _place(promise(bed.values, env)), deployment, apply_options)
        return
    if args.apply:
        service_of(deployment, Role.BACKEND)
    with private_directory("specdash-tune-") as logs:
        file = options.env_file or _service_env(deployment, env)
        own = OwnBed(file, logs, engine=options.engine, force=options.force, env=env)
        yield Ground(own, own.values, own.words, _place(promise(own.values, env)), deployment, apply_options)


def _service_env(deployment: Deployment, env: Mapping[str, str]) -> str:
    from specdash.core.paths import backend_env_file

    return str(deployment.backend.env_file if deployment.backend is not None else backend_env_file(env))


def _place(promised: Any) -> Place | None:
    """Where the service answers, if it does."""
    from specdash.bench.samples import Place
    from specdash.control.verify import healthy

    return Place(promised.url, promised.key, log=promised.log) if healthy(promised.url) else None


def _carried_out(
    args: argparse.Namespace,
    ground: Ground,
    prepared: Prepared,
    gpus: GpuLooks,
    printer: Printer,
    earlier: Run | None,
    env: Mapping[str, str],
) -> int:
    from specdash.tune.run_report import write_report
    from specdash.tune.run_setup import RunRecord, Setup

    directory = Path(earlier.directory) if earlier is not None else _new_directory(env)
    record = RunRecord(directory)
    if earlier is None:
        record.write_setup(Setup(asdict(prepared.options), prepared.fingerprint))
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
    base = tune_runs_dir(env) / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    found, number = base, 2
    while found.exists():
        found, number = base.with_name(f"{base.name}-{number}"), number + 1
    return found


def _loop(
    ground: Ground,
    prepared: Prepared,
    gpus: GpuLooks,
    printer: Printer,
    earlier: Run | None,
    record: RunRecord,
    stop: Flag,
    env: Mapping[str, str],
) -> Loop:
    from specdash.tune.limits import Norm
    from specdash.tune.loop import Loop
    from specdash.tune.run_setup import known_warnings

    gear = _gear(ground, prepared, gpus, printer, record, stop, env)
    boots = earlier.boots if earlier is not None else ()
    norm = Norm()
    if boots:
        of_start = [one.number for one in boots if one.result.point == prepared.task.start and not one.result.failure]
        norm.warnings = known_warnings(record.directory, of_start)
    path = str(record.directory / "report.md")
    return Loop(prepared.task, prepared.plan, gear, boots, stop, " ".join(["specdash", *sys.argv[1:]]), path, norm=norm)


def _gear(
    ground: Ground,
    prepared: Prepared,
    gpus: GpuLooks,
    printer: Printer,
    record: RunRecord,
    stop: Flag,
    env: Mapping[str, str],
) -> Gear:
    from specdash.tune import serving
    from specdash.tune.forecast import LONGEST_WAIT_S
    from specdash.tune.knobs import configuration
    from specdash.tune.loop import REPEATS, Gear
    from specdash.tune.measuring import Measurer
    from specdash.tune.texts import SYNTHETIC, TextCheck
    from specdash.tune.tuner import SpecTuner

    options = prepared.options

    def configure(point: Any) -> dict[str, str]:
        return configuration(point, ground.values, env)

    gear = Gear(
        tuner=SpecTuner(prepared.task, options.seed),
        bed=ground.bed,
        measure=Measurer(prepared.prompts, prepared.measure, gpus, stop),
        configure=configure,
        record=record,
        observer=printer,
        limits=prepared.limits,
        objective=prepared.objective,
        repeats=0 if options.busy_ok and not options.while_serving else REPEATS,
    )
    if not options.beside and ground.place is not None:
        service = ground.place
        gear = replace(gear, users=lambda: serving.proxies_load(service, env))
    if options.check_texts and not prepared.synthetic:
        gear = replace(gear, verify=TextCheck(ground.bed, configure))
    elif prepared.synthetic:
        printer.say(SYNTHETIC)
    if options.while_serving and ground.place is not None:
        place = ground.place
        calm = serving.Calm(lambda: place, stop, env)
        measure = serving.Trickle(
            prepared.prompts, prepared.measure, calm, gpus, printer.detail, busy_ok=options.busy_ok
        )
        return replace(gear, measure=measure, before_boot=calm.wait, users=calm.lately)
    if not options.busy_ok:
        minutes = options.minutes
        limit_s = LONGEST_WAIT_S if minutes is None else min(LONGEST_WAIT_S, 60 * minutes)
        return replace(gear, before_boot=serving.wait_for_idle_machine(stop, limit_s))
    return gear


def _concluded(
    args: argparse.Namespace,
    ground: Ground,
    prepared: Prepared,
    end: RunEnd,
    record: RunRecord,
    printer: Printer,
    env: Mapping[str, str],
) -> int:
    """Say how it ended, apply what is to be applied; the exit code."""
    from specdash.cli.tune_view import ending_lines
    from specdash.tune.run_report import write_report

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
    args: argparse.Namespace, ground: Ground, end: RunEnd, printer: Printer, env: Mapping[str, str]
) -> ExitCode:
    """An ordinary apply of what was found."""
    from specdash.control.apply import Apply, plan_apply
    from specdash.tune.knobs import configuration

    assert end.outcome is not None  # noqa: S101 - something was found
    wanted = configuration(end.outcome.chosen, ground.values, env)
    changes = ChangeSet({Role.BACKEND: {key: value or None for key, value in wanted.items()}})
    plan = plan_apply(ground.deployment, changes, env=env)
    if plan.empty:
        printer.say("the chosen settings are in force already")
        return ExitCode.OK
    apply = Apply(plan, ground.options, printer.progress, env)
    with cancelled_by_signals(apply):
        done = apply.run()
    if not args.json:
        report(done, as_json=False)
    return exit_code(done, apply.error, changed=apply.changed)


def abort(args: argparse.Namespace) -> int:
    """End a run that was cut short: the service as it was before, and the run marked as stopped."""
    from specdash.tune.run_files import newest_run
    from specdash.tune.run_report import write_report
    from specdash.tune.run_setup import RunRecord

    env = os.environ
    run = newest_run(env)
    if run is not None and run.alive:
        raise ConflictError(
            f"the run in {run.directory} goes on (pid {run.head.pid}); stop it with Ctrl-C, or kill {run.head.pid}"
        )
    deployment, _ = deployment_of(args)
    settle_unfinished(deployment, allowed=True, printer=StepPrinter())
    if run is None or run.end is not None:
        print("no run was cut short; the service runs its own settings")
        return ExitCode.OK
    record = RunRecord(Path(run.directory))
    record.add(RunEnd(time.time(), Ending.STOPPED, in_force="the original", restored=True, error="aborted"))
    write_report(record)
    print(f"the run of {len(run.boots)} boots is ended, and the original is in force; see {run.directory}")
    return ExitCode.OK


def _json(value: Any) -> str:
    return json.dumps(asdict(value), indent=1)
