"""The proxy's application on a real socket, inside the loop of the test."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import uvicorn
from uvicorn.server import ServerState

from specdash.proxy.http.app import Proxy, asgi
from specdash.proxy.settings import ProxySettings, settings_from_env
from support.scripted_server import Behaviour, ScriptedServer
from support.waiting import until_async

NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients that speak plain HTTP: reading the authorities' certificates costs each 40 ms."""


class RunningProxy:
    """A proxy that listens, and a client for it."""

    def __init__(self, proxy: Proxy, state: ServerState, port: int) -> None:
        self.proxy = proxy
        self.state = state
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx.AsyncClient(base_url=self.url, trust_env=False, verify=NO_AUTHORITIES, timeout=20)

    async def get(self, path: str, **more: Any) -> httpx.Response:
        return await self.client.get(path, **{"headers": self._opens(path), **more})

    async def post(self, path: str, value: Any = None, **more: Any) -> httpx.Response:
        return await self.client.post(path, json=value, **{"headers": self._opens(path), **more})

    def _opens(self, path: str) -> dict[str, str]:
        """The headers that are sent where a test gives none."""
        return {"x-admin-token": self.proxy.admin_token} if path.startswith("/admin/") else {}

    async def send(self, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection of one's own, on which `data` was sent."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        await writer.drain()
        return reader, writer

    async def send_post(self, path: str, body: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A POST on a connection of one's own."""
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        return await self.send(head.encode() + body)


def settings_for(url: str, **texts: str) -> ProxySettings:
    """Settings with `url` as the upstream; other keys by their env name."""
    return settings_from_env({"LLAMA_CPP_BASE": f"{url}/v1", "PROXY_EVENTS_FILE": "off", **texts})


@contextlib.asynccontextmanager
async def proxied(
    otherwise: Behaviour, routes: Mapping[str, Behaviour] | None = None, /, **texts: str
) -> AsyncIterator[tuple[RunningProxy, ScriptedServer]]:
    """A proxy with these settings in front of an upstream that answers by `routes`, any other path by `otherwise`."""
    async with ScriptedServer(otherwise, routes) as server, running_proxy(settings_for(server.url, **texts)) as proxy:
        yield proxy, server


@contextlib.asynccontextmanager
async def running_proxy(settings: ProxySettings) -> AsyncIterator[RunningProxy]:
    """The proxy with `settings`, on a free port whatever they say."""
    proxy = Proxy(settings)
    config = uvicorn.Config(asgi(proxy), http="httptools", ws="none", lifespan="off", log_config=None, access_log=False)
    config.load()
    state = ServerState()
    # As uvicorn's own server makes one for each connection.
    protocol: Any = config.http_protocol_class
    server = await asyncio.get_running_loop().create_server(
        lambda: protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    running = RunningProxy(proxy, state, server.sockets[0].getsockname()[1])
    try:
        yield running
    finally:
        await running.client.aclose()
        server.close()
        for connection in list(state.connections):
            connection.shutdown()
        for task in list(state.tasks):
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)
        for connection in list(state.connections):
            connection.transport.close()
        await until_async(lambda: not state.connections)
        await proxy.upstream.close()
