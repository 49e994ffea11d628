"""Published measurements that the simulator is held to. Sources are public threads; each names its own."""

from __future__ import annotations

from dataclasses import dataclass

from specdash.core.speculation import PUBLISHED


@dataclass(frozen=True, slots=True)
class Trace:
    """Share of verification steps whose draft token at each position was accepted."""

    name: str
    accepted: tuple[float, ...]
    copies: bool = False
    """Of n-gram drafts."""


TRACES = (
    *(
        Trace(f"{acceptance.name} ({acceptance.source})", acceptance.per_position)
        for acceptance in PUBLISHED
        if acceptance.per_position
    ),
    Trace("ngram, agent, n 8", (0.423, 0.274, 0.221, 0.174), copies=True),
    Trace("ngram, edits (ggml-org/llama.cpp#24344)", (0.81, 0.74, 0.70, 0.68, 0.66), copies=True),
)
FIRST_ALONE = 0.834
"""What the first of `TRACES` accepts with K=1: more than at the first of eight positions: steps begin elsewhere."""

SINGLE_TOKEN = {"coding": 0.908, "factual": 0.606, "prose": 0.492, "technical": 0.480}
"""Acceptance of one draft token by content, Qwen3.8-27B (tenstorrent)."""

CPU_STEP_MS = {
    0: 11.32,
    1: 13.05,
    2: 14.98,
    3: 16.71,
    4: 18.77,
    5: 20.60,
    6: 21.71,
    8: 24.74,
    10: 28.81,
    12: 31.80,
}
"""Milliseconds of a step by draft length, 0 being off: llama-server b11434 on a CPU, 99 MB model, tiny draft, synthetic
acceptance, 3 boots of 4 prompts of 160 tokens."""

POWER_STUDY = {
    400: (71.2, 108.4, 129.3, 133.8, 132.8, 127.5, 123.3),
    500: (74.5, 114.9, 139.8, 152.9, 153.6, 148.8, 142.7),
    600: (74.8, 115.7, 144.4, 156.0, 162.1, 159.7, 153.2),
}
"""Tokens per second of off and n_max 1 to 6 by the power cap of an RTX 5090, in watts."""
POWER_STUDY_ACCEPTANCE = (0.889, 0.790, 0.725, 0.647, 0.591, 0.537)
"""Accepted over drafted tokens of n_max 1 to 6, the same at every cap."""
