"""A real headless Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import shutil
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from support.waiting import until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

START_S = 60.0
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--remote-debugging-port=0",
    "--window-size=1280,800",
    # Nothing but this machine can be reached: a page that needs more is found out.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)


class Browser:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0

    async def call(self, method: str, **params: Any) -> Any:
        """A command of the DevTools protocol, and its result."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        async with asyncio.timeout(START_S):
            while (message := await self._socket.receive_json()).get("id") != self._number:
                pass
        return message["result"]

    async def evaluate(self, expression: str) -> Any:
        """The value of some JavaScript; a promise is awaited."""
        result = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return result["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until some JavaScript is true."""
        async with asyncio.timeout(START_S):
            while not await self.evaluate(expression):  # noqa: ASYNC110 - what is waited for happens in the browser
                await asyncio.sleep(0.05)

    async def picture(self, least: int) -> bytes:
        """What is seen, as PNG, once there is so much of it (bytes)."""
        async with asyncio.timeout(START_S):
            while len(seen := await self.screenshot()) < least:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.2)
        return seen

    async def screenshot(self) -> bytes:
        """What is seen, as PNG."""
        return base64.b64decode((await self.call("Page.captureScreenshot"))["data"])


@contextlib.asynccontextmanager
async def chromium(profile: Path) -> AsyncIterator[Browser]:
    """A browser with an empty profile; skips the test where none is installed."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium here: `apt install chromium`")
    log = profile.with_suffix(".log")
    options = (*OPTIONS, f"--user-data-dir={profile}", "about:blank")
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(program, *options, stderr=output)
    try:
        listening = re.compile(r"DevTools listening on ws://([^/]+)/")
        await until_async(lambda: listening.search(log.read_text(errors="replace")), START_S)
        (place,) = listening.findall(log.read_text(errors="replace"))
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://{place}/json") as answer:
                (page,) = [tab for tab in await answer.json() if tab["type"] == "page"]
            async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                yield Browser(socket)
    finally:
        process.terminate()
        async with asyncio.timeout(START_S):
            await process.wait()
