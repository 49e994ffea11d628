"""The time series behind the charts, declared once: identity, title, unit and range."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Metric(StrEnum):
    """Identity of one charted series."""

    ACCEPTANCE = "acceptance"
    PREFILL = "prefill"
    DECODE = "decode"
    TOKENS_PER_DECODE = "tokens_per_decode"
    REQUESTS = "requests"
    WARNINGS = "warnings"
    GPU_UTILISATION = "gpu_utilisation"
    CPU = "cpu"


class ChartSpec(Struct, frozen=True):
    """How a series reads: its title, unit, and fixed range where it has one."""

    metric: Metric
    title: str
    unit: str
    low: float | None = 0.0
    high: float | None = None


CHARTS: dict[Metric, ChartSpec] = {
    spec.metric: spec
    for spec in (
        ChartSpec(Metric.ACCEPTANCE, "Acceptance", "%", 0.0, 1.0),
        ChartSpec(Metric.PREFILL, "Prefill", "tok/s"),
        ChartSpec(Metric.DECODE, "Decode", "tok/s"),
        ChartSpec(Metric.TOKENS_PER_DECODE, "Tokens per decode", "tok"),
        ChartSpec(Metric.REQUESTS, "Requests", "in flight"),
        ChartSpec(Metric.WARNINGS, "Warnings", "/min"),
        ChartSpec(Metric.GPU_UTILISATION, "GPU", "%", 0.0, 1.0),
        ChartSpec(Metric.CPU, "CPU", "%", 0.0, 1.0),
    )
}
