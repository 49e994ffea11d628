"""What `LLAMA_CTX_SIZE=auto` becomes: the largest context that fits into the memory there is, with its arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specdash.backend.choices import Decision
from specdash.backend.loads import loads
from specdash.core.errors import InputError
from specdash.core.parameter_catalogue import AUTO, BY_NAME
from specdash.llama.memory import (
    GPU_OVERHEAD,
    Estimate,
    cells_of,
    fit_context,
    headroom_of,
    row_bytes,
    together,
)
from specdash.llama.model_shape import shape_of

if TYPE_CHECKING:
    from specdash.backend.settings import BackendSettings
    from specdash.llama.gguf import GgufFacts
    from specdash.llama.memory import Load

_NAME = "ctx-size"
_LESS = "use a smaller model, smaller cache types, or fewer slots"


@dataclass(frozen=True, slots=True)
class Room:
    """The memory a server may have: bytes that are free, or will be when the one that runs now ends.

    `gpus` is on how many GPUs they are, 0: the computer's own memory. `words` say where they are.
    """

    free_bytes: int
    gpus: int
    words: str
    kept_bytes: int = 0
    """What of it is kept for the prompt cache (`--cache-ram`), which fills while the server runs."""


def wanted(settings: BackendSettings) -> bool:
    """Whether the context is left to specdash, and not decided yet."""
    return settings.value(_NAME) == AUTO


def fitted(settings: BackendSettings, model: GgufFacts | None, draft: GgufFacts | None, room: Room) -> BackendSettings:
    """The settings with the context that fits. Raises `InputError` when none does, or nothing is known of the model."""
    assigned = settings.parameters[_NAME]
    named = f"{assigned.source}={BY_NAME[_NAME].text(AUTO)}"
    if model is None:
        raise InputError(f"{named}: the model's file is not here, so that nothing can be reckoned; set a number")
    target, behind = loads(settings, model, on_gpu=room.gpus > 0)
    drafting = "draft-mtp" in settings.spec_types or settings.draft_model is not None
    share = headroom_of(settings.spec_types)
    room = replace(room, kept_bytes=_prompt_cache(settings, room))
    context = fit_context(
        model,
        target,
        room.free_bytes - room.kept_bytes,
        headroom=share,
        draft=draft,
        draft_load=behind if drafting else None,
        gpus=max(room.gpus, 1),
    )
    steps = _steps(settings, model, draft, room, share, context)
    if not context:
        why = "; ".join(steps)
        raise InputError(f"{named}: not even the smallest context fits ({why}); {_LESS}")
    decision = Decision(_NAME, str(context), "the largest context that fits", steps)
    found = settings.with_value(_NAME, context, assigned.source)
    return found.model_copy(update={"decisions": (*settings.decisions, decision)})


def _prompt_cache(settings: BackendSettings, room: Room) -> int:
    """Bytes of main memory to leave to the prompt cache."""
    if room.gpus:
        return 0
    limit = int(settings.value("cache-ram") or 0)
    half = room.free_bytes // 2  # llama.cpp lowers the limit itself where memory runs out
    return half if limit < 0 else min(limit * 1024**2, half)


def _steps(
    settings: BackendSettings,
    model: GgufFacts,
    draft: GgufFacts | None,
    room: Room,
    share: float,
    context: int,
) -> tuple[str, ...]:
    """The arithmetic, a line each."""
    at = settings.with_value(_NAME, context or 1, "")
    target, behind = loads(at, model, on_gpu=room.gpus > 0)
    drafting = "draft-mtp" in settings.spec_types or settings.draft_model is not None
    found = together(model, target, draft, behind if drafting else None)
    overhead = GPU_OVERHEAD * room.gpus
    allowed = (room.free_bytes - room.kept_bytes) * share - overhead
    less = f", less {_size(overhead)} for CUDA itself" if overhead else ""
    why = " (with MTP)" if "draft-mtp" in settings.spec_types else ""
    kept = f", less {_size(room.kept_bytes)} for the prompt cache (--cache-ram)" if room.kept_bytes else ""
    may = f"x {share:.2f}{why}{less} = {_size(allowed)} may be used"
    lines = [f"{room.words}: {_size(room.free_bytes)} free{kept}, {may}"]
    if found is None:
        return (*lines, f"the header of {model.path} does not tell what a context takes")
    uses = [f"{part.model} {part.what} {_size(part.gpu if room.gpus else part.host)}" for part in found.parts]
    lines.append(f"{' + '.join(uses)} = {_size(_total(found, room))}")
    lines.append(_context_line(target, model, context))
    return tuple(lines)


def _context_line(target: Load, model: GgufFacts, context: int) -> str:
    slots = target.slots
    each = cells_of(context or 1, slots, None)
    shared = "shared by all slots" if slots.unified else f"in each of {slots.sequences} slots"
    shape = shape_of(model)
    if shape is not None:
        rows = sum(
            row_bytes(target.key_type, layer.key) + row_bytes(target.value_type, layer.value)
            for layer in shape.layers
            if layer.window is None
        )
        shared += f", {rows / 1024:.4g} KiB a token ({target.key_type} keys, {target.value_type} values)"
    trained = f"; the model was trained on {model.context_length}" if model.context_length else ""
    return f"{each} tokens {shared}{trained}"


def _total(found: Estimate, room: Room) -> int:
    return found.gpu if room.gpus else found.host


def without(settings: BackendSettings) -> BackendSettings:
    """The settings as if the engine chose the context, where it is not decided yet."""
    if not wanted(settings):
        return settings
    held = settings.parameters[_NAME]
    return settings.model_copy(
        update={"parameters": {**settings.parameters, _NAME: held.model_copy(update={"value": 0})}}
    )


def _size(count: float) -> str:
    sign, count = ("-", -count) if count < 0 else ("", count)
    for unit, width in (("GiB", 1024**3), ("MiB", 1024**2)):
        if count >= width:
            return f"{sign}{count / width:.1f} {unit}"
    return f"{sign}{count / 1024:.1f} KiB"
