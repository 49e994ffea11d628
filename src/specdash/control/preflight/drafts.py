"""Whether the draft model, or the model's own heads, can draft for the model: judged as llama.cpp b11434 does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.control.preflight.models import cached_misfit
from specdash.core.speculation import SPEC_TYPES, SpecType, spec_type
from specdash.llama.model_shape import RECURRENT, Shape, shape_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdash.control.preflight.context import Findings
    from specdash.control.preflight.subject import Subject
    from specdash.llama.gguf import GgufFacts

_DRAFT = "spec-draft-model"
_MADE_FOR = {one.draft_architectures[0]: one.name for one in SPEC_TYPES if one.draft_architectures}
"""Architecture of a draft that reads the model's layers to the type it is made for."""


def check(subject: Subject, out: Findings) -> None:
    """Add what is to be said of the draft model."""
    for one in filter(None, map(spec_type, subject.settings.spec_types)):
        if one.needs_heads:
            _mtp(subject, out)
        if subject.draft is None:
            continue
        if one.reads_layers is not None:
            _reading_layers(subject, one, subject.draft, out)
        elif one.needs_draft_model:
            _simple(subject, subject.draft, out)


def _mtp(subject: Subject, out: Findings) -> None:
    has_draft = subject.settings.draft_model is not None
    facts = subject.draft if has_draft else subject.model
    if facts is None or facts.nextn_layers or subject.settings.text("spec-draft-hf") is not None:
        return
    fix = "use another type, or a model with such layers"
    if has_draft and subject.model is not None and subject.model.nextn_layers:
        fix = f"remove {subject.source(_DRAFT)}: the model has its own"
    said = f"draft-mtp needs prediction (nextn) layers, and {facts.path} has none: the server would not start"
    out.error("nextn-layers", said, key=subject.source(_DRAFT) if has_draft else subject.spec_key, fix=fix)


def _simple(subject: Subject, draft: GgufFacts, out: Findings) -> None:
    key, named = subject.source(_DRAFT), subject.named(_DRAFT)
    if draft.architecture in _MADE_FOR:
        said = f"{named}: {draft.architecture} models draft from the model's hidden states, not by themselves"
        fix = f"set {subject.spec_key}={_MADE_FOR[draft.architecture]}"
        out.warning("draft-architecture", f"{said}; next to nothing would be accepted", key=key, fix=fix)
    if subject.model is None:
        return
    try:
        differs = cached_misfit(subject.model, draft)
    except (OSError, ValueError):
        differs = None
    if differs is not None:
        said = f"{named}: {differs}; the server would run without speculation"
        out.error("vocabulary", said, key=key, fix="use a draft of the model's family")
    else:
        _lengths(subject.model.vocabulary_size, draft.vocabulary_size, named, key, out)
    model, small = shape_of(subject.model), shape_of(draft)
    if model is not None and small is not None and small.recurrent and not model.recurrent:
        said = (
            f"{named}: a recurrent draft ({draft.architecture}) for an attention model ({subject.model.architecture}) "
            "aborts the server at the first rejected token"
        )
        out.error("recurrent-draft", said, key=key, fix="use a draft without recurrent layers")


def _lengths(model: int | None, draft: int | None, named: str, key: str, out: Findings) -> None:
    """b11434 lets vocabularies differ by 128 tokens, and aborts when one of those is drafted, or sampled."""
    if model is None or draft is None or model == draft:
        return
    many = abs(draft - model)
    if draft > model:
        said = f"{named}: it knows {many} tokens more than the model; the server aborts if it drafts one of them"
        out.warning("vocabulary", said, key=key, fix="use a draft of the model's family")
    else:
        said = f"{named}: the model knows {many} tokens more; the server aborts if one is sampled (padding never is)"
        out.info("vocabulary", said, key=key)


def _reading_layers(subject: Subject, one: SpecType, draft: GgufFacts, out: Findings) -> None:
    name, architecture, count = one.name, one.draft_architectures[0], one.reads_layers
    key, named = subject.source(_DRAFT), subject.named(_DRAFT)
    layers = draft.array("target_layers") or ()
    fits = draft.architecture in one.draft_architectures
    if not fits or not layers or (count and len(layers) != count):
        ends = "run without speculation" if name == "draft-eagle3" else "abort"
        said = (
            f"{named}: {name} needs a draft of architecture {architecture}, this is {draft.architecture or 'unknown'}"
        )
        fix = f"name a draft made for {name}, or set {subject.spec_key}=draft-simple"
        out.error("draft-architecture", f"{said}; the server would {ends}", key=key, fix=fix)
        return
    shape = shape_of(subject.model) if subject.model is not None else None
    if subject.model is None or shape is None:
        return
    for reason in _mismatches(draft, layers, shape, subject.model):
        said = f"{named}: {reason}; the server would abort"
        out.error("draft-architecture", said, key=key, fix="use a draft made for this model")


def _mismatches(draft: GgufFacts, layers: tuple[int, ...], shape: Shape, model: GgufFacts) -> Iterator[str]:
    deepest = max(layers)
    if deepest > len(shape.layers):
        yield f"it reads layer {deepest} of a model that has {len(shape.layers)}"
    width = draft.number("target_hidden_size") or draft.number("embedding_length")
    if width is not None and width != shape.width:
        yield f"it is made for a model of width {width}, this one has {shape.width}"
    if model.architecture in RECURRENT:
        yield f"it reads layer inputs, which {model.architecture} models do not give"
