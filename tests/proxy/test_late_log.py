"""Log lines wait for the loop, and none is lost."""

from __future__ import annotations

import asyncio
import logging

from specdash.proxy.http.server import LateHandler


class Lines(list[str]):
    """An output that keeps its lines."""

    lost = 0

    def write(self, line: str) -> None:
        self.append(line)

    def close(self) -> None: ...


def logger_to(lines: Lines) -> tuple[logging.Logger, LateHandler]:
    handler = LateHandler([lines])  # type: ignore[list-item]
    logger = logging.getLogger("specdash.tests.late")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    logger.handlers = [handler]
    return logger, handler


async def test_lines_are_written_in_order_in_the_next_turn() -> None:
    lines = Lines()
    logger, _ = logger_to(lines)
    for word in ("one", "two", "three"):
        logger.info(word)
    assert not lines
    await asyncio.sleep(0)
    assert lines == ["one", "two", "three"]


def test_without_a_loop_a_line_is_written_at_once() -> None:
    lines = Lines()
    logger, _ = logger_to(lines)
    logger.info("now")
    assert lines == ["now"]


async def test_closing_writes_what_waits() -> None:
    lines = Lines()
    logger, handler = logger_to(lines)
    logger.info("last")
    handler.close()
    assert lines == ["last"]
