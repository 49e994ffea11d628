"""Tiny models whose text depends on what the plain ones ignore: on rounding, and on what they remember of a text."""

from pathlib import Path

import gguf
import numpy as np

from support.tiny_models import FIRST_WORD, SENTENCE, TOKENS, WIDTH
from support.tiny_models.automaton import Model

LOGIT = 20.0
NOISE = 0.5


def remembering(path: Path) -> Path:
    """The tiny model at `path`, changed in place, so that what it writes depends on all that it read.

    The plain models throw away what attention, convolutions and recurrent states say: their output projections are
    zero. Here they are noise, and a state that is not taken back rightly changes the text.
    """
    reader = gguf.GGUFReader(path, "r+")
    random = np.random.default_rng(11)
    for tensor in reader.tensors:
        if tensor.data.ndim == 2 and not tensor.data.any():
            tensor.data[...] = random.standard_normal(tensor.data.shape) * NOISE / np.sqrt(tensor.data.shape[1])
    reader.data.flush()
    return path


def write_tied(path: Path, *, every: int = 8) -> Path:
    """A transformer that recites the sentence; after every `every`-th word it may as well jump seven words ahead.

    Both logits are the same sum of other summands: what is added to the output rows is orthogonal to all words.
    """
    random, words = np.random.default_rng(3), len(SENTENCE)
    embedding = np.random.default_rng(0).standard_normal((len(TOKENS), WIDTH))
    embedding /= np.sqrt((embedding**2).mean(1, keepdims=True))
    wanted = np.zeros((words, len(TOKENS)))
    for word in range(words):
        wanted[word, FIRST_WORD + (word + 1) % words] = LOGIT
        if word % every == 0:
            wanted[word, FIRST_WORD + (word + 7) % words] = LOGIT
    spoken = slice(FIRST_WORD, FIRST_WORD + words)
    basis = embedding[spoken].astype(np.float32).astype(np.float64)
    head = (np.linalg.pinv(basis) @ wanted).T
    directions, _ = np.linalg.qr(basis.T)
    noise = random.standard_normal(head.shape) * 0.3
    head[spoken] += (noise - (noise @ directions) @ directions.T)[spoken]
    heads, feed_forward = 4, 2 * WIDTH
    model = Model(path, "llama", 1, feed_forward, heads, len(TOKENS))
    model.number("attention.head_count_kv", heads)
    model.number("rope.dimension_count", WIDTH // heads)
    zeros, ones = np.zeros, np.ones
    tensors = {
        "token_embd.weight": embedding, "output_norm.weight": ones(WIDTH), "output.weight": head,
        "blk.0.attn_norm.weight": ones(WIDTH), "blk.0.ffn_norm.weight": ones(WIDTH),
        **{f"blk.0.attn_{part}.weight": random.standard_normal((WIDTH, WIDTH)) * 0.2 for part in "qkv"},
        "blk.0.attn_output.weight": zeros((WIDTH, WIDTH)),
        "blk.0.ffn_gate.weight": random.standard_normal((feed_forward, WIDTH)) * 0.2,
        "blk.0.ffn_up.weight": random.standard_normal((feed_forward, WIDTH)) * 0.2,
        "blk.0.ffn_down.weight": zeros((WIDTH, feed_forward)),
    }  # fmt: skip
    for name, values in tensors.items():
        model.tensor(name, values)
    model.close()
    return path
