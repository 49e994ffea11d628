"""Calls written as text, made into real ones only when that is provably right."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.proxy.guardrails.dialects import DIALECTS, Dialect
from specdash.proxy.guardrails.malformed import inspect, recover
from support.offered_tools import TOOLS

READ_A = ("Read", {"file_path": "/a"})
READ_JSON = '{"name": "Read", "arguments": {"file_path": "/a"}}'
PING_JSON = '{"name": "Ping", "arguments": {}}'
WRITE_CODE = 'if a:\n    print("</x>")\n'


def hermes(name: str, value: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': value})}\n</tool_call>"


def qwen(name: str, value: dict[str, Any]) -> str:
    parameters = "".join(
        f"<parameter={key}>\n{entry if isinstance(entry, str) else json.dumps(entry)}\n</parameter>\n"
        for key, entry in value.items()
    )
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def invoke(name: str, value: dict[str, Any]) -> str:
    parameters = "".join(
        f'<parameter name="{key}">{entry if isinstance(entry, str) else json.dumps(entry)}</parameter>\n'
        for key, entry in value.items()
    )
    return f'<function_calls>\n<invoke name="{name}">\n{parameters}</invoke>\n</function_calls>'


FORMS = [hermes, qwen, invoke]
RECOVERED = [
    (hermes(*READ_A), "", [READ_A]),
    (hermes(*READ_A) + "\n" + hermes("Ping", {}), "", [READ_A, ("Ping", {})]),
    (hermes(*READ_A).removesuffix("\n</tool_call>"), "", [READ_A]),
    ("I read.\n\n" + hermes(*READ_A) + "\n", "I read.\n\n", [READ_A]),
    (hermes(*READ_A) + "\n</parameter>", "", [READ_A]),
    ("</parameter>\n" + hermes(*READ_A), "", [READ_A]),
    ('[TOOL_CALLS]Read[ARGS]{"file_path": "/a"}', "", [READ_A]),
    (qwen(*READ_A), "", [READ_A]),
    (qwen(*READ_A).removeprefix("<tool_call>\n"), "", [READ_A]),
    ('<function=Read>{"file_path": "/a"}</function>', "", [READ_A]),
    ('<function=Read>{"file_path": "/a"}}', "", [READ_A]),
    ("<function=Ping>\n</function>", "", [("Ping", {})]),
    (invoke(*READ_A), "", [READ_A]),
    ('<invoke name="Read"><parameter name="file_path">/a</parameter></invoke>', "", [READ_A]),
    (invoke(*READ_A).replace("<", "<" + "antml:").replace("<" + "antml:/", "</" + "antml:"), "", [READ_A]),
    ('[TOOL_CALLS][{"name": "Read", "arguments": {"file_path": "/a"}}]', "", [READ_A]),
    (f"\n {READ_JSON} \n", "", [READ_A]),
    ('```json\n{"name": "Read", "parameters": {"file_path": "/a"}}\n```\n', "", [READ_A]),
    ('{"name": "Read", "input": {"file_path": "/a"}}\n</tool_call>\n' + hermes("Ping", {}), "", [READ_A, ("Ping", {})]),
    (f"```tool_call\n{READ_JSON}\n```\n" * 2, "", [READ_A, READ_A]),
    (f'<tool_call>\n{{"function": {PING_JSON}}}\n</tool_call>', "", [("Ping", {})]),
    ("<tool_call>Ping\n</tool_call>", "", [("Ping", {})]),
    (f"<tool_calls>\n{READ_JSON}\n{PING_JSON}\n</tool_calls>", "", [READ_A, ("Ping", {})]),
    (f"<tool_call>{READ_JSON}, {PING_JSON}</tool_call>", "", [READ_A, ("Ping", {})]),
    (f"<tool_call>\n```json\n{READ_JSON}\n```\n</tool_call>", "", [READ_A]),
    (f"<tool_call>{READ_JSON}}}</tool_call>", "", [READ_A]),
    (invoke(*READ_A).removeprefix("<function_calls>").replace("function_calls", "minimax:tool_call"), "", [READ_A]),
    ('commentary to=Read json{"file_path": "/a"}', "", [READ_A]),
    ('[TOOL_CALLS]Read[CALL_ID]abc123[ARGS]{"file_path": "/a"}', "", [READ_A]),
    ('<|python_tag|>[Read(file_path="/a"), Ping()]', "", [READ_A, ("Ping", {})]),
    ("```tool_code\nfound = await default_api.Read(file_path='/a')\nprint(found)\n```", "", [READ_A]),
    (
        '<|tool_call>call:Grep{pattern:<|"|>a, b<|"|>,options:{depth:2}}<tool_call|>',
        "",
        [("Grep", {"pattern": "a, b", "options": {"depth": 2}})],
    ),
    (
        "<tool_call>Write<arg_key>file_path</arg_key><arg_value>/a</arg_value><arg_key>content</arg_key><arg_value>x\n</arg_value></tool_call>",
        "",
        [("Write", {"file_path": "/a", "content": "x\n"})],
    ),
    (
        '<DSMLinvoke name="Grep"><DSMLparameter name="pattern" string="true">7</DSMLparameter>\n'
        '<DSMLparameter name="anything" string="false">7</DSMLparameter></DSMLinvoke>'.replace("DSML", "｜DSML｜"),
        "",
        [("Grep", {"pattern": "7", "anything": 7})],
    ),
    (hermes("Read", {"file_path": ""}), "", [("Read", {"file_path": ""})]),
    ('<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a\n"}}', "", [("Read", {"file_path": "/a\n"})]),
]
REFUSED = [
    "",
    "Done.",
    "`<tool_call>`",
    f"```\n{hermes(*READ_A)}\n```",
    hermes("Delete", {}),
    hermes("Read", {}),
    hermes("Read", {"file_path": 1}),
    hermes(*READ_A) + "\n" + hermes("Read", {}),
    hermes(*READ_A) + "\nThen I go on.",
    hermes(*READ_A) + "\n<tool_call>",
    hermes(*READ_A) + "\n<tool_",
    '[TOOL_CALLS][{"name": "Ping", "arguments": {}}, 3]',
    "```tool_code\nprint(Read(file_path='/a'))",
    '<|python_tag|>Grep(pattern="a", anything={1, 2})',
    "<|python_tag|>Ping(host=...)",
    '<tool_call>{"name": "Grep", "arguments": {"pattern": "x", "anything": NaN}}</tool_call>',
    '<tool_call>\n{"name": "Read", "arguments": {"file_path": ',
    '<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}} and more',
    "<function=Read>\n<parameter=file_path>\n/a\n</function>",
    "<function=Read>\n<parameter=file_path>\n/a\n</parameter>",
    "<function=Read>\n<parameter=file_path>\n/a\n</parameter>\n<parameter=file_path>\n/b\n</parameter>\n</function>",
    "<function=Read>\n<parameter=file_path>/a</parameter>\n<parameter=limit>\nmany\n</parameter>\n</function>",
    "<parameter=file_path>\n/a\n</parameter>",
    "</agentic-protocol>",
    '{"name": "Read", "arguments": {"file_path": "/a"',
    '{"name": "Bob", "arguments": {}}',
]


@pytest.mark.parametrize(("text", "rest", "calls"), RECOVERED)
def test_a_right_call_is_recovered(text: str, rest: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    found = recover(text, TOOLS)
    assert found is not None
    assert found[0] == rest
    assert [(tool_call.name, json.loads(tool_call.arguments)) for tool_call in found[1]] == calls
    assert inspect(found[0], found[1], TOOLS) is None


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda item: item.name)
def test_every_dialect_is_read(dialect: Dialect) -> None:
    for lead in ("", "I read.\n"):
        found = recover(lead + dialect.sample, TOOLS)
        assert found is not None
        assert (found[0], [(tool_call.name, json.loads(tool_call.arguments)) for tool_call in found[1]]) == (
            lead,
            [READ_A],
        )


@pytest.mark.parametrize("text", REFUSED)
def test_anything_doubtful_is_not(text: str) -> None:
    assert recover(text, TOOLS) is None


@pytest.mark.parametrize("form", FORMS)
def test_code_in_an_argument_stays_as_it_is(form: Any) -> None:
    value = {"file_path": "/a.py", "content": "```\n<tool_call>\n" + WRITE_CODE + "  </parameter> is a tag\n```python"}
    found = recover(form("Write", value), TOOLS)
    assert found is not None
    assert json.loads(found[1][0].arguments) == value


def test_untyped_text_gets_the_types_of_the_schema() -> None:
    value = {
        "pattern": "12",
        "multiline": True,
        "globs": ["*.py"],
        "options": {"depth": 2},
        "context": 3,
        "anything": "7",
        "either": None,
    }
    for form in (qwen, invoke):
        found = recover(form("Grep", value), TOOLS)
        assert found is not None
        assert json.loads(found[1][0].arguments) == value


def test_python_spellings_of_constants_are_understood() -> None:
    found = recover(
        "<function=Grep>\n<parameter=pattern>\nNone\n</parameter>\n<parameter=multiline>\nTrue\n</parameter>\n"
        "<parameter=context>\nNone\n</parameter>\n</function>",
        TOOLS,
    )
    assert found is not None
    assert json.loads(found[1][0].arguments) == {"pattern": "None", "multiline": True, "context": None}


def test_ids_depend_on_content_position_and_seed_only() -> None:
    text = hermes(*READ_A) + "\n" + hermes(*READ_A)
    first, again, other = recover(text, TOOLS), recover(text, TOOLS), recover(text, TOOLS, seed="msg_2")
    assert first is not None
    assert other is not None
    assert first == again
    ids = [tool_call.id for tool_call in (*first[1], *other[1])]
    assert len(set(ids)) == 4
    assert all(name.startswith("toolu_") for name in ids)


def test_recovering_what_the_gate_held_equals_recovering_the_whole() -> None:
    whole = recover("I read.\n\n" + hermes(*READ_A) + "\n", TOOLS)
    held = recover(hermes(*READ_A) + "\n", TOOLS)
    assert whole is not None
    assert held is not None
    assert "I read.\n\n" + held[0] == whole[0]


_WORDS = st.text(st.characters(exclude_characters="<>\r"), max_size=30)


@given(content=_WORDS, path=_WORDS, form=st.sampled_from(FORMS))
def test_any_content_survives_the_way_through_text(content: str, path: str, form: Any) -> None:
    value = {"file_path": path, "content": content}
    found = recover(form("Write", value), TOOLS)
    assert found is not None
    assert json.loads(found[1][0].arguments) == value


_TAGS = st.sampled_from([
    "<tool_call>", "</tool_call>", '{"name": "Ping", "arguments": {}}', "<function=Ping>", "</function>", "\n", "word",
    "<parameter=a>", "</parameter>", "```", '<invoke name="Ping">', "</invoke>", "[TOOL_CALLS]", "[", "]",
])  # fmt: skip


@given(st.lists(_TAGS, max_size=14).map("".join))
def test_what_is_recovered_is_always_healthy(text: str) -> None:
    found = recover(text, TOOLS)
    if found is not None:
        assert found[1]
        assert inspect("", found[1], TOOLS) is None
        assert inspect(found[0], [], TOOLS) is None
