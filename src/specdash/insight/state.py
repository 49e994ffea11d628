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
from specdash.insight.charts import Metric
from specdash.insight.experiments import Experiments
from specdash.insight.log.counter_log import KEEP_S, CounterLog, Scrape
from specdash.insight.log.log_view import LogView
from specdash.insight.picture import AlertsPicture, BackendState
from specdash.insight.progress import LateWatch, SlotWatch
from specdash.insight.proxy.proxy import ProxyState
from specdash.insight.rates import (
    RateSample,
    SlotRates,
    counter_rates,
    mean_busy_slots,
    tokens_per_decode,
)
from specdash.insight.request import Samples
from specdash.insight.rules.scene import PictureHistory, RuleScene, sample_of
from specdash.insight.speculation.acceptance import between

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from specdash.core.records import Alert, AlertEvent, Baseline
    from specdash.core.target import Target
    from specdash.insight.observer import Memory, TargetObserver
    from specdash.insight.picture import Picture
    from specdash.insight.rules.book import AlertBook
    from specdash.insight.rules.catalogue import Rule


# Values that are recomputed only when their inputs have changed.

T = TypeVar("T")


class Memo:
    """The last value of each name with the key that it was made of; it only saves time."""

    def __init__(self) -> None:
        self._values: dict[Hashable, tuple[object, Any]] = {}

    def once(self, name: Hashable, key: object, make: Callable[[], T]) -> T:
        """The value of that name, which `make` gives unless `key` is what it was made of last time."""
        known = self._values.get(name)
        if known is None or known[0] != key:
            known = self._values[name] = (key, make())
        value: T = known[1]
        return value


# The alerts of one target: the rules judged at every look at the server, and their part of the picture.

JUDGED_WINDOW_S = 60.0
"""The window of the pictures that rules see, independent of the screen's window."""


class Alerts:
    """Judges every picture it is given. The rules and their texts are loaded at the first."""

    def __init__(self, rules: Sequence[Rule] | None, kept_s: float = KEEP_S) -> None:
        self.past = PictureHistory(kept_s)
        self._rules = rules
        self._book: AlertBook | None = None

    def judge(self, picture: Picture, samples: Samples) -> tuple[AlertEvent, ...]:
        """What became of the alerts."""
        book = self._kept()
        self.past.add(sample_of(picture))
        return book.judge(RuleScene(picture, self.past, samples))

    def remember(self, past: Iterable[Alert], active: Iterable[Alert], now: float) -> None:
        """Begin with recorded alerts (see `AlertBook.remember`)."""
        self._kept().remember(past, active, now)

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        """Which alerts are active."""
        return frozenset(alert.key for alert in self._book.active) if self._book is not None else frozenset()

    def _kept(self) -> AlertBook:
        if self._book is None:
            from specdash.insight.rules.book import AlertBook
            from specdash.insight.rules.catalogue import shipped

            self._book = AlertBook(self._rules if self._rules is not None else shipped())
        return self._book

    def picture(self) -> AlertsPicture:
        """Active and past alerts, and the likely cause."""
        book = self._book
        if book is None:
            return AlertsPicture()
        from specdash.insight.rules.book import likely_cause

        active = book.active
        first = likely_cause(active, book.rules)
        skipped = dict(book.unjudged)
        return AlertsPicture(
            active=active,
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
GAIN_SPAN_S = 10.0
"""Tokens per decode are of the requests that ended in so long."""
_STEPS_FRESH_S = 5.0
RATE_SOURCES = (Source.SLOTS, Source.LOG, Source.METRICS)
"""Best first: running requests; ended ones in the server's own milliseconds; ended ones in its counters, whose prompt
seconds leave out part of what `timings.prompt_ms` has."""
BETTER_FOR_S = 3.0


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
        self._probes = _probes_of(target)
        """Tasks of the server that runs now with which its runner probed it."""
        self.log.leave_out(self._probes)
        self.counters.origin = _origin_of(target)
        self.experiments = Experiments()
        """Of all servers that ran here, one after the other."""
        self.busy_slots: deque[tuple[float, int]] = deque(maxlen=4096)
        """How many slots were at work, by monotonic time."""
        self.memo = Memo()
        self.prefill: deque[RateSample] = deque(maxlen=60)
        self.decode: deque[RateSample] = deque(maxlen=60)
        self.gain: RateSample | None = None
        kept = min(4096, int(kept_s) + 60)
        self.series: dict[Metric, Series] = {metric: Series(kept) for metric in Metric}
        self._absent_since: float | None = None
        self.recovered_at: float | None = None
        """When /health turned good after it was not."""
        self.refused_since: dict[Source, float] = {}
        """Since when an endpoint has refused the key without a break."""
        self._steps_at: float | None = None
        self._busy_slots = 1.0
        self._works = 0
        """How often it began to work after it had rested."""
        self._lock = threading.Lock()

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
            self.counters.remember(memory.scrapes)
            self.alerts.remember(memory.past, memory.active, memory.at)

    def _take(self, reading: Reading[Any]) -> None:
        self._note_change(reading)
        self.latest[reading.source] = reading
        value = reading.value
        if value is None:
            self._note_absence(reading)
            return
        self.last_known[reading.source] = reading
        if isinstance(value, Counters):
            self._counters(reading.at, value)
        elif isinstance(value, Slots):
            self._slots(reading.at, value)
        elif isinstance(value, LogBatch):
            self._log(reading.at, value)
        elif isinstance(value, Host):
            self._point(Metric.CPU, reading.at, value.cpu_utilisation)
        elif isinstance(value, Gpus):
            busy = [gpu.utilisation for gpu in value.gpus if gpu.utilisation is not None]
            self._point(Metric.GPU_UTILISATION, reading.at, max(busy) if busy else None)
        elif isinstance(value, ProxyStatus):
            self.proxy.add_status(reading.at, value)
        elif isinstance(value, ProxyEvents):
            self._proxy_events(value)
        elif isinstance(value, tuple | RouterModels):
            self._noted(reading.source, reading.at, value)
        elif isinstance(value, Health) and value.status is HealthStatus.LOADING:
            self._absent_since = reading.at

    def _note_change(self, reading: Reading[Any]) -> None:
        """What makes readings of before tell of another time."""
        self.late.add(reading)
        before = self.latest.get(Source.HEALTH)
        if reading.source is Source.HEALTH and before is not None and _is_good(reading) and not _is_good(before):
            self.recovered_at = reading.at
        if reading.failure is not None and reading.failure.kind is FailureKind.UNAUTHORIZED:
            self.refused_since.setdefault(reading.source, reading.at)
        else:
            self.refused_since.pop(reading.source, None)

    def _noted(self, source: Source, at: float, value: tuple[Any, ...] | RouterModels) -> None:
        if isinstance(value, RouterModels):
            loading = [model.id for model in value.models if model.status is ModelStatus.LOADING]
            self.loading_since = {model: self.loading_since.get(model, at) for model in loading}
        elif source is Source.BASELINES:
            self.baselines = value
        elif source is Source.APPLIES:
            self.experiments.set_records(value)

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
        before = self._probes, self.counters.origin
        self._probes = _probes_of(self.target)
        self.counters.origin = _origin_of(self.target)
        if before == (self._probes, self.counters.origin):
            return
        self.log.leave_out(self._probes)
        check = self.target.start_check
        if check is not None:
            self.experiments.samples.leave_out(self._probes, check.checked)
        if self.counters.is_unused or (self.counters.last is None and not self.log.finished):
            # No client has asked for anything: earlier speeds belong to no request.
            self.prefill.clear()
            self.decode.clear()
            self.gain = None

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
            return (self._state_seen, self.alerts.keys, self._works, *known)

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
        return age if fails or self.counters.is_of_the_record or age > STALE_AFTER_S else None

    def _forget(self, source: Source) -> None:
        self.latest.pop(source, None)
        self.last_known.pop(source, None)

    def _is_due(self, reading: Reading[Any]) -> bool:
        """Whether to judge with this reading: it is of the server's health, or that is long in coming; it tells what
        the server itself cannot, that its process was stopped or goes on; or its source fails."""
        before = self.latest.get(reading.source)
        if reading.source is not Source.HEALTH and Source.HEALTH not in self.latest:
            return False
        known, value = before.value if before is not None else None, reading.value
        if known is not None and value is None and reading.source not in OF_SERVER:
            return True
        if isinstance(value, ProcessTree) and isinstance(known, ProcessTree) and value.stopped != known.stopped:
            return True
        if reading.source is Source.HEALTH and (known is None or value is None or value.status is not known.status):
            return True
        if reading.at - self._judged_at < self._judged_every_s:
            return False
        return reading.source is Source.HEALTH or reading.at - self._judged_at >= JUDGED_AFTER_S

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
        for event in self.alerts.judge(picture, self.experiments.samples):
            if self._observer is not None:
                self._observer.on_alert(event)

    def _point(self, metric: Metric, at: float, value: float | None) -> None:
        self.series[metric].append(at, value)
        if self._observer is not None:
            self._observer.on_point(metric, at, value)

    def _note_absence(self, reading: Reading[Any]) -> None:
        if reading.failure is None or reading.source not in (Source.HEALTH, Source.METRICS, Source.SLOTS):
            return
        if reading.failure.kind in (FailureKind.REFUSED, FailureKind.LOADING):
            self._absent_since = reading.at

    def _counters(self, at: float, counters: Counters) -> None:
        before = self.counters.last if not self.counters.is_of_the_record else None
        restarted = self.counters.add(at, counters, absent_since=self._absent_since)
        self._absent_since = None
        if restarted:
            self._forget_process(at)
        window = self.counters.window(at, at - before.at if before and not restarted else 0.0)
        if window is not None:
            self._ended_requests(at, *window)
        window = self.counters.window(at, GAIN_SPAN_S)
        gain = tokens_per_decode(*window) if window is not None else None
        if gain is not None:
            self.gain = RateSample(at, gain, Source.METRICS)
            self._point(Metric.TOKENS_PER_DECODE, at, gain)
        self._point(Metric.REQUESTS, at, counters.requests_processing)
        warnings = sum(storm.per_minute(at) for storm in self.log.storms.newest_first)
        self._point(Metric.WARNINGS, at, warnings if Source.LOG in self.last_known else None)

    def _ended_requests(self, at: float, first: Scrape, last: Scrape) -> None:
        slots: Slots | None = self.value(Source.SLOTS)
        busy = mean_busy_slots(first.counters, last.counters, len(slots.slots) if slots is not None else None)
        self._busy_slots = busy if busy is not None else self._busy_slots
        prefill, decode = counter_rates(first, last, busy)
        if prefill is not None:
            self._rate(RateSample(at, prefill, Source.METRICS), Metric.PREFILL)
        if decode is not None:
            self._rate(RateSample(at, decode, Source.METRICS), Metric.DECODE)
        drafted = between(first, last)
        tracing = self._steps_at is not None and at - self._steps_at < _STEPS_FRESH_S
        if drafted is not None and drafted.acceptance is not None and not tracing:
            self._point(Metric.ACCEPTANCE, at, drafted.acceptance)

    def _slots(self, at: float, slots: Slots) -> None:
        busy = sum(slot.is_processing for slot in slots.slots)
        self._works += bool(busy and not (self.busy_slots and self.busy_slots[-1][1]))
        self.busy_slots.append((at, busy))
        self.slot_watch.add(at, slots, self.decode_calls, self.log.slot_steps)
        prefill, decode = self.slot_rates.add(at, slots)
        if prefill is not None:
            self._rate(RateSample(at, prefill, Source.SLOTS), Metric.PREFILL)
        if decode is not None:
            self._rate(RateSample(at, decode, Source.SLOTS), Metric.DECODE)

    def _log(self, at: float, batch: LogBatch) -> None:
        lines, lives = self.log.lines, self.log.lives
        fresh = self.log.add(at, batch, self.log.newest_s)
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
        if fresh.prompt_tokens and fresh.prompt_ms:
            self._rate(RateSample(at, fresh.prompt_tokens * 1000.0 / fresh.prompt_ms, Source.LOG), Metric.PREFILL)
        if fresh.decode_tokens and fresh.decode_ms:
            speed = fresh.decode_tokens * 1000.0 / fresh.decode_ms
            self._rate(RateSample(at, speed * self._busy_slots, Source.LOG), Metric.DECODE)

    def _proxy_events(self, batch: ProxyEvents) -> None:
        self.proxy.add_events(batch)
        for event in batch.events:
            if isinstance(event, RequestEvent):
                self.experiments.samples.add_event(event)

    def _rate(self, sample: RateSample, metric: Metric) -> None:
        """Take a rate, unless a better source just gave one: two sources of one moment must not be averaged."""
        samples = self.prefill if metric is Metric.PREFILL else self.decode
        rank = RATE_SOURCES.index(sample.source)
        if any(RATE_SOURCES.index(s.source) < rank and sample.at - s.at < BETTER_FOR_S for s in samples):
            return
        samples.append(sample)
        self._point(metric, sample.at, sample.value)

    def _forget_process(self, at: float) -> None:
        self.slot_rates = SlotRates()
        self.slot_watch = SlotWatch()
        self.prefill.clear()
        self.decode.clear()
        self.gain = None
        self.log.forget_process(at)


def _is_good(health: Reading[Health]) -> bool:
    return health.value is not None and health.value.status is HealthStatus.OK


def _probes_of(target: Target) -> frozenset[int]:
    return frozenset(target.start_check.probe_tasks) if target.start_check is not None else frozenset()


def _origin_of(target: Target) -> Counters:
    """What the server had counted before its first client; nothing where that is not known."""
    check = target.start_check
    if check is None:
        return Counters()
    if not check.probe_totals:
        # A client came before they were read: the first completion is known by itself.
        return Counters(
            predicted_tokens=check.probe_tokens, draft_tokens=check.probe_drafted, accepted_tokens=check.probe_accepted
        )
    known = set(Counters.__struct_fields__)
    totals: dict[str, Any] = {name: value for name, value in check.probe_totals if name in known}
    return Counters(**totals, accepted_per_position=check.probe_positions or None)
