"""Everything together on the real llama.cpp server: what is collected is what the server itself says.

A server that dies, hangs or has endpoints switched off: tests/e2e/test_availability_alerts.py.
"""

from pathlib import Path
from typing import Any

import pytest

from collect.seen import Seen
from specdash.collect.hub import Hub
from specdash.core.log_facts import RequestAcceptance
from specdash.core.readings import HealthStatus, Source
from specdash.core.target import Target
from support.asking import complete
from support.fault_server import free_port
from support.small_server import small_server
from support.waiting import until

pytestmark = pytest.mark.engine

PROMPT = "import os\n\ndef walk(path):\n    for name in os.listdir(path):\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


def acceptances(seen: Seen) -> list[Any]:
    facts = (fact for batch in seen.values(Source.LOG) for fact in batch.facts)
    return [fact for fact in facts if isinstance(fact, RequestAcceptance)]


def test_a_request_is_seen_by_metrics_slots_and_log_alike(log: Path) -> None:
    port, seen = free_port(), Seen()
    url = f"http://127.0.0.1:{port}"
    with small_server(port, log) as process, Hub(Target(url, log=str(log)), [seen.take], interval_s=0.25, gpu=False):
        timings = complete(url, PROMPT, 200)["timings"]
        until(lambda: seen.known(Source.METRICS, Source.SLOTS, Source.PROCESS, Source.PROPS, Source.HEALTH))
        until(lambda: seen.last(Source.METRICS).draft_tokens and acceptances(seen))
        until(lambda: any(not slot.is_processing and slot.task is not None for slot in seen.last(Source.SLOTS).slots))
        counters, slots, props = (seen.last(source) for source in (Source.METRICS, Source.SLOTS, Source.PROPS))
    (acceptance,) = acceptances(seen)
    assert counters.draft_tokens == timings["draft_n"] == acceptance.generated
    assert counters.accepted_tokens == timings["draft_n_accepted"] == acceptance.accepted
    assert counters.predicted_tokens == timings["predicted_n"]
    assert counters.prompt_tokens == timings["prompt_n"]
    assert sum(counters.accepted_per_position) == counters.accepted_tokens
    assert counters.unrecognised == ()
    assert all(slot.speculative for slot in slots.slots)
    assert next(slot for slot in slots.slots if slot.task is not None).speculative_types == ("draft-simple",)
    assert (props.total_slots, props.n_ctx) == (len(slots.slots), slots.slots[0].n_ctx)
    assert seen.last(Source.HEALTH).status is HealthStatus.OK
    assert seen.last(Source.PROCESS).pid == process.pid
    assert sum(batch.unrecognised for batch in seen.values(Source.LOG)) == 0


@pytest.mark.slow
def test_a_watched_server_falls_asleep_and_stays_asleep_until_it_gets_work(log: Path) -> None:
    port, seen = free_port(), Seen()
    target = Target(f"http://127.0.0.1:{port}", log=str(log))
    with small_server(port, log, sleep_idle_seconds=2), Hub(target, [seen.take], interval_s=0.25, gpu=False):
        complete(f"http://127.0.0.1:{port}", PROMPT, 20)
        until(lambda: "entering sleeping state" in log.read_text(errors="replace"))
        beats = len(seen.readings)
        until(lambda: len(seen.readings) > beats + 40)
        assert "exiting sleeping state" not in log.read_text(errors="replace")
        complete(f"http://127.0.0.1:{port}", PROMPT, 20)
        assert "exiting sleeping state" in log.read_text(errors="replace")
