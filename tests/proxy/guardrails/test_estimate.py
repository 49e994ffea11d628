from __future__ import annotations

import msgspec
import msgspec.structs
from hypothesis import example, given
from hypothesis import strategies as st

from specdash.proxy.guardrails.history import (
    MESSAGE_TOKENS,
    message_tokens,
    overhead_tokens,
    request_tokens,
    text_tokens,
)
from specdash.proxy.translate.parse import Message, Tool
from specdash.proxy.translate.translate import chat_body
from support.histories import calling, growing, request, text, user


@given(st.text())
@example("文件" * 10)
def test_a_text_counts_by_its_bytes(words: str) -> None:
    size = len(words.encode())
    assert size / 3.5 <= text_tokens(words) < size / 3.5 + 1


def test_a_call_counts_its_name_and_arguments() -> None:
    arguments = {"path": "/" + "p" * 700}
    counted = message_tokens(calling(0, ("Read", arguments)))
    assert counted >= len(msgspec.json.encode(arguments)) / 3.5
    assert counted < len(msgspec.json.encode(arguments)) / 3.5 + 20


def test_system_and_tools_are_the_overhead() -> None:
    bare = request([user("hi")])
    assert overhead_tokens(bare) == 0
    offered = msgspec.structs.replace(bare, tools=(Tool("Read", "d" * 350, {"type": "object"}),))
    assert overhead_tokens(offered) == MESSAGE_TOKENS + text_tokens("Read") + 100 + text_tokens('{"type":"object"}')
    told = msgspec.structs.replace(bare, system=(text("s" * 350),))
    assert overhead_tokens(told) == 100 + MESSAGE_TOKENS


@given(growing())
def test_the_estimate_follows_what_is_sent(history: list[list[Message]]) -> None:
    messages = history[-1]
    sent = len(msgspec.json.encode(chat_body(request(messages), "m")["messages"]))
    estimated = request_tokens(request(messages)) * 3.5
    blocks = sum(len(message.content) for message in messages)
    assert sent - 130 * blocks < estimated < sent + 60 * blocks
