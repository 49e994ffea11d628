"""What llama.cpp's speed-bench (tools/server/bench/speed-bench, PR #23869) makes of requests, one after the other."""

import json
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """One request."""

    category: str
    draft_n: int
    draft_n_accepted: int
    predicted_per_second: float


@dataclass(frozen=True)
class Row:
    """A row of its table."""

    samples: int
    draft_n: int
    draft_n_accepted: int

    @property
    def accept_rate(self) -> float | None:
        return self.draft_n_accepted / self.draft_n if self.draft_n else None


def asked(url: str, requests: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Result]:
    """Ask (category, body), without streaming."""
    found = []
    for category, body in requests:
        whole = {key: value for key, value in body.items() if not key.startswith("stream")}
        data = json.dumps(whole).encode()
        head = {"Content-Type": "application/json"}
        with urllib.request.urlopen(
            urllib.request.Request(f"{url}/v1/chat/completions", data, head), timeout=120
        ) as told:
            timings = json.load(told)["timings"]
        found.append(
            Result(
                category,
                timings.get("draft_n", 0),
                timings.get("draft_n_accepted", 0),
                timings["predicted_per_second"],
            )
        )
    return found


def summary(results: list[Result]) -> dict[str, Row]:
    """Its table: a row a category, and `overall`."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.category, []).append(result)
    return {name: _row(group) for name, group in (*sorted(groups.items()), ("overall", results))}


def _row(group: list[Result]) -> Row:
    return Row(
        len(group),
        sum(result.draft_n for result in group),
        sum(result.draft_n_accepted for result in group),
    )
