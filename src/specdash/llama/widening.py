"""A larger model of the same text: what decoding with real weights costs, without real weights.

Everything that is added is zero. A wider feed-forward layer adds silu(0) * 0 = 0; an added attention head adds its
values, which are 0; an added block has output projections of 0 and hands on what it got. In a wider residual stream the
mean square of a norm's input shrinks by the factor of the width, so its weights are divided by the root of the factor
and its epsilon by the factor. Factors are powers of 4, so floats lose nothing by that, and every value behind a norm is
what it was.

A model of up to 100 MB gets wider feed-forward layers only. A larger one gets the proportions of real models, too: one
of 8 GB has 32 layers, a residual stream of 2,000 to 4,000 and a KV cache of 64 to 128 KiB a token (Llama 3 8B: 32,
4096, 128 KiB). Rows by the million in the 192 wide demo would be no measure: their activations take gigabytes, and the
down projection, of few and long rows, cannot keep a GPU's memory busy.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.core.errors import InputError
from specdash.llama.gguf import TENSOR_TYPES, GgufFacts, GgufHeader, read_one_file, type_name
from specdash.system import files
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLOCK = {
    "attn_norm.weight": "N",
    "ffn_norm.weight": "N",
    "attn_q.weight": "WH",
    "attn_k.weight": "WH",
    "attn_v.weight": "WH",
    "attn_output.weight": "HW",
    "ffn_gate.weight": "WF",
    "ffn_up.weight": "WF",
    "ffn_down.weight": "FW",
}
_ENDS = {"token_embd.weight": "W.", "output_norm.weight": "N", "output.weight": "W.", "rope_freqs.weight": "."}
_HEAD_NORMS = {"attn_q_norm.weight": ".", "attn_k_norm.weight": "."}
_DELTA_NET = {
    "post_attention_norm.weight": "N",
    "attn_qkv.weight": "W.",
    "attn_gate.weight": "W.",
    "ssm_conv1d.weight": "..",
    "ssm_dt.bias": ".",
    "ssm_a": ".",
    "ssm_beta.weight": "W.",
    "ssm_alpha.weight": "W.",
    "ssm_norm.weight": ".",
    "ssm_out.weight": ".W",
}
_AHEAD = {
    "nextn.eh_proj.weight": "WW",
    "nextn.enorm.weight": "N",
    "nextn.hnorm.weight": "N",
    "nextn.shared_head_norm.weight": "N",
    "nextn.shared_head_head.weight": "W.",
    "nextn.embed_tokens.weight": "W.",
}
_LAYOUTS = {
    "llama": _ENDS | _BLOCK,
    "qwen35": _ENDS | _BLOCK | _HEAD_NORMS | _DELTA_NET | _AHEAD,
    "eagle3": _ENDS | _BLOCK | {"fc.weight": "WW", "attn_norm_2.weight": "N"},
    "dflash": _ENDS | _BLOCK | _HEAD_NORMS | {"fc.weight": "WW", "enc.output_norm.weight": "N"},
}
"""What each axis of a tensor runs over, the fastest first: W the residual stream (or several side by side), N the same
in a norm, H attention heads, F the feed-forward length, and a dot what never changes."""
_GROWING = frozenset({"llama", "qwen35"})
"""Architectures that may have more layers, heads and width; the others are drafts, made for the width of a target."""

_LARGE = 100_000_000
_DEPTHS = ((2_000_000_000, 16), (16_000_000_000, 32), (math.inf, 64))
"""Layers of a model of up to so many bytes."""
_DEEPEST = 128
_NARROW, _WIDEST = 256, 4096
"""Only narrower models get a wider residual stream: a target whose hidden states a draft reads keeps fitting it."""
_KV_WIDTH = 1024
"""Elements of a key in one layer: 8 heads of 128, as in Llama 3 8B and Qwen3 8B."""
_CONTEXT = 32_768
"""Tokens that such a model says it was trained on: llama-server gives no slot more, and the demo says 4096."""
_LONG = 1 << 17
"""Feed-forward rows, past which a model rather gets more layers: activations of 512 tokens are 256 MB then."""
_LONGEST = 1 << 20
"""Four times as many, and the elements of 512 tokens no longer fit the 32-bit numbers of GPU kernels."""
_STEP, _LONG_STEP = 32, 256

_NULL_TYPES = frozenset({"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K"}) | {
    "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS",
}  # fmt: skip
"""Types of which bytes of zero are weights of zero."""
_F32, _UINT32 = 0, 4
_SCALARS = {4: "<I", 5: "<i", 6: "<f", 10: "<Q", 11: "<q", 12: "<d"}
_BLOCK_NAME = re.compile(r"blk\.(\d+)\.(.+)")


class WideningError(InputError):
    """The model cannot be widened, or not to that size; the message says why."""


@dataclass(frozen=True, slots=True)
class Dimensions:
    """What a widened model has: `layers` before those of next-token prediction, and feed-forward layers of `rows`.

    Its residual stream is `width` times as wide, it has `heads` times as many attention heads, and says that it was
    trained on at least `context` tokens.
    """

    layers: int
    rows: int
    width: int = 1
    heads: int = 1
    context: int = 0


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor of the new model. `at` is where its values are in the source, None where all of them are zero."""

    name: str
    kind: int
    shape: tuple[int, ...]
    at: int | None
    source_shape: tuple[int, ...]
    streams: int
    """Residual streams side by side in a row."""
    divisor: float = 1.0

    @property
    def size(self) -> int:
        """In bytes."""
        return _row_bytes(self.kind, self.shape[0]) * math.prod(self.shape[1:])

    def copies(self) -> Iterator[tuple[int, int, int]]:
        """What is not zero: where it is in the source tensor, where in this one, and its length, in bytes."""
        old, new = _row_bytes(self.kind, self.source_shape[0]), _row_bytes(self.kind, self.shape[0])
        rows = math.prod(self.source_shape[1:])
        if old == new:
            yield 0, 0, old * rows
            return
        from_step, to_step = old // self.streams, new // self.streams
        for piece in range(rows * self.streams):
            yield piece * from_step, piece * to_step, from_step


class _Model:
    """The model to widen: what its header says, and its bytes."""

    def __init__(self, facts: GgufFacts, data: mmap.mmap) -> None:
        self.facts, self.data = facts, data
        self.header = GgufHeader(data, facts.path)
        self.header.read()
        self.layout = _LAYOUTS.get(facts.architecture or "", {})
        if facts.values.get("split.count", 0) not in (0, 1):
            raise self.error("is split into several files; merge them with llama-gguf-split")
        self.rows = self._number("feed_forward_length", 0)
        if not self.rows or not any(".ffn_down" in tensor.name for tensor in facts.tensors):
            raise self.error("has no feed-forward layers")
        if not self.layout:
            known = ", ".join(sorted(_LAYOUTS))
            raise self.error(f"is of architecture {facts.architecture}, and only these are known here: {known}")
        if facts.number("expert_count"):
            raise self.error("is a mixture of experts")
        self.width = self._number("embedding_length")
        self.ahead = self._number("nextn_predict_layers", 0)
        self.layers = self._number("block_count") - self.ahead
        self.heads = self._number("attention.head_count")
        self.kv_heads = self._number("attention.head_count_kv", self.heads)
        self.key = self._number("attention.key_length", self.width // self.heads)
        self.value = self._number("attention.value_length", self.width // self.heads)
        self.every = self._number("full_attention_interval", 4) if facts.architecture == "qwen35" else 1
        """Layers of one kind come back after so many."""
        self.grows = facts.architecture in _GROWING and self.layers >= self.every

    def error(self, why: str) -> WideningError:
        """The model cannot be widened since it `why`."""
        return WideningError(f"model {self.facts.path}: cannot be widened: it {why}")

    def _number(self, name: str, otherwise: int | None = None) -> int:
        if f"{self.facts.architecture}.{name}" in self.header.lengths:
            raise self.error(f"has layers that differ in {name}")
        number = self.facts.number(name)
        number = otherwise if number is None else number
        if number is None:
            raise self.error(f"does not say its {name}")
        return number

    def tensors(self, wanted: Dimensions) -> list[_Tensor]:
        """All tensors of the model with these dimensions: those it has, the added blocks, next-token prediction."""
        kept: list[_Tensor] = []
        added: dict[int, list[_Tensor]] = {}
        ahead: list[_Tensor] = []
        at = self.header.data_start
        for tensor in self.facts.tensors:
            place = _BLOCK_NAME.fullmatch(tensor.name)
            grown = self._grown(tensor.name, place[2] if place else tensor.name, tensor.kind, tensor.shape, at, wanted)
            at += _padded(tensor.size, self.header.alignment)
            if place is None or int(place[1]) < self.layers:
                kept.append(grown)
            else:
                ahead.append(replace(grown, name=f"blk.{int(place[1]) - self.layers + wanted.layers}.{place[2]}"))
            if place is not None and int(place[1]) < self.every:
                # A matrix of an added block is zero; its norms, which change nothing then, are those of a real one.
                copied = grown.at if len(grown.shape) == 1 else None
                for layer in range(self.layers, wanted.layers):
                    if layer % self.every == int(place[1]):
                        named = replace(grown, name=f"blk.{layer}.{place[2]}", at=copied)
                        added.setdefault(layer, []).append(named)
        return [*kept, *(tensor for layer in sorted(added) for tensor in added[layer]), *ahead]

    def _grown(self, name: str, role: str, kind: int, shape: tuple[int, ...], at: int, wanted: Dimensions) -> _Tensor:
        axes = self.layout.get(role)
        if axes is None or len(axes) != len(shape):
            raise self.error(f"has a tensor {name} of {len(shape)} dimensions, which is not known here")
        factors = {"W": wanted.width, "N": wanted.width, "H": wanted.heads}
        grown = tuple(
            wanted.rows if axis == "F" else length * factors.get(axis, 1)
            for axis, length in zip(axes, shape, strict=True)
        )
        if TENSOR_TYPES.get(kind) is None or (grown != shape and type_name(kind) not in _NULL_TYPES):
            raise self.error(f"has its tensor {name} in {type_name(kind)}, which cannot be filled with zeros")
        if axes == "N" and kind != _F32:
            raise self.error(f"has its norm {name} in {type_name(kind)}, not in F32")
        streams = shape[0] // self.width if axes[0] == "W" else 1
        return _Tensor(name, kind, grown, at, shape, streams, math.sqrt(wanted.width) if axes == "N" else 1.0)

    def head(self, wanted: Dimensions, tensors: list[_Tensor]) -> bytes:
        """All that comes before the tensors' values."""
        changed = self._changed_keys(wanted)
        pairs = [
            self._pair(key, changed.pop(key)) if key in changed else self.data[start:end]
            for key, (start, end) in self.header.spans.items()
        ]
        pairs += [self._pair(key, value) for key, value in changed.items()]
        head = bytearray(struct.pack("<4sIQQ", b"GGUF", self.header.version, len(tensors), len(pairs)))
        head += b"".join(pairs)
        offset = 0
        for tensor in tensors:
            dimensions = len(tensor.shape)
            head += _text(tensor.name) + struct.pack(f"<I{dimensions}Q", dimensions, *tensor.shape)
            head += struct.pack("<IQ", tensor.kind, offset)
            offset += _padded(tensor.size, self.header.alignment)
        return bytes(head.ljust(_padded(len(head), self.header.alignment), b"\0"))

    def _changed_keys(self, wanted: Dimensions) -> dict[str, float]:
        changed: dict[str, float] = {
            "block_count": wanted.layers + self.ahead,
            "feed_forward_length": wanted.rows,
            "context_length": max(self._number("context_length"), wanted.context),
        }
        if wanted.width > 1 or wanted.heads > 1:
            changed |= {
                "embedding_length": self.width * wanted.width,
                "attention.head_count": self.heads * wanted.heads,
                "attention.head_count_kv": self.kv_heads * wanted.heads,
                "attention.key_length": self.key,
                "attention.value_length": self.value,
            }
        own = f"{self.facts.architecture}."
        scaled = {"attention.layer_norm_rms_epsilon": 1 / wanted.width, "target_hidden_size": wanted.width}
        for key, factor in scaled.items():
            old = self.facts.values.get(own + key)
            if isinstance(old, int | float):
                changed[key] = old * factor
        return {own + key: value for key, value in changed.items()}

    def _pair(self, key: str, value: float) -> bytes:
        kind = _UINT32
        if key in self.header.spans:
            (kind,) = struct.unpack_from("<I", self.data, self.header.spans[key][0] + len(_text(key)))
        return _text(key) + struct.pack("<I", kind) + struct.pack(_SCALARS[kind], value)

    def size(self, wanted: Dimensions) -> int:
        """Of the whole file, in bytes."""
        tensors = self.tensors(wanted)
        return len(self.head(wanted, tensors)) + sum(_padded(tensor.size, self.header.alignment) for tensor in tensors)

    def fitted(self, wanted: Dimensions, size_bytes: int) -> Dimensions:
        """The same with as many feed-forward rows as give that size, which may be fewer than the model has."""
        none = self.size(replace(wanted, rows=_LONG_STEP))
        each = (self.size(replace(wanted, rows=2 * _LONG_STEP)) - none) / _LONG_STEP
        rows = max(0, _LONG_STEP + (size_bytes - none) / each)
        step = _LONG_STEP if rows >= _LONG_STEP * _STEP else _STEP
        return replace(wanted, rows=round(rows / step) * step)


def widen(source: Path, target: Path, size_bytes: int) -> None:
    """Write `target`, a model of the same text as `source` and of about `size_bytes`, as a sparse file.

    Only what is not zero is written, so 30 GB take less than a second and some megabytes of disk. Raises
    `WideningError`, or `GgufError` where `source` is no whole model.
    """
    with _opened(source) as model:
        _write(model, target, _plan(model, size_bytes))


def plan(source: Path, size_bytes: int) -> Dimensions:
    """What `widen` would make of it. Raises as it does."""
    with _opened(source) as model:
        return _plan(model, size_bytes)


def resize(source: Path, target: Path, wanted: Dimensions) -> None:
    """Write `target`, a model of the same text as `source` with these dimensions. Raises as `widen` does."""
    with _opened(source) as model:
        if wanted.layers < model.layers or wanted.rows < model.rows:
            raise model.error(f"has {model.layers} layers of {model.rows} feed-forward rows already")
        if wanted.layers > model.layers and not model.grows:
            raise model.error("cannot have more layers")
        _write(model, target, wanted)


@contextlib.contextmanager
def _opened(source: Path) -> Iterator[_Model]:
    facts = read_one_file(source)
    with Path(source).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield _Model(facts, data)


def _plan(model: _Model, size_bytes: int) -> Dimensions:
    if size_bytes < model.facts.file_bytes:
        raise model.error(f"has {model.facts.file_bytes} bytes already, and shall have {size_bytes}")
    chosen = None
    for shape in _shapes(model, size_bytes):
        chosen = model.fitted(shape, size_bytes)
        if chosen.rows >= max(model.rows, model.width * chosen.width):
            break
    else:
        chosen = model.fitted(Dimensions(model.layers, 0), size_bytes)
    while chosen.rows > _LONG and model.grows and size_bytes > _LARGE and chosen.layers < _DEEPEST:
        chosen = model.fitted(replace(chosen, layers=2 * chosen.layers), size_bytes)
    if chosen.rows > _LONGEST:
        raise model.error(
            f"has {model.layers} layers of width {model.width}, and with {size_bytes} bytes each would have "
            f"{chosen.rows} feed-forward rows, more than {_LONGEST}"
        )
    return replace(chosen, rows=max(chosen.rows, model.rows))


def _shapes(model: _Model, size_bytes: int) -> Iterator[Dimensions]:
    """Proportions to try, those of real models first: the feed-forward layers must be as long as the model is wide."""
    if size_bytes <= _LARGE or not model.grows:
        return
    depth = next(layers for most, layers in _DEPTHS if size_bytes < most)
    heads = max(1, _KV_WIDTH // (model.kv_heads * model.key))
    widths = [factor for factor in (16, 4) if model.width < _NARROW and model.width * factor <= _WIDEST]
    while depth > model.layers:
        for factor in (*widths, 1):
            yield Dimensions(depth, 0, factor, heads, _CONTEXT)
        depth //= 2


def _write(model: _Model, target: Path, wanted: Dimensions) -> None:
    tensors = model.tensors(wanted)
    head = model.head(wanted, tensors)
    beside = target.with_name(f"{target.name}.part")
    try:
        with beside.open("wb") as file:
            file.write(head)
            start = len(head)
            for tensor in tensors:
                if tensor.at is not None:
                    for source_at, target_at, length in tensor.copies():
                        values = model.data[tensor.at + source_at : tensor.at + source_at + length]
                        # What is not written is a hole in the file, which reads as zeros.
                        if values.count(0) != length:
                            file.seek(start + target_at)
                            file.write(values if tensor.divisor == 1.0 else _divided(values, tensor.divisor))
                start += _padded(tensor.size, model.header.alignment)
            file.truncate(start)
        files.put(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def _divided(values: bytes, divisor: float) -> bytes:
    count = len(values) // 4
    return struct.pack(f"<{count}f", *(value / divisor for value in struct.unpack(f"<{count}f", values)))


def _row_bytes(kind: int, elements: int) -> int:
    known = TENSOR_TYPES[kind]
    return elements // known.per_block * known.block_bytes


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded
