"""Tiny models for vocabularies, contexts and head sizes of all kinds."""

from pathlib import Path

import gguf
import numpy as np

from support.tiny_models.automaton import CONTEXT, TOKEN_KINDS, TOKENS, WIDTH


def write_variant(
    path: Path,
    *,
    tokens: list[str] | None = None,
    tokenizer: str = "llama",
    add_bos: bool | None = None,
    add_eos: bool | None = None,
    bos: int = 1,
    heads: int = 4,
    context: int = CONTEXT,
    width: int = WIDTH,
) -> Path:
    """A plain transformer of one layer that draws like none: for vocabularies, contexts and head sizes of all kinds."""
    texts = tokens if tokens is not None else TOKENS
    kinds = [*TOKEN_KINDS, *([5] * max(0, len(texts) - len(TOKEN_KINDS)))][: len(texts)]
    writer, random = gguf.GGUFWriter(str(path), "llama"), np.random.default_rng(7)
    for key, value in {
        "context_length": context,
        "embedding_length": width,
        "block_count": 1,
        "feed_forward_length": 2 * width,
        "attention.head_count": heads,
        "attention.head_count_kv": heads,
        "rope.dimension_count": width // heads,
        "vocab_size": len(texts),
    }.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tokenizer_model(tokenizer)
    writer.add_token_list(texts)
    writer.add_token_scores([-float(index) for index in range(len(texts))])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(bos)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    if add_eos is not None:
        writer.add_add_eos_token(add_eos)

    def add(name: str, *shape: int) -> None:
        values = random.standard_normal(shape) * 0.2 if len(shape) > 1 else np.ones(shape)
        writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))

    add("token_embd.weight", len(texts), width)
    add("output_norm.weight", width)
    add("output.weight", len(texts), width)
    for name in ("attn_norm", "ffn_norm"):
        add(f"blk.0.{name}.weight", width)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        add(f"blk.0.{name}.weight", width, width)
    add("blk.0.ffn_gate.weight", 2 * width, width)
    add("blk.0.ffn_up.weight", 2 * width, width)
    add("blk.0.ffn_down.weight", width, 2 * width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
