"""What `specdash doctor` and `backend show` say of the machine, against nvidia-smi and the engine itself."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

from gpu.kit import free_port
from gpu.report import Check
from specdash.backend.devices import parse_devices

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gpu.kit import Kit
    from gpu.report import Report

MIB = 1024**2
FIELDS = ("name", "driver_version", "memory.total", "compute_cap")


def run(kit: Kit, report: Report) -> None:
    """Without a server, with one on the GPU, and with one that leaves the GPU alone."""
    home = kit.home("doctor")
    folder = home / "config" / "specdash"
    folder.mkdir(parents=True, exist_ok=True)
    kit.env_file(folder, "llama-server.env", LLAMA_MODEL=kit.model("target"))
    code, found = _doctor(kit, home, f"http://127.0.0.1:{free_port()}")
    report.judge("doctor without a server exits with 4", code == 4, code, 4)
    if kit.cpu:
        report.judge("doctor finds no GPU, and says why", not found["gpu"]["count"] and bool(found["gpu"]["absence"]),
                     found["gpu"]["unavailable"])  # fmt: skip
    else:
        judge_gpus(report, found["gpu"], smi_gpus(), smi_cuda())
    chosen = next((engine for engine in found["engines"] if engine["chosen"]), None)
    listed = subprocess.run(
        [kit.llama_server, "--list-devices"], capture_output=True, text=True, check=False, timeout=60
    )
    judge_engine(report, chosen, listed.stdout + listed.stderr, gpus=found["gpu"]["count"])
    _own_context(report, listed.stdout + listed.stderr)
    judge_advice(report, found, kit.cpu)
    if not kit.cpu:
        _hidden(kit, report, home)
    _shown(kit, report, home, folder)
    _running(kit, report, home)


def _doctor(kit: Kit, home: Path, url: str, *more: str, env: Mapping[str, str] | None = None) -> tuple[int, Any]:
    answer = kit.specdash(home, "doctor", "--json", "--url", url, *more, env=env)
    return answer.code, answer.json()


def smi_gpus() -> list[dict[str, str]]:
    """What nvidia-smi says of each GPU."""
    said = _smi(f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")
    return [dict(zip(FIELDS, line.split(", "), strict=True)) for line in said.splitlines() if line]


def smi_cuda() -> str | None:
    """The newest CUDA version of the driver, as nvidia-smi's table names it."""
    found = re.search(r"CUDA[\w ]* Version: *([\d.]+)", _smi())
    return found.group(1) if found is not None else None


def _smi(*words: str) -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        raise FileNotFoundError("nvidia-smi is not on PATH")
    return subprocess.run([program, *words], capture_output=True, text=True, check=True, timeout=60).stdout


def judge_gpus(report: Report, ours: Any, theirs: list[dict[str, str]], cuda: str | None) -> None:
    """doctor's `gpu` against nvidia-smi."""
    report.judge("doctor names as many GPUs", ours["count"] == len(theirs), ours["count"], len(theirs))
    report.judge("doctor names the driver", ours["driver"] == theirs[0]["driver_version"], ours["driver"],
                 theirs[0]["driver_version"])  # fmt: skip
    report.judge("doctor names the driver's CUDA version", ours["cuda"] == cuda, ours["cuda"], cuda)
    for device, row in zip(ours["devices"], theirs, strict=False):
        report.judge("doctor names the GPU", device["name"] == row["name"], device["name"], row["name"])
        size = None if device["memory_bytes"] is None else device["memory_bytes"] // MIB
        # nvidia-smi cuts to whole MiB.
        near = size is not None and abs(size - int(row["memory.total"])) <= 1
        report.judge("doctor names its memory", near, size, int(row["memory.total"]), "MiB")
        report.judge("doctor names its compute capability", device["compute"] == row["compute_cap"], device["compute"],
                     row["compute_cap"])  # fmt: skip


def judge_engine(report: Report, ours: Any, listed: str, gpus: int) -> None:
    """The chosen engine against its own list of devices."""
    devices = parse_devices(listed)
    if ours is None or devices is None:
        report.failed("doctor finds the engine, and the engine lists its devices", ours, note=listed[-500:])
        return
    cuda = bool(ours["cuda_build"])
    report.judge("doctor sees for what the engine was built", cuda == ("CUDA" in listed or bool(gpus)), cuda,
                 note=ours["evidence"])  # fmt: skip
    named = [(device["name"], device["description"], device["total_bytes"]) for device in ours["devices"] or ()]
    theirs = [(device.name, device.description, device.total_bytes) for device in devices]
    report.judge("doctor names the engine's devices", named == theirs, named, theirs)
    report.judge("doctor says whether the engine uses them", ours["uses_gpu"] is bool(devices), ours["uses_gpu"],
                 bool(devices), note=ours["verdict"])  # fmt: skip


def _own_context(report: Report, listed: str) -> None:
    """By how much the engine's list of devices, which takes a context of its own, says less than NVML."""
    from specdash.collect.gpu import GpuLooks

    free, devices = GpuLooks().look().free_bytes, parse_devices(listed)
    if free is not None and devices:
        less = round((free - devices[0].free_bytes) / MIB)
        report.figure("free memory by NVML, less what the engine's list says is free", less, "MiB")


def judge_advice(report: Report, found: Any, cpu: bool) -> None:
    """How to get an engine that uses the GPU: for this driver and this GPU."""
    commands = [entry["command"] for entry in found["install"]]
    report.figure("doctor's advice", commands)
    if cpu:
        return
    computes = sorted({device["compute"].replace(".", "") for device in found["gpu"]["devices"]})
    wanted = f"-DCMAKE_CUDA_ARCHITECTURES={';'.join(computes)}"
    report.judge("its build is for this GPU", wanted in commands[1], commands[1], wanted)
    major, minor = map(int, found["gpu"]["cuda"].split("."))
    wheel = "cu132" if (major, minor) >= (13, 2) else "cu128"
    report.judge("its wheel is one that this driver runs", commands[0].endswith(wheel), commands[0], wheel)


def _hidden(kit: Kit, report: Report, home: Path) -> None:
    _, found = _doctor(kit, home, f"http://127.0.0.1:{free_port()}", env={"CUDA_VISIBLE_DEVICES": ""})
    verdict = next(engine["verdict"] for engine in found["engines"] if engine["chosen"])
    report.judge("doctor says that CUDA_VISIBLE_DEVICES hides the GPU", "hides the GPUs" in verdict, verdict)


def _shown(kit: Kit, report: Report, home: Path, folder: Path) -> None:
    """`backend show` with all layers on the GPU."""
    env_file = kit.env_file(folder, "layers.env", LLAMA_MODEL=kit.model("target"), LLAMA_GPU_LAYERS="all")
    answer = kit.specdash(home, "backend", "show", "--env-file", str(env_file))
    said = "LLAMA_GPU_LAYERS=all has no effect" in answer.out
    what = (
        "backend show says that the layers stay where they are"
        if kit.cpu
        else "backend show has nothing against GPU layers"
    )
    report.judge(what, said is kit.cpu and answer.code == 0, answer.code, 0, note=answer.err[-300:])


def _running(kit: Kit, report: Report, home: Path) -> None:
    ways = {"on the CPU": ("-ngl", "0")} if kit.cpu else WAYS
    for name, flags in ways.items():
        with kit.server(kit.model("target"), *flags, "-c", "4096", "--fit", "off", "-lv", "4", name="doctor") as server:
            server.complete("a", 4)
            code, found = _doctor(kit, home, server.url, "--log", str(server.log))
            log = server.log.read_text("utf-8", "replace")
        report.judge(f"doctor with a server {name} exits with 0", code == 0 and found["reachable"], code, 0)
        read = found["log"]["failure"] is None and found["log"]["verbosity"] == 4
        report.judge(f"{name}: doctor reads the log", read, found["log"]["verbosity"], 4, note=str(found["log"]))
        held, layers = found["process"]["gpu_memory_bytes"], re.search(r"offloaded (\d+/\d+) layers", log)
        report.figure(f"{name}: layers that the engine says are offloaded", layers and layers.group(1))
        if kit.cpu:
            report.judge(f"{name}: doctor claims no GPU memory", held is None, held)
        elif held is None:
            report.skipped(f"{name}: doctor says what the server holds", "the driver does not name this process here")
        else:
            on_gpu = name != "without a device"
            holds = held > 100 * MIB if on_gpu else held == 0
            report.judge(f"{name}: doctor says what the server holds", holds, round(held / MIB), unit="MiB")


WAYS = {"on the GPU": ("-ngl", "99"), "with no layer on it": ("-ngl", "0"), "without a device": ("--device", "none")}
CHECKS = (Check("doctor", "doctor and backend show tell the truth about the GPU", run, 60.0),)
