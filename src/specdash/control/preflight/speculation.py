"""Knobs that nobody reads, block limits, chains, and how a model takes rejected tokens back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.backend.settings import DEFAULT
from specdash.core.parameter_catalogue import BY_NAME
from specdash.core.speculation import KNOBS, SpecType, readers_of
from specdash.llama.memory import AUTOMATIC_SLOTS, CACHE_TYPES, snapshots_of
from specdash.llama.model_facts import shape_of

if TYPE_CHECKING:
    from specdash.control.preflight.context import Findings
    from specdash.control.preflight.settings import BackendSubject
    from specdash.core.speculation import SpecType
    from specdash.llama.gguf import GgufFacts


def check_speculation(subject: BackendSubject, out: Findings) -> None:
    """Add what is to be said of the spec types and their knobs."""
    types = subject.spec_types
    if subject.readable("llama_spec_type"):
        _deaf_knobs(subject, types, out)
        _foreign_parameters(subject, types, out)
    _blocks(subject, types, out)
    _confidence(subject, types, out)
    _checkpoints(subject, types, out)
    _shared_cache(subject, types, out)


def _deaf_knobs(subject: BackendSubject, types: list[SpecType], out: Findings) -> None:
    for key in KNOBS:
        text = subject.values.get(key, "")
        if not text or key in subject.dropped:
            continue
        if not types:
            fix = f"set {subject.spec_change('TYPE')}, or remove {key}"
            out.warning("no-effect", f"{key}={text} has no effect: no speculation is configured", key=key, fix=fix)
            continue
        for kind in types:
            if kind.knob(key) is None:
                said, fix = _deaf(key, text, kind)
                out.warning("no-effect", said, key=key, fix=fix)


def _deaf(key: str, text: str, spec_type: SpecType) -> tuple[str, str]:
    if spec_type.fixed_draft_length is not None:
        length = f", its draft length is {spec_type.fixed_draft_length}" if key == KNOBS[0] else ""
        return f"{key}={text} has no effect on {spec_type.name}: it has no knob{length}", "ngram-mod has knobs"
    knobs = [name for name in KNOBS if spec_type.knob(name) is not None]
    works = f"of the knobs, {', '.join(knobs)} works" if len(knobs) == 1 else f"{' and '.join(knobs)} work"
    return f"{key}={text} has no effect on {spec_type.name}: there is no such knob", works


def _foreign_parameters(subject: BackendSubject, types: list[SpecType], out: Findings) -> None:
    names = {kind.name for kind in types}
    for name, assigned in subject.settings.parameters.items():
        if assigned.source in (DEFAULT, *KNOBS):
            continue
        readers = readers_of(name)
        if not readers or name in ("spec-draft-model", "spec-draft-hf") or name.startswith("spec-synth-"):
            continue
        if not names.intersection(readers):
            reader = readers[0] if len(readers) == 1 else "a draft model"
            chain = ",".join(subject.settings.spec_types) or "none"
            said = f"{assigned.source} sets --{name}, which only {reader} reads; the chain is {chain}"
            out.warning("no-effect", said, key=assigned.source, fix=_instead(name, types))


def _instead(name: str, types: list[SpecType]) -> str:
    for ending, knob in (("-max", KNOBS[0]), ("-size-m", KNOBS[0]), ("-min", KNOBS[1]), ("p-min", KNOBS[2])):
        if name.endswith(ending) and any(kind.knob(knob) for kind in types):
            return f"{knob} sets it for the types in force"
    return "remove it, or add the type"


def _blocks(subject: BackendSubject, types: list[SpecType], out: Findings) -> None:
    size = subject.draft.number("block_size") if subject.draft is not None else None
    longest = subject.number("spec-draft-n-max")
    for kind in types:
        effective = kind.longest_draft(size)
        if effective is not None and longest > effective:
            said = f"{subject.named('spec-draft-n-max')}: the draft was trained on blocks of {size}, {effective} counts"
            key = subject.source("spec-draft-n-max")
            out.warning("block-size", said, key=key, fix=f"use {effective} or less")


def _confidence(subject: BackendSubject, types: list[SpecType], out: Findings) -> None:
    """DSpark holds the threshold against its confidence head, other types against the draft's own probabilities."""
    draft, threshold = subject.draft, "spec-draft-p-min"
    if draft is None or draft.draft_architecture != "dspark" or "draft-dspark" not in (kind.name for kind in types):
        return
    least = float(subject.settings.value(threshold) or 0)
    if least > 0 and not any(tensor.name.startswith("conf_proj") for tensor in draft.tensors):
        said = f"{subject.named(threshold)}: {draft.path} has no confidence head, and the server would draft nothing"
        key = subject.source(threshold)
        out.error(
            "confidence-head", said, key=key, fix=f"set {subject.change(threshold, 0)}, or use a draft with that head"
        )


def _checkpoints(subject: BackendSubject, types: list[SpecType], out: Findings) -> None:
    if subject.model is None or not types:
        return
    shape = shape_of(subject.model)
    if shape is None or not shape.recurrent:
        return
    longest = int(subject.settings.value("spec-draft-n-max") or BY_NAME["spec-draft-n-max"].default or 0)
    if snapshots_of(subject.model.architecture, subject.settings.spec_types, longest):
        return
    said = (
        f"{subject.model.architecture} has recurrent layers: after a rejected draft token llama.cpp restores a "
        "checkpoint and replays, so long drafts cost more than on other models"
    )
    out.info("checkpoints", said, key=subject.spec_key, fix="short drafts and a high LLAMA_DRAFT_P_MIN lose less")


def _shared_cache(subject: BackendSubject, types: list[SpecType], out: Findings) -> None:
    """llama.cpp #24840: a batch that is split for want of room loses the drafts' places in it."""
    slots = subject.slots
    if not types or not slots.unified or slots.sequences < 2:
        return
    limit = int(subject.settings.value("kv-unified-per-slot") or 0)
    if limit and limit * slots.sequences <= subject.cells:
        return
    said = (
        f"{slots.sequences} slots share one cache of {subject.cells} tokens: where it is nearly full, a draft can fail "
        "its request with HTTP 500 (speculative batch index)"
    )
    fix = "give each slot its own (LLAMA_ARG_KV_UNIFIED=0 and a number in LLAMA_PARALLEL), or raise LLAMA_CTX_SIZE"
    out.warning("shared-cache", said, key=subject.source("parallel"), fix=fix)


def longest_draft(subject: BackendSubject, types: list[SpecType]) -> int:
    """Tokens of the longest draft that any type of the chain makes."""
    return max(_longest(subject, kind) for kind in types)


def _longest(subject: BackendSubject, spec_type: SpecType) -> int:
    if spec_type.max_parameter is None:
        return spec_type.fixed_draft_length or 0
    asked = int(subject.settings.value(spec_type.max_parameter) or BY_NAME[spec_type.max_parameter].default or 0)
    size = subject.draft.number("block_size") if subject.draft is not None else None
    if spec_type.block_margin is None or not size:
        return asked
    return min(asked, size - spec_type.block_margin)


# Context, slots and cache types, against the model and against each other.


_LEAST_A_SLOT = 512
_USUAL_BATCH = 2048


def check_sizes(subject: BackendSubject, out: Findings) -> None:
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


def _parallel(subject: BackendSubject, out: Findings) -> None:
    wanted = subject.number("parallel")
    key, named = subject.source("parallel"), subject.named("parallel")
    if wanted == 0:
        out.error("parallel", f"{named}: the server refuses to run without a slot", key=key, fix="use 1 or more")
    elif wanted < 0:
        said = f"{named}: the engine takes {AUTOMATIC_SLOTS} slots that share one cache"
        out.info("parallel", said, key=key)


def _context(subject: BackendSubject, out: Findings) -> None:
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


def _batch(subject: BackendSubject, out: Findings) -> None:
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


def _cache_types(subject: BackendSubject, facts: GgufFacts | None, keys: str, values: str, out: Findings) -> None:
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
