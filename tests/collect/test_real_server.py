"""Everything together on the real llama.cpp server: what is collected is what the server itself says."""

from pathlib import Path
from typing import Any

import pytest

from specdash.collect.hub import Hub
from specdash.core.log_facts import LogBatch, RequestAcceptance
from specdash.core.readings import (
    Counters,
    FailureKind,
    Health,
    HealthStatus,
    ProcessTree,
    Props,
    Reading,
    Slots,
    Source,
)
from specdash.core.target import Target
from support.asking import complete
from support.fault_server import free_port
from support.small_server import small_server
from support.waiting import until

pytestmark = pytest.mark.engine

PROMPT = "import os\n\ndef walk(path):\n    for name in os.listdir(path):\n"


class Seen:
    def __init__(self) -> None:
        self.readings: list[Reading[Any]] = []

    def take(self, reading: Reading[Any]) -> None:
        self.readings.append(reading)

    def last(self, source: Source) -> Any:
        return next((r.value for r in reversed(self.readings) if r.source is source), None)

    def slots(self) -> Any:
        value = self.last(Source.SLOTS)
        return value.slots if value is not None else ()

    def kind(self, source: Source) -> FailureKind | None:
        last = next((reading for reading in reversed(self.readings) if reading.source is source), None)
        return last.failure.kind if last is not None and last.failure is not None else None


def test_a_request_is_seen_by_metrics_slots_and_log_alike(tmp_path: Path) -> None:
    port, log, seen = free_port(), tmp_path / "server.log", Seen()
    target = Target(f"http://127.0.0.1:{port}", log=str(log))
    with small_server(port, log) as process, Hub(target, [seen.take], interval_s=0.25, gpu=False):
        timings = complete(f"http://127.0.0.1:{port}", PROMPT, 200)["timings"]
        until(lambda: isinstance(metrics := seen.last(Source.METRICS), Counters) and bool(metrics.draft_tokens))
        until(lambda: any(not slot.is_processing and slot.task is not None for slot in seen.slots()))
        until(lambda: any(isinstance(fact, RequestAcceptance) for fact in _facts(seen)))
        until(lambda: isinstance(seen.last(Source.PROCESS), ProcessTree))
        counters, slots = seen.last(Source.METRICS), seen.last(Source.SLOTS)
        props, health, tree = seen.last(Source.PROPS), seen.last(Source.HEALTH), seen.last(Source.PROCESS)
        (acceptance,) = (fact for fact in _facts(seen) if isinstance(fact, RequestAcceptance))
    assert isinstance(counters, Counters)
    assert counters.draft_tokens == timings["draft_n"] == acceptance.generated
    assert counters.accepted_tokens == timings["draft_n_accepted"] == acceptance.accepted
    assert counters.predicted_tokens == timings["predicted_n"]
    assert counters.prompt_tokens == timings["prompt_n"]
    assert counters.accepted_per_position is not None
    assert sum(counters.accepted_per_position) == counters.accepted_tokens
    assert counters.unrecognised == ()
    assert isinstance(slots, Slots)
    assert len(slots.slots) == 2
    assert all(slot.speculative for slot in slots.slots)
    assert next(slot for slot in slots.slots if slot.task is not None).speculative_types == ("draft-simple",)
    assert isinstance(props, Props)
    assert props.total_slots == 2
    assert props.n_ctx == slots.slots[0].n_ctx
    assert isinstance(health, Health)
    assert health.status is HealthStatus.OK
    assert isinstance(tree, ProcessTree)
    assert tree.pid == process.pid
    batches = [r.value for r in seen.readings if isinstance(r.value, LogBatch)]
    assert sum(batch.unrecognised for batch in batches) == 0


def test_a_server_that_dies_and_comes_back_is_followed(tmp_path: Path) -> None:
    port, log, seen = free_port(), tmp_path / "server.log", Seen()
    with Hub(Target(f"http://127.0.0.1:{port}", log=str(log)), [seen.take], interval_s=0.25, gpu=False):
        until(lambda: seen.kind(Source.HEALTH) is FailureKind.REFUSED)
        with small_server(port, log):
            complete(f"http://127.0.0.1:{port}", PROMPT, 60)
            until(lambda: isinstance(m := seen.last(Source.METRICS), Counters) and bool(m.predicted_tokens))
        until(lambda: seen.kind(Source.METRICS) is FailureKind.REFUSED)
        with small_server(port, log) as second:
            until(lambda: seen.kind(Source.METRICS) is None and seen.last(Source.METRICS).predicted_tokens == 0)
            until(lambda: isinstance(t := seen.last(Source.PROCESS), ProcessTree) and t.pid == second.pid)
            until(lambda: any(isinstance(r.value, LogBatch) and r.value.restarted for r in seen.readings))


def test_disabled_endpoints_are_named(tmp_path: Path) -> None:
    port, log, seen = free_port(), tmp_path / "server.log", Seen()
    disabled = {"endpoint_metrics": 0, "endpoint_slots": 0}
    with small_server(port, log, **disabled), Hub(Target(f"http://127.0.0.1:{port}"), [seen.take], gpu=False):
        until(lambda: seen.kind(Source.METRICS) is FailureKind.DISABLED)
        until(lambda: seen.kind(Source.SLOTS) is FailureKind.DISABLED)
        until(lambda: isinstance(seen.last(Source.PROPS), Props))


@pytest.mark.slow
def test_a_watched_server_falls_asleep_and_stays_asleep_until_it_gets_work(tmp_path: Path) -> None:
    port, log, seen = free_port(), tmp_path / "server.log", Seen()
    target = Target(f"http://127.0.0.1:{port}", log=str(log))
    with small_server(port, log, sleep_idle_seconds=2), Hub(target, [seen.take], interval_s=0.25, gpu=False):
        complete(f"http://127.0.0.1:{port}", PROMPT, 20)
        until(lambda: "entering sleeping state" in log.read_text(errors="replace"))
        beats = len(seen.readings)
        until(lambda: len(seen.readings) > beats + 40)
        assert "exiting sleeping state" not in log.read_text(errors="replace")
        complete(f"http://127.0.0.1:{port}", PROMPT, 20)
        assert "exiting sleeping state" in log.read_text(errors="replace")


def _facts(seen: Seen) -> list[Any]:
    return [fact for reading in seen.readings if isinstance(reading.value, LogBatch) for fact in reading.value.facts]
