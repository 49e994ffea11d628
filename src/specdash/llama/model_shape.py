"""The layers of a model as its GGUF header describes them: what each keeps per token, and per sequence.

Source: llama.cpp b11434 (src/llama-hparams.cpp, src/llama-model.cpp, src/llama-kv-cache*.cpp, src/llama-memory-
recurrent.cpp). An architecture whose layers are not known here counts as full attention in every layer, and the shape
says that it is not exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.core.speculation import MemoryKind
from specdash.llama.architectures import HYBRID, KNOWN_HYBRID, RECURRENT

if TYPE_CHECKING:
    from specdash.llama.gguf import GgufFacts

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
    exact = architecture in (RECURRENT | KNOWN_HYBRID | _KNOWN_PLAIN | _WINDOWS.keys()) - _ROUGHLY_KNOWN
    experts = (facts.number("expert_feed_forward_length") or 0) * (facts.number("expert_used_count") or 0)
    experts += facts.number("expert_shared_feed_forward_length") or 0
    feed = max(*_per_layer(facts, "feed_forward_length", (0,) * total), experts)
    inner = facts.number("ssm.inner_size") or 0
    memory = MemoryKind.WINDOW if any(layer.window for layer in layers) else MemoryKind.ATTENTION
    if architecture in RECURRENT | HYBRID:
        memory = MemoryKind.RECURRENT if architecture in RECURRENT else MemoryKind.HYBRID
    ahead = tuple(layers[trunk:])
    return ModelShape(tuple(layers[:trunk]), ahead, width, feed, inner, heads, key, value or key, exact, memory)


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
