"""Model files: their headers, read once for every state of a file, and what is to be said of the model itself.

A large vocabulary takes a tenth of a second to read, and a check runs at every keystroke in the dashboard.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from specdash.llama.gguf import GgufFacts, join_parts, read_one_file
from specdash.llama.model_facts import ModelFacts, describe
from specdash.llama.tuning import Tuning
from specdash.llama.vocabulary import misfit

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from specdash.control.preflight.context import Findings
    from specdash.control.preflight.subject import Subject

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
_DESCRIBED: _Cache[ModelFacts] = _Cache()


def check(subject: Subject, out: Findings) -> None:
    """Add what is to be said of the model itself."""
    if subject.model is None:
        return
    found = cached_description(subject.model)
    key, named = subject.source("model"), subject.named("model")
    for remark in found.remarks:
        out.warning("model", f"{named}: {remark}", key=key)
    if found.tuning is Tuning.BASE and _chats(subject):
        said = (
            f"{named}: a base model ({found.tuning_reasons[0]}) goes on with a text and does not answer: chats run on"
        )
        out.warning("base-model", said, key=key, fix="use the instruct model of its family")


def _chats(subject: Subject) -> bool:
    """Whether chats are what the server is for: a proxy is beside it, or somebody chose a chat template."""
    templates = ("chat-template", "chat-template-file")
    return subject.context.other is not None or any(subject.settings.text(name) is not None for name in templates)


def cached_description(facts: GgufFacts) -> ModelFacts:
    """`llama.model_facts.describe` of one model, made once."""
    state = _state(facts.path)
    return describe(facts) if state is None else _DESCRIBED.get(state, lambda: describe(facts))


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
