"""Holding the proxies in front of a backend: real proxies, found by their records, always let go."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from specdash.backend import proxies
from specdash.backend.journal import HeldProxy
from specdash.backend.proxies import ProxyFront, ProxyHold, fronts, held_fronts
from specdash.core.records import ProxyRecord
from support.fault_server import FaultServer, says
from support.proxy_process import ProxyProcess, running_proxy
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow
UPSTREAM = "http://127.0.0.1:9"


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ProxyProcess]:
    with running_proxy(UPSTREAM, tmp_path / "p", {"PROXY_API_KEY": "hush"}) as running:
        yield running


def env_of(proxy: ProxyProcess) -> dict[str, str]:
    return proxy.env


def state(proxy: ProxyProcess) -> dict[str, object]:
    found: dict[str, object] = proxy.request("GET", "/admin/state").json
    return found


def test_a_proxy_in_front_of_the_backend_is_found_with_its_key_held_and_resumed(proxy: ProxyProcess) -> None:
    assert fronts(["http://127.0.0.1:10"], env_of(proxy)) == ()
    found = fronts(["http://localhost:9"], env_of(proxy))
    assert [(proxy_front.record.pid, proxy_front.key) for proxy_front in found] == [(proxy.process.pid, "hush")]
    assert found[0].token == proxy.admin_token
    assert not {"hush", proxy.admin_token} & set(repr(found).replace("'", " ").split())
    assert proxy.admin_token not in repr(found)
    hold = ProxyHold(found, "specdash apply 1", 30)
    assert hold.warnings == []
    assert (hold.count, hold.total("active")) == (1, 0)
    assert (state(proxy)["held"], state(proxy)["reason"]) == (True, "specdash apply 1")
    assert state(proxy)["limit_s"] == proxies.LEASE_S
    assert hold.resume() == []
    assert state(proxy)["held"] is False
    assert hold.resume() == []


def test_a_hold_is_renewed_as_long_as_it_is_wanted_and_never_after(
    proxy: ProxyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxies, "RENEW_S", 0.05)
    monkeypatch.setattr(proxies, "LEASE_S", 0.4)
    hold = ProxyHold(fronts([UPSTREAM], env_of(proxy)), "renewed", 30)
    threading.Event().wait(1.0)
    assert state(proxy)["held"] is True
    hold.resume()
    threading.Event().wait(0.3)
    assert state(proxy)["held"] is False


def test_a_hold_that_nobody_renews_ends_by_itself(proxy: ProxyProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxies, "LEASE_S", 0.2)
    hold = ProxyHold(fronts([UPSTREAM], env_of(proxy)), "forgotten", 30)
    until(lambda: state(proxy)["held"] is False)
    hold.resume()


def test_the_proxies_of_a_journal_are_resumed_and_those_that_are_gone_are_no_trouble(proxy: ProxyProcess) -> None:
    found = fronts([UPSTREAM], env_of(proxy))
    killed = ProxyHold(found, "of a runner that was killed", 30)
    gone = HeldProxy(2**22 + 1, 0.0, UPSTREAM)
    again = ProxyHold(held_fronts([gone, found[0].held], env_of(proxy)), "of its next start", 30)
    assert again.warnings == []
    assert again.count == 1
    killed.resume()
    assert again.resume() == []
    assert state(proxy)["held"] is False
    proxy.process.kill()
    proxy.process.join(5)
    assert held_fronts([found[0].held], env_of(proxy)) == ()


def front(url: str) -> ProxyFront:
    import psutil

    return ProxyFront(ProxyRecord(os.getpid(), psutil.Process().create_time(), url, UPSTREAM), None)


def test_a_proxy_of_0_1_is_held_with_the_client_key() -> None:
    with FaultServer({"/admin/hold": says(200, "{}"), "/admin/resume": says(200, "{}")}) as server:
        record = front(server.url).record
        hold = ProxyHold([ProxyFront(record, "hush")], "why", 30)
        assert hold.warnings == []
        assert hold.resume() == []
        (call,) = server.asked("/admin/hold")
    assert "x-api-key: hush" in call.head.lower()
    assert "x-admin-token" not in call.head.lower()


def test_a_proxy_that_cannot_be_held_is_a_warning_and_is_not_resumed() -> None:
    with FaultServer() as server:
        hold = ProxyHold([front(server.url)], "why", 30)
        assert hold.warnings == [f"the proxy at {server.url} could not be held (HTTP 404); its clients may see errors"]
        assert (hold.count, hold.total("active"), hold.resume()) == (0, 0, [])
        assert server.count("/admin/resume") == 0


def test_a_proxy_that_does_not_take_the_resume_is_said_with_the_way_out() -> None:
    with FaultServer({"/admin/hold": says(200, "{}"), "/admin/resume": says(500, "{}")}) as server:
        hold = ProxyHold([front(server.url)], "why", 30)
        (warning,) = hold.resume()
    assert "could not be resumed (HTTP 500)" in warning
    assert f"specdash proxy resume --url {server.url}" in warning
