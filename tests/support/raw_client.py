"""Raw bytes to a proxy, and its answers as they come."""

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any

from support.proxy_process import ProxyProcess

MESSAGES, CHAT = "/v1/messages", "/v1/chat/completions"
DEADLINE_S = 15.0
KEY = b"x-api-key: right\r\n"


@contextlib.contextmanager
def connected(proxy: ProxyProcess) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), DEADLINE_S) as client:
        yield client


def read_all(client: socket.socket) -> bytes:
    """Everything up to the end of the connection, however it comes."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while part := client.recv(65536):
            found += part
    return found


def raw(proxy: ProxyProcess, *parts: bytes) -> bytes:
    """What a client gets that sends these bytes and reads until the proxy closes."""
    with connected(proxy) as client:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                client.sendall(part)
        return read_all(client)


def read_answer(client: socket.socket) -> int:
    """Read one answer, of known length; its status."""
    answer = http.client.HTTPResponse(client)
    answer.begin()
    answer.read()
    return answer.status


def split(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers with lower-case names, and the rest."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    assert first.startswith("HTTP/1.1 "), answer[:200]
    named = (line.partition(":") for line in lines)
    return int(first.split()[1]), {name.lower(): value.strip() for name, _, value in named}, rest


def refused(answer: bytes, status: int, path: str = MESSAGES) -> str:
    """The message of an error in the envelope of its endpoint."""
    found, headers, body = split(answer)
    assert found == status, answer[:300]
    assert headers["connection"] == "close"
    value = json.loads(body)
    if path == CHAT:
        assert set(value) == {"error"}
        assert value["error"]["code"] == status
    else:
        assert (value["type"], value["request_id"]) == ("error", headers["request-id"])
    return str(value["error"]["message"])


def post(body: Any, path: str = MESSAGES, *lines: bytes, version: bytes = b"1.1") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = b"POST %b HTTP/%b\r\nhost: localhost\r\ncontent-length: %d\r\n" % (path.encode(), version, len(data))
    return head + KEY + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + data
