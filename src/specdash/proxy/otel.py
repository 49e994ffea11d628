"""What an OpenTelemetry collector is told of each finished request: a span and a few figures, by the GenAI conventions.

Imported only where `PROXY_OTEL` is on. A span is made when its request has ended, from the proxy's own event: while a
request is served, all there is of it here is its client's trace context. The SDK sends from threads of its own; what a
collector does not take is dropped and counted, never waited for. `OTEL_*` variables configure it, and nothing else.

Source: OpenTelemetry semantic conventions 1.41.0, docs/gen-ai; the SDK's documentation of its environment variables.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import extract
from opentelemetry.sdk.environment_variables import OTEL_BSP_MAX_QUEUE_SIZE, OTEL_SDK_DISABLED
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExportResult, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode

from specdash import __version__
from specdash.core.errors import InputError
from specdash.core.proxy_events import RequestOutcome
from specdash.proxy.telemetry import MAX_LABELS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.metrics import Histogram
    from opentelemetry.sdk.metrics.export import MetricReader, MetricsData
    from opentelemetry.sdk.trace import ReadableSpan

    from specdash.core.proxy_events import RequestEvent

_LOG = logging.getLogger("specdash.proxy")
SCOPE = "specdash.proxy"
SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"
"""The last published schema that has the GenAI conventions; the repository they moved to has published none yet."""
SERVICE = "specdash-proxy"
"""The service's name where `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` give none."""
PROVIDER = "llama_cpp"
OPERATION = "chat"
OTHER_NAME = "_OTHER"
"""In place of a name beyond the first `MAX_LABELS` different ones, which clients could make up."""
QUEUED_SPANS = 2048
"""Spans that wait for the collector at most, where `OTEL_BSP_MAX_QUEUE_SIZE` does not say otherwise."""
LAST_EXPORT_S = 3.0
"""What the last spans and figures get when the proxy ends."""

_LATENCY_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST_TOKEN_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_EACH_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
_SPECULATION = "llama_cpp.speculation"
_TOKEN_TYPE, _SPECULATED_TYPE = "gen_ai.token.type", f"{_SPECULATION}.token.type"


def start(host: str, port: int | None, env: Mapping[str, str] = os.environ) -> OtelObserver | None:
    """Begin to send as the `OTEL_*` variables say; None where `OTEL_SDK_DISABLED` or both exporters are off.

    `host` and `port` are where the proxy listens. Raises `InputError` for values that cannot be meant.
    """
    if env.get(OTEL_SDK_DISABLED, "").strip().lower() == "true":
        return None
    losses = Losses()
    try:
        spans = [_CountedSpans(losses)] if _is_sent("TRACES", env) else []
        figures = [_CountedFigures(losses)] if _is_sent("METRICS", env) else []
        if not spans and not figures:
            return None
        limit = int(env.get(OTEL_BSP_MAX_QUEUE_SIZE, "").strip() or QUEUED_SPANS)
        queues = [_Bounded(exporter, losses, limit) for exporter in spans]
        readers = [PeriodicExportingMetricReader(exporter) for exporter in figures]
        observer = OtelObserver(host, port, queues, readers, losses, (*spans, *figures))
    except ValueError as error:
        raise InputError(f"PROXY_OTEL=on: the SDK cannot be set up from the OTEL_* variables: {error}") from None
    # From here on the SDK's words are about exports that failed, each of them: `Losses` counts them and says so once.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
    return observer


def _is_sent(signal: str, env: Mapping[str, str]) -> bool:
    """Whether the spans or the metrics are sent. Raises `InputError` where another way than OTLP over HTTP is asked."""
    name = f"OTEL_{signal}_EXPORTER"
    exporter = env.get(name, "").strip().lower() or "otlp"
    if exporter not in {"otlp", "none"}:
        raise InputError(f"{name}={exporter}: the proxy sends by OTLP; use otlp or none")
    for name in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = env.get(name, "").strip().lower()
        if protocol and exporter == "otlp":
            if protocol != "http/protobuf":
                raise InputError(
                    f"{name}={protocol}: the proxy sends by http/protobuf; collectors take it on port 4318"
                )
            break
    return exporter == "otlp"


class Losses:
    """What a collector did not take. The log is told when that begins and when it is over."""

    def __init__(self) -> None:
        self.spans = 0
        """Spans dropped: refused by the collector, or more than may wait."""
        self.exports = 0
        """Exports of figures that failed; cumulative figures come with the next one that does not."""
        self._is_told = False

    def dropped(self) -> None:
        """A span was not even queued."""
        self.spans += 1
        self._tell(lost=True)

    def sent(self, spans: int, *, taken: bool) -> None:
        """An export of so many spans has ended, or of figures where `spans` is 0."""
        if not taken:
            self.spans += spans
            self.exports += not spans
        self._tell(lost=not taken)

    def _tell(self, *, lost: bool) -> None:
        if lost != self._is_told:
            self._is_told = lost
            if lost:
                _LOG.warning("OpenTelemetry: the collector does not take what is sent; it is dropped and counted")
            else:
                _LOG.info("OpenTelemetry: the collector takes what is sent again; %d spans were lost", self.spans)


class _CountedSpans(OTLPSpanExporter):
    def __init__(self, losses: Losses) -> None:
        super().__init__()
        self.begun = 0
        self._losses = losses

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.begun += len(spans)
        result = SpanExportResult.FAILURE
        try:
            result = super().export(spans)
        finally:
            self._losses.sent(len(spans), taken=result is SpanExportResult.SUCCESS)
        return result


class _CountedFigures(OTLPMetricExporter):
    def __init__(self, losses: Losses) -> None:
        super().__init__()
        self._losses = losses

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **more: Any
    ) -> MetricExportResult:
        result = MetricExportResult.FAILURE
        try:
            result = super().export(metrics_data, timeout_millis, **more)
        finally:
            self._losses.sent(0, taken=result is MetricExportResult.SUCCESS)
        return result


class _Bounded(SpanProcessor):
    """In front of the SDK's queue: one that finds it full is dropped and counted."""

    def __init__(self, exporter: _CountedSpans, losses: Losses, limit: int) -> None:
        self._exporter, self._losses, self._limit = exporter, losses, limit
        self._queue = BatchSpanProcessor(exporter, max_queue_size=limit)
        self._queued = 0

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is None or not span.context.trace_flags.sampled:
            return
        if self._queued - self._exporter.begun >= self._limit:
            self._losses.dropped()
            return
        self._queued += 1
        self._queue.on_end(span)

    def shutdown(self) -> None:
        self._queue.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._queue.force_flush(timeout_millis)


def _resource() -> Resource:
    """Of the variables; name and version are ours where they give none."""
    resource = Resource.create()
    ours = {SERVICE_VERSION: __version__} if SERVICE_VERSION not in resource.attributes else {}
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        ours[SERVICE_NAME] = SERVICE
    return resource.merge(Resource(ours))


class OtelObserver:
    """Tells `spans` and `readers` of every finished request; see `start` for those that send."""

    def __init__(
        self,
        host: str,
        port: int | None,
        spans: Sequence[SpanProcessor],
        readers: Sequence[MetricReader],
        losses: Losses | None = None,
        exporters: Sequence[OTLPSpanExporter | OTLPMetricExporter] = (),
    ) -> None:
        resource = _resource()
        self._exporters = exporters
        self.losses = losses or Losses()
        self._traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        for processor in spans:
            self._traces.add_span_processor(processor)
        self._meters = MeterProvider(readers, resource=resource, shutdown_on_exit=False)
        self._tracer = self._traces.get_tracer(SCOPE, __version__, schema_url=SCHEMA_URL)
        meter = self._meters.get_meter(SCOPE, __version__, schema_url=SCHEMA_URL)

        def histogram(name: str, unit: str, meaning: str, bounds: Sequence[float]) -> Histogram:
            return meter.create_histogram(name, unit, meaning, explicit_bucket_boundaries_advisory=bounds)

        self._duration = histogram(
            "gen_ai.server.request.duration",
            "s",
            "Generative AI server request duration such as time-to-last byte or last output token.",
            _LATENCY_S,
        )
        self._first_token = histogram(
            "gen_ai.server.time_to_first_token",
            "s",
            "Time to generate first token for successful responses.",
            _FIRST_TOKEN_S,
        )
        self._each_token = histogram(
            "gen_ai.server.time_per_output_token",
            "s",
            "Time per output token generated after the first token for successful responses.",
            _EACH_TOKEN_S,
        )
        self._usage = histogram(
            "gen_ai.client.token.usage", "{token}", "Number of input and output tokens used.", _TOKENS
        )
        self._speculation = meter.create_counter(
            f"{_SPECULATION}.tokens", "{token}", "Draft tokens proposed, and those of them accepted."
        )
        self._everywhere: dict[str, Any] = {
            "gen_ai.operation.name": OPERATION,
            "gen_ai.provider.name": PROVIDER,
            "server.address": host,
            **({"server.port": port} if port is not None else {}),
        }
        self._names: dict[str, set[str]] = {}
        self._is_broken = False

    def arrived(self, headers: Mapping[str, str]) -> Context:
        """The trace that the client of a request is in, of its headers by lower-case name."""
        return extract(headers, Context())

    def finished(self, event: RequestEvent, model: str | None, trace: Context | None) -> None:
        """A request has ended; `model` is what the upstream called the model that answered. Never raises."""
        try:
            self._tell_span(event, model, trace)
            self._tell_figures(event, model)
        except Exception:  # noqa: BLE001 - whoever watches requests must not break them
            self.losses.spans += 1
            if not self._is_broken:
                self._is_broken = True
                _LOG.exception("OpenTelemetry: a request could not be told; it and any further one is counted as lost")

    def close(self) -> None:
        """Send what waits, for at most `LAST_EXPORT_S`."""

        def shut(shutdown: Callable[[], None]) -> threading.Thread:
            thread = threading.Thread(target=shutdown, daemon=True)
            thread.start()
            return thread

        for thread in [shut(self._traces.shutdown), shut(self._meters.shutdown)]:
            thread.join(LAST_EXPORT_S / 2)
        for exporter in self._exporters:
            # Wakes one that waits for its next try.
            exporter.shutdown()

    def _tell_span(self, event: RequestEvent, model: str | None, trace: Context | None) -> None:
        values = {
            **self._common(event.model or None, model),
            "gen_ai.conversation.id": event.session or None,
            "gen_ai.request.stream": event.stream,
            "gen_ai.response.finish_reasons": (event.stop_reason,) if event.stop_reason else None,
            "gen_ai.response.time_to_first_chunk": event.ttft_s if event.stream else None,
            "gen_ai.usage.input_tokens": None if event.prompt_estimated else event.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": event.cached_tokens,
            "gen_ai.usage.output_tokens": event.completion_tokens,
            f"{_SPECULATION}.drafted_tokens": event.draft_tokens,
            f"{_SPECULATION}.accepted_tokens": event.accepted_tokens,
            "error.type": _error(event),
        }
        begun = round(event.at * 1e9)
        span = self._tracer.start_span(
            f"{OPERATION} {event.model}".strip(),
            trace,
            SpanKind.SERVER,
            {name: value for name, value in values.items() if value is not None},
            start_time=begun,
        )
        if event.outcome is RequestOutcome.ERROR:
            span.set_status(Status(StatusCode.ERROR))
        span.end(begun + round((event.duration_s or 0.0) * 1e9))

    def _tell_figures(self, event: RequestEvent, model: str | None) -> None:
        common = self._common(
            self._bounded_name("model", event.model or None), self._bounded_name("response model", model)
        )
        error = self._bounded_name("error", _error(event))
        if event.duration_s is not None:
            self._duration.record(event.duration_s, common | ({"error.type": error} if error else {}))
        if event.outcome is RequestOutcome.OK and event.stream and event.ttft_s is not None:
            self._first_token.record(event.ttft_s, common)
            each_s = _each_token_s(event)
            if each_s is not None:
                self._each_token.record(each_s, common)
        for kind, count in (
            ("input", None if event.prompt_estimated else event.prompt_tokens),
            ("output", event.completion_tokens),
        ):
            if count is not None:
                self._usage.record(count, common | {_TOKEN_TYPE: kind})
        for kind, count in (("drafted", event.draft_tokens), ("accepted", event.accepted_tokens)):
            if count is not None:
                self._speculation.add(count, common | {_SPECULATED_TYPE: kind})

    def _common(self, requested: str | None, answered: str | None) -> dict[str, Any]:
        names = {"gen_ai.request.model": requested, "gen_ai.response.model": answered}
        return self._everywhere | {name: value for name, value in names.items() if value is not None}

    def _bounded_name(self, kind: str, name: str | None) -> str | None:
        seen = self._names.setdefault(kind, set())
        if name is None or name in seen:
            return name
        if len(seen) >= MAX_LABELS:
            return OTHER_NAME
        seen.add(name)
        return name


def _error(event: RequestEvent) -> str | None:
    if event.outcome is RequestOutcome.OK:
        return None
    return event.error_type or (OTHER_NAME if event.outcome is RequestOutcome.ERROR else str(event.outcome))


def _each_token_s(event: RequestEvent) -> float | None:
    """Seconds a token after the first, as the client of a stream saw it; None where another attempt or a check before
    the first word would be in them."""
    if event.duration_s is None or event.ttft_s is None or event.strict or event.retries:
        return None
    later = (event.completion_tokens or 0) - 1
    return max(0.0, event.duration_s - event.ttft_s) / later if later > 0 else None
