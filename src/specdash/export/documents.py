"""What commands print as JSON, as types: builders are checked against them, and the JSON Schemas are made from them
(`export.schemas`, docs/schemas/). For type checkers and for schemas alone: no command that prints one imports this.

None, which JSON calls null, is unknown, never 0. Rates are tokens per second, fractions 0 to 1, sizes bytes, times and
ages seconds, moments Unix time, where not said otherwise. Fields may be added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import WithJsonSchema
from pydantic_core import core_schema
from typing_extensions import TypedDict

from specdash.backend.devices import Device, Install
from specdash.collect.checkup import ProxyCheck
from specdash.collect.gpu import Absence
from specdash.control.services.services import ServiceState
from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyRecord, Role
from specdash.core.proxy_events import WARNING_LEVELS, ActiveView, RequestEvent, SessionView, UpstreamStatus
from specdash.core.readings import Gpu, Host, ProcessTree, ReadingStatus, Source
from specdash.core.records import AlertSeverity, Baseline, EventKind
from specdash.export.check_report import CheckStatus
from specdash.history.store import Stats
from specdash.insight.picture import (
    BackendState,
    Basis,
    CheckpointsPicture,
    DrafterPicture,
    DraftingPicture,
    ExperimentVerdict,
    GroupFigures,
    Paying,
    PrefixCachePicture,
    PrefixSession,
    RouterPicture,
    SlotPicture,
    TypeFigures,
)
from specdash.insight.speedup.verdict import VerdictKind
from specdash.llama.log_grammar.forms import WarningSeverity

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue


Fields = dict[str, Any]


class Written:
    """Of `Fields` that are those of a data class, as `system.data.json_of` writes them: without some, and with those of
    a TypedDict. `empty_is_null`: texts that may be empty are null where they are, in all of its parts."""

    def __init__(self, kind: type, *without: str, plus: Any = None, empty_is_null: bool = False) -> None:
        self.kind = kind
        self.without = without
        self.plus = plus
        self.empty_is_null = empty_is_null

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Both kinds, until `_merged` makes one of them."""
        kinds = [self.kind] if self.plus is None else [self.kind, self.plus]
        parts = [handler.generate_schema(kind) for kind in kinds]
        return core_schema.tuple_schema(parts, metadata={"pydantic_js_functions": [self._merged]})

    def _merged(self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        own, *more = handler(schema)["prefixItems"]
        if self.without or more:
            own, *more = [handler.resolve_ref_schema(part) for part in (own, *more)]
            properties = {name: known for name, known in own["properties"].items() if name not in self.without}
            for part in more:
                properties |= part["properties"]
            own = {**own, "properties": properties, "required": list(properties)}
        return {**own, EMPTY_IS_NULL: True} if self.empty_is_null else own


EMPTY_IS_NULL = "x-empty-is-null"
"""A mark in the schema, for `export.schemas`, which sees all of it."""


class KeyValue(TypedDict):
    """A key of an env file and the value that it should have."""

    key: str
    value: str | None
    """null: remove the key."""


class RateDocument(TypedDict):
    """A speed."""

    tokens_per_second: float | None
    status: ReadingStatus
    basis: str | None
    """`live` (the last 3 s), `held` (the last one known, of a server idle since) or `lifetime` (totals over their
    seconds, per request)."""
    source: Source | None
    age_seconds: float | None


class RequestCounts(TypedDict):
    """How many requests there are, and were since the log's beginning."""

    processing: float | None
    deferred: float | None
    finished_in_log: int | None
    cancelled_in_log: int | None


class AcceptanceDocument(TypedDict):
    """Accepted over generated draft tokens."""

    window: float | None
    """Of the requests that ended in the window; null when none drafted."""
    lifetime: float | None
    """Since the server's start."""
    live: float | None
    """The last 10 s of per-step lines (LLAMA_TRACE=1)."""
    held: float | None
    """Of the window that ended with the newest drafts, when this one saw none."""


class SpeculationDocument(TypedDict):
    """What the server tells of its speculation."""

    active: bool | None
    """Whether the slots really have a speculative context."""
    types: list[str] | None
    parameters: dict[str, str]
    """Speculation flags that the server was started with, where they are known."""
    draft_tokens_total: float | None
    accepted_tokens_total: float | None
    verification_steps_total: float | None
    mean_accepted_length: float | None
    """1 + accepted / verification steps, over the window, else lifetime."""
    accepted_per_position: list[int] | None
    """Lifetime totals of accepted draft tokens at draft position 0, 1, …"""
    acceptance_per_position_window: list[float] | None
    """Share of verification steps whose draft token at that position was accepted."""
    acceptance_per_position_lifetime: list[float] | None
    acceptance: AcceptanceDocument
    tokens_per_decode: float | None
    """Generated tokens per target decode call and busy slot, last 10 s: the honest live gain."""
    problem: str | None
    """The log line that says why a server asked to speculate does not."""


class SourceDocument(TypedDict):
    """How fresh a source is."""

    status: ReadingStatus
    age_seconds: float | None
    reason: str | None


class BackendDocument(TypedDict):
    """The server."""

    state: BackendState
    reason: str | None
    """What the state means here and what to do, in one sentence."""
    engine: str | None
    url: str
    model: str | None
    model_path: str | None
    n_ctx: int | None
    """Context per slot, in tokens."""
    uptime_seconds: float | None
    prefill: RateDocument
    decode: RateDocument
    requests: RequestCounts
    speculation: SpeculationDocument
    slots: list[Annotated[Fields, Written(SlotPicture)]] | None
    sources: dict[str, SourceDocument]
    counters: dict[str, float]
    """Totals and gauges of the last /metrics scrape, by name."""
    process: Annotated[Fields, Written(ProcessTree, "command")] | None


class WarningDocument(TypedDict):
    """Warnings of one class in the log."""

    count: int | None
    per_minute: float
    peak_per_minute: float | None
    severity: str
    first_age_seconds: float | None
    last_age_seconds: float
    sample: str
    slots: list[int]
    slots_at_least: bool
    """There are or may be more."""
    tasks_touched: int | None
    tasks_at_least: bool
    last_tasks: list[int]


class LoggedRequest(TypedDict):
    """A finished request as the log tells it."""

    slot: int | None
    task: int | None
    ended_age_s: float
    prompt_tokens: int | None
    """Those that were processed."""
    prompt_cached: int | None
    prompt_ms: float | None
    decode_tokens: int | None
    decode_ms: float | None
    draft_generated: int | None
    draft_accepted: int | None
    cancelled: bool
    prompt_total: int | None
    """Length of the prompt in tokens."""
    slot_tokens: int | None
    """Tokens that the slot held at its end."""
    selected: str | None
    """Why it got its slot: `lcp` (shared prefix), `lru` (the one unused longest) or `id`."""
    similarity: float | None
    acceptance: float | None


class LogDocument(TypedDict):
    """The server's log."""

    path: str | None
    status: ReadingStatus
    reason: str | None
    counted_since: str | None
    """Of a replay that began in the middle: from when on the counts are; its totals are null then."""
    lines: int | None
    unrecognised: int | None
    warnings: dict[str, WarningDocument]
    """By class (docs/parse-log.md)."""
    checkpoints: dict[str, int] | None
    requests: list[LoggedRequest]


class GpusUnavailable(TypedDict):
    """No GPU can be seen."""

    unavailable: str
    """Why."""


class SessionUse(TypedDict):
    """What a session's figures come to."""

    utilisation: float | None
    """Share of the context window in use."""
    level: Annotated[str | None, WithJsonSchema({"enum": [None, *(name for _, name in WARNING_LEVELS)]})]
    """null below 0.75."""


class RequestShares(TypedDict):
    """What a request's figures come to."""

    acceptance: float | None
    cache_share: float | None


class RunningShares(RequestShares):
    """The same of a request that runs."""

    prefill_progress: float | None


class FinishedShares(RequestShares):
    """The same of a finished request."""

    at: float | None
    """Arrival; the end where `duration_s` is null."""


class ProxyEventsDocument(TypedDict):
    """The events file or log."""

    status: ReadingStatus
    reason: str | None
    lost: int
    not_understood: int


class ProxyWindowDocument(TypedDict):
    """Over the requests that ended in the window; all null before anybody told of one."""

    requests: int | None
    errors: int | None
    clients_left: int | None
    error_rate: float | None
    ttft_p50_seconds: float | None
    decode_p50_tokens_per_second: float | None
    acceptance: float | None
    cache_share: float | None


class GuardrailDocument(TypedDict):
    """What one guardrail did: in the window, and since the proxy's start."""

    window: int | None
    total: int
    actions: dict[str, int]


class ProxyDocument(TypedDict):
    """The proxy in front of the server."""

    url: str | None
    status: ReadingStatus
    reason: str | None
    age_seconds: float | None
    version: str | None
    started: float | None
    upstream: UpstreamStatus | None
    context_window: int | None
    held: bool | None
    hold_reason: str | None
    waiting: int | None
    requests_total: int | None
    session_count: int | None
    problems: list[str] | None
    """Settings that it could not use."""
    sessions: list[Annotated[Fields, Written(SessionView, plus=SessionUse)]] | None
    running: list[Annotated[Fields, Written(ActiveView, plus=RunningShares)]] | None
    """null when the proxy does not answer or does not tell."""
    events: ProxyEventsDocument
    window: ProxyWindowDocument
    finished: list[Annotated[Fields, Written(RequestEvent, plus=FinishedShares)]]
    """The latest 50."""
    guardrails: dict[str, GuardrailDocument] | None
    """null when nobody counts."""


class ApplyDocument(TypedDict):
    """One change of the server's settings."""

    number: int
    at: float
    """Unix time of its restart."""
    age_seconds: float
    kind: ApplyKind
    outcome: ApplyOutcome
    text: str
    """What it changed in short, secrets masked."""


class SideDocument(TypedDict):
    """One measure before or after: the median (of acceptance the ratio of sums) and quartiles of single requests."""

    count: int
    """Requests."""
    value: float | None
    lower_quartile: float | None
    upper_quartile: float | None


class MeasureDocument(TypedDict):
    """One measure before and after."""

    source: str
    before: SideDocument
    after: SideDocument
    change: float | None
    """After against before: a share of the value before where `change_is_relative`, else a difference of fractions."""
    change_low: float | None
    """Bounds of its 95 % interval; null below 12 requests a side."""
    change_high: float | None
    change_is_relative: bool
    verdict: ExperimentVerdict
    words: str


class ExperimentDocument(TypedDict):
    """Before and after the newest apply that changed something."""

    apply: ApplyDocument
    profile: str | None
    measures: dict[str, MeasureDocument]
    """`acceptance` (a fraction), `decode`, `prefill` (tokens per second), `ttft` (seconds)."""
    caveats: list[str]
    """What makes the comparison unfair."""


class TrialDocument(TypedDict):
    """Who tries settings on the server."""

    command: str
    service: str
    since: float
    alive: bool
    """false: its process died, and the settings that it tried may be in force."""
    boot: int | None
    planned: int | None
    words: str


class EvidenceDocument(TypedDict):
    """One line of an alert's evidence."""

    label: str
    value: str


class AlertDocument(TypedDict):
    """One alert. Moments are Unix times."""

    rule: str
    """docs/rules.md has them all."""
    subject: str | None
    title: str
    severity: AlertSeverity
    summary: str
    since: float
    """When its symptom was first seen."""
    raised: float
    """When it had lasted long enough."""
    last: float
    """When it was last seen."""
    ended: float | None
    """null while it is active."""
    evidence: list[EvidenceDocument]
    fix: list[KeyValue]
    chart: str | None
    """The chart that shows it best."""


class AlertsDocument(TypedDict):
    """What is wrong now, and what was."""

    cause: str | None
    """The likely cause, in one sentence; null when nothing is wrong."""
    active: list[AlertDocument]
    """Worst first."""
    past: list[AlertDocument]
    """Newest first."""
    unjudged: dict[str, str]
    """Rules that cannot be judged now, with the reason."""


class EventDocument(TypedDict):
    """Something that happened."""

    at: float
    ended: float | None
    kind: EventKind
    title: str
    severity: AlertSeverity | None
    detail: str | None
    ref: str | None
    """What it is about: a rule, an apply's number."""


class BetterDocument(TypedDict):
    """What would be faster; all null and empty where nothing is known to be."""

    text: str | None
    gain: float | None
    """0.54 is 54 %."""
    fix: list[KeyValue]
    command: str | None
    """What does it; alone it is the next step where nothing can be told yet."""


class BreakEvenDocument(TypedDict):
    """Where speculation costs what it gains."""

    mean_accepted_length: float | None
    acceptance: float | None


class SpeedupDocument(TypedDict):
    """Net speed-up of decode against no speculation."""

    value: float | None
    """1 is no gain."""
    low: float | None
    high: float | None
    basis: Basis
    verdict: Paying
    verdict_text: str
    """As every screen words it: `PAYS 1.6×`."""
    verdict_why: str | None
    better: BetterDocument
    why: str
    """What the figure rests on, or why it is not known and what to do."""
    requests: int
    """Finished requests that it rests on."""
    decode_tokens_per_second: float | None
    baseline_tokens_per_second: float | None
    mean_accepted_length: float | None
    draft_share: float | None
    """Share of decode time that went into drafting."""
    break_even: BreakEvenDocument
    baseline: Annotated[Fields, Written(Baseline)] | None
    """The recorded one nearest to the requests."""
    by_context: list[Annotated[Fields, Written(GroupFigures)]]
    by_generated: list[Annotated[Fields, Written(GroupFigures)]]
    by_phase: list[Annotated[Fields, Written(GroupFigures)]]
    by_type: list[Annotated[Fields, Written(TypeFigures)]]


class PrefixRequest(TypedDict):
    """A finished request in the view of the prefix cache."""

    ended_age_s: float
    slot: int | None
    task: int | None
    session: str | None
    prompt_tokens: int | None
    cached: int | None
    processed: int | None
    ttft_s: float | None
    similarity: float | None
    cached_share: float | None


class CachedShare(TypedDict):
    """What a session's prompts come to."""

    cached_share: float | None


class PrefixLists(TypedDict):
    """What the prefix cache did for requests and sessions."""

    requests: list[PrefixRequest]
    """Newest first."""
    sessions: list[Annotated[Fields, Written(PrefixSession, plus=CachedShare)]]


class ViewsDocument(TypedDict):
    """The views of speculation, always there: null and empty where nothing is known."""

    drafting: Annotated[Fields, Written(DraftingPicture, empty_is_null=True)]
    drafter: Annotated[Fields, Written(DrafterPicture, empty_is_null=True)]
    checkpoints: Annotated[Fields, Written(CheckpointsPicture, empty_is_null=True)]
    prefix_cache: Annotated[
        Fields, Written(PrefixCachePicture, "requests", "sessions", plus=PrefixLists, empty_is_null=True)
    ]
    router: Annotated[Fields, Written(RouterPicture, empty_is_null=True)]


class SnapshotDocument(ViewsDocument):
    """`specdash snapshot --json` and `specdash demo --json`: the same truth that the dashboard draws.

    Unknown is null, never 0. Rates are tokens per second, fractions 0 to 1, sizes bytes, times seconds.
    """

    schema: Literal["specdash.snapshot/1"]
    """The number changes when a field goes or means something else; fields may be added without it."""
    time: str
    """UTC, ISO 8601."""
    window_seconds: float
    """The longest span of the windowed figures."""
    backend: BackendDocument
    log: LogDocument
    gpu: list[Annotated[Fields, Written(Gpu)]] | GpusUnavailable
    host: Annotated[Fields, Written(Host)] | None
    proxy: ProxyDocument | None
    """null when none is known."""
    applies: list[ApplyDocument]
    """What specdash changed of this server's settings, oldest first, at most 200."""
    experiment: ExperimentDocument | None
    trial: TrialDocument | None
    """null where nobody tries settings on the server."""
    alerts: AlertsDocument
    timeline: list[EventDocument]
    """Alerts, applies, restarts and changes of state, oldest first, the latest 200."""
    speedup: SpeedupDocument


class RunbookDocument(TypedDict):
    """What to do about an alert."""

    meaning: str
    checks: list[str]
    remedy: str | None


class JudgedAlert(AlertDocument):
    """An alert with its runbook."""

    runbook: RunbookDocument | None


class CheckFailure(TypedDict):
    """Nothing could be judged: a mistake in the options, a missing file, a fault of specdash."""

    schema: Literal["specdash.check/1"]
    status: Annotated[str, WithJsonSchema({"enum": [status.name for status in CheckStatus]})]
    exit_code: Annotated[int, WithJsonSchema({"enum": list(CheckStatus)})]
    """As monitoring plugins have it, in the order of `status`."""
    line: str
    """In words, without performance data."""


class CheckDocument(CheckFailure):
    """What was judged."""

    cause: str | None
    verdict: str
    """Whether speculation pays: `PAYS 1.6×`."""
    url: str
    state: BackendState
    reason: str | None
    trial: TrialDocument | None
    seconds: float
    """How long it looked."""
    judged: int
    """Rules that could be judged."""
    alerts: list[JudgedAlert]
    """Those that count, worst first."""
    unjudged: dict[str, str]
    """Rules that could not be judged, with the reason."""
    performance: dict[str, float]
    """Figures for graphs; what is not known is left out."""


class CheckedServer(TypedDict):
    """One server of `specdash check --all`."""

    name: str
    """As config.toml calls it, else its address."""
    result: CheckDocument


class CheckAllDocument(TypedDict):
    """`specdash check --all --json`; where nothing could be judged at all, it is as without `--all`."""

    schema: Literal["specdash.check-all/1"]
    status: Annotated[str, WithJsonSchema({"enum": [status.name for status in CheckStatus]})]
    """The gravest: critical before unknown before warning."""
    exit_code: Annotated[int, WithJsonSchema({"enum": list(CheckStatus)})]
    line: str
    servers: list[CheckedServer]


class SnapshotOfServer(TypedDict):
    """One server of `specdash snapshot --all`."""

    name: str
    """As config.toml calls it, else its address."""
    exit_code: int
    """As without `--all`."""
    snapshot: SnapshotDocument


class SnapshotsDocument(TypedDict):
    """`specdash snapshot --all --json`."""

    schema: Literal["specdash.snapshots/1"]
    servers: list[SnapshotOfServer]


class CatalogueRule(TypedDict):
    """One rule of `specdash check --list-rules --json`, with the limits in force."""

    rule: str
    family: str
    title: str
    severity: AlertSeverity
    enabled: bool
    raise_after_s: float
    """How long the symptom must last."""
    clear_after_s: float
    """How long it must be gone."""
    limits: dict[str, float]
    needs: list[Source]
    """Sources that must be fresh for it to be judged."""
    counters: list[str]
    """Totals of /metrics that there must be for it to be judged."""
    explains: list[str]
    """Rules whose alerts follow from this one's."""
    runbook: RunbookDocument | None


class TargetDocument(TypedDict):
    """One server, found on this machine or in config.toml."""

    name: str | None
    """Its name in config.toml."""
    url: str
    answers: bool
    state: str
    """`ok`, `loading`, `unauthorized` (it refuses the key that is known, or wants one), or why there is no answer."""
    engine: str | None
    model: str | None
    origin: str
    """How it was found, in words."""
    needs_key: bool | None
    key_known: bool
    pid: int | None
    log: str | None


class TargetsDocument(TypedDict):
    """`specdash targets --json`: the servers found on this machine, and those of config.toml."""

    schema: Literal[1]
    targets: list[TargetDocument]
    """Best first: the first is the one that commands take."""


class FleetAlerts(TypedDict):
    """How many alerts are active."""

    critical: int
    warning: int
    notice: int


class FleetRowDocument(TypedDict):
    """One server, or one model of a router."""

    name: str
    """As config.toml calls it, else its address; of a router with several models `NAME/MODEL`."""
    url: str
    model: str | None
    router_model: str | None
    """Of the row of a router's model that is not looked at: what `--model` calls it."""
    state: str
    """As in a snapshot; of a router's model that is not looked at its own word: `loaded`, `sleeping`, `unloaded`, …"""
    reason: str | None
    answers: bool
    """Whether anybody is there: also one that loads, or wants a key."""
    verdict: VerdictKind | None
    headline: str | None
    """The verdict in words: `PAYS 1.6×`."""
    acceptance: float | None
    """Accepted share of the draft tokens, 0 to 1."""
    acceptance_basis: str | None
    """`window`, `held` (the window that ended with the newest drafts), or `lifetime`."""
    decode: RateDocument
    prefill: RateDocument
    context_used: int | None
    """Tokens in the slot that is fullest."""
    context_size: int | None
    """Of a slot."""
    gpu_utilisation: float | None
    """Of the busiest GPU, 0 to 1, where the server is on this machine."""
    gpu_memory_used_bytes: float | None
    """Of the GPU whose memory is fullest."""
    gpu_memory_total_bytes: float | None
    slots_busy: int | None
    slots: int | None
    requests_deferred: float | None
    alerts: FleetAlerts
    cause: str | None
    """The likely cause of what is wrong."""
    group: str | None
    """As config.toml calls it; of one from a Prometheus its label `group`."""


class FleetDocument(TypedDict):
    """`specdash fleet --json`: every server found on this machine or named in config.toml."""

    schema: Literal["specdash.fleet/1"]
    time: str
    """UTC, ISO 8601."""
    window_seconds: float
    rows: list[FleetRowDocument]
    """The worst first."""


class HistoryAlertDocument(TypedDict):
    """A time in which an alert was active, as exact as the steps."""

    rule: str
    severity: AlertSeverity
    since: str
    until: str | None
    """Null: it still is."""


class ServerHistoryDocument(TypedDict):
    """One server over a time. Each list has a value for each of `times`; null where nothing is known of the step."""

    name: str
    url: str
    stale_since: str | None
    """Since when Prometheus has had nothing of it."""
    acceptance: list[float | None]
    """Accepted over drafted tokens of the step."""
    decode_tokens_per_second: list[float | None]
    """The mean, as all without another word."""
    prefill_tokens_per_second: list[float | None]
    requests_deferred: list[float | None]
    """The greatest."""
    gpu_utilisation: list[float | None]
    up: list[float | None]
    """Share of the step in which the server answered."""
    alerts: list[HistoryAlertDocument]


class FleetHistoryDocument(TypedDict):
    """`specdash fleet --prometheus URL --since TIME --json`. Moments are UTC, ISO 8601."""

    schema: Literal["specdash.fleet-history/1"]
    since: str
    until: str
    step_seconds: float
    times: list[str]
    """The end of each step, oldest first."""
    servers: list[ServerHistoryDocument]


class ServerDocument(TypedDict):
    """The server that was looked at."""

    url: str
    origin: str
    api_key: bool
    """Whether one is known; never the key."""


class EndpointDocument(TypedDict):
    """One endpoint."""

    path: str
    state: str
    detail: str
    latency_ms: float | None
    """In milliseconds."""


class LogCheckDocument(TypedDict):
    """The log file, and what it shows that the server was told to log."""

    path: str | None
    failure: str | None
    lines: int
    unrecognised: int
    verbosity: int | None
    """llama-server's level: 3 info, 4 trace, 5 debug."""
    llama_trace: bool
    """Whether it has per-step lines."""


class GpuDeviceDocument(TypedDict):
    """One GPU, as the driver tells."""

    index: int
    name: str | None
    memory_bytes: int | None
    compute: str | None
    """CUDA compute capability."""


class DriverDocument(TypedDict):
    """What the NVIDIA driver says."""

    count: int
    unavailable: str | None
    absence: Absence | None
    driver: str | None
    cuda: str | None
    """The newest CUDA version that it runs."""
    devices: list[GpuDeviceDocument]


class EngineDocument(TypedDict):
    """One engine of this machine."""

    kind: str
    version: str
    path: str
    chosen: bool
    reason: str
    cuda_build: bool | None
    other_accelerators: list[str]
    evidence: str
    devices: list[Annotated[Fields, Written(Device)]] | None
    uses_gpu: bool | None
    verdict: str


class ProcessAccessDocument(TypedDict):
    """The server's process."""

    unavailable: str | None
    gpu_memory_bytes: int | None
    """What it holds; 0: it runs on the CPU."""


class MissingDocument(TypedDict):
    """What cannot be seen, what switches it on, and which panels show more then."""

    missing: str
    switch: str
    lights: list[str]


class DoctorDocument(TypedDict):
    """`specdash doctor --json`: what is reachable, and what would have to be switched on to see more."""

    schema: Literal[1]
    reachable: bool
    server: ServerDocument
    endpoints: list[EndpointDocument]
    log: LogCheckDocument
    gpu: DriverDocument
    engines: list[EngineDocument]
    """The chosen one first."""
    engine_problem: str | None
    """Why none is chosen."""
    install: list[Annotated[Fields, Written(Install)]]
    """Ways to an engine that uses the GPU."""
    process: ProcessAccessDocument
    proxy: Annotated[Fields, Written(ProxyCheck)] | None
    missing: list[MissingDocument]
    warnings: list[str]


class ServiceDocument(TypedDict):
    """One service."""

    role: Role
    name: str
    manager: str
    """`systemd` or `supervisor`."""
    origin: str
    env_file: str
    env_file_exists: bool
    reloads: bool
    """Whether it reads its env file again on request."""
    socket: bool
    """Whether a socket outlives its restarts."""
    state: ServiceState | None
    pid: int | None
    since: float | None
    """Unix time of the last change of `state`."""
    restarts: int | None
    exit_code: int | None
    detail: str
    error: str | None
    """Why its manager does not answer."""


class ServicesDocument(TypedDict):
    """`specdash services status --json`."""

    services: list[ServiceDocument]
    problems: list[str]


class HistoryCell(TypedDict):
    """The samples of one metric in one row."""

    mean: float
    min: float
    max: float
    count: int


class HistoryQuery(TypedDict):
    """`specdash history query --json`. Moments are Unix times."""

    target: str
    since: float
    until: float
    step_s: float
    units: dict[str, str]
    """By metric."""
    rows: list[dict[str, float | HistoryCell]]
    """`at`, when it begins, and its samples by metric; one without samples is missing."""


class HistoryEvent(TypedDict):
    """Something that happened."""

    at: float
    ended: float | None
    kind: EventKind
    title: str
    severity: AlertSeverity | None
    detail: str
    ref: str


class HistoryEvents(TypedDict):
    """`specdash history events --json`. Moments are Unix times."""

    target: str
    since: float
    until: float
    events: list[HistoryEvent]
    """Oldest first."""


class SettingDocument(TypedDict):
    """The value of a setting in `specdash config show --json`, and where it comes from."""

    value: str | float | bool | dict[str, Any] | list[dict[str, Any]] | None
    origin: str


class StepTally(TypedDict):
    """Verification steps seen (LLAMA_TRACE=1), with their draft tokens."""

    count: float
    accepted: float
    generated: float
    replays: int
    """Decodes that were a replay after a restored checkpoint."""


class LogTotals(TypedDict):
    """All requests together. Prompt tokens are those that were processed."""

    requests: int
    completed: int
    cancelled: int
    failed: int
    unfinished: int
    """Still running at the end of the log, or cut short with their server."""
    prompt_tokens: float | None
    prompt_tokens_per_second: float | None
    decode_tokens: float | None
    decode_tokens_per_second: float | None
    draft_generated: float | None
    draft_accepted: float | None
    acceptance: float | None


class TypeStatistics(TypedDict):
    """What llama.cpp printed last of one speculative implementation, since the server's start."""

    printed_type: str
    """Its name in the build that wrote the log."""
    calls: list[int]
    """Of begin, generate, accept; of old builds one count."""
    drafts_generated: int
    drafts_accepted: int
    tokens_generated: int
    tokens_accepted: int
    mean_accepted_length: float | None
    acceptance_per_position: list[float] | None
    durations_ms: list[float] | None
    """Of the same calls, in milliseconds."""
    at_s: float | None


class LogWarning(TypedDict):
    """Lines of one class that warn. `first` and `last` are seconds since the server's start."""

    title: str
    severity: Annotated[str, WithJsonSchema({"enum": list(WarningSeverity)})]
    count: int
    first: float | None
    last: float | None
    sample: str
    note: str
    slots: int
    slots_at_least: bool
    """There are or may be more."""
    tasks: int
    tasks_at_least: bool


class LoggedCheckpoints(TypedDict):
    """Checkpoints of one kind, and what became of them. Sizes are MiB."""

    kind: str
    """`context` or `speculative`."""
    action: str
    count: int
    total_mib: float | None
    largest_mib: float | None


class PromptCacheDocument(TypedDict):
    """The prompt cache in host memory, and what the slots reused."""

    prompts: int | None
    size_mib: float | None
    limit_mib: float | None
    limit_tokens: int | None
    saved: int
    hits: int
    updates: int
    update_ms: float
    """Time that updates took, in milliseconds."""
    reused_tokens: int | None
    prompt_tokens: int | None
    reused_share: float | None
    slots_selected: dict[str, int]
    """Why slots were picked: `lcp` (shared prefix), `lru` (the one unused longest), `id`."""


class LoggedSpeculation(TypedDict):
    """What the server said of speculation at its start."""

    types: list[str | None]
    parameters: list[dict[str, str]]
    ready: bool
    off: bool
    uses_checkpoints: bool
    synthetic: dict[str, str] | None


class LoggedEvent(TypedDict):
    """A line of a server's start or life."""

    name: str
    """The class of the line."""
    at_s: float | None
    origin: int | None
    fields: dict[str, str]


class LoggedServer(TypedDict):
    """The last server that wrote the log, in the log's own words."""

    starts: int
    restarts: int
    build: str | None
    commit: str | None
    compiler: str | None
    verbosity: str | None
    model: str | None
    draft_model: str | None
    url: str | None
    slots: str | None
    n_ctx_slot: str | None
    kv_unified: str | None
    loaded: bool
    stopping: bool
    speculation: LoggedSpeculation
    events: list[LoggedEvent]


class ParsedRequest(TypedDict):
    """One request. Times with `_s` are seconds, of moments since the server's start; with `_ms` milliseconds."""

    slot: int | None
    task: int | None
    origin: int | None
    """Which server of a router wrote it."""
    started_s: float | None
    at_s: float | None
    """Its end, or the last line about it."""
    prompt_total_tokens: int | None
    """Length of the prompt."""
    prompt_cached: int | None
    """Of them, held by the slot already."""
    prompt_tokens: int | None
    """Of them, processed."""
    prompt_ms: float | None
    decode_tokens: int | None
    decode_ms: float | None
    total_ms: float | None
    draft_generated: int | None
    draft_accepted: int | None
    mean_accepted_length: float | None
    acceptance_per_position: list[float] | None
    decode_tokens_seen: int | None
    """By the last progress line: all that is known of a cancelled request."""
    steps: StepTally | None
    truncated: bool | None
    cancelled: bool
    error: str | None
    finished: bool


class LogHead(TypedDict):
    """Everything but the requests."""

    schema: Literal["specdash.parse-log/1"]
    file: str
    lines: int
    unrecognised: int
    unrecognised_samples: list[str]
    last_s: float | None
    """Time of the last line, in seconds since the server's start."""
    server: LoggedServer
    totals: LogTotals
    steps: StepTally
    statistics: dict[str, TypeStatistics]
    """By implementation; `TYPE@ORIGIN` of a router's servers."""
    warnings: dict[str, LogWarning]
    """By class, the worst first (docs/parse-log.md)."""
    checkpoints: list[LoggedCheckpoints]
    prompt_cache: PromptCacheDocument


class LogReport(LogHead):
    """`specdash parse-log --json`: everything that a log tells."""

    requests: list[ParsedRequest]


BaselineRecord = Annotated[Fields, Written(Baseline)]
RecordedApply = Annotated[Fields, Written(ApplyRecord)]
HistoryStats = Annotated[Fields, Written(Stats)]
