"""A Llama-shaped language model in PyTorch: RMSNorm, rotary positions, SwiGLU, tied embeddings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

NORM_EPSILON = 1e-5


@dataclass(frozen=True, slots=True)
class Shape:
    """Dimensions of one model. Every matrix side is a multiple of 32, the block of Q8_0."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    feed_forward: int
    context: int
    rope_base: float

    @property
    def head_width(self) -> int:
        return self.width // self.heads


class Attention(nn.Module):  # type: ignore[misc]  # torch is not in the checker's environment
    """Causal attention with rotary positions on halves (exported permuted to llama.cpp's adjacent pairs)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.q, self.k, self.v, self.o = (_matrix(shape.width, shape.width) for _ in range(4))

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], past: list[Tensor] | None) -> Tensor:
        batch, length, width = x.shape
        mixed = functional.linear(x, torch.cat((self.q, self.k, self.v))).view(batch, length, 3, self.heads, -1)
        q, k, v = mixed.permute(2, 0, 3, 1, 4)
        q, k = _rotate(q, *rope), _rotate(k, *rope)
        if past is not None:
            if past:
                k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
            past[:] = [k, v]
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        return functional.linear(mixed.transpose(1, 2).reshape(batch, length, width), self.o)


class Block(nn.Module):  # type: ignore[misc]  # torch is not in the checker's environment
    """One pre-norm transformer layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.Parameter(torch.ones(shape.width))
        self.attention = Attention(shape)
        self.feed_forward_norm = nn.Parameter(torch.ones(shape.width))
        self.gate, self.up = (_matrix(shape.feed_forward, shape.width) for _ in range(2))
        self.down = _matrix(shape.width, shape.feed_forward)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], past: list[Tensor] | None) -> Tensor:
        x = x + self.attention(_norm(x, self.attention_norm), rope, past)
        gate, up = functional.linear(_norm(x, self.feed_forward_norm), torch.cat((self.gate, self.up))).chunk(2, -1)
        return x + functional.linear(functional.silu(gate) * up, self.down)


class Llama(nn.Module):  # type: ignore[misc]  # torch is not in the checker's environment
    """The whole model: token ids to logits."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Parameter(torch.randn(shape.vocabulary, shape.width) * 0.02)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.width))
        for block in self.blocks:
            nn.init.zeros_(block.attention.o)
            nn.init.zeros_(block.down)
        frequencies = shape.rope_base ** (-torch.arange(0, shape.head_width, 2).float() / shape.head_width)
        angles = torch.outer(torch.arange(shape.context).float(), frequencies)
        self.register_buffer("cosines", angles.cos(), persistent=False)
        self.register_buffer("sines", angles.sin(), persistent=False)

    def forward(self, ids: Tensor, past: list[list[Tensor]] | None = None) -> Tensor:
        """Logits of the next token at every position; ``past`` (one list a layer) is read and extended in place."""
        start = past[0][0].shape[2] if past and past[0] else 0
        rope = (self.cosines[start : start + ids.shape[1]], self.sines[start : start + ids.shape[1]])
        x = functional.embedding(ids, self.embedding)
        for index, block in enumerate(self.blocks):
            x = block(x, rope, None if past is None else past[index])
        return functional.linear(_norm(x, self.norm), self.embedding)

    def continue_greedily(self, prompts: Tensor, count: int) -> Tensor:
        """``prompts`` (batch, length) followed by ``count`` greedy tokens each."""
        past: list[list[Tensor]] = [[] for _ in self.blocks]
        pieces = [prompts]
        with torch.no_grad():
            for _ in range(count):
                pieces.append(self(pieces[-1], past)[:, -1].argmax(-1, keepdim=True))
        return torch.cat(pieces, 1)

    @property
    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())


def _matrix(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns) * columns**-0.5)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight, NORM_EPSILON)


def _rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((first * cosines - second * sines, first * sines + second * cosines), -1)
