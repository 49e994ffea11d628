"""How the settings load a model and what drafts for it, in the terms of `llama.memory`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from specdash.llama.memory import ALL_LAYERS, Load, Slots, cells_of, slots_of, snapshots_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.backend.settings import BackendSettings
    from specdash.llama.gguf import GgufFacts

_EXPERTS = re.compile(r"^(--n-cpu-moe|-ncmoe|--cpu-moe|-cmoe)$")


def slots_asked(settings: BackendSettings) -> Slots:
    """The slots and how they share the cache."""
    return slots_of(int(settings.value("parallel") or 0), unified=bool(settings.value("kv-unified")))


def cells_asked(settings: BackendSettings, model: GgufFacts | None) -> int:
    """Length of one cache in tokens."""
    trained = model.context_length if model is not None else None
    context = max(int(settings.value("ctx-size") or 0), 0)
    return cells_of(context, slots_asked(settings), trained, fitted=settings.value("fit") != "off")


def loads(settings: BackendSettings, model: GgufFacts | None, *, on_gpu: bool) -> tuple[Load, Load]:
    """How the settings load the model, and what drafts for it."""
    types = settings.spec_types
    shared = {
        "cells": cells_asked(settings, model),
        "slots": slots_asked(settings),
        "batch": min(int(settings.value("ubatch-size") or 0), int(settings.value("batch-size") or 0)),
        "flash_attention": settings.value("flash-attn") != "off",
        "full_window": bool(settings.value("swa-full")),
        "cache_on_gpu": bool(settings.value("kv-offload")),
    }
    own_heads = "draft-mtp" in types and settings.draft_model is None
    target = Load(
        **shared,  # type: ignore[arg-type]  # the values above have their fields' types
        key_type=str(settings.value("cache-type-k")),
        value_type=str(settings.value("cache-type-v")),
        gpu_layers=_layers(int(settings.value("gpu-layers") or 0), on_gpu=on_gpu),
        cpu_experts=_cpu_experts(settings.native, settings.extra_args),
        heads=own_heads,
        snapshots=snapshots_of(
            model.architecture if model is not None else None, types, int(settings.value("spec-draft-n-max") or 0)
        ),
    )
    draft = Load(
        **shared,  # type: ignore[arg-type]  # see above
        key_type=str(settings.value("spec-draft-type-k")),
        value_type=str(settings.value("spec-draft-type-v")),
        gpu_layers=_layers(int(settings.value("spec-draft-ngl") or 0), on_gpu=on_gpu),
        heads="draft-mtp" in types,
    )
    return target, draft


def _layers(wanted: int, *, on_gpu: bool) -> int:
    if not on_gpu:
        return 0
    return ALL_LAYERS if wanted < 0 else wanted


def _cpu_experts(native: Mapping[str, str], extra: tuple[str, ...]) -> int:
    """Layers whose experts stay in the computer's memory."""
    texts = [native.get("LLAMA_ARG_N_CPU_MOE", ""), "all" if native.get("LLAMA_ARG_CPU_MOE") else ""]
    for at, word in enumerate(extra):
        if _EXPERTS.match(word):
            texts.append("all" if word in ("--cpu-moe", "-cmoe") else "".join(extra[at + 1 : at + 2]))
    counts = [ALL_LAYERS if text == "all" else int(text) if text.isdigit() else 0 for text in texts]
    return max(counts, default=0)
