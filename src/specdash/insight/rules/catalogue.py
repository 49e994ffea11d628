"""The rules as data: severity, hysteresis, thresholds and runbook of each, from the TOML files beside the functions.

A user's own file may change thresholds, severity and times of a rule, or switch it off:

    [zero_acceptance]
    severity = "critical"
    enabled = false
    limits.drafts = 128
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module, resources
from typing import Any

from specdash.core.alerts import Alert, AlertSeverity, Symptom
from specdash.core.errors import InputError
from specdash.core.readings import Source
from specdash.insight.rules.scene import Scene

FAMILIES = ("availability", "speculation", "memory", "answers", "machine")
"""One module and one TOML file each: is it there; does speculation pay; KV cache, checkpoints, caches; what clients
get, through the proxy; GPU and host."""

Limits = Mapping[str, float]
RuleFunction = Callable[[Scene, Limits], Iterable[Symptom]]
Refutation = Callable[[Scene, Limits, Alert], str]
"""Why an alert that is over was never so, in words; empty where it was."""


class UnjudgeableError(Exception):
    """What a rule raises where it cannot tell: the words say why. Its alerts stay as they are."""


@dataclass(frozen=True, slots=True)
class RuleSpec:
    """What is said of one rule."""

    id: str
    family: str
    title: str
    severity: AlertSeverity
    meaning: str
    """What it means, one or two sentences."""
    checks: tuple[str, ...]
    """What to look at, in order; commands where there are any."""
    remedy: str = ""
    """What helps, in words."""
    raise_after_s: float = 0.0
    """How long the symptom must last."""
    clear_after_s: float = 10.0
    """How long it must be gone."""
    hold_back: bool = True
    """Not judged while the server loads or has just begun, nor within `SETTLE_S` of it."""
    trial_s: float | None = None
    """While settings are tried on the server, the symptom must last so long: trials cause it. Infinite: it is not
    judged at all then, nor for its `window_s` afterwards. None: trials have nothing to do with it."""
    while_idle: bool = True
    """Whether it is judged while nothing runs."""
    needs: tuple[Source, ...] = ()
    """Sources that must be fresh for it to be judged."""
    counters: tuple[str, ...] = ()
    """Totals of /metrics, by field name of `core.observations.Counters`, that there must be for it to be judged."""
    explains: tuple[str, ...] = ()
    """Rules whose alerts follow from this one's."""
    chart: str | None = None
    limits: Limits = field(default_factory=dict)
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: what is said of it, and the function that judges."""

    spec: RuleSpec
    judge: RuleFunction
    refute: Refutation | None = None
    """The function `<rule>_refuted` beside the rule's, where there is one."""


@cache
def shipped() -> tuple[Rule, ...]:
    """All rules of specdash, by family in the order of `FAMILIES` and in the order of its file."""
    return tuple(rule for family in FAMILIES for rule in _family(family))


def _family(family: str) -> Iterable[Rule]:
    module = import_module(f"{__package__}.{family}")
    text = resources.files(__package__).joinpath(f"{family}.toml").read_text(encoding="utf-8")
    for name, table in tomllib.loads(text).items():
        yield Rule(_spec(name, family, table), getattr(module, name), getattr(module, f"{name}_refuted", None))


def _spec(name: str, family: str, table: Mapping[str, Any]) -> RuleSpec:
    values = dict(table)
    values["severity"] = AlertSeverity(values["severity"])
    values["needs"] = tuple(Source(one) for one in values.get("needs", ()))
    for many in ("checks", "explains", "counters"):
        values[many] = tuple(values.get(many, ()))
    return RuleSpec(id=name, family=family, **values)


_CHANGEABLE = ("severity", "raise_after_s", "clear_after_s", "enabled", "limits")


def with_user_limits(rules: Iterable[Rule], text: str, name: str = "rules.toml") -> tuple[Rule, ...]:
    """The rules with a user's file applied.

    Raises `InputError` for a malformed file, an unknown rule, field or limit, and a value that cannot be meant.
    """
    by_id = {rule.spec.id: rule for rule in rules}
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name} is not valid TOML: {error}") from None
    for rule_id, table in tables.items():
        if rule_id not in by_id:
            raise InputError(f"{name}: unknown rule [{rule_id}]; {_hint(rule_id, by_id)}")
        if not isinstance(table, dict):
            raise InputError(f"{name}: {rule_id} wants a table, such as [{rule_id}]")
        rule = by_id[rule_id]
        by_id[rule_id] = replace(rule, spec=_changed(rule.spec, table, f"{name} [{rule_id}]"))
    return tuple(by_id.values())


def _changed(spec: RuleSpec, table: Mapping[str, Any], where: str) -> RuleSpec:
    changes: dict[str, Any] = {}
    for key, value in table.items():
        if key not in _CHANGEABLE:
            raise InputError(f"{where}: {key!r} cannot be changed; {_hint(key, _CHANGEABLE)}")
        if key == "severity":
            if value not in tuple(AlertSeverity):
                raise InputError(f"{where}: severity = {value!r}: wants one of {', '.join(AlertSeverity)}")
            changes[key] = AlertSeverity(value)
        elif key == "enabled":
            if not isinstance(value, bool):
                raise InputError(f"{where}: enabled = {value!r}: wants true or false")
            changes[key] = value
        elif key == "limits":
            changes[key] = _limits(spec, value, where)
        else:
            changes[key] = _number(value, f"{where}: {key}")
    return replace(spec, **changes)


def _limits(spec: RuleSpec, table: Any, where: str) -> Limits:
    if not isinstance(table, dict):
        raise InputError(f"{where}: limits wants a table, such as limits.{next(iter(spec.limits), 'NAME')} = 1")
    for key in table:
        if key not in spec.limits:
            raise InputError(f"{where}: unknown limit {key!r}; {_hint(key, spec.limits)}")
    return {**spec.limits, **{key: _number(value, f"{where}: limits.{key}") for key, value in table.items()}}


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise InputError(f"{what} = {value!r}: wants a number from 0 on")
    return float(value)


def _hint(word: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names) or 'none'}"
