"""Reads and writes the files of a run (`tune.status`), by whatever process, while another one writes them."""

from __future__ import annotations

import json
import math
import os
import types
import typing
from dataclasses import MISSING, asdict, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from specdash.collect.processes import same_process
from specdash.control import safe_file
from specdash.core.paths import tune_runs_dir
from specdash.tune.status import Boot, Now, Run, RunEnd, RunHead

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

T = TypeVar("T")
RUN, NOW, LOG = "run.jsonl", "now.json", "log"
MAX_BYTES = 64 * 1024 * 1024
"""Of a larger file only the beginning is read."""
_EVENTS: dict[str, type[RunHead | Boot | RunEnd]] = {"head": RunHead, "boot": Boot, "end": RunEnd}


class RunFiles:
    """The files of one run, for the process that does it. Every method raises `NotWrittenError`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            safe_file.make_directories(directory)
            safe_file.sweep(directory)
        except OSError as error:
            raise safe_file.not_written(directory, error) from None

    def add(self, event: RunHead | Boot | RunEnd) -> None:
        """Append one line, and be sure that it is on the disk."""
        name = next(name for name, kind in _EVENTS.items() if isinstance(event, kind))
        path = self.directory / RUN
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with open(descriptor, "ab") as file:  # noqa: PTH123 the descriptor has the mode
                # A line that a killed process left half written ends here, and is passed over.
                torn = file.tell() > 0 and path.read_bytes()[-1:] != b"\n"
                file.write(b"\n" * torn + encode({"event": name, **as_json(event)}) + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise safe_file.not_written(path, error) from None

    def tell(self, now: Now) -> None:
        """Replace what is going on."""
        path = self.directory / NOW
        try:
            safe_file.replace(path, encode(as_json(now)))
        except OSError as error:
            raise safe_file.not_written(path, error) from None


def read_run(directory: Path) -> Run | None:
    """The run of a directory, None where there is none to be read. What cannot be read is passed over."""
    heads: list[RunHead] = []
    boots: dict[int, Boot] = {}
    end: RunEnd | None = None
    for line in _read(directory / RUN).split(b"\n"):
        event = read_line(line)
        if isinstance(event, RunHead):
            heads.append(event)
            end = None
        elif isinstance(event, Boot):
            boots[event.number] = event
        elif isinstance(event, RunEnd):
            end = event
    if not heads:
        return None
    head = heads[-1]
    told = decode(Now, _object(_read(directory / NOW)))
    now = told if told is not None and told.at >= head.at and end is None else None
    alive = end is None and same_process(head.pid, head.pid_started)
    ordered = tuple(boots[number] for number in sorted(boots))
    return Run(str(directory), head, ordered, now, end, alive, len(heads))


def read_line(line: bytes) -> RunHead | Boot | RunEnd | None:
    """The event of one line, None for what is none."""
    data = _object(line) if line.strip() else None
    kind = _EVENTS.get(str(data.get("event"))) if data is not None else None
    return decode(kind, data) if kind is not None else None


def run_directories(env: Mapping[str, str] = os.environ) -> list[Path]:
    """Those of all runs, the newest last."""
    try:
        return sorted(path for path in tune_runs_dir(env).iterdir() if (path / RUN).is_file())
    except OSError:
        return []


def newest_run(env: Mapping[str, str] = os.environ) -> Run | None:
    """The run that was begun last; one that is alive comes before those that are not."""
    newest: Run | None = None
    for directory in reversed(run_directories(env)[-5:]):
        run = read_run(directory)
        if run is not None and run.alive:
            return run
        newest = newest or run
    return newest


def encode(data: Mapping[str, Any]) -> bytes:
    """One line of JSON."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def as_json(value: Any) -> dict[str, Any]:
    """A dataclass as a JSON object."""
    data: dict[str, Any] = asdict(value)
    return data


def decode(kind: type[T], data: Any) -> T | None:
    """A dataclass from a JSON object; None when that is no such thing. Unknown keys are passed over."""
    try:
        return typing.cast("T", _decode(kind, data))
    except (TypeError, ValueError, KeyError, OverflowError, RecursionError):
        return None


def _decode(kind: Any, data: Any) -> Any:
    if is_dataclass(kind):
        return _dataclass(typing.cast("type[Any]", kind), data)
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        kinds = [one for one in typing.get_args(kind) if one is not types.NoneType]
        return None if data is None else _decode(kinds[0], data)
    if origin is tuple:
        return _tuple(typing.get_args(kind), data)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    if kind is float and isinstance(data, int | float) and not isinstance(data, bool) and math.isfinite(data):
        return float(data)
    if isinstance(data, kind) and (kind is not int or not isinstance(data, bool)):
        return data
    raise ValueError(f"{data!r} is no {kind}")


def _dataclass(kind: type[Any], data: Any) -> Any:
    if not isinstance(data, dict):
        raise TypeError(f"{data!r} is no object")
    values = {}
    for name, wanted, needed in _fields(typing.cast("Any", kind)):
        if name in data:
            values[name] = _decode(wanted, data[name])
        elif needed:
            raise KeyError(name)
    return kind(**values)


def _tuple(kinds: tuple[Any, ...], data: Any) -> tuple[Any, ...]:
    if not isinstance(data, list | tuple):
        raise TypeError(f"{data!r} is no list")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_decode(kinds[0], one) for one in data)
    return tuple(_decode(kind, one) for kind, one in zip(kinds, data, strict=True))


@cache
def _fields(kind: Any) -> tuple[tuple[str, Any, bool], ...]:
    hints = typing.get_type_hints(kind)
    return tuple(
        (one.name, hints[one.name], one.default is MISSING and one.default_factory is MISSING) for one in fields(kind)
    )


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES)
    except OSError:
        return b""


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None
