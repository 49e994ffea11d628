"""The snapshot keeps its contract: the documented fields are there, whatever is known."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from specdash.core.target import Target
from specdash.export.snapshot import SCHEMA, to_json, to_text
from specdash.insight.state import TargetState
from tui.fake_state import busy_picture

DOCS = Path(__file__).parents[2] / "docs" / "snapshot.md"
CONTRACT = [
    "schema",
    "time",
    "backend.state",
    "backend.engine",
    "backend.url",
    "backend.prefill.tokens_per_second",
    "backend.decode.tokens_per_second",
    "backend.speculation.active",
    "backend.speculation.types",
    "backend.speculation.draft_tokens_total",
    "backend.speculation.accepted_tokens_total",
    "backend.speculation.verification_steps_total",
    "backend.speculation.mean_accepted_length",
    "backend.speculation.accepted_per_position",
    "backend.speculation.acceptance.window",
    "backend.speculation.acceptance.lifetime",
    "backend.slots",
    "log.warnings",
    "gpu",
    "host",
    "proxy",
]


def empty() -> Any:
    return to_json(TargetState(Target("http://127.0.0.1:1")).picture(1.0, 1_790_000_000.0))


@pytest.mark.parametrize("path", CONTRACT)
def test_every_field_of_the_contract_is_there_even_when_nothing_is_known(path: str) -> None:
    value: Any = empty()
    for name in path.split("."):
        assert name in value
        value = value[name]


def test_the_schema_is_versioned_and_the_time_is_utc() -> None:
    assert empty()["schema"] == SCHEMA == "specdash.snapshot/1"
    assert empty()["time"] == "2026-09-21T14:13:20.000+00:00"


def test_every_field_of_the_backend_is_documented() -> None:
    text = DOCS.read_text(encoding="utf-8")
    names = {*empty()["backend"], *empty()["backend"]["speculation"]}
    assert {name for name in names if not re.search(rf"\b{name}\b", text)} == set()


def test_the_api_key_is_in_no_form_of_it() -> None:
    target = Target("http://127.0.0.1:1", api_key="sk-very-secret")
    picture = TargetState(target).picture(1.0, 0.0)
    assert "sk-very-secret" not in repr((to_json(picture), to_text(picture), target, picture))


def proxy() -> dict[str, Any]:
    """The proxy of a picture that knows everything, as JSON."""
    picture = busy_picture(10_000.0, 1_790_000_000.0, 300.0)
    document: dict[str, Any] = json.loads(json.dumps(to_json(picture), allow_nan=False))["proxy"]
    return document


def test_without_a_proxy_there_is_none_and_a_named_one_is_unknown_and_not_zero() -> None:
    assert empty()["proxy"] is None
    target = Target("http://127.0.0.1:1", proxy_url="http://127.0.0.1:4000", proxy_key="sk-very-secret")
    state = TargetState(target)
    told = to_json(state.picture(1.0, 0.0))["proxy"]
    assert told is not None
    assert told["status"] == "unknown"
    assert set(told["window"].values()) == {None}
    assert told["sessions"] is None
    assert told["guardrails"] is None
    assert "sk-very-secret" not in repr(to_json(state.picture(1.0, 0.0)))
    assert "proxy        -- no answer yet" in to_text(state.picture(1.0, 0.0))


def test_the_proxy_tells_sessions_requests_and_guardrails() -> None:
    told = proxy()
    assert told["sessions"][0]["level"] == "HIGH"
    assert told["running"][0]["acceptance"] == pytest.approx(398 / 560)
    assert told["running"][1]["prefill_progress"] == pytest.approx(16_400 / 29_100)
    assert told["finished"][0]["stop_reason"] == "end_turn"
    assert told["guardrails"]["malformed_tool"]["actions"]["recovered"] == 7
    text = to_text(busy_picture(10_000.0, 1_790_000_000.0, 300.0))
    assert "upstream ok  5 sessions  2 running  errors 2.4 %" in text
    assert "fullest context 88.3 % HIGH" in text


def test_every_field_of_the_proxy_is_documented() -> None:
    text = DOCS.read_text(encoding="utf-8")
    told = proxy()
    names = {*told, *told["window"], *told["events"], *told["sessions"][0], *told["running"][0], *told["finished"][0]}
    assert {name for name in names if not re.search(rf"\b{name}\b", text)} == set()
