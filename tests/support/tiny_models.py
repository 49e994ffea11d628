"""Tiny GGUF models whose acceptance is known in advance, built with numpy and gguf.

The output projections of attention, SSM and FFN are zero, so a token's hidden state is its embedding, and the head maps
it to one successor: the model is a token automaton that recites a sentence for ever, while real KV and recurrent
memory is allocated and updated. A draft has some wrong successors, which fixes what share of its drafts is accepted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_TEXT = (
    "the speculative decoder drafts several tokens with a small model and verifies them in one batch by means of "
    "large target whose accepted prefix is kept while rejected suffix must be rolled back using checkpoints . this "
    "sentence never ends because every word here occurs exactly once so next follows from previous"
)
SENTENCE = tuple(_TEXT.split())
WIDTH = 128
CONTEXT = 32768
_GAIN = 20.0


def _vocabulary() -> tuple[list[str], list[int], int]:
    tokens = ["<unk>", "<s>", "</s>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    kinds = [2, 3, 3, 3, *[6] * 256, 1]
    first_word = len(tokens)
    tokens += [f"▁{word}" for word in SENTENCE]
    kinds += [1] * len(SENTENCE)
    while len(tokens) % 32:
        tokens.append(f"<pad{len(tokens)}>")
        kinds.append(5)
    return tokens, kinds, first_word


TOKENS, TOKEN_KINDS, FIRST_WORD = _vocabulary()


def successors(wrong_every: int = 0) -> NDArray[np.int64]:
    """The successor of each token; every `wrong_every`-th word gets a wrong one."""
    words = len(SENTENCE)
    table = np.array([FIRST_WORD + token % words for token in range(len(TOKENS))])
    for word in range(words):
        step = 7 if wrong_every and word % wrong_every == 0 else 1
        table[FIRST_WORD + word] = FIRST_WORD + (word + step) % words
    return table


class _Model:
    def __init__(self, path: Path, architecture: str, layers: int, feed_forward: int, heads: int, words: int) -> None:
        self.architecture = architecture
        self.random = np.random.default_rng(7)
        self.writer = gguf.GGUFWriter(str(path), architecture)
        self.writer.add_name(f"tiny {architecture}")
        self.writer.add_file_type(0)
        for key, value in {
            "context_length": CONTEXT,
            "embedding_length": WIDTH,
            "block_count": layers,
            "feed_forward_length": feed_forward,
            "attention.head_count": heads,
            "vocab_size": words,
        }.items():
            self.number(key, value)
        self.writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
        self.writer.add_tokenizer_model("llama")
        self.writer.add_token_list(TOKENS)
        self.writer.add_token_scores([-float(index) for index in range(words)])
        self.writer.add_token_types(TOKEN_KINDS)
        self.writer.add_bos_token_id(1)
        self.writer.add_eos_token_id(2)
        self.writer.add_unk_token_id(0)
        self.writer.add_chat_template(
            "{% for m in messages %}{{m.role}}: {{m.content}}\n{% endfor %}assistant:",
        )

    def number(self, key: str, value: int) -> None:
        self.writer.add_uint32(f"{self.architecture}.{key}", value)

    def tensor(self, name: str, values: Any) -> None:
        self.writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))

    def noise(self, name: str, *shape: int, scale: float = 0.2) -> None:
        self.tensor(name, self.random.standard_normal(shape) * scale)

    def automaton(self, table: NDArray[np.int64], norm: str = "output_norm.weight") -> None:
        embedding = np.random.default_rng(0).standard_normal((len(TOKENS), WIDTH))
        embedding /= np.sqrt((embedding**2).mean(1, keepdims=True))
        head = np.zeros_like(embedding)
        for token, successor in enumerate(table):
            head[successor] += embedding[token]
        self.tensor("token_embd.weight", embedding)
        self.tensor(norm, np.ones(WIDTH))
        self.tensor("output.weight", head * _GAIN / WIDTH)

    def close(self) -> None:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def write_llama(path: Path, *, layers: int = 1, wrong_every: int = 0) -> Path:
    """A plain transformer with a KV cache."""
    heads, feed_forward = 4, 2 * WIDTH
    model = _Model(path, "llama", layers, feed_forward, heads, len(TOKENS))
    model.number("attention.head_count_kv", heads)
    model.number("rope.dimension_count", WIDTH // heads)
    model.automaton(successors(wrong_every))
    for layer in range(layers):
        block = f"blk.{layer}."
        model.tensor(block + "attn_norm.weight", np.ones(WIDTH))
        model.tensor(block + "ffn_norm.weight", np.ones(WIDTH))
        for part in "qkv":
            model.noise(block + f"attn_{part}.weight", WIDTH, WIDTH)
        model.tensor(block + "attn_output.weight", np.zeros((WIDTH, WIDTH)))
        model.noise(block + "ffn_gate.weight", feed_forward, WIDTH)
        model.noise(block + "ffn_up.weight", feed_forward, WIDTH)
        model.tensor(block + "ffn_down.weight", np.zeros((WIDTH, feed_forward)))
    model.close()
    return path


def write_mamba(path: Path, *, layers: int = 1, wrong_every: int = 0) -> Path:
    """A purely recurrent model: every rejected draft costs a checkpoint restore and a replay."""
    states, kernel, inner, rank = 16, 4, 2 * WIDTH, WIDTH // 16
    model = _Model(path, "mamba", layers, 0, 0, len(TOKENS))
    model.number("ssm.conv_kernel", kernel)
    model.number("ssm.inner_size", inner)
    model.number("ssm.state_size", states)
    model.number("ssm.time_step_rank", rank)
    model.automaton(successors(wrong_every))
    for layer in range(layers):
        block = f"blk.{layer}."
        model.tensor(block + "attn_norm.weight", np.ones(WIDTH))
        model.noise(block + "ssm_in.weight", 2 * inner, WIDTH, scale=0.05)
        model.noise(block + "ssm_conv1d.weight", inner, kernel)
        model.tensor(block + "ssm_conv1d.bias", np.zeros(inner))
        model.noise(block + "ssm_x.weight", rank + 2 * states, inner, scale=0.05)
        model.noise(block + "ssm_dt.weight", inner, rank)
        model.tensor(block + "ssm_dt.bias", np.zeros(inner))
        model.tensor(block + "ssm_a", -np.tile(np.arange(1, states + 1), (inner, 1)))
        model.tensor(block + "ssm_d", np.ones(inner))
        model.tensor(block + "ssm_out.weight", np.zeros((WIDTH, inner)))
    model.close()
    return path


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


def write_lfm2(path: Path, *, layers: int = 3, wrong_every: int = 0) -> Path:
    """A hybrid: short convolutions, and attention in the last layer."""
    heads, kernel, feed_forward = 4, 3, 2 * WIDTH
    model = _Model(path, "lfm2", layers, feed_forward, heads, len(TOKENS))
    kinds = [heads if layer == layers - 1 else 0 for layer in range(layers)]
    model.writer.add_array("lfm2.attention.head_count_kv", kinds)
    model.number("shortconv.l_cache", kernel)
    model.number("rope.dimension_count", WIDTH // heads)
    model.writer.add_float32("lfm2.rope.freq_base", 1e6)
    model.automaton(successors(wrong_every), norm="token_embd_norm.weight")
    for layer, attends in enumerate(kinds):
        block = f"blk.{layer}."
        _feed_forward(model, block, feed_forward)
        if attends:
            for part in "qkv":
                model.noise(block + f"attn_{part}.weight", WIDTH, WIDTH)
            for part in "qk":
                model.tensor(block + f"attn_{part}_norm.weight", np.ones(WIDTH // heads))
            model.tensor(block + "attn_output.weight", np.zeros((WIDTH, WIDTH)))
        else:
            model.noise(block + "shortconv.conv.weight", WIDTH, kernel)
            model.noise(block + "shortconv.in_proj.weight", 3 * WIDTH, WIDTH)
            model.tensor(block + "shortconv.out_proj.weight", np.zeros((WIDTH, WIDTH)))
    model.close()
    return path


def _feed_forward(model: _Model, block: str, size: int, second_norm: str = "ffn_norm") -> None:
    model.tensor(block + "attn_norm.weight", np.ones(WIDTH))
    model.tensor(block + f"{second_norm}.weight", np.ones(WIDTH))
    model.noise(block + "ffn_gate.weight", size, WIDTH)
    model.noise(block + "ffn_up.weight", size, WIDTH)
    model.tensor(block + "ffn_down.weight", np.zeros((WIDTH, size)))


def write_qwen35(path: Path, *, heads_too: bool) -> Path:
    """A hybrid of gated delta nets and one attention layer; `heads_too` adds a next-token-prediction layer."""
    layers, heads, states, groups, values, kernel = 4, 4, 32, 2, 2, 4
    size, keys, inner = WIDTH // heads, states * groups, states * values
    model = _Model(path, "qwen35", layers + heads_too, 2 * WIDTH, heads, len(TOKENS))
    for key, value in {
        "attention.head_count_kv": heads,
        "attention.key_length": size,
        "attention.value_length": size,
        "rope.dimension_count": size,
        "ssm.conv_kernel": kernel,
        "ssm.inner_size": inner,
        "ssm.state_size": states,
        "ssm.time_step_rank": values,
        "ssm.group_count": groups,
        "full_attention_interval": layers,
    }.items():
        model.number(key, value)
    if heads_too:
        model.number("nextn_predict_layers", 1)
    model.writer.add_array("qwen35.rope.dimension_sections", [size // 8, size // 8, size // 8, 0])
    model.writer.add_float32("qwen35.rope.freq_base", 1e6)
    model.automaton(successors())
    for layer in range(layers + heads_too):
        block = f"blk.{layer}."
        _feed_forward(model, block, 2 * WIDTH, "post_attention_norm")
        if layer >= layers - 1:
            model.noise(block + "attn_q.weight", 2 * WIDTH, WIDTH)
            model.noise(block + "attn_k.weight", WIDTH, WIDTH)
            model.noise(block + "attn_v.weight", WIDTH, WIDTH)
            model.tensor(block + "attn_output.weight", np.zeros((WIDTH, WIDTH)))
            for part in "qk":
                model.tensor(block + f"attn_{part}_norm.weight", np.ones(size))
            continue
        model.noise(block + "attn_qkv.weight", 2 * keys + inner, WIDTH)
        model.noise(block + "attn_gate.weight", inner, WIDTH)
        model.noise(block + "ssm_conv1d.weight", 2 * keys + inner, kernel)
        model.tensor(block + "ssm_dt.bias", np.zeros(values))
        model.tensor(block + "ssm_a", -np.ones(values))
        model.noise(block + "ssm_beta.weight", values, WIDTH)
        model.noise(block + "ssm_alpha.weight", values, WIDTH)
        model.tensor(block + "ssm_norm.weight", np.ones(states))
        model.tensor(block + "ssm_out.weight", np.zeros((WIDTH, inner)))
    if heads_too:
        block = f"blk.{layers}.nextn."
        model.tensor(block + "eh_proj.weight", np.concatenate([np.eye(WIDTH), np.zeros((WIDTH, WIDTH))], 1))
        for part in ("enorm", "hnorm", "shared_head_norm"):
            model.tensor(block + f"{part}.weight", np.ones(WIDTH))
    model.close()
    return path


def _reading_draft(path: Path, architecture: str, reads: tuple[int, ...]) -> _Model:
    heads = 4
    model = _Model(path, architecture, 1, 2 * WIDTH, heads, len(TOKENS))
    model.number("attention.head_count_kv", heads)
    for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        model.number(key, WIDTH // heads)
    model.writer.add_array(f"{architecture}.target_layers", list(reads))
    model.tensor("output_norm.weight", np.ones(WIDTH))
    return model


def write_dflash(path: Path, *, block: int = 8, reads: tuple[int, ...] = (0, 1)) -> Path:
    """A block-diffusion draft that reads the layers `reads` of its target; what it drafts is noise."""
    model = _reading_draft(path, "dflash", reads)
    model.number("block_size", block)
    model.writer.add_uint32("tokenizer.ggml.mask_token_id", 3)
    model.noise("fc.weight", WIDTH, len(reads) * WIDTH, scale=0.05)
    model.tensor("enc.output_norm.weight", np.ones(WIDTH))
    _feed_forward(model, "blk.0.", 2 * WIDTH)
    for part in "qkv":
        model.noise(f"blk.0.attn_{part}.weight", WIDTH, WIDTH)
    model.noise("blk.0.attn_output.weight", WIDTH, WIDTH)
    for part in "qk":
        model.tensor(f"blk.0.attn_{part}_norm.weight", np.ones(WIDTH // 4))
    model.close()
    return path


def write_eagle3(path: Path, *, reads: tuple[int, ...] = (0, 1, 2), target_width: int = WIDTH) -> Path:
    """An EAGLE-3 draft for targets of `target_width`; it reads three of their layers."""
    model = _reading_draft(path, "eagle3", reads)
    model.number("target_hidden_size", target_width)
    model.noise("fc.weight", WIDTH, 3 * target_width, scale=0.05)
    model.noise("output.weight", len(TOKENS), WIDTH)
    _feed_forward(model, "blk.0.", 2 * WIDTH)
    model.tensor("blk.0.attn_norm_2.weight", np.ones(WIDTH))
    for part in "qkv":
        model.noise(f"blk.0.attn_{part}.weight", WIDTH, 2 * WIDTH)
    model.noise("blk.0.attn_output.weight", WIDTH, WIDTH)
    model.close()
    return path


def build(directory: Path) -> dict[str, Path]:
    """All models by name: `target`, `draft` (every 8th word wrong), `draft-good`, `draft-bad` and `mamba`."""
    return {
        "target": write_llama(directory / "target.gguf", layers=2),
        "draft": write_llama(directory / "draft.gguf", wrong_every=8),
        "draft-good": write_llama(directory / "draft-good.gguf"),
        "draft-bad": write_llama(directory / "draft-bad.gguf", wrong_every=1),
        "mamba": write_mamba(directory / "mamba.gguf"),
    }
