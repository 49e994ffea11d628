"""What is held back of a live text, what goes on, and that fragments do not matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specdash.proxy.answer.blocks import Arguments, Text, Thinking, ToolStart
from specdash.proxy.answer.filters import with_held_calls
from specdash.proxy.guardrails.unexpected_end import prose_lines
from specdash.proxy.guardrails.written import Openings, call_places, written_at_end
from support.offered_tools import TOOLS
from support.pieces import text_of, texts, through

if TYPE_CHECKING:
    from specdash.proxy.answer.blocks import Piece
    from specdash.proxy.answer.filters import Attempt

HERMES = '<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>'
OFFERED = {tool.name: tool for tool in TOOLS}


def held(pieces: list[Piece]) -> tuple[list[Piece], Attempt]:
    return through(lambda source, attempt: with_held_calls(source, attempt, OFFERED), pieces)


HELD = [
    ("Reading.\n", HERMES),
    ("", HERMES + "\nmore\n\nand more"),
    ("\n \n   ", "<function=Read>\n<parameter=file_path>\n/a"),
    ("", "</parameter>\n"),
    ("text\n", '{"name": "Read", "arguments": {}}'),
    ("", '```json\n{"name": "Read", "arguments": {}}\n```'),
    ("", '{"arguments": {"a": 1'),
    ("", '{"name": "Rea'),
    ("", "``"),
    ("```python\n<tool_call>\n```\n", "[TOOL_CALLS]Read[ARGS]{}"),
    ("<parameter x>\n", "</parameter>\n</parameter>\n"),
    ("Look.   ", HERMES),
    ("Look", "<"),
    ("Look", "<|python_tag|>Rea"),
    ("Look.\n", "<invoke na"),
    ("Look.\n", "[Rea"),
    ("", "<｜tool▁calls▁begin｜>"),
    ("So.\n", "assistantcommentary to=functions.Read"),
]
PASSED = [
    "Done.",
    "",
    "a < b\nx <tool_call>\n",
    "<div>\n<p>x</p>\n<tool>\n",
    "[link](x)\n[TOOL]\n[Fetch(x)]\n",
    "```xml\n" + HERMES + "\n```\n",
    "~~~\n" + HERMES + "\n```\n",
    "    " + HERMES.replace("\n", "\n    "),
    "\tx. " + HERMES.replace("\n", ""),
    '{"name": "Bob", "arguments": {"age": 4',
    '{"name": 3, "arguments": {"age": 4',
    '{"function": "Bob", "parameters": {"age": 4',
    '{"type": "module", "name": "Read',
    '{"files": ["a"',
    "```js\n{}\n```",
    "```json\n[]\n```\n",
    "Look.    " + HERMES.replace("\n", ""),
    "    Look. " + HERMES.replace("\n", ""),
    "1. " + HERMES.replace("\n", ""),
    "~~~\nLook. " + HERMES.replace("\n", ""),
    "It printed `<tool_call>` here.",
]


@pytest.mark.parametrize(("passed", "kept"), HELD)
def test_text_is_held_from_where_a_call_may_begin(passed: str, kept: str) -> None:
    for fragments in ([passed + kept], list(passed + kept), [passed, kept]):
        out, attempt = held(texts(*fragments))
        before, rest = attempt.split(-len(kept))  # of an answer whose text ends here
        assert (text_of(out) + before, rest) == (passed, kept)


@pytest.mark.parametrize("text", PASSED)
def test_other_text_passes_at_once(text: str) -> None:
    for fragments in ([text], list(text)):
        assert held(texts(*fragments))[0] == texts(*fragments)


CALL: list[Piece] = [ToolStart(0, "toolu_1", "Read"), Arguments(0, "{}")]


@pytest.mark.parametrize(
    ("sent", "passed"),
    [
        (texts("See\n<", "tool_", "x", "y"), texts("See\n<", "tool_", "x", "y")),
        (
            [*texts("Ok.\n", "<tool_call>\n"), *CALL, *texts("\n", "</tool_call>\n")],
            [Text("Ok.\n"), *CALL],
        ),
        ([Text(HERMES), *CALL, *texts("\n", "Done.")], [*CALL, Text("\n"), Text("Done.")]),
        (
            [*texts("Here is an example:\n", HERMES), *CALL],
            [*texts("Here is an example:\n", HERMES), *CALL],
        ),
        ([Text("See\n<to"), Thinking("hm"), Text("p>")], [Thinking("hm"), *texts("See\n<to", "p>")]),
    ],
)
def test_what_is_refuted_is_released_and_markup_beside_a_call_dropped(sent: list[Piece], passed: list[Piece]) -> None:
    assert held(sent)[0] == passed


def test_thinking_goes_on_when_the_text_from_a_place_on_does_not() -> None:
    out, attempt = held([Text("See\n" + HERMES), Thinking("hm"), Text("!")])
    assert out == [Thinking("hm")]
    assert attempt.split(-len(HERMES) - 1) == ("See\n", HERMES + "!")


_PIECES = st.sampled_from([
    "<tool_call>", "</tool_call>", "{", '{"name": "Read", "arguments": {}}', '"name": "', "<function=Read>",
    "<parameter=a>", "<parameter x>", "</parameter>", "</function>", "```", "```json", "~~~", "`", "[TOOL_CALLS]", "[",
    "<invoke name=\"Read\">", "<|tool_call|>", "\n", "\n\n", " ", "    ", "\t", "\r\n", "word", "<", ". ", "Read", "}",
    "functions.Read:0", "[ARGS]", '{"file_path": "/a"}', 'Read(file_path="/a")', ",", "]", "to=functions.Read", "json",
    "<｜tool▁calls▁begin｜>", "</｜DSML｜", "commentary to=", "<|start|>assistant", "</agentic-protocol>", "w" * 300,
    "1. ",
])  # fmt: skip


@st.composite
def fragmented(draw: st.DrawFn) -> list[str]:
    text = draw(st.lists(_PIECES | st.text(max_size=4), max_size=14).map("".join))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(fragmented())
@example(["In ", "step 1", ". ", HERMES])
def test_fragments_do_not_decide(fragments: list[str]) -> None:
    text = "".join(fragments)
    places = set()
    for pieces in (fragments, [text], list(text)):
        out, attempt = held(texts(*pieces))
        assert text_of(out) + "".join(attempt.held) == text
        openings = Openings(OFFERED)
        for piece in pieces:
            openings.feed(piece)
        places.add((openings.held, openings.found))
    assert len(places) == 1
    first = next(iter(call_places(text, OFFERED)), len(text))
    assert len(text) - first == places.pop()[0]


@given(fragmented())
def test_nothing_that_is_a_call_gets_past(fragments: list[str]) -> None:
    out, _ = held(texts(*fragments))
    written = written_at_end("".join(fragments), OFFERED)
    if written is not None and (written.calls or written.text):
        assert len(text_of(out)) <= written.start


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a\n\n b", ["a", " b"]),
        ("```\na\n```\nb", ["b"]),
        ("~~~~\n~~~\na\n~~~~\nb", ["b"]),
        ("```x``` a\nb", ["```x``` a", "b"]),
        ("    a\n\tb\nc", ["c"]),
        ("```\na", []),
    ],
)
def test_prose_is_what_is_in_no_fence_and_not_indented(text: str, lines: list[str]) -> None:
    assert [line for _, line in prose_lines(text)] == lines
