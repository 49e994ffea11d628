"""What a check before a change has to say: one finding each, with the key it is about and the way out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


class Severity(StrEnum):
    """How much a finding weighs."""

    ERROR = "error"
    """The change is refused."""
    WARNING = "warning"
    """The change goes on; the operator should know."""
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check. Texts are single lines and hold no secrets.

    `rule` names the check in a stable word, as `port-owner`. `key` is the env key to change, None when none is to blame
    (a full disk). `message` says what is wrong with which value; `fix` what to do, "" when nothing is to be done.
    """

    rule: str
    severity: Severity
    message: str
    key: str | None = None
    fix: str = ""

    def as_json(self) -> dict[str, Any]:
        """The form of `specdash preflight --json`."""
        return {
            "rule": self.rule,
            "severity": str(self.severity),
            "key": self.key,
            "message": self.message,
            "fix": self.fix,
        }

    @property
    def line(self) -> str:
        """The finding as one line of text."""
        about = f"{self.key}: " if self.key is not None and not self.message.startswith(self.key) else ""
        return f"{about}{self.message}{f'; {self.fix}' if self.fix else ''}"


def errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those that refuse the change."""
    return tuple(one for one in findings if one.severity is Severity.ERROR)
