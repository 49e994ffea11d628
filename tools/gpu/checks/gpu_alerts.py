"""What specdash says, and how soon, when another process takes the memory of a GPU, and when one is lost (injected)."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from gpu.memory_holder import CudaError, holding
from gpu.report import Check
from specdash.collect import gpu as collecting
from specdash.collect.hub import Hub
from specdash.core.target import Target
from specdash.insight.rules.book import SETTLE_S
from specdash.insight.state import TargetState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu.kit import Kit, Server
    from gpu.report import Report
    from specdash.core.records import Alert

MODEL_GB = 1.0
WARN_MIB, CRITICAL_MIB = 150, 30
"""Left by the other process. The rule's limits are 256 and 64 MiB, and llama-server moves a few MiB by itself."""
LOST_BOUND_S = 3.0
"""As of the other faults that are told at once (benchmarks/alert_latency.py)."""
BEATS_S = 4.0 + 2.0
"""Rules are judged at each look at the server's health, at an idle one every 2 s, and at every second look while
nothing is wrong (`JUDGED_AT_REST_S`): so long until it is seen, and from the end of its wait until the last look."""
FULL_BOUND_S = 5.0 + 1.0 + BEATS_S
"""The rule waits for 5 s, and memory is looked at every second."""
SHARED_BOUND_S = 10.0 + 5.0 + BEATS_S
"""That one waits for 10 s, and processes are looked at every 5 s."""
PATIENCE_S = 25.0
START_LEFT_MIB = 800
"""Enough for a CUDA context (about 500 MiB), too little for a model of 954 MiB, with or without one."""
OUT_OF_MEMORY = ("MiB left; shorten", "the GPU's memory ran out")
"""How specdash names the cause: where an allocation is refused, and where CUDA itself gives up."""


class Watch:
    """The dashboard's state of a server, fed by a real hub at 1 Hz."""

    def __init__(self, server: Server) -> None:
        self.state = TargetState(Target(server.url, log=str(server.log), pid=server.process.pid))

    @contextlib.contextmanager
    def on(self, settle_s: float) -> Iterator[None]:
        """Watch; go on `settle_s` after the server and the GPU were seen first: most rules are held back at a start.

        Raises TimeoutError where they are not seen.
        """
        with Hub(self.state.target, [self.state.apply], interval_s=1.0, on_target=self.state.retarget):
            until = time.monotonic() + PATIENCE_S
            while not (self._picture().backend.state == "live" and self._picture().gpu.gpus):
                if time.monotonic() > until:
                    seen = self._picture()
                    raise TimeoutError(f"server {seen.backend.state}, GPU {seen.gpu.unavailable or 'seen'}")
                time.sleep(0.02)
            time.sleep(settle_s)
            yield

    def alert(self, rule: str) -> Alert | None:
        """Of the rule, if there is one now."""
        return next((entry for entry in self._picture().alerts.active if entry.rule == rule), None)

    def until(self, *rules: str, severity: str = "") -> dict[str, tuple[float, Alert]]:
        """Seconds from now until the alert of each rule, and the alert. One that does not come is missing."""
        began = time.monotonic()
        found: dict[str, tuple[float, Alert]] = {}
        while len(found) < len(rules) and (took := time.monotonic() - began) < PATIENCE_S:
            for rule in rules:
                alert = self.alert(rule)
                if rule not in found and alert is not None and severity in ("", alert.severity):
                    found[rule] = took, alert
            time.sleep(0.01)
        return found

    @property
    def knows_process(self) -> bool:
        """Whether NVML shows the server among the GPU's processes."""
        return any(process.is_backend for gpu in self._picture().gpu.gpus for process in gpu.processes or ())

    def _picture(self) -> Any:
        return self.state.picture(time.monotonic(), time.time(), 60.0)


def run(kit: Kit, report: Report) -> None:
    """The injected faults first, which need no GPU; then the real memory."""
    with kit.server(kit.model("target"), "-ngl", "99", "-c", "4096", "--metrics", name="alerts") as server:
        for turn in range(1 if kit.cpu else 2):
            _injected(kit, report, server, turn)
    if kit.cpu:
        report.skipped("another process takes the GPU's memory", "needs a GPU")
        report.skipped("a server that finds no memory on the GPU says so", "needs a GPU")
        return
    _taken(kit, report)
    _start_without_memory(kit, report)


def _injected(kit: Kit, report: Report, server: Server, turn: int) -> None:
    """A driver cannot be made to fail on a machine that is rented: NVML's answers are injected, all else is real.

    Without a GPU the check itself is tried, on a machine that may be busy with other tests: no second is judged there.
    """
    lost_s, full_s = (PATIENCE_S, PATIENCE_S) if kit.cpu else (LOST_BOUND_S, FULL_BOUND_S)
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests"))
    import pynvml

    from support.faulty_nvml import FaultyNvml

    driver = FaultyNvml()
    driver.values["nvmlDeviceGetCurrentClocksEventReasons"] = 0
    with mock.patch.object(collecting, "_import_nvml", return_value=driver):
        watch = Watch(server)
        # Somewhere in the second between two looks.
        with watch.on(0.3 + 0.3 * turn):
            driver.faults = dict.fromkeys(("nvmlDeviceGetUtilizationRates", "nvmlInit"), pynvml.NVML_ERROR_GPU_IS_LOST)
            found = watch.until("gpu_lost")
            _judge_time(report, "a GPU that is lost is told (injected NVML)", found.get("gpu_lost"), lost_s)
            driver.faults = {}
        if turn:
            return
        watch = Watch(server)
        with watch.on(SETTLE_S + 1.0):
            # As on a card whose driver reserves a GiB: neither used nor free.
            memory = type("Memory", (), {"used": 79 << 30, "total": 80 << 30, "free": 20 << 20})
            driver.values["nvmlDeviceGetMemoryInfo"] = memory
            full = watch.until("gpu_memory_pressure").get("gpu_memory_pressure")
            _judge_time(report, "a GPU that is nearly full is told (injected NVML)", full, full_s)


def _judge_time(report: Report, what: str, found: tuple[float, Alert] | None, bound_s: float) -> None:
    if found is None:
        report.failed(what, f"no alert within {PATIENCE_S:g} s", f"< {bound_s:g}", "s")
        return
    took, alert = found
    report.judge(what, took < bound_s, round(took, 2), f"< {bound_s:g}", "s", alert.summary)


def _taken(kit: Kit, report: Report) -> None:
    with kit.server(kit.model("target", MODEL_GB), "-ngl", "99", "-c", "4096", "--metrics", name="full") as server:
        watch = Watch(server)
        with watch.on(SETTLE_S + 1.0):
            before = [alert.rule for alert in watch.state.picture(time.monotonic(), time.time(), 60.0).alerts.active]
            report.judge("no alert of the GPU before", not [name for name in before if name.startswith("gpu_")], before)
            try:
                _little_left(kit, report, server, watch)
                with holding(CRITICAL_MIB):
                    found = watch.until("gpu_memory_pressure", severity="critical").get("gpu_memory_pressure")
                    _judge_time(report, f"{CRITICAL_MIB} MiB left on the GPU are critical", found, FULL_BOUND_S)
            except CudaError as error:
                report.failed("another process takes the GPU's memory", str(error))


def _little_left(kit: Kit, report: Report, server: Server, watch: Watch) -> None:
    """Another process on the server's GPU has all but WARN_MIB of it."""
    rules = ("gpu_memory_pressure", *(("gpu_shared",) if watch.knows_process else ()))
    with holding(WARN_MIB) as held:
        found = watch.until(*rules)
        report.figure("taken by the other process", round(held.bytes / 1e9, 1), "GB", f"{held.free >> 20} MiB left")
        full = found.get("gpu_memory_pressure")
        _judge_time(report, f"{WARN_MIB} MiB left on the GPU are told", full, FULL_BOUND_S)
        report.judge("as a warning", full is not None and full[1].severity == "warning", full and str(full[1].severity))
        if "gpu_shared" in rules:
            _judge_time(report, "another process on the server's GPU is told", found.get("gpu_shared"), SHARED_BOUND_S)
        else:
            report.skipped(
                "another process on the server's GPU is told", "NVML shows no process of here, as in a container"
            )
        said = kit.specdash(kit.home("alerts"), "check", "--json", "--url", server.url, timeout=60.0).json()
        rows = {alert["rule"]: alert["severity"] for alert in said["alerts"] if alert["rule"].startswith("gpu_")}
        holds = rows.get("gpu_memory_pressure") == "warning" and set(rows) <= {"gpu_memory_pressure", "gpu_shared"}
        report.judge("specdash check warns of that, and of nothing else about the GPU", holds, rows, note=said["line"])
        works = server.complete("Once upon a time", 8).get("tokens_predicted", 0) > 0
        report.judge("the server that has its memory answers all the same", works)


def _start_without_memory(kit: Kit, report: Report) -> None:
    """A start on a full GPU: llama.cpp's own refusal, read by specdash. Its --fit would run it on the CPU."""
    home = kit.home("full")
    file = kit.env_file(
        home,
        LLAMA_MODEL=kit.model("target", MODEL_GB),
        LLAMA_GPU_LAYERS="all",
        LLAMA_CTX_SIZE=4096,
        LLAMA_ARG_FIT="off",
    )
    with holding(START_LEFT_MIB):
        began = time.monotonic()
        answer = kit.specdash(home, "backend", "run", "--env-file", str(file), timeout=60.0)
        took = time.monotonic() - began
        preflight = kit.specdash(
            home, "preflight", "--service", "backend", "--env-file", str(file), "--json", timeout=60.0
        )
    said = answer.err.strip()[-1500:]
    report.judge("a start without memory fails", answer.code == 1, answer.code, 1, note=f"after {took:.1f} s")
    report.judge("its cause is the GPU's memory", any(words in said for words in OUT_OF_MEMORY), said[-600:])
    report.judge("what to do is said", "shorten LLAMA_CTX_SIZE" in said, "shorten LLAMA_CTX_SIZE" in said)
    refused = preflight.code == 7 and "gpu-memory" in preflight.out
    report.judge("preflight refuses it before", refused, preflight.code, 7, note=preflight.out[-400:])


CHECK = Check("gpu_alerts", "a full and a lost GPU: which alerts, after how many seconds", run, 120.0)
