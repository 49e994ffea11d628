"""Five thousand mutated bodies: no answer is a 500, no refused one goes upstream, and every stream ends."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

import pytest

from support.messages_bodies import places, replaced, rich_body
from support.proxy_app import proxied
from support.scripted_server import tells
from support.upstream_script import answers

BODIES = 5_000
AT_ONCE = 10
PATHS = ("/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions")
ROUTES = {
    "/props": tells({"default_generation_settings": {"n_ctx": 4096}}),
    "/v1/models": tells({"data": [{"id": "m"}]}),
    "/v1/chat/completions/input_tokens": tells({"input_tokens": 7}),
}
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 2**70, "", "x" * 300, "\ud83d", [], {}, [{}], {"type": "text"}, {"type": 3}),
    *({"type": "tool_use", "id": "a", "name": "Read", "input": {}}, {"type": "tool_result", "tool_use_id": "a"}),
    *("<tool_call>" * 50, {"content": [{"content": [{"content": 1}]}]}, "user", "assistant"),
)
ENDS = ("event: message_stop", "event: error", "data: [DONE]")
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, "tools": [], "user": "u"}


def mutated(rng: random.Random, body: dict[str, Any]) -> bytes:
    for _ in range(rng.randint(1, 3)):
        path = rng.choice(list(places(body))[1:])
        body = replaced(body, path, rng.choice(VALUES))
    data = json.dumps(body).encode()
    at = rng.randrange(len(data))
    broken = [data[:at], data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :], data[:at] + b"[" * 2000 + data[at:]]
    return rng.choice([data] * 5 + broken)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_no_mutated_body_is_a_500_or_hangs() -> None:
    rng = random.Random(35)
    seen: Counter[int] = Counter()
    async with proxied(answers("Hello"), ROUTES) as (proxy, server):

        async def ask() -> None:
            path = rng.choice(PATHS)
            data = mutated(rng, dict(CHAT) if path.endswith("completions") else rich_body())
            async with asyncio.timeout(20):
                answer = await proxy.client.post(path, content=data)
            seen[answer.status_code] += not path.endswith("count_tokens")
            assert answer.status_code < 500, (path, data, answer.text)
            streams = answer.headers["content-type"].startswith("text/event-stream")
            assert not streams or answer.text.rstrip().rpartition("\n\n")[2].startswith(ENDS), (path, data, answer.text)

        for _ in range(BODIES // AT_ONCE):
            await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
        assert len(server.asked("/v1/chat/completions")) <= seen[200]
    assert seen[400] > seen[200] / 10
