"""An OTLP/HTTP receiver: what OpenTelemetry collectors do first, with OpenTelemetry's own protobuf types.

No collector can be had where these tests run (none is on PyPI, npm or in Debian): this decodes what would be sent to
one. `answer` is the status it gives; None takes the request and never answers.
"""

from __future__ import annotations

import contextlib
import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class OtlpReceiver:
    """Listens on 127.0.0.1 from construction until `close`."""

    def __init__(self, answer: int | None = 200) -> None:
        self.answer = answer
        self.traces: list[Any] = []
        """Requests as they came, decoded; the metrics' too."""
        self.metrics: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.asked = threading.Event()
        self._leave = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver._take(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

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

    def close(self) -> None:
        """Stop listening."""
        self._leave.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["content-length"]))
        body = gzip.decompress(body) if handler.headers.get("content-encoding") == "gzip" else body
        self.headers.append({name.lower(): value for name, value in handler.headers.items()})
        self.bodies.append(body)
        self.asked.set()
        if self.answer is None:
            self._leave.wait()
            return
        if self.answer == 200:
            kinds: dict[str, tuple[Any, list[Any]]] = {
                "/v1/traces": (ExportTraceServiceRequest, self.traces),
                "/v1/metrics": (ExportMetricsServiceRequest, self.metrics),
            }
            kind, taken = kinds[handler.path]
            taken.append(kind.FromString(body))
        with contextlib.suppress(OSError):
            handler.send_response(self.answer)
            handler.send_header("content-length", "0")
            handler.end_headers()


def attributes(of: Any) -> dict[str, Any]:
    """The attributes of a span, a data point or a resource, as plain values."""
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in of.attributes}
