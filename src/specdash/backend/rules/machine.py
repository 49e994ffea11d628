"""The machine: the engine and its devices, memory, addresses and ports, disks."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

import psutil

from specdash.backend.auto import loads
from specdash.backend.engines import lacking
from specdash.backend.rules import error, info, warning
from specdash.backend.settings import DEFAULT
from specdash.core.target import is_loopback
from specdash.llama.memory import GPU_OVERHEAD, estimate, fit_context, headroom_of, together
from specdash.system.processes import name_of
from specdash.system.text import MIB, percent, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from specdash.backend.engines import UsedGpu
    from specdash.backend.plan import Plan
    from specdash.core.errors import Finding

MEMORY_RULES = ("memory", "gpu-memory", "host-memory")
OF_THE_MOMENT = frozenset({"port-owner", "gpu-memory", "env-file"})
"""Errors that a next try may not meet: a port or memory that is still held."""


def engine_lacks(plan: Plan) -> Iterator[Finding]:
    """What the settings ask for and the engine's own help does not list."""
    yield from lacking(plan.settings, plan.engine) if plan.engine is not None else ()


# Memory: one source of what is free, for the context that fits and for every finding about it.

_NARROW = 0.95
_HELD = ("KV cache", "recurrent state")
"""Parts of the memory that are written while the server runs: weights are mapped, and read again where they do not fit,
these must be held."""
_MOVES_TENSORS = ("--override-tensor", "-ot", "--rpc")
"""Arguments that move tensors in ways that the estimate does not follow."""


def free_on(gpus: Iterable[UsedGpu], own: frozenset[int]) -> tuple[int | None, bool]:
    """Bytes that are free, or will be when the processes `own` end; and whether that is certain.

    NVML's figure for a GPU that it knows, and the engine's own for any other device. In a container NVML shows no
    process, or numbers of the host: what the service holds is not known then.
    """
    total, known, seen = 0, True, False
    for used in gpus:
        gpu = used.gpu
        left = used.free_bytes if gpu is None or gpu.memory_left_bytes is None else gpu.memory_left_bytes
        if left is None:
            return None, False
        total += left
        held = [row.memory_bytes for row in (gpu.processes if gpu is not None else None) or () if row.pid in own]
        total += sum(filter(None, held))
        seen, known = seen or bool(held), known and None not in held
    return total, known and (seen or not own)


def free_in_main(plan: Plan) -> int:
    """Bytes of main memory that are free, or will be when this service stops."""
    used = [one.info["memory_info"] for one in psutil.process_iter(["memory_info"]) if one.pid in plan.own]
    return int(psutil.virtual_memory().available + sum(one.rss - one.shared for one in used if one is not None))


def fitting_context(plan: Plan) -> int:
    """The largest context that fits into what is free, a share of it left; 0 where none does, or that is not known."""
    settings, gpus = plan.settings, len(plan.gpus)
    free = free_on(plan.gpus, plan.own)[0] if gpus else free_in_main(plan)
    if plan.model is None or free is None:
        return 0
    if not gpus:
        # The prompt cache fills while the server runs; llama.cpp lowers its limit itself where memory runs out.
        limit = plan.settings.number("cache-ram") * MIB
        free -= min(limit, free // 2) if limit >= 0 else free // 2
    load, behind = loads(settings, plan.model, on_gpu=gpus > 0)
    share = headroom_of(settings.spec_types)
    return fit_context(plan.model, load, free, headroom=share, draft=plan.draft, draft_load=behind, gpus=max(gpus, 1))


def memory(plan: Plan) -> Iterator[Finding]:  # noqa: C901 - one branch for each way in which it fits or does not
    """What the settings take, against what is free."""
    if plan.model is None:
        return
    settings, gpus, model, draft = plan.settings, len(plan.gpus), plan.model, plan.draft
    load, behind = loads(settings, model, on_gpu=gpus > 0)
    wanted = together(model, load, draft, behind) or estimate(model, load)
    on_gpus, sure = free_on(plan.gpus, plan.own)
    if wanted is None or (gpus and (on_gpus is None or not wanted.gpu)):
        return
    in_main = free_in_main(plan)
    free = (on_gpus or 0) if gpus else in_main
    most, share = fitting_context(plan), headroom_of(settings.spec_types)
    layers = " or lower LLAMA_GPU_LAYERS" if gpus else ""
    fix = f"use a smaller model{layers}: no context fits beside the weights"
    if most:
        less = f"set {plan.named('ctx-size', most)} or less, which leaves {percent(1 - share)} free"
        if most >= load.cells * (1 if load.slots.unified else load.slots.sequences):
            less = f"lower {plan.named('ctx-size')}{layers}"
        fix = f"{less}, smaller cache types, or a smaller model"
    rows = []
    for part in wanted.parts:
        aside = " in main memory" if gpus and part.host and not part.gpu else ""
        about = "about " if part.estimated else ""
        rows.append(f"{part.model} {part.what} {about}{size(part.gpu or part.host, exact=True)}{aside}")
    shares, key = ", ".join(rows), plan.source("gpu-layers")
    held = sum(part.gpu + part.host for part in wanted.parts if part.what in _HELD)
    everything = (on_gpus or 0) + in_main + psutil.swap_memory().free
    if held > everything and wanted.exact:
        need = f"the KV cache alone takes {size(held, exact=True)}, {size(everything, exact=True)} are available"
        yield error("memory", f"{plan.named('ctx-size')}: {need}", plan.source("ctx-size"), fix)
        return
    if not gpus:
        need = f"about {size(wanted.host, exact=True)}"
        if wanted.host <= in_main:
            yield info("host-memory", f"{need} of {size(in_main, exact=True)} of memory, no GPU: {shares}")
            return
        slow = ", and weights that do not fit are read from disk again and again"
        slow = slow if settings.value("load-mode") in ("auto", "mmap") else ""
        message = f"{need} of memory are needed ({shares}), {size(in_main, exact=True)} are available{slow}"
        yield warning("host-memory", message, plan.source("model"), fix)
        return
    likely, of = wanted.gpu + GPU_OVERHEAD * gpus, f"{size(free, exact=True)} of GPU memory are or become free"
    if wanted.gpu_certain > free:
        need = f"{of}, {size(wanted.gpu_certain, exact=True)} are needed before the first compute buffer ({shares})"
        given = settings.parameters.get("gpu-layers")
        by_itself = given is None or given.source == DEFAULT or given.value == -1
        moved = any(settings.native.get(f"LLAMA_ARG_{name}") for name in ("OVERRIDE_TENSOR", "RPC"))
        moved = (
            moved or settings.text("tensor-split") is not None or any(w in _MOVES_TENSORS for w in settings.extra_args)
        )
        if settings.value("fit") != "off" and (by_itself or plan.settings.number("ctx-size") == 0):
            takes = "take a smaller context" if plan.settings.number("ctx-size") == 0 else "keep layers in main memory"
            yield warning("gpu-memory", f"{need}: the engine will {takes} (--fit)", key, fix)
        elif sure and not moved and (wanted.exact or wanted.gpu_weights > free):
            yield error("gpu-memory", need, key, fix)
        else:
            yield warning("gpu-memory", f"{need}, as far as is known", key, fix)
    elif likely > free * _NARROW:
        message = f"{of}, about {size(likely, exact=True)} are needed ({shares}): it is within 5 % or above"
        yield warning("gpu-memory", message, key, fix)
    else:
        message = f"about {size(likely, exact=True)} of {size(free, exact=True)} of GPU memory: {shares}"
        yield info("gpu-memory", message, key)


# Where a service will listen: an address of this machine, a port that is free or its own, and who gets in.


def listeners(port: int) -> list[int | None]:
    """The process of everything that listens on a TCP port; None for a process of another user."""
    return [
        found.pid
        for found in psutil.net_connections("tcp")
        if found.status == psutil.CONN_LISTEN and found.laddr and found.laddr.port == port
    ]


def listening(plan: Plan) -> Iterator[Finding]:
    """The backend's host, port and key."""
    settings, host_key = plan.settings, plan.source("host")
    hosts = [host.strip() for host in (settings.text("host") or "127.0.0.1").split(",")]
    for host in hosts:
        yield from place(host, settings.port, host_key, plan.source("port"), plan.own)
    exposed = any(host and not is_loopback(host) for host in hosts)
    if exposed and "api-key" not in settings.secrets and settings.text("api-key-file") is None:
        message = f"{plan.named('host')} lets other machines in, and no key is asked of them"
        yield warning("api-key", message, host_key, "set LLAMA_API_KEY, or use 127.0.0.1")


def place(host: str, port: int, host_key: str, port_key: str, own: frozenset[int]) -> Iterator[Finding]:
    """Listening on `host` and `port`; 0 is a port the system chooses."""
    faults: set[int | None] = set()
    try:
        rows = socket.getaddrinfo(host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as problem:
        rows = []
        reason = f"is no address ({getattr(problem, 'strerror', None) or problem})"
    for family, kind, _, _, address in dict.fromkeys(rows):
        try:
            with socket.socket(family, kind) as item:
                item.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                item.bind(address)
                faults.add(None)
        except OSError as problem:
            faults.add(problem.errno)
            known = problem.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
            reason = "is no address of this machine" if known else f"cannot listen there ({problem.strerror})"
    if errno.EADDRINUSE in faults:
        others = [pid for pid in listeners(port) if pid is None or pid not in own]
        if others:
            pid = others[0]
            who = f"{name_of(pid)} (pid {pid})" if pid is not None else "a process of another user"
            fix = f"stop it, or set another {port_key}"
            yield error("port-owner", f"port {port} is in use by {who}", port_key, fix)
    elif errno.EACCES in faults:
        message = f"{port_key}={port}: not permitted for this user"
        yield error("privileged-port", message, port_key, f"set {port_key} above 1023")
    elif None not in faults:
        fix = "use 127.0.0.1, or an address that `ip addr` shows"
        yield error("host", f"{host_key}={host}: {reason}", host_key, fix)


RULES = (engine_lacks, memory, listening)
