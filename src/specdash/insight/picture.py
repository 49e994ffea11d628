"""The one picture: all derived values of a target at one moment. Frozen data; the screen, the snapshot and the rules
read it.

Rates are tokens per second, fractions 0 to 1, sizes bytes, times seconds. None is unknown, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from specdash.core.readings import FailureKind, Source, Status
from specdash.core.token_speed import DECODE, PREFILL, speed
from specdash.insight.alerts_picture import AlertsPicture
from specdash.insight.drafter_picture import SpeculationViews
from specdash.insight.proxy_picture import ProxyPicture
from specdash.insight.speedup_picture import SpeedUpPicture

if TYPE_CHECKING:
    from specdash.core.observations import Gpu, Host, ProcessTree, SchedulingDelay
    from specdash.core.timeline import TimelineEvent
    from specdash.core.trials import TrialNote
    from specdash.insight.experiment_picture import ApplyMark, ExperimentCard


class BackendState(StrEnum):
    """State of the server in one word, the one that the header shows."""

    LIVE = "live"
    BUSY = "busy"
    """/health answers, /metrics or /slots does not: decoding on an older build, not down."""
    STALE = "stale"
    """It answered before and nothing fresh has come for a while."""
    LOADING = "loading"
    RESTARTED = "restarted"
    """Counters went back a moment ago: a new process serves the port."""
    DOWN = "down"
    UNAUTHORIZED = "unauthorized"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SourcePicture:
    """Freshness of one source. `reason` says in words why it is not KNOWN."""

    source: Source
    status: Status
    age_s: float | None = None
    reason: str = ""
    failure: FailureKind | None = None
    """Why the last look at it failed; None when it succeeded."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure with its provenance: value, how fresh, from where, over which window (seconds).

    `basis` says what kind of figure it is: `live` (running requests), `window` (requests that ended in the window),
    `held` (the last one known, of a server idle since) or `lifetime`.
    """

    value: float | None = None
    status: Status = Status.UNKNOWN
    source: Source | None = None
    window_s: float | None = None
    age_s: float | None = None
    basis: str = ""


class SlotPhase(StrEnum):
    """What a slot is doing."""

    IDLE = "idle"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class SlotPicture:
    """One slot. `progress` is 0 to 1 of the prefill, or of the decode when the request has a token limit."""

    id: int
    phase: SlotPhase
    task: int | None = None
    speculative: bool | None = None
    n_ctx: int | None = None
    context_used: int | None = None
    prompt_processed: int | None = None
    prompt_cached: int | None = None
    decoded: int | None = None
    remaining: int | None = None
    progress: float | None = None
    tokens_per_second: float | None = None
    acceptance: float | None = None
    """Live, from per-step trace lines of the current task."""


@dataclass(frozen=True, slots=True)
class RequestPicture:
    """One finished request, from the log. Cancelled requests have no timings."""

    slot: int | None
    task: int | None
    ended_age_s: float
    prompt_tokens: int | None = None
    prompt_cached: int | None = None
    prompt_ms: float | None = None
    decode_tokens: int | None = None
    decode_ms: float | None = None
    draft_generated: int | None = None
    draft_accepted: int | None = None
    cancelled: bool = False
    prompt_total: int | None = None
    """Length of its prompt, where the log's verbosity tells."""
    slot_tokens: int | None = None
    """How many tokens its slot held at its end: prompt and answer."""
    selected: str | None = None
    """Why it got its slot: `lcp` (shared prefix), `lru` or `id`."""
    similarity: float | None = None
    """Share of its prompt that the slot held already, where that is why."""

    @property
    def acceptance(self) -> float | None:
        """Accepted over generated draft tokens."""
        if not self.draft_generated or self.draft_accepted is None:
            return None
        return self.draft_accepted / self.draft_generated

    @property
    def prefill_rate(self) -> float | None:
        """Prompt tokens processed per second; None where they are too few to tell."""
        return speed(self.prompt_tokens, self.prompt_ms, PREFILL)

    @property
    def decode_rate(self) -> float | None:
        """Generated tokens per second; None where they are too few to tell."""
        return speed(self.decode_tokens, self.decode_ms, DECODE)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Accepted over generated draft tokens: over the chosen window, since the server's start, and live from trace
    lines."""

    window: Measured = Measured()
    lifetime: Measured = Measured()
    live: Measured = Measured()


@dataclass(frozen=True, slots=True)
class SpeculationPicture:
    """Is the server speculating, with what, and how well."""

    active: bool | None = None
    """From /slots[].speculative, the reliable sign."""
    types: tuple[str, ...] | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    draft_tokens_total: float | None = None
    accepted_tokens_total: float | None = None
    verification_steps_total: float | None = None
    mean_accepted_length: float | None = None
    """Tokens per verification step over the window: 1 + accepted / steps; lifetime where the window saw none."""
    accepted_per_position: tuple[int, ...] | None = None
    """Lifetime totals, exact."""
    acceptance_per_position_window: tuple[float, ...] | None = None
    """Share of verification steps in the window whose draft token at position 0, 1, … was accepted."""
    acceptance_per_position_lifetime: tuple[float, ...] | None = None
    acceptance: Acceptance = Acceptance()
    tokens_per_decode: Measured = Measured()
    """Generated tokens per target decode call: the honest live gain, lower than the mean length when replays cost
    decodes."""
    problem: str = ""
    """Why it does not speculate although it was asked to, from the log."""


@dataclass(frozen=True, slots=True)
class BackendPicture:
    """Everything derived about the server."""

    url: str
    state: BackendState = BackendState.UNKNOWN
    reason: str = ""
    """One sentence: what the state means here and, when it is not LIVE, the next step."""
    engine: str | None = None
    model: str | None = None
    model_path: str | None = None
    n_ctx: int | None = None
    uptime_s: float | None = None
    loading_progress: float | None = None
    prefill: Measured = Measured()
    decode: Measured = Measured()
    requests_processing: float | None = None
    requests_deferred: float | None = None
    requests_finished: int | None = 0
    requests_cancelled: int | None = 0
    """In all of the log; None where its beginning was not read: see `LogPicture.since_wall`."""
    slots: tuple[SlotPicture, ...] | None = None
    speculation: SpeculationPicture = SpeculationPicture()
    sources: tuple[SourcePicture, ...] = ()
    counters: tuple[tuple[str, float], ...] = ()
    """The raw totals of the last scrape, by their field name in `core.observations.Counters`."""
    process: ProcessTree | None = None


@dataclass(frozen=True, slots=True)
class WarningPicture:
    """One warning class: total seen, events per minute over the last minute, ages of the first and the last line."""

    warning: str
    title: str
    severity: str
    """`error`, `warning` or `notice`."""
    count: int
    """Lines that were read."""
    per_minute: float
    first_age_s: float
    last_age_s: float
    sample: str
    note: str = ""
    """What the class means and when it is normal."""
    peak_per_minute: float = 0.0
    """The most lines that any minute had while we looked."""
    slots: tuple[int, ...] = ()
    """Slots that the lines are about, the latest last; bounded."""
    tasks: tuple[int, ...] = ()
    """Tasks of the server that writes now, likewise."""
    tasks_touched: int = 0
    """How many tasks of all servers."""
    slots_at_least: bool = False
    tasks_at_least: bool = False
    """There are or may be more than are counted."""
    is_former: bool = False
    """No line is of the server that writes the log now: it was another one."""
    is_whole: bool = True
    """The log was read from its beginning: what is counted are totals."""

    @property
    def total(self) -> int | None:
        """Lines of the class in all of the log, None where its beginning was not read."""
        return self.count if self.is_whole else None


@dataclass(frozen=True, slots=True)
class LogPicture:
    """What the log told so far."""

    path: str | None = None
    status: Status = Status.UNKNOWN
    reason: str = ""
    lines: int | None = 0
    unrecognised: int | None = 0
    """Of all of the log; None where its beginning was not read."""
    warnings: tuple[WarningPicture, ...] = ()
    requests: tuple[RequestPicture, ...] = ()
    """The most recent finished requests, newest first; bounded."""
    checkpoints: tuple[tuple[str, int], ...] = ()
    """Counts of checkpoint events, by `kind action`."""
    since_wall: float | None = None
    """Unix time from when on the log was read, as in a replay that does not reach back to where its recorder began: no
    total is known. None when it is from the beginning of the log."""
    live: tuple[tuple[str, int], ...] = ()
    """Counts of what happened while we looked, without what was in the log before: verification `steps`, `replays`
    among them, tokens `drafted` and `accepted` by them; checkpoint events by `kind action`; server events by name."""


@dataclass(frozen=True, slots=True)
class GpuPicture:
    """GPUs, or why there are none to show."""

    gpus: tuple[Gpu, ...] = ()
    unavailable: str | None = "not observed yet"
    status: Status = Status.UNKNOWN


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything known of one target at monotonic time `at` (`wall` is the same moment in Unix time)."""

    at: float
    wall: float
    window_s: float
    backend: BackendPicture
    log: LogPicture = LogPicture()
    gpu: GpuPicture = GpuPicture()
    host: Host | None = None
    proxy: ProxyPicture = field(default_factory=ProxyPicture)
    applies: tuple[ApplyMark, ...] = ()
    """All applies that concern the server, oldest first; also refused ones, which touched nothing."""
    experiment: ExperimentCard | None = None
    """Before and after the newest apply that changed something."""
    speedup: SpeedUpPicture = field(default_factory=SpeedUpPicture)
    """Whether speculation pays."""
    views: SpeculationViews = field(default_factory=SpeculationViews)
    """What is particular to the drafter in force, its checkpoints, the prompt cache, and a router's models."""
    delay: SchedulingDelay | None = None
    """How late specdash itself gets the CPU; None where that is not measured."""
    recording_trouble: str = ""
    """What is wrong with the recording by this process, "" when nothing is, or nothing is to be recorded."""
    trial: TrialNote | None = None
    """Settings that are tried on the server now, or were when their process died."""
    alerts: AlertsPicture = field(default_factory=AlertsPicture)
    timeline: tuple[TimelineEvent, ...] = ()
    """Alerts, applies, restarts and changes of state, oldest first; bounded."""
