"""What specdash reads of the GPU through NVML, against `nvidia-smi` at the same moment, idle and at work."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from gpu import smi
from gpu.nvml_record import AT_ONCE, NvmlRecord, look
from gpu.report import Check
from specdash.collect import gpu as collecting
from specdash.collect import gpu as gpu_driver
from specdash.core.readings import Gpu, Gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpu.kit import Kit, Server
    from gpu.report import Report
    from specdash.core.readings import Reading

MODEL_GB = 8.0
"""Decode is bound by memory then, as it is with real models."""
FLAGS = ("-ngl", "99", "-c", "16384", "-np", "4", "--metrics")
EVERY_S = 0.05
BEFORE_S = 1.2
"""A mean over a second that nvidia-smi reads may be of what was a second ago."""
ROUNDS = {"idle": 4, "decode": 8, "burst": 4}
SETTLE_S = 3.0
ENERGY_S = 20.0
ENERGY_SHARE = 0.05
"""NVML's power is good to 5 %."""
PROMPT_TOKENS = 3000


class Sampler:
    """Asks NVML for everything, as specdash does, twenty times a second in a thread."""

    def __init__(self, nvml: Any) -> None:
        self.samples: list[tuple[float, Gpus, float | None]] = []
        """When, what, and the energy of all GPUs so far in joules."""
        self.error: str = ""
        self._collector = collecting.GpuCollector(self._take, nvml=nvml, probes=AT_ONCE)
        self._seen: Reading[Any] | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(10.0)

    def between(self, start: float, end: float, index: int) -> list[Gpu]:
        """What was seen of a GPU then."""
        return [gpus.gpus[index] for at, gpus, _ in list(self.samples) if start <= at <= end]

    def _take(self, reading: Reading[Any]) -> None:
        self._seen = reading

    def _work(self) -> None:
        while not self._end.wait(EVERY_S):
            began = time.monotonic()
            self._collector.step(1.0)
            value = self._seen.value if self._seen is not None else None
            if isinstance(value, Gpus):
                energy = [entry for entry in self._collector.told("energy_joules") if entry is not None]
                self.samples.append((began, value, sum(energy) if energy else None))
            elif self._seen is not None:
                self.error = str(self._seen.failure)


def run(kit: Kit, report: Report) -> None:
    """Idle, decoding, and prefilling; then the energy, and what the driver answered as a file for tests."""
    _absence(kit, report)
    if kit.cpu:
        report.skipped("every field of NVML against nvidia-smi", "needs a GPU")
        return
    nvml = collecting._import_nvml()  # noqa: SLF001 - the one place that imports it
    if not smi.is_here():
        report.failed("there is nvidia-smi to compare with")
        return
    known, record = smi.known_names(), NvmlRecord()
    _driver(report, gpu_driver.look(nvml), known)
    with Sampler(nvml) as sampler:
        time.sleep(BEFORE_S)
        rounds = {"idle": _compare(sampler, known, ROUNDS["idle"])}
        look(record.listening(nvml, "idle"), pause=_pause)
        with kit.server(kit.model("target", MODEL_GB), *FLAGS, name="nvml") as server:
            record.name("server", server.process.pid)
            with working(server, _decode):
                time.sleep(SETTLE_S)
                began = time.monotonic()
                rounds["decode"] = _compare(sampler, known, ROUNDS["decode"])
                _processes(report, sampler, server)
                _snapshot(kit, report, server)
                look(record.listening(nvml, "decode"), pause=_pause)
                time.sleep(max(0.0, began + ENERGY_S - time.monotonic()))
                _energy(report, sampler, began, time.monotonic())
            with working(server, _prefill, clients=4):
                time.sleep(BEFORE_S)
                rounds["burst"] = _compare(sampler, known, ROUNDS["burst"])
                look(record.listening(nvml, "burst"), pause=_pause)
    if sampler.error:
        report.failed("NVML answered all the time", sampler.error)
    _tell(report, rounds, known)
    _range(report, sampler)
    _write(kit, report, record)


def _absence(kit: Kit, report: Report) -> None:
    """Whether specdash sees a GPU where there is one, and says why not where there is none."""
    found = gpu_driver.look()
    if kit.cpu:
        report.judge(
            "without a GPU the driver's absence has a reason", bool(found.absence and found.detail), found.detail
        )
    else:
        report.judge(
            "specdash sees the GPU", bool(found.gpus), [driver_gpu.words for driver_gpu in found.gpus] or found.detail
        )


def _driver(report: Report, found: gpu_driver.Driver, known: frozenset[str]) -> None:
    (first, *_) = rows = smi.query(["driver_version", "name", "memory.total", "compute_cap"])
    report.judge("the driver's version is nvidia-smi's", found.version == first["driver_version"], found.version)
    report.judge("as many GPUs as nvidia-smi shows", len(found.gpus) == len(rows), len(found.gpus), len(rows))
    for gpu, row in zip(found.gpus, rows, strict=False):
        compute = ".".join(map(str, gpu.compute or ()))
        report.judge(
            "the compute capability is nvidia-smi's", compute == row["compute_cap"], compute, row["compute_cap"]
        )
    report.figure("newest CUDA of the driver", ".".join(map(str, found.cuda or ())))
    lacking = [comparison.names[0] for comparison in smi.COMPARISONS if smi.name_of(comparison, known) is None]
    if lacking:
        report.skipped(", ".join(lacking), "this nvidia-smi has no such field")


def _compare(sampler: Sampler, known: frozenset[str], rounds: int) -> list[dict[str, str]]:
    """Differences by field, of each round and GPU. What was read of NVML a little before and after counts too."""
    names = [name for comparison in smi.COMPARISONS if (name := smi.name_of(comparison, known)) is not None]
    found = []
    for _ in range(rounds):
        began = time.monotonic()
        rows = smi.query(names)
        time.sleep(3 * EVERY_S)
        end = time.monotonic()
        for index, row in enumerate(rows):
            seen = sampler.between(began - BEFORE_S, end, index)
            found.append(smi.differences(row, seen, known))
            last = (
                {comparison.field: getattr(seen[-1], comparison.field) for comparison in smi.COMPARISONS}
                if seen
                else {}
            )
            print(json.dumps({"nvidia-smi": {**row, "uuid": ""}, "specdash": {**last, "uuid": ""}}), flush=True)
    return found


def _tell(report: Report, rounds: dict[str, list[dict[str, str]]], known: frozenset[str]) -> None:
    looks = sum(map(len, rounds.values()))
    for comparison in smi.COMPARISONS:
        if smi.name_of(comparison, known) is None:
            continue
        wrong = [
            f"{phase}: {row[comparison.field]}"
            for phase, rows in rounds.items()
            for row in rows
            if row[comparison.field]
        ]
        measured: Any = "the same" if not wrong else {"looks that differ": len(wrong), "such as": wrong[:3]}
        what = f"{comparison.field} is what nvidia-smi says, idle and at work"
        report.judge(what, not wrong, measured, f"{looks} looks within {comparison.tolerance:g}", note=comparison.why)


def _range(report: Report, sampler: Sampler) -> None:
    """That the GPU was at work, or all of this compared nothing."""
    gpus = [gpus.gpus[0] for _, gpus, _ in sampler.samples]
    for field, unit in (
        ("utilisation", ""),
        ("power_watts", "W"),
        ("sm_clock_mhz", "MHz"),
        ("temperature_celsius", "°C"),
    ):
        values = [value for gpu in gpus if (value := getattr(gpu, field)) is not None]
        if values:
            report.figure(f"{field}, from idle to work", [min(values), max(values)], unit)
    reserved = [
        gpu.memory_total_bytes - gpu.memory_used_bytes - gpu.memory_free_bytes
        for gpu in gpus[-1:]
        if gpu.memory_total_bytes is not None
        and gpu.memory_used_bytes is not None
        and gpu.memory_free_bytes is not None
    ]
    report.figure("memory that the driver reserves, neither used nor free", round(sum(reserved) / smi.MIB), "MiB")
    report.figure("looks at NVML, every field", len(gpus), note="by specdash's own collector, 20 a second wanted")


def _processes(report: Report, sampler: Sampler, server: Server) -> None:
    """The processes, as far as this machine shows any: a container sees none, or the host's numbers."""
    began = time.monotonic()
    shown = smi.compute_apps()
    time.sleep(3 * EVERY_S)
    looks = [
        {process.pid: process.memory_bytes for gpu in gpus.gpus for process in gpu.processes or ()}
        for at, gpus, _ in list(sampler.samples)
        if at >= began - 3 * EVERY_S
    ]
    seen = looks[-1]
    pid = server.process.pid
    if pid not in seen:
        foreign = [number for number in seen if not Path(f"/proc/{number}").exists()]
        why = (
            "NVML shows no process"
            if not seen
            else f"NVML shows {len(seen)} processes, {len(foreign)} of them not of here"
        )
        report.skipped("the processes on the GPU", f"{why}, as in a container; the server has {pid}")
        return
    report.judge(
        "the processes are those of nvidia-smi", any(set(look) == set(shown) for look in looks), len(seen), len(shown)
    )
    off = [abs((seen[key] or 0) - (shown[key] or 0)) / smi.MIB for key in seen.keys() & shown.keys()]
    report.judge(
        "the memory of each process is nvidia-smi's", max(off, default=0.0) <= 1.0, max(off, default=0.0), 1.0, "MiB",
        smi.ROUNDED,
    )  # fmt: skip


def _snapshot(kit: Kit, report: Report, server: Server) -> None:
    """The same through the product's front door."""
    answer = kit.specdash(kit.home("nvml"), "snapshot", "--json", "--url", server.url, timeout=60.0)
    gpus = answer.json()["gpu"]
    if not isinstance(gpus, list):
        report.failed("the snapshot has the GPU", gpus)
        return
    used = float(smi.query(["memory.used"])[0]["memory.used"])
    told = (gpus[0]["memory_used_bytes"] or 0) / smi.MIB
    report.judge("the snapshot's memory in use is nvidia-smi's", abs(told - used) <= 2, told, used, "MiB")
    own = [process for gpu in gpus for process in gpu["processes"] or () if process["is_backend"]]
    if own:
        held = own[0]["memory_bytes"] or 0
        report.judge(
            "the server is known among the GPU's processes, with its memory", held > 0, held >> 20, "> 0", "MiB"
        )
    else:
        report.skipped("the server among the GPU's processes", "NVML does not show it under its number here")


def _energy(report: Report, sampler: Sampler, start: float, end: float) -> None:
    """Joules by the driver's counter against the power that was read, over the same time."""
    rows = [
        (at, sum(gpu.power_watts or 0.0 for gpu in gpus.gpus), energy)
        for at, gpus, energy in list(sampler.samples)
        if start <= at <= end
    ]
    if len(rows) < 2 or rows[0][2] is None or rows[-1][2] is None:
        report.skipped("energy by NVML's counter", "this GPU tells none")
        return
    counted = rows[-1][2] - rows[0][2]
    summed = integral([(at, watts) for at, watts, _ in rows])
    share = abs(counted - summed) / summed if summed else 1.0
    note = f"{share:.1%} apart over {rows[-1][0] - rows[0][0]:.1f} s; power is good to 5 %"
    report.judge(
        "NVML's energy counter is the sum of its power while the server decodes", share <= ENERGY_SHARE,
        round(counted), round(summed), "J", note,
    )  # fmt: skip


def integral(rows: Sequence[tuple[float, float]]) -> float:
    """Of a value over time, by trapezoids."""
    return sum((after - at) * (value + following) / 2 for (at, value), (after, following) in itertools.pairwise(rows))


def _write(kit: Kit, report: Report, record: NvmlRecord) -> None:
    """The record, once it plays what was seen; it becomes a fixture of the tests."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests"))
    from support.recorded_nvml import RecordedNvml

    plain = json.loads(json.dumps(record.to_json()))
    for phase in plain["phases"]:
        readings = look(RecordedNvml(plain, phase))
        played = [reading.value.gpus[0] for reading in readings if isinstance(reading.value, Gpus)]
        report.judge(
            f"what the driver answered can be played again: {phase}", len(played) == len(readings), len(played)
        )
    (kit.out / "nvml.json").write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")


def _pause() -> None:
    time.sleep(0.2)


def _decode(server: Server) -> None:
    server.complete("The first word of the story was", 256, ignore_eos=True)


def _prefill(server: Server) -> None:
    server.ask(
        "/completion", {"prompt": [10 + n % 90 for n in range(PROMPT_TOKENS)], "n_predict": 1, "cache_prompt": False}
    )


@contextlib.contextmanager
def working(server: Server, ask: Callable[[Server], None], clients: int = 1) -> Iterator[None]:
    """Clients that ask one thing after the other."""
    end = threading.Event()

    def work() -> None:
        while not end.is_set():
            try:
                ask(server)
            except (OSError, ValueError):
                end.wait(0.05)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        end.set()
        for thread in threads:
            thread.join(30.0)


CHECK = Check("nvml", "NVML as specdash reads it, against nvidia-smi", run, 75.0)
