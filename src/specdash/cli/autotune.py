"""`specdash autotune`: UAP's formula, labelled for what it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from specdash.cli.options import add_settings, look, one_target, resolved_settings, within
from specdash.core.config import TARGET_SETTINGS
from specdash.core.errors import ExitCode, UnreachableError, UsageError
from specdash.core.structs import json_of
from specdash.tune.model.heuristic import DEFAULT_ACCEPTANCE, DEFAULT_ROLLBACK, FormulaProfile, Knobs, tune

if TYPE_CHECKING:
    import argparse

LABEL = "a heuristic: fixed weights on two rates. It has measured nothing; `specdash tune` does."


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = f"Three knobs from an acceptance and a rollback rate: {LABEL}"
    parser.add_argument(
        "--acceptance",
        type=float,
        metavar="A",
        help="0 to 1 (default: of the server that --url or --target names since its start, else 0.7)",
    )
    parser.add_argument("--rollback", type=float, default=DEFAULT_ROLLBACK, metavar="R", help="0 to 1 (default: 0.15)")
    add_knobs(parser, " now")
    add_settings(parser, TARGET_SETTINGS)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_knobs(parser: argparse.ArgumentParser, what: str) -> None:
    """The options that autotune and simulate share: the profile, and the knobs to begin with."""
    base, profiles = Knobs(), [str(profile) for profile in FormulaProfile]
    parser.add_argument("--profile", choices=profiles, default=str(FormulaProfile.THROUGHPUT))
    parser.add_argument("--draft-max", type=int, default=base.draft_max, metavar="N", help=f"longest draft{what}")
    parser.add_argument("--draft-min", type=int, default=base.draft_min, metavar="N", help=f"shortest draft{what}")
    parser.add_argument("--draft-p-min", type=float, default=base.p_min, metavar="P", help=f"least probability{what}")


def run(args: argparse.Namespace) -> int:
    if args.acceptance is None:
        args.acceptance = acceptance_of_server(args) if args.url or args.target_name else DEFAULT_ACCEPTANCE
    within("--acceptance", args.acceptance, None, 0.0, 1.0)
    within("--rollback", args.rollback, None, 0.0, 1.0)
    base = knobs_of(args.draft_max, args.draft_min, args.draft_p_min)
    found = tune(args.acceptance, args.rollback, FormulaProfile(args.profile), base)
    if args.json:
        print(json.dumps(to_json(args, base, found), indent=1))
    else:
        print(f"{found}  ({base} before; {args.profile}, acceptance {args.acceptance:g}, rollback {args.rollback:g})")
        print("\n".join(f"{key}={value}" for key, value in settings_of(found).items()))
        print(LABEL)
    return ExitCode.OK


def acceptance_of_server(args: argparse.Namespace) -> float:
    """The share of draft tokens that the named server has accepted since its start. Raises `SpecdashError`."""
    target = one_target(resolved_settings(args))
    found = look(target, (), 60.0).backend.speculation.acceptance.lifetime.value
    if found is None:
        raise UnreachableError(
            f"the acceptance of {target.url} is unknown: does it answer, with --metrics, and has it drafted? "
            f"`specdash doctor --url {target.url}` names what is missing; --acceptance takes a figure of your own"
        )
    return found


def knobs_of(draft_max: int, draft_min: int, p_min: float) -> Knobs:
    """Knobs as a user gave them. Raises `UsageError` for what an engine would not take."""
    within("--draft-max", draft_max, None, 1, 1024)
    if not 0 <= draft_min <= draft_max:
        raise UsageError(f"--draft-min {draft_min}: must be 0 to --draft-max ({draft_max})")
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
    return {
        "schema": "specdash.autotune/1",
        "method": LABEL,
        "profile": args.profile,
        "metrics": json_of(args, "acceptance rollback"),
        "base": json_of(base),
        "tuned": json_of(found),
        "settings": settings_of(found),
    }
