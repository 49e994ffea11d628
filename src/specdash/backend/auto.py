"""What `LLAMA_SPEC_TYPE=auto` stands for on this model and machine, and why.

The rules are those that inference front ends arrived at by measurement: prediction layers alone on a GPU, behind n-gram
drafts on a CPU, and never by themselves in models under 2B parameters, which they slow down (0.8B: 452 to 283 tok/s).
"""

from __future__ import annotations

import contextlib
import os
from itertools import pairwise
from typing import TYPE_CHECKING

from msgspec.structs import replace

from specdash.backend.engines import find_engine, used_gpus
from specdash.backend.settings import MACHINE_KEYS, SpecTypeChoice, settings_from_env
from specdash.core.errors import InputError, SpecdashError
from specdash.llama.gguf import GgufError, read_facts
from specdash.llama.memory import ALL_LAYERS, ModelLoad, SlotLayout, cells_of, slots_of, snapshots_of
from specdash.llama.model_facts import MTP_PAYS_FROM, describe, type_for
from specdash.system.text import billions, counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.backend.settings import BackendSettings
    from specdash.llama.gguf import GgufFacts


def look(path: str) -> GgufFacts | None:
    """The facts of a model file; None when it is unusable."""
    try:
        return read_facts(path)
    except GgufError:
        return None


def slots_asked(settings: BackendSettings) -> SlotLayout:
    """The slots and how they share the cache."""
    return slots_of(settings.number("parallel"), unified=bool(settings.value("kv-unified")))


def cells_asked(settings: BackendSettings, model: GgufFacts | None) -> int:
    """Length of one cache in tokens."""
    trained = model.context_length if model is not None else None
    context = max(settings.number("ctx-size"), 0)
    return cells_of(context, slots_asked(settings), trained, fitted=settings.value("fit") != "off")


def loads(settings: BackendSettings, model: GgufFacts | None, *, on_gpu: bool) -> tuple[ModelLoad, ModelLoad]:
    """How the settings load the model, and what drafts for it."""
    types, slots = settings.spec_types, slots_asked(settings)
    architecture = model.architecture if model is not None else None
    target = ModelLoad(
        cells_asked(settings, model),
        slots,
        key_type=str(settings.value("cache-type-k")),
        value_type=str(settings.value("cache-type-v")),
        batch=min(settings.number("ubatch-size"), settings.number("batch-size")),
        flash_attention=settings.value("flash-attn") != "off",
        full_window=bool(settings.value("swa-full")),
        gpu_layers=_layers(settings.number("gpu-layers"), on_gpu=on_gpu),
        cache_on_gpu=bool(settings.value("kv-offload")),
        cpu_experts=_cpu_experts(settings.native, settings.extra_args),
        heads="draft-mtp" in types and settings.draft_model is None,
        snapshots=snapshots_of(architecture, types, settings.number("spec-draft-n-max")),
        outputs=slots.sequences * (1 + longest_asked(settings)),
        batches_on_gpu=on_gpu,
    )
    draft = replace(
        target,
        key_type=str(settings.value("spec-draft-type-k")),
        value_type=str(settings.value("spec-draft-type-v")),
        gpu_layers=_layers(settings.number("spec-draft-ngl"), on_gpu=on_gpu),
        cpu_experts=0,
        heads="draft-mtp" in types,
        snapshots=0,
        outputs=0,
        sampled=bool(settings.value("spec-draft-backend-sampling")),
    )
    return target, draft


def longest_asked(settings: BackendSettings, draft: GgufFacts | None = None) -> int:
    """Tokens of the longest draft that the chain makes: so many, and the token before, are verified at once."""
    block = draft.number("block_size") if draft is not None else None
    longest = 0
    for kind in settings.kinds:
        asked = kind.fixed_draft_length if kind.max_parameter is None else settings.value(kind.max_parameter)
        longest = max(longest, min(int(asked or 0), kind.longest_draft(block) or int(asked or 0)))
    return longest


def _layers(wanted: int, *, on_gpu: bool) -> int:
    if not on_gpu:
        return 0
    return ALL_LAYERS if wanted < 0 else wanted


def _cpu_experts(native: Mapping[str, str], extra: tuple[str, ...]) -> int:
    """Layers whose experts stay on the CPU."""
    given = dict(pairwise((*extra, "")))
    if native.get("LLAMA_ARG_CPU_MOE") or not given.keys().isdisjoint(("--cpu-moe", "-cmoe")):
        return ALL_LAYERS
    counts = (native.get("LLAMA_ARG_N_CPU_MOE"), given.get("--n-cpu-moe"), given.get("-ncmoe"))
    return max(int(count) if count and count.isdigit() else 0 for count in counts)


WITHOUT_A_DRAFT = "ngram-mod"
"""What drafts without a draft model: one table for all slots, which lasts from request to request."""
_MTP = "draft-mtp"


def choose(facts: GgufFacts | None, draft: GgufFacts | None, on_gpu: bool) -> SpecTypeChoice:
    """The spec types for a model, its draft where one is given, and the device it runs on.

    `facts` None: the model's file is not here, so that nothing is known of it.
    """
    if draft is not None:
        name = type_for(draft).name
        pair = describe(facts, draft, draft_type=name).pair if facts is not None else None
        if pair is None or pair.fits:
            return SpecTypeChoice((name,), f"the draft model fits, and its architecture is {draft.architecture}")
        reason = next(found.said for found in pair.misfits if found.severity == "error")
        rest = choose(facts, None, on_gpu)
        return SpecTypeChoice(rest.types, f"the draft cannot be used ({reason}), and {rest.because}", uses_draft=False)
    if facts is None:
        return SpecTypeChoice((WITHOUT_A_DRAFT,), "the model's file is not here: n-gram drafts need nothing of it")
    if not facts.nextn_layers:
        return SpecTypeChoice((WITHOUT_A_DRAFT,), "the model has no prediction (nextn) layers")
    parameters = describe(facts).parameters
    layers = counted(facts.nextn_layers, "prediction (nextn) layer")
    has = f"the model has {layers} and {billions(parameters)} parameters"
    if parameters < MTP_PAYS_FROM:
        return SpecTypeChoice((WITHOUT_A_DRAFT,), f"{has}: under {billions(MTP_PAYS_FROM)} its layers slow it down")
    if on_gpu:
        return SpecTypeChoice((_MTP,), f"{has}, on a GPU: its layers alone draft best there")
    return SpecTypeChoice((WITHOUT_A_DRAFT, _MTP), f"{has}, on the CPU: n-gram drafts cost nothing and come first")


def settings_of(values: Mapping[str, str], base: Mapping[str, str] = os.environ) -> BackendSettings:
    """The settings of a backend env on this machine, the spec types chosen where they are left to specdash. Raises
    `InputError`."""
    env = {**values, **{key: base[key] for key in MACHINE_KEYS if base.get(key) and not values.get(key)}}
    settings = settings_from_env(env)
    if not settings.undecided:
        return settings
    if settings.text("spec-draft-hf") is not None:
        source = settings.parameters["spec-draft-hf"].source
        what = f"{settings.spec_source}=auto: {source} is not here to be looked at"
        raise InputError(what, "set LLAMA_SPEC_TYPE", key=settings.spec_source)
    facts, draft = (look(path) if path is not None else None for path in (settings.model, settings.draft_model))
    on_gpu = False
    with contextlib.suppress(SpecdashError, ValueError, OSError):
        engine = find_engine(settings, base)
        on_gpu = settings.value("gpu-layers") != 0 and bool(used_gpus(settings, engine, base))
    return settings_from_env(env, choose(facts, draft, on_gpu))
