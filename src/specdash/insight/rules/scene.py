"""What a rule judges: the picture of this moment, and what was seen before it. Read only."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from specdash.core.readings import ReadingStatus, Source
from specdash.core.target import is_local
from specdash.insight.picture import BackendState
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

    from specdash.insight.picture import Picture
    from specdash.insight.request import Samples


# When the server was seen to start, from its state and its process, each start once.

KEPT = 100
ONE_START_S = 30.0
"""Within so long, a new process, totals that went back and a port that opened again are signs of one start."""
CONFIRMED_S = 4.0
"""A process at the port is the server's when it stays up for so long with it."""
TRIAL_SEEN_S = CONFIRMED_S + 3.0
"""So long after a trial its last restart, which put the settings from before back, may still be seen; longer where its
process is seen to have begun before the trial's end."""
_UP = frozenset(
    {BackendState.LIVE, BackendState.BUSY, BackendState.WEDGED, BackendState.LOADING, BackendState.RESTARTED}
)
_SERVING = frozenset({BackendState.LIVE, BackendState.BUSY})


@dataclass(frozen=True, slots=True)
class Start:
    """One start, at monotonic time `at` and Unix time `wall`. `again` is False for one before which nothing ran while
    it was watched."""

    at: float
    wall: float
    why: str
    again: bool
    on_trial: bool = False
    """Settings were tried then: it is one of their restarts."""


class Starts:
    """Watches the samples for starts. Bounded."""

    def __init__(self) -> None:
        self.seen: deque[Start] = deque(maxlen=KEPT)
        """Oldest first."""
        self.owner: int | None = None
        """The process that was seen last while the server was up."""
        self.served: int | None = None
        """The process that was seen last while the server answered all there is to ask."""
        self._candidate: tuple[int, float] | None = None
        self._state: BackendState | None = None
        self.was_up = False
        """Whether it was ever seen up."""
        self._was_down = False
        self._tried_at = self._tried_wall = float("-inf")
        self._signs: set[str] = set()
        """Signs that the last start has given."""

    def add(self, sample: PictureSample) -> None:
        """Take in the sample of this moment."""
        before, self._state = self._state, sample.state
        if sample.on_trial:
            self._tried_at, self._tried_wall = sample.at, sample.wall
        if sample.state not in _UP:
            self._was_down = self._was_down or sample.state is BackendState.DOWN
            self._candidate = None
            return
        if self._was_down:
            self._was_down = False
            self._signs.clear()
            self._count(sample, "the port opened again", "port")
        before_it, confirmed = self.owner, self._confirmed(sample)
        if before_it is not None and confirmed and sample.pid != before_it:
            self._sign(sample, f"process {sample.pid} took the place of {before_it}", "process")
        elif before is not None and sample.state is not before and self._began(sample, before):
            self._sign(sample, "totals went back" if sample.state is BackendState.RESTARTED else "it loads", "totals")
        if confirmed:
            self.owner = sample.pid
            if sample.state in _SERVING:
                self.served = sample.pid
        self.was_up = True

    def within(self, now: float, seconds: float) -> tuple[Start, ...]:
        """Starts of the last `seconds`, oldest first."""
        return tuple(start for start in self.seen if start.at >= now - seconds)

    def _confirmed(self, sample: PictureSample) -> bool:
        """Whether the process is the server's: the one it was, the first, or one with which the server stays up. One
        that has taken the port from it is seen before its answers are."""
        if sample.pid is None:
            return False
        if self.owner is None or sample.pid == self.owner:
            self._candidate = None
            return True
        if self._candidate is None or self._candidate[0] != sample.pid:
            self._candidate = sample.pid, sample.at
        return sample.at - self._candidate[1] >= CONFIRMED_S

    def _began(self, sample: PictureSample, before: BackendState) -> bool:
        """Whether the state alone says that another process serves: with a process in sight, that one says it."""
        if sample.pid is not None and sample.pid == self.owner and sample.processes == 1:
            return False
        return sample.state is BackendState.RESTARTED or (sample.state is BackendState.LOADING and before in _UP)

    def _sign(self, sample: PictureSample, why: str, sign: str) -> None:
        """A sign of a start: of the last one, when that was a moment ago and has not given this sign yet."""
        last = self.seen[-1] if self.seen else None
        if last is not None and sample.at - last.at <= ONE_START_S and sign not in self._signs:
            self._signs.add(sign)
            return
        self._signs.clear()
        self._count(sample, why, sign)

    def _count(self, sample: PictureSample, why: str, sign: str) -> None:
        self._signs.add(sign)
        of_trial = sample.at - self._tried_at <= TRIAL_SEEN_S or self._began_on_trial(sample)
        self.seen.append(Start(sample.at, sample.wall, why, self.was_up, of_trial))

    def _began_on_trial(self, sample: PictureSample) -> bool:
        """Whether a process that is new here is from the time of the last trial, however late it was seen."""
        return sample.pid != self.owner and sample.pid_began is not None and sample.pid_began <= self._tried_wall


T = TypeVar("T")
KEEP_S = 3600.0
FINE_S = 900.0
"""Samples older than this are thinned."""
COARSE_S = 10.0
LEAST_APART_S = 0.9
"""Looks that follow each other closer than this share a sample, unless the state changed."""
_THIN_EVERY = 64
_SHARED = ("totals", "live", "guardrails")


@dataclass(frozen=True, slots=True)
class PictureSample:
    """A picture in short, at monotonic time `at`. Totals are since the server's start; None is unknown."""

    at: float
    state: BackendState
    wall: float = 0.0
    """The same moment in Unix time."""
    on_trial: bool = False
    """Settings are tried on the server."""
    pid: int | None = None
    pid_began: float | None = None
    """When that process began, in Unix time."""
    processes: int = 1
    """The server's and its children."""
    stopped: bool = False
    """A signal has stopped one of them."""
    cpu_wait: float | None = None
    """Share of the time that its thread waited for a CPU (`ProcessTree.cpu_wait`)."""
    starved: bool = False
    """Specdash itself got no CPU in time."""
    busy: int | None = None
    """Slots at work."""
    totals: Mapping[str, float] = field(default_factory=dict)
    """By field name of `core.readings.Counters`."""
    live: Mapping[str, int] = field(default_factory=dict)
    """Events in the log since the watch began: see `LogPicture.live`."""
    exact_accepted: float | None = None
    """Accepted draft tokens so far, exact where the rounded counter is not."""
    guardrails: Mapping[str, int] | None = field(default_factory=dict)
    """The proxy's own count of its actions, by guardrail and by `guardrail:action`; None where none tells it."""
    proxy_requests: int | None = None
    proxy_errors: int | None = None
    proxy_left: int | None = None
    deferred: float | None = None
    """Requests that wait for a slot."""
    gpu_utilisation: float | None = None
    """Of the busiest GPU."""
    swap_used_bytes: int | None = None
    swap_rate: float | None = None
    """Bytes a second that came from the swap and went there."""


class PictureHistory:
    """The last hour, or less, in samples, oldest first: about one a second of the last quarter, one in ten seconds
    before."""

    def __init__(self, kept_s: float = KEEP_S) -> None:
        self._kept_s = kept_s
        self._samples: list[PictureSample] = []
        self._added = 0
        self.starts = Starts()
        self._tried_at: float | None = None

    def add(self, sample: PictureSample) -> None:
        """Take in the sample of this moment; times must not decrease."""
        samples = self._samples
        if sample.on_trial:
            self._tried_at = sample.at
        if samples:
            sample = _sharing(sample, samples[-1])
        if len(samples) >= 2 and sample.at - samples[-2].at < LEAST_APART_S and samples[-1].state is samples[-2].state:
            samples[-1] = sample
        else:
            samples.append(sample)
        self.starts.add(sample)
        self._added += 1
        if self._added % _THIN_EVERY == 0:
            self._samples = _thinned(samples, sample.at, self._kept_s)

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def last(self) -> PictureSample | None:
        """The sample of this moment."""
        return self._samples[-1] if self._samples else None

    def since(self, at: float) -> Sequence[PictureSample]:
        """Samples from monotonic time `at` on, oldest first."""
        return self._samples[bisect_left(self._samples, at, key=lambda sample: sample.at) :]

    def backwards(self) -> Iterator[PictureSample]:
        """All samples, newest first."""
        return reversed(self._samples)

    def ago(self, seconds: float) -> PictureSample | None:
        """The newest sample that is at least `seconds` older than the last; None when none is that old."""
        if not self._samples:
            return None
        index = bisect_left(self._samples, self._samples[-1].at - seconds + 1e-9, key=lambda sample: sample.at) - 1
        return self._samples[index] if index >= 0 else None

    def first_within(self, seconds: float) -> PictureSample | None:
        """The oldest sample of the last `seconds`, or of all when fewer are kept."""
        if not self._samples:
            return None
        index = bisect_left(self._samples, self._samples[-1].at - seconds, key=lambda sample: sample.at)
        return self._samples[index]

    def growth(self, name: str, seconds: float) -> float | None:
        """How much a total of `Counters` grew in the last `seconds`; None when unknown."""
        return increase([picture_sample.totals.get(name) for picture_sample in self._recent(seconds)])

    def grown(self, kind: str, name: str, seconds: float) -> float:
        """How much a count of `live` or `guardrails` grew in the last `seconds`."""
        tables: list[Mapping[str, float] | None] = [
            getattr(picture_sample, kind) for picture_sample in self._recent(seconds)
        ]
        return increase([table.get(name, 0) if table is not None else None for table in tables]) or 0.0

    def tried_within(self, seconds: float) -> bool:
        """Whether settings are tried on the server, or were in the last `seconds`."""
        at = self._tried_at
        return at is not None and bool(self._samples) and self._samples[-1].at - at <= seconds

    def lasting(self, states: Iterable[BackendState]) -> float | None:
        """For how many seconds the state has been one of these without a break; None when it is not one now."""
        wanted = frozenset(states)
        first = None
        for sample in reversed(self._samples):
            if sample.state not in wanted:
                break
            first = sample.at
        return None if first is None else self._samples[-1].at - first

    def _recent(self, seconds: float) -> Sequence[PictureSample]:
        return self.since(self._samples[-1].at - seconds) if self._samples else ()


def _sharing(sample: PictureSample, before: PictureSample) -> PictureSample:
    """The sample with those tables of the one before that have not changed: an idle hour is small."""
    same = {
        name: table
        for name in _SHARED
        if (table := getattr(before, name)) == getattr(sample, name) and table is not getattr(sample, name)
    }
    return replace(sample, **same) if same else sample


def _thinned(samples: list[PictureSample], now: float, kept_s: float) -> list[PictureSample]:
    """The samples of the time kept; of the older ones those that are `COARSE_S` apart, or that saw another state."""
    first = bisect_left(samples, now - kept_s, key=lambda sample: sample.at)
    fine = bisect_left(samples, now - min(FINE_S, kept_s / 4), key=lambda sample: sample.at)
    kept: list[PictureSample] = []
    for sample in samples[first:fine]:
        if not kept or sample.at - kept[-1].at >= COARSE_S or sample.state is not kept[-1].state:
            kept.append(sample)
    return kept + samples[fine:]


def increase(values: Sequence[float | None]) -> float | None:
    """Sum of the increases; a total that went back was reset."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return None
    grown = 0.0
    for before, after in pairwise(known):
        grown += after - before if after >= before else after
    return grown


@dataclass(frozen=True, slots=True)
class RuleScene:
    """One moment to judge. `picture` has no alerts yet; `past.last` belongs to the same moment."""

    picture: Picture
    past: PictureHistory
    samples: Samples
    """Finished requests, of the log and of the proxy's events."""
    _made: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` gives, made once for all rules that judge this scene."""
        if key not in self._made:
            self._made[key] = make()
        made: T = self._made[key]
        return made

    @property
    def now(self) -> float:
        """Monotonic seconds."""
        return self.picture.at

    def own(self, seconds: float) -> Sequence[PictureSample]:
        """The samples of the last `seconds` that are of the server that runs now."""
        starts = self.past.starts.seen
        return self.past.since(max(self.now - seconds, starts[-1].at if starts else 0.0))

    def is_fresh(self, source: Source) -> bool:
        """Whether a source is KNOWN now."""
        return source in self.once("fresh", lambda: fresh_sources(self.picture))

    @property
    def names(self) -> Mapping[str, str]:
        """What the placeholders of every runbook stand for, as far as it is known."""
        return self.once("names", self._names)

    def _names(self) -> Mapping[str, str]:
        backend = self.picture.backend
        parts = urlsplit(backend.url)
        pid = backend.process.pid if backend.process is not None else self.past.starts.owner
        known = {
            "url": backend.url,
            "port": parts.port or {"http": 80, "https": 443}.get(parts.scheme),
            "pid": pid if is_local(parts.hostname) else None,
        }
        return {name: str(value) for name, value in known.items() if value is not None}

    @property
    def is_settling(self) -> bool:
        """Whether the server loads or has just begun: what it shows is not its own yet."""
        return self.picture.backend.state in (BackendState.LOADING, BackendState.RESTARTED)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs; unknown is idle."""
        last = self.past.last
        return not (last is not None and last.busy) and not self.picture.backend.requests_processing


def fresh_sources(picture: Picture) -> frozenset[Source]:
    """Those that are KNOWN now."""
    return frozenset(entry.source for entry in picture.backend.sources if entry.status is ReadingStatus.KNOWN)


def sample_of(picture: Picture) -> PictureSample:
    """The picture in short."""
    backend, proxy = picture.backend, picture.proxy
    slots = backend.slots
    live = proxy.live
    fresh = fresh_sources(picture)
    utilisations = [gpu.utilisation for gpu in picture.gpu.gpus if gpu.utilisation is not None]
    host = picture.host
    return PictureSample(
        at=picture.at,
        state=backend.state,
        wall=picture.wall,
        on_trial=picture.trial is not None and picture.trial.alive,
        pid=backend.process.pid if backend.process is not None else None,
        pid_began=backend.process.started_wall if backend.process is not None else None,
        processes=backend.process.processes if backend.process is not None else 1,
        stopped=backend.process is not None and bool(backend.process.stopped),
        cpu_wait=backend.process.cpu_wait if backend.process is not None else None,
        starved=picture.delay is not None and picture.delay.is_starved,
        busy=sum(slot.phase != "idle" for slot in slots) if slots is not None else None,
        totals=dict(backend.counters),
        live=dict(picture.log.live),
        exact_accepted=backend.speculation.accepted_tokens_total,
        guardrails=dict(live.counters) if live is not None and live.started is not None else None,
        proxy_requests=live.requests if live is not None else None,
        proxy_errors=live.errors if live is not None else None,
        proxy_left=live.clients_left if live is not None else None,
        deferred=backend.requests_deferred if Source.METRICS in fresh else None,
        gpu_utilisation=max(utilisations, default=None) if Source.GPU in fresh else None,
        swap_used_bytes=host.swap_used_bytes if host is not None else None,
        swap_rate=_sum(host.swap_in_bytes_per_s, host.swap_out_bytes_per_s) if host is not None else None,
    )


def _sum(first: float | None, second: float | None) -> float | None:
    return first + second if first is not None and second is not None else None
