"""Whether a draft model, or the model's own heads, can draft for a model, judged as llama.cpp b11434 does it.

The one place for these rules: preflight makes findings of them, `backend run` and `gguf --draft` refuse by them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdash.core.findings import Severity
from specdash.core.speculation import SPEC_TYPES, SpecType
from specdash.llama.architectures import gives_layer_inputs
from specdash.llama.model_shape import Shape, shape_of
from specdash.llama.vocabulary import misfit, other_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from specdash.llama.gguf import GgufFacts

_MADE_FOR = {one.draft_architectures[0]: one.name for one in SPEC_TYPES if one.draft_architectures}
"""`GgufFacts.draft_architecture` of a draft that reads the model's layers to the type it is made for."""
_FAMILY = "use a draft of the model's family"


@dataclass(frozen=True, slots=True)
class DraftMisfit:
    """One point in which a pair does not fit. `said` is what is wrong and how it ends, in words without a subject.

    `of_draft` says that the draft file is to blame, and not the type. An error means that the server would not start,
    abort, or run without speculation.
    """

    rule: str
    severity: Severity
    said: str
    fix: str = ""
    of_draft: bool = True


def draft_misfits(
    one: SpecType,
    model: GgufFacts | None,
    draft: GgufFacts | None,
    *,
    set_types: Callable[[str], str] = "LLAMA_SPEC_TYPE={}".format,
    draft_key: str = "LLAMA_DRAFT_MODEL",
    compare: Callable[[GgufFacts, GgufFacts], str | None] = misfit,
) -> Iterator[DraftMisfit]:
    """Everything in which the pair does not fit the type; None for a file of which nothing is known.

    Fixes write the spec types as `set_types` does, and name the draft by `draft_key`. `compare` compares two
    vocabularies.
    """
    if one.needs_heads:
        yield from _heads(model, draft, draft_key)
    if draft is None:
        return
    if one.reads_layers is not None:
        yield from _reading_layers(one, model, draft, set_types)
    elif one.needs_draft_model:
        yield from _simple(model, draft, set_types, compare)


def _heads(model: GgufFacts | None, draft: GgufFacts | None, draft_key: str) -> Iterator[DraftMisfit]:
    """A draft given beside `draft-mtp` must have the heads itself: the model's own are not used then."""
    facts = draft if draft is not None else model
    if facts is None:
        return
    if facts.nextn_layers:
        if draft is not None and model is not None:
            yield from _heads_of_another(model, draft)
        return
    fix = "use another type, or a model with such layers"
    if draft is not None and model is not None and model.nextn_layers:
        fix = f"remove {draft_key}: the model has its own"
    said = f"draft-mtp needs prediction (nextn) layers, and {facts.path} has none: the server would not start"
    yield DraftMisfit("nextn-layers", Severity.ERROR, said, fix, of_draft=draft is not None)


def _heads_of_another(model: GgufFacts, draft: GgufFacts) -> Iterator[DraftMisfit]:
    """Prediction layers in a file of their own read rows of the model's hidden states."""
    width, needed = draft.number("embedding_length"), model.number("embedding_length")
    if width is not None and needed is not None and width != needed:
        said = f"its prediction layers are made for a model of width {width}, this one has {needed}"
        fix = "use a draft made for this model"
        yield DraftMisfit("draft-architecture", Severity.ERROR, f"{said}; the server would abort", fix)
        return
    yield from _words(model, draft)


def _simple(
    model: GgufFacts | None,
    draft: GgufFacts,
    set_types: Callable[[str], str],
    compare: Callable[[GgufFacts, GgufFacts], str | None],
) -> Iterator[DraftMisfit]:
    if draft.draft_architecture in _MADE_FOR:
        said = f"{draft.architecture} models draft from the model's hidden states, not by themselves"
        fix = f"set {set_types(_MADE_FOR[draft.draft_architecture])}"
        said = f"{said}; next to nothing would be accepted"
        yield DraftMisfit("draft-architecture", Severity.WARNING, said, fix)
    if model is None:
        return
    try:
        differs = compare(model, draft)
    except (OSError, ValueError):
        differs = None
    if differs is not None:
        said = f"{differs}; the server would run without speculation"
        yield DraftMisfit("vocabulary", Severity.ERROR, said, _FAMILY)
    else:
        yield from _lengths(model.vocabulary_size, draft.vocabulary_size)
    target, small = shape_of(model), shape_of(draft)
    if target is not None and small is not None and small.recurrent and not target.recurrent:
        said = (
            f"a recurrent draft ({draft.architecture}) for an attention model ({model.architecture}) "
            "aborts the server at the first rejected token"
        )
        yield DraftMisfit("recurrent-draft", Severity.ERROR, said, "use a draft without recurrent layers")


def _lengths(model: int | None, draft: int | None) -> Iterator[DraftMisfit]:
    """b11434 lets vocabularies differ by 128 tokens, and aborts when one of those is drafted, or sampled."""
    if model is None or draft is None or model == draft:
        return
    many = abs(draft - model)
    if draft > model:
        said = f"it knows {many} tokens more than the model; the server aborts if it drafts one of them"
        yield DraftMisfit("vocabulary", Severity.WARNING, said, _FAMILY)
    else:
        said = f"the model knows {many} tokens more; the server aborts if one is sampled (padding never is)"
        yield DraftMisfit("vocabulary", Severity.INFO, said)


def _reading_layers(
    one: SpecType, model: GgufFacts | None, draft: GgufFacts, set_types: Callable[[str], str]
) -> Iterator[DraftMisfit]:
    name, architecture, count = one.name, one.draft_architectures[0], one.reads_layers
    layers = draft.array("target_layers") or ()
    fits = draft.draft_architecture in one.draft_architectures
    if not fits or not layers or (count and len(layers) != count):
        # b11434: a plain draft aborts it; an EAGLE-3 head loads, and every request fails.
        ends = "run without speculation" if name == "draft-eagle3" else "abort, or fail every request"
        said = f"{name} needs a draft of architecture {architecture}, this is {draft.architecture or 'unknown'}"
        made_for = _MADE_FOR.get(draft.draft_architecture or "", "draft-simple")
        other = f", or set {set_types(made_for)}" if made_for != name else ""
        fix = f"name a draft made for {name}{other}"
        yield DraftMisfit("draft-architecture", Severity.ERROR, f"{said}; the server would {ends}", fix)
        return
    made_for = _MADE_FOR.get(draft.draft_architecture or "", name)
    if made_for != name:
        said = f"it is made for {made_for}, {name} lays its block out differently: hardly a token would be accepted"
        yield DraftMisfit("draft-architecture", Severity.WARNING, said, f"set {set_types(made_for)}")
    shape = shape_of(model) if model is not None else None
    if model is None or shape is None:
        return
    for reason in _mismatches(one, draft, layers, shape, model):
        said = f"{reason}; the server would abort"
        yield DraftMisfit("draft-architecture", Severity.ERROR, said, "use a draft made for this model")
    yield from _words(model, draft)


def _words(model: GgufFacts, draft: GgufFacts) -> Iterator[DraftMisfit]:
    """b11434 compares vocabularies for draft-simple alone; with other words it drafts all the same, in vain."""
    try:
        differs = other_words(model, draft)
    except (OSError, ValueError):
        differs = None
    if differs is not None:
        said = f"{differs}: the server speculates all the same, and hardly a token would be accepted"
        yield DraftMisfit("vocabulary", Severity.WARNING, said, "use a draft made for this model")


def _mismatches(
    one: SpecType, draft: GgufFacts, layers: tuple[int, ...], shape: Shape, model: GgufFacts
) -> Iterator[str]:
    # The input of a layer that is not there is the output of the last one; EAGLE-3 alone may read that.
    deepest = max(layers)
    if deepest > len(shape.layers) or (deepest == len(shape.layers) and one.block_margin is not None):
        yield f"it reads layer {deepest} of a model that has {len(shape.layers)}"
    width = draft.number("target_hidden_size") or draft.number("embedding_length")
    if width is not None and width != shape.width:
        yield f"it is made for a model of width {width}, this one has {shape.width}"
    if not gives_layer_inputs(model.architecture):
        yield f"it reads layer inputs, which {model.architecture} models do not give"
