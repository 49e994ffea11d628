"""The memory that a server may have now: free on the GPUs it would use, or in the computer where it uses none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.backend.auto_context import Room
from specdash.backend.devices import NONE, Device, list_devices, visible_environment
from specdash.core.paths import run_records_dir
from specdash.core.run_record import RunRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.backend.engines import Engine
    from specdash.backend.settings import BackendSettings
    from specdash.core.observations import Gpus
    from specdash.core.readings import Reading


def used_devices(settings: BackendSettings, engine: Engine, base: Mapping[str, str]) -> tuple[Device, ...]:
    """The devices the server would use; none where it runs on the CPU."""
    if settings.value("gpu-layers") == 0 or settings.value("device") == NONE:
        return ()
    found = list_devices(engine, visible_environment(settings, base)) or ()
    named = settings.text("device")
    if named is not None:
        wanted = [word.lower() for word in named.split(",")]
        found = tuple(one for one in found if one.name.lower() in wanted)
    if settings.value("split-mode") == NONE:
        main = int(settings.value("main-gpu") or 0)
        found = found[main : main + 1]
    return found


def room_of(settings: BackendSettings, engine: Engine, base: Mapping[str, str], env_file: str | None = None) -> Room:
    """The memory there is, and what a server that runs from `env_file` holds now: it ends before the next starts."""
    devices = used_devices(settings, engine, base)
    own = _own(base, env_file)
    if devices:
        free = sum(one.free_bytes for one in devices) + _on_gpus(own)
        return Room(free, len(devices), " and ".join(f"{one.name} ({one.description})" for one in devices))
    import psutil

    free = int(psutil.virtual_memory().available) + sum(_resident(pid) for pid in own)
    return Room(free, 0, "main memory")


def _own(base: Mapping[str, str], env_file: str | None) -> frozenset[int]:
    """The engines that run from the env file, by their run records."""
    if env_file is None:
        return frozenset()
    found = set()
    wanted = str(Path(env_file).expanduser().absolute())
    for file in run_records_dir(base).glob("*.json"):
        try:
            record = RunRecord.from_json(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if record is not None and record.env_file == wanted:
            found.add(record.pid)
    return frozenset(found)


def _on_gpus(pids: frozenset[int]) -> int:
    """Bytes that these processes hold on the GPUs, as far as NVML tells."""
    if not pids:
        return 0
    from specdash.collect.gpu import GpuCollector

    seen: list[Reading[Any]] = []
    GpuCollector(seen.append).step(1.0)
    gpus: Gpus | None = seen[-1].value
    if gpus is None:
        return 0
    rows = [process for gpu in gpus.gpus for process in gpu.processes or ()]
    return sum(process.memory_bytes or 0 for process in rows if process.pid in pids)


def _resident(pid: int) -> int:
    """Bytes of a process that nobody else shares: mapped weights are free memory already."""
    import psutil

    try:
        held = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0
    return max(int(held.rss) - int(getattr(held, "shared", 0)), 0)
