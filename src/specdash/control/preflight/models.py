"""Headers of model files, read once for every state of a file: a large vocabulary takes a tenth of a second."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from specdash.llama.gguf import GgufFacts, join_parts, read_one_file
from specdash.llama.vocabulary import misfit

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

Result = TypeVar("Result")
_KEPT = 32
_State = tuple[str, int, int, int]


class _Cache(Generic[Result]):
    """The last results, by what they depend on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: dict[Hashable, Result] = {}

    def get(self, key: Hashable, make: Callable[[], Result]) -> Result:
        with self._lock:
            if key in self._results:
                return self._results[key]
        made = make()
        with self._lock:
            self._results[key] = made
            while len(self._results) > _KEPT:
                self._results.pop(next(iter(self._results)))
        return made


_FACTS: _Cache[GgufFacts] = _Cache()
_MISFITS: _Cache[str | None] = _Cache()


def cached_facts(path: str) -> GgufFacts:
    """The facts of a model file, with the tensors of all its parts. Raises `GgufError`."""
    return join_parts(_one_file(path), _one_file)


def _one_file(path: str) -> GgufFacts:
    state = _state(path)
    return read_one_file(path) if state is None else _FACTS.get(state, lambda: read_one_file(path))


def cached_misfit(target: GgufFacts, draft: GgufFacts) -> str | None:
    """`llama.vocabulary.misfit`, compared once. Raises `OSError` when a file went away."""
    states = _state(target.path), _state(draft.path)
    return _MISFITS.get(states, lambda: misfit(target, draft))


def _state(path: str) -> _State | None:
    try:
        stat = Path(path).stat()
    except (OSError, ValueError):
        return None
    return path, stat.st_mtime_ns, stat.st_size, stat.st_ino
