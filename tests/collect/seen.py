"""What collectors published, and a server that answers like a llama-server."""

import json
from pathlib import Path
from typing import Any

from specdash.core.paths import proxy_records_dir, run_records_dir
from specdash.core.readings import FailureKind, Reading, Source
from specdash.core.records import ProxyRecord, RunRecord
from support.fault_server import says
from support.scripted_server import Behaviour
from support.waiting import until

ANSWERS = Path(__file__).parents[1] / "data" / "http"


def routes(busy: bool = False) -> dict[str, Behaviour]:
    """Every endpoint of an idle server, or a real one's answers while it works."""
    if busy:
        names = {"/props": "props.json", "/metrics": "metrics_busy.txt", "/slots": "slots_busy_1.json"}
        read = {path: says(200, (ANSWERS / name).read_bytes()) for path, name in names.items()}
    else:
        read = {"/props": props(), "/metrics": metrics(), "/slots": slots()}
    return {"/health": says(200, '{"status":"ok"}'), **read}


def props(sleeping: bool = False) -> Behaviour:
    return says(200, json.dumps({"total_slots": 1, "is_sleeping": sleeping}))


def metrics(decodes: int = 5, processing: int = 0, gauge: float = 0.0) -> Behaviour:
    return says(
        200,
        f"llamacpp:n_decode_total {decodes}\nllamacpp:requests_processing {processing}\n"
        f"llamacpp:requests_deferred 0\nllamacpp:predicted_tokens_seconds {gauge}\n",
    )


def slots(processing: bool = False) -> Behaviour:
    return says(200, json.dumps([{"id": 0, "is_processing": processing, "speculative": True}]))


def leave(env: dict[str, str], record: RunRecord | ProxyRecord, name: str = "1") -> Path:
    """Leave a run record where that environment has them; its file."""
    folder = (run_records_dir if isinstance(record, RunRecord) else proxy_records_dir)(env)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.json"
    file.write_text(record.to_json(), encoding="utf-8")
    return file


class Seen:
    """Readings, in their order."""

    def __init__(self) -> None:
        self.readings: list[Reading[Any]] = []

    def take(self, reading: Reading[Any]) -> None:
        self.readings.append(reading)

    def of(self, source: Source) -> list[Reading[Any]]:
        return [reading for reading in self.readings if reading.source is source]

    def values(self, source: Source) -> list[Any]:
        return [reading.value for reading in self.of(source) if reading.value is not None]

    def last(self, source: Source) -> Any:
        """The value of the newest reading."""
        found = self.of(source)
        return found[-1].value if found else None

    def kind(self, source: Source) -> FailureKind | None:
        """Why the newest reading has none."""
        found = self.of(source)
        return found[-1].failure.kind if found and found[-1].failure is not None else None

    def detail(self, source: Source, at: int = -1) -> str:
        failure = self.of(source)[at].failure
        return failure.detail if failure is not None else ""

    def known(self, *sources: Source) -> bool:
        return all(self.last(source) is not None for source in sources)

    def wait_for(self, *sources: Source) -> None:
        def missing() -> list[Source]:
            return [source for source in sources if not self.of(source)]

        until(lambda: not missing(), 15.0, why=lambda: f"nothing of {missing()}")
