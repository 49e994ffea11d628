"""`specdash simulate`: UAP's simulation of their formula, labelled for what it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from specdash.cli.autotune import add_knobs, knobs_of
from specdash.cli.options import within
from specdash.core.errors import ExitCode
from specdash.core.structs import json_of
from specdash.system.text import change
from specdash.tune.model.heuristic import MOST_STEPS, FormulaProfile, FormulaTrace, simulate

if TYPE_CHECKING:
    import argparse

LABEL = (
    "a circular model: its speed is highest where the knobs are the formula's own, so the improvement says nothing of "
    "any engine. `specdash bench ab` measures."
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = f"UAP's formula against static knobs on a made-up acceptance: {LABEL}"
    parser.add_argument("--steps", type=int, default=120, metavar="N", help="default: 120")
    parser.add_argument("--seed", type=int, default=42, metavar="N", help="default: 42")
    parser.add_argument(
        "--trace", choices=[str(formula_trace) for formula_trace in FormulaTrace], default=str(FormulaTrace.MIXED)
    )
    add_knobs(parser, ", static")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print both speeds, in the model's own unit."""
    static = knobs_of(args.draft_max, args.draft_min, args.draft_p_min)
    within("--steps", args.steps, None, 1, MOST_STEPS)
    found = simulate(args.steps, args.seed, FormulaTrace(args.trace), FormulaProfile(args.profile), static)
    if args.json:
        document = {
            "schema": "specdash.simulate/1",
            "method": LABEL,
            **json_of(found, "steps seed trace profile static adaptive improvement_percent"),
            "static_knobs": json_of(static),
            "final": json_of(found.final),
        }
        print(json.dumps(document, indent=1))
    else:
        print(f"{found.steps} steps, seed {found.seed}, {found.trace}, {found.profile}")
        print(f"static    {found.static:8.2f}  {static}")
        print(f"adaptive  {found.adaptive:8.2f}  {found.final}  ({change(found.improvement_percent / 100, 2)})")
        print(LABEL)
    return ExitCode.OK
