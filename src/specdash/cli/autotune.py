"""`specdash autotune`: UAP's formula, labelled for what it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from specdash.cli.options import within
from specdash.core.errors import ExitCode, UsageError
from specdash.tune.heuristic import DEFAULT_ACCEPTANCE, DEFAULT_ROLLBACK, Knobs, Profile, tune

if TYPE_CHECKING:
    import argparse

LABEL = "a heuristic: fixed weights on two rates. It has measured nothing; `specdash tune` does."


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    base = Knobs()
    parser.description = f"Three knobs from an acceptance and a rollback rate: {LABEL}"
    parser.add_argument(
        "--acceptance", type=float, default=DEFAULT_ACCEPTANCE, metavar="A", help="0 to 1 (default: 0.7)"
    )
    parser.add_argument("--rollback", type=float, default=DEFAULT_ROLLBACK, metavar="R", help="0 to 1 (default: 0.15)")
    parser.add_argument("--profile", choices=[str(one) for one in Profile], default=str(Profile.THROUGHPUT))
    parser.add_argument("--draft-max", type=int, default=base.draft_max, metavar="N", help="longest draft now")
    parser.add_argument("--draft-min", type=int, default=base.draft_min, metavar="N", help="shortest draft now")
    parser.add_argument("--draft-p-min", type=float, default=base.p_min, metavar="P", help="least probability now")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the knobs."""
    within("--acceptance", args.acceptance, None, 0.0, 1.0)
    within("--rollback", args.rollback, None, 0.0, 1.0)
    base = knobs_of(args.draft_max, args.draft_min, args.draft_p_min)
    found = tune(args.acceptance, args.rollback, Profile(args.profile), base)
    if args.json:
        print(json.dumps(to_json(args, base, found), indent=1))
    else:
        print(f"{found}  ({base} before; {args.profile}, acceptance {args.acceptance:g}, rollback {args.rollback:g})")
        print("\n".join(f"{key}={value}" for key, value in settings_of(found).items()))
        print(LABEL)
    return ExitCode.OK


def knobs_of(draft_max: int, draft_min: int, p_min: float) -> Knobs:
    """Knobs as a user gave them. Raises `UsageError` for what an engine would not take."""
    within("--draft-max", draft_max, None, 1, 1024)
    if not 0 <= draft_min <= draft_max:
        raise UsageError(f"--draft-min {draft_min}: wants 0 to --draft-max ({draft_max})")
    within("--draft-p-min", p_min, None, 0.0, 1.0)
    return Knobs(draft_max, draft_min, p_min)


def settings_of(knobs: Knobs) -> dict[str, str]:
    """The knobs as settings of the backend's env file."""
    return {
        "LLAMA_DRAFT_MAX": str(knobs.draft_max),
        "LLAMA_DRAFT_MIN": str(knobs.draft_min),
        "LLAMA_DRAFT_P_MIN": f"{knobs.p_min:g}",
    }


def to_json(args: argparse.Namespace, base: Knobs, found: Knobs) -> dict[str, object]:
    """One object."""
    return {
        "schema": "specdash.autotune/1",
        "method": LABEL,
        "profile": args.profile,
        "metrics": {"acceptance": args.acceptance, "rollback": args.rollback},
        "base": knobs_json(base),
        "tuned": knobs_json(found),
        "settings": settings_of(found),
    }


def knobs_json(knobs: Knobs) -> dict[str, float]:
    """By name."""
    return {"draft_max": knobs.draft_max, "draft_min": knobs.draft_min, "p_min": knobs.p_min}
