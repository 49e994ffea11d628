"""What `nvidia-smi` says, and whether specdash says the same of a GPU at that moment."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdash.collect.gpu import reasons_in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from specdash.core.readings import Gpu

PROGRAM = "nvidia-smi"
TIMEOUT_S = 30.0
MIB = 1 << 20
NOT_TOLD = ("N/A", "Not Supported", "Insufficient Permissions", "Not Found", "No Permission")
"""In brackets, with an "[" before."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A field of `Gpu` against one of nvidia-smi, whose newest name comes first."""

    field: str
    names: tuple[str, ...]
    read: Callable[[str], Any]
    tolerance: float
    """By which nvidia-smi's value may be outside of what specdash read right before, meanwhile and right after."""
    why: str

    def differs(self, said: str, seen: Sequence[Gpu]) -> str:
        """How nvidia-smi's word differs from what specdash read around it; empty when it does not."""
        values = [getattr(gpu, self.field) for gpu in seen]
        known = [value for value in values if value is not None]
        if is_not_told(said):
            return f"nvidia-smi tells none ({said}), specdash {known[0]}" if known else ""
        if not known:
            return f"nvidia-smi tells {said}, specdash nothing"
        wanted = self.read(said)
        if isinstance(wanted, frozenset):
            always = frozenset.intersection(*map(frozenset, known))
            ever = frozenset.union(*map(frozenset, known))
            return "" if always <= wanted <= ever else f"{sorted(wanted)}, not {sorted(ever)}"
        if isinstance(wanted, str):
            return "" if set(known) == {wanted} else f"{wanted}, not {known[0]}"
        low, high = min(known), max(known)
        if low - self.tolerance <= wanted <= high + self.tolerance:
            return ""
        return f"{wanted:g}, not {low:g} to {high:g}"


def _mib(text: str) -> float:
    return float(text) * MIB


def _percent(text: str) -> float:
    return float(text) / 100


def _reasons(text: str) -> frozenset[str]:
    return frozenset(reasons_in_words(int(text, 16)))


ROUNDED = "nvidia-smi prints whole MiB"
COMPARISONS = (
    Comparison("name", ("name",), str, 0, "the same text"),
    Comparison("uuid", ("uuid",), str, 0, "the same text"),
    Comparison("utilisation", ("utilization.gpu",), _percent, 0.01, "whole percents of the same counter"),
    Comparison("memory_utilisation", ("utilization.memory",), _percent, 0.01, "whole percents of the same counter"),
    Comparison("memory_used_bytes", ("memory.used",), _mib, MIB, ROUNDED),
    Comparison("memory_total_bytes", ("memory.total",), _mib, MIB, ROUNDED),
    Comparison("memory_free_bytes", ("memory.free",), _mib, MIB, ROUNDED),
    Comparison("power_watts", ("power.draw",), float, 5.0, "a mean over a second, read some ms apart while it moves"),
    Comparison("power_limit_watts", ("enforced.power.limit",), float, 0.01, "printed with two decimals"),
    Comparison("temperature_celsius", ("temperature.gpu",), float, 1.0, "whole degrees, read some ms apart"),
    Comparison("sm_clock_mhz", ("clocks.sm", "clocks.current.sm"), float, 30.0, "two steps of the clock"),
    Comparison("memory_clock_mhz", ("clocks.mem", "clocks.current.memory"), float, 0, "it has few steps"),
    Comparison(
        "throttle_reasons", ("clocks_event_reasons.active", "clocks_throttle_reasons.active"), _reasons, 0,
        "reasons come and go: none that was always there is missing, none is there that never was",
    ),
)  # fmt: skip


def is_here() -> bool:
    """Whether there is the program."""
    return shutil.which(PROGRAM) is not None


def is_not_told(said: str) -> bool:
    """Whether nvidia-smi has no value."""
    return said.strip("[]") in NOT_TOLD or said.startswith("[")


def known_names() -> frozenset[str]:
    """The fields of --query-gpu that this nvidia-smi has: drivers differ, and a wrong one fails them all."""
    return frozenset(re.findall(r'"([a-z][\w.]*)"', _run("--help-query-gpu")))


def query(names: Sequence[str]) -> list[dict[str, str]]:
    """The fields of each GPU, as text without units."""
    out = _run(f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits")
    rows = [line.split(", ") for line in out.splitlines() if line.strip()]
    return [dict(zip(names, (name.strip() for name in row), strict=True)) for row in rows]


def compute_apps() -> dict[int, int | None]:
    """Bytes by process, as nvidia-smi shows them; None where it does not tell."""
    out = _run("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
    rows = [line.split(", ") for line in out.splitlines() if re.match(r"\d+, ", line)]
    return {int(pid): None if is_not_told(used.strip()) else int(used) * MIB for pid, used in rows}


def name_of(comparison: Comparison, known: frozenset[str]) -> str | None:
    """What this nvidia-smi calls the field."""
    return next((name for name in comparison.names if name in known), None)


def differences(said: Mapping[str, str], seen: Sequence[Gpu], known: frozenset[str]) -> dict[str, str]:
    """By field of `Gpu`, how nvidia-smi differs from specdash; "" where it does not."""
    found = {}
    for comparison in COMPARISONS:
        name = name_of(comparison, known)
        if name is not None:
            found[comparison.field] = comparison.differs(said[name], seen)
    return found


def _run(*words: str) -> str:
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    if done.returncode:
        raise RuntimeError(f"{PROGRAM} {' '.join(words)} failed with {done.returncode}: {done.stdout} {done.stderr}")
    return done.stdout
