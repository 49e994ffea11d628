"""What apply, rollback and recover print: the plan, the steps as they come, and the end."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any

from specdash.control.apply_preview import preview
from specdash.control.journal import describe
from specdash.core.applies import ApplyKind, Outcome, Progress, StepState
from specdash.core.errors import ExitCode, SpecdashError, UsageError
from specdash.core.findings import Severity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.control.apply import ApplyPlan
    from specdash.core.applies import ApplyRecord

_MARKS = {StepState.DONE: "ok", StepState.FAILED: "FAILED", StepState.SKIPPED: "--", StepState.RUNNING: "..."}
_NOTHING_CHANGED = (ExitCode.CONFLICT, ExitCode.SERVICE, ExitCode.NOT_WRITTEN)


def plan_lines(plan: ApplyPlan, env: Mapping[str, str]) -> list[str]:
    """The plan as text."""
    lines: list[str] = []
    for one in preview(plan, env):
        lines += [f"{one.role}: {one.action}", *(f"  {line}" for line in one.diff)]
        if one.arguments:
            lines += ["  engine arguments", *(f"    {line}" for line in one.arguments)]
        lines += [f"  {key}: {words}" for key, words in one.readers]
        lines.append("")
    for finding in plan.findings:
        lines.append(f"{finding.severity}: {finding.line}")
    if any(one.severity is Severity.ERROR for one in plan.findings):
        lines.append("refused: nothing will be touched until the errors are mended")
    return lines


def plan_json(plan: ApplyPlan, env: Mapping[str, str]) -> dict[str, Any]:
    """The plan for `--dry-run --json`."""
    return {
        "refused": plan.refused,
        "changes": [
            {"role": str(one.role), "key": one.key, "before": one.shown[0], "after": one.shown[1]}
            for one in plan.changes
        ],
        "edits": [one.as_json() for one in preview(plan, env)],
        "findings": [one.as_json() for one in plan.findings],
    }


def confirm(question: str, yes: bool, what: str) -> bool:
    """Whether to go on: by `--yes`, or asked on the terminal. Raises `UsageError` where nobody can be asked."""
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{what} needs --yes where there is no terminal to ask on; --dry-run only shows the plan")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


class StepPrinter:
    """Writes one line per step to stderr; on a terminal the running one is kept up to date in place."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._open = False
        self._lock = threading.Lock()

    def __call__(self, progress: Progress) -> None:
        """Take one report."""
        if progress.state is StepState.RUNNING and not self._live:
            return
        text = _step_line(progress)
        with self._lock:
            if self._live:
                width = shutil.get_terminal_size().columns
                print(f"\r\x1b[K{text[: max(1, width - 1)]}", end="", file=self._stream)
                self._open = progress.state is StepState.RUNNING
                if not self._open:
                    print(file=self._stream)
            else:
                print(text, file=self._stream)
            self._stream.flush()

    def say(self, text: str) -> None:
        """A line between steps."""
        with self._lock:
            print(("\r\x1b[K" if self._live and self._open else "") + text, file=self._stream, flush=True)
            self._open = False


def _step_line(progress: Progress) -> str:
    percent = f" {progress.fraction:.0%}" if progress.fraction is not None else ""
    took = f"{progress.seconds:7.2f} s" if progress.state is not StepState.SKIPPED else " " * 9
    return f"  {progress.step:<12} {_MARKS[progress.state]:<6} {took}  {progress.detail}{percent}".rstrip()


def report(record: ApplyRecord, *, as_json: bool) -> None:
    """The end of it: the record on stdout as JSON, or a few lines of text."""
    if as_json:
        print(json.dumps(asdict(record), sort_keys=True))
        return
    for warning in record.warnings:
        print(f"specdash: warning: {warning}", file=sys.stderr)
    if record.outcome is Outcome.APPLIED:
        down = "" if record.downtime_s is None else f", the backend was away for {record.downtime_s:.2f} s"
        print(f"applied: {describe(record.changes)} ({record.kind} {record.number}{down})")
        return
    for line in record.log_lines:
        print(f"  | {line}", file=sys.stderr)
    print(f"specdash: {ending(record)}", file=sys.stderr)


def ending(record: ApplyRecord) -> str:
    """How an apply ended that did not go well, in a line."""
    where = f" at {record.failed_step}" if record.failed_step is not None else ""
    what = f"{record.kind} {record.number}"
    if record.outcome is Outcome.REFUSED:
        return f"{what} refused{where}, nothing was touched: {record.reason}"
    if record.outcome is Outcome.ROLLED_BACK:
        return f"{what} failed{where} and was rolled back, everything is as it was before: {record.reason}"
    return f"{what} FAILED{where}, and so did undoing it: {record.reason}"


def exit_code(record: ApplyRecord, error: SpecdashError | None, *, changed: bool) -> ExitCode:
    """The exit code of an apply or a rollback."""
    if record.outcome is Outcome.APPLIED:
        return ExitCode.OK
    if record.outcome is Outcome.ROLLBACK_FAILED:
        return ExitCode.ROLLBACK_FAILED
    if record.outcome is Outcome.REFUSED:
        return error.exit_code if error is not None else ExitCode.REFUSED
    if error is not None and not changed and error.exit_code in _NOTHING_CHANGED:
        return error.exit_code
    return ExitCode.ROLLED_BACK


def recovered_code(record: ApplyRecord, *, finish: bool) -> ExitCode:
    """The exit code of a recovery: 0 when it ended as asked."""
    if record.outcome is Outcome.ROLLBACK_FAILED:
        return ExitCode.ROLLBACK_FAILED
    if record.outcome is Outcome.ROLLED_BACK and finish and record.kind is ApplyKind.RECOVER:
        return ExitCode.ROLLED_BACK
    return ExitCode.OK
