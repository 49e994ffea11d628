"""What a rule judges: the picture of this moment, and what was seen before it. Read only."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec import Struct, field
from msgspec.structs import replace

from specdash.core.readings import ReadingStatus, Source
from specdash.core.target import is_local
from specdash.insight.picture import BackendState, SourcePicture

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.core.readings import ProcessTree
    from specdash.insight.picture import Picture

KEEP_S = 900.0
"""No rule looks further back."""
LEAST_APART_S = 0.9
"""Looks that follow each other closer than this share a sample, unless the state changed."""
ONE_START_S = 30.0
"""Within so long, a new process, totals that went back and a port that opened again are signs of one start."""
CONFIRMED_S = 4.0
"""A process at the port is the server's when it stays up for so long with it."""
_UP = frozenset(
    {BackendState.LIVE, BackendState.BUSY, BackendState.WEDGED, BackendState.LOADING, BackendState.RESTARTED}
)


class PictureSample(Struct, frozen=True):
    """A picture in short, at monotonic time `at`. Totals are since the server's start; None is unknown."""

    at: float
    state: BackendState
    wall: float = 0.0
    """The same moment in Unix time."""
    on_trial: bool = False
    """Settings are tried on the server."""
    process: ProcessTree | None = None
    """Without its command line."""
    busy: int | None = None
    """Slots at work."""
    totals: Mapping[str, float] = field(default_factory=dict)
    """By field name of `core.readings.Counters`; accepted tokens exact where the rounded counter is not."""
    live: Mapping[str, int] = field(default_factory=dict)
    """Events in the log since the watch began: see `LogPicture.live`."""
    guardrails: Mapping[str, int] | None = field(default_factory=dict)
    """The proxy's own count of its actions, by guardrail and by `guardrail:action`, and of `requests`, `errors` and
    clients `left`; None where it is not known."""
    deferred: float | None = None
    """Requests that wait for a slot."""
    gpu_utilisation: float | None = None
    """Of the busiest GPU."""
    swap_rate: float | None = None
    """Bytes a second that came from the swap and went there."""


class Start(Struct, frozen=True):
    """One start, at monotonic time `at` and Unix time `wall`."""

    at: float
    wall: float


class Starts:
    """When the server was seen to start, from its state and its process, each start once. Bounded."""

    def __init__(self) -> None:
        self.seen: deque[Start] = deque(maxlen=100)
        """Oldest first."""
        self.owner: int | None = None
        """The process that was seen last while the server was up."""
        self.was_up = False
        """Whether it was ever seen up."""
        self.tried_at = float("-inf")
        """When settings were tried on it last."""
        self._newcomer: tuple[int, float] | None = None
        """Another process at the port, and since when."""
        self._state: BackendState | None = None
        self._was_down = False

    def add(self, sample: PictureSample) -> None:
        """Take in the sample of this moment."""
        before, self._state = self._state, sample.state
        if sample.on_trial:
            self.tried_at = sample.at
        if sample.state not in _UP:
            self._was_down = self._was_down or sample.state is BackendState.DOWN
            self._newcomer = None
            return
        process, owner = sample.process, self.owner
        is_other = process is not None and owner is not None and process.pid != owner
        if process is None or not is_other:
            self._newcomer = None
        elif self._newcomer is None or self._newcomer[0] != process.pid:
            self._newcomer = process.pid, sample.at
        # One that has taken the port from the server is seen before its answers are.
        is_new = self._newcomer is not None and sample.at - self._newcomer[1] >= CONFIRMED_S
        if process is not None and (is_new or not is_other):
            self.owner = process.pid
        # With the server's process in sight, that one says whether another serves.
        if before not in (None, sample.state) and (process is None or is_other or process.processes > 1):
            loads = sample.state is BackendState.LOADING and before in _UP
            is_new = is_new or loads or sample.state is BackendState.RESTARTED
        if self._was_down or (is_new and (not self.seen or sample.at - self.seen[-1].at > ONE_START_S)):
            self.seen.append(Start(sample.at, sample.wall))
        self.was_up, self._was_down = True, False


class PictureHistory:
    """The last quarter of an hour, or less, in samples, oldest first, about one a second."""

    def __init__(self, kept_s: float = KEEP_S) -> None:
        self._kept_s = min(kept_s, KEEP_S)
        self._samples: list[PictureSample] = []
        self._state_since = 0.0
        self.starts = Starts()

    def add(self, sample: PictureSample) -> None:
        """Take in the sample of this moment; times must not decrease."""
        samples = self._samples
        if not samples or sample.state is not samples[-1].state:
            self._state_since = sample.at
        if samples:
            # Tables that have not changed are shared with the sample before: an idle hour is small.
            last = samples[-1]
            for name in ("process", "totals", "live", "guardrails"):
                if getattr(last, name) == getattr(sample, name):
                    sample = replace(sample, **{name: getattr(last, name)})
        if len(samples) >= 2 and sample.at - samples[-2].at < LEAST_APART_S and samples[-1].state is samples[-2].state:
            samples[-1] = sample
        else:
            samples.append(sample)
            del samples[: bisect_left(samples, sample.at - self._kept_s, key=lambda one: one.at)]
        self.starts.add(sample)

    @property
    def last(self) -> PictureSample | None:
        """The sample of this moment."""
        return self._samples[-1] if self._samples else None

    def since(self, at: float) -> Sequence[PictureSample]:
        """Samples from monotonic time `at` on, oldest first."""
        return self._samples[bisect_left(self._samples, at, key=lambda sample: sample.at) :]

    def lasting(self, state: BackendState) -> float | None:
        """For how many seconds the state has been this one without a break; None when it is not now."""
        last = self.last
        return last.at - self._state_since if last is not None and last.state is state else None


def increase(values: Sequence[float | None]) -> float | None:
    """Sum of the increases; a total that went back was reset."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return None
    return sum(after - before if after >= before else after for before, after in pairwise(known))


class RuleScene(Struct, frozen=True):
    """One moment to judge. `picture` has no alerts yet; `past.last` belongs to the same moment."""

    picture: Picture
    past: PictureHistory

    @property
    def now(self) -> float:
        """Monotonic seconds."""
        return self.picture.at

    def lately(self, seconds: float) -> Sequence[PictureSample]:
        """The samples of the last `seconds`."""
        return self.past.since(self.now - seconds)

    def own(self, seconds: float) -> Sequence[PictureSample]:
        """Those of them that are of the server that runs now."""
        starts = self.past.starts.seen
        return self.past.since(max(self.now - seconds, starts[-1].at if starts else 0.0))

    def logged(self, name: str, seconds: float) -> float:
        """How many of these events of `LogPicture.live` the log had in the last `seconds`."""
        return increase([sample.live.get(name, 0) for sample in self.lately(seconds)]) or 0.0

    def source(self, source: Source) -> SourcePicture:
        """How fresh a source is."""
        unknown = SourcePicture(source, ReadingStatus.UNKNOWN)
        return next((one for one in self.picture.backend.sources if one.source is source), unknown)

    def is_fresh(self, source: Source) -> bool:
        """Whether a source is KNOWN now."""
        return self.source(source).status is ReadingStatus.KNOWN

    @property
    def names(self) -> dict[str, str]:
        """What the placeholders of runbooks stand for, as far as it is known."""
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


def sample_of(picture: Picture) -> PictureSample:
    """The picture in short."""
    backend, live, host = picture.backend, picture.proxy.live, picture.host
    fresh = {entry.source for entry in backend.sources if entry.status is ReadingStatus.KNOWN}
    utilisations = [gpu.utilisation for gpu in picture.gpu.gpus if gpu.utilisation is not None]
    swapped = (host.swap_in_bytes_per_s, host.swap_out_bytes_per_s) if host is not None else (None, None)
    accepted = backend.speculation.accepted_tokens_total
    return PictureSample(
        at=picture.at,
        state=backend.state,
        wall=picture.wall,
        on_trial=picture.trial is not None and picture.trial.alive,
        process=replace(backend.process, command=()) if backend.process is not None else None,
        busy=sum(slot.phase != "idle" for slot in backend.slots) if backend.slots is not None else None,
        totals={**dict(backend.counters), **({"accepted_tokens": accepted} if accepted is not None else {})},
        live=dict(picture.log.live),
        guardrails={**live.counters, "requests": live.requests, "errors": live.errors, "left": live.clients_left}
        if live is not None and live.started is not None
        else None,
        deferred=backend.requests_deferred if Source.METRICS in fresh else None,
        gpu_utilisation=max(utilisations, default=None) if Source.GPU in fresh else None,
        swap_rate=swapped[0] + swapped[1] if swapped[0] is not None and swapped[1] is not None else None,
    )
