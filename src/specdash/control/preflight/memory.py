"""Whether what is asked for fits into the GPUs' memory, or the computer's where no GPU is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.backend.gpu_build import may_use_gpu
from specdash.backend.loads import loads as settings_loads
from specdash.backend.settings import DEFAULT
from specdash.control.preflight.engine import cached_engine
from specdash.control.preflight.processes import Own, resident_bytes, tree
from specdash.core.errors import SpecdashError
from specdash.llama.memory import (
    GPU_OVERHEAD,
    Estimate,
    Load,
    Part,
    estimate,
    fit_context,
    headroom_of,
    together,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdash.control.preflight.context import Findings
    from specdash.control.preflight.subject import Subject
    from specdash.core.observations import Gpu, Gpus

GIB = 1024**3
NARROW = 0.95
RULES = ("memory", "gpu-memory", "host-memory")
"""The rules of this module."""
HELD = ("KV cache", "recurrent state")
"""Parts of the memory that are written while the server runs."""
_UNNOTICED = 1.0
_PLACES = ("--override-tensor", "-ot", "--rpc")
_NEEDS = (
    *("model", "ctx-size", "parallel", "gpu-layers", "cache-type-k", "cache-type-v", "kv-unified", "ubatch-size"),
    *("spec-draft-model", "spec-draft-ngl", "spec-draft-type-k", "spec-draft-type-v", "llama_spec_type"),
)


def check(subject: Subject, out: Findings) -> None:
    """Add what is to be said of memory; nothing where the model's file or a setting it depends on cannot be read."""
    if subject.model is None or not subject.readable(*_NEEDS):
        return
    gpus = used_gpus(subject)
    wanted = projected(subject, on_gpu=bool(gpus))
    if wanted is None:
        return
    if gpus:
        _on_gpus(subject, gpus, wanted, out)
    else:
        _in_host_memory(subject, wanted, out)


def projected(subject: Subject, *, on_gpu: bool) -> Estimate | None:
    """What the server would take, None where the model's file cannot be read or does not tell it."""
    if subject.model is None:
        return None
    target, draft = loads(subject, on_gpu=on_gpu)
    found = together(subject.model, target, subject.draft, draft)
    return found if found is not None else estimate(subject.model, target)


def loads(subject: Subject, *, on_gpu: bool) -> tuple[Load, Load]:
    """How the settings load the model, and what drafts for it."""
    return settings_loads(subject.settings, subject.model, on_gpu=on_gpu)


def used_gpus(subject: Subject) -> tuple[Gpu, ...]:
    """The GPUs that the settings would use; none where the engine cannot use one."""
    settings = subject.settings
    if settings.value("gpu-layers") == 0 and subject.number("spec-draft-ngl") == 0:
        return ()
    if settings.value("device") == "none":
        return ()
    seen: Gpus | None = subject.context.gpus()
    if seen is None or not seen.gpus:
        return ()
    try:
        engine = cached_engine(settings) if subject.context.probe_engine else None
    except (SpecdashError, ValueError, OSError):
        engine = None
    if not may_use_gpu(engine):
        return ()
    shown = settings.environment.get("CUDA_VISIBLE_DEVICES", subject.context.base.get("CUDA_VISIBLE_DEVICES"))
    visible = _visible(seen.gpus, shown)
    if settings.value("split-mode") == "none" and visible:
        main = subject.number("main-gpu")
        return visible[main : main + 1]
    return visible


def _visible(gpus: tuple[Gpu, ...], shown: str | None) -> tuple[Gpu, ...]:
    if shown is None:
        return gpus
    found: list[Gpu] = []
    for word in (part.strip() for part in shown.split(",")):
        match = [one for one in gpus if word == str(one.index) or (word and one.uuid and one.uuid.startswith(word))]
        if not match:
            break  # as CUDA does: nothing behind a device that is not there counts
        found += match
    return tuple(found)


def _on_gpus(subject: Subject, gpus: tuple[Gpu, ...], wanted: Estimate, out: Findings) -> None:
    free, sure = free_on(gpus, Own(subject.context))
    if free is None or not wanted.gpu:
        return
    likely = wanted.gpu + GPU_OVERHEAD * len(gpus)
    key, shares = subject.source("gpu-layers"), _shares(wanted.parts)
    of = f"{size_text(free)} of GPU memory are or become free"
    need = f"{size_text(wanted.gpu_certain)} are needed before the first compute buffer ({shares})"
    fix = _fix(subject, free, len(gpus))
    if _cannot_be_held(subject, wanted, free, out):
        return
    if wanted.gpu_certain > free:
        fits_itself = _fits_itself(subject)
        if fits_itself is not None:
            out.warning("gpu-memory", f"{of}, {need}: {fits_itself}", key=key, fix=fix)
        elif sure and not _uncertain(subject) and (wanted.exact or wanted.gpu_weights > free):
            out.error("gpu-memory", f"{of}, {need}", key=key, fix=fix)
        else:
            out.warning("gpu-memory", f"{of}, {need}, as far as can be told", key=key, fix=fix)
    elif likely > free * NARROW:
        said = f"{of}, about {size_text(likely)} are needed ({shares}): it is within 5 % or above"
        out.warning("gpu-memory", said, key=key, fix=fix)
    else:
        out.info("gpu-memory", f"about {size_text(likely)} of {size_text(free)} of GPU memory: {shares}", key=key)


def _fix(subject: Subject, free: int, gpus: int) -> str:
    """What to do where it does not fit: the largest context that does, if there is one."""
    load, draft_load = loads(subject, on_gpu=gpus > 0)
    share = headroom_of(subject.settings.spec_types)
    most = 0
    if subject.model is not None:
        most = fit_context(
            subject.model, load, free, headroom=share, draft=subject.draft, draft_load=draft_load, gpus=max(gpus, 1)
        )
    layers = " or LLAMA_GPU_LAYERS" if gpus else ""
    if not most:
        return f"use a smaller model{' or lower LLAMA_GPU_LAYERS' if gpus else ''}: no context fits beside the weights"
    if most >= subject.cells * (1 if load.slots.unified else load.slots.sequences):
        return f"lower {subject.place('ctx-size')}{layers}, or use smaller cache types or models"
    less = f"set {subject.change('ctx-size', most)} or less, which leaves {1 - share:.0%} free"
    return f"{less}, smaller cache types, or a smaller model"


def free_on(gpus: Iterable[Gpu], own: Own) -> tuple[int | None, bool]:
    """Bytes that are free, or will be when this service stops; and whether that is certain."""
    total, sure = 0, True
    for gpu in gpus:
        if gpu.memory_total_bytes is None or gpu.memory_used_bytes is None:
            return None, False
        total += gpu.memory_total_bytes - gpu.memory_used_bytes
        for process in gpu.processes or ():
            if process.pid in own:
                total += process.memory_bytes or 0
                sure = sure and process.memory_bytes is not None
        if gpu.processes is None and own.pids():
            sure = False
    return total, sure


def _fits_itself(subject: Subject) -> str | None:
    """What the engine's --fit does about it, None when every size is given, and it can do nothing."""
    if subject.settings.value("fit") == "off":
        return None
    given = subject.settings.parameters.get("gpu-layers")
    if subject.number("ctx-size") == 0:
        return "the engine will take a smaller context (--fit)"
    if given is None or given.source.startswith(DEFAULT) or subject.number("gpu-layers") == -1:
        return "the engine will keep layers in main memory (--fit), which is slow"
    return None


def _uncertain(subject: Subject) -> bool:
    """Arguments that move tensors about in ways this estimate does not follow."""
    native = subject.settings.native
    moved = any(native.get(f"LLAMA_ARG_{name}") for name in ("OVERRIDE_TENSOR", "RPC"))
    placed = any(subject.settings.text(name) is not None for name in ("device", "tensor-split"))
    return moved or placed or any(word in _PLACES for word in subject.settings.extra_args)


def _cannot_be_held(subject: Subject, wanted: Estimate, on_gpus: int, out: Findings) -> bool:
    """Say that what the server writes while it runs takes more than all memory there is, wherever it goes.

    Weights are mapped, and read again where they do not fit; the KV cache and a recurrent state must be held.
    """
    import psutil

    room = on_gpus + available_bytes(subject) + psutil.swap_memory().free
    held = sum(part.gpu + part.host for part in wanted.parts if part.what in HELD)
    if held <= room or not wanted.exact:
        return False
    said = f"{subject.named('ctx-size')}: the KV cache alone takes {size_text(held)}, {size_text(room)} are available"
    gpus = len(used_gpus(subject)) if on_gpus else 0
    out.error("memory", said, key=subject.source("ctx-size"), fix=_fix(subject, on_gpus or room, gpus))
    return True


def available_bytes(subject: Subject) -> int:
    """Bytes of main memory that are free, or will be when this service stops."""
    import psutil

    return int(psutil.virtual_memory().available) + resident_bytes(tree(Own(subject.context).pids()))


def _in_host_memory(subject: Subject, wanted: Estimate, out: Findings) -> None:
    if _cannot_be_held(subject, wanted, 0, out):
        return
    available = available_bytes(subject)
    shares = _shares(wanted.parts)
    mapped = subject.settings.value("load-mode") in ("auto", "mmap")
    if wanted.host > available * _UNNOTICED:
        slow = ", and weights that do not fit are read from disk again and again" if mapped else ""
        need = f"about {size_text(wanted.host)} of memory are needed ({shares})"
        said = f"{need}, {size_text(available)} are available{slow}"
        out.warning("host-memory", said, key=subject.source("model"), fix=_fix(subject, available, 0))
    else:
        out.info("host-memory", f"about {size_text(wanted.host)} of {size_text(available)} of memory, no GPU: {shares}")


def _shares(parts: Iterable[Part]) -> str:
    rows = [
        f"{part.model} {part.what} {'about ' if part.estimated else ''}{size_text(part.gpu or part.host)}"
        + (" in main memory" if part.host and not part.gpu and any(one.gpu for one in parts) else "")
        for part in parts
    ]
    return ", ".join(rows)


def size_text(size: int) -> str:
    """Bytes in GiB, small ones in MiB."""
    return f"{size / GIB:.2f} GiB" if size >= GIB / 10 else f"{size / 1024**2:.1f} MiB"
