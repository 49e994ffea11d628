"""`specdash check`: the alert rules judged once or for a while, for cron, CI and monitors (docs/scripting.md).

Exit codes are those of monitoring plugins, also for errors: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN.
"""

from __future__ import annotations

import time
import traceback
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from specdash.cli.options import add_settings, alert_rules, one_target, print_answer, resolved_settings
from specdash.core.config import RULE_SETTINGS, TARGET_SETTINGS
from specdash.core.errors import SpecdashError, UsageError
from specdash.core.records import AlertSeverity

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
LONGEST_S = 86400.0


def configure(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, (*TARGET_SETTINGS, *RULE_SETTINGS))
    parser.add_argument(
        "--fail-on",
        choices=[str(severity) for severity in AlertSeverity],
        default=str(AlertSeverity.WARNING),
        metavar="SEVERITY",
        help="lowest severity that counts as a failure: notice, warning (default) or critical",
    )
    parser.add_argument(
        "--for",
        dest="watch",
        metavar="TIME",
        help="watch for this long (90, 60s, 2m), as the dashboard would; alerts that have ended count too",
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/scripting.md)")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="print evidence, runbooks, and which rules could not be checked"
    )
    parser.add_argument("--list-rules", action="store_true", help="print the rules with their current limits and exit")


def run(args: argparse.Namespace) -> int:
    from specdash.export import check_report

    try:
        settings = resolved_settings(args)
        rules = alert_rules(settings)
        if args.list_rules:
            document, text = check_report.catalogue_json(rules), check_report.catalogue_text(rules)
            print_answer(document, text, as_json=args.json)
            return 0
        watch_s = _seconds(args.watch) if args.watch is not None else None
        fail_on = AlertSeverity(args.fail_on)
        began = time.monotonic()
        if watch_s is None:
            picture = _look(one_target(settings), _at_once(rules), ONCE_S, ONCE_INTERVAL_S)
        else:
            picture = _look(one_target(settings), rules, watch_s, 1.0)
        took = time.monotonic() - began
        result = check_report.verdict(picture, rules, fail_on, took, ended=watch_s is not None)
        text = check_report.report(result, rules, verbose=args.verbose)
        print_answer(check_report.as_json(result, rules), text, as_json=args.json)
        return int(result.status)
    except SpecdashError as error:
        return on_error(error, as_json=args.json)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - a fault of specdash must not look like one of the server's
        traceback.print_exc()
        return on_error(error, as_json=args.json)


def on_error(error: Exception, *, as_json: bool = False) -> int:
    """Say on standard output, where monitors read, why nothing could be judged."""
    from specdash.export.check_report import SCHEMA, CheckStatus, one_line

    words = one_line(str(error) or type(error).__name__)
    unknown = CheckStatus.UNKNOWN
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "status": unknown.name,
        "exit_code": int(unknown),
        "line": words,
    }
    print_answer(document, f"{unknown.name} - {words}", as_json=as_json)
    return int(unknown)


def _look(target: Target, rules: Sequence[Rule], watch_s: float, interval_s: float) -> Picture:
    from specdash.cli.options import look
    from specdash.insight.state import JUDGED_WINDOW_S

    return look(target, rules, JUDGED_WINDOW_S, after_s=watch_s, interval_s=interval_s)


def _at_once(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    return tuple(replace(rule, raise_after_s=min(rule.raise_after_s, ONCE_RAISE_AFTER_S)) for rule in rules)


def _seconds(text: str) -> float:
    from specdash.core.moments import parse_length

    try:
        seconds = float(text)
    except ValueError:
        seconds = parse_length(text)
    if not 1 <= seconds <= LONGEST_S:
        raise UsageError(f"--for {text}: must be 1 second to 1 day")
    return seconds
