"""A console for the tune screen's tests: real values, findings and records, without services behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from specdash.control.console import RunningApply, ServicesView, ServiceView
from specdash.control.deployment import ServiceState, ServiceStatus
from specdash.core.changes import (
    ApplyKind,
    ApplyOutcome,
    ApplyProgress,
    ApplyRecord,
    ApplyStep,
    Change,
    Role,
    StepState,
    changes_to,
)
from specdash.core.errors import Finding, Severity, SpecdashError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from specdash.core.changes import WantedValues

BACKEND_ENV = {
    "LLAMA_MODEL": "/models/qwen3-coder-30b.gguf",
    "LLAMA_DRAFT_MODEL": "/models/qwen3-0.6b.gguf",
    "LLAMA_SPEC_TYPE": "draft-simple",
    "LLAMA_DRAFT_MAX": "4",
    "LLAMA_API_KEY": "sk-very-secret",
    "LLAMA_CTX_SIZE": "131072",
}
PROXY_ENV = {"PROXY_PORT": "4000", "PROXY_LOOP_BREAKER": "on"}


def service(role: Role, values: dict[str, str], last_good: dict[str, str] | None) -> ServiceView:
    """A running service."""
    status = ServiceStatus(ServiceState.RUNNING, pid=7)
    return ServiceView(role, "systemd", status, values, last_good)


@dataclass
class FakeConsole:
    """Remembers what it was asked. `fails` makes the next apply roll back; `wait` keeps it running until it is set."""

    values: dict[Role, dict[str, str]] = field(
        default_factory=lambda: {Role.BACKEND: dict(BACKEND_ENV), Role.PROXY: dict(PROXY_ENV)}
    )
    last_good: dict[str, str] | None = field(default_factory=lambda: {**BACKEND_ENV, "LLAMA_DRAFT_MAX": "3"})
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
        )

    def plan(self, wanted: WantedValues, profile: str | None = None) -> Any:
        """Refuses a draft of more than 100 tokens."""
        made = tuple(change for role in wanted for change in changes_to(role, self.values[role], wanted[role]))
        findings = [Finding("restart", Severity.INFO, "the engine is swapped", "LLAMA_DRAFT_MAX")]
        for key_change in made:
            if key_change.key == "LLAMA_DRAFT_MAX" and int(key_change.after or "0") > 100:
                text = f"LLAMA_DRAFT_MAX={key_change.after}: the draft model has room for 64"
                findings.insert(0, Finding("draft-room", Severity.ERROR, text, key_change.key, "use at most 64"))
        return self._plan(made, tuple(findings), profile)

    def plan_rollback(self) -> Any:
        """Back to the last good one."""
        if self.last_good is None:
            raise SpecdashError("nothing was applied yet: there is nothing to roll back")
        change = Change(Role.BACKEND, "LLAMA_DRAFT_MAX", "4", self.last_good["LLAMA_DRAFT_MAX"])
        return self._plan((change,), (), None)

    def profiles(self) -> Any:
        """One profile."""
        values = {Role.BACKEND: {"LLAMA_DRAFT_MAX": "12", "LLAMA_DRAFT_MIN": "2"}, Role.PROXY: {}}
        namespace = SimpleNamespace(
            name="agentic-continuity", summary="long coding sessions", values=values, notes=("ctx is left alone",)
        )
        return (namespace,)

    def start(self, plan: Any) -> RunningApply:
        """Steps, then the outcome."""
        self.started.append(plan)
        reports: list[ApplyProgress] = []
        return RunningApply(lambda: self._apply(plan, reports.append), self._cancel, reports)

    def _cancel(self) -> bool:
        self.cancelled = True
        if self.wait is not None:
            self.wait.set()
        return True

    def _apply(self, plan: Any, report: Callable[[ApplyProgress], None]) -> ApplyRecord:
        report(ApplyProgress(ApplyStep.LOCK, StepState.DONE, seconds=0.001))
        report(ApplyProgress(ApplyStep.DRAIN, StepState.DONE, "2 requests ended", seconds=1.25))
        report(ApplyProgress(ApplyStep.HEALTH, StepState.RUNNING, "loading tensors", 0.43, 2.0))
        if self.wait is not None:
            self.wait.wait(10)
        failed = self.fails or self.cancelled
        report(ApplyProgress(ApplyStep.HEALTH, StepState.FAILED if failed else StepState.DONE, "", None, 4.2))
        if failed:
            report(ApplyProgress(ApplyStep.ROLLBACK, StepState.DONE, seconds=3.0))
            return ApplyRecord(
                7, 0.0, 9.0, ApplyKind.APPLY, ApplyOutcome.ROLLED_BACK, failed_step=ApplyStep.HEALTH,
                reason="the engine ended with exit code 1", log_lines=("E load_model: out of memory",),
            )  # fmt: skip
        for change in plan.changes:
            self.values[change.role][change.key] = change.after or ""
        return ApplyRecord(7, 0.0, 9.0, ApplyKind.APPLY, ApplyOutcome.APPLIED, downtime_s=4.2)

    def _plan(self, changes: tuple[Change, ...], findings: tuple[Finding, ...], profile: str | None) -> Any:
        refused = any(finding.severity is Severity.ERROR for finding in findings)
        edits = tuple(
            SimpleNamespace(
                role=role,
                needs_restart=True,
                service=f"specdash-{role}.service",
                env_file=f"/etc/{role}.env",
            )
            for role in Role
            if any(change.role is role for change in changes)
        )
        return SimpleNamespace(changes=changes, findings=findings, profile=profile, refused=refused, edits=edits)
