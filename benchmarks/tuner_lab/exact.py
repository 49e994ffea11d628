"""Speeds in the long run, in closed form: steps of decoding are a Markov chain over the states they begin behind.

For every chain and point: how the draft of one step ends, what the step costs and emits, and the state it ends in; then
the stationary distribution over those states. No stream is simulated, so there is no sampling error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.tuner_lab.grid import DEEPEST, GATES, LENGTHS, NGRAM_LENGTHS
from benchmarks.tuner_lab.text import STATES, stationary

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benchmarks.tuner_lab.rig import Rig
    from benchmarks.tuner_lab.text import Text
    from specdash.tune.model.problem import Point

    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Step:
    """One kind of step by chain and state it begins behind: where it ends, tokens it emits, its seconds."""

    end: Floats
    tokens: Floats
    seconds: Floats


@dataclass(frozen=True, slots=True)
class Way:
    """How drafts of the draft layers go, by depth; each entry by chain and state that the step begins behind."""

    reached: tuple[Floats, ...]
    """That this many tokens are accepted, if the draft may be that long."""
    stopped: tuple[Floats, ...]
    """That the gate ends it here."""
    missed: tuple[Floats, ...]
    """That the token here is kept and wrong."""
    ends: tuple[Floats, ...]
    """Of a draft of at most this many tokens: (state behind, state of the last token emitted)."""


def follow(text: Text, gate: int, deepest: int = DEEPEST) -> Way:
    """All depths of a draft, at one gate."""
    kept, fooled = text.keep_right[gate], text.keep_wrong[gate]
    alive = np.broadcast_to(np.eye(STATES), text.move.shape)
    ended = np.zeros_like(text.move)
    reached, ends = [alive.sum(-1)], [text.move]
    stopped, missed = [], []
    for depth in range(deepest):
        right = text.right * text.fade[depth]
        before = alive @ text.move
        gated = before * (right * (1 - kept) + (1 - right) * (1 - fooled))[:, None, :]
        wrong = before * ((1 - right) * fooled)[:, None, :]
        alive = before * (right * kept)[:, None, :]
        ended = ended + gated + wrong
        reached.append(alive.sum(-1))
        stopped.append(gated.sum(-1))
        missed.append(wrong.sum(-1))
        ends.append(ended + alive @ text.move)
    return Way(tuple(reached), tuple(stopped), tuple(missed), tuple(ends))


def accepted_at(way: Way, longest: int) -> Floats:
    """(chain, position): share of steps whose draft token was accepted, of drafts of at most `longest` tokens."""
    behind = stationary(way.ends[longest])
    return np.stack([(behind * reached).sum(-1) for reached in way.reached[1 : longest + 1]], axis=-1)


class Exact:
    """Seconds per token of every chain, by point."""

    def __init__(self, text: Text, rig: Rig) -> None:
        self._text, self._rig = text, rig
        self._plain = self._plain_step()
        self._ways = tuple(follow(text, gate) for gate in range(len(GATES)))
        self._drafted = self._drafted_steps()
        self._copied = self._copied_steps()

    def seconds_per_token(self, points: tuple[Point, ...]) -> Floats:
        """(point, chain)."""
        mixed = [self._mixed(point) for point in points]
        behind = stationary(np.stack([step.end for step in mixed]))
        tokens = np.stack([step.tokens for step in mixed])
        seconds = np.stack([step.seconds for step in mixed])
        shares = (behind * seconds).sum(-1) / (behind * tokens).sum(-1)
        return np.asarray(shares, dtype=np.float64)

    def acceptance(self, longest: int, gate: float = 0.0) -> Floats:
        """(chain, position): share of steps whose draft token was accepted, of the draft layers alone."""
        return accepted_at(self._ways[GATES.index(gate)], longest)

    def copied_acceptance(self, longest: int) -> Floats:
        """(chain, position): of n-gram drafts, over the steps that had one, with n-grams alone."""
        mixed = self._blend(self._copied[longest], self._plain)
        behind = stationary(mixed.end) * self._text.hit
        behind /= behind.sum(-1, keepdims=True)
        return np.stack([(behind * self._copied_reached[depth]).sum(-1) for depth in range(1, longest + 1)], axis=-1)

    def _mixed(self, point: Point) -> Step:
        other = self._plain
        if point.n_max is not None:
            other = self._drafted[point.n_max, point.p_min or 0.0]
        if point.ngram_max is None:
            return other
        copied = self._copied[point.ngram_max]
        both = self._blend(copied, other)
        late = self._rig.lookup + (self._text.hit * self._rig.catch_up if point.n_max is not None else 0.0)
        return Step(both.end, both.tokens, both.seconds + late)

    def _blend(self, copied: Step, other: Step) -> Step:
        hit = self._text.hit
        end = hit[..., None] * copied.end + (1 - hit)[..., None] * other.end
        tokens = hit * copied.tokens + (1 - hit) * other.tokens
        return Step(end, tokens, hit * copied.seconds + (1 - hit) * other.seconds)

    def _plain_step(self) -> Step:
        move = self._text.move
        ones = np.ones(move.shape[:-1])
        return Step(move, ones, ones * self._rig.step[1])

    def _drafted_steps(self) -> dict[tuple[int, float], Step]:
        steps = {}
        for gate, way in enumerate(self._ways):
            for longest in LENGTHS:
                seconds = self._drafted_seconds(longest, gate, way)
                tokens = np.sum(way.reached[: longest + 1], axis=0)
                steps[longest, GATES[gate]] = Step(way.ends[longest], tokens, seconds)
        return steps

    def _drafted_seconds(self, longest: int, gate: int, way: Way) -> Floats:
        depths = np.arange(longest)
        cost_stopped = self._rig.cost(depths, depths + 1, depths)
        all_of = np.array([longest])
        total = way.reached[longest] * self._rig.cost(all_of, all_of, all_of)
        for depth in range(longest):
            missed = way.missed[depth] * self._missed_cost(longest, depth, gate)
            total = total + way.stopped[depth] * cost_stopped[depth] + missed
        return np.asarray(total, dtype=np.float64)

    def _missed_cost(self, longest: int, depth: int, gate: int) -> float:
        """Mean cost of a step whose draft token at `depth` is wrong: how far the draft goes on depends on the gate."""
        going = float(self._text.wander[gate])
        further = np.arange(longest - depth)
        chance = going**further * np.where(further < longest - depth - 1, 1 - going, 1.0)
        drafted = depth + 1 + further
        computed = np.minimum(drafted + 1, longest)
        return float((chance * self._rig.cost(drafted, computed, np.full_like(drafted, depth))).sum())

    def _copied_steps(self) -> dict[int, Step]:
        text, rig = self._text, self._rig
        alive = np.broadcast_to(np.eye(STATES), text.move.shape)
        ended = np.zeros_like(text.move)
        self._copied_reached = [alive.sum(-1)]
        missed: list[Floats] = []
        steps = {}
        for depth in range(max(NGRAM_LENGTHS)):
            before = alive @ text.move
            wrong = before * (1 - text.same)[:, None, :]
            alive = before * text.same[:, None, :]
            ended = ended + wrong
            missed.append(wrong.sum(-1))
            self._copied_reached.append(alive.sum(-1))
            longest = depth + 1
            if longest in NGRAM_LENGTHS:
                accepted = np.arange(longest + 1)
                cost = rig.cost(np.full_like(accepted, longest), np.zeros_like(accepted), accepted)
                seconds = np.tensordot(cost[:longest], np.stack(missed), axes=1) + cost[longest] * alive.sum(-1)
                steps[longest] = Step(ended + alive @ text.move, np.sum(self._copied_reached, axis=0), seconds)
        return steps
