"""`specdash bench sweep`: a grid of settings, measured one after the other (docs/bench-sweep.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.cli.options import within
from specdash.core.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from specdash.bench.compare.trials import Candidate
    from specdash.bench.report import BenchReport
    from specdash.cli.bench.bench_trials import TrialWork

_MOST = 10_000


def configure(parser: argparse.ArgumentParser) -> None:
    from specdash.bench.compare.trials import GRIDS
    from specdash.cli.bench.bench_trials import add_options

    parser.add_argument(
        "--grid", action="append", default=[], metavar="KEY=V1,V2", help="values of a key; may be repeated"
    )
    parser.add_argument("--preset", choices=tuple(GRIDS), help="uap80: 16 to 22 / 3 to 6 / 0.70 to 0.78")
    parser.add_argument("--spec-type", metavar="TYPE", help="for all of the grid (default: that in force)")
    parser.add_argument("--passes", type=int, default=1, metavar="N", help="boots of each candidate (default: 1)")
    parser.add_argument("--all", action="store_true", help="also candidates that are one to the engine")
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Boot the grid, rank it, and put everything back."""
    from specdash.bench.compare.sweep import REFERENCE, SweepReport, report, schedule
    from specdash.bench.compare.trials import Candidate, meant, same_to_the_engine, unread_knobs
    from specdash.cli.bench.bench_trials import bed_of, carried_out

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

        def told(work: TrialWork) -> BenchReport:
            parts = work.candidates, tuple(work.booted), work.facts, left_out, tuple(same.values()), tuple(notes)
            return report(SweepReport(*parts, stopped=work.stopped))

        return carried_out(args, bed, (Candidate(REFERENCE, {}), *tried), plan, [*notes, *also], told)[0]


def _grid(args: argparse.Namespace) -> tuple[tuple[Candidate, ...], tuple[tuple[str, str], ...]]:
    from specdash.bench.compare.trials import GRIDS, SPEC_TYPE, grid_candidates, parse_grid
    from specdash.core.speculation import is_auto, parse_chain

    grid = {**(GRIDS[args.preset] if args.preset is not None else {}), **parse_grid(args.grid)}
    if not grid:
        raise UsageError("nothing to sweep; write --grid KEY=V1,V2 or --preset uap80")
    if args.spec_type is not None:
        if SPEC_TYPE in grid:
            raise UsageError(f"--spec-type and --grid {SPEC_TYPE} are the same: leave one out")
        if not is_auto(args.spec_type):
            parse_chain(args.spec_type, "--spec-type")
        grid = {SPEC_TYPE: (args.spec_type,), **grid}
    count = 1
    for values in grid.values():
        count *= len(values)
    if count > _MOST:
        raise UsageError(f"a grid of {count} candidates; {_MOST} are the most, and a few dozen are many")
    kept, left_out = grid_candidates(grid)
    _must_be_some(kept, left_out)
    return kept, left_out


def _must_be_some(kept: tuple[Candidate, ...], left_out: tuple[tuple[str, str], ...]) -> None:
    if not kept:
        raise UsageError(f"nothing of the grid can be meant: {left_out[0][0]}: {left_out[0][1]}")
