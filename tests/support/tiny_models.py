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

    def automaton(self, table: NDArray[np.int64]) -> None:
        embedding = np.random.default_rng(0).standard_normal((len(TOKENS), WIDTH))
        embedding /= np.sqrt((embedding**2).mean(1, keepdims=True))
        head = np.zeros_like(embedding)
        for token, successor in enumerate(table):
            head[successor] += embedding[token]
        self.tensor("token_embd.weight", embedding)
        self.tensor("output_norm.weight", np.ones(WIDTH))
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


def write_mamba(path: Path, *, layers: int = 1) -> Path:
    """A purely recurrent model: every rejected draft costs a checkpoint restore and a replay."""
    states, kernel, inner, rank = 16, 4, 2 * WIDTH, WIDTH // 16
    model = _Model(path, "mamba", layers, 0, 0, len(TOKENS))
    model.number("ssm.conv_kernel", kernel)
    model.number("ssm.inner_size", inner)
    model.number("ssm.state_size", states)
    model.number("ssm.time_step_rank", rank)
    model.automaton(successors())
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


def build(directory: Path) -> dict[str, Path]:
    """All models by name: `target`, `draft` (every 8th word wrong), `draft-good`, `draft-bad` and `mamba`."""
    return {
        "target": write_llama(directory / "target.gguf", layers=2),
        "draft": write_llama(directory / "draft.gguf", wrong_every=8),
        "draft-good": write_llama(directory / "draft-good.gguf"),
        "draft-bad": write_llama(directory / "draft-bad.gguf", wrong_every=1),
        "mamba": write_mamba(directory / "mamba.gguf"),
    }
