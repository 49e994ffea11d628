"""What one boot measured, as arrays: a row a prompt, and sums by class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from specdash.tune.problem import BootResult, Point, PromptResult

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int_]


class Tally:
    """One boot. `kind` is each prompt's class as an index into the kinds it was made with; others are left out."""

    __slots__ = (
        "accepted",
        "counted",
        "draft_s",
        "drafted",
        "kind",
        "point",
        "positions",
        "prompt",
        "seconds",
        "steps",
        "tokens",
    )

    def __init__(self, boot: BootResult, kinds: Sequence[str]) -> None:
        rows = [one for one in boot.prompts if one.kind in kinds and one.tokens > 0 and one.seconds > 0]
        self.point: Point = boot.point
        self.draft_s: float | None = boot.draft_s
        self.prompt: tuple[str, ...] = tuple(one.prompt for one in rows)
        self.kind: Ints = np.array([kinds.index(one.kind) for one in rows], dtype=np.int_)
        self.tokens: Floats = np.array([one.tokens for one in rows], dtype=np.float64)
        self.seconds: Floats = np.array([one.seconds for one in rows], dtype=np.float64)
        self.drafted: Floats = np.array([one.drafted for one in rows], dtype=np.float64)
        self.accepted: Floats = np.array([one.accepted for one in rows], dtype=np.float64)
        self.steps: Floats = np.array([_steps(one) for one in rows], dtype=np.float64)
        self.counted: bool = not boot.point.types or any(one.steps or one.drafted for one in rows)
        """Whether the engine counts its steps; else only speeds are known."""
        longest = max((len(one.accepted_per_position) for one in rows), default=0)
        self.positions: Floats = np.zeros((len(kinds), longest))
        for index, one in zip(self.kind, rows, strict=True):
            self.positions[index, : len(one.accepted_per_position)] += one.accepted_per_position

    def by_kind(self, values: Floats, kinds: int) -> Floats:
        """Sums of a column by class."""
        return np.bincount(self.kind, weights=values, minlength=kinds).astype(np.float64)


def _steps(one: PromptResult) -> float:
    """Verification steps. An engine that does not count them made one for every token that no draft gave."""
    return float(one.steps or max(one.tokens - one.accepted, 1))
