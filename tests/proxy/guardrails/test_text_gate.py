"""The gate on live text: what it holds, what it lets go, and that fragments do not matter."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specdash.proxy.guardrails.dialects import DIALECTS
from specdash.proxy.guardrails.malformed import inspect
from specdash.proxy.guardrails.markup_search import PseudoCallGate
from support.offered_tools import TOOLS
from support.recording_sink import RecordingSink

HERMES = '<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>'


def gated(fragments: list[str]) -> tuple[PseudoCallGate, RecordingSink]:
    sink = RecordingSink()
    gate = PseudoCallGate(TOOLS, sink)
    for fragment in fragments:
        gate.text(fragment)
    return gate, sink


HELD = [
    ("Reading.\n", HERMES),
    ("", HERMES + "\n<tool_"),
    ("\n \n", "<function=Read>\n<parameter=file_path>\n/a"),
    ("   ", "</parameter>\n"),
    ("", '{"name": "Read", "arguments": {}}'),
    ("", '```json\n{"name": "Read", "arguments": {}}\n```'),
    ("", '{"arguments": {"a": 1'),
    ("```python\n<tool_call>\n```\n", "[TOOL_CALLS]Read[ARGS]{}"),
    ("a\n", "<tool_c"),
    ("<parameter x>\n", "</parameter>\n</parameter>\n"),
    ("Look. ", HERMES),
    ("Look.   ", HERMES),
    ("Look", "<"),
    ("Look.\n", "<function=Re"),
    ("Look.\n", "<invoke na"),
    ("Look.\n", "<parameter=pattern>\na\n</parameter>\n<parameter=mode>\nfiles"),
    ("Look.\n", "<tool_call>Re"),
    ("Look.\n", "<|python_tag|>Rea"),
]
PASSED = [
    "Done.",
    "a < b\nx <tool_call>\n",
    HERMES + "\nmore",
    "So: " + HERMES + " is one.",
    "<div>\n<p>x</p>\n<tool>\n",
    "[link]\n[TOOL]\n",
    "```xml\n" + HERMES + "\n```\n",
    "~~~\n" + HERMES + "\n```\n",
    "    " + HERMES.replace("\n", "\n    "),
    '{"name": "Bob", "arguments": {"age": 4',
    '{"name": 3, "arguments": {"age": 4',
    '{"function": "Bob", "parameters": {"age": 4',
    '{"type": "module", "name": "Read',
    '{"files": ["a"',
    HERMES.replace("/a", "/a" * 400) + "\nmore",
    "```js\n{}\n```",
    "```json\n[]\n```",
    'text\n{"name": "Read", "arguments": {}}',
    "<parameter name='x'>\n</parameter>\nmore",
    "<tool_call> is a tag\n<function=f> too\n",
    "Look.    " + HERMES.replace("\n", ""),
    "    Look. " + HERMES.replace("\n", ""),
    "~~~\nLook. " + HERMES.replace("\n", ""),
    "",
]


@pytest.mark.parametrize(("passed", "held"), HELD)
def test_a_possible_call_is_held_and_what_stands_before_it_is_not(passed: str, held: str) -> None:
    for fragments in ([passed + held], list(passed + held), [passed, held]):
        gate, sink = gated(fragments)
        assert gate.held == held
        assert gate.drop() == held
        assert sink.all_text == passed
        assert gate.held == ""


@pytest.mark.parametrize("text", PASSED)
def test_other_text_passes_at_once(text: str) -> None:
    for fragments in ([text], list(text)):
        gate, sink = gated(fragments)
        assert gate.held == ""
        assert sink.texts == fragments


def test_refuted_fragments_are_released_as_they_came() -> None:
    gate, sink = gated(["See\n<", "tool_", "call"])
    assert sink.texts == []
    assert gate.held == "<tool_call"
    gate.text("e")
    assert sink.texts == ["See\n<", "tool_", "call", "e"]


def test_fragments_before_the_one_with_the_call_do_not_wait() -> None:
    gate, sink = gated(["See", " this\n", "<to"])
    assert sink.texts == ["See", " this\n"]
    gate.flush()
    assert sink.texts == ["See", " this\n", "<to"]


def test_a_real_call_releases_what_is_held_first() -> None:
    gate, sink = gated(["<tool_call>", "{"])
    gate.tool(0, "toolu_1", "Read")
    gate.arguments(0, "{}")
    gate.text("\n</tool_call>\n")
    assert sink.pieces == [
        ("text", "<tool_call>"),
        ("text", "{"),
        ("tool", "0 toolu_1 Read"),
        ("arguments", "{}"),
        ("text", "\n</tool_call>\n"),
    ]


def test_thinking_keeps_its_place_among_held_text() -> None:
    gate, sink = gated(["See\n<to"])
    gate.thinking("hm")
    gate.text("p>")
    gate.thinking("ok")
    assert sink.pieces == [("text", "See\n<to"), ("thinking", "hm"), ("text", "p>"), ("thinking", "ok")]


def test_thinking_is_not_dropped_with_the_text() -> None:
    gate, sink = gated(["See\n" + HERMES])
    gate.thinking("hm")
    assert gate.drop() == HERMES
    assert sink.pieces == [("text", "See\n"), ("thinking", "hm")]


def test_nothing_is_held_without_tools() -> None:
    sink = RecordingSink()
    gate = PseudoCallGate((), sink)
    gate.text(HERMES)
    assert sink.texts == [HERMES]
    assert gate.held == ""


DIALECT_WORDS = sorted({name for dialect in DIALECTS for name in (*dialect.opens, *dialect.closes, dialect.sample)})
_PIECES = st.sampled_from([
    "<tool_call>", "</tool_call>", "{", '{"name": "Read", "arguments": {}}', '"name": "', "<function=Read>",
    "<parameter=a>", "<parameter x>", "</parameter>", "</function>", "```", "```json", "~~~", "`", "[TOOL_CALLS]", "[",
    "<invoke name=\"Read\">", "<|tool_call|>", "\n", "\n\n", " ", "    ", "\t", "\r\n", "word", "<", ". ", "Read", "}",
    "functions.Read:0", "[ARGS]", '{"file_path": "/a"}', 'Read(file_path="/a")', ",", "]", "to=functions.Read", "json",
    *DIALECT_WORDS,
])  # fmt: skip
_TEXTS = st.lists(_PIECES | st.text(max_size=4), max_size=14).map("".join)


@st.composite
def fragmented(draw: st.DrawFn) -> list[str]:
    text = draw(_TEXTS)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(fragmented())
@example(["In ", "step 1", ". ", HERMES])
def test_fragments_do_not_decide(fragments: list[str]) -> None:
    text = "".join(fragments)
    outcomes = []
    for pieces in (fragments, [text], list(text)):
        gate, sink = gated(pieces)
        outcomes.append((gate.drop(), sink.all_text))
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert outcomes[0][1] + outcomes[0][0] == text


@given(fragmented())
def test_what_is_let_through_comes_out_fragment_for_fragment(fragments: list[str]) -> None:
    gate, sink = gated(fragments)
    gate.flush()
    assert sink.texts == fragments


@given(fragmented())
@example(["</parameter></parameter>", "</parameter>\n"])
def test_no_malformed_text_gets_past_the_gate(fragments: list[str]) -> None:
    gate, sink = gated(fragments)
    fault = inspect("".join(fragments), [], TOOLS)
    held = gate.drop()
    if fault is not None:
        assert sink.all_text + held == "".join(fragments)
        assert inspect(held, [], TOOLS) is not None
