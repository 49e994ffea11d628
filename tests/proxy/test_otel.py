"""What an OpenTelemetry collector is told of each request, and that nobody waits for it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from specdash.backend.demo import DRAFT_MODEL, TARGET_MODEL, bundled_model
from specdash.core.changes import Role, shown_value
from specdash.core.env_edit import unknown
from specdash.core.errors import ExitCode, InputError
from specdash.core.masking import MASK
from specdash.core.proxy_events import RequestEvent
from specdash.proxy.http.server import _otel
from specdash.proxy.otel import OTHER_NAME, SCHEMA_URL, OtelObserver, start
from specdash.proxy.settings import load
from specdash.proxy.telemetry import MAX_LABELS
from support.engines import engine_env, running_backend
from support.fault_server import free_port
from support.fault_upstream import FaultUpstream
from support.otlp_receiver import OtlpReceiver, attributes
from support.proxy_app import RunningProxy, running_proxy, settings_for
from support.proxy_process import running_proxy as proxy_process
from support.proxy_ways import TOOLS, chat, turn
from support.upstream_script import Drop, Script, answers, calls, error, says, stops, thinks
from support.waiting import until, until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

DOCS = Path(__file__).resolve().parents[2] / "docs" / "opentelemetry.md"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
DURATION, FIRST = "gen_ai.server.request.duration", "gen_ai.server.time_to_first_token"
EACH, USAGE = "gen_ai.server.time_per_output_token", "gen_ai.client.token.usage"
SPECULATION = "llama_cpp.speculation.tokens"
Points = dict[str, list[Any]]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No OTEL_* variable from outside, the SDK's own log as it was, and no thread of it left."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(logging.getLogger("opentelemetry"), "level", logging.WARNING)
    yield
    until(lambda: not any(thread.name.startswith("Otel") for thread in threading.enumerate()))


class Watched:
    """A proxy in front of an upstream that tests script, and what its observer told."""

    def __init__(self, proxy: RunningProxy, upstream: FaultUpstream, path: Path) -> None:
        self.proxy, self.upstream, self._path = proxy, upstream, path
        self._spans, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        observer = OtelObserver("127.0.0.1", proxy.port, [SimpleSpanProcessor(self._spans)], [self._reader])
        proxy.proxy.telemetry.observer = observer

    @property
    def spans(self) -> tuple[Any, ...]:
        return self._spans.get_finished_spans()

    def scopes(self) -> list[Any]:
        data = self._reader.get_metrics_data()
        return [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data else []

    def points(self) -> Points:
        return {metric.name: list(metric.data.data_points) for scope in self.scopes() for metric in scope.metrics}

    def event(self) -> dict[str, Any]:
        """The proxy's own event of the latest request."""
        told = [json.loads(line) for line in self._path.read_text().splitlines()]
        found: dict[str, Any] = [value for value in told if value["event"] == "request"][-1]
        return found


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    path = tmp_path / "events.jsonl"
    with FaultUpstream() as upstream:
        async with running_proxy(settings_for(upstream.url, PROXY_EVENTS_FILE=str(path))) as proxy:
            yield Watched(proxy, upstream, path)


class TestARequest:
    async def test_is_a_server_span_with_the_figures_of_the_proxys_own_event(self, watched: Watched) -> None:
        watched.upstream.otherwise = answers("Hello ", "there ", "you")
        await watched.proxy.post("/v1/messages", turn(stream=True))
        (span,), event = watched.spans, watched.event()
        assert (span.name, span.kind, span.status.status_code) == (
            "chat claude-local", SpanKind.SERVER, StatusCode.UNSET,
        )  # fmt: skip
        assert span.instrumentation_scope.schema_url == SCHEMA_URL
        assert span.start_time == pytest.approx(event["at"] * 1e9, abs=1e6)
        assert (span.end_time - span.start_time) / 1e9 == pytest.approx(event["duration_s"], abs=1e-6)
        assert dict(span.attributes) == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "llama_cpp",
            "gen_ai.request.model": "claude-local",
            "gen_ai.response.model": "scripted",
            "gen_ai.conversation.id": event["session"],
            "gen_ai.request.stream": True,
            "gen_ai.response.finish_reasons": ("end_turn",),
            "gen_ai.response.time_to_first_chunk": event["ttft_s"],
            "gen_ai.usage.input_tokens": event["prompt_tokens"],
            "gen_ai.usage.cache_read.input_tokens": event["cached_tokens"],
            "gen_ai.usage.output_tokens": event["completion_tokens"],
            "llama_cpp.speculation.drafted_tokens": event["draft_tokens"],
            "llama_cpp.speculation.accepted_tokens": event["accepted_tokens"],
            "server.address": "127.0.0.1",
            "server.port": watched.proxy.port,
        }

    async def test_is_counted_in_the_histograms_of_the_conventions(self, watched: Watched) -> None:
        watched.upstream.otherwise = answers("Hello ", "there ", "you")
        await watched.proxy.post("/v1/messages", turn(stream=True))
        event, (scope,) = watched.event(), watched.scopes()
        points = {metric.name: list(metric.data.data_points) for metric in scope.metrics}
        assert scope.scope.schema_url == SCHEMA_URL
        assert {metric.name: metric.unit for metric in scope.metrics} == {
            DURATION: "s", FIRST: "s", EACH: "s", USAGE: "{token}", SPECULATION: "{token}",
        }  # fmt: skip
        (duration,), (first,), (each,) = points[DURATION], points[FIRST], points[EACH]
        assert (duration.sum, first.sum) == (event["duration_s"], event["ttft_s"])
        later = event["completion_tokens"] - 1
        assert each.sum == pytest.approx((event["duration_s"] - event["ttft_s"]) / later)
        bounds = {name: points[name][0].explicit_bounds for name in (DURATION, FIRST, EACH, USAGE)}
        assert [(len(found), found[0], found[-1]) for found in bounds.values()] == [
            (14, 0.01, 81.92), (16, 0.001, 10.0), (13, 0.01, 2.5), (14, 1, 67108864),
        ]  # fmt: skip
        used = {point.attributes["gen_ai.token.type"]: point.sum for point in points[USAGE]}
        assert used == {"input": event["prompt_tokens"], "output": event["completion_tokens"]}
        speculated = {
            point.attributes["llama_cpp.speculation.token.type"]: point.value for point in points[SPECULATION]
        }
        assert speculated == {"drafted": event["draft_tokens"], "accepted": event["accepted_tokens"]}
        assert all(point.attributes["gen_ai.response.model"] == "scripted" for point in (duration, first, each))
        assert not any("session" in name or "conversation" in name for name in duration.attributes)

    async def test_of_the_other_endpoint_is_told_alike(self, watched: Watched) -> None:
        await watched.proxy.post("/v1/chat/completions", chat(stream=True))
        (span,) = watched.spans
        assert (span.name, span.attributes["gen_ai.response.model"]) == ("chat local", "scripted")
        assert watched.points()[FIRST][0].sum == watched.event()["ttft_s"]

    async def test_answered_whole_has_no_first_token(self, watched: Watched) -> None:
        await watched.proxy.post("/v1/messages", turn())
        points = watched.points()
        assert {FIRST, EACH} & points.keys() == set()
        assert points[DURATION][0].count == 1

    async def test_whose_prompt_the_upstream_does_not_count_tells_no_estimate(self, watched: Watched) -> None:
        watched.upstream.otherwise = answers("Hello", usage=False, timings=False, progress=())
        await watched.proxy.post("/v1/messages", turn(stream=True))
        assert watched.event()["prompt_estimated"]
        assert "gen_ai.usage.input_tokens" not in watched.spans[0].attributes
        assert [point.attributes["gen_ai.token.type"] for point in watched.points()[USAGE]] == ["output"]

    @pytest.mark.parametrize("stream", [False, True])
    async def test_that_fails_is_an_error_with_its_class(self, watched: Watched, stream: bool) -> None:
        watched.upstream.otherwise = Script((*says("Hello "), Drop()))
        await watched.proxy.post("/v1/messages", turn(stream=stream))
        (span,), (point,), event = watched.spans, watched.points()[DURATION], watched.event()
        assert (event["outcome"], span.status.status_code) == ("error", StatusCode.ERROR)
        assert span.attributes["error.type"] == point.attributes["error.type"] == event["error_type"] == "api_error"

    async def test_whose_client_leaves_is_no_error_of_the_server(self, watched: Watched) -> None:
        watched.upstream.otherwise = Script(hangs=True)
        _, writer = await watched.proxy.send_post("/v1/messages", json.dumps(turn(stream=True)).encode())
        await until_async(lambda: watched.upstream.chats)
        writer.transport.abort()
        await until_async(lambda: watched.spans)
        (span,) = watched.spans
        assert (span.attributes["error.type"], span.status.status_code) == ("client_left", StatusCode.UNSET)

    async def test_that_is_not_understood_is_none(self, watched: Watched) -> None:
        assert (await watched.proxy.client.post("/v1/messages", content=b"{")).status_code == 400
        assert watched.spans == ()


class TestATrace:
    async def test_of_the_client_goes_on_and_is_not_sent_upstream(self, watched: Watched) -> None:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
        await watched.proxy.post("/v1/messages", turn(), headers=headers)
        (span,) = watched.spans
        assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
        assert span.context.trace_state["vendor"] == "1"
        assert not any(name.startswith("trace") for name in watched.upstream.chats[0].headers)

    async def test_that_the_client_does_not_record_is_not_recorded_here(self, watched: Watched) -> None:
        await watched.proxy.post("/v1/messages", turn(), headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
        assert watched.spans == ()
        assert watched.points()[DURATION][0].count == 1

    @pytest.mark.parametrize("header", ["", "nonsense", f"00-{'0' * 32}-{PARENT}-01", "00-" + "f" * 9000])
    async def test_that_cannot_be_read_is_begun_anew(self, watched: Watched, header: str) -> None:
        answer = await watched.proxy.post("/v1/messages", turn(), headers={"traceparent": header})
        assert answer.status_code == 200
        assert watched.spans[0].parent is None


CANARY = "canary-7f3a9c"


async def test_no_text_of_a_request_or_answer_and_no_key_is_in_anything_told(watched: Watched) -> None:
    said = f"{CANARY}-word"
    watched.upstream.scripts = [
        Script((*thinks(said), *says(said), *stops())),
        Script((*calls("read_file", {"path": said}), *stops("tool_calls"))),
        answers(said),
        error(500, said, "server_error"),
        Script((*says(said), Drop())),
    ]
    keys = {"authorization": f"Bearer {CANARY}", "x-api-key": CANARY, "cookie": f"k={CANARY}", "baggage": f"k={CANARY}"}
    body = turn(
        said, system=said, tools=TOOLS, stop_sequences=[said], stream=True, metadata={"user_id": f"{CANARY} of mine"}
    )
    for _ in range(4):
        await watched.proxy.post("/v1/messages", body, headers=keys)
    await watched.proxy.post("/v1/chat/completions", chat(said, stream=True, user=said), headers=keys)
    told = [span.to_json() for span in watched.spans] + [str(watched.scopes())]
    assert len(told) == 6
    assert [text for text in told if CANARY in text] == []


def test_names_that_clients_make_up_do_not_multiply_the_series() -> None:
    reader = InMemoryMetricReader()
    observer = OtelObserver("127.0.0.1", 4000, [], [reader])
    for number in range(200):
        observer.finished(RequestEvent(0.0, "s", "r", model=f"m{number}", duration_s=1.0), f"a{number}", None)
    data = reader.get_metrics_data()
    assert data is not None
    points = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
    assert len(points) == MAX_LABELS + 1
    assert {(point.attributes or {})["gen_ai.request.model"] for point in points} >= {"m0", OTHER_NAME}


def test_an_observer_that_breaks_breaks_no_request(caplog: pytest.LogCaptureFixture) -> None:
    observer = OtelObserver("127.0.0.1", 4000, [], [])
    broken: Any = RequestEvent("no time", "s", "r")  # type: ignore[arg-type]
    for _ in range(3):
        observer.finished(broken, None, None)
    assert observer.losses.spans == 3
    assert len(caplog.records) == 1


class TestTheVariables:
    @pytest.mark.parametrize(
        ("variables", "said"),
        [
            ({"OTEL_TRACES_EXPORTER": "console"}, "OTEL_TRACES_EXPORTER=console"),
            ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"),
            ({"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/json"}, "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL=http/json"),
            ({"OTEL_BSP_MAX_QUEUE_SIZE": "many"}, "OTEL_"),
        ],
    )
    def test_that_ask_for_what_is_not_there_refuse_the_start(
        self, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
    ) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(InputError, match=said):
            start("127.0.0.1", 4000)

    def test_that_the_sdk_reads_while_it_is_imported_refuse_the_start_too(self) -> None:
        env = {**os.environ, "PROXY_OTEL": "on", "PROXY_PORT": str(free_port()), "OTEL_PROPAGATORS": "nonsense"}
        command = [sys.executable, "-m", "specdash", "proxy", "run"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == ExitCode.BAD_INPUT
        assert "nonsense" in done.stderr.splitlines()[-1]

    @pytest.mark.parametrize(
        "variables", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}]
    )
    def test_that_switch_it_off_leave_no_observer(
        self, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
    ) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert start("127.0.0.1", 4000) is None

    def test_in_the_env_file_are_no_strangers_and_their_headers_are_secret(self) -> None:
        assert unknown(Role.PROXY, "OTEL_SERVICE_NAME") is None
        for signal in ("", "TRACES_", "METRICS_"):
            assert shown_value(f"OTEL_EXPORTER_OTLP_{signal}HEADERS", f"authorization={CANARY}") == MASK


class TestTheExtra:
    def test_is_not_imported_while_the_setting_is_off(self) -> None:
        code = (
            "import sys; from specdash.proxy.http import server; "
            "from specdash.proxy.settings import settings_from_env; server.Proxy(settings_from_env({})); "
            "print([name for name in sys.modules if name.startswith(('opentelemetry', 'requests', 'google.protobuf'))])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.strip() == "[]"

    def test_is_named_at_the_start_where_it_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics", None)
        monkeypatch.delitem(sys.modules, "specdash.proxy.otel")
        monkeypatch.delattr(sys.modules["specdash.proxy"], "otel")
        with socket.create_server(("127.0.0.1", 0)) as listening, pytest.raises(InputError, match=r"specdash\[otel\]"):
            _otel(load(None, base={"PROXY_OTEL": "on"}), listening)


@contextlib.asynccontextmanager
async def sending(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, **variables: str
) -> AsyncIterator[tuple[RunningProxy, OtelObserver]]:
    """A proxy that sends to `endpoint` at once."""
    quick = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "1",
        "OTEL_METRIC_EXPORT_INTERVAL": "50",
    }
    for name, value in {**quick, **variables}.items():
        monkeypatch.setenv(name, value)
    with FaultUpstream() as upstream:
        async with running_proxy(settings_for(upstream.url)) as proxy:
            observer = start("127.0.0.1", proxy.port)
            assert observer is not None
            proxy.proxy.telemetry.observer = observer
            try:
                yield proxy, observer
            finally:
                observer.close()


class TestACollector:
    async def test_that_is_down_costs_spans_which_are_counted_and_told_once(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        timeout = {"OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
        async with sending(monkeypatch, "http://127.0.0.1:9", **timeout) as (proxy, observer):
            for _ in range(3):
                assert (await proxy.post("/v1/messages", turn(stream=True))).status_code == 200
            await until_async(lambda: observer.losses.spans == 3 and observer.losses.exports)
            page = (await proxy.get("/metrics")).text
        assert "specdash_proxy_otel_spans_lost_total 3" in page
        assert [record.message for record in caplog.records if "OpenTelemetry" in record.message] == [
            "OpenTelemetry: the collector does not take what is sent; it is dropped and counted"
        ]
        assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]

    async def test_that_never_answers_holds_up_no_request_and_no_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        limits = {
            "OTEL_BSP_MAX_QUEUE_SIZE": "2",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "1",
            "OTEL_METRICS_EXPORTER": "none",
        }
        with OtlpReceiver(answer=None) as receiver:
            async with sending(monkeypatch, receiver.url, **limits) as (proxy, observer):
                for _ in range(20):
                    assert (await proxy.post("/v1/messages", turn(stream=True))).status_code == 200
                await until_async(lambda: receiver.calls)
                assert observer.losses.spans >= 20 - 3

    async def test_that_comes_back_is_told_again(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        with OtlpReceiver(answer=400) as receiver:
            async with sending(monkeypatch, receiver.url) as (proxy, observer):
                await proxy.post("/v1/messages", turn())
                await until_async(lambda: observer.losses.spans == 1)
                receiver.answer = 200
                await proxy.post("/v1/messages", turn())
                await until_async(lambda: receiver.spans and receiver.latest(DURATION))
        assert receiver.latest(DURATION)[0].count == 2
        assert any("takes what is sent again; 1 spans were lost" in record.message for record in caplog.records)


def test_the_program_sends_all_before_it_ends_as_its_env_file_says(tmp_path: Path) -> None:
    with FaultUpstream() as upstream, OtlpReceiver() as receiver:
        values = {
            "PROXY_OTEL": "on",
            "PROXY_UPSTREAM_API_KEY": CANARY,
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
            "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=t1",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=desk",
        }
        with proxy_process(upstream.url, tmp_path, values) as proxy:
            proxy.messages(turn(CANARY, stream=True))
            event = proxy.wait_events(1)[0]
            assert proxy.stop() == 0
            assert CANARY not in proxy.stderr
    (span,) = receiver.spans
    assert attributes(span)["gen_ai.usage.output_tokens"] == event["completion_tokens"]
    (resource,) = [item.resource for item in receiver.traces[0].resource_spans]
    assert attributes(resource)["service.name"] == "specdash-proxy"
    assert attributes(resource)["deployment.environment.name"] == "desk"
    assert receiver.latest(FIRST)[0].sum == pytest.approx(event["ttft_s"])
    assert {call.headers["x-tenant"] for call in receiver.calls} == {"t1"}
    assert not any(CANARY.encode() in body for body in receiver.bodies)


@contextlib.contextmanager
def victoria_metrics(directory: Path) -> Iterator[str]:
    """A VictoriaMetrics that takes OTLP, which Debian 13 has; VICTORIA_METRICS names another place than PATH."""
    program = os.environ.get("VICTORIA_METRICS") or shutil.which("victoria-metrics")
    if program is None:
        pytest.skip("no VictoriaMetrics here (Debian 13: victoria-metrics), the one that reads OTLP")
    url = f"http://127.0.0.1:{free_port()}"
    options = ("-opentelemetry.usePrometheusNaming", f"-storageDataPath={directory}", "-search.latencyOffset=0s")
    with (directory.with_suffix(".log")).open("wb") as log:
        process = subprocess.Popen([program, f"-httpListenAddr={url[7:]}", *options], stdout=log, stderr=log)
    try:
        until(lambda: process.poll() is not None or answered(f"{url}/health") is not None)
        if process.poll() is not None or answered(f"{url}/opentelemetry/v1/metrics", {}) is None:
            pytest.skip(f"{program} is older than OTLP's metrics (1.92)")
        yield url
    finally:
        process.kill()
        process.wait(10)


def answered(url: str, fields: dict[str, str] | None = None) -> bytes | None:
    """What a POST with these fields, or a GET, is answered; None where it is not with a 2xx."""
    data = urllib.parse.urlencode(fields).encode() if fields is not None else None
    try:
        with urllib.request.urlopen(url, data, timeout=10) as answer:
            body: bytes = answer.read()
            return body
    except OSError:
        return None


@pytest.mark.slow
def test_a_real_receiver_stores_the_figures_under_the_names_that_the_docs_ask_it_for(tmp_path: Path) -> None:
    rate = re.search(r"```\nsum\(rate\((.*?)\[5m\].*?```", DOCS.read_text(), re.DOTALL)
    assert rate is not None
    with victoria_metrics(tmp_path / "stored") as url, FaultUpstream() as upstream:
        values = {
            "PROXY_OTEL": "on",
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{url}/opentelemetry/v1/metrics",
        }
        with proxy_process(upstream.url, tmp_path / "proxy", values) as proxy:
            for _ in range(3):
                proxy.messages(turn(stream=True))
            events = proxy.wait_events(3)
            assert proxy.stop() == 0

        def value(query: str) -> float:
            body = answered(f"{url}/api/v1/query", {"query": query})
            assert body is not None
            found = json.loads(body)["data"]["result"]
            return float(found[0]["value"][1]) if found else -1.0

        accepted = sum(event["accepted_tokens"] for event in events)
        until(lambda: value(rate[1]) == accepted, why=lambda: f"{rate[1]}: {value(rate[1])}, not {accepted}")
        assert value("sum(gen_ai_server_time_to_first_token_seconds_count)") == 3
        told = sum(event["duration_s"] for event in events)
        assert value("sum(gen_ai_server_request_duration_seconds_sum)") == pytest.approx(told)


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("xllamacpp", marks=pytest.mark.engine),
        pytest.param("llama-server", marks=pytest.mark.llama_server),
    ],
)
def test_a_real_server_that_speculates_is_told_with_its_own_counts(engine: str, tmp_path: Path) -> None:
    env = {
        "LLAMA_MODEL": str(bundled_model(TARGET_MODEL)),
        "LLAMA_DRAFT_MODEL": str(bundled_model(DRAFT_MODEL)),
        "LLAMA_SPEC_TYPE": "draft-simple",
        **engine_env(engine),
    }
    with running_backend(env, tmp_path / "backend") as backend, OtlpReceiver() as receiver:
        values = {"PROXY_OTEL": "on", "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_SERVICE_NAME": "mine"}
        with proxy_process(backend.url, tmp_path / "proxy", values) as proxy:
            parent = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            proxy.messages(turn("Write a function that reads a file.", stream=True), headers=parent)
            event = proxy.wait_events(1)[0]
            assert proxy.stop() == 0
    (span,) = receiver.spans
    told = attributes(span)
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert told["llama_cpp.speculation.drafted_tokens"] == event["draft_tokens"] > 0
    assert 0 < told["llama_cpp.speculation.accepted_tokens"] == event["accepted_tokens"]
    assert told["gen_ai.response.model"]
    assert receiver.latest(EACH)[0].count == 1
