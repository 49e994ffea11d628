"""Conversations for tests of request guardrails: exchanges by hand, and whole histories as hypothesis draws them."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from specdash.proxy.translate.parse import Block, Message, MessagesRequest, Tool

Call = tuple[str, dict[str, Any]]


def text(words: str) -> Block:
    return {"type": "text", "text": words}


def user(words: str) -> Message:
    return Message("user", (text(words),))


def assistant(words: str) -> Message:
    return Message("assistant", (text(words),))


def system(words: str) -> Message:
    return Message("system", (text(words),))


def call_id(turn: int, place: int = 0) -> str:
    return f"toolu_{turn}_{place}"


def calling(turn: int, *calls: Call, words: str = "") -> Message:
    said = (text(words),) if words else ()
    made = ({"type": "tool_use", "id": call_id(turn, i), "name": n, "input": a} for i, (n, a) in enumerate(calls))
    return Message("assistant", (*said, *made))


def result(turn: int, content: Any, place: int = 0, *, error: bool = False) -> Block:
    return {"type": "tool_result", "tool_use_id": call_id(turn, place), "content": content, "is_error": error}


def tool_turn(turn: int, name: str, arguments: dict[str, Any], content: Any, *, error: bool = False) -> list[Message]:
    """One call and its result."""
    return [calling(turn, (name, arguments)), Message("user", (result(turn, content, error=error),))]


def tools(*names: str) -> tuple[Tool, ...]:
    return tuple(Tool(name, f"the {name} tool", {"type": "object", "properties": {}}) for name in names)


def request(messages: Sequence[Message], **fields: Any) -> MessagesRequest:
    return MessagesRequest("m", tuple(messages), fields.pop("max_tokens", 1000), **fields)


def are_pairs_whole(messages: Sequence[Message]) -> bool:
    """True when every call is answered in the user messages that follow it, and nothing else is answered."""
    open_calls: set[str] = set()
    for message in messages:
        blocks = message.content
        if message.role == "assistant":
            if open_calls:
                return False
            open_calls = {block["id"] for block in blocks if block["type"] == "tool_use"}
        answered = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
        if not answered <= open_calls:
            return False
        open_calls -= answered
    return not open_calls


def do_roles_alternate(messages: Sequence[Message]) -> bool:
    """True when it starts with a user message and no assistant message follows another one."""
    sides = [message.role == "assistant" for message in messages]
    return not sides[0] and not any(flag and other for flag, other in pairwise(sides))


SIZES = st.sampled_from((3, 40, 400, 1500, 2500, 6000))


@st.composite
def exchanges(draw: st.DrawFn, turn: int) -> list[Message]:
    """What the model says or calls, and what comes back for it."""
    words = "w" * draw(SIZES)
    count = draw(st.integers(0, 3))
    if not count:
        found = [assistant(words), user("u" * draw(SIZES))]
    else:
        said = words if draw(st.booleans()) else ""
        blocks = [_result(turn, place, draw) for place in range(count)]
        made = calling(turn, *(("Read", {"path": f"/{turn}/{place}"}) for place in range(count)), words=said)
        split = draw(st.integers(0, count - 1))
        answers = [blocks[:split], blocks[split:]] if split else [blocks]
        if draw(st.integers(0, 4)) == 0:
            answers[-1] = [*answers[-1], text("and also " + "a" * draw(SIZES))]
        found = [made, *(Message("user", tuple(part)) for part in answers)]
    if draw(st.integers(0, 6)) == 0:
        found.append(system("reminder " + "s" * draw(SIZES)))
    return found


def _result(turn: int, place: int, draw: st.DrawFn) -> Block:
    body = "r" * draw(SIZES)
    as_text = draw(st.booleans())
    return result(turn, body if as_text else [text(body), text("more")], place, error=draw(st.booleans()))


@st.composite
def growing(draw: st.DrawFn, least: int = 1, most: int = 12) -> list[list[Message]]:
    """The histories of one conversation, request by request, each a prefix of the next."""
    start = [user("the task " + "t" * draw(SIZES))]
    if draw(st.booleans()):
        start.append(draw(st.sampled_from((system("in between"), user("and one thing more")))))
    found = [start]
    for turn in range(draw(st.integers(least, most))):
        found.append(found[-1] + draw(exchanges(turn)))
    return found
