"""What ab, sweep and matrix do alike: where they boot, what they ask, how long it takes, and how it ends."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.cli.options import add_settings, within
from specdash.cli.signals import stopped_by_signals
from specdash.core.config import APPLY_SETTINGS, SERVICE_SETTINGS
from specdash.core.errors import ExitCode, InputError, SpecdashError, UsageError
from specdash.system.data import dataclass

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from specdash.bench.compare.beds import OwnBed, ServiceBed
    from specdash.bench.compare.trials import BootMeasurement, Candidate
    from specdash.bench.load.samples import MeasureOptions, WorkloadPrompt
    from specdash.bench.report import BenchReport, Results, StepProgress

EACH = 4
MAX_TOKENS = 128


def add_options(parser: argparse.ArgumentParser, *, runs: int | None = 1) -> None:
    """The options that they share."""
    where = parser.add_argument_group("where")
    where.add_argument("--service", action="store_true", help="on the service itself, by applies; put back afterwards")
    where.add_argument("--env-file", metavar="FILE", help="engines of our own from it (default: the service's env)")
    where.add_argument("--engine", choices=("auto", "llama-server", "xllamacpp"), help="of our own engines")
    where.add_argument("--yes", "-y", action="store_true", help="do not ask before --service")
    where.add_argument("--force", action="store_true", help="also where memory seems not to suffice; cut requests off")
    asked = parser.add_argument_group("what is asked")
    asked.add_argument(
        "--prompts", metavar="FILE", help="your own: JSON Lines, JSON, or plain text (docs/bench-live.md)"
    )
    asked.add_argument(
        "--class", dest="kinds", action="append", default=[], metavar="CLASS",
        help="coding, pattern, prose, agentic, or a class of --prompts; may be repeated (default: all)",
    )  # fmt: skip
    asked.add_argument("--each", type=int, default=EACH, metavar="N", help=f"prompts of a class (default: {EACH})")
    if runs is not None:
        asked.add_argument("--runs", type=int, default=runs, metavar="N", help="of each prompt in a boot (default: 1)")
    asked.add_argument(
        "--max-tokens", type=int, default=MAX_TOKENS, metavar="N", help=f"of each answer (default: {MAX_TOKENS})"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of orders and sampling (default: 1)")
    parser.add_argument("--out", metavar="DIR", help="results folder (default: one of its own in the state folder)")
    parser.add_argument("--resume", metavar="DIR", help="go on with what was stopped: same configurations and machine")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    add_settings(parser, (*APPLY_SETTINGS, *SERVICE_SETTINGS))


@dataclass(slots=True)
class TrialWork:
    """What is to be done, and what there is of it."""

    bed: ServiceBed | OwnBed
    candidates: tuple[Candidate, ...]
    prompts: tuple[WorkloadPrompt, ...]
    options: MeasureOptions
    schedule: list[tuple[int, str]]
    results: Results
    facts: dict[str, Any]
    booted: list[BootMeasurement]
    stopped: bool = False


def prompts_of(args: argparse.Namespace) -> tuple[WorkloadPrompt, ...]:
    """What is asked. Raises `UsageError` or `InputError`."""
    from specdash.bench.load.workloads import CLASSES, bundled, read_prompts

    within("--each", args.each, EACH, 1, 10_000)
    if args.prompts is None:
        return bundled(args.kinds or CLASSES, args.each)
    counts: dict[str, int] = {}
    found = []
    for read_prompt in read_prompts(args.prompts, args.kinds):
        counts[read_prompt.kind] = counts.get(read_prompt.kind, 0) + 1
        if counts[read_prompt.kind] <= args.each:
            found.append(read_prompt)
    return tuple(found)


def options_of(args: argparse.Namespace) -> MeasureOptions:
    """How it is asked: forced length and no cache, so that configurations are compared token by token."""
    from specdash.bench.load.samples import MeasureOptions

    runs = within("--runs", getattr(args, "runs", 1), 1, 1, 1000)
    tokens = within("--max-tokens", args.max_tokens, MAX_TOKENS, 8, 100_000)
    return MeasureOptions(runs=runs, max_tokens=tokens, seed=args.seed, force_length=True, positions=True)


@contextmanager
def bed_of(args: argparse.Namespace, what: str) -> Iterator[ServiceBed | OwnBed]:
    """Where it boots: the service with `--service`, else engines of our own. Restored at the end, whatever happens."""
    from specdash.bench.compare.beds import OwnBed, ServiceBed
    from specdash.cli.changes.apply_run import StepPrinter, deployment_of, settle_unfinished
    from specdash.cli.demo import private_directory
    from specdash.cli.signals import cancelled_by_signals, undisturbed
    from specdash.core.paths import backend_env_file

    if args.service and (args.env_file is not None or args.engine is not None):
        raise UsageError("--service tries configurations on the service as it is: leave --env-file and --engine out")
    deployment, options = deployment_of(args)
    with stopped_by_signals() as run:
        if args.service:
            settle_unfinished(deployment, allowed=args.yes, printer=StepPrinter())
            bed = ServiceBed(
                deployment, options, what=what, guard=cancelled_by_signals, restore_guard=lambda _: undisturbed()
            )
            bed.check()
            try:
                try:
                    yield bed
                finally:
                    run.over()
            finally:
                bed.restore()
            return
        service = deployment.backend
        file = args.env_file or str(service.env_file if service is not None else backend_env_file(os.environ))
        with private_directory("specdash-bench-") as logs:
            yield OwnBed(file, logs, engine=args.engine, force=args.force)


def begun(
    args: argparse.Namespace,
    bed: ServiceBed | OwnBed,
    candidates: tuple[Candidate, ...],
    schedule: list[tuple[int, str]],
) -> TrialWork:
    """Everything ready, in a new folder or in the one to go on with. Raises `RefusedError` where that was measured
    under other conditions."""
    from specdash.bench.compare.machine import check_same, fingerprint
    from specdash.bench.compare.trials import BootFile
    from specdash.bench.report import Results

    name = f"bench {args.action}"
    prompts, options = prompts_of(args), options_of(args)
    facts = {
        "fingerprint": fingerprint(bed.values, prompts, options, engine=args.engine),
        "bed": bed.words,
        "seed": args.seed,
        "options": asdict(options),
        "prompts": [prompt.id for prompt in prompts],
        "schedule": schedule,
    }
    head = {
        "what": name,
        **facts,
        "candidates": [{"name": candidate.name, "sets": candidate.words} for candidate in candidates],
    }
    if args.resume is None:
        results = Results.new(name.replace(" ", "-"), args.out)
        BootFile(results.directory).begin({**head, "started_at": time.time()})
        return TrialWork(bed, candidates, prompts, options, schedule, results, facts, [])
    if args.out is not None:
        raise UsageError("--resume goes on in its folder: leave --out out")
    folder = Path(args.resume).expanduser()
    before, booted = BootFile(folder).read()
    if before.get("what") != name or before.get("candidates") != head["candidates"]:
        raise InputError(f"--resume {args.resume}: is of other configurations; give the same ones, or begin anew")
    check_same(before.get("fingerprint", {}), facts["fingerprint"], str(folder))
    # A configuration that failed gets another chance.
    kept = [measurement for measurement in booted if not measurement.failure]
    return TrialWork(bed, candidates, prompts, options, schedule, Results(folder), facts, kept)


def carried_out(
    args: argparse.Namespace,
    bed: ServiceBed | OwnBed,
    candidates: tuple[Candidate, ...],
    schedule: list[tuple[int, str]],
    notes: Sequence[str],
    report: Callable[[TrialWork], BenchReport],
    *,
    compares: bool = True,
) -> tuple[int, TrialWork | None]:
    """Ask where that must be, boot it all, and tell what came of it, also where it was stopped or an error ended it.

    The exit code, and what was done; None where it was not allowed. `compares`: a single configuration tells nothing.
    """
    from specdash.bench.report import StepProgress

    progress = StepProgress(len(schedule))
    if not allowed(args, len(schedule)):
        progress.say("nothing was changed")
        return ExitCode.OK, None
    work = begun(args, bed, candidates, schedule)
    progress.say(
        f"{len(schedule) - len(work.booted)} boots of {len(candidates)} configurations on {bed.words}, "
        f"{len(work.prompts)} prompts each ({work.options.max_tokens} tokens); results: {work.results.directory}"
    )
    for note in notes:
        progress.say(note)
    failure: SpecdashError | None = None
    try:
        _boot_all(work, progress)
    except SpecdashError as error:
        failure = error
        work.stopped = True
    if work.booted:
        found = report(work)
        found.save(work.results)
        found.show(work.results, as_json=args.json)
        if not args.json:
            print(f"\nresults: {work.results.directory}")
    if work.stopped and failure is None:
        progress.say(f"stopped; go on with --resume {work.results.directory}")
    if work.results.trouble is not None:
        raise work.results.trouble
    if failure is not None:
        raise failure
    return _judged(work, compares=compares), work


def _boot_all(work: TrialWork, progress: StepProgress) -> None:
    from specdash.bench.compare.machine import MachineWatch
    from specdash.bench.compare.trials import BootFile, Trials

    skipped = len(work.booted)
    progress.total = len(work.schedule) - skipped
    trials = Trials(
        work.bed,
        work.candidates,
        work.prompts,
        work.options,
        work.schedule,
        BootFile(work.results.directory),
        lambda done, words: progress.show(max(0.0, done - skipped), words),
        work.booted,
    )
    machine = MachineWatch()
    try:
        with machine:
            trials.run()
    except KeyboardInterrupt:
        work.stopped = True
    finally:
        progress.end()
        work.facts["machine"] = machine.as_json()


def allowed(args: argparse.Namespace, count: int) -> bool:
    """Whether the service may be restarted that often: asked where `--service` is given without `--yes`."""
    import sys

    from specdash.cli.changes.apply_run import confirm

    if not args.service or args.yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"--service restarts it {count + 1} times: add --yes where there is no terminal to ask on")
    return confirm(f"Restart the service {count + 1} times?", False, "--service")


def _judged(work: TrialWork, *, compares: bool) -> int:
    """The exit code of what was measured."""
    if work.stopped:
        return ExitCode.INTERRUPTED
    failures = [measurement.failure for measurement in work.booted if measurement.failure]
    measured = {measurement.name for measurement in work.booted if not measurement.failure}
    if not measured:
        raise SpecdashError(f"nothing was measured: {failures[-1] if failures else 'nothing was booted'}")
    if compares and len(work.candidates) > 1 and len(measured) == 1:
        why = failures[0] if failures else "the others were not booted"
        raise SpecdashError(f"only {measured.pop()} could be measured, so there is nothing to compare it with: {why}")
    return ExitCode.OK


def with_notes(values: Mapping[str, str], candidates: Sequence[Candidate]) -> list[str]:
    """What is to be known before: configurations that are one to the engine, knobs that nothing reads."""
    from specdash.bench.compare.trials import same_to_the_engine, unread_knobs

    found = unread_knobs(values, candidates)
    for names in same_to_the_engine(values, candidates).values():
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        found.append(f"{shown} are one and the same to the engine: they cannot differ but by noise")
    return found
