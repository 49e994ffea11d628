"""The billing header: its rotating values become constants, and nothing else changes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.proxy.translate.parse import parse_messages
from specdash.proxy.translate.translate import chat_body, steady
from support.messages_bodies import body_of

HEADER = "x-anthropic-billing-header: cc_version=2.1.50.{suffix}; cc_entrypoint=cli; cch={nonce};"

nonces = st.from_regex(r"[0-9a-f]{3,12}", fullmatch=True)


def header(suffix: str = "d2a", nonce: str = "81ac4") -> str:
    return HEADER.format(suffix=suffix, nonce=nonce)


@given(nonces, nonces, nonces, nonces)
def test_bodies_that_differ_in_nonces_only_are_rendered_alike(name: str, two: str, three: str, four: str) -> None:
    def rendered(suffix: str, nonce: str) -> bytes:
        system = [{"type": "text", "text": header(suffix, nonce)}, {"type": "text", "text": "You are helpful."}]
        body = body_of([{"role": "user", "content": "hi"}], system=system)
        return msgspec.json.encode(chat_body(parse_messages(msgspec.json.encode(body)), "m"))

    assert rendered(name, two) == rendered(three, four)


@given(st.text())
def test_a_text_that_does_not_start_with_the_header_is_left_alone(text: str) -> None:
    said = f"Note cch=81ac4; {text} {header()}"
    assert steady(said) == said


@pytest.mark.parametrize("joint", ["\n", "\n\n", " "])
def test_text_after_the_header_is_left_alone(joint: str) -> None:
    rest = "Explain cch=81ac4; and cc_version=2.1.50.d2a, please."
    assert steady(header() + joint + rest).endswith(joint + rest)


def test_a_user_who_quotes_the_header_is_quoted_exactly() -> None:
    body = body_of([{"role": "user", "content": header()}])
    assert chat_body(parse_messages(msgspec.json.encode(body)), "m")["messages"][0]["content"] == header()
