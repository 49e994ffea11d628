"""The rows of a fleet, from what `export.prometheus` gave a Prometheus. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from math import isfinite
from typing import TYPE_CHECKING

from specdash.core.readings import ReadingStatus
from specdash.core.records import AlertSeverity
from specdash.export.prometheus import SERVER
from specdash.insight.fleet import FleetRow, fullest_memory
from specdash.insight.picture import BackendState, MeasuredFigure
from specdash.insight.rules.catalogue import title_of
from specdash.insight.speedup.verdict import Verdict, VerdictKind, headline

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from specdash.collect.prometheus import PrometheusSample

READ = (
    *("server_info", "state", "speculation_verdict", "speculation_speedup_ratio", "speculation_acceptance_ratio"),
    *("decode_tokens_per_second", "prefill_tokens_per_second", "requests_processing", "requests_deferred"),
    *("context_size_tokens", "slot_context_used_tokens", "gpu_utilisation_ratio", "alerts", "alert_active"),
    *("gpu_memory_used_bytes", "gpu_memory_total_bytes"),
)
"""The metrics that a row is made of, without `specdash_`."""
QUERY = f'{{__name__=~"specdash_({"|".join(READ)})"}}'
_NAME, INSTANCE = "__name__", "instance"
"""Labels of Prometheus: the metric's name, and the exporter that it was read from."""


def rows_of_samples(samples: Iterable[PrometheusSample]) -> list[FleetRow]:
    """A row for each server of each exporter, named by its address; where several exporters know the same address,
    which is then each machine's own, with the exporter before it."""
    by_server: defaultdict[tuple[str, str], defaultdict[str, list[PrometheusSample]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for sample in samples:
        labels, name = sample.labels, sample.labels.get(_NAME, "").removeprefix("specdash_")
        if name in READ and SERVER in labels and isfinite(sample.value):
            by_server[labels.get(INSTANCE, ""), labels[SERVER]][name].append(sample)
    known_by = Counter(server for _, server in by_server)
    rows = []
    for (instance, server), found in by_server.items():
        host = re.sub(r"^(.*//)?([^/]*@)?|(:\d+)?(/.*)?$", "", instance).strip("[]")
        is_shared = known_by[server] > 1
        rows.append(_row(f"{host}  {server}" if is_shared else server, server, found))
    return rows


def _row(name: str, url: str, found: Mapping[str, list[PrometheusSample]]) -> FleetRow:
    def label(metric: str, label: str) -> str | None:
        """The label of the series that is 1."""
        return next((sample.labels.get(label) for sample in found.get(metric, ()) if sample.value), None)

    def most(metric: str) -> float | None:
        """The only value, or the greatest."""
        return max((sample.value for sample in found.get(metric, ())), default=None)

    alerts = {sample.labels.get("severity"): int(sample.value) for sample in found.get("alerts", ())}
    state = label("state", "state")
    slots, size = found.get("slot_context_used_tokens"), most("context_size_tokens")
    sizes = {_gpu_of(sample): sample.value for sample in found.get("gpu_memory_total_bytes", ())}
    memory = [(sample.value, sizes.get(_gpu_of(sample))) for sample in found.get("gpu_memory_used_bytes", ())]
    vram_used, vram_size = fullest_memory(memory)
    used, busy = most("slot_context_used_tokens"), most("requests_processing")
    return FleetRow(
        name=name,
        url=url,
        model=label("server_info", "model") or None,
        state=state if state in set(BackendState) else str(BackendState.UNKNOWN),
        verdict=_verdict(label("speculation_verdict", "verdict"), found.get("speculation_speedup_ratio", ())),
        acceptance=_figure(most("speculation_acceptance_ratio")),
        decode=_figure(most("decode_tokens_per_second")),
        prefill=_figure(most("prefill_tokens_per_second")),
        context_used=round(used) if used is not None else None,
        context_size=round(size) if size is not None else None,
        gpu=most("gpu_utilisation_ratio"),
        busy=round(busy) if busy is not None else None,
        slots=len(slots) if slots else None,
        queue=most("requests_deferred"),
        critical=alerts.get(AlertSeverity.CRITICAL, 0),
        warnings=alerts.get(AlertSeverity.WARNING, 0),
        notices=alerts.get(AlertSeverity.NOTICE, 0),
        cause=_cause(found.get("alert_active", ())),
        vram_used=vram_used,
        vram_size=vram_size,
        group=next(
            (sample.labels["group"] for rows in found.values() for sample in rows if "group" in sample.labels), ""
        ),
    )


def _gpu_of(sample: PrometheusSample) -> str | None:
    return sample.labels.get("gpu")


def _figure(value: float | None) -> MeasuredFigure:
    if value is None:
        return MeasuredFigure()
    return MeasuredFigure(value, ReadingStatus.KNOWN, basis="exported")


def _verdict(kind: str | None, bounds: Iterable[PrometheusSample]) -> Verdict | None:
    if kind not in set(VerdictKind):
        return None
    value = next((bound.value for bound in bounds if bound.labels.get("bound") == "value"), None)
    known = VerdictKind(kind)
    return Verdict(known, headline(known, value) if value is not None else known.upper())


def _cause(active: Iterable[PrometheusSample]) -> str:
    """The title of the gravest alert: which of several is the cause of the others is known where they were judged."""
    severities = list(AlertSeverity)
    rules = {
        sample.labels.get("rule", ""): severities.index(AlertSeverity(severity))
        for sample in active
        if (severity := sample.labels.get("severity")) in set(AlertSeverity)
    }
    if not rules:
        return ""
    worst = max(rules, key=lambda rule: (rules[rule], rule))
    return title_of(worst)
