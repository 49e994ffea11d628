"""Every recorded log gives the requests, sums, statistics, warnings and causes that were counted when it was recorded.

`log_golden.json` is written with `FREEZE=1`; look at what changes in it. Beside it stands a second count by plain
regular expressions, which shares nothing with the grammar.
"""

import json
import os
import re
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


RETIRED = {
    "input_truncated": None,  # builds until 2025, which printed it as information
    "control_unknown_completion": "other_warning",  # named by no screen and no rule
}
"""Warning classes that went since the logs were counted, and the class that has their lines now."""


@pytest.mark.parametrize("name", LOGS)
def test_a_recorded_log_is_read_as_it_was(name: str) -> None:
    expected = golden()[name]
    for former, now in RETIRED.items():
        counted_once = expected["warnings"].pop(former, None)
        if counted_once is not None and now is not None:
            expected["warnings"][now] = ["warning", *counted_once[1:]]
    found = read(LOGS[name])
    if name == "router":
        # The events of its children come behind its own.
        assert sorted(found.pop("events")) == sorted(expected.pop("events"))
    assert found == expected


ESCAPES = re.compile(rb"\x1b\[[\d;]*m")
COUNTS = {
    "task_launched": rb"\| processing task(?:,|\s*$)",
    "decode_tokens": rb"[^t] +eval time =\s+[\d.]+ ms /\s+(\d+) (?:tokens|runs)",
    "prompt_tokens": rb"prompt eval time =\s+[\d.]+ ms /\s+(\d+) tokens",
    "draft_accepted": rb"draft acceptance(?: rate)? = [\d.]+ \(\s*(\d+) accepted",
    "draft_generated": rb"draft acceptance(?: rate)? = .*accepted /\s*(\d+) generated",
    "find_slot": rb"non-consecutive token position",
}


def counted(data: bytes, pattern: bytes) -> int:
    """The sum of what a pattern captures, or how many lines it fits."""
    found = re.findall(pattern, data, re.MULTILINE)
    return sum(map(int, found)) if re.compile(pattern).groups else len(found)


@pytest.mark.parametrize("name", LOGS)
def test_a_second_count_by_plain_patterns_agrees(name: str) -> None:
    data = ESCAPES.sub(b"", LOGS[name].read_bytes())
    report = golden()[name]
    for field in ("prompt_tokens", "decode_tokens", "draft_accepted", "draft_generated"):
        assert (report["totals"][field] or 0) == counted(data, COUNTS[field]), field
    storm = report["warnings"].get("find_slot_non_consecutive", [None, 0])[1]
    assert storm == counted(data, COUNTS["find_slot"])
    if "older" not in name:
        assert len(report["requests"]) == counted(data, COUNTS["task_launched"])
