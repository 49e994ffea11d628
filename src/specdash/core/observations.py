"""What each source observes: one frozen value type per `Source`, engine-neutral, with unknown fields as None.

| source  | value type     | made by                      |
|---------|----------------|------------------------------|
| HEALTH  | `Health`       | `specdash.llama.health`      |
| PROPS   | `Props`        | `specdash.llama.props`       |
| METRICS | `Counters`     | `specdash.llama.metrics`     |
| SLOTS   | `Slots`        | `specdash.llama.slots`       |
| LOG     | `LogBatch`     | `specdash.llama.log_parser`  |
| GPU     | `Gpus`         | `specdash.collect.gpu`       |
| HOST    | `Host`         | `specdash.collect.host`      |
| PROCESS | `ProcessTree`  | `specdash.collect.host`      |
| SCHEDULING | `SchedulingDelay` | `specdash.collect.scheduling` |

`LogBatch` lives in `specdash.core.log_facts`; PROXY and PROXY_EVENTS have theirs in `specdash.core.proxy_status`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from specdash.core.speculation import MemoryKind  # noqa: TC001 - whoever stores values reads the hints


class HealthStatus(StrEnum):
    """What GET /health says."""

    OK = "ok"
    LOADING = "loading"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Health:
    """GET /health. `latency_s` is the round trip in seconds; `detail` the server's own message, if any.

    `progress` is the fraction of the model loaded, 0 to 1, where a loading server tells it.
    """

    status: HealthStatus
    detail: str = ""
    latency_s: float | None = None
    progress: float | None = None


@dataclass(frozen=True, slots=True)
class ModelOutline:
    """What a model's file says of it, as far as speculation depends on that."""

    architecture: str | None = None
    memory: MemoryKind | None = None
    gives_states: bool = False
    """Its architecture can take rejected tokens back without a checkpoint, for types that ask for it."""
    parameters: int | None = None
    nextn_layers: int | None = None
    """Next-token-prediction layers."""
    block_size: int | None = None
    """Tokens of the block that a block draft was trained on."""


@dataclass(frozen=True, slots=True)
class Props:
    """GET /props: what the server is and which endpoints it has."""

    model_alias: str | None = None
    model_path: str | None = None
    model_ftype: str | None = None
    build_info: str | None = None
    """As the server says it; see `build`."""
    total_slots: int | None = None
    n_ctx: int | None = None
    is_sleeping: bool | None = None
    endpoint_slots: bool | None = None
    endpoint_metrics: bool | None = None
    endpoint_props: bool | None = None
    supports_tools: bool | None = None
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


@dataclass(frozen=True, slots=True)
class Counters:
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


@dataclass(frozen=True, slots=True)
class Slot:
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


@dataclass(frozen=True, slots=True)
class Slots:
    """GET /slots."""

    slots: tuple[Slot, ...] = ()

    @property
    def drafting(self) -> tuple[bool, ...] | None:
        """Whether each of them can draft; None where there are none, or not all tell."""
        told = tuple(slot.speculative for slot in self.slots if slot.speculative is not None)
        return told if told and len(told) == len(self.slots) else None

    @property
    def least_context(self) -> int | None:
        """Tokens that fit into any of them; None where none tells."""
        return min((slot.n_ctx for slot in self.slots if slot.n_ctx), default=None)


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """Memory of one process on a GPU, in bytes."""

    pid: int
    memory_bytes: int | None
    name: str | None = None
    is_backend: bool = False
    """True for the watched llama-server and its children."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU. Fractions are 0 to 1; a field that the device does not support is None.

    `memory_used_bytes` is NVML's version 2 figure, which leaves out what the driver reserves.
    """

    index: int
    name: str | None = None
    uuid: str | None = None
    utilisation: float | None = None
    memory_utilisation: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    """Active clock-limit reasons in words; empty when the clocks are not limited."""
    processes: tuple[GpuProcess, ...] | None = None


@dataclass(frozen=True, slots=True)
class Gpus:
    """All GPUs that NVML shows."""

    gpus: tuple[Gpu, ...] = ()
    driver_version: str | None = None


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system of a folder that something writes to, in bytes; `free` is what is left for this user."""

    path: str
    use: str
    """What is written there, in words: `server log`, `state`."""
    free_bytes: int
    total_bytes: int
    device: int | None = None
    """Number of the file system: folders with the same one share their room."""
    files_left: int | None = None
    """How many files can still be made; None where the file system has no bound."""


@dataclass(frozen=True, slots=True)
class Host:
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
    disks: tuple[Disk, ...] = ()
    """Of the log, the proxy's events and specdash's own state; none that cannot be looked at."""
    swap_in_bytes_per_s: float | None = None
    """Read back from the swap since the look before: what processes wait for."""
    swap_out_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class ProcessTree:
    """The backend's process and its children. `cpu_cores` is CPU seconds per second, so 2.0 is two cores busy."""

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
    command: tuple[str, ...] = field(default=(), repr=False)
    """The root's argument vector with secrets masked."""
    stopped: tuple[int, ...] = ()
    """Those of `pids` that were stopped by a signal (SIGSTOP) and do nothing until they are told to go on."""
    cpu_wait: float | None = None
    """Share of the time since the look before that the thread that waited longest was ready to run and got no CPU."""


@dataclass(frozen=True, slots=True)
class SchedulingDelay:
    """How late specdash's own poll loop woke, in all, within the last `span_s` seconds."""

    late_s: float
    span_s: float

    @property
    def is_starved(self) -> bool:
        """Whether specdash got the CPU too late for a silence to say anything about anybody else."""
        return self.late_s >= STARVED_SHARE * self.span_s


STARVED_SHARE = 0.2
"""Of the last seconds. A busy but sound machine wakes a sleeper within milliseconds: less than a tenth of it."""
