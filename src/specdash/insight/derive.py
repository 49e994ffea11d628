"""Derives the `Picture` from a target's state: one function per part of the picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from specdash.core.readings import (
    OTHER_SERVERS,
    Counters,
    Failure,
    FailureKind,
    Health,
    HealthStatus,
    ModelStatus,
    Reading,
    ReadingStatus,
    Source,
)
from specdash.core.records import EventKind, TimelineEvent
from specdash.core.sources import SOURCES, STALE_AFTER_S
from specdash.insight import router
from specdash.insight.charts import Metric
from specdash.insight.picture import (
    BackendPicture,
    BackendState,
    GpuPicture,
    LogPicture,
    MeasuredFigure,
    Picture,
    SlotPhase,
    SlotPicture,
    SourcePicture,
    SpeculationViews,
    WarningPicture,
)
from specdash.insight.progress import STARVED_SHARE, ServerSigns, is_wedged, never_waits
from specdash.insight.proxy import prefix_cache
from specdash.insight.rates import lifetime_rates
from specdash.insight.speculation import checkpoints, drafter, drafting, speculation
from specdash.insight.speedup import speedup
from specdash.insight.speedup.verdict import VerdictKind, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdash.core.readings import Props, Reading, RouterModels, Slot
    from specdash.core.records import Alert
    from specdash.insight.experiments import ApplyMark
    from specdash.insight.picture import AlertsPicture, SpeedUpPicture
    from specdash.insight.rates import RateSample
    from specdash.insight.state import TargetState


# What state the server is in, judged from the latest readings: pure functions, one sentence of reason each.
#
# /health decides whether the server is there, never /metrics: builds before b10420 answer /metrics only between
# decode batches, so a server at work looks dead there (llama.cpp #24866).

RESTARTED_FOR_S = 20.0
"""How long RESTARTED is shown after the counters went back."""
_NAMED = 3
"""So many of a router's models does a reason name."""


def judge(state: TargetState, now: float, signs: ServerSigns) -> tuple[BackendState, str]:
    """The state and, unless all is well, what it means and what to do next."""
    health: Reading[Health] | None = state.latest.get(Source.HEALTH)
    if health is None:
        return BackendState.UNKNOWN, "no answer yet"
    if now - health.at > STALE_AFTER_S:
        why = TOO_BUSY if signs.starved else "specdash does not keep up"
        return BackendState.STALE, f"nothing new for {now - health.at:.0f} s; {why}"
    if health.value is None:
        return _unhealthy(state, now, health.failure or Failure(FailureKind.ERROR))
    if health.value.status is HealthStatus.LOADING:
        return BackendState.LOADING, health.value.detail or "the model is loading"
    if health.value.status is HealthStatus.ERROR:
        return BackendState.UNKNOWN, f"/health returns an error: {health.value.detail or 'no detail'}"
    return _healthy(state, now, signs)


def _unhealthy(state: TargetState, now: float, failure: Failure) -> tuple[BackendState, str]:
    if failure.kind is FailureKind.LOADING:
        return BackendState.LOADING, failure.detail or "the model is loading"
    if failure.kind is FailureKind.UNAUTHORIZED:
        return BackendState.UNAUTHORIZED, _UNAUTHORIZED
    if failure.kind is FailureKind.UNAVAILABLE:
        # The process that looks is gone: that says nothing about the server.
        return BackendState.UNKNOWN, failure.detail
    if failure.kind is FailureKind.REFUSED:
        nothing = "nothing listens on the port: check the log's last lines, then start the server"
        return BackendState.DOWN, failure.detail if OTHER_SERVERS in failure.detail else nothing
    if failure.kind is FailureKind.TIMEOUT:
        of_server = (Source.HEALTH, Source.METRICS, Source.SLOTS, Source.PROPS)
        good = [state.last_known[source].at for source in of_server if source in state.last_known]
        if not good:
            return BackendState.DOWN, f"{failure.detail or 'no answer'}; the process hangs or is no llama-server"
        slow = "it is slow, or hangs"
        return BackendState.STALE, f"last answer {now - max(good):.0f} s ago: {failure.detail or 'no answer'}; {slow}"
    if failure.kind in (FailureKind.GARBAGE, FailureKind.TOO_LARGE, FailureKind.NOT_FOUND):
        return BackendState.UNKNOWN, f"it answers, but not like llama-server ({failure}); is the address right?"
    return BackendState.DOWN, str(failure)


STUCK = "this build never waits there, so its inference loop is stuck: restart it"
TOO_BUSY = "this machine is too busy for specdash to look in time"
_UNAUTHORIZED = "the server wants an API key: start specdash with --api-key-env NAME or --api-key-file FILE"


def _healthy(state: TargetState, now: float, signs: ServerSigns) -> tuple[BackendState, str]:
    looks = (("/metrics", state.latest.get(Source.METRICS)), ("/slots", state.latest.get(Source.SLOTS)))
    # What they answered before /health turned good does not count.
    since = state.recovered_at or float("-inf")
    current = [(name, reading) for name, reading in looks if reading is not None and reading.at >= since]
    failures = [(name, reading.failure) for name, reading in current if reading.failure is not None]
    kinds = {failure.kind for _, failure in failures}
    # Where another endpoint answers, or is switched off, which it says after it has checked the key, the key is good.
    if FailureKind.UNAUTHORIZED in kinds and len(failures) == len(current) and FailureKind.DISABLED not in kinds:
        return BackendState.UNAUTHORIZED, _UNAUTHORIZED
    if FailureKind.LOADING in kinds:
        return BackendState.LOADING, "the model is loading"
    if FailureKind.TIMEOUT in kinds:
        slow = " and ".join(name for name, failure in failures if failure.kind is FailureKind.TIMEOUT)
        if is_wedged(signs):
            return BackendState.WEDGED, f"/health answers, {slow} not for {signs.hang_s:.0f} s; {STUCK}"
        why = "busy decoding, not down" if not never_waits(signs) else "stuck, if it stays so on this build"
        return BackendState.BUSY, f"/health answers, {slow} not in time: {why}"
    restarted_at = state.counters.restarted_at
    if restarted_at is not None and now - restarted_at <= RESTARTED_FOR_S:
        return BackendState.RESTARTED, f"counters went back {now - restarted_at:.0f} s ago"
    if len(failures) == 2 and kinds <= {FailureKind.GARBAGE, FailureKind.TOO_LARGE, FailureKind.NOT_FOUND}:
        return BackendState.UNKNOWN, f"healthy, but {failures[0][0]} is {failures[0][1]}; is it a llama-server?"
    models: RouterModels | None = state.value(Source.ROUTER)
    if failures and models is not None and models.models and not any(one.resident for one in models.models):
        coming = [one for one in models.models if one.status in (ModelStatus.LOADING, ModelStatus.DOWNLOADING)]
        failed = [one for one in models.models if one.status is ModelStatus.FAILED]
        named = [f"{one.id}: {one.words}" for one in (*coming, *failed)][:_NAMED]
        loads = [] if coming else ["the first request for one loads it"]
        return BackendState.LIVE, "; ".join(["a router without a model in memory", *loads, *named])
    if kinds == {FailureKind.NO_MODEL}:
        return BackendState.LIVE, "a router, and the model that is watched is not in memory; a request for it loads it"
    if failures:
        return BackendState.LIVE, "; ".join(f"{name} {failure}" for name, failure in failures)
    return BackendState.LIVE, ""


def events(
    happened: Iterable[TimelineEvent], alerts: AlertsPicture, applies: Iterable[ApplyMark]
) -> tuple[TimelineEvent, ...]:
    """One line of time, oldest first. `happened` are restarts and changes of state."""
    changes = (
        TimelineEvent(m.wall, EventKind.APPLY, m.text, detail=str(m.record.outcome), ref=str(m.record.number))
        for m in applies
    )
    found = [*happened, *map(of_alert, (*alerts.past, *alerts.active)), *changes]
    return tuple(sorted(found, key=lambda event: event.at))


def of_alert(alert: Alert) -> TimelineEvent:
    """An alert, from its beginning to its end."""
    fields = (alert.title, alert.severity, alert.ended, alert.summary, alert.rule)
    return TimelineEvent(alert.since, EventKind.ALERT, *fields)


_TOTALS = tuple(Counters.__struct_fields__)
RATE_FRESH_S = 5.0
RATE_SPAN_S = 3.0


def picture(state: TargetState, now: float, wall: float, window_s: float, *, for_rules: bool = False) -> Picture:
    """Everything derived at monotonic time `now`; `for_rules` leaves out what no rule reads. Nothing is written to the
    state, whose lock the caller holds, but for its `speedups`."""
    host = _fresh(state, Source.HOST, now)
    applies = state.experiments.marks(wall)
    alerts = state.alerts.picture()
    paying = speedup.derive(state, now, wall, window_s)
    trial = next(iter(state.value(Source.TRIAL) or ()), None)
    proxy = state.latest.get(Source.PROXY), _fresh(state, Source.PROXY, now)
    return Picture(
        at=now,
        wall=wall,
        window_s=window_s,
        backend=_backend(state, now, wall, window_s),
        log=_log(state, now),
        gpu=_gpu(state, now),
        host=host.value if host is not None and host.status is ReadingStatus.KNOWN else None,
        proxy=state.proxy.picture(state.target, proxy, state.latest.get(Source.PROXY_EVENTS), (now, wall, window_s)),
        applies=applies,
        experiment=state.experiments.card(wall),
        speedup=paying,
        views=_views(state, now, wall, window_s, paying, for_rules=for_rules),
        delay=state.value(Source.SCHEDULING),
        trial=trial,
        alerts=alerts,
        timeline=events(state.timeline, alerts, applies),
    )


def _fresh(state: TargetState, source: Source, now: float) -> Reading[Any] | None:
    """The last known reading of a source with its age applied, else its failure."""
    known, latest = state.last_known.get(source), state.latest.get(source)
    if known is None:
        return latest
    lifetime = SOURCES[source].lifetime_s
    return known if lifetime is None else known.aged(now, lifetime)


def _backend(state: TargetState, now: float, wall: float, window_s: float) -> BackendPicture:
    signs = _signs(state, now)
    verdict, reason = judge(state, now, signs)
    props: Props | None = state.value(Source.PROPS)
    scrape = state.counters.last
    life = state.counters.life
    lifetime = lifetime_rates(*(scrape.counters for scrape in life)) if life is not None else (None, None)
    gauges = scrape.counters if scrape and state.totals_stale_s(now) is None else None
    process, slots = _fresh(state, Source.PROCESS, now), _fresh(state, Source.SLOTS, now)
    return BackendPicture(
        url=state.target.url,
        state=verdict,
        reason=reason,
        engine=state.target.engine or (f"llama.cpp {props.build}" if props and props.build else None),
        model=props.name if props else None,
        model_path=props.model_path if props else None,
        n_ctx=props.n_ctx if props else None,
        uptime_s=state.uptime(now, wall) if verdict is not BackendState.DOWN or _lives(state) else None,
        prefill=_rate(state.rates[Metric.PREFILL], now, lifetime[0]),
        decode=_rate(state.rates[Metric.DECODE], now, lifetime[1]),
        requests_processing=gauges.requests_processing if gauges else None,
        requests_deferred=gauges.requests_deferred if gauges else None,
        requests_finished=state.log.whole(state.log.finished),
        requests_cancelled=state.log.whole(state.log.cancelled),
        slots=tuple(_slot(state, slot, now) for slot in slots.value.slots) if slots and slots.value else None,
        speculation=speculation.derive(state, now, window_s),
        sources=tuple(_sources(state, now)),
        counters=tuple(
            (name, value)
            for name in _TOTALS
            if scrape is not None and isinstance(value := getattr(scrape.counters, name), int | float)
        ),
        process=process.value if process is not None and process.status is ReadingStatus.KNOWN else None,
        signs=signs,
        refused=state.target.refused,
    )


def _signs(state: TargetState, now: float) -> ServerSigns:
    health, process = state.latest.get(Source.HEALTH), state.value(Source.PROCESS)
    latest, delay = state.latest.get(Source.PROCESS), state.value(Source.SCHEDULING)
    late_s, hang_s = state.late.seconds(now)
    log, written = state.latest.get(Source.LOG), state.log.written_at
    return ServerSigns(
        health=health.failure.kind if health is not None and health.failure is not None else None,
        ended=process is not None and latest is not None and latest.failure is not None,
        stopped=_lives(state) and process is not None and bool(process.stopped),
        late_s=late_s,
        hang_s=hang_s,
        build=props.build_number if (props := state.value(Source.PROPS)) is not None else None,
        log_silent_s=now - written if written is not None and log is not None and log.failure is None else None,
        cpu_starved=process is not None and (process.cpu_wait or 0.0) >= STARVED_SHARE,
        starved=delay is not None and delay.is_starved,
    )


def _lives(state: TargetState) -> bool:
    """Whether the server's process was there at the last look."""
    latest = state.latest.get(Source.PROCESS)
    return latest is not None and latest.failure is None


def _rate(samples: Iterable[RateSample], now: float, lifetime: float | None) -> MeasuredFigure:
    newest_first = sorted(samples, key=lambda sample: -sample.at)
    recent = [sample for sample in newest_first if now - sample.at <= RATE_SPAN_S]
    if recent:
        value = sum(sample.value for sample in recent) / len(recent)
        return MeasuredFigure(value, ReadingStatus.KNOWN, recent[0].source, RATE_SPAN_S, now - recent[0].at, "live")
    if newest_first:
        held = newest_first[0]
        age = now - held.at
        status = ReadingStatus.KNOWN if age <= RATE_FRESH_S else ReadingStatus.STALE
        return MeasuredFigure(held.value, status, held.source, None, age, "held")
    if lifetime is not None:
        return MeasuredFigure(lifetime, ReadingStatus.STALE, Source.METRICS, None, None, "lifetime")
    return MeasuredFigure()


def _slot(state: TargetState, slot: Slot, now: float) -> SlotPicture:
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
    live = steps is not None and steps.drafts.drafted > 0 and steps.task == slot.task and slot.is_processing
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
        tokens_per_second=state.slot_rates.decode_by_slot.get(slot.id),
        acceptance=steps.drafts.acceptance if steps is not None and live else None,
        signs=state.slot_watch.signs(now, slot, state.decode_calls, state.log.slot_steps),
    )


def _sources(state: TargetState, now: float) -> Iterable[SourcePicture]:
    for source in Source:
        latest, known = state.latest.get(source), _fresh(state, source, now)
        if latest is None or known is None:
            yield SourcePicture(source, ReadingStatus.UNKNOWN, None, "no data for this moment")
            continue
        if latest.failure is not None:
            age = now - known.at if known.value is not None else None
            status = ReadingStatus.STALE if known.value is not None else ReadingStatus.UNKNOWN
            yield SourcePicture(source, status, age, str(latest.failure), latest.failure.kind)
        else:
            yield SourcePicture(source, known.status, now - known.at)


def _log(state: TargetState, now: float) -> LogPicture:
    latest = state.latest.get(Source.LOG)
    log = state.log
    return LogPicture(
        path=state.target.log,
        status=ReadingStatus.UNKNOWN if latest is None or latest.failure else ReadingStatus.KNOWN,
        reason=str(latest.failure) if latest is not None and latest.failure else "",
        lines=log.whole(log.lines),
        unrecognised=log.whole(log.unrecognised),
        warnings=_warnings(state, now),
        requests=tuple(request.aged(now - at) for at, request in log.recent),
        checkpoints=tuple(sorted(log.checkpoints.items())),
        since_wall=log.since_wall,
        live=tuple(sorted(log.live.items())),
    )


def _warnings(state: TargetState, now: float) -> tuple[WarningPicture, ...]:
    if Source.LOG not in state.last_known:
        return ()
    # The tables of the grammar cost start-up time, and a server without a log has no use for them.
    from specdash.llama.log import warning_class
    from specdash.llama.log.safe import safe_sample

    pictures = []
    for storm in state.log.storms.newest_first:
        known = warning_class(storm.seen.warning)
        pictures.append(
            replace(
                storm.seen,
                title=known.title,
                severity=str(known.severity),
                note=known.meaning,
                sample=safe_sample(storm.seen.warning, storm.seen.sample),
                per_minute=storm.per_minute(now),
                first_age_s=max(0.0, now - storm.first_at),
                last_age_s=max(0.0, now - storm.last_at),
                is_whole=state.log.since_wall is None,
            )
        )
    order = {"error": 0, "warning": 1, "notice": 2}
    return tuple(sorted(pictures, key=lambda p: (order.get(p.severity, 3), p.last_age_s)))


def _gpu(state: TargetState, now: float) -> GpuPicture:
    reading = _fresh(state, Source.GPU, now)
    latest = state.latest.get(Source.GPU)
    if reading is None or reading.value is None:
        why = str(latest.failure) if latest is not None and latest.failure else "no data yet"
        return GpuPicture((), why, ReadingStatus.UNKNOWN)
    failed = latest is not None and latest.failure is not None and reading.status is not ReadingStatus.KNOWN
    return GpuPicture(reading.value.gpus, str(latest.failure) if latest and failed else None, reading.status)


def _views(
    state: TargetState, now: float, wall: float, window_s: float, paying: SpeedUpPicture, *, for_rules: bool
) -> SpeculationViews:
    """Those of the speculation screen; `paying` is the speed-up of the same moment. Rules read the drafter's only where
    speculation costs, and an alert names what would be better."""
    found = SpeculationViews(
        drafting=drafting.derive(state, wall),
        prefix_cache=prefix_cache.derive(state, now, wall, window_s),
        router=router.derive(state, now, wall),
    )
    if for_rules and kind_of(paying) is not VerdictKind.COSTS:
        return found
    replays = checkpoints.derive(state, now, window_s)
    found = replace(found, drafter=drafter.derive(state, now, window_s, paying, replays.rollback))
    return found if for_rules else replace(found, checkpoints=replays)
