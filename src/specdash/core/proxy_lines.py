"""The proxy's human log: its lines written, and read back from any journal, UAP's included."""

from __future__ import annotations

import logging
import re
import time
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from specdash.core.proxy_events import (
    DECODE,
    Guardrail,
    GuardrailAction,
    GuardrailEvent,
    RequestEvent,
    RequestOutcome,
    told_speed,
)
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LONGEST_WORD = 200
NOTHING = "-"
"""A word that is empty."""
_INT = r"-?[0-9]{1,18}"
_FLOAT = _INT + r"(?:\.[0-9]{1,18})?"
_TAIL = re.compile(r" ([a-z][a-z0-9_]{0,39})=(\S+)")
_TAIL_PATTERN = r"(?P<tail_>(?: [a-z][a-z0-9_]{0,39}=\S+)*)"
_PIECE = re.compile(r"\{(?P<fact>\w*):(?P<type>\w+)\}|(?P<mark>[\[\]])|(?P<literal>[^\[\]{}]+)")


def word(value: Any) -> str:
    """`value` without blanks and unprintable characters, bounded; a list's items are joined by commas."""
    text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    text = text[:LONGEST_WORD]
    if not text.isprintable() or " " in text:
        text = "".join(name if name.isprintable() and name != " " else "_" for name in text)
    return text or NOTHING


def _read_word(text: str) -> str:
    return "" if text == NOTHING else text


_TYPES: dict[str, tuple[str, Callable[[Any], str], Callable[[str], Any]]] = {
    "int": (_INT, lambda value: str(int(value)), int),
    "float": (_FLOAT, lambda value: f"{value:.1f}", float),
    "percent": (_FLOAT, lambda value: f"{value * 100:.1f}", lambda text: float(text) / 100),
    "percent0": (_FLOAT, lambda value: f"{value * 100:.0f}", lambda text: float(text) / 100),
    "word": (r"\S+?", word, _read_word),
    "action": ("|".join(GuardrailAction), str, GuardrailAction),
}
"""Of each type of value: what it looks like, how it is written, how it is read."""
_NUMBERS = frozenset({"int", "float", "percent", "percent0"})


class Template:
    """A compiled template."""

    def __init__(self, text: str) -> None:
        self._types: dict[str, str] = {}
        needed: set[str] = set()
        pattern, inside, skips = "", False, False
        pieces: list[tuple[str, str]] = []
        self._parts = [(inside, pieces)]
        for match in _PIECE.finditer(text):
            if match["mark"]:
                inside = match["mark"] == "["
                pieces = []
                self._parts.append((inside, pieces))
                pattern += "(?:" if inside else ")?"
            elif match["literal"]:
                pieces.append((match["literal"], ""))
                pattern += re.escape(match["literal"]).replace("–", "(?:–|--?)")
            elif match["type"] == "text":
                skips = True
                pattern += ".*"
            else:
                pieces.append((match["fact"], match["type"]))
                self._types[match["fact"]] = match["type"]
                pattern += f"(?P<{match['fact']}>{_TYPES[match['type']][0]})"
                if not inside:
                    needed.add(match["fact"])
        self._needed = frozenset(needed)
        self._pattern = pattern + ("" if skips else _TAIL_PATTERN)

    def fits(self, facts: Mapping[str, Any]) -> bool:
        """True when a line can be written of these facts."""
        return all(self._known(name, facts) for name in self._needed)

    def write(self, facts: Mapping[str, Any]) -> tuple[str, set[str]]:
        """The line, and the names of the facts that it tells."""
        named: set[str] = set()
        texts: list[str] = []
        for is_optional, pieces in self._parts:
            if is_optional and any(
                kind and (not self._known(name, facts) or facts[name] == "") for name, kind in pieces
            ):
                continue
            for name, kind in pieces:
                if kind:
                    named.add(name)
                    texts.append(_TYPES[kind][1](facts[name]))
                else:
                    texts.append(name)
        return "".join(texts), named

    def read(self, line: str) -> tuple[dict[str, Any], list[tuple[str, str]]] | None:
        """The values of a line and its ` name=value` tail, or None when it is another line."""
        found = self._regex.fullmatch(line)
        if found is None:
            return None
        groups = found.groupdict()
        tail = _TAIL.findall(groups.pop("tail_", None) or "")
        return {name: _TYPES[self._types[name]][2](text) for name, text in groups.items() if text is not None}, tail

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        # Whoever only writes lines does without some seventy of them.
        return re.compile(self._pattern)

    def _known(self, name: str, facts: Mapping[str, Any]) -> bool:
        value = facts.get(name)
        if self._types[name] in _NUMBERS:
            return isinstance(value, (int, float)) and abs(value) < 1e15
        return value is not None


def typed(text: str) -> Any:
    """The value of a ` name=value` pair: a number, true or false, or a word."""
    if text in {"true", "false"}:
        return text == "true"
    if re.fullmatch(_INT, text):
        return int(text)
    return float(text) if re.fullmatch(_FLOAT, text) else _read_word(text)


def tail(facts: Mapping[str, Any]) -> str:
    """` name=value` for each fact that is known and can be told in a word."""
    return "".join(
        f" {name}={_tail_value(value)}" for name, value in facts.items() if value is not None and value != ""
    )


def _tail_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.4f}".rstrip("0").rstrip(".")
    return word(value)


_I, _W, _E = logging.INFO, logging.WARNING, logging.ERROR
_G, _A = Guardrail, GuardrailAction


@dataclass(frozen=True, slots=True)
class Row:
    """One wording. `guardrail` and `action` are None for a line that is about no guardrail; `name` says which then.

    In `template`, `{fact:type}` is a value: int, float (one decimal), percent and percent0 (a share, written times
    100 with one decimal or none), word (no blanks), action, or text, which is skipped. `[...]` is left out when a value
    in it is unknown. The first row that has all it needs is written: its values, its `facts`, which the wording itself
    says, and `when`, the name of a fact that must be true, or two names `a<b`.
    """

    name: str
    guardrail: Guardrail | None
    action: GuardrailAction | None
    level: int
    template: str
    when: str = ""
    facts: tuple[tuple[str, bool | str], ...] = ()
    read_only: bool = False

    def holds(self, facts: Mapping[str, Any]) -> bool:
        """True when the wording is right for these facts."""
        if any(facts.get(name) != value for name, value in self.facts):
            return False
        less, is_comparison, more = self.when.partition("<")
        if is_comparison:
            entry, other = facts.get(less), facts.get(more)
            return isinstance(entry, int) and isinstance(other, int) and entry < other
        return not self.when or bool(facts.get(self.when))


def _theirs(name: str, guardrail: Guardrail | None, action: GuardrailAction | None, template: str) -> Row:
    return Row(name, guardrail, action, _I, template, read_only=True)


_ATTEMPT = "(attempt {attempt:int}[/{attempts:int}])"
_USE = "CONTEXT[ {level:word}]: {tokens:int}/{window:int} tokens ({utilisation:percent}%), "
_SINCE = "[, pruned={pruned:int}][, overflows={overflows:int}]"
_SWITCHES = (
    "Guardrails: malformed={malformed:word} stream_strict={stream_strict:word} force_non_stream={force_non_stream:word}"
    " tool_narrowing={tool_narrowing:word} thinking_off_on_tools={thinking_off_on_tools:word}"
    " contamination_breaker={contamination_breaker:word}({threshold:int})"
)
_GUARDED = "served stream response via guarded non-stream path"

# fmt: off
_LIFE: tuple[Row, ...] = (
    Row("context", None, None, _I, _USE + "~{turns:int} turns remaining" + _SINCE),
    Row("context", None, None, _I, _USE + "unknown" + _SINCE),
    _theirs("context", None, None, _USE + "~unknown turns remaining" + _SINCE),
    _theirs("context", None, None, _USE + "unknown turns remaining" + _SINCE),
    Row("request", None, None, _I, "REQ: stream={stream:word} msgs={messages:int} tools={tools:int}"),
    _theirs("request", None, None, "REQ: stream={stream:word} msgs={messages:int} tools={tools:int} "
            "max_tokens={:text}"),
    Row("response", None, None, _I, "RESP: finish={finish:word}[ output_tokens={output_tokens:int}]"
        "[ text_len={text_len:int}] tool_calls={tool_calls:int}"),
    _theirs("response", None, None, "RESP: finish={finish:word} output_tokens={output_tokens:int} "
            "text_len={text_len:int} text={:text}"),
    Row("connect_failed", None, None, _W, "Upstream connect failed " + _ATTEMPT + ": {error:word}"
        "[ – retrying in {seconds:float}s]"),
    _theirs("connect_failed", None, None, "Upstream connect failed " + _ATTEMPT + ": {:text}"),
    Row("started", None, None, _I, "Proxy started: listening on {listen:word} -> upstream {upstream:word}"),
    Row("window", None, None, _I, "Context window: {window:int} tokens, prune threshold: {threshold:percent0}%, "
        "prune target: {target:percent0}%"),
    Row("window_unknown", None, None, _I, "Context window: unknown, prune threshold: {threshold:percent0}%, "
        "prune target: {target:percent0}%"),
    Row("guardrails", None, None, _I, _SWITCHES),
    _theirs("auto", None, None, "tool_choice set to 'auto' by LOOP BREAKER"),
)

_TOOLS: tuple[Row, ...] = (
    Row("", _G.MALFORMED_TOOL, _A.DETECTED, _W, "MALFORMED TOOL PAYLOAD: session={session:word} streak={streak:int} "
        "kind={kind:word}[ tool={tool:word}]"),
    _theirs("", _G.MALFORMED_TOOL, _A.DETECTED, "MALFORMED TOOL PAYLOAD: session={session:word} streak={streak:int} "
            "excerpt={:text}"),
    Row("", _G.MALFORMED_TOOL, _A.RETRIED, _W, "MALFORMED RETRY failed " + _ATTEMPT + ": HTTP {status:int}"),
    Row("", _G.MALFORMED_TOOL, _A.RETRIED, _W, "MALFORMED RETRY invalid tool_call payload " + _ATTEMPT
        + ": {reason:word}"),
    _theirs("", _G.MALFORMED_TOOL, _A.RETRIED, "MALFORMED RETRY invalid tool_call payload " + _ATTEMPT + ": {:text}"),
    Row("", _G.MALFORMED_TOOL, _A.RETRIED, _W, "MALFORMED RETRY started " + _ATTEMPT),
    Row("", _G.MALFORMED_TOOL, _A.RECOVERED, _I, "MALFORMED RETRY success: produced tool_use " + _ATTEMPT,
        when="calls"),
    Row("", _G.MALFORMED_TOOL, _A.RECOVERED, _I, "MALFORMED RETRY produced clean text response " + _ATTEMPT),
    _theirs("", _G.MALFORMED_TOOL, _A.RECOVERED, "MALFORMED RETRY produced clean text response{:text}"),
    Row("", _G.MALFORMED_TOOL, _A.EXHAUSTED, _E, "MALFORMED TOOL PAYLOAD persisted after retries "
        "(session={session:word}); returning clean guardrail response"),
    Row("", _G.STRICT_STREAM, _A.APPLIED, _I, f"FORCED NON-STREAM: {_GUARDED}", facts=(("forced", True),)),
    Row("", _G.STRICT_STREAM, _A.APPLIED, _I, f"STRICT STREAM GUARDRAIL: {_GUARDED}"),
    Row("", _G.UNEXPECTED_END, _A.RETRIED, _W, "GUARDRAIL: unexpected end_turn without tool_use in active loop "
        "(session={session:word}), retrying once with tool_choice=required"),
    Row("", _G.UNEXPECTED_END, _A.RECOVERED, _I, "GUARDRAIL: retry produced tool_use; using retried response"),
    Row("", _G.UNEXPECTED_END, _A.EXHAUSTED, _W, "GUARDRAIL: retry produced no tool_use; keeping the first response"),
    Row("", _G.CONTAMINATION, _A.APPLIED, _W, "SESSION CONTAMINATION BREAKER: session={session:word} reset applied, "
        "kept={kept:int} messages"),
    Row("", _G.TOOL_NARROWING, _A.APPLIED, _I, "TOOL NARROWING: {before:int} -> {after:int} tools"),
    _theirs("", _G.TOOL_NARROWING, _A.APPLIED, "TOOL NARROWING: {before:int} -> {after:int} tools ({:text}"),
)

_CONTEXT: tuple[Row, ...] = (
    Row("", _G.LOOP_BREAKER, _A.RELEASED, _W, "LOOP BREAKER: {forced:int} consecutive forced tool_choice requests with "
        "no progress streak={no_progress:int}. Releasing to 'auto'.", facts=(("reason", "forced"),)),
    Row("", _G.LOOP_BREAKER, _A.RELEASED, _W, "LOOP BREAKER: Same tool pattern repeated {repeats:int} times with no "
        "progress streak={no_progress:int}. Releasing tool_choice to 'auto'.", facts=(("reason", "loop"),)),
    Row("", _G.LOOP_BREAKER, _A.RELEASED, _W, "LOOP BREAKER: Context utilization {utilisation:percent}% -- releasing "
        "tool_choice to let model wrap up.", facts=(("reason", "context"),)),
    Row("", _G.LOOP_BREAKER, _A.APPLIED, _W, "LOOP BREAKER: Same tool cycle of {period:int} ran {repeats:int} turns "
        "with identical results, no progress streak={no_progress:int}. Telling the model."),
    _theirs("", _G.MAX_TOKENS, _A.APPLIED, "MAX_TOKENS capped: {requested:int} -> {sent:int} (ctx={window:int}, "
            "input~{prompt:int}, margin={margin:int})"),
    Row("", _G.MAX_TOKENS, _A.APPLIED, _I, "MAX_TOKENS capped: {requested:int} -> {sent:int}", when="sent<requested"),
    Row("", _G.MAX_TOKENS, _A.APPLIED, _I, "MAX_TOKENS raised: {requested:int} -> {sent:int}", when="requested<sent"),
    Row("", _G.CONTEXT_PRUNE, _A.APPLIED, _W, "PRUNED: removed {removed:int} messages (~{removed_tokens:int} tokens), "
        "kept {kept:int} messages, {before:int} -> {after:int} of {window:int} ctx"),
    _theirs("", _G.CONTEXT_PRUNE, _A.APPLIED, "PRUNED: removed {removed:int} messages (~{removed_tokens:int} tokens), "
            "kept {kept:int} messages, target={target:percent0}% of {window:int} ctx"),
    Row("", _G.CONTEXT_PRUNE, _A.DETECTED, _W, "CONTEXT OVERFLOW detected (count={overflows:int}): {prompt:int} tokens "
        "> {window:int} maximum"),
    _theirs("", _G.CONTEXT_PRUNE, _A.DETECTED, "CONTEXT OVERFLOW detected (count={overflows:int}){:text}"),
    _theirs("", _G.REASONING_FALLBACK, _A.DETECTED, "Empty response with {chunks:int} reasoning chunks – "
            "fallback suppressed (mode={mode:word})"),
    _theirs("", _G.REASONING_FALLBACK, _A.APPLIED, "Empty response with {chunks:int} reasoning chunks – "
            "emitting fallback text (mode={mode:word})"),
    Row("", _G.EMPTY_RESPONSE, _A.RETRIED, _W, "EMPTY RESPONSE: retrying " + _ATTEMPT),
    Row("", _G.EMPTY_RESPONSE, _A.RECOVERED, _I, "EMPTY RESPONSE: retry produced an answer " + _ATTEMPT),
    Row("", _G.REPETITION_CUT, _A.APPLIED, _W, "REPETITION CUT: ended a turn that repeated itself after {chars:int} "
        "characters"),
)
# fmt: on

HEADLINES: dict[Guardrail, str] = {
    Guardrail.MALFORMED_TOOL: "MALFORMED TOOL PAYLOAD",
    Guardrail.STRICT_STREAM: "STRICT STREAM GUARDRAIL",
    Guardrail.UNEXPECTED_END: "GUARDRAIL: unexpected end_turn",
    Guardrail.LOOP_BREAKER: "LOOP BREAKER",
    Guardrail.CONTAMINATION: "SESSION CONTAMINATION BREAKER",
    Guardrail.TOOL_NARROWING: "TOOL NARROWING",
    Guardrail.THINKING_OFF: "THINKING OFF",
    Guardrail.REASONING_FALLBACK: "REASONING FALLBACK",
    Guardrail.MAX_TOKENS: "MAX_TOKENS",
    Guardrail.CONTEXT_PRUNE: "PRUNED",
    Guardrail.REPETITION_CUT: "REPETITION CUT",
    Guardrail.EMPTY_RESPONSE: "EMPTY RESPONSE",
    Guardrail.SUPPLEMENT: "AGENTIC SUPPLEMENT",
}
"""How a guardrail's lines begin; with the action alone, this is the wording when no row has what it needs."""
QUIET: frozenset[Guardrail] = frozenset({Guardrail.THINKING_OFF, Guardrail.SUPPLEMENT})
"""Settings at work, on every tool turn: told at DEBUG."""
LEVELS: dict[GuardrailAction, int] = {
    GuardrailAction.DETECTED: _W,
    GuardrailAction.RETRIED: _W,
    GuardrailAction.RECOVERED: _I,
    GuardrailAction.EXHAUSTED: _E,
    GuardrailAction.APPLIED: _I,
    GuardrailAction.RELEASED: _W,
}
CONTEXT_LEVELS: dict[str | None, int] = {None: _I, "ELEVATED": _W, "HIGH": _W, "CRITICAL": _E}

ROWS: tuple[Row, ...] = (
    *_LIFE,
    *_TOOLS,
    *_CONTEXT,
    *(Row("", key, None, _I, f"{headline}: {{action:action}}") for key, headline in HEADLINES.items()),
)


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
_BY_NAME = {
    name: [(row, template) for row, template in _TEMPLATES if row.name == name and not row.read_only]
    for name in {row.name for row in ROWS}
}
_STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
"""What another proxy writes as its upstream said it, in the words of the Messages API."""
_NO_REASON = frozenset({"", "None", *RequestOutcome})
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
class ProxyLogLine:
    """Any line of the table. `guardrail` and `action` are None for one about no guardrail; `name` says which it is."""

    name: str
    guardrail: Guardrail | None
    action: GuardrailAction | None
    facts: dict[str, Any] = field(default_factory=dict)
    session: str = ""
    request_id: str = ""
    at: float = 0.0


def note_text(
    guardrail: Guardrail, action: GuardrailAction, facts: Mapping[str, Any], *, session: str = "", request_id: str = ""
) -> tuple[int, str]:
    """Level (of `logging`) and text of what a guardrail did."""
    known = {**facts, _SESSION: session, "action": action}
    for row, template in _TEMPLATES:
        wanted = row.guardrail is guardrail and row.action in {action, None} and not row.read_only
        if wanted and row.holds(facts) and template.fits(known):
            level = row.level if row.action is not None else LEVELS[action]
            text, named = template.write(known)
            text += _ending(facts, named | {name for name, _ in row.facts}, session, request_id)
            return (_DEBUG if guardrail in QUIET and action is GuardrailAction.APPLIED else level), text
    raise AssertionError(f"no line for {guardrail}:{action}")


def line_text(name: str, facts: Mapping[str, Any], *, session: str = "", request_id: str = "") -> tuple[int, str]:
    """Level and text of a line about no guardrail; `name` is its row's. Raises `KeyError` when facts are missing."""
    for row, template in _BY_NAME[name]:
        if template.fits(facts):
            level = CONTEXT_LEVELS.get(facts.get("level"), row.level) if name == "context" else row.level
            text, named = template.write(facts)
            return level, text + _ending(facts, named, session, request_id)
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


def read_line(text: str, at: float | None = None) -> ProxyLogLine | None:
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


def _request(line: ProxyLogLine) -> RequestEvent:
    facts = line.facts
    finish, error = str(facts.get("finish", "")), facts.get("error")
    status, written = _whole(facts.get("status")), _whole(facts.get("output_tokens"))
    outcome = RequestOutcome.OK
    if finish == RequestOutcome.CLIENT_LEFT or status == _CLIENT_LEFT_STATUS:
        outcome = RequestOutcome.CLIENT_LEFT
    elif finish == RequestOutcome.ERROR or error or (status or 0) >= 400:
        outcome = RequestOutcome.ERROR
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


def _line(row: Row, facts: dict[str, Any], pairs: list[tuple[str, str]], at: float) -> ProxyLogLine:
    action = facts.pop("action", None) or row.action
    facts.update(row.facts)
    words = dict(pairs)
    session = facts.pop(_SESSION, None) or words.pop(_SESSION, "")
    words.pop(_SESSION, None)
    request_id = words.pop(_REQUEST, "")
    for name, text in words.items():
        facts.setdefault(name, typed(text))
    return ProxyLogLine(row.name, row.guardrail, action, facts, session, request_id, at)


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
