"""The proxy's human log lines: one table, from which the proxy writes them and the collector reads them.

The wordings are those of the UAP Anthropic proxy 1.13.15, so that habits and greps keep working and its journal can be
read too; where that proxy had none, they are ours. Our lines may end in ` name=value` pairs, `session` last. Rows with
free text, which other proxies write, are only read, and the text is thrown away.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdash.core.proxy_events import Action, Guardrail

if TYPE_CHECKING:
    from collections.abc import Mapping

_I, _W, _E = logging.INFO, logging.WARNING, logging.ERROR
_G, _A = Guardrail, Action


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
    action: Action | None
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
            one, other = facts.get(less), facts.get(more)
            return isinstance(one, int) and isinstance(other, int) and one < other
        return not self.when or bool(facts.get(self.when))


def _theirs(name: str, guardrail: Guardrail | None, action: Action | None, template: str) -> Row:
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
LEVELS: dict[Action, int] = {
    Action.DETECTED: _W,
    Action.RETRIED: _W,
    Action.RECOVERED: _I,
    Action.EXHAUSTED: _E,
    Action.APPLIED: _I,
    Action.RELEASED: _W,
}
CONTEXT_LEVELS: dict[str | None, int] = {None: _I, "ELEVATED": _W, "HIGH": _W, "CRITICAL": _E}

ROWS: tuple[Row, ...] = (
    *_LIFE,
    *_TOOLS,
    *_CONTEXT,
    *(Row("", one, None, _I, f"{headline}: {{action:action}}") for one, headline in HEADLINES.items()),
)
