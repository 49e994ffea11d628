"""GET /v1/context: the fields that scripts know, and the live picture."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from specdash.core.proxy_events import (
    Guardrail,
    GuardrailAction,
    RequestEvent,
    RequestOutcome,
    RequestPhase,
    status_from_json,
)
from specdash.proxy.answer.blocks import Usage
from specdash.proxy.guardrails import GuardrailNote
from specdash.proxy.http.app import Proxy
from specdash.proxy.http.status import context_json
from specdash.proxy.settings import settings_from_env

if TYPE_CHECKING:
    from specdash.proxy.sessions import ProxySession

FIELDS = {
    "active_session_id", "session_count", "context_window", "last_input_tokens", "last_output_tokens",
    "peak_input_tokens", "utilization", "utilization_pct", "warning_level", "estimated_turns_remaining",
    "total_requests", "prune_count", "overflow_count", "prune_threshold", "recent_history", "loop_protection", "status",
}  # fmt: skip
LOOP_FIELDS = {
    "enabled", "consecutive_forced_count", "no_progress_streak", "loop_warnings_emitted", "unexpected_end_turn_count",
    "malformed_tool_streak", "contamination_resets", "tool_call_history_len", "is_looping", "loop_repeat_count",
    "recent_tool_patterns",
}  # fmt: skip


class Desk:
    def __init__(self) -> None:
        env = {
            "PROXY_EVENTS_FILE": "off", "PROXY_CONTEXT_WINDOW": "4000",
            "LLAMA_CPP_BASE": "http://user:pass@127.0.0.1:9/v1",
        }  # fmt: skip
        self.proxy = Proxy(settings_from_env(env))
        self.sessions, self.telemetry = self.proxy.sessions, self.proxy.telemetry

    async def json(self, session: ProxySession | None) -> dict[str, Any]:
        values = context_json(self.proxy, session)
        again: dict[str, Any] = json.loads(json.dumps(values))
        return again


async def test_without_a_session_the_values_are_blank() -> None:
    values = await Desk().json(None)
    assert set(values) == FIELDS
    assert set(values["loop_protection"]) == LOOP_FIELDS
    assert (values["active_session_id"], values["utilization"], values["warning_level"]) == (None, None, None)
    assert (values["total_requests"], values["recent_history"]) == (0, [])


async def test_a_session_tells_its_use_of_the_window() -> None:
    desk = Desk()
    session = desk.sessions.get("a")
    for prompt in (1000, 2000, 3400):
        session.turn_done(Usage(prompt, 0, 100), None, 4000)
    values = await desk.json(session)
    assert set(values) == FIELDS
    assert (values["last_input_tokens"], values["last_output_tokens"], values["peak_input_tokens"]) == (3400, 100, 3400)
    assert (values["utilization"], values["utilization_pct"], values["warning_level"]) == (0.875, "87.5%", "HIGH")
    assert values["estimated_turns_remaining"] == 0
    assert values["recent_history"] == [1100, 2100, 3500]


async def test_the_status_is_the_whole_live_picture() -> None:
    desk = Desk()
    session = desk.sessions.get("a")
    done = desk.telemetry.begin(session, RequestEvent(0.0, "a", "r1", tools=3))
    desk.telemetry.finish(done, outcome=RequestOutcome.CLIENT_LEFT)
    running = desk.telemetry.begin(session, RequestEvent(0.0, "a", "r2", tools=3))
    desk.telemetry.note(running, session, GuardrailNote(Guardrail.SUPPLEMENT, GuardrailAction.APPLIED))
    status = status_from_json((await desk.json(session))["status"])
    assert status is not None
    assert (status.requests, status.clients_left, status.errors) == (1, 1, 0)
    assert status.upstream_url == "http://127.0.0.1:9"
    assert status.counters == {"supplement:applied": 1}
    assert [(active_view.request_id, active_view.phase, active_view.tools) for active_view in status.active] == [
        ("r2", RequestPhase.WAITING, 3)
    ]
    assert [(session.id, session.active, session.requests) for session in status.sessions] == [("a", 1, 2)]
