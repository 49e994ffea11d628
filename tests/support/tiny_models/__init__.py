"""Tiny GGUF models whose acceptance is known in advance, built with numpy and gguf.

The output projections of attention, SSM and FFN are zero, so a token's hidden state is its embedding, and the head maps
it to one successor: the model is a token automaton that recites a sentence for ever, while real KV and recurrent
memory is allocated and updated. A draft has some wrong successors, which fixes what share of its drafts is accepted.
"""

from pathlib import Path

from support.tiny_models.automaton import CONTEXT, FIRST_WORD, SENTENCE, TOKEN_KINDS, TOKENS, WIDTH, successors
from support.tiny_models.drafts import write_dflash, write_dspark, write_eagle3
from support.tiny_models.hybrids import write_lfm2, write_qwen35
from support.tiny_models.plain import write_llama, write_mamba
from support.tiny_models.variants import write_variant

__all__ = [
    "CONTEXT",
    "FIRST_WORD",
    "SENTENCE",
    "TOKENS",
    "TOKEN_KINDS",
    "WIDTH",
    "build",
    "successors",
    "write_dflash",
    "write_dspark",
    "write_eagle3",
    "write_lfm2",
    "write_llama",
    "write_mamba",
    "write_qwen35",
    "write_variant",
]


def build(directory: Path) -> dict[str, Path]:
    """All models by name: `target`, `draft` (every 8th word wrong), `draft-good`, `draft-bad` and `mamba`."""
    return {
        "target": write_llama(directory / "target.gguf", layers=2),
        "draft": write_llama(directory / "draft.gguf", wrong_every=8),
        "draft-good": write_llama(directory / "draft-good.gguf"),
        "draft-bad": write_llama(directory / "draft-bad.gguf", wrong_every=1),
        "mamba": write_mamba(directory / "mamba.gguf"),
    }
