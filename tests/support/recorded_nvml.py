"""Plays the answers of a real driver as the module `pynvml` gives them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pynvml

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class NotRecordedError(LookupError):
    """The driver was not asked that when it was recorded."""


@dataclass(frozen=True, slots=True)
class RecordedHandle:
    """A pointer of the driver's, by the order in which they were seen."""

    handle: int


class RecordedNvml:
    """One phase of a record. Each question gets its answers in their order, and the last one for ever."""

    def __init__(self, record: Mapping[str, Any], phase: str) -> None:
        self.processes: Mapping[str, int] = record["processes"]
        self._answers: dict[str, list[Mapping[str, Any]]] = {}
        for call in record["phases"][phase]:
            key = _key(call["function"], call["arguments"], call["options"])
            self._answers.setdefault(key, []).append(call)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or not callable(getattr(pynvml, name)):
            return getattr(pynvml, name)

        def call(*arguments: Any, **options: Any) -> Any:
            key = _key(
                name,
                [_plain(argument) for argument in arguments],
                {key: _plain(option) for key, option in options.items()},
            )
            answers = self._answers.get(key)
            if not answers:
                raise NotRecordedError(f"no answer was recorded to {key}")
            said = answers.pop(0) if len(answers) > 1 else answers[0]
            if said.get("error") == "NVMLLibraryMismatchError":
                raise pynvml.NVMLLibraryMismatchError(said["error"])
            if "error" in said:
                raise pynvml.NVMLError(said["error"])
            return _value(said["answer"])

        return call


def phases(file: Path) -> list[str]:
    """What the machine was doing in the parts of a record."""
    return list(json.loads(file.read_text(encoding="utf-8"))["phases"])


def play(file: Path, phase: str) -> RecordedNvml:
    """A phase of a record in a file."""
    return RecordedNvml(json.loads(file.read_text(encoding="utf-8")), phase)


def _key(function: str, arguments: list[Any], options: Mapping[str, Any]) -> str:
    return json.dumps([function, arguments, options], sort_keys=True)


def _plain(argument: Any) -> Any:
    return {"handle": argument.handle} if isinstance(argument, RecordedHandle) else argument


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_value(entry) for entry in plain]
    if not isinstance(plain, dict):
        return plain
    if "structure" in plain:
        return SimpleNamespace(**{name: _value(entry) for name, entry in plain["fields"].items()})
    if "handle" in plain:
        return RecordedHandle(plain["handle"])
    if "tuple" in plain:
        return tuple(_value(entry) for entry in plain["tuple"])
    return plain["bytes"].encode("latin-1")
