"""Every rule of machine.py, raised and not raised: the real collectors, on broken drivers, kernels and disks.

NVML's faults are injected where the driver is called, memory figures where psutil is, disks are real file systems.
"""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from insight.rules.judging import OK, Watch, counters, working
from specdash.collect.gpu import THROTTLE_REASONS, GpuCollector
from specdash.collect.host import HostCollector
from specdash.core.readings import Health, HealthStatus, Host, ProcessTree, Reading, Slot, Slots, Source
from specdash.core.records import Alert, AlertSeverity
from specdash.core.target import Target
from specdash.insight.rules.catalogue import shipped, with_user_limits
from specdash.insight.rules.machine import THROTTLES
from specdash.insight.state import TargetState
from specdash.system.text import size
from support.faulty_nvml import FaultyNvml

OWN = tuple(rule for rule in shipped() if rule.spec.family == "machine")
SERVER, OTHER = 10, 11
GIB, MIB = 1 << 30, 1 << 20
TROUBLES = {"gpu_throttled", "memory_pressure"}
WALL = 1_700_000_000.0
HEALTHY = {"MemTotal": 64 << 20, "MemAvailable": 40 << 20, "SwapTotal": 8 << 20, "SwapFree": 7 << 20}
"""KiB, as in /proc/meminfo; a GiB of the swap is in use, and that is no trouble."""


def process(pid: int, memory: int | None) -> Any:
    return type("Process", (), {"pid": pid, "usedGpuMemory": memory})


def having_memory(used: int, free: int) -> Any:
    return type("Memory", (), {"used": used, "total": 80 * GIB, "free": free})


class Bench:
    """A server at work on a machine whose driver and kernel are what the test says; time passes in `go`."""

    def __init__(
        self,
        directory: Path,
        *,
        url: str = "http://127.0.0.1:1",
        gpus: int = 1,
        user: str = "",
        places: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.now = 1000.0
        self.directory = directory
        self.nvml = FaultyNvml(gpus)
        self.nvml.values = {
            "nvmlDeviceGetCurrentClocksEventReasons": 0,
            "nvmlDeviceGetComputeRunningProcesses": [process(SERVER, 8 * GIB)],
        }
        self.command: tuple[str, ...] = ("llama-server", "-ngl", "99")
        self.busy = True
        self.cores = 1.5
        self.kib = dict(HEALTHY)
        self.pages = {"pswpin": 500, "pswpout": 9000}
        self.state = TargetState(Target(url), rules=with_user_limits(OWN, user), wall_offset=lambda: WALL)
        self.gpu = GpuCollector(
            self.state.apply,
            lambda: frozenset({SERVER}),
            nvml=self.nvml,
            clock=self.clock,
            name_of=lambda pid: f"p{pid}",
        )
        self.gpu_due = self.now
        self.host = HostCollector(
            self.state.target,
            lambda reading: self.state.apply(reading) if reading.source is Source.HOST else None,
            places=lambda: places,
            memory=lambda: SimpleNamespace(
                total=1024 * self.kib["MemTotal"], available=1024 * self.kib["MemAvailable"]
            ),
            swap=self.swap,
            clock=self.clock,
            find_pid=lambda _: None,
        )

    def clock(self) -> float:
        return self.now

    def swap(self) -> SimpleNamespace:
        total, page = self.kib["SwapTotal"], os.sysconf("SC_PAGE_SIZE")
        return SimpleNamespace(
            total=1024 * total,
            used=1024 * (total - self.kib["SwapFree"]),
            sin=page * self.pages["pswpin"],
            sout=page * self.pages["pswpout"],
        )

    def go(self, seconds: int) -> set[str]:
        """Let seconds pass; the rules with an alert at their end."""
        for _ in range(seconds):
            self.now += 1.0
            if self.now >= self.gpu_due:
                self.gpu_due = self.now + self.gpu.step(1.0)
            self.host.step(1.0)
            self._look()
        return {alert.rule for alert in self.active}

    def _look(self) -> None:
        tree = ProcessTree(SERVER, cpu_cores=self.cores, memory_bytes=9 * GIB, command=self.command)
        slot = Slot(0, is_processing=self.busy, task=1, n_decoded=int(self.now) if self.busy else None)
        for source, value in (
            (Source.PROCESS, tree),
            (Source.SLOTS, Slots((slot,))),
            (Source.HEALTH, Health(HealthStatus.OK)),
        ):
            self.state.apply(Reading.known(source, self.now, value))

    @property
    def active(self) -> tuple[Alert, ...]:
        return self.state.picture(self.now, WALL + self.now, 60.0).alerts.active

    def alert(self, rule: str) -> Alert:
        return next(alert for alert in self.active if alert.rule == rule)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


IDLE_GPU = {"nvmlDeviceGetUtilizationRates": type("Rates", (), {"gpu": 0, "memory": 0})}
REASONS, INFO = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetMemoryInfo"
NOTICE, WARNING, CRITICAL = AlertSeverity
UNUSED = {"values": IDLE_GPU}


def gpu_memory(free_mib: int) -> dict[str, Any]:
    """The driver's own share is neither used nor free."""
    return {"values": {INFO: having_memory(used=79 * GIB - free_mib * MIB, free=free_mib * MIB)}}


@pytest.mark.parametrize(
    ("changes", "seconds", "expected"),
    [
        ({}, 60, None),
        # No GPU at all is no lost GPU; a driver that fails later is, and one of several.
        ({"faults": {"nvmlInit": pynvml.NVML_ERROR_LIBRARY_NOT_FOUND}}, 40, None),
        *(({"faults": dict.fromkeys(("nvmlDeviceGetUtilizationRates", "nvmlInit"), error)}, 2,
           ("gpu_lost", CRITICAL, "driver error"))
          for error in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNKNOWN)),
        # Unused: of a server that was given layers for it, and decodes on the CPU.
        (UNUSED, 20, None),
        (UNUSED, 40, ("gpu_lost", WARNING, "it was started with 99 layers for it")),
        *(({**UNUSED, "command": command}, 60, ("gpu_lost", WARNING, "it used it before") if used else None)
          for command, used in ((("llama-server",), True), (("llama-server", "-ngl", "0"), False),
                                (("x", "--gpu-layers=0"), False))),
        ({**UNUSED, "busy": False}, 60, None),
        ({**UNUSED, "cores": 0.05}, 60, None),
        # Throttled: how bad it is depends on the reason; idle clocks and clocks that were set are none.
        *(({"values": {REASONS: bits}}, 20,
           ("gpu_throttled", severity, f"GPU 0 (NVIDIA H200) is slowed down: {words} at 61 °C, 250 W of 700 W"))
          for bits, severity, words in (
              (0x004, NOTICE, "power cap"),
              (0x024, WARNING, "thermal slowdown (software)"),
              (0x008, CRITICAL, "hardware slowdown"),
              (0x048, CRITICAL, "hardware slowdown, thermal slowdown (hardware)"),
              (0x080, CRITICAL, "power brake"))),
        *(({"values": {REASONS: bits}}, 30, None) for bits in (0x001, 0x002, 0x010, 0x100)),
        ({"values": {REASONS: 0x8}, "busy": False}, 30, None),
        # Little memory left, on the GPU and on the machine, where 5 % of a large one are enough.
        (gpu_memory(300), 15, None),
        (gpu_memory(200), 15, ("memory_pressure", WARNING, "GPU 0")),
        (gpu_memory(30), 15, ("memory_pressure", CRITICAL, "GPU 0")),
        ({"kib": {**HEALTHY, "MemAvailable": 4 << 20}}, 15, None),
        ({"kib": {**HEALTHY, "MemAvailable": 1800 << 10}}, 15, ("memory_pressure", WARNING, "is left on the machine")),
        ({"kib": {**HEALTHY, "MemAvailable": 1 << 20}}, 15, ("memory_pressure", CRITICAL, "is left on the machine")),
        ({"kib": {**HEALTHY, "MemTotal": 1 << 30, "MemAvailable": 40 << 20}}, 15, None),
    ],
)  # fmt: skip
def test_what_is_raised_on_such_a_machine(
    bench: Bench, changes: dict[str, Any], seconds: int, expected: tuple[str, AlertSeverity, str] | None
) -> None:
    assert bench.go(5) == set() or "command" in changes
    for name, value in changes.items():
        if name == "values":
            bench.nvml.values |= value
        else:
            setattr(bench.nvml if name == "faults" else bench, name, value)
    assert bench.go(seconds) == ({expected[0]} if expected else set())
    if expected:
        (alert,) = bench.active
        assert (alert.severity, expected[2] in alert.summary) == (expected[1], True), alert.summary


def test_every_reason_in_the_table_is_one_of_the_collectors() -> None:
    assert set(THROTTLES) <= {name for _, name in THROTTLE_REASONS}


def test_the_machine_of_the_dashboard_is_not_that_of_a_server_elsewhere(tmp_path: Path) -> None:
    for url, expected in (("http://127.0.0.1:1", TROUBLES), ("http://gpu-box:8080", set())):
        bench = Bench(tmp_path, url=url)
        bench.nvml.values[REASONS] = 0x8
        bench.kib["MemAvailable"] = 1 << 19
        assert bench.go(30) == expected


def test_a_lost_gpu_is_named_where_it_is_known_which_and_comes_back(tmp_path: Path) -> None:
    for lost, subject in ({1}, "GPU 1"), (set(), ""):
        bench = Bench(tmp_path, gpus=2)
        assert bench.go(5) == set()
        bench.nvml.lost = lost
        if not lost:
            bench.nvml.faults = dict.fromkeys(("nvmlDeviceGetUtilizationRates", "nvmlInit"), pynvml.NVML_ERROR_UNKNOWN)
        bench.go(8)
        assert bench.alert("gpu_lost").subject == subject
        bench.nvml.lost, bench.nvml.faults = set(), {}
        assert bench.go(80) == set()


def test_the_memory_of_another_servers_gpu_is_not_judged(tmp_path: Path) -> None:
    bench = Bench(tmp_path, gpus=2)
    answer = bench.nvml.answer

    def by_gpu(name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if name == INFO and arguments[0] == 1:
            return having_memory(used=79 * GIB, free=0)
        if name == "nvmlDeviceGetComputeRunningProcesses":
            return [process(SERVER if arguments[0] == 0 else OTHER, 8 * GIB)]
        return answer(name, arguments, options)

    bench.nvml.answer = by_gpu  # type: ignore[method-assign]
    assert bench.go(30) == set()


def test_reading_back_from_the_swap_all_the_time_is_an_alert_and_a_short_burst_is_none(bench: Bench) -> None:
    assert bench.go(30) == set()
    bench.pages["pswpin"] += 2000
    assert bench.go(30) == set()
    for _ in range(40):
        bench.pages["pswpin"] += 1000
        bench.go(1)
    alert = bench.alert("memory_pressure")
    assert "MiB/s move between memory and swap" in alert.summary
    assert dict(alert.evidence)["read back now"] == f"{size(1000 * os.sysconf('SC_PAGE_SIZE'))}/s"
    assert bench.go(70) == set()


@pytest.mark.parametrize(
    ("wait", "cores", "used", "seconds", "starved"),
    [
        (0.7, 0.3, 1.0, 20, True),
        # More threads than cores are its own doing; it gets its share; a moment is nothing.
        (0.7, 1.9, 1.0, 20, False),
        (0.1, 0.9, 1.0, 20, False),
        (0.7, 0.3, 1.0, 4, False),
    ],
)
def test_a_server_is_starved_by_other_programs(
    wait: float, cores: float, used: float, seconds: int, starved: bool
) -> None:
    watch = Watch(OWN)
    tree = ProcessTree(pid=SERVER, name="llama-server", started_wall=0.0, cpu_cores=cores, cpu_wait=wait)
    host = Host(cpu_utilisation=used, cpu_count=2)
    for count in range(seconds):
        watch.look(1, metrics=counters(count, running=1), slots=working(count), process=tree, host=host, health=OK)
    assert watch.raised() == ({"cpu_starved"} if starved else set())


@contextlib.contextmanager
def small_disk(folder: Path, options: str) -> Iterator[Path]:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "specdash-test", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)  # noqa: S607


def test_a_disk_that_fills(tmp_path: Path) -> None:
    with small_disk(tmp_path / "logs", "size=24m") as logs:
        places = (("server log", str(logs)), ("specdash's state", str(logs / "not" / "there")))
        bench = Bench(tmp_path, user="[disk_full]\nlimits.critical_mib = 1", places=places)
        assert bench.go(5) == set(), "a small disk with room is none"
        (logs / "server.log").write_bytes(b"x" * 22 * MIB)
        assert bench.go(5) == {"disk_full"}
        alert = bench.alert("disk_full")
        assert alert.severity is WARNING
        assert alert.summary == f"2.0 MiB are left on the disk of {logs} (server log, specdash's state)"
        with pytest.raises(OSError, match="No space left"):
            (logs / "more").write_bytes(b"x" * 4 * MIB)
        bench.go(3)
        assert bench.alert("disk_full").severity is CRITICAL
        for path in logs.iterdir():
            path.unlink()
        assert bench.go(12) == set()


def test_a_disk_without_room_for_another_file(tmp_path: Path) -> None:
    with small_disk(tmp_path / "logs", "size=24m,nr_inodes=200") as logs:
        bench = Bench(tmp_path, places=(("server log", str(logs)),))
        assert bench.go(5) == set()
        with contextlib.suppress(OSError):
            for number in range(300):
                (logs / str(number)).touch()
        bench.go(3)
        alert = bench.alert("disk_full")
        assert (alert.severity, alert.summary[:31]) == (CRITICAL, "only 0 files can still be made ")
