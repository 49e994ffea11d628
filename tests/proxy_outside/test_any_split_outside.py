"""The upstream's bytes cut anywhere give the same answer, seen from outside through real sockets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.proxy_ways import TOOLS, turn
from support.upstream_script import Delta, Script, calls, says, stops, thinks, with_

if TYPE_CHECKING:
    from support.fault_upstream import FaultUpstream
    from support.proxy_process import ProxyProcess

ANSWER = Script(
    (
        *thinks("hm 🙂"),
        *says("naïve ", "日本語", ' \u2028 \\ "q" '),
        Delta({"content": "🧑\u200d🚀"}),
        *calls("read_file", {"path": "dé/日.py", "limit": 3}, pieces=4),
        *calls("get_weather", {"city": 'K"ö\\ln'}, index=1),
        *stops("tool_calls"),
    ),
    timings=False,
    progress=(),
)
BODY = turn(stream=True, tools=TOOLS, max_tokens=4096, thinking={"type": "enabled", "budget_tokens": 1024})
LONGEST = 4000


@pytest.fixture
def proxy(unhurried: ProxyProcess, upstream: FaultUpstream) -> ProxyProcess:
    """Pings come by the clock; what is compared here must not."""
    del upstream
    return unhurried


def told_through(proxy: ProxyProcess, upstream: FaultUpstream, script: Script) -> bytes:
    upstream.otherwise = script
    return proxy.messages(BODY).body


def test_every_byte_on_its_own_tells_the_same(proxy: ProxyProcess, upstream: FaultUpstream) -> None:
    # A session's first turn says how long its tokens are, and so what the next message_start estimates.
    told_through(proxy, upstream, ANSWER)
    whole = told_through(proxy, upstream, ANSWER)
    assert "日本語".encode() in whole or b"\\u65e5" in whole
    for size in (1, 2, 3, 7, 64):
        assert told_through(proxy, upstream, with_(ANSWER, split=size)) == whole


def test_the_strict_path_tells_the_same_whatever_the_pieces(
    unhurried_strict: ProxyProcess, upstream: FaultUpstream
) -> None:
    told_through(unhurried_strict, upstream, ANSWER)
    whole = told_through(unhurried_strict, upstream, ANSWER)
    for size in (1, 2, 5, 100):
        assert told_through(unhurried_strict, upstream, with_(ANSWER, split=size)) == whole


@pytest.mark.slow
def test_a_cut_at_every_offset_tells_the_same(proxy: ProxyProcess, upstream: FaultUpstream) -> None:
    upstream.decide = lambda body: with_(ANSWER, cut=int(body["messages"][0]["content"]))

    def at(offset: int) -> bytes:
        return proxy.messages({**BODY, "messages": [{"role": "user", "content": f"{offset:06d}"}]}).body

    whole = at(0)
    with ThreadPoolExecutor(8) as pool:
        for offset, body in enumerate(pool.map(at, range(1, LONGEST)), 1):
            assert body == whole, offset


TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


@given(pieces=st.lists(TEXT, min_size=1, max_size=6), value=st.text(st.characters(codec="utf-8"), max_size=30),
       size=st.integers(1, 40))  # fmt: skip
def test_any_text_arrives_as_it_was_sent(
    proxy: ProxyProcess, upstream: FaultUpstream, pieces: list[str], value: str, size: int
) -> None:
    from support.anthropic_stream import final_message

    script = Script((*says(*pieces), *calls("get_weather", {"city": f"x{value}"}), *stops("tool_calls")), split=size)
    content = final_message(told_through(proxy, upstream, script))["content"]
    assert [block["text"] for block in content if block["type"] == "text"] in (["".join(pieces)], [])
    assert content[-1]["input"] == {"city": f"x{value}"}
    if "".join(pieces).strip():
        assert content[0].get("text") == "".join(pieces)
