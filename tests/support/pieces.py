"""An answer's pieces through one filter, as a turn feeds them."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any

from specdash.proxy.answer.blocks import END, MessageBuilder, Piece, Text
from specdash.proxy.answer.filters import Attempt


def texts(*pieces: str) -> list[Piece]:
    """Visible text in these fragments."""
    return [Text(piece) for piece in pieces]


def through(
    make: Callable[[Any, Attempt], AsyncGenerator[Piece, None]], pieces: Iterable[Piece]
) -> tuple[list[Piece], Attempt]:
    """What comes out of the filter that `make` puts behind the source, its end left out, and the attempt."""
    attempt = Attempt()

    async def source() -> AsyncGenerator[Piece, None]:
        for piece in pieces:
            yield piece
            if attempt.is_cut:
                return
        yield END

    async def run() -> list[Piece]:
        return [piece async for piece in make(source(), attempt)]

    found = asyncio.run(run())
    assert found.count(END) == 1
    assert found[-1] == END
    return found[:-1], attempt


def text_of(pieces: Iterable[Piece]) -> str:
    """All visible text."""
    return "".join(piece.text for piece in pieces if isinstance(piece, Text))


def content_of(pieces: Iterable[Piece]) -> list[dict[str, Any]]:
    """The blocks that the pieces make."""
    builder = MessageBuilder()
    for piece in pieces:
        builder.add(piece)
    return builder.content()
