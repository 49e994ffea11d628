"""Tiny drafts that read their target's hidden states, built so that they draft from the token alone.

Whatever they read, they draft the successors of a table as a plain draft model with that table would: EAGLE-3 by an
attention that looks at the current token, DSpark by its Markov head, DFlash by one attention head for each place of the
block that looks back at the block's first token.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from support.tiny_models.automaton import (
    FIRST_WORD,
    GAIN,
    SENTENCE,
    TOKENS,
    WIDTH,
    Model,
    embeddings,
    feed_forward_block,
    head,
    successors,
)

MASK = 3
HEADS = 4
_SHARPNESS = 2.5
"""Scales queries and keys until a softmax over them picks one place."""


def _reading_draft(
    path: Path,
    architecture: str,
    reads: tuple[int, ...],
    *,
    heads: int = HEADS,
    keys: int = HEADS,
    size: int = WIDTH // HEADS,
) -> Model:
    model = Model(path, architecture, 1, 2 * WIDTH, heads, len(TOKENS))
    model.number("attention.head_count_kv", keys)
    for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        model.number(key, size)
    model.writer.add_array(f"{architecture}.target_layers", list(reads))
    model.tensor("output_norm.weight", np.ones(WIDTH))
    feed_forward_block(model, "blk.0.", 2 * WIDTH)
    return model


def write_eagle3(
    path: Path,
    *,
    reads: tuple[int, ...] = (0, 1, 2),
    target_width: int = WIDTH,
    wrong_every: int = 0,
) -> Path:
    """An EAGLE-3 draft for targets of `target_width`; it reads three of their layers.

    The norm before the residual, with weights of zero, keeps what it read and what it drafted before out of the sum.
    """
    model = _reading_draft(path, "eagle3", reads)
    model.number("target_hidden_size", target_width)
    model.writer.add_bool("eagle3.norm_before_residual", True)
    model.tensor("fc.weight", np.zeros((WIDTH, 3 * target_width)))
    model.tensor("blk.0.attn_norm_2.weight", np.zeros(WIDTH))
    token_half = np.concatenate([np.eye(WIDTH), np.zeros((WIDTH, WIDTH))], 1)
    for part, scale in (("q", _SHARPNESS), ("k", _SHARPNESS), ("v", 1.0)):
        model.tensor(f"blk.0.attn_{part}.weight", token_half * scale)
    model.tensor("blk.0.attn_output.weight", np.eye(WIDTH))
    model.tensor("output.weight", head(successors(wrong_every)))
    model.close()
    return path


def _block_keys(model: Model, block: int, reads: tuple[int, ...]) -> None:
    model.number("block_size", block)
    model.writer.add_uint32("tokenizer.ggml.mask_token_id", MASK)
    model.tensor("fc.weight", np.zeros((WIDTH, len(reads) * WIDTH)))
    model.tensor("enc.output_norm.weight", np.ones(WIDTH))


def write_dspark(
    path: Path,
    *,
    block: int = 8,
    reads: tuple[int, ...] = (0, 1),
    wrong_every: int = 0,
    confident: bool = True,
) -> Path:
    """A DFlash draft with the Markov head of DSpark: only that head says anything, and it knows the token before.

    With `confident` it has a confidence head, too, which is sure of everything.
    """
    model = _reading_draft(path, "dflash", reads)
    _block_keys(model, block, reads)
    for part in "qkv":
        model.noise(f"blk.0.attn_{part}.weight", WIDTH, WIDTH)
    for part in "qk":
        model.tensor(f"blk.0.attn_{part}_norm.weight", np.ones(WIDTH // HEADS))
    model.tensor("blk.0.attn_output.weight", np.zeros((WIDTH, WIDTH)))
    model.tensor("output.weight", np.zeros((len(TOKENS), WIDTH)))
    model.tensor("markov_w1.weight", embeddings())
    model.tensor("markov_w2.weight", head(successors(wrong_every)))
    if confident:
        model.tensor("conf_proj.weight", np.zeros((1, 2 * WIDTH)))
        model.tensor("conf_proj.bias", np.full(1, 9.0))
    model.close()
    return path


def _look_back(steps: int, frequencies: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """A query that matches the keys `_look_back(0, ...)` best at `steps` places before its own, by RoPE."""
    query = np.zeros(size)
    for pair, frequency in enumerate(frequencies):
        query[pair] = np.cos(steps * frequency)
        query[pair + size // 2] = -np.sin(steps * frequency)
    return query


def write_dflash(path: Path, *, block: int = 8, reads: tuple[int, ...] = (0, 1), wrong_every: int = 0) -> Path:
    """A block-diffusion draft that reads the layers `reads` of its target; at place i it drafts the i-th successor.

    Words are one-hot in its own embeddings, beside one constant from which queries and keys are made. Head h looks h
    places back, passes the word it finds there (masks have none), and adds its h-th successor. At place i the heads
    beyond i have nothing to look at and say something, too: each head speaks half as loudly as the one before it.
    """
    size, words, constant = 64, len(SENTENCE), len(SENTENCE)
    model = _reading_draft(path, "dflash", reads, heads=block - 1, keys=1, size=size)
    _block_keys(model, block, reads)
    model.writer.add_float32("dflash.rope.freq_base", 2.0 ** (size / 2))
    known = np.zeros((len(TOKENS), WIDTH))
    known[:, constant] = 1
    known[FIRST_WORD : FIRST_WORD + words, :words] = np.eye(words)
    model.tensor("token_embd.weight", known)
    frequencies = np.array([1.0, 0.5])
    queries, spoken = np.zeros(((block - 1) * size, WIDTH)), np.zeros((WIDTH, (block - 1) * size))
    table = successors(wrong_every)[FIRST_WORD : FIRST_WORD + words] - FIRST_WORD
    reached = np.arange(words)
    for place in range(1, block):
        rows = slice((place - 1) * size, place * size)
        queries[rows, constant] = _look_back(place, frequencies, size)
        reached = table[reached]
        spoken[:, rows][reached, np.arange(words)] = 0.5**place
    keys = np.zeros((size, WIDTH))
    keys[:, constant] = _look_back(0, frequencies, size)
    model.tensor("blk.0.attn_q.weight", queries)
    model.tensor("blk.0.attn_k.weight", keys)
    model.tensor("blk.0.attn_v.weight", np.eye(WIDTH)[:size] * (np.arange(WIDTH) < words))
    model.tensor("blk.0.attn_output.weight", spoken)
    for part in "qk":
        model.tensor(f"blk.0.attn_{part}_norm.weight", np.full(size, _SHARPNESS))
    named = np.zeros((len(TOKENS), WIDTH))
    named[FIRST_WORD : FIRST_WORD + words, :words] = np.eye(words) * GAIN
    model.tensor("output.weight", named)
    model.close()
    return path
