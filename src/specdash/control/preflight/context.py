"""What a check is told beside the settings, and where its findings are collected."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specdash.control.preflight.gpus import nvml_gpus
from specdash.core.changes import is_secret
from specdash.core.findings import Finding, Severity
from specdash.core.masking import MASK, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from specdash.control.services import ManagedService
    from specdash.core.changes import Role
    from specdash.core.observations import Gpus

_ORDER = (Severity.ERROR, Severity.WARNING, Severity.INFO)
_SHORTEST_SECRET = 4
_ADVICE = re.compile(
    r"`|(use|set|unset|remove|lower|raise|write|close|correct|name|download|stop|start|put|make|mend|install|convert|"
    r"change|create|choose|run|did you|only tab|escape|end) ?\b"
)
"""What the part of a message begins with that says what to do."""


@dataclass(frozen=True, slots=True)
class PreflightContext:
    """The circumstances of a check.

    `env_file` is where the settings are, or will be, written. `changed` are the keys that a change sets or removes;
    empty means that the settings are checked as they are. `own_pids` are the processes of this service now: what they
    hold (the port, GPU memory) will be free again. `base` is the environment of specdash itself.
    """

    env_file: Path
    changed: frozenset[str] = frozenset()
    service: ManagedService | None = None
    own_pids: frozenset[int] = frozenset()
    base: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    other: Mapping[str, str] | None = field(default=None, repr=False)
    """The wanted settings of the other service, where they are known."""
    running: Mapping[str, str] | None = field(default=None, repr=False)
    """What a unit that is not ours runs with, as an env file of ours would say it; None: what the env file says."""
    other_pids: frozenset[int] = frozenset()
    """The processes of the other service now."""
    gpus: Callable[[], Gpus | None] = nvml_gpus
    """What the GPUs say; None where there are none."""
    probe_engine: bool = True
    """Ask the engine's binary what it can do. False: every check but that, for a caller that must not wait."""


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

    def has(self, rule: str) -> bool:
        """Whether this rule has found anything yet."""
        return any(one.rule == rule for one in self._found)

    def sorted(self) -> tuple[Finding, ...]:
        """All of them, errors first, and otherwise in the order they were found."""
        return tuple(sorted(self._found, key=lambda one: _ORDER.index(one.severity)))

    def _add(self, rule: str, severity: Severity, message: str, key: str | None, fix: str) -> None:
        self._found[Finding(rule, severity, self._clean(message), key, self._clean(fix))] = None

    def _clean(self, text: str) -> str:
        text = without_secrets(" ".join(text.split()))
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text


def blamed(message: str, keys: Iterable[str]) -> str | None:
    """The key a message is about: the one of `keys` that it names first."""
    places = [(at, -len(key), key) for key in keys if (at := message.find(key)) >= 0]
    return min(places)[2] if places else None


def unread(role: Role, key: str) -> str:
    """What to do about a key that stands in the env file of the service that does not read it."""
    return f"run `specdash env unset --service {role} {key}`, which leaves the other service's own alone"


def parted(message: str) -> tuple[str, str]:
    """Message and fix of a line of the form `what is wrong; what to do`; no fix where the line ends otherwise."""
    what, separator, fix = message.rpartition("; ")
    if separator and _ADVICE.match(fix):
        return what, fix
    what, separator, fix = message.partition(": use ")
    return (f"{what} is not allowed", f"use {fix}") if separator else (message, "")
