"""GET /metrics to `Counters`: the metric names of llama-server, old and new, as data."""

from __future__ import annotations

import re
from typing import Any

from specdash.core.observations import Counters
from specdash.llama.bodies import ParseError

PREFIX = "llamacpp:"

FIELD_OF_METRIC: dict[str, str] = {
    "prompt_tokens_total": "prompt_tokens",
    "prompt_tokens_cached_total": "prompt_tokens_cached",
    "prompt_seconds_total": "prompt_seconds",
    "tokens_predicted_total": "predicted_tokens",
    "tokens_predicted_seconds_total": "predicted_seconds",
    "n_decode_total": "decode_calls",
    "n_tokens_max": "tokens_max",
    "spec_decode_num_draft_tokens_total": "draft_tokens",
    "spec_decode_num_draft_tokens": "draft_tokens",
    "spec_decode_num_accepted_tokens_total": "accepted_tokens",
    "spec_decode_num_accepted_tokens": "accepted_tokens",
    "spec_decode_num_drafts_total": "verification_steps",
    "spec_decode_num_drafts": "verification_steps",
    "requests_processing": "requests_processing",
    "requests_deferred": "requests_deferred",
    "n_busy_slots_per_decode": "busy_slots_per_decode",
    "prompt_tokens_seconds": "prompt_tokens_per_second",
    "predicted_tokens_seconds": "predicted_tokens_per_second",
}
"""Metric name without the prefix to the field of `Counters`. The text of the pull request that brought the
`spec_decode` names lacks their `_total`, so both are read."""

PER_POSITION_METRICS = frozenset(
    {"spec_decode_num_accepted_tokens_per_pos_total", "spec_decode_num_accepted_tokens_per_pos"}
)

MAX_POSITIONS = 4096
"""Draft positions beyond this are not believed; llama-server drafts at most 1024 tokens."""

MAX_UNRECOGNISED = 100

MAX_VALUE = 2.0**63
"""No total reaches what does not fit into llama-server's counters."""

RATIOS = frozenset({"prompt_tokens_per_second", "predicted_tokens_per_second"})
"""Fields that llama-server divides itself, by zero too; nothing rests on them."""

_SAMPLE = re.compile(
    r'^llamacpp:([A-Za-z0-9_:]++)(?:\{((?:[^"}\n]|"(?:[^"\\\n]|\\.)*+")*+)\})?[ \t]++([^\s]++)', re.MULTILINE
)
_LINE = re.compile(r"^llamacpp:", re.MULTILINE)
_POSITION = re.compile(r'(?:^|[,\s])position\s*=\s*"(\d{1,6})"', re.ASCII)


def parse_metrics(body: bytes | str) -> Counters:
    """The counters of one scrape, whole: one number in it that cannot be, and none of the others can be relied on.

    Raises ParseError without any `llamacpp:` line; where one of a known metric is no finite number from zero on, or
    contradicts another; and where the last line is cut off.
    """
    exposition = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    fields: dict[str, float | None] = {}
    positions: dict[int, int] = {}
    unrecognised: set[str] = set()
    samples = _SAMPLE.findall(exposition)
    for name, labels, written in samples:
        if (field := FIELD_OF_METRIC.get(name)) is not None:
            value = _number(written)
            if value is None and field not in RATIOS:
                raise ParseError(f"{name} is no number from zero on")
            if fields.setdefault(field, value) != value:
                raise ParseError(f"{name} is there twice, with different values")
        elif name in PER_POSITION_METRICS:
            _count_position(positions, labels, written)
        elif len(unrecognised) < MAX_UNRECOGNISED:
            unrecognised.add(name)
    if not samples:
        raise ParseError(f"no {PREFIX} metric in {len(body)} bytes")
    if len(samples) != len(_LINE.findall(exposition)):
        raise ParseError(f"a {PREFIX} line without a value")
    if not exposition.endswith("\n"):
        raise ParseError("cut off within a line")
    told: dict[str, Any] = fields
    return Counters(accepted_per_position=_series(positions), unrecognised=tuple(sorted(unrecognised)), **told)


def _number(written: str) -> float | None:
    try:
        value = float(written)
    except ValueError:
        return None
    return value if 0 <= value <= MAX_VALUE and "_" not in written else None


def _count_position(positions: dict[int, int], labels: str, written: str) -> None:
    position = _POSITION.search(labels)
    count = _number(written)
    if count is None:
        raise ParseError("a count of accepted tokens is no number from zero on")
    if position and int(position[1]) < MAX_POSITIONS:
        # The series are exact integers, so a float may only stand in where the text is none.
        positions[int(position[1])] = int(written) if written.isdecimal() and len(written) < 20 else int(count)


def _series(positions: dict[int, int]) -> tuple[int, ...] | None:
    if not positions:
        return None
    # A label that has never been counted is not printed, so a gap is a count of zero.
    return tuple(positions.get(position, 0) for position in range(max(positions) + 1))
