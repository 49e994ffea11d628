"""How much memory a model will take, from its GGUF header and the settings: pure arithmetic, no I/O.

Weights, KV cache and recurrent state are what llama.cpp b11434 allocates, to the byte where the architecture is known
(`ModelShape.exact`). The compute buffer is an estimate, fitted to b11434: per token of a physical batch the largest of
the feed-forward step (3 x its width + 5 x the embedding), the attention step (6 x the embedding, or what queries, keys
and values take where they are wider; scores, keys and values where flash attention is off; copies of a cache that it
cannot read where it is on), the recurrent step (8 x its width) and the output step (5 x the embedding, and the logits),
plus the attention mask. GPU overhead is what a CUDA context takes before the first byte of a model.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from specdash.core.speculation import spec_type
from specdash.llama.architectures import STATE_ROLLBACK
from specdash.llama.model_shape import Layer, ModelShape, shape_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from specdash.llama.gguf import GgufFacts, Tensor

CACHE_TYPES: dict[str, tuple[int, int]] = {
    "f32": (1, 4), "f16": (1, 2), "bf16": (1, 2), "q8_0": (32, 34), "q4_0": (32, 18), "q4_1": (32, 20),
    "iq4_nl": (32, 18), "q5_0": (32, 22), "q5_1": (32, 24),
}  # fmt: skip
"""Type of a cache to its elements per block and bytes per block."""
AUTOMATIC_SLOTS = 4
"""Slots of `--parallel -1`, which share one cache."""
ALL_LAYERS = 1 << 20
CELLS_STEP = 256
HEADROOM = 0.90
"""Share of the free memory that may be used."""
HEADROOM_WITH_MTP = 0.85
"""The same where the prediction layers draft: their context grows with what is drafted."""
_LONGEST_CONTEXT = 1 << 22
GPU_OVERHEAD = 400 * 1024**2
"""Bytes a CUDA context takes beside the buffers (an estimate)."""
_ON_THE_CPU = ("token_embd.", "per_layer_token_embd.", "token_types.", "position_embd.")
"""Inputs stay in the computer's memory at any `--gpu-layers`."""
_READ_WHOLE = frozenset({"eagle3", "dflash", "dspark"})
"""Drafts of which the engine reserves the logits of a whole batch (`llama_model_has_encoder`)."""
_CUDA_HEADS = frozenset({40, 64, 72, 80, 96, 112, 128, 192, 256, 320, 512, 576})
"""Head sizes that flash attention on CUDA knows (`fattn.cu`); for others the engine turns it off."""
_OFFLOADED_FROM = 32
"""With so many tokens, a step whose weights are in main memory runs on the GPU, with a copy of them (`op_offload`)."""
_BLOCK = re.compile(r"blk\.(\d+)\.")
_EXPERTS = re.compile(r"blk\.(\d+)\.ffn_(up|down|gate|gate_up)_(ch)?exps")


class SlotLayout(Struct, frozen=True):
    """How the context is shared out: `sequences` slots, over one common cache when `unified`."""

    sequences: int
    unified: bool


class ModelLoad(Struct, frozen=True):
    """How one model is loaded. Sizes are tokens.

    `cells` is the length of one cache: of every slot, or of all together when unified (see `cells_of`). `gpu_layers`
    counts from the end, the output layer first; `cpu_experts` counts layers, from the first, whose experts stay on the
    CPU. `snapshots` is how many tokens back a recurrent state can be taken.
    """

    cells: int
    slots: SlotLayout
    key_type: str = "f16"
    value_type: str = "f16"
    batch: int = 512
    flash_attention: bool = True
    full_window: bool = False
    gpu_layers: int = 0
    cache_on_gpu: bool = True
    cpu_experts: int = 0
    heads: bool = False
    """The next-token-prediction layers are loaded too."""
    snapshots: int = 0
    outputs: int = 0
    """Tokens of a batch whose logits are asked for at most; 0: one of every sequence."""
    batches_on_gpu: bool = False
    """A GPU computes large batches, also of layers that are not on it."""
    sampled: bool = False
    """Logits are sampled where they are computed, which takes a second copy of them."""


class MemoryPart(Struct, frozen=True):
    """One use of memory, in bytes on the GPUs and in the computer's own memory."""

    model: str
    """`model` or `draft`."""
    what: str
    """`weights`, `KV cache`, `recurrent state` or `compute`."""
    gpu: int
    host: int
    estimated: bool = False


class MemoryEstimate(Struct, frozen=True):
    """What a server takes, part by part. `exact` says that every part but the estimated ones is to the byte."""

    parts: tuple[MemoryPart, ...]
    exact: bool = True

    def __add__(self, other: MemoryEstimate) -> MemoryEstimate:
        return MemoryEstimate(self.parts + other.parts, self.exact and other.exact)

    @property
    def gpu(self) -> int:
        """Bytes on the GPUs, estimates included."""
        return sum(part.gpu for part in self.parts)

    @property
    def gpu_certain(self) -> int:
        """Bytes on the GPUs without the estimated parts."""
        return sum(part.gpu for part in self.parts if not part.estimated)

    @property
    def gpu_weights(self) -> int:
        """Bytes of weights on the GPUs."""
        return sum(part.gpu for part in self.parts if part.what == "weights")

    @property
    def host(self) -> int:
        """Bytes in the computer's own memory, estimates included."""
        return sum(part.host for part in self.parts)


def slots_of(parallel: int, *, unified: bool = False) -> SlotLayout:
    """The slots of `--parallel`; -1 is the engine's automatic."""
    return SlotLayout(AUTOMATIC_SLOTS, unified=True) if parallel < 0 else SlotLayout(max(1, parallel), unified)


def cells_of(context: int, slots: SlotLayout, trained: int | None, *, fitted: bool = True) -> int:
    """Length of one cache in tokens, as the engine rounds it.

    0 as context stands for the trained one: of each slot with `--fit on`, the default, and of all together with `off`.
    """
    each = 1 if slots.unified else slots.sequences
    number = context // each if context else (trained or CELLS_STEP) // (1 if fitted else each)
    return max(CELLS_STEP, math.ceil(number / CELLS_STEP) * CELLS_STEP)


def snapshots_of(architecture: str | None, spec_types: Iterable[str], longest: int) -> int:
    """How many snapshots of a recurrent state the engine keeps for the spec types: 0 means checkpoints instead."""
    asking = any(item.keeps_states for name in spec_types if (item := spec_type(name)) is not None)
    return longest if architecture in STATE_ROLLBACK and asking else 0


def row_bytes(kind: str, elements: int) -> int:
    """Bytes of a row of `elements` in a cache of type `kind`."""
    per_block, size = CACHE_TYPES.get(kind, (1, 2))
    return elements * size // per_block


def estimate(facts: GgufFacts, load: ModelLoad, model: str = "model", *, heads: bool = False) -> MemoryEstimate | None:
    """What loading a model takes, None when its header does not describe its layers. `model` names it in the parts.

    `heads`: what the draft context of `draft-mtp` takes beside the weights, a cache for the prediction layers alone.
    """
    shape = shape_of(facts)
    if shape is None:
        return None
    layers = shape.heads if heads else shape.layers
    offloaded = [load.gpu_layers > 0] * len(layers) if heads else _offloaded(len(layers), load)
    streams = 1 if load.slots.unified else load.slots.sequences
    rows = [row_bytes(load.key_type, layer.key) + row_bytes(load.value_type, layer.value) for layer in layers]
    caches = [_cells(layer, load) * streams * row if layer.key else 0 for layer, row in zip(layers, rows, strict=True)]
    states = [0 if heads else layer.state_bytes * load.slots.sequences * (1 + load.snapshots) for layer in layers]
    parts = []
    if not heads:
        placed = list(_placed(facts, shape, load))
        gpu = sum(tensor.size for tensor, there in placed if there)
        host = sum(tensor.size for tensor, there in placed if not there)
        if load.gpu_layers > 0 and not any(tensor.name.startswith("output.") for tensor in facts.tensors):
            # The embedding is the output layer too, of which the GPU has a copy.
            gpu += sum(tensor.size for tensor, _ in placed if tensor.name.startswith("token_embd."))
        parts.append(MemoryPart(model, "weights", gpu, host))
    for what, sizes in (("KV cache", caches), ("recurrent state", states)):
        gpu = sum(size for size, there in zip(sizes, offloaded, strict=True) if there and load.cache_on_gpu)
        parts.append(MemoryPart(model, what, gpu, sum(sizes) - gpu))
    parts.append(_compute(model, facts, shape, load))
    return MemoryEstimate(tuple(part for part in parts if part.gpu or part.host), shape.exact)


def together(
    model: GgufFacts, load: ModelLoad, draft: GgufFacts | None = None, draft_load: ModelLoad | None = None
) -> MemoryEstimate | None:
    """What a server takes with the model and what drafts for it, None when a header does not tell its layers.

    Without a draft model, `load.heads` says that the model's own prediction layers draft; `draft_load` then is how
    their context is loaded. With one, `draft_load.heads` says that its prediction layers do.
    """
    found = estimate(model, load)
    behind = draft_load if draft_load is not None else replace(load, key_type="f16", value_type="f16", heads=False)
    if draft is None:
        more = estimate(model, behind, "draft", heads=True) if load.heads else MemoryEstimate(())
    else:
        more = estimate(draft, behind, "draft")
        heads = estimate(draft, behind, "draft", heads=True) if behind.heads else None
        if more is not None and heads is not None:
            weights = tuple(part for part in more.parts if part.what == "weights")
            more = MemoryEstimate(weights + heads.parts, more.exact)
    return None if found is None or more is None else found + more


def fit_context(
    facts: GgufFacts,
    load: ModelLoad,
    free_bytes: int,
    *,
    headroom: float,
    draft: GgufFacts | None = None,
    draft_load: ModelLoad | None = None,
    gpus: int = 1,
) -> int:
    """The largest `--ctx-size` that fits, over all slots: a multiple of 256, at most what the model was trained on.

    `free_bytes` are of the `gpus` where `load.gpu_layers` says that one is used, else of the computer's memory;
    `headroom` is the share of them that may be used. 0 when nothing fits, or the header does not tell what it takes.
    """
    on_gpu = load.gpu_layers > 0
    allowed = free_bytes * headroom - (GPU_OVERHEAD * gpus if on_gpu else 0)

    def fits(steps: int) -> bool:
        cells = steps * CELLS_STEP
        behind = replace(draft_load, cells=cells) if draft_load is not None else None
        found = together(facts, replace(load, cells=cells), draft, behind)
        return found is not None and (found.gpu if on_gpu else found.host) <= allowed

    trained = min(facts.context_length or _LONGEST_CONTEXT, _LONGEST_CONTEXT)
    least, most = 0, max(trained // CELLS_STEP, 1)
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if fits(middle) else (least, middle - 1)
    return least * CELLS_STEP * (1 if load.slots.unified else load.slots.sequences)


def headroom_of(spec_types: Iterable[str]) -> float:
    """The share of free memory that may be used when these types draft."""
    return HEADROOM_WITH_MTP if "draft-mtp" in spec_types else HEADROOM


def _offloaded(count: int, load: ModelLoad) -> list[bool]:
    """Which layers are on the GPU: the last ones, and the output layer counts as one."""
    first = max(count + 1 - load.gpu_layers, 0)
    return [load.gpu_layers > 0 and index >= first for index in range(count)]


def _cells(layer: Layer, load: ModelLoad) -> int:
    """Length of one cache of a layer in tokens."""
    if layer.window is None or load.full_window:
        return load.cells
    reach = layer.window * (load.slots.sequences if load.slots.unified else 1) + load.batch
    return math.ceil(min(load.cells, reach) / CELLS_STEP) * CELLS_STEP


def _placed(facts: GgufFacts, shape: ModelShape, load: ModelLoad) -> Iterator[tuple[Tensor, bool]]:
    """Every tensor that is loaded, and whether onto a GPU."""
    count = len(shape.layers)
    offloaded = _offloaded(count, load)
    for tensor in facts.tensors:
        block = _BLOCK.match(tensor.name)
        number = int(block.group(1)) if block is not None else None
        if number is None:
            yield tensor, load.gpu_layers > 0 and not tensor.name.startswith(_ON_THE_CPU)
        elif number < count:
            experts = _EXPERTS.match(tensor.name) is not None and number < load.cpu_experts
            yield tensor, offloaded[number] and not experts
        elif load.heads:
            yield tensor, load.gpu_layers > 0


def _compute(model: str, facts: GgufFacts, shape: ModelShape, load: ModelLoad) -> MemoryPart:
    on_gpu = load.gpu_layers > 0 or load.batches_on_gpu
    streams = 1 if load.slots.unified else load.slots.sequences
    attends = any(layer.key for layer in (*shape.layers, *shape.heads))
    # CUDA has no flash attention for other head sizes; a quantised cache of values keeps it on, on the CPU.
    no_kernel = shape.head_key not in _CUDA_HEADS and CACHE_TYPES.get(load.value_type, (1, 2))[0] == 1
    flash = load.flash_attention and not (on_gpu and no_kernel)
    # The tokens of a batch are spread over the streams, and look at the cells of their own stream only; sliding windows
    # have a cache and a mask of their own.
    kinds = {layer.window: _cells(layer, load) for layer in (*shape.layers, *shape.heads) if layer.key}
    seen = sum(kinds.values()) * math.ceil(load.batch / streams) * streams
    mask = seen * (2 if flash else 4)
    groups = max((layer.key + layer.value for layer in shape.layers), default=0)
    queries = shape.attention_heads * shape.head_key
    keys = max((layer.key for layer in shape.layers), default=0)
    contents = max((layer.value for layer in shape.layers), default=0)
    projected = max(6 * shape.width, 2 * shape.width + int(2.2 * queries) + keys + contents)
    attention = projected * load.batch * 4
    if attends and flash:
        # Flash attention reads 16-bit floats: a cache of another type is copied, a layer at a time. On the CPU that is
        # only one of 32-bit floats.
        copied = sum(
            width
            for kind, width in ((load.key_type, keys), (load.value_type, contents))
            if kind == "f32" or (on_gpu and kind != "f16")
        )
        copies = load.cells * streams * 2 * copied
        attention = max(attention, copies + (2 * shape.width + int(2.2 * queries)) * load.batch * 4 * bool(copies))
    if attends and not flash:
        attention += groups * load.batch * 4 + shape.attention_heads * load.cells * load.batch * 4
    step = (3 * shape.feed_forward + 5 * shape.width) * load.batch * 4
    recurrent = 8 * shape.state_width * load.batch * 4
    # Tokens of a physical batch whose logits are reserved.
    asked = load.batch if facts.architecture in _READ_WHOLE else load.outputs or load.slots.sequences
    outputs = min(asked, load.batch)
    logits = (facts.vocabulary_size or 0) * outputs * 4 * (2 if load.sampled else 1)
    output = 5 * shape.width * load.batch * 4 + logits
    size = max(step, attention, recurrent, output) + mask
    if on_gpu and load.batch >= _OFFLOADED_FROM:
        # The largest tensor in main memory that is copied to the GPU when its step has many tokens.
        size += max(
            (
                tensor.size
                for tensor, there in _placed(facts, shape, load)
                if not there
                and (_BLOCK.match(tensor.name) or (tensor.name.startswith("output.") and outputs >= _OFFLOADED_FROM))
            ),
            default=0,
        )
    return MemoryPart(model, "compute", size if on_gpu else 0, 0 if on_gpu else size, estimated=True)
