"""What to do about an alert: its rule's texts with the values that are known in place of their placeholders."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdash.core.env_edit import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from specdash.core.alerts import Alert
    from specdash.insight.rules.catalogue import RuleSpec

PLACEHOLDERS: Mapping[str, str] = {
    "pid": "PID",
    "port": "PORT",
    "url": "URL",
    "folder": "FOLDER",
    "upstream": "UPSTREAM",
}
"""By the name that stands in braces in the rules' texts: what is printed where the value is not known."""
_PLACEHOLDER = re.compile(r"\{(" + "|".join(PLACEHOLDERS) + r")\}")


@dataclass(frozen=True, slots=True)
class Runbook:
    """The texts of one rule as they are shown."""

    meaning: str
    checks: tuple[str, ...]
    remedy: str


def runbook(spec: RuleSpec, alert: Alert | None = None) -> Runbook:
    """The rule's runbook, for this alert or in general."""
    names = alert.names if alert is not None else ()
    return Runbook(spec.meaning, tuple(filled(one, names) for one in spec.checks), filled(spec.remedy, names))


def filled(text: str, names: Iterable[tuple[str, str]]) -> str:
    """The text with the values of its placeholders, as a shell wants them."""
    known = {**PLACEHOLDERS, **{name: shlex.quote(printable(value)) for name, value in names}}
    return _PLACEHOLDER.sub(lambda found: known[found[1]], text)
