"""HTTP to one llama-server: every question ends within its deadline in a value or a `Failure`, never in an exception.

httpx is imported at the first question, because the import alone takes as long as many commands do.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar, cast
from urllib.parse import urlencode

from specdash.core.readings import Failure, FailureKind
from specdash.llama.address import normalise_url
from specdash.llama.bodies import ParseError, error_message, one_line
from specdash.llama.health import is_loading, parse_health
from specdash.llama.metrics import parse_metrics
from specdash.llama.props import parse_props
from specdash.llama.slots import parse_slots

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from specdash.core.observations import Counters, Health, Props, Slots
    from specdash.core.target import Target

T = TypeVar("T")

MAX_BODY_BYTES = 4 * 1024 * 1024
"""A larger answer is not llama-server's and is cut off."""

CONNECT_DEADLINE_S = 1.0

DEFAULT_DEADLINE_S = 3.0

_KEEPALIVE_S = 4.5
"""llama-server closes idle connections after five seconds; ours go first."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, whole. `latency_s` is the time from the question to its last byte in seconds."""

    status: int
    body: bytes
    latency_s: float
    server: str = ""
    """The Server header: `llama.cpp` for llama-server itself."""


class LlamaClient:
    """Asks one llama-server. Not shared between event loops; close it with `aclose`."""

    def __init__(self, target: Target, *, connect_deadline_s: float = CONNECT_DEADLINE_S) -> None:
        """Raises UsageError when the target's url cannot be meant."""
        self._base = normalise_url(target.url)
        self._key = target.api_key
        self._connect_deadline_s = connect_deadline_s
        self._http: httpx.AsyncClient | None = None
        self._answered = False
        # An idle server answers the same again and again; a body equal to the last one is not parsed twice.
        self._last: dict[str, tuple[bytes, object]] = {}
        # Without autoload=false a router loads the model because somebody looked.
        self._query = "?" + urlencode({"model": target.model, "autoload": "false"}) if target.model else ""

    async def health(self, deadline_s: float = DEFAULT_DEADLINE_S) -> Health | Failure:
        """GET /health. A loading server is a value here."""
        answer = await self.get("/health", deadline_s)
        if isinstance(answer, Failure):
            return answer
        failure = self._refusal(answer)
        if failure is not None and failure.kind not in (FailureKind.LOADING, FailureKind.ERROR):
            return failure
        return self._parsed(lambda body: parse_health(answer.status, body, answer.latency_s), answer)

    async def props(self, deadline_s: float = DEFAULT_DEADLINE_S) -> Props | Failure:
        """GET /props."""
        return await self._ask("/props" + self._query, parse_props, deadline_s)

    async def metrics(self, deadline_s: float = DEFAULT_DEADLINE_S) -> Counters | Failure:
        """GET /metrics. It resets the server's throughput gauges, the only thing that looking changes."""
        return await self._ask("/metrics" + self._query, parse_metrics, deadline_s)

    async def slots(self, deadline_s: float = DEFAULT_DEADLINE_S) -> Slots | Failure:
        """GET /slots. It wakes a sleeping server and keeps it awake: see that it is not asleep first."""
        return await self._ask("/slots" + self._query, parse_slots, deadline_s)

    async def get(self, path: str, deadline_s: float = DEFAULT_DEADLINE_S) -> Answer | Failure:
        """GET any path: the answer whatever its status, or why there is none."""
        http = self._http or self._connect()
        started = time.monotonic()
        progress = _Progress()
        try:
            async with asyncio.timeout(deadline_s):
                answer = await self._get(http, path, progress, started)
                if isinstance(answer, Failure) and answer.kind is FailureKind.RESET and progress.may_be_stale:
                    progress = _Progress()
                    answer = await self._get(http, path, progress, started)
                return answer
        except TimeoutError:
            if progress.answering:
                return Failure(FailureKind.TIMEOUT, f"the answer was not complete within {deadline_s:.1f} s")
            return Failure(FailureKind.TIMEOUT, f"accepts connections, no answer within {deadline_s:.1f} s")

    async def aclose(self) -> None:
        """Close all connections."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def _ask(self, path: str, parse: Callable[[bytes], T], deadline_s: float) -> T | Failure:
        answer = await self.get(path, deadline_s)
        if isinstance(answer, Failure):
            return answer
        if (refusal := self._refusal(answer)) is not None:
            return refusal
        last = self._last.get(path)
        if last is None or last[0] != answer.body:
            last = self._last[path] = (answer.body, self._parsed(parse, answer))
        return cast("T | Failure", last[1])

    def _parsed(self, parse: Callable[[bytes], T], answer: Answer) -> T | Failure:
        try:
            return parse(answer.body)
        except ParseError as error:
            return Failure(FailureKind.GARBAGE, f"{error}; is this llama-server?")

    def _refusal(self, answer: Answer) -> Failure | None:
        """Why an answer holds no value, None when it is a success."""
        status = answer.status
        if status == HTTPStatus.OK:
            return None
        message = self._scrubbed(error_message(answer.body))
        if is_loading(status, answer.body):
            return Failure(FailureKind.LOADING, message)
        if (kind := KIND_OF_STATUS.get(status)) is not None:
            return Failure(kind, message or f"HTTP {status}")
        return Failure(FailureKind.ERROR, f"HTTP {status}{': ' if message else ''}{message}")

    async def _get(self, http: httpx.AsyncClient, path: str, progress: _Progress, started: float) -> Answer | Failure:
        import httpx

        progress.may_be_stale = self._answered
        try:
            async with http.stream("GET", self._base + path) as response:
                progress.answering = True
                progress.may_be_stale = False
                self._answered = True
                body = await _bounded_body(response)
        except httpx.ConnectTimeout:
            return Failure(FailureKind.UNREACHABLE, f"no connection within {self._connect_deadline_s:.1f} s")
        except httpx.ConnectError as error:
            return self._unconnected(error)
        except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
            return self._broken(error, progress)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return Failure(FailureKind.ERROR, self._scrubbed(f"{type(error).__name__}: {error}"))
        if isinstance(body, Failure):
            return body
        server = response.headers.get("server", "")
        return Answer(response.status_code, body, time.monotonic() - started, one_line(server, 60))

    def _connect(self) -> httpx.AsyncClient:
        import ssl

        import httpx

        headers = {"accept-encoding": "identity", "user-agent": "specdash"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        # Loading the certificate store takes longer than everything else here and plain http needs none.
        verify = True if self._base.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._http = httpx.AsyncClient(
            headers=headers,
            trust_env=False,
            follow_redirects=False,
            verify=verify,
            timeout=httpx.Timeout(None, connect=self._connect_deadline_s),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=4, keepalive_expiry=_KEEPALIVE_S),
        )
        return self._http

    def _unconnected(self, error: httpx.ConnectError) -> Failure:
        causes = _causes(error)
        if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
            return Failure(FailureKind.REFUSED, "nothing listens there")
        if any(isinstance(cause, ConnectionResetError | BrokenPipeError) for cause in causes):
            return Failure(FailureKind.RESET, "connection reset while connecting")
        reason = next((cause for cause in reversed(causes) if isinstance(cause, OSError)), error)
        words = getattr(reason, "strerror", None) or str(reason)
        return Failure(FailureKind.UNREACHABLE, self._scrubbed(str(words)))

    def _broken(self, error: Exception, progress: _Progress) -> Failure:
        if _is_protocol_error(error) and not any(sign in str(error) for sign in _SIGNS_OF_A_CLOSE):
            return Failure(FailureKind.GARBAGE, "the answer is not HTTP")
        if progress.answering:
            return Failure(FailureKind.RESET, "connection closed within the answer")
        return Failure(FailureKind.RESET, "connection closed before an answer")

    def _scrubbed(self, words: str) -> str:
        return one_line(words.replace(self._key, "***") if self._key else words)


KIND_OF_STATUS: dict[int, FailureKind] = {
    HTTPStatus.UNAUTHORIZED: FailureKind.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN: FailureKind.UNAUTHORIZED,
    HTTPStatus.NOT_FOUND: FailureKind.NOT_FOUND,
    HTTPStatus.NOT_IMPLEMENTED: FailureKind.DISABLED,
}

_SIGNS_OF_A_CLOSE = ("disconnected", "peer closed connection", "incomplete")


@dataclass(slots=True)
class _Progress:
    """How far one question came, to say in words where it stopped."""

    answering: bool = False
    may_be_stale: bool = False
    """No byte came and the connection may have been one that the server closed while it was idle."""


async def _bounded_body(response: httpx.Response) -> bytes | Failure:
    if response.headers.get("content-encoding", "identity") != "identity":
        return Failure(FailureKind.GARBAGE, "a compressed answer that nobody asked for")
    declared = response.headers.get("content-length", "0")
    if declared.isdecimal() and len(declared) < 20 and int(declared) > MAX_BODY_BYTES:
        return Failure(FailureKind.TOO_LARGE, f"{int(declared) / 1e6:.0f} MB, cut off")
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            return Failure(FailureKind.TOO_LARGE, f"more than {MAX_BODY_BYTES / 1e6:.0f} MB, cut off")
    return bytes(body)


def _is_protocol_error(error: Exception) -> bool:
    import httpx

    return isinstance(error, httpx.RemoteProtocolError)


def _causes(error: BaseException) -> list[BaseException]:
    """The error and everything that led to it, outermost first."""
    found: list[BaseException] = []
    pending: list[BaseException] = [error]
    while pending and len(found) < 50:
        current = pending.pop(0)
        if current in found:
            continue
        found.append(current)
        if isinstance(current, BaseExceptionGroup):
            pending.extend(current.exceptions)
        pending.extend(cause for cause in (current.__cause__, current.__context__) if cause is not None)
    return found
