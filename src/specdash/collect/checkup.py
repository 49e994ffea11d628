"""Looks once at everything that can be looked at, and says what would have to be switched on to see more."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from specdash.collect.gpu import Driver, look
from specdash.collect.log_source import past
from specdash.collect.proxy import ProxyPoller
from specdash.core.log_facts import ServerEvent, SpeculativeStatistics, VerificationSteps
from specdash.core.readings import ROUTER, Counters, Failure, FailureKind, Health, HealthStatus, Props, Reading, Slots
from specdash.core.target import local_port
from specdash.llama.client import LlamaClient
from specdash.system.processes import is_alive

if TYPE_CHECKING:
    from specdash.core.target import Target


class Remedy(Struct, frozen=True):
    """What is missing, what switches it on, and which panels show more then."""

    missing: str
    switch: str
    lights: tuple[str, ...]


class EndpointCheck(Struct, frozen=True):
    """One endpoint: `state` in one word or a few, `latency_s` of an answer, `detail` for people."""

    path: str
    state: str
    latency_s: float | None
    detail: str
    value: Any = None
    failure: Failure | None = None


class LogCheck(Struct, frozen=True):
    """The log file: whether it can be read, and what it shows that the server was told to log."""

    path: str | None
    failure: str | None = None
    lines: int = 0
    unrecognised: int = 0
    verbosity: int | None = None
    """llama-server's level: 3 info, 4 trace, 5 debug; None when the log does not tell."""
    traced_steps: bool = False


class Checkup(Struct, frozen=True):
    """All findings of one look."""

    target: Target
    endpoints: tuple[EndpointCheck, ...]
    log: LogCheck
    driver: Driver
    process_failure: str | None
    remedies: tuple[Remedy, ...]
    proxy: ProxyCheck | None = None
    gpu_bytes: int | None = None
    """GPU memory that the server holds: 0 tells that it runs on the CPU. None where the driver does not tell."""

    @property
    def reachable(self) -> bool:
        """Whether a llama-server answers, also one that is loading or wants a key."""
        health = self.endpoints[0]
        if isinstance(health.value, Health):
            return health.value.status is not HealthStatus.ERROR
        return health.failure is not None and health.failure.kind is FailureKind.UNAUTHORIZED


def check(target: Target) -> Checkup:
    """Look at the server's endpoints, its log, its process and the GPUs, once. Bounded by the endpoints' deadlines."""
    endpoints = asyncio.run(_check_endpoints(target))
    log = check_log(target.log)
    driver = look()
    process_failure, gpu_bytes = _check_process(target, driver)
    remedies = _remedies(target, endpoints, log, driver, process_failure)
    return Checkup(target, endpoints, log, driver, process_failure, remedies, check_proxy(target), gpu_bytes)


def check_log(path: str | None) -> LogCheck:
    """Read what the tail would begin with, and judge what the server was told to log."""
    if path is None:
        return LogCheck(None, "no log file is known")
    from specdash.llama.log.parser import LogParser

    parser = LogParser()
    lines = unrecognised = 0
    verbosity: int | None = None
    traced = detailed = False
    for chunk in past(path):
        if chunk.failure is not None and not chunk.data:
            return LogCheck(path, chunk.failure.detail)
        batch = parser.feed(chunk.data)
        lines, unrecognised = lines + batch.lines, unrecognised + batch.unrecognised
        for fact in batch.every_fact:
            if isinstance(fact, ServerEvent) and fact.name == "verbosity":
                verbosity = _whole(fact.get("verbosity"))
            traced = traced or isinstance(fact, VerificationSteps)
            detailed = detailed or isinstance(fact, SpeculativeStatistics)
    if verbosity is None and detailed:
        verbosity = 4
    return LogCheck(path, None, lines, unrecognised, verbosity, traced)


async def _check_endpoints(target: Target) -> tuple[EndpointCheck, ...]:
    client = LlamaClient(target)
    try:
        health, props = await asyncio.gather(_timed("/health", client.health()), _timed("/props", client.props()))
        metrics = await _timed("/metrics", client.metrics())
        if isinstance(props.value, Props) and props.value.is_sleeping:
            failure = Failure(FailureKind.SLEEPING, "not asked, because asking would wake the server")
            slots = EndpointCheck("/slots", str(failure.kind), None, failure.detail, None, failure)
        else:
            slots = await _timed("/slots", client.slots())
        return health, props, metrics, slots
    finally:
        await client.aclose()


async def _timed(path: str, asked: Any) -> EndpointCheck:
    started = time.monotonic()
    result = await asked
    latency = time.monotonic() - started
    if isinstance(result, Failure):
        return EndpointCheck(path, str(result.kind), None, result.detail, None, result)
    return EndpointCheck(path, _state_of(result), latency, _detail_of(result), result)


def _state_of(value: object) -> str:
    return str(value.status) if isinstance(value, Health) else "ok"


def _detail_of(value: object) -> str:
    if isinstance(value, Health):
        return value.detail
    if isinstance(value, Props):
        parts = (value.model_alias or value.model_path, value.build_info, value.role, value.is_sleeping and "asleep")
        return ", ".join(str(part) for part in parts if part)
    if isinstance(value, Slots):
        speculating = sum(slot.speculative is True for slot in value.slots)
        return f"{len(value.slots)} slots, {speculating} of them speculate"
    if isinstance(value, Counters):
        spec = "no draft tokens yet" if not value.draft_tokens else f"{value.draft_tokens:.0f} draft tokens so far"
        return f"{spec}{'; unknown metrics: ' + ', '.join(value.unrecognised) if value.unrecognised else ''}"
    return ""


def _check_process(target: Target, driver: Driver) -> tuple[str | None, int | None]:
    from specdash.collect.host import HostCollector
    from specdash.core.readings import Source

    readings: list[Reading[Any]] = []
    HostCollector(target, readings.append).step(1.0)
    reading = next(reading for reading in readings if reading.source is Source.PROCESS)
    if reading.failure is not None:
        return reading.failure.detail, None
    pids = getattr(reading.value, "pids", ())
    return None, _held(frozenset(pids)) if driver.gpus and pids else None


def _held(pids: frozenset[int]) -> int | None:
    """Bytes that these processes hold on the GPUs; None where the driver hides processes, or numbers them otherwise."""
    from specdash.collect.gpu import GpuCollector
    from specdash.core.readings import Gpus

    seen: list[Reading[Any]] = []
    GpuCollector(seen.append, lambda: pids).step(1.0)
    gpus = seen[-1].value if seen else None
    if not isinstance(gpus, Gpus) or any(gpu.processes is None for gpu in gpus.gpus):
        return None
    rows = [row for gpu in gpus.gpus for row in gpu.processes or ()]
    ours = [row.memory_bytes for row in rows if row.is_backend]
    # In a container NVML gives the numbers of outside, or no process at all.
    outside = not ours and bool(rows) and not any(is_alive(row.pid) for row in rows)
    known = [size for size in ours if size is not None]
    return None if outside or len(known) < len(ours) else sum(known)


def _remedies(
    target: Target,
    endpoints: tuple[EndpointCheck, ...],
    log: LogCheck,
    driver: Driver,
    process_failure: str | None,
) -> tuple[Remedy, ...]:
    """Everything that may be missing, where it is."""
    kinds = {endpoint.path: endpoint.failure.kind for endpoint in endpoints if endpoint.failure is not None}
    reached, props = endpoints[0].value is not None, endpoints[1].value
    here = local_port(target.url) is not None
    rows = (
        (
            FailureKind.UNAUTHORIZED in kinds.values(),
            "the server wants an API key",
            "name it: --api-key-env VARIABLE or --api-key-file FILE",
            ("everything but health",),
        ),
        (
            isinstance(props, Props) and props.role == ROUTER and target.model is None,
            "the server is a router, and no model is named",
            "the one in memory that was used last is shown; for another: --model NAME (it is never loaded by looking)",
            ("acceptance, slots, prefill and decode of that model",),
        ),
        (
            kinds.get("/metrics") is FailureKind.DISABLED,
            "/metrics is switched off",
            "start llama-server with --metrics (or LLAMA_ARG_ENDPOINT_METRICS=1)",
            ("acceptance", "accepted per position", "prefill and decode totals", "requests"),
        ),
        (
            kinds.get("/slots") is FailureKind.DISABLED,
            "/slots is switched off",
            "start llama-server without --no-slots (or LLAMA_ARG_ENDPOINT_SLOTS=1)",
            ("slots", "live prefill and decode", "whether speculation is active"),
        ),
        (
            log.path is None,
            "no log file is known",
            "start llama-server with --log-file FILE and name it: --log FILE",
            ("finished requests", "warnings", "log tail", "per-request acceptance"),
        ),
        (
            log.path is not None and log.failure is not None,
            "the log file cannot be read",
            "mend its path or permissions",
            ("finished requests", "warnings", "log tail"),
        ),
        (
            log.failure is None and not log.traced_steps,
            "no per-step lines in the log",
            "start llama-server with LLAMA_TRACE=1 in its environment",
            ("live acceptance while a request runs",),
        ),
        (
            log.failure is None and log.verbosity is not None and log.verbosity < 4,
            "the log is not verbose enough",
            "start llama-server with -lv 4 (or LLAMA_ARG_LOG_VERBOSITY=4)",
            ("statistics per speculative type", "checkpoints", "prompt-cache reuse"),
        ),
        (
            not here,
            "the server runs on another machine",
            "run specdash on the server's machine (`--on USER@HOST`)",
            ("GPU", "host", "process"),
        ),
        (
            here and not driver.gpus,
            "NVML shows no GPU",
            "run specdash where the NVIDIA driver is (in a container: --gpus all), with nvidia-ml-py installed",
            ("GPU",),
        ),
        (
            here and reached and process_failure is not None,
            "the server's process is not visible",
            "run specdash as the user who runs the server, outside of containers",
            ("process", "uptime", "GPU memory of the server"),
        ),
    )
    return tuple(Remedy(missing, switch, lights) for is_missing, missing, switch, lights in rows if is_missing)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


class ProxyCheck(Struct, frozen=True):
    """The proxy: `state` is `ok` or why it does not answer; `events` where they are read, and why they are not."""

    url: str | None
    origin: str
    state: str
    detail: str
    events: str | None
    events_failure: str | None


def check_proxy(target: Target) -> ProxyCheck | None:
    """The findings, None when no proxy is known. Bounded by the poller's deadline."""
    if target.proxy_url is None and target.proxy_log is None:
        return None
    state, detail = asyncio.run(_look(target)) if target.proxy_url is not None else ("--", "its address is not known")
    failure = "no proxy log is known" if target.proxy_log is None else _events_failure(target.proxy_log)
    return ProxyCheck(target.proxy_url, target.proxy_origin, state, detail, target.proxy_log, failure)


async def _look(target: Target) -> tuple[str, str]:
    poller = ProxyPoller(target, lambda _: None)
    try:
        result = await poller.look()
    finally:
        await poller.aclose()
    if isinstance(result, Failure):
        return str(result.kind), result.detail
    version = result.version or "unknown version"
    return "ok", f"{version}, upstream {result.upstream}, {result.session_count} sessions"


def _events_failure(place: str) -> str | None:
    failure = next(past(place, 1)).failure
    return failure.detail if failure is not None else None
