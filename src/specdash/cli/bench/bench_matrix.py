"""`specdash bench matrix`: drafters by classes of prompts, and by targets (docs/bench-sweep.md)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from specdash.cli.options import within
from specdash.core.errors import InputError, UsageError

if TYPE_CHECKING:
    import argparse

    from specdash.bench.compare.matrix import Pairing
    from specdash.bench.report import BenchReport
    from specdash.cli.bench.bench_trials import TrialWork

RUNS = 3
NONE = "none"


def configure(parser: argparse.ArgumentParser) -> None:
    from specdash.cli.bench.bench_trials import add_options

    parser.add_argument(
        "--drafter", action="append", default=[], metavar="NAME=FILE",
        help="a draft model, or NAME=TYPE for a way to speculate without one; `none` is no speculation; "
        "comma-separated, or repeated",
    )  # fmt: skip
    parser.add_argument("--targets", action="append", default=[], metavar="FILE", help="models instead of the env's")
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help=f"boots of each pairing (default: {RUNS})")
    add_options(parser, runs=None)
    parser.set_defaults(boot_runs=1)


def run(args: argparse.Namespace) -> int:
    """Boot every pairing, tabulate, and put everything back."""
    from specdash.bench.compare.ab import order
    from specdash.bench.compare.matrix import MatrixReport, report
    from specdash.cli.bench.bench_trials import bed_of, carried_out

    rounds, args.runs = within("--runs", args.runs, RUNS, 1, 100), 1
    with bed_of(args, "bench matrix") as bed:
        pairings = _pairings(args, bed.values.get("LLAMA_MODEL"))
        candidates = tuple(pairing.candidate for pairing in pairings)
        schedule = order([candidate.name for candidate in candidates], rounds, args.seed)

        def told(work: TrialWork) -> BenchReport:
            return report(MatrixReport(pairings, tuple(work.booted), work.facts, work.stopped))

        return carried_out(args, bed, candidates, schedule, (), told, compares=False)[0]


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
    from specdash.backend.auto import detect
    from specdash.core.errors import SpecdashError

    try:
        kind = detect(draft)
    except SpecdashError:
        return "draft-simple"
    return kind.name if kind is not None else "draft-simple"


def _must_exist(option: str, path: str) -> None:
    if not Path(path).expanduser().is_file():
        raise InputError(f"{option} {path}: no such file")
