"""GGUF files of every kind, written with the gguf package: small, and most of them no engine would run."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from support.tiny_models.automaton import TOKENS, WIDTH, Model, feed_forward_block, successors

Shapes = Mapping[str, tuple[int, tuple[int, ...]]]

CHAT_TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def write_gguf(
    path: Path,
    architecture: str,
    values: Mapping[str, Any] | None = None,
    tensors: Shapes | None = None,
    *,
    parts: int = 1,
) -> Path:
    """A file with these keys (a leading dot stands for the architecture) and tensors of zeros.

    `tensors` are ggml type number and shape by name, the fastest dimension first. With `parts`, that many tensors go
    into each file, and the path of the first is returned.
    """
    writer = gguf.GGUFWriter(str(path), architecture, split_max_tensors=parts if parts > 1 else 0)
    for key, value in (values or {}).items():
        _add(writer, f"{architecture}{key}" if key.startswith(".") else key, value)
    for name, (kind, shape) in (tensors or {}).items():
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
        rows = (*reversed(shape[1:]), shape[0] // block * size)
        writer.add_tensor(name, np.zeros(rows, dtype=np.uint8), raw_dtype=gguf.GGMLQuantizationType(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return min(path.parent.glob(f"{path.stem}-00001-of-*.gguf")) if parts > 1 else path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, list(value))


def write_model(
    path: Path,
    *,
    architecture: str = "llama",
    values: Mapping[str, Any] | None = None,
    tensors: Shapes | None = None,
    tokens: Sequence[str] = ("<unk>", "<s>", "</s>", "a"),
    template: bool = False,
) -> Path:
    """What looks like a model of one layer: enough for its facts, not for an engine."""
    keys = {
        ".context_length": 4096,
        ".embedding_length": 256,
        ".block_count": 1,
        ".feed_forward_length": 512,
        ".attention.head_count": 4,
        ".attention.head_count_kv": 2,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": list(tokens),
        **({"tokenizer.chat_template": CHAT_TEMPLATE} if template else {}),
        **(values or {}),
    }
    matrices = {"token_embd.weight": (0, (256, len(tokens))), "blk.0.attn_q.weight": (12, (256, 256))}
    return write_gguf(path, architecture, keys, tensors if tensors is not None else matrices)


def write_projector(path: Path) -> Path:
    """The image encoder that accompanies a model."""
    keys = {"general.type": "mmproj", "clip.has_vision_encoder": True, "clip.projector_type": "mlp"}
    return write_gguf(path, "clip", keys, {"v.patch_embd.weight": (0, (32, 32))})


def write_adapter(path: Path) -> Path:
    """A LoRA adapter."""
    keys = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 16.0}
    return write_gguf(path, "llama", keys, {"blk.0.attn_q.weight.lora_a": (0, (32, 8))})


def write_imatrix(path: Path) -> Path:
    """An importance matrix, as llama-imatrix writes it: without an architecture of a model."""
    keys = {"general.type": "imatrix", "imatrix.chunk_count": 10, "imatrix.chunk_size": 512}
    return write_gguf(path, "imatrix", keys, {"blk.0.attn_q.weight.in_sum2": (0, (32, 1))})


def write_control_vector(path: Path) -> Path:
    """A control vector."""
    return write_gguf(path, "controlvector", {"controlvector.layer_count": 1}, {"direction.1": (0, (32,))})


def write_vocabulary(path: Path) -> Path:
    """A tokenizer without weights."""
    return write_gguf(path, "llama", {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b"]})


def write_gemma3(path: Path) -> Path:
    """A model that runs, with a sliding window in five of six layers."""
    heads, size, layers = 4, WIDTH // 4, 6
    model = Model(path, "gemma3", layers, 2 * WIDTH, heads, len(TOKENS))
    for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        model.number(key, size)
    model.number("attention.head_count_kv", 2)
    model.number("attention.sliding_window", 512)
    model.automaton(successors())
    for layer in range(layers):
        block = f"blk.{layer}."
        feed_forward_block(model, block, 2 * WIDTH)
        for norm in ("post_attention_norm", "post_ffw_norm"):
            model.tensor(f"{block}{norm}.weight", np.ones(WIDTH))
        for norm in ("attn_q_norm", "attn_k_norm"):
            model.tensor(f"{block}{norm}.weight", np.ones(size))
        model.noise(f"{block}attn_q.weight", WIDTH, WIDTH)
        for part in "kv":
            model.noise(f"{block}attn_{part}.weight", 2 * size, WIDTH)
        model.tensor(f"{block}attn_output.weight", np.zeros((WIDTH, WIDTH)))
    model.close()
    return path


def write_wide(path: Path) -> Path:
    """A plain model that runs, with little weight and much cache: a step of 256 tokens is megabytes."""
    heads, size, layers = 4, 512, 4
    model = Model(path, "llama", layers, 2 * WIDTH, heads, len(TOKENS))
    for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        model.number(key, size)
    model.number("attention.head_count_kv", heads)
    model.automaton(successors())
    for layer in range(layers):
        block = f"blk.{layer}."
        feed_forward_block(model, block, 2 * WIDTH)
        for part in "qkv":
            model.noise(f"{block}attn_{part}.weight", heads * size, WIDTH)
        model.tensor(f"{block}attn_output.weight", np.zeros((WIDTH, heads * size)))
    model.close()
    return path


def header(
    *, pairs: Sequence[bytes] = (), tensors: Sequence[bytes] = (), count: int | None = None, version: int = 3
) -> bytes:
    """The bytes of a header made of raw pairs and tensor descriptions; `count` overrides the number of pairs."""
    counted = struct.pack("<IQQ", version, len(tensors), len(pairs) if count is None else count)
    return b"GGUF" + counted + b"".join(pairs) + b"".join(tensors)


def pair(key: str, kind: int, value: bytes) -> bytes:
    """One raw key-value pair."""
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + value


def tensor(name: str, shape: Sequence[int], kind: int, offset: int) -> bytes:
    """One raw tensor description."""
    named = struct.pack("<Q", len(name)) + name.encode()
    return named + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
