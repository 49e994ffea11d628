"""The incident in Markdown, for a ticket: state, likely cause, alerts with what to do, timeline, figures, changes."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from specdash import __version__
from specdash.core.changes import ApplyOutcome
from specdash.insight.charts import CHARTS
from specdash.insight.rules.catalogue import runbook
from specdash.insight.speedup.verdict import verdict
from specdash.llama.log import LINE_CLASSES
from specdash.system.stats import median
from specdash.system.text import UNKNOWN, change, clock, duration, markdown_table, percent, significant, timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from specdash.core.records import Alert
    from specdash.export.incident.bundle import Parts
    from specdash.insight.picture import Picture

LEAST_SAMPLES = 3
MOST_EVENTS = 60
MOST_ALERTS = 12
MOST_CHECKS = 6
_SPECIAL = re.compile(r"([\\`*\[\]<>|]|(?<!\w)_|_(?!\w))")


def pivot(parts: Parts) -> tuple[float, str] | None:
    """The moment that separates before and after, and what it was: when the worst alert of the span began, else when
    its last change ended; None when nothing happened in it."""
    inside = [alert for alert in parts.alerts if parts.span.since < alert.since < parts.span.until]
    if inside:
        worst = max(inside, key=lambda alert: (alert.severity.rank, -alert.since))
        return worst.since, f"the alert “{worst.title}” began"
    made = [apply for apply in parts.applies if apply.outcome is not ApplyOutcome.REFUSED]
    return (made[-1].ended_at, f"{made[-1].kind} {made[-1].number} ended") if made else None


def state_sentence(picture: Picture | None) -> str:
    """How the server is at the time of writing."""
    if picture is None:
        return "not looked at."
    backend, speculation = picture.backend, picture.backend.speculation
    words = [f"the server was {backend.state.upper()} when this was written"]
    words += [f": {backend.reason.rstrip('.')}"] if backend.reason else []
    words += [f"; model {backend.model}"] if backend.model else []
    if speculation.active is not None:
        types = f" ({', '.join(speculation.types)})" if speculation.types else ""
        words.append(f", speculation {'active' if speculation.active else 'NOT active'}{types}")
    return "".join(words) + "."


def summary(parts: Parts) -> str:
    """The Markdown text. It is redacted when it is written."""
    zone = time.strftime("UTC%z", time.localtime(parts.span.until))
    span = f"{timestamp(parts.span.since)} to {clock(parts.span.until)} ({duration(parts.span.seconds)})"
    nothing = "no rule names one; see the alerts" if parts.alerts else "none: no alert was raised in this time"
    lines = [
        f"# Incident: {_code(parts.url)}",
        "",
        f"{span}, times are {zone}. Written {timestamp(parts.made)} by specdash {__version__}.",
        "",
        f"**State:** {_md(state_sentence(parts.picture))}",
        "",
        *([f"**Speculation:** {_md(verdict(parts.picture).words)}", ""] if parts.picture is not None else []),
        f"**Likely cause:** {_md(parts.cause or nothing)}.",
        "",
        *_alerts(parts),
        *_timeline(parts),
        *_figures(parts),
        *_changes(parts),
        *_log(parts),
        *_system(parts),
    ]
    if parts.missing:
        lines += ["## Not in this bundle", "", *(f"- {_md(part)}: {_md(why)}" for part, why in parts.missing), ""]
    return "\n".join(lines).rstrip() + "\n"


def _alerts(parts: Parts) -> Iterator[str]:
    if not parts.alerts:
        return
    active = sum(alert.is_active for alert in parts.alerts)
    yield from ("## Alerts", "", f"{active} active, {len(parts.alerts) - active} over.", "")
    worst_first = sorted(parts.alerts, key=lambda alert: (not alert.is_active, -alert.severity.rank, alert.since))
    explained: set[str] = set()
    for alert in worst_first[:MOST_ALERTS]:
        yield from _alert(alert, parts, with_runbook=alert.rule not in explained)
        explained.add(alert.rule)
    if len(worst_first) > MOST_ALERTS:
        yield from (f"{len(worst_first) - MOST_ALERTS} more are in `alerts.json`.", "")


def _alert(alert: Alert, parts: Parts, *, with_runbook: bool) -> Iterator[str]:
    subject = f" ({alert.subject})" if alert.subject else ""
    ended = f"until {clock(alert.ended)}" if alert.ended is not None else "still active"
    lasted = (alert.ended if alert.ended is not None else parts.span.until) - alert.since
    first = alert.summary[:1].upper()
    yield from (
        f"### {alert.severity.upper()}: {_md(alert.title + subject)}",
        "",
        f"{clock(alert.since)}, {ended} ({duration(max(0.0, lasted))}). {_md(first + alert.summary[1:])}.",
        "",
    )
    if alert.evidence:
        yield from (*(f"- {_md(label)}: {_md(value)}" for label, value in alert.evidence), "")
    spec = parts.rules.get(alert.rule)
    if spec is not None and with_runbook:
        todo = runbook(spec, alert)
        yield from (f"*What it means:* {_md(todo.meaning)}", "")
        if todo.checks:
            checks = (f"{at}. {check}" for at, check in enumerate(todo.checks[:MOST_CHECKS], 1))
            yield from ("*What to check:*", "", *checks, "")
        if todo.remedy:
            yield from (f"*What helps:* {_md(todo.remedy)}", "")
    if alert.fix:
        settings = (
            _code(f"{key}={value}") if value is not None else f"remove {_code(key)}" for key, value in alert.fix
        )
        yield from (f"*Settings that would help:* {', '.join(settings)}", "")


def _timeline(parts: Parts) -> Iterator[str]:
    yield from ("## Timeline", "")
    if not parts.events:
        yield from ("No event is known in this time.", "")
        return
    rows = []
    for event in parts.events[-MOST_EVENTS:]:
        kind = f"{event.kind} ({event.severity})" if event.severity is not None else str(event.kind)
        ended = f" (until {clock(event.ended)})" if event.ended is not None else ""
        rows.append((clock(event.at), kind, event.title + ended, event.detail))
    if len(parts.events) > MOST_EVENTS:
        yield from (f"The last {MOST_EVENTS} of {len(parts.events)}; all are in `events.json`.", "")
    yield from _table(("time", "kind", "what", "detail"), rows)


def _figures(parts: Parts) -> Iterator[str]:
    """Medians of every series that has values, before and after the pivot."""
    if not parts.series:
        return
    at = pivot(parts)
    rows = []
    for metric, points in parts.series.items():
        unit = CHARTS[metric].unit
        sides = [[value for when, value in points if at is None or (when < at[0]) is first] for first in (True, False)]
        before, after = (median(side) if len(side) >= LEAST_SAMPLES else None for side in sides)
        shown = [_value(before, unit), _value(after, unit), _change(before, after, unit)]
        rows.append((CHARTS[metric].title, *(shown[1:2] if at is None else shown)))
    yield from ("## Key figures", "")
    if at is None:
        yield from ("Medians of the whole span: no alert or change in it separates a before from an after.", "")
        yield from _table(("figure", "median"), rows)
    else:
        yield from (f"Medians before and after {clock(at[0])}, when {_md(at[1])}.", "")
        yield from _table(("figure", "before", "after", "change"), rows)


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return UNKNOWN
    return percent(value, 1) if unit == "%" else f"{significant(value)} {unit}"


def _change(before: float | None, after: float | None, unit: str) -> str:
    """After less before, as a share of before; of fractions in points."""
    if before is None or after is None or (unit != "%" and not before):
        return UNKNOWN
    return change(after - before, unit=" points") if unit == "%" else change((after - before) / before, unit=" %")


def _changes(parts: Parts) -> Iterator[str]:
    if not parts.applies:
        return
    yield from ("## Changes", "")
    for record in parts.applies:
        profile = f", profile {_md(record.profile)}" if record.profile else ""
        down = f", {record.downtime_s:.1f} s without a server" if record.downtime_s is not None else ""
        kind = str(record.kind).capitalize()
        yield from (f"### {kind} {record.number}: {record.outcome} ({clock(record.at)}{profile}{down})", "")
        if record.reason:
            failed = f"Failed at {record.failed_step}: " if record.failed_step is not None else ""
            yield from (f"{failed}{_md(record.reason)}", "")
        if record.changes:
            sides = [(sign, change.key, value) for change in record.changes
                     for sign, value in (("-", change.before), ("+", change.after)) if value is not None]  # fmt: skip
            yield from ("```diff", *(_fenced(f"{sign} {key}={value}") for sign, key, value in sides), "```", "")


def _log(parts: Parts) -> Iterator[str]:
    if parts.log is None:
        return
    counts = ((LINE_CLASSES[name], count) for name, count in parts.log.counts)
    rows = [(str(known.severity), known.title, f"{count:,}") for known, count in counts if known.severity is not None]
    yield from ("## Warnings in the log", "")
    if rows:
        yield from _table(("severity", "what", "lines"), rows)
    else:
        yield from (f"None in {sum(count for _, count in parts.log.counts):,} lines of this time.", "")


def _system(parts: Parts) -> Iterator[str]:
    rows = [(name, str(value)) for name, value in parts.versions.items() if name != "packages" and value is not None]
    rows += [("GPU", gpu.name or f"GPU {gpu.index}") for gpu in (parts.picture.gpu.gpus if parts.picture else ())]
    if parts.machine.get("command"):
        rows.append(("command", " ".join(parts.machine["command"])))
    if rows:
        yield from ("## System", "")
        yield from _table(("what", "which"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield from (markdown_table([head, *([_md(cell) or " " for cell in row] for row in rows)]), "")


def _md(text: str) -> str:
    """A text that cannot become markup, but for pairs of backticks, which specdash adds."""
    pieces = " ".join(text.split()).split("`")
    if len(pieces) % 2 == 0:
        return _SPECIAL.sub(r"\\\1", "`".join(pieces))
    shown = [piece.replace("|", r"\|") if at % 2 else _SPECIAL.sub(r"\\\1", piece) for at, piece in enumerate(pieces)]
    return "`".join(shown)


def _code(text: str) -> str:
    return f"`{' '.join(text.replace('`', '').split())}`"


def _fenced(text: str) -> str:
    return " ".join(text.replace("```", "'''").splitlines())
