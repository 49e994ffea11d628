"""What `specdash check` prints: a status in the order of Nagios, performance data, and JSON (docs/scripting.md)."""

from __future__ import annotations

from decimal import Decimal
from enum import IntEnum
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from specdash.core.readings import ReadingStatus
from specdash.core.records import AlertSeverity
from specdash.core.structs import json_of
from specdash.export.snapshot import alert_json, alert_line, trial_json
from specdash.insight.picture import BackendState
from specdash.insight.rules.catalogue import runbook
from specdash.insight.speedup import verdict as speedup_verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specdash.core.records import Alert
    from specdash.insight.picture import Picture
    from specdash.insight.rules.catalogue import Rule

SCHEMA: Final = "specdash.check/1"


class CheckStatus(IntEnum):
    """The result, and the exit code, as monitoring plugins have it."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


class CheckVerdict(Struct, frozen=True):
    """What was judged: `alerts` are those that count, worst first, `judged` how many rules could be judged."""

    status: CheckStatus
    alerts: tuple[Alert, ...]
    picture: Picture
    judged: int
    seconds: float


def verdict(
    picture: Picture, rules: Sequence[Rule], fail_on: AlertSeverity, seconds: float, *, ended: bool
) -> CheckVerdict:
    """The result of a look of `seconds`. With `ended`, alerts that were raised and are over count too, but for those
    that were refuted."""
    past = [alert for alert in picture.alerts.past if not alert.refuted] if ended else []
    found = [*picture.alerts.active, *past]
    alerts = tuple(sorted(found, key=lambda alert: (-alert.severity.rank, alert.ended is not None, alert.since)))
    unjudged = {rule for rule, _ in picture.alerts.unjudged}
    judged = sum(rule.enabled and rule.id not in unjudged for rule in rules)
    return CheckVerdict(_status(picture, alerts, fail_on), alerts, picture, judged, seconds)


def _status(picture: Picture, alerts: Iterable[Alert], fail_on: AlertSeverity) -> CheckStatus:
    worst = max((alert.severity.rank for alert in alerts), default=-1)
    if worst >= fail_on.rank:
        return CheckStatus.CRITICAL if worst == AlertSeverity.CRITICAL.rank else CheckStatus.WARNING
    return CheckStatus.UNKNOWN if picture.backend.state is BackendState.UNKNOWN else CheckStatus.OK


def first_line(result: CheckVerdict) -> str:
    """`OK - http://…: live, 47 rules checked, no alerts; PAYS 1.6× | decode=57.6 … speedup=1.63`."""
    return f"{result.status.name} - {_words(result)} | {_performance(result)}"


def _words(result: CheckVerdict) -> str:
    alerts, backend = result.alerts, result.picture.backend
    trial = f"; {result.picture.trial.words}" if result.picture.trial is not None else ""
    if result.status is CheckStatus.UNKNOWN:
        words = backend.reason or "the server's state is unknown"
    elif not alerts:
        words = f"{backend.state}, {result.judged} rules checked, no alerts"
    else:
        cause = next((alert for alert in alerts if alert.key == result.picture.alerts.cause_key), alerts[0])
        others = f" (and {len(alerts) - 1} more)" if len(alerts) > 1 else ""
        over = " (over)" if cause.ended is not None else ""
        words = f"{cause.title}: {cause.summary}{over}{others}"
    judged = speedup_verdict.verdict(result.picture)
    pays = f"; {judged.headline}" if judged.is_clear else ""
    return one_line(f"{backend.url}: {words}{pays}{trial}")


def one_line(words: str) -> str:
    """Without what ends a line, begins performance data, or steers a terminal."""
    printable = "".join(character if character.isprintable() else " " for character in words)
    return " ".join(printable.replace("|", "/").split())


def performance(result: CheckVerdict) -> dict[str, tuple[float, str]]:
    """Figures for graphs, with their units; what is not known is left out."""
    backend = result.picture.backend
    acceptance = backend.speculation.acceptance.window
    severities = [alert.severity for alert in result.alerts]
    values: dict[str, tuple[float | None, str]] = {
        "critical": (severities.count(AlertSeverity.CRITICAL), ""),
        "warning": (severities.count(AlertSeverity.WARNING), ""),
        "notice": (severities.count(AlertSeverity.NOTICE), ""),
        "judged": (result.judged, ""),
        "requests": (backend.requests_processing, ""),
        "decode": (backend.decode.value if backend.decode.basis == "live" else None, ""),
        "prefill": (backend.prefill.value if backend.prefill.basis == "live" else None, ""),
        "acceptance": (
            acceptance.value * 100.0
            if acceptance.value is not None and acceptance.status is ReadingStatus.KNOWN
            else None,
            "%",
        ),
        "uptime": (backend.uptime_s, "s"),
        "speedup": (
            result.picture.speedup.value if speedup_verdict.verdict(result.picture).is_clear else None,
            "",
        ),
    }
    return {name: (value, unit) for name, (value, unit) in values.items() if value is not None and isfinite(value)}


def _decimal(value: float) -> str:
    """With six digits or all before the point, never an exponent: `57.6123`, `1234568`."""
    return f"{Decimal(f'{value:.6g}' if abs(value) < 1e6 else f'{value:.0f}'):f}"


def _performance(result: CheckVerdict) -> str:
    return " ".join(f"{name}={_decimal(value)}{unit}" for name, (value, unit) in performance(result).items())


def report(result: CheckVerdict, rules: Sequence[Rule], *, verbose: bool) -> str:
    """The first line and one line per alert; verbose, with evidence, runbook and the rules that could not be judged."""
    specs = {rule.id: rule for rule in rules}
    lines = [first_line(result)]
    for alert in result.alerts:
        over = " (over)" if alert.ended is not None else ""
        lines.append(f"{one_line(alert_line(alert))}{over}  [{alert.rule}]")
        if verbose:
            lines += [f"    {one_line(line)}" for line in _details(alert, specs.get(alert.rule))]
    if verbose and result.picture.alerts.unjudged:
        lines.append("not checked:")
        lines += [f"    {rule}: {why}" for rule, why in result.picture.alerts.unjudged]
    return "\n".join(lines)


def _details(alert: Alert, spec: Rule | None) -> list[str]:
    lines = [f"{label}: {value}" for label, value in alert.evidence]
    if spec is not None:
        todo = runbook(spec, alert)
        lines.append(todo.meaning)
        lines += [f"check: {check}" for check in todo.checks]
        lines += [f"remedy: {todo.remedy}"] if todo.remedy else []
    lines += [f"fix: specdash apply {_assignment(key, value)}" for key, value in alert.fix]
    return lines


def _assignment(key: str, value: str | None) -> str:
    return f"-{key}" if value is None else f"{key}={value}"


def as_json(result: CheckVerdict, rules: Sequence[Rule]) -> dict[str, Any]:
    """The result as a JSON-ready object."""
    specs = {rule.id: rule for rule in rules}
    backend = result.picture.backend
    return {
        "schema": SCHEMA,
        "status": result.status.name,
        "exit_code": int(result.status),
        "line": _words(result),
        "cause": result.picture.alerts.cause or None,
        "verdict": speedup_verdict.verdict(result.picture).headline,
        "url": backend.url,
        "state": backend.state,
        "reason": backend.reason or None,
        "trial": trial_json(result.picture),
        "seconds": round(result.seconds, 3),
        "judged": result.judged,
        "alerts": [{**alert_json(alert), "runbook": _runbook(specs.get(alert.rule), alert)} for alert in result.alerts],
        "unjudged": dict(result.picture.alerts.unjudged),
        "performance": {name: value for name, (value, _) in performance(result).items()},
    }


def _runbook(spec: Rule | None, alert: Alert | None = None) -> dict[str, Any] | None:
    if spec is None:
        return None
    todo = runbook(spec, alert)
    return {"meaning": todo.meaning, "checks": list(todo.checks), "remedy": todo.remedy or None}


def catalogue_text(rules: Iterable[Rule]) -> str:
    """All rules, for people: one line each, with the limits in force."""
    rows = list(rules)
    width = max((len(spec.id) for spec in rows), default=0)
    return "\n".join(f"{_severity(spec):<9} {spec.id:<{width}}  {spec.title}{_limits(spec.limits)}" for spec in rows)


def _severity(spec: Rule) -> str:
    return str(spec.severity) if spec.enabled else "off"


def _limits(limits: Mapping[str, float]) -> str:
    named = ", ".join(f"{name} {value:g}" for name, value in limits.items())
    return f" ({named})" if named else ""


def catalogue_json(rules: Iterable[Rule]) -> list[dict[str, Any]]:
    """All rules with their texts and limits."""
    return [
        {
            **json_of(spec, "family title severity enabled raise_after_s clear_after_s limits needs counters explains"),
            "rule": spec.id,
            "runbook": _runbook(spec),
        }
        for spec in rules
    ]
