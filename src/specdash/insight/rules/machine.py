"""The GPU and the host under the server: pure rules.

A server on another machine has another GPU and other memory than those that are seen here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.readings import FailureKind, ReadingStatus, Source, others_share
from specdash.core.records import AlertSeverity, Symptom
from specdash.core.target import local_port
from specdash.insight.rules.catalogue import rule
from specdash.insight.rules.known import flag
from specdash.insight.rules.scene import KEEP_S
from specdash.system.stats import mean
from specdash.system.text import MIB, UNKNOWN, duration, number, percent, size, size_pair

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specdash.core.readings import Gpu
    from specdash.insight.rules.catalogue import Limits
    from specdash.insight.rules.scene import PictureSample, RuleScene

THROTTLES: Mapping[str, AlertSeverity] = {
    "power cap": AlertSeverity.NOTICE,
    "thermal slowdown (software)": AlertSeverity.WARNING,
    "thermal slowdown (hardware)": AlertSeverity.CRITICAL,
    "hardware slowdown": AlertSeverity.CRITICAL,
    "power brake": AlertSeverity.CRITICAL,
}
"""How bad each of `collect.gpu.THROTTLE_REASONS` is; those not listed are settings, or an idle GPU."""
_COVERED = 0.8
"""A window is judged once so much of it was seen."""
GPU_LAYERS_FLAGS = ("-ngl", "--gpu-layers", "--n-gpu-layers")


@rule(
    "GPU is lost or unused",
    AlertSeverity.CRITICAL,
    hold_back=False,
    chart="gpu_utilisation",
    explains=("crash_loop", "backend_down", "slot_hung"),
    # 2 %: a display costs as much. Decode on the CPU takes at least a third of a core; a hung GPU takes none.
    limits={"window_s": 30, "busy_share": 0.8, "idle_share": 0.02, "cores": 0.3, "used_share": 0.2},
)
def gpu_lost(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """A GPU that was there no longer answers: it fell off the bus, the driver was reloaded, or the machine slept. A
    server that uses it fails at its next step. A warning where the GPU is idle while the server decodes, many times
    slower, on the CPU: usually CUDA could not start.

    - nvidia-smi
    - dmesg | grep -i -e xid -e nvrm
    - the server's log: CUDA error, 'no usable GPU found', 'failed to initialize CUDA'?

    Restart the server once nvidia-smi shows the GPU again, and with the GPU visible (CUDA_VISIBLE_DEVICES, container
    flags); a GPU that fell off the bus (Xid 79) needs a reboot, and a look at its power and cooling.
    """
    if not _is_here(scene):
        return
    gpus = scene.picture.gpu.gpus
    source = scene.source(Source.GPU)
    # A source that was known once and fails is stale; on a machine without NVML it never was known.
    if source.status is ReadingStatus.STALE and source.failure is FailureKind.UNAVAILABLE:
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
    samples, process = _window(scene, limits["window_s"]), scene.picture.backend.process
    used = [sample.gpu_utilisation for sample in samples if sample.gpu_utilisation is not None]
    is_busy = sum(bool(sample.busy) for sample in samples) >= limits["busy_share"] * len(samples)
    cores = process.cpu_cores if process is not None else None
    layers = flag(scene, *GPU_LAYERS_FLAGS) or ""
    meant = f"it was started with {layers} layers for it" if layers.isdecimal() and int(layers) else ""
    if not layers and any(
        one.busy and (one.gpu_utilisation or 0.0) >= limits["used_share"] for one in scene.own(KEEP_S)
    ):
        meant = "it used it before"
    decodes = is_busy and 2 * len(used) > len(samples) and (cores is None or cores >= limits["cores"])
    if decodes and meant and max(used) <= limits["idle_share"]:
        yield Symptom(
            f"the server decodes, and its GPU has been idle for {duration(limits['window_s'])}, although {meant}",
            (("GPU, most", percent(max(used))), ("CPU of the server", number(cores, 1, "cores"))),
            severity=AlertSeverity.WARNING,
        )


def _window(scene: RuleScene, seconds: float) -> Sequence[PictureSample]:
    """The samples of the last `seconds`; none until most of that time was seen."""
    samples = scene.lately(seconds)
    return samples if scene.now - samples[0].at >= _COVERED * seconds else ()


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
    the GPU down by software, and a failing cooling or power supply by hardware. Idle clocks and clocks that were set
    are no throttle.

    - nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER
    - fans and air flow

    Heat: cooling, or a lower power limit that holds steady clocks. Power cap: raise it (nvidia-smi -pl) where the
    supply allows it. Hardware slowdown: look at the power cables.
    """
    for gpu in _used(scene):
        reasons = [reason for reason in gpu.throttle_reasons or () if reason in THROTTLES]
        if not reasons or (gpu.utilisation or 0.0) < limits["busy_share"]:
            continue
        severity = max((THROTTLES[reason] for reason in reasons), key=lambda one: one.rank)
        worst = ", ".join(reason for reason in reasons if THROTTLES[reason] is severity)
        hot = f" at {gpu.temperature_celsius:.0f} °C" if gpu.temperature_celsius is not None else ""
        limit = f" of {gpu.power_limit_watts:.0f} W" if gpu.power_limit_watts else ""
        power = f", {gpu.power_watts:.0f} W{limit}" if gpu.power_watts is not None else ""
        yield Symptom(
            f"{_named(gpu)} is slowed down: {worst}{hot}{power}",
            (("reasons", ", ".join(gpu.throttle_reasons or ())), ("SM clock", number(gpu.sm_clock_mhz, 0, "MHz"))),
            subject=f"GPU {gpu.index}",
            severity=severity,
        )


def _is_here(scene: RuleScene) -> bool:
    """Whether the server runs on the machine whose GPUs and memory are seen."""
    return local_port(scene.picture.backend.url) is not None


def _used(scene: RuleScene) -> Sequence[Gpu]:
    """The GPUs of the server; all of them where its processes are not seen."""
    if scene.picture.gpu.status is not ReadingStatus.KNOWN or not _is_here(scene):
        return ()
    gpus = scene.picture.gpu.gpus
    own = [gpu for gpu in gpus if any(process.is_backend for process in gpu.processes or ())]
    return own or gpus


def _named(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({gpu.name})" if gpu.name else f"GPU {gpu.index}"


@rule(
    "Memory nearly full, or swapping",
    AlertSeverity.WARNING,
    hold_back=False,
    raise_after_s=5,
    clear_after_s=20,
    explains=("server_hung", "slot_hung", "out_of_memory", "crash_loop", "backend_down"),
    # 5 % of a large machine is plenty, so both must hold. The kernel kills below 2 %. Swap in use alone says nothing. A
    # model's page that comes back is 4 KiB: 1 MiB/s is 256 waits a second. llama.cpp allocates nearly all of a GPU at
    # its start, so a full one is usual; 256 MiB is what compute buffers grow by.
    limits={
        "left_share": 0.05,
        "left_mib": 2048,
        "critical_share": 0.02,
        "swap_window_s": 30,
        "swap_mib_per_s": 1,
        "gpu_mib": 256,
        "gpu_critical_mib": 64,
        "gpu_share": 0.03,
    },
)
def memory_pressure(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """The machine or the server's GPU has hardly any memory left, or memory moves to the swap and back: a model whose
    pages come back from there decodes at a fraction of its speed, what llama.cpp allocates late (a longer prompt, an
    image) fails, or the kernel kills the largest process, which is the server. Swap in use alone does no harm.

    - free -m
    - nvidia-smi
    - vmstat 1 5
    - ps aux --sort=-rss | head

    Machine: a smaller prompt cache (LLAMA_ARG_CACHE_RAM), fewer checkpoints, less context, or one process fewer. GPU:
    less context (LLAMA_CTX_SIZE), a quantised KV cache, a smaller batch (LLAMA_ARG_UBATCH), fewer layers on it.
    """
    for gpu in _used(scene):
        free, of = gpu.memory_left_bytes, gpu.memory_total_bytes
        if free is None or not of or free >= limits["gpu_mib"] * MIB or free > limits["gpu_share"] * of:
            continue
        most = sorted(gpu.processes or (), key=lambda process: -(process.memory_bytes or 0))[:4]
        yield Symptom(
            f"{_named(gpu)} has {size(free)} of {size(of)} left",
            tuple((f"{process.name or 'process'} {process.pid}", size(process.memory_bytes)) for process in most),
            subject=f"GPU {gpu.index}",
            severity=AlertSeverity.CRITICAL if free < limits["gpu_critical_mib"] * MIB else None,
        )
    host, process = scene.picture.host, scene.picture.backend.process
    if host is None or not _is_here(scene):
        return
    used, total = host.memory_used_bytes, host.memory_total_bytes
    left = total - used if total and used is not None else None
    share = left / total if total and left is not None else 1.0
    is_short = left is not None and share < limits["left_share"] and left < limits["left_mib"] * MIB
    rate = mean(sample.swap_rate for sample in _window(scene, limits["swap_window_s"]))
    if is_short or (rate or 0.0) >= limits["swap_mib_per_s"] * MIB:
        short = f"{size(left)} of {size(total)} memory is left on the machine"
        yield Symptom(
            short if is_short else f"the machine swaps: {size(rate)}/s move between memory and swap",
            (
                ("the server has", size(process.memory_bytes if process is not None else None)),
                ("swap", size_pair(host.swap_used_bytes, host.swap_total_bytes)),
                ("moved to and from swap, mean", f"{size(rate)}/s"),
                ("read back now", f"{size(host.swap_in_bytes_per_s)}/s"),
            ),
            severity=AlertSeverity.CRITICAL if share < limits["critical_share"] else None,
        )


@rule(
    "CPU time is short",
    AlertSeverity.NOTICE,
    hold_back=False,
    raise_after_s=4,
    clear_after_s=5,
    explains=("server_hung", "slot_hung", "proxy_errors", "speculation_hurting"),
    # One second of five: a sound machine wakes a sleeper within milliseconds. A server whose own threads outnumber the
    # cores is its own cause: others must use a good part.
    limits={"late_s": 1, "window_s": 10, "cpu_wait": 0.4, "others": 0.4},
)
def cpu_starved(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Other programs use the CPUs: the server's threads are ready to run and do not, so that prefill, decode and
    answers to /health slow down. A warning where specdash itself wakes late: no alert is raised from silence while that
    lasts, and figures may be late.

    - top
    - cat /proc/pressure/cpu
    - ps -o pid,ni,cls,comm -p {pid}

    End or move what takes the CPUs, or give the server priority (Nice= and CPUWeight= of its unit). Threads of the
    server no more than cores (LLAMA_THREADS). Or look from another machine, with --url.
    """
    delay, host, process = scene.picture.delay, scene.picture.host, scene.picture.backend.process
    load = f"{number(host.load_1m, 1)} on {host.cpu_count} CPUs" if host is not None else UNKNOWN
    if delay is not None and delay.late_s >= limits["late_s"]:
        yield Symptom(
            f"this machine is too busy for specdash to look in time: it woke {delay.late_s:.1f} s late within "
            f"{duration(delay.span_s)}",
            (("load", load),),
            "specdash",
            severity=AlertSeverity.WARNING,
        )
    trees = (sample.process for sample in scene.lately(limits["window_s"]))
    waited = mean(tree.cpu_wait for tree in trees if tree is not None)
    others = others_share(host, process)
    if scene.is_idle or process is None or waited is None or others is None:
        return
    if waited >= limits["cpu_wait"] and others >= limits["others"]:
        yield Symptom(
            f"the server is ready to run and gets no CPU for {percent(waited)} of the time; other programs use "
            f"{percent(others)} of the CPUs",
            (("the server uses", f"{number(process.cpu_cores, 2)} cores"), ("load", load)),
        )
