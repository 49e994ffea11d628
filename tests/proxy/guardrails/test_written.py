"""Calls that a model wrote as text: what is one, what is a broken one, and what is text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.proxy.guardrails.tools import RULES
from specdash.proxy.guardrails.written import Written, written_at_end
from support.offered_tools import TOOLS

HERMES = '<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>'
QWEN = "<function=Read>\n<parameter=file_path>\n/a\n</parameter>\n</function>"
INVOKE = '<invoke name="Read">\n<parameter name="file_path">/a</parameter>\n</invoke>'
READ_A = ("Read", {"file_path": "/a"})
OFFERED = {tool.name: tool for tool in TOOLS}

CASES: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "data" / "proxy_corpus" / "written.json").read_text("utf-8")
)
"""Families (each calls Read with /a; sources: chat templates and model cards), calls, broken ones, text, and leads."""
FAMILIES: dict[str, str] = CASES["families"]
ECHOES = [
    "Done.\n</agentic-protocol>",
    *("\n".join(("No more to do.\n<agentic-protocol>", *rules, "</agentic-protocol>")) for rules in RULES.values()),
    "\n".join(RULES["legacy"][:2]),
    f"1. {RULES['clean'][0]}\n2. {RULES['clean'][1]}\n  ",
    "The tests fail. You must call a tool to make the fix. Do not summarize the issue and stop.",
]


def read(text: str, **more: Any) -> Written | None:
    return written_at_end(text, OFFERED, **more)


def calls_in(text: str) -> list[tuple[str, Any]]:
    found = read(text)
    assert found is not None, text
    assert found.fault is None, text
    return [(call.name, json.loads(call.arguments)) for call in found.calls]


@pytest.mark.parametrize("sample", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize("lead", ["", "I will read it.\n\n", "Ich lese die Datei:\n"])
def test_every_family_is_read_at_the_end_and_is_text_in_the_middle(lead: str, sample: str) -> None:
    assert calls_in(lead + sample) == [READ_A]
    for more in ("\n\nThat is how it begins.", " is what it wrote", "\n- and more"):
        assert read(lead + sample + more) is None


@pytest.mark.parametrize(("text", "rest", "calls"), CASES["calls"])
def test_a_complete_call_is_one(text: str, rest: str | None, calls: list[list[Any]]) -> None:
    assert [list(call) for call in calls_in(text)][: len(calls)] == calls
    found = read(text)
    assert found is not None
    assert rest is None or text[: found.start].strip() == rest.strip()


@pytest.mark.parametrize(("kind", "tool", "text"), CASES["broken"])
def test_one_that_cannot_be_read_is_a_fault(kind: str | None, tool: str | None, text: str) -> None:
    found = read(text)
    assert found is not None
    assert found.fault is not None
    assert found.calls == ()
    assert kind is None or (found.fault.kind, found.fault.tool) == (kind, tool)


@pytest.mark.parametrize("text", CASES["text"])
def test_talk_about_calls_is_text(text: str) -> None:
    assert read(text) is None


@pytest.mark.parametrize("text", CASES["not_calls"])
def test_nothing_doubtful_becomes_a_call(text: str) -> None:
    found = read(text)
    assert found is None or not found.calls


@pytest.mark.parametrize("lead", CASES["everyday"])
@pytest.mark.parametrize("written", [HERMES, QWEN, INVOKE, f"{HERMES}\n{QWEN}"])
def test_everyday_words_before_a_call_change_nothing(lead: str, written: str) -> None:
    for between in ("\n", "\n\n"):
        assert calls_in(f"{lead}{between}{written}\n \n")[0] == READ_A
        assert read(f"{lead}{between}{written}\n\nThat is how it is written.") is None
        assert read(f"{lead}{between}```\n{written}\n```\nThat is it.") is None
        assert read(f"{lead}{between}`{written.replace(chr(10), '')}` is the form.") is None


@pytest.mark.parametrize("lead", CASES["examples"])
@pytest.mark.parametrize("written", [HERMES, QWEN, INVOKE, f"```json\n{FAMILIES['hermes'][12:-13]}\n```"])
def test_an_example_is_text(lead: str, written: str) -> None:
    assert read(f"{lead}\n\n{written}") is None


def test_json_without_a_tag_is_a_call_behind_a_sentence_that_announces_it() -> None:
    written = '{"name": "Read", "arguments": {"file_path": "/a"}}'
    for text in (written, f"```json\n{written}\n```"):
        assert calls_in(f"The test fails. I'll read the file.\n\n{text}") == [READ_A]
        assert read(f"The client sent this line.\n\n{text}") is None


@pytest.mark.parametrize("text", ECHOES)
def test_an_answer_that_ends_in_the_rules_for_tool_use_is_broken(text: str) -> None:
    found = read(text)
    assert found is not None
    assert found.fault is not None
    assert found.fault.kind == "supplement_echo"
    assert read(f"{text}\n\nThat is what the prompt says.") is None
    assert not text.startswith("<") or read(f"The prompt says:\n\n{text}") is None


def test_the_analysis_of_harmony_is_hidden() -> None:
    thought = "<|channel|>analysis<|message|>The user wants a file.<|end|>"
    assert calls_in(f"{thought}{FAMILIES['harmony']}") == [READ_A]
    found = read(f"{thought}<|start|>assistant<|channel|>final<|message|>It is done.<|return|>")
    assert found is not None
    assert (found.start, found.text, found.calls) == (0, "It is done.", ())


BAD = [text for _, _, text in CASES["broken"]]


@pytest.mark.parametrize("text", [*BAD, *FAMILIES.values()])
def test_fences_and_indented_code_are_quotations(text: str) -> None:
    for before in ("", "Look:\n\n", "Look:\n"):
        assert read(f"{before}~~~~\n{text}\n~~~~\nSo much for that.") is None
    quoted = "\n".join("    " + line for line in text.split("\n"))
    assert read("Look:\n\n" + quoted) is None


@pytest.mark.parametrize("text", [*BAD, *FAMILIES.values()])
def test_nothing_is_a_call_of_a_tool_that_was_not_offered(text: str) -> None:
    found = written_at_end(f"Look here.\n{text}", {})
    assert found is None or (found.calls == () and found.fault is not None and found.fault.tool is None)


def test_a_cut_off_opening_tag_is_no_fault_and_a_fault_says_nothing_of_the_text() -> None:
    assert read("Reading.\n<tool_call>", is_truncated=True) is None
    assert read(HERMES[:-30], is_truncated=True) is not None
    unknown = read('<tool_call>\n{"name": "hunter2", "arguments": {}}')
    assert unknown is not None
    assert unknown.fault is not None
    assert "hunter2" not in str(unknown.fault)


def hermes(name: str, value: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': value})}\n</tool_call>"


def qwen(name: str, value: dict[str, Any]) -> str:
    parameters = "".join(f"<parameter={key}>\n{_written(entry)}\n</parameter>\n" for key, entry in value.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def invoke(name: str, value: dict[str, Any]) -> str:
    parameters = "".join(f'<parameter name="{key}">{_written(entry)}</parameter>\n' for key, entry in value.items())
    return f'<function_calls>\n<invoke name="{name}">\n{parameters}</invoke>\n</function_calls>'


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


FORMS = [hermes, qwen, invoke]


@pytest.mark.parametrize("form", FORMS)
def test_code_in_an_argument_stays_as_it_is(form: Any) -> None:
    code = "```\n<tool_call>\n" + 'if a:\n    print("</x>")\n' + "  </parameter> is a tag\n```python"
    value = {"file_path": "/a.py", "content": code}
    assert calls_in(form("Write", value)) == [("Write", value)]


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
        assert calls_in(form("Grep", value)) == [("Grep", value)]


_WORDS = st.text(st.characters(exclude_characters="<>\r"), max_size=30)


@given(content=_WORDS, path=_WORDS, form=st.sampled_from(FORMS))
def test_any_content_survives_the_way_through_text(content: str, path: str, form: Any) -> None:
    value = {"file_path": path, "content": content}
    assert calls_in(form("Write", value)) == [("Write", value)]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("unit", ["<tool_call>{\n", "a `\n</parameter>\n`", "`\n<tool_call>{\n`", "<parameter=a> x\n`"])
def test_reading_a_long_text_ends(unit: str) -> None:
    read(unit * 20_000)
