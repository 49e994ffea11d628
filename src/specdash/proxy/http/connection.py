"""One client's connection: uvicorn's protocol, with bounds on what a client may send, and how long it may take.

All of them hold before anybody has looked at a key. Sources: RFC 9110 and 9112.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from specdash.proxy.http.responses import CLOSE, JSON, ApiError, error_answer, new_request_id

if TYPE_CHECKING:
    import asyncio

    from specdash.proxy.http.app import Proxy

_LEAST_RATE = 64
"""Bytes a second of a body; one that is slower on average holds its connection for nothing."""
_LINGER_S = 2.0
"""What a client that still sends has to read its answer before the connection is closed."""
_MOST_PIPELINED = 64
_ANY_HEAD = b"HTTP/1.1 "
"""What every answer begins with."""
_FIRST_PROBE_S = 0.02
_LONGEST_PROBE_S = 5.0
_MOST_ZEROS = 4


class Connection(HttpToolsProtocol):
    """Adds to uvicorn's: bounds, time-outs, answers to HTTP/1.0 and half-closed clients, errors in an envelope."""

    def __init__(self, proxy: Proxy, **given: Any) -> None:
        super().__init__(**given)
        self._proxy = proxy
        self._in_head = False
        self._overhead = 0
        """Bytes since the parser last came to the end of a head or to some of a body."""
        self._came_on = False
        self._body_size = 0
        self._body_before = 0
        """Size of the body when its timer was started."""
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0
        self._lingers = False
        self._half_closed = False
        self._probes: asyncio.TimerHandle | None = None
        self._problem: ApiError | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there. When they are too many, the one that has waited longest without a request goes."""
        super().connection_made(transport)
        self._await_head()
        if len(self.connections) > self._proxy.settings.max_clients:
            idle = [
                connection
                for connection in self.connections
                if isinstance(connection, Connection) and connection.is_idle
            ]
            min(idle, key=lambda protocol: protocol._since, default=self).transport.abort()  # noqa: SLF001 - of this class

    @property
    def is_idle(self) -> bool:
        """No request is under way."""
        latest = self._latest
        return latest is None or (latest.response_complete and not self.pipeline)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._probes is not None:
            self._probes.cancel()
        super().connection_lost(exc)
        if self.is_idle:
            # They know their connection, too: what a request held would stay until the collector's rarest look.
            if self._latest is not None:
                self.cycle.transport = self.transport
            self.cycle = None  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Feed the parser, and see that what it took in stays within bounds."""
        if not self._lingers:
            self._came_on = False
            super().data_received(data)
            self._look_after(len(data))

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client has said all it will: true while it is owed an answer.

        One that has closed its connection looks the same, so it is asked for a sign of life, see `_probe`.
        """
        if self._lingers or self.scheme == "https" or (self.is_idle and not self._in_head):
            return False
        if self._in_head or self.cycle.more_body:
            self._refuse(ApiError(400, "the connection was closed before the whole request had arrived"))
            return False
        self._half_closed = True
        self._probe(_FIRST_PROBE_S)
        return True

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        if len(self.pipeline) >= _MOST_PIPELINED:
            self._fail(ApiError(429, "too many requests at once on one connection"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head; one after the body is not kept."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is there: check it as a whole, and start the request."""
        self._in_head = False
        self._came_on = True
        self._body_size = 0
        self._stop_timer()
        size = len(self.url) + 4 * len(self.headers) + sum(map(len, chain.from_iterable(self.headers)))
        if size > self._head_limit:
            self._fail(self._head_too_large())
        version = self.parser.get_http_version()
        if version not in {"1.0", "1.1"}:
            self._fail(ApiError(505, f"HTTP/{version} is not spoken here; use HTTP/1.1"))
        if not self.url.startswith(b"/") and b"://" in self.url:
            # RFC 9112, 3.2.2: the target's own host counts, and an empty path is "/".
            target = httptools.parse_url(self.url)
            self.scope["authority"] = (target.host or b"").decode("latin-1")  # type: ignore[typeddict-unknown-key]
            self.url = (target.path or b"/") + (b"?" + target.query if target.query else b"")
        super().on_headers_complete()
        if version == "1.0":
            self.cycle.__class__ = _UnframedCycle
            self.cycle.waiting_for_100_continue = False
        self.cycle.transport = _Outlet(self, self.cycle)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        """Some of the body. What comes after the answer is passed over, up to the size a body may have."""
        self._came_on = True
        self._body_size += len(body)
        if self.cycle.response_complete and self._body_size > self._proxy.settings.max_body_mib << 20:
            self._linger()
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._came_on = True
        super().on_message_complete()
        self.cycle.more_body = False

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._since = self.loop.time()
        if self._half_closed and self.is_idle:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP request, or one that a callback has found fault with."""
        self._refuse(self._problem or ApiError(400, msg))

    def finish(self) -> None:
        """Close once everything is sent; while the request still comes, once its client had time to read the answer."""
        if self.cycle.more_body and not self._half_closed:
            self._linger()
        else:
            self.transport.close()

    def _look_after(self, size: int) -> None:
        """Whether the client still owes something after `size` bytes, and whether that has become too much."""
        if self._lingers or self.transport.is_closing():
            return
        self._overhead = 0 if self._came_on else self._overhead + size
        if self._overhead > self._head_limit:
            self._refuse(self._head_too_large())
            return
        latest = None if self._in_head else self._latest
        if latest is None or (latest.response_complete and not latest.more_body):
            if self._timer is None:
                self._await_head()
        elif not latest.more_body:
            self._stop_timer()
        elif self._timer is None:
            self._await_body()

    @property
    def _latest(self) -> RequestResponseCycle | None:
        # uvicorn's type does not say that there may be none yet.
        return self.cycle

    @property
    def _head_limit(self) -> int:
        return self._proxy.settings.max_header_kib << 10

    def _head_too_large(self) -> ApiError:
        status, what = (414, "URL") if len(self.url or b"") > self._head_limit else (431, "head")
        limit = self._proxy.settings.max_header_kib
        return ApiError(status, f"the {what} of the request is larger than {limit} KiB (PROXY_MAX_HEADER_KIB)")

    def _fail(self, error: ApiError) -> None:
        """Stop the parser. Raises `error`, for which uvicorn calls `send_400_response`."""
        self._problem = error
        raise error

    def _refuse(self, error: ApiError) -> None:
        """Answer with `error` in place of the application, unless it is too late for that, and end the connection."""
        cycle = self._latest
        if cycle is None or self.is_idle:
            is_open = cycle is None or self._in_head or not cycle.more_body
        else:
            is_open = not (cycle.response_started or self.pipeline)
        if is_open:
            path = (self.url or b"").partition(b"?")[0].decode("latin-1")
            request_id = new_request_id()
            status, value = error_answer(path, error, request_id)
            body = orjson.dumps(value)
            named = {"content-type": JSON, "content-length": str(len(body)), "request-id": request_id}
            lines = [f"{name}: {text}\r\n".encode("latin-1") for name, text in {**named, **error.headers}.items()]
            closing = b"%b: %b\r\n\r\n" % CLOSE
            self.transport.write(b"".join([STATUS_LINE[status], *lines, closing, body]))
        if cycle is not None and not self.is_idle:
            cycle.disconnected = True
            cycle.message_event.set()
        self._linger()

    def _linger(self) -> None:
        """Say that nothing follows, and close once the client has gone: closed under what it still sends, its side
        would throw the answer away."""
        if self._lingers or self.transport.is_closing():
            return
        self._lingers = True
        self._stop_timer()
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._timer = self.loop.call_later(_LINGER_S, self.transport.close)

    def _await_head(self) -> None:
        self._since = self.loop.time()
        self._timer = self.loop.call_later(self._proxy.settings.header_timeout, self._head_is_late)

    def _head_is_late(self) -> None:
        self._timer = None
        if self._in_head:
            limit_s = self._proxy.settings.header_timeout
            self._refuse(ApiError(408, f"no whole head after {limit_s:g} s (PROXY_HEADER_TIMEOUT)"))
        else:
            self.transport.close()

    def _await_body(self) -> None:
        self._body_before = self._body_size
        self._timer = self.loop.call_later(self._proxy.settings.body_timeout, self._check_body)

    def _check_body(self) -> None:
        limit_s = self._proxy.settings.body_timeout
        if self.flow.read_paused or self._body_size - self._body_before >= _LEAST_RATE * limit_s:
            self._await_body()
            return
        self._timer = None
        self._refuse(
            ApiError(408, f"less than {_LEAST_RATE} bytes a second of the body for {limit_s:g} s (PROXY_BODY_TIMEOUT)")
        )

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _probe(self, wait_s: float) -> None:
        """Write a byte that belongs to any answer: where the client has closed it is refused, and the next write fails.

        Before the answer it is the next one of `HTTP/1.1`, in a chunked one a leading zero of the next chunk's size.
        """
        cycle = self.cycle
        if self.transport.is_closing() or cycle.response_complete:
            return
        if not self.pipeline and not cast("_Outlet", cycle.transport).probe():
            return
        self._probes = self.loop.call_later(wait_s, self._probe, min(2 * wait_s, _LONGEST_PROBE_S))


class _Outlet:
    """The transport of one answer, of which some bytes may be sent before it.

    Its head goes out together with the first of its body: a client that is woken for the head alone takes the processor
    from whoever is about to write the body.
    """

    def __init__(self, connection: Connection, cycle: RequestResponseCycle) -> None:
        self._connection = connection
        self._transport = connection.transport
        self._cycle = cycle
        self._head: bytes | None = None
        self._early = 0
        self._zeros = 0

    def probe(self) -> bool:
        """Send the next byte that is sure to come; false when there is none left."""
        cycle = self._cycle
        if not cycle.response_started and self._early < len(_ANY_HEAD):
            self._transport.write(_ANY_HEAD[self._early : self._early + 1])
            self._early += 1
        elif cycle.response_started and cycle.chunked_encoding and self._zeros < _MOST_ZEROS:
            self._flush()
            self._transport.write(b"0")
            self._zeros += 1
        else:
            return False
        return True

    def write(self, data: bytes) -> None:
        """Send what was not sent yet."""
        if self._head is None and self._cycle.response_started:
            self._head = data[self._early :]
            if self._cycle.scope["method"] == "HEAD":
                self._flush()
        elif self._head:
            self._transport.write(self._head + data)
            self._head = b""
        else:
            self._transport.write(data)

    def close(self) -> None:
        """The answer is complete."""
        self._flush()
        self._connection.finish()

    def _flush(self) -> None:
        if self._head:
            self._transport.write(self._head)
            self._head = b""

    def is_closing(self) -> bool:
        """As the transport."""
        return self._transport.is_closing()


class _UnframedCycle(RequestResponseCycle):
    """A request of HTTP/1.0, which knows no chunks: an answer of unknown length ends with its connection."""

    is_sized = True

    async def send(self, message: Any) -> None:
        """As uvicorn's, but for the framing."""
        if message["type"] == "http.response.start":
            self.is_sized = any(name == b"content-length" for name, _ in message["headers"])
            self.chunked_encoding = None if self.is_sized else False
        elif not self.is_sized:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)
