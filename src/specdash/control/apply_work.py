"""What every part of a transaction shares: the journal and where it is kept, the services, the hold, the warnings."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specdash.control.apply_engine import running_engine, service_promise
from specdash.control.apply_logs import scrubbed
from specdash.control.journal import JournalFile, journal_file
from specdash.control.proxy_gate import ProxyGate, fronts
from specdash.core.applies import STEPS, Step
from specdash.core.changes import Role, is_secret
from specdash.core.errors import NotWrittenError, ServiceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.backend.promise import Promise
    from specdash.control.apply_engine import Engine
    from specdash.control.apply_steps import Steps
    from specdash.control.journal import Journal, JournalEdit
    from specdash.control.services import Deployment, ManagedService

_SHORTEST_SECRET = 4
_BEFORE_HEALTH = STEPS[: STEPS.index(Step.HEALTH)]


class Work:
    """One transaction under way, by the process that began it or by the one that recovers it."""

    def __init__(
        self, deployment: Deployment, journal: Journal, steps: Steps, env: Mapping[str, str] = os.environ
    ) -> None:
        self.journal = journal
        self.steps = steps
        self.env = env
        self.deployment = deployment
        self.file: JournalFile = journal_file(env)
        self.services = {edit.role: _service(deployment, edit) for edit in journal.edits}
        self.gate: ProxyGate | None = None
        self.downtime_s: float | None = None
        """How long the backend was away, all told; None as long as it never was."""
        self.down_since: float | None = None
        """Since when, in monotonic seconds, while it is."""
        self.warnings: list[str] = list(journal.warnings)

    @property
    def unsettled(self) -> bool:
        """Whether a restart was asked for whose end was not seen: what runs now need not be what runs in a second."""
        return self.journal.step in _BEFORE_HEALTH and Role.BACKEND in self.journal.touched

    def note(self, **changes: Any) -> None:
        """Write down what is about to be done. Raises `NotWrittenError`."""
        self.journal = replace(self.journal, **changes, warnings=tuple(self.warnings))
        self.file.write(self.journal)

    def note_if_possible(self, **changes: Any) -> None:
        """The same, where going on without it is better than not going on."""
        try:
            self.note(**changes)
        except NotWrittenError as error:
            self.warn(str(error))

    def warn(self, text: str) -> None:
        """Something for the operator, each once."""
        clean = self.scrub(text)
        if clean not in self.warnings:
            self.warnings.append(clean)

    def promise(self, edit: JournalEdit, *, new: bool) -> Promise:
        """What one version of the backend's env promises."""
        return service_promise(self.services[edit.role], edit.values(new=new), self.env)

    def engine(self, edit: JournalEdit) -> Engine | None:
        """The engine that serves now."""
        service = self.services[edit.role]
        for new in (True, False):
            found = running_engine(service, service.status(), self.env, self.promise(edit, new=new).url)
            if found is not None:
                return found
        return None

    def close_gate(self) -> None:
        """Hold every proxy in front of the backend, and write their names down first."""
        edit = self.journal.edit(Role.BACKEND)
        if edit is None or self.gate is not None:
            return
        urls = {self.promise(edit, new=True).url, self.promise(edit, new=False).url}
        if self.journal.url is not None:
            urls.add(self.journal.url)
        found = fronts(urls, self.env)
        known = dict.fromkeys((*self.journal.held, *(one.held for one in found)))
        self.note_if_possible(held=tuple(known))
        wait_s = self.journal.health_timeout_s + self.journal.drain_timeout_s
        self.gate = ProxyGate(found, f"specdash {self.journal.kind} {self.journal.number}", wait_s)
        for warning in self.gate.hold():
            self.warn(warning)
        proxy = self.deployment.proxy
        with contextlib.suppress(ServiceError):
            if proxy is not None and not proxy.reloads and proxy.status().alive:
                self.warn(f"{proxy.name} is no specdash proxy and cannot be held: a restart cuts its clients off")

    def requests(self) -> int:
        """Requests that held proxies have upstream now."""
        return self.gate.active() if self.gate is not None else 0

    def open_gate(self) -> None:
        """Let everything pass again."""
        gate, self.gate = self.gate, None
        if gate is not None:
            for warning in gate.resume():
                self.warn(warning)

    def down(self, since: float) -> None:
        """The backend, which ran, does not answer from now on."""
        if self.down_since is None:
            self.down_since = since

    def up(self, at: float | None) -> None:
        """It answers again."""
        if self.down_since is not None and at is not None:
            self.downtime_s = (self.downtime_s or 0.0) + max(0.0, at - self.down_since)
            self.down_since = None

    def scrub(self, text: str) -> str:
        """The text without a secret of any version of the env files."""
        found = {
            value
            for edit in self.journal.edits
            for new in (True, False)
            for key, value in edit.values(new=new).items()
            if is_secret(key) and len(value) >= _SHORTEST_SECRET
        }
        return scrubbed(text, sorted(found, key=len, reverse=True))


def _service(deployment: Deployment, edit: JournalEdit) -> ManagedService:
    found = deployment.service(edit.role)
    if found is None or found.name != edit.service or str(found.env_file) != edit.env_file:
        now = f"{found.name} with {found.env_file}" if found is not None else "none"
        raise ServiceError(
            f"the apply that was cut short changed {edit.service} with {edit.env_file}; the {edit.role} is now {now}; "
            "name that service with its options or in config.toml, and recover again"
        )
    return found
