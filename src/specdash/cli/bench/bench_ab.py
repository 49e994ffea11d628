"""`specdash bench ab`: configurations against each other, real or within noise (docs/bench-ab.md)."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from specdash.cli.options import within
from specdash.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from specdash.bench.compare.ab import AbReport
    from specdash.bench.compare.trials import Candidate
    from specdash.bench.report import BenchReport
    from specdash.cli.bench.bench_trials import TrialWork

ROUNDS = 4
_MOST_ROUNDS = 500


def configure(parser: argparse.ArgumentParser) -> None:
    from specdash.bench.compare.trials import PRESETS
    from specdash.cli.bench.bench_trials import add_options

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
    parser.add_argument("--verify", action="store_true", help="then check that the fastest gives the same text")
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Boot them in turns, compare, and put everything back."""
    from specdash.bench.compare.ab import order
    from specdash.bench.compare.trials import must_be_meant
    from specdash.cli.bench.bench_trials import bed_of, carried_out, with_notes

    within("--rounds", args.rounds, ROUNDS, 1, _MOST_ROUNDS)
    within("--least-gain", args.least_gain, 0.02, 0.0, 1.0)
    candidates = _candidates(args)
    schedule = order([candidate.name for candidate in candidates], args.rounds, args.seed)
    with bed_of(args, "bench ab") as bed:
        must_be_meant(bed.values, candidates)
        notes = with_notes(bed.values, candidates)
        if args.rounds == 1:
            notes.append("one round tells nothing of how much boots differ: no verdict; --rounds 2 is the least")
        code, work = carried_out(args, bed, candidates, schedule, notes, lambda work: _report(work, args, notes))
    return _verified(args, work) if args.verify and work is not None and code == ExitCode.OK else code


def _candidates(args: argparse.Namespace) -> tuple[Candidate, ...]:
    from specdash.bench.compare.trials import candidates, preset

    if args.preset is not None and args.configurations:
        raise UsageError("--preset names the configurations: leave the others out")
    found = preset(args.preset) if args.preset is not None else candidates(args.configurations)
    if len(found) < 2:
        raise UsageError("name two configurations or more, the reference first; or --preset uap")
    return found


def _compared(work: TrialWork, args: argparse.Namespace, notes: Sequence[str] = ()) -> AbReport:
    from specdash.bench.compare.ab import AbReport

    parts = work.candidates, tuple(work.booted), work.facts, tuple(notes), args.least_gain, work.stopped
    return AbReport(*parts, identical=_identical(work))


def _report(work: TrialWork, args: argparse.Namespace, notes: Sequence[str]) -> BenchReport:
    from specdash.bench.compare.ab import report

    ab = _compared(work, args, notes)
    found = report(ab)
    if (more := ab.more_rounds) and not work.stopped:
        again = f"--rounds {args.rounds + more} --resume {work.results.directory}"
        found.lines.append(f"- to go on: the same command with {again}")
    return found


def _identical(work: TrialWork) -> frozenset[str]:
    from specdash.bench.compare.trials import same_to_the_engine

    reference = work.candidates[0].name
    return frozenset(same_to_the_engine(work.bed.values, work.candidates).get(reference, ())) - {reference}


def _verified(args: argparse.Namespace, work: TrialWork) -> int:
    """Whether the fastest gives the text that the engine gives without speculation: `specdash verify`."""
    from specdash.cli.bench import verify
    from specdash.cli.main import CommandParser

    ab = _compared(work, args)
    if ab.winner is None:
        print("specdash: --verify checks the fastest, and nothing was found to be faster", file=sys.stderr)
        return ExitCode.OK
    chosen = next(candidate for candidate in work.candidates if candidate.name == ab.winner)
    words = [f"--set={key}={value}" if value else f"--set=-{key}" for key, value in chosen.configuration.items()]
    words += ["--env-file", work.bed.file, *(["--engine", args.engine] if args.engine else [])]
    parser = CommandParser(prog="specdash verify", allow_abbrev=False)
    verify.configure(parser)
    # Standard output is the report's, which may be one JSON object.
    with contextlib.redirect_stdout(sys.stderr):
        return verify.run(parser.parse_args([*words, *(["--force"] if args.force else [])]))
