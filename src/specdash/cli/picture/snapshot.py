"""`specdash snapshot`: what the dashboard knows, as text or JSON, without the dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from specdash.cli.options import add_settings, alert_rules, look, one_target, print_json, resolved_settings
from specdash.core.config import RULE_SETTINGS, TARGET_SETTINGS, WINDOWS_S
from specdash.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from specdash.core.config import Resolved
    from specdash.insight.picture import Picture
    from specdash.insight.rules.catalogue import Rule

ALL_SCHEMA: Final = "specdash.snapshots/1"


def configure(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, (*TARGET_SETTINGS, *RULE_SETTINGS, "window"))
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON (docs/snapshot.md)")
    form.add_argument("--prometheus", action="store_true", help="print gauges for a textfile collector")
    parser.add_argument("--all", action="store_true", help="every server found here or in config.toml, by name")
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
    if args.all:
        return _print_all(args, settings, rules)
    picture = look(one_target(settings), rules, WINDOWS_S[settings["window"].value], before_s=args.wait)
    if args.prometheus:
        from specdash.export.prometheus import to_prometheus

        print(to_prometheus(picture), end="")
    else:
        print_snapshot(picture, as_json=args.json)
    return exit_code(picture)


def _print_all(args: argparse.Namespace, settings: Mapping[str, Resolved], rules: Sequence[Rule]) -> int:
    from specdash.cli.options import all_targets, look_at_all
    from specdash.export import snapshot

    if args.prometheus:
        raise UsageError("--prometheus prints one server; `specdash export --all --once` prints all")
    targets = all_targets(settings)
    pictures = look_at_all(targets, rules, WINDOWS_S[settings["window"].value], args.wait)
    servers: list[dict[str, Any]] = []
    for target, picture in zip(targets, pictures, strict=True):
        if args.json:
            document = snapshot.to_json(picture)
            servers.append({"name": target.label, "exit_code": exit_code(picture), "snapshot": document})
        else:
            print(f"== {target.label}\n{snapshot.to_text(picture)}\n")
    if args.json:
        printed: dict[str, Any] = {"schema": ALL_SCHEMA, "servers": servers}
        print_json(printed)
    return max(map(exit_code, pictures))


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
