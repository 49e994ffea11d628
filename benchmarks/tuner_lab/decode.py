"""Prompts as streams of tokens, and how a point decodes them: which steps there are, and what each drafts and accepts.

The step that would begin at each token is worked out for all tokens at once; the steps that do happen are those that
can be reached from the first token, found by doubling. The same prompts give the same tokens to every point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.tuner_lab.grid import DEEPEST, GATES, KINDS
from benchmarks.tuner_lab.text import LEVELS, stationary

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benchmarks.tuner_lab.rig import Rig
    from benchmarks.tuner_lab.text import Text
    from specdash.tune.model.problem import Point

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a point does with the prompts; one entry a prompt. `accepted_at[i]` are counts by position."""

    steps: Ints
    drafted: Ints
    accepted: Ints
    seconds: Floats
    draft_seconds: Floats
    accepted_at: tuple[tuple[int, ...], ...]


class Prompts:
    """Streams of a text, and the chances of each token, drawn once; `levels` are those of each class in turn."""

    def __init__(self, text: Text, random: np.random.Generator, levels: Ints, tokens: int) -> None:
        self._text = text
        count = len(levels)
        each = count // len(KINDS)
        self.kinds = tuple(kind for kind in KINDS for _ in range(each))
        self.chains = np.repeat(np.arange(len(KINDS)), each) * len(LEVELS) + levels
        self._count, self._tokens = count, tokens
        states = self._walk(random)
        self._behind, self._states = states[:, :-1], states[:, 1:]
        self._correct, self._confident, self._wandering, self._same, self._hit = random.random((5, count, tokens))
        self._left = np.broadcast_to(tokens - 1 - np.arange(tokens), (count, tokens))
        self._runs: dict[int, tuple[Ints, Bools, Ints]] = {}
        self._copy_runs: Ints | None = None

    def decode(self, point: Point, rig: Rig) -> Decoded:
        """All prompts with one point."""
        zeros = np.zeros((self._count, self._tokens), dtype=np.int64)
        drafted, accepted, computed, late = zeros, zeros, zeros, 0.0
        if point.n_max is not None:
            drafted, accepted, computed = self._draft(point.n_max, GATES.index(point.p_min or 0.0))
        if point.ngram_max is not None:
            hit = self._hit < self._text.hit[self.chains[:, None], self._behind]
            limit = np.minimum(point.ngram_max, self._left)
            drafted = np.where(hit, limit, drafted)
            accepted = np.where(hit, np.minimum(self._copied(), limit), accepted)
            computed = np.where(hit, 0, computed)
            late = rig.lookup + hit * (rig.catch_up if point.n_max is not None else 0.0)
        taken = self._taken(accepted)
        seconds = (rig.cost(drafted, computed, accepted) + late) * taken
        made = (rig.draft * computed + rig.start * (computed > 0)) * taken
        return Decoded(
            steps=taken.sum(1),
            drafted=(drafted * taken).sum(1),
            accepted=(accepted * taken).sum(1),
            seconds=seconds.sum(1),
            draft_seconds=made.sum(1),
            accepted_at=self._by_position(accepted, taken, max(point.n_max or 0, point.ngram_max or 0)),
        )

    def _walk(self, random: np.random.Generator) -> Ints:
        cumulated = self._text.move.cumsum(-1)
        cumulated[..., -1] = 1.0
        chances = random.random((self._tokens + 1, self._count))
        states = np.empty((self._count, self._tokens + 1), dtype=np.int64)
        now = (stationary(self._text.move).cumsum(-1)[self.chains] < chances[0][:, None]).sum(-1).clip(max=5)
        states[:, 0] = now
        for token in range(1, self._tokens + 1):
            now = (cumulated[self.chains, now] < chances[token][:, None]).sum(-1)
            states[:, token] = now
        return states

    def _draft(self, longest: int, gate: int) -> tuple[Ints, Ints, Ints]:
        """Drafted, accepted and computed tokens of a step at each token; none beyond the last token asked for."""
        run, gated, further = self._run(gate)
        limit = np.minimum(longest, self._left)
        accepted = np.minimum(run, limit)
        short = run < limit
        wrong = short & ~gated
        drafted = accepted + np.where(wrong, 1 + np.minimum(further, limit - accepted - 1), 0)
        return drafted, accepted, drafted + (short & (drafted < limit))

    def _run(self, gate: int) -> tuple[Ints, Bools, Ints]:
        """Of a draft at each token: its right tokens, whether the gate ended it, and the tokens after its wrong one."""
        if gate not in self._runs:
            text = self._text
            right = text.right[self.chains[:, None], self._states]
            depth = (self._correct[..., None] < right[..., None] * text.fade).sum(-1)
            kept = self._confident < text.keep_right[gate][self._states]
            fooled = self._confident < text.keep_wrong[gate][self._states]
            pad = ((0, 0), (0, DEEPEST + 1))
            depth, kept, fooled = np.pad(depth, pad), np.pad(kept, pad), np.pad(fooled, pad)
            run = np.zeros((self._count, self._tokens), dtype=np.int64)
            gated = np.zeros(run.shape, dtype=np.bool_)
            alive = np.ones(run.shape, dtype=np.bool_)
            for at in range(DEEPEST):
                here = slice(at, at + self._tokens)
                good = depth[:, here] > at
                gated |= alive & np.where(good, ~kept[:, here], ~fooled[:, here])
                alive = alive & good & kept[:, here]
                run += alive
            going = _run_lengths(np.pad(self._wandering < text.wander[gate], pad, constant_values=True))
            after = np.arange(self._tokens) + run + 1
            self._runs[gate] = run, gated, np.take_along_axis(going, after, axis=1)
        return self._runs[gate]

    def _copied(self) -> Ints:
        if self._copy_runs is None:
            self._copy_runs = _run_lengths(self._same < self._text.same[self.chains[:, None], self._states])
        return self._copy_runs

    def _taken(self, accepted: Ints) -> Bools:
        """Tokens at which a step begins."""
        width = self._tokens + 1
        rows = np.arange(self._count)[:, None] * width
        jump = np.empty((self._count, width), dtype=np.int64)
        jump[:, :-1] = rows + np.arange(self._tokens) + accepted + 1
        jump[:, -1:] = rows + self._tokens
        flat = jump.ravel()
        taken = np.zeros(flat.size, dtype=np.bool_)
        taken[rows[:, 0]] = True
        for _ in range(self._tokens.bit_length()):
            taken[flat[taken]] = True
            flat = flat[flat]
        return taken.reshape(self._count, width)[:, :-1]

    def _by_position(self, accepted: Ints, taken: Bools, longest: int) -> tuple[tuple[int, ...], ...]:
        if not longest:
            return ((),) * self._count
        rows, at = np.nonzero(taken)
        flat = rows * (longest + 1) + accepted[rows, at]
        counts = np.bincount(flat, minlength=self._count * (longest + 1)).reshape(self._count, longest + 1)
        reached = counts[:, ::-1].cumsum(1)[:, ::-1][:, 1:]
        return tuple(tuple(row) for row in reached.tolist())


def _run_lengths(good: Bools) -> Ints:
    """From each column on, how many follow without one that is not good."""
    width = good.shape[1]
    columns = np.arange(width)
    ends = np.where(good, width, columns)
    nearest = np.minimum.accumulate(ends[:, ::-1], axis=1)[:, ::-1]
    return np.asarray(nearest - columns, dtype=np.int64)
