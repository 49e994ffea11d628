"""`specdash bench ab|sweep|matrix`: configurations booted in turns, on the service or beside it, and measured."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.cli.options import add_settings, within
from specdash.cli.signals import stopped_by_signals
from specdash.core.config import APPLY_SETTINGS, SERVICE_SETTINGS
from specdash.core.errors import ExitCode, InputError, SpecdashError, UsageError
from specdash.core.structs import json_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from specdash.bench.compare.beds import OwnBed, ServiceBed
    from specdash.bench.compare.matrix import Pairing
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
        "--prompts", metavar="FILE", help="your own: JSON Lines, JSON, or plain text (docs/measuring.md)"
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
    """Where it boots: the service with `--service`, else engines of our own. Restored at the end in any case."""
    from specdash.bench.compare.beds import OwnBed, ServiceBed
    from specdash.cli.changes.apply_run import deployment_of
    from specdash.cli.demo import private_directory
    from specdash.cli.signals import cancelled_by_signals, undisturbed
    from specdash.core.paths import backend_env_file

    if args.service and (args.env_file is not None or args.engine is not None):
        raise UsageError("--service tries configurations on the service as it is: leave --env-file and --engine out")
    deployment, options = deployment_of(args)
    with stopped_by_signals() as run:
        if args.service:
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


class TrialRun:
    """What is to be booted and measured, and what there is of it: `booted`, also where it was `stopped`."""

    def __init__(
        self,
        args: argparse.Namespace,
        bed: ServiceBed | OwnBed,
        candidates: tuple[Candidate, ...],
        schedule: list[tuple[int, str]],
    ) -> None:
        self.args, self.bed, self.candidates, self.schedule = args, bed, candidates, schedule
        self.prompts, self.options = prompts_of(args), options_of(args)
        self.booted: list[BootMeasurement] = []
        self.stopped = False
        self.facts: dict[str, Any] = {}
        self.results: Results

    def run(self, notes: Sequence[str], report: Callable[[TrialRun], BenchReport], *, compares: bool = True) -> int:
        """Ask where that must be, boot it all, and report, also where it was stopped or an error ended it; the exit
        code. `compares`: a single configuration alone is not enough."""
        from specdash.bench.report import StepProgress

        progress = StepProgress(len(self.schedule))
        if not allowed(self.args, len(self.schedule)):
            progress.say("nothing was changed")
            return ExitCode.OK
        self._begin()
        progress.say(
            f"{len(self.schedule) - len(self.booted)} boots of {len(self.candidates)} configurations on "
            f"{self.bed.words}, {len(self.prompts)} prompts each ({self.options.max_tokens} tokens); results: "
            f"{self.results.directory}"
        )
        for note in notes:
            progress.say(note)
        failure: SpecdashError | None = None
        try:
            self._boot_all(progress)
        except SpecdashError as error:
            failure, self.stopped = error, True
        if self.booted:
            found = report(self)
            found.save(self.results)
            found.show(self.results, as_json=self.args.json)
            if not self.args.json:
                print(f"\nresults: {self.results.directory}")
        if self.stopped and failure is None:
            progress.say(f"stopped; go on with --resume {self.results.directory}")
        if (trouble := self.results.trouble or failure) is not None:
            raise trouble
        return self._judged(compares=compares)

    def _begin(self) -> None:
        """A new folder, or the one to go on with. Raises `RefusedError` where that was measured under other
        conditions."""
        from specdash.bench.compare.machine import check_same, fingerprint
        from specdash.bench.compare.trials import BootFile
        from specdash.bench.report import Results

        args, name = self.args, f"bench {self.args.action}"
        self.facts = {
            "fingerprint": fingerprint(self.bed.values, self.prompts, self.options, engine=args.engine),
            "bed": self.bed.words,
            "seed": args.seed,
            "options": json_of(self.options),
            "prompts": [prompt.id for prompt in self.prompts],
            "schedule": self.schedule,
        }
        candidates = [{"name": candidate.name, "sets": candidate.words} for candidate in self.candidates]
        if args.resume is None:
            self.results = Results.new(name.replace(" ", "-"), args.out)
            head = {"what": name, **self.facts, "candidates": candidates, "started_at": time.time()}
            BootFile(self.results.directory).begin(head)
            return
        if args.out is not None:
            raise UsageError("--resume goes on in its folder: leave --out out")
        self.results = Results(Path(args.resume).expanduser())
        before, booted = BootFile(self.results.directory).read()
        if before.get("what") != name or before.get("candidates") != candidates:
            raise InputError(f"--resume {args.resume}: is of other configurations; give the same ones, or start over")
        check_same(before.get("fingerprint", {}), self.facts["fingerprint"], str(self.results.directory))
        # A configuration that failed gets another chance.
        self.booted = [measurement for measurement in booted if not measurement.failure]

    def _boot_all(self, progress: StepProgress) -> None:
        from specdash.bench.compare.machine import MachineWatch
        from specdash.bench.compare.trials import BootFile, Trials

        skipped = len(self.booted)
        progress.total = len(self.schedule) - skipped
        trials = Trials(
            self.bed,
            self.candidates,
            self.prompts,
            self.options,
            self.schedule,
            BootFile(self.results.directory),
            lambda done, words: progress.show(max(0.0, done - skipped), words),
            self.booted,
        )
        machine = MachineWatch()
        try:
            with machine:
                trials.run()
        except KeyboardInterrupt:
            self.stopped = True
        finally:
            progress.end()
            self.facts["machine"] = machine.as_json()

    def _judged(self, *, compares: bool) -> int:
        """The exit code of what was measured."""
        if self.stopped:
            return ExitCode.INTERRUPTED
        failures = [measurement.failure for measurement in self.booted if measurement.failure]
        measured = {measurement.name for measurement in self.booted if not measurement.failure}
        if not measured:
            raise SpecdashError(f"nothing was measured: {failures[-1] if failures else 'nothing was booted'}")
        if compares and len(self.candidates) > 1 and len(measured) == 1:
            why = failures[0] if failures else "the others were not booted"
            raise SpecdashError(
                f"only {measured.pop()} could be measured, so there is nothing to compare it with: {why}"
            )
        return ExitCode.OK


def allowed(args: argparse.Namespace, count: int) -> bool:
    """Whether the service may be restarted that often: asked where `--service` is given without `--yes`."""
    from specdash.cli.changes.apply_run import confirm

    if not args.service or args.yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"--service restarts it {count + 1} times: add --yes where there is no terminal to ask on")
    return confirm(f"Restart the service {count + 1} times?", False, "--service")


def with_notes(values: Mapping[str, str], candidates: Sequence[Candidate]) -> list[str]:
    """What is to be known before: configurations that are one to the engine, knobs that nothing reads."""
    from specdash.bench.compare.trials import same_to_the_engine, unread_knobs

    found = unread_knobs(values, candidates)
    for names in same_to_the_engine(values, candidates).values():
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        found.append(f"{shown} are one and the same to the engine: they cannot differ but by noise")
    return found


# `bench ab`: configurations against each other, real or within noise (docs/measuring.md).

ROUNDS = 4
_MOST_ROUNDS = 500


def add_ab(parser: argparse.ArgumentParser) -> None:
    from specdash.bench.compare.trials import PRESETS

    parser.add_argument(
        "configurations", nargs="*", metavar="CONFIGURATION",
        help="a profile, KEY=VALUE,KEY=VALUE (perhaps after NAME:), none, default (knobs unset) or current; the first "
        "is the reference",
    )  # fmt: skip
    parser.add_argument("--preset", choices=tuple(PRESETS), help="uap: none, 16/3/0.75 and 21/6/0.72")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, metavar="N", help=f"boots of each configuration (default: {ROUNDS})"
    )
    parser.add_argument(
        "--least-gain", type=float, default=0.02, metavar="SHARE", help="minimum gain worth applying (default: 0.02)"
    )
    add_options(parser)


def ab(args: argparse.Namespace) -> int:
    """Boot them in turns, compare, and put everything back."""
    from specdash.bench.compare.ab import order
    from specdash.bench.compare.trials import must_be_meant

    within("--rounds", args.rounds, ROUNDS, 1, _MOST_ROUNDS)
    within("--least-gain", args.least_gain, 0.02, 0.0, 1.0)
    candidates = _candidates(args)
    schedule = order([candidate.name for candidate in candidates], args.rounds, args.seed)
    with bed_of(args, "bench ab") as bed:
        must_be_meant(bed.values, candidates)
        notes = with_notes(bed.values, candidates)
        if args.rounds == 1:
            notes.append("one round does not show how much boots differ: no verdict; --rounds 2 is the least")
        return TrialRun(args, bed, candidates, schedule).run(notes, lambda work: _report(work, args, notes))


def _candidates(args: argparse.Namespace) -> tuple[Candidate, ...]:
    from specdash.bench.compare.trials import candidates, preset

    if args.preset is not None and args.configurations:
        raise UsageError("--preset names the configurations: leave the others out")
    found = preset(args.preset) if args.preset is not None else candidates(args.configurations)
    if len(found) < 2:
        raise UsageError("name two configurations or more, the reference first; or --preset uap")
    return found


def _report(work: TrialRun, args: argparse.Namespace, notes: Sequence[str]) -> BenchReport:
    from specdash.bench.compare.ab import AbReport, report
    from specdash.bench.compare.trials import same_to_the_engine

    reference = work.candidates[0].name
    same = same_to_the_engine(work.bed.values, work.candidates).get(reference, ())
    parts = work.candidates, tuple(work.booted), work.facts, tuple(notes), args.least_gain, work.stopped
    ab = AbReport(*parts, identical=frozenset(same) - {reference})
    found = report(ab)
    if (more := ab.more_rounds) and not work.stopped:
        again = f"--rounds {args.rounds + more} --resume {work.results.directory}"
        found.lines.append(f"- to go on: the same command with {again}")
    return found


# `bench sweep`: a grid of settings (docs/measuring.md).

_MOST = 10_000


def add_sweep(parser: argparse.ArgumentParser) -> None:
    from specdash.bench.compare.trials import GRIDS

    parser.add_argument(
        "--grid", action="append", default=[], metavar="KEY=V1,V2", help="values of a key; may be repeated"
    )
    parser.add_argument("--preset", choices=tuple(GRIDS), help="uap80: 16 to 22 / 3 to 6 / 0.70 to 0.78")
    parser.add_argument("--passes", type=int, default=1, metavar="N", help="boots of each candidate (default: 1)")
    parser.add_argument("--all", action="store_true", help="also candidates that are one to the engine")
    add_options(parser)


def sweep(args: argparse.Namespace) -> int:
    """Boot the grid, rank it, and put everything back."""
    from specdash.bench.compare.sweep import REFERENCE, SweepReport, report, schedule
    from specdash.bench.compare.trials import Candidate, meant, same_to_the_engine, unread_knobs

    within("--passes", args.passes, 1, 1, 100)
    kept, left_out = _grid(args)
    with bed_of(args, "bench sweep") as bed:
        kept, others = meant(bed.values, kept)
        left_out += others
        _must_be_some(kept, left_out)
        same = {} if args.all else same_to_the_engine(bed.values, kept)
        twins = {name for names in same.values() for name in names[1:]}
        tried = tuple(candidate for candidate in kept if candidate.name not in twins)
        notes = unread_knobs(bed.values, kept)
        if twins:
            count = f"{len(kept)} candidates are {len(tried)} to the engine"
            notes.append(f"{count}: each is measured once (--all measures them all the same)")
        also = [f"{len(left_out)} left out: {left_out[0][0]}: {left_out[0][1]}"] if left_out else []
        plan = schedule([candidate.name for candidate in tried], args.passes, args.seed)

        def made(work: TrialRun) -> BenchReport:
            parts = work.candidates, tuple(work.booted), work.facts, left_out, tuple(same.values()), tuple(notes)
            return report(SweepReport(*parts, stopped=work.stopped))

        return TrialRun(args, bed, (Candidate(REFERENCE, {}), *tried), plan).run([*notes, *also], made)


def _grid(args: argparse.Namespace) -> tuple[tuple[Candidate, ...], tuple[tuple[str, str], ...]]:
    from specdash.bench.compare.trials import GRIDS, grid_candidates, parse_grid

    grid = {**(GRIDS[args.preset] if args.preset is not None else {}), **parse_grid(args.grid)}
    if not grid:
        raise UsageError("nothing to sweep; write --grid KEY=V1,V2 or --preset uap80")
    count = prod(len(values) for values in grid.values())
    if count > _MOST:
        raise UsageError(f"a grid of {count} candidates; {_MOST} are the most, and a few dozen are many")
    kept, left_out = grid_candidates(grid)
    _must_be_some(kept, left_out)
    return kept, left_out


def _must_be_some(kept: tuple[Candidate, ...], left_out: tuple[tuple[str, str], ...]) -> None:
    if not kept:
        raise UsageError(f"nothing of the grid can be meant: {left_out[0][0]}: {left_out[0][1]}")


# `bench matrix`: drafters by classes of prompts, and by targets (docs/measuring.md).

RUNS = 3
NONE = "none"


def add_matrix(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--drafter", action="append", default=[], metavar="NAME=FILE",
        help="a draft model, or NAME=TYPE for a way to speculate without one; `none` is no speculation; "
        "comma-separated, or repeated",
    )  # fmt: skip
    parser.add_argument("--targets", action="append", default=[], metavar="FILE", help="models instead of the env's")
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help=f"boots of each pairing (default: {RUNS})")
    add_options(parser, runs=None)


def matrix(args: argparse.Namespace) -> int:
    """Boot every pairing, tabulate, and put everything back."""
    from specdash.bench.compare.ab import order
    from specdash.bench.compare.matrix import MatrixReport, report

    rounds, args.runs = within("--runs", args.runs, RUNS, 1, 100), 1
    with bed_of(args, "bench matrix") as bed:
        pairings = _pairings(args, bed.values.get("LLAMA_MODEL"))
        candidates = tuple(pairing.candidate for pairing in pairings)
        schedule = order([candidate.name for candidate in candidates], rounds, args.seed)

        def made(work: TrialRun) -> BenchReport:
            return report(MatrixReport(pairings, tuple(work.booted), work.facts, work.stopped))

        return TrialRun(args, bed, candidates, schedule).run((), made, compares=False)


def _pairings(args: argparse.Namespace, model: str | None) -> tuple[Pairing, ...]:
    from specdash.bench.compare.matrix import Pairing
    from specdash.bench.compare.trials import SPEC_TYPE, Candidate
    from specdash.core.speculation import spec_type

    drafters = [part.strip() for word in args.drafter for part in word.split(",") if part.strip()]
    if not drafters:
        raise UsageError("name what drafts: --drafter NAME=FILE, NAME=TYPE, or none")
    targets = [part for word in args.targets for part in word.split(",") if part] or [model or ""]
    if targets == [""]:
        raise InputError("the env file names no LLAMA_MODEL; name one with --targets")
    found: list[Pairing] = []
    for target in targets:
        _must_exist("--targets", target)
        for word in drafters:
            name, equals, what = word.partition("=")
            if word == NONE:
                sets = {SPEC_TYPE: NONE, "LLAMA_DRAFT_MODEL": ""}
            elif equals and name and spec_type(what) is not None:
                sets = {SPEC_TYPE: what, "LLAMA_DRAFT_MODEL": ""}
            elif equals and name and what:
                _must_exist("--drafter", what)
                sets = {SPEC_TYPE: _type_for(what), "LLAMA_DRAFT_MODEL": str(Path(what).expanduser().absolute())}
            else:
                raise UsageError(f"--drafter {word!r}: write NAME=FILE, NAME=TYPE, or none")
            shown = f"{Path(target).stem} + {name}" if len(targets) > 1 else name
            if len(targets) > 1 or args.targets:
                sets = {"LLAMA_MODEL": str(Path(target).expanduser().absolute()), **sets}
            if any(pairing.candidate.name == shown for pairing in found):
                raise UsageError(f"{shown}: is named twice; drafters and targets need names of their own")
            found.append(Pairing(Path(target).stem, name, Candidate(shown, sets)))
    return tuple(found)


def _type_for(draft: str) -> str:
    """The way to speculate that a draft model is for, from its header; the plain one where that does not tell."""
    from specdash.backend.auto import look
    from specdash.llama.model_facts import type_for

    facts = look(str(Path(draft).expanduser()))
    return type_for(facts).name if facts is not None else "draft-simple"


def _must_exist(option: str, path: str) -> None:
    if not Path(path).expanduser().is_file():
        raise InputError(f"{option} {path}: no such file")
