"""Tool calls that a model wrote as text in a common form, parsed into real ones.

All or nothing: an answer is recovered only when every pseudo call at its end parses, names an offered tool and fits its
schema, and what is left is healthy text.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from specdash.proxy.blocks import ToolCall
from specdash.proxy.guardrails import malformed, schema
from specdash.proxy.guardrails.markup_search import unparsed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.proxy.messages import Tool


def recover(text: str, tools: Sequence[Tool], seed: str = "") -> tuple[str, list[ToolCall]] | None:
    """The text without its pseudo calls, and the calls; None when there are none or any is not provably right.

    A call's id depends on `seed` (such as the message id, so that ids differ between turns), the text and its position.
    """
    offered = {one.name: one for one in tools}
    place = unparsed(text, offered)
    if place is None or not place[1].calls or place[1].unfinished:
        return None
    start, run = place
    rest = text[:start]
    digest = hashlib.sha256(f"{seed}\0{text}".encode("utf-8", "surrogatepass"))
    calls = []
    for written in run.calls:
        tool = offered.get(written.name or "")
        if tool is None or written.arguments is None or schema.problem(tool, written.arguments):
            return None
        digest.update(b"\0")
        calls.append(ToolCall(f"toolu_{digest.hexdigest()[:24]}", tool.name, json.dumps(written.arguments)))
    if malformed.text_fault(rest, offered) is not None:
        return None
    return (rest if rest.strip() else ""), calls
