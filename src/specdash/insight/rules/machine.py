"""The GPU and the host under the server: pure rules.

A server on another machine has another GPU and other memory than those that are seen here; only disks are judged then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.readings import FailureKind, ReadingStatus, Source, others_share
from specdash.core.records import AlertSeverity, Symptom
from specdash.core.target import local_port
from specdash.insight.rules.catalogue import rule
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


@rule(
    "GPU is lost",
    AlertSeverity.CRITICAL,
    hold_back=False,
    chart="gpu_utilisation",
    explains=("gpu_unused", "crash_loop", "backend_down", "slot_hung"),
)
def gpu_lost(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """A GPU that was there no longer answers: it fell off the bus, the driver was reloaded, or the machine slept. A
    server that uses it fails at its next step, or goes on only on the CPU.

    - nvidia-smi
    - dmesg | grep -i -e xid -e nvrm
    - the server's log: CUDA error?

    Restart the server once nvidia-smi shows the GPU again; a GPU that fell off the bus (Xid 79) needs a reboot, and a
    look at its power and cooling.
    """
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


@rule(
    "GPU is idle while the server decodes",
    AlertSeverity.WARNING,
    while_idle=False,
    chart="gpu_utilisation",
    # 2 %: a display costs as much. Decode on the CPU takes at least a third of a core; a hung GPU takes none.
    limits={"window_s": 30, "busy_share": 0.8, "idle_share": 0.02, "cores": 0.3, "used_share": 0.2, "before_s": 3600},
)
def gpu_unused(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The server decodes, and the GPU it is meant to use sits idle: it runs on the CPU, which is many times slower.
    Usually CUDA could not start, and llama.cpp says so once in its log.

    - the server's log: 'no usable GPU found', 'failed to initialize CUDA'
    - nvidia-smi
    - specdash backend show: is it a build with CUDA?

    Restart the server with the GPU visible (driver, CUDA_VISIBLE_DEVICES, container flags).
    """
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


@rule(
    "GPU is throttled",
    AlertSeverity.WARNING,
    while_idle=False,
    raise_after_s=10,
    clear_after_s=20,
    chart="gpu_utilisation",
    # Below a fifth in use the clocks do not limit anything.
    limits={"busy_share": 0.2},
)
def gpu_throttled(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The GPU's clocks are held down while it works. A power cap is usual at full load and a notice only; heat slows
    the GPU down by software, and a failing cooling or power supply by hardware. Idle clocks and clocks that somebody
    set are no throttle.

    - nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER
    - fans and air flow
    - nvidia-smi -q | grep -i 'power limit'

    Heat: cooling, or a lower power limit that holds steady clocks. Power cap: raise it (nvidia-smi -pl) where the
    supply allows it. Hardware slowdown: look at the power cables.
    """
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


@rule(
    "GPU memory nearly full",
    AlertSeverity.WARNING,
    raise_after_s=5,
    clear_after_s=20,
    explains=("out_of_memory", "compute_buffer_failed"),
    # llama.cpp allocates nearly all at its start, so a full GPU is usual; 256 MiB is what compute buffers grow by.
    limits={"free_mib": 256, "critical_mib": 64, "share": 0.97},
)
def gpu_memory_pressure(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The server's GPU has hardly any memory left. What llama.cpp allocates late (compute buffers for a longer prompt,
    an image) fails then, and so does the next start.

    - nvidia-smi
    - the GPU panel: who has the memory?

    Less context (LLAMA_CTX_SIZE), a quantised KV cache, a smaller batch (LLAMA_UBATCH_SIZE), fewer layers on the GPU;
    or end the other process.
    """
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


@rule(
    "Memory nearly full",
    AlertSeverity.WARNING,
    hold_back=False,
    raise_after_s=5,
    clear_after_s=20,
    explains=("swapping", "out_of_memory", "crash_loop", "backend_down"),
    # 5 % of a large machine is plenty, so both must hold. The kernel kills below 2 %.
    limits={"left_share": 0.05, "left_mib": 2048, "critical_share": 0.02},
)
def host_memory_pressure(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The machine has hardly any memory left: it begins to swap, drops the model's pages and reads them again, or the
    kernel kills the largest process, which is the server.

    - free -m
    - ps aux --sort=-rss | head
    - dmesg | grep -i 'out of memory'

    A smaller prompt cache (LLAMA_ARG_CACHE_RAM), fewer checkpoints, less context, or one process fewer.
    """
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


@rule(
    "The machine swaps",
    AlertSeverity.WARNING,
    hold_back=False,
    clear_after_s=30,
    explains=("server_hung", "slot_hung"),
    # Swap in use alone says nothing. A model's page that comes back is 4 KiB: 1 MiB/s is 256 waits a second.
    limits={"window_s": 30, "mib_per_s": 1, "grown_mib": 64},
)
def swapping(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Memory moves to the swap and back. A model whose pages come back from there decodes at a fraction of its speed.
    Swap that is in use and stays as it is does no harm and is not meant.

    - vmstat 1 5
    - free -m
    - grep VmSwap /proc/{pid}/status

    Free memory; keep the model in memory with --mlock where it fits.
    """
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


def _load(host: Host | None) -> str:
    if host is None or host.load_1m is None:
        return UNKNOWN
    return f"{host.load_1m:.1f} on {host.cpu_count} CPUs"


@rule(
    "CPU time is short",
    AlertSeverity.NOTICE,
    hold_back=False,
    raise_after_s=4,
    clear_after_s=5,
    explains=("server_hung", "slot_hung", "clients_leaving", "proxy_errors", "speculation_hurting"),
    # One second of five: a sound machine wakes a sleeper within milliseconds. A server whose own threads outnumber the
    # cores is its own cause: others must use a good part.
    limits={"late_s": 1, "window_s": 10, "cpu_wait": 0.4, "others": 0.4},
)
def cpu_starved(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Other programs use the CPUs. The server's threads are ready to run for most of the time and do not: prefill,
    decode and answers to /health slow down, and no setting of the server is the cause. A notice, since whether it
    does harm is for other rules to say; it is the cause of their alerts then. A warning where specdash itself wakes
    late: no alert is raised from silence while that lasts, and figures may be late.

    - top
    - cat /proc/pressure/cpu
    - ps -o pid,ni,cls,comm -p {pid}

    End or move what takes the CPUs, or give the server priority (Nice= and CPUWeight= of its unit). Threads of the
    server no more than cores (LLAMA_THREADS). Or look from another machine, with --url.
    """
    delay, host, process = scene.picture.delay, scene.picture.host, scene.picture.backend.process
    if delay is not None and delay.late_s >= limits["late_s"]:
        yield Symptom(
            f"this machine is too busy for specdash to look in time: it woke {delay.late_s:.1f} s late within "
            f"{duration(delay.span_s)}",
            (("late", f"{delay.late_s:.1f} s within {duration(delay.span_s)}"), ("load", _load(host))),
            "specdash",
            severity=AlertSeverity.WARNING,
        )
    waited = mean(sample.cpu_wait for sample in scene.past.since(scene.now - limits["window_s"]))
    others = others_share(host, process)
    if scene.is_idle or process is None or waited is None or others is None:
        return
    if waited >= limits["cpu_wait"] and others >= limits["others"]:
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


@rule(
    "Disk nearly full",
    AlertSeverity.WARNING,
    hold_back=False,
    clear_after_s=5,
    # A small disk that is nearly empty is none, and neither is 10 % of a large one.
    limits={"free_mib": 512, "share": 0.1, "critical_mib": 64, "files": 100},
)
def disk_full(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """A disk that is written to has little room left. A full one loses the server's log, the proxy's events, the record
    and the backups that a rollback needs.

    - df -h {folder}
    - df -i {folder}
    - du -xh {folder} | sort -h | tail

    Make room; LLAMA_LOG_MAX_MIB bounds the log, history_mb the record.
    """
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
