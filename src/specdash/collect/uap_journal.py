"""The journal of a UAP proxy, read line by line: what its guardrails did, and how requests ended."""

from __future__ import annotations

import re
import time
from typing import Any, Final

from specdash.core.proxy_events import Guardrail, GuardrailAction, GuardrailEvent, RequestEvent

MAX_LINE: Final = 4096
"""Longer lines are none of these."""
_STAMP = r"(?P<stamp>[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}),(?P<ms>[0-9]{3})"
_SYSLOG = (
    r"(?:[A-Z][a-z]{2} [ 0-3][0-9] [0-9:.]{8,15}|[0-9]{4}-[0-9]{2}-[0-9]{2}T\S{8,24}) "
    r"\S{1,255} [^\s:\[\]]{1,255}(?:\[[0-9]+\])?: "
)
_PREFIX = re.compile(
    rf"(?:<[0-7]>)?(?:{_SYSLOG})?(?:{_STAMP} )?"
    r"(?:\[[A-Z]{3,8}\] (?:[a-z_]\w*(?:\.\w+)*: )?)?"
)
_G, _A = Guardrail, GuardrailAction
_NUMBER = "[0-9]{1,15}"
_ATTEMPT = r"\(attempt (?P<attempt>#)(?:/(?P<attempts>#))?\)"


def _compiled(pattern: str) -> re.Pattern[str]:
    """`#` stands for a whole number."""
    return re.compile(pattern.replace("#", _NUMBER))


_RESPONSE = _compiled(r"RESP: finish=(?P<finish>\S+) output_tokens=(?P<tokens>#) text_len=")
_ROWS: tuple[tuple[Guardrail, GuardrailAction, str, dict[str, Any]], ...] = (
    (_G.MALFORMED_TOOL, _A.DETECTED, r"MALFORMED TOOL PAYLOAD: session=(?P<session>\S+) streak=(?P<streak>#) ", {}),
    (_G.MALFORMED_TOOL, _A.RETRIED, rf"MALFORMED RETRY failed {_ATTEMPT}: HTTP (?P<status>#)$", {}),
    (_G.MALFORMED_TOOL, _A.RETRIED, rf"MALFORMED RETRY invalid tool_call payload {_ATTEMPT}: ", {}),
    (_G.MALFORMED_TOOL, _A.RECOVERED, rf"MALFORMED RETRY success: produced tool_use {_ATTEMPT}$", {}),
    (_G.MALFORMED_TOOL, _A.RECOVERED, rf"MALFORMED RETRY produced clean text response(?: {_ATTEMPT})?", {}),
    (_G.MALFORMED_TOOL, _A.EXHAUSTED,
     r"MALFORMED TOOL PAYLOAD persisted after retries \(session=(?P<session>\S+)\);", {}),
    (_G.STRICT_STREAM, _A.APPLIED, r"FORCED NON-STREAM: served stream response", {"forced": True}),
    (_G.STRICT_STREAM, _A.APPLIED, r"STRICT STREAM GUARDRAIL: served stream response", {}),
    (_G.UNEXPECTED_END, _A.RETRIED, r"GUARDRAIL: unexpected end_turn .*\(session=(?P<session>\S+)\), retrying", {}),
    (_G.UNEXPECTED_END, _A.RECOVERED, r"GUARDRAIL: retry produced tool_use;", {}),
    (_G.CONTAMINATION, _A.APPLIED,
     r"SESSION CONTAMINATION BREAKER: session=(?P<session>\S+) reset applied, kept=(?P<kept>#) messages", {}),
    (_G.TOOL_NARROWING, _A.APPLIED, r"TOOL NARROWING: (?P<before>#) -> (?P<after>#) tools", {}),
    (_G.LOOP_BREAKER, _A.RELEASED,
     r"LOOP BREAKER: (?P<forced>#) consecutive forced tool_choice requests with no progress streak=(?P<no_progress>#)",
     {"reason": "forced"}),
    (_G.LOOP_BREAKER, _A.RELEASED,
     r"LOOP BREAKER: Same tool pattern repeated (?P<repeats>#) times with no progress streak=(?P<no_progress>#)",
     {"reason": "loop"}),
    (_G.LOOP_BREAKER, _A.RELEASED,
     r"LOOP BREAKER: Context utilization (?P<utilisation>[0-9]{1,6}(?:\.[0-9]{1,6})?)% ", {"reason": "context"}),
    (_G.MAX_TOKENS, _A.APPLIED,
     (r"MAX_TOKENS capped: (?P<requested>#) -> (?P<sent>#) "
      r"\(ctx=(?P<window>#), input~(?P<prompt>#), margin=(?P<margin>#)"), {}),
    (_G.CONTEXT_PRUNE, _A.APPLIED,
     (r"PRUNED: removed (?P<removed>#) messages \(~(?P<removed_tokens>#) tokens\), kept (?P<kept>#) messages, "
      r"target=(?P<target>[0-9]{1,3})% of (?P<window>#) ctx"), {}),
    (_G.CONTEXT_PRUNE, _A.DETECTED, r"CONTEXT OVERFLOW detected \(count=(?P<overflows>#)\)", {}),
    (_G.REASONING_FALLBACK, _A.DETECTED,
     r"Empty response with (?P<chunks>#) reasoning chunks (?:–|--?) fallback suppressed \(mode=(?P<mode>\w+)\)", {}),
    (_G.REASONING_FALLBACK, _A.APPLIED,
     r"Empty response with (?P<chunks>#) reasoning chunks (?:–|--?) emitting fallback text \(mode=(?P<mode>\w+)\)", {}),
)  # fmt: skip
_PATTERNS = tuple((guardrail, action, _compiled(text), facts) for guardrail, action, text, facts in _ROWS)
_SHARES = frozenset({"utilisation", "target"})
_STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "None": None}
"""What it writes in the words of its upstream, in those of the Messages API."""


def parse_line(text: str, at: float | None = None) -> GuardrailEvent | RequestEvent | None:
    """The guardrail action or the end of a request that a line reports, None for any other line.

    `at` (Unix time, now unless given) counts when the line has no time stamp. Stamps are local time. Never raises.
    """
    if len(text) > MAX_LINE:
        return None
    text = text.rstrip("\r\n")
    prefix = _PREFIX.match(text)
    message = text[prefix.end() :] if prefix is not None else text
    if message[:1] not in "CEFGLMPRST":
        return None
    when = _time(prefix, time.time() if at is None else at)
    if (found := _RESPONSE.match(message)) is not None:
        reason = _STOP_REASONS.get(found["finish"], found["finish"])
        # It writes 0 tokens where its upstream gave no number.
        tokens = int(found["tokens"]) or None
        unknown: dict[str, Any] = dict.fromkeys(("stream", "strict", "status", "retries", "tool_calls", "guardrails"))
        return RequestEvent(when, "", "", "", stop_reason=reason, completion_tokens=tokens, **unknown)
    for guardrail, action, pattern, fixed in _PATTERNS:
        if (found := pattern.match(message)) is not None:
            facts: dict[str, Any] = {name: value for name, value in found.groupdict().items() if value is not None}
            session = facts.pop("session", "")
            for name in facts.keys() - {"mode"}:
                facts[name] = float(facts[name]) / 100 if name in _SHARES else int(facts[name])
            return GuardrailEvent(when, session, guardrail, action, "", {**facts, **fixed})
    return None


def _time(prefix: re.Match[str] | None, now: float) -> float:
    if prefix is None or prefix["stamp"] is None:
        return now
    try:
        return time.mktime(time.strptime(prefix["stamp"], "%Y-%m-%d %H:%M:%S")) + int(prefix["ms"]) / 1000
    except (ValueError, OverflowError):
        return now
