"""Runs the checks, each in a process of its own with a time limit, and gathers what they wrote after each of them."""

from __future__ import annotations

import ctypes
import gzip
import importlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

from gpu.report import Report, Result

if TYPE_CHECKING:
    from pathlib import Path

    from gpu.kit import Kit
    from gpu.report import Check

PASSED, FAILED, TIME_UP = 0, 1, 3
_MOST_LOGS, _LOG_TAIL = 60, 100_000
"""Logs of engines that come back, the newest, and characters of each: 16 MiB at most may."""
_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2)."""


CHECKS = "gpu.checks"
"""The module whose `all_checks` names them."""


def run_check(kit: Kit, name: str, module: str = CHECKS) -> int:
    """One check, in this process."""
    check = next(check for check in _checks(module) if check.name == name)
    report = Report(_file(kit, check), check.name, check.title)
    if check.needs_gpu and kit.cpu:
        report.skipped(check.title, "needs a GPU")
    else:
        try:
            check.run(kit, report)
        except Exception:  # noqa: BLE001 - whatever a check stumbles over is a finding
            report.failed("the check came to its end", note=traceback.format_exc())
    report.end()
    return FAILED if report.result() is Result.FAILED else PASSED


def run_all(kit: Kit, *, until: float, only: tuple[str, ...] = (), again: bool = False, module: str = CHECKS) -> int:
    """All checks that are not done yet, in order, as far as there is time until that Unix time. Prints a line for each.

    Returns PASSED, FAILED, TIME_UP, or 2 where `only` names what is no check.
    """
    checks = _checks(module)
    if unknown := set(only) - {check.name for check in checks}:
        names = ", ".join(check.name for check in checks)
        sys.stderr.write(f"no check is named {', '.join(sorted(unknown))}; there are {names}\n")
        return 2
    (kit.work / "results").mkdir(parents=True, exist_ok=True)
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)
    left = []
    for check in checks:
        if only and check.name not in only:
            continue
        if _is_done(kit, check) and not again:
            continue
        if until - time.time() < min(check.limit_s, 20.0):
            left.append(check.name)
            continue
        _line(_run_one(kit, check, until, module))
        gather(kit, checks)
    whole = gather(kit, checks)
    if left:
        sys.stdout.write(f"no time was left for {', '.join(left)}: call run.sh again\n")
        return TIME_UP
    return FAILED if any(check["result"] == Result.FAILED for check in whole["checks"]) else PASSED


def _run_one(kit: Kit, check: Check, until: float, module: str) -> dict[str, Any]:
    limit_s = min(check.limit_s, until - time.time())
    _file(kit, check).unlink(missing_ok=True)
    words = [sys.executable, "-m", "gpu", "check", check.name, "--kit", str(kit.kit), "--work", str(kit.work)]
    words += ["--out", str(kit.out), "--llama-server", str(kit.llama_server), "--scale", str(kit.scale)]
    words += ["--checks", module, *(["--cpu"] if kit.cpu else [])]
    started = time.monotonic()
    with _file(kit, check).with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            log.write(f"\nended after its limit of {limit_s:.0f} s\n".encode())
    _end_all_children()
    said = _read(_file(kit, check)) or {"name": check.name, "title": check.title, "ended": False, "findings": []}
    if not said["ended"]:
        note = f"ended after {limit_s:.0f} s"
        said["findings"].append({"what": "the check came to its end", "result": Result.FAILED, "note": note})
        # Cut by the end of the whole run, it is done again by the next one.
        said |= {
            "result": Result.FAILED,
            "seconds": round(time.monotonic() - started, 1),
            "done": limit_s == check.limit_s,
        }
        _file(kit, check).write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    return said


def _end_all_children() -> None:
    """Whatever a check has left running: as the reaper of orphans, this process is its parent."""
    import psutil

    for stop in (signal.SIGTERM, signal.SIGKILL):
        children = psutil.Process().children(recursive=True)
        for child in children:
            try:
                child.send_signal(stop)
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(children, timeout=5.0)
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                return
        except ChildProcessError:
            return


def gather(kit: Kit, checks: tuple[Check, ...]) -> dict[str, Any]:
    """All results in one file, and all logs in another, in the folder that comes back."""
    results = [said for check in checks if (said := _read(_file(kit, check))) is not None]
    whole = {"machine": machine(kit), "checks": results}
    (kit.out / "results.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    with gzip.open(kit.out / "log.txt.gz", "wt", encoding="utf-8") as log:
        names = ["build.log", *(f"results/{check.name}.log" for check in checks)]
        engines = sorted((kit.work / "logs").glob("*.log"), key=lambda file: file.stat().st_mtime)
        for file in (*(kit.work / name for name in names), *engines[-_MOST_LOGS:]):
            if file.exists():
                log.write(f"\n==== {file.relative_to(kit.work)}\n{file.read_text('utf-8', 'replace')[-_LOG_TAIL:]}")
    return whole


def machine(kit: Kit) -> dict[str, Any]:
    """What the figures depend on: GPU, driver, CUDA, build, processor."""
    version = subprocess.run([kit.llama_server, "--version"], capture_output=True, text=True, check=False, timeout=60)
    gpu: dict[str, str] = {}
    if not kit.cpu and (query := shutil.which("nvidia-smi")):
        fields = ("name", "driver_version", "memory.total", "compute_cap", "power.limit", "uuid")
        said = subprocess.run(
            [query, f"--query-gpu={','.join(fields)}", "--format=csv,noheader"],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        gpu = dict(zip(fields, said.stdout.strip().split("\n")[0].split(", "), strict=False))
        # One card's number is nobody's business in a published table.
        gpu.pop("uuid", None)
    packed = kit.kit / "llama.cpp.version"
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "gpu": gpu,
        "cuda": _cuda(),
        "llama_cpp": packed.read_text().strip() if packed.exists() else None,
        "build": (version.stdout + version.stderr).strip().splitlines()[:2],
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "scale": kit.scale,
    }


def _cuda() -> str | None:
    compiler = shutil.which("nvcc")
    if compiler is None:
        return None
    said = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False, timeout=60).stdout
    return next((line.split("release ")[1].split(",")[0] for line in said.splitlines() if "release " in line), None)


def _checks(module: str) -> tuple[Check, ...]:
    checks: tuple[Check, ...] = importlib.import_module(module).all_checks()
    return checks


def _file(kit: Kit, check: Check) -> Path:
    return kit.work / "results" / f"{check.name}.json"


def _is_done(kit: Kit, check: Check) -> bool:
    said = _read(_file(kit, check))
    return said is not None and bool(said["ended"] or said.get("done"))


def _read(file: Path) -> dict[str, Any] | None:
    try:
        said: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return said


def _line(said: dict[str, Any]) -> None:
    sys.stdout.write(f"{said['result']:8} {said['name']:14} {said['seconds']:6.1f} s  {said['title']}\n")
    for finding in said["findings"]:
        if finding["result"] == Result.FAILED:
            sys.stdout.write(f"         {finding['what']}: {finding.get('measured')}, not {finding.get('expected')}\n")
    sys.stdout.flush()
