"""Every rule of machine.py on what NVML, the kernel and disks show: raised and not raised.

Real disks, CPUs and a real server are in tests/e2e/test_machine_rules.py, broken drivers in tests/collect/test_gpu.py.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from insight.scenes import OK, Watch, of_family, tell, working
from specdash.collect.gpu import THROTTLE_REASONS
from specdash.core.readings import (
    Disk,
    FailureKind,
    Gpu,
    GpuProcess,
    Gpus,
    Host,
    ProcessTree,
    SchedulingDelay,
    Slot,
    Slots,
)
from specdash.core.records import AlertSeverity
from specdash.insight.rules.machine import THROTTLES

OWN = of_family("machine")
NOTICE, WARNING, CRITICAL = AlertSeverity
GIB, MIB = 1 << 30, 1 << 20
GPU = Gpu(
    0, "H200", utilisation=0.9, memory_used_bytes=8 * GIB, memory_total_bytes=80 * GIB, memory_free_bytes=70 * GIB,
    power_watts=250.0, power_limit_watts=700.0, temperature_celsius=61, throttle_reasons=(),
    processes=(GpuProcess(10, 8 * GIB, is_backend=True),),
)  # fmt: skip
HOST = Host(
    cpu_utilisation=0.5, cpu_count=2, memory_used_bytes=24 * GIB, memory_total_bytes=64 * GIB, swap_used_bytes=GIB,
    swap_total_bytes=8 * GIB, swap_in_bytes_per_s=0.0, swap_out_bytes_per_s=0.0,
)  # fmt: skip
SERVER = ProcessTree(10, "llama-server", cpu_cores=1.5, command=("llama-server", "-ngl", "99"))
LOGS = Disk("/logs", "server log", 20 * MIB, 24 * MIB, 7, 1000)
ON_TIME = SchedulingDelay(0.0, 5.0)
UNUSED, IDLE = replace(GPU, utilisation=0.0), Slots((Slot(0, is_processing=False),))


def look(watch: Watch, seconds: int, gpus: Any = (GPU,), **changes: Any) -> set[str]:
    """A server at work for so long, on such a machine; the rules with an alert after it."""
    for _ in range(seconds):
        readings = {"process": SERVER, "host": HOST, "slots": working(int(watch.at)), "scheduling": ON_TIME, **changes}
        watch.look(1, gpu=Gpus(gpus) if isinstance(gpus, tuple) else gpus, **readings, health=OK)
    return watch.raised()


def throttled(*reasons: str) -> tuple[Gpu, ...]:
    return (replace(GPU, throttle_reasons=reasons),)


def gpu_left(mib: int) -> tuple[Gpu, ...]:
    return (replace(GPU, memory_free_bytes=mib * MIB),)


def left(mib: int, **changes: Any) -> Host:
    return replace(HOST, memory_used_bytes=64 * GIB - mib * MIB, **changes)


@pytest.mark.parametrize(
    ("gpus", "changes", "seconds", "expected"),
    [
        ((GPU,), {}, 60, None),
        # A GPU that no longer answers, one of several, and a driver that fails; without NVML none is lost.
        ((GPU, Gpu(1)), {}, 2, ("gpu_lost", CRITICAL, "GPU 1 no longer answers NVML, 1 others do")),
        (FailureKind.UNAVAILABLE, {}, 2, ("gpu_lost", CRITICAL, "the GPUs were there and NVML fails now")),
        # Unused, though meant to be used: by its flags, or because it was before.
        ((UNUSED,), {}, 20, None),
        ((UNUSED,), {}, 40, ("gpu_lost", WARNING, "it was started with 99 layers for it")),
        ((UNUSED,), {"process": replace(SERVER, command=("llama-server",))}, 40, ("gpu_lost", WARNING, "it used it")),
        ((UNUSED,), {"process": replace(SERVER, command=("x", "--gpu-layers=0"))}, 60, None),
        ((UNUSED,), {"process": replace(SERVER, cpu_cores=0.05)}, 60, None),
        ((UNUSED,), {"slots": IDLE}, 60, None),
        # How bad a throttle is depends on its reason; idle clocks and clocks that were set are none.
        (throttled("power cap"), {}, 8, None),
        (throttled("power cap"), {}, 12, ("gpu_throttled", NOTICE, "power cap at 61 °C, 250 W of 700 W")),
        (throttled("power cap", "thermal slowdown (software)"), {}, 12,
         ("gpu_throttled", WARNING, "GPU 0 (H200) is slowed down: thermal slowdown (software) at")),
        (throttled("hardware slowdown", "thermal slowdown (hardware)"), {}, 12,
         ("gpu_throttled", CRITICAL, "hardware slowdown, thermal slowdown (hardware)")),
        (throttled("idle", "application clocks"), {}, 12, None),
        (throttled("hardware slowdown"), {"slots": IDLE}, 12, None),
        # Little memory left, on the server's GPU and on the machine, of which 5 % may be plenty.
        (gpu_left(300), {}, 10, None),
        (gpu_left(200), {}, 10, ("memory_pressure", WARNING, "GPU 0 (H200) has 200 MiB of 80.0 GiB left")),
        (gpu_left(30), {}, 10, ("memory_pressure", CRITICAL, "GPU 0")),
        ((GPU, replace(gpu_left(0)[0], index=1, processes=(GpuProcess(11, GIB),))), {}, 10, None),
        ((GPU,), {"host": left(4096)}, 10, None),
        ((GPU,), {"host": left(1800)}, 10, ("memory_pressure", WARNING, "is left on the machine")),
        ((GPU,), {"host": left(1024)}, 10, ("memory_pressure", CRITICAL, "is left on the machine")),
        ((GPU,), {"host": left(40 * 1024, memory_total_bytes=1024 * GIB)}, 10, None),
        # Swap that moves all the time.
        ((GPU,), {"host": replace(HOST, swap_in_bytes_per_s=2e6)}, 8, None),
        ((GPU,), {"host": replace(HOST, swap_in_bytes_per_s=2e6)}, 40, ("memory_pressure", WARNING, "MiB/s move")),
        # No CPU, because of other programs and not of its own threads, and not for a moment; or none for specdash.
        ((GPU,), {"process": replace(SERVER, cpu_wait=0.7, cpu_cores=0.3), "host": replace(HOST, cpu_utilisation=1.0)},
         20, ("cpu_starved", NOTICE, "gets no CPU for 70 % of the time")),
        ((GPU,), {"process": replace(SERVER, cpu_wait=0.7, cpu_cores=1.9), "host": replace(HOST, cpu_utilisation=1.0)},
         20, None),
        ((GPU,), {"process": replace(SERVER, cpu_wait=0.1, cpu_cores=0.3), "host": replace(HOST, cpu_utilisation=1.0)},
         20, None),
        ((GPU,), {"scheduling": SchedulingDelay(2.0, 5.0)}, 8, ("cpu_starved", WARNING, "too busy for specdash")),
        # A disk that fills, or has no room for another file; a small one that is nearly empty is none.
        ((GPU,), {"host": replace(HOST, disks=(LOGS,))}, 2, None),
        ((GPU,), {"host": replace(HOST, disks=(replace(LOGS, free_bytes=100 * MIB, total_bytes=GIB + 1),
                                               replace(LOGS, use="specdash's state")))}, 2,
         ("disk_full", WARNING, "100.0 MiB are left on the disk of /logs (server log, specdash's state)")),
        ((GPU,), {"host": replace(HOST, disks=(replace(LOGS, free_bytes=MIB),))}, 2, ("disk_full", CRITICAL, "1.0 M")),
        ((GPU,), {"host": replace(HOST, disks=(replace(LOGS, files_left=0),))}, 2,
         ("disk_full", CRITICAL, "only 0 files can still be made")),
    ],
)  # fmt: skip
def test_what_is_raised_on_such_a_machine_and_is_over_with_it(
    gpus: Any, changes: dict[str, Any], seconds: int, expected: tuple[str, AlertSeverity, str] | None
) -> None:
    watch = Watch(OWN)
    assert look(watch, 5) == set()
    assert look(watch, seconds, gpus, **changes) == ({expected[0]} if expected else set())
    for alert in watch.state.alerts.picture().active:
        assert expected is not None
        assert (alert.severity, expected[2] in alert.summary) == (expected[1], True), alert.summary
    assert look(watch, 65) == set()


def test_no_gpu_is_lost_that_was_never_there_or_is_of_another_machine() -> None:
    assert look(Watch(OWN), 40, FailureKind.UNAVAILABLE) == set()
    for gpus, subject in (((GPU,), "GPU 0"), ((GPU, replace(GPU, index=1)), "")):
        watch = Watch(OWN)
        look(watch, 5, gpus)
        look(watch, 5, FailureKind.UNAVAILABLE)
        assert watch.found("gpu_lost").subject == subject, "named where it is the only one"
    watch = Watch(OWN)
    watch.retarget(url="http://gpu-box:8080")
    tell(watch.state, 0.0, health=OK)
    assert look(watch, 30, (replace(GPU, memory_free_bytes=0), Gpu(1)), host=left(100)) == set()


def test_every_reason_in_the_table_is_one_of_the_collectors() -> None:
    assert set(THROTTLES) <= {name for _, name in THROTTLE_REASONS}
