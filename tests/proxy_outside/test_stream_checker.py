"""The reader that judges streams refuses what a strict client would choke on, and takes what the API sends."""

import json
from typing import Any

import pytest

from support.anthropic_stream import GrammarError, checked

Event = dict[str, Any]
MESSAGE: Event = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "content": [],
    "model": "m",
    "stop_reason": None,
    "stop_sequence": None,
    "usage": {"input_tokens": 5, "output_tokens": 1},
}
START: Event = {"type": "message_start", "message": MESSAGE}
TEXT: Event = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
HELLO: Event = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}}
STOP: Event = {"type": "content_block_stop", "index": 0}
CALL: Event = {"type": "content_block_start", "index": 1,
               "content_block": {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}}  # fmt: skip
INPUT: Event = {"type": "content_block_delta", "index": 1,
                "delta": {"type": "input_json_delta", "partial_json": '{"a": 1}'}}  # fmt: skip
CALL_STOP: Event = {"type": "content_block_stop", "index": 1}
USAGE = {"output_tokens": 9}
DELTA: Event = {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": USAGE}
TOOL_DELTA: Event = {**DELTA, "delta": {"stop_reason": "tool_use", "stop_sequence": None}}
END: Event = {"type": "message_stop"}
PING: Event = {"type": "ping"}
ERROR: Event = {"type": "error", "error": {"type": "api_error", "message": "gone"}}


def stream(*events: Event) -> bytes:
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


@pytest.mark.parametrize(
    "events",
    [
        (START, TEXT, HELLO, HELLO, STOP, DELTA, END),
        (START, PING, TEXT, PING, HELLO, STOP, PING, DELTA, END),
        (START, TEXT, HELLO, STOP, CALL, INPUT, CALL_STOP, TOOL_DELTA, END),
        (START, DELTA, END),
        (START, ERROR),
        (ERROR,),
    ],
)
def test_what_the_api_sends_is_taken(events: tuple[Event, ...]) -> None:
    checked(stream(*events))


@pytest.mark.parametrize(
    "events",
    [
        (),
        (START,),
        (TEXT, HELLO, STOP, DELTA, END),
        (PING, START, DELTA, END),
        (START, HELLO, STOP, DELTA, END),
        (START, TEXT, HELLO, CALL, INPUT, STOP, CALL_STOP, TOOL_DELTA, END),
        (START, TEXT, STOP, CALL, INPUT, CALL_STOP, DELTA, END),
        (START, TEXT, HELLO, STOP, TOOL_DELTA, END),
        (START, DELTA, END, PING),
        (START, ERROR, END),
        (START, END),
        (START, {**DELTA, "usage": {"output_tokens": 0}}, END),
        (START, {**DELTA, "delta": {"stop_reason": "stop", "stop_sequence": None}}, END),
        (START, {**DELTA, "delta": {"stop_reason": "stop_sequence", "stop_sequence": None}}, END),
        ({**START, "message": {**MESSAGE, "usage": {}}}, DELTA, END),
        (START, {"type": "unheard_of"}, DELTA, END),
    ],
)
def test_what_breaks_the_order_is_refused(events: tuple[Event, ...]) -> None:
    with pytest.raises(GrammarError):
        checked(stream(*events))


@pytest.mark.parametrize(
    "body",
    [
        stream(START, DELTA, END).replace(b"event: ping\n", b"").replace(b"event: message_stop\n", b""),
        stream(START, DELTA, END)[:-1],
        stream(START, DELTA, END) + b"data: [DONE]\n\n",
        stream(START, DELTA, END).replace(b"event: message_delta", b"event: delta"),
    ],
)
def test_what_breaks_the_framing_is_refused(body: bytes) -> None:
    with pytest.raises(GrammarError):
        checked(body)
