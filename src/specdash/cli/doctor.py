"""`specdash doctor`: what is reachable, which server flag would light which panel, and whether the GPU is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from specdash.cli.options import add_settings, one_target, print_answer, resolved_settings
from specdash.core.config import TARGET_SETTINGS
from specdash.core.errors import EngineMissingError, ExitCode
from specdash.core.structs import json_of
from specdash.system.text import size

if TYPE_CHECKING:
    import argparse

    from specdash.backend.engines import EngineCheck
    from specdash.collect.checkup import Checkup, LogCheck, ProxyCheck
    from specdash.collect.gpu import Driver

SCHEMA: Final = 1

_GET_ONE = "how to get one that uses the GPU: docs/backend.md#is-the-gpu-used"
_LEVELS = {1: "errors", 2: "warnings", 3: "info", 4: "trace", 5: "debug"}


def configure(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, TARGET_SETTINGS)
    parser.add_argument("--json", action="store_true", help="print JSON (docs/collect.md)")


def run(args: argparse.Namespace) -> int:
    """Print the findings; exit 0 when a llama-server answers, else 4."""
    from specdash.backend.engines import check_engine
    from specdash.collect.api_key import key_file_warning
    from specdash.collect.checkup import check

    settings = resolved_settings(args)
    warning = key_file_warning(settings["api_key_file"].value)
    checkup = check(one_target(settings))
    warnings = [warning] if warning is not None else []
    engine: EngineCheck | str
    try:
        engine = check_engine(checkup.driver)
    except EngineMissingError as error:
        engine = str(error)
    print_answer(to_json(checkup, engine, warnings), to_text(checkup, engine, warnings), as_json=args.json)
    return ExitCode.OK if checkup.reachable else ExitCode.UNREACHABLE


def to_json(checkup: Checkup, engine: EngineCheck | str, warnings: list[str]) -> dict[str, Any]:
    """The findings as JSON; unknown values are null. `engine` is why none is chosen where it is a text."""
    return {
        "schema": SCHEMA,
        "reachable": checkup.reachable,
        "server": {
            "url": checkup.target.url,
            "origin": checkup.target.origin,
            "api_key": checkup.target.api_key is not None,
        },
        "endpoints": [
            {
                "path": endpoint.path,
                "state": endpoint.state,
                "detail": endpoint.detail,
                "latency_ms": None if endpoint.latency_s is None else round(endpoint.latency_s * 1000, 2),
            }
            for endpoint in checkup.endpoints
        ],
        "log": {
            **json_of(checkup.log, "path failure lines unrecognised verbosity"),
            "llama_trace": checkup.log.traced_steps,
        },
        "gpu": _gpu_json(checkup.driver),
        "engines": [] if isinstance(engine, str) else [_engine_json(engine)],
        "engine_problem": engine if isinstance(engine, str) else None,
        "process": {"unavailable": checkup.process_failure, "gpu_memory_bytes": checkup.gpu_bytes},
        "proxy": json_of(checkup.proxy),
        "missing": [json_of(remedy, "missing switch lights") for remedy in checkup.remedies],
        "warnings": warnings,
    }


def to_text(checkup: Checkup, engine: EngineCheck | str, warnings: list[str]) -> str:
    target = checkup.target
    lines = [f"server   {target.url} ({target.origin})"]
    for endpoint in checkup.endpoints:
        latency = "" if endpoint.latency_s is None else f"{endpoint.latency_s * 1000:.1f} ms"
        lines.append(f"  {endpoint.path:<9}{endpoint.state:<20}{latency:>9}  {endpoint.detail}".rstrip())
    lines.append(f"log      {_log_words(checkup.log)}")
    lines += _gpu_lines(checkup.driver)
    lines += _engine_lines(engine)
    lines.append(f"process  {checkup.process_failure or f'visible{_held_words(checkup.gpu_bytes)}'}")
    lines.append(f"proxy    {_proxy_words(checkup.proxy)}")
    lines += [f"warning  {warning}" for warning in warnings]
    if checkup.remedies:
        lines += ["", "To see more:"]
    for remedy in checkup.remedies:
        lines += [f"  {remedy.missing}: {remedy.switch}", f"      lights: {', '.join(remedy.lights)}"]
    return "\n".join(lines)


def _gpu_json(driver: Driver) -> dict[str, Any]:
    return {
        "count": len(driver.gpus),
        "unavailable": driver.detail or None,
        "absence": driver.absence,
        "driver": driver.version,
        "cuda": _dotted(driver.cuda),
        "devices": [
            {"index": gpu.index, "name": gpu.name, "memory_bytes": gpu.memory_bytes, "compute": _dotted(gpu.compute)}
            for gpu in driver.gpus
        ],
    }


def _dotted(version: tuple[int, ...] | None) -> str | None:
    return ".".join(map(str, version)) if version is not None else None


def _engine_json(engine_check: EngineCheck) -> dict[str, Any]:
    engine = engine_check.engine
    return {
        **json_of(engine_check, "path devices verdict"),
        "kind": engine.kind,
        "version": engine.version,
        "reason": engine.reason,
        "uses_gpu": engine_check.usable,
        "chosen": True,
    }


def _gpu_lines(driver: Driver) -> list[str]:
    if not driver.gpus:
        known = f" (driver {driver.version})" if driver.version is not None else ""
        return [f"gpu      {driver.detail}{known}"]
    cuda = f", CUDA {'.'.join(map(str, driver.cuda))}" if driver.cuda is not None else ""
    lines = [f"gpu      {driver.gpus[0].words}; driver {driver.version or 'of unknown version'}{cuda}"]
    return lines + [f"         {driver_gpu.words}" for driver_gpu in driver.gpus[1:]]


def _engine_lines(engine: EngineCheck | str) -> list[str]:
    if isinstance(engine, str):
        return [f"engine   {engine}"]
    lines = [f"engine   {engine.engine.words} ({engine.engine.reason})", f"         {engine.verdict}"]
    return lines if engine.usable else [*lines, f"         {_GET_ONE}"]


def _held_words(gpu_bytes: int | None) -> str:
    if gpu_bytes is None:
        return ""
    return f", holds {size(gpu_bytes)} of GPU memory" if gpu_bytes else ", holds no GPU memory: it runs on the CPU"


def _proxy_words(proxy: ProxyCheck | None) -> str:
    if proxy is None:
        return "none known; name one with --proxy-url URL"
    events = proxy.events_failure or f"{proxy.events} can be read"
    where = f"{proxy.url} ({proxy.origin})  " if proxy.url is not None else ""
    return f"{where}{proxy.state}  {proxy.detail}; events: {events}"


def _log_words(log: LogCheck) -> str:
    if log.failure is not None:
        return log.failure
    level = "verbosity unknown" if log.verbosity is None else f"verbosity {log.verbosity}"
    word = _LEVELS.get(log.verbosity or 0)
    steps = "with" if log.traced_steps else "without"
    return (
        f"{log.path}: {log.lines} lines read, {log.unrecognised} warnings and errors not understood, "
        f"{level}{f' ({word})' if word else ''}, {steps} per-step lines (LLAMA_TRACE)"
    )
