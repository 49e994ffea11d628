"""What else went on while a boot was measured: other users of the engine and of the machine, memory, energy.

All of it is optional: what cannot be looked at is None, and decides nothing.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from specdash.backend.local_http import ask
from specdash.control.apply_engine import family, port_of
from specdash.llama.bodies import ParseError
from specdash.llama.metrics import parse_metrics

if TYPE_CHECKING:
    from specdash.bench.samples import Place
    from specdash.collect.gpu_looks import GpuLooks
    from specdash.core.observations import Counters

_ANSWER_S = 5.0
_EXACT_BELOW = 1e6
"""Tokens up to which /metrics counts exactly."""
BUSY_CORES = 0.3
BUSY_SHARE = 0.1
"""Others may use so many cores, or this share of all, whichever is more."""
BUSY_GPU = 0.2
"""Utilisation of a GPU on which our engine does nothing, from which somebody else does."""


def allowed_cores(cores: int | None = None) -> float:
    """How many cores others may use, of so many (None: of this machine's)."""
    return max(BUSY_CORES, BUSY_SHARE * (cores or os.cpu_count() or 1))


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What was seen beside the measurement."""

    others_cores: float | None = None
    """CPU cores that neither the engine nor we used, on average."""
    foreign_tokens: int | None = None
    """Tokens that the engine generated for somebody else."""
    gpu_before: float | None = None
    """Utilisation of the busiest GPU, 0 to 1, before we asked anything."""
    memory_free_bytes: int | None = None
    """Of the GPU with the least room, with the engine loaded and used."""
    memory_used_bytes: int | None = None
    """Of all GPUs."""
    watts: float | None = None
    """All GPUs together, on average."""
    temperature: float | None = None
    clock_mhz: int | None = None

    def disturbance(self, cores: int | None = None) -> str:
        """Who else used the engine or the machine, in words; empty when nobody did."""
        allowed = allowed_cores(cores)
        if self.foreign_tokens:
            return f"the engine generated {self.foreign_tokens} tokens for somebody else"
        if self.others_cores is not None and self.others_cores > allowed:
            return f"other programs used {self.others_cores:.1f} CPU cores"
        if self.gpu_before is not None and self.gpu_before > BUSY_GPU:
            return f"the GPU was {self.gpu_before:.0%} busy before anything was asked"
        return ""


class Watch:
    """Begins to look when it is made, with the engine up and idle."""

    def __init__(self, place: Place, gpus: GpuLooks | None = None) -> None:
        self._place = place
        self._gpus = gpus
        self._engine = engine_pid(place.url)
        self._counters = counters(place)
        self._before = gpus.look() if gpus is not None else None
        self._cpu = self._cpu_seconds()
        self._began = time.monotonic()

    def end(self, own_tokens: int | None) -> Surroundings:
        """What was seen since. `own_tokens`: how many the engine generated for us, None where that is not known."""
        took = max(time.monotonic() - self._began, 1e-6)
        cpu = self._cpu_seconds()
        others = None if cpu is None or self._cpu is None else max(0.0, cpu - self._cpu) / took
        before, now = self._before, self._gpus.look() if self._gpus is not None else None
        energy_before = before.energy_joules if before is not None else None
        energy = now.energy_joules if now is not None else None
        watts = None if energy is None or energy_before is None else (energy - energy_before) / took
        return Surroundings(
            others_cores=others,
            foreign_tokens=self._foreign(own_tokens),
            gpu_before=before.utilisation if before is not None else None,
            memory_free_bytes=now.free_bytes if now is not None else None,
            memory_used_bytes=now.used_bytes if now is not None else None,
            watts=watts if watts is None or watts > 0 else None,
            temperature=now.celsius if now is not None else None,
            clock_mhz=now.clock_mhz if now is not None else None,
        )

    def _foreign(self, own: int | None) -> int | None:
        before, now = self._counters, counters(self._place)
        if own is None or before is None or now is None:
            return None
        if before.predicted_tokens is None or now.predicted_tokens is None or now.predicted_tokens >= _EXACT_BELOW:
            return None
        return max(0, round(now.predicted_tokens - before.predicted_tokens) - own)

    def _cpu_seconds(self) -> float | None:
        """CPU time of everybody but the engine and us, since the machine was started."""
        if self._engine is None:
            return None
        try:
            times = psutil.cpu_times()
            ours = [*family(self._engine), psutil.Process()]
            own = sum(sum(one.cpu_times()[:2]) for one in {process.pid: process for process in ours}.values())
        except psutil.Error:
            return None
        steal = getattr(times, "steal", 0.0)
        irq = getattr(times, "irq", 0.0) + getattr(times, "softirq", 0.0)
        return float(times.user + getattr(times, "nice", 0.0) + times.system + irq + steal - own)


def engine_pid(url: str) -> int | None:
    """The process that listens there, where this user may see it."""
    port = port_of(url)
    if port is None:
        return None
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                return connection.pid
    return None


def counters(place: Place) -> Counters | None:
    """What /metrics says now, None where it says nothing."""
    headers = {"Authorization": f"Bearer {place.key}"} if place.key else {}
    try:
        reply = ask(place.url, "/metrics", headers=headers, timeout=_ANSWER_S)
        return parse_metrics(reply.body) if reply.status == 200 else None
    except (OSError, ParseError):
        return None
