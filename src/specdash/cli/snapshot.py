"""`specdash snapshot`: what the dashboard knows, as text or JSON, without the dashboard."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from specdash.cli.options import add_settings, alert_rules, one_target, resolved_settings
from specdash.core.config import RULE_SETTINGS, TARGET_SETTINGS, WINDOWS_S
from specdash.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from specdash.core.target import Target
    from specdash.insight.picture import Picture
    from specdash.insight.rules.catalogue import Rule

FIRST_LOOK_S = 5.0
"""How long the first answers of all endpoints may take."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_settings(parser, (*TARGET_SETTINGS, *RULE_SETTINGS, "window"))
    parser.add_argument("--json", action="store_true", help="print JSON (docs/snapshot.md)")
    parser.add_argument(
        "--wait",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="watch that long first, so that windowed figures exist",
    )


def run(args: argparse.Namespace) -> int:
    """Print one snapshot; exit as `exit_code` says."""
    if not 0 <= args.wait <= 86400:
        raise UsageError(f"--wait {args.wait:g}: wants 0 to 86400 seconds")
    settings = resolved_settings(args)
    rules = alert_rules(settings)
    picture = look(one_target(settings), args.wait, WINDOWS_S[settings["window"].value], rules)
    print_snapshot(picture, as_json=args.json)
    return exit_code(picture)


def look(target: Target, wait_s: float, window_s: float, rules: Sequence[Rule]) -> Picture:
    """Watch the target for `wait_s` seconds, or until every endpoint has answered once, and return the picture."""
    from specdash.collect.hub import Hub
    from specdash.core.readings import Source
    from specdash.insight.state import TargetState

    state = TargetState(target, rules=rules)
    awaited = {Source.HEALTH, Source.PROPS, Source.METRICS, Source.SLOTS, Source.HOST, Source.GPU, Source.APPLIES}
    if target.log is not None:
        awaited.add(Source.LOG)
    if target.proxy_url is not None:
        awaited.add(Source.PROXY)
    if target.proxy_log is not None:
        awaited.add(Source.PROXY_EVENTS)
    started = time.monotonic()
    with Hub(target, [state.apply], on_target=state.retarget):
        while time.monotonic() - started < wait_s:
            time.sleep(min(0.1, max(0.0, wait_s - (time.monotonic() - started))))
        while not (awaited <= state.latest.keys() and state.has_caught_up) and (
            time.monotonic() - started < wait_s + FIRST_LOOK_S
        ):
            time.sleep(0.005)
        return state.picture(time.monotonic(), time.time(), window_s)


def print_snapshot(picture: Picture, *, as_json: bool) -> None:
    """Print the picture to standard output."""
    from specdash.export import snapshot

    if as_json:
        print(json.dumps(snapshot.to_json(picture), indent=1, allow_nan=False))
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
