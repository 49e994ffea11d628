"""What `specdash incident` costs: wall and CPU seconds, and bytes of the bundle, per span of a full record.

    python benchmarks/incident.py

The record has seven readings a second of a server at work, and its log 64 MiB of real lines. Prints JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.core.log_facts import DecodeTiming, LogBatch, TaskReleased, VerificationSteps, WarningTally
from specdash.core.proxy_events import ActiveView, ProxyStatus, SessionView
from specdash.core.readings import (
    Counters,
    Health,
    HealthStatus,
    Host,
    ProcessTree,
    Props,
    Reading,
    Slot,
    Slots,
    Source,
)
from specdash.core.records import EventKind, TimelineEvent
from specdash.history.writer import Batch, Bounds, Writer

if TYPE_CHECKING:
    from collections.abc import Iterator

URL = "http://127.0.0.1:9"
RECORD_S = 4 * 3600
SPANS = ("5m", "15m", "1h", "4h")
SAMPLE = "0.01.000.000 W find_slot: non-consecutive token position 24 after 23 for sequence 0 with 512 new tokens"
LOG = Path(__file__).parents[1] / "tests" / "data" / "logs" / "mamba_draft75_lv4.log"
LOG_BYTES = 64 * 1024 * 1024


def readings(at: float, second: int) -> Iterator[Reading[Any]]:
    """One second of a busy server."""
    now = float(second)
    if second == 0:
        yield Reading.known(Source.PROPS, at, Props(model_alias="model", total_slots=4))
    yield Reading.known(Source.HEALTH, at, Health(HealthStatus.OK, latency_s=0.001 + now / 1e6))
    yield Reading.known(
        Source.METRICS,
        at,
        Counters(
            prompt_tokens=now * 100, predicted_tokens=now * 50, predicted_seconds=now, decode_calls=now * 20,
            draft_tokens=now * 70, accepted_tokens=now * 40, requests_processing=1.0,
            accepted_per_position=(second * 15, second * 12, second * 8),
        ),
    )  # fmt: skip
    slots = tuple(Slot(index, True, 4096, True, second // 10, second % 300) for index in range(4))
    yield Reading.known(Source.SLOTS, at, Slots(slots))
    yield Reading.known(Source.HOST, at, Host(0.5, 8, 1.0 + now / 1e5, 10**9 + second, 10**10))
    yield Reading.known(Source.PROCESS, at, ProcessTree(7, "llama-server", 0.0, 1.5, 10**9, command=("llama-server",)))
    facts = (
        VerificationSteps(0, second // 10, 20, 40, 70, at_s=now),
        TaskReleased(1, second, 5, False, now),
        DecodeTiming(1, second, 100.0, 50, now),
    )
    tally = WarningTally("find_slot_non_consecutive", 3, now, now, SAMPLE)
    yield Reading.known(Source.LOG, at, LogBatch(12, 0, facts, (tally,), (SAMPLE,) * 3))
    sessions = tuple(SessionView(f"s{index}", at, second, 1, "model", second * 10, 100_000) for index in range(5))
    status = ProxyStatus("1", 0.0, URL, sessions=sessions, active=(ActiveView("r", "s1", at),))
    yield Reading.known(Source.PROXY, at, status)


def fill(state: Path) -> None:
    """A record that ends now."""
    began = time.time() - RECORD_S
    writer = Writer(state / "specdash" / "history.db", URL, Bounds(7, 10**9))
    writer.begin(TimelineEvent(began, EventKind.RECORDER, "recording began", ref="began"), frozenset())
    for second in range(RECORD_S):
        at = began + second
        points = [(at, name, 50.0 + second % 7) for name in ("acceptance", "decode", "prefill", "requests", "warnings")]
        writer.write(Batch(list(readings(at, second)), points))
    writer.end(TimelineEvent(began + RECORD_S, EventKind.RECORDER, "recording ended"))
    writer.close()


def measure(directory: Path, log: Path, span: str) -> dict[str, Any]:
    """One run of the command."""
    output = directory / f"{span}.tar.gz"
    command = [sys.executable, "-m", "specdash", "incident", "--url", URL, "--log", str(log), "--last", span]
    env = {**os.environ, "XDG_STATE_HOME": str(directory / "state"), "XDG_CONFIG_HOME": str(directory / "config")}
    before, started = os.times(), time.perf_counter()
    subprocess.run([*command, "--output", str(output)], env=env, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - started, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"span": span, "wall_s": round(wall, 2), "cpu_s": round(cpu, 2), "bytes": output.stat().st_size}


def main() -> None:
    """Measure every span."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        fill(directory / "state")
        log = directory / "server.log"
        lines = LOG.read_bytes()
        log.write_bytes(lines * (LOG_BYTES // len(lines)))
        print(json.dumps([measure(directory, log, span) for span in SPANS], indent=1))


if __name__ == "__main__":
    main()
