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
        (
            G.MALFORMED_TOOL, A.DETECTED, {"streak": 2, "kind": "markup", "tool": "Read"},
            "MALFORMED TOOL PAYLOAD: detected streak=2 kind=markup tool=Read request=r session=s",
        ),
        (
            G.MALFORMED_TOOL, A.RETRIED, {"attempt": 1, "attempts": 2, "status": 503},
            "MALFORMED RETRY: retried attempt=1 attempts=2 status=503 request=r session=s",
        ),
        (G.STRICT_STREAM, A.APPLIED, {}, "STRICT STREAM GUARDRAIL: applied request=r session=s"),
        (
            G.LOOP_BREAKER, A.RELEASED, {"reason": "context", "utilisation": 0.915},
            "LOOP BREAKER: released reason=context utilisation=0.915 request=r session=s",
        ),
        (
            G.TOOL_NARROWING, A.APPLIED, {"kept": ["Read", "a b"]},
            "TOOL NARROWING: applied kept=Read,a_b request=r session=s",
        ),
    ],
)  # fmt: skip
def test_what_a_guardrail_did(guardrail: Guardrail, action: GuardrailAction, facts: dict[str, Any], text: str) -> None:
    assert note_text(guardrail, action, facts, session="s", request_id="r")[1] == text


@pytest.mark.parametrize("guardrail", Guardrail)
@pytest.mark.parametrize("action", GuardrailAction)
def test_every_note_has_a_line_and_a_level(guardrail: Guardrail, action: GuardrailAction) -> None:
    level, text = note_text(guardrail, action, {"odd": "a\nb"})
    assert text.endswith(f": {action} odd=a_b")
    assert logging.DEBUG <= level <= logging.ERROR


def test_the_beginning_and_the_end_of_a_request() -> None:
    facts: dict[str, Any] = {"stream": True, "messages": 3, "tools": 12}
    assert line_text("request", facts, session="s")[1] == "REQ: stream=True messages=3 tools=12 session=s"
    facts = {"finish": "end_turn", "output_tokens": 41, "text_len": 5, "tool_calls": 0, "ttft_s": 0.75}
    assert line_text("response", facts, session="s", request_id="r")[1] == (
        "RESP: finish=end_turn output_tokens=41 text_len=5 tool_calls=0 ttft_s=0.75 request=r session=s"
    )


def test_a_context_line_reads_as_the_seeds_wrote_it() -> None:
    line = ContextLine(231000, 262144, "HIGH", 12, pruned=2, overflows=1, session="hdr:a")
    level, text = context_text(line)
    assert (
        text == "CONTEXT HIGH: 231000/262144 tokens (88.1%), ~12 turns remaining, pruned=2, overflows=1 session=hdr:a"
    )
    assert level == logging.WARNING
    assert context_text(ContextLine(1000, 262144))[1] == "CONTEXT: 1000/262144 tokens (0.4%), unknown"
    levels = [context_text(ContextLine(1, 2, name))[0] for name in (None, "ELEVATED", "HIGH", "CRITICAL")]
    assert levels == [logging.INFO, logging.WARNING, logging.WARNING, logging.ERROR]


def test_a_hostile_session_name_stays_on_its_line_and_in_its_place() -> None:
    session = "a\n2026-11-21 10:59:05,123 [INFO] specdash.proxy: LOOP BREAKER: released"
    _, text = note_text(G.EMPTY_RESPONSE, A.DETECTED, {}, session=session)
    assert "\n" not in text
    assert text.startswith("EMPTY RESPONSE: detected session=a_2026")
