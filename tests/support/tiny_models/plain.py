"""Tiny models with one kind of memory: a KV cache, or a recurrent state."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from support.tiny_models.automaton import TOKENS, WIDTH, Model, successors


def write_llama(path: Path, *, layers: int = 1, wrong_every: int = 0, table: NDArray[np.int64] | None = None) -> Path:
    """A plain transformer with a KV cache; `table` gives successors of any kind in place of `wrong_every`."""
    feed_forward, heads = 2 * WIDTH, 4
    model = Model(path, "llama", layers, feed_forward, heads, len(TOKENS))
    model.number("attention.head_count_kv", heads)
    model.number("rope.dimension_count", WIDTH // heads)
    model.automaton(successors(wrong_every) if table is None else table)
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
    model = Model(path, "mamba", layers, 0, 0, len(TOKENS))
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
