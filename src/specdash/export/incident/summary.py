"""The incident in Markdown, for a ticket: state, likely cause, alerts with what to do, timeline, figures, changes."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from specdash import __version__
from specdash.export.incident.envs import changed_lines
from specdash.export.incident.figures import figures, pivot
from specdash.insight.rules.runbook import runbook

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from specdash.core.alerts import Alert
    from specdash.core.applies import ApplyRecord
    from specdash.export.incident.figures import Figure
    from specdash.export.incident.parts import EnvPart, Missing, Parts
    from specdash.insight.picture import Picture

MOST_EVENTS = 60
MOST_ALERTS = 12
MOST_CHECKS = 6
_SPECIAL = re.compile(r"([\\`*\[\]<>|]|(?<!\w)_|_(?!\w))")


def summary(parts: Parts, plots: Sequence[tuple[str, str]], missing: Sequence[Missing]) -> str:
    """The Markdown text of redacted parts. `plots` are (title, file name) of those that were drawn."""
    span = f"{_when(parts.span.since, date=True)} to {_when(parts.span.until)} ({_length(parts.span.seconds)})"
    written = f"Written {_when(parts.made, date=True)} by specdash {__version__}."
    lines = [
        f"# Incident: {_code(parts.url)}",
        "",
        f"{span}, times are {_zone(parts.span.until)}. {written}",
        "",
        f"**State:** {_md(state_sentence(parts.picture))}",
        "",
        f"**Likely cause:** {_md(parts.cause)}." if parts.cause else f"**Likely cause:** {_no_cause(parts)}",
        "",
        *_alerts(parts),
        *_timeline(parts),
        *_figures(parts),
        *_plots(plots),
        *_applies(parts),
        *_log(parts),
        *_system(parts),
        *_missing(missing),
    ]
    return "\n".join(lines).rstrip() + "\n"


def state_sentence(picture: Picture | None) -> str:
    """How the server is at the time of writing."""
    if picture is None:
        return "not looked at."
    backend = picture.backend
    words = [f"the server was {backend.state.upper()} when this was written"]
    if backend.reason:
        words.append(f": {backend.reason.rstrip('.')}")
    if backend.model:
        words.append(f"; model {backend.model}")
    speculation = backend.speculation
    if speculation.active is not None:
        types = f" ({', '.join(speculation.types)})" if speculation.types else ""
        words.append(f", speculation {'active' if speculation.active else 'NOT active'}{types}")
    return "".join(words) + "."


def _no_cause(parts: Parts) -> str:
    return "no rule names one; see the alerts." if parts.alerts else "none: no alert was raised in this time."


def _alerts(parts: Parts) -> Iterator[str]:
    if not parts.alerts:
        return
    active = [alert for alert in parts.alerts if alert.is_active]
    past = [alert for alert in parts.alerts if not alert.is_active]
    yield from ("## Alerts", "", f"{len(active)} active, {len(past)} over.", "")
    worst_first = sorted(parts.alerts, key=lambda one: (not one.is_active, -one.severity.rank, one.since))
    told: set[str] = set()
    for alert in worst_first[:MOST_ALERTS]:
        yield from _alert(alert, parts, with_runbook=alert.rule not in told)
        told.add(alert.rule)
    if len(worst_first) > MOST_ALERTS:
        yield from (f"{len(worst_first) - MOST_ALERTS} more are in `alerts.json`.", "")


def _alert(alert: Alert, parts: Parts, *, with_runbook: bool) -> Iterator[str]:
    subject = f" ({alert.subject})" if alert.subject else ""
    ended = f"until {_when(alert.ended)}" if alert.ended is not None else "still active"
    lasted = (alert.ended if alert.ended is not None else parts.span.until) - alert.since
    yield from (
        f"### {alert.severity.upper()}: {_md(alert.title + subject)}",
        "",
        f"{_when(alert.since)}, {ended} ({_length(max(0.0, lasted))}). {_md(_capital(alert.summary))}.",
        "",
    )
    if alert.evidence:
        yield from (f"- {_md(label)}: {_md(value)}" for label, value in alert.evidence)
        yield ""
    spec = parts.rules.get(alert.rule)
    if spec is not None and with_runbook:
        todo = runbook(spec, alert)
        yield from (f"*What it means:* {_md(todo.meaning)}", "")
        if todo.checks:
            yield from ("*What to check:*", "")
            yield from (f"{at}. {check}" for at, check in enumerate(todo.checks[:MOST_CHECKS], 1))
            yield ""
        if todo.remedy:
            yield from (f"*What helps:* {_md(todo.remedy)}", "")
    if alert.fix:
        settings = ", ".join(
            _code(f"{key}={value}") if value is not None else f"remove {_code(key)}" for key, value in alert.fix
        )
        yield from (f"*Settings that would help:* {settings}", "")


def _timeline(parts: Parts) -> Iterator[str]:
    yield from ("## Timeline", "")
    if not parts.events:
        yield from ("Nothing is known to have happened.", "")
        return
    rows = []
    for event in parts.events[-MOST_EVENTS:]:
        kind = f"{event.kind} ({event.severity})" if event.severity is not None else str(event.kind)
        ended = f" (until {_when(event.ended)})" if event.ended is not None else ""
        rows.append((_when(event.at), kind, event.title + ended, event.detail))
    if len(parts.events) > MOST_EVENTS:
        yield from (f"The last {MOST_EVENTS} of {len(parts.events)}; all are in `events.json`.", "")
    yield from _table(("time", "kind", "what", "detail"), rows)


def _figures(parts: Parts) -> Iterator[str]:
    at = pivot(parts)
    found = figures(parts, at)
    if not found:
        return
    yield from ("## Key figures", "")
    if at is None:
        yield from ("Medians of the whole span: nothing happened in it that would divide it.", "")
        rows = [(one.title, _value(one, one.after), _extremes(one)) for one in found]
        yield from _table(("figure", "median", "least to most"), rows)
        return
    yield from (f"Medians before and after {_when(at.at)}, when {_md(at.what)}.", "")
    full = [(one.title, _value(one, one.before), _value(one, one.after), _change(one), _extremes(one)) for one in found]
    yield from _table(("figure", "before", "after", "change", "least to most"), full)


def _value(figure: Figure, value: float | None) -> str:
    if value is None:
        return "--"
    return f"{value * 100:.1f} %" if figure.unit == "%" else f"{_number(value)} {figure.unit}"


def _extremes(figure: Figure) -> str:
    return f"{_value(figure, figure.low)} to {_value(figure, figure.high)}"


def _change(figure: Figure) -> str:
    if figure.change is None:
        return "--"
    return f"{figure.change * 100:+.1f} {'points' if figure.unit == '%' else '%'}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _plots(plots: Sequence[tuple[str, str]]) -> Iterator[str]:
    if not plots:
        return
    yield from ("## Plots", "", "Lines and bands mark alerts and applies.", "")
    for title, name in plots:
        yield from (f"![{_md(title)}]({name})", "")


def _applies(parts: Parts) -> Iterator[str]:
    changed = [(part, lines) for part in parts.envs if (lines := changed_lines(part, parts.redactor))]
    if not parts.applies and not changed:
        return
    yield from ("## Changes", "")
    for record in parts.applies:
        yield from _apply(record)
    for part, lines in changed:
        yield from _env_change(part, lines)


def _apply(record: ApplyRecord) -> Iterator[str]:
    profile = f", profile {_md(record.profile)}" if record.profile else ""
    down = f", {record.downtime_s:.1f} s without a server" if record.downtime_s is not None else ""
    yield from (
        f"### {str(record.kind).capitalize()} {record.number}: {record.outcome} ({_when(record.at)}{profile}{down})",
        "",
    )
    if record.reason:
        failed = f"Failed at {record.failed_step}: " if record.failed_step is not None else ""
        yield from (f"{failed}{_md(record.reason)}", "")
    if record.changes:
        yield "```diff"
        for change in record.changes:
            if change.before is not None:
                yield _fenced(f"- {change.key}={change.before}")
            if change.after is not None:
                yield _fenced(f"+ {change.key}={change.after}")
        yield from ("```", "")


def _env_change(part: EnvPart, lines: Sequence[str]) -> Iterator[str]:
    yield from (f"### The {part.role}'s env file over the whole span", "", "```diff", *map(_fenced, lines), "```", "")


def _log(parts: Parts) -> Iterator[str]:
    if parts.log is None:
        return
    from specdash.llama.log_grammar import WARNING_CLASSES

    rows = [
        (str(WARNING_CLASSES[name].severity), WARNING_CLASSES[name].title, f"{count:,}")
        for name, count in parts.log.counts
        if name in WARNING_CLASSES
    ]
    yield from ("## Warnings in the log", "")
    if rows:
        yield from _table(("severity", "what", "lines"), rows)
    else:
        yield from (f"None in {parts.log.looked_at:,} lines of this time.", "")


def _system(parts: Parts) -> Iterator[str]:
    versions = parts.versions
    rows = [(name, str(versions[name])) for name in versions if name != "packages" and versions[name] is not None]
    gpus = parts.picture.gpu.gpus if parts.picture is not None else ()
    rows += [("GPU", one.name or f"GPU {one.index}") for one in gpus]
    if parts.command is not None:
        rows.append(("command", " ".join(parts.command)))
    if rows:
        yield from ("## System", "")
        yield from _table(("what", "which"), rows)


def _missing(missing: Sequence[Missing]) -> Iterator[str]:
    if missing:
        yield from ("## Not in this bundle", "", *(f"- {_md(one.part)}: {_md(one.why)}" for one in missing), "")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(_md(cell) or ' ' for cell in row)} |"
    yield ""


def _md(text: str) -> str:
    """A text that cannot become markup, but for pairs of backticks: those are ours."""
    pieces = " ".join(text.split()).split("`")
    if len(pieces) % 2 == 0:
        return _SPECIAL.sub(r"\\\1", "`".join(pieces))
    shown = [piece.replace("|", r"\|") if at % 2 else _SPECIAL.sub(r"\\\1", piece) for at, piece in enumerate(pieces)]
    return "`".join(shown)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _code(text: str) -> str:
    return f"`{' '.join(text.replace('`', '').split())}`"


def _fenced(text: str) -> str:
    return " ".join(text.replace("```", "'''").splitlines())


def _when(at: float, *, date: bool = False) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S", time.localtime(at))


def _zone(at: float) -> str:
    shift = time.strftime("%z", time.localtime(at))
    return f"UTC{shift[:3]}:{shift[3:]}"


def _length(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
