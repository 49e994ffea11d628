"""What a model file would take in memory with the sizes of an env file, or others, and what context would fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path  # noqa: TC003 - a field type
from typing import TYPE_CHECKING

import psutil

from specdash.backend.auto import choose, loads
from specdash.backend.devices import used_gpus
from specdash.backend.engines import find_engine
from specdash.backend.plan import Circumstances, Plan
from specdash.backend.rules.machine import free_on
from specdash.backend.settings import SOURCE, parse, settings_from_env
from specdash.core.errors import SpecdashError
from specdash.core.parameter_catalogue import BY_KEY, BY_NAME
from specdash.core.speculation import KNOBS, NO_SPECULATION, is_auto, spec_type
from specdash.llama.memory import GPU_OVERHEAD, MemoryEstimate, ModelLoad, fit_context, headroom_of, together
from specdash.llama.model_facts import type_for
from specdash.system.data import dataclass
from specdash.system.text import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.llama.gguf import GgufFacts

_SIZES = (
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
    """`--ctx-size`, of all slots together."""
    spec_types: tuple[str, ...]
    gpus: int
    """Number of GPUs; 0: the computer's memory."""
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
    """What the files take. Raises `InputError` for a size that cannot be meant."""
    gpus, free = _place(_plan(model, draft, wish, ("none",)), wish)
    types = _types(model, draft, wish, on_gpu=gpus > 0)
    plan = _plan(model, draft, wish, types)
    load, draft_load = loads(plan.settings, model, on_gpu=gpus > 0)
    context = plan.cells * (1 if load.slots.unified else load.slots.sequences)
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
    found = together(model, load, draft, draft_load)
    return replace(projection, estimate=found, load=load, draft_load=draft_load, context=context)


def _plan(model: GgufFacts, draft: GgufFacts | None, wish: ProjectionRequest, types: tuple[str, ...]) -> Plan:
    extra = parse(wish.env.get(SOURCE, ""))
    values = {
        key: text for key, text in wish.env.items() if key.startswith(("LLAMA_ARG_", "CUDA_", "LLAMA_BIN", "LLAMA_ENG"))
    }
    for name in _SIZES:
        parameter = BY_NAME[name]
        text = wish.sizes.get(name) or extra.known.get(name)
        for key in parameter.keys:
            text = text or wish.env.get(key)
            values.pop(key, None)
        if text and not (name == "ctx-size" and is_auto(text)):
            values[parameter.key] = text
    values = {key: text for key, text in values.items() if key not in _FILES}
    speculates = types != (NO_SPECULATION,)
    if wish.env.get(KNOBS[0]) and speculates:
        values[KNOBS[0]] = wish.env[KNOBS[0]]
    values |= {"LLAMA_MODEL": model.path, "LLAMA_SPEC_TYPE": ",".join(types) or NO_SPECULATION}
    if draft is not None and speculates:
        values["LLAMA_DRAFT_MODEL"] = draft.path
    settings = settings_from_env(values, detect=lambda _: None)
    used = draft if settings.draft_model is not None else None
    return Plan(values, Circumstances(wish.env_file), settings, model=model, draft=used)


def _place(plan: Plan, wish: ProjectionRequest) -> tuple[int, int | None]:
    """How many GPUs, and bytes that are free there, or in the computer's memory."""
    around = plan.circumstances
    if wish.free_mib is not None:
        return (0 if wish.on_gpu is False else 1), wish.free_mib * MIB
    if wish.on_gpu is not False:
        try:
            engine = find_engine(plan.settings, around.base)
        except (SpecdashError, ValueError, OSError):
            engine = None
        gpus = used_gpus(plan.settings, engine, around.base)
        if gpus or wish.on_gpu:
            return (len(gpus), free_on(gpus, around.own())[0]) if gpus else (1, None)
    return 0, psutil.virtual_memory().available


def _types(model: GgufFacts, draft: GgufFacts | None, wish: ProjectionRequest, *, on_gpu: bool) -> tuple[str, ...]:
    """Those asked for, what a draft is for, the env file's, or as `auto` does."""
    if wish.spec_types is not None and not is_auto(wish.spec_types):
        return tuple(part.strip() for part in wish.spec_types.split(",") if part.strip())
    if draft is not None:
        return (type_for(draft).name,)
    written = wish.env.get("LLAMA_SPEC_TYPE") or wish.env.get("LLAMA_ARG_SPEC_TYPE") or ""
    if wish.spec_types is None and written and not is_auto(written):
        known = [item for item in map(spec_type, written.split(",")) if item is not None and not item.needs_draft_model]
        return tuple(item.name for item in known if model.nextn_layers or not item.needs_heads)
    return choose(model, None, on_gpu).types
