"""POST /v1/messages/count_tokens: exact, by the upstream's own template and tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from specdash.proxy.http.responses import ApiError, json_response, object_of, read_body
from specdash.proxy.http.stream import unless_gone
from specdash.proxy.translate.parse import parse_count_tokens
from specdash.proxy.translate.translate import chat_body
from specdash.proxy.upstream.upstream import api_error
from specdash.proxy.upstream.window import RetryPolicy, admitted, use_model

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from specdash.proxy.http.app import Proxy
    from specdash.proxy.translate.parse import MessagesRequest
    from specdash.proxy.upstream.upstream import Upstream

COUNT_PATH = "/v1/chat/completions/input_tokens"
"""llama.cpp counts there what it would read of a chat completion."""


async def handle_count(request: Request) -> Response:
    """Serve one request."""
    proxy: Proxy = request.app.state.proxy
    parsed = parse_count_tokens(await read_body(request, proxy.settings.max_body_mib << 20))
    return json_response({"input_tokens": await unless_gone(request.receive, _count(proxy, parsed))})


async def _count(proxy: Proxy, request: MessagesRequest) -> int:
    patience = RetryPolicy(proxy.gate)
    while True:
        await admitted(proxy)
        body = chat_body(request, await use_model(request.model, proxy.window))
        try:
            return await count(proxy.upstream, body, proxy.settings.read_timeout)
        except ApiError as error:
            if not await patience.again(error):
                raise


async def count(upstream: Upstream, body: dict[str, Any], limit_s: float) -> int:
    """Prompt tokens of a chat completion. Raises `ApiError` when the upstream cannot tell."""
    status, answer = await upstream.exchange(COUNT_PATH, msgspec.json.encode(body), limit_s)
    if status != 200:
        raise api_error(status, answer)
    tokens = (object_of(answer.decode("utf-8", "replace")) or {}).get("input_tokens")
    if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 0:
        return tokens
    raise ApiError(502, "the upstream does not say how many tokens the request has", retry=False)
