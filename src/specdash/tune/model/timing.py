"""What steps cost and how lucky boots were: a Gaussian system in the logarithms of costs, residuals and luck."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from specdash.system.data import dataclass
from specdash.tune.model.acceptance import CLIFF, Design, ExpectedCounts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from specdash.tune.model.acceptance import BootTally
    from specdash.tune.model.model import Field

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int_]


# What a step costs: a line in the tokens verified and drafted, with a cliff beyond the batch that small kernels take.
#
# Seconds are a sum of parts; each part is its amount times a cost that no machine has negative, so that what is
# learned is the logarithm of every cost. Amounts are known of what was booted (counters are exact), and expected of
# the rest.

STEP, VERIFY, BEYOND, JUMP, DRAFT, CALL, REPLAY = range(7)
"""Parts: a step; a token verified up to the cliff; one beyond it; a batch beyond the cliff; a token that a model
drafts; a draft of it; a step in which a draft token was rejected."""
PARTS = 7
PRIOR = np.log(np.array([1.0, 0.15, 0.06, 0.12, 0.07, 0.03, 0.01]))
"""In steps of one token."""
SPREAD = np.array([2.0, 1.0, 1.1, 1.3, 0.8, 1.0, 1.5])
DRAFTING = np.array([DRAFT, CALL])


def expected_amounts(design: Design, text: ExpectedCounts) -> Floats:
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


def counted_amounts(tally: BootTally, design: Design, row: int, text: ExpectedCounts) -> Floats:
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


_ROUNDS = 6
_FARTHEST = 1.5
"""By how much a logarithm may move in one round."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The system, solved. A row is a class of a boot, or a boot's draft time."""

    costs: Floats
    """By part, in seconds."""
    noise: float
    """From boot to boot."""
    machine: float
    luck: Floats
    """Of every boot: how much slower it was than the point is."""
    shares: Floats
    """(row, part): share of a row's time in every part."""
    place: Ints
    """The point of every row; -1 for a row of draft time, which the machine's residual does not touch."""
    kind: Ints
    inverse: Floats
    target: Floats
    unsure: Floats
    """Prior standard deviation of the logarithm of costs."""
    blind: bool
    """Nothing counts steps: the text is known by speeds alone."""


@dataclass(slots=True)
class _Rows:
    shares: Floats
    target: Floats
    noise: Floats
    boot: Ints
    place: Ints
    kind: Ints


def solve(field: Field, tallies: Sequence[BootTally], places: Ints, counted: Sequence[Floats]) -> Timing:
    """From the boots, and the amounts that were counted in each, (prompt, part)."""
    unit = float(np.median(np.concatenate([tally.seconds / tally.steps for tally in tallies])))
    prior = np.log(unit / 1.5) + PRIOR
    blind = not any(tally.counted and tally.point.types for tally in tallies) and any(
        tally.point.types for tally in tallies
    )
    level, luck = prior.copy(), np.zeros(len(tallies))
    prompts = _Prompts.of(field, tallies, counted)
    noise, machine = field.doubts.usual_boot, field.doubts.machine[1]
    for turn in range(_ROUNDS):
        rows = _rows(field, tallies, places, prompts, level)
        rows.target += rows.shares @ (level - prior)
        if turn == _ROUNDS // 2:
            noise, machine = _likeliest(field, rows, blind)
        each = noise * (np.asarray(np.sqrt((field.doubts.tails + (luck / noise) ** 2) / (field.doubts.tails + 1))))
        inverse = np.linalg.inv(_kernel(field, rows, machine, blind) + _luck(rows, each))
        inner = inverse @ rows.target
        moved = prior + SPREAD**2 * (rows.shares.T @ inner) - level
        level = level + np.clip(moved, -_FARTHEST, _FARTHEST)
        luck = np.bincount(rows.boot, weights=inner, minlength=len(tallies)) * each**2
    return Timing(
        np.exp(level),
        noise,
        machine,
        luck,
        rows.shares,
        rows.place,
        rows.kind,
        np.asarray(inverse, dtype=np.float64),
        rows.target,
        SPREAD,
        blind,
    )


def residual(field: Field, system: Timing) -> Floats:
    """(point, class): what the boots say that the physics does not."""
    own = system.place >= 0
    inner = system.inverse[own] @ system.target
    found = system.machine**2 * field.by_machine[:, system.place[own]] @ inner
    each = np.repeat(found[:, None], len(field.kinds), axis=1)
    if system.blind:
        shared = field.doubts.shared
        for kind in range(len(field.kinds)):
            weight = shared + (1 - shared) * (system.kind[own] == kind)
            each[:, kind] += field.by_sight[:, system.place[own]] @ (weight * inner)
    return each


def observed(field: Field, tallies: Sequence[BootTally], counted: Sequence[Floats], each: Floats) -> Floats:
    """(boot, class): logarithm of seconds per token without outliers among the prompts; nan where there were none."""
    found = np.full((len(tallies), len(field.kinds)), np.nan)
    prompts = _Prompts.of(field, tallies, counted)
    middle, _, sums = prompts.judged(each, field.doubts.prompt)
    found[prompts.boot, prompts.kind] = middle + np.log(sums.sum(axis=1) / prompts.sums(prompts.tokens))
    return found


@dataclass(frozen=True, slots=True)
class _Prompts:
    """All prompts of all boots, in groups of one class of one boot."""

    amounts: Floats
    """(prompt, part), of the whole prompt."""
    tokens: Floats
    seconds: Floats
    group: Ints
    """The group of every prompt, ascending."""
    boot: Ints
    """Of every group."""
    kind: Ints
    column: Ints
    """The place of every prompt in its group."""

    @classmethod
    def of(cls, field: Field, tallies: Sequence[BootTally], counted: Sequence[Floats]) -> _Prompts:
        tokens = np.concatenate([tally.tokens for tally in tallies])
        kinds = len(field.kinds)
        codes = np.concatenate([row * kinds + tally.kind for row, tally in enumerate(tallies)])
        order = np.argsort(codes, kind="stable")
        groups, first, group = np.unique(codes[order], return_index=True, return_inverse=True)
        amounts = np.concatenate(list(counted))[order] * tokens[order][:, None]
        seconds = np.concatenate([tally.seconds for tally in tallies])[order]
        column = np.arange(order.size) - first[group]
        return cls(amounts, tokens[order], seconds, group, groups // kinds, groups % kinds, column)

    def sums(self, values: Floats) -> Floats:
        """Of a column, by group."""
        return np.bincount(self.group, weights=values, minlength=self.boot.size).astype(np.float64)

    def judged(self, each: Floats, least: float) -> tuple[Floats, Floats, Floats]:
        """By group: the robust mean of what the costs miss, its standard error, and the seconds of every part."""
        parts = self.amounts * each
        ratio = np.log(self.seconds / parts.sum(axis=1))
        table = np.full((self.boot.size, int(self.column.max()) + 1), np.nan)
        table[self.group, self.column] = ratio
        middle, sure = _middle(table, least)
        sums = np.stack([self.sums(parts[:, part]) for part in range(parts.shape[1])], axis=1)
        return middle, sure, sums


def _rows(field: Field, tallies: Sequence[BootTally], places: Ints, prompts: _Prompts, level: Floats) -> _Rows:
    doubts = field.doubts
    middle, sure, sums = prompts.judged(np.exp(level), doubts.prompt)
    split = doubts.split * field.mixed[places]
    drafting = np.stack([np.bincount(prompts.boot, sums[:, part], len(tallies)) for part in DRAFTING], axis=1)
    told = np.array([float(tally.draft_s or 0.0) for tally in tallies])
    timed = np.flatnonzero((told > 0) & (drafting.sum(axis=1) > 0))
    shares = np.zeros((timed.size, PARTS))
    whole = drafting[timed].sum(axis=1)
    shares[:, DRAFTING] = drafting[timed] / whole[:, None]
    nowhere = np.full(timed.size, -1)
    return _Rows(
        np.concatenate([sums / sums.sum(axis=1, keepdims=True), shares]),
        np.concatenate([middle, np.log(told[timed] / whole)]),
        np.concatenate([np.hypot(sure, split[prompts.boot]), np.hypot(doubts.timed, split[timed])]),
        np.concatenate([prompts.boot, timed]),
        np.concatenate([places[prompts.boot], nowhere]),
        np.concatenate([prompts.kind, nowhere]),
    )


def _middle(table: Floats, least: float) -> tuple[Floats, Floats]:
    """By row, a mean that outliers do not move, and its standard error; nan is no value."""
    seen = ~np.isnan(table)
    count = seen.sum(axis=1)
    middle = _median(table, count)
    scale = np.maximum(1.4826 * _median(np.abs(table - middle[:, None]), count), least)
    values = np.where(seen, table, 0.0)
    for _ in range(3):
        weight = np.maximum(1 - ((values - middle[:, None]) / (4.7 * scale[:, None])) ** 2, 0.0) ** 2 * seen
        total = weight.sum(axis=1)
        middle = np.where(total > 0, (weight * values).sum(axis=1) / np.maximum(total, 1e-12), middle)
    return middle, np.hypot(least / 2, scale / np.sqrt(np.maximum(count, 1)))


def _median(table: Floats, count: Ints) -> Floats:
    ordered, row = np.sort(table, axis=1), np.arange(table.shape[0])
    return np.asarray((ordered[row, (count - 1) // 2] + ordered[row, count // 2]) / 2)


def _kernel(field: Field, rows: _Rows, machine: float, blind: bool) -> Floats:
    matrix = (rows.shares * SPREAD**2) @ rows.shares.T
    own = np.flatnonzero(rows.place >= 0)
    place, kind = rows.place[own], rows.kind[own]
    added = machine**2 * field.by_machine[np.ix_(place, place)]
    if blind:
        alike = field.doubts.shared + (1 - field.doubts.shared) * (kind[:, None] == kind[None, :])
        added = added + field.by_sight[np.ix_(place, place)] * alike
    matrix[np.ix_(own, own)] += added
    return np.asarray(matrix)


def _luck(rows: _Rows, noise: Floats) -> Floats:
    same = rows.boot[:, None] == rows.boot[None, :]
    return np.asarray(same * noise[rows.boot] ** 2 + np.diag(rows.noise**2))


def _likeliest(field: Field, rows: _Rows, blind: bool) -> tuple[float, float]:
    """Noise from boot to boot and the machine's residual, by marginal likelihood."""
    doubts = field.doubts
    best = (-np.inf, doubts.usual_boot, doubts.machine[0])
    count = int(rows.boot.max()) + 1
    for machine in doubts.machine:
        kernel = _kernel(field, rows, machine, blind)
        for noise in doubts.boots:
            factor = np.linalg.cholesky(kernel + _luck(rows, np.full(count, noise)))
            white = np.linalg.solve(factor, rows.target)
            fit = -0.5 * float(white @ white) - float(np.log(np.diag(factor)).sum())
            fit -= 0.5 * (np.log(noise / doubts.usual_boot) / doubts.boot_spread) ** 2
            if fit > best[0]:
                best = (fit, noise, machine)
    return best[1], best[2]
