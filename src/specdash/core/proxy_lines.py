"""The lines of the proxy's human log."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from specdash.core.proxy_events import Guardrail, GuardrailAction

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LONGEST_WORD = 200
NOTHING = "-"
"""A word that is empty."""
_PIECE = re.compile(r"\{(?P<fact>\w*):(?P<type>\w+)\}|(?P<mark>[\[\]])|(?P<literal>[^\[\]{}]+)")


def word(value: Any) -> str:
    """`value` without blanks and unprintable characters, bounded; a list's items are joined by commas."""
    text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    text = text[:LONGEST_WORD]
    if not text.isprintable() or " " in text:
        text = "".join(name if name.isprintable() and name != " " else "_" for name in text)
    return text or NOTHING


_TYPES: dict[str, Callable[[Any], str]] = {
    "int": lambda value: str(int(value)),
    "float": lambda value: f"{value:.1f}",
    "percent": lambda value: f"{value * 100:.1f}",
    "percent0": lambda value: f"{value * 100:.0f}",
    "word": word,
    "action": str,
}
"""Of each type of value, how it is written."""
_NUMBERS = frozenset({"int", "float", "percent", "percent0"})


class Template:
    """A compiled template."""

    def __init__(self, text: str) -> None:
        self._types: dict[str, str] = {}
        needed: set[str] = set()
        inside = False
        pieces: list[tuple[str, str]] = []
        self._parts = [(inside, pieces)]
        for match in _PIECE.finditer(text):
            if match["mark"]:
                inside = match["mark"] == "["
                pieces = []
                self._parts.append((inside, pieces))
            elif match["literal"]:
                pieces.append((match["literal"], ""))
            else:
                pieces.append((match["fact"], match["type"]))
                self._types[match["fact"]] = match["type"]
                if not inside:
                    needed.add(match["fact"])
        self._needed = frozenset(needed)

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
                    texts.append(_TYPES[kind](facts[name]))
                else:
                    texts.append(name)
        return "".join(texts), named

    def _known(self, name: str, facts: Mapping[str, Any]) -> bool:
        value = facts.get(name)
        if self._types[name] in _NUMBERS:
            return isinstance(value, (int, float)) and abs(value) < 1e15
        return value is not None


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


class Row(Struct, frozen=True):
    """One wording. `guardrail` and `action` are None for a line that is about no guardrail; `name` says which then.

    In `template`, `{fact:type}` is a value: int, float (one decimal), percent and percent0 (a share, written times
    100 with one decimal or none), word (no blanks), or action. `[...]` is left out when a value in it is unknown. The
    first row that has all it needs is written: its values, its `facts`, which the wording itself says, and `when`, the
    name of a fact that must be true, or two names `a<b`.
    """

    name: str
    guardrail: Guardrail | None
    action: GuardrailAction | None
    level: int
    template: str
    when: str = ""
    facts: tuple[tuple[str, bool | str], ...] = ()

    def holds(self, facts: Mapping[str, Any]) -> bool:
        """True when the wording is right for these facts."""
        if any(facts.get(name) != value for name, value in self.facts):
            return False
        less, is_comparison, more = self.when.partition("<")
        if is_comparison:
            entry, other = facts.get(less), facts.get(more)
            return isinstance(entry, int) and isinstance(other, int) and entry < other
        return not self.when or bool(facts.get(self.when))


_ATTEMPT = "(attempt {attempt:int}[/{attempts:int}])"
_USE = "CONTEXT[ {level:word}]: {tokens:int}/{window:int} tokens ({utilisation:percent}%), "
_SINCE = "[, pruned={pruned:int}][, overflows={overflows:int}]"
_SWITCHES = (
    "Guardrails: malformed={malformed:word} stream_strict={stream_strict:word}"
    "[ force_non_stream={force_non_stream:word}] tool_narrowing={tool_narrowing:word}"
    " thinking_off_on_tools={thinking_off_on_tools:word}"
    " contamination_breaker={contamination_breaker:word}({threshold:int})"
)
_GUARDED = "served stream response via guarded non-stream path"

# fmt: off
_LIFE: tuple[Row, ...] = (
    Row("context", None, None, _I, _USE + "~{turns:int} turns remaining" + _SINCE),
    Row("context", None, None, _I, _USE + "unknown" + _SINCE),
    Row("request", None, None, _I, "REQ: stream={stream:word} msgs={messages:int} tools={tools:int}"),
    Row("response", None, None, _I, "RESP: finish={finish:word}[ output_tokens={output_tokens:int}]"
        "[ text_len={text_len:int}] tool_calls={tool_calls:int}"),
    Row("connect_failed", None, None, _W, "Upstream connect failed " + _ATTEMPT + ": {error:word}"
        "[ – retrying in {seconds:float}s]"),
    Row("started", None, None, _I, "Proxy started: listening on {listen:word} -> upstream {upstream:word}"),
    Row("window", None, None, _I, "Context window: {window:int} tokens, prune threshold: {threshold:percent0}%, "
        "prune target: {target:percent0}%"),
    Row("window_unknown", None, None, _I, "Context window: unknown, prune threshold: {threshold:percent0}%, "
        "prune target: {target:percent0}%"),
    Row("guardrails", None, None, _I, _SWITCHES),
)

_TOOLS: tuple[Row, ...] = (
    Row("", _G.MALFORMED_TOOL, _A.DETECTED, _W, "MALFORMED TOOL PAYLOAD: session={session:word} streak={streak:int} "
        "kind={kind:word}[ tool={tool:word}]"),
    Row("", _G.MALFORMED_TOOL, _A.RETRIED, _W, "MALFORMED RETRY failed " + _ATTEMPT + ": HTTP {status:int}"),
    Row("", _G.MALFORMED_TOOL, _A.RETRIED, _W, "MALFORMED RETRY invalid tool_call payload " + _ATTEMPT
        + ": {reason:word}"),
    Row("", _G.MALFORMED_TOOL, _A.RETRIED, _W, "MALFORMED RETRY started " + _ATTEMPT),
    Row("", _G.MALFORMED_TOOL, _A.RECOVERED, _I, "MALFORMED RETRY success: produced tool_use " + _ATTEMPT,
        when="calls"),
    Row("", _G.MALFORMED_TOOL, _A.RECOVERED, _I, "MALFORMED RETRY produced clean text response " + _ATTEMPT),
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
    Row("", _G.MAX_TOKENS, _A.APPLIED, _I, "MAX_TOKENS capped: {requested:int} -> {sent:int}", when="sent<requested"),
    Row("", _G.MAX_TOKENS, _A.APPLIED, _I, "MAX_TOKENS raised: {requested:int} -> {sent:int}", when="requested<sent"),
    Row("", _G.CONTEXT_PRUNE, _A.APPLIED, _W, "PRUNED: removed {removed:int} messages (~{removed_tokens:int} tokens), "
        "kept {kept:int} messages, {before:int} -> {after:int} of {window:int} ctx"),
    Row("", _G.CONTEXT_PRUNE, _A.DETECTED, _W, "CONTEXT OVERFLOW detected (count={overflows:int}): {prompt:int} tokens "
        "> {window:int} maximum"),
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


_DEBUG = 10
_SESSION, _REQUEST = "session", "request"
_TEMPLATES: tuple[tuple[Row, Template], ...] = tuple((row, Template(row.template)) for row in ROWS)
_BY_NAME = {
    name: [(row, template) for row, template in _TEMPLATES if row.name == name] for name in {row.name for row in ROWS}
}


class ContextLine(Struct, frozen=True):
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


def note_text(
    guardrail: Guardrail, action: GuardrailAction, facts: Mapping[str, Any], *, session: str = "", request_id: str = ""
) -> tuple[int, str]:
    """Level (of `logging`) and text of what a guardrail did."""
    known = {**facts, _SESSION: session, "action": action}
    for row, template in _TEMPLATES:
        wanted = row.guardrail is guardrail and row.action in {action, None}
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


def _ending(facts: Mapping[str, Any], said: set[str], session: str, request_id: str) -> str:
    rest = {name: value for name, value in facts.items() if name not in said and name not in {_SESSION, _REQUEST}}
    rest[_REQUEST] = request_id
    if _SESSION not in said:
        rest[_SESSION] = session
    return tail(rest)
