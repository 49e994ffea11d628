"""A server of a test's own: listens on a free port of 127.0.0.1 while it is entered, a thread for every connection."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Self


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class OwnedHandler(BaseHTTPRequestHandler):
    """Knows whose it is, and says nothing but its answers."""

    owner: Any
    protocol_version = "HTTP/1.1"

    def say(self, value: Any, status: int = 200) -> None:
        """Answer with JSON."""
        self.send(status, json.dumps(value).encode(), "application/json")

    def send(self, status: int, body: bytes, kind: str) -> None:
        """Answer with a whole body."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in self.headers_of_all().items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def headers_of_all(self) -> dict[str, str]:
        """Those that every answer has beside the usual ones."""
        return {}

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Say nothing."""


class Listening:
    """Sets `closing` before it waits for what is under way."""

    handler: ClassVar[type[OwnedHandler]]
    url: str
    closing: threading.Event

    def __enter__(self) -> Self:
        own = type("Handler", (self.handler,), {"owner": self})
        self._server = _Server(("127.0.0.1", 0), own)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
