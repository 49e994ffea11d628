"""The state of one target: readings in, the picture out."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from specdash.core.log_facts import LogBatch, LogLine, Series
from specdash.core.proxy_events import ProxyEvents, ProxyStatus, RequestEvent
from specdash.core.readings import (
    Counters,
    FailureKind,
    Gpus,
    Health,
    HealthStatus,
    Host,
    ModelStatus,
    ProcessTree,
    Reading,
    RouterModels,
    Slots,
    Source,
)
from specdash.core.records import EventKind, TimelineEvent
from specdash.core.sources import STALE_AFTER_S
from specdash.insight import derive
from specdash.insight.charts import Memory, Metric, TargetObserver
from specdash.insight.experiments import Experiments
from specdash.insight.log.counter_log import KEEP_S, CounterLog, Scrape, between
from specdash.insight.log.log_view import LogView
from specdash.insight.picture import AlertsPicture, BackendState
from specdash.insight.progress import LateWatch, SlotWatch
from specdash.insight.proxy.proxy import ProxyState
from specdash.insight.rates import RateSample, SlotRates, counter_rates, mean_busy_slots, tokens_per_decode
from specdash.insight.request import Samples
from specdash.insight.rules.book import AlertBook, likely_cause
from specdash.insight.rules.catalogue import shipped
from specdash.insight.rules.scene import PictureHistory, RuleScene, sample_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdash.core.records import AlertEvent, Baseline
    from specdash.core.target import Target
    from specdash.insight.picture import Picture, SpeedUpPicture
    from specdash.insight.rules.catalogue import Rule


T = TypeVar("T")


# The alerts of one target: the rules judged at every look at the server, and their part of the picture.

JUDGED_WINDOW_S = 60.0
"""The window of the pictures that rules see, independent of the screen's window."""


class Alerts:
    """Judges every picture it is given."""

    def __init__(self, rules: Sequence[Rule] | None, kept_s: float = KEEP_S) -> None:
        self.past = PictureHistory(kept_s)
        self.book = AlertBook(rules if rules is not None else shipped())

    def judge(self, picture: Picture) -> tuple[AlertEvent, ...]:
        """What became of the alerts."""
        self.past.add(sample_of(picture))
        return self.book.judge(RuleScene(picture, self.past))

    def picture(self) -> AlertsPicture:
        """Active and past alerts, and the likely cause."""
        book = self.book
        first = likely_cause(book.active, book.rules)
        skipped = dict(book.unjudged)
        return AlertsPicture(
            active=book.active,
            past=tuple(book.past),
            cause=f"{first.title}: {first.summary}" if first is not None else "",
            cause_key=first.key if first is not None else None,
            unjudged=book.unjudged,
            judged=tuple(rule.id for rule in book.rules if rule.id not in skipped),
        )


TIMELINE_KEPT = 500
JUDGED_AFTER_S = 2.5
"""An answer of /health may be so long in coming."""
OF_SERVER = frozenset({Source.PROPS, Source.METRICS, Source.SLOTS})
"""Where these fail, /health is asked at once, and says why."""
_ANSWER_FOR_IT = (Source.HEALTH, Source.METRICS, Source.SLOTS)
GAIN_SPAN_S = 10.0
"""Tokens per decode are of the requests that ended in so long."""
_STEPS_FRESH_S = 5.0
BETTER_FOR_S = 3.0
"""What /slots shows of running requests goes before what /metrics counts of ended ones, for so long."""


class TargetState:
    """Collects the readings of one target and derives its `Picture`.

    Thread-safe: collectors call `apply` from their thread, screens call the other methods from theirs.
    """

    def __init__(
        self,
        target: Target,
        *,
        rules: Sequence[Rule] | None = None,
        observer: TargetObserver | None = None,
        judged_every_s: float = 0.0,
        kept_s: float = KEEP_S,
        wall_offset: Callable[[], float] = lambda: time.time() - time.monotonic(),
    ) -> None:
        """`rules` (default: those shipped) are judged at every HEALTH reading, when `JUDGED_AFTER_S` have passed
        without one, when the process was stopped or goes on, and when a source fails that is not the server; not more
        often than `judged_every_s` while nothing of that happens. `kept_s` bounds how long what was seen is kept: an
        hour of one server is nothing, of hundreds it is. `wall_offset` is Unix time minus the readings' monotonic
        time."""
        self.target = target
        self.alerts = Alerts(rules, kept_s)
        self._wall_offset = wall_offset
        self._judged_every_s = judged_every_s
        self._state_seen: BackendState | None = None
        self._judged_at = float("-inf")
        self.timeline: deque[TimelineEvent] = deque(maxlen=TIMELINE_KEPT)
        """Restarts and changes of state, oldest first."""
        self.baselines: tuple[Baseline, ...] = ()
        self._observer = observer
        self.latest: dict[Source, Reading[Any]] = {}
        self.last_known: dict[Source, Reading[Any]] = {}
        self.counters = CounterLog(kept_s)
        self.slot_rates = SlotRates()
        self.slot_watch = SlotWatch()
        self.late = LateWatch()
        self.loading_since: dict[str, float] = {}
        """Since when each model of a router has been loading."""
        self.log = LogView()
        self.proxy = ProxyState()
        self._probes: frozenset[int] = frozenset()
        """Tasks of the server that runs now with which its runner probed it."""
        self.experiments = Experiments()
        """Of all servers that ran here, one after the other."""
        self.busy_slots: deque[tuple[float, int]] = deque(maxlen=4096)
        """How many slots were at work, by monotonic time."""
        self.speedups: dict[float, tuple[object, SpeedUpPicture]] = {}
        """The last speed-up by window, with what it was made of; this only saves time."""
        self.rates: dict[Metric, deque[RateSample]] = {
            metric: deque(maxlen=60) for metric in (Metric.PREFILL, Metric.DECODE)
        }
        self.gain: RateSample | None = None
        kept = min(4096, int(kept_s) + 60)
        self.series: dict[Metric, Series] = {metric: Series(kept) for metric in Metric}
        self._absent_since: float | None = None
        self.recovered_at: float | None = None
        """When /health turned good after it was not."""
        self._steps_at: float | None = None
        self._works = 0
        """How often it began to work after it had rested."""
        self._lock = threading.Lock()
        self._leave_out_probes()

    @property
    def recording_trouble(self) -> str:
        """What is wrong with the recording by this process, "" when nothing is, or nothing is to be recorded."""
        return self._observer.trouble if self._observer is not None else ""

    def apply(self, reading: Reading[Any]) -> None:
        """Take in one reading; times must not decrease per source."""
        with self._lock:
            due = self._is_due(reading)
            self._take(reading)
            if due:
                self._judge(max(reading.at, self._judged_at))

    def take_unjudged(self, reading: Reading[Any]) -> None:
        """Take in one reading of the past, from before the rules are to be judged."""
        with self._lock:
            self._take(reading)

    def read_anew(self) -> None:
        """The reader of the log and of the proxy's events begins again: its next batches may repeat earlier ones."""
        with self._lock:
            self.log = LogView()
            self.proxy = ProxyState()
            self.experiments.samples = Samples()

    def remember(self, memory: Memory) -> None:
        """Begin with what a record says of the time before the first reading."""
        with self._lock:
            for metric, points in memory.points.items():
                for at, value in points:
                    self.series[metric].append(at, value)
            self.timeline.extend(memory.events)
            self.alerts.book.remember(memory.past, memory.active, memory.at)

    def _take(self, reading: Reading[Any]) -> None:
        self._note_change(reading)
        source, at = reading.source, reading.at
        self.latest[source] = reading
        if reading.value is None:
            return
        self.last_known[source] = reading
        match reading.value:
            case Counters() as counters:
                self._counters(at, counters)
            case Slots() as slots:
                self._slots(at, slots)
            case LogBatch() as batch:
                self._log(at, batch)
            case Host() as host:
                self._point(Metric.CPU, at, host.cpu_utilisation)
            case Gpus() as found:
                busy = (gpu.utilisation for gpu in found.gpus if gpu.utilisation is not None)
                self._point(Metric.GPU_UTILISATION, at, max(busy, default=None))
            case ProxyStatus() as status:
                self.proxy.add_status(at, status)
            case ProxyEvents() as events:
                self.proxy.add_events(events)
                for event in events.events:
                    if isinstance(event, RequestEvent):
                        self.experiments.samples.add_event(event)
            case RouterModels() | tuple() as records:
                self._noted(source, at, records)

    def _noted(self, source: Source, at: float, records: tuple[Any, ...] | RouterModels) -> None:
        if isinstance(records, RouterModels):
            loading = [model.id for model in records.models if model.status is ModelStatus.LOADING]
            self.loading_since = {model: self.loading_since.get(model, at) for model in loading}
        elif source is Source.BASELINES:
            self.baselines = records
        elif source is Source.APPLIES:
            self.experiments.records = records

    def _note_change(self, reading: Reading[Any]) -> None:
        """What makes readings of before those of another time."""
        self.late.add(reading)
        before, value = self.latest.get(Source.HEALTH), reading.value
        kind = reading.failure.kind if reading.failure is not None else None
        if reading.source is Source.HEALTH and before is not None and _is_good(reading) and not _is_good(before):
            self.recovered_at = reading.at
        absent = kind in (FailureKind.REFUSED, FailureKind.LOADING) and reading.source in _ANSWER_FOR_IT
        if absent or (isinstance(value, Health) and value.status is HealthStatus.LOADING):
            self._absent_since = reading.at

    def retarget(self, target: Target) -> None:
        """The proxy in front of the same server was found, or is another one; of another one nothing is known yet."""
        with self._lock:
            before, self.target = self.target, target
            self._leave_out_probes()
            if before.proxy_url != target.proxy_url:
                self._forget(Source.PROXY)
            if before.proxy_log != target.proxy_log:
                self._forget(Source.PROXY_EVENTS)
                self.proxy = ProxyState()

    def _leave_out_probes(self) -> None:
        """Take the requests with which the server's runner checked it out of all counts."""
        check = self.target.start_check
        self._probes = frozenset(check.probe_tasks) if check is not None else frozenset()
        known = dict(check.probe_totals) if check is not None else {}
        totals: dict[str, Any] = {name: known[name] for name in Counters.__struct_fields__ if name in known}
        positions = check.probe_positions if check is not None and totals else ()
        self.counters.origin = Counters(**totals, accepted_per_position=positions or None)
        self.log.leave_out(self._probes)
        if check is not None:
            self.experiments.samples.leave_out(self._probes, check.checked)
        if totals and (self.counters.is_unused or (self.counters.last is None and not self.log.finished)):
            # No client has asked for anything: earlier speeds belong to no request.
            self._forget_speeds()

    def picture(self, now: float, wall: float, window_s: float = 300.0, *, for_rules: bool = False) -> Picture:
        """Everything known at monotonic time `now`, with windowed figures over the last `window_s` seconds;
        `for_rules` without the views that no rule reads, at a fraction of the price."""
        with self._lock:
            self.experiments.settle(now, wall)
            return derive.picture(self, now, wall, window_s, for_rules=for_rules)

    def finished(self, take: Callable[[Samples], T]) -> T:
        """What `take` makes of the finished requests; under the lock: be quick."""
        with self._lock:
            return take(self.experiments.samples)

    @property
    def headline(self) -> tuple[object, ...]:
        """What must not wait to be shown: the server's state, which alerts there are, that it began to work (that it
        rests can wait), and what is known of it at all. Equal as long as none of these changes."""
        with self._lock:
            known = (Source.METRICS in self.last_known, Source.SLOTS in self.last_known)
            active = frozenset(alert.key for alert in self.alerts.book.active)
            return (self._state_seen, active, self._works, *known)

    def columns(self, metric: Metric, now: float, window_s: float, count: int) -> list[float | None]:
        """Chart columns of one series (see `Series.columns`)."""
        with self._lock:
            return self.series[metric].columns(now, window_s, count)

    def log_lines(self, after: int = 0, limit: int = 1000) -> tuple[int, tuple[LogLine, ...]]:
        """Raw log lines with a sequence number greater than `after`, at most the last `limit`; and the newest number.

        Call with the number returned last to get only what is new.
        """
        with self._lock:
            return self.log.lines_after(after, limit)

    @property
    def has_caught_up(self) -> bool:
        """Whether the log's earlier lines are all read."""
        latest = self.latest.get(Source.LOG)
        return latest is None or latest.value is None or not latest.value.more_follows

    @property
    def decode_calls(self) -> float | None:
        """Decode calls of the server so far."""
        return self.counters.last.counters.decode_calls if self.counters.last is not None else None

    def value(self, source: Source) -> Any:
        """The last known value of a source, of any age; None when there never was one."""
        reading = self.last_known.get(source)
        return reading.value if reading is not None else None

    def uptime(self, now: float, wall: float | None = None) -> float | None:
        """Seconds since the server process started: from the process itself, else from the log's time stamps."""
        process: ProcessTree | None = self.value(Source.PROCESS)
        if process is not None and process.started_wall is not None and wall is not None:
            return max(0.0, wall - process.started_wall)
        if self.log.newest_s is not None:
            return self.log.newest_s + now - self.log.newest_at
        return None

    def window(self, now: float, window_s: float) -> tuple[Scrape, Scrape] | None:
        """The scrapes that bound the last `window_s` seconds; None where there are none, or the totals are not of
        now."""
        return self.counters.window(now, window_s) if self.totals_stale_s(now) is None else None

    def totals_stale_s(self, now: float) -> float | None:
        """How old the server's totals are, in seconds, where they are not those of now: /metrics fails, or has not
        answered for long. None where they are, and before there are any."""
        scrape = self.counters.last
        if scrape is None:
            return None
        age = now - scrape.at
        failure = self.latest[Source.METRICS].failure if Source.METRICS in self.latest else None
        # Builds that answer between batches only are late now and then: their answers are a moment old.
        fails = failure is not None and failure.kind is not FailureKind.TIMEOUT
        return age if fails or age > STALE_AFTER_S else None

    def _forget(self, source: Source) -> None:
        self.latest.pop(source, None)
        self.last_known.pop(source, None)

    def _is_due(self, reading: Reading[Any]) -> bool:
        """Whether to judge with this reading: it is of the server's health, or that is long in coming; it shows what
        the server itself cannot, that its process was stopped or goes on; or its source fails."""
        is_health = reading.source is Source.HEALTH
        if not is_health and Source.HEALTH not in self.latest:
            return False
        before = self.latest.get(reading.source)
        known, value = before.value if before is not None else None, reading.value
        if is_health:
            is_news = known is None or value is None or value.status is not known.status
        elif isinstance(value, ProcessTree) and isinstance(known, ProcessTree):
            is_news = value.stopped != known.stopped
        else:
            is_news = known is not None and value is None and reading.source not in OF_SERVER
        since = reading.at - self._judged_at
        return is_news or since >= max(self._judged_every_s, 0.0 if is_health else JUDGED_AFTER_S)

    def _judge(self, at: float) -> None:
        """Judge the rules, and note a change of the server's state."""
        self._judged_at = at
        wall = at + self._wall_offset()
        self.experiments.settle(at, wall)
        picture = derive.picture(self, at, wall, JUDGED_WINDOW_S, for_rules=True)
        backend = picture.backend
        if backend.state is not self._state_seen:
            if self._state_seen is not None:
                kind = EventKind.RESTART if backend.state is BackendState.RESTARTED else EventKind.STATE
                happened = TimelineEvent(wall, kind, str(backend.state), detail=backend.reason)
                self.timeline.append(happened)
                if self._observer is not None:
                    self._observer.on_event(happened)
            self._state_seen = backend.state
        for event in self.alerts.judge(picture):
            if self._observer is not None:
                self._observer.on_alert(event)

    def _point(self, metric: Metric, at: float, value: float | None) -> None:
        self.series[metric].append(at, value)
        if self._observer is not None:
            self._observer.on_point(metric, at, value)

    def _counters(self, at: float, counters: Counters) -> None:
        before = self.counters.last
        restarted = self.counters.add(at, counters, absent_since=self._absent_since)
        self._absent_since = None
        if restarted:
            self.slot_rates, self.slot_watch = SlotRates(), SlotWatch()
            self._forget_speeds()
            self.log.forget_process(at)
        window = self.counters.window(at, at - before.at if before and not restarted else 0.0)
        if window is not None:
            slots: Slots | None = self.value(Source.SLOTS)
            count = len(slots.slots) if slots is not None else None
            busy = mean_busy_slots(window[0].counters, window[1].counters, count)
            self._rates(at, Source.METRICS, *counter_rates(*window, busy))
            drafted = between(*window)
            tracing = self._steps_at is not None and at - self._steps_at < _STEPS_FRESH_S
            if drafted is not None and drafted.acceptance is not None and not tracing:
                self._point(Metric.ACCEPTANCE, at, drafted.acceptance)
        window = self.counters.window(at, GAIN_SPAN_S)
        gain = tokens_per_decode(*window) if window is not None else None
        if gain is not None:
            self.gain = RateSample(at, gain, Source.METRICS)
            self._point(Metric.TOKENS_PER_DECODE, at, gain)
        self._point(Metric.REQUESTS, at, counters.requests_processing)
        warnings = sum(storm.per_minute(at) for storm in self.log.storms.newest_first)
        self._point(Metric.WARNINGS, at, warnings if Source.LOG in self.last_known else None)

    def _slots(self, at: float, slots: Slots) -> None:
        busy = sum(slot.is_processing for slot in slots.slots)
        self._works += bool(busy and not (self.busy_slots and self.busy_slots[-1][1]))
        self.busy_slots.append((at, busy))
        self.slot_watch.add(at, slots, self.decode_calls, self.log.slot_steps)
        self._rates(at, Source.SLOTS, *self.slot_rates.add(at, slots))

    def _log(self, at: float, batch: LogBatch) -> None:
        lines, lives = self.log.lines, self.log.lives
        fresh = self.log.add(at, batch)
        if lines and self.log.lives != lives:
            # Another server writes now; which tasks are its probe's, its record will tell.
            self._probes = frozenset()
        self.log.leave_out(self._probes)
        for ended_at, request in fresh.ended:
            if request.task not in self._probes:
                self.experiments.samples.add_logged(ended_at, request)
        if fresh.drafts.drafted:
            self._steps_at = at
            self._point(Metric.ACCEPTANCE, at, fresh.drafts.acceptance)

    def _rates(self, at: float, source: Source, prefill: float | None, decode: float | None) -> None:
        """Take rates, unless a better source just gave one: two sources of one moment must not be averaged."""
        for metric, value in ((Metric.PREFILL, prefill), (Metric.DECODE, decode)):
            samples = self.rates[metric]
            better = (known.at for known in samples if source is Source.METRICS and known.source is Source.SLOTS)
            if value and not any(at - moment < BETTER_FOR_S for moment in better):
                samples.append(RateSample(at, value, source))
                self._point(metric, at, value)

    def _forget_speeds(self) -> None:
        for samples in self.rates.values():
            samples.clear()
        self.gain = None


def _is_good(health: Reading[Health]) -> bool:
    return health.value is not None and health.value.status is HealthStatus.OK
