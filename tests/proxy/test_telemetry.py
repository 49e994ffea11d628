"""Telemetry: what is recorded of requests and guardrails, where, and what never is."""

from __future__ import annotations

import json
import logging
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from specdash.core.proxy_events import (
    Guardrail,
    GuardrailAction,
    GuardrailEvent,
    RequestEvent,
    RequestOutcome,
    RequestPhase,
    from_json,
    status_from_json,
)
from specdash.insight.request import ServedRequest, of_event
from specdash.proxy.answer.assembler import AnswerAssembler
from specdash.proxy.answer.blocks import Usage
from specdash.proxy.guardrails import GuardrailNote
from specdash.proxy.http.app import Proxy
from specdash.proxy.http.responses import ApiError
from specdash.proxy.http.status import ProxyMetrics, context_json
from specdash.proxy.settings import settings_from_env
from specdash.proxy.telemetry import ActiveRequest, EventsFile, Telemetry, events_path

SECRET = "XYZZY-secret"


class Desk:
    """A telemetry with its own time, sessions and events file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "events.jsonl"
        self.now = 100.0
        env = {"PROXY_CONTEXT_WINDOW": "4000", "LLAMA_CPP_BASE": "http://user:pass@127.0.0.1:9/v1"}
        self.proxy = Proxy(settings_from_env({**env, "PROXY_EVENTS_FILE": str(self.path)}))
        self.sessions = self.proxy.sessions
        self.telemetry = self.proxy.telemetry = Telemetry(self.proxy.settings, self.clock)

    def clock(self) -> float:
        return self.now

    def begin(self, session: str = "s", **changes: Any) -> ActiveRequest:
        values: dict[str, Any] = {
            "request_id": "req_1", "stream": True, "model": "m", "messages": 3, "tools": 2
        }  # fmt: skip
        return self.telemetry.begin(self.sessions.get(session), RequestEvent(0.0, session, **(values | changes)))

    def events(self) -> list[GuardrailEvent | RequestEvent]:
        found = [from_json(line) for line in self.path.read_text().splitlines()]
        return [event for event in found if event is not None]

    def request(self) -> RequestEvent:
        event = self.events()[-1]
        assert isinstance(event, RequestEvent)
        return event


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def make_answer(*chunks: dict[str, Any]) -> AnswerAssembler:
    answer = AnswerAssembler()
    for chunk in chunks:
        answer.chunk(chunk)
    return answer


def progress(processed: int) -> dict[str, Any]:
    return {
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}],
        "prompt_progress": {"total": 1000, "cache": 400, "processed": processed, "time_ms": 500},
    }


def content(text: str = "hello") -> dict[str, Any]:
    timings = {
        "cache_n": 400, "prompt_n": 600, "prompt_ms": 1000.0, "predicted_n": 50, "predicted_ms": 2000.0,
        "draft_n": 30, "draft_n_accepted": 20,
    }  # fmt: skip
    return {"choices": [{"index": 0, "delta": {"content": text}}], "timings": timings}


def test_a_finished_request_is_one_event_with_its_phases_and_rates(desk: Desk) -> None:
    active = desk.begin()
    desk.now += 1.5
    active.first_content()
    desk.now += 1.5
    active.first_content()
    active.answer = make_answer(progress(1000), content())
    active.session.turn_done(Usage(1000, 400, 50), 900, 4096)
    desk.telemetry.finish(active, outcome=RequestOutcome.OK, stop_reason="tool_use", tool_calls=("Read",))
    event = desk.request()
    assert (event.ttft_s, event.duration_s) == (1.5, 3.0)
    assert (event.prompt_tokens, event.cached_tokens, event.completion_tokens) == (1000, 400, 50)
    assert (event.prefill_s, event.decode_s) == (1.0, 2.0)
    assert (event.prefill_rate, event.decode_rate) == (600.0, 24.5)
    assert (event.draft_tokens, event.accepted_tokens, event.retries) == (30, 20, 0)
    assert (event.context_window, event.tool_calls, event.stop_reason) == (4096, ("Read",), "tool_use")
    assert desk.telemetry.active == []


def test_the_first_token_and_the_one_after_a_cache_hit_have_no_speed(desk: Desk) -> None:
    active = desk.begin()
    first = {"cache_n": 999, "prompt_n": 1, "prompt_ms": 1020.0, "predicted_n": 1, "predicted_ms": 0.001}
    active.answer = make_answer({**content(), "timings": first})
    assert (active.view().prefill_rate, active.view().decode_rate) == (None, None)
    desk.telemetry.finish(active, outcome=RequestOutcome.OK)
    event = desk.request()
    assert (event.prefill_rate, event.decode_rate, event.completion_tokens) == (None, None, 1)


def test_the_proxy_and_the_log_give_one_request_one_decode_speed(desk: Desk) -> None:
    timings = {"prompt_n": 100, "prompt_ms": 100.0, "predicted_n": 128, "predicted_ms": 20.0 * 127}
    active = desk.begin()
    active.answer = make_answer({**content(), "timings": timings})
    shown_live = active.view().decode_rate
    desk.telemetry.finish(active, outcome=RequestOutcome.OK)
    logged = ServedRequest(decode_tokens=128, decode_ms=20.0 * 127, finished=True)
    assert (shown_live, of_event(desk.request()).decode_rate, logged.decode_rate) == (50.0, 50.0, 50.0)


def test_what_retries_cost_is_added_up_and_only_the_first_end_counts(desk: Desk) -> None:
    active = desk.begin()
    active.answer = make_answer(content())
    active.next_attempt()
    assert active.phase is RequestPhase.WAITING
    active.answer = make_answer(content())
    active.next_attempt()
    for _ in range(2):
        desk.telemetry.finish(active, outcome=RequestOutcome.ERROR, error=ApiError(529, "held"))
    (event,) = desk.events()
    assert isinstance(event, RequestEvent)
    assert (event.outcome, event.error_type) == (RequestOutcome.ERROR, "overloaded_error")
    assert (event.prompt_tokens, event.completion_tokens, event.retries) == (2000, 100, 2)
    assert (event.draft_tokens, event.accepted_tokens, event.decode_rate) == (60, 40, 24.5)


def test_the_phase_follows_the_request(desk: Desk) -> None:
    active = desk.begin()
    phases = [active.phase]
    active.held()
    phases.append(active.phase)
    desk.now += 2
    active.held()
    active.sent()
    phases.append(active.phase)
    active.answer = make_answer(progress(500))
    phases.append(active.phase)
    assert active.view().prompt_done == 500
    assert active.view().prefill_rate == 200.0
    active.answer = make_answer(progress(1000), content())
    phases.append(active.phase)
    assert active.view().decode_rate == 24.5
    desk.telemetry.finish(active, outcome=RequestOutcome.OK)
    assert [*phases, active.phase] == [
        RequestPhase.WAITING, RequestPhase.HELD, RequestPhase.WAITING, RequestPhase.PREFILL,
        RequestPhase.DECODE, RequestPhase.DONE
    ]  # fmt: skip
    assert desk.request().held_s == 2.0


def test_a_guardrail_action_is_an_event_a_count_a_mark_and_a_line(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    active = desk.begin()
    note = GuardrailNote(
        Guardrail.MALFORMED_TOOL, GuardrailAction.DETECTED, {"streak": 2, "kind": "markup", "tool": ""}
    )
    desk.telemetry.note(active, active.session, note)
    desk.telemetry.note(None, active.session, note)
    event = desk.events()[0]
    assert isinstance(event, GuardrailEvent)
    assert (event.session, event.request_id, event.facts["streak"]) == ("s", "req_1", 2)
    assert desk.telemetry.counters == {"malformed_tool:detected": 2}
    assert active.guardrails == ["malformed_tool:detected"]
    assert "MALFORMED TOOL PAYLOAD: detected streak=2 kind=markup request=req_1 session=s" in caplog.messages


@pytest.mark.parametrize(("prompt", "level"), [(1000, "INFO"), (3100, "WARNING"), (3500, "WARNING"), (3900, "ERROR")])
def test_a_turn_is_logged_as_counts_and_ends_in_a_context_line(
    desk: Desk, caplog: pytest.LogCaptureFixture, prompt: int, level: str
) -> None:
    caplog.set_level(logging.INFO)
    active = desk.begin()
    active.answer = make_answer(content())
    active.session.turn_done(Usage(prompt, 0, 20), None, 4096)
    desk.telemetry.finish(active, outcome=RequestOutcome.OK, stop_reason="end_turn")
    request, response, text = caplog.messages
    assert request.startswith("REQ: stream=")
    assert response.startswith("RESP: finish=end_turn output_tokens=50 text_len=5 ")
    assert re.fullmatch(rf"CONTEXT(?: [A-Z]+)?: {prompt + 20}/4096 tokens \([\d.]+%\), .* session=s", text), text
    assert caplog.records[-1].levelname == level


async def test_no_prompt_text_is_written_anywhere(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    answer = make_answer(
        content(f"{SECRET} text"),
        {"choices": [{"index": 0, "delta": {"reasoning_content": SECRET}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [
            {"index": 0, "id": "c1", "function": {"name": "Read", "arguments": json.dumps({"path": SECRET})}}
        ]}}]},
    )  # fmt: skip
    active = desk.begin()
    active.answer = answer
    for guardrail in Guardrail:
        for action in GuardrailAction:
            desk.telemetry.note(
                active, active.session, GuardrailNote(guardrail, action, {"attempt": 1, "tool": "Read"})
            )
    proxy = desk.proxy
    pictures = [context_json(proxy, active.session)]
    active.session.turn_done(answer.cost().usage, 900, 4096)
    desk.telemetry.finish(
        active, outcome=RequestOutcome.OK, tool_calls=[tool_call.name for tool_call in answer.tool_calls()]
    )
    pictures.append(context_json(proxy, active.session))
    written = [desk.path.read_text(), caplog.text, json.dumps(pictures), page(proxy)]
    assert all(len(name) > 500 for name in written)
    assert [name for name in written if SECRET in name] == []


def test_lines_are_appended_to_a_private_file_whose_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "events.jsonl"
    file = EventsFile(path, 1000)
    file.write('{"n":1}')
    assert path.read_text() == '{"n":1}\n'
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    file.write('{"n":2}')
    EventsFile(path, 1000).write('{"n":3}')
    assert path.read_text().splitlines() == ['{"n":1}', '{"n":2}', '{"n":3}']


def test_a_full_file_moves_aside_over_the_former_one(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    file = EventsFile(path, 40)
    for number in range(30):
        file.write(f'{{"number":{number:04}}}')
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["events.jsonl", "events.jsonl.1"]
    kept = [(tmp_path / name).read_text() for name in reversed(names)]
    lines = "".join(kept).splitlines()
    assert lines == [f'{{"number":{number:04}}}' for number in range(30 - len(lines), 30)]
    assert all(len(text) <= 40 and text.endswith("\n") for text in kept)


def test_a_disk_that_fails_loses_events_says_so_once_and_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "place").write_text("a file, where a folder should be")
    path = tmp_path / "place" / "events.jsonl"
    file = EventsFile(path, 1000)
    for _ in range(4):
        file.write("lost")
    assert file.lost == 4
    assert len(caplog.records) == 1
    (tmp_path / "place").unlink()
    file.write("kept")
    assert path.read_text() == "kept\n"


@pytest.mark.parametrize(
    ("setting", "expected"),
    [(None, Path("/state/specdash/proxy-events.jsonl")), ("off", None), ("/x/y.jsonl", Path("/x/y.jsonl"))],
)
def test_where_events_go(setting: str | None, expected: Path | None) -> None:
    assert events_path(setting, {"XDG_STATE_HOME": "/state"}) == expected


def test_a_file_that_is_moved_away_is_begun_again_and_one_that_is_none_is_never_moved(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    file = EventsFile(path, 1000)
    file.write("old")
    path.rename(tmp_path / "moved")
    file.write("new")
    assert (path.read_text(), (tmp_path / "moved").read_text()) == ("new\n", "old\n")
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    device = EventsFile(link, 10)
    for _ in range(5):
        device.write("x" * 50)
    assert link.is_symlink()
    assert device.lost == 0


# GET /metrics: the numbers of what happened, in the text that Prometheus accepts.


def page(proxy: Proxy) -> str:
    return generate_latest(ProxyMetrics(proxy)).decode()


def samples(desk: Desk) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(page(desk.proxy))
    return {(sample.name, frozenset(sample.labels.items())): sample.value for row in families for sample in row.samples}


def test_the_page_counts_what_happened(desk: Desk) -> None:
    def figure(name: str, **labels: str) -> float:
        return samples(desk)[f"specdash_proxy_{name}", frozenset(labels.items())]

    assert (figure("prompt_tokens_total"), figure("active_requests", phase="held")) == (0, 0)
    assert figure("ttft_seconds_bucket", le="+Inf") == 0
    odd = ApiError(500, "")
    odd.type = 'odd"type\\\n'
    for ttft, outcome, error in ((0.3, RequestOutcome.OK, None), (3.0, RequestOutcome.ERROR, odd)):
        active = desk.begin("secret-session")
        desk.telemetry.note(active, active.session, GuardrailNote(Guardrail.LOOP_BREAKER, GuardrailAction.RELEASED))
        desk.now += ttft
        active.first_content()
        cached = {"cached_tokens": 40}
        usage = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": cached}
        active.answer = make_answer({"usage": usage})
        desk.telemetry.finish(active, outcome=outcome, error=error)
    assert figure("requests_total", path="/v1/messages", outcome="ok") == 1
    assert figure("errors_total", type='odd"type\\\n') == 1
    assert (figure("prompt_tokens_total"), figure("cached_tokens_total")) == (200, 80)
    assert figure("guardrail_actions_total", guardrail="loop_breaker", action="released") == 2
    assert figure("ttft_seconds_sum") == pytest.approx(3.3)
    buckets = [figure("ttft_seconds_bucket", le=bound) for bound in ("0.25", "0.5", "1.0", "5.0", "+Inf")]
    assert buckets == [0, 1, 1, 2, 2]
    assert figure("context_window_tokens") == 4000
    assert "secret-session" not in page(desk.proxy)


# GET /v1/context: the fields that scripts know, and the live picture.

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


async def test_without_a_session_the_values_are_blank_and_with_one_they_are_its_use_of_the_window(desk: Desk) -> None:
    blank = context_json(desk.proxy, None)
    assert (set(blank), set(blank["loop_protection"])) == (FIELDS, LOOP_FIELDS)
    assert (blank["active_session_id"], blank["utilization"], blank["total_requests"]) == (None, None, 0)
    session = desk.sessions.get("a")
    for prompt in (1000, 2000, 3400):
        session.turn_done(Usage(prompt, 0, 100), None, 4000)
    values = json.loads(json.dumps(context_json(desk.proxy, session)))
    assert set(values) == FIELDS
    assert (values["last_input_tokens"], values["last_output_tokens"], values["peak_input_tokens"]) == (3400, 100, 3400)
    assert (values["utilization"], values["utilization_pct"], values["warning_level"]) == (0.875, "87.5%", "HIGH")
    assert (values["estimated_turns_remaining"], values["recent_history"]) == (0, [1100, 2100, 3500])


async def test_the_status_is_the_whole_live_picture(desk: Desk) -> None:
    desk.telemetry.finish(desk.begin("a"), outcome=RequestOutcome.CLIENT_LEFT)
    running = desk.begin("a", request_id="r2", tools=3)
    desk.telemetry.note(running, running.session, GuardrailNote(Guardrail.SUPPLEMENT, GuardrailAction.APPLIED))
    status = status_from_json(context_json(desk.proxy, running.session)["status"])
    assert status is not None
    assert (status.requests, status.clients_left, status.errors) == (1, 1, 0)
    assert (status.upstream_url, status.counters) == ("http://127.0.0.1:9", {"supplement:applied": 1})
    assert [(view.request_id, view.phase, view.tools) for view in status.active] == [("r2", RequestPhase.WAITING, 3)]
    assert [(session.id, session.active, session.requests) for session in status.sessions] == [("a", 1, 2)]
