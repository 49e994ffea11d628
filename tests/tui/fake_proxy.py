"""Proxies for screens: one at work, one that is held, one that is gone, a UAP proxy, and a hostile one."""

from msgspec.structs import replace

from specdash.core.proxy_events import (
    ActiveView,
    Guardrail,
    GuardrailAction,
    GuardrailEvent,
    ProxyStatus,
    RequestEvent,
    RequestOutcome,
    RequestPhase,
    SessionView,
    UpstreamStatus,
)
from specdash.core.readings import ReadingStatus
from specdash.insight.picture import SERIES_COLUMNS, GuardrailCount, ProxyPicture, ProxyWindow

MAIN = "hdr:5f1c2a7e-93b1-4a41-8f0e-7d3c1b9a2e44"
AGENT = "hdr:5f1c2a7e-93b1-4a41-8f0e-7d3c1b9a2e44/agent-explore"
LOOPING = "meta:conversation_0199aa31"
FINGERPRINT = "fp:0b7be5e0c1c2d3a4f5b6"
WINDOW = 32768


def sessions(wall: float) -> tuple[SessionView, ...]:
    """One near its window, one in a loop, one with malformed calls, one calm, and one of which little is known."""
    model = "Qwen3-Coder-30B-A3B-Q4_K_M"
    return (
        SessionView(MAIN, wall - 1, 61, 1, model, 28_950, WINDOW, 29_800, 512, 4, prunes=2),
        SessionView(
            LOOPING,
            wall - 3,
            44,
            1,
            model,
            21_004,
            WINDOW,
            22_000,
            90,
            12,
            is_looping=True,
            loop_repeats=9,
            loop_period=2,
        ),
        SessionView(
            AGENT,
            wall - 42,
            17,
            0,
            model,
            25_400,
            WINDOW,
            25_400,
            640,
            9,
            malformed_streak=3,
            malformed_total=5,
            contamination_resets=1,
        ),
        SessionView(FINGERPRINT, wall - 700, 3, 0, model, 1_904, WINDOW, 2_000, 300, None),
        SessionView("hdr:probe", wall - 5000, 1, 0, model, None, WINDOW),
    )


def active(wall: float) -> tuple[ActiveView, ...]:
    """One in prefill, one in decode after a retry."""
    return (
        ActiveView(
            "req_011CPrefill", MAIN, wall - 2.4, RequestPhase.PREFILL, stream=True, tools=14, prompt_tokens=29_100,
            prompt_done=16_400, cached_tokens=14_000, prefill_rate=3_410.0,
        ),
        ActiveView(
            "req_011CDecode", LOOPING, wall - 9.1, RequestPhase.DECODE, stream=True, strict=True, tools=14, attempt=2,
            prompt_tokens=21_004, prompt_done=21_004, cached_tokens=20_800, completion_tokens=412, ttft_s=0.42,
            prefill_rate=2_950.0, decode_rate=61.8, draft_tokens=560, accepted_tokens=398,
            guardrails=("malformed_tool:retried",),
        ),
    )  # fmt: skip


def finished(wall: float) -> tuple[RequestEvent, ...]:
    """Requests of all ends."""
    several = [
        RequestEvent(
            wall - 30.0 - 47.0 * i,
            (MAIN, LOOPING, AGENT)[i % 3],
            f"req_011CDone{i:04d}",
            stream=True,
            stop_reason="tool_use" if i % 4 else "end_turn",
            duration_s=6.0 + 1.7 * i,
            held_s=0.0,
            ttft_s=0.21 + 0.13 * (i % 5),
            prefill_s=0.2 + 0.1 * (i % 5),
            decode_s=5.0 + 1.5 * i,
            prompt_tokens=9_000 + 613 * i,
            cached_tokens=8_000 + 290 * i,
            completion_tokens=180 + 37 * i,
            prefill_rate=3_200.0 - 40 * i,
            decode_rate=48.0 + 1.3 * (i % 9),
            draft_tokens=300,
            accepted_tokens=300 * (82 - 2 * i) // 100,
            context_window=WINDOW,
            messages=20 + i,
            tools=14,
            tool_calls=("Read", "Bash") if i % 4 else (),
        )
        for i in range(24)
    ]
    several[1] = replace(
        several[1],
        retries=1,
        guardrails=("malformed_tool:detected", "malformed_tool:retried", "malformed_tool:recovered"),
    )
    several[2] = RequestEvent(
        wall - 124.0, AGENT, "req_011CError", stream=True, outcome=RequestOutcome.ERROR, status=529,
        error_type="overloaded_error", duration_s=0.01, messages=31, tools=14,
    )  # fmt: skip
    several[4] = replace(several[4], outcome=RequestOutcome.CLIENT_LEFT, stop_reason=None, status=499)
    several[6] = replace(
        several[6], stop_reason="max_tokens", guardrails=("context_prune:applied", "max_tokens:applied")
    )
    return tuple(several)


def actions(wall: float) -> tuple[GuardrailEvent, ...]:
    """What the guardrails did of late."""
    request = "req_011CDone0001"
    facts = {"kind": "unknown_tool", "tool": "Raed", "streak": 3}
    return (
        GuardrailEvent(wall - 60, AGENT, Guardrail.MALFORMED_TOOL, GuardrailAction.RECOVERED, request),
        GuardrailEvent(wall - 64, AGENT, Guardrail.MALFORMED_TOOL, GuardrailAction.RETRIED, request, {"attempt": 2}),
        GuardrailEvent(wall - 65, AGENT, Guardrail.MALFORMED_TOOL, GuardrailAction.DETECTED, request, facts),
    )


def guardrails() -> tuple[GuardrailCount, ...]:
    """Four that acted, one of them not in the window."""
    malformed = tuple(3 if i in (47, 51) else 1 if i % 13 == 4 else 0 for i in range(SERIES_COLUMNS))
    loops = tuple(1 if i in (30, 58) else 0 for i in range(SERIES_COLUMNS))
    prunes = tuple(1 if i % 9 == 2 else 0 for i in range(SERIES_COLUMNS))
    quiet = (0,) * SERIES_COLUMNS
    return (
        GuardrailCount(
            "malformed_tool", sum(malformed), 31, (("detected", 12), ("retried", 12), ("recovered", 7)),
            malformed,
        ),
        GuardrailCount("loop_breaker", 2, 5, (("applied", 4), ("released", 1)), loops),
        GuardrailCount("contamination", 0, 1, (("applied", 1),), quiet),
        GuardrailCount("context_prune", sum(prunes), 2_412, (("applied", 2_412),), prunes),
    )  # fmt: skip


def status(wall: float) -> ProxyStatus:
    """The live picture."""
    return ProxyStatus(
        version="0.3.0",
        started=wall - 11_400.0,
        upstream_url="http://127.0.0.1:8080",
        upstream=UpstreamStatus.OK,
        context_window=WINDOW,
        requests=412,
        errors=3,
        clients_left=2,
        counters={"malformed_tool:detected": 12},
        sessions=sessions(wall),
        session_count=5,
        active=active(wall),
    )


def proxy_picture(wall: float) -> ProxyPicture:
    """A proxy at work."""
    return ProxyPicture(
        configured=True,
        url="http://127.0.0.1:4000",
        origin="run record of process 4243",
        status=ReadingStatus.KNOWN,
        reason="",
        age_s=0.4,
        live=status(wall),
        events_status=ReadingStatus.KNOWN,
        window=ProxyWindow(42, 1, 1, 1 / 42, 0.47, 52.4, 0.69, 0.88),
        finished=finished(wall),
        actions=actions(wall),
        guardrails=guardrails(),
    )


def held_proxy(wall: float) -> ProxyPicture:
    """Held for a restart, with two requests waiting, and a setting that cannot be used."""
    waiting = tuple(
        ActiveView(f"req_held{i}", MAIN, wall - 11.0, RequestPhase.HELD, stream=True, tools=14) for i in range(2)
    )
    live = replace(
        status(wall),
        held=True,
        held_since=wall - 12.0,
        hold_reason="restart of the backend",
        waiting=2,
        upstream=UpstreamStatus.LOADING,
        active=waiting,
        problems=("PROXY_LOOP_WINDOW = 'six': must be a whole number from 2 to 1000; the default 6 holds",),
    )
    return replace(proxy_picture(wall), live=live)


def gone_proxy(wall: float) -> ProxyPicture:
    """It does not answer any more."""
    return replace(
        proxy_picture(wall), status=ReadingStatus.STALE, age_s=42.0, reason="connection refused: nothing listens there"
    )


def uap_proxy() -> ProxyPicture:
    """What a UAP proxy tells."""
    session = SessionView(
        FINGERPRINT, 0.0, 41, 0, "", 25_000, WINDOW, 25_000, 210, 6, is_looping=True, loop_repeats=9, malformed_streak=1
    )
    live = ProxyStatus(version="UAP", context_window=WINDOW, requests=41, sessions=(session,), session_count=2)
    return ProxyPicture(
        configured=True,
        url="http://127.0.0.1:4000",
        status=ReadingStatus.KNOWN,
        reason="",
        age_s=0.4,
        live=live,
        events_reason="no proxy log: start specdash with --proxy-log FILE or journal:UNIT",
    )


def hostile_proxy(wall: float, text: str) -> ProxyPicture:
    """Every text from outside tries to be something else."""
    picture = proxy_picture(wall)
    live = status(wall)
    bad_session = replace(live.sessions[0], id=text, model=text)
    bad_active = replace(live.active[0], session=text, request_id=text, guardrails=(text,))
    bad_done = replace(
        picture.finished[0], session=text, request_id=text, stop_reason=text, model=text, tool_calls=(text,)
    )
    return replace(
        picture,
        url=text,
        live=replace(
            live,
            version=text,
            held=True,
            hold_reason=text,
            sessions=(bad_session,),
            active=(bad_active,),
            problems=(text,),
        ),
        finished=(bad_done, *picture.finished[1:]),
        guardrails=(GuardrailCount(text, 3, 4, ((text, 4),), (1,) * SERIES_COLUMNS), *picture.guardrails),
    )
