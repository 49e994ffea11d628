"""GET /metrics: text that Prometheus accepts, with the numbers of what happened."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from specdash.core.proxy_events import Guardrail, GuardrailAction, RequestEvent, RequestOutcome
from specdash.proxy.answer.blocks import Usage
from specdash.proxy.guardrails import GuardrailNote
from specdash.proxy.http.app import Proxy
from specdash.proxy.http.status import render
from specdash.proxy.settings import settings_from_env
from specdash.proxy.telemetry import BOUNDS_S, Telemetry

SAMPLE = re.compile(r"([a-z_]+)(?:\{([^}]*)\})? (-?[0-9.]+(?:e[+-]?[0-9]+)?)")
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\.)*)"(?:,|$)')
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parse(page: str) -> Samples:
    """Strict: every family has HELP, then TYPE, then its samples in one piece; no sample comes twice."""
    assert page.endswith("\n")
    found: Samples = {}
    family = kind = ""
    families: set[str] = set()
    for line in page.splitlines():
        if line.startswith("# HELP "):
            _, _, family, text = line.split(" ", 3)
            assert text.strip()
            assert family not in families
            families.add(family)
        elif line.startswith("# TYPE "):
            name, kind = line.removeprefix("# TYPE ").split(" ")
            assert name == family
            assert kind in {"counter", "gauge", "histogram"}
            assert (kind == "counter") == family.endswith("_total")
        else:
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            name = match[1]
            suffixes = {f"{family}_bucket", f"{family}_sum", f"{family}_count"} if kind == "histogram" else {family}
            assert name in suffixes
            labels = match[2] or ""
            assert LABEL.sub("", labels) == ""
            key = name, tuple(sorted(LABEL.findall(labels)))
            assert key not in found
            found[key] = float(match[3])
    return found


class Desk:
    def __init__(self) -> None:
        self.now = 0.0
        self.proxy = Proxy(settings_from_env({"PROXY_EVENTS_FILE": "off", "PROXY_CONTEXT_WINDOW": "4096"}))
        self.sessions = self.proxy.sessions
        self.telemetry = Telemetry(self.proxy.settings, self.sessions, clock=lambda: self.now)
        self.proxy.telemetry = self.telemetry

    def turn(self, ttft: float, outcome: RequestOutcome = RequestOutcome.OK, error_type: str | None = None) -> None:
        session = self.sessions.get("secret-session")
        active = self.telemetry.begin(session, RequestEvent(0.0, session.id, "r"))
        self.telemetry.note(active, session, GuardrailNote(Guardrail.LOOP_BREAKER, GuardrailAction.RELEASED))
        self.now += ttft
        active.first_content()
        usage = Usage(100, 40, 7)
        self.telemetry.finish(active, outcome=outcome, error_type=error_type, usage=usage)

    async def samples(self) -> Samples:
        return parse(render(self.proxy))


async def test_the_page_of_a_fresh_proxy_is_well_formed() -> None:
    samples = await Desk().samples()
    assert samples["specdash_proxy_prompt_tokens_total", ()] == 0
    assert samples["specdash_proxy_ttft_seconds_bucket", (("le", "+Inf"),)] == 0
    assert samples["specdash_proxy_active_requests", (("phase", "held"),)] == 0


async def test_the_page_counts_what_happened() -> None:
    desk = Desk()
    desk.turn(0.3)
    desk.turn(3.0, RequestOutcome.ERROR, 'odd"type\\\n')
    samples = await desk.samples()
    ok = (("outcome", "ok"), ("path", "/v1/messages"))
    assert samples["specdash_proxy_requests_total", ok] == 1
    assert samples["specdash_proxy_errors_total", (("type", 'odd\\"type\\\\\\n'),)] == 1
    assert samples["specdash_proxy_prompt_tokens_total", ()] == 200
    assert samples["specdash_proxy_cached_tokens_total", ()] == 80
    mark = (("action", "released"), ("guardrail", "loop_breaker"))
    assert samples["specdash_proxy_guardrail_actions_total", mark] == 2
    assert samples["specdash_proxy_ttft_seconds_sum", ()] == 3.3
    assert samples["specdash_proxy_ttft_seconds_bucket", (("le", "0.5"),)] == 1
    assert samples["specdash_proxy_ttft_seconds_bucket", (("le", "5"),)] == 2
    assert samples["specdash_proxy_context_window_tokens", ()] == 4096


async def test_no_session_is_a_label() -> None:
    desk = Desk()
    desk.turn(0.1)
    assert "secret-session" not in render(desk.proxy)


@given(st.lists(st.floats(0, 2000), max_size=20))
async def test_buckets_are_cumulative(times: list[float]) -> None:
    desk = Desk()
    for seconds in times:
        desk.telemetry.tally.ttft.add(seconds)
    samples = await desk.samples()
    for bound in BOUNDS_S:
        expected = sum(seconds <= bound for seconds in times)
        assert samples["specdash_proxy_ttft_seconds_bucket", (("le", f"{bound:g}"),)] == expected
    assert samples["specdash_proxy_ttft_seconds_count", ()] == len(times)
