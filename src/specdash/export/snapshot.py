"""The picture as JSON and as text: the same truth without the screen. The schema is documented in docs/snapshot.md."""

from __future__ import annotations

import math
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from specdash.core.readings import Status
from specdash.export.alerts_snapshot import alerts_json, alerts_rows, timeline_json
from specdash.export.experiment_snapshot import applies_json, experiment_json, experiment_rows
from specdash.export.proxy_snapshot import proxy_json, proxy_rows
from specdash.export.speedup_snapshot import speedup_json, speedup_rows
from specdash.export.trial_snapshot import trial_json, trial_rows
from specdash.export.views_snapshot import drafting_rows, views_json, views_rows

if TYPE_CHECKING:
    from specdash.core.observations import Gpu
    from specdash.insight.picture import BackendPicture, LogPicture, Measured, Picture, SpeculationPicture

SCHEMA = "specdash.snapshot/1"
"""Changes its number when a documented field changes its meaning or goes; added fields do not change it."""


def to_json(picture: Picture) -> dict[str, Any]:
    """The snapshot as a JSON-ready dictionary; what is unknown is None."""
    document = {
        "schema": SCHEMA,
        "time": _time(picture.wall),
        "window_seconds": picture.window_s,
        "backend": _backend(picture.backend),
        "log": _log(picture.log),
        "gpu": [_gpu(gpu) for gpu in picture.gpu.gpus]
        if picture.gpu.unavailable is None
        else {"unavailable": picture.gpu.unavailable},
        "host": asdict(picture.host) if picture.host is not None else None,
        "proxy": proxy_json(picture.proxy),
        "applies": applies_json(picture),
        "experiment": experiment_json(picture.experiment),
        "trial": trial_json(picture),
        "alerts": alerts_json(picture.alerts),
        "timeline": timeline_json(picture),
        "speedup": speedup_json(picture.speedup),
        **views_json(picture.views),
    }
    finite: dict[str, Any] = _finite(document)
    return finite


def _backend(backend: BackendPicture) -> dict[str, Any]:
    return {
        "state": str(backend.state),
        "reason": backend.reason or None,
        "engine": backend.engine,
        "url": backend.url,
        "model": backend.model,
        "model_path": backend.model_path,
        "n_ctx": backend.n_ctx,
        "uptime_seconds": backend.uptime_s,
        "prefill": _rate(backend.prefill),
        "decode": _rate(backend.decode),
        "requests": {
            "processing": backend.requests_processing,
            "deferred": backend.requests_deferred,
            "finished_in_log": backend.requests_finished,
            "cancelled_in_log": backend.requests_cancelled,
        },
        "speculation": _speculation(backend.speculation),
        "slots": [asdict(slot) for slot in backend.slots] if backend.slots is not None else None,
        "sources": {
            str(source.source): {
                "status": str(source.status),
                "age_seconds": source.age_s,
                "reason": source.reason or None,
            }
            for source in backend.sources
        },
        "counters": dict(backend.counters),
        "process": _process(backend),
    }


def _process(backend: BackendPicture) -> dict[str, Any] | None:
    if backend.process is None:
        return None
    process = asdict(backend.process)
    del process["command"]
    return process


def _rate(measured: Measured) -> dict[str, Any]:
    return {
        "tokens_per_second": measured.value,
        "status": str(measured.status),
        "basis": measured.basis or None,
        "source": str(measured.source) if measured.source is not None else None,
        "age_seconds": measured.age_s,
    }


def _speculation(speculation: SpeculationPicture) -> dict[str, Any]:
    acceptance = speculation.acceptance
    window_known = acceptance.window.status is Status.KNOWN
    return {
        "active": speculation.active,
        "types": list(speculation.types) if speculation.types is not None else None,
        "parameters": dict(speculation.parameters),
        "draft_tokens_total": speculation.draft_tokens_total,
        "accepted_tokens_total": speculation.accepted_tokens_total,
        "verification_steps_total": speculation.verification_steps_total,
        "mean_accepted_length": speculation.mean_accepted_length,
        "accepted_per_position": _list(speculation.accepted_per_position),
        "acceptance_per_position_window": _list(speculation.acceptance_per_position_window),
        "acceptance_per_position_lifetime": _list(speculation.acceptance_per_position_lifetime),
        "acceptance": {
            "window": acceptance.window.value if window_known else None,
            "lifetime": acceptance.lifetime.value,
            "live": acceptance.live.value,
            "held": None if window_known else acceptance.window.value,
        },
        "tokens_per_decode": speculation.tokens_per_decode.value,
        "problem": speculation.problem or None,
    }


def _log(log: LogPicture) -> dict[str, Any]:
    return {
        "path": log.path,
        "status": str(log.status),
        "reason": log.reason or None,
        "counted_since": _time(log.since_wall) if log.since_wall is not None else None,
        "lines": log.lines,
        "unrecognised": log.unrecognised,
        "warnings": {
            warning.warning: {
                "count": warning.total,
                "per_minute": warning.per_minute,
                "peak_per_minute": warning.peak_per_minute if warning.is_whole else None,
                "severity": warning.severity,
                "first_age_seconds": warning.first_age_s if warning.is_whole else None,
                "last_age_seconds": warning.last_age_s,
                "sample": warning.sample,
                "slots": list(warning.slots),
                "slots_at_least": warning.slots_at_least,
                "tasks_touched": warning.tasks_touched if warning.is_whole else None,
                "tasks_at_least": warning.tasks_at_least,
                "last_tasks": list(warning.tasks[-8:]),
            }
            for warning in log.warnings
        },
        "checkpoints": dict(log.checkpoints) if log.since_wall is None else None,
        "requests": [{**asdict(request), "acceptance": request.acceptance} for request in log.requests],
    }


def _time(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds")


def _gpu(gpu: Gpu) -> dict[str, Any]:
    return asdict(gpu)


def _list(values: tuple[Any, ...] | None) -> list[Any] | None:
    return list(values) if values is not None else None


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def to_text(picture: Picture) -> str:
    """The snapshot for people: a dozen lines, `--` for what is unknown."""
    backend, speculation = picture.backend, picture.backend.speculation
    acceptance = speculation.acceptance
    active = {True: "active", False: "NOT active", None: "--"}[speculation.active]
    rows = [
        ("state", f"{backend.state.upper()}{'  ' + backend.reason if backend.reason else ''}"),
        *trial_rows(picture),
        ("server", f"{backend.url}  {backend.engine or '--'}"),
        ("model", backend.model or "--"),
        *drafting_rows(picture),
        ("speculation", f"{active}  {','.join(speculation.types or ()) or '--'}  {speculation.problem}".rstrip()),
        (
            "acceptance",
            (
                f"window {_percent(acceptance.window)}  lifetime {_percent(acceptance.lifetime)}"
                f"  live {_percent(acceptance.live)}  mean length {_number(speculation.mean_accepted_length, 2)}"
            ),
        ),
        ("per position", _positions(speculation)),
        ("prefill", f"{_number(backend.prefill.value)} tok/s {_aside(backend.prefill)}"),
        ("decode", f"{_number(backend.decode.value)} tok/s {_aside(backend.decode)}"),
        ("slots", _slots(backend)),
        ("warnings", ", ".join(f"{w.warning} {w.count}" for w in picture.log.warnings) or "none seen"),
        ("gpu", picture.gpu.unavailable or ", ".join(gpu.name or f"GPU {gpu.index}" for gpu in picture.gpu.gpus)),
    ]
    rows += views_rows(picture)
    rows += speedup_rows(picture)
    rows += alerts_rows(picture)
    rows += proxy_rows(picture)
    rows += experiment_rows(picture)
    return "\n".join(f"{name:<13}{value}".rstrip() for name, value in rows)


def _percent(measured: Measured) -> str:
    if measured.value is None:
        return "--"
    return f"{measured.value * 100:.1f}%{' (held)' if measured.basis == 'held' else ''}"


def _number(value: float | None, digits: int = 1) -> str:
    return "--" if value is None else f"{value:,.{digits}f}"


def _aside(measured: Measured) -> str:
    return f"({measured.basis})" if measured.basis else ""


def _positions(speculation: SpeculationPicture) -> str:
    rates = speculation.acceptance_per_position_window or speculation.acceptance_per_position_lifetime
    return " ".join(f"{rate * 100:.0f}" for rate in rates) + " %" if rates else "--"


def _slots(backend: BackendPicture) -> str:
    if backend.slots is None:
        return "--"
    return "  ".join(f"{slot.id}:{slot.phase}" for slot in backend.slots) or "none"
