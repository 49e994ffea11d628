"""What is generated: how easily each token is drafted, as a hidden Markov chain with copies of earlier text in it.

A token is hard, plain or easy for the draft layers, or lies in a copy of something earlier, at whose onset a lookup
does not find it yet. The next token's state depends on this one's, so a step begins more often than not behind
something hard: acceptance by position shows selection by itself. A class has three levels of difficulty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.tuner_lab.grid import DEEPEST, GATES, KINDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

HARD, PLAIN, EASY, ONSET, COPY, LONG = range(6)
STATES = 6
LEVELS = (0.25, 0.5, 0.25)
"""How often a prompt is easier, like, and harder than its class."""
SHARED_LEVELS = (0, 1, 1, 2)
"""Prompts of a class with exactly these shares."""


@dataclass(frozen=True, slots=True)
class Text:
    """Probabilities by chain (class times level, classes first) and state. No state is ever left for good."""

    move: Floats
    """(chain, state, state): of the next token's state."""
    right: Floats
    """(chain, state): that the draft layers' first token is the target's."""
    fade: Floats
    """(depth): what is left of `right` at each depth of a draft."""
    keep_right: Floats
    """(gate, state): that a right draft token is confident enough."""
    keep_wrong: Floats
    """(gate, state): the same of a wrong one, the first wrong one of a draft."""
    wander: Floats
    """(gate): the same of each token after it, when the draft is on a way of its own."""
    hit: Floats
    """(chain, state of the last token): that the lookup finds something."""
    same: Floats
    """(chain, state): that what it found goes on as the text does."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """From where a class is drawn: hard and easy tokens as shares of those outside copies; copies, and long ones."""

    hard: tuple[float, float]
    easy: tuple[float, float]
    copied: tuple[float, float]
    long: tuple[float, float]


_KINDS = {
    "coding": _Kind((0.06, 0.30), (0.35, 0.70), (0.02, 0.20), (0.1, 0.5)),
    "pattern": _Kind((0.02, 0.15), (0.55, 0.85), (0.15, 0.70), (0.4, 0.9)),
    "prose": _Kind((0.25, 0.60), (0.10, 0.35), (0.00, 0.04), (0.0, 0.2)),
    "agentic": _Kind((0.10, 0.40), (0.30, 0.60), (0.04, 0.40), (0.2, 0.8)),
}
_FADES = (((0.97, 1.0), 0.6), ((0.88, 0.97), 0.28), ((0.6, 0.88), 0.12))
_SHARP = (  # gate, state: right tokens kept by the best gate; then wrong ones
    ((0.85, 0.96, 0.995, 0.96, 0.99, 0.995), (0.65, 0.9, 0.985, 0.9, 0.97, 0.99)),
    ((0.15, 0.25, 0.4, 0.3, 0.4, 0.4), (0.04, 0.08, 0.2, 0.1, 0.2, 0.2)),
)
_BLUNT = (
    ((0.55, 0.75, 0.93, 0.8, 0.9, 0.93), (0.25, 0.45, 0.75, 0.5, 0.7, 0.8)),
    ((0.45, 0.6, 0.75, 0.6, 0.7, 0.7), (0.2, 0.3, 0.5, 0.35, 0.45, 0.5)),
)


def draw(random: np.random.Generator) -> Text:
    """The drafter, the classes and their levels."""
    bounds = _FADES[random.choice(len(_FADES), p=[share for _, share in _FADES])][0]
    skill = random.normal(0.35, 0.6)
    bluntness = random.random()
    copies = random.choice((0.03, 0.3, 1.0, 1.3))
    kinds = [_draw_kind(random, _KINDS[kind], skill, copies) for kind in KINDS]
    move, right, hit, same = (np.concatenate([kind[part] for kind in kinds]) for part in range(4))
    sharp, blunt = np.array(_SHARP), np.array(_BLUNT)
    kept = np.ones((2, len(GATES), STATES))
    kept[:, 1:] = (1 - bluntness) * sharp + bluntness * blunt
    wander = np.array([1.0, random.uniform(0.4, 0.85), 0.0])
    wander[2] = wander[1] * random.uniform(0.5, 0.9)
    fade: Floats = np.asarray(random.uniform(*bounds) ** np.arange(DEEPEST), np.float64)
    return Text(move, right, fade, kept[0], kept[1], wander, hit, same)


def _draw_kind(random: np.random.Generator, kind: _Kind, skill: float, copies: float) -> tuple[Floats, ...]:
    hard, easy = random.uniform(*kind.hard), random.uniform(*kind.easy)
    copied = min(random.uniform(*kind.copied) * copies, 0.75)
    long = random.uniform(*kind.long)
    sticky = random.uniform(0.2, 0.85)
    onset, short_run, long_run = random.uniform(4, 24), random.uniform(8, 30), random.uniform(50, 200)
    low = (0.10, 0.50, 0.88, 0.60, 0.80, 0.85)
    high = (0.50, 0.80, 0.985, 0.95, 0.985, 0.99)
    base = logit(random.uniform(low, high)) + skill + random.normal(0.0, 0.2)
    spread = random.uniform(0.1, 0.45)
    found = np.array((0, 0, 0, random.uniform(0.05, 0.3), 0.97, 0.985))
    found[:3] = np.exp(random.uniform(np.log(0.005), np.log(0.12)))
    goes_on = random.uniform((0.02, 0.1, 0.3, 0.75, 0.93, 0.985), (0.15, 0.3, 0.6, 0.98, 0.995, 0.999))
    moves, rights = [], []
    for level in (-1.0, 0.0, 1.0):
        harder = float(expit(logit(hard) + level * spread))
        share = copied * np.exp(-0.5 * level * spread)
        moves.append(chain(harder, easy * (1 - harder) / (1 - hard), sticky, share, long, onset, short_run, long_run))
        rights.append(expit(base - level * spread))
    many = (len(LEVELS), 1)
    return np.stack(moves), np.stack(rights), np.tile(found, many), np.tile(goes_on, many)


def chain(
    hard: float,
    easy: float,
    sticky: float,
    copied: float,
    long: float,
    onset: float = 12.0,
    short_run: float = 16.0,
    long_run: float = 100.0,
) -> Floats:
    """How states follow each other. Shares are of tokens; `sticky` is kept from token to token outside copies."""
    plain = max(1.0 - hard - easy, 0.02)
    outside = np.array((hard, plain, easy)) / (hard + plain + easy)
    lost = 0.02
    arming = 1.0 / onset
    length = 1 / (arming + lost) + arming / (arming + lost) * ((1 - long) * short_run + long * long_run)
    enter = min(copied / (1 - copied) / length, 0.5)
    move = np.zeros((STATES, STATES))
    for state in (HARD, PLAIN, EASY):
        move[state, :3] = (1 - enter) * (1 - sticky) * outside
        move[state, state] += (1 - enter) * sticky
        move[state, ONSET] = enter
    move[ONSET, :3] = lost * outside
    move[ONSET, COPY], move[ONSET, LONG] = arming * (1 - long), arming * long
    move[ONSET, ONSET] = 1 - lost - arming
    for state, run in ((COPY, short_run), (LONG, long_run)):
        move[state, :3] = outside / run
        move[state, state] = 1 - 1 / run
    return move


def stationary(move: Floats) -> Floats:
    """The share of each state in the long run, of every matrix of the stack."""
    size = move.shape[-1]
    system = np.swapaxes(move, -1, -2) - np.eye(size)
    system[..., -1, :] = 1.0
    wanted = np.zeros((*move.shape[:-2], size, 1))
    wanted[..., -1, 0] = 1.0
    return np.asarray(np.linalg.solve(system, wanted)[..., 0], np.float64)


def logit(share: Floats | float) -> Floats:
    """Of a probability inside 0..1."""
    return np.asarray(np.log(share) - np.log1p(-np.asarray(share)), np.float64)


def expit(value: Floats | float) -> Floats:
    """The probability of a logit."""
    return np.asarray(1.0 / (1.0 + np.exp(-np.asarray(value))), np.float64)
