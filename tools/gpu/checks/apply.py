"""What an apply costs with a large model: its downtime as a client sees it beside the engine's own stop and start, and
the GPU's memory before, meanwhile and afterwards.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpu.kit import START_S, free_port
from gpu.report import Check
from specdash.backend.demo import proxy_env_text
from specdash.backend.launch import plan_from_file
from specdash.bench.compare.machine import MachineWatch
from specdash.bench.load.messages import Clients
from specdash.control.apply import steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from gpu.kit import Answer, Kit
    from gpu.report import Report
    from specdash.bench.compare.machine import MachineState

SIZE_GB = 8
LENGTHS, LENGTHS_CPU = (6, 8, 2, 4), (6, 4)
"""Of drafts, one an apply; the service begins with 4."""
NOT_A_TEMPLATE = "{% for message in messages %}{{ message.content "
"""Preflight lets it pass, and the engine ends once it has loaded the model."""
ALONE = 2
"""Starts of the engine by itself."""
CLIENTS = 2
OVERHEAD_S = 0.25
"""What specdash may add to what the engine itself takes (docs/apply.md)."""
SEEN_S = 0.1
"""As far may a client and the record be apart; a client asks every 5 ms."""
SAMPLE_S = 0.05
REST_S = 1.0
MIB = 1 << 20
LEFT_MIB = 128
"""So much more or less may be in use after an apply: buffers follow drafts and requests. An engine takes far more."""
OVERLAP_MIB = 256
"""Less than a CUDA context takes: two engines at once hold more than that above one."""
MANAGER = ("--manager", "supervisor")
APPLY_S = 60.0


@dataclass(frozen=True, slots=True)
class Served:
    """The services of the check."""

    home: Path
    env_file: Path
    port: int
    url: str
    proxy: str


@dataclass(frozen=True, slots=True)
class Seen:
    """One apply: what the command said, what a client saw, and what the GPU held. Seconds and bytes."""

    answer: Answer
    record: dict[str, Any]
    gap_s: float
    memory: tuple[int, ...]
    """In use, one look after the other; empty without a GPU."""

    @property
    def overhead_s(self) -> float | None:
        """Downtime less the engine's load; its stop is in it."""
        down, load = self.record.get("downtime_s"), self.record.get("step_seconds", {}).get("engine load")
        return None if down is None or load is None else down - load


def run(kit: Kit, report: Report) -> None:
    """See the module."""
    measure(kit, report)


def measure(kit: Kit, report: Report, nvml: Any = None) -> None:
    """With `nvml` as in `collect.gpu`."""
    before = _memory_now(nvml)
    with _services(kit, report) as served:
        starts, stops = _alone(kit, served)
        own_start, own_stop = statistics.median(starts), statistics.median(stops)
        report.figure(
            f"the engine's own start, {SIZE_GB} GB model, warm page cache", round(own_start, 3), "s", f"{starts}"
        )
        report.figure("the engine's own stop", round(own_stop, 3), "s", f"{stops}")
        with Clients(served.proxy, CLIENTS) as load:
            time.sleep(1.0)
            lengths = LENGTHS_CPU if kit.cpu else LENGTHS
            good = [_apply(kit, served, f"LLAMA_DRAFT_MAX={length}", nvml) for length in lengths]
            old = served.env_file.read_bytes()
            bad = _apply(kit, served, f"LLAMA_ARG_CHAT_TEMPLATE={NOT_A_TEMPLATE}", nvml)
            came_back = served.env_file.read_bytes() == old and steps.healthy(served.url)
            refused = _apply(kit, served, "LLAMA_DRAFT_MAX=0", nvml)
            time.sleep(1.0)
        _judge_endings(report, good, bad, refused, came_back=came_back)
        _judge_downtime(kit, report, good, own_start, own_stop)
        if bad.record.get("downtime_s") is not None:
            report.figure("downtime of an apply that fails and is rolled back", bad.record["downtime_s"], "s")
        failed = [f"{error.way}: {error.error}" for error in load.errors]
        asked = len(load.seen)
        report.judge(
            "no request through the proxy failed", asked > 0 and not failed, failed[:5] or asked, "none of them"
        )
        longest = max((request_seen.duration_s for request_seen in load.seen), default=0.0)
        report.figure("longest request meanwhile", round(longest, 2), "s")
        _judge_records(kit, report, served, [*good, bad, refused])
        _judge_memory(kit, report, [*good, bad])
    left = _memory_now(nvml)
    if before is not None and left is not None:
        held = (left - before) // MIB
        report.judge("nothing stays on the GPU once the services are gone", held <= LEFT_MIB, held, LEFT_MIB, "MiB")


def within_overhead(kit: Kit, report: Report, what: str, seconds: float, note: str = "") -> None:
    """Judge what specdash adds; on two busy cores it is a figure."""
    if kit.cpu:
        report.figure(
            what, round(seconds, 3), "s", f"at most {OVERHEAD_S} on a machine of its own; {note}".rstrip("; ")
        )
    else:
        report.judge(what, seconds <= OVERHEAD_S, round(seconds, 3), OVERHEAD_S, "s", note)


def backend_env(kit: Kit, home: Path, gigabytes: float, **keys: object) -> Path:
    """The env file of a backend that drafts 4 tokens with `draft-simple`."""
    # Threads that wait for each other by spinning take one another's cores where others work, too.
    threads = {"LLAMA_THREADS": 1} if kit.cpu else {}
    values: dict[str, object] = {
        "LLAMA_MODEL": kit.model("target", gigabytes),
        "LLAMA_DRAFT_MODEL": kit.model("draft"),
        "LLAMA_SPEC_TYPE": "draft-simple",
        "LLAMA_DRAFT_MAX": 4,
        "LLAMA_CTX_SIZE": 16384,
        "LLAMA_PARALLEL": 4,
        **threads,
        **keys,
    }
    return kit.env_file(home, "backend.env", **values)


@contextlib.contextmanager
def _services(kit: Kit, report: Report) -> Iterator[Served]:
    """Backend and proxy under the built-in supervisor, in a home of their own; both healthy."""
    home = kit.home("apply")
    shutil.rmtree(home)
    home.mkdir()
    port, proxy_port = free_port(), free_port()
    file = backend_env(kit, home, SIZE_GB, LLAMA_PORT=port)
    proxy_file = home / "proxy.env"
    upstream = f"http://127.0.0.1:{port}"
    proxy_file.write_text(
        proxy_env_text(port=proxy_port, upstream=upstream, events=home / "events.jsonl"), encoding="utf-8"
    )
    proxy_file.chmod(0o600)
    files = ("--backend-env", str(file), "--proxy-env", str(proxy_file))
    try:
        began = time.monotonic()
        answer = kit.specdash(home, "services", "install", *MANAGER, *files, "--start", timeout=APPLY_S)
        report.judge("services are set up and started under the built-in supervisor", answer.code == 0, answer.code, 0)
        proxy = f"http://127.0.0.1:{proxy_port}"
        for url in (upstream, proxy):
            _wait_healthy(url, answer)
        report.figure("services healthy after", round(time.monotonic() - began, 2), "s", "the model's first load")
        yield Served(home, file, port, upstream, proxy)
    finally:
        gone = kit.specdash(home, "services", "uninstall", *MANAGER, timeout=APPLY_S)
        report.judge("services are gone after uninstall", gone.code == 0 and not steps.healthy(upstream), gone.code, 0)


def _wait_healthy(url: str, answer: Answer) -> None:
    until = time.monotonic() + START_S
    while not steps.healthy(url):
        if time.monotonic() > until:
            raise RuntimeError(f"{url} does not get healthy: {answer.out[-500:]} {answer.err[-1000:]}")
        time.sleep(0.02)


def _alone(kit: Kit, served: Served) -> tuple[list[float], list[float]]:
    """Seconds from the start of the engine's process to healthy, and from SIGTERM to its end, with nothing around it:
    the service's own command on another port."""
    from benchmarks.swap import until_healthy

    other = served.home / "alone.env"
    text = served.env_file.read_text(encoding="utf-8").replace(f'"{served.port}"', f'"{free_port()}"')
    other.write_text(text, encoding="utf-8")
    environment = kit.environment(served.home)
    plan = plan_from_file(str(other), base=environment)
    starts, stops = [], []
    for _ in range(ALONE):
        began = time.perf_counter()
        with subprocess.Popen(
            plan.argv, env=plan.environment(environment), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                starts.append(round(until_healthy(plan.settings.port) - began, 3))
                asked = time.perf_counter()
                process.terminate()
                process.wait(30.0)
                stops.append(round(time.perf_counter() - asked, 3))
            finally:
                process.kill()
    return starts, stops


def _apply(kit: Kit, served: Served, change: str, nvml: Any) -> Seen:
    from benchmarks.swap import Client

    client = Client(served.port)
    try:
        with MachineWatch(SAMPLE_S, nvml=nvml) as watch:
            answer = kit.specdash(
                served.home, "apply", change, "--yes", "--json", "--settle-time", "1", *MANAGER, timeout=APPLY_S
            )
            # The last look is of memory that has come to rest.
            time.sleep(REST_S)
    finally:
        gap = client.close()
    return Seen(answer, answer.json(), gap, _memory(watch.states))


def _judge_endings(report: Report, good: Sequence[Seen], bad: Seen, refused: Seen, *, came_back: bool) -> None:
    endings = [(item.answer.code, item.record["outcome"]) for item in good]
    report.judge("every apply of a draft length is applied", set(endings) == {(0, "applied")}, endings, [0, "applied"])
    warnings = [warning for item in good for warning in item.record["warnings"]]
    report.judge("and without a warning", not warnings, warnings, [])
    ending = [bad.answer.code, bad.record["outcome"], bad.record["failed_step"]]
    told = report.judge(
        "a chat template that does not parse is rolled back", ending == [11, "rolled back", "health"], ending,
        [11, "rolled back", "health"],
    )  # fmt: skip
    report.judge("the settings from before are in force then", told and came_back, came_back, True)
    ending = [refused.answer.code, refused.record["outcome"], refused.record["downtime_s"]]
    report.judge("a draft length of 0 is refused without downtime", ending == [7, "refused", None], ending)


def _judge_downtime(kit: Kit, report: Report, good: Sequence[Seen], own_start: float, own_stop: float) -> None:
    downtimes = [item.record["downtime_s"] for item in good if item.record["downtime_s"] is not None]
    overheads = [item.overhead_s for item in good if item.overhead_s is not None]
    if not report.judge("every apply tells its downtime and the engine's load", len(overheads) == len(good)):
        return
    gaps = [round(item.gap_s, 3) for item in good]
    loads = [item.record["step_seconds"]["engine load"] for item in good]
    report.figure(
        f"downtime of an apply, {SIZE_GB} GB model, by its record", statistics.median(downtimes), "s", f"{downtimes}"
    )
    report.figure("downtime as a client of the backend saw it", statistics.median(gaps), "s", f"{gaps}")
    report.figure("the engine's load in an apply", statistics.median(loads), "s", f"{loads}")
    seen = statistics.median(gaps) - own_start - own_stop
    report.figure("a client's downtime beyond the engine's own stop and start", round(seen, 3), "s")
    apart = max(abs(gap - down) for gap, down in zip(gaps, downtimes, strict=True))
    what = "client and record agree on the downtime"
    if kit.cpu:
        report.figure(what, round(apart, 3), "s")
    else:
        report.judge(what, apart <= SEEN_S, round(apart, 3), SEEN_S, "s")
    note = f"with the stop, {own_stop:.3f} s by itself: {[round(overhead, 3) for overhead in overheads]}"
    what = "what an apply adds to the engine's own stop and load, at most"
    within_overhead(kit, report, what, max(overheads) - own_stop, note)


def _judge_records(kit: Kit, report: Report, served: Served, seen: Sequence[Seen]) -> None:
    answer = kit.specdash(served.home, "applies", "--json")
    kept = {entry["number"]: entry for entry in answer.json()}
    told = {item.record["number"]: item.record for item in seen}
    report.judge(
        "`applies --json` has what every apply said of itself",
        answer.code == 0 and kept == told,
        [kept[number]["outcome"] for number in sorted(kept)],
        [item.record["outcome"] for item in seen],
    )


def _judge_memory(kit: Kit, report: Report, seen: Sequence[Seen]) -> None:
    known = [item for item in seen if item.memory]
    if not known:
        report.skipped("the GPU's memory before, in and after an apply", "needs a GPU")
        return
    grown = [(item.memory[-1] - item.memory[0]) // MIB for item in known]
    report.judge("an apply leaves the GPU's memory as it was", max(map(abs, grown)) <= LEFT_MIB, grown, LEFT_MIB, "MiB")
    above = [(max(item.memory) - item.memory[0]) // MIB for item in known]
    report.judge(
        "the old engine's memory is gone before the new one loads",
        max(above) <= OVERLAP_MIB, above, OVERLAP_MIB, "MiB", "the most in use meanwhile, above what was in use before",
    )  # fmt: skip
    model = kit.model("target", SIZE_GB).stat().st_size // MIB
    freed = [(item.memory[0] - min(item.memory)) // MIB for item in known]
    report.judge("an apply gives the whole model's memory back first", min(freed) >= 0.9 * model, freed, model, "MiB")


def _memory(states: Sequence[MachineState]) -> tuple[int, ...]:
    sums = []
    for state in states:
        used = [gpu.memory_used_bytes for gpu in state.gpus if gpu.memory_used_bytes is not None]
        if used:
            sums.append(sum(used))
    return tuple(sums)


def _memory_now(nvml: Any) -> int | None:
    from specdash.collect.gpu import GpuLooks

    return GpuLooks(nvml=nvml).look().used_bytes


CHECK = Check("apply", f"Downtime and memory of an apply, {SIZE_GB} GB model", run, limit_s=150.0)
