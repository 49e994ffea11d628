"""The machine: the engine and its devices, memory, addresses and ports, disks."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from specdash.backend.auto import MemoryRoom, loads
from specdash.backend.binary import LACKS
from specdash.backend.devices import NONE, list_devices, visible_environment
from specdash.backend.engines import build_of, lacking
from specdash.backend.rules import error, info, warning
from specdash.backend.settings import DEFAULT
from specdash.backend.settings import SOURCE as EXTRA_ARGS
from specdash.core.errors import InputError
from specdash.core.parameter_catalogue import BY_NAME
from specdash.core.target import is_loopback
from specdash.llama.memory import GPU_OVERHEAD, MemoryEstimate, estimate, fit_context, headroom_of, together
from specdash.system.processes import listener_owners, name_of, resident_bytes
from specdash.system.text import percent, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from specdash.backend.devices import UsedGpu
    from specdash.backend.plan import Plan
    from specdash.core.errors import Finding
    from specdash.llama.memory import MemoryPart

MEMORY_RULES = ("memory", "gpu-memory", "host-memory")
OF_THE_MOMENT = frozenset({"port-owner", "gpu-memory", "env-file"})
"""Errors that a next try may not meet: a port or memory that is still held."""


def engine_lacks(plan: Plan) -> Iterator[Finding]:
    """What the settings ask for and the engine's own help does not list."""
    yield from lacking(plan.settings, plan.engine.can) if plan.engine is not None else ()


def devices(plan: Plan) -> Iterator[Finding]:
    """Devices that the settings name and the engine does not list; it is asked only where they name any."""
    for name in ("device", "spec-draft-device"):
        text = plan.settings.text(name)
        if plan.engine is None or text is None or text == NONE:
            continue
        listed = list_devices(plan.engine, visible_environment(plan.settings, plan.circumstances.base))
        known = {device.name.lower() for device in listed or ()}
        strange = [word for word in text.split(",") if word.lower() not in known]
        if listed is None or not strange:
            continue
        offered = " or ".join(f"{device.name} ({device.description})" for device in listed)
        fix = f"use {offered}, or 'none' for the CPU" if listed else "remove it: the engine has no device but the CPU"
        said = f"{plan.named(name)}: {plan.engine.words} lists no device {', '.join(strange)}"
        yield error(LACKS, said, plan.source(name), fix)


def no_gpu(plan: Plan) -> Iterator[Finding]:
    """Layers for a GPU that an engine built for the CPU does not use."""
    if plan.engine is not None and plan.number("gpu-layers") not in (0, -1) and build_of(plan.engine).cpu_only:
        said = f"{plan.named('gpu-layers')} has no effect: {plan.engine.words} was built for the CPU"
        fix = "`specdash doctor` says how to get one that uses the GPU"
        yield warning(LACKS, said, plan.source("gpu-layers"), fix)


# Memory: one source of what is free, for the context that fits and for what is said of it.

_NARROW = 0.95
_HELD = ("KV cache", "recurrent state")
"""Parts of the memory that are written while the server runs."""
_MOVES_TENSORS = ("--override-tensor", "-ot", "--rpc")


def free_on(gpus: Iterable[UsedGpu], own: frozenset[int]) -> tuple[int | None, bool]:
    """Bytes that are free, or will be when the processes `own` end; and whether that is certain.

    NVML's figure for a GPU that it knows, and the engine's own for any other device.
    """
    total, sure, seen = 0, True, False
    found: list[int] = []
    for used in gpus:
        gpu = used.gpu
        left = used.free_bytes if gpu is None or gpu.memory_left_bytes is None else gpu.memory_left_bytes
        if left is None:
            return None, False
        total += left
        processes = gpu.processes if gpu is not None else None
        for process in processes or ():
            found.append(process.pid)
            if process.pid in own:
                seen = True
                total += process.memory_bytes or 0
                sure = sure and process.memory_bytes is not None
        sure = sure and not (processes is None and own)
    if not seen and own:
        # In a container NVML tells no process, or the host's numbers for them: what the service holds is not seen then.
        sure = sure and bool(found) and all(Path(f"/proc/{pid}").exists() for pid in found)
    return total, sure


def free_in_main(plan: Plan) -> int:
    """Bytes of main memory that are free, or will be when this service stops."""
    return int(psutil.virtual_memory().available) + resident_bytes(plan.own)


def room(plan: Plan) -> MemoryRoom:
    """The memory that the plan may use. Raises `InputError` where that of its GPUs is not known."""
    if not plan.gpus:
        return MemoryRoom(free_in_main(plan), 0, "main memory")
    free, _ = free_on(plan.gpus, plan.own)
    if free is None:
        what = f"{plan.named('ctx-size')}: what is free on {plan.gpus[0].words} is not known"
        raise InputError(what, "set a number")
    return MemoryRoom(free, len(plan.gpus), " and ".join(gpu.words for gpu in plan.gpus))


def memory(plan: Plan) -> Iterator[Finding]:
    """What the settings take, against what is free."""
    if plan.model is None or plan.dropped:
        return
    target, small = loads(plan.settings, plan.model, on_gpu=bool(plan.gpus))
    wanted = together(plan.model, target, plan.draft, small) or estimate(plan.model, target)
    if wanted is None:
        return
    free, sure = free_on(plan.gpus, plan.own)
    if plan.gpus and (free is None or not wanted.gpu):
        return
    beyond = _cannot_be_held(plan, wanted, free or 0)
    if beyond is not None:
        yield beyond
    elif plan.gpus:
        yield _on_gpus(plan, wanted, free or 0, sure=sure)
    else:
        yield _in_main_memory(plan, wanted)


def _cannot_be_held(plan: Plan, wanted: MemoryEstimate, on_gpus: int) -> Finding | None:
    """What the server writes while it runs takes more than all memory there is, wherever it goes.

    Weights are mapped, and read again where they do not fit; the KV cache and a recurrent state must be held.
    """
    available = on_gpus + free_in_main(plan) + psutil.swap_memory().free
    held = sum(part.gpu + part.host for part in wanted.parts if part.what in _HELD)
    if held <= available or not wanted.exact:
        return None
    need = f"the KV cache alone takes {size(held, exact=True)}, {size(available, exact=True)} are available"
    fix = _smaller(plan, on_gpus or available, len(plan.gpus) if on_gpus else 0)
    return error("memory", f"{plan.named('ctx-size')}: {need}", plan.source("ctx-size"), fix)


def _on_gpus(plan: Plan, wanted: MemoryEstimate, free: int, *, sure: bool) -> Finding:
    likely = wanted.gpu + GPU_OVERHEAD * len(plan.gpus)
    key, shares = plan.source("gpu-layers"), _shares(wanted.parts)
    of = f"{size(free, exact=True)} of GPU memory are or become free"
    need = f"{size(wanted.gpu_certain, exact=True)} are needed before the first compute buffer ({shares})"
    if wanted.gpu_certain > free:
        fix = _smaller(plan, free, len(plan.gpus))
        by_itself = _fits_by_itself(plan)
        if by_itself is not None:
            return warning("gpu-memory", f"{of}, {need}: {by_itself}", key, fix)
        if sure and not _moves_tensors(plan) and (wanted.exact or wanted.gpu_weights > free):
            return error("gpu-memory", f"{of}, {need}", key, fix)
        return warning("gpu-memory", f"{of}, {need}, as far as can be told", key, fix)
    if likely > free * _NARROW:
        said = f"{of}, about {size(likely, exact=True)} are needed ({shares}): it is within 5 % or above"
        return warning("gpu-memory", said, key, _smaller(plan, free, len(plan.gpus)))
    said = f"about {size(likely, exact=True)} of {size(free, exact=True)} of GPU memory: {shares}"
    return info("gpu-memory", said, key)


def _in_main_memory(plan: Plan, wanted: MemoryEstimate) -> Finding:
    available, shares = free_in_main(plan), _shares(wanted.parts)
    need = f"about {size(wanted.host, exact=True)}"
    if wanted.host <= available:
        return info("host-memory", f"{need} of {size(available, exact=True)} of memory, no GPU: {shares}")
    mapped = plan.settings.value("load-mode") in ("auto", "mmap")
    slow = ", and weights that do not fit are read from disk again and again" if mapped else ""
    said = f"{need} of memory are needed ({shares}), {size(available, exact=True)} are available{slow}"
    return warning("host-memory", said, plan.source("model"), _smaller(plan, available, 0))


def _smaller(plan: Plan, free: int, gpus: int) -> str:
    load, small = loads(plan.settings, plan.model, on_gpu=gpus > 0)
    share = headroom_of(plan.settings.spec_types)
    most = 0
    if plan.model is not None:
        more = {"draft": plan.draft, "draft_load": small}
        most = fit_context(plan.model, load, free, headroom=share, gpus=max(gpus, 1), **more)  # type: ignore[arg-type]
    if not most:
        return f"use a smaller model{' or lower LLAMA_GPU_LAYERS' if gpus else ''}: no context fits beside the weights"
    if most >= plan.cells * (1 if load.slots.unified else load.slots.sequences):
        layers = " or LLAMA_GPU_LAYERS" if gpus else ""
        return f"lower {plan.place('ctx-size')}{layers}, or use smaller cache types or models"
    less = f"set {plan.change('ctx-size', most)} or less, which leaves {percent(1 - share)} free"
    return f"{less}, smaller cache types, or a smaller model"


def _fits_by_itself(plan: Plan) -> str | None:
    """What the engine's --fit does about it, None when every size is given, and it can do nothing."""
    if plan.settings.value("fit") == "off":
        return None
    if plan.number("ctx-size") == 0:
        return "the engine will take a smaller context (--fit)"
    given = plan.settings.parameters.get("gpu-layers")
    if given is None or given.source == DEFAULT or plan.number("gpu-layers") == -1:
        return "the engine will keep layers in main memory (--fit), which is slow"
    return None


def _moves_tensors(plan: Plan) -> bool:
    """Arguments that move tensors about in ways this estimate does not follow."""
    native, words = plan.settings.native, plan.settings.extra_args
    moved = any(native.get(f"LLAMA_ARG_{name}") for name in ("OVERRIDE_TENSOR", "RPC"))
    return moved or plan.settings.text("tensor-split") is not None or any(word in _MOVES_TENSORS for word in words)


def _shares(parts: Iterable[MemoryPart]) -> str:
    parts = tuple(parts)
    rows = [
        f"{part.model} {part.what} {'about ' if part.estimated else ''}{size(part.gpu or part.host, exact=True)}"
        + (" in main memory" if part.host and not part.gpu and any(part.gpu for part in parts) else "")
        for part in parts
    ]
    return ", ".join(rows)


# Where a service will listen: an address of this machine, a port that is free or its own, and who gets in.


def listeners(port: int) -> list[tuple[str, int | None]]:
    """The address and process of everything that listens on a TCP port; None for a process of another user."""
    if listener_owners(port) == set():
        # To find the processes takes a look at every file that is open on the machine.
        return []
    return [
        (found.laddr.ip, found.pid)
        for found in psutil.net_connections("tcp")
        if found.status == psutil.CONN_LISTEN and found.laddr and found.laddr.port == port
    ]


def _collides(host: str, address: str) -> bool:
    """Whether a server on `host` would want the address that another one listens on."""
    try:
        wanted = ipaddress.ip_address({"localhost": "127.0.0.1", "": "0.0.0.0"}.get(host, host.strip("[]")))  # noqa: S104
    except ValueError:
        return True
    theirs = ipaddress.ip_address(address)
    theirs = (theirs.ipv4_mapped if isinstance(theirs, ipaddress.IPv6Address) else None) or theirs
    if theirs.is_unspecified:
        return theirs.version == 6 or wanted.version == 4
    return wanted.is_unspecified or wanted == theirs


def listening(plan: Plan) -> Iterator[Finding]:
    """The backend's host, port and key."""
    settings, host_key = plan.settings, plan.source("host")
    hosts = [host.strip() for host in (settings.text("host") or "127.0.0.1").split(",")]
    if plan.dropped.isdisjoint((*BY_NAME["host"].keys, *BY_NAME["port"].keys, EXTRA_ARGS)):
        for host in hosts:
            yield from place(host, settings.port, host_key, plan.source("port"), plan.own)
    exposed = any(host and not is_loopback(host) for host in hosts)
    if exposed and "api-key" not in settings.secrets and settings.text("api-key-file") is None:
        said = f"{plan.named('host')} lets other machines in, and no key is asked of them"
        yield warning("api-key", said, host_key, "set LLAMA_API_KEY, or use 127.0.0.1")


def place(host: str, port: int, host_key: str, port_key: str, own: frozenset[int]) -> Iterator[Finding]:
    """Listening on `host` and `port`; 0 is a port the system chooses."""
    reason = _address_trouble(host)
    if reason is not None:
        fix = "use 127.0.0.1, or an address that `ip addr` shows"
        yield error("host", f"{host_key}={host}: {reason}", host_key, fix)
        return
    if port and not _may_bind(port):
        said = f"{port_key}={port}: not permitted for this user"
        yield error("privileged-port", said, port_key, f"set {port_key} above 1023")
    for address, pid in listeners(port) if port else ():
        if _collides(host, address) and (pid is None or pid not in own):
            who = f"{name_of(pid)} (pid {pid})" if pid is not None else "a process of another user"
            said = f"port {port} is in use by {who}"
            yield error("port-owner", said, port_key, f"stop it, or set another {port_key}")
            return


def _address_trouble(host: str) -> str | None:
    """Why listening on this address is impossible here; found out on a port that the system chooses."""
    try:
        rows = socket.getaddrinfo(host.strip("[]") or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as problem:
        return f"is no address ({getattr(problem, 'strerror', None) or problem})"
    said = None
    for family, kind, _, _, address in dict.fromkeys(rows):
        try:
            with socket.socket(family, kind) as item:
                item.bind(address)
                return None
        except OSError as problem:
            known = problem.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
            said = "is no address of this machine" if known else f"cannot listen there ({problem.strerror})"
    return said


def _may_bind(port: int) -> bool:
    try:
        first_free = int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text(encoding="ascii"))
    except (OSError, ValueError):
        first_free = 1024
    return port >= first_free or os.geteuid() == 0


RULES = (engine_lacks, devices, no_gpu, memory, listening)
