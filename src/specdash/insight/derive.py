"""Derives the `Picture` from a target's state: one function per part of the picture."""

from __future__ import annotations

from dataclasses import fields
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from specdash.core.observations import Counters
from specdash.core.readings import Reading, Source, Status
from specdash.core.router import ROUTER
from specdash.core.token_speed import DECODE, speed
from specdash.insight import speculation, speedup, timeline, views
from specdash.insight.liveness import STALE_AFTER_S, Evidence, judge
from specdash.insight.picture import (
    BackendPicture,
    GpuPicture,
    LogPicture,
    Measured,
    Picture,
    RequestPicture,
    SlotPhase,
    SlotPicture,
    SourcePicture,
    WarningPicture,
)
from specdash.insight.rates import lifetime_rates

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdash.core.observations import Props, SchedulingDelay, Slot
    from specdash.core.router import RouterModels
    from specdash.insight.log_view import SlotSteps
    from specdash.insight.proxy_picture import ProxyPicture
    from specdash.insight.rates import RateSample
    from specdash.insight.state import TargetState

_TOTALS = tuple(one.name for one in fields(Counters))
RATE_FRESH_S = 5.0
RATE_SPAN_S = 3.0
LIFETIMES_S = {Source.PROPS: 90.0, Source.GPU: 15.0, Source.HOST: 10.0, Source.PROCESS: 10.0}
"""Seconds after which a source's last known reading is STALE; `STALE_AFTER_S` for the others."""
UNAGING = frozenset(
    (Source.LOG, Source.PROXY_EVENTS, Source.APPLIES, Source.BASELINES, Source.TRIAL, Source.SCHEDULING)
)
"""These tell of every change, so that the last one holds however old it is."""


def picture(state: TargetState, now: float, wall: float, window_s: float, *, for_rules: bool = False) -> Picture:
    """Everything derived at monotonic time `now`; `for_rules` leaves out what no rule reads. The caller holds the
    state's lock."""
    host = _fresh(state, Source.HOST, now)
    applies = state.experiments.marks(now, wall)
    alerts = state.alerts.picture()
    paying = speedup.derive(state, now, wall, window_s)
    trial = next(iter(state.value(Source.TRIAL) or ()), None)
    return Picture(
        at=now,
        wall=wall,
        window_s=window_s,
        backend=_backend(state, now, wall, window_s),
        log=_log(state, now),
        gpu=_gpu(state, now),
        host=host.value if host is not None and host.status is Status.KNOWN else None,
        proxy=_proxy(state, now, wall, window_s),
        applies=applies,
        experiment=state.experiments.card(applies, now, wall),
        speedup=paying,
        views=(
            views.judged(state, now, wall, window_s) if for_rules else views.derive(state, now, wall, window_s, paying)
        ),
        delay=state.value(Source.SCHEDULING),
        recording_trouble=state.recording_trouble,
        trial=trial,
        alerts=alerts,
        timeline=timeline.events(state.timeline, alerts, applies),
    )


def _proxy(state: TargetState, now: float, wall: float, window_s: float) -> ProxyPicture:
    latest = state.latest.get(Source.PROXY), _fresh(state, Source.PROXY, now)
    return state.proxy.picture(state.target, latest, state.latest.get(Source.PROXY_EVENTS), (now, wall, window_s))


def _fresh(state: TargetState, source: Source, now: float) -> Reading[Any] | None:
    """The last known reading of a source with its age applied, else its failure."""
    known, latest = state.last_known.get(source), state.latest.get(source)
    if known is None:
        return latest
    if source in UNAGING:
        return known
    return known.aged(now, LIFETIMES_S.get(source, STALE_AFTER_S))


def _backend(state: TargetState, now: float, wall: float, window_s: float) -> BackendPicture:
    verdict, reason = judge(_evidence(state, now))
    props: Props | None = state.value(Source.PROPS)
    scrape = state.counters.last
    lifetime = lifetime_rates(scrape.counters) if scrape else (None, None)
    gauges = scrape.counters if scrape and state.totals_stale_s(now) is None else None
    process = _fresh(state, Source.PROCESS, now)
    return BackendPicture(
        url=state.target.url,
        state=verdict,
        reason=reason,
        engine=state.target.engine or (f"llama.cpp {props.build}" if props and props.build else None),
        model=_model_name(props),
        model_path=props.model_path if props else None,
        n_ctx=props.n_ctx if props else None,
        uptime_s=state.uptime(now, wall),
        prefill=_rate(state.prefill, now, lifetime[0]),
        decode=_rate(state.decode, now, lifetime[1]),
        requests_processing=gauges.requests_processing if gauges else None,
        requests_deferred=gauges.requests_deferred if gauges else None,
        requests_finished=state.log.whole(state.log.finished),
        requests_cancelled=state.log.whole(state.log.cancelled),
        slots=_slots(state, now),
        speculation=speculation.derive(state, now, window_s),
        sources=tuple(_sources(state, now)),
        counters=_totals(state),
        process=process.value if process is not None and process.status is Status.KNOWN else None,
    )


def _evidence(state: TargetState, now: float) -> Evidence:
    good = [
        state.last_known[source].at
        for source in (Source.HEALTH, Source.METRICS, Source.SLOTS, Source.PROPS)
        if source in state.last_known
    ]
    router: RouterModels | None = state.value(Source.ROUTER)
    delay: SchedulingDelay | None = state.value(Source.SCHEDULING)
    return Evidence(
        now=now,
        health=state.latest.get(Source.HEALTH),
        metrics=state.latest.get(Source.METRICS),
        slots=state.latest.get(Source.SLOTS),
        last_good=max(good, default=None),
        restarted_at=state.counters.restarted_at,
        holds_no_model=router is not None and router.holds_none,
        recovered_at=state.recovered_at,
        refused_since=max(
            (at for source, at in state.refused_since.items() if source in (Source.METRICS, Source.SLOTS)), default=None
        ),
        starved=delay is not None and delay.is_starved,
    )


def _model_name(props: Props | None) -> str | None:
    if props is None:
        return None
    if props.role == ROUTER:
        return ROUTER
    name = props.model_alias or props.model_path
    return PurePath(name).name if name else None


def _rate(samples: Iterable[RateSample], now: float, lifetime: float | None) -> Measured:
    newest_first = sorted(samples, key=lambda sample: -sample.at)
    recent = [sample for sample in newest_first if now - sample.at <= RATE_SPAN_S]
    if recent:
        value = sum(sample.value for sample in recent) / len(recent)
        return Measured(value, Status.KNOWN, recent[0].source, RATE_SPAN_S, now - recent[0].at, "live")
    if newest_first:
        held = newest_first[0]
        age = now - held.at
        status = Status.KNOWN if age <= RATE_FRESH_S else Status.STALE
        return Measured(held.value, status, held.source, None, age, "held")
    if lifetime is not None:
        return Measured(lifetime, Status.STALE, Source.METRICS, None, None, "lifetime")
    return Measured()


def _slots(state: TargetState, now: float) -> tuple[SlotPicture, ...] | None:
    reading = _fresh(state, Source.SLOTS, now)
    if reading is None or reading.value is None:
        return None
    return tuple(_slot(state, slot) for slot in reading.value.slots)


def _slot(state: TargetState, slot: Slot) -> SlotPicture:
    phase = SlotPhase.IDLE
    progress = None
    steps = state.log.slot_steps.get(slot.id)
    if slot.is_processing:
        phase = SlotPhase.DECODE if slot.n_decoded else SlotPhase.PREFILL
    if phase is SlotPhase.DECODE and slot.n_decoded and slot.n_remain is not None and slot.n_remain >= 0:
        progress = slot.n_decoded / (slot.n_decoded + slot.n_remain)
    elif phase is SlotPhase.PREFILL:
        fact = state.log.prefill.get(slot.id)
        progress = fact.progress if fact is not None and fact.task == slot.task else None
    live = steps is not None and steps.generated > 0 and steps.task == slot.task and slot.is_processing
    return SlotPicture(
        id=slot.id,
        phase=phase,
        task=slot.task,
        speculative=slot.speculative,
        n_ctx=slot.n_ctx,
        context_used=slot.n_prompt_tokens,
        prompt_processed=slot.n_prompt_tokens_processed,
        prompt_cached=slot.n_prompt_tokens_cache,
        decoded=slot.n_decoded if slot.is_processing else None,
        remaining=slot.n_remain,
        progress=progress,
        tokens_per_second=state.slot_rates.decode_by_slot.get(slot.id) or (_step_rate(steps) if live else None),
        acceptance=steps.accepted / steps.generated if steps is not None and live else None,
    )


def _step_rate(steps: SlotSteps | None) -> float | None:
    """Tokens per second of a task too short for two looks at /slots, from the time stamps of its verification steps."""
    if steps is None or steps.first_s is None or steps.last_s is None:
        return None
    return speed(steps.accepted + steps.steps + steps.replays, (steps.last_s - steps.first_s) * 1000.0, DECODE)


def _sources(state: TargetState, now: float) -> Iterable[SourcePicture]:
    for source in Source:
        latest, known = state.latest.get(source), _fresh(state, source, now)
        if latest is None or known is None:
            yield SourcePicture(source, Status.UNKNOWN, None, "not asked")
            continue
        if latest.failure is not None:
            age = now - known.at if known.value is not None else None
            status = Status.STALE if known.value is not None else Status.UNKNOWN
            yield SourcePicture(source, status, age, str(latest.failure), latest.failure.kind)
        else:
            yield SourcePicture(source, known.status, now - known.at)


def _totals(state: TargetState) -> tuple[tuple[str, float], ...]:
    scrape = state.counters.last
    if scrape is None:
        return ()
    values = ((name, getattr(scrape.counters, name)) for name in _TOTALS)
    return tuple((name, value) for name, value in values if isinstance(value, int | float))


def _log(state: TargetState, now: float) -> LogPicture:
    latest = state.latest.get(Source.LOG)
    log = state.log
    return LogPicture(
        path=state.target.log,
        status=Status.UNKNOWN if latest is None or latest.failure else Status.KNOWN,
        reason=str(latest.failure) if latest is not None and latest.failure else "",
        lines=log.whole(log.lines),
        unrecognised=log.whole(log.unrecognised),
        warnings=_warnings(state, now),
        requests=_requests(state, now),
        checkpoints=tuple(sorted(log.checkpoints.items())),
        since_wall=log.since_wall,
        live=tuple(sorted(log.live.items())),
    )


def _warnings(state: TargetState, now: float) -> tuple[WarningPicture, ...]:
    if Source.LOG not in state.last_known:
        return ()
    # The tables of the grammar cost start-up time, and a server without a log has no use for them.
    from specdash.llama.log_grammar import WARNING_CLASSES

    pictures = []
    for view in state.log.storms.view(now):
        known = WARNING_CLASSES[view.warning]
        pictures.append(
            WarningPicture(
                warning=view.warning,
                title=known.title,
                severity=str(known.severity),
                count=view.count,
                per_minute=view.per_minute,
                first_age_s=max(0.0, now - view.first_at),
                last_age_s=max(0.0, now - view.last_at),
                sample=view.sample,
                note=known.note,
                peak_per_minute=view.peak_per_minute,
                slots=view.slots.ids,
                tasks=view.tasks.ids,
                tasks_touched=view.tasks_touched,
                slots_at_least=view.slots.more,
                tasks_at_least=view.tasks.more,
                is_former=view.is_former,
                is_whole=state.log.since_wall is None,
            )
        )
    order = {"error": 0, "warning": 1, "notice": 2}
    return tuple(sorted(pictures, key=lambda p: (order.get(p.severity, 3), p.last_age_s)))


def _requests(state: TargetState, now: float) -> tuple[RequestPicture, ...]:
    return tuple(
        RequestPicture(
            slot=request.slot,
            task=request.task,
            ended_age_s=now - at,
            prompt_tokens=request.prompt_tokens,
            prompt_cached=request.prompt_cached,
            prompt_ms=request.prompt_ms,
            decode_tokens=request.decode_tokens,
            decode_ms=request.decode_ms,
            draft_generated=request.draft_generated,
            draft_accepted=request.draft_accepted,
            cancelled=request.cancelled,
            prompt_total=request.prompt_total_tokens,
            slot_tokens=request.slot_tokens,
            selected=request.selected,
            similarity=request.similarity,
        )
        for at, request in state.log.recent
    )


def _gpu(state: TargetState, now: float) -> GpuPicture:
    reading = _fresh(state, Source.GPU, now)
    latest = state.latest.get(Source.GPU)
    if reading is None or reading.value is None:
        why = str(latest.failure) if latest is not None and latest.failure else "not observed yet"
        return GpuPicture((), why, Status.UNKNOWN)
    failed = latest is not None and latest.failure is not None and reading.status is not Status.KNOWN
    return GpuPicture(reading.value.gpus, str(latest.failure) if latest and failed else None, reading.status)
