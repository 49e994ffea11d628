"""What a model file would take in memory with the sizes of an env file, or others, and what context would fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specdash.backend import extra_args
from specdash.backend.auto import choose
from specdash.backend.settings import settings_from_env
from specdash.control.preflight import PreflightContext
from specdash.control.preflight.memory import free_on, loads, used_gpus
from specdash.control.preflight.processes import Own
from specdash.control.preflight.subject import Subject
from specdash.core.parameter_catalogue import BY_KEY, BY_NAME
from specdash.core.speculation import KNOBS, NO_SPECULATION, is_auto, spec_type
from specdash.llama.memory import GPU_OVERHEAD, Estimate, Load, fit_context, headroom_of, together
from specdash.llama.model_facts import type_for

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from specdash.llama.gguf import GgufFacts

MIB = 1024**2
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
class Wish:
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

    estimate: Estimate | None
    load: Load
    draft_load: Load
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


def project(model: GgufFacts, draft: GgufFacts | None, wish: Wish) -> Projection:
    """Reckon. Raises `InputError` for a size that cannot be meant."""
    subject = _subject(model, draft, wish, ("none",))
    gpus, free = _place(subject, wish)
    types = _types(model, draft, wish, on_gpu=gpus > 0)
    subject = _subject(model, draft, wish, types)
    load, draft_load = loads(subject, on_gpu=gpus > 0)
    context = subject.cells * (1 if load.slots.unified else load.slots.sequences)
    found = together(model, load, draft, draft_load)
    return Projection(found, load, draft_load, context, types, gpus, free, headroom_of(types))


def largest(model: GgufFacts, draft: GgufFacts | None, one: Projection) -> int:
    """The largest `--ctx-size` that fits into what is free, 0 when none does."""
    return fit_context(
        model,
        one.load,
        one.free_bytes or 0,
        headroom=one.headroom,
        draft=draft,
        draft_load=one.draft_load,
        gpus=one.gpus,
    )


def at_context(model: GgufFacts, draft: GgufFacts | None, one: Projection, context: int) -> Projection:
    """The same, with another context."""
    cells = context // (1 if one.load.slots.unified else one.load.slots.sequences)
    load, draft_load = replace(one.load, cells=cells), replace(one.draft_load, cells=cells)
    return replace(
        one, estimate=together(model, load, draft, draft_load), load=load, draft_load=draft_load, context=context
    )


def _subject(model: GgufFacts, draft: GgufFacts | None, wish: Wish, types: tuple[str, ...]) -> Subject:
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
    return Subject(values, context, settings, frozenset(), model, used)


def _place(subject: Subject, wish: Wish) -> tuple[int, int | None]:
    """How many GPUs, and bytes that are free there, or in the computer's memory."""
    import psutil

    if wish.free_mib is not None:
        return (0 if wish.on_gpu is False else 1), wish.free_mib * MIB
    if wish.on_gpu is not False:
        gpus = used_gpus(subject)
        if gpus:
            return len(gpus), free_on(gpus, Own(subject.context))[0]
        if wish.on_gpu:
            return 1, None
    return 0, psutil.virtual_memory().available


def _types(model: GgufFacts, draft: GgufFacts | None, wish: Wish, *, on_gpu: bool) -> tuple[str, ...]:
    """The types whose memory is reckoned: those asked for, what a draft is for, the env file's, or as `auto` does."""
    if wish.spec_types is not None and not is_auto(wish.spec_types):
        return tuple(one.strip() for one in wish.spec_types.split(",") if one.strip())
    if draft is not None:
        return (type_for(draft).name,)
    written = wish.env.get("LLAMA_SPEC_TYPE") or wish.env.get("LLAMA_ARG_SPEC_TYPE") or ""
    if wish.spec_types is None and written and not is_auto(written):
        known = [one for one in map(spec_type, written.split(",")) if one is not None and not one.needs_draft_model]
        return tuple(one.name for one in known if model.nextn_layers or not one.needs_heads)
    return choose(model, None, on_gpu).types
