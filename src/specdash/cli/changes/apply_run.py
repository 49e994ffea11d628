"""What apply and rollback do alike: plan, show, ask, run, report."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from typing import TYPE_CHECKING

from specdash.backend.journal import describe, unfinished
from specdash.cli.options import add_own_machine, add_settings, resolved_settings, say
from specdash.cli.signals import cancelled_by_signals, change_begun
from specdash.control.change import Apply
from specdash.control.deployment import find_deployment
from specdash.control.plan import ApplyOptions, preview
from specdash.core.changes import ApplyOutcome, ApplyProgress, StepState
from specdash.core.config import APPLY_SETTINGS, SERVICE_SETTINGS
from specdash.core.errors import ExitCode, SpecdashError, UsageError
from specdash.core.structs import json_of
from specdash.system.text import percent

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from specdash.control.deployment import Deployment
    from specdash.control.plan import ApplyPlan
    from specdash.core.changes import ApplyRecord


# What apply and rollback print: the plan, the steps as they come, and the end.

_MARKS = {StepState.DONE: "ok", StepState.FAILED: "FAILED", StepState.SKIPPED: "--", StepState.RUNNING: "..."}
_NOTHING_CHANGED = (ExitCode.CONFLICT, ExitCode.SERVICE, ExitCode.NOT_WRITTEN)


def plan_lines(plan: ApplyPlan, env: Mapping[str, str]) -> list[str]:
    """The plan as text."""
    lines: list[str] = []
    for edit in preview(plan, env):
        lines += [f"{edit['role']}: {edit['action']}", *(f"  {line}" for line in edit["diff"])]
        if edit["arguments"]:
            lines += ["  engine arguments", *(f"    {line}" for line in edit["arguments"])]
        lines += [f"  {key}: {words}" for key, words in edit["readers"].items()]
        lines.append("")
    lines += [f"{finding.severity}: {finding.line}" for finding in plan.findings]
    if plan.refused:
        lines.append("refused: nothing will be changed until the errors are fixed")
    return lines


def confirm(question: str, yes: bool, what: str) -> bool:
    """Whether to go on: by `--yes`, or asked on the terminal. Raises `UsageError` where there is none."""
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{what} needs --yes when there is no terminal to ask on; --dry-run only shows the plan")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


class StepPrinter:
    """Writes one line per step to stderr; on a terminal the running one is kept up to date in place."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._open = False
        self._lock = threading.Lock()

    def __call__(self, progress: ApplyProgress) -> None:
        """Take one report."""
        running = progress.state is StepState.RUNNING
        share = f" {percent(progress.fraction)}" if progress.fraction is not None else ""
        took = f"{progress.seconds:7.2f} s" if progress.state is not StepState.SKIPPED else " " * 9
        mark = _MARKS[progress.state]
        text = f"  {progress.step:<12} {mark:<6} {took}  {progress.detail}{share}".rstrip()
        with self._lock:
            if self._live:
                width = shutil.get_terminal_size().columns
                print(f"\r\x1b[K{text[: max(1, width - 1)]}", end="" if running else "\n", file=sys.stderr, flush=True)
                self._open = running
            elif not running:
                print(text, file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """A line between steps."""
        with self._lock:
            print(("\r\x1b[K" if self._open else "") + text, file=sys.stderr, flush=True)
            self._open = False


def report(record: ApplyRecord, *, as_json: bool, shown: ApplyPlan | None = None) -> None:
    """The end of it: the record on stdout as JSON, or a few lines of text, without what `shown` has already."""
    if as_json:
        print(json.dumps(json_of(record), sort_keys=True))
        return
    seen = {finding.line for finding in shown.findings} if shown is not None else set()
    for warning in (warning for warning in record.warnings if warning not in seen):
        say(f"warning: {warning}")
    what, where = f"{record.kind} {record.number}", f" at {record.failed_step}" if record.failed_step else ""
    if record.outcome is ApplyOutcome.APPLIED:
        down = "" if record.downtime_s is None else f", the backend was away for {record.downtime_s:.2f} s"
        print(f"applied: {describe(record.changes)} ({what}{down})")
        return
    if shown is not None and shown.refused:
        say(f"{what} refused: nothing was changed")
        return
    for line in record.log_lines:
        print(f"  | {line}", file=sys.stderr)
    ending = {
        ApplyOutcome.REFUSED: f"refused{where}, nothing was touched",
        ApplyOutcome.ROLLED_BACK: f"failed{where} and was rolled back, everything is as it was before",
    }.get(record.outcome, f"FAILED{where}, and so did undoing it")
    say(f"{what} {ending}: {record.reason}")


def exit_code(record: ApplyRecord, error: SpecdashError | None, *, changed: bool) -> ExitCode:
    """The exit code of an apply or a rollback."""
    if record.outcome is ApplyOutcome.APPLIED:
        return ExitCode.OK
    if record.outcome is ApplyOutcome.ROLLBACK_FAILED:
        return ExitCode.ROLLBACK_FAILED
    if record.outcome is ApplyOutcome.REFUSED:
        return error.exit_code if error is not None else ExitCode.REFUSED
    if error is not None and not changed and error.exit_code in _NOTHING_CHANGED:
        return error.exit_code
    return ExitCode.ROLLED_BACK


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that apply and rollback share."""
    parser.add_argument(
        "--dry-run", action="store_true", help="show the plan and exit; exit code 7 if it would be refused"
    )
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")
    parser.add_argument(
        "--force", action="store_true", help="cut off requests that are still running after the drain timeout"
    )
    parser.add_argument("--json", action="store_true", help="print its record as one JSON object")
    add_own_machine(parser)
    add_settings(parser, (*APPLY_SETTINGS, *SERVICE_SETTINGS))


def deployment_of(args: argparse.Namespace) -> tuple[Deployment, ApplyOptions]:
    """The services that the settings name or that are found, and how patient to be with them."""
    settings = resolved_settings(args)
    options = ApplyOptions(
        drain_timeout_s=settings["drain_timeout"].value,
        health_timeout_s=settings["health_timeout"].value,
        settle_s=settings["settle_time"].value,
        force=bool(getattr(args, "force", False)),
    )
    return find_deployment(settings), options


def carry_out(args: argparse.Namespace, plan: ApplyPlan, options: ApplyOptions) -> int:
    """Show the plan, ask, do it, and say how it ended; the exit code. Raises `ConflictError` for an env file that is
    not the version that was expected."""
    if not plan.edits:
        unchanged = "nothing to change: everything is already as requested"
        print(json.dumps({"outcome": "unchanged"}) if args.json else unchanged)
        return ExitCode.OK
    _show(plan, args)
    if args.dry_run:
        return ExitCode.REFUSED if plan.refused else ExitCode.OK
    printer = StepPrinter()
    if not plan.refused and not confirm("Apply this?", args.yes, "apply"):
        printer.say("nothing was changed")
        return ExitCode.OK
    apply = Apply(plan, options, printer, os.environ)
    with cancelled_by_signals(apply):
        change_begun.set()
        record = apply.run()
        report(record, as_json=args.json, shown=plan)
    return exit_code(record, apply.error, changed=apply.changed)


def _show(plan: ApplyPlan, args: argparse.Namespace) -> None:
    """Print the plan: on stdout, or on stderr where stdout is for the record."""
    if not (args.json and args.dry_run):
        print("\n".join(plan_lines(plan, os.environ)), file=sys.stderr if args.json else sys.stdout, flush=True)
    else:
        document = {
            "refused": plan.refused,
            "changes": [json_of(change.masked) for change in plan.changes],
            "edits": list(preview(plan, os.environ)),
            "findings": json_of(plan.findings),
        }
        print(json.dumps(document, indent=1))
    if args.dry_run and (pending := unfinished(os.environ)) is not None:
        # A change whose process died is put back before the one that is planned here.
        print(
            f"note: {pending.what} was cut short: the next start of the backend, or the next change, puts the settings "
            "from before back first",
            file=sys.stderr,
        )
