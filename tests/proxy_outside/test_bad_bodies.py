"""Any body at all: never a 500, always an envelope, and a refused one never reaches the upstream."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from support.fault_upstream import FaultUpstream
from support.proxy_process import ProxyProcess
from support.proxy_ways import TOOLS, told, turn

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
FULL = turn(
    tools=TOOLS,
    tool_choice={"type": "auto"},
    stop_sequences=["END"],
    temperature=0.5,
    top_p=0.9,
    top_k=5,
    metadata={"user_id": "u"},
    thinking={"type": "enabled", "budget_tokens": 1024},
    system=[{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}],
    max_tokens=2048,
    messages=[
        {"role": "user", "content": [{"type": "text", "text": "read"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "tool_use", "id": "t1", "name": "read_file", "input": {"path": "a"}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": [
                {"type": "text", "text": "x"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
            ]},
            {"type": "text", "text": "go on"},
        ]},
    ],
)  # fmt: skip


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    found = [at]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += paths(inner, (*at, key))
    return found


def replaced(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    """A copy with another value at one place."""
    if not at:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[at[0]] = replaced(copy[at[0]], at[1:], new)
    return copy


PLACES = st.sampled_from(paths(FULL))


def hold_to_the_contract(proxy: ProxyProcess, upstream: FaultUpstream, data: bytes) -> None:
    before = len(upstream.chats)
    answer = proxy.messages(data)
    assert answer.status in (200, 400, 413), answer
    told(answer)
    if answer.status != 200:
        assert len(upstream.chats) == before
    counted = proxy.request("POST", "/v1/messages/count_tokens", data)
    assert counted.status in (200, 400, 413), counted
    if counted.status != 200:
        assert counted.json["type"] == "error"


@given(at=PLACES, new=VALUES)
def test_one_wrong_value_anywhere(proxy: ProxyProcess, upstream: FaultUpstream, at: tuple[Any, ...], new: Any) -> None:
    hold_to_the_contract(proxy, upstream, json.dumps(replaced(FULL, at, new)).encode())


@given(value=VALUES)
def test_any_json(proxy: ProxyProcess, upstream: FaultUpstream, value: Any) -> None:
    hold_to_the_contract(proxy, upstream, json.dumps(value).encode())


@given(data=st.binary(max_size=60))
def test_any_bytes(proxy: ProxyProcess, upstream: FaultUpstream, data: bytes) -> None:
    hold_to_the_contract(proxy, upstream, data)


@given(value=VALUES)
def test_any_json_passed_through(proxy: ProxyProcess, upstream: FaultUpstream, value: Any) -> None:
    del upstream
    answer = proxy.request("POST", "/v1/chat/completions", json.dumps(value).encode())
    assert answer.status in (200, 400, 413), answer
    if answer.status != 200:
        assert answer.json["error"]["message"]


def test_a_healthy_full_request_is_taken(proxy: ProxyProcess, upstream: FaultUpstream) -> None:
    """So that the properties above start from something right."""
    del upstream
    assert told(proxy.messages(FULL)).text == "Hello"
