"""Writes a trained model and its vocabulary as a GGUF file of architecture ``llama``, matrices in Q8_0."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import numpy as np
import numpy.typing as npt

from demo_models.network import NORM_EPSILON, Llama
from demo_models.template import TEMPLATE
from demo_models.vocabulary import CONTROL_TOKENS, END_OF_TEXT, IM_END, Vocabulary

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor


def write(model: Llama, vocabulary: Vocabulary, path: Path, name: str, description: str) -> None:
    """Write ``model`` to ``path``; the chat template and the vocabulary go into the header."""
    writer = gguf.GGUFWriter(str(path), "llama")
    _write_header(writer, model, name, description)
    _write_vocabulary(writer, vocabulary)
    heads = model.shape.heads
    _add_matrix(writer, "token_embd.weight", model.embedding)
    _add_norm(writer, "output_norm.weight", model.norm)
    for index, block in enumerate(model.blocks):
        prefix = f"blk.{index}."
        _add_norm(writer, prefix + "attn_norm.weight", block.attention_norm)
        _add_norm(writer, prefix + "ffn_norm.weight", block.feed_forward_norm)
        _add_matrix(writer, prefix + "attn_q.weight", _adjacent_pairs(block.attention.q, heads))
        _add_matrix(writer, prefix + "attn_k.weight", _adjacent_pairs(block.attention.k, heads))
        _add_matrix(writer, prefix + "attn_v.weight", block.attention.v)
        _add_matrix(writer, prefix + "attn_output.weight", block.attention.o)
        _add_matrix(writer, prefix + "ffn_gate.weight", block.gate)
        _add_matrix(writer, prefix + "ffn_up.weight", block.up)
        _add_matrix(writer, prefix + "ffn_down.weight", block.down)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_header(writer: gguf.GGUFWriter, model: Llama, name: str, description: str) -> None:
    shape = model.shape
    writer.add_name(name)
    writer.add_description(description)
    writer.add_author("the specdash project")
    writer.add_license("mit")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(NORM_EPSILON)
    writer.add_vocab_size(shape.vocabulary)


def _write_vocabulary(writer: gguf.GGUFWriter, vocabulary: Vocabulary) -> None:
    kinds = [gguf.TokenType.CONTROL if t in CONTROL_TOKENS else gguf.TokenType.NORMAL for t in vocabulary.tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(list(vocabulary.tokens))
    writer.add_token_types(kinds)
    writer.add_token_merges(list(vocabulary.merges))
    writer.add_bos_token_id(END_OF_TEXT)
    writer.add_eos_token_id(IM_END)
    writer.add_eot_token_id(IM_END)
    writer.add_pad_token_id(END_OF_TEXT)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def _array(weight: Tensor) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(weight.detach().float().numpy())


def _adjacent_pairs(weight: Tensor, heads: int) -> Tensor:
    """Reorder a query or key matrix from rotated halves to the adjacent pairs llama.cpp rotates."""
    rows, columns = weight.shape
    return weight.detach().view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def _add_matrix(writer: gguf.GGUFWriter, name: str, weight: Tensor) -> None:
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor(name, gguf.quants.quantize(_array(weight), kind), raw_dtype=kind)


def _add_norm(writer: gguf.GGUFWriter, name: str, weight: Tensor) -> None:
    writer.add_tensor(name, _array(weight))
