"""The lines of the proxy's human log."""

import logging
from typing import Any

import pytest

from specdash.core.proxy_events import Guardrail, GuardrailAction
from specdash.core.proxy_lines import ContextLine, context_text, line_text, note_text

G, A = Guardrail, GuardrailAction


@pytest.mark.parametrize(
    ("guardrail", "action", "facts", "text"),
    [
        (G.MALFORMED_TOOL, A.DETECTED, {"streak": 2, "kind": "markup", "tool": "Read"},
         "MALFORMED TOOL PAYLOAD: detected streak=2 kind=markup tool=Read request=r session=s"),
        (G.MALFORMED_TOOL, A.RETRIED, {"attempt": 1, "attempts": 2, "status": 503},
         "MALFORMED RETRY: retried attempt=1 attempts=2 status=503 request=r session=s"),
        (G.STRICT_STREAM, A.APPLIED, {}, "STRICT STREAM GUARDRAIL: applied request=r session=s"),
        (G.LOOP_BREAKER, A.RELEASED, {"reason": "context", "utilisation": 0.915},
         "LOOP BREAKER: released reason=context utilisation=0.915 request=r session=s"),
        (G.TOOL_NARROWING, A.APPLIED, {"kept": ["Read", "a b"]},
         "TOOL NARROWING: applied kept=Read,a_b request=r session=s"),
    ],
)  # fmt: skip
def test_what_a_guardrail_did(guardrail: Guardrail, action: GuardrailAction, facts: dict[str, Any], text: str) -> None:
    assert note_text(guardrail, action, facts, session="s", request_id="r")[1] == text


def test_every_note_has_a_line_and_a_level_and_hostile_words_stay_in_their_place() -> None:
    for guardrail in Guardrail:
        for action in GuardrailAction:
            level, text = note_text(guardrail, action, {"odd": "a\nb"}, session="c\nd 1 [INFO] LOOP BREAKER: released")
            assert text.endswith(f": {action} odd=a_b session=c_d_1_[INFO]_LOOP_BREAKER:_released")
            assert logging.DEBUG <= level <= logging.ERROR


@pytest.mark.parametrize(
    ("what", "facts", "text"),
    [
        ("request", {"stream": True, "messages": 3, "tools": 12}, "REQ: stream=True messages=3 tools=12 session=s"),
        (
            "response",
            {"finish": "end_turn", "output_tokens": 41, "tool_calls": 0, "ttft_s": 0.75},
            "RESP: finish=end_turn output_tokens=41 tool_calls=0 ttft_s=0.75 session=s",
        ),
    ],
)
def test_the_beginning_and_the_end_of_a_request(what: str, facts: dict[str, Any], text: str) -> None:
    assert line_text(what, facts, session="s")[1] == text


@pytest.mark.parametrize(
    ("line", "level", "text"),
    [
        (ContextLine(1000, 262144), logging.INFO, "CONTEXT: 1000/262144 tokens (0.4%), unknown"),
        (ContextLine(1, 2, "ELEVATED"), logging.WARNING, "CONTEXT ELEVATED: 1/2 tokens (50.0%), unknown"),
        (ContextLine(1, 2, "CRITICAL"), logging.ERROR, "CONTEXT CRITICAL: 1/2 tokens (50.0%), unknown"),
        (
            ContextLine(231000, 262144, "HIGH", 12, pruned=2, overflows=1, session="hdr:a"),
            logging.WARNING,
            "CONTEXT HIGH: 231000/262144 tokens (88.1%), ~12 turns remaining, pruned=2, overflows=1 session=hdr:a",
        ),
    ],
)
def test_a_context_line_reads_as_the_seeds_wrote_it(line: ContextLine, level: int, text: str) -> None:
    assert context_text(line) == (level, text)
