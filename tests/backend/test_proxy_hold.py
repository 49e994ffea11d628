"""Holding the proxies in front of a backend: real proxies, found by their records, always let go."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import psutil
import pytest

from specdash.backend import proxies, trial
from specdash.backend.journal import HeldProxy
from specdash.backend.proxies import ProxyHold, fronts
from specdash.core.records import ProxyRecord
from support.fault_server import FaultServer, says
from support.proxy_process import ProxyProcess, running_proxy
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

pytestmark = pytest.mark.slow
UPSTREAM = "http://127.0.0.1:9"


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ProxyProcess]:
    with running_proxy(UPSTREAM, tmp_path / "p", {"PROXY_API_KEY": "hush"}) as running:
        yield running


def state(proxy: ProxyProcess) -> dict[str, object]:
    found: dict[str, object] = proxy.request("GET", "/admin/state").json
    return found


def held(
    found: Iterable[ProxyRecord], reason: str = "why", env: Mapping[str, str] = os.environ
) -> tuple[ProxyHold, list[str]]:
    """A hold, and its warnings so far."""
    warnings: list[str] = []
    hold = ProxyHold(warnings.append, env)
    hold.hold(found, reason, 30)
    return hold, warnings


def test_a_proxy_in_front_of_the_backend_is_found_held_and_resumed(proxy: ProxyProcess) -> None:
    assert fronts(["http://127.0.0.1:10"], proxy.env) == []
    found = fronts(["http://localhost:9"], proxy.env)
    assert [record.pid for record in found] == [proxy.process.pid]
    hold, warnings = held(found, "specdash apply 1")
    assert (len(hold.held), hold.total("active")) == (1, 0)
    now = state(proxy)
    assert (now["held"], now["reason"], now["limit_s"]) == (True, "specdash apply 1", proxies.LEASE_S)
    for _ in range(2):
        hold.resume()
        assert state(proxy)["held"] is False
    assert warnings == []


def test_a_hold_is_renewed_as_long_as_it_is_wanted_and_never_after(
    proxy: ProxyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxies, "RENEW_S", 0.05)
    monkeypatch.setattr(proxies, "LEASE_S", 0.4)
    hold, _ = held(fronts([UPSTREAM], proxy.env))
    threading.Event().wait(1.0)
    assert state(proxy)["held"] is True
    hold.resume()
    threading.Event().wait(0.3)
    assert state(proxy)["held"] is False


def test_a_hold_that_nobody_renews_ends_by_itself(proxy: ProxyProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxies, "LEASE_S", 0.2)
    hold, _ = held(fronts([UPSTREAM], proxy.env))
    until(lambda: state(proxy)["held"] is False)
    hold.resume()


def test_the_proxies_of_a_journal_are_resumed_and_those_that_are_gone_are_no_trouble(
    proxy: ProxyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fronts([UPSTREAM], proxy.env)
    killed, _ = held(found, "of a runner that was killed")
    gone, known = (HeldProxy(pid, 0.0, found[0].url) for pid in (2**22 + 1, found[0].pid))
    monkeypatch.setattr(trial, "healthy", lambda _: True)
    trial.resume([gone, known], UPSTREAM, proxy.env)
    killed.resume()
    assert state(proxy)["held"] is False


def front(url: str) -> ProxyRecord:
    started = psutil.Process().create_time()
    return ProxyRecord(os.getpid(), started, url, UPSTREAM, api_key_env="PROXY_API_KEY")


def test_a_proxy_of_0_1_is_held_with_the_client_key() -> None:
    with FaultServer({"/admin/hold": says(200, "{}"), "/admin/resume": says(200, "{}")}) as server:
        hold, warnings = held([front(server.url)], env={"PROXY_API_KEY": "hush"})
        hold.resume()
        assert warnings == []
        (call,) = server.asked("/admin/hold")
    assert "x-api-key: hush" in call.head.lower()
    assert "x-admin-token" not in call.head.lower()


def test_a_proxy_that_cannot_be_held_is_a_warning_and_is_not_resumed() -> None:
    with FaultServer() as server:
        hold, warnings = held([front(server.url)])
        assert warnings == [f"the proxy at {server.url} could not be held (HTTP 404); its clients may see errors"]
        assert (hold.held, hold.total("active")) == ([], 0)
        hold.resume()
        assert server.count("/admin/resume") == 0


def test_a_proxy_that_does_not_take_the_resume_is_said_with_the_way_out() -> None:
    with FaultServer({"/admin/hold": says(200, "{}"), "/admin/resume": says(500, "{}")}) as server:
        hold, warnings = held([front(server.url)])
        hold.resume()
    (warning,) = warnings
    assert "could not be resumed (HTTP 500)" in warning
    assert f"specdash proxy resume --url {server.url}" in warning
