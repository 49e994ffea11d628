"""What counts as broken tool syntax in visible text, and what makes a call unusable."""

from __future__ import annotations

from typing import Any

import pytest

from specdash.bench.load.messages import call_fault, visible_fault
from specdash.bench.soak import TOOLS

BROKEN = [
    '<tool_call>\n{"name": "read_file"',
    "I will read it.\n<function=read_file>\n<parameter=path>a.py",
    "<parameter=path>\na.py",
    '<invoke name="read_file">',
    "text of the file\n</parameter>",
    "and so on</parameter>\n</function>",
    "done </tool_call>",
    "</think>\nNow the answer",
    '{"name": "read_file", "arguments": {"path": "a"}}',
    "[TOOL_CALLS] read_file",
]
SOUND = [
    "",
    "The file is empty.",
    "Use the `<tool_call>` tag, and close it with `</tool_call>`.",
    "The tags <tool_call> and </tool_call> stand around a call.",
    "```xml\n<tool_call>\n</tool_call>\n```",
    "~~~\n</parameter>\n~~~\nThat is all.",
    "```\n</parameter>",
    "if a < b and c > d: pass",
    '{"name": "Ada", "age": 36}',
    '{"name": "read_file"}',
    "The HTML has a <parameter> element inside.",
]


@pytest.mark.parametrize("text", BROKEN)
def test_broken_tool_syntax_is_seen(text: str) -> None:
    assert visible_fault(text, TOOLS) is not None


@pytest.mark.parametrize("text", SOUND)
def test_prose_and_code_about_tags_is_no_fault(text: str) -> None:
    assert visible_fault(text, TOOLS) is None


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("read_file", {"path": "a"}, None),
        ("read_file", {"path": "a", "limit": 3}, None),
        ("read_file", {"path": "a", "more": [1]}, None),
        ("read_file", {"path": "has </parameter> in it"}, None),
        ("read_file", {}, "path is missing"),
        ("read_file", {"path": 5}, "path is of the wrong type"),
        ("read_file", {"path": "a", "limit": "3"}, "limit is of the wrong type"),
        ("read_file", {"path": "a", "limit": True}, "limit is of the wrong type"),
        ("read_file", None, "no object"),
        ("nope", {}, "unknown tool"),
    ],
)
def test_a_call_is_judged_by_its_schema(name: str, arguments: Any, said: str | None) -> None:
    fault = call_fault(name, arguments, TOOLS)
    assert fault is None if said is None else fault is not None and said in fault
