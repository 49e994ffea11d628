"""Checks that behave well and badly, for the tests of the runner."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from gpu.report import Check

if TYPE_CHECKING:
    from gpu.kit import Kit
    from gpu.report import Report


def all_checks() -> tuple[Check, ...]:
    return (
        Check("sound", "A figure and a statement", _sound, 30.0),
        Check("wrong", "A statement that does not hold", _wrong, 30.0),
        Check("raises", "An error", _raises, 30.0),
        Check("endless", "Never ends, and starts what outlives it", _endless, 2.0),
        Check("killed", "Dies half-way", _killed, 30.0),
        Check("card", "Needs a GPU", _sound, 30.0, needs_gpu=True),
        Check("last", "Comes after all of them", _sound, 30.0),
    )


def _sound(kit: Kit, report: Report) -> None:
    report.figure("decode", 6.9, "ms a token")
    report.judge("counters agree", 3 == 3, 3, 3)
    with (kit.work / "runs.txt").open("a") as runs:
        runs.write(f"{report.name}\n")


def _wrong(kit: Kit, report: Report) -> None:
    report.judge("memory agrees with nvidia-smi", False, 5, 7, "MiB")


def _raises(kit: Kit, report: Report) -> None:
    report.passed("the first half holds")
    raise RuntimeError("llama-server ended with 1")


def _endless(kit: Kit, report: Report) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    (kit.work / "child.pid").write_text(str(child.pid))
    report.passed("it got as far as this")
    time.sleep(600)


def _killed(kit: Kit, report: Report) -> None:
    report.figure("temperature", 41.0, "°C")
    os.kill(os.getpid(), 9)
