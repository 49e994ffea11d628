"""Rules about a plan: each is a function from the plan to its findings.

`values` judges what is written, `models` the model files, `machine` the engine, memory, addresses and disks, and
`proxy` the proxy and what it and its backend must agree on. Rules never raise and never stop at the first finding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.changes import is_secret
from specdash.core.errors import Finding, Severity
from specdash.core.masking import MASK, without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_ORDER = (Severity.ERROR, Severity.WARNING, Severity.INFO)
_SHORTEST_SECRET = 4


def error(rule: str, message: str, key: str | None = None, fix: str = "") -> Finding:
    """A finding that refuses the change."""
    return Finding(rule, Severity.ERROR, message, key, fix)


def warning(rule: str, message: str, key: str | None = None, fix: str = "") -> Finding:
    """A finding that the operator should know."""
    return Finding(rule, Severity.WARNING, message, key, fix)


def info(rule: str, message: str, key: str | None = None, fix: str = "") -> Finding:
    """A finding worth a line."""
    return Finding(rule, Severity.INFO, message, key, fix)


def scrubbed(text: str, *versions: Mapping[str, str]) -> str:
    """The text without a secret of any of these env files."""
    pairs = (pair for values in versions for pair in values.items())
    secrets = {value for key, value in pairs if is_secret(key) and len(value) >= _SHORTEST_SECRET}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def in_order(found: Iterable[Finding], values: Mapping[str, str]) -> tuple[Finding, ...]:
    """Each finding once, errors first, as single lines and without the secrets among `values`."""

    def clean(text: str) -> str:
        return scrubbed(without_secrets(" ".join(text.split())), values)

    rows = dict.fromkeys(Finding(row.rule, row.severity, clean(row.message), row.key, clean(row.fix)) for row in found)
    return tuple(sorted(rows, key=lambda row: _ORDER.index(row.severity)))
