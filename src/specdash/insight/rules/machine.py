"""The GPU and the host under the server: pure rules, described in machine.toml.

A server on another machine has another GPU and other memory than those that are seen here; only disks are judged then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.readings import FailureKind, ReadingStatus, Source, others_share
from specdash.core.records import AlertSeverity, Symptom
from specdash.core.target import local_port
from specdash.system.stats import mean
from specdash.system.text import MIB, UNKNOWN, duration, number, percent, size, size_pair

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specdash.core.readings import Disk, Gpu, GpuProcess, Host
    from specdash.insight.rules.catalogue import Limits
    from specdash.insight.rules.scene import RuleScene

THROTTLES: Mapping[str, AlertSeverity] = {
    "power cap": AlertSeverity.NOTICE,
    "thermal slowdown (software)": AlertSeverity.WARNING,
    "thermal slowdown (hardware)": AlertSeverity.CRITICAL,
    "hardware slowdown": AlertSeverity.CRITICAL,
    "power brake": AlertSeverity.CRITICAL,
}
"""How bad each of `collect.gpu.THROTTLE_REASONS` is. A power cap is how a GPU works at full load; the software slows
down before damage, the hardware when cooling or power supply fail. Reasons not listed are settings, or an idle GPU."""
_COVERED = 0.8
"""A window is judged once so much of it was seen."""
GPU_LAYERS_FLAGS = ("-ngl", "--gpu-layers", "--n-gpu-layers")


def gpu_lost(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """A GPU that was there no longer answers."""
    if not _is_here(scene):
        return
    gpus = scene.picture.gpu.gpus
    for source in scene.picture.backend.sources:
        # A source that was known once and fails is stale; on a machine without NVML it never was known.
        fails = source.status is ReadingStatus.STALE and source.failure is FailureKind.UNAVAILABLE
        if source.source is Source.GPU and fails:
            yield Symptom(
                f"the GPUs were there and NVML fails now: {source.reason}",
                (("last seen", f"{duration(source.age_s)} ago"),),
                subject=f"GPU {gpus[0].index}" if len(gpus) == 1 else "",
            )
            return
    for gpu in gpus:
        if gpu.name is None and gpu.utilisation is None and gpu.memory_used_bytes is None:
            others = f", {len(gpus) - 1} others do" if len(gpus) > 1 else ""
            yield Symptom(f"GPU {gpu.index} no longer answers NVML{others}", subject=f"GPU {gpu.index}")


def gpu_unused(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The server decodes and the GPU that it is meant to use does nothing: it runs on the CPU."""
    window = limits["window_s"]
    samples = scene.past.since(scene.now - window)
    if not _is_here(scene) or not samples or scene.now - samples[0].at < _COVERED * window:
        return
    if sum(bool(sample.busy) for sample in samples) < limits["busy_share"] * len(samples):
        return
    known = [sample.gpu_utilisation for sample in samples if sample.gpu_utilisation is not None]
    if len(known) < len(samples) / 2 or max(known) > limits["idle_share"]:
        return
    why = _meant_for_gpu(scene, limits)
    process = scene.picture.backend.process
    cores = process.cpu_cores if process is not None else None
    if why and (cores is None or cores >= limits["cores"]):
        yield Symptom(
            f"the server decodes, and its GPU has been idle for {duration(window)}, although {why}",
            (
                ("GPU, most", percent(max(known))),
                ("CPU of the server", number(cores, 1, "cores")),
                ("why a GPU is expected", why),
            ),
        )


def _meant_for_gpu(scene: RuleScene, limits: Limits) -> str:
    """Why the server should use a GPU; empty when nothing says so."""
    process = scene.picture.backend.process
    layers = _gpu_layers(process.command) if process is not None else None
    if layers:
        return f"it was started with {layers} layers for it"
    if layers is None and any(
        picture_sample.busy and (picture_sample.gpu_utilisation or 0.0) >= limits["used_share"]
        for picture_sample in scene.past.since(scene.now - limits["before_s"])
    ):
        return "it used it before"
    return ""


def _gpu_layers(command: Sequence[str]) -> int | None:
    """Layers that a command line wants on the GPU; None when it does not say."""
    for at, word in enumerate(command):
        flag, _, value = word.partition("=")
        if flag in GPU_LAYERS_FLAGS:
            value = value or (command[at + 1] if at + 1 < len(command) else "")
            return int(value) if value.isdecimal() else None
    return None


def gpu_throttled(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The clocks of a GPU at work are held down."""
    for gpu in _used(scene):
        if (gpu.utilisation or 0.0) < limits["busy_share"]:
            continue
        reasons = [throttle_reason for throttle_reason in gpu.throttle_reasons or () if throttle_reason in THROTTLES]
        if not reasons:
            continue
        severity = max((THROTTLES[reason] for reason in reasons), key=lambda alert_severity: alert_severity.rank)
        worst = ", ".join(reason for reason in reasons if THROTTLES[reason] is severity)
        yield Symptom(
            f"{_named(gpu)} is slowed down: {worst}{_by_how_much(gpu)}",
            (
                ("reasons", ", ".join(gpu.throttle_reasons or ())),
                ("temperature", number(gpu.temperature_celsius, 0, "°C")),
                ("power", _power(gpu)),
                ("SM clock", number(gpu.sm_clock_mhz, 0, "MHz")),
            ),
            subject=f"GPU {gpu.index}",
            severity=severity,
        )


def _by_how_much(gpu: Gpu) -> str:
    hot = f" at {gpu.temperature_celsius:.0f} °C" if gpu.temperature_celsius is not None else ""
    return f"{hot}, {_power(gpu)}" if gpu.power_watts is not None else hot


def _power(gpu: Gpu) -> str:
    if gpu.power_watts is None:
        return UNKNOWN
    return f"{gpu.power_watts:.0f} W" + (f" of {gpu.power_limit_watts:.0f} W" if gpu.power_limit_watts else "")


def gpu_memory_pressure(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """A GPU's memory is all but used up."""
    for gpu in _used(scene):
        free, total = gpu.memory_left_bytes, gpu.memory_total_bytes
        if free is None or not total:
            continue
        if free < limits["free_mib"] * MIB and 1 - free / total >= limits["share"]:
            yield Symptom(
                f"{_named(gpu)} has {size(free)} of {size(total)} left",
                (("used", size_pair(gpu.memory_used_bytes, total, exact=True)), *_largest(gpu.processes or ())),
                subject=f"GPU {gpu.index}",
                severity=AlertSeverity.CRITICAL if free < limits["critical_mib"] * MIB else None,
            )


def gpu_shared(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Another process has memory on the server's GPU. Judged only where the server itself is seen there."""
    for gpu in scene.picture.gpu.gpus:
        processes = gpu.processes or ()
        if not any(process.is_backend for process in processes) or not _is_known(scene):
            continue
        others = [process for process in processes if not process.is_backend]
        taken = sum(gpu_process.memory_bytes or 0 for gpu_process in others)
        if taken < limits["mib"] * MIB:
            continue
        first = max(others, key=lambda gpu_process: gpu_process.memory_bytes or 0)
        total = gpu.memory_total_bytes
        share = taken / total if total else 0.0
        yield Symptom(
            f"{first.name or 'a process'} ({first.pid}) {'and others have' if len(others) > 1 else 'has'} "
            f"{size(taken)} on {_named(gpu)}, beside the server",
            _largest(processes),
            subject=f"GPU {gpu.index}",
            severity=AlertSeverity.WARNING if share >= limits["warning_share"] else None,
        )


def _largest(processes: Iterable[GpuProcess]) -> tuple[tuple[str, str], ...]:
    """The processes with most memory, by name and pid."""
    most = sorted(processes, key=lambda gpu_process: -(gpu_process.memory_bytes or 0))[:4]
    return tuple(
        (
            f"{gpu_process.name or 'process'} {gpu_process.pid}" + (" (the server)" if gpu_process.is_backend else ""),
            size(gpu_process.memory_bytes),
        )
        for gpu_process in most
    )


def _is_known(scene: RuleScene) -> bool:
    return scene.picture.gpu.status is ReadingStatus.KNOWN and _is_here(scene)


def _is_here(scene: RuleScene) -> bool:
    """Whether the server runs on the machine whose GPUs and memory are seen."""
    return local_port(scene.picture.backend.url) is not None


def _used(scene: RuleScene) -> Sequence[Gpu]:
    """The GPUs of the server; all of them where its processes are not seen."""
    if not _is_known(scene):
        return ()
    gpus = scene.picture.gpu.gpus
    own = [gpu for gpu in gpus if any(process.is_backend for process in gpu.processes or ())]
    return own or gpus


def _named(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({gpu.name})" if gpu.name else f"GPU {gpu.index}"


def host_memory_pressure(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The machine's memory is all but used up."""
    host = scene.picture.host
    if host is None or not _is_here(scene) or host.memory_used_bytes is None or not host.memory_total_bytes:
        return
    total = host.memory_total_bytes
    left = total - host.memory_used_bytes
    if left / total >= limits["left_share"] or left >= limits["left_mib"] * MIB:
        return
    process = scene.picture.backend.process
    server = process.memory_bytes if process is not None else None
    is_critical = left / total < limits["critical_share"]
    yield Symptom(
        f"{size(left)} of {size(total)} memory is left on the machine",
        (
            ("left", f"{size(left)}, {percent(left / total)}"),
            ("the server has", size(server)),
            ("swap", _swap(host.swap_used_bytes, host.swap_total_bytes)),
        ),
        severity=AlertSeverity.CRITICAL if is_critical else None,
    )


def swapping(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Memory is read back from the swap all the time, or more and more of it goes there."""
    host = scene.picture.host
    window = limits["window_s"]
    samples = scene.past.since(scene.now - window)
    if host is None or not _is_here(scene) or not samples or scene.now - samples[0].at < _COVERED * window:
        return
    rates = [sample.swap_rate for sample in samples if sample.swap_rate is not None]
    rate = sum(rates) / len(rates) if rates else 0.0
    used = [sample.swap_used_bytes for sample in samples if sample.swap_used_bytes is not None]
    grown = used[-1] - used[0] if used else 0
    if rate < limits["mib_per_s"] * MIB and grown < limits["grown_mib"] * MIB:
        return
    what = (
        f"{size(rate)}/s move between memory and swap"
        if rate >= limits["mib_per_s"] * MIB
        else (f"the swap in use grew by {size(grown)} in {duration(window)}")
    )
    yield Symptom(
        f"the machine swaps: {what}",
        (
            ("swap", _swap(host.swap_used_bytes, host.swap_total_bytes)),
            ("moved, mean", f"{size(rate)}/s" if rates else UNKNOWN),
            ("read back now", _rate(host.swap_in_bytes_per_s)),
            ("grown", f"{size(grown)} in {duration(window)}"),
        ),
    )


def _swap(used: int | None, total: int | None) -> str:
    return f"{size(used)} of {size(total)}" if used is not None and total else "none"


def _rate(value: float | None) -> str:
    return f"{size(value)}/s" if value is not None else UNKNOWN


def specdash_starved(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Specdash itself gets no CPU in time."""
    delay, host = scene.picture.delay, scene.picture.host
    if delay is None or delay.late_s < limits["late_s"]:
        return
    yield Symptom(
        f"this machine is too busy for specdash to look in time: it woke {delay.late_s:.1f} s late within "
        f"{duration(delay.span_s)}",
        (("late", f"{delay.late_s:.1f} s within {duration(delay.span_s)}"), ("load", _load(host))),
    )


def _load(host: Host | None) -> str:
    if host is None or host.load_1m is None:
        return UNKNOWN
    return f"{host.load_1m:.1f} on {host.cpu_count} CPUs"


def server_starved(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The server waits for CPUs that others use."""
    host, process = scene.picture.host, scene.picture.backend.process
    waited = mean(sample.cpu_wait for sample in scene.past.since(scene.now - limits["window_s"]))
    others = others_share(host, process)
    if process is None or waited is None or others is None or waited < limits["cpu_wait"] or others < limits["others"]:
        return
    yield Symptom(
        f"the server is ready to run and gets no CPU for {percent(waited)} of the time; other programs use "
        f"{percent(others)} of the CPUs",
        (
            ("waits", f"{percent(waited)} of {duration(limits['window_s'])}"),
            ("others use", f"{percent(others)} of the CPUs"),
            ("the server uses", f"{number(process.cpu_cores, 2)} cores"),
            ("load", _load(host)),
        ),
    )


def disk_full(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """A disk that the server's log, the proxy's events or specdash's state is on has little room left."""
    host = scene.picture.host
    if host is None:
        return
    seen: set[object] = set()
    for disk in host.disks:
        key = disk.device if disk.device is not None else disk.path
        if key in seen:
            continue
        seen.add(key)
        uses = ", ".join(dict.fromkeys(item.use for item in host.disks if item.device == disk.device))
        no_files = disk.files_left is not None and disk.files_left < limits["files"]
        is_small = disk.free_bytes < limits["free_mib"] * MIB
        if no_files or (is_small and disk.free_bytes < limits["share"] * disk.total_bytes):
            is_critical = disk.files_left == 0 or disk.free_bytes < limits["critical_mib"] * MIB
            yield Symptom(
                _room(disk, uses, no_files=no_files),
                (
                    ("folder", disk.path),
                    ("free", f"{size(disk.free_bytes, exact=True)} of {size(disk.total_bytes)}"),
                    ("files that can be made", str(disk.files_left) if disk.files_left is not None else "no bound"),
                ),
                subject=disk.path,
                severity=AlertSeverity.CRITICAL if is_critical else None,
                names=(("folder", disk.path),),
            )


def _room(disk: Disk, uses: str, *, no_files: bool) -> str:
    if no_files:
        return f"only {disk.files_left} files can still be made on the disk of {disk.path} ({uses})"
    return f"{size(disk.free_bytes, exact=True)} are left on the disk of {disk.path} ({uses})"


def recording_fault(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The record is not written, or not as it should be."""
    if scene.picture.recording_trouble:
        yield Symptom(scene.picture.recording_trouble)
