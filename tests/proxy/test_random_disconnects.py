"""Clients that leave at random moments leave no task and no connection behind."""

from __future__ import annotations

import asyncio
import json
import random

import pytest

from support.proxy_app import proxied
from support.proxy_ways import chat, turn
from support.scripted_server import Call, tells
from support.waiting import until_async

CLIENTS = 500
CHUNK = b'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
ROUTES = {"/props": tells({"default_generation_settings": {"n_ctx": 4096}}), "/v1/models": tells({"data": []})}


async def talks(call: Call) -> None:
    await call.begin()
    for _ in range(200):
        await call.chunk(CHUNK)
        await asyncio.sleep(0.002)
    await call.chunk(b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')
    await call.chunk()


@pytest.mark.slow
async def test_five_hundred_clients_that_leave_at_random_leave_nothing_behind() -> None:
    rng = random.Random(35)
    bodies = [("/v1/messages", turn(stream=stream)) for stream in (True, False)]
    bodies += [("/v1/chat/completions", chat(stream=stream)) for stream in (True, False)]
    async with proxied(talks, ROUTES) as (proxy, server):
        await proxy.get("/health")
        before = len(asyncio.all_tasks())

        async def leaves(path: str, body: dict[str, object]) -> None:
            _, writer = await proxy.send_post(path, json.dumps(body).encode())
            await asyncio.sleep(rng.random() * 0.3)
            if rng.random() < 0.5:
                writer.transport.abort()
            else:
                writer.close()

        for _ in range(CLIENTS // 50):
            await asyncio.gather(*(leaves(*rng.choice(bodies)) for _ in range(50)))
        telemetry, upstream = proxy.proxy.telemetry, proxy.proxy.upstream
        await until_async(lambda: telemetry.active == [] and upstream.in_flight == 0 and not proxy.state.tasks)
        await until_async(lambda: len(proxy.state.connections) <= 1)
        await until_async(lambda: len(asyncio.all_tasks()) <= before + server.open)
        assert telemetry.tally.requests.total() >= CLIENTS * 0.9
