"""Every recorded log gives the requests, sums, statistics, warnings and causes that were counted when it was recorded.

`log_golden.json` is written with `FREEZE=1`; look at what changes in it.
"""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from specdash.export.log_report import json_lines
from specdash.insight.log.log_summary import LogSummary
from specdash.llama.log.parser import LogParser
from specdash.llama.start_failures import explain

DATA = Path(__file__).parents[1] / "data"
LOGS = {path.stem: path for path in sorted((DATA / "logs").glob("*.log"))}
GOLDEN = DATA / "log_golden.json"
OF_A_REQUEST = (
    "slot", "task", "origin", "started_s", "at_s", "prompt_total_tokens", "prompt_cached", "prompt_tokens", "prompt_ms",
    "decode_tokens", "decode_ms", "total_ms", "draft_generated", "draft_accepted", "mean_accepted_length",
    "acceptance_per_position", "decode_tokens_seen", "steps", "truncated", "cancelled", "error", "finished",
)  # fmt: skip


def read(path: Path) -> dict[str, Any]:
    """What specdash makes of a log."""
    data = path.read_bytes()
    parser, summary = LogParser(tail_lines=0), LogSummary()
    summary.add(parser.feed(data))
    summary.add(parser.close())
    summary.close()
    report = json.loads("".join(json_lines(summary, path.name)))
    lines = data.decode("utf-8", "replace").splitlines()
    causes = [explain(lines, None), explain(lines, 1)]
    kept = {key: report[key] for key in ("lines", "totals", "steps", "statistics", "checkpoints", "prompt_cache")}
    return {
        **kept,
        "server": {key: value for key, value in report["server"].items() if key != "events"},
        "events": [event["name"] for event in report["server"]["events"]],
        "warnings": {
            name: [found[key] for key in ("severity", "count", "first", "last", "slots", "tasks")]
            for name, found in sorted(report["warnings"].items())
        },
        "requests": [[request[key] for key in OF_A_REQUEST] for request in report["requests"]],
        "causes": [[cause.id, cause.because, cause.fix, str(cause.ends)] if cause else None for cause in causes],
    }


@cache
def golden() -> dict[str, Any]:
    if os.environ.get("FREEZE"):
        found = ",\n".join(f"{json.dumps(name)}: {json.dumps(read(path))}" for name, path in LOGS.items())
        GOLDEN.write_text(f"{{\n{found}\n}}\n")
    read_back: dict[str, Any] = json.loads(GOLDEN.read_text())
    return read_back


@pytest.mark.parametrize("name", LOGS)
def test_a_recorded_log_is_read_as_it_was(name: str) -> None:
    expected, found = golden()[name], read(LOGS[name])
    if name == "router":
        # The events of its children come behind its own.
        assert sorted(found.pop("events")) == sorted(expected.pop("events"))
    assert found == expected
