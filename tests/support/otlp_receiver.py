"""An OTLP/HTTP receiver: what OpenTelemetry collectors do first, with OpenTelemetry's own protobuf types.

No collector can be had where these tests run (none is on PyPI, npm or in Debian): this decodes what would be sent to
one. `answer` is the status it gives; None takes the request and never answers.
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from support.scripted_server import ThreadedServer

if TYPE_CHECKING:
    from support.scripted_server import Call


class OtlpReceiver(ThreadedServer):
    """Keeps what came: each request decoded, and its body."""

    def __init__(self, answer: int | None = 200) -> None:
        self.answer = answer
        self.traces: list[Any] = []
        self.metrics: list[Any] = []
        self.bodies: list[bytes] = []
        super().__init__(self._take)

    @property
    def spans(self) -> list[Any]:
        """All spans that came."""
        return [
            span
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def latest(self, name: str) -> list[Any]:
        """The data points that a metric had when it came last."""
        for request in reversed(self.metrics):
            for resource in request.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        if metric.name == name:
                            return list(getattr(metric, metric.WhichOneof("data")).data_points)
        return []

    async def _take(self, call: Call) -> None:
        body = gzip.decompress(call.raw) if call.headers.get("content-encoding") == "gzip" else call.raw
        self.bodies.append(body)
        if self.answer is None:
            await call.hang()
        elif self.answer == 200:
            kinds: dict[str, tuple[Any, list[Any]]] = {
                "/v1/traces": (ExportTraceServiceRequest, self.traces),
                "/v1/metrics": (ExportMetricsServiceRequest, self.metrics),
            }
            kind, taken = kinds[call.path]
            taken.append(kind.FromString(body))
        await call.answer(self.answer or 200, b"")


def attributes(of: Any) -> dict[str, Any]:
    """The attributes of a span, a data point or a resource, as plain values."""
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in of.attributes}
