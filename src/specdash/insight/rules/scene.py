"""What a rule judges: the picture of this moment, and what was seen before it. Read only."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from specdash.core.readings import Source, Status
from specdash.core.target import is_local
from specdash.insight.picture import BackendState
from specdash.insight.rules.starts import Starts

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

    from specdash.core.proxy_status import ProxyStatus
    from specdash.insight.picture import Picture
    from specdash.insight.samples import Samples

T = TypeVar("T")
KEEP_S = 3600.0
FINE_S = 900.0
"""Samples older than this are thinned."""
COARSE_S = 10.0
LEAST_APART_S = 0.9
"""Looks that follow each other closer than this share a sample, unless the state changed."""
_THIN_EVERY = 64
_SHARED = ("totals", "warnings", "checkpoints", "live", "guardrails", "work")


@dataclass(frozen=True, slots=True)
class Sample:
    """A picture in short, at monotonic time `at`. Totals are since the server's start; None is unknown."""

    at: float
    state: BackendState
    wall: float = 0.0
    """The same moment in Unix time."""
    uptime_s: float | None = None
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
    acceptance: float | None = None
    """Over the window."""
    decode: float | None = None
    prefill: float | None = None
    busy: int | None = None
    """Slots at work."""
    work: Mapping[int, tuple[int | None, ...]] | None = None
    """How far each slot at work has come: task, generated tokens, processed prompt tokens, by slot."""
    totals: Mapping[str, float] = field(default_factory=dict)
    """By field name of `core.observations.Counters`."""
    warnings: Mapping[str, int] = field(default_factory=dict)
    """Lines so far by warning class."""
    checkpoints: Mapping[str, int] = field(default_factory=dict)
    """Events so far by `kind action`."""
    live: Mapping[str, int] = field(default_factory=dict)
    """Events so far of which the log told while we looked: see `LogPicture.live`."""
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


class Past:
    """The last hour in samples, oldest first: about one a second of the last quarter, one in ten seconds before."""

    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._added = 0
        self.starts = Starts()
        self._tried_at: float | None = None

    def add(self, sample: Sample) -> None:
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
            self._samples = _thinned(samples, sample.at)

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def last(self) -> Sample | None:
        """The sample of this moment."""
        return self._samples[-1] if self._samples else None

    def since(self, at: float) -> Sequence[Sample]:
        """Samples from monotonic time `at` on, oldest first."""
        return self._samples[bisect_left(self._samples, at, key=lambda sample: sample.at) :]

    def backwards(self) -> Iterator[Sample]:
        """All samples, newest first."""
        return reversed(self._samples)

    def ago(self, seconds: float) -> Sample | None:
        """The newest sample that is at least `seconds` older than the last; None when none is that old."""
        if not self._samples:
            return None
        index = bisect_left(self._samples, self._samples[-1].at - seconds + 1e-9, key=lambda sample: sample.at) - 1
        return self._samples[index] if index >= 0 else None

    def first_within(self, seconds: float) -> Sample | None:
        """The oldest sample of the last `seconds`, or of all when fewer are kept."""
        if not self._samples:
            return None
        index = bisect_left(self._samples, self._samples[-1].at - seconds, key=lambda sample: sample.at)
        return self._samples[index]

    def growth(self, name: str, seconds: float) -> float | None:
        """How much a total of `Counters` grew in the last `seconds`; None when unknown."""
        return increase([one.totals.get(name) for one in self._recent(seconds)])

    def grown(self, kind: str, name: str, seconds: float) -> float:
        """How much a count of `warnings`, `checkpoints`, `live` or `guardrails` grew in the last `seconds`."""
        tables: list[Mapping[str, float] | None] = [getattr(one, kind) for one in self._recent(seconds)]
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

    def _recent(self, seconds: float) -> Sequence[Sample]:
        return self.since(self._samples[-1].at - seconds) if self._samples else ()


def _sharing(sample: Sample, before: Sample) -> Sample:
    """The sample with those tables of the one before that have not changed: an idle hour is small."""
    same = {
        name: table
        for name in _SHARED
        if (table := getattr(before, name)) == getattr(sample, name) and table is not getattr(sample, name)
    }
    return replace(sample, **same) if same else sample


def _thinned(samples: list[Sample], now: float) -> list[Sample]:
    """The samples of the last hour; of the older ones those that are `COARSE_S` apart, or that saw another state."""
    first = bisect_left(samples, now - KEEP_S, key=lambda sample: sample.at)
    fine = bisect_left(samples, now - FINE_S, key=lambda sample: sample.at)
    kept: list[Sample] = []
    for sample in samples[first:fine]:
        if not kept or sample.at - kept[-1].at >= COARSE_S or sample.state is not kept[-1].state:
            kept.append(sample)
    return kept + samples[fine:]


def increase(values: Sequence[float | None]) -> float | None:
    """Sum of the increases; a total that went back began anew."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return None
    grown = 0.0
    for before, after in pairwise(known):
        grown += after - before if after >= before else after
    return grown


@dataclass(frozen=True, slots=True)
class Scene:
    """One moment to judge. `picture` has no alerts yet; `past.last` belongs to the same moment."""

    picture: Picture
    past: Past
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

    def is_fresh(self, source: Source) -> bool:
        """Whether a source is KNOWN now."""
        return any(one.source is source and one.status is Status.KNOWN for one in self.picture.backend.sources)

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


def sample_of(picture: Picture) -> Sample:
    """The picture in short."""
    backend, proxy = picture.backend, picture.proxy
    slots = backend.slots
    live = proxy.live
    window = backend.speculation.acceptance.window
    fresh = {one.source for one in backend.sources if one.status is Status.KNOWN}
    utilisations = [gpu.utilisation for gpu in picture.gpu.gpus if gpu.utilisation is not None]
    host = picture.host
    return Sample(
        at=picture.at,
        state=backend.state,
        wall=picture.wall,
        on_trial=picture.trial is not None and picture.trial.alive,
        uptime_s=backend.uptime_s,
        pid=backend.process.pid if backend.process is not None else None,
        pid_began=backend.process.started_wall if backend.process is not None else None,
        processes=backend.process.processes if backend.process is not None else 1,
        stopped=backend.process is not None and bool(backend.process.stopped),
        cpu_wait=backend.process.cpu_wait if backend.process is not None else None,
        starved=picture.delay is not None and picture.delay.is_starved,
        acceptance=window.value if window.status is Status.KNOWN else None,
        decode=backend.decode.value if backend.decode.basis == "live" else None,
        prefill=backend.prefill.value if backend.prefill.basis == "live" else None,
        busy=sum(slot.phase != "idle" for slot in slots) if slots is not None else None,
        work={s.id: (s.task, s.decoded, s.prompt_processed) for s in slots if s.phase != "idle"} if slots else None,
        totals=dict(backend.counters),
        warnings={one.warning: one.count for one in picture.log.warnings},
        checkpoints=dict(picture.log.checkpoints),
        live=dict(picture.log.live),
        exact_accepted=backend.speculation.accepted_tokens_total,
        guardrails=_guardrails(live) if live is not None and live.started is not None else None,
        proxy_requests=live.requests if live is not None else None,
        proxy_errors=live.errors if live is not None else None,
        proxy_left=live.clients_left if live is not None else None,
        deferred=backend.requests_deferred if Source.METRICS in fresh else None,
        gpu_utilisation=max(utilisations, default=None) if Source.GPU in fresh else None,
        swap_used_bytes=host.swap_used_bytes if host is not None else None,
        swap_rate=_sum(host.swap_in_bytes_per_s, host.swap_out_bytes_per_s) if host is not None else None,
    )


def _guardrails(live: ProxyStatus) -> Mapping[str, int]:
    counts: Counter[str] = Counter(live.counters)
    for name, count in live.counters.items():
        counts[name.partition(":")[0]] += count
    return counts


def _sum(first: float | None, second: float | None) -> float | None:
    return first + second if first is not None and second is not None else None
