"""What must be counted when the kit's models speculate: worked out where the models are written, read where they run.

The successor tables of a target and its draft say every draft token and which of them are accepted
(`tests/support/known_truth.py`), but that needs the libraries that write models. So packing writes `counts.json` beside
the models, and the check reads it. Widening a model changes nothing of it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from support.known_truth import Counts

ALONE, TOGETHER = 2, 4
"""Requests that are asked one after the other, and at once, each in a slot of its own."""


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt as token ids, and what its answer must be counted as. `at_position`: accepted tokens of each place."""

    prompt: tuple[int, ...]
    drafted: int
    accepted: int
    steps: int
    at_position: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One way to speculate on one target. `types` is the chain as LLAMA_SPEC_TYPE has it, `longest` the draft length of
    types that draft with a model, None where none does."""

    name: str
    types: str
    target: str
    draft: str | None
    longest: int | None
    tokens: int
    rollback: str
    widened: bool
    """Whether the target has the size of the check; else it is as small as it is written."""
    unified: bool
    """All slots in one KV cache: other batches than with a cache each."""
    alone: tuple[Request, ...]
    together: tuple[Request, ...]


_PAIRS = (
    ("draft-simple", "draft-simple", "plain", "small", "automaton", "automaton-draft-most"),
    ("draft-mtp", "draft-mtp", "heads", None, "mtp", None),
    ("ngram-mod", "ngram-mod", "plain", None, "automaton", None),
    ("draft-eagle3", "draft-eagle3", "plain", "eagle3", "eagle3-target", "eagle3"),
    ("draft-dflash", "draft-dflash", "plain", "dflash", "dflash-target", "dflash"),
    ("draft-simple with replays", "draft-simple", "recurrent", "small", "mamba", "automaton-draft-most"),
    ("draft-simple, unified cache", "draft-simple", "plain", "small", "automaton", "automaton-draft-most"),
    ("a chain", "ngram-simple,draft-simple", "plain", "small", "automaton", "automaton-draft-most"),
    ("draft-dspark", "draft-dspark", "plain", "dspark", "automaton", "dspark"),
    ("ngram-simple", "ngram-simple", "plain", None, "automaton", None),
    ("ngram-map-k", "ngram-map-k", "plain", None, "automaton", None),
    ("ngram-map-k4v", "ngram-map-k4v", "plain", None, "automaton", None),
    ("ngram-cache", "ngram-cache", "plain", None, "automaton", None),
    ("draft-simple, all right", "draft-simple", "plain", "right", "automaton", "automaton-draft-all"),
    ("draft-simple, all wrong", "draft-simple", "plain", "wrong", "automaton", "automaton-draft-none"),
)
"""Name, chain, the models of `tests/support/matrix.py` that say what is drafted, and the kit's models of that kind.
What matters most comes first."""
_SMALL = ("mamba", "dspark")
"""A model without feed-forward layers, and a draft for a target as wide as it is."""


def write_counts(directory: Path) -> None:
    """Write `counts.json` beside the models. Needs the tests' support modules, numpy and gguf."""
    cases = [asdict(_case(*pair)) for pair in _PAIRS]
    (directory / "counts.json").write_text(json.dumps(cases, separators=(",", ":")) + "\n", encoding="utf-8")


def read_counts(directory: Path) -> list[Case]:
    """What was written. Raises OSError where nothing was."""
    return [
        Case(**{**case, **{ask: tuple(_request(entry) for entry in case[ask]) for ask in ("alone", "together")}})
        for case in json.loads((directory / "counts.json").read_text(encoding="utf-8"))
    ]


def _request(kept: dict[str, Any]) -> Request:
    return Request(**{**kept, **{key: tuple(kept[key]) for key in ("prompt", "at_position")}})


def _positions(known: Counts) -> tuple[int, ...]:
    return tuple(known.per_position(max(known.at_position, default=-1) + 1))


def _case(name: str, types: str, kind: str, drafter: str | None, target: str, draft: str | None) -> Case:
    from specdash.core.speculation import parse_chain
    from support import matrix

    small = matrix.DRAFTS["small"]
    drafts = {**matrix.DRAFTS, "right": replace(small, wrong_every=0), "wrong": replace(small, wrong_every=1)}
    cell = matrix.Cell(matrix.TARGETS[kind], drafts[drafter] if drafter else None, parse_chain(types, "counts"))
    requests = [
        Request(tuple(prompt), known.drafted, known.accepted, known.steps, _positions(known))
        for prompt, known in zip(cell.prompts(ALONE + TOGETHER), cell.known(count=ALONE + TOGETHER), strict=True)
    ]
    return Case(
        name=name,
        types=types,
        target=target,
        draft=draft,
        longest=matrix.LONGEST if cell.drafts_with_model else None,
        tokens=cell.tokens,
        rollback=str(cell.rollback),
        widened=target not in _SMALL and draft not in _SMALL,
        unified="unified" in name,
        alone=tuple(requests[:ALONE]),
        together=tuple(requests[ALONE:]),
    )
