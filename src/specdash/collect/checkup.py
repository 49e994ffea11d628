"""Looks once at everything that can be looked at, and says what would have to be switched on to see more."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from specdash.collect.gpu import Driver, GpuLooks, look
from specdash.collect.host import HostCollector
from specdash.collect.log_source import past
from specdash.collect.proxy import ProxyPoller
from specdash.core.log_facts import ServerEvent, SpeculativeStatistics, VerificationSteps
from specdash.core.readings import (
    ROUTER,
    Counters,
    Failure,
    FailureKind,
    Health,
    HealthStatus,
    Props,
    Reading,
    Slots,
    Source,
)
from specdash.core.target import local_port
from specdash.llama.client import LlamaClient
from specdash.system.processes import is_alive

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from specdash.core.proxy_events import ProxyStatus
    from specdash.core.target import Target


class Remedy(Struct, frozen=True):
    """What is missing, what switches it on, and which panels show more then."""

    missing: str
    switch: str
    lights: tuple[str, ...]


class EndpointCheck(Struct, frozen=True):
    """One endpoint's answer, a value or a `Failure`, with what it says for people and the seconds that a value took."""

    path: str
    answer: Any
    latency_s: float | None = None

    @property
    def state(self) -> str:
        """In one word or a few."""
        if isinstance(self.answer, Failure):
            return str(self.answer.kind)
        return str(self.answer.status) if isinstance(self.answer, Health) else "ok"

    @property
    def detail(self) -> str:
        """What the answer shows, or why there is none."""
        match self.answer:
            case Failure(detail=detail) | Health(detail=detail):
                return detail
            case Props() as props:
                named = (props.model_alias or props.model_path, props.build_info, props.role)
                return ", ".join(filter(None, (*named, "asleep" if props.is_sleeping else None)))
            case Slots(slots=slots):
                return f"{len(slots)} slots, {sum(slot.speculative is True for slot in slots)} of them speculate"
            case Counters() as counted:
                words = (
                    f"{counted.draft_tokens:.0f} draft tokens so far" if counted.draft_tokens else "no draft tokens yet"
                )
                return (
                    f"{words}{'; unknown metrics: ' + ', '.join(counted.unrecognised) if counted.unrecognised else ''}"
                )
        return ""


class LogCheck(Struct, frozen=True):
    """The log file: whether it can be read, and what it shows that the server was set to log."""

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
    proxy: ProxyCheck | None = None
    gpu_bytes: int | None = None
    """GPU memory that the server holds: 0 says that it runs on the CPU. None where the driver does not tell."""

    @property
    def reachable(self) -> bool:
        """Whether a llama-server answers, also one that is loading or wants a key."""
        health = self.endpoints[0].answer
        if isinstance(health, Failure):
            return health.kind is FailureKind.UNAUTHORIZED
        return health.status is not HealthStatus.ERROR

    @property
    def remedies(self) -> tuple[Remedy, ...]:
        """Everything that may be missing, where it is."""
        return tuple(Remedy(*row) for is_missing, *row in _remedies(self) if is_missing)


def check(target: Target) -> Checkup:
    """Look at the server's endpoints, its log, its process and the GPUs, once. Bounded by the endpoints' deadlines."""
    endpoints, driver = asyncio.run(_check_endpoints(target)), look()
    process_failure, gpu_bytes = _check_process(target, driver)
    return Checkup(target, endpoints, check_log(target.log), driver, process_failure, check_proxy(target), gpu_bytes)


def check_log(path: str | None) -> LogCheck:
    """Read what the tail would begin with, and judge what the server was set to log."""
    if path is None:
        return LogCheck(None, "no log file is known")
    from specdash.llama.log.parser import LogParser

    parser, lines, unrecognised = LogParser(), 0, 0
    verbosity: int | None = None
    traced = detailed = False
    for chunk in past(path):
        if chunk.failure is not None and not chunk.data:
            return LogCheck(path, chunk.failure.detail)
        batch = parser.feed(chunk.data)
        lines, unrecognised = lines + batch.lines, unrecognised + batch.unrecognised
        for fact in batch.every_fact:
            if isinstance(fact, ServerEvent) and fact.name == "verbosity":
                level = fact.get("verbosity") or ""
                verbosity = int(level) if level.isdecimal() else None
            traced = traced or isinstance(fact, VerificationSteps)
            detailed = detailed or isinstance(fact, SpeculativeStatistics)
    if verbosity is None and detailed:
        verbosity = 4
    return LogCheck(path, None, lines, unrecognised, verbosity, traced)


async def _check_endpoints(target: Target) -> tuple[EndpointCheck, ...]:
    async def asked(path: str, answer: Awaitable[Any]) -> EndpointCheck:
        started, found = time.monotonic(), await answer
        return EndpointCheck(path, found, None if isinstance(found, Failure) else time.monotonic() - started)

    async with contextlib.aclosing(LlamaClient(target)) as client:
        health, props = await asyncio.gather(asked("/health", client.health()), asked("/props", client.props()))
        metrics = await asked("/metrics", client.metrics())
        if isinstance(props.answer, Props) and props.answer.is_sleeping:
            why = "not asked, because asking would wake the server"
            return health, props, metrics, EndpointCheck("/slots", Failure(FailureKind.SLEEPING, why))
        return health, props, metrics, await asked("/slots", client.slots())


def _check_process(target: Target, driver: Driver) -> tuple[str | None, int | None]:
    """Why the server's process is not seen, and the bytes that it holds on the GPUs; None where the driver hides
    processes, or numbers them otherwise."""
    readings: list[Reading[Any]] = []
    HostCollector(target, readings.append).step(1.0)
    process = next(reading for reading in readings if reading.source is Source.PROCESS)
    if process.failure is not None:
        return process.failure.detail, None
    pids = frozenset(process.value.pids if process.value is not None else ())
    gpus = GpuLooks(lambda: pids).look().gpus if driver.gpus and pids else ()
    if not gpus or any(gpu.processes is None for gpu in gpus):
        return None, None
    rows = [row for gpu in gpus for row in gpu.processes or ()]
    held = [row.memory_bytes for row in rows if row.is_backend]
    # In a container NVML gives the numbers of outside, or no process at all.
    outside = not held and bool(rows) and not any(is_alive(row.pid) for row in rows)
    known = [size for size in held if size is not None]
    return None, None if outside or len(known) < len(held) else sum(known)


def _remedies(checkup: Checkup) -> Iterable[tuple[Any, ...]]:
    target, log = checkup.target, checkup.log
    kinds = {found.path: found.answer.kind for found in checkup.endpoints if isinstance(found.answer, Failure)}
    props, here = checkup.endpoints[1].answer, local_port(target.url) is not None
    return (
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
            here and not checkup.driver.gpus,
            "NVML shows no GPU",
            "run specdash where the NVIDIA driver is (in a container: --gpus all), with nvidia-ml-py installed",
            ("GPU",),
        ),
        (
            here and "/health" not in kinds and checkup.process_failure is not None,
            "the server's process is not visible",
            "run specdash as the user who runs the server, outside of containers",
            ("process", "uptime", "GPU memory of the server"),
        ),
    )


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
    failure: str | None = "no proxy log is known"
    if target.proxy_log is not None:
        chunk = next(past(target.proxy_log, 1))
        failure = chunk.failure.detail if chunk.failure is not None else None
    found = "--", "its address is not known"
    if target.proxy_url is not None:
        status = asyncio.run(_proxy_status(target))
        if isinstance(status, Failure):
            found = str(status.kind), status.detail
        else:
            version = status.version or "unknown version"
            found = "ok", f"{version}, upstream {status.upstream}, {status.session_count} sessions"
    return ProxyCheck(target.proxy_url, target.proxy_origin, *found, target.proxy_log, failure)


async def _proxy_status(target: Target) -> ProxyStatus | Failure:
    async with contextlib.aclosing(ProxyPoller(target, lambda _: None)) as poller:
        return await poller.look()
