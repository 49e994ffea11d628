"""The picture as Prometheus metrics: one table of all of them (docs/export.md).

What is not known is left out. Names follow prometheus.io/docs/practices/naming: base units, `_total` for what only
grows, `_info` for labels of their own. Buckets are vLLM's (vllm/v1/metrics/loggers.py): one dashboard serves both.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from specdash import __version__
from specdash.core.readings import ReadingStatus
from specdash.core.records import AlertSeverity
from specdash.insight.picture import BackendState, Picture
from specdash.insight.speedup.verdict import VerdictKind, verdict

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from specdash.insight.request import Samples, ServedRequest

SERVER = "server"
"""The label that every metric has: the server's address, without a key."""
_UP = (BackendState.LIVE, BackendState.BUSY)

Values = Iterable[tuple[tuple[str, ...], float | None]]
"""The values of a metric's own labels, and its value, None where that is not known."""


class ExportedMetric(Struct, frozen=True):
    """One metric: its name without `specdash_`, its HELP, its labels besides the server, and where it is read from."""

    name: str
    help: str
    read: Callable[[Picture], Values]
    labels: tuple[str, ...] = ()
    is_counter: bool = False


def _lone(value: float | None) -> Values:
    yield (), value


def _gpu(read: Callable[..., float | None]) -> Callable[[Picture], Values]:
    return lambda picture: [((str(gpu.index), gpu.name or ""), read(gpu)) for gpu in picture.gpu.gpus]


def _alerts(picture: Picture) -> Values:
    severities = [alert.severity for alert in picture.alerts.active]
    return [((str(severity),), float(severities.count(severity))) for severity in AlertSeverity]


def _verdict(picture: Picture) -> Values:
    kind = verdict(picture).kind
    return [((str(each),), float(each is kind)) for each in VerdictKind]


def _positions(picture: Picture) -> Values:
    rates = picture.backend.speculation.acceptance_per_position_window or ()
    return [((str(position),), rate) for position, rate in enumerate(rates)]


def _slots(picture: Picture) -> Values:
    slots = picture.backend.slots
    for slot in slots or ():
        yield (str(slot.id),), float(slot.context_used) if slot.context_used is not None else None


def _guardrails(picture: Picture) -> Values:
    return [((str(count.guardrail),), float(count.total)) for count in picture.proxy.guardrails]


_GPU_LABELS = ("gpu", "name")

METRICS: tuple[ExportedMetric, ...] = (
    ExportedMetric("up", "Whether the server answers.", lambda p: _lone(float(p.backend.state in _UP))),
    ExportedMetric(
        "state", "The server's state: 1 for the one that holds.",
        lambda p: [((str(state),), float(state is p.backend.state)) for state in BackendState], ("state",),
    ),
    ExportedMetric(
        "speculation_verdict", "Whether speculation pays: 1 for the verdict that holds.", _verdict, ("verdict",)
    ),
    ExportedMetric(
        "speculation_speedup_ratio",
        "Decode speed over that without speculation, and the bounds of its 95 % interval.",
        lambda p: [((name,), getattr(p.speedup, name)) for name in ("value", "low", "high")],
        ("bound",),
    ),
    ExportedMetric(
        "speculation_acceptance_ratio",
        "Accepted over drafted tokens in the window.",
        lambda p: _lone(p.backend.speculation.acceptance.window.value),
    ),
    ExportedMetric(
        "speculation_position_acceptance_ratio",
        "Share of verification steps whose draft token at that position was accepted, in the window.",
        _positions,
        ("position",),
    ),
    ExportedMetric(
        "speculation_mean_accepted_length_tokens",
        "Tokens for each verification step: 1 + accepted / steps.",
        lambda p: _lone(p.backend.speculation.mean_accepted_length),
    ),
    ExportedMetric(
        "draft_tokens", "Draft tokens made, since the server's start.",
        lambda p: _lone(p.backend.speculation.draft_tokens_total), is_counter=True,
    ),
    ExportedMetric(
        "accepted_tokens", "Draft tokens accepted, since the server's start.",
        lambda p: _lone(p.backend.speculation.accepted_tokens_total), is_counter=True,
    ),
    ExportedMetric(
        "verification_steps", "Verification steps, since the server's start.",
        lambda p: _lone(p.backend.speculation.verification_steps_total), is_counter=True,
    ),
    ExportedMetric("decode_tokens_per_second", "Generated tokens per second.", lambda p: _lone(p.backend.decode.value)),
    ExportedMetric(
        "prefill_tokens_per_second", "Processed prompt tokens per second.", lambda p: _lone(p.backend.prefill.value)
    ),
    ExportedMetric("requests_processing", "Requests at work.", lambda p: _lone(p.backend.requests_processing)),
    ExportedMetric("requests_deferred", "Requests that wait for a slot.", lambda p: _lone(p.backend.requests_deferred)),
    ExportedMetric("context_size_tokens", "Context of a slot.", lambda p: _lone(p.backend.n_ctx)),
    ExportedMetric("slot_context_used_tokens", "Tokens that a slot holds.", _slots, ("slot",)),
    ExportedMetric("uptime_seconds", "Age of the server's process.", lambda p: _lone(p.backend.uptime_s)),
    ExportedMetric(
        "process_resident_bytes", "Resident memory of the server's processes.",
        lambda p: _lone(p.backend.process.memory_bytes if p.backend.process else None),
    ),
    ExportedMetric(
        "prompt_cached_ratio", "Cached over all prompt tokens, in the window.",
        lambda p: _lone(p.views.prefix_cache.cached_share),
    ),
    ExportedMetric(
        "log_warnings", "Warnings in the server's log, by class (docs/parse-log.md).",
        lambda p: [((warning.warning,), float(warning.count)) for warning in p.log.warnings if not warning.is_former],
        ("warning",), is_counter=True,
    ),
    ExportedMetric(
        "guardrail_actions", "What the proxy's guardrails did.", _guardrails, ("guardrail",), is_counter=True
    ),
    ExportedMetric("alerts", "Active alerts.", _alerts, ("severity",)),
    ExportedMetric(
        "alert_active", "1 for each active alert, by its rule (docs/rules.md).",
        lambda p: dict.fromkeys(((alert.rule, str(alert.severity)) for alert in p.alerts.active), 1.0).items(),
        ("rule", "severity"),
    ),
    ExportedMetric(
        "source_up", "Whether a source of figures is known and fresh.",
        lambda p: [((str(s.source),), float(s.status is ReadingStatus.KNOWN)) for s in p.backend.sources],
        ("source",),
    ),
    ExportedMetric("gpu_utilisation_ratio", "GPU busy.", _gpu(lambda gpu: gpu.utilisation), _GPU_LABELS),
    ExportedMetric("gpu_memory_used_bytes", "GPU memory used.", _gpu(lambda gpu: gpu.memory_used_bytes), _GPU_LABELS),
    ExportedMetric("gpu_memory_total_bytes", "GPU memory.", _gpu(lambda gpu: gpu.memory_total_bytes), _GPU_LABELS),
    ExportedMetric("gpu_power_watts", "GPU power.", _gpu(lambda gpu: gpu.power_watts), _GPU_LABELS),
    ExportedMetric(
        "gpu_temperature_celsius", "GPU temperature.", _gpu(lambda gpu: gpu.temperature_celsius), _GPU_LABELS
    ),
    ExportedMetric(
        "gpu_throttled", "1 for each reason for which the GPU's clocks are limited.",
        lambda p: [((str(g.index), reason), 1.0) for g in p.gpu.gpus for reason in g.throttle_reasons or ()],
        ("gpu", "reason"),
    ),
    ExportedMetric(
        "host_cpu_ratio", "CPUs busy.", lambda p: _lone(p.host.cpu_utilisation if p.host is not None else None)
    ),
    ExportedMetric(
        "host_memory_used_bytes", "Memory used.",
        lambda p: _lone(p.host.memory_used_bytes if p.host is not None else None),
    ),
    ExportedMetric(
        "host_memory_total_bytes", "Memory.",
        lambda p: _lone(p.host.memory_total_bytes if p.host is not None else None),
    ),
)  # fmt: skip
"""Every gauge and counter, in the order in which it is printed."""


class RequestHistogram(Struct, frozen=True):
    """A histogram over finished requests: seconds of one, None where it does not tell."""

    name: str
    help: str
    buckets: tuple[float, ...]
    seconds: Callable[[ServedRequest], float | None]


def _per_token(request: ServedRequest) -> float | None:
    tokens, seconds = request.decode_tokens or 0, request.decode_s
    return seconds / (tokens - 1) if seconds is not None and tokens > 1 else None


HISTOGRAMS: tuple[RequestHistogram, ...] = (
    RequestHistogram(
        "time_to_first_token_seconds",
        "From a request's arrival to its first token, by the proxy; else the time that its prompt took.",
        (
            *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
            *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
        ),
        lambda request: request.ttft_s,
    ),
    RequestHistogram(
        "request_time_per_output_token_seconds",
        "Decode time of a request over its tokens: the mean time between two.",
        (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
        _per_token,
    ),
    RequestHistogram(
        "request_duration_seconds",
        "From a request's launch in its slot to its end; by the proxy from its arrival.",
        (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680),
        lambda request: (request.ended - request.began) or None,
    ),
)  # fmt: skip


class RequestTally:
    """The histograms of one server, from the first look on. Requests of the log count, without a log the proxy's."""

    def __init__(self) -> None:
        self._counts = {histogram.name: [0] * (len(histogram.buckets) + 1) for histogram in HISTOGRAMS}
        self._sums = dict.fromkeys(self._counts, 0.0)
        self._seen: float | None = None
        """The end of the newest request that was taken in, in Unix time."""

    def after(self, samples: Samples) -> RequestTally:
        """A copy, with what has ended since the last call; at the first, nothing: it may be hours of a log."""
        self._take(samples)
        copied = RequestTally()
        copied._counts = {name: [*counts] for name, counts in self._counts.items()}
        copied._sums = {**self._sums}
        return copied

    def _take(self, samples: Samples) -> None:
        requests: Sequence[ServedRequest] = samples.logged or [*samples.from_proxy.values()]
        newest = max((request.ended for request in islice(reversed(requests), 64)), default=0.0)
        seen, self._seen = self._seen, max(newest, self._seen or 0.0)
        if seen is None:
            return
        for request in reversed(requests):
            # Ends are in order but for requests that ended within the same look.
            if request.ended < seen - 1.0:
                break
            if request.ended > seen:
                self._add(request)

    def _add(self, request: ServedRequest) -> None:
        for histogram in HISTOGRAMS:
            seconds = histogram.seconds(request)
            if seconds is not None:
                self._counts[histogram.name][bisect_left(histogram.buckets, seconds)] += 1
                self._sums[histogram.name] += seconds

    def buckets(self, histogram: RequestHistogram) -> tuple[list[tuple[str, float]], float]:
        """Upper bounds with how many took at most so long, and the sum of all seconds."""
        total, rows = 0, []
        for bound, count in zip((*histogram.buckets, None), self._counts[histogram.name], strict=True):
            total += count
            rows.append(("+Inf" if bound is None else str(float(bound)), float(total)))
        return rows, self._sums[histogram.name]


def _encodable(label: str) -> str:
    """A file's name that is no UTF-8 has halves of surrogate pairs, which no page can hold."""
    return label.encode("utf-8", "replace").decode()


class PictureCollector(Collector):
    """What prometheus_client asks at every scrape: all metrics of all servers."""

    def __init__(self, looks: Callable[[], Sequence[tuple[Picture, RequestTally | None]]]) -> None:
        self._looks = looks

    def collect(self) -> Iterable[Metric]:
        """The families that have a value."""
        looks = self._looks()
        build = InfoMetricFamily("specdash_build", "This program.", value={"version": __version__})
        yield build
        about = InfoMetricFamily("specdash_server", "The server's build and model.", labels=[SERVER])
        for picture, _ in looks:
            known = {"engine": picture.backend.engine or "", "model": picture.backend.model or ""}
            about.add_metric([picture.backend.url], {name: _encodable(text) for name, text in known.items()})
        yield about
        for metric in METRICS:
            family = (CounterMetricFamily if metric.is_counter else GaugeMetricFamily)(
                f"specdash_{metric.name}", metric.help, labels=[SERVER, *metric.labels]
            )
            for picture, _ in looks:
                for labels, value in metric.read(picture):
                    if value is not None:
                        family.add_metric([picture.backend.url, *map(_encodable, labels)], float(value))
            if family.samples:
                yield family
        for histogram in HISTOGRAMS:
            counted = HistogramMetricFamily(f"specdash_{histogram.name}", histogram.help, labels=[SERVER])
            for picture, tally in looks:
                is_told = ReadingStatus.KNOWN in (picture.log.status, picture.proxy.events_status)
                if tally is not None and is_told:
                    counted.add_metric([picture.backend.url], *tally.buckets(histogram))
            if counted.samples:
                yield counted


def registry_of(looks: Callable[[], Sequence[tuple[Picture, RequestTally | None]]]) -> CollectorRegistry:
    """What is asked for the page: nothing of this process but what `looks` gives."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(PictureCollector(looks))
    return registry


def to_prometheus(picture: Picture) -> str:
    """The gauges and counters of one server in text format 0.0.4, for node_exporter's textfile collector."""
    return generate_latest(registry_of(partial(tuple, [(picture, None)]))).decode()
