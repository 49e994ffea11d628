"""The search space: which points there are of chains of types. Lengths are spaced evenly in logarithms, as effects are.

A knob that is None is left to the engine's default; the point in force is always among the points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.speculation import spec_type
from specdash.tune.problem import Point

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
"""Longest drafts of a model."""
GATES = (0.0, 0.5, 0.75)
NGRAM_LENGTHS = (4, 8, 16, 32, 64)
NGRAM_LEAST = (None, 2)
"""Shortest drafts of ngram-mod, which keeps those of 48 tokens and more by default."""
NGRAM_SIZES = {"ngram-mod": (None, 12)}
"""Lengths of the n-gram that is looked up; the default of ngram-mod is 24, of the others 12."""
NGRAM_SIZES_ELSEWHERE = (None, 6)
BESIDE_A_MODEL = (16, 48, 64)
"""Lengths of n-gram drafts before a model that drafts where they find nothing."""


def points_of(chains: Iterable[Sequence[str]], start: Point, block: int | None = None) -> tuple[Point, ...]:
    """All points of these chains, the start first. `block`: the length of the blocks a block draft was trained on."""
    found = [start]
    for types in chains:
        found += _of_chain(tuple(types), block)
    return tuple(dict.fromkeys(found))


def _of_chain(types: tuple[str, ...], block: int | None) -> Iterator[Point]:
    models = [name for name in types if not name.startswith("ngram")]
    copies = [name for name in types if name.startswith("ngram")]
    if not types:
        yield Point()
    elif models and copies:
        for longest in _lengths(models[0], block):
            for gate in GATES:
                for copied in BESIDE_A_MODEL:
                    yield Point(types, n_max=longest, p_min=gate, ngram_max=copied)
    elif models:
        for longest in _lengths(models[0], block):
            for gate in GATES:
                yield Point(types, n_max=longest, p_min=gate)
    else:
        yield from _copying(types)


def _lengths(name: str, block: int | None) -> tuple[int, ...]:
    one = spec_type(name)
    longest = one.longest_draft(block) if one is not None else None
    return tuple(length for length in LENGTHS if longest is None or length <= longest)


def _copying(types: tuple[str, ...]) -> Iterator[Point]:
    one = spec_type(types[0])
    if one is None or one.max_parameter is None:
        yield Point(types)
        return
    for longest in NGRAM_LENGTHS:
        for least in NGRAM_LEAST if one.min_parameter is not None else (None,):
            for size in NGRAM_SIZES.get(one.name, NGRAM_SIZES_ELSEWHERE):
                if one.floor_parameter is None or size is None or size <= longest:
                    yield Point(types, ngram_max=longest, ngram_min=least, ngram_size=size)
