"""The one picture: all derived values of a target at one moment. Frozen data; the screen, the snapshot and the rules
read it.

Rates are tokens per second, fractions 0 to 1, sizes bytes or MiB where named so, durations and ages seconds, moments
Unix time; positions of a draft count from 0. None is unknown, never zero.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct, field

from specdash.core.log_facts import UNTOUCHED, Touched
from specdash.core.readings import FailureKind, ReadingStatus, Source
from specdash.core.records import Drafting
from specdash.insight.progress import ServerSigns
from specdash.insight.router import RouterPicture

if TYPE_CHECKING:
    from specdash.core.log_facts import SpeculativeStatistics
    from specdash.core.proxy_events import ActiveView, GuardrailEvent, ProxyStatus, RequestEvent, SessionView
    from specdash.core.readings import FailureKind, Gpu, Host, ProcessTree, SchedulingDelay
    from specdash.core.records import Alert, Baseline, TimelineEvent, TrialNote
    from specdash.core.speculation import MemoryKind, PublishedAcceptance, Rollback
    from specdash.insight.experiments import ApplyMark, ExperimentCard
    from specdash.insight.progress import SlotSigns
    from specdash.insight.proxy.read_again import ReadAgainSum
    from specdash.insight.request import ServedRequest


class AlertsPicture(Struct, frozen=True):
    """Active and past alerts of one server."""

    active: tuple[Alert, ...] = ()
    """Worst first, then the newest."""
    past: tuple[Alert, ...] = ()
    """Those that are over, newest first; bounded."""
    cause: str = ""
    """The likely cause of what is wrong, in one sentence without a full stop; empty when nothing is."""
    cause_key: tuple[str, str] | None = None
    """The alert that names it."""
    unjudged: tuple[tuple[str, str], ...] = ()
    """Rules that cannot be judged now, and why."""
    judged: tuple[str, ...] = ()
    """Rules that are judged now: neither among those, nor switched off."""


class DraftingPicture(Struct, frozen=True):
    """Did it really speculate? `because` is one sentence; `fix` the next step, "" where none is needed."""

    state: Drafting = Drafting.UNKNOWN
    because: str = ""
    fix: str = ""
    checked_age_s: float | None = None
    """Age of the check at the start; None when there was none."""


class DrafterPicture(Struct, frozen=True):
    """How well the drafter does, position by position, against what was published and against the break-even."""

    type: str | None = None
    """The type of the chain that this is about: the one that drafts with a model, else the first."""
    asked_length: int | None = None
    """Longest draft that was asked for."""
    block_size: int | None = None
    """Block that the draft was trained on, for block drafts."""
    effective_length: int | None = None
    """Longest draft after the engine's clamp."""
    clamps: tuple[str, ...] = ()
    """Settings that the engine says it reduced."""
    per_position: tuple[float, ...] = ()
    """Share of verification steps whose token at position i was accepted: of the window, else since the start."""
    per_position_basis: str = ""
    """`window` or `lifetime`."""
    of_chain: bool = False
    """The figures are of all types of a chain together: the server does not tell them apart."""
    steps: float | None = None
    """Verification steps that they rest on."""
    references: tuple[PublishedAcceptance, ...] = ()
    """Published curves of the same type."""
    acceptance: float | None = None
    """Accepted over drafted tokens, on the same basis."""
    mean_accepted_length: float | None = None
    break_even_length: float | None = None
    """Tokens per decode call, replays counted, at which speculation costs what it gains, at this draft length: what
    `effective_length` is to be compared with."""
    break_even_acceptance: float | None = None
    break_even_basis: str = ""
    """What the cost of a step rests on: `measured`, or the assumption in words."""
    best_length: int | None = None
    """Draft length, up to the present one, at which these positions and costs would give the most tokens per second;
    None where unknown."""
    best_gain: float | None = None
    """How much faster than the present length that would be: 0.08 is 8 %."""
    advised_length: int | None = None
    """The draft length that the verdict advises; None where it advises another setting, or none."""
    verdict: str = ""
    """One sentence."""


class CheckpointCounts(Struct, frozen=True):
    """Checkpoints of one kind, over the life of the server that writes the log."""

    created: int = 0
    restored: int = 0
    erased: int = 0
    size_mib: float | None = None
    """Size of the latest."""


class ReplayFigures(Struct, frozen=True):
    """What replays cost over some time."""

    basis: str = ""
    """`trace`: from verification steps (LLAMA_TRACE=1); `counters`: from totals of /metrics; "" for neither. Only a
    trace has replays apart."""
    steps: int = 0
    """Verification steps, replays not counted."""
    replays: int = 0
    """Decodes that were a replay after a restore; without a trace the most that there can have been."""
    replayed_tokens: int | None = None
    """Tokens that they decoded for a second time; None where only a trace would tell."""
    lost_s: float | None = None
    """Decode time that went into replays: by the log's time stamps, else the mean time of a decode call each, which is
    too much."""
    lost_share: float | None = None
    """The same as a share of decode time."""
    mean_accepted_length: float | None = None
    """As the server prints it: replays not counted."""
    effective_length: float | None = None
    """Tokens per decode call, replays counted: the honest gain."""


class CheckpointsPicture(ReplayFigures, Struct, frozen=True):
    """How rejected tokens are taken back, and what that costs: over the window unless stated otherwise, and since the
    server's start where the window has no step."""

    memory: MemoryKind | None = None
    rollback: Rollback | None = None
    because: str = ""
    """Why it is taken back so, in one sentence."""
    context: CheckpointCounts = CheckpointCounts()
    """Of whole prompts (verbosity 4)."""
    speculative: CheckpointCounts = CheckpointCounts()
    """Before drafts (verbosity 5)."""
    full_reprocessed: int = 0
    """Prompts that were processed from the start again for want of a checkpoint, by the server that writes the log."""
    held: bool = False
    """The figures are since the server's start, for the window has no step."""
    lifetime: ReplayFigures = ReplayFigures()
    """The same since the server's start."""
    verdict: str = ""
    """One sentence."""


class PrefixSlot(Struct, frozen=True):
    """What one slot holds."""

    id: int
    tokens: int | None = None
    similarity: float | None = None
    """Of its last request's prompt with what it held."""
    busy: bool = False


class PrefixCachePicture(Struct, frozen=True):
    """Cached against processed prompt tokens, and what the cache saves."""

    cached: int | None = None
    """Prompt tokens that were there already, over the window."""
    processed: int | None = None
    cached_share: float | None = None
    lifetime_share: float | None = None
    requests: tuple[ServedRequest, ...] = ()
    """Newest first; bounded."""
    slots: tuple[PrefixSlot, ...] = ()
    ttft_warm_s: float | None = None
    """Median over requests with at least half of their prompt cached."""
    ttft_cold_s: float | None = None
    """Median over the others."""
    warm: int = 0
    cold: int = 0
    saved_s: float | None = None
    """Prefill time that the cache saved over the window, at the prefill rate of the processed tokens."""
    entries: int | None = None
    """Prompts in the prompt cache in host memory (verbosity 4)."""
    size_mib: float | None = None
    limit_mib: float | None = None
    hits: int | None = 0
    """Times that a better prompt was found there, since the server's start (verbosity 4); these three are None where
    the log was not read from its beginning."""
    saves: int | None = 0
    evicted: int | None = 0
    """Prompts dropped from it to make room, or left out because they do not fit, in all of the log."""
    full_reprocessed: int = 0
    """Prompts of the window that were read from their start for want of a checkpoint (verbosity 4)."""
    similarity: float | None = None
    """Median over the window's requests that a slot was picked for because of it."""
    basis: str = ""
    """Where `cached` and `processed` are from: `counters`, `log` or `proxy`; empty where they are not known."""
    ttft_basis: str = ""
    """What the TTFT is: `proxy`, as its clients had it, or `prompt`, the time that the server took for the prompt."""
    prefill_rate: float | None = None
    """Of prompts long enough to tell, in tokens per second: what `saved_s` rests on."""
    read_again: tuple[ReadAgainSum, ...] = ()
    """Prompts of the window that were read again, by reason, the most tokens first."""
    unknown: str = ""
    """What is unknown and what would show it; empty where everything is known."""
    verdict: str = ""
    """One sentence."""


class SpeculationViews(Struct, frozen=True):
    """The views of the speculation screen."""

    drafting: DraftingPicture = field(default_factory=DraftingPicture)
    drafter: DrafterPicture = field(default_factory=DrafterPicture)
    checkpoints: CheckpointsPicture = field(default_factory=CheckpointsPicture)
    prefix_cache: PrefixCachePicture = field(default_factory=PrefixCachePicture)
    router: RouterPicture = field(default_factory=RouterPicture)


class Basis(StrEnum):
    """What the figure rests on."""

    MEASURED = "measured"
    """Against a recorded baseline of the same model, context and concurrency."""
    ESTIMATED = "estimate"
    """Modelled from the accepted length and the draft's cost (Leviathan et al. 2023)."""
    UNKNOWN = "unknown"


class Paying(StrEnum):
    """The result in words."""

    PAYING = "paying"
    EVEN = "no clear gain"
    HURTING = "hurting"
    UNKNOWN = "unknown"


class SpeedUpPicture(Struct, frozen=True):
    """Net speed-up of decode against no speculation, over the window: 1 is no gain, below 1 it hurts."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    """Bounds of its 95 % interval."""
    basis: Basis = Basis.UNKNOWN
    verdict: Paying = Paying.UNKNOWN
    why: str = "no request has ended yet"
    """What it rests on, or why it is not known and what to do."""
    requests: int = 0
    """Finished requests that it rests on."""
    needs_baseline: bool = False
    """A new baseline would narrow the interval most: the one there is is wide itself, or old."""
    baseline: Baseline | None = None
    """The recorded one nearest to them."""
    decode_rate: float | None = None
    """Of these requests: tokens over decode time, of one request."""
    baseline_rate: float | None = None
    """What they would have had without speculation: recorded, or as the estimate has it."""
    mean_accepted_length: float | None = None
    """Their tokens per verification step."""
    break_even_length: float | None = None
    """Tokens per verification step at which the speed-up is 1, with the cost of a step as it is."""
    break_even_acceptance: float | None = None
    """The acceptance that gives this length, with drafts as long as they are; None where none would do."""
    by_type: tuple[SpeculativeStatistics, ...] = ()
    """Per speculative implementation of a chain, since the server's start, in their order of priority; empty where the
    log does not tell."""


NAME_PROXY = "start specdash with --proxy-url http://127.0.0.1:4000, and --proxy-log FILE for its events"
HOW_TO = f"no proxy: {NAME_PROXY}"
"""What to do where no proxy is known."""

SERIES_COLUMNS = 60
"""Columns of a guardrail's series, for every window."""


class GuardrailCount(Struct, frozen=True):
    """Actions of one guardrail. `guardrail` is a value of `core.proxy_events.Guardrail`, or a newer proxy's name.

    `total` and `actions` count since the proxy's start where it counts them, else what was read of its events.
    """

    guardrail: str
    window: int | None
    total: int
    actions: tuple[tuple[str, int], ...] = ()
    """By action, the most frequent first."""
    series: tuple[int, ...] | None = None
    """Actions per column, `SERIES_COLUMNS` of them over the window, the last one still open; None where unknown."""


class ProxyWindow(Struct, frozen=True):
    """Figures over the requests that ended in the window; all None before the first reported request.

    `errors` and `clients_left` are None where requests ended without a known HTTP status: the log of a UAP
    proxy has complete streams only.
    """

    requests: int | None = None
    errors: int | None = None
    clients_left: int | None = None
    error_rate: float | None = None
    """Errors over requests; requests whose client left are no errors. None when none ended."""
    ttft_p50_s: float | None = None
    decode_p50: float | None = None
    """Median decode speed of a request."""
    acceptance: float | None = None
    """Accepted over drafted tokens of all these requests together."""
    cache_share: float | None = None
    """Cached over all prompt tokens."""


class ProxyPicture(Struct, frozen=True):
    """Everything known of the proxy."""

    configured: bool = False
    """Whether its address or its events are known at all."""
    url: str | None = None
    origin: str = ""
    status: ReadingStatus = ReadingStatus.UNKNOWN
    """Of `live`."""
    reason: str = HOW_TO
    """Why `live` is not KNOWN, and what to do."""
    failure: FailureKind | None = None
    """What became of the last look at `url`, None when it succeeded."""
    age_s: float | None = None
    live: ProxyStatus | None = None
    """The last picture that the proxy gave of itself."""
    events_status: ReadingStatus = ReadingStatus.UNKNOWN
    events_reason: str = ""
    events_lost: int = 0
    events_unread: int = 0
    window: ProxyWindow = ProxyWindow()
    finished: tuple[RequestEvent, ...] = ()
    """Newest first; bounded."""
    actions: tuple[GuardrailEvent, ...] = ()
    """The latest guardrail actions, newest first; bounded."""
    guardrails: tuple[GuardrailCount, ...] = ()
    """Guardrails that ever acted, in the order of `Guardrail`."""
    is_loading: bool = False
    """A replay has not read all of the window yet: nothing is counted."""

    @property
    def counts_guardrails(self) -> bool:
        """Whether no count means that no guardrail acted, because actions are counted."""
        if self.is_loading:
            return False
        return self._is_ours or self.events_status is ReadingStatus.KNOWN or bool(self.guardrails)

    @property
    def tells_running(self) -> bool:
        """Whether no running request means that none runs."""
        return self._is_ours and self.status is ReadingStatus.KNOWN

    @property
    def _is_ours(self) -> bool:
        """A UAP proxy and a log tell neither counts nor running requests, nor when the proxy started."""
        return self.live is not None and self.live.started is not None

    @property
    def running(self) -> tuple[ActiveView, ...]:
        """Running requests, the oldest first; none where what they do is not known to be fresh."""
        if self.live is None or self.status is not ReadingStatus.KNOWN:
            return ()
        return tuple(sorted(self.live.active, key=lambda active_view: (active_view.started, active_view.request_id)))

    @property
    def fullest(self) -> SessionView | None:
        """The session that uses most of its context window."""
        known = [
            session
            for session in (self.live.sessions if self.live is not None else ())
            if session.utilisation is not None
        ]
        return max(known, key=lambda session_view: session_view.utilisation or 0.0, default=None)


class BackendState(StrEnum):
    """State of the server in one word, the one that the header shows."""

    LIVE = "live"
    BUSY = "busy"
    """/health answers, /metrics or /slots does not: decoding on an older build, not down."""
    WEDGED = "wedged"
    """The same on a build whose endpoints never wait, with a silent log: its inference loop is stuck for good."""
    STALE = "stale"
    """It answered before and nothing fresh has come for a while."""
    LOADING = "loading"
    RESTARTED = "restarted"
    """Counters went back a moment ago: a new process serves the port."""
    DOWN = "down"
    UNAUTHORIZED = "unauthorized"
    UNKNOWN = "unknown"


class SourcePicture(Struct, frozen=True):
    """Freshness of one source. `reason` says in words why it is not KNOWN."""

    source: Source
    status: ReadingStatus
    age_s: float | None = None
    reason: str = ""
    failure: FailureKind | None = None
    """Why the last look at it failed; None when it succeeded."""


class MeasuredFigure(Struct, frozen=True):
    """A figure with its provenance: value, how fresh, from where, over which window (seconds).

    `basis` says what kind of figure it is: `live` (running requests), `window` (requests that ended in the window),
    `held` (the last one known, of a server idle since) or `lifetime`.
    """

    value: float | None = None
    status: ReadingStatus = ReadingStatus.UNKNOWN
    source: Source | None = None
    window_s: float | None = None
    age_s: float | None = None
    basis: str = ""


class SlotPhase(StrEnum):
    """What a slot is doing."""

    IDLE = "idle"
    PREFILL = "prefill"
    DECODE = "decode"


class SlotPicture(Struct, frozen=True):
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
    signs: SlotSigns | None = None
    """What is seen of it since it moved last; None where it was not seen at work."""


class Acceptance(Struct, frozen=True):
    """Accepted over generated draft tokens: over the chosen window, since the server's start, and live from trace
    lines."""

    window: MeasuredFigure = MeasuredFigure()
    lifetime: MeasuredFigure = MeasuredFigure()
    live: MeasuredFigure = MeasuredFigure()


class SpeculationPicture(Struct, frozen=True):
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
    tokens_per_decode: MeasuredFigure = MeasuredFigure()
    """Generated tokens per target decode call: the honest live gain, lower than the mean length when replays cost
    decodes."""
    problem: str = ""
    """Why it does not speculate although it was asked to, from the log."""
    unseen: str = ""
    """What is missing to see drafts at all: `--metrics or the server's log`."""


class BackendPicture(Struct, frozen=True):
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
    prefill: MeasuredFigure = MeasuredFigure()
    decode: MeasuredFigure = MeasuredFigure()
    requests_processing: float | None = None
    requests_deferred: float | None = None
    requests_finished: int | None = 0
    requests_cancelled: int | None = 0
    """In all of the log; None where its beginning was not read: see `LogPicture.since_wall`."""
    slots: tuple[SlotPicture, ...] | None = None
    speculation: SpeculationPicture = SpeculationPicture()
    sources: tuple[SourcePicture, ...] = ()
    counters: tuple[tuple[str, float], ...] = ()
    """The raw totals of the last scrape, by their field name in `core.readings.Counters`."""
    process: ProcessTree | None = None
    signs: ServerSigns = field(default_factory=ServerSigns)
    """What says whether it gets on with its work."""
    refused: str = ""
    """Why its env file, as it was edited, is not what it runs; empty where it is."""


class WarningPicture(Struct, frozen=True):
    """One warning class: total seen, events per minute over the last minute, ages of the first and the last line."""

    warning: str
    title: str = ""
    severity: str = ""
    """`error`, `warning` or `notice`."""
    count: int = 0
    """Lines that were read."""
    per_minute: float = 0.0
    first_age_s: float = 0.0
    last_age_s: float = 0.0
    sample: str = ""
    note: str = ""
    """What the class means and when it is normal."""
    peak_per_minute: float = 0.0
    """The most lines that any minute had while we looked."""
    slots: Touched = UNTOUCHED
    """Slots that the lines are about, the latest last."""
    tasks: Touched = UNTOUCHED
    """Tasks of the server that writes now, likewise."""
    tasks_touched: int = 0
    """How many tasks of all servers, at least where `tasks.more`."""
    is_former: bool = False
    """No line is of the server that writes the log now: it was another one."""
    is_whole: bool = True
    """The log was read from its beginning: what is counted are totals."""

    @property
    def total(self) -> int | None:
        """Lines of the class in all of the log, None where its beginning was not read."""
        return self.count if self.is_whole else None


class LogPicture(Struct, frozen=True):
    """State read from the log so far."""

    path: str | None = None
    status: ReadingStatus = ReadingStatus.UNKNOWN
    reason: str = ""
    lines: int | None = 0
    unrecognised: int | None = 0
    """Of all of the log; None where its beginning was not read."""
    warnings: tuple[WarningPicture, ...] = ()
    requests: tuple[ServedRequest, ...] = ()
    """The most recent finished requests, newest first; bounded."""
    checkpoints: tuple[tuple[str, int], ...] = ()
    """Counts of checkpoint events, by `kind action`."""
    since_wall: float | None = None
    """Unix time from when on the log was read, as in a replay that does not reach back to where its recorder began: no
    total is known. None when it is from the beginning of the log."""
    live: tuple[tuple[str, int], ...] = ()
    """Counts of what happened while we looked, without what was in the log before: verification `steps`, `replays`
    among them, tokens `drafted` and `accepted` by them; checkpoint events by `kind action`; server events by name."""


class GpuPicture(Struct, frozen=True):
    """GPUs, or why there are none to show."""

    gpus: tuple[Gpu, ...] = ()
    unavailable: str | None = "no data yet"
    status: ReadingStatus = ReadingStatus.UNKNOWN


class Picture(Struct, frozen=True):
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
    trial: TrialNote | None = None
    """Settings that are tried on the server now, or were when their process died."""
    alerts: AlertsPicture = field(default_factory=AlertsPicture)
    timeline: tuple[TimelineEvent, ...] = ()
    """Alerts, applies, restarts and changes of state, oldest first; bounded."""
