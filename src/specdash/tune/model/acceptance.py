"""How much of a text a draft gets right, by class of prompts, from the counters of a few boots, for every point.

A draft token is right or wrong for the text, whatever the point: accepted runs are what replays. The tokens of a class
are easy, hard, or inside a span that copies; in each sort a step emits one token and the run of right drafts before it,
at most `n`, so that the sort's steps are its tokens over the tokens of a step. Truncating the counters of a deep draft
instead is wrong, since the positions of a step are a selection: a step begins where the one before failed. Drafts get
worse with depth. A gate (`p_min`) keeps a draft token by its probability, more often the right ones. N-gram drafts come
from spans that copy, and from matches that lead nowhere.

Fitted to the counters of all boots, with priors, by damped least squares. What it misses is left to the surrogate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from specdash.tune.model.problem import BootResult, Point, PromptResult

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int_]


# What one boot measured, as arrays: a row a prompt, and sums by class.


class BootTally:
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
        rows = [prompt for prompt in boot.prompts if prompt.kind in kinds and prompt.tokens > 0 and prompt.seconds > 0]
        self.point: Point = boot.point
        self.draft_s: float | None = boot.draft_s
        self.prompt: tuple[str, ...] = tuple(row.prompt for row in rows)
        self.kind: Ints = np.array([kinds.index(row.kind) for row in rows], dtype=np.int_)
        self.tokens: Floats = np.array([row.tokens for row in rows], dtype=np.float64)
        self.seconds: Floats = np.array([row.seconds for row in rows], dtype=np.float64)
        self.drafted: Floats = np.array([row.drafted for row in rows], dtype=np.float64)
        self.accepted: Floats = np.array([row.accepted for row in rows], dtype=np.float64)
        self.steps: Floats = np.array([_steps(row) for row in rows], dtype=np.float64)
        self.counted: bool = not boot.point.types or any(row.steps or row.drafted for row in rows)
        """Whether the engine counts its steps; else only speeds are known."""
        longest = max((len(row.accepted_per_position) for row in rows), default=0)
        self.positions: Floats = np.zeros((len(kinds), longest))
        for index, row in zip(self.kind, rows, strict=True):
            self.positions[index, : len(row.accepted_per_position)] += row.accepted_per_position

    def by_kind(self, values: Floats, kinds: int) -> Floats:
        """Sums of a column by class."""
        return np.bincount(self.kind, weights=values, minlength=kinds).astype(np.float64)


def _steps(prompt_result: PromptResult) -> float:
    """Verification steps. An engine that does not count them made one for every token that no draft gave."""
    return float(prompt_result.steps or max(prompt_result.tokens - prompt_result.accepted, 1))


CLIFF = 8
"""The largest batch that the small kernels take (CUDA's MMVQ_MAX_BATCH_SIZE)."""
LONGEST_MODELLED = 24
"""Draft positions of a model that are computed one by one; longer drafts are taken as this long."""
_EASY_SHARE, _EASY, _HARD, _SPANS, _COPIED, _MISLED, _SPANNED = range(7)
_KIND_PRIOR = np.array([0.0, 1.4, 0.0, -5.0, 2.0, -3.9, 2.0])
_KIND_SPREAD = np.array([1.2, 0.9, 0.9, 1.3, 1.2, 1.2, 0.8])
_FIRST, _SECOND = range(2)
_CONFIDENT, _DOUBT, _WIDTH, _BEYOND, _FADING = range(5)
_GATE_PRIOR = np.array([0.4, 1.3, -0.2, 0.0, -3.5])
_GATE_SPREAD = np.array([0.8, 0.7, 0.5, 0.7, 1.0])
_PROBED = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64])
"""Positions at which counters are compared."""
_MOST = 12.0


@dataclass(frozen=True, slots=True)
class Design:
    """Points as arrays, a row a point."""

    depth: Floats
    """Longest draft of the model; 0 where none drafts."""
    gate: Floats
    copy: Floats
    """Longest n-gram draft; 0 without one."""

    @classmethod
    def of(cls, points: Sequence[Point]) -> Design:
        """Of these points. A model's draft without a limit counts as the longest modelled."""
        model = [any(not kind.startswith("ngram") for kind in point.types) for point in points]
        depth = [float(point.n_max or LONGEST_MODELLED) if on else 0.0 for point, on in zip(points, model, strict=True)]
        gate = [float(point.p_min or 0.0) if on else 0.0 for point, on in zip(points, model, strict=True)]
        copies = [any(kind.startswith("ngram") for kind in point.types) for point in points]
        copy = [float(point.ngram_max or CLIFF) if on else 0.0 for point, on in zip(points, copies, strict=True)]
        return cls(np.minimum(depth, LONGEST_MODELLED), np.array(gate), np.array(copy))


@dataclass(frozen=True, slots=True)
class ExpectedCounts:
    """Per token of the text, (point, class) each."""

    steps: Floats
    """Verification steps of all sorts."""
    model: Floats
    """Of them those with a model's draft, or with none."""
    length: Floats
    """Mean length of a model's draft."""
    tried: Floats
    """Mean number of tokens that it computes: a gate drops one that it has computed."""
    long: Floats
    """Mean number of its tokens beyond the cliff."""
    cliff: Floats
    """Share of model steps beyond the cliff."""
    copies: Floats
    """Steps with an n-gram's draft."""
    drafted: Floats
    rejected: Floats
    """Steps in which a draft token was rejected."""
    at: Floats
    """(point, class, position of `_PROBED`): draft tokens accepted there."""


def expected(design: Design, kinds: Floats, gates: Floats) -> ExpectedCounts:
    """What these parameters, (class, 7) and of the gate, (5) or (class, 5), give for points."""
    gates = np.atleast_2d(gates)[:, :, None]
    share = _logistic(kinds[:, _EASY_SHARE])
    right = _logistic(kinds[:, [_EASY, _HARD, _SPANNED]])  # (class, sort)
    depth, gate = design.depth[:, None, None], design.gate[:, None, None]
    kept, fooled = _kept(right, gate, gates)
    garbage = np.where(gate > 0, _logistic(gates[:, _BEYOND] - 4 * (gate - 0.5)), 1.0)
    position = np.arange(1, int(max(design.depth.max(initial=1.0), 1)) + 1)
    reached = position <= depth[..., None]
    hazard = right[..., None] * np.exp(-np.exp(gates[:, _FADING])[..., None] * (position - 1))
    run = np.cumprod(hazard * kept[..., None], axis=-1)
    mix = _mix(design, kinds, share, right)
    each = mix / (1 + (run * reached).sum(axis=-1))  # (point, class, sort): steps per token
    model = each.sum(axis=2)
    weight = (each / model[:, :, None])[..., None]
    before = np.concatenate([np.ones_like(run[..., :1]), run[..., :-1]], axis=-1)
    wrong = before * (1 - hazard) * fooled[..., None]
    drawn = (weight * (run + _strayed(wrong, garbage)) * reached).sum(axis=2)
    length, long = drawn.sum(axis=2), drawn[:, :, CLIFF - 1 :].sum(axis=2)
    cliff = drawn[:, :, CLIFF - 1] if position.size >= CLIFF else np.zeros_like(length)
    full = np.take_along_axis(drawn, np.maximum(design.depth, 1).astype(np.int_)[:, None, None] - 1, axis=2)[..., 0]
    tried = np.where(design.gate[:, None] > 0, length + 1 - full, length)
    missed = (weight * wrong * reached).sum(axis=(2, 3))
    right_at = (weight * run * reached).sum(axis=2)
    accepted = np.zeros((*right_at.shape[:2], _PROBED.size))
    known = position.size >= _PROBED
    accepted[..., known] = right_at[..., _PROBED[known] - 1]
    return _with_copies(design, kinds, (model, length, tried, long, cliff, missed, accepted))


def _mix(design: Design, kinds: Floats, share: Floats, right: Floats) -> Floats:
    """(point, class, sort): shares of the tokens that a model drafts for; n-grams take the spans that copy."""
    easy, hard = share / (1 - right[:, _FIRST]), (1 - share) / (1 - right[:, _SECOND])
    spanned, _ = _spans(kinds)
    taken = np.where(design.copy[:, None] > 0, 0.0, spanned)
    rest = (1 - taken) / (easy + hard)
    return np.stack([rest * easy, rest * hard, taken], axis=2)


def _spans(kinds: Floats) -> tuple[Floats, Floats]:
    """Share of the tokens inside spans that copy, and the chance of such a span to go on."""
    copied = _logistic(kinds[:, _COPIED])
    return np.minimum(np.exp(kinds[:, _SPANS]) / (1 - copied), 0.95), copied


def _with_copies(design: Design, kinds: Floats, parts: tuple[Floats, ...]) -> ExpectedCounts:
    model, length, tried, long, cliff, missed, accepted = parts
    on = design.copy[:, None] > 0
    spanned, copied = _spans(kinds)
    spans = spanned * (1 - copied)
    misled = _logistic(kinds[:, _MISLED]) * on
    repeats = np.where(on, spans / (1 - copied ** (design.copy[:, None] + 1)), 0.0)
    rest = np.where(on, 1 - spanned, 1.0)
    others = rest * (1 - misled) / (misled + (1 - misled) / model)
    astray = misled / (1 - misled) * others
    copies = repeats + astray
    reach = copied[:, None] ** _PROBED * (design.copy[:, None, None] >= _PROBED)
    at = others[..., None] * accepted + repeats[..., None] * reach
    partly = astray + repeats * (1 - copied ** design.copy[:, None])
    return ExpectedCounts(
        steps=others + copies,
        model=others,
        length=length,
        tried=tried,
        long=long,
        cliff=cliff,
        copies=copies,
        drafted=others * length + copies * design.copy[:, None],
        rejected=others * missed + partly,
        at=at,
    )


def _kept(right: Floats, gate: Floats, gates: Floats) -> tuple[Floats, Floats]:
    """Share of right and of wrong draft tokens that a gate lets pass."""
    level = np.log(np.maximum(gate, 1e-9) / np.maximum(1 - gate, 1e-9))
    odds = np.log(right / (1 - right))
    width = np.exp(gates[:, _WIDTH])
    kept = _logistic((odds + gates[:, _CONFIDENT] + 0.5 - level) / width)
    fooled = _logistic((odds + gates[:, _CONFIDENT] + 0.5 - np.exp(gates[:, _DOUBT] - 0.5) - level) / width)
    open_ = gate <= 0
    return np.where(open_, 1.0, kept), np.where(open_, 1.0, fooled)


def _strayed(wrong: Floats, garbage: Floats) -> Floats:
    """Share of steps whose draft goes on at a position after a wrong token, or is at its first."""
    found = np.zeros_like(wrong)
    going = np.zeros_like(wrong[..., 0])
    for index in range(wrong.shape[-1]):
        going = going * garbage + wrong[..., index]
        found[..., index] = going
    return found


def _logistic(value: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(value, -30, 30))))


class AcceptanceCounts:
    """What the boots counted, and how far parameters are from it. One boot of a point is enough: texts repeat."""

    def __init__(self, tallies: Sequence[BootTally], kinds: int) -> None:
        self.design = Design.of([tally.point for tally in tallies])
        tokens = _stacked([tally.by_kind(tally.tokens, kinds) for tally in tallies], kinds)
        self._seen = tokens > 0
        tokens = np.maximum(tokens, 1.0)
        self._steps = _stacked([tally.by_kind(tally.steps, kinds) for tally in tallies], kinds) / tokens
        self._drafted = _stacked([tally.by_kind(tally.drafted, kinds) for tally in tallies], kinds) / tokens
        self._at = np.zeros((len(tallies), kinds, len(_PROBED)))
        self._told = np.zeros_like(self._at, dtype=bool)
        deepest = np.maximum(self.design.depth, self.design.copy)
        for row, tally in enumerate(tallies):
            reached = (tally.positions.shape[1] >= _PROBED) & (deepest[row] >= _PROBED)
            self._at[row][:, reached] = tally.positions[:, _PROBED[reached] - 1] / tokens[row][:, None]
            self._told[row] = reached[None, :] & self._seen[row][:, None]

    def misses(self, kinds: Floats, gates: Floats) -> Floats:
        """(class, residual), in standard deviations of what the model may be off by.

        Several times as many rows of `kinds` as there are classes are so many sets of parameters, one after the other.
        """
        sets = kinds.shape[0] // max(self._steps.shape[1], 1)
        seen, known = expected(self.design, kinds, gates), np.tile(self._seen, (1, sets))
        steps = np.log(np.tile(np.maximum(self._steps, 1e-6), (1, sets)) / seen.steps) / 0.015
        drafted = (np.tile(np.sqrt(self._drafted), (1, sets)) - np.sqrt(np.maximum(seen.drafted, 0))) / 0.05
        at = (np.tile(np.sqrt(self._at), (1, sets, 1)) - np.sqrt(np.maximum(seen.at, 0))) / 0.03
        told = np.tile(self._told, (1, sets, 1))
        parts = [np.where(known, steps, 0.0), np.where(known, drafted, 0.0), np.where(told, at, 0.0)]
        flat = [parts[0].T, parts[1].T, np.moveaxis(parts[2], 1, 0).reshape(kinds.shape[0], -1)]
        return np.concatenate(flat, axis=1)


def _stacked(rows: list[Floats], kinds: int) -> Floats:
    return np.stack(rows) if rows else np.zeros((0, kinds))


@dataclass(frozen=True, slots=True)
class Parameters:
    """Of the classes (class, 6), and of the gate, which is the drafter's and so the same in all classes."""

    kinds: Floats
    gates: Floats

    @classmethod
    def prior(cls, kinds: int) -> Parameters:
        """Before anything was measured."""
        return cls(np.tile(_KIND_PRIOR, (kinds, 1)), _GATE_PRIOR.copy())


def fit(counters: AcceptanceCounts, start: Parameters, rounds: int = 6) -> Parameters:
    """The most probable parameters, by damped Gauss-Newton steps from `start`."""
    kinds, gates = start.kinds.copy(), start.gates.copy()
    damping, (misses, cost) = 0.1, _cost(counters, kinds, gates)
    for _ in range(rounds):
        move_kinds, move_gates = _step(counters, kinds, gates, misses, damping)
        there = kinds + move_kinds, gates + move_gates
        misses_there, cost_there = _cost(counters, *there)
        if cost_there < cost:
            done = cost - cost_there < 1e-3 * cost
            (kinds, gates), misses, cost, damping = there, misses_there, cost_there, damping * 0.2
            if done:
                break
        else:
            damping *= 8
    return Parameters(kinds, gates)


def _cost(counters: AcceptanceCounts, kinds: Floats, gates: Floats) -> tuple[Floats, float]:
    misses = counters.misses(kinds, gates)
    prior = ((kinds - _KIND_PRIOR) / _KIND_SPREAD).ravel(), (gates - _GATE_PRIOR) / _GATE_SPREAD
    return misses, float((misses**2).sum() + sum((part**2).sum() for part in prior))


def _slopes(counters: AcceptanceCounts, kinds: Floats, gates: Floats, misses: Floats) -> Floats:
    """(class, residual, parameter), the gate's behind a class's own; all moves in one call."""
    (count, own), small = kinds.shape, 1e-4
    moves = own + gates.size
    moved, shifted = np.tile(kinds, (moves, 1, 1)), np.tile(gates, (moves, count, 1))
    for index in range(own):
        moved[index, :, index] += small
    for index in range(gates.size):
        shifted[own + index, :, index] += small
    there = counters.misses(moved.reshape(-1, own), shifted.reshape(-1, gates.size))
    return np.asarray(np.moveaxis((there.reshape(moves, count, -1) - misses) / small, 0, -1))


def _step(
    counters: AcceptanceCounts, kinds: Floats, gates: Floats, misses: Floats, damping: float
) -> tuple[Floats, Floats]:
    """One damped step. A parameter of one class moves that class's residuals alone: all classes are tried at once."""
    count, own = kinds.shape
    slopes = _slopes(counters, kinds, gates, misses)
    by_own, by_gate = slopes[..., :own], slopes[..., own:]
    size = count * own + gates.size
    matrix, target = np.zeros((size, size)), np.zeros(size)
    for kind in range(count):
        place = slice(kind * own, (kind + 1) * own)
        matrix[place, place] = by_own[kind].T @ by_own[kind]
        matrix[place, count * own :] = by_own[kind].T @ by_gate[kind]
        matrix[count * own :, place] = matrix[place, count * own :].T
        matrix[count * own :, count * own :] += by_gate[kind].T @ by_gate[kind]
        target[place] = -by_own[kind].T @ misses[kind]
        target[count * own :] -= by_gate[kind].T @ misses[kind]
    precision = np.concatenate([np.tile(_KIND_SPREAD, count), _GATE_SPREAD]) ** -2.0
    away = np.concatenate([(kinds - _KIND_PRIOR).ravel(), gates - _GATE_PRIOR])
    diagonal = np.diag(matrix).copy() + precision
    matrix[np.diag_indices(size)] += precision + damping * diagonal
    move = np.clip(np.linalg.solve(matrix, target - precision * away), -_MOST / 8, _MOST / 8)
    return move[: count * own].reshape(kinds.shape), move[count * own :]
