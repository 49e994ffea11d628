"""Every rule of answers.toml raised by a real proxy, whose upstream or clients do what happens at night, and seen by a
real hub; and none raised by healthy turns through it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from specdash.core.records import Alert, AlertSeverity
from specdash.core.target import Target
from specdash.insight.rules.catalogue import shipped, with_user_limits
from support.fault_upstream import FaultUpstream
from support.faults import BreakableServer, Watched, watched
from support.proxy_process import ProxyProcess, running_proxy
from support.proxy_ways import TOOLS, RawClient, turn
from support.upstream_script import (
    Hang,
    Script,
    answers,
    error,
    loading,
    says,
    stops,
    tool_turn,
)
from support.waiting import until

pytestmark = pytest.mark.slow

OWN = tuple(rule for rule in shipped() if rule.family == "answers")
BROKEN = '<tool_call>\n{"name": "read_file", "arguments": {"path": '
EMPTY = Script(stops("stop"))
MESSAGES = "/v1/messages"


class Bench:
    """An upstream that obeys, a proxy before it, and clients."""

    def __init__(self, upstream: FaultUpstream, proxy: ProxyProcess) -> None:
        self.upstream, self.proxy = upstream, proxy
        self._numbers = count()

    @property
    def target(self) -> Target:
        """How specdash would watch it."""
        return Target(self.upstream.url, proxy_url=self.proxy.url, proxy_log=str(self.proxy.events_file))

    def ask(self, times: int = 1, session: str = "", **fields: Any) -> list[int]:
        """Turns one after the other, each of a session of its own unless it is named; their statuses."""
        names = [session or f"agent-{next(self._numbers)}" for _ in range(times)]
        return [self.proxy.messages(turn(**fields), {"x-claude-code-session-id": name}).status for name in names]

    def alert(self, rule: str, user: str = "", says: str = "") -> Alert:
        """Watch until the rule's alert is raised and its summary holds `says`; thresholds as a user may change them."""
        with watched(self.target, with_user_limits(OWN, user)) as seen:
            return until_says(seen, rule, says)

    def rules_raised(self, seconds: float = 4.0, user: str = "") -> set[str]:
        """Watch for a while."""
        with watched(self.target, with_user_limits(OWN, user)) as seen:
            seen.until_live()
            time.sleep(seconds)
            return seen.rules_raised()


def until_says(seen: Watched, rule: str, says: str) -> Alert:
    """The rule's alert once all that happened was read: it may be raised by a part of it."""
    seen.until_alert(rule)
    found: list[Alert] = []

    def look() -> bool:
        alert = seen.alert(rule)
        found.extend([alert] if alert is not None and says in alert.summary else [])
        return bool(found)

    until(look, why=lambda: f"{rule} never said {says!r}; {seen.said()}")
    return found[0]


@pytest.fixture
def upstream() -> Iterator[FaultUpstream]:
    with FaultUpstream() as server:
        yield server


@pytest.fixture
def bench(upstream: FaultUpstream, tmp_path: Path) -> Iterator[Bench]:
    with running_proxy(upstream.url, tmp_path, {"PROXY_READ_TIMEOUT": 20}) as proxy:
        yield Bench(upstream, proxy)


def tool_loop(times: int) -> list[dict[str, Any]]:
    """A history of identical tool turns."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Fix a.py"}]
    for at in range(times):
        call = {"type": "tool_use", "id": f"toolu_{at}", "name": "read_file", "input": {"path": "a.py"}}
        messages.append({"role": "assistant", "content": [call]})
        result = {"type": "tool_result", "tool_use_id": f"toolu_{at}", "content": "no such file"}
        messages.append({"role": "user", "content": [result]})
    return messages


def chat_history(turns: int, size: int = 0) -> list[dict[str, Any]]:
    """A conversation of some turns, each message at least `size` characters long."""
    text = "word " * (size // 5)
    roles = ("user", "assistant")
    messages = [{"role": role, "content": f"{role} {at} {text}"} for at in range(turns) for role in roles]
    return [*messages, {"role": "user", "content": "go on"}]


def test_healthy_turns_raise_nothing(bench: Bench) -> None:
    bench.upstream.scripts = [answers("Hel", "lo"), tool_turn("read_file", {"path": "a.py"})] * 10
    assert set(bench.ask(20, tools=TOOLS)) == {200}
    assert bench.rules_raised() == set()


def test_a_few_faults_that_are_mended_are_no_storm(bench: Bench) -> None:
    bad = Script((*says(BROKEN), *stops("stop")))
    good = tool_turn("read_file", {"path": "a.py"})
    bench.upstream.scripts = [bad, good, EMPTY, answers("Here it is.")]
    assert set(bench.ask(2, tools=TOOLS)) == {200}
    bench.upstream.otherwise = answers("fine")
    bench.ask(12, tools=TOOLS, messages=tool_loop(9))
    bench.upstream.scripts = [error(500, "Compute error.", "server_error")]
    bench.ask(8)
    assert bench.rules_raised() == set()


def test_empty_answers_that_no_retry_helps(bench: Bench) -> None:
    bench.upstream.otherwise = EMPTY
    assert set(bench.ask(3)) == {200}
    alert = bench.alert("empty_answers", says="3 of 3 answers in 5 min had nothing in them")
    assert alert.severity is AlertSeverity.WARNING
    assert alert.fix == ()


def test_malformed_tool_calls_that_reach_the_client_and_cut_sessions_back(bench: Bench) -> None:
    bench.upstream.otherwise = Script((*says(BROKEN), *stops("stop")))
    for session in ("one", "two", "three"):
        bench.ask(4, session, tools=TOOLS, messages=chat_history(15))
    with watched(bench.target, OWN) as seen:
        shown = seen.until_alert("malformed_storm")
        assert shown.severity is AlertSeverity.CRITICAL
        assert ("PROXY_MALFORMED_TOOL_STREAM_STRICT", "on") in shown.fix
        until(lambda: (now := seen.alert("malformed_storm")) is not None and ("sessions", "3") in now.evidence)
        assert ("sessions cut back", "3 times") in seen.until_alert("malformed_storm").evidence


def test_a_session_that_goes_on_looping_after_the_breaker_has_warned_it(bench: Bench) -> None:
    for length in range(8, 14):
        bench.ask(1, "stuck", tools=TOOLS, messages=tool_loop(length))
    assert bench.rules_raised() == set(), "the breaker may still end it"
    for length in range(14, 18):
        bench.ask(1, "stuck", tools=TOOLS, messages=tool_loop(length))
    alert = bench.alert("session_looping")
    assert alert.subject == "hdr:stuck"
    assert "for 17 turns (warned 10 times)" in alert.summary
    assert ("PROXY_FORCED_THRESHOLD", "14") in alert.fix


def test_clients_that_leave(bench: Bench) -> None:
    bench.upstream.otherwise = Script((*says("slow"), Hang()))
    for _ in range(6):
        with RawClient(bench.proxy.port, MESSAGES, turn(stream=True)) as client:
            client.read_until(b"slow")
            client.leave(reset=True)
    said = "6 of 6 clients in 5 min left before their answer was complete, after "
    assert dict(bench.alert("proxy_errors", says=said).evidence)["before the first token"] == "0"


def test_a_proxy_that_is_killed_and_comes_back(bench: Bench, tmp_path: Path) -> None:
    with watched(bench.target, OWN, interval_s=1.0) as seen:
        until(lambda: seen.picture().proxy.live is not None)
        assert seen.rules_raised() == set()
        bench.proxy.process.kill()
        bench.proxy.process.join(10)
        alert = seen.until_alert("proxy_down")
        assert alert.summary.startswith(f"the proxy at {bench.proxy.url} is gone: connection refused")
        again = subprocess.Popen(
            [sys.executable, "-m", "specdash", "proxy", "run", "--env-file", str(bench.proxy.env_file)],
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            seen.until_over("proxy_down")
        finally:
            again.kill()
            again.wait(10)


def test_a_proxy_that_hangs(bench: Bench) -> None:
    with watched(bench.target, with_user_limits(OWN, "[proxy_down]\nlimits.silent_s = 2")) as seen:
        until(lambda: seen.picture().proxy.live is not None)
        bench.proxy.send(signal.SIGSTOP)
        try:
            assert "hangs" in seen.until_alert("proxy_down").summary
        finally:
            bench.proxy.send(signal.SIGCONT)
        seen.until_over("proxy_down")


def test_an_upstream_that_is_gone(bench: Bench) -> None:
    target = replace(bench.target, proxy_log=None)
    with watched(target, OWN) as seen:
        until(lambda: seen.picture().proxy.live is not None)
        assert seen.alert("upstream_unreachable") is None
        bench.upstream.close()
        until(lambda: bench.proxy.request("GET", "/health").json["upstream"] == "unreachable")
        alert = seen.until_alert("upstream_unreachable")
        assert dict(alert.evidence)["the same address"] == "yes"


def test_a_proxy_that_names_another_upstream(upstream: FaultUpstream, tmp_path: Path) -> None:
    with running_proxy("http://127.0.0.1:9", tmp_path) as proxy:
        alert = Bench(upstream, proxy).alert("upstream_unreachable")
    assert alert.summary == "the proxy cannot reach its upstream http://127.0.0.1:9"
    assert dict(alert.evidence)["the same address"] == "no"


def test_an_upstream_that_came_back_is_not_unreachable_because_nobody_asked_since(bench: Bench) -> None:
    bench.upstream.routes = {path: error(500, "no", "server_error") for path in ("/props", "/v1/models")}
    until(lambda: bench.proxy.request("GET", "/health").json["upstream"] == "unreachable")
    bench.upstream.routes = {}
    assert bench.proxy.context()["status"]["upstream"] == "unreachable"
    assert bench.rules_raised() == set()


def test_a_hold_that_somebody_forgot(bench: Bench) -> None:
    soon = "[requests_waiting]\nlimits.held_s = 1\nlimits.critical_s = 4\nclear_after_s = 0"
    with watched(bench.target, with_user_limits(OWN, soon)) as seen:
        seen.until_live()
        bench.proxy.hold()
        with RawClient(bench.proxy.port, MESSAGES, turn()):
            bench.proxy.wait_waiting(1)
            assert "(test), and 1 request waits" in seen.until_alert("requests_waiting").summary
            until(
                lambda: (now := seen.alert("requests_waiting")) is not None and now.severity is AlertSeverity.CRITICAL
            )
        bench.proxy.resume()
        seen.until_over("requests_waiting")


def test_what_a_proxy_counted_before_specdash_looked_is_no_storm_and_what_it_counts_since_is(bench: Bench) -> None:
    bench.upstream.otherwise = EMPTY
    bench.ask(6)
    with watched(replace(bench.target, proxy_log=None), OWN) as seen:
        until(lambda: seen.picture().proxy.live is not None)
        time.sleep(2)
        assert seen.rules_raised() == set()
        bench.ask(4)
        until_says(seen, "empty_answers", "4 of 4 answers")


@pytest.mark.llama_server
def test_more_clients_than_slots_wait_for_long(tmp_path: Path) -> None:
    soon = "[requests_waiting]\nlimits.window_s = 4\nclear_after_s = 1"
    with BreakableServer(tmp_path, "-np", "1") as server, watched(server.target, with_user_limits(OWN, soon)) as seen:
        with server.working(clients=1):
            seen.until_live()
            time.sleep(6)
            assert seen.rules_raised() == set()
        with server.working(clients=4):
            alert = seen.until_alert("requests_waiting")
        assert dict(alert.evidence)["slots"] == "1"
        assert "for a slot" in alert.summary
        seen.until_over("requests_waiting", 60)


def test_an_upstream_that_loads_is_not_the_proxys_fault(bench: Bench) -> None:
    bench.upstream.otherwise = loading()
    bench.upstream.is_loading = True
    bench.proxy.request("GET", "/health")
    with watched(bench.target, OWN) as seen:
        until(lambda: seen.picture().backend.state == "loading")
        time.sleep(2)
        assert seen.rules_raised() == set()
