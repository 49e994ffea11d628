"""`specdash snapshot`: what the dashboard knows, as text or JSON, without the dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.cli.options import add_settings, alert_rules, look, one_target, print_json, resolved_settings
from specdash.core.config import RULE_SETTINGS, TARGET_SETTINGS, WINDOWS_S
from specdash.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    import argparse

    from specdash.insight.picture import Picture


def configure(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, (*TARGET_SETTINGS, *RULE_SETTINGS, "window"))
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON (docs/snapshot.md)")
    form.add_argument("--prometheus", action="store_true", help="print gauges for a textfile collector")
    parser.add_argument(
        "--wait",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="watch for this long first, so that rates and averages are known",
    )


def run(args: argparse.Namespace) -> int:
    """Print one snapshot; exit as `exit_code` says."""
    if not 0 <= args.wait <= 86400:
        raise UsageError(f"--wait {args.wait:g}: must be 0 to 86400 seconds")
    settings = resolved_settings(args)
    rules = alert_rules(settings)
    picture = look(one_target(settings), rules, WINDOWS_S[settings["window"].value], before_s=args.wait)
    if args.prometheus:
        from specdash.export.prometheus import to_prometheus

        print(to_prometheus(picture), end="")
    else:
        print_snapshot(picture, as_json=args.json)
    return exit_code(picture)


def print_snapshot(picture: Picture, *, as_json: bool) -> None:
    """Print the picture to standard output."""
    from specdash.export import snapshot

    if as_json:
        print_json(snapshot.to_json(picture))
    else:
        print(snapshot.to_text(picture))


def exit_code(picture: Picture) -> int:
    """0 when the server answers, 3 when it refuses the API key, 4 when nothing usable does."""
    from specdash.insight.picture import BackendState

    unusable = {
        BackendState.DOWN: ExitCode.UNREACHABLE,
        BackendState.UNKNOWN: ExitCode.UNREACHABLE,
        BackendState.UNAUTHORIZED: ExitCode.BAD_INPUT,
    }
    return unusable.get(picture.backend.state, ExitCode.OK)
