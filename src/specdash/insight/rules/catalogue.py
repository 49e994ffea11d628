"""The rules as data: severity, hysteresis, thresholds and runbook of each, as `rule` decorates its function.

A user's own file may change thresholds, severity and times of a rule, or switch it off:

    [zero_acceptance]
    severity = "critical"
    enabled = false
    limits.drafts = 128
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from sys import float_info
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from specdash.core.config import near, read_toml
from specdash.core.env_edit import printable
from specdash.core.errors import InputError
from specdash.core.records import Alert, AlertSeverity, Symptom
from specdash.core.removed import removed_rule
from specdash.insight.rules.scene import RuleScene
from specdash.system.text import clean

if TYPE_CHECKING:
    from specdash.core.readings import Source

_PLACEHOLDER = re.compile(r"\{([a-z]+)\}")
"""A name in braces in a rule's texts (pid, port, url, upstream); in capitals where its value is not known."""


class Runbook(Struct, frozen=True):
    """The texts of one rule as they are shown."""

    meaning: str
    """What it means, one to three sentences."""
    checks: tuple[str, ...]
    """What to look at, in order; commands where there are any."""
    remedy: str
    """What helps, in words."""


def runbook(rule: Rule, alert: Alert | None = None) -> Runbook:
    """The rule's runbook, for this alert or in general."""
    names = alert.names if alert is not None else ()
    remedy = alert.remedy if alert is not None and alert.remedy else filled(rule.remedy, names)
    return Runbook(rule.meaning, tuple(filled(check, names) for check in rule.checks), remedy)


def filled(text: str, names: Iterable[tuple[str, str]]) -> str:
    """The text with the values of its placeholders, as a shell wants them."""
    import shlex

    known = {name: shlex.quote(printable(value)) for name, value in names}
    return _PLACEHOLDER.sub(lambda found: known.get(found[1], found[1].upper()), text)


FAMILIES = ("availability", "speculation", "memory", "answers", "machine")
"""One module each: is it there; does speculation pay; KV cache, checkpoints, caches; what clients
get, through the proxy; GPU and host."""

Limits = Mapping[str, float]
RuleFunction = Callable[[RuleScene, Limits], Iterable[Symptom]]


class UnjudgeableError(Exception):
    """What a rule raises where it cannot judge: the words say why. Its alerts stay as they are."""


class OverError(Exception):
    """What a rule raises where the contrary of its symptom is seen: its alerts are over without `clear_after_s`."""


class Rule(Struct, frozen=True):
    """One rule: its texts and limits, and the function that judges."""

    id: str
    family: str
    title: str
    severity: AlertSeverity
    meaning: str
    checks: tuple[str, ...]
    remedy: str = ""
    raise_after_s: float = 0.0
    """How long the symptom must last."""
    clear_after_s: float = 10.0
    """How long it must be gone."""
    hold_back: bool = True
    """Not judged while the server loads or has just begun, nor within `SETTLE_S` of it."""
    in_trials: bool = True
    """Whether it is judged while settings are tried on the server; where trials cause its symptom it is not, nor for
    its `window_s` afterwards."""
    of_drafts: bool = False
    """Whether it is about drafts: its alerts are over where the server is seen not to speculate, and when another is
    started, trials apart."""
    while_idle: bool = True
    """Whether it is judged while nothing runs."""
    needs: tuple[Source, ...] = ()
    """Sources that must be fresh for it to be judged."""
    counters: tuple[str, ...] = ()
    """Totals of /metrics, by field name of `core.readings.Counters`, that there must be for it to be judged."""
    explains: tuple[str, ...] = ()
    """Rules whose alerts follow from this one's."""
    chart: str | None = None
    limits: Limits = field(default_factory=dict)
    enabled: bool = True
    judge: RuleFunction = lambda _scene, _limits: ()


_RULES: list[Rule] = []


def rule(title: str, severity: AlertSeverity, **fields: Any) -> Callable[[RuleFunction], RuleFunction]:
    """Make a rule of a function, whose name is the rule's id and whose docstring its runbook: what it means, a list of
    checks, the remedy. `fields` are those of `Rule`."""

    def made(judge: RuleFunction) -> RuleFunction:
        family, texts = judge.__module__.rpartition(".")[2], runbook_of(judge.__doc__ or "")
        known = (judge.__name__, family, title, severity, texts.meaning, texts.checks, texts.remedy)
        _RULES.append(Rule(*known, judge=judge, **fields))
        return judge

    return made


def runbook_of(docstring: str) -> Runbook:
    """The runbook in a rule's docstring: paragraphs, of which the one with dashes lists the checks."""
    meaning, checks, remedy = (*docstring.split("\n\n"), "", "")[:3]
    lines = (" ".join(line.strip() for line in check.split("\n")) for check in checks.split("\n    - "))
    joined = " ".join(meaning.split()), " ".join(remedy.split())
    return Runbook(joined[0], tuple(text for line in lines if (text := line.strip().removeprefix("- "))), joined[1])


@cache
def shipped() -> tuple[Rule, ...]:
    """All rules of specdash, by family in the order of `FAMILIES` and in the order of its module."""
    for family in FAMILIES:
        import_module(f"{__package__}.{family}")
    return tuple(sorted(_RULES, key=lambda item: FAMILIES.index(item.family)))


def title_of(rule_id: str) -> str:
    """The title of a rule of specdash; the id itself of one that is not known here."""
    return next((rule.title for rule in shipped() if rule.id == rule_id), rule_id)


def with_user_limits(
    rules: Iterable[Rule], text: str, name: str = "rules.toml", warn: Callable[[str], None] = lambda _: None
) -> tuple[Rule, ...]:
    """The rules with a user's file applied. `warn` hears of each removed rule and limit, which are
    ignored.

    Raises `InputError` for a malformed file, an unknown rule, field or limit, and a value that cannot be meant.
    """
    by_id = {rule.id: rule for rule in rules}
    for rule_id, table in read_toml(text, name).items():
        gone = removed_rule(rule_id)
        if gone is not None:
            warn(f"{name}: {gone}")
            continue
        if rule_id not in by_id:
            raise InputError(f"{name}: unknown rule [{clean(rule_id, 80)}]; {near(rule_id, by_id)}")
        if not isinstance(table, dict):
            raise InputError(f"{name}: {rule_id} wants a table, such as [{rule_id}]")
        limits = table.get("limits")
        if isinstance(limits, dict):
            for limit in [*limits]:
                if (gone := removed_rule(f"{rule_id} limits.{limit}")) is not None:
                    warn(f"{name}: {gone}")
                    del limits[limit]
        by_id[rule_id] = _changed(by_id[rule_id], table, f"{name} [{rule_id}]")
    return tuple(by_id.values())


def _changed(rule: Rule, table: Mapping[str, Any], where: str) -> Rule:
    changes: dict[str, Any] = {}
    for name, value in table.items():
        if name == "limits":
            if not isinstance(value, dict):
                raise InputError(f"{where}: limits wants a table, such as limits.{next(iter(rule.limits), 'NAME')} = 1")
            if unknown := min(value.keys() - rule.limits.keys(), default=""):
                raise InputError(f"{where}: no limit is called {clean(unknown, 80)}; {near(unknown, rule.limits)}")
            changed = {limit: _number(amount, f"{where}: limits.{limit}") for limit, amount in value.items()}
            changes[name] = {**rule.limits, **changed}
        elif name in ("raise_after_s", "clear_after_s"):
            changes[name] = _number(value, f"{where}: {name}")
        elif name == "severity" and value in tuple(AlertSeverity):
            changes[name] = AlertSeverity(value)
        elif name == "enabled" and isinstance(value, bool):
            changes[name] = value
        elif name in ("severity", "enabled"):
            wanted = f"one of {', '.join(AlertSeverity)}" if name == "severity" else "true or false"
            raise InputError(f"{where}: {name} = {clean(repr(value), 80)}: must be {wanted}")
        else:
            known = ("severity", "raise_after_s", "clear_after_s", "enabled", "limits")
            raise InputError(f"{where}: {clean(name, 80)}: cannot be changed; {near(name, known)}")
    return replace(rule, **changes)


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= float_info.max:
        raise InputError(f"{where} = {clean(repr(value), 80)}: must be a number from 0 on")
    return value
