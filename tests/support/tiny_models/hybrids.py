"""Tiny models with a KV cache in some layers and a recurrent state in others."""

from pathlib import Path

import numpy as np

from support.tiny_models.automaton import TOKENS, WIDTH, Model, feed_forward_block, head, successors


def write_lfm2(path: Path, *, layers: int = 3, wrong_every: int = 0) -> Path:
    """A hybrid: short convolutions, and attention in the last layer."""
    heads, kernel, feed_forward = 4, 3, 2 * WIDTH
    model = Model(path, "lfm2", layers, feed_forward, heads, len(TOKENS))
    kinds = [heads if layer == layers - 1 else 0 for layer in range(layers)]
    model.writer.add_array("lfm2.attention.head_count_kv", kinds)
    model.number("shortconv.l_cache", kernel)
    model.number("rope.dimension_count", WIDTH // heads)
    model.writer.add_float32("lfm2.rope.freq_base", 1e6)
    model.automaton(successors(wrong_every), norm="token_embd_norm.weight")
    for layer, attends in enumerate(kinds):
        block = f"blk.{layer}."
        feed_forward_block(model, block, feed_forward)
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


def write_qwen35(path: Path, *, heads_too: bool, wrong_every: int = 0) -> Path:
    """A hybrid of gated delta nets and one attention layer; `heads_too` adds a next-token-prediction layer.

    That layer reads the token and not the hidden state; with `wrong_every` it has a head of its own with those wrong
    successors.
    """
    layers, groups, values, kernel, heads, states = 4, 2, 2, 4, 4, 32
    size, keys, inner = WIDTH // heads, states * groups, states * values
    model = Model(path, "qwen35", layers + heads_too, 2 * WIDTH, heads, len(TOKENS))
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
        feed_forward_block(model, block, 2 * WIDTH, "post_attention_norm")
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
        if wrong_every:
            model.tensor(block + "shared_head_head.weight", head(successors(wrong_every)))
    model.close()
    return path
