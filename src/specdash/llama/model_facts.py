"""What a GGUF file is: kind, size, quantisation, memory, what can draft for it, base or instruct. No engine is asked.

`describe` is the one place that turns a header into these answers; `specdash gguf` prints them, preflight and the
choice of a spec type read them.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections import defaultdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.core.errors import Problem, Severity
from specdash.core.speculation import SPEC_TYPES, MemoryKind, Rollback, SpecType, detected_type, rollback, spec_type
from specdash.llama.gguf import FILE_TYPES, GUESSED, TENSOR_TYPES, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from specdash.llama.gguf import ArraySpan, GgufFacts, Tensor


# Whether a draft model, or the model's own heads, can draft for a model, judged as llama.cpp b11434 does it.
#
# The one place for these rules: preflight makes findings of them, `backend run` and `gguf --draft` refuse by them.


KNOWN = frozenset(
    """
    llama llama4 deci falcon baichuan grok gpt2 gptj gptneox mpt starcoder refact bert modern-bert nomic-bert
    nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert bloom stablelm qwen qwen2 qwen2moe qwen2vl qwen3
    qwen3moe qwen3next qwen3vl qwen3vlmoe qwen35 qwen35moe clef qwen4exp phi2 phi3 phimoe plamo plamo2 plamo3
    codeshell orion internlm2 minicpm minicpm3 gemma gemma2 gemma3 gemma3n gemma4 gemma4-assistant gemma-embedding
    starcoder2 mamba mamba2 maple jamba falcon-h1 xverse command-r cohere2 cohere2moe dbrx olmo olmo2 olmoe
    muse-glimmer openelm arctic deepseek deepseek2 deepseek2-ocr deepseek32 deepseek4 chatglm glm4 glm4moe glm-dsa
    bitnet t5 t5encoder jais jais2 nemotron nemotron_h nemotron_h_moe exaone exaone4 exaone-moe rwkv6 rwkv6qwen2
    rwkv7 arwkv7 granite granitemoe granitehybrid graniteswitch granite_swa chameleon wavtokenizer-dec plm bailingmoe
    bailingmoe2 bailingmoe3 dots1 dots3note arcee afmoe laguna ernie4_5 ernie4_5-moe hunyuan-moe hunyuan-dense
    hunyuan_vl hy_v3 hy_v4 smollm3 gpt-oss lfm2 lfm2moe dream smallthinker llada llada-moe seed_oss grovemoe apertus
    minimax-m2 cogvlm rnd1 pangu-embedded mistral3 mistral4 paddleocr mimo2 step35 spark2_5 llama-embed maincoder
    kimi-linear kimi-k3 glm5-next talkie mellum eagle3 minimax-m3 dflash nanbeige qwen3tts pockettts minimax-01
    hrm_text
    """.split()  # noqa: SIM905 - a list of 150 quoted words reads worse
)
"""Architectures of models; `clip` files and others that accompany a model are not among them."""
DIFFUSION = frozenset({"dream", "llada", "llada-moe", "rnd1"})
"""Architectures that write a whole text at once."""
ENCODERS = frozenset(
    {"bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3", "eurobert"}
    | {"t5encoder", "gemma-embedding", "llama-embed", "wavtokenizer-dec"}
)
"""Architectures that turn text into vectors, or vectors into sound, and write nothing."""
DRAFTS = frozenset({"eagle3", "dflash"})
"""Architectures of drafts that read a target's hidden states and cannot run by themselves."""
_GIVE_LAYER_INPUTS = frozenset(
    {"llama", "llama-embed", "qwen3", "qwen3moe", "qwen3next", "qwen35", "qwen35moe", "qwen4exp", "gemma4", "gpt-oss"}
    | {"lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "bailingmoe3", "deepseek4", "hunyuan_vl", "hunyuan-dense"}
    | {"mimo2", "minimax-01", "minimax-m2", "muse-glimmer", "nanbeige"}
)
"""Architectures whose graphs keep the inputs of their layers for drafts (`t_layer_inp`), found in the code of b11434.

Tried: llama, llama-embed, qwen3, lfm2 and qwen35 give them; with gemma3, qwen2, mistral3, internlm2, exaone, smollm3
and mamba the server aborts at its first request.
"""


def gives_layer_inputs(architecture: str | None) -> bool:
    """Whether drafts that read hidden states (EAGLE-3, DFlash, DSpark) work on it; True for one that is not known."""
    return architecture not in KNOWN or architecture in _GIVE_LAYER_INPUTS


MOST_SIZE_DIFFERENCE = 128
FIRST_COMPARED = 5

_KINDS = {"no_vocab": "none", "gemma4": "gpt2"}
"""Names of tokenizers that are another one's vocabulary kind."""
_SPECIAL = {"bos": {"llama": 1, "gpt2": 11, "bert": 101, "plamo2": 1}, "eos": {"llama": 2, "gpt2": 11, "t5": 1}}
_ADDED = {
    "bos": {"llama": True, "bert": True, "t5": False, "rwkv": False, "none": False},
    "eos": {"llama": False, "gpt2": False, "t5": True, "rwkv": False, "none": False},
}
_BOS_OF_PRE = frozenset({"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2", "tekken"})
"""Pre-tokenizers of BPE vocabularies that add BOS when the header says nothing."""


def misfit(target: GgufFacts, draft: GgufFacts) -> str | None:
    """The first point in which the vocabularies differ, in words; None when they fit, as far as the files tell.

    Reads the token texts from the files, and only compares bytes while they are the same.
    """
    kinds = _kind(target), _kind(draft)
    if None not in kinds and kinds[0] != kinds[1]:
        return f"its tokenizer is {kinds[1]!r}, the model's {kinds[0]!r}"
    for name in ("bos", "eos"):
        said = _special_misfit(name, target, draft)
        if said is not None:
            return said
    sizes = target.vocabulary_size, draft.vocabulary_size
    if sizes[0] is None or sizes[1] is None:
        return None
    if abs(sizes[0] - sizes[1]) > MOST_SIZE_DIFFERENCE:
        return f"its vocabulary has {sizes[1]} tokens, the model's {sizes[0]}"
    return other_words(target, draft)


def _kind(facts: GgufFacts) -> str | None:
    return _KINDS.get(facts.tokenizer, facts.tokenizer) if facts.tokenizer is not None else None


def _special_misfit(name: str, target: GgufFacts, draft: GgufFacts) -> str | None:
    added = _added(name, target), _added(name, draft)
    if added[0] is None or added[1] is None:
        return None
    if added[0] != added[1]:
        verb = {True: "adds", False: "does not add"}
        return f"it {verb[added[1]]} the {name.upper()} token, the model {verb[added[0]]} it"
    ids = _special(name, target), _special(name, draft)
    if added[0] and None not in ids and ids[0] != ids[1]:
        return f"its {name.upper()} token is {ids[1]}, the model's {ids[0]}"
    return None


def _added(name: str, facts: GgufFacts) -> bool | None:
    told = facts.values.get(f"tokenizer.ggml.add_{name}_token")
    if isinstance(told, bool):
        return told
    kind = _kind(facts) or ""
    if name == "bos" and kind == "gpt2":
        pre = facts.values.get("tokenizer.ggml.pre")
        return True if pre in _BOS_OF_PRE else (False if pre in (None, "default", "gpt-2", "qwen2") else None)
    return _ADDED[name].get(kind)


def _special(name: str, facts: GgufFacts) -> int | None:
    told = facts.values.get(f"tokenizer.ggml.{name}_token_id")
    return int(told) if isinstance(told, int) else _SPECIAL[name].get(_kind(facts) or "")


def other_words(target: GgufFacts, draft: GgufFacts) -> str | None:
    """The first token, from the fifth on, that is another text in the draft, in words; None where there is none.

    Raises `OSError` when a file went away.
    """
    first, second = target.token_texts, draft.token_texts
    if first is None or second is None:
        return None
    with (
        Path(target.path).open("rb") as reader,
        Path(draft.path).open("rb") as two,
        mmap.mmap(reader.fileno(), 0, access=mmap.ACCESS_READ) as ours,
        mmap.mmap(two.fileno(), 0, access=mmap.ACCESS_READ) as theirs,
    ):
        length = min(first.end - first.start, second.end - second.start)
        if ours[first.start : first.start + length] == theirs[second.start : second.start + length]:
            return None
        pairs = zip(_texts(ours, first), _texts(theirs, second), strict=False)
        for number, (mine, other) in enumerate(pairs):
            if number >= FIRST_COMPARED and mine != other:
                return f"token {number} is {_shown(other)}, in the model {_shown(mine)}"
    return None


def _texts(data: mmap.mmap, span: ArraySpan) -> Iterator[bytes]:
    unpack, at = struct.Struct("<Q").unpack_from, span.start
    for _ in range(span.count):
        size = unpack(data, at)[0]
        at += 8 + size
        yield data[at - size : at].partition(b"\0")[0]


def _shown(text: bytes) -> str:
    return repr(text.decode("utf-8", "replace")[:40])


_MADE_FOR = {kind.draft_architectures[0]: kind.name for kind in SPEC_TYPES if kind.draft_architectures}
"""`GgufFacts.draft_architecture` of a draft that reads the model's layers to the type it is made for."""
_FAMILY = "use a draft of the model's family"


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


def draft_misfits(
    spec_type: SpecType,
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
    if spec_type.needs_heads:
        yield from _heads(model, draft, draft_key)
    if draft is None:
        return
    if spec_type.reads_layers is not None:
        yield from _reading_layers(spec_type, model, draft, set_types)
    elif spec_type.needs_draft_model:
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
    spec_type: SpecType, model: GgufFacts | None, draft: GgufFacts, set_types: Callable[[str], str]
) -> Iterator[DraftMisfit]:
    name, architecture, count = spec_type.name, spec_type.draft_architectures[0], spec_type.reads_layers
    layers = draft.array("target_layers") or ()
    fits = draft.draft_architecture in spec_type.draft_architectures
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
    for reason in _mismatches(spec_type, draft, layers, shape, model):
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
    spec_type: SpecType, draft: GgufFacts, layers: tuple[int, ...], shape: ModelShape, model: GgufFacts
) -> Iterator[str]:
    # The input of a layer that is not there is the output of the last one; EAGLE-3 alone may read that.
    deepest = max(layers)
    if deepest > len(shape.layers) or (deepest == len(shape.layers) and spec_type.block_margin is not None):
        yield f"it reads layer {deepest} of a model that has {len(shape.layers)}"
    width = draft.number("target_hidden_size") or draft.number("embedding_length")
    if width is not None and width != shape.width:
        yield f"it is made for a model of width {width}, this one has {shape.width}"
    if not gives_layer_inputs(model.architecture):
        yield f"it reads layer inputs, which {model.architecture} models do not give"


# The layers of a model as its GGUF header describes them: what each keeps per token, and per sequence.
#
# Source: llama.cpp b11434 (src/llama-hparams.cpp, src/llama-model.cpp, src/llama-kv-cache*.cpp, src/llama-memory-
# recurrent.cpp). An architecture whose layers are not known here counts as full attention in every layer, and the
# shape says that it is not exact.

RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
"""Architectures without a KV cache."""
_KNOWN_HYBRID = frozenset(
    {"jamba", "falcon-h1", "plamo2", "granitehybrid", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe"}
    | {"qwen3next", "qwen35", "qwen35moe", "kimi-linear"}
)
"""Hybrid architectures whose layers are known here."""
HYBRID = _KNOWN_HYBRID | {"qwen4exp", "deepseek4", "bailingmoe3", "kimi-k3", "glm5-next", "minimax-01"}
"""Architectures with a KV cache in some layers and a recurrent state in others (or, falcon-h1, both in each)."""
STATE_ROLLBACK = frozenset(
    {"kimi-k3", "qwen35", "qwen35moe", "qwen4exp", "deepseek4", "glm5-next", "nemotron_h", "nemotron_h_moe"}
    | {"lfm2", "lfm2moe", "bailingmoe3"}
)
"""Architectures that can take rejected tokens back without a checkpoint, for draft types that ask for it."""
_FULL_EVERY = frozenset({"qwen3next", "qwen35", "qwen35moe"})
_WINDOWS = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2, "cohere2": 4, "llama4": 4, "olmo2": 4, "afmoe": 4} | {
    "gemma3n": 5, "exaone4": 4, "exaone-moe": 4, "gemma-embedding": 6,
}  # fmt: skip
"""Every n-th layer attends to everything, the others to a sliding window; where the header does not say."""
_ROUGHLY_KNOWN = frozenset({"gemma3n", "exaone4", "exaone-moe", "gemma-embedding"})
"""Architectures of which the kinds of layers are known, and not the size of every cache."""
_KNOWN_PLAIN = frozenset(
    """
    llama qwen qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe phi2 phi3 phimoe gemma starcoder2 stablelm
    mistral3 granite granitemoe olmo olmoe internlm2 command-r glm4 glm4moe deepseek deepseek2 falcon gpt2 gptneox
    dflash dspark eagle3 smollm3 seed_oss ernie4_5 ernie4_5-moe hunyuan-moe hunyuan-dense exaone minicpm3 nemotron
    arcee bailingmoe bailingmoe2 dots1
    """.split()  # noqa: SIM905 - a list of 50 quoted words reads worse
)
"""Architectures that attend to everything in every layer."""
_MOST_LAYERS = 512
"""LLAMA_MAX_LAYERS: the engine loads no model with more."""
_STATE_BYTES = 4
"""Recurrent states are kept as 32-bit floats."""


class Layer(Struct, frozen=True):
    """One layer. Widths are elements a token: `key` and `value` of the KV cache, 0 where the layer has none.

    `window` is the length of its sliding window in tokens, None for attention to everything. `state_bytes` is its
    recurrent state for one sequence.
    """

    key: int = 0
    value: int = 0
    window: int | None = None
    state_bytes: int = 0


class ModelShape(Struct, frozen=True):
    """All layers of a model. `heads` come after the layers proper: next-token prediction, run only by `draft-mtp`."""

    layers: tuple[Layer, ...]
    heads: tuple[Layer, ...]
    width: int
    """Embedding length, in elements."""
    feed_forward: int
    """Elements of the widest feed-forward step of one token, the experts in use added up."""
    state_width: int
    """Elements of the widest recurrent step of one token (`ssm.inner_size`), 0 where there is none."""
    attention_heads: int
    head_key: int
    head_value: int
    exact: bool
    """The layer kinds of this architecture are known."""
    memory: MemoryKind = MemoryKind.ATTENTION

    @property
    def recurrent(self) -> bool:
        """Whether any layer has a recurrent state, which cannot be cut back token by token."""
        return self.memory in (MemoryKind.RECURRENT, MemoryKind.HYBRID)


def shape_of(facts: GgufFacts) -> ModelShape | None:
    """The layers of a model, None when its header does not tell them."""
    total, width = facts.number("block_count"), facts.number("embedding_length")
    if not total or not width or total > _MOST_LAYERS:
        return None
    architecture = facts.architecture or ""
    query = _per_layer(facts, "attention.head_count", (0,) * total)
    heads = max(query)
    groups = _per_layer(facts, "attention.head_count_kv", query)
    size = width // heads if heads else 0
    mla = facts.number("attention.key_length_mla") is not None
    key = facts.number("attention.key_length") or size
    value = 0 if mla else (facts.number("attention.value_length") or size)
    state = _state_bytes(facts, width, heads)
    layers: list[Layer] = []
    for index in range(total):
        recurrent = _is_recurrent(facts, architecture, index, groups[index])
        attends = architecture not in RECURRENT and (not recurrent or architecture == "falcon-h1")
        count = groups[index] if attends else 0
        window = _window(facts, architecture, index)
        layers.append(Layer(key * count, value * count, window, state if recurrent else 0))
    trunk = max(total - (facts.nextn_layers or 0), 0)
    exact = architecture in (RECURRENT | _KNOWN_HYBRID | _KNOWN_PLAIN | _WINDOWS.keys()) - _ROUGHLY_KNOWN
    feed = _feed_forward(facts, total)
    inner = facts.number("ssm.inner_size") or 0
    memory = _memory(architecture, layers)
    ahead = tuple(layers[trunk:])
    return ModelShape(tuple(layers[:trunk]), ahead, width, feed, inner, heads, key, value or key, exact, memory)


def _memory(architecture: str, layers: list[Layer]) -> MemoryKind:
    if architecture in RECURRENT:
        return MemoryKind.RECURRENT
    if architecture in HYBRID:
        return MemoryKind.HYBRID
    return MemoryKind.WINDOW if any(layer.window for layer in layers) else MemoryKind.ATTENTION


def _per_layer(facts: GgufFacts, name: str, otherwise: tuple[int, ...]) -> tuple[int, ...]:
    """One number a layer: the array under `name`, or its one number for all; `otherwise` where there is neither."""
    array = facts.array(name)
    if array is not None:
        return (*array, *otherwise[len(array) :])[: len(otherwise)]
    number = facts.number(name)
    return otherwise if number is None else (number,) * len(otherwise)


def _is_recurrent(facts: GgufFacts, architecture: str, index: int, groups: int) -> bool:
    if architecture in RECURRENT or architecture == "falcon-h1":
        return True
    if architecture not in HYBRID:
        return False
    trunk = (facts.number("block_count") or 0) - (facts.nextn_layers or 0)
    if architecture in _FULL_EVERY:
        return index < trunk and (index + 1) % (facts.number("full_attention_interval") or 4) != 0
    if architecture.startswith("nemotron"):
        feed = facts.array("feed_forward_length")
        return groups == 0 and (feed is None or not any(feed[index : index + 1]))
    return groups == 0


def _window(facts: GgufFacts, architecture: str, index: int) -> int | None:
    length = facts.number("attention.sliding_window")
    if architecture == "llama4":
        length = facts.number("attention.chunk_size") or 8192
    if not length:
        return None
    listed = facts.array("attention.sliding_window_pattern")
    if listed is not None:
        return length if index < len(listed) and listed[index] else None
    every = facts.number("attention.sliding_window_pattern") or _WINDOWS.get(architecture)
    if every is None:
        return None
    return length if index % every < every - 1 else None


def _state_bytes(facts: GgufFacts, width: int, heads: int) -> int:
    """One layer's recurrent state of one sequence: the convolution's inputs (R) and the state proper (S)."""
    convolution, inner = facts.number("ssm.conv_kernel") or 0, facts.number("ssm.inner_size") or 0
    states, groups = facts.number("ssm.state_size") or 0, facts.number("ssm.group_count") or 0
    wkv, short, kda = (facts.number(name) or 0 for name in ("wkv.head_size", "shortconv.l_cache", "kda.head_dim"))
    if wkv:
        return (facts.number("token_shift_count") or 2) * width * _STATE_BYTES + width * wkv * _STATE_BYTES
    if short:
        return width * (short - 1) * _STATE_BYTES
    if kda:
        return (3 * max(convolution - 1, 0) * heads * kda + kda * kda * heads) * _STATE_BYTES
    return (max(convolution - 1, 0) * (inner + 2 * groups * states) + states * inner) * _STATE_BYTES


def _feed_forward(facts: GgufFacts, total: int) -> int:
    widest = max(_per_layer(facts, "feed_forward_length", (0,) * total))
    experts = (facts.number("expert_feed_forward_length") or 0) * (facts.number("expert_used_count") or 0)
    return max(widest, experts + (facts.number("expert_shared_feed_forward_length") or 0))


class Tuning(StrEnum):
    """What a model was trained for last."""

    INSTRUCT = "instruct"
    """To answer in a chat."""
    BASE = "base"
    """To go on with a text, and nothing else."""
    UNKNOWN = "unknown"
    """The file does not tell."""


class TuningVerdict(Struct, frozen=True):
    """What the file tells, and by what."""

    tuning: Tuning
    because: tuple[str, ...]


_INSTRUCT = frozenset(
    {"it", "instruct", "instruction", "instructed", "chat", "assistant", "sft", "dpo", "orpo", "rlhf", "thinking"}
    | {"reasoning"}
)
_BASE = frozenset({"base", "pt", "pretrain", "pretrained", "foundation", "backbone"})
_WORD = re.compile(r"[a-z]+")
_CHAT_TOKENS = (
    b"<|im_start|>", b"<|eot_id|>", b"<start_of_turn>", b"<|turn>", b"[INST]", b"<|start_header_id|>", b"<|assistant|>",
    b"<|end_of_turn|>", b"<|channel|>", b"<|START_OF_TURN_TOKEN|>", b"<|end|>", b"<\xef\xbd\x9cAssistant\xef\xbd\x9c>",
)  # fmt: skip


def tuning_of(facts: GgufFacts) -> TuningVerdict:
    """Judge the header; the vocabulary is read from the file for its chat tokens, without being kept."""
    reasons: list[str] = []
    decided = Tuning.UNKNOWN
    for where, text in _named(facts):
        said = _said(text)
        if said is not None:
            reasons.append(f"{where} is {text!r}")
            decided = said if decided is Tuning.UNKNOWN else decided
            if said is not decided:
                reasons[-1] += f", which says {said}"
    if facts.has_chat_template:
        reasons.append("it has a chat template" + (", as some base models do" if decided is Tuning.BASE else ""))
        decided = Tuning.INSTRUCT if decided is Tuning.UNKNOWN else decided
    else:
        reasons.append("it has no chat template")
    tokens = _chat_tokens(facts)
    if tokens:
        reasons.append(f"its vocabulary has {', '.join(tokens)}, as base models of the family may have too")
    if decided is Tuning.UNKNOWN:
        hint = _said(Path(facts.path).stem)
        if hint is not None:
            reasons.append(f"the file's name says {hint}, which anybody may write")
    return TuningVerdict(decided, tuple(reasons))


def _named(facts: GgufFacts) -> Iterator[tuple[str, str]]:
    # The words of a T5 model's name are its size: small, base, large.
    names = () if facts.architecture == "t5" else ("general.name", "general.basename")
    for key in ("general.finetune", *names):
        text = facts.text(key)
        if text is not None:
            yield key, text[:120]


def _said(text: str) -> Tuning | None:
    words = set(_WORD.findall(text.lower()))
    if words & _INSTRUCT:
        return Tuning.INSTRUCT
    return Tuning.BASE if words & _BASE else None


def _chat_tokens(facts: GgufFacts) -> tuple[str, ...]:
    span = facts.token_texts
    if span is None:
        return ()
    try:
        with Path(facts.path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = [
                token
                for token in _CHAT_TOKENS
                if data.find(len(token).to_bytes(8, "little") + token, span.start, span.end) >= 0
            ]
    except (OSError, ValueError):
        return ()
    return tuple(chunk.decode() for chunk in found[:3])


MTP_PAYS_FROM = 2_000_000_000
"""Parameters below which a model's prediction layers make it slower (docs/speculation.md)."""


class FileKind(StrEnum):
    """What a GGUF file is for."""

    MODEL = "model"
    DRAFT = "draft"
    """A model that only drafts for another one, whose hidden states it reads."""
    PROJECTOR = "multimodal projector"
    ADAPTER = "LoRA adapter"
    CONTROL_VECTOR = "control vector"
    IMATRIX = "importance matrix"
    VOCABULARY = "vocabulary without weights"


_USE = {
    FileKind.PROJECTOR: "load it beside its model with LLAMA_ARG_MMPROJ",
    FileKind.ADAPTER: "load it beside its model with --lora",
    FileKind.CONTROL_VECTOR: "load it beside a model with --control-vector",
    FileKind.IMATRIX: "llama-quantize reads it; name the model itself",
    FileKind.VOCABULARY: "name a file with weights",
}


class TypeShare(Struct, frozen=True):
    """The tensors of one type. `share` is their part of all parameters."""

    name: str
    tensors: int
    parameters: int
    size: int
    share: float


class SpecFit(Struct, frozen=True):
    """Whether a spec type can be used with this model. `fits` is None where it takes a draft that was not named.

    `takes_back` is how its rejected tokens are taken back; None where the model's memory is not known.
    """

    name: str
    fits: bool | None
    because: str
    takes_back: Rollback | None


class DraftNeeds(Struct, frozen=True):
    """What a draft was trained for; None where its file does not say."""

    method: str
    spec_type: str
    block_size: int | None
    longest_draft: int | None
    """Tokens of its longest draft, None where nothing limits it."""
    target_layers: tuple[int, ...]
    target_width: int | None


class DraftPair(Struct, frozen=True):
    """A draft beside its target. `spec_type` is the one it was judged for."""

    draft: str
    spec_type: str
    misfits: tuple[DraftMisfit, ...]

    @property
    def fits(self) -> bool:
        """Whether the server would run and speculate with the pair."""
        return not any(misfit.severity == "error" for misfit in self.misfits)


class ModelFacts(Struct, frozen=True):
    """Everything the file tells. Counts are 0 and texts None where it tells nothing; `size` is bytes of tensors."""

    path: str
    kind: FileKind
    name: str | None
    architecture: str | None
    known_architecture: bool
    """b11434 loads it."""
    parameters: int
    size: int
    file_bytes: int
    parts: int
    quantisation: str
    types: tuple[TypeShare, ...]
    layers: int
    """Without the prediction layers."""
    heads: int
    """Prediction (nextn) layers."""
    experts: tuple[int, int] | None
    """How many experts a token uses, of how many; None for a dense model."""
    width: int | None
    memory: MemoryKind | None
    window: int | None
    """Length of the sliding window in tokens."""
    gives_states: bool
    """Its architecture can keep the states of several tokens, so that draft types need no checkpoint."""
    context: int | None
    """Tokens it was trained on."""
    tokenizer: str | None
    vocabulary: int | None
    chat_template: bool
    tuning: Tuning
    tuning_reasons: tuple[str, ...]
    generates: bool
    """It writes text token by token."""
    spec_types: tuple[SpecFit, ...]
    draft_needs: DraftNeeds | None
    pair: DraftPair | None
    remarks: tuple[str, ...]

    @property
    def bits(self) -> float | None:
        """Bits a parameter, on average."""
        return self.size * 8 / self.parameters if self.parameters else None

    @property
    def refusal(self) -> str | None:
        """Why it cannot be named as a model, and what it is for; None for a model."""
        if self.kind is FileKind.MODEL:
            return None
        return str(_refusal(self.kind, self.draft_needs, wanted="model"))


MAY_BE = {
    "model": (FileKind.MODEL,),
    "spec-draft-model": (FileKind.MODEL, FileKind.DRAFT),
    "mmproj": (FileKind.PROJECTOR,),
}
"""Engine parameters that name a GGUF file, and what it must be."""


_DAMAGED = "download or convert it again"


def refusal_of(facts: GgufFacts, parameter: str) -> Problem | None:
    """Why the file cannot be what an engine parameter names, and what to do; None when it can."""
    kind = kind_of(facts)
    if kind not in MAY_BE[parameter]:
        return _refusal(kind, needs_of(facts), wanted=parameter)
    if kind is FileKind.PROJECTOR:
        return None
    # llama-model-loader.cpp and load_hparams: both keys are required of every model.
    needed = {"general.architecture": facts.architecture, f"{facts.architecture}.block_count": facts.block_count}
    missing = next((key for key, value in needed.items() if not value), None)
    if missing is None:
        return None
    return Problem(f"its header has no {missing}, and llama.cpp does not load it", _DAMAGED)


def _refusal(kind: FileKind, needs: DraftNeeds | None, *, wanted: str) -> Problem:
    if wanted == "mmproj":
        return Problem(f"is {_a(kind)}, no multimodal projector", "name the model's mmproj file")
    if kind is FileKind.DRAFT:
        method = f" ({needs.method})" if needs is not None else ""
        fix = "name it as LLAMA_DRAFT_MODEL beside the model it was made for"
        return Problem(f"is a draft{method}, no model", fix)
    return Problem(f"is {_a(kind)}, no model", _USE[kind])


def describe(facts: GgufFacts, draft: GgufFacts | None = None, *, draft_type: str | None = None) -> ModelFacts:
    """What the file is, with the draft beside it where one is named. Reads vocabularies from the files.

    The pair is judged for `draft_type`, or else for the type the engine would take for such a draft.
    """
    kind = kind_of(facts)
    shape = shape_of(facts)
    architecture = facts.architecture
    memory = shape.memory if shape is not None else None
    generates = kind is FileKind.MODEL and architecture not in ENCODERS | DIFFUSION
    gives_states = architecture in STATE_ROLLBACK
    types = _types(facts)
    parameters = sum(kind.parameters for kind in types)
    heads = facts.nextn_layers or 0
    quantisation, doubt = _quantisation(facts, types)
    verdict = tuning_of(facts)
    pair = _pair(facts, draft, draft_type) if draft is not None else None
    windows = {layer.window for layer in shape.layers if layer.window} if shape is not None else set()
    return ModelFacts(
        path=facts.path,
        kind=kind,
        name=facts.name,
        architecture=architecture,
        known_architecture=architecture in KNOWN,
        parameters=parameters,
        size=sum(kind.size for kind in types),
        file_bytes=facts.file_bytes,
        parts=facts.parts,
        quantisation=quantisation,
        types=types,
        layers=max((facts.block_count or 0) - heads, 0),
        heads=heads,
        experts=_experts(facts),
        width=facts.number("embedding_length"),
        memory=memory,
        window=max(windows, default=None),
        gives_states=gives_states,
        context=facts.context_length,
        tokenizer=facts.tokenizer,
        vocabulary=facts.vocabulary_size,
        chat_template=facts.has_chat_template,
        tuning=verdict.tuning if generates else Tuning.UNKNOWN,
        tuning_reasons=verdict.because if generates else (f"{_a(kind)} is neither",),
        generates=generates,
        spec_types=_fits(facts, memory, pair, parameters) if generates else (),
        draft_needs=needs_of(facts),
        pair=pair,
        remarks=(*doubt, *_remarks(facts, kind)),
    )


def kind_of(facts: GgufFacts) -> FileKind:
    """What the file is for, by `general.type`, its architecture, and its tensors."""
    told, architecture = facts.text("general.type"), facts.architecture
    if told == "imatrix" or "imatrix.chunk_count" in facts.values:
        return FileKind.IMATRIX
    if architecture == "controlvector":
        return FileKind.CONTROL_VECTOR
    if told == "adapter" or "adapter.type" in facts.values:
        return FileKind.ADAPTER
    if told == "mmproj" or architecture == "clip":
        return FileKind.PROJECTOR
    if not facts.tensors and facts.vocabulary_size:
        return FileKind.VOCABULARY
    return FileKind.DRAFT if architecture in DRAFTS else FileKind.MODEL


def needs_of(facts: GgufFacts) -> DraftNeeds | None:
    """What a draft needs of its target; None for a model that needs nothing."""
    if facts.architecture not in DRAFTS:
        return None
    kind = facts.draft_architecture
    method = {"dspark": "DSpark", "eagle3": "EAGLE-3"}.get(kind or "", "DFlash")
    if method == "DFlash" and facts.number("selector_rank"):
        method = "DFlash 2"
    item = spec_type(f"draft-{kind}")
    block = facts.number("block_size")
    return DraftNeeds(
        method=method,
        spec_type=f"draft-{kind}",
        block_size=block,
        longest_draft=item.longest_draft(block) if item is not None else None,
        target_layers=facts.array("target_layers") or (),
        target_width=facts.number("target_hidden_size") or facts.number("embedding_length"),
    )


def type_for(draft: GgufFacts) -> SpecType:
    """The spec type a draft file is for: the one the engine detects, EAGLE-3 for its heads, else `draft-simple`."""
    found = detected_type(draft.draft_architecture, draft.nextn_layers)
    if found is None and draft.architecture == "eagle3":
        found = spec_type("draft-eagle3")
    return found or next(spec_kind for spec_kind in SPEC_TYPES if spec_kind.name == "draft-simple")


def _pair(facts: GgufFacts, draft: GgufFacts, named: str | None) -> DraftPair:
    item = (spec_type(named) if named is not None else None) or type_for(draft)
    return DraftPair(draft.path, item.name, tuple(draft_misfits(item, facts, draft)))


def _types(facts: GgufFacts) -> tuple[TypeShare, ...]:
    by_kind: dict[int, list[Tensor]] = defaultdict(list)
    for tensor in facts.tensors:
        by_kind[tensor.kind].append(tensor)
    total = sum(tensor.elements for tensor in facts.tensors) or 1
    shares = []
    for kind, tensors in by_kind.items():
        count = sum(tensor.elements for tensor in tensors)
        shares.append(
            TypeShare(type_name(kind), len(tensors), count, sum(tensor.size for tensor in tensors), count / total)
        )
    return tuple(sorted(shares, key=lambda type_share: (-type_share.parameters, type_share.name)))


def _quantisation(facts: GgufFacts, types: tuple[TypeShare, ...]) -> tuple[str, list[str]]:
    """The name of the quantisation, and what is odd about it."""
    if not types:
        return "none", []
    told = facts.values.get("general.file_type")
    declared = FILE_TYPES.get(told & ~GUESSED) if isinstance(told, int) and told >= 0 else None
    largest = types[0].name
    if declared is None:
        return (largest if len(types) == 1 else f"mostly {largest}"), []
    name, kind = declared
    main = TENSOR_TYPES[kind].name
    if any(kind.name == main for kind in types):
        return name, []
    return f"mostly {largest}", [f"the file calls itself {name}, and none of its tensors is {main}"]


def _experts(facts: GgufFacts) -> tuple[int, int] | None:
    count, used = facts.number("expert_count"), facts.number("expert_used_count")
    return (used or 0, count) if count else None


def _fits(facts: GgufFacts, memory: MemoryKind | None, pair: DraftPair | None, parameters: int) -> tuple[SpecFit, ...]:
    gives = facts.architecture in STATE_ROLLBACK
    found = []
    for spec_kind in SPEC_TYPES:
        fits, because = _fit(spec_kind, facts, pair, parameters)
        back = rollback(spec_kind, memory, gives_states=gives) if memory is not None else None
        found.append(SpecFit(spec_kind.name, fits, because, back))
    return tuple(found)


def _fit(item: SpecType, facts: GgufFacts, pair: DraftPair | None, parameters: int) -> tuple[bool | None, str]:
    if pair is not None and pair.spec_type == item.name:
        reason = next((row.said for row in pair.misfits if row.severity == "error"), "the draft fits")
        return pair.fits, reason
    if item.needs_heads:
        if not facts.nextn_layers:
            return False, "it has no prediction (nextn) layers; a draft file that has them would do"
        if parameters < MTP_PAYS_FROM:
            return True, "it has the layers, but under 2B parameters they slow it down"
        return True, "it has the layers"
    if item.reads_layers is not None:
        if not gives_layer_inputs(facts.architecture):
            return False, f"{facts.architecture} models do not give the layer inputs that it reads"
        return None, f"with {_METHODS[item.name]} draft made for this model"
    if item.needs_draft_model:
        return None, "with a smaller model of the same vocabulary"
    return True, "nothing"


_METHODS = {"draft-eagle3": "an EAGLE-3", "draft-dflash": "a DFlash", "draft-dspark": "a DSpark"}


def _remarks(facts: GgufFacts, kind: FileKind) -> list[str]:
    found = []
    strange = sorted({tensor.kind for tensor in facts.tensors if tensor.kind not in TENSOR_TYPES and tensor.kind >= 0})
    if strange:
        shown = ", ".join(str(number) for number in strange[:5])
        found.append(
            f"tensor types {shown} are unknown to b11434: of a fork, or newer; sizes and length are not judged"
        )
    if kind in (FileKind.MODEL, FileKind.DRAFT) and facts.architecture not in KNOWN:
        named = (
            f"the architecture {facts.architecture!r} is" if facts.architecture else "no architecture is named; it is"
        )
        found.append(f"{named} unknown to b11434: the server would not load it, unless it is newer")
    return found


def _a(kind: FileKind) -> str:
    return f"{'an' if str(kind)[0] in 'aeiou' else 'a'} {kind}"
