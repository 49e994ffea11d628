"""The proxy's human log: its lines written, and read back from any journal, UAP's included."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specdash.core.proxy_events import Action, Guardrail, GuardrailEvent, Outcome, RequestEvent
from specdash.core.proxy_line_table import CONTEXT_LEVELS, LEVELS, QUIET, ROWS, Row
from specdash.core.proxy_line_template import Template, tail, typed
from specdash.core.token_speed import DECODE, told_speed

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_LINE = 4096
"""Longer lines are none of these."""
_DEBUG = 10
_SESSION, _REQUEST = "session", "request"
_TEMPLATES: tuple[tuple[Row, Template], ...] = tuple((row, Template(row.template)) for row in ROWS)
_HEAD = re.compile(r"[A-Za-z_]+")


def _by_head() -> dict[str, list[tuple[Row, Template]]]:
    found: dict[str, list[tuple[Row, Template]]] = {}
    for row, template in _TEMPLATES:
        head = _HEAD.match(row.template)
        found.setdefault(head[0] if head else "", []).append((row, template))
    return found


_BY_HEAD = _by_head()
_STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
"""What another proxy writes as its upstream said it, in the words of the Messages API."""
_NO_REASON = frozenset({"", "None", *Outcome})
"""Written for an end without a stop reason."""
_CLIENT_LEFT_STATUS = 499
_DAY = 86400.0
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_PREFIX = re.compile(
    r"(?:<[0-7]>)?"
    r"(?:(?P<syslog>[A-Z][a-z]{2} [ 0-3][0-9] [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?"
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\S{0,16}) \S{1,255} [^\s:\[\]]{1,255}(?:\[[0-9]+\])?: )?"
    r"(?:(?P<own>[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,6})?) )?"
    r"(?:\[[A-Z]{3,8}\] (?:[a-z_]\w*(?:\.\w+)*: )?|[a-z_]\w*(?:\.\w+)+: )?"
)
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})[ T]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]{1,6}))?")
_SYSLOG = re.compile(r"([A-Z][a-z]{2}) ([ 0-3][0-9]) ([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?")


@dataclass(frozen=True, slots=True)
class ContextLine:
    """A CONTEXT line: what the last turn of a session used of the window, in tokens. `at` is Unix time.

    `level` is None below ELEVATED, `turns_remaining` None when unknown; `session` is empty when the line has none.
    """

    tokens: int
    window: int
    level: str | None = None
    turns_remaining: int | None = None
    pruned: int = 0
    overflows: int = 0
    session: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Line:
    """Any line of the table. `guardrail` and `action` are None for one about no guardrail; `name` says which it is."""

    name: str
    guardrail: Guardrail | None
    action: Action | None
    facts: dict[str, Any] = field(default_factory=dict)
    session: str = ""
    request_id: str = ""
    at: float = 0.0


def note_text(
    guardrail: Guardrail, action: Action, facts: Mapping[str, Any], *, session: str = "", request_id: str = ""
) -> tuple[int, str]:
    """Level (of `logging`) and text of what a guardrail did."""
    known = {**facts, _SESSION: session, "action": action}
    for row, template in _TEMPLATES:
        wanted = row.guardrail is guardrail and row.action in {action, None} and not row.read_only
        if wanted and row.holds(facts) and template.fits(known):
            level = row.level if row.action is not None else LEVELS[action]
            said = template.said(known) | {name for name, _ in row.facts}
            text = template.write(known) + _ending(facts, said, session, request_id)
            return (_DEBUG if guardrail in QUIET and action is Action.APPLIED else level), text
    raise AssertionError(f"no line for {guardrail}:{action}")


def line_text(name: str, facts: Mapping[str, Any], *, session: str = "", request_id: str = "") -> tuple[int, str]:
    """Level and text of a line about no guardrail; `name` is its row's. Raises `KeyError` when facts are missing."""
    for row, template in _TEMPLATES:
        if row.name == name and not row.read_only and template.fits(facts):
            level = CONTEXT_LEVELS.get(facts.get("level"), row.level) if name == "context" else row.level
            return level, template.write(facts) + _ending(facts, template.said(facts), session, request_id)
    raise KeyError(f"{name}: facts missing")


def context_text(line: ContextLine) -> tuple[int, str]:
    """Level and text of a CONTEXT line."""
    facts = {
        "level": line.level,
        "tokens": line.tokens,
        "window": line.window,
        "utilisation": line.tokens / line.window if line.window else 0.0,
        "turns": line.turns_remaining,
        "pruned": line.pruned or None,
        "overflows": line.overflows or None,
    }
    return line_text("context", facts, session=line.session)


def read_line(text: str, at: float | None = None) -> Line | None:
    """What a log line says, whatever its prefix; None when it is none of the table. Never raises.

    `at` (Unix time, now unless given) counts when the line has no time stamp. Stamps without a zone are local time.
    """
    text = text.rstrip("\r\n")
    if len(text) > MAX_LINE:
        return None
    prefix = _PREFIX.match(text)
    message = text[prefix.end() :] if prefix is not None else text
    head = _HEAD.match(message)
    for row, template in _BY_HEAD.get(head[0], ()) if head is not None else ():
        found = template.read(message)
        if found is not None:
            now = time.time() if at is None else at
            return _line(row, *found, _stamp(prefix, now) if prefix is not None else now)
    return None


def parse_line(text: str, at: float | None = None) -> GuardrailEvent | RequestEvent | ContextLine | None:
    """The guardrail action, the end of a request or the context use that a log line tells, None for any other line.

    A `RequestEvent` knows what the line says and nothing else; its `at` is the end. See `read_line`.
    """
    line = read_line(text, at)
    if line is None:
        return None
    if line.guardrail is not None and line.action is not None:
        return GuardrailEvent(line.at, line.session, line.guardrail, line.action, line.request_id, line.facts)
    if line.name == "response":
        return _request(line)
    if line.name != "context":
        return None
    facts = line.facts
    return ContextLine(
        tokens=facts["tokens"],
        window=facts["window"],
        level=facts.get("level"),
        turns_remaining=facts.get("turns"),
        pruned=facts.get("pruned", 0),
        overflows=facts.get("overflows", 0),
        session=line.session,
        at=line.at,
    )


def _request(line: Line) -> RequestEvent:
    facts = line.facts
    finish, error = str(facts.get("finish", "")), facts.get("error")
    status, written = _whole(facts.get("status")), _whole(facts.get("output_tokens"))
    outcome = Outcome.OK
    if finish == Outcome.CLIENT_LEFT or status == _CLIENT_LEFT_STATUS:
        outcome = Outcome.CLIENT_LEFT
    elif finish == Outcome.ERROR or error or (status or 0) >= 400:
        outcome = Outcome.ERROR
    # Only our lines name the request; they leave out retries when there were none. Other proxies write 0 tokens when
    # the upstream told no number.
    ours = bool(line.request_id)
    return RequestEvent(
        at=line.at,
        session=line.session,
        request_id=line.request_id,
        path="",
        stream=None,
        strict=None,
        outcome=outcome,
        status=status,
        error_type=error if isinstance(error, str) and error else None,
        stop_reason=None if finish in _NO_REASON else _STOP_REASONS.get(finish, finish),
        ttft_s=_number(facts.get("ttft_s")),
        completion_tokens=written if ours else written or None,
        decode_rate=told_speed(_number(facts.get("tok_s")), written or None, DECODE),
        retries=_whole(facts.get("retries", 0)) if ours else None,
        tool_calls=() if facts.get("tool_calls") == 0 else None,
        guardrails=None,
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None


def _ending(facts: Mapping[str, Any], said: set[str], session: str, request_id: str) -> str:
    rest = {name: value for name, value in facts.items() if name not in said and name not in {_SESSION, _REQUEST}}
    rest[_REQUEST] = request_id
    if _SESSION not in said:
        rest[_SESSION] = session
    return tail(rest)


def _line(row: Row, facts: dict[str, Any], pairs: list[tuple[str, str]], at: float) -> Line:
    action = facts.pop("action", None) or row.action
    facts.update(row.facts)
    words = dict(pairs)
    session = facts.pop(_SESSION, None) or words.pop(_SESSION, "")
    words.pop(_SESSION, None)
    request_id = words.pop(_REQUEST, "")
    for name, text in words.items():
        facts.setdefault(name, typed(text))
    return Line(row.name, row.guardrail, action, facts, session, request_id, at)


def _stamp(prefix: re.Match[str], now: float) -> float:
    try:
        if text := prefix["own"] or prefix["syslog"]:
            date = _DATE.match(text)
            if date is None:
                return _syslog_stamp(text, now)
            year, month, day, hour, minute, second = map(int, date.groups()[:6])
            return _local(year, month, day, hour, minute, second, date[7])
    except (ValueError, OverflowError):
        pass
    return now


def _syslog_stamp(text: str, now: float) -> float:
    found = _SYSLOG.match(text)
    if found is None or found[1] not in _MONTHS:
        return now
    month, year = _MONTHS.index(found[1]) + 1, time.localtime(now).tm_year
    clock = int(found[2]), int(found[3]), int(found[4]), int(found[5])
    # The year is not told: the latest that does not lie ahead.
    this = _local(year, month, *clock, found[6])
    return this if this <= now + _DAY else _local(year - 1, month, *clock, found[6])


def _local(year: int, month: int, day: int, hour: int, minute: int, second: int, part: str | None) -> float:
    if not (year >= 1970 and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        raise ValueError("no such time")
    return time.mktime((year, month, day, hour, minute, second, 0, 0, -1)) + (float(f"0.{part}") if part else 0.0)
