"""Whether the draft model, or the model's own heads, can draft for the model: judged as llama.cpp b11434 does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.control.preflight.models import cached_misfit
from specdash.llama.model_shape import RECURRENT, Shape, shape_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdash.control.preflight.context import Findings
    from specdash.control.preflight.subject import Subject
    from specdash.llama.gguf import GgufFacts

_LAYERS_READ = {"draft-eagle3": ("eagle3", 3), "draft-dflash": ("dflash", None), "draft-dspark": ("dspark", None)}
"""Draft type to the architecture it needs, and how many of the model's layers such a draft reads."""
_KIN = frozenset({"dflash", "dspark"})
"""Architectures that load under either of the two types."""
_DRAFT = "spec-draft-model"


def check(subject: Subject, out: Findings) -> None:
    """Add what is to be said of the draft model."""
    for name in subject.settings.spec_types:
        if name == "draft-mtp":
            _mtp(subject, out)
        if subject.draft is None:
            continue
        if name == "draft-simple":
            _simple(subject, subject.draft, out)
        elif name in _LAYERS_READ:
            _reading_layers(subject, name, subject.draft, out)


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
    if draft.architecture in ("eagle3", *_KIN):
        said = f"{named}: {draft.architecture} models draft from the model's hidden states, not by themselves"
        fix = f"set {subject.spec_key}=draft-{draft.architecture}"
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


def _reading_layers(subject: Subject, name: str, draft: GgufFacts, out: Findings) -> None:
    architecture, count = _LAYERS_READ[name]
    key, named = subject.source(_DRAFT), subject.named(_DRAFT)
    layers = draft.array("target_layers") or ()
    fits = draft.architecture == architecture or {draft.architecture, architecture} <= _KIN
    if not fits or not layers or (count is not None and len(layers) != count):
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
