"""Errors as each API sends them, whole JSON answers, and the body of a request."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from specdash.core.proxy_events import RequestOutcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    Ended = Callable[..., None]
    """Records the end of a request: its outcome, and the error that the client reads, if any."""

_LOG = logging.getLogger("specdash.proxy")


# Errors as the Anthropic API sends them: status, type, envelope. Source: docs.anthropic.com, "Errors".

TYPES: dict[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""The error type of a status, where it is neither `invalid_request_error` (4xx) nor `api_error` (5xx)."""


class ApiError(Exception):
    """An answer to the client: HTTP `status` with the envelope of `type` and `message`.

    `retry_after` is in seconds; `retry` False asks the SDKs not to try again (`x-should-retry: false`), True leaves
    it to them.
    """

    def __init__(self, status: int, message: str, *, retry_after: int | None = None, retry: bool = True) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        self.headers = {"retry-after": str(retry_after)} if retry_after is not None else {}
        """Response headers besides content type and request id."""
        if not retry:
            self.headers["x-should-retry"] = "false"

    def envelope(self, request_id: str) -> dict[str, Any]:
        """The JSON body; the same object is the data of a stream's `event: error`."""
        return {"type": "error", "error": {"type": self.type, "message": self.message}, "request_id": request_id}

    def openai(self) -> dict[str, Any]:
        """The JSON body as OpenAI's API has it."""
        return {"error": {"message": self.message, "type": self.type, "param": None, "code": self.status}}


class InvalidRequestError(ApiError):
    """The body is not a Messages request; `where` is the path of the wrong value, as `messages.0.content`."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(400, f"{where}: {problem}" if where else problem)


class PromptTooLongError(ApiError):
    """The prompt does not fit the context window; clients compact on this very wording."""

    def __init__(self, tokens: int, maximum: int) -> None:
        super().__init__(400, f"prompt is too long: {tokens} tokens > {maximum} maximum")
        self.tokens, self.maximum = tokens, maximum


class ModelLoadingError(ApiError):
    """The upstream is there, and its model is not in memory yet."""


def shown_error(error: BaseException, what: str) -> ApiError:
    """What a client reads of `error`; one that is not foreseen is logged as an error in `what`."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RecursionError):
        # What could just be read is too deep to be written where it is sent on.
        return InvalidRequestError("", "The request body is nested too deeply")
    if isinstance(error, asyncio.CancelledError):
        # Only the end of the drain cancels a request.
        return ApiError(529, "the proxy is stopping; try again", retry_after=2)
    _LOG.error("unexpected error in %s", what, exc_info=error)
    return ApiError(500, "internal error of the proxy; its log says more")


# JSON from the outside, read as leniently as is safe.


def read_json(data: bytes | str) -> Any:
    """The value of a JSON text; bytes that are not UTF-8 and halves of a surrogate pair become U+FFFD.

    Raises ValueError when it is not JSON even so, or nested too deeply.
    """
    try:
        try:
            return msgspec.json.decode(data)
        except ValueError:
            text = data if isinstance(data, str) else data.decode("utf-8", "replace")
            if text is data and "\\ud" not in text.lower():
                raise
            # The standard library reads half a pair, and UTF-16 can write it.
            halves = json.dumps(json.loads(text), ensure_ascii=False).encode("utf-16-le", "surrogatepass")
            return msgspec.json.decode(halves.decode("utf-16-le", "replace"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def object_of(text: bytes | str) -> dict[str, Any] | None:
    """The JSON object that `text` is, whole and alone; None when it is anything else."""
    try:
        value = read_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def load_object(body: bytes | bytearray) -> dict[str, Any]:
    """The JSON object of a request body; raises `InvalidRequestError` for anything else.

    Half a surrogate pair (a client cut a text inside an emoji) becomes U+FFFD: the whole conversation would be lost
    over it otherwise.
    """
    try:
        value = read_json(body.decode())
    except ValueError as error:
        raise InvalidRequestError("", f"The request body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequestError("", "The request body is not a JSON object")
    return value


OPENAI_PATHS = ("/v1/chat/completions", "/chat/completions")
"""Endpoints that speak OpenAI's language, also in their errors."""


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A whole answer in JSON."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def error_response(path: str, request_id: str, error: ApiError) -> Response:
    """An error in the words of the endpoint at `path`: Anthropic's or OpenAI's."""
    if path in OPENAI_PATHS:
        # 529 is Anthropic's own: clients of this endpoint know 503.
        return json_response(error.openai(), 503 if error.status == 529 else error.status, error.headers)
    return json_response(error.envelope(request_id), error.status, error.headers)


def client_host(request: Request) -> str:
    """Address of the peer, "" on a Unix socket."""
    return request.client.host if request.client is not None else ""


async def read_body(request: Request, limit: int) -> bytearray:
    """The whole body. Raises `ApiError` 413 as soon as it is known to be longer than `limit` bytes, 415 when packed."""
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise ApiError(415, f"Content-Encoding {coding[:40]!r} is not read here; send nothing packed")
    too_large = ApiError(413, f"request body is larger than {limit} bytes (PROXY_MAX_BODY_MIB)")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise too_large
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise too_large
    return body


# Answers that take their time: kept alive while they stream, and given up when no client waits for them.

_T = TypeVar("_T")


async def unless_gone(
    receive: Receive, work: Coroutine[Any, Any, _T], tick: Callable[[], Awaitable[float]] | None = None
) -> _T:
    """The result of `work`, which is cancelled when the client leaves. Raises `ClientDisconnect` then.

    `tick` is called meanwhile, each time after as many seconds as it asked for last.
    """

    async def left() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = task, gone = asyncio.ensure_future(work), asyncio.ensure_future(left())
    try:
        while not task.done():
            if gone.done():
                raise ClientDisconnect
            await asyncio.wait(tasks, timeout=await tick() if tick else None, return_when=asyncio.FIRST_COMPLETED)
        return task.result()
    finally:
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(eq=False)
class EventStream(Response):
    """Server-sent events that `produce` writes to the last while the client stays, or the other response it returns.

    A stream begins with the first bytes, or with what `idle` gives once `commit_s` seconds have passed without any:
    until then an error keeps its status, and `produce` may return another response. Afterwards an error is what
    `failure` makes of it, and `idle` is asked for something to send whenever nothing was sent for `ping_s` seconds.
    """

    media_type = "text/event-stream"

    produce: Callable[[EventStream], Coroutine[Any, Any, Response | None]]
    _: KW_ONLY
    commit_s: float
    ping_s: float
    idle: Callable[[], bytes]
    failure: Callable[[ApiError], bytes]
    ended: Ended
    started: bool = field(default=False, init=False)
    """The client has the head, and can no longer be given another status."""

    def __post_init__(self) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._sent_at = asyncio.get_running_loop().time()

    async def write(self, data: bytes, *, is_last: bool = False) -> None:
        """Send some of the stream, whole events or not."""
        if not (data or is_last):
            return
        self._sent_at = asyncio.get_running_loop().time()
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send: Send = send
        try:
            other = await unless_gone(receive, self.produce(self), self._tick)
        except ClientDisconnect:
            self.ended(RequestOutcome.CLIENT_LEFT)
        except BaseException as error:
            shown = shown_error(error, "an answer")
            self.ended(RequestOutcome.ERROR, shown)
            if not self.started:
                raise
            await self.write(self.failure(shown), is_last=True)
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            if other is not None:
                await other(scope, receive, send)

    async def _tick(self) -> float:
        """Send something when nothing was sent for too long; the seconds until that may be so again."""
        loop = asyncio.get_running_loop()
        left_s = (self.ping_s if self.started else self.commit_s) - (loop.time() - self._sent_at)
        if left_s > 0:
            return left_s
        await self.write(self.idle())
        self._sent_at = loop.time()
        return self.ping_s
