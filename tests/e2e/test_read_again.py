"""Why a prompt was read again: a real engine and the real proxy, and a client that changes one thing at a time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from insight.scenes import OK, Watch, tell
from specdash.backend.launch import free_port
from specdash.core.proxy_events import ProxyEvents, RequestEvent, from_json
from specdash.insight.proxy.read_again import ReadAgain, Reason, read_again
from specdash.llama.log.parser import LogParser
from support.proxy_process import ProxyProcess
from support.small_server import small_server

pytestmark = [pytest.mark.slow, pytest.mark.engine]

RULES = "You are a careful reviewer of programs. Read each file before you answer, and name the line. " * 8
QUESTION = "Here is the file that I mean; it opens a socket, reads a line and closes it again. What is wrong? " * 5
ANSWER = "The socket is closed before the line was read to its end, so that the rest of it is lost. " * 5
TOOL = {"name": "read", "description": "Reads one file from its start. " * 12, "parameters": {"type": "object"}}


class Client:
    """One conversation through the proxy, and what specdash makes of it."""

    def __init__(self, proxy: ProxyProcess, log: Path) -> None:
        self.proxy, self.log = proxy, log
        self.system, self.tools = RULES, [TOOL]
        self.turns: list[tuple[str, str]] = [("user", QUESTION), ("assistant", ANSWER), ("user", QUESTION)]

    def ask(self, **more: Any) -> ReadAgain | None:
        """Send the conversation as it is now, and say why its prompt was read again."""
        messages = [{"role": "system", "content": self.system}]
        messages += [{"role": role, "content": text} for role, text in self.turns]
        tools = [{"type": "function", "function": tool} for tool in self.tools]
        body = {"messages": messages, "tools": tools, "max_tokens": 4, "cache_prompt": True, **more}
        assert self.proxy.request("POST", "/v1/chat/completions", body, {"x-session-id": "one"}).status == 200
        self.proxy.wait_idle()
        self.watch = Watch()
        log = LogParser().feed(self.log.read_bytes())
        events = tuple(event for line in self._lines() if isinstance(event := from_json(line), RequestEvent))
        tell(self.watch.state, self.watch.at, log=log, proxy_events=ProxyEvents(events))
        newest = max(self.watch.state.picture(self.watch.at, events[-1].at + 1).views.prefix_cache.requests,
                     key=lambda request: request.began)  # fmt: skip
        return read_again(newest)

    def go_on(self) -> None:
        self.turns += [("assistant", ANSWER), ("user", QUESTION)]

    def _lines(self) -> list[str]:
        return self.proxy.events_file.read_text().splitlines()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    port, log = free_port("127.0.0.1"), tmp_path / "engine.log"
    with small_server(port, log, n_ctx=16384):
        proxy = ProxyProcess(f"http://127.0.0.1:{port}", tmp_path / "proxy")
        try:
            proxy.wait_ready()
            yield Client(proxy, log)
        finally:
            proxy.process.terminate()
            proxy.process.join(10)


def test_what_the_client_changed_is_named_with_its_place_and_its_cost(client: Client) -> None:
    assert client.ask(id_slot=0) is None
    client.go_on()
    assert client.ask(id_slot=0) is None

    client.system = RULES.replace("careful", "patient")
    client.go_on()
    found = client.ask(id_slot=0)
    assert found is not None
    assert (found.reason, found.at) == (Reason.SYSTEM, 0.0)
    assert found.tokens > 300
    assert found.seconds is not None

    client.tools = [{**TOOL, "name": "open"}]
    client.go_on()
    found = client.ask(id_slot=0)
    assert found is not None
    assert found.reason is Reason.TOOLS
    assert found.at is not None
    assert 0.05 < found.at < 0.5

    client.turns[2] = ("user", QUESTION.replace("socket", "pipe"))
    client.go_on()
    found = client.ask(id_slot=0)
    assert found is not None
    assert (found.reason, found.detail) == (Reason.MESSAGE, "message 3")
    assert found.at is not None
    assert 0.2 < found.at < 0.7

    client.go_on()
    found = client.ask(id_slot=1)
    assert found is not None
    assert (found.reason, found.at) == (Reason.SLOT, None)

    text = client.proxy.events_file.read_text()
    assert "socket" not in text
    assert "reviewer" not in text


def test_a_client_that_changes_its_system_prompt_every_turn_is_named(client: Client) -> None:
    for turn in range(5):
        client.system = f"It is turn {turn}. {RULES}"
        client.ask(id_slot=0)
        client.go_on()
    events = [from_json(line) for line in client.proxy.events_file.read_text().splitlines()]
    last = events[-1]
    assert isinstance(last, RequestEvent)
    watch = client.watch
    watch.offset = last.at + 1 - watch.at
    watch.look(3, health=OK)
    alert = watch.alert("prompt_cache_lost")
    assert alert is not None
    assert "in 4 of 5 turns: its system prompt changed" in alert.summary
    assert "no date or id in the system prompt" in alert.remedy
