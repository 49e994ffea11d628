"""What a step costs: a line in the tokens verified and drafted, with a cliff beyond the batch that small kernels take.

Seconds are a sum of parts; each part is its amount times a cost that no machine has negative, so that what is learned
is the logarithm of every cost. Amounts are known of what was booted (counters are exact), and expected of the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specdash.tune.acceptance import CLIFF, Design, Expected

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specdash.tune.tally import Tally

    Floats = NDArray[np.float64]

STEP, VERIFY, BEYOND, JUMP, DRAFT, CALL, REPLAY = range(7)
"""Parts: a step; a token verified up to the cliff; one beyond it; a batch beyond the cliff; a token that a model
drafts; a draft of it; a step in which a draft token was rejected."""
PARTS = 7
PRIOR = np.log(np.array([1.0, 0.15, 0.06, 0.12, 0.07, 0.03, 0.01]))
"""In steps of one token."""
SPREAD = np.array([2.0, 1.0, 1.1, 1.3, 0.8, 1.0, 1.5])
DRAFTING = np.array([DRAFT, CALL])


def expected_amounts(design: Design, text: Expected) -> Floats:
    """(point, class, part), per token of the text."""
    copy = design.copy[:, None]
    near = np.minimum(copy, CLIFF - 1)
    parts = np.zeros((*text.steps.shape, PARTS))
    parts[..., STEP] = text.steps
    parts[..., VERIFY] = text.model * (text.length - text.long) + text.copies * near
    parts[..., BEYOND] = text.model * text.long + text.copies * (copy - near)
    parts[..., JUMP] = text.model * text.cliff + text.copies * (copy >= CLIFF)
    parts[..., DRAFT] = text.model * text.tried
    parts[..., CALL] = text.model * (design.depth[:, None] > 0)
    parts[..., REPLAY] = text.rejected
    return parts


def counted_amounts(tally: Tally, design: Design, row: int, text: Expected) -> Floats:
    """(prompt, part), per token, of a boot. What counters do not tell apart is shared out as the text model expects."""
    kind = tally.kind
    depth, copy = design.depth[row], design.copy[row]
    steps, drafted = tally.steps / tally.tokens, tally.drafted / tally.tokens
    length = text.length[row, kind]
    copies = np.zeros_like(steps)
    if copy > 0:
        if depth > 0:
            copies = (drafted - steps * length) / np.maximum(copy - length, 1.0)
            # Where both lengths are near, the counters say little of which drafted.
            trust = 1 / (1 + (3.0 / np.maximum(copy - length, 0.1)) ** 2)
            copies = trust * copies + (1 - trust) * steps * text.copies[row, kind] / text.steps[row, kind]
        else:
            copies = drafted / copy
        copies = np.clip(copies, 0.0, np.minimum(steps, drafted / copy))
    model = steps - copies
    by_model = np.maximum(drafted - copies * copy, 0.0) if depth > 0 else np.zeros_like(steps)
    long = by_model * text.long[row, kind] / np.maximum(length, 1e-9)
    near = min(copy, CLIFF - 1)
    parts = np.zeros((kind.size, PARTS))
    parts[:, STEP] = steps
    parts[:, VERIFY] = by_model - long + copies * near
    parts[:, BEYOND] = long + copies * (copy - near)
    parts[:, JUMP] = model * text.cliff[row, kind] + copies * (copy >= CLIFF)
    parts[:, DRAFT] = by_model + model * (text.tried - text.length)[row, kind]
    parts[:, CALL] = model * (depth > 0)
    parts[:, REPLAY] = steps * np.clip(text.rejected[row, kind] / text.steps[row, kind], 0, 1)
    return parts


@dataclass(frozen=True, slots=True)
class StepLine:
    """Step time against draft length, from two boots: off, and one draft length without a gate."""

    alone: float
    """Seconds of a step that verifies one token."""
    each: float
    """Seconds that every draft token adds, drafting and verifying together."""

    def seconds(self, length: int) -> float:
        """Of a step with drafts of this length."""
        return self.alone + self.each * length


def step_line(off_seconds: float, seconds: float, length: int) -> StepLine:
    """From the seconds of a step without drafts and of one with drafts of `length`. Good below the cliff alone.

    On a machine where the second point is faster than the first, drafts are taken to cost nothing.
    """
    return StepLine(off_seconds, max(seconds - off_seconds, 0.0) / length)
