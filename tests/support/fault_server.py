"""A server that answers HTTP as it is told, to the byte, and injects the faults of real servers and networks."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator, Mapping

from support.scripted_server import Behaviour, Call, ThreadedServer


def answer(status: int, body: bytes, *headers: str) -> bytes:
    """One whole HTTP answer."""
    lines = [f"HTTP/1.1 {status} X", "Server: llama.cpp", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def says(status: int, body: bytes | str, *headers: str) -> Behaviour:
    """Answer at once and keep the connection."""
    whole = answer(status, body.encode() if isinstance(body, str) else body, *headers)
    return lambda call: call.write(whole)


def writes(data: bytes) -> Behaviour:
    """Send exactly these bytes, then close."""

    async def behave(call: Call) -> None:
        await call.write(data)
        call.hang_up()

    return behave


def hangs(after: bytes = b"") -> Behaviour:
    """Send these bytes and then nothing, with the connection open."""

    async def behave(call: Call) -> None:
        await call.write(after)
        await call.hang()

    return behave


def drips(data: bytes, pause_s: float = 1.0) -> Behaviour:
    """Send one byte, wait, send the next."""

    async def behave(call: Call) -> None:
        for index in range(len(data)):
            await call.write(data[index : index + 1])
            await asyncio.sleep(pause_s)
        call.hang_up()

    return behave


def floods(head: bytes, piece: bytes, pieces: int) -> Behaviour:
    """Send the head and then many pieces, as long as the other side reads."""

    async def behave(call: Call) -> None:
        await call.write(head)
        for _ in range(pieces):
            await call.write(piece)
        call.hang_up()

    return behave


def resets(after: bytes = b"") -> Behaviour:
    """Send these bytes and then a TCP reset."""

    async def behave(call: Call) -> None:
        await call.write(after)
        if after:
            # A reset overtakes data that the reader has not seen yet.
            await asyncio.sleep(0.05)
        call.hang_up(reset=True)

    return behave


class FaultServer(ThreadedServer):
    """Whatever has no behaviour is answered 404."""

    def __init__(self, routes: Mapping[str, Behaviour] | None = None, port: int = 0) -> None:
        super().__init__(says(404, '{"error":{"code":404,"message":"File Not Found"}}'), routes, port)


@contextlib.contextmanager
def full_backlog() -> Iterator[str]:
    """The address of a listener whose queue is full, so that further connections are never established."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        time.sleep(0.05)
        yield f"http://127.0.0.1:{address[1]}"


def free_port() -> int:
    """A port of 127.0.0.1 on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
