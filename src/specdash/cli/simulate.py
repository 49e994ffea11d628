"""`specdash simulate`: UAP's simulation of their formula, labelled for what it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from specdash.cli.autotune import knobs_json, knobs_of
from specdash.cli.options import within
from specdash.core.errors import ExitCode
from specdash.tune.heuristic import MOST_STEPS, Knobs, Profile, Trace, simulate

if TYPE_CHECKING:
    import argparse

LABEL = (
    "a circular model: its speed is highest where the knobs are the formula's own, so the improvement says nothing of "
    "any engine. `specdash bench ab` measures."
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    base = Knobs()
    parser.description = f"UAP's formula against static knobs on a made-up acceptance: {LABEL}"
    parser.add_argument("--steps", type=int, default=120, metavar="N", help="default: 120")
    parser.add_argument("--seed", type=int, default=42, metavar="N", help="default: 42")
    parser.add_argument("--trace", choices=[str(one) for one in Trace], default=str(Trace.MIXED))
    parser.add_argument("--profile", choices=[str(one) for one in Profile], default=str(Profile.THROUGHPUT))
    parser.add_argument("--draft-max", type=int, default=base.draft_max, metavar="N", help="longest draft, static")
    parser.add_argument("--draft-min", type=int, default=base.draft_min, metavar="N", help="shortest draft, static")
    parser.add_argument("--draft-p-min", type=float, default=base.p_min, metavar="P", help="least probability, static")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print both speeds, in the model's own unit."""
    static = knobs_of(args.draft_max, args.draft_min, args.draft_p_min)
    within("--steps", args.steps, None, 1, MOST_STEPS)
    found = simulate(args.steps, args.seed, Trace(args.trace), Profile(args.profile), static)
    if args.json:
        document = {
            "schema": "specdash.simulate/1",
            "method": LABEL,
            "steps": found.steps,
            "seed": found.seed,
            "trace": str(found.trace),
            "profile": str(found.profile),
            "static": found.static,
            "adaptive": found.adaptive,
            "improvement_percent": found.improvement_percent,
            "static_knobs": knobs_json(static),
            "final": knobs_json(found.final),
        }
        print(json.dumps(document, indent=1))
    else:
        print(f"{found.steps} steps, seed {found.seed}, {found.trace}, {found.profile}")
        print(f"static    {found.static:8.2f}  {static}")
        print(f"adaptive  {found.adaptive:8.2f}  {found.final}  ({found.improvement_percent:+.2f} %)")
        print(LABEL)
    return ExitCode.OK
