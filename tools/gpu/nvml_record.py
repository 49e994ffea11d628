"""What a real driver answered, call by call, as JSON: so that tests without a GPU can play it to specdash again.

Numbers of processes and GPUs are replaced by others: they are nobody's business, and nothing depends on which they are.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from specdash.collect import gpu
from specdash.collect.gpu import ENERGY, FOREVER_S, PROBES, GpuCollector

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdash.core.readings import Reading

SCHEMA = "specdash.nvml/1"
FIRST_PID = 1001
_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")

AT_ONCE = tuple(probe if probe.ttl_s == FOREVER_S else replace(probe, ttl_s=0.0) for probe in (*PROBES, ENERGY))
"""Everything that specdash asks of a GPU, asked anew at every look."""


@dataclass(slots=True)
class NvmlRecord:
    """Calls by phase: what the machine was doing then."""

    phases: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    named: dict[str, int] = field(default_factory=dict)
    """Processes that a test needs to know, by a name, with the numbers they have in the record."""
    _pids: dict[int, int] = field(default_factory=dict)
    _uuids: dict[str, str] = field(default_factory=dict)
    _handles: dict[int, int] = field(default_factory=dict)

    def listening(self, nvml: Any, phase: str) -> RecordedCalls:
        """The module `nvml`, every call of which is written down."""
        return RecordedCalls(nvml, self, self.phases.setdefault(phase, []))

    def pid(self, real: int) -> int:
        """What a process is called in the record."""
        return self._pids.setdefault(real, FIRST_PID + len(self._pids))

    def name(self, name: str, real: int) -> None:
        """Say which of the processes is which."""
        self.named[name] = self.pid(real)

    def to_json(self) -> dict[str, Any]:
        """The record."""
        return {"schema": SCHEMA, "processes": self.named, "phases": self.phases}

    def plain(self, value: Any) -> Any:
        """A value of NVML as JSON: structures by their fields, pointers by the order in which they were seen."""
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return _UUID.sub(self._other_uuid, value)
        if isinstance(value, bytes):
            return {"bytes": self.plain(value.decode("latin-1"))}
        if isinstance(value, tuple):
            return {"tuple": [self.plain(entry) for entry in value]}
        if isinstance(value, list | ctypes.Array):
            return [self.plain(entry) for entry in value]
        if isinstance(value, ctypes.Structure | ctypes.Union):
            return self._structure(value, {name: getattr(value, name) for name in _fields(type(value))})
        if isinstance(value, ctypes._Pointer):  # noqa: SLF001 - the class of all pointers has no other name
            address = ctypes.cast(value, ctypes.c_void_p).value or 0
            return {"handle": self._handles.setdefault(address, len(self._handles))}
        if isinstance(value, ctypes._SimpleCData):  # noqa: SLF001 - that of all numbers, likewise
            return self.plain(value.value)
        if isinstance(value, Mapping):
            return self._structure(value, value)
        return self._structure(value, vars(value))

    def _structure(self, value: Any, fields: Mapping[str, Any]) -> Any:
        plain = {name: self.pid(entry) if name == "pid" else self.plain(entry) for name, entry in fields.items()}
        return {"structure": type(value).__name__, "fields": plain}

    def _other_uuid(self, match: re.Match[str]) -> str:
        return self._uuids.setdefault(match[0], f"{match[1]}-00000000-0000-0000-0000-{len(self._uuids):012d}")


class RecordedCalls:
    """Stands for the module `pynvml` and writes down what is asked and answered."""

    def __init__(self, nvml: Any, record: NvmlRecord, calls: list[dict[str, Any]]) -> None:
        self._nvml, self._record, self._calls = nvml, record, calls

    def __getattr__(self, name: str) -> Any:
        there = getattr(self._nvml, name)
        if not name.startswith("nvml") or not callable(there):
            return there

        def call(*arguments: Any, **options: Any) -> Any:
            plain = self._record.plain
            asked: dict[str, Any] = {"function": name, "arguments": [plain(argument) for argument in arguments]}
            asked["options"] = {key: plain(option) for key, option in options.items()}
            try:
                answer = there(*arguments, **options)
            except self._nvml.NVMLError as error:
                self._calls.append({**asked, "error": error.value})
                raise
            except self._nvml.NVMLLibraryMismatchError:
                self._calls.append({**asked, "error": "NVMLLibraryMismatchError"})
                raise
            self._calls.append({**asked, "answer": plain(answer)})
            return answer

        return call


def look(nvml: Any, times: int = 3, pause: Callable[[], None] = lambda: None) -> list[Reading[Any]]:
    """All that specdash asks NVML: `times` looks of the collector in one session, and one of the doctor."""
    seen: list[Reading[Any]] = []
    now = [0.0]
    collector = GpuCollector(seen.append, nvml=nvml, probes=AT_ONCE, clock=lambda: now[0])
    for _ in range(times):
        collector.step(1.0)
        now[0] += 1.0
        pause()
    gpu.look(nvml)
    return seen


def _fields(kind: type) -> list[str]:
    """Of a structure, those of what it extends first."""
    return [entry[0] for base in reversed(kind.__mro__) for entry in base.__dict__.get("_fields_", ())]
