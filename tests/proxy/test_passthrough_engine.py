"""A real llama.cpp server, asked directly and through the proxy: the client must not be able to tell."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import httpx
import orjson
import pytest

from specdash.backend.demo import DRAFT_MODEL, TARGET_MODEL, bundled_model
from support.engines import RunningBackend, engine_env, running_backend
from support.proxy_app import RunningProxy, running_proxy, settings_for
from support.waiting import until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

PATH = "/v1/chat/completions"
ABORT_S = 1.0
ENGINES = [pytest.param("xllamacpp", marks=pytest.mark.engine)]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Read",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
]


def asks(prompt: str, **more: Any) -> dict[str, Any]:
    # Without its cache a server counts the same tokens each time.
    fixed = {"temperature": 0, "seed": 1, "cache_prompt": False, "max_tokens": 40}
    return {"messages": [{"role": "user", "content": prompt}], **fixed, **more}


ASKED = {
    "text": asks("Write a function"),
    "stop word": asks("Write a function", stop=["def"]),
    "tool call": asks("Open the file main.py.", tools=TOOLS, max_tokens=200),
    "two choices": asks("Write a function", n=2, max_tokens=4),
    "log probabilities": asks("Write a function", logprobs=True, top_logprobs=2, max_tokens=4),
    "wrong type": asks("x", temperature="warm"),
    "too long": asks("word and word " * 6000),
}


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def backend(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBackend]:
    env = {
        "LLAMA_MODEL": str(bundled_model(TARGET_MODEL)),
        "LLAMA_DRAFT_MODEL": str(bundled_model(DRAFT_MODEL)),
        "LLAMA_SPEC_TYPE": "draft-simple",
        "LLAMA_DRAFT_MAX": "4",
        "LLAMA_CTX_SIZE": "8192",
        "LLAMA_PARALLEL": "2",
        "LLAMA_THREADS": "1",
        **engine_env(engine),
    }
    with running_backend(env, tmp_path_factory.mktemp("backend") / "run") as running:
        yield running


def timeless(value: Any) -> Any:
    """A JSON value, keys in order, without what differs between any two answers."""
    if isinstance(value, list):
        return [timeless(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    differs = ("id", "created", "prompt_ms", "time_ms", "predicted_ms")
    return [
        (key, ... if key in differs or key.endswith(("_per_token_ms", "_per_second")) else timeless(entry))
        for key, entry in value.items()
    ]


def events(data: bytes) -> list[Any]:
    assert data.endswith(b"\n\n")
    parts = data[:-2].split(b"\n\n")
    return [timeless(orjson.loads(part[6:])) if part.startswith(b"data: {") else part for part in parts]


async def both(backend: RunningBackend, body: dict[str, Any]) -> tuple[httpx.Response, httpx.Response]:
    """The same request, directly and through the proxy."""
    async with running_proxy(settings_for(backend.url)) as proxy, httpx.AsyncClient(trust_env=False, timeout=60) as raw:
        direct = await raw.post(backend.url + PATH, json=body)
        through = await proxy.post(PATH, body)
        assert proxy.proxy.telemetry.active == []
    assert through.headers["content-type"] == direct.headers["content-type"]
    assert through.status_code == direct.status_code
    return direct, through


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", list(ASKED))
async def test_the_answer_is_the_servers_own(backend: RunningBackend, name: str, *, stream: bool) -> None:
    direct, through = await both(backend, {**ASKED[name], "stream": stream})
    if direct.status_code >= 400:
        assert through.content == direct.content
    elif stream:
        assert events(through.content) == events(direct.content)
    else:
        assert timeless(through.json()) == timeless(direct.json())


async def test_a_client_that_leaves_its_stream_frees_the_slot(backend: RunningBackend) -> None:
    async with endless(backend) as (proxy, writer):
        writer.close()
        await becomes(backend, is_busy=False, limit_s=ABORT_S)
        await until_async(lambda: proxy.proxy.telemetry.active == [])


async def becomes(backend: RunningBackend, *, is_busy: bool, limit_s: float) -> None:
    """Wait until a slot is processing, or none; fails after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while True:
        slots = await asyncio.to_thread(backend.get, "/slots")
        if any(slot["is_processing"] for slot in slots) is is_busy:
            return
        assert time.monotonic() < deadline


@contextlib.asynccontextmanager
async def endless(backend: RunningBackend) -> AsyncIterator[tuple[RunningProxy, asyncio.StreamWriter]]:
    """A generation that goes on until the client leaves."""
    body = asks("Write a function", temperature=1, max_tokens=7000, ignore_eos=True, stream=True)
    async with running_proxy(settings_for(backend.url)) as proxy:
        _, writer = await proxy.send_post(PATH, orjson.dumps(body))
        try:
            await becomes(backend, is_busy=True, limit_s=10)
            yield proxy, writer
        finally:
            writer.close()
