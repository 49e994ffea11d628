"""A backend that serves TLS: its address says so, and everything of this machine talks to it by its own certificate."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from specdash.backend.settings import BackendSettings, settings_from_env
from specdash.collect.discover import discover, server_arguments
from specdash.core.readings import Failure, Health, HealthStatus
from specdash.core.records import Drafting
from specdash.llama.client import BlockingClient, LlamaClient
from specdash.system import http
from support.certificates import make_certificate
from support.engines import RunningBackend, engine_env, with_draft

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAIR = {"LLAMA_ARG_SSL_CERT_FILE": "/etc/llama/chain.pem", "LLAMA_ARG_SSL_KEY_FILE": "/etc/llama/key.pem"}


def settings(**env: str) -> BackendSettings:
    return settings_from_env({"LLAMA_MODEL": "m.gguf", **env})


@pytest.mark.parametrize(
    ("env", "scheme"),
    [
        (PAIR, "https"),
        ({"LLAMA_EXTRA_ARGS": "--ssl-key-file k.pem --ssl_cert_file c.pem"}, "https"),
        ({"LLAMA_ARG_SSL_CERT_FILE": "c.pem"}, "http"),
    ],
)
def test_the_address_has_the_scheme_that_certificate_and_key_give_the_server(env: dict[str, str], scheme: str) -> None:
    found = settings(**env)
    assert found.url.partition("://")[0] == scheme
    assert (found.certificate is not None) == (scheme == "https")


@pytest.mark.parametrize(
    ("env", "url"),
    [
        ({"LLAMA_ARG_API_PREFIX": "/llm/"}, "http://127.0.0.1:8080/llm"),
        ({"LLAMA_EXTRA_ARGS": "--api-prefix /a/b", **PAIR}, "https://127.0.0.1:8080/a/b"),
    ],
)
def test_a_prefix_is_part_of_the_address(env: dict[str, str], url: str) -> None:
    assert settings(**env).url == url


@pytest.mark.parametrize(("words", "env"), [(["--api-prefix", "/llm/"], {}), ([], {"LLAMA_ARG_API_PREFIX": "/llm"})])
def test_a_server_that_others_started_is_found_below_its_prefix(words: list[str], env: dict[str, str]) -> None:
    assert server_arguments(["llama-server", *words], env, "/srv").url() == "http://127.0.0.1:8080/llm"


@contextmanager
def tls_server(directory: Path, name: str) -> Iterator[tuple[str, str]]:
    """A server that answers everything with HTTP 501 over TLS: its address, and its certificate's file."""
    certificate, key = make_certificate(directory, name, "DNS:gpu.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}", str(certificate)
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def test_a_servers_own_certificate_is_trusted_at_its_own_address_and_no_other(tmp_path: Path) -> None:
    with tls_server(tmp_path, "own") as (own, certificate), tls_server(tmp_path, "other") as (other, _):
        http.trust(own, certificate)
        assert http.ask(own, "/").status == 501
        assert http.ask(own.replace("127.0.0.1", "localhost"), "/").status == 501
        with pytest.raises(http.NoConnectionError, match="TLS: self-signed certificate"):
            http.ask(other, "/")
        assert http.ask(other, "/", verified=False).status == 501
        http.trust(other, certificate)
        with pytest.raises(http.NoConnectionError):
            http.ask(other, "/")


@pytest.mark.llama_server
def test_a_real_server_with_tls_is_checked_recorded_and_watched(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = make_certificate(tmp_path, "gpu", "DNS:gpu.example")
    pair = {"LLAMA_ARG_SSL_CERT_FILE": str(certificate), "LLAMA_ARG_SSL_KEY_FILE": str(key)}
    keys = {"LLAMA_API_KEY": "old-key,new-key", "LLAMA_START_PROBE": "1"}
    backend = RunningBackend({**with_draft(models, **engine_env("llama-server")), **pair, **keys}, tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(backend.state))
    try:
        assert backend.wait_checked().drafting is Drafting.YES
        (target,) = (found for found in discover() if str(backend.port) in found.url)
        assert (target.url, target.api_key) == (f"https://127.0.0.1:{backend.port}", "old-key")

        async def health() -> Health | Failure:
            client = LlamaClient(target)
            try:
                return await client.health()
            finally:
                await client.aclose()

        found = asyncio.run(health())
        assert isinstance(found, Health), found
        assert found.status is HealthStatus.OK
        assert BlockingClient(target.url, target.api_key).slots().slots
    finally:
        backend.process.terminate()
        backend.process.wait(20)


async def test_a_question_without_a_connection_leaves_that_of_another_question_to_be_closed(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "own")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    accepted, goes_on, closed = threading.Event(), threading.Event(), threading.Event()

    def serve(listener: socket.socket) -> None:
        plain, _ = listener.accept()
        # The next one is refused.
        listener.close()
        accepted.set()
        goes_on.wait(20)
        with context.wrap_socket(plain, server_side=True) as connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            if not connection.recv(1):
                closed.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        client = http.Http(f"https://127.0.0.1:{listener.getsockname()[1]}", verified=False)
        first = asyncio.create_task(client.ask("/a", 20.0))
        assert await asyncio.to_thread(accepted.wait, 20)
        with pytest.raises(http.NoConnectionError):
            await client.ask("/b", 20.0)
        goes_on.set()
        assert (await first).body == b"{}"
        await client.aclose()
        assert await asyncio.to_thread(closed.wait, 20)
