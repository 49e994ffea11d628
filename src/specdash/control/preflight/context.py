"""What a check is told beside the settings, and where its findings are collected."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import field
from typing import TYPE_CHECKING, Any

from specdash.core.changes import is_secret
from specdash.core.errors import Finding, Severity
from specdash.core.masking import MASK, without_secrets
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from specdash.control.deployment import Service
    from specdash.core.changes import Role
    from specdash.core.errors import Problem
    from specdash.core.readings import Gpus, Reading


# What NVML says now, asked for at most every two seconds: a check runs at every keystroke in the dashboard.

_GOOD_FOR_S = 2.0
_ABSENT_FOR_S = 30.0


class _Watch:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: Gpus | None = None
        self._due = 0.0
        self._collector: Any = None

    def look(self) -> Gpus | None:
        with self._lock:
            if time.monotonic() >= self._due:
                if self._collector is None:
                    from specdash.collect.gpu import GpuCollector

                    self._collector = GpuCollector(self._take)
                self._collector.step(_GOOD_FOR_S)
                self._due = time.monotonic() + (_ABSENT_FOR_S if self._seen is None else _GOOD_FOR_S)
            return self._seen

    def _take(self, reading: Reading[Gpus]) -> None:
        self._seen = reading.value


_WATCH = _Watch()


def nvml_gpus() -> Gpus | None:
    """The GPUs of this machine, None when NVML shows none."""
    return _WATCH.look()


_ORDER = (Severity.ERROR, Severity.WARNING, Severity.INFO)
_SHORTEST_SECRET = 4


@dataclass(frozen=True, slots=True)
class PreflightContext:
    """The circumstances of a check.

    `env_file` is where the settings are, or will be, written. `changed` are the keys that a change sets or removes;
    empty means that the settings are checked as they are. `own_pids` are the processes of this service now: what they
    hold (the port, GPU memory) will be free again. `base` is the environment of specdash itself.
    """

    env_file: Path
    changed: frozenset[str] = frozenset()
    service: Service | None = None
    own_pids: frozenset[int] = frozenset()
    base: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    other: Mapping[str, str] | None = field(default=None, repr=False)
    """The wanted settings of the other service, where they are known."""
    other_pids: frozenset[int] = frozenset()
    """The processes of the other service now."""
    gpus: Callable[[], Gpus | None] = nvml_gpus
    """What the GPUs say; None where there are none."""
    probe_engine: bool = True
    """Ask the engine's binary what it can do. False: every check but that, for a caller that must not wait."""
    back: bool = False
    """Whether the values are of a version from before, which may hold keys that are not known."""


class Findings:
    """Collects findings: each once, without secrets, errors first."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._found: dict[Finding, None] = {}
        self._secrets = sorted(
            {text for key, text in values.items() if is_secret(key) and len(text) >= _SHORTEST_SECRET}, key=len
        )[::-1]

    def error(self, rule: str, message: str, *, key: str | None = None, fix: str = "") -> None:
        """Something that refuses the change."""
        self._add(rule, Severity.ERROR, message, key, fix)

    def warning(self, rule: str, message: str, *, key: str | None = None, fix: str = "") -> None:
        """Something the operator should know."""
        self._add(rule, Severity.WARNING, message, key, fix)

    def info(self, rule: str, message: str, *, key: str | None = None, fix: str = "") -> None:
        """Something worth a line."""
        self._add(rule, Severity.INFO, message, key, fix)

    def of(self, severity: Severity, rule: str, problem: Problem, *, where: str = "", fix: str = "") -> None:
        """A problem that somebody else found; `where` goes before it, and `fix` is for one that tells none."""
        self._add(rule, severity, f"{where}{problem.what}", problem.key, problem.fix or fix)

    def has(self, rule: str) -> bool:
        """Whether this rule has found anything yet."""
        return any(finding.rule == rule for finding in self._found)

    def sorted(self) -> tuple[Finding, ...]:
        """All of them, errors first, and otherwise in the order they were found."""
        return tuple(sorted(self._found, key=lambda finding: _ORDER.index(finding.severity)))

    def _add(self, rule: str, severity: Severity, message: str, key: str | None, fix: str) -> None:
        self._found[Finding(rule, severity, self._clean(message), key, self._clean(fix))] = None

    def _clean(self, text: str) -> str:
        text = without_secrets(" ".join(text.split()))
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text


def unread(role: Role, key: str) -> str:
    """What to do about a key that stands in the env file of the service that does not read it."""
    return f"remove it from the {role}'s env file: `specdash apply --service {role} --unset {key}`"
