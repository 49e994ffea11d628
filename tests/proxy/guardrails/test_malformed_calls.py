"""Structured calls: what makes one malformed, and what never does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specdash.proxy.guardrails.calls import call_fault
from support.offered_tools import TOOLS, call

OFFERED = {tool.name: tool for tool in TOOLS}
LEAK = "\n</parameter>\n</function>"

INVALID = [
    ("", "{}", "empty_name"),
    ("  ", "{}", "empty_name"),
    ("Delete", "{}", "unknown_tool"),
    ("read", '{"file_path": "/a"}', "unknown_tool"),
    ("Read", '{"file_path": "/a"', "bad_json"),
    ("Read", "file_path=/a", "bad_json"),
    ("Read", '{"file_path": "/a"}}', "bad_json"),
    ("Read", "{'file_path': '/a'}", "bad_json"),
    ("Read", '{"file_path": "/a", "offset": NaN}', "bad_json"),
    ("Read", "[" * 100_000, "bad_json"),
    ("Read", '"/a"', "not_an_object"),
    ("Read", "null", "not_an_object"),
    ("Read", '["/a"]', "not_an_object"),
    ("Read", "{}", "schema"),
    ("Read", "", "schema"),
    ("Read", '{"file_path": null}', "schema"),
    ("Read", '{"file_path": 7}', "schema"),
    ("Read", '{"file_path": "/a", "limit": "5"}', "schema"),
]
HEALTHY_CONTENTS = [
    "x = 1" + LEAK,
    "x" + LEAK + "\n</tool_call>\n",
    "</function>\n</tool_call>",
    "The template says </parameter> here.",
    "<tool_call>\n{}\n</tool_call>",
    "<function=f>\n<parameter=a>\n1" + LEAK,
    "x\n</parameter>",
    "</function>\n</tool_call>\nand more",
    "echo '</parameter>\n</function>'",
    "}}}}}} {{{ 1000000000 \x00 \ud83d\ude00",
]


@pytest.mark.parametrize(("name", "arguments", "kind"), INVALID)
def test_an_invalid_call_is_malformed(name: str, arguments: str, kind: str) -> None:
    fault = call_fault(call(name, arguments), OFFERED)
    assert fault is not None
    assert fault.kind == kind


@pytest.mark.parametrize("content", HEALTHY_CONTENTS)
def test_markup_inside_an_argument_is_data(content: str) -> None:
    arguments = json.dumps({"file_path": "/a.md", "content": content})
    assert call_fault(call("Write", arguments), OFFERED) is None


@pytest.mark.parametrize("value", [{"file_path": "/a"}, {"file_path": "/a", "limit": 5}, {"file_path": "", "more": 1}])
def test_a_valid_call_is_healthy(value: dict[str, Any]) -> None:
    assert call_fault(call("Read", json.dumps(value)), OFFERED) is None


def test_the_token_limit_excuses_what_arguments_lack_and_no_unknown_tool() -> None:
    assert call_fault(call("Write", '{"file_path": "/a", "cont'), OFFERED, is_cut=True) is None
    assert call_fault(call("Nope", "{"), OFFERED, is_cut=True) is not None


def test_a_fault_says_nothing_of_the_values() -> None:
    secret = "hunter2-secret"
    for name, arguments in (
        ("Read", json.dumps({"file_path": [secret]})),
        ("Grep", json.dumps({"pattern": "x", "mode": secret})),
        ("Read", f"{{{secret}"),
        (f"do {secret} now", "{}"),
    ):
        fault = call_fault(call(name, arguments), OFFERED)
        assert fault is not None
        assert secret not in f"{fault.detail} {fault.tool}"
