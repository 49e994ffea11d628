"""The upstream's bytes become the same chunks whatever the reads were, and nothing in them raises."""

from __future__ import annotations

from typing import Any

import pytest

from specdash.proxy.answer import assembler
from specdash.proxy.answer.assembler import ChatDecoder


def decoded(*reads: bytes) -> list[dict[str, Any]]:
    decoder = ChatDecoder()
    return [*(chunk for read in reads for chunk in decoder.feed(read)), *decoder.close()]


def test_done_ends_the_stream() -> None:
    decoder = ChatDecoder()
    body = b'data: {"a":1}\n\ndata: [DONE]\n\ndata: {"a":2}\n\n'
    assert list(decoder.feed(body)) == [{"a": 1}]
    assert decoder.done


@pytest.mark.parametrize(
    "body",
    [
        b'data: {"a":1}\r\n\r\ndata: {"a":2}\r\n\r\n',
        b'data:{"a":1}\n\ndata:{"a":2}\n\n',
        b': waiting\n\ndata: {"a":1}\n\n: still\n: waiting\ndata: {"a":2}\n\n',
        b'\n\n\ndata: {"a":1}\n\n\n\n\ndata: {"a":2}\n\n',
        b'event: message\nid: 7\nretry: 9\ndata: {"a":1}\n\ndata: {"a":2}\n\n',
        b'data: {"a":\ndata: 1}\n\ndata:\n\ndata: {"a":2}\n\n',
        b'data: {"a":\r\ndata: 1}\r\n\r\nevent: message\r\ndata: {"a":2}\r\n\r\n',
    ],
)
def test_every_framing_the_format_allows_is_read_at_any_split(body: bytes) -> None:
    for cut in range(len(body) + 1):
        assert decoded(body[:cut], body[cut:]) == [{"a": 1}, {"a": 2}]
    assert decoded(*(body[at : at + 1] for at in range(len(body)))) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    "body",
    [
        b'event: error\ndata: {"code":500,"message":"boom","type":"server_error"}\n\n',
        b'data: {"error":{"code":500,"message":"boom","type":"server_error"}}\n\n',
    ],
)
def test_an_upstream_error_in_any_form_is_an_error_chunk(body: bytes) -> None:
    assert decoded(body) == [{"error": {"code": 500, "message": "boom", "type": "server_error"}}]


@pytest.mark.parametrize("stray", [b"hello", b"{not json}", b"[1,2]", b'"text"', b"12"])
def test_a_stray_event_is_an_error_chunk_and_the_rest_is_still_read(stray: bytes) -> None:
    first, second = decoded(b"data: " + stray + b'\n\ndata: {"a":1}\n\n')
    assert first["error"]["type"] == "api_error"
    assert stray.decode() in first["error"]["message"]
    assert second == {"a": 1}


def test_the_end_of_bytes_ends_a_whole_event_and_drops_a_torn_one() -> None:
    assert decoded(b'data: {"a":1}') == [{"a": 1}]
    assert decoded(b'data: {"a":1}\n') == [{"a": 1}]
    assert decoded(b'data: {"a":1}\n\ndata: {"a"') == [{"a": 1}]
    assert decoded(b'data: {"a":1}\n\ndata: [DO') == [{"a": 1}]


def test_an_event_without_end_is_given_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembler, "MAX_EVENT_BYTES", 1000)
    chunks = decoded(b"data: {", *([b"x" * 100] * 40), b"\n\n")
    assert [list(chunk) for chunk in chunks] == [["error"]]
