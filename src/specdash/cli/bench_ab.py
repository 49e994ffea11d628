"""`specdash bench ab`: configurations against each other, real or within noise (docs/bench-ab.md)."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING

from specdash.cli.options import within
from specdash.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    import argparse

    from specdash.bench.configurations import Candidate
    from specdash.cli.bench_trials import Work

ROUNDS = 4
_MOST_ROUNDS = 500


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    from specdash.bench.configurations import PRESETS
    from specdash.cli.bench_trials import add_options

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
        "--least-gain", type=float, default=0.02, metavar="SHARE", help="worth a change from here (default: 0.02)"
    )
    parser.add_argument("--verify", action="store_true", help="then check that the fastest gives the same text")
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Boot them in turns, compare, and put everything back."""
    from specdash.bench.configurations import must_be_meant
    from specdash.bench.progress import Progress
    from specdash.bench.verdict import order
    from specdash.cli.bench_trials import allowed, bed_of, begun, finished, say_plan, with_notes

    within("--rounds", args.rounds, ROUNDS, 1, _MOST_ROUNDS)
    within("--least-gain", args.least_gain, 0.02, 0.0, 1.0)
    candidates = _candidates(args)
    schedule = [
        (turn, name)
        for turn, names in enumerate(order([one.name for one in candidates], args.rounds, args.seed))
        for name in names
    ]
    progress = Progress(len(schedule))
    with bed_of(args, "bench ab") as bed:
        must_be_meant(bed.values, candidates)
        if not allowed(args, len(schedule)):
            progress.say("nothing was changed")
            return ExitCode.OK
        notes = with_notes(bed.values, candidates)
        if args.rounds == 1:
            notes.append("one round tells nothing of how much boots differ: no verdict; --rounds 2 is the least")
        work = begun(args, "bench ab", bed, candidates, schedule)
        say_plan(work, progress, notes)
        code = finished(args, work, progress, lambda done: _tell(done, args, notes))
    return _verified(args, work) if args.verify and code == ExitCode.OK else code


def _candidates(args: argparse.Namespace) -> tuple[Candidate, ...]:
    from specdash.bench.configurations import candidates, preset

    if args.preset is not None and args.configurations:
        raise UsageError("--preset names the configurations: leave the others out")
    found = preset(args.preset) if args.preset is not None else candidates(args.configurations)
    if len(found) < 2:
        raise UsageError("name two configurations or more, the reference first; or --preset uap")
    return found


def _tell(work: Work, args: argparse.Namespace, notes: list[str]) -> None:
    from specdash.bench.ab import Ab, as_json, save, text

    ab = Ab(
        work.candidates,
        tuple(work.booted),
        work.facts,
        tuple(notes),
        least_gain=args.least_gain,
        stopped=work.stopped,
        identical=_identical(work),
    )
    save(ab, work.results)
    if args.json:
        print(json.dumps({**as_json(ab), "folder": str(work.results.directory)}, indent=1, ensure_ascii=False))
    else:
        print("\n".join(text(ab)))
        if (more := ab.more_rounds) and not work.stopped:
            print(f"- to go on: the same command with --rounds {args.rounds + more} --resume {work.results.directory}")


def _identical(work: Work) -> frozenset[str]:
    from specdash.bench.configurations import same_to_the_engine

    reference = work.candidates[0].name
    return frozenset(same_to_the_engine(work.bed.values, work.candidates).get(reference, ())) - {reference}


def _verified(args: argparse.Namespace, work: Work) -> int:
    """Whether the fastest gives the text that the engine gives without speculation: `specdash verify`."""
    from specdash.bench.ab import Ab
    from specdash.cli import verify
    from specdash.cli.main import Parser

    ab = Ab(
        work.candidates,
        tuple(work.booted),
        work.facts,
        least_gain=args.least_gain,
        identical=_identical(work),
    )
    if ab.winner is None:
        print("specdash: --verify checks the fastest, and nothing was found to be faster", file=sys.stderr)
        return ExitCode.OK
    chosen = next(one for one in work.candidates if one.name == ab.winner)
    words = [f"--set={key}={value}" if value else f"--set=-{key}" for key, value in chosen.configuration.items()]
    words += ["--env-file", work.bed.file, *(["--engine", args.engine] if args.engine else [])]
    parser = Parser(prog="specdash verify", allow_abbrev=False)
    verify.configure(parser)
    # Standard output is the report's, which may be one JSON object.
    with contextlib.redirect_stdout(sys.stderr):
        return verify.run(parser.parse_args([*words, *(["--force"] if args.force else [])]))
