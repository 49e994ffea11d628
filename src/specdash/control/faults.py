"""The points at which an apply can be cut short, as data: tests kill specdash at each of them and look what is left.

`SPECDASH_FAULT=<point>` makes the process kill itself with SIGKILL there; see docs/apply.md.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from specdash.core.applies import STEPS, Step

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VARIABLE = "SPECDASH_FAULT"
BACKUP_SAVED, BACKUP_JOURNAL = "backup:saved", "backup:journal"
WRITE_TEMP, WRITE_RENAMED = "write:temp", "write:renamed"
RESTART_ASKED = "restart:asked"
RECORD_APPENDED = "record:appended"
ROLLBACK_BEFORE, ROLLBACK_TEMP, ROLLBACK_WRITTEN = "rollback:before", "rollback:temp", "rollback:written"
ROLLBACK_RESTARTED, ROLLBACK_VERIFIED = "rollback:restarted", "rollback:verified"
ROLLBACK_RESUMED, ROLLBACK_RECORDED = "rollback:resumed", "rollback:recorded"
RECOVER_BEFORE, RECOVER_ADOPTED = "recover:before", "recover:adopted"


def before(step: Step) -> str:
    """The point between a step's announcement and its first action."""
    return f"{step}:before"


def after(step: Step) -> str:
    """The point after a step's last action."""
    return f"{step}:after"


FORWARD_POINTS: tuple[str, ...] = (
    *(before(step) for step in STEPS),
    BACKUP_SAVED,
    BACKUP_JOURNAL,
    WRITE_TEMP,
    WRITE_RENAMED,
    RESTART_ASKED,
    RECORD_APPENDED,
    *(after(step) for step in STEPS),
)
"""Points of an apply that goes well."""
ROLLBACK_POINTS: tuple[str, ...] = (
    ROLLBACK_BEFORE,
    ROLLBACK_TEMP,
    ROLLBACK_WRITTEN,
    ROLLBACK_RESTARTED,
    ROLLBACK_VERIFIED,
    ROLLBACK_RESUMED,
    ROLLBACK_RECORDED,
)
"""Points of undoing one, by the apply itself or by a recovery."""
RECOVER_POINTS: tuple[str, ...] = (RECOVER_BEFORE, RECOVER_ADOPTED)
"""Points of a recovery, before it goes on as a rollback or as an apply."""
POINTS: tuple[str, ...] = (*FORWARD_POINTS, *ROLLBACK_POINTS, *RECOVER_POINTS)


def reach(point: str) -> None:
    """Say that `point` is reached: the end of this process, when it is the one that was asked for."""
    if os.environ.get(VARIABLE) == point:
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def at_rename(target: Path, point: str) -> Iterator[None]:
    """Reach `point` when a temporary file is about to take the place of `target`: whole, and not yet in force."""
    if os.environ.get(VARIABLE) == point:
        wanted = os.path.realpath(target)

        def watch(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "os.rename" and os.path.realpath(os.fsdecode(arguments[1])) == wanted:
                reach(point)

        sys.addaudithook(watch)
    yield
