"""The picture as JSON and as text: the same truth without the screen.

Of each part of the picture `*_json` is what programs get, unknown values as None, and `*_rows` what people do: pairs
of a label and a text.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from specdash.core.proxy_events import warning_level
from specdash.core.readings import ReadingStatus
from specdash.core.records import Drafting
from specdash.core.speculation import Rollback
from specdash.core.structs import json_of
from specdash.insight.picture import Basis
from specdash.insight.request import acceptance, cache_share, prefill_progress
from specdash.insight.speedup.verdict import verdict
from specdash.system.text import MIB, UNKNOWN, duration, gain, number, percent, size, times

if TYPE_CHECKING:
    from specdash.core.proxy_events import ActiveView, RequestEvent, SessionView
    from specdash.core.records import Alert
    from specdash.insight.experiments import ApplyMark, ExperimentCard, ExperimentSide, MeasureComparison
    from specdash.insight.picture import (
        AlertsPicture,
        BackendPicture,
        CheckpointsPicture,
        DrafterPicture,
        LogPicture,
        MeasuredFigure,
        Picture,
        PrefixCachePicture,
        ProxyPicture,
        SpeculationPicture,
        SpeculationViews,
    )
    from specdash.insight.router import RouterPicture

_LOGGED = (
    "slot task ended_age_s prompt_cached prompt_ms decode_tokens decode_ms draft_generated draft_accepted cancelled "
    "slot_tokens selected similarity acceptance"
)
SCHEMA: Final = "specdash.snapshot/1"
"""Changes its number when a documented field changes its meaning or goes; added fields do not change it."""


def to_json(picture: Picture) -> dict[str, Any]:
    """The snapshot as a JSON-ready dictionary; what is unknown is None."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "time": _time(picture.wall),
        "window_seconds": picture.window_s,
        "backend": _backend(picture.backend),
        "log": _log(picture.log),
        "gpu": json_of(picture.gpu.gpus)
        if picture.gpu.unavailable is None
        else {"unavailable": picture.gpu.unavailable},
        "host": json_of(picture.host),
        "proxy": proxy_json(picture.proxy),
        "applies": applies_json(picture),
        "experiment": experiment_json(picture.experiment),
        "trial": trial_json(picture),
        "alerts": alerts_json(picture.alerts),
        "timeline": timeline_json(picture),
        "speedup": speedup_json(picture),
        **views_json(picture.views),
    }
    written: dict[str, Any] = finite(document)
    return written


def _backend(backend: BackendPicture) -> dict[str, Any]:
    document: dict[str, Any] = {
        **json_of(backend, "state engine url model model_path n_ctx slots"),
        "reason": backend.reason or None,
        "uptime_seconds": backend.uptime_s,
        "prefill": rate_json(backend.prefill),
        "decode": rate_json(backend.decode),
        "requests": {
            "processing": backend.requests_processing,
            "deferred": backend.requests_deferred,
            "finished_in_log": backend.requests_finished,
            "cancelled_in_log": backend.requests_cancelled,
        },
        "speculation": _speculation(backend.speculation),
        "sources": {
            str(source.source): {"status": source.status, "age_seconds": source.age_s, "reason": source.reason or None}
            for source in backend.sources
        },
        "counters": dict(backend.counters),
        "process": _process(backend),
    }
    for slot in document["slots"] or ():
        del slot["signs"]
    return document


def _process(backend: BackendPicture) -> dict[str, Any] | None:
    if backend.process is None:
        return None
    process: dict[str, Any] = json_of(backend.process)
    del process["command"]
    return process


def rate_json(measured: MeasuredFigure) -> dict[str, Any]:
    """A speed with what it rests on."""
    rate: dict[str, Any] = {
        "tokens_per_second": measured.value,
        "status": measured.status,
        "basis": measured.basis or None,
        "source": measured.source,
        "age_seconds": measured.age_s,
    }
    return rate


def _speculation(speculation: SpeculationPicture) -> dict[str, Any]:
    acceptance = speculation.acceptance
    window_known = acceptance.window.status is ReadingStatus.KNOWN
    document: dict[str, Any] = {
        **json_of(
            speculation,
            "active types draft_tokens_total accepted_tokens_total verification_steps_total mean_accepted_length "
            "accepted_per_position acceptance_per_position_window acceptance_per_position_lifetime",
        ),
        "tokens_per_decode": speculation.tokens_per_decode.value,
        "problem": speculation.problem or None,
        "parameters": dict(speculation.parameters),
        "acceptance": {
            "window": acceptance.window.value if window_known else None,
            "lifetime": acceptance.lifetime.value,
            "live": acceptance.live.value,
            "held": None if window_known else acceptance.window.value,
        },
    }
    return document


def _log(log: LogPicture) -> dict[str, Any]:
    return {
        "path": log.path,
        "status": log.status,
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
                "slots": list(warning.slots.ids),
                "slots_at_least": warning.slots.more,
                "tasks_touched": warning.tasks_touched if warning.is_whole else None,
                "tasks_at_least": warning.tasks.more,
                "last_tasks": list(warning.tasks.ids[-8:]),
            }
            for warning in log.warnings
        },
        "checkpoints": dict(log.checkpoints) if log.since_wall is None else None,
        "requests": [
            {
                **json_of(request, _LOGGED),
                "prompt_tokens": request.processed_tokens,
                "prompt_total": request.prompt_total_tokens,
            }
            for request in log.requests
        ],
    }


def _time(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds")


def finite(value: Any) -> Any:
    """JSON-like data in which a float that is no number is None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def to_text(picture: Picture) -> str:
    """The snapshot for people: a dozen lines, `--` for what is unknown."""
    backend, speculation = picture.backend, picture.backend.speculation
    acceptance = speculation.acceptance
    active = {True: "active", False: "NOT active", None: UNKNOWN}[speculation.active]
    rows = [
        ("state", f"{backend.state.upper()}{'  ' + backend.reason if backend.reason else ''}"),
        *trial_rows(picture),
        ("server", f"{backend.url}  {backend.engine or UNKNOWN}"),
        ("model", backend.model or UNKNOWN),
        *drafting_rows(picture),
        ("speculation", f"{active}  {','.join(speculation.types or ()) or UNKNOWN}  {speculation.problem}".rstrip()),
        (
            "acceptance",
            (
                f"window {_percent(acceptance.window)}  lifetime {_percent(acceptance.lifetime)}"
                f"  live {_percent(acceptance.live)}  mean length {number(speculation.mean_accepted_length, 2)}"
            ),
        ),
        ("per position", _positions(speculation)),
        ("prefill", f"{number(backend.prefill.value, 1)} tok/s {_aside(backend.prefill)}"),
        ("decode", f"{number(backend.decode.value, 1)} tok/s {_aside(backend.decode)}"),
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


def _percent(measured: MeasuredFigure) -> str:
    return f"{percent(measured.value, 1)}{' (held)' if measured.basis == 'held' else ''}"


def _aside(measured: MeasuredFigure) -> str:
    return f"({measured.basis})" if measured.basis else ""


def _positions(speculation: SpeculationPicture) -> str:
    rates = speculation.acceptance_per_position_window or speculation.acceptance_per_position_lifetime
    return f"{' '.join(percent(share, unit='') for share in rates)} %" if rates else UNKNOWN


def _slots(backend: BackendPicture) -> str:
    if backend.slots is None:
        return UNKNOWN
    return "  ".join(f"{slot.id}:{slot.phase}" for slot in backend.slots) or "none"


def speedup_json(picture: Picture) -> dict[str, Any]:
    """All of it; what is unknown is None."""
    speedup, judged = picture.speedup, verdict(picture)
    return {
        "value": speedup.value,
        "low": speedup.low,
        "high": speedup.high,
        "basis": speedup.basis,
        "verdict": speedup.verdict,
        "verdict_text": judged.headline,
        "verdict_why": judged.because or None,
        "better": {
            "text": judged.better or None,
            "gain": judged.gain,
            "fix": [{"key": key, "value": value} for key, value in judged.fix],
            "command": judged.command or None,
        },
        "why": speedup.why,
        "requests": speedup.requests,
        "decode_tokens_per_second": speedup.decode_rate,
        "baseline_tokens_per_second": speedup.baseline_rate,
        "mean_accepted_length": speedup.mean_accepted_length,
        "draft_share": None,  # of 0.1
        "break_even": {
            "mean_accepted_length": speedup.break_even_length,
            "acceptance": speedup.break_even_acceptance,
        },
        "baseline": json_of(speedup.baseline),
        # Groups that 0.1 had.
        "by_context": [],
        "by_generated": [],
        "by_phase": [],
        "by_type": [
            {
                **json_of(figures, "type drafts_accepted tokens_accepted acceptance acceptance_per_position seconds"),
                "drafts": figures.drafts_generated,
                "tokens_drafted": figures.tokens_generated,
                "mean_accepted_length": figures.length,
                "acceptance_per_position": [*(figures.acceptance_per_position or ())],
            }
            for figures in speedup.by_type
        ],
    }


def speedup_rows(picture: Picture) -> list[tuple[str, str]]:
    """For people: the verdict and what it rests on."""
    speedup = picture.speedup
    judged = verdict(picture)
    rows = [("verdict", judged.headline), ("  why", judged.because)]
    if judged.better or judged.command:
        rows.append(("  better", "  ".join(filter(None, (judged.better, judged.command)))))
    rows = [row for row in rows if row[1]]
    if speedup.basis is Basis.UNKNOWN:
        return [*rows, ("speed-up", f"{UNKNOWN}  {speedup.why}")]
    bounds = f" [{speedup.low:.2f}, {speedup.high:.2f}]" if speedup.low is not None and speedup.high is not None else ""
    rows.append(("speed-up", f"{times(speedup.value)}{bounds} ({speedup.basis})  {speedup.why}"))
    if speedup.break_even_length is not None:
        length = number(speedup.mean_accepted_length, 2)
        needed = (
            f"  acceptance {percent(speedup.break_even_acceptance)}"
            if speedup.break_even_acceptance is not None
            else ""
        )
        rows.append(("  break-even", f"mean length {speedup.break_even_length:.2f}, it is {length}{needed}"))
    return rows


_UNITS = {"acceptance": (100.0, " %"), "decode": (1.0, " tok/s"), "prefill": (1.0, " tok/s"), "ttft": (1.0, " s")}


def applies_json(picture: Picture) -> list[dict[str, Any]]:
    """All applies, oldest first."""
    return [_mark(mark) for mark in picture.applies]


def experiment_json(card: ExperimentCard | None) -> dict[str, Any] | None:
    """The card, None where nothing was applied."""
    if card is None:
        return None
    return {
        "apply": _mark(card.mark),
        "profile": card.mark.record.profile,
        "measures": {str(measure.name): _measure(measure) for measure in card.measures},
        "caveats": list(card.caveats),
    }


def experiment_rows(picture: Picture) -> list[tuple[str, str]]:
    """For people: the newest apply, and a line per measure of the card; nothing where nothing was applied."""
    rows: list[tuple[str, str]] = []
    if picture.applies:
        newest, count = picture.applies[-1], len(picture.applies)
        others = f"  ({count} in all)" if count > 1 else ""
        rows.append(("applies", f"{_name(newest)}  {newest.record.outcome}  {duration(newest.age_s)} ago{others}"))
    if picture.experiment is not None:
        rows.append(("experiment", f"{_name(picture.experiment.mark)}, before and after"))
        rows += [(f"  {measure.name}", _measured(measure)) for measure in picture.experiment.measures]
        rows += [("  caveat", caveat) for caveat in picture.experiment.caveats]
    return rows


def _mark(mark: ApplyMark) -> dict[str, Any]:
    apply: dict[str, Any] = {
        "number": mark.record.number,
        "at": mark.wall,
        "age_seconds": mark.age_s,
        "kind": mark.record.kind,
        "outcome": mark.record.outcome,
        "text": mark.text,
    }
    return apply


def _measure(measure: MeasureComparison) -> dict[str, Any]:
    document: dict[str, Any] = {
        **json_of(measure, "source change verdict words"),
        "change_low": measure.low,
        "change_high": measure.high,
        "change_is_relative": measure.is_relative,
        "before": {
            "count": measure.before.count,
            "value": measure.before.value,
            "lower_quartile": measure.before.lower,
            "upper_quartile": measure.before.upper,
        },
        "after": {
            "count": measure.after.count,
            "value": measure.after.value,
            "lower_quartile": measure.after.lower,
            "upper_quartile": measure.after.upper,
        },
    }
    return document


def _name(mark: ApplyMark) -> str:
    return f"{mark.name}  {mark.text}"


def _measured(measure: MeasureComparison) -> str:
    scale, unit = _UNITS[str(measure.name)]
    before, after = (_plain(side, scale) for side in (measure.before, measure.after))
    text = f"{before} -> {after}{unit}"
    if measure.change is not None and measure.low is not None and measure.high is not None:
        unit = " %" if measure.is_relative else " points"
        text += f"  {gain(measure.change, measure.low, measure.high, unit=unit)}"
    return f"{text}  {measure.words}  (n {measure.before.count}, {measure.after.count}; {measure.source})"


def _plain(side: ExperimentSide, scale: float) -> str:
    if side.value is None:
        return UNKNOWN
    value = side.value * scale
    return f"{value:,.1f}" if value >= 10 else f"{value:.3g}"


POSITIONS_SHOWN = 8


def views_json(views: SpeculationViews) -> dict[str, Any]:
    """One key a view; field names are those of `insight.drafter_picture`, and "" is None."""
    prefix = views.prefix_cache
    shown: dict[str, Any] = _as_json_value(json_of(replace(views, prefix_cache=replace(prefix, requests=()))))
    shown["prefix_cache"]["requests"] = [
        {
            **json_of(request, "ended_age_s slot task session prompt_tokens ttft_s similarity cached_share"),
            "cached": request.cached_tokens,
            "processed": request.processed_tokens,
        }
        for request in prefix.requests
    ]
    # Of 0.1.
    shown["prefix_cache"]["sessions"] = shown["drafter"]["bins"] = []
    shown["drafter"]["longer_gain"] = None
    return shown


def drafting_rows(picture: Picture) -> list[tuple[str, str]]:
    """For people: whether it drafts, and why not; no row where nothing is known."""
    drafting = picture.views.drafting
    if drafting.state is Drafting.UNKNOWN and not drafting.because:
        return []
    because = f"  {drafting.because}" if drafting.because else ""
    if drafting.state is Drafting.FAILED:
        because = f" because {drafting.because or 'of something that is not known here'}"
    rows = [("drafting", f"{drafting.state.upper()}{because}")]
    return [*rows, ("  fix", drafting.fix)] if drafting.fix else rows


def views_rows(picture: Picture) -> list[tuple[str, str]]:
    """For people: the other views; what is not known has no row."""
    views = picture.views
    return [
        *_drafter(views.drafter, says_costs=picture.speedup.break_even_length is None),
        *_checkpoints(views.checkpoints),
        *_prefix_cache(views.prefix_cache),
        *_router(views.router),
    ]


def _as_json_value(value: Any) -> Any:
    if isinstance(value, str):
        return value or None
    if isinstance(value, dict):
        return {key: _as_json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json_value(item) for item in value]
    return value


def _drafter(drafter: DrafterPicture, *, says_costs: bool) -> list[tuple[str, str]]:
    if drafter.type is None:
        return []
    length = "" if drafter.effective_length is None else f"draft length {drafter.effective_length}"
    if length and drafter.block_size is not None:
        length += f" of a block of {drafter.block_size}"
    rows = [("drafter", "  ".join(part for part in (drafter.type, length, drafter.verdict) if part))]
    if drafter.clamps:
        rows.append(("  clamped", "; ".join(drafter.clamps)))
    if says_costs and drafter.break_even_length is not None:
        needed = (
            f", acceptance {percent(drafter.break_even_acceptance)}"
            if drafter.break_even_acceptance is not None
            else ""
        )
        rows.append(
            ("  needs", f"{drafter.break_even_length:.2f} tokens a decode call{needed}  ({drafter.break_even_basis})")
        )
    first = next((reference for reference in drafter.references if reference.per_position), None)
    if first is not None:
        curve = " ".join(percent(rate, unit="") for rate in first.per_position[:POSITIONS_SHOWN])
        rows.append(("  published", f"{curve} %  {first.name} ({first.source})"))
    return rows


def _checkpoints(checkpoints: CheckpointsPicture) -> list[tuple[str, str]]:
    rows = []
    if checkpoints.rollback is not None:
        rows.append(("rollback", f"{checkpoints.rollback}  {checkpoints.because}"))
        if checkpoints.rollback is Rollback.CHECKPOINT and checkpoints.verdict:
            rows.append(("  replays", f"{'since the start: ' if checkpoints.held else ''}{checkpoints.verdict}"))
    for name, counts in (("context", checkpoints.context), ("before drafts", checkpoints.speculative)):
        if counts.created or counts.restored or counts.erased:
            latest = f", {size(counts.size_mib * MIB)} the latest" if counts.size_mib is not None else ""
            counts_text = f"{counts.created} made, {counts.restored} restored, {counts.erased} erased{latest}"
            rows.append(("checkpoints", f"{name}: {counts_text}"))
    if checkpoints.full_reprocessed:
        rows.append(("checkpoints", f"{checkpoints.full_reprocessed} prompts read again from their start"))
    return rows


def _prefix_cache(prefix: PrefixCachePicture) -> list[tuple[str, str]]:
    if prefix.cached_share is None and prefix.lifetime_share is None and not prefix.entries:
        return []
    rows = [("prefix cache", prefix.verdict)]
    if prefix.entries and prefix.size_mib is not None:
        limit = f" of {size(prefix.limit_mib * MIB)}" if prefix.limit_mib is not None else ""
        rows.append(("  kept", f"{prefix.entries} prompts in the host's memory, {size(prefix.size_mib * MIB)}{limit}"))
    return rows


def _router(router: RouterPicture) -> list[tuple[str, str]]:
    if not router.models:
        return [("router", f"{UNKNOWN}  {router.reason}")] if router.reason else []
    models = ", ".join(
        f"{'>' if model.watched else ''}{model.id} {model.words or model.status}" for model in router.models
    )
    return [("router", f"{models}  any: {router.any_means or 'no model is resident'}")]


def trial_json(picture: Picture) -> dict[str, Any] | None:
    """The program that tries settings on the server, and its progress; None without one."""
    trial = picture.trial
    if trial is None:
        return None
    document: dict[str, Any] = {
        **json_of(trial, "service alive boot planned words"),
        "since": trial.at,
        "command": f"specdash {trial.what}",
    }
    return document


def trial_rows(picture: Picture) -> list[tuple[str, str]]:
    """One line for people, where there is something to say."""
    return [("trial", picture.trial.words)] if picture.trial is not None else []


TIMELINE_SHOWN = 200
"""How many of the newest events are shown."""


def alerts_json(alerts: AlertsPicture) -> dict[str, Any]:
    """Active and past alerts, the likely cause, and what cannot be judged."""
    return {
        "cause": alerts.cause or None,
        "active": [alert_json(alert) for alert in alerts.active],
        "past": [alert_json(alert) for alert in alerts.past],
        "unjudged": dict(alerts.unjudged),
    }


def alert_json(alert: Alert) -> dict[str, Any]:
    """One alert; moments are Unix times."""
    document: dict[str, Any] = {
        **json_of(alert, "rule title severity summary since raised last ended chart"),
        "subject": alert.subject or None,
        "evidence": [{"label": label, "value": value} for label, value in alert.evidence],
        "fix": [{"key": key, "value": value} for key, value in alert.fix],
    }
    return document


def timeline_json(picture: Picture) -> list[dict[str, Any]]:
    """The newest events, oldest first."""
    return [
        {**json_of(event, "at ended kind title severity"), "detail": event.detail or None, "ref": event.ref or None}
        for event in picture.timeline[-TIMELINE_SHOWN:]
    ]


def alerts_rows(picture: Picture) -> list[tuple[str, str]]:
    """For people: the likely cause first, then every active alert; `none` when nothing is wrong."""
    alerts = picture.alerts
    if not alerts.active:
        over = f"  ({len(alerts.past)} over)" if alerts.past else ""
        return [("alerts", f"none{over}")]
    rows = [("cause", alerts.cause)] if alerts.cause and len(alerts.active) > 1 else []
    return [*rows, *(("alerts" if not index else "", alert_line(alert)) for index, alert in enumerate(alerts.active))]


def alert_line(alert: Alert) -> str:
    """`CRITICAL  Server is down: …`."""
    return f"{alert.severity.upper()}  {alert.title}: {alert.summary}"


FINISHED_SHOWN = 50


def proxy_json(proxy: ProxyPicture) -> dict[str, Any] | None:
    """The proxy, None when none is configured."""
    if not proxy.configured:
        return None
    live = proxy.live
    document: dict[str, Any] = {
        "url": proxy.url,
        "status": proxy.status,
        "reason": proxy.reason or None,
        "age_seconds": proxy.age_s,
        **json_of(live, "started upstream context_window held waiting session_count problems"),
        "version": (live.version or None) if live is not None else None,
        "hold_reason": (live.hold_reason or None) if live is not None else None,
        "requests_total": live.requests if live is not None else None,
        "sessions": [_session(session) for session in live.sessions] if live is not None else None,
        "running": [_running(active_view) for active_view in proxy.running] if proxy.tells_running else None,
        "events": {
            "status": proxy.events_status,
            "reason": proxy.events_reason or None,
            "lost": proxy.events_lost,
            "not_understood": proxy.events_unread,
        },
        "window": {
            **json_of(proxy.window, "requests errors clients_left error_rate acceptance cache_share"),
            "ttft_p50_seconds": proxy.window.ttft_p50_s,
            "decode_p50_tokens_per_second": proxy.window.decode_p50,
        },
        "finished": [_finished(request_event) for request_event in proxy.finished[:FINISHED_SHOWN]],
        "guardrails": _guardrails(proxy),
    }
    return document


def proxy_rows(picture: Picture) -> list[tuple[str, str]]:
    """Two lines for people: the state, and what the guardrails did; none when no proxy is configured."""
    proxy = picture.proxy
    if not proxy.configured:
        return []
    return [("proxy", _state(proxy)), ("guardrails", _acts(proxy))]


def _state(proxy: ProxyPicture) -> str:
    live = proxy.live
    if live is None:
        return f"{UNKNOWN} {proxy.reason}"
    held = "  HELD" if live.held else ""
    state = f"{proxy.url or UNKNOWN}  upstream {live.upstream}{held}  {live.session_count} sessions"
    running = number(len(proxy.running) if proxy.tells_running else None)
    state += f"  {running} running  errors {percent(proxy.window.error_rate, 1)}"
    return f"{state}  ({proxy.status}: {proxy.reason})" if proxy.reason else state


def _acts(proxy: ProxyPicture) -> str:
    fullest = proxy.fullest
    use = (
        UNKNOWN if fullest is None else f"{percent(fullest.utilisation, 1)} {warning_level(fullest.utilisation) or ''}"
    )
    acted = ", ".join(f"{guardrail.guardrail} {guardrail.window}" for guardrail in proxy.guardrails if guardrail.window)
    nothing = "none triggered" if proxy.counts_guardrails else UNKNOWN
    return f"{acted or nothing}  fullest context {use}".rstrip()


def _session(session: SessionView) -> dict[str, Any]:
    used = session.utilisation
    more: dict[str, Any] = {"utilisation": used, "level": warning_level(used)}
    return {**json_of(session), **more}


def _running(request: ActiveView) -> dict[str, Any]:
    more: dict[str, Any] = {**_shares(request), "prefill_progress": prefill_progress(request)}
    return {**json_of(request), **more}


def _finished(request: RequestEvent) -> dict[str, Any]:
    more: dict[str, Any] = {**_shares(request), "at": request.at or None}
    return {**json_of(request), **more}


def _shares(request: ActiveView | RequestEvent) -> dict[str, Any]:
    return {"acceptance": acceptance(request), "cache_share": cache_share(request)}


def _guardrails(proxy: ProxyPicture) -> dict[str, dict[str, Any]] | None:
    if not proxy.counts_guardrails:
        return None
    return {
        guardrail.guardrail: {"window": guardrail.window, "total": guardrail.total, "actions": dict(guardrail.actions)}
        for guardrail in proxy.guardrails
    }
