"""Structured calls: what makes one malformed, whether its input fits the schema, and what never matters."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.proxy.guardrails.calls import call_fault, problem
from specdash.proxy.translate.parse import Tool
from support.offered_tools import GREP, TOOLS, WRITE, call

OFFERED = {tool.name: tool for tool in TOOLS}
LEAK = "\n</parameter>\n</function>"

INVALID = [
    ("", "{}", "empty_name"),
    ("  ", "{}", "empty_name"),
    ("Delete", "{}", "unknown_tool"),
    ("read", '{"file_path": "/a"}', "unknown_tool"),
    ("Read", '{"file_path": "/a"', "bad_json"),
    ("Read", "file_path=/a", "bad_json"),
    ("Read", '{"file_path": "/a", "offset": NaN}', "bad_json"),
    ("Read", "[" * 100_000, "bad_json"),
    ("Read", '"/a"', "not_an_object"),
    ("Read", '["/a"]', "not_an_object"),
    ("Read", "", "schema"),
    ("Read", '{"file_path": 7}', "schema"),
    ("Read", '{"file_path": "/a", "limit": "5"}', "schema"),
]
HEALTHY_CONTENTS = [
    "x = 1" + LEAK,
    "The template says </parameter> here.",
    "<tool_call>\n{}\n</tool_call>",
    "<function=f>\n<parameter=a>\n1" + LEAK,
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


FITS = [
    {"mode": "files"},
    {"multiline": True},
    {"globs": ["a", "b"]},
    {"options": {"depth": 1, "other": None}},
    {"context": None},
    {"context": 3.0},
    {"kind": "text"},
    {"anything": None},
    {"anything": [1, {"a": True}]},
    {"either": None},
    {"either": "x"},
    {"undeclared": 1},
]
FAILS = [
    ({"mode": "lines"}, "property mode is not one of its allowed values"),
    ({"multiline": 1}, "property multiline is integer, not boolean"),
    ({"multiline": "true"}, "property multiline is string, not boolean"),
    ({"globs": "[]"}, "property globs is string, not array"),
    ({"context": True}, "property context is boolean, not integer or null"),
    ({"context": 3.5}, "property context is number, not integer or null"),
    ({"kind": "binary"}, "property kind is not one of its allowed values"),
    ({"either": 1}, "property either is integer, not null or string"),
]


@pytest.mark.parametrize("value", FITS, ids=str)
def test_a_fitting_input_has_no_problem(value: dict[str, Any]) -> None:
    assert problem(GREP, {"pattern": "x", **value}) is None


@pytest.mark.parametrize(("value", "words"), FAILS, ids=str)
def test_a_problem_names_property_and_types(value: dict[str, Any], words: str) -> None:
    assert problem(GREP, {"pattern": "x", **value}) == f"Grep: {words}"


def of_a(schema: Any) -> Tool:
    return Tool("T", "", {"properties": {"a": schema}})


def test_a_missing_property_is_named_and_true_is_not_one() -> None:
    assert problem(WRITE, {"content": "x"}) == "Write: required property file_path is missing"
    assert problem(of_a({"enum": [1]}), {"a": 1}) is None
    assert problem(of_a({"enum": [1]}), {"a": True}) is not None


def test_a_reference_allows_anything_and_what_is_inside_a_property_is_the_clients_business() -> None:
    nested = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for schema in ({"$ref": "#/$defs/a"}, {"anyOf": [{"$ref": "#"}, {"type": "null"}]}, {"anyOf": 3}, nested):
        assert problem(of_a(schema), {"a": {"a": "x"}}) is None


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "properties", "required", "enum", "const", "items", "anyOf", "a", "nullable"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(schema=st.dictionaries(st.sampled_from(["properties", "required", "type", "anyOf"]), _JSON), value=_JSON)
def test_no_schema_that_a_client_may_send_breaks_the_check(schema: dict[str, Any], value: Any) -> None:
    problem(Tool("T", "", schema), value)
    problem(Tool("T", "", schema), {"a": value})


def test_a_bottomless_schema_allows_anything() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5000):
        schema = {"anyOf": [schema]}
    assert problem(of_a(schema), {"a": 1}) is None
