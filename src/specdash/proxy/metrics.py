"""GET /metrics in Prometheus' text format 0.0.4. Labels are few: endpoints, outcomes, error types, guardrails.

Source: prometheus.io/docs/instrumenting/exposition_formats. Written by hand: a client library would cost more memory
than the whole telemetry.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from specdash import __version__
from specdash.core.proxy_events import Phase
from specdash.core.proxy_status import Upstream
from specdash.proxy.telemetry.tally import BOUNDS_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from specdash.proxy.gate import Gate
    from specdash.proxy.sessions import SessionStore
    from specdash.proxy.settings import ProxySettings
    from specdash.proxy.telemetry import Telemetry
    from specdash.proxy.telemetry.tally import Histogram
    from specdash.proxy.window import Window

Sample = tuple["Mapping[str, str]", float]
_PREFIX = "specdash_proxy_"
_NO_LABELS: dict[str, str] = {}


class _Page:
    def __init__(self) -> None:
        self._lines: list[str] = []

    def gauge(self, name: str, help_: str, samples: float | Iterable[Sample]) -> None:
        self._family(name, "gauge", help_, samples)

    def counter(self, name: str, help_: str, samples: float | Iterable[Sample]) -> None:
        self._family(f"{name}_total", "counter", help_, samples)

    def histogram(self, name: str, help_: str, values: Histogram) -> None:
        self._head(name, "histogram", help_)
        counts = list(accumulate(values.counts))
        for bound, count in zip((*map(_number, BOUNDS_S), "+Inf"), counts, strict=True):
            self._sample(f"{name}_bucket", {"le": bound}, count)
        self._sample(f"{name}_sum", _NO_LABELS, values.sum)
        self._sample(f"{name}_count", _NO_LABELS, counts[-1])

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def _family(self, name: str, kind: str, help_: str, samples: float | Iterable[Sample]) -> None:
        self._head(name, kind, help_)
        for labels, value in ((_NO_LABELS, samples),) if isinstance(samples, (int, float)) else samples:
            self._sample(name, labels, value)

    def _head(self, name: str, kind: str, help_: str) -> None:
        self._lines.append(f"# HELP {_PREFIX}{name} {help_}")
        self._lines.append(f"# TYPE {_PREFIX}{name} {kind}")

    def _sample(self, name: str, labels: Mapping[str, str], value: float) -> None:
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        self._lines.append(f"{_PREFIX}{name}{f'{{{inside}}}' if inside else ''} {_number(value)}")


def render(telemetry: Telemetry, sessions: SessionStore, settings: ProxySettings, window: Window, gate: Gate) -> str:
    """The whole page."""
    page = _Page()
    _present(page, telemetry, sessions, settings, window, gate)
    _requests(page, telemetry)
    _tokens(page, telemetry)
    return page.text()


def _present(
    page: _Page, telemetry: Telemetry, sessions: SessionStore, settings: ProxySettings, window: Window, gate: Gate
) -> None:
    page.gauge("info", "Version of the proxy; always 1.", [({"version": __version__}, 1)])
    page.gauge("start_time_seconds", "Unix time of the proxy's start.", telemetry.started)
    states = [({"state": str(one)}, float(one is window.status)) for one in Upstream]
    page.gauge("upstream_state", "1 for what the proxy last saw of its upstream, 0 for the rest.", states)
    if window.tokens:
        page.gauge("context_window_tokens", "Context window of one conversation.", window.tokens)
    page.gauge("held", "1 while new requests wait because the proxy is held.", float(gate.held))
    page.gauge("waiting_requests", "Requests that wait because the proxy is held.", gate.waiting)
    phases: dict[Phase, int] = {one: 0 for one in Phase if one is not Phase.DONE}
    for active in telemetry.active:
        phases[active.phase] += 1
    page.gauge("active_requests", "Requests under way, by phase.", [({"phase": str(k)}, n) for k, n in phases.items()])
    page.gauge("sessions", "Sessions remembered.", len(sessions))
    page.gauge("settings_problems", "Settings that were not usable and left at their defaults.", len(settings.problems))


def _requests(page: _Page, telemetry: Telemetry) -> None:
    tally = telemetry.tally
    page.counter(
        "requests",
        "Finished requests, by endpoint and outcome.",
        [({"path": path, "outcome": str(how)}, count) for (path, how), count in sorted(tally.requests.items())],
    )
    page.counter(
        "errors", "Requests that failed, by error type.", [({"type": k}, n) for k, n in sorted(tally.errors.items())]
    )
    page.counter("retries", "Upstream calls beyond the first of a request.", tally.retries)
    page.counter(
        "guardrail_actions",
        "What guardrails did, by guardrail and action.",
        [(_mark(mark), count) for mark, count in sorted(telemetry.counters.items())],
    )
    page.counter("events_lost", "Events that could not be written to the events file.", telemetry.file.lost)
    page.counter("log_lines_lost", "Lines of the log that could not be written.", telemetry.log_lines_lost())
    page.counter("held_seconds", "Time requests waited because the proxy was held.", tally.held_s)
    page.histogram("ttft_seconds", "Time from a request's arrival to its first content.", tally.ttft)
    page.histogram("request_duration_seconds", "Time from a request's arrival to its end.", tally.duration)


def _tokens(page: _Page, telemetry: Telemetry) -> None:
    tally = telemetry.tally
    page.counter("prompt_tokens", "Prompt tokens, cached ones included, over all retries.", tally.prompt_tokens)
    page.counter("cached_tokens", "Prompt tokens that the upstream had in its cache.", tally.cached_tokens)
    page.counter("completion_tokens", "Tokens of answers, over all retries.", tally.completion_tokens)
    page.counter("prefilled_tokens", "Prompt tokens processed in prefill_seconds.", tally.prefilled_tokens)
    page.counter("prefill_seconds", "Time the upstream took to process prompts.", tally.prefill_s)
    page.counter("decoded_tokens", "Tokens generated in decode_seconds.", tally.decoded_tokens)
    page.counter("decode_seconds", "Time the upstream took to generate tokens.", tally.decode_s)
    page.counter("draft_tokens", "Draft tokens proposed.", tally.draft_tokens)
    page.counter("accepted_tokens", "Draft tokens accepted.", tally.accepted_tokens)


def _mark(mark: str) -> dict[str, str]:
    guardrail, _, action = mark.partition(":")
    return {"guardrail": guardrail, "action": action}


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
