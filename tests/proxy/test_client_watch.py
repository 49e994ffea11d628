"""Noticing that a client has gone."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from specdash.proxy.http.client import ClientLeftError, ClientWatch


class Client:
    """The receiving side of a request; `leave` is the client's disconnect."""

    def __init__(self) -> None:
        self._left = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self._left.wait()
        return {"type": "http.disconnect"}

    def leave(self) -> None:
        self._left.set()


async def test_a_block_ends_when_the_client_leaves() -> None:
    client = Client()
    asyncio.get_running_loop().call_soon(client.leave)
    with pytest.raises(ClientLeftError):
        async with ClientWatch(client.receive):
            await asyncio.sleep(60)
    await asyncio.sleep(0)


async def test_a_block_that_ends_by_itself_is_left_alone() -> None:
    client = Client()
    async with ClientWatch(client.receive):
        await asyncio.sleep(0)
    client.leave()
    for _ in range(5):
        await asyncio.sleep(0)


async def test_leaving_no_longer_counts_once_answered() -> None:
    client = Client()
    async with ClientWatch(client.receive) as watch:
        watch.answered = True
        client.leave()
        for _ in range(5):
            await asyncio.sleep(0)


async def test_an_error_of_the_block_stays_what_it_is() -> None:
    client = Client()
    with pytest.raises(KeyError):
        async with ClientWatch(client.receive):
            raise KeyError


async def test_another_cancellation_stays_one() -> None:
    client = Client()

    async def block() -> None:
        async with ClientWatch(client.receive):
            await asyncio.sleep(60)

    task = asyncio.create_task(block())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def leaves_in_the_moment_the_block_ends(client: Client) -> None:
    async with ClientWatch(client.receive) as watch:
        await asyncio.sleep(0)
        client.leave()
        assert watch._watcher is not None
        while not watch._watcher.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)


async def test_leaving_in_the_moment_the_block_ends_leaves_no_cancellation_behind() -> None:
    with pytest.raises(ClientLeftError):
        await leaves_in_the_moment_the_block_ends(Client())
    await asyncio.sleep(0)
