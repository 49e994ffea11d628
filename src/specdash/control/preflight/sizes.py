"""Context, slots and cache types, against the model and against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.control.preflight.synthetic import longest_draft
from specdash.llama.memory import AUTOMATIC_SLOTS, CACHE_TYPES
from specdash.llama.model_shape import shape_of

if TYPE_CHECKING:
    from specdash.control.preflight.context import Findings
    from specdash.control.preflight.subject import Subject
    from specdash.llama.gguf import GgufFacts

_LEAST_A_SLOT = 512
_USUAL_BATCH = 2048


def check(subject: Subject, out: Findings) -> None:
    """Add what is to be said of sizes."""
    if subject.readable("parallel"):
        _parallel(subject, out)
    if subject.readable("ctx-size", "parallel"):
        _context(subject, out)
    if subject.readable("batch-size", "parallel", "llama_spec_type"):
        _batch(subject, out)
    if subject.readable("flash-attn"):
        _cache_types(subject, subject.model, "cache-type-k", "cache-type-v", out)
        if subject.settings.draft_model is not None:
            _cache_types(subject, subject.draft, "spec-draft-type-k", "spec-draft-type-v", out)


def _parallel(subject: Subject, out: Findings) -> None:
    wanted = subject.number("parallel")
    key, named = subject.source("parallel"), subject.named("parallel")
    if wanted == 0:
        out.error("parallel", f"{named}: the server refuses to run without a slot", key=key, fix="use 1 or more")
    elif wanted < 0:
        said = f"{named}: the engine takes {AUTOMATIC_SLOTS} slots that share one cache"
        out.info("parallel", said, key=key)


def _context(subject: Subject, out: Findings) -> None:
    key, named = subject.source("ctx-size"), subject.named("ctx-size")
    slots, wanted, cells = subject.slots, subject.number("ctx-size"), subject.cells
    share = wanted if slots.unified else wanted // slots.sequences
    over = f", shared out to {slots.sequences} slots," if slots.sequences > 1 and not slots.unified else ""
    if wanted and share < _LEAST_A_SLOT:
        said = f"{named}{over} leaves a slot {share} tokens (the engine rounds up to {cells})"
        fix = f"raise it, or lower {subject.place('parallel')}"
        out.warning("context", said, key=key, fix=fix)
    trained = subject.model.context_length if subject.model is not None else None
    if wanted and trained and share > trained:
        said = f"{named}{over} is above the {trained} tokens the model was trained on: slots are capped there"
        most = trained if slots.unified else trained * slots.sequences
        out.warning(
            "context", said, key=key, fix=f"set {subject.change('ctx-size', most)} or less; the rest only takes memory"
        )
    small = subject.draft.context_length if subject.draft is not None else None
    used = min(cells, trained) if trained else cells
    if small and small < used:
        said = f"the draft model was trained on {small} tokens, a slot has {used}: beyond that it drafts badly"
        out.warning("draft-context", said, key=subject.source("spec-draft-model"), fix="use a draft of longer context")


def _batch(subject: Subject, out: Findings) -> None:
    """Every slot adds its sampled token and its draft to one batch, and llama.cpp aborts where one does not fit.

    server-context.cpp of b11549: GGML_ASSERT(add_ok && "batch must be large enough to hold the sampled and draft
    tokens"). With several slots it happens only when they draft at once, with all clients connected.
    """
    types = subject.spec_types
    if not types:
        return
    longest, slots, batch = longest_draft(subject, types), subject.slots.sequences, subject.number("batch-size")
    needed = slots * (longest + 1)
    if batch < needed:
        many = f"{slots} slots with " if slots > 1 else ""
        said = (
            f"{subject.named('batch-size')}: {many}drafts of up to {longest} tokens and the token before need {needed}"
        )
        fix = f"set {subject.change('batch-size', max(needed, _USUAL_BATCH))}, or draft shorter"
        out.error("batch", f"{said}: the server would abort", key=subject.source("batch-size"), fix=fix)


def _cache_types(subject: Subject, facts: GgufFacts | None, keys: str, values: str, out: Findings) -> None:
    settings = subject.settings
    off = settings.value("flash-attn") == "off"
    value_type = str(settings.value(values))
    if off and CACHE_TYPES.get(value_type, (1, 0))[0] > 1:
        said = f"{subject.named(values)} needs flash attention, and {subject.named('flash-attn')}: the server refuses"
        fix = f"set {subject.change('flash-attn', 'on')}, or {subject.change(values, 'f16')}"
        out.error("cache-type", said, key=subject.source(values), fix=fix)
        return
    shape = shape_of(facts) if facts is not None else None
    if off or shape is None or not any(layer.key for layer in shape.layers):
        return
    for name, size in ((keys, shape.head_key), (values, shape.head_value)):
        block = CACHE_TYPES.get(str(settings.value(name)), (1, 0))[0]
        if size % block:
            said = f"{subject.named(name)} comes in blocks of {block}, which do not fit the model's heads of {size}"
            fix = f"set {subject.change(name, 'f16')}"
            out.error("cache-type", f"{said}: the server refuses", key=subject.source(name), fix=fix)
