"""A console for the tune screen's tests: real values, findings and records, without services behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from specdash.control.console import Running, ServicesView, ServiceView
from specdash.control.services import ServiceState, ServiceStatus
from specdash.core.applies import ApplyKind, ApplyRecord, Outcome, Progress, Step, StepState
from specdash.core.changes import ChangeSet, KeyChange, Role
from specdash.core.errors import SpecdashError
from specdash.core.findings import Finding, Severity

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

BACKEND_ENV = {
    "LLAMA_MODEL": "/models/qwen3-coder-30b.gguf",
    "LLAMA_DRAFT_MODEL": "/models/qwen3-0.6b.gguf",
    "LLAMA_SPEC_TYPE": "draft-simple",
    "LLAMA_DRAFT_MAX": "4",
    "LLAMA_API_KEY": "sk-very-secret",
    "LLAMA_CTX_SIZE": "131072",
}
PROXY_ENV = {"PROXY_PORT": "4000", "PROXY_LOOP_BREAKER": "on"}


def service(role: Role, values: Mapping[str, str], last_good: Mapping[str, str] | None) -> ServiceView:
    """A running service."""
    status = ServiceStatus(f"specdash-{role}.service", ServiceState.RUNNING, pid=7)
    return ServiceView(role, status.name, "systemd", f"/etc/{role}.env", status, values, last_good)


@dataclass
class FakeConsole:
    """Remembers what it was asked. `fails` makes the next apply roll back; `wait` keeps it running until it is set."""

    values: dict[Role, dict[str, str]] = field(
        default_factory=lambda: {Role.BACKEND: dict(BACKEND_ENV), Role.PROXY: dict(PROXY_ENV)}
    )
    last_good: dict[str, str] | None = field(default_factory=lambda: {**BACKEND_ENV, "LLAMA_DRAFT_MAX": "3"})
    cut_short: str | None = None
    fails: bool = False
    wait: threading.Event | None = None
    started: list[Any] = field(default_factory=list)
    cancelled: bool = False
    busy: bool = False

    def look(self) -> ServicesView:
        """Both services."""
        return ServicesView(
            (
                service(Role.BACKEND, dict(self.values[Role.BACKEND]), self.last_good),
                service(Role.PROXY, dict(self.values[Role.PROXY]), None),
            ),
            unfinished=self.cut_short,
        )

    def unfinished(self) -> str | None:
        """As it was made."""
        return self.cut_short

    def plan(self, changes: ChangeSet, profile: str | None = None) -> Any:
        """Refuses a draft of more than 100 tokens."""
        made = tuple(one for role in changes.roles for one in changes.changes(role, self.values[role]))
        findings = [Finding("restart", Severity.INFO, "the engine is swapped", "LLAMA_DRAFT_MAX")]
        for one in made:
            if one.key == "LLAMA_DRAFT_MAX" and int(one.after or "0") > 100:
                text = f"LLAMA_DRAFT_MAX={one.after}: the draft model has room for 64"
                findings.insert(0, Finding("draft-room", Severity.ERROR, text, one.key, "use at most 64"))
        return self._plan(made, tuple(findings), profile)

    def plan_rollback(self) -> Any:
        """Back to the last good one."""
        if self.last_good is None:
            raise SpecdashError("nothing was applied yet: there is nothing to roll back")
        change = KeyChange(Role.BACKEND, "LLAMA_DRAFT_MAX", "4", self.last_good["LLAMA_DRAFT_MAX"])
        return self._plan((change,), (), None)

    def profiles(self) -> Any:
        """One profile."""
        values = {Role.BACKEND: {"LLAMA_DRAFT_MAX": "12", "LLAMA_DRAFT_MIN": "2"}, Role.PROXY: {}}
        one = SimpleNamespace(
            name="agentic-continuity", summary="long coding sessions", values=values, notes=("ctx is left alone",)
        )
        return (one,)

    def start(self, plan: Any) -> Running:
        """Steps, then the outcome."""
        self.started.append(plan)
        return Running(lambda report: self._apply(plan, report), self._cancel).start()

    def recover(self, *, finish: bool) -> Running:
        """Steps, then the outcome."""
        self.started.append("finish" if finish else "roll back")
        self.cut_short = None
        return Running(lambda report: self._apply(self._plan((), (), None), report), self._cancel).start()

    def _cancel(self) -> bool:
        self.cancelled = True
        if self.wait is not None:
            self.wait.set()
        return True

    def _apply(self, plan: Any, report: Callable[[Progress], None]) -> ApplyRecord:
        report(Progress(Step.LOCK, StepState.DONE, seconds=0.001))
        report(Progress(Step.DRAIN, StepState.DONE, "2 requests ended", seconds=1.25))
        report(Progress(Step.HEALTH, StepState.RUNNING, "loading tensors", 0.43, 2.0))
        if self.wait is not None:
            self.wait.wait(10)
        failed = self.fails or self.cancelled
        report(Progress(Step.HEALTH, StepState.FAILED if failed else StepState.DONE, "", None, 4.2))
        if failed:
            report(Progress(Step.ROLLBACK, StepState.DONE, seconds=3.0))
            return ApplyRecord(
                7, 0.0, 9.0, ApplyKind.APPLY, Outcome.ROLLED_BACK, failed_step=Step.HEALTH,
                reason="the engine ended with exit code 1", log_lines=("E load_model: out of memory",),
            )  # fmt: skip
        for one in plan.changes:
            self.values[one.role][one.key] = one.after or ""
        return ApplyRecord(7, 0.0, 9.0, ApplyKind.APPLY, Outcome.APPLIED, downtime_s=4.2)

    def _plan(self, changes: tuple[KeyChange, ...], findings: tuple[Finding, ...], profile: str | None) -> Any:
        refused = any(one.severity is Severity.ERROR for one in findings)
        edits = tuple(
            SimpleNamespace(
                role=role,
                needs_restart=True,
                service=SimpleNamespace(name=f"specdash-{role}.service", env_file=Path(f"/etc/{role}.env")),
            )
            for role in Role
            if any(one.role is role for one in changes)
        )
        return SimpleNamespace(changes=changes, findings=findings, profile=profile, refused=refused, edits=edits)
