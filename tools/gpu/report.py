"""What a check has found, written after every line of it: a run that is cut off still tells what it saw."""

from __future__ import annotations

import contextlib
import json
import time
import traceback
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gpu.kit import Kit


class Result(StrEnum):
    """How a finding, or a whole check, came out."""

    PASSED = "passed"
    FAILED = "failed"
    FIGURE = "figure"
    """A measured value that nothing is demanded of."""
    SKIPPED = "skipped"
    """It could not be asked here; the note says why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence about specdash on this machine, and what was measured."""

    what: str
    result: Result
    measured: Any = None
    expected: Any = None
    unit: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to find out. `run` writes into the report; what it raises is a failure of the check."""

    name: str
    title: str
    run: Callable[[Kit, Report], None]
    limit_s: float
    """It is ended, with all that it started, after that time."""
    needs_gpu: bool = False
    """Without a GPU it is skipped as a whole; one that can do part of its work says so by itself."""


@dataclass(slots=True)
class Report:
    """The findings of one check; every call writes them to `file`."""

    file: Path
    name: str
    title: str
    findings: list[Finding] = field(default_factory=list)
    ended: bool = False
    """Whether the check came to its own end; a report without it was cut off."""
    seconds: float = 0.0
    _started: float = field(default_factory=time.monotonic)

    def passed(self, what: str, measured: Any = None, expected: Any = None, unit: str = "", note: str = "") -> None:
        """`what` holds."""
        self._add(Finding(what, Result.PASSED, measured, expected, unit, note))

    def failed(self, what: str, measured: Any = None, expected: Any = None, unit: str = "", note: str = "") -> None:
        """`what` does not hold."""
        self._add(Finding(what, Result.FAILED, measured, expected, unit, note))

    def judge(
        self, what: str, holds: bool, measured: Any = None, expected: Any = None, unit: str = "", note: str = ""
    ) -> bool:
        """`what` holds, or not; the answer is handed back."""
        (self.passed if holds else self.failed)(what, measured, expected, unit, note)
        return holds

    def figure(self, what: str, measured: Any, unit: str = "", note: str = "") -> None:
        """A value for the table."""
        self._add(Finding(what, Result.FIGURE, measured, None, unit, note))

    def skipped(self, what: str, why: str) -> None:
        """`what` cannot be asked here."""
        self._add(Finding(what, Result.SKIPPED, note=why))

    @contextlib.contextmanager
    def part(self, what: str) -> Iterator[None]:
        """A part of the check: what is raised in it is a failure, and the check goes on with the next part."""
        try:
            yield
        except Exception:  # noqa: BLE001 - whatever it stumbles over is a finding
            self.failed(f"{what} came to its end", note=traceback.format_exc())

    def end(self) -> None:
        """The check has come to its end."""
        self.ended = True
        self._write()

    def result(self) -> Result:
        """Of the whole: failed with any failure, skipped where nothing was asked."""
        kinds = {finding.result for finding in self.findings}
        if Result.FAILED in kinds or not self.ended:
            return Result.FAILED
        return Result.SKIPPED if kinds <= {Result.SKIPPED} else Result.PASSED

    def _add(self, finding: Finding) -> None:
        self.findings.append(finding)
        self._write()

    def _write(self) -> None:
        self.seconds = round(time.monotonic() - self._started, 2)
        whole = {
            "name": self.name,
            "title": self.title,
            "result": self.result(),
            "ended": self.ended,
            "seconds": self.seconds,
            "findings": [asdict(finding) for finding in self.findings],
        }
        beside = self.file.with_suffix(".part")
        beside.write_text(json.dumps(whole, indent=1, default=str) + "\n", encoding="utf-8")
        beside.replace(self.file)
