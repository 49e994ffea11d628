"""Sockets, and the words between systemd and the proxy."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from specdash.core.errors import InputError
from specdash.proxy.http.server import (
    address,
    client_url,
    inherited_sockets,
    listening_sockets,
    notify,
)
from support.fault_server import free_port
from support.proxy_app import settings_for

if TYPE_CHECKING:
    from pathlib import Path

UPSTREAM = "http://127.0.0.1:9"


def listening(**texts: str) -> list[socket.socket]:
    return listening_sockets(settings_for(UPSTREAM, PROXY_API_KEY="k", **texts), {})


class TestSockets:
    @pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
    @pytest.mark.parametrize("host", ["::1", "[::1]"])
    def test_ipv6_is_written_with_brackets(self, host: str) -> None:
        try:
            (item,) = listening(PROXY_HOST=host, PROXY_PORT=str(port := free_port()))
        except InputError:
            pytest.skip("no IPv6 loopback here")
        with item:
            assert address(item) == f"[::1]:{port}"
            assert client_url(item) == f"http://[::1]:{port}"

    def test_a_wildcard_is_reached_on_loopback_and_an_unknown_host_is_named(self) -> None:
        with pytest.raises(InputError, match="PROXY_HOST=no-such-host"):
            listening(PROXY_HOST="no-such-host.invalid")
        (item,) = listening(PROXY_HOST="0.0.0.0", PROXY_PORT=str(port := free_port()))
        with item:
            assert client_url(item) == f"http://127.0.0.1:{port}"


class TestActivation:
    @pytest.mark.parametrize(
        "env", [{}, {"LISTEN_FDS": "1"}, {"LISTEN_FDS": "1", "LISTEN_PID": "1"}, {"LISTEN_PID": str(os.getpid())}]
    )
    def test_sockets_meant_for_another_process_are_left_alone(self, env: dict[str, str]) -> None:
        assert inherited_sockets(dict(env)) == []

    def test_a_passed_socket_open_to_other_machines_needs_a_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server(("0.0.0.0", 0)) as passed:
            monkeypatch.setattr("specdash.proxy.http.server.inherited_sockets", lambda _: [passed])
            with pytest.raises(InputError, match="for other machines too: set PROXY_API_KEY"):
                listening_sockets(settings_for(UPSTREAM), {})
            assert listening_sockets(settings_for(UPSTREAM, PROXY_API_KEY="k"), {}) == [passed]


class TestNotify:
    def test_systemd_is_notified(self, tmp_path: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            listener.bind(str(tmp_path / "n"))
            notify("READY=1", {"NOTIFY_SOCKET": str(tmp_path / "n")})
            assert listener.recv(100) == b"READY=1"
