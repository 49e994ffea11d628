"""What an engine allocates, by its own log, and what specdash projects for the same settings; and a card made small."""

from __future__ import annotations

import contextlib
import json
import mmap
import re
import shutil
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu.memory_holder import holding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu.kit import Kit, Server

MIB = 1024**2
PARTS = {"model": "weights", "KV": "KV cache", "RS": "recurrent state", "compute": "compute", "output": "output"}
"""The engine's name of a buffer to specdash's name of the part; what it calls output is no part of ours."""
_BUFFER = re.compile(r"(\S+)\s+(model|KV|RS|compute|output) buffer size\s*=\s*([\d.]+) MiB")
_HELD = re.compile(
    r"failed to allocate|out of memory|unable to allocate|failed to initialize|bad_alloc|error", re.IGNORECASE
)
_CONTEXT = re.compile(rb"\.context_length\x04\x00\x00\x00")


@dataclass(frozen=True, slots=True)
class Buffers:
    """Bytes by part. Pinned memory (`CUDA_Host`) is the computer's."""

    gpu: dict[str, int]
    host: dict[str, int]


def buffers(log: str) -> Buffers:
    """All that the engine said it allocated. A context whose graph is reserved again keeps the last size."""
    gpu: dict[str, float] = {}
    host: dict[str, float] = {}
    reserved: dict[str, float] = {}

    def add(device: str, part: str, size: float) -> None:
        side = gpu if re.fullmatch(r"CUDA\d+", device) else host
        side[part] = side.get(part, 0.0) + size

    def end_context() -> None:
        for device, size in reserved.items():
            add(device, "compute", size)
        reserved.clear()

    for device, name, size in _BUFFER.findall(log):
        if name == "output":
            end_context()
        if name == "compute":
            reserved[device] = float(size)
        else:
            add(device, PARTS[name], float(size))
    end_context()
    return Buffers(*({part: int(size * MIB) for part, size in side.items()} for side in (gpu, host)))


def projected(kit: Kit, home: Path, env_file: Path, types: str, model: Path, draft: Path | None, *more: str) -> Any:
    """What `specdash gguf` says that the model takes with these settings: `projection` of its JSON."""
    words = ["gguf", str(model), "--json", "--env-file", str(env_file), "--spec-type", types]
    words += ["--draft", str(draft)] if draft is not None else []
    words += ["--cpu"] if kit.cpu else []
    return kit.specdash(home, *words, *more).json()["projection"]


@contextlib.contextmanager
def started(kit: Kit, home: Path, env_file: Path, model: Path, name: str) -> Iterator[Server]:
    """The engine as `specdash backend run` would start it, without specdash above it. Raises RuntimeError."""
    shown = kit.specdash(home, "backend", "show", "--env-file", str(env_file), "--json").json()
    rendered = [str(word) for word in shown["rendered"]]
    for flag in ("--model", "--host", "--port"):
        at = rendered.index(flag)
        del rendered[at : at + 2]
    with kit.server(model, *rendered, env=shown["environment"], name=name) as server:
        yield server


def why_it_ended(error: RuntimeError) -> str:
    """The line of its log that says it, for a note."""
    lines = [line for line in str(error).splitlines() if _HELD.search(line)]
    return lines[0][-200:] if lines else str(error)[-200:]


def with_context(source: Path, target: Path, tokens: int) -> Path:
    """`source` as if it had been trained on `tokens`: neither specdash nor the engine goes beyond what it says."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        with target.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
            found = _CONTEXT.search(data)
            if found is None:
                target.unlink()
                raise ValueError(f"{source}: no context_length of 32 bits")
            data[found.end() : found.end() + 4] = tokens.to_bytes(4, "little")
    return target


@contextlib.contextmanager
def small_card(kit: Kit, leave_mib: int, own_bytes: int) -> Iterator[Kit]:
    """A kit whose engine has about `leave_mib` MiB: of the GPU, the rest of which is held, or of main memory.

    `own_bytes` is what the engine's process takes for itself in main memory; on a GPU nobody needs to say.
    """
    if kit.cpu:
        yield replace(kit, llama_server=_limited(kit, leave_mib * MIB + own_bytes))
        return
    with holding(leave_mib):
        yield kit


def _limited(kit: Kit, data_bytes: int) -> Path:
    """An engine that may have so many bytes of its own; mapped files do not count."""
    script = kit.work / "limited" / f"llama-server-{data_bytes}"
    script.parent.mkdir(parents=True, exist_ok=True)
    real = json.dumps(str(kit.llama_server))
    script.write_text(f'#!/bin/sh\nulimit -d {data_bytes // 1024}\nexec {real} "$@"\n', encoding="utf-8")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def own_bytes(server: Server) -> int:
    """Bytes of private, writable memory of the engine's process: what `_limited` limits."""
    status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="utf-8")
    found = re.search(r"VmData:\s+(\d+) kB", status)
    return int(found.group(1)) * 1024 if found is not None else 0


def used_gpu_bytes() -> int | None:
    """What is used on all GPUs now, by NVML; None without one."""
    from specdash.collect.gpu import GpuLooks

    return GpuLooks().look().used_bytes
