"""`specdash web`: a browser of this machine sees the dashboard, nobody else does, and nothing is changed by it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import aiohttp
import psutil
import pytest

from specdash.cli import web_server
from specdash.core.errors import ExitCode
from support.browser import chromium
from support.fault_server import FaultServer, free_port, says
from support.outside import say
from support.waiting import until, until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

WELL = {
    "/health": says(200, '{"status":"ok"}'),
    "/props": says(200, '{"total_slots":1,"model_path":"/models/tiny.gguf"}'),
    "/metrics": says(200, "llamacpp:n_decode_total 5\n"),
    "/slots": says(200, '[{"id":0,"is_processing":false}]'),
}
PAGE_S = 30.0


class Web:
    """`specdash web` in front of a server that is well, in a process of its own with a home of its own."""

    def __init__(self, home: Path, server: str) -> None:
        self.home = home
        self.port = free_port()
        command = [sys.executable, "-m", "specdash", "web", "--url", server, "--listen", f"127.0.0.1:{self.port}"]
        self._stderr = (home / "stderr").open("wb")
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, "HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "TERM": "dumb"},
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().decode().strip()
        self.base = f"http://127.0.0.1:{self.port}"

    def pages(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=10)
        self._stderr.close()


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    with FaultServer(WELL) as server:
        running = Web(tmp_path_factory.mktemp("web"), server.url)
        try:
            yield running
        finally:
            running.close()


@pytest.fixture
async def stranger(web: Web) -> AsyncIterator[aiohttp.ClientSession]:
    """A client that knows no key."""
    async with aiohttp.ClientSession(web.base, cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield session


@pytest.fixture
async def friend(web: Web, stranger: aiohttp.ClientSession) -> aiohttp.ClientSession:
    """One that has opened the address that was printed."""
    async with stranger.get(web.address.removeprefix(web.base)) as answer:
        assert answer.status == 200
    return stranger


async def status(session: aiohttp.ClientSession, path: str, **headers: str) -> int:
    async with session.get(path, headers=headers, allow_redirects=False) as answer:
        return answer.status


class TestWhoMayLook:
    async def test_the_printed_address_is_changed_for_a_cookie_that_no_script_and_no_other_site_can_use(
        self, web: Web, stranger: aiohttp.ClientSession
    ) -> None:
        async with stranger.get(web.address.removeprefix(web.base), allow_redirects=False) as answer:
            assert (answer.status, answer.headers["location"]) == (303, "/")
            cookie = answer.headers["set-cookie"]
        key = web.address.partition("key=")[2]
        assert len(key) >= 43
        assert key not in cookie
        assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
        async with stranger.get("/") as answer:
            assert answer.status == 200
            assert "default-src 'self'" in answer.headers["content-security-policy"]

    @pytest.mark.parametrize(
        "path", ["/", "/ws", "/static/js/textual.js", "/static/", "/download/x", "/?key=", "/?key=x"]
    )
    async def test_without_the_key_there_is_nothing(self, web: Web, stranger: aiohttp.ClientSession, path: str) -> None:
        assert await status(stranger, path, origin=web.base) == 403

    @pytest.mark.parametrize(
        "host",
        ["evil.example", "127.evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1", "[x"],
    )
    async def test_a_name_that_was_made_to_mean_this_machine_is_refused_even_with_the_key(
        self, web: Web, friend: aiohttp.ClientSession, host: str
    ) -> None:
        for path in ("/", web.address.removeprefix(web.base)):
            assert await status(friend, path, host=f"{host}:{web.port}") == 403

    async def test_a_tunnel_under_another_port_is_this_machine(self, web: Web, friend: aiohttp.ClientSession) -> None:
        async with friend.get("/", headers={"host": "localhost:8000"}) as answer:
            assert "ws://localhost:8000/ws" in await answer.text()

    @pytest.mark.parametrize("origin", [None, "http://evil.example", "null", "https://127.0.0.1", "http://127.0.0.1:1"])
    async def test_a_websocket_of_another_page_is_refused_even_with_the_cookie(
        self, web: Web, friend: aiohttp.ClientSession, origin: str | None
    ) -> None:
        headers = {"origin": origin} if origin is not None else {}
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await friend.ws_connect("/ws", headers=headers)
        assert refused.value.status == 403
        assert web.pages() == []

    async def test_nothing_can_be_posted(self, web: Web, friend: aiohttp.ClientSession) -> None:
        async with friend.post("/", headers={"origin": web.base}) as answer:
            assert answer.status == 403


class Page:
    """The dashboard behind a websocket; `text` is all that it has drawn, without control sequences."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self.text = ""
        self._reader = asyncio.create_task(self._read())

    async def press(self, keys: str) -> None:
        await self._socket.send_json(["stdin", keys])

    async def drawn(self, words: str) -> None:
        await until_async(lambda: words in self.text, PAGE_S)

    async def close(self) -> None:
        await self._socket.close()
        await self._reader

    async def _read(self) -> None:
        async for message in self._socket:
            if message.type is aiohttp.WSMsgType.BINARY:
                self.text += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z$]", "", message.data.decode(errors="replace"))


@contextlib.asynccontextmanager
async def page(web: Web, session: aiohttp.ClientSession) -> AsyncIterator[Page]:
    socket = await session.ws_connect("/ws?width=120&height=36", headers={"origin": web.base})
    opened = Page(socket)
    try:
        await opened.drawn("Acceptance")
        yield opened
    finally:
        await opened.close()
    await until_async(lambda: not web.pages(), PAGE_S)


@pytest.mark.slow
class TestWhatAPageDoes:
    async def test_it_shows_the_dashboard_which_cannot_be_armed_and_ends_with_the_page(
        self, web: Web, friend: aiohttp.ClientSession
    ) -> None:
        async with page(web, friend) as opened:
            await opened.drawn("tiny")
            assert "read-only" in opened.text
            await opened.press("A")
            await opened.drawn("stays")

    async def test_its_keys_write_no_file_and_start_no_program(self, web: Web, friend: aiohttp.ClientSession) -> None:
        async with page(web, friend) as opened:
            await opened.press("s")
            await opened.drawn("writes no files")
            for key in "eTIRapmiz":
                await opened.press(key)
                await asyncio.sleep(0)
            await opened.press("\x1b\x1b\x1b1")
            await opened.press("?")
            await opened.drawn("panel")
        assert [path for path in web.home.rglob("*") if path.is_file() and path.name != "stderr"] == []

    async def test_there_are_only_so_many_at_once(self) -> None:
        server = web_server.PageServer("true", title="", key="k")
        pages: set[Any] = set(range(web_server.MOST_PAGES))
        server._pages = pages
        request: Any = None
        with pytest.raises(Exception, match="Service Unavailable"):
            await server.handle_websocket(request)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_its_pages_end_with_it(tmp_path: Path, number: signal.Signals) -> None:
    with FaultServer(WELL) as server:
        web = Web(tmp_path, server.url)
        try:
            async with aiohttp.ClientSession(web.base, cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
                await session.get(web.address.removeprefix(web.base))
                socket = await session.ws_connect("/ws", headers={"origin": web.base})
                await socket.receive()
                pages = web.pages()
                assert pages
                web.process.send_signal(number)
                await asyncio.to_thread(web.process.wait, 20)
                until(lambda: not any(process.is_running() for process in pages))
        finally:
            web.close()


@pytest.mark.parametrize("place", ["0.0.0.0:1", "192.0.2.1:9539", "127.evil.example:80", "nonsense", "127.0.0.1:99999"])
def test_only_loopback_is_served(place: str) -> None:
    code, _, err = say("web", "--url", "http://127.0.0.1:9", "--listen", place)
    assert code == ExitCode.USAGE
    assert place in err


def test_without_its_package_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textual_serve.server", None)
    monkeypatch.delitem(sys.modules, "specdash.cli.web_server", raising=False)
    monkeypatch.delattr(sys.modules["specdash.cli"], "web_server", raising=False)
    code, _, err = say("web", "--url", "http://127.0.0.1:9")
    assert code == ExitCode.BAD_INPUT
    assert "specdash[web]" in err


@pytest.mark.slow
async def test_a_real_browser_shows_it_and_fetches_nothing_from_elsewhere(web: Web, tmp_path: Path) -> None:
    async with chromium(tmp_path / "profile") as browser:
        await browser.call("Page.enable")
        await browser.call("Page.navigate", url=web.address)
        await browser.until("document.body.classList.contains('-first-byte')")
        assert await browser.evaluate("location.href") == f"{web.base}/"
        assert await browser.evaluate("document.cookie") == ""
        names = await browser.evaluate(
            "performance.getEntriesByType('resource').filter(r => r.transferSize).map(r => r.name)"
        )
        assert names
        assert all(name.startswith(web.base) for name in names)
        # A screen that is empty or says that a session has ended is a tenth of it.
        (tmp_path / "page.png").write_bytes(await browser.picture(20_000))
