"""What `specdash check` says: status in the order of Nagios, one line, performance data, and JSON (docs/check.md)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from specdash.core.alerts import AlertSeverity
from specdash.core.readings import Status
from specdash.export.alerts_snapshot import alert_json, alert_line
from specdash.export.trial_snapshot import trial_json
from specdash.insight.picture import BackendState
from specdash.insight.rules.runbook import runbook

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specdash.core.alerts import Alert
    from specdash.insight.picture import Picture
    from specdash.insight.rules.catalogue import Rule, RuleSpec

SCHEMA = "specdash.check/1"


class CheckStatus(IntEnum):
    """The result, and the exit code, as monitoring plugins have it."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was judged: `alerts` are those that count, worst first, `judged` how many rules could be judged."""

    status: CheckStatus
    alerts: tuple[Alert, ...]
    picture: Picture
    judged: int
    seconds: float


def verdict(picture: Picture, rules: Sequence[Rule], fail_on: AlertSeverity, seconds: float, *, ended: bool) -> Verdict:
    """The result of a look of `seconds`. With `ended`, alerts that were raised and are over count too, but for those
    that were refuted."""
    past = [one for one in picture.alerts.past if not one.refuted] if ended else []
    found = [*picture.alerts.active, *past]
    alerts = tuple(sorted(found, key=lambda one: (-one.severity.rank, one.ended is not None, one.since)))
    unjudged = {rule for rule, _ in picture.alerts.unjudged}
    judged = sum(rule.spec.enabled and rule.spec.id not in unjudged for rule in rules)
    return Verdict(_status(picture, alerts, fail_on), alerts, picture, judged, seconds)


def _status(picture: Picture, alerts: Iterable[Alert], fail_on: AlertSeverity) -> CheckStatus:
    worst = max((one.severity.rank for one in alerts), default=-1)
    if worst >= fail_on.rank:
        return CheckStatus.CRITICAL if worst == AlertSeverity.CRITICAL.rank else CheckStatus.WARNING
    return CheckStatus.UNKNOWN if picture.backend.state is BackendState.UNKNOWN else CheckStatus.OK


def first_line(result: Verdict) -> str:
    """`CRITICAL - Server is down: … | decode=0 …`."""
    return f"{result.status.name} - {_words(result)} | {_performance(result)}"


def _words(result: Verdict) -> str:
    alerts, backend = result.alerts, result.picture.backend
    trial = f"; {result.picture.trial.words}" if result.picture.trial is not None else ""
    if result.status is CheckStatus.UNKNOWN:
        words = backend.reason or "the server's state is unknown"
    elif not alerts:
        words = f"{backend.state}, {result.judged} rules judged, none holds"
    else:
        cause = next((one for one in alerts if one.key == result.picture.alerts.cause_key), alerts[0])
        others = f" (and {len(alerts) - 1} more)" if len(alerts) > 1 else ""
        over = " (over)" if cause.ended is not None else ""
        words = f"{cause.title}: {cause.summary}{over}{others}"
    return one_line(f"{backend.url}: {words}{trial}")


def one_line(words: str) -> str:
    """Without what ends a line, begins performance data, or steers a terminal."""
    printable = "".join(character if character.isprintable() else " " for character in words)
    return " ".join(printable.replace("|", "/").split())


def performance(result: Verdict) -> dict[str, tuple[float, str]]:
    """Figures for graphs, with their units; what is not known is left out."""
    backend = result.picture.backend
    acceptance = backend.speculation.acceptance.window
    severities = [one.severity for one in result.alerts]
    values: dict[str, tuple[float | None, str]] = {
        "critical": (severities.count(AlertSeverity.CRITICAL), ""),
        "warning": (severities.count(AlertSeverity.WARNING), ""),
        "notice": (severities.count(AlertSeverity.NOTICE), ""),
        "judged": (result.judged, ""),
        "requests": (backend.requests_processing, ""),
        "decode": (backend.decode.value if backend.decode.basis == "live" else None, ""),
        "prefill": (backend.prefill.value if backend.prefill.basis == "live" else None, ""),
        "acceptance": (
            acceptance.value * 100.0 if acceptance.value is not None and acceptance.status is Status.KNOWN else None,
            "%",
        ),
        "uptime": (backend.uptime_s, "s"),
    }
    return {name: (value, unit) for name, (value, unit) in values.items() if value is not None}


def _performance(result: Verdict) -> str:
    return " ".join(f"{name}={value:.6g}{unit}" for name, (value, unit) in performance(result).items())


def report(result: Verdict, rules: Sequence[Rule], *, verbose: bool) -> str:
    """The first line and one line per alert; verbose, with evidence, runbook and the rules that could not be judged."""
    specs = {rule.spec.id: rule.spec for rule in rules}
    lines = [first_line(result)]
    for alert in result.alerts:
        over = " (over)" if alert.ended is not None else ""
        lines.append(f"{one_line(alert_line(alert))}{over}  [{alert.rule}]")
        if verbose:
            lines += [f"    {one_line(line)}" for line in _details(alert, specs.get(alert.rule))]
    if verbose and result.picture.alerts.unjudged:
        lines.append("not judged:")
        lines += [f"    {rule}: {why}" for rule, why in result.picture.alerts.unjudged]
    return "\n".join(lines)


def _details(alert: Alert, spec: RuleSpec | None) -> list[str]:
    lines = [f"{label}: {value}" for label, value in alert.evidence]
    if spec is not None:
        todo = runbook(spec, alert)
        lines.append(todo.meaning)
        lines += [f"check: {one}" for one in todo.checks]
        lines += [f"remedy: {todo.remedy}"] if todo.remedy else []
    lines += [f"fix: specdash apply {_assignment(key, value)}" for key, value in alert.fix]
    return lines


def _assignment(key: str, value: str | None) -> str:
    return f"-{key}" if value is None else f"{key}={value}"


def as_json(result: Verdict, rules: Sequence[Rule]) -> dict[str, Any]:
    """The result as a JSON-ready object."""
    specs = {rule.spec.id: rule.spec for rule in rules}
    backend = result.picture.backend
    return {
        "schema": SCHEMA,
        "status": result.status.name,
        "exit_code": int(result.status),
        "line": _words(result),
        "cause": result.picture.alerts.cause or None,
        "url": backend.url,
        "state": str(backend.state),
        "reason": backend.reason or None,
        "trial": trial_json(result.picture),
        "seconds": round(result.seconds, 3),
        "judged": result.judged,
        "alerts": [{**alert_json(one), "runbook": _runbook(specs.get(one.rule), one)} for one in result.alerts],
        "unjudged": dict(result.picture.alerts.unjudged),
        "performance": {name: value for name, (value, _) in performance(result).items()},
    }


def _runbook(spec: RuleSpec | None, alert: Alert | None = None) -> dict[str, Any] | None:
    if spec is None:
        return None
    todo = runbook(spec, alert)
    return {"meaning": todo.meaning, "checks": list(todo.checks), "remedy": todo.remedy or None}


def catalogue_text(rules: Iterable[Rule]) -> str:
    """All rules, for people: one line each, with the limits in force."""
    rows = [rule.spec for rule in rules]
    width = max((len(spec.id) for spec in rows), default=0)
    return "\n".join(f"{_severity(spec):<9} {spec.id:<{width}}  {spec.title}{_limits(spec.limits)}" for spec in rows)


def _severity(spec: RuleSpec) -> str:
    return str(spec.severity) if spec.enabled else "off"


def _limits(limits: Mapping[str, float]) -> str:
    named = ", ".join(f"{name} {value:g}" for name, value in limits.items())
    return f" ({named})" if named else ""


def catalogue_json(rules: Iterable[Rule]) -> list[dict[str, Any]]:
    """All rules with everything that is said of them."""
    return [
        {
            "rule": spec.id,
            "family": spec.family,
            "title": spec.title,
            "severity": str(spec.severity),
            "enabled": spec.enabled,
            "raise_after_s": spec.raise_after_s,
            "clear_after_s": spec.clear_after_s,
            "limits": dict(spec.limits),
            "needs": [str(source) for source in spec.needs],
            "counters": list(spec.counters),
            "explains": list(spec.explains),
            "runbook": _runbook(spec),
        }
        for spec in (rule.spec for rule in rules)
    ]
