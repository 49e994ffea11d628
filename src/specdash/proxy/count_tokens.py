"""POST /v1/messages/count_tokens: exact, by the upstream's own template and tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from specdash.proxy.body import read_body
from specdash.proxy.client_watch import ClientWatch
from specdash.proxy.errors import ApiError
from specdash.proxy.models import learn_models, upstream_model
from specdash.proxy.parse import parse_count_tokens
from specdash.proxy.responses import send_json
from specdash.proxy.restarts import Patience, meet_upstream
from specdash.proxy.translate import chat_body
from specdash.proxy.upstream_errors import api_error

if TYPE_CHECKING:
    from specdash.proxy.app import Proxy
    from specdash.proxy.messages import MessagesRequest
    from specdash.proxy.responses import Receive, Scope, Send
    from specdash.proxy.upstream import Upstream

COUNT_PATH = "/v1/chat/completions/input_tokens"
"""llama.cpp counts there what it would read of a chat completion; older builds have only the two below."""
_TEMPLATE_PATH, _TOKENIZE_PATH = "/apply-template", "/tokenize"


async def handle(proxy: Proxy, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one request."""
    body = await read_body(scope, receive, proxy.settings.max_body_mib << 20)
    request = parse_count_tokens(body, proxy.settings.max_blocks)
    async with ClientWatch(receive) as watch:
        tokens = await _count(proxy, request)
        watch.answered = True
    await send_json(send, {"input_tokens": tokens})


async def _count(proxy: Proxy, request: MessagesRequest) -> int:
    patience = Patience(proxy.gate)
    while True:
        await proxy.gate.wait(proxy.settings.hold_limit)
        await meet_upstream(proxy)
        if proxy.gate.held:
            continue
        await learn_models(request.model, proxy.window)
        body = chat_body(request, upstream_model(request.model, proxy.window))
        try:
            return await count(proxy.upstream, body, proxy.settings.read_timeout)
        except ApiError as error:
            if not await patience.again(error):
                raise


async def count(upstream: Upstream, body: dict[str, Any], limit_s: float) -> int:
    """Prompt tokens of a chat completion. Raises `ApiError` when the upstream cannot tell."""
    data = orjson.dumps(body)
    status, answer = await upstream.exchange("POST", COUNT_PATH, data, limit_s)
    if status in {404, 405, 501}:
        return await count_by_template(upstream, data, limit_s)
    return _whole(_object(status, answer).get("input_tokens"))


async def count_by_template(upstream: Upstream, data: bytes, limit_s: float) -> int:
    """The same from an upstream that has no endpoint for it: the rendered prompt, tokenized."""
    prompt = _object(*await upstream.exchange("POST", _TEMPLATE_PATH, data, limit_s)).get("prompt")
    # As the server itself reads a rendered prompt: special tokens are added, and understood.
    wanted = {"content": prompt, "add_special": True, "parse_special": True}
    answer = await upstream.exchange("POST", _TOKENIZE_PATH, orjson.dumps(wanted), limit_s)
    tokens = _object(*answer).get("tokens")
    return _whole(len(tokens) if isinstance(tokens, list) else None)


def _object(status: int, answer: bytes) -> dict[str, Any]:
    if status != 200:
        raise api_error(status, answer)
    try:
        value = orjson.loads(answer)
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {}


def _whole(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ApiError(502, "the upstream does not say how many tokens the request has", retry=False)
