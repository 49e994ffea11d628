"""Fifty sessions at once: nothing of one appears in another."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest  # noqa: F401

from support.fault_upstream import FaultUpstream
from support.proxy_process import ProxyProcess, running_proxy
from support.proxy_ways import TOOLS, Told, told, turn
from support.upstream_script import Pause, Script, calls, says, stops

SESSIONS = 50
TURNS = 4


def kind(number: int) -> str:
    """What happens in a session: loops, malformed calls, text."""
    return ("looping", "malformed", "well")[number % 3]


def history(number: int, turns: int) -> list[dict[str, Any]]:
    """A conversation as long as its turns; looping ones repeat one call with one result."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"session <{number}> start"}]
    for step in range(turns):
        path = "same" if kind(number) == "looping" else f"file{number}-{step}"
        use = {"type": "tool_use", "id": f"t{number}-{step}", "name": "read_file", "input": {"path": path}}
        text = "same" if kind(number) == "looping" else f"text {number}-{step}"
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": text}
        messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    return messages


def number_of(body: Any) -> int:
    """The session an upstream body belongs to."""
    return int(str(body["messages"]).partition("session <")[2].partition(">")[0])


def script(body: Any) -> Script:
    """The upstream's answer carries the number of the session that asked; malformed sessions never get it right."""
    number = number_of(body)
    if kind(number) == "malformed":
        return Script((Pause(0.01), *calls("read_file", {"limit": "x"}), *stops("tool_calls")))
    words = (*says("I am "), Pause(0.03), *says(f"<{number}>"))
    return Script((*words, *calls("read_file", {"path": f"next{number}"}), *stops("tool_calls")))


def ask(proxy: ProxyProcess, number: int, step: int) -> Told:
    """One turn of a session."""
    headers = {"x-claude-code-session-id": f"isolated-{number:02d}"}
    turns = 10 if kind(number) == "looping" else step
    return told(proxy.messages(turn(messages=history(number, turns), tools=TOOLS, stream=number % 2 == 0), headers))


def test_fifty_sessions_do_not_touch_one_another(upstream: FaultUpstream, tmp_path: Path) -> None:
    upstream.decide = script
    with running_proxy(upstream.url, tmp_path) as proxy, ThreadPoolExecutor(SESSIONS) as pool:
        for step in range(TURNS):
            answers = list(pool.map(lambda number, step=step: ask(proxy, number, step), range(SESSIONS)))
            for number, seen in enumerate(answers):
                if kind(number) != "malformed":
                    assert seen.text == f"I am <{number}>"
                    assert ("read_file", {"path": f"next{number}"}) in seen.calls
        views = {session["id"]: session for session in proxy.context()["status"]["sessions"]}
        for number in range(SESSIONS):
            view = next(view for name, view in views.items() if name.endswith(f"isolated-{number:02d}"))
            assert view["requests"] == TURNS
            assert view["active"] == 0
            assert view["is_looping"] == (kind(number) == "looping"), view
            assert (view["malformed_total"] > 0) == (kind(number) == "malformed"), view
            assert (view["malformed_streak"] > 0) <= (kind(number) == "malformed"), view
            assert (view["contamination_resets"] > 0) <= (kind(number) == "malformed"), view
        assert len(views) == SESSIONS
    for chat in upstream.chats:
        assert str(chat.body["messages"]).count("session <") == 1


def test_sessions_are_bounded_whatever_ids_come(upstream: FaultUpstream, tmp_path: Path) -> None:
    del upstream.calls[:]
    with running_proxy(upstream.url, tmp_path, {}) as proxy:
        hostile = ["x" * 5000, "../../etc/passwd", "%00%0a", "'; drop table", "<script>", *map(str, range(600))]
        for name in hostile:
            assert told(proxy.messages(turn(), {"x-claude-code-session-id": name})).text == "Hello"
        status = proxy.context()["status"]
        assert status["session_count"] <= 512
        assert all(len(session["id"]) <= 200 for session in status["sessions"])
