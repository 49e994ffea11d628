"""What boots that ran out of memory say of other points.

A model that drafts needs memory that grows with the draft length; copying from the text (the n-gram types) needs none
of the GPU's, and a gate none at all. So where one length does not fit, longer ones of the same draft do not either,
with whatever n-gram type beside it; and between it and the longest that fits the limit may lie anywhere.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from specdash.llama.start_failure_table import MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from specdash.tune.problem import Point

_NGRAM = "ngram"


def ran_out(failure: str) -> bool:
    """Whether a boot failed for want of memory: by what an engine says of it (`llama.start_failure_table`), by what is
    said of it before a start, or by a limit of ours. That the word occurs says nothing: functions are named so."""
    return bool(_SAYS_SO.search(failure))


def _as_pattern(sentence: str) -> str:
    return r"\S+".join(re.escape(part) for part in re.split(r"\{\w+\}", sentence))


_OTHER_FAULTS = ("gpu_error",)
_ROWS = [one for one in MEMORY if one.id not in _OTHER_FAULTS]
_SAYS_SO = re.compile(
    "|".join(
        (
            *(re.sub(r"\(\?P<\w+>", "(?:", pattern) for one in _ROWS for pattern in one.patterns),
            *(_as_pattern(one.because.removesuffix(" ({line})")) for one in _ROWS),
            r"out of memory|does not fit|of (?:GPU )?memory are (?:free|or become free|needed)",
        )
    ),
    re.IGNORECASE,
)


def outgrown(points: Sequence[Point], place: int) -> list[int]:
    """The points that need at least the memory of the one that did not fit, itself included."""
    one = points[place]
    drafted = _drafts(one)
    if drafted:
        return [at for at, point in enumerate(points) if _drafts(point) == drafted and _length(point) >= _length(one)]
    longest = one.ngram_max or 0
    return [at for at, point in enumerate(points) if point.types == one.types and (point.ngram_max or 0) >= longest]


def chance_to_fit(points: Sequence[Point], fitting: Iterable[int], failing: Iterable[int]) -> NDArray[np.float64]:
    """By point: the limit of each draft lies anywhere between the longest that fits and the shortest that does not."""
    lowest, highest = _longest(points, fitting), _shortest(points, failing)
    chances = np.ones(len(points))
    for at, point in enumerate(points):
        limit = highest.get(_drafts(point))
        if limit is not None:
            known = min(lowest.get(_drafts(point), 0), limit - 1)
            chances[at] = np.clip((limit - _length(point)) / (limit - known), 0.0, 1.0)
    return chances


def _longest(points: Sequence[Point], places: Iterable[int]) -> dict[tuple[str, ...], int]:
    found: dict[tuple[str, ...], int] = {}
    for at in places:
        key = _drafts(points[at])
        found[key] = max(found.get(key, 0), _length(points[at]))
    return found


def _shortest(points: Sequence[Point], places: Iterable[int]) -> dict[tuple[str, ...], int]:
    found: dict[tuple[str, ...], int] = {}
    for at in places:
        key = _drafts(points[at])
        if key:
            found[key] = min(found.get(key, _length(points[at])), _length(points[at]))
    return found


def _drafts(point: Point) -> tuple[str, ...]:
    return tuple(name for name in point.types if not name.startswith(_NGRAM))


def _length(point: Point) -> int:
    return point.n_max or 0
