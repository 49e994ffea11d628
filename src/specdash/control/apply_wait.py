"""Waits while one engine takes the other's place: looks often, and ends as soon as it is certain how it goes."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import psutil

from specdash.collect.discover import place
from specdash.control import verify
from specdash.control.apply_engine import Engine, age_s, listening_engine, owns_port, recorded_engine
from specdash.control.apply_logs import LogMark, last_line, last_lines, lines_since, mark, telling
from specdash.control.apply_steps import StepFailedError
from specdash.control.services import ServiceState
from specdash.core.observations import Health, HealthStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.backend.promise import Promise
    from specdash.control.apply_steps import Steps
    from specdash.control.services import ManagedService, ServiceStatus

LOOK_S = 0.012
"""Time between two looks: what passes between health and our seeing it is downtime."""
_STATUS_S = 0.2
_SAY_S = 0.2
_REFUSED = re.compile(r"specdash: reload refused(?: \(env \S+\))?: (.*)")
SWAP_S = 60.0
"""The longest a runner may plan a swap: it asks the new engine for its version and reads headers of models."""
_FOREIGN_S = 20.0
"""How long a healthy answer may come from a process that is none of the service's."""
_LAST_LINES = 30
_SHORT = 40
_LAST_WORDS_S = 0.3


class ReloadRefusedError(StepFailedError):
    """The runner keeps its engine: nothing was stopped."""


class Passage:
    """One change of engines of a backend service, seen from outside.

    `digest` is the wanted version of the env file and `promise` what that promises. `old` is the engine that served
    before, None when none did. Times are monotonic seconds.
    """

    def __init__(
        self,
        service: ManagedService,
        env: Mapping[str, str],
        steps: Steps,
        digest: str,
        promise: Promise,
        old: Engine | None,
    ) -> None:
        self.service = service
        self.steps = steps
        self.digest = digest
        self.promise = promise
        self.old = old
        self.told_at = self.last_old = time.monotonic()
        self.first_ok: float | None = None
        self.engine: Engine | None = None
        self._env = env
        self._marks = marks(promise, old)
        self._main: ServiceStatus | None = None
        self._by_record = service.reloads and (old is None or old.recorded)
        self._health: Health | None = None
        self._next_status = self._next_say = 0.0
        self._stranger_since: float | None = None

    def told(self) -> None:
        """The old engine is being told to stop from now on."""
        self.told_at = self.last_old = time.monotonic()

    def watch_main(self) -> None:
        """What the manager says now is how it should stay: a further restart is a crash."""
        self._main = self.service.status()

    def until_old_is_gone(self, limit: float = SWAP_S) -> None:
        """Wait until the runner has ended the old engine. Raises `StepFailedError` when it refuses, or does not."""
        deadline = time.monotonic() + limit
        while self.old is not None and self.old.alive:
            self._look()
            refusal = next((found for line in self.lines() if (found := _REFUSED.search(line))), None)
            if refusal is not None:
                raise ReloadRefusedError(f"the runner refused the new settings: {refusal.group(1)}", self.explained())
            self.check_service()
            if time.monotonic() > deadline:
                raise StepFailedError(f"the runner did not swap its engine within {limit:g} s", self.explained())
            self.steps.wait(LOOK_S)

    def until_healthy(self, limit: float) -> Engine:
        """Wait for a healthy answer of the wanted version. Raises `StepFailedError` as soon as it cannot come."""
        deadline = time.monotonic() + limit
        while True:
            self._look()
            if self.first_ok is not None:
                found = self._identified()
                if found is not None:
                    self.engine = found
                    return found
            self.check_service()
            if time.monotonic() > deadline:
                raise StepFailedError(f"not healthy within {limit:g} s ({self._state_words()})", self.explained())
            self._say()
            self.steps.wait(LOOK_S)

    @property
    def down_since(self) -> float:
        """The old engine's last sign of life."""
        return max(self.told_at, self.last_old)

    @property
    def load_s(self) -> float | None:
        """What the new engine itself took, from its start to its first healthy answer."""
        age = age_s(self.engine.pid) if self.engine is not None else None
        if age is None or self.first_ok is None:
            return None
        return max(0.0, age - (time.monotonic() - self.first_ok))

    def lines(self) -> list[str]:
        """What the service's engine has logged since this began."""
        return [line for one in self._marks for line in lines_since(one)]

    def explained(self) -> tuple[str, ...]:
        """The lines that say why, from the engine's log, else from the manager's."""
        lines = self.lines()
        told = telling(lines)
        if told:
            return told
        written = list(self.service.manager.log_tail(self.service.name, _LAST_LINES))
        return telling(written) or last_lines(written or lines)

    def last_words(self) -> tuple[str, ...]:
        """The same of a server that may just have died: its runner needs a moment to write the end of it."""
        if self.engine is None or not self.engine.alive:
            time.sleep(_LAST_WORDS_S)
        return self.explained()

    def _look(self) -> None:
        """Ask for health once, and note whose answer it was."""
        url = self.engine.url if self.engine is not None else self.promise.url
        if self.engine is None and self._by_record:
            fresh = self._recorded()
            url = fresh.url if fresh is not None else url
        old_lives = self.old is not None and self.old.alive
        self._health = verify.health(url)
        now = time.monotonic()
        if self._health is None or self._health.status is not HealthStatus.OK:
            self.first_ok = None
        elif old_lives and self.old is not None and place(self.old.url) == place(url):
            self.last_old, self.first_ok = now, None
        elif self.first_ok is None:
            self.first_ok = now

    def _recorded(self) -> Engine | None:
        found = recorded_engine(self.service, self._env)
        if found is None or found.digest != self.digest or self._is_old(found):
            return None
        return found

    def _is_old(self, found: Engine) -> bool:
        return self.old is not None and self.old.alive and found.pid == self.old.pid

    def _identified(self) -> Engine | None:
        """The engine that gave the healthy answer, when it is the service's own and of the wanted version."""
        if self._by_record:
            found = self._recorded()
        else:
            status = self.service.status()
            found = listening_engine(status.pid, self.promise.url) if status.pid is not None else None
            if found is not None and (self._is_old(found) or place(found.url) != place(self.promise.url)):
                found = None
        if found is not None and owns_port(found) is not False:
            return found
        now = time.monotonic()
        self._stranger_since = self._stranger_since or now
        if now - self._stranger_since > _FOREIGN_S:
            hint = "; is its XDG_STATE_HOME ours?" if self._by_record else ""
            raise StepFailedError(
                f"{self.promise.url} is answered, but by no process of {self.service.name} with these settings{hint}",
                self.explained(),
            )
        return None

    def check_service(self) -> None:
        """Raise `StepFailedError` as soon as the service's process has ended, whatever its manager means to do next."""
        main = self._main
        now = time.monotonic()
        gone = main is not None and main.pid is not None and not _lives(main.pid)
        if now < self._next_status and not gone:
            return
        self._next_status = now + _STATUS_S
        status = self.service.status()
        what = failure(main, status)
        if what is not None:
            lines = self.explained()
            raise StepFailedError(f"{self.service.name} {what}{because(status, lines)}", lines)

    def _say(self) -> None:
        now = time.monotonic()
        if now < self._next_say:
            return
        self._next_say = now + _SAY_S
        words = [self._state_words(), last_line(self.lines())]
        self.steps.say(": ".join(word for word in words if word), self._health.progress if self._health else None)

    def _state_words(self) -> str:
        if self._health is None:
            return "no answer yet"
        if self._health.status is HealthStatus.LOADING:
            return "loading"
        if self._health.status is HealthStatus.OK:
            return "answers, not identified yet"
        return self._health.detail or "unhealthy"


def failure(before: ServiceStatus | None, now: ServiceStatus) -> str | None:
    """What became of a service that should run on as it did `before`, None while it does."""
    if now.state is ServiceState.FAILED:
        return "failed"
    if now.state is ServiceState.WAITING:
        return "ended, and is about to be restarted by its manager (crash loop)"
    if now.state is ServiceState.MISSING:
        return "is not known to its manager any more"
    if now.state in (ServiceState.STOPPED, ServiceState.STOPPING):
        return "has stopped"
    if before is not None and now.restarts > before.restarts:
        return "ended, and was restarted by its manager (crash loop)"
    if before is not None and None not in (before.pid, now.pid) and before.pid != now.pid:
        return "ended, and runs again as another process"
    return None


def marks(promise: Promise, old: Engine | None) -> tuple[LogMark, ...]:
    """The ends of the logs that the old and the new engine write to."""
    paths = dict.fromkeys(path for path in (old.log if old is not None else None, promise.log) if path is not None)
    return tuple(found for path in paths if (found := mark(path)) is not None)


def because(status: ServiceStatus, lines: tuple[str, ...]) -> str:
    """Why a service ended, to be appended to the words that say it did."""
    last = lines[-1] if lines else ""
    # The supervisor quotes the log itself, systemd gives the exit code alone.
    said = [status.detail, *([last] if last not in status.detail and len(status.detail) < _SHORT else [])]
    words = ": ".join(one for one in said if one)
    return f": {words}" if words else ""


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
