"""Log lines wait for the loop, and none is lost."""

from __future__ import annotations

import asyncio
import io
import logging

from specdash.proxy.http.server import LateHandler


def logger_to(out: io.StringIO) -> tuple[logging.Logger, LateHandler]:
    handler = LateHandler([logging.StreamHandler(out)])
    logger = logging.getLogger("specdash.tests.late")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    logger.handlers = [handler]
    return logger, handler


async def test_lines_are_written_in_order_in_the_next_turn() -> None:
    out = io.StringIO()
    logger, _ = logger_to(out)
    for word in ("one", "two", "three"):
        logger.info(word)
    assert out.getvalue() == ""
    await asyncio.sleep(0)
    assert out.getvalue() == "one\ntwo\nthree\n"


def test_without_a_loop_a_line_is_written_at_once() -> None:
    out = io.StringIO()
    logger, _ = logger_to(out)
    logger.info("now")
    assert out.getvalue() == "now\n"


async def test_closing_writes_what_waits() -> None:
    out = io.StringIO()
    logger, handler = logger_to(out)
    logger.info("last")
    handler.close()
    assert out.getvalue() == "last\n"
