"""Whether what is asked for fits into the GPUs' memory, or the computer's where no GPU is used."""

from __future__ import annotations

import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.backend import auto
from specdash.backend import settings as extra_args
from specdash.backend.auto import choose
from specdash.backend.auto import loads as settings_loads
from specdash.backend.engines import BINARY, Engine, find_engine, may_use_gpu
from specdash.backend.settings import DEFAULT, settings_from_env
from specdash.control.preflight import PreflightContext
from specdash.control.preflight.machine import OwnProcesses, tree
from specdash.core.errors import Problem, Severity, SpecdashError
from specdash.core.parameter_catalogue import BY_KEY, BY_NAME
from specdash.core.speculation import KNOBS, NO_SPECULATION, is_auto, spec_type
from specdash.llama.memory import (
    GPU_OVERHEAD,
    MemoryEstimate,
    MemoryPart,
    ModelLoad,
    estimate,
    fit_context,
    headroom_of,
    together,
)
from specdash.llama.model_facts import type_for
from specdash.system.data import dataclass
from specdash.system.processes import resident_bytes
from specdash.system.text import MIB, percent, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from specdash.backend.settings import BackendSettings
    from specdash.control.preflight.context import Findings
    from specdash.control.preflight.settings import BackendSubject
    from specdash.core.readings import Gpu, Gpus
    from specdash.llama.gguf import GgufFacts


# Whether there is an engine, whether it runs, and whether it can do what is asked.

_KEPT = 8
_lock = threading.Lock()
_found: dict[tuple[object, ...], Engine] = {}


def check_engine(subject: BackendSubject, out: Findings) -> None:
    """Add what is to be said of the engine."""
    if not subject.context.probe_engine:
        return
    settings = auto.without(subject.settings)
    try:
        engine = cached_engine(settings)
    except (SpecdashError, ValueError, OSError) as error:
        out.of(Severity.ERROR, "engine", _problem(error))
        return
    from specdash.backend import devices
    from specdash.backend.capabilities import lacking, probe

    base = subject.context.base
    try:
        lacks = (*lacking(settings, probe(engine, base)), *devices.lacking(settings, engine, base))
    except SpecdashError as error:
        out.of(Severity.ERROR, "engine", error.problem)
        return
    for lack in lacks:
        (out.error if lack.refused else out.warning)("engine-lacks", lack.message, key=lack.key, fix=lack.fix)


def _problem(error: Exception) -> Problem:
    return error.problem if isinstance(error, SpecdashError) else Problem(str(error))


def cached_engine(settings: BackendSettings) -> Engine:
    """`backend.engines.find_engine`, asked once for every state of the binary. Raises what it raises."""
    named = settings.binary
    path = named if named is not None and os.sep in named else shutil.which(named or BINARY)
    try:
        stat = os.stat(os.path.expanduser(path)) if path is not None else None  # noqa: PTH111, PTH116 - as given
    except (OSError, ValueError):
        stat = None
    state = (stat.st_mtime_ns, stat.st_size, stat.st_ino) if stat is not None else None
    key = (settings.engine, named, path, state)
    with _lock:
        known = _found.get(key)
    if known is None:
        known = find_engine(settings)
        with _lock:
            _found[key] = known
            while len(_found) > _KEPT:
                _found.pop(next(iter(_found)))
    return known


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


def check_memory(subject: BackendSubject, out: Findings) -> None:
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


def projected(subject: BackendSubject, *, on_gpu: bool) -> MemoryEstimate | None:
    """What the server would take, None where the model's file cannot be read or does not tell it."""
    if subject.model is None:
        return None
    target, draft = loads(subject, on_gpu=on_gpu)
    found = together(subject.model, target, subject.draft, draft)
    return found if found is not None else estimate(subject.model, target)


def loads(subject: BackendSubject, *, on_gpu: bool) -> tuple[ModelLoad, ModelLoad]:
    """How the settings load the model, and what drafts for it."""
    return settings_loads(subject.settings, subject.model, on_gpu=on_gpu)


def used_gpus(subject: BackendSubject) -> tuple[Gpu, ...]:
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
        match = [gpu for gpu in gpus if word == str(gpu.index) or (word and gpu.uuid and gpu.uuid.startswith(word))]
        if not match:
            break  # as CUDA does: nothing behind a device that is not there counts
        found += match
    return tuple(found)


def _on_gpus(subject: BackendSubject, gpus: tuple[Gpu, ...], wanted: MemoryEstimate, out: Findings) -> None:
    free, sure = free_on(gpus, OwnProcesses(subject.context))
    if free is None or not wanted.gpu:
        return
    likely = wanted.gpu + GPU_OVERHEAD * len(gpus)
    key, shares = subject.source("gpu-layers"), _shares(wanted.parts)
    of = f"{size(free, exact=True)} of GPU memory are or become free"
    need = f"{size(wanted.gpu_certain, exact=True)} are needed before the first compute buffer ({shares})"
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
        said = f"{of}, about {size(likely, exact=True)} are needed ({shares}): it is within 5 % or above"
        out.warning("gpu-memory", said, key=key, fix=fix)
    else:
        out.info(
            "gpu-memory",
            f"about {size(likely, exact=True)} of {size(free, exact=True)} of GPU memory: {shares}",
            key=key,
        )


def _fix(subject: BackendSubject, free: int, gpus: int) -> str:
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
    less = f"set {subject.change('ctx-size', most)} or less, which leaves {percent(1 - share)} free"
    return f"{less}, smaller cache types, or a smaller model"


def free_on(gpus: Iterable[Gpu], own: OwnProcesses) -> tuple[int | None, bool]:
    """Bytes that are free, or will be when this service stops; and whether that is certain."""
    total, sure, seen = 0, True, False
    found: list[int] = []
    for gpu in gpus:
        left = gpu.memory_left_bytes
        if left is None:
            return None, False
        total += left
        for process in gpu.processes or ():
            found.append(process.pid)
            if process.pid in own:
                seen = True
                total += process.memory_bytes or 0
                sure = sure and process.memory_bytes is not None
        if gpu.processes is None and own.pids():
            sure = False
    if not seen and own.pids():
        # In a container NVML tells no process, or the host's numbers for them: what the service holds is not seen then.
        sure = sure and bool(found) and all(Path(f"/proc/{pid}").exists() for pid in found)
    return total, sure


def _fits_itself(subject: BackendSubject) -> str | None:
    """What the engine's --fit does about it, None when every size is given, and it can do nothing."""
    if subject.settings.value("fit") == "off":
        return None
    given = subject.settings.parameters.get("gpu-layers")
    if subject.number("ctx-size") == 0:
        return "the engine will take a smaller context (--fit)"
    if given is None or given.source == DEFAULT or subject.number("gpu-layers") == -1:
        return "the engine will keep layers in main memory (--fit), which is slow"
    return None


def _uncertain(subject: BackendSubject) -> bool:
    """Arguments that move tensors about in ways this estimate does not follow."""
    native = subject.settings.native
    moved = any(native.get(f"LLAMA_ARG_{name}") for name in ("OVERRIDE_TENSOR", "RPC"))
    placed = any(subject.settings.text(name) is not None for name in ("device", "tensor-split"))
    return moved or placed or any(word in _PLACES for word in subject.settings.extra_args)


def _cannot_be_held(subject: BackendSubject, wanted: MemoryEstimate, on_gpus: int, out: Findings) -> bool:
    """Say that what the server writes while it runs takes more than all memory there is, wherever it goes.

    Weights are mapped, and read again where they do not fit; the KV cache and a recurrent state must be held.
    """
    import psutil

    room = on_gpus + available_bytes(subject) + psutil.swap_memory().free
    held = sum(part.gpu + part.host for part in wanted.parts if part.what in HELD)
    if held <= room or not wanted.exact:
        return False
    need = f"the KV cache alone takes {size(held, exact=True)}, {size(room, exact=True)} are available"
    said = f"{subject.named('ctx-size')}: {need}"
    gpus = len(used_gpus(subject)) if on_gpus else 0
    out.error("memory", said, key=subject.source("ctx-size"), fix=_fix(subject, on_gpus or room, gpus))
    return True


def available_bytes(subject: BackendSubject) -> int:
    """Bytes of main memory that are free, or will be when this service stops."""
    import psutil

    return int(psutil.virtual_memory().available) + resident_bytes(tree(OwnProcesses(subject.context).pids()))


def _in_host_memory(subject: BackendSubject, wanted: MemoryEstimate, out: Findings) -> None:
    if _cannot_be_held(subject, wanted, 0, out):
        return
    available = available_bytes(subject)
    shares = _shares(wanted.parts)
    mapped = subject.settings.value("load-mode") in ("auto", "mmap")
    if wanted.host > available * _UNNOTICED:
        slow = ", and weights that do not fit are read from disk again and again" if mapped else ""
        need = f"about {size(wanted.host, exact=True)} of memory are needed ({shares})"
        said = f"{need}, {size(available, exact=True)} are available{slow}"
        out.warning("host-memory", said, key=subject.source("model"), fix=_fix(subject, available, 0))
    else:
        out.info(
            "host-memory",
            f"about {size(wanted.host, exact=True)} of {size(available, exact=True)} of memory, no GPU: {shares}",
        )


def _shares(parts: Iterable[MemoryPart]) -> str:
    rows = [
        f"{part.model} {part.what} {'about ' if part.estimated else ''}{size(part.gpu or part.host, exact=True)}"
        + (" in main memory" if part.host and not part.gpu and any(part.gpu for part in parts) else "")
        for part in parts
    ]
    return ", ".join(rows)


# What a model file would take in memory with the sizes of an env file, or others, and what context would fit.


SIZES = (
    *("ctx-size", "parallel", "kv-unified", "batch-size", "ubatch-size", "cache-type-k", "cache-type-v", "flash-attn"),
    *("swa-full", "kv-offload", "gpu-layers", "fit", "split-mode", "main-gpu", "spec-draft-n-max", "spec-draft-ngl"),
    *("spec-draft-type-k", "spec-draft-type-v"),
)
"""Parameters that memory depends on."""
_FILES = [key for name in ("model", "spec-draft-model", "spec-draft-hf") for key in BY_NAME[name].keys]
_FILES += BY_KEY["LLAMA_SPEC_TYPE"].keys
"""Keys that name the files and the types, in place of which those asked for are put."""


@dataclass(frozen=True, slots=True)
class ProjectionRequest:
    """What is asked for beside the files. `sizes` are texts by parameter name; they win over the env file's.

    `free_mib` is memory of another machine; `on_gpu` says whether it, or this one, runs the model on a GPU, None to
    find out (and a given amount is a GPU's). `spec_types` are a chain as an env file writes it.
    """

    env_file: Path
    env: Mapping[str, str]
    sizes: Mapping[str, str]
    spec_types: str | None = None
    free_mib: int | None = None
    on_gpu: bool | None = None


@dataclass(frozen=True, slots=True)
class Projection:
    """What the files take. `estimate` is None where the header does not tell the layers."""

    estimate: MemoryEstimate | None
    load: ModelLoad
    draft_load: ModelLoad
    context: int
    """`--ctx-size` that was reckoned with, of all slots together."""
    spec_types: tuple[str, ...]
    gpus: int
    """GPUs it is reckoned for; 0: the computer's memory."""
    free_bytes: int | None
    """What is free there, None where it is not known."""
    headroom: float
    """Share of it that may be used."""

    @property
    def needed(self) -> int | None:
        """Bytes needed where the model shall be, with what a GPU's context takes."""
        if self.estimate is None:
            return None
        return self.estimate.gpu + GPU_OVERHEAD * self.gpus if self.gpus else self.estimate.host

    @property
    def fits(self) -> bool | None:
        """Whether it fits with headroom; None where that is not known."""
        if self.needed is None or self.free_bytes is None:
            return None
        return self.needed <= self.free_bytes * self.headroom


def project(model: GgufFacts, draft: GgufFacts | None, wish: ProjectionRequest) -> Projection:
    """Reckon. Raises `InputError` for a size that cannot be meant."""
    subject = _subject(model, draft, wish, ("none",))
    gpus, free = _place(subject, wish)
    types = _types(model, draft, wish, on_gpu=gpus > 0)
    subject = _subject(model, draft, wish, types)
    load, draft_load = loads(subject, on_gpu=gpus > 0)
    context = subject.cells * (1 if load.slots.unified else load.slots.sequences)
    found = together(model, load, draft, draft_load)
    return Projection(found, load, draft_load, context, types, gpus, free, headroom_of(types))


def largest(model: GgufFacts, draft: GgufFacts | None, projection: Projection) -> int:
    """The largest `--ctx-size` that fits into what is free, 0 when none does."""
    return fit_context(
        model,
        projection.load,
        projection.free_bytes or 0,
        headroom=projection.headroom,
        draft=draft,
        draft_load=projection.draft_load,
        gpus=projection.gpus,
    )


def at_context(model: GgufFacts, draft: GgufFacts | None, projection: Projection, context: int) -> Projection:
    """The same, with another context."""
    cells = context // (1 if projection.load.slots.unified else projection.load.slots.sequences)
    load, draft_load = replace(projection.load, cells=cells), replace(projection.draft_load, cells=cells)
    return replace(
        projection, estimate=together(model, load, draft, draft_load), load=load, draft_load=draft_load, context=context
    )


def _subject(
    model: GgufFacts, draft: GgufFacts | None, wish: ProjectionRequest, types: tuple[str, ...]
) -> BackendSubject:
    from specdash.control.preflight.settings import BackendSubject

    extra = extra_args.parse(wish.env.get(extra_args.SOURCE, ""))
    values = {
        key: text for key, text in wish.env.items() if key.startswith(("LLAMA_ARG_", "CUDA_", "LLAMA_BIN", "LLAMA_ENG"))
    }
    for name in SIZES:
        parameter = BY_NAME[name]
        text = wish.sizes.get(name) or extra.known.get(name)
        for key in parameter.keys:
            text = text or wish.env.get(key)
            values.pop(key, None)
        if text and not (name == "ctx-size" and is_auto(text)):
            values[parameter.key] = text
    for key in _FILES:
        values.pop(key, None)
    if wish.env.get(KNOBS[0]) and types != (NO_SPECULATION,):
        values[KNOBS[0]] = wish.env[KNOBS[0]]
    values["LLAMA_MODEL"] = model.path
    values["LLAMA_SPEC_TYPE"] = ",".join(types) or NO_SPECULATION
    if draft is not None and types != (NO_SPECULATION,):
        values["LLAMA_DRAFT_MODEL"] = draft.path
    settings = settings_from_env(values, detect=lambda _: None)
    context = PreflightContext(wish.env_file)
    used = draft if settings.draft_model is not None else None
    return BackendSubject(values, context, settings, frozenset(), model, used)


def _place(subject: BackendSubject, wish: ProjectionRequest) -> tuple[int, int | None]:
    """How many GPUs, and bytes that are free there, or in the computer's memory."""
    import psutil

    if wish.free_mib is not None:
        return (0 if wish.on_gpu is False else 1), wish.free_mib * MIB
    if wish.on_gpu is not False:
        gpus = used_gpus(subject)
        if gpus:
            return len(gpus), free_on(gpus, OwnProcesses(subject.context))[0]
        if wish.on_gpu:
            return 1, None
    return 0, psutil.virtual_memory().available


def _types(model: GgufFacts, draft: GgufFacts | None, wish: ProjectionRequest, *, on_gpu: bool) -> tuple[str, ...]:
    """The types whose memory is reckoned: those asked for, what a draft is for, the env file's, or as `auto` does."""
    if wish.spec_types is not None and not is_auto(wish.spec_types):
        return tuple(part.strip() for part in wish.spec_types.split(",") if part.strip())
    if draft is not None:
        return (type_for(draft).name,)
    written = wish.env.get("LLAMA_SPEC_TYPE") or wish.env.get("LLAMA_ARG_SPEC_TYPE") or ""
    if wish.spec_types is None and written and not is_auto(written):
        known = [item for item in map(spec_type, written.split(",")) if item is not None and not item.needs_draft_model]
        return tuple(item.name for item in known if model.nextn_layers or not item.needs_heads)
    return choose(model, None, on_gpu).types
