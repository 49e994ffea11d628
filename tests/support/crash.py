"""`specdash` that is killed, as by `kill -9`, at one point of an apply, of a rollback or of a recovery.

`python -m support.crash POINT WORDS` is `specdash WORDS` until then. The program knows nothing of it: the points are
calls of its functions, and the renames of env files that the interpreter's audit events tell of.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.cli.main import entry
from specdash.control.apply import forward, undo
from specdash.control.apply.journal import JournalFile
from specdash.control.apply.steps import Steps
from specdash.control.env_store import Backups
from specdash.control.services.supervisor import SupervisedManager
from specdash.control.services.supervisor_client import SupervisorClient
from specdash.control.services.systemd import SystemdManager
from specdash.core.changes import STEPS, ApplyStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FORWARD_POINTS: tuple[str, ...] = (
    *(f"{step}:before" for step in STEPS),
    *("backup:saved", "backup:journal", "write:temp", "write:renamed", "restart:asked", "record:appended"),
    "record:after",
)
"""Those of an apply that goes well. What is killed after a step has done no more than before the next: nothing."""
ROLLBACK_POINTS = tuple(
    f"rollback:{point}" for point in ("before", "temp", "written", "restarted", "verified", "after", "recorded")
)
"""Those of undoing one."""
RECOVER_POINTS = ("recover:before", "recover:adopted")
"""Those of a recovery before it goes on as either."""
_HANGS_S = 120
_MANAGERS = (SystemdManager, SupervisedManager, SupervisorClient)
_CALLS: dict[str, tuple[tuple[Any, str], ...]] = {
    "backup:saved": ((Backups, "save"),),
    "backup:journal": ((JournalFile, "write"),),
    "write:renamed": ((forward, "replace_env"),),
    "restart:asked": (*((manager, call) for manager in _MANAGERS for call in ("start", "restart", "reload")),),
    "record:appended": ((undo, "append_record"),),
    "rollback:written": ((undo, "write_edit"),),
    "rollback:restarted": ((undo, "start_backend"),),
    "rollback:recorded": ((undo, "append_record"),),
    "recover:before": ((undo, "read_records"),),
    "recover:adopted": ((JournalFile, "write"),),
}
"""The calls that have just returned at a point; `recover:before` is one that has read, and done nothing yet."""


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str) -> None:
    """From now on this process dies at `point`, which is one of those above."""
    step, _, place = point.partition(":")
    for owner, name in _CALLS.get(point, ()):
        setattr(owner, name, _dies_after(getattr(owner, name)))
    if point == "rollback:verified":
        # The backend is as it was: what is written down before anything passes again.
        JournalFile.write = _dies_after(  # type: ignore[method-assign]
            JournalFile.write, lambda journal: journal.step is ApplyStep.ROLLBACK
        )
    _watch_steps(step, place)


def dies_at(point: str, do: Callable[[], object]) -> None:
    """Do it in a process forked from this one, which has to die at `point`."""
    with warnings.catch_warnings():
        # What other threads of this process hold is the test runner's, and nothing that is done here waits for it.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_HANGS_S)
            arm(point)
            do()
        finally:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, f"{point} was not reached"


def _dies_after(
    call: Callable[..., Any], when: Callable[[Any], bool] = lambda _: True, *, whole: bool = False
) -> Callable[..., Any]:
    """`when` looks at the last argument, or at the `whole` of them."""

    def dying(*arguments: Any, **named: Any) -> Any:
        result = call(*arguments, **named)
        if when(arguments if whole else arguments[-1] if arguments else None):
            _die()
        return result

    return dying


def _watch_steps(wanted: str, place: str) -> None:
    """Die where the step begins or ends, or while it puts a whole new env file in the place of the old one."""
    original = Steps.step

    @contextmanager
    def watched(self: Steps, step: ApplyStep, detail: str = "") -> Iterator[None]:
        with original(self, step, detail):
            if step == wanted and place == "before":
                _die()
            if step == wanted and place == "temp":
                sys.addaudithook(_die_at_rename)
            yield
            if step == wanted and place == "after":
                _die()

    Steps.step = watched  # type: ignore[method-assign]


def _die_at_rename(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "os.rename" and Path(os.fsdecode(arguments[1])).suffix == ".env":
        _die()


if __name__ == "__main__":
    arm(sys.argv.pop(1))
    entry()
