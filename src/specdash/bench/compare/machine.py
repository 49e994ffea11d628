"""The state of the machine around a measurement: clocks, power and heat of GPUs and CPU, before, during and after.

Two results are comparable only where these are alike: a power cap moves the best draft length, and a card that has
become hot decodes some per cent slower without being called throttled.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil
from msgspec import Struct

from specdash.collect.gpu import GpuLooks
from specdash.core.errors import RefusedError, SpecdashError
from specdash.core.structs import json_of
from specdash.system.stats import median

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.bench.load.samples import MeasureOptions, WorkloadPrompt
    from specdash.core.readings import Gpu


INTERVAL_S = 2.0
_MOST = 20_000
_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
_CPUINFO = Path("/proc/cpuinfo")


class MachineState(Struct, frozen=True):
    """One look. Clocks in MHz, power in watts, temperatures in degrees Celsius; what cannot be read is None."""

    at: float
    """Unix time."""
    cpu_mhz: float | None = None
    cpu_load_1m: float | None = None
    cpu_busy: float | None = None
    """Share of all cores since the look before."""
    cpu_celsius: float | None = None
    gpus: tuple[Gpu, ...] = ()
    gpu_absent: str = ""
    """Why there is nothing of a GPU."""
    watts: float | None = None
    """Of all GPUs together."""


class MachineWatch:
    """Looks every two seconds in a thread of its own, while it is a context."""

    def __init__(self, interval_s: float = INTERVAL_S, *, nvml: Any = None) -> None:
        """`nvml` is as in `collect.gpu`."""
        self._interval_s = interval_s
        self._gpus = GpuLooks(nvml=nvml)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="machine", daemon=True)
        self.states: list[MachineState] = []
        """Every look, the oldest first."""

    def __enter__(self) -> Self:
        psutil.cpu_percent()  # the first look of a process has no figure
        self.states.append(self._look())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join(5.0)
            self.states.append(self._look())

    def as_json(self) -> dict[str, Any]:
        """Before, after, and the extremes between."""
        return {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "before": state_json(self.states[0]) if self.states else None,
            "after": state_json(self.states[-1]) if self.states else None,
            "during": during_json(self.states),
        }

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            if len(self.states) < _MOST:
                self.states.append(self._look())

    def _look(self) -> MachineState:
        seen = self._gpus.look()
        return MachineState(
            time.time(),
            _cpu_mhz(),
            os.getloadavg()[0],
            psutil.cpu_percent() / 100.0,
            _cpu_celsius(),
            seen.gpus,
            seen.absent,
            seen.watts,
        )


def state_json(state: MachineState) -> dict[str, Any]:
    """As JSON, without the processes of other people."""
    value: dict[str, Any] = json_of(state)
    value["gpus"] = [{key: value for key, value in entry.items() if key != "processes"} for entry in value["gpus"]]
    return value


def during_json(states: Sequence[MachineState]) -> dict[str, Any]:
    """Least, median and most of what varies, and every reason that limited the clocks."""
    columns: dict[str, list[float]] = {}
    reasons: set[str] = set()
    for state in states:
        for name in ("cpu_mhz", "cpu_busy", "cpu_celsius", "watts"):
            _note(columns, name, getattr(state, name))
        for gpu in state.gpus:
            for name in ("sm_clock_mhz", "memory_clock_mhz", "temperature_celsius", "power_watts"):
                _note(columns, f"gpu{gpu.index}_{name}", getattr(gpu, name))
            reasons.update(gpu.throttle_reasons or ())
    spans: dict[str, Any] = {
        name: {"low": min(values), "median": median(values), "high": max(values)} for name, values in columns.items()
    }
    return {**spans, "clock_limits": sorted(reasons), "looks": len(states)}


def cpu_name() -> str | None:
    with suppress(OSError):
        for line in _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip() or None
    return None


def _note(columns: dict[str, list[float]], name: str, value: float | None) -> None:
    if value is not None:
        columns.setdefault(name, []).append(value)


def _cpu_mhz() -> float | None:
    with suppress(OSError, AttributeError, NotImplementedError, RuntimeError, ValueError):
        frequency = psutil.cpu_freq()
        return float(frequency.current) or None
    return None


def _cpu_celsius() -> float | None:
    with suppress(OSError, AttributeError, ValueError):
        found = psutil.sensors_temperatures()
        for name in _SENSORS:
            values = [shwtemp.current for shwtemp in found.get(name, ()) if shwtemp.current]
            if values:
                return float(max(values))
    return None


# On what a result depends beside the configuration: models, engine, machine, other settings, prompts and how they are
# asked. Results of two fingerprints do not belong into one table.

_MODELS = ("LLAMA_MODEL", "LLAMA_DRAFT_MODEL")
_NOT_SPEED = ("LLAMA_PORT", "LLAMA_HOST", "LLAMA_API_KEY", "LLAMA_API_KEY_FILE", "LLAMA_LOG_FILE", "LLAMA_ALIAS")
_HEAD = 1 << 20
_SHORT = 16


def fingerprint(
    values: Mapping[str, str],
    prompts: Sequence[WorkloadPrompt],
    options: MeasureOptions,
    *,
    engine: str | None = None,
    env: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """What to compare, by name; no secret is in it."""
    from specdash.backend.engines import nvml_gpus

    seen = nvml_gpus()
    gpus = ", ".join(sorted(gpu.name or "?" for gpu in seen.gpus)) if seen is not None else ""
    settings = {key: value for key, value in values.items() if key not in (*_NOT_SPEED, *_MODELS)}
    asked = [
        {"id": prompt.id, "kind": prompt.kind, "messages": prompt.messages, "tools": prompt.tools} for prompt in prompts
    ]
    # Where a log lies, and how long silence may last, change no speed.
    how = {
        key: value for key, value in json_of(options).items() if key not in ("log", "silence_s", "limit_s", "give_up")
    }
    return {
        **{key: file_words(values[key]) for key in _MODELS if values.get(key)},
        "engine": _engine(values, engine, env),
        "machine": f"{cpu_name() or 'CPU'}, {os.cpu_count()} threads",
        "gpus": gpus or "none",
        "settings": _digest(settings),
        "prompts": _digest(asked),
        "requests": _digest(how),
    }


def check_same(before: Mapping[str, str], now: Mapping[str, str], where: str) -> None:
    """Raise `RefusedError` naming what differs."""
    changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    if changed:
        shown = "; ".join(
            f"{key} was {before.get(key, 'not there')}, is {now.get(key, 'not there')}" for key in changed
        )
        raise RefusedError(f"{where} was measured under other conditions ({shown}): start over, without --resume")


def file_words(path: str) -> str:
    """A large file by its name, size and the digest of its first MiB, where a GGUF has all that distinguishes it.

    Hashing all of it would take longer than loading it.
    """
    file = Path(path).expanduser()
    try:
        with file.open("rb") as data:
            return f"{file.name}, {file.stat().st_size} bytes, {digest(data.read(_HEAD))}"
    except OSError as error:
        return f"{file.name}, {error.strerror}"


def _engine(values: Mapping[str, str], engine: str | None, env: Mapping[str, str]) -> str:
    from specdash.backend.auto import settings_of
    from specdash.backend.engines import find_engine
    from specdash.bench.engines import with_machine_keys

    chosen = {"LLAMA_ENGINE": engine} if engine else {}
    try:
        return find_engine(settings_of({**with_machine_keys(values, env), **chosen}, env), env).words
    except SpecdashError as error:
        return f"unknown ({error})"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_SHORT]


def _digest(value: Any) -> str:
    return digest(json.dumps(value, sort_keys=True, default=str).encode())
