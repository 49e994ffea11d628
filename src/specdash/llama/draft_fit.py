"""Whether a draft model, or the model's own heads, can draft for a model, judged as llama.cpp b11434 does it.

Preflight makes findings of these points, `gguf --draft` and the tuner refuse by them.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.core.errors import Severity
from specdash.core.speculation import SPEC_TYPES
from specdash.llama.architectures import GIVE_LAYER_INPUTS, KNOWN
from specdash.llama.model_shape import shape_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from specdash.core.speculation import SpecType
    from specdash.llama.gguf import ArraySpan, GgufFacts

MOST_SIZE_DIFFERENCE = 128
FIRST_COMPARED = 5

_KINDS = {"no_vocab": "none", "gemma4": "gpt2"}
"""Names of tokenizers that are another one's vocabulary kind."""
_ADDED = {("bos", "llama"): True, ("eos", "llama"): False, ("eos", "gpt2"): False}
"""Whether the engine adds the token to a prompt, where the header does not say."""
_SPECIAL = {("bos", "llama"): 1, ("eos", "llama"): 2, ("bos", "gpt2"): 11, ("eos", "gpt2"): 11}
"""The id of the token, where the header does not say."""
_MADE_FOR = {kind.draft_architectures[0]: kind.name for kind in SPEC_TYPES if kind.draft_architectures}
"""`GgufFacts.draft_architecture` of a draft that reads the model's layers to the type it is made for."""
_FAMILY = "use a draft of the model's family"
_MADE_FOR_THIS = "use a draft made for this model"


class DraftMisfit(Struct, frozen=True):
    """One point in which a pair does not fit. `said` is what is wrong and how it ends, in words without a subject.

    `of_draft` says that the draft file is to blame, and not the type. An error means that the server would not start,
    abort, or run without speculation.
    """

    rule: str
    severity: Severity
    said: str
    fix: str = ""
    of_draft: bool = True


def gives_layer_inputs(architecture: str | None) -> bool:
    """Whether drafts that read hidden states (EAGLE-3, DFlash, DSpark) work on it; True for one that is not known."""
    return architecture not in KNOWN or architecture in GIVE_LAYER_INPUTS


def draft_misfits(
    spec_type: SpecType,
    model: GgufFacts | None,
    draft: GgufFacts | None,
    *,
    set_types: Callable[[str], str] = "LLAMA_SPEC_TYPE={}".format,
    draft_key: str = "LLAMA_DRAFT_MODEL",
) -> Iterator[DraftMisfit]:
    """Everything in which the pair does not fit the type; None for a file of which nothing is known.

    Fixes write the spec types as `set_types` does, and name the draft by `draft_key`.
    """
    if spec_type.needs_heads:
        yield from _heads(model, draft, draft_key)
    if draft is None:
        return
    if spec_type.reads_layers is not None:
        yield from _reading_layers(spec_type, model, draft, set_types)
    elif spec_type.needs_draft_model:
        yield from _simple(model, draft, set_types)


def _heads(model: GgufFacts | None, draft: GgufFacts | None, draft_key: str) -> Iterator[DraftMisfit]:
    """A draft given beside `draft-mtp` must have the heads itself: the model's own are not used then."""
    facts = draft if draft is not None else model
    if facts is None:
        return
    if not facts.nextn_layers:
        fix = "use another type, or a model with such layers"
        if draft is not None and model is not None and model.nextn_layers:
            fix = f"remove {draft_key}: the model has its own"
        problem = f"draft-mtp needs prediction (nextn) layers, and {facts.path} has none: the server would not start"
        yield DraftMisfit("nextn-layers", Severity.ERROR, problem, fix, of_draft=draft is not None)
    elif draft is not None and model is not None:
        width, needed = draft.number("embedding_length"), model.number("embedding_length")
        if width is not None and needed is not None and width != needed:
            problem = f"its prediction layers are made for a model of width {width}, this one has {needed}"
            yield DraftMisfit(
                "draft-architecture", Severity.ERROR, f"{problem}; the server would abort", _MADE_FOR_THIS
            )
        else:
            yield from _other_words(model, draft)


def _simple(model: GgufFacts | None, draft: GgufFacts, set_types: Callable[[str], str]) -> Iterator[DraftMisfit]:
    if draft.draft_architecture in _MADE_FOR:
        problem = (
            f"{draft.architecture} models draft from the model's hidden states, not by themselves; next to nothing "
            "would be accepted"
        )
        fix = f"set {set_types(_MADE_FOR[draft.draft_architecture])}"
        yield DraftMisfit("draft-architecture", Severity.WARNING, problem, fix)
    if model is None:
        return
    differs = misfit(model, draft)
    tokens, known = model.vocabulary_size, draft.vocabulary_size
    if differs is not None:
        yield DraftMisfit("vocabulary", Severity.ERROR, f"{differs}; the server would run without speculation", _FAMILY)
    # b11434 lets vocabularies differ by 128 tokens, and aborts when one of those is drafted, or sampled.
    elif tokens is not None and known is not None and known > tokens:
        problem = f"it knows {known - tokens} tokens more than the model; the server aborts if it drafts one of them"
        yield DraftMisfit("vocabulary", Severity.WARNING, problem, _FAMILY)
    elif tokens is not None and known is not None and known < tokens:
        problem = (
            f"the model knows {tokens - known} tokens more; the server aborts if one is sampled (padding never is)"
        )
        yield DraftMisfit("vocabulary", Severity.INFO, problem)
    target, small = shape_of(model), shape_of(draft)
    if target is not None and small is not None and small.recurrent and not target.recurrent:
        problem = (
            f"a recurrent draft ({draft.architecture}) for an attention model ({model.architecture}) "
            "aborts the server at the first rejected token"
        )
        yield DraftMisfit("recurrent-draft", Severity.ERROR, problem, "use a draft without recurrent layers")


def _reading_layers(
    spec_type: SpecType, model: GgufFacts | None, draft: GgufFacts, set_types: Callable[[str], str]
) -> Iterator[DraftMisfit]:
    name, architecture, count = spec_type.name, spec_type.draft_architectures[0], spec_type.reads_layers
    layers = draft.array("target_layers") or ()
    fits = draft.draft_architecture in spec_type.draft_architectures
    if not fits or not layers or (count and len(layers) != count):
        # b11434: a plain draft aborts it; an EAGLE-3 head loads, and every request fails.
        ends = "run without speculation" if name == "draft-eagle3" else "abort, or fail every request"
        problem = f"{name} needs a draft of architecture {architecture}, this is {draft.architecture or 'unknown'}"
        made_for = _MADE_FOR.get(draft.draft_architecture or "", "draft-simple")
        other = f", or set {set_types(made_for)}" if made_for != name else ""
        fix = f"name a draft made for {name}{other}"
        yield DraftMisfit("draft-architecture", Severity.ERROR, f"{problem}; the server would {ends}", fix)
        return
    made_for = _MADE_FOR.get(draft.draft_architecture or "", name)
    if made_for != name:
        problem = f"it is made for {made_for}, {name} lays its block out differently: hardly a token would be accepted"
        yield DraftMisfit("draft-architecture", Severity.WARNING, problem, f"set {set_types(made_for)}")
    shape = shape_of(model) if model is not None else None
    if model is None or shape is None:
        return
    # The input of a layer that is not there is the output of the last one; EAGLE-3 alone may read that.
    deepest, problems = max(layers), []
    if deepest > len(shape.layers) or (deepest == len(shape.layers) and spec_type.block_margin is not None):
        problems.append(f"it reads layer {deepest} of a model that has {len(shape.layers)}")
    width = draft.number("target_hidden_size") or draft.number("embedding_length")
    if width is not None and width != shape.width:
        problems.append(f"it is made for a model of width {width}, this one has {shape.width}")
    if not gives_layer_inputs(model.architecture):
        problems.append(f"it reads layer inputs, which {model.architecture} models do not give")
    for problem in problems:
        yield DraftMisfit("draft-architecture", Severity.ERROR, f"{problem}; the server would abort", _MADE_FOR_THIS)
    yield from _other_words(model, draft)


def _other_words(model: GgufFacts, draft: GgufFacts) -> Iterator[DraftMisfit]:
    """b11434 compares vocabularies for draft-simple alone; with other words it drafts all the same, in vain."""
    differs = _different_token(model, draft)
    if differs is not None:
        problem = f"{differs}: the server speculates all the same, and hardly a token would be accepted"
        yield DraftMisfit("vocabulary", Severity.WARNING, problem, _MADE_FOR_THIS)


def misfit(target: GgufFacts, draft: GgufFacts) -> str | None:
    """The first point in which the vocabularies differ, in words; None when they fit, as far as the files say.

    Reads the token texts from the files, and only compares bytes while they are the same.
    """
    kind, draft_kind = (_KINDS.get(facts.tokenizer or "", facts.tokenizer) for facts in (target, draft))
    if kind is not None and draft_kind is not None and kind != draft_kind:
        return f"its tokenizer is {draft_kind!r}, the model's {kind!r}"
    for name in ("bos", "eos"):
        added, special = _ADDED.get((name, str(kind))), _SPECIAL.get((name, str(kind)))
        adds, draft_adds = (_special(facts, f"add_{name}_token", added) for facts in (target, draft))
        token, other = (_special(facts, f"{name}_token_id", special) for facts in (target, draft))
        if adds is not None and draft_adds is not None and adds != draft_adds:
            verb = {True: "adds", False: "does not add"}
            return f"it {verb[bool(draft_adds)]} the {name.upper()} token, the model {verb[bool(adds)]} it"
        if adds and token is not None and other is not None and token != other:
            return f"its {name.upper()} token is {other}, the model's {token}"
    size, draft_size = target.vocabulary_size, draft.vocabulary_size
    if size is None or draft_size is None:
        return None
    if abs(size - draft_size) > MOST_SIZE_DIFFERENCE:
        return f"its vocabulary has {draft_size} tokens, the model's {size}"
    return _different_token(target, draft)


def _special(facts: GgufFacts, key: str, otherwise: int | None) -> int | None:
    value = facts.values.get(f"tokenizer.ggml.{key}", otherwise)
    return value if isinstance(value, int) else None


def _different_token(target: GgufFacts, draft: GgufFacts) -> str | None:
    """The first token, from the fifth on, that is another text in the draft, in words.

    None where there is none, and where the files do not say or can no longer be read.
    """
    first, second = target.token_texts, draft.token_texts
    if first is None or second is None:
        return None
    try:
        with Path(target.path).open("rb") as file, Path(draft.path).open("rb") as draft_file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            draft_data = mmap.mmap(draft_file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None
    with data, draft_data:
        length = min(first.end - first.start, second.end - second.start)
        if data[first.start : first.start + length] == draft_data[second.start : second.start + length]:
            return None
        pairs = zip(_texts(data, first), _texts(draft_data, second), strict=False)
        for number, (token, other) in enumerate(pairs):
            if number >= FIRST_COMPARED and token != other:
                shown, shown_other = (repr(text.decode("utf-8", "replace")[:40]) for text in (token, other))
                return f"token {number} is {shown_other}, in the model {shown}"
    return None


def _texts(data: mmap.mmap, span: ArraySpan) -> Iterator[bytes]:
    unpack, at = struct.Struct("<Q").unpack_from, span.start
    for _ in range(span.count):
        size = unpack(data, at)[0]
        at += 8 + size
        yield data[at - size : at].partition(b"\0")[0]
