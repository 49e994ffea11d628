"""Structured calls: what makes one malformed, whether its input fits the schema, and what never matters."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.proxy.guardrails.calls import call_fault, fits
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
        assert secret not in str(fault)


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
    {"mode": "lines"},
    {"multiline": 1},
    {"multiline": "true"},
    {"globs": "[]"},
    {"context": True},
    {"context": 3.5},
    {"kind": "binary"},
    {"either": 1},
]


@pytest.mark.parametrize(("value", "does_fit"), [(v, True) for v in FITS] + [(v, False) for v in FAILS], ids=str)
def test_an_input_fits_its_schema_or_not(value: dict[str, Any], does_fit: bool) -> None:
    assert fits(GREP, {"pattern": "x", **value}) is does_fit


def of_a(schema: Any) -> Tool:
    return Tool("T", "", {"properties": {"a": schema}})


def test_no_required_property_may_be_missing_and_true_is_not_one() -> None:
    assert not fits(WRITE, {"content": "x"})
    assert fits(of_a({"enum": [1]}), {"a": 1})
    assert not fits(of_a({"enum": [1]}), {"a": True})


def test_a_reference_allows_anything_and_what_is_inside_a_property_is_the_clients_business() -> None:
    nested = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for schema in ({"$ref": "#/$defs/a"}, {"anyOf": [{"$ref": "#"}, {"type": "null"}]}, {"anyOf": 3}, nested):
        assert fits(of_a(schema), {"a": {"a": "x"}})


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
    fits(Tool("T", "", schema), value if isinstance(value, dict) else {"a": value})


def test_a_bottomless_schema_allows_anything() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5000):
        schema = {"anyOf": [schema]}
    assert fits(of_a(schema), {"a": 1})
