"""Acceptance of drafts as others have published it, per type of drafting: what one's own drafter is compared with.

Figures from public threads, not measured here. A model, a quantisation and a text of their own are behind each, so they
say what is usual, not what must be reached. n-gram types have none: what they accept depends on the text alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt


@dataclass(frozen=True, slots=True)
class PublishedAcceptance:
    """One publication. `per_position` is the share of verification steps whose draft token at position 0, 1, … was
    accepted, empty where only means were told."""

    type: str
    """Name in `core.speculation.SPEC_TYPES`."""
    name: str
    """Model, engine, text, and `n`, the longest draft."""
    source: str
    per_position: tuple[float, ...] = ()
    mean_accepted_length: float | None = None
    acceptance: float | None = None
    """Accepted over drafted tokens."""


_UNNAMED = "a public thread, its address not kept"
_DFLASH = "marksverdhei/llama.cpp#53, after vllm-project/vllm#41703"
_DFLASH_2 = "ggml-org/llama.cpp#27342"

PUBLISHED: tuple[PublishedAcceptance, ...] = (
    PublishedAcceptance(
        "draft-mtp",
        "MTP, vLLM, GSM8K, n 8",
        "vllm-project/vllm#48892",
        (0.762, 0.616, 0.513, 0.424, 0.364, 0.309, 0.272, 0.237),
        4.50,
    ),
    PublishedAcceptance(
        "draft-mtp", "MTP, Qwen3.6-27B, n 6", "club-3090#105", (0.917, 0.837, 0.648, 0.538, 0.451, 0.348), 4.74
    ),
    PublishedAcceptance("draft-mtp", "MTP, llama.cpp, n 4", _UNNAMED, (0.804, 0.701, 0.629, 0.515), 3.65),
    PublishedAcceptance("draft-mtp", "MTP, GB10, agent, n 3", _UNNAMED, (0.872, 0.767, 0.672), 3.31),
    PublishedAcceptance("draft-mtp", "MTP, DeepSeek-V4, n 2", _UNNAMED, (0.769, 0.381), 2.15),
    PublishedAcceptance("draft-mtp", "MTP, Qwen3.8-27B, SPEED-Bench, n 7", _DFLASH_2, mean_accepted_length=2.81),
    PublishedAcceptance(
        "draft-eagle3", "EAGLE-3, llama.cpp, n 3", "ggml-org/llama.cpp#24536", (0.805, 0.632, 0.483), 2.92
    ),
    PublishedAcceptance("draft-eagle3", "EAGLE, vLLM, n 3", "ggml-org/llama.cpp#24344", (0.77, 0.45, 0.24), 2.46),
    PublishedAcceptance("draft-eagle3", "EAGLE-3, coding", "ggml-org/llama.cpp#24655", acceptance=0.481),
    PublishedAcceptance("draft-eagle3", "EAGLE-3, reasoning", "ggml-org/llama.cpp#24655", acceptance=0.357),
    PublishedAcceptance(
        "draft-dflash",
        "DFlash that fits badly, n 5",
        "AEON-7#6",
        (0.600, 0.385, 0.215, 0.108, 0.062),
        2.37,
    ),
    PublishedAcceptance("draft-dflash", "DFlash, Gemma4-26B, HumanEval, n 15", _DFLASH, acceptance=0.4469),
    PublishedAcceptance("draft-dflash", "DFlash, Gemma4-26B, MT-Bench, n 15", _DFLASH, acceptance=0.2168),
    PublishedAcceptance("draft-dflash", "DFlash, SPEED-Bench coding, n 15", _DFLASH_2, mean_accepted_length=4.97),
    PublishedAcceptance("draft-dflash", "DFlash, SPEED-Bench all, n 15", _DFLASH_2, mean_accepted_length=4.40),
    PublishedAcceptance("draft-dflash", "DFlash2, SPEED-Bench all, n 15", _DFLASH_2, mean_accepted_length=5.06),
    PublishedAcceptance(
        "draft-dspark",
        "DSpark, agent, n 7",
        _UNNAMED,
        (0.624, 0.412, 0.260, 0.186, 0.113, 0.073, 0.056),
        2.73,
    ),
)


def nearest(type_name: str, per_position: tuple[float, ...]) -> tuple[PublishedAcceptance, ...]:
    """What was published of a type, the nearest first.

    Curves come before means, by the root mean square difference over the positions that both have; without positions
    of one's own in the order published.
    """
    found = [one for one in PUBLISHED if one.type == type_name]
    return tuple(sorted(found, key=lambda one: distance(one.per_position, per_position)))


def distance(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """Root mean square difference over the common positions; infinite where there are none."""
    pairs = list(zip(one, other, strict=False))
    if not pairs:
        return float("inf") if not one or other else 0.0
    return sqrt(sum((a - b) ** 2 for a, b in pairs) / len(pairs))
