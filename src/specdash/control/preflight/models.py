"""Headers of model files, read once for every state of a file: a large vocabulary takes a tenth of a second."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from specdash.llama.gguf import GgufError, GgufFacts, read_facts, split_paths
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
    facts = _one_file(path)
    others = [_one_file(str(part)) for part in split_paths(facts)]
    if not others:
        return facts
    return replace(facts, tensors=(*facts.tensors, *(tensor for one in others for tensor in one.tensors)))


def _one_file(path: str) -> GgufFacts:
    state = _state(path)
    return _read(path) if state is None else _FACTS.get(state, lambda: _read(path))


def cached_misfit(target: GgufFacts, draft: GgufFacts) -> str | None:
    """`llama.vocabulary.misfit`, compared once. Raises `OSError` when a file went away."""
    states = _state(target.path), _state(draft.path)
    return _MISFITS.get(states, lambda: misfit(target, draft))


def _read(path: str) -> GgufFacts:
    try:
        return read_facts(path)
    except ValueError as error:
        raise GgufError(f"model {path!r}: no such file ({error})") from None


def _state(path: str) -> _State | None:
    try:
        stat = Path(path).stat()
    except (OSError, ValueError):
        return None
    return path, stat.st_mtime_ns, stat.st_size, stat.st_ino
