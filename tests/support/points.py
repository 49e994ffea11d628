"""A backend's runner that a test stops, or kills as by `kill -9`, at one point of a change.

`with_points/sitecustomize.py` puts the points into a runner, which looks at each of them into the file `POINT` of its
home: `kill NAME` ends it there, once; `pause NAME` makes it wait there until the file is gone. The program is as it
is: the points are calls of its functions, and the renames of env files that audit events announce.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specdash.backend import journal, transaction, trial
from specdash.backend.env_store import Backups
from specdash.backend.session import BackendSession
from specdash.backend.steps import Steps
from specdash.core.changes import STEPS, ApplyStep
from support.waiting import until

WITH_POINTS = os.pathsep.join(map(str, (Path(__file__).parent / "with_points", Path(__file__).parents[1])))
POINT, REACHED = ".point", ".point-reached"
FORWARD = (
    *(f"{step}:before" for step in STEPS),
    *("backup:saved", "backup:journal", "write:temp", "write:renamed", "restart:asked", "record:appended"),
    "record:after",
)
"""Those of a change that goes well. After a step nothing more was done than before the next."""
ROLLBACK = tuple(f"rollback:{point}" for point in ("before", "temp", "written", "restarted", "after", "recorded"))
"""Those of undoing one."""
REPAIR = ("repair:before", "repair:written", "repair:recorded")
"""Those of a runner that finds a journal at its start."""
_PAUSE_S = 60.0
_doing = ""
"""`rollback` or `repair` while that is under way."""


class Points:
    """A test's hand on the runners of one home."""

    def __init__(self, home: Path) -> None:
        self._file, self._reached = home / POINT, home / REACHED

    def kill_at(self, name: str) -> None:
        """The runner dies there, the next time it comes by."""
        self._reached.unlink(missing_ok=True)
        self._file.write_text(f"kill {name}", encoding="utf-8")

    def pause_at(self, name: str) -> None:
        """The runner waits there."""
        self._reached.unlink(missing_ok=True)
        self._file.write_text(f"pause {name}", encoding="utf-8")

    @property
    def was_reached(self) -> bool:
        """Whether the runner came by."""
        return self._reached.exists()

    def wait(self, seconds: float = 60.0) -> None:
        """Until it was there."""
        until(self._reached.exists, seconds)

    def go_on(self) -> None:
        """Let it go, and pass everywhere from now on."""
        self._file.unlink(missing_ok=True)


def at(name: str) -> None:
    """The runner is here."""
    home = Path(os.environ["HOME"])
    try:
        what, _, wanted = (home / POINT).read_text(encoding="utf-8").partition(" ")
    except OSError:
        return
    if wanted != name:
        return
    (home / REACHED).touch()
    if what == "kill":
        (home / POINT).unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    deadline = time.monotonic() + _PAUSE_S
    while (home / POINT).exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def _after(owner: Any, name: str, point: Callable[[], str | None]) -> None:
    call = getattr(owner, name)

    def passing(*arguments: Any, **named: Any) -> Any:
        result = call(*arguments, **named)
        where = point()
        if where is not None:
            at(where)
        return result

    setattr(owner, name, passing)


def _watch_steps() -> None:
    original = Steps.step

    @contextmanager
    def watched(self: Steps, step: ApplyStep, detail: str = "") -> Iterator[None]:
        global _doing
        with original(self, step, detail):
            if _doing != "repair":
                _doing = "rollback" if step is ApplyStep.ROLLBACK else ""
                at(f"{step}:before")
            yield
            if _doing != "repair":
                at(f"{step}:after")

    Steps.step = watched  # type: ignore[method-assign]


def _at_rename(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "os.rename":
        return
    file = Path(os.fsdecode(arguments[1]))
    if file.suffix == ".env" and not file.stem.isdecimal():  # no backup
        at(f"{_doing or 'write'}:temp")


def _watch_repair(module: Any) -> None:
    undo_dead = module.undo_dead

    def repairing(*arguments: Any) -> Any:
        global _doing
        _doing = "repair"
        try:
            at("repair:before")
            return undo_dead(*arguments)
        finally:
            _doing = ""

    module.undo_dead = repairing


def arm() -> None:
    """Put the points into this process."""
    _watch_steps()
    _watch_repair(trial)
    sys.addaudithook(_at_rename)
    _after(Backups, "save", lambda: "backup:saved")
    _after(transaction, "write_note", lambda: "backup:journal")
    _after(journal, "replace_env", lambda: f"{_doing}:written" if _doing else "write:renamed")
    _after(BackendSession, "swap", lambda: "rollback:restarted" if _doing else "restart:asked")
    _after(transaction, "append_record", lambda: f"{_doing}:recorded" if _doing else "record:appended")
