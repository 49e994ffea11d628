"""The incident in Markdown, for a ticket: state, likely cause, alerts with what to do, timeline, figures, changes."""

from __future__ import annotations

import math
import os
import re
from collections import Counter, deque
from typing import TYPE_CHECKING

from specdash import __version__
from specdash.core.changes import ApplyOutcome
from specdash.export.incident.redaction import changed_lines
from specdash.insight.charts import CHARTS, Metric
from specdash.insight.rules.catalogue import runbook
from specdash.insight.speedup.verdict import verdict
from specdash.llama.log import LINE_CLASSES
from specdash.llama.log.forms import split_port
from specdash.llama.log.safe import bare, recognise, safe_line
from specdash.llama.log.server_lines import LIFE_CYCLE_CLASSES, SERVER_STARTING
from specdash.system.data import dataclass
from specdash.system.stats import median
from specdash.system.text import (
    UNKNOWN,
    about,
    change,
    clock,
    counted,
    markdown_table,
    percent,
    significant,
    size,
    timestamp,
    zone,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from specdash.core.changes import ApplyRecord
    from specdash.core.records import Alert
    from specdash.export.incident.bundle import EnvPart, IncidentSpan, Missing, Parts
    from specdash.insight.picture import Picture
    from specdash.llama.log.forms import ReadLine


# The log around warnings and errors, line by line rebuilt (see `specdash.llama.log.safe`), and never much of it.

READ_BYTES = 8 * 1024 * 1024
"""How much of the end of a log is looked at."""
MAX_LINES = 1500
BEFORE, AFTER = 4, 3
"""Recognised lines shown around a warning."""
LAST = 12
"""How many recognised lines of the log's end are shown: a server's last words."""
SHOWN_OF_A_CLASS = 5
"""Warnings of one class that are shown in a row of time, before they are only counted."""
QUIET_S = 60.0
"""After so long without one, a warning of a class is shown again."""
_BACKWARDS_S = 1.0
_CHATTER = frozenset({"verification_step", "request_detail", "prefill_progress", "decode_progress"})
"""Classes of which a request prints many."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """What is shown of a log, one text a line; how many lines of the span were looked at, and what each class had."""

    path: str
    lines: tuple[str, ...]
    looked_at: int
    left_out: int
    """Lines of the span that are not shown."""
    counts: tuple[tuple[str, int], ...] = ()
    """Per class that was found in the span, how many lines; of all, shown or not."""
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Line:
    raw: bytes
    known: ReadLine
    wall: float | None


def excerpt(path: Path, span: IncidentSpan, *, read_bytes: int = READ_BYTES) -> Excerpt:
    """The lines of the span that matter. Raises OSError for a file that cannot be read."""
    data, written_at, is_cut = _end_of(path, read_bytes)
    cut = [f"only the last {size(read_bytes)} of the log were looked at; earlier lines are missing"] if is_cut else []
    return excerpt_of(str(path), data, written_at, span, cut)


def excerpt_of(place: str, data: bytes, written_at: float, span: IncidentSpan, cut: Sequence[str] = ()) -> Excerpt:
    """The lines of the span that matter, of a log whose last line was written at that Unix time. `cut` says why
    earlier lines are missing."""
    remarks: list[str] = []
    dated = _dated(data.split(b"\n"), written_at)
    if any(line.wall is not None for line in dated):
        inside = _of_span(dated, span)
    else:
        inside = dated[-MAX_LINES:]
        remarks.append("the log's lines have no time stamps: these are its last lines, of any span")
    first = next((line.wall for line in dated if line.wall is not None), None)
    if first is None or first > span.since:
        remarks += cut
    shown = _selected(inside)
    counts = Counter(line.known.line_class.id for line in inside if line.raw)
    lines = _with_gaps(inside, shown)
    if len(lines) > MAX_LINES:
        remarks.append(
            f"the first {len(lines) - MAX_LINES} lines of this excerpt were left out: it has {MAX_LINES} at most"
        )
    return Excerpt(
        place,
        tuple(lines[-MAX_LINES:]),
        sum(counts.values()),
        max(0, sum(counts.values()) - min(len(shown), MAX_LINES)),
        tuple(counts.most_common()),
        tuple(remarks),
    )


def _end_of(path: Path, limit: int) -> tuple[bytes, float, bool]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        start = max(0, status.st_size - limit)
        file.seek(start)
        data = file.read(limit)
    if start:
        _, _, data = data.partition(b"\n")
    return data, status.st_mtime, start > 0


def _dated(lines: Iterable[bytes], written_at: float) -> list[_Line]:
    """Every line with when it was written: the newest when the file was, a server's last when the next one began."""
    found: list[tuple[bytes, ReadLine, float | None]] = []
    begins: list[int] = []
    clock: float | None = None
    for raw in map(bare, lines):
        port, own = split_port(raw)
        known = recognise(own)
        seconds = known.seconds(own) if port is None else None
        back = clock is not None and seconds is not None and seconds < clock - _BACKWARDS_S
        if back or (known.line_class.id == SERVER_STARTING and port is None and found):
            begins.append(len(found))
            clock = None
        clock = seconds if seconds is not None else clock
        found.append((raw, known, seconds))
    dated: deque[_Line] = deque()
    ended = written_at
    for begin, end in zip([0, *begins][::-1], [*begins, len(found)][::-1], strict=True):
        newest = next((pair[2] for pair in reversed(found[begin:end]) if pair[2] is not None), None)
        offset = ended - newest if newest is not None else None
        wall: float | None = None
        life = []
        for raw, known, seconds in found[begin:end]:
            # A line without a stamp belongs to the one before it.
            wall = offset + seconds if offset is not None and seconds is not None else wall
            life.append(_Line(raw, known, wall))
        dated.extendleft(reversed(life))
        ended = offset if offset is not None else ended
    return list(dated)


def _of_span(lines: Sequence[_Line], span: IncidentSpan) -> list[_Line]:
    # The file's time is that of its last write, and a line may be a moment older.
    return [line for line in lines if line.wall is not None and span.since - 1 <= line.wall <= span.until + 1]


def _selected(lines: Sequence[_Line]) -> dict[int, str]:
    """Which lines are shown, by index, as they are shown."""
    shown: dict[int, str] = {}
    in_a_row: Counter[str] = Counter()
    seen_at: dict[str, float] = {}
    for at, line in enumerate(lines):
        line_class = line.known.line_class
        life = line_class.id in LIFE_CYCLE_CLASSES and line.known.level != "D"
        if line_class.severity is None and not life:
            continue
        if line.wall is not None:
            if line.wall - seen_at.get(line_class.id, line.wall) > QUIET_S:
                in_a_row[line_class.id] = 0
            seen_at[line_class.id] = line.wall
        in_a_row[line_class.id] += 1
        if in_a_row[line_class.id] > SHOWN_OF_A_CLASS:
            continue
        _show(shown, lines, at)
        if line_class.severity is not None and in_a_row[line_class.id] == 1:
            around = [*range(max(0, at - BEFORE), at), *range(at + 1, min(len(lines), at + AFTER + 1))]
            for near in around:
                if _is_telling(lines[near]):
                    _show(shown, lines, near)
    seen = [at for at, line in enumerate(lines) if _is_telling(line)]
    for at in seen[-LAST:]:
        _show(shown, lines, at)
    return dict(sorted(shown.items()))


def _is_telling(line: _Line) -> bool:
    """Whether it is worth a line around a warning."""
    return line.known.pattern is not None and line.known.level != "D" and line.known.line_class.id not in _CHATTER


def _show(shown: dict[int, str], lines: Sequence[_Line], at: int) -> None:
    if at not in shown:
        made = safe_line(lines[at].raw)
        wall = lines[at].wall
        shown[at] = made.text if wall is None else f"{clock(wall)}  {made.text}"


def _with_gaps(lines: Sequence[_Line], shown: dict[int, str]) -> list[str]:
    """The shown lines, and between them how many of which class were left out."""
    parts_shown: list[str] = []
    after = 0
    for at, text in shown.items():
        parts_shown += _gap(lines[after:at])
        parts_shown.append(text)
        after = at + 1
    return parts_shown + _gap(lines[after:])


def _gap(lines: Sequence[_Line]) -> list[str]:
    counts = Counter(line.known.line_class.id for line in lines if line.raw)
    if not counts:
        return []
    most = ", ".join(f"{count:,} {_title(name)}" for name, count in counts.most_common(3))
    more = f", and {len(counts) - 3} more" if len(counts) > 3 else ""
    total = sum(counts.values())
    return [f"          [{counted(total, 'line')} left out: {most}{more}]"]


def _title(name: str) -> str:
    return f"of “{LINE_CLASSES[name].title}”"


LEAST_SAMPLES = 3


@dataclass(frozen=True, slots=True)
class Pivot:
    """The moment that separates before and after, and what it was."""

    at: float
    what: str


@dataclass(frozen=True, slots=True)
class IncidentFigure:
    """One series: medians of both sides, None where there are too few values. A unit of % has fractions."""

    title: str
    unit: str
    before: float | None
    after: float | None
    low: float
    high: float

    @property
    def change(self) -> float | None:
        """After less before, as a share of before; of fractions their difference."""
        if self.before is None or self.after is None:
            return None
        if self.unit == "%":
            return self.after - self.before
        return (self.after - self.before) / self.before if self.before else None


def pivot(parts: Parts) -> Pivot | None:
    """When the worst alert of the span began, else its last apply; None when nothing happened in it."""
    inside = [alert for alert in parts.alerts if parts.span.since < alert.since < parts.span.until]
    if inside:
        worst = max(inside, key=lambda alert: (alert.severity.rank, -alert.since))
        return Pivot(worst.since, f"the alert “{worst.title}” began")
    applied = [
        apply
        for apply in parts.applies
        if apply.outcome is not ApplyOutcome.REFUSED and parts.span.since < apply.at < parts.span.until
    ]
    if applied:
        return Pivot(applied[-1].ended_at, f"{applied[-1].kind} {applied[-1].number} ended")
    return None


def figures(parts: Parts, at: Pivot | None) -> tuple[IncidentFigure, ...]:
    """Every series that has values. Without a pivot, all of them are `after`."""
    found: list[IncidentFigure] = []
    for metric in Metric:
        known = [(when, value) for when, value in parts.series.get(metric, ()) if math.isfinite(value)]
        if not known:
            continue
        values = [value for _, value in known]
        before = [value for when, value in known if at is not None and when < at.at]
        after = [value for when, value in known if at is None or when >= at.at]
        spec = CHARTS[metric]
        found.append(
            IncidentFigure(
                spec.title,
                spec.unit,
                _median(before),
                _median(after, 1 if at is None else LEAST_SAMPLES),
                min(values),
                max(values),
            )
        )
    return tuple(found)


def _median(values: list[float], least: int = LEAST_SAMPLES) -> float | None:
    return median(values) if len(values) >= least else None


MOST_EVENTS = 60
MOST_ALERTS = 12
MOST_CHECKS = 6
_SPECIAL = re.compile(r"([\\`*\[\]<>|]|(?<!\w)_|_(?!\w))")


def summary(parts: Parts, missing: Sequence[Missing]) -> str:
    """The Markdown text of redacted parts."""
    span = f"{timestamp(parts.span.since)} to {clock(parts.span.until)} ({about(parts.span.seconds)})"
    written = f"Written {timestamp(parts.made)} by specdash {__version__}."
    lines = [
        f"# Incident: {_code(parts.url)}",
        "",
        f"{span}, times are {zone(parts.span.until)}. {written}",
        "",
        f"**State:** {_md(state_sentence(parts.picture))}",
        "",
        *([f"**Speculation:** {_md(verdict(parts.picture).words)}", ""] if parts.picture is not None else []),
        f"**Likely cause:** {_md(parts.cause)}." if parts.cause else f"**Likely cause:** {_no_cause(parts)}",
        "",
        *_alerts(parts),
        *_timeline(parts),
        *_figures(parts),
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
    yield from (
        f"### {alert.severity.upper()}: {_md(alert.title + subject)}",
        "",
        f"{clock(alert.since)}, {ended} ({about(max(0.0, lasted))}). {_md(_capital(alert.summary))}.",
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
        ended = f" (until {clock(event.ended)})" if event.ended is not None else ""
        rows.append((clock(event.at), kind, event.title + ended, event.detail))
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
        rows = [(figure.title, _value(figure, figure.after), _extremes(figure)) for figure in found]
        yield from _table(("figure", "median", "least to most"), rows)
        return
    yield from (f"Medians before and after {clock(at.at)}, when {_md(at.what)}.", "")
    full = [
        (figure.title, _value(figure, figure.before), _value(figure, figure.after), _change(figure), _extremes(figure))
        for figure in found
    ]
    yield from _table(("figure", "before", "after", "change", "least to most"), full)


def _value(figure: IncidentFigure, value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return percent(value, 1) if figure.unit == "%" else f"{significant(value)} {figure.unit}"


def _extremes(figure: IncidentFigure) -> str:
    return f"{_value(figure, figure.low)} to {_value(figure, figure.high)}"


def _change(figure: IncidentFigure) -> str:
    return change(figure.change, unit=" points" if figure.unit == "%" else " %")


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
        f"### {str(record.kind).capitalize()} {record.number}: {record.outcome} ({clock(record.at)}{profile}{down})",
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
    rows = [
        (str(known.severity), known.title, f"{count:,}")
        for known, count in ((LINE_CLASSES[name], count) for name, count in parts.log.counts)
        if known.severity is not None
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
    rows += [("GPU", gpu.name or f"GPU {gpu.index}") for gpu in gpus]
    if parts.command is not None:
        rows.append(("command", " ".join(parts.command)))
    if rows:
        yield from ("## System", "")
        yield from _table(("what", "which"), rows)


def _missing(missing: Sequence[Missing]) -> Iterator[str]:
    if missing:
        yield from (
            "## Not in this bundle",
            "",
            *(f"- {_md(missing.part)}: {_md(missing.why)}" for missing in missing),
            "",
        )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield from (markdown_table([head, *([_md(cell) or " " for cell in row] for row in rows)]), "")


def _md(text: str) -> str:
    """A text that cannot become markup, but for pairs of backticks, which specdash adds."""
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
