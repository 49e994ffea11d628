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
    """A server at work on a machine whose driver and kernel tell what the test says; time passes when it is told to."""

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
            self._tell_server()
        return {alert.rule for alert in self.active}

    def _tell_server(self) -> None:
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


def test_a_healthy_machine_raises_nothing(bench: Bench) -> None:
    assert bench.go(90) == set()


def test_the_machine_of_the_dashboard_is_not_that_of_a_server_elsewhere(tmp_path: Path) -> None:
    for url, expected in (("http://127.0.0.1:1", TROUBLES), ("http://gpu-box:8080", set())):
        bench = Bench(tmp_path, url=url)
        bench.nvml.values["nvmlDeviceGetCurrentClocksEventReasons"] = 0x8
        bench.nvml.values["nvmlDeviceGetComputeRunningProcesses"] = [
            process(SERVER, 8 * GIB),
            process(OTHER, 9 * GIB),
        ]
        bench.kib["MemAvailable"] = 1 << 19
        for _ in range(30):
            bench.pages["pswpin"] += 1000
            bench.go(1)
        assert {alert.rule for alert in bench.active} == expected


def test_no_gpu_at_all_is_no_lost_gpu(bench: Bench) -> None:
    bench.nvml.faults = {"nvmlInit": pynvml.NVML_ERROR_LIBRARY_NOT_FOUND}
    assert bench.go(40) == set()


class TestServerStarved:
    def see(self, wait: float, cores: float, used: float, seconds: int = 20) -> set[str]:
        """What is raised of a server at work that waits so much and uses so many of two cores."""
        watch = Watch(OWN)
        tree = ProcessTree(pid=SERVER, name="llama-server", started_wall=0.0, cpu_cores=cores, cpu_wait=wait)
        host = Host(cpu_utilisation=used, cpu_count=2)
        for count in range(seconds):
            watch.look(1, metrics=counters(count, running=1), slots=working(count), process=tree, host=host, health=OK)
        return watch.raised()

    def test_cpus_that_others_use_are_the_cause(self) -> None:
        assert self.see(wait=0.7, cores=0.3, used=1.0) == {"cpu_starved"}

    def test_more_threads_than_cores_are_the_servers_own_doing(self) -> None:
        assert self.see(wait=0.7, cores=1.9, used=1.0) == set()

    def test_a_busy_machine_that_leaves_the_server_its_share_is_no_trouble(self) -> None:
        assert self.see(wait=0.1, cores=0.9, used=1.0) == set()

    def test_a_moment_is_nothing(self) -> None:
        assert self.see(wait=0.7, cores=0.3, used=1.0, seconds=4) == set()


class TestGpuLost:
    @pytest.mark.parametrize("error", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNKNOWN])
    def test_a_driver_that_fails_is_told_at_the_next_look_and_its_return_too(self, bench: Bench, error: int) -> None:
        assert bench.go(5) == set()
        bench.nvml.faults = dict.fromkeys(("nvmlDeviceGetUtilizationRates", "nvmlInit"), error)
        assert bench.go(2) == {"gpu_lost"}
        alert = bench.alert("gpu_lost")
        assert alert.severity is AlertSeverity.CRITICAL
        assert alert.subject == "GPU 0"
        assert "driver error" in alert.summary
        assert "gpu_lost" in bench.go(120)
        bench.nvml.faults = {}
        assert "gpu_lost" not in bench.go(80)

    def test_a_driver_that_fails_names_no_gpu_where_there_are_several(self, tmp_path: Path) -> None:
        bench = Bench(tmp_path, gpus=2)
        bench.go(5)
        bench.nvml.faults = dict.fromkeys(("nvmlDeviceGetUtilizationRates", "nvmlInit"), pynvml.NVML_ERROR_UNKNOWN)
        bench.go(2)
        assert bench.alert("gpu_lost").subject == ""

    def test_one_of_several(self, tmp_path: Path) -> None:
        bench = Bench(tmp_path, gpus=2)
        bench.go(5)
        bench.nvml.lost = {1}
        bench.go(8)
        assert bench.alert("gpu_lost").subject == "GPU 1"


class TestGpuUnused:
    def stop_using(self, bench: Bench) -> None:
        bench.nvml.values["nvmlDeviceGetUtilizationRates"] = type("Rates", (), {"gpu": 0, "memory": 0})

    def test_a_server_that_was_given_layers_for_a_gpu_and_decodes_on_the_cpu(self, bench: Bench) -> None:
        self.stop_using(bench)
        assert bench.go(20) == set()
        assert bench.go(20) == {"gpu_lost"}
        assert "it was started with 99 layers for it" in bench.alert("gpu_lost").summary

    def test_a_server_that_used_it_before(self, bench: Bench) -> None:
        bench.command = ("llama-server",)
        bench.go(10)
        self.stop_using(bench)
        assert bench.go(45) == {"gpu_lost"}
        assert "it used it before" in bench.alert("gpu_lost").summary

    @pytest.mark.parametrize("command", [("llama-server",), ("llama-server", "-ngl", "0"), ("x", "--gpu-layers=0")])
    def test_a_server_that_is_meant_for_the_cpu(self, bench: Bench, command: tuple[str, ...]) -> None:
        bench.command = command
        self.stop_using(bench)
        assert bench.go(60) == set()

    def test_a_server_without_work(self, bench: Bench) -> None:
        self.stop_using(bench)
        bench.busy = False
        assert bench.go(60) == set()

    def test_a_server_that_waits_for_something_else(self, bench: Bench) -> None:
        self.stop_using(bench)
        bench.cores = 0.05
        assert bench.go(60) == set()


class TestGpuThrottled:
    @pytest.mark.parametrize(
        ("bits", "severity", "words"),
        [
            (0x004, AlertSeverity.NOTICE, "power cap"),
            (0x020, AlertSeverity.WARNING, "thermal slowdown (software)"),
            (0x024, AlertSeverity.WARNING, "thermal slowdown (software)"),
            (0x008, AlertSeverity.CRITICAL, "hardware slowdown"),
            (0x048, AlertSeverity.CRITICAL, "hardware slowdown, thermal slowdown (hardware)"),
            (0x080, AlertSeverity.CRITICAL, "power brake"),
        ],
    )
    def test_how_bad_it_is_depends_on_the_reason(
        self, bench: Bench, bits: int, severity: AlertSeverity, words: str
    ) -> None:
        bench.nvml.values["nvmlDeviceGetCurrentClocksEventReasons"] = bits
        assert bench.go(5) == set()
        assert bench.go(15) == {"gpu_throttled"}
        alert = bench.alert("gpu_throttled")
        assert alert.severity is severity
        assert alert.summary == f"GPU 0 (NVIDIA H200) is slowed down: {words} at 61 °C, 250 W of 700 W"

    @pytest.mark.parametrize("bits", [0x000, 0x001, 0x002, 0x010, 0x100])
    def test_idle_clocks_and_clocks_that_somebody_set_are_no_throttle(self, bench: Bench, bits: int) -> None:
        bench.nvml.values["nvmlDeviceGetCurrentClocksEventReasons"] = bits
        assert bench.go(30) == set()

    def test_a_gpu_without_work_is_not_judged(self, bench: Bench) -> None:
        bench.nvml.values["nvmlDeviceGetCurrentClocksEventReasons"] = 0x8
        bench.busy = False
        assert bench.go(30) == set()

    def test_every_reason_in_the_table_is_one_of_the_collectors(self) -> None:
        assert set(THROTTLES) <= {name for _, name in THROTTLE_REASONS}


class TestGpuMemory:
    @pytest.mark.parametrize(
        ("free_mib", "severity"), [(200, AlertSeverity.WARNING), (30, AlertSeverity.CRITICAL), (300, None)]
    )
    def test_little_of_it_left(self, bench: Bench, free_mib: int, severity: AlertSeverity | None) -> None:
        # The driver's own share is neither used nor free.
        memory = having_memory(used=79 * GIB - free_mib * MIB, free=free_mib * MIB)
        bench.nvml.values["nvmlDeviceGetMemoryInfo"] = memory
        raised = bench.go(15)
        assert raised == ({"memory_pressure"} if severity else set())
        if severity:
            assert bench.alert("memory_pressure").severity is severity

    def test_of_a_gpu_of_somebody_else(self, tmp_path: Path) -> None:
        bench = Bench(tmp_path, gpus=2)
        answer = bench.nvml.answer

        def by_gpu(name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
            if name == "nvmlDeviceGetMemoryInfo" and arguments[0] == 1:
                return having_memory(used=79 * GIB, free=0)
            if name == "nvmlDeviceGetComputeRunningProcesses":
                return [process(SERVER if arguments[0] == 0 else OTHER, 8 * GIB)]
            return answer(name, arguments, options)

        bench.nvml.answer = by_gpu  # type: ignore[method-assign]
        assert bench.go(30) == set()


class TestMemory:
    @pytest.mark.parametrize(
        ("left_kib", "severity"),
        [(1 << 20, AlertSeverity.CRITICAL), (1800 << 10, AlertSeverity.WARNING), (4 << 20, None)],
    )
    def test_little_of_it_left(self, bench: Bench, left_kib: int, severity: AlertSeverity | None) -> None:
        bench.kib["MemAvailable"] = left_kib
        assert bench.go(15) == ({"memory_pressure"} if severity else set())
        if severity:
            assert bench.alert("memory_pressure").severity is severity

    def test_five_percent_of_a_large_machine_are_enough(self, bench: Bench) -> None:
        bench.kib |= {"MemTotal": 1 << 30, "MemAvailable": 40 << 20}
        assert bench.go(15) == set()


class TestSwap:
    def test_reading_back_from_it_all_the_time(self, bench: Bench) -> None:
        assert bench.go(10) == set()
        for _ in range(40):
            bench.pages["pswpin"] += 1000
            bench.go(1)
        alert = bench.alert("memory_pressure")
        assert "MiB/s move between memory and swap" in alert.summary
        assert dict(alert.evidence)["read back now"] == f"{size(1000 * os.sysconf('SC_PAGE_SIZE'))}/s"
        assert bench.go(70) == set()

    @pytest.mark.parametrize("seen_s", [3, 30])
    def test_a_short_burst_is_none(self, bench: Bench, seen_s: int) -> None:
        bench.go(seen_s)
        bench.pages["pswpin"] += 2000
        bench.kib["SwapFree"] -= 20 << 10
        assert bench.go(30) == set()


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


class TestDisk:
    def test_a_disk_that_fills(self, tmp_path: Path) -> None:
        with small_disk(tmp_path / "logs", "size=24m") as logs:
            places = (("server log", str(logs)), ("specdash's state", str(logs / "not" / "there")))
            bench = Bench(tmp_path, user="[disk_full]\nlimits.critical_mib = 1", places=places)
            assert bench.go(5) == set()
            (logs / "server.log").write_bytes(b"x" * 22 * MIB)
            assert bench.go(5) == {"disk_full"}
            alert = bench.alert("disk_full")
            assert alert.severity is AlertSeverity.WARNING
            assert alert.summary == f"2.0 MiB are left on the disk of {logs} (server log, specdash's state)"
            with pytest.raises(OSError, match="No space left"):
                (logs / "more").write_bytes(b"x" * 4 * MIB)
            bench.go(3)
            assert bench.alert("disk_full").severity is AlertSeverity.CRITICAL
            for path in logs.iterdir():
                path.unlink()
            assert bench.go(12) == set()

    def test_a_disk_without_room_for_another_file(self, tmp_path: Path) -> None:
        with small_disk(tmp_path / "logs", "size=24m,nr_inodes=200") as logs:
            bench = Bench(tmp_path, places=(("server log", str(logs)),))
            assert bench.go(5) == set()
            with contextlib.suppress(OSError):
                for number in range(300):
                    (logs / str(number)).touch()
            bench.go(3)
            alert = bench.alert("disk_full")
            assert alert.severity is AlertSeverity.CRITICAL
            assert alert.summary.startswith("only 0 files can still be made")

    def test_a_small_disk_with_room_is_none(self, tmp_path: Path) -> None:
        with small_disk(tmp_path / "logs", "size=24m") as logs:
            assert Bench(tmp_path, places=(("server log", str(logs)),)).go(10) == set()
