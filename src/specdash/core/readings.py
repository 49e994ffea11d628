"""A reading: one observation of the outside world, or the reason why there is none.

Everything the collectors publish is a `Reading`. What is not known is UNKNOWN with a reason, never zero; what was known
and is no longer fresh is STALE and keeps its value. Times are seconds of the monotonic clock (`time.monotonic`).
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import PurePath
from typing import Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from specdash.core.speculation import MemoryKind  # noqa: TC001 - msgspec reads the hints
from specdash.core.structs import Fact, Masked

T_co = TypeVar("T_co", covariant=True)


class ReadingStatus(StrEnum):
    """How far a value can be trusted."""

    KNOWN = "known"
    STALE = "stale"
    UNKNOWN = "unknown"


class Source(StrEnum):
    """Where an observation comes from; one value type each (see `core.sources`)."""

    HEALTH = "health"
    PROPS = "props"
    METRICS = "metrics"
    SLOTS = "slots"
    LOG = "log"
    GPU = "gpu"
    HOST = "host"
    PROCESS = "process"
    PROXY = "proxy"
    PROXY_EVENTS = "proxy events"
    APPLIES = "applies"
    """The changes that specdash made to the services, oldest first."""
    BASELINES = "baselines"
    """Decode speeds without speculation, oldest first."""
    TRIAL = "trial"
    """Settings that are tried on the server; empty where none are."""
    ROUTER = "router"
    SCHEDULING = "scheduling"
    """Whether specdash itself gets the CPU in time."""


class FailureKind(StrEnum):
    """Why an observation could not be made."""

    NOT_CONFIGURED = "not configured"
    REFUSED = "connection refused"
    """Nothing listens on the port."""
    UNREACHABLE = "cannot be reached"
    """No connection in time, no route to the host, or its name does not resolve."""
    TIMEOUT = "no answer in time"
    """The server accepted the connection and did not answer, or not completely, within the deadline."""
    RESET = "connection broken"
    """The server closed or reset the connection before the answer was complete."""
    LOADING = "loading"
    UNAUTHORIZED = "unauthorized"
    DISABLED = "disabled"
    """The endpoint is switched off (HTTP 501)."""
    NOT_FOUND = "not found"
    GARBAGE = "not understood"
    TOO_LARGE = "too large"
    SLEEPING = "server asleep"
    """Not asked, because asking would wake the server."""
    NO_MODEL = "no model in memory"
    """A router has no child server to pass the question on to."""
    ERROR = "error"
    UNAVAILABLE = "unavailable"
    """The means of observing are missing: no NVML, no such file, no such process."""


OTHER_SERVERS = "; other servers of this machine: "
"""In the detail of a refused connection, before the addresses of those, where nothing was ever seen at its own."""


class Failure(Struct, frozen=True):
    """Why there is no value. `detail` is for people and never holds a secret or prompt text."""

    kind: FailureKind
    detail: str = ""

    def __str__(self) -> str:
        if self.kind is FailureKind.NOT_CONFIGURED and self.detail:
            return self.detail
        return f"{self.kind}: {self.detail}" if self.detail else str(self.kind)


class Reading(Struct, Generic[T_co], frozen=True):
    """One observation of `source` at monotonic time `at`: a value, or a failure."""

    source: Source
    at: float
    status: ReadingStatus
    value: T_co | None = None
    failure: Failure | None = None

    @classmethod
    def known(cls, source: Source, at: float, value: T_co) -> Reading[T_co]:  # type: ignore[misc]
        """An observation that succeeded."""
        return cls(source, at, ReadingStatus.KNOWN, value)

    @classmethod
    def unknown(cls, source: Source, at: float, kind: FailureKind, detail: str = "") -> Reading[T_co]:
        """An observation that failed."""
        return cls(source, at, ReadingStatus.UNKNOWN, None, Failure(kind, detail))

    def aged(self, now: float, lifetime: float) -> Reading[T_co]:
        """This reading as seen at `now`: STALE once a known value is older than `lifetime` seconds."""
        if self.status is ReadingStatus.KNOWN and now - self.at > lifetime:
            return replace(self, status=ReadingStatus.STALE)
        return self


class ModelStatus(StrEnum):
    """State of one model behind a router (GET /models; llama.cpp b11434, server-models.cpp)."""

    LOADED = "loaded"
    SLEEPING = "sleeping"
    LOADING = "loading"
    DOWNLOADING = "downloading"
    DOWNLOADED = "downloaded"
    UNLOADED = "unloaded"
    FAILED = "failed"
    """Its child server ended by itself: it did not load, or crashed."""
    UNKNOWN = "unknown"


ROUTER = "router"
"""The `role` that a router has in its /props."""
RESIDENT = (ModelStatus.LOADED, ModelStatus.SLEEPING)
"""States in which a model's child server runs, the better one first."""


class RouterModel(Fact, frozen=True):
    """One model behind a router."""

    id: str
    status: ModelStatus = ModelStatus.UNKNOWN
    aliases: tuple[str, ...] = ()
    last_used: float | None = None
    """Unix time of its last request; None when unknown."""
    spec_types: tuple[str, ...] | None = None
    """With what its child server was or will be started, from its arguments; empty: no speculation."""
    draft_model: str | None = None
    port: int | None = None
    """Of its child server, while there is one: the log's lines of that child name it."""
    failure: str = ""
    """What the router says went wrong."""
    has_source: bool | None = None
    """Its arguments name a model file or repository; None where they are not known."""
    never_loaded: bool = False
    """It is not in memory and never was, since the router's start."""
    exit_code: int | None = None
    """Of its last child server, where that failed."""

    @property
    def words(self) -> str:
        """Its state in full: of a model that is not in memory, why it is not."""
        if self.status is ModelStatus.UNLOADED and self.never_loaded:
            return "never loaded"
        if self.status is ModelStatus.FAILED and self.exit_code is not None:
            return f"{self.status} (exit code {self.exit_code})"
        return str(self.status)

    @property
    def resident(self) -> bool:
        """Whether it is in memory, asleep or awake."""
        return self.status in RESIDENT


class RouterModels(Fact, frozen=True):
    """GET /models of a router."""

    models: tuple[RouterModel, ...] = ()


def most_recent_resident(models: tuple[RouterModel, ...]) -> RouterModel | None:
    """What the model name `any` means: the resident model used last, one that is awake before one that sleeps; None
    when none is resident. Never one that would have to be loaded."""
    resident = [model for model in models if model.resident]
    return max(resident, key=lambda model: (-RESIDENT.index(model.status), model.last_used or 0.0), default=None)


class HealthStatus(StrEnum):
    """What GET /health says."""

    OK = "ok"
    LOADING = "loading"
    ERROR = "error"


class Health(Fact, frozen=True):
    """GET /health. `latency_s` is the round trip in seconds; `detail` the server's own message, if any.

    `progress` is the fraction of the model loaded, 0 to 1, where a loading server reports it.
    """

    status: HealthStatus
    detail: str = ""
    latency_s: float | None = None
    progress: float | None = None


class ModelOutline(Fact, frozen=True):
    """What a model's file says of it, as far as speculation depends on that."""

    architecture: str | None = None
    memory: MemoryKind | None = None
    gives_states: bool = False
    """Its architecture can take rejected tokens back without a checkpoint, for types that ask for it."""
    block_size: int | None = None
    """Tokens of the block that a block draft was trained on."""


class Props(Fact, frozen=True):
    """GET /props: what the server is and which endpoints it has."""

    model_alias: str | None = None
    model_path: str | None = None
    build_info: str | None = None
    """As the server says it; see `build`."""
    total_slots: int | None = None
    n_ctx: int | None = None
    is_sleeping: bool | None = None
    endpoint_metrics: bool | None = None
    role: str | None = None
    """"router" when the server only passes requests to child servers."""
    model_bytes: int | None = None
    """Size of the model's file, where the server runs on this machine."""
    model: ModelOutline | None = None
    """What its file says, likewise."""
    draft: ModelOutline | None = None
    """The same of the draft model's file, where it is known which that is."""

    @property
    def build(self) -> str | None:
        """The build of llama.cpp; None where it does not know its own, as one that was built outside git."""
        return None if self.build_info == "b0-unknown" else self.build_info

    @property
    def build_number(self) -> int | None:
        """The number of its build, 0 where it does not know its own; None where it names none."""
        found = re.match(r"b(\d+)", self.build_info or "")
        return int(found[1]) if found else None

    @property
    def name(self) -> str | None:
        """The model's name: its alias, else that of its file; of a router, that it is one."""
        if self.role == ROUTER:
            return ROUTER
        name = self.model_alias or self.model_path
        return PurePath(name).name if name else None


class Counters(Fact, frozen=True):
    """GET /metrics. Counters are totals since the server's start, in tokens, seconds or events; gauges are as of the
    scrape.

    llama.cpp prints six significant digits, so above a million small increments vanish, except in the per-position
    series, which are exact integers. Speculative counters move only when a request ends or is
    cancelled.
    """

    prompt_tokens: float | None = None
    prompt_tokens_cached: float | None = None
    prompt_seconds: float | None = None
    predicted_tokens: float | None = None
    predicted_seconds: float | None = None
    decode_calls: float | None = None
    tokens_max: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    verification_steps: float | None = None
    accepted_per_position: tuple[int, ...] | None = None
    """Accepted draft tokens at draft position 0, 1, …; None where the server has not printed the series yet."""
    requests_processing: float | None = None
    requests_deferred: float | None = None
    busy_slots_per_decode: float | None = None
    prompt_tokens_per_second: float | None = None
    """Gauge over requests since the last scrape by anybody; reset by every scrape, so never shown as a rate."""
    predicted_tokens_per_second: float | None = None
    unrecognised: tuple[str, ...] = ()
    """Names of `llamacpp:` metrics this version does not know."""


class Slot(Fact, frozen=True):
    """One entry of GET /slots. `n_decoded` counts generated tokens of the current task, falling to 0 at its release."""

    id: int
    is_processing: bool
    n_ctx: int | None = None
    speculative: bool | None = None
    """True when the slot really has a speculative context: the reliable sign that speculation is active."""
    task: int | None = None
    n_decoded: int | None = None
    n_remain: int | None = None
    """Tokens left to generate; None when the request has no limit."""
    n_prompt_tokens: int | None = None
    """Tokens now in the slot (prompt, generated and in-flight draft tokens), not the request's prompt length."""
    n_prompt_tokens_processed: int | None = None
    n_prompt_tokens_cache: int | None = None
    speculative_types: tuple[str, ...] | None = None
    """Speculative implementations of the slot's last task; empty when it had none, None when unknown."""


class Slots(Fact, frozen=True):
    """GET /slots."""

    slots: tuple[Slot, ...] = ()

    @property
    def drafting(self) -> tuple[bool, ...] | None:
        """Whether each of them can draft; None where there are none, or not all tell."""
        known = tuple(slot.speculative for slot in self.slots if slot.speculative is not None)
        return known if known and len(known) == len(self.slots) else None

    @property
    def least_context(self) -> int | None:
        """Tokens that fit into any of them; None where none reports it."""
        return min((slot.n_ctx for slot in self.slots if slot.n_ctx), default=None)


class GpuProcess(Fact, frozen=True):
    """Memory of one process on a GPU, in bytes."""

    pid: int
    memory_bytes: int | None
    name: str | None = None
    is_backend: bool = False
    """True for the watched llama-server and its children."""


class Gpu(Fact, frozen=True):
    """One NVIDIA GPU. Fractions are 0 to 1; a field that the device does not support is None.

    `memory_used_bytes` is NVML's version 2 figure, which leaves out what the driver reserves (900 MB of an A100): total
    minus used is more than what is free.
    """

    index: int
    name: str | None = None
    uuid: str | None = None
    utilisation: float | None = None
    memory_utilisation: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    """Active clock-limit reasons in words; empty when the clocks are not limited."""
    processes: tuple[GpuProcess, ...] | None = None

    @property
    def memory_left_bytes(self) -> int | None:
        """What can still be allocated; of a record that does not tell what is free, total minus used."""
        if self.memory_free_bytes is not None or self.memory_used_bytes is None or self.memory_total_bytes is None:
            return self.memory_free_bytes
        return max(0, self.memory_total_bytes - self.memory_used_bytes)


class Gpus(Fact, frozen=True):
    """All GPUs that NVML shows."""

    gpus: tuple[Gpu, ...] = ()


class Host(Fact, frozen=True):
    """The machine. Fractions are 0 to 1, sizes bytes."""

    cpu_utilisation: float | None = None
    cpu_count: int | None = None
    load_1m: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    swap_used_bytes: int | None = None
    swap_total_bytes: int | None = None
    disk_free_bytes: int | None = None
    disk_total_bytes: int | None = None
    swap_in_bytes_per_s: float | None = None
    """Read back from the swap since the look before: what processes wait for."""
    swap_out_bytes_per_s: float | None = None


class ProcessTree(Masked, Fact, frozen=True):
    """The backend's process and its children. `cpu_cores` is CPU seconds per second, so 2.0 is two cores busy."""

    hidden = ("command",)

    pid: int
    name: str | None = None
    started_wall: float | None = None
    """Unix time of the root process's start."""
    cpu_cores: float | None = None
    memory_bytes: int | None = None
    threads: int | None = None
    processes: int = 1
    pids: tuple[int, ...] = ()
    """The root's pid, then those of its descendants."""
    command: tuple[str, ...] = ()
    """The root's argument vector with secrets masked."""
    stopped: tuple[int, ...] = ()
    """Those of `pids` that were stopped by a signal (SIGSTOP) and do nothing until they are continued."""
    cpu_wait: float | None = None
    """Share of the time since the look before that the thread that waited longest was ready to run and got no CPU."""


def others_share(host: Host | None, process: ProcessTree | None) -> float | None:
    """Share of the machine's CPUs, 0 to 1, that other programs than the server use; None where that is not known."""
    if host is None or process is None or not host.cpu_count:
        return None
    if host.cpu_utilisation is None or process.cpu_cores is None:
        return None
    return min(1.0, max(0.0, host.cpu_utilisation - process.cpu_cores / host.cpu_count))


class SchedulingDelay(Fact, frozen=True):
    """How late specdash's own poll loop woke, in all, within the last `span_s` seconds."""

    late_s: float
    span_s: float

    @property
    def is_starved(self) -> bool:
        """Whether specdash got the CPU too late for a silence to say anything about anybody else."""
        return self.late_s >= STARVED_SHARE * self.span_s


STARVED_SHARE = 0.2
"""Of the last seconds. A busy but sound machine wakes a sleeper within milliseconds: less than a tenth of it."""
