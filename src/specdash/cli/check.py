"""`specdash check`: the alert rules judged once or for a while, for cron, CI and monitors (docs/check.md).

Exit codes are those of monitoring plugins, also for errors: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN.
"""

from __future__ import annotations

import json
import time
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING

from specdash.cli.options import add_settings, alert_rules, one_target, resolved_settings
from specdash.core.alerts import AlertSeverity
from specdash.core.config import RULE_SETTINGS, TARGET_SETTINGS
from specdash.core.errors import SpecdashError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from specdash.core.target import Target
    from specdash.insight.picture import Picture
    from specdash.insight.rules.catalogue import Rule

ONCE_S = 4.0
"""How long a single check looks: rates and hangs need several looks."""
ONCE_INTERVAL_S = 0.5
ONCE_RAISE_AFTER_S = 1.5
"""In a single check no symptom must last longer than this; with --for each lasts as long as its rule says."""
FIRST_LOOK_S = 5.0
"""How long the first answers of all endpoints may take."""
LONGEST_S = 86400.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_settings(parser, (*TARGET_SETTINGS, *RULE_SETTINGS))
    parser.add_argument(
        "--fail-on",
        choices=[str(severity) for severity in AlertSeverity],
        default=str(AlertSeverity.WARNING),
        metavar="SEVERITY",
        help="mildest alert that is a failure: notice, warning (default) or critical",
    )
    parser.add_argument(
        "--for",
        dest="watch",
        metavar="TIME",
        help="watch for so long (90, 60s, 2m) with the rules' own hysteresis; alerts that are over count too",
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/check.md)")
    parser.add_argument("-v", "--verbose", action="store_true", help="print evidence, runbook, and what was not judged")
    parser.add_argument("--list-rules", action="store_true", help="print the rules with the limits in force, and end")


def run(args: argparse.Namespace) -> int:
    """Judge and print."""
    from specdash.export import check_report

    try:
        settings = resolved_settings(args)
        rules = alert_rules(settings)
        if args.list_rules:
            told = json.dumps(check_report.catalogue_json(rules), indent=1) if args.json else None
            print(told or check_report.catalogue_text(rules))
            return 0
        watch_s = _seconds(args.watch) if args.watch is not None else None
        fail_on = AlertSeverity(args.fail_on)
        judged = rules if watch_s is not None else _at_once(rules)
        began = time.monotonic()
        picture = watch(one_target(settings), judged, watch_s)
        took = time.monotonic() - began
        result = check_report.verdict(picture, rules, fail_on, took, ended=watch_s is not None)
        if args.json:
            print(json.dumps(check_report.as_json(result, rules), indent=1, allow_nan=False))
        else:
            print(check_report.report(result, rules, verbose=args.verbose))
        return int(result.status)
    except SpecdashError as error:
        return on_error(error, as_json=args.json)
    except Exception as error:  # noqa: BLE001 - a fault of ours must not look like one of the server's
        traceback.print_exc()
        return on_error(error, as_json=args.json)


def on_error(error: Exception, *, as_json: bool = False) -> int:
    """Say on standard output, where monitors read, why nothing could be judged."""
    from specdash.export.check_report import SCHEMA, CheckStatus, one_line

    words = one_line(str(error) or type(error).__name__)
    unknown = CheckStatus.UNKNOWN
    if as_json:
        document = {"schema": SCHEMA, "status": unknown.name, "exit_code": int(unknown), "line": words}
        print(json.dumps(document, indent=1))
    else:
        print(f"{unknown.name} - {words}")
    return int(unknown)


def watch(target: Target, rules: Sequence[Rule], watch_s: float | None) -> Picture:
    """The picture after watching a server for `watch_s` seconds, or for a moment."""
    from specdash.collect.hub import Hub
    from specdash.core.readings import Source
    from specdash.insight.alerting import JUDGED_WINDOW_S
    from specdash.insight.state import TargetState

    state = TargetState(target, rules=rules)
    awaited = {Source.TRIAL, Source.HEALTH, Source.PROPS, Source.METRICS, Source.SLOTS, Source.HOST, Source.GPU}
    if target.log is not None:
        awaited.add(Source.LOG)
    if target.proxy_url is not None:
        awaited.add(Source.PROXY)
    interval_s = ONCE_INTERVAL_S if watch_s is None else 1.0
    with Hub(target, [state.apply], interval_s=interval_s, on_target=state.retarget):
        ends = time.monotonic() + FIRST_LOOK_S
        while not awaited <= state.latest.keys() and time.monotonic() < ends:
            time.sleep(0.01)
        ends = time.monotonic() + (ONCE_S if watch_s is None else watch_s)
        while (left := ends - time.monotonic()) > 0:
            time.sleep(min(0.1, left))
        return state.picture(time.monotonic(), time.time(), JUDGED_WINDOW_S)


def _at_once(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    return tuple(
        replace(rule, spec=replace(rule.spec, raise_after_s=min(rule.spec.raise_after_s, ONCE_RAISE_AFTER_S)))
        for rule in rules
    )


def _seconds(text: str) -> float:
    from specdash.core.moments import parse_length

    try:
        seconds = float(text)
    except ValueError:
        seconds = parse_length(text)
    if not 1 <= seconds <= LONGEST_S:
        raise UsageError(f"--for {text}: wants 1 second to 1 day")
    return seconds
