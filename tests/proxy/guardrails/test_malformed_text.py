"""Calls left unparsed in the text: what is one, and the talk about calls that is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.proxy.guardrails.dialects import DIALECTS, OPENS, Dialect
from specdash.proxy.guardrails.malformed import inspect
from specdash.proxy.guardrails.tools import RULES, text_of
from support.offered_tools import TOOLS

HERMES = '<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>'
QWEN = "<function=Read>\n<parameter=file_path>\n/a\n</parameter>\n</function>"
INVOKE = '<invoke name="Read">\n<parameter name="file_path">/a</parameter>\n</invoke>'

FAULTS: dict[tuple[str, str | None], list[str]] = {
    ("unparsed_call", "Read"): [
        HERMES,
        HERMES.replace("\n", ""),
        "I will read it.\n\n" + HERMES,
        "I will read it.\n   " + HERMES,
        HERMES.removesuffix("</tool_call>"),
        "<tool_call>\n{'name': 'Read', 'arguments': {}}",
        '<tool_call>\n{"name": "Read", "arguments": {"file_path": ',
        f"<tool_call>\n{QWEN}\n</tool_call>",
        "<tool_call>Read\n<arg_key>file_path</arg_key>\n<arg_value>/a</arg_value>\n</tool_call>",
        QWEN,
        QWEN + "\n</tool_call>",
        "<function=Read>",
        "<function=Read>\n<parameter=fi\n</parameter>\n</function>",
        '<function=Read>{"file_path": "/a"}}</function>',
        "Sure<|python_tag|>Read.call(file_path='/a')",
        "```tool_code\nfound = Read(file_path='/a')\nprint(found)\n```",
        '<|channel|>analysis<|message|>Read it<|end|><|start|>assistant to=functions.Read code{"file_path": "/a"}',
        '<function=Read>{"file_path": "/a"}</function>',
        INVOKE,
        f"<function_calls>\n{INVOKE}\n</function_calls>",
        INVOKE.replace("<", "<" + "antml:").replace("<" + "antml:/", "</" + "antml:"),
        'Text.\r\n<tool_call>\r\n{"name": "Read", "arguments": {}}\r\n',
        '<|tool_call|>{"name": "Read"}',
        "<|tool_call>call:Read{file_path:/a}<tool_call|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.Read:0<|tool_call_argument_begin|>{}",
        '[TOOL_CALLS][{"name": "Read", "arguments": {}}]',
        '[TOOL_CALLS]Read[ARGS]{"file_path": "/a"}',
        "```text\nfenced\n```\n" + HERMES,
        '<|python_tag|>Read(file_path="/a',
        "<tool_call>Read\n<arg_key>file_path</arg_key>\n<arg_value>/a",
        "<function=Read>\n<parameter=file_path>\n/a",
        "I take plan B. " + HERMES,
        "~200 lines read.\n" + HERMES,
        "```x``` says so.\n" + HERMES,
        '<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a}}\n</parameter>\n</tool_',
        "<function=Read>\n<parameter=file_path>\n/a\n</parameter>\nNow.\n</function>",
        "<function=Read>\n<parameter=file_path>\n/a\n</parameter>\n</invoke>\n</function>",
        '<function=Read>{"file_path": /a}</function>',
        '[TOOL_CALLS]Read[ARGS]{"file_path": /a}',
        "[TOOL_CALLS]Read[ARGS]",
        "<tool_call>Read\n",
        "<tool_call>Read\n<arg_key>file_path</arg_key>\n/a\n</tool_call>",
        '<|tool_call>call:Read{file_path:<|"|>/a',
        '<|python_tag|>Read("/a")',
        '<|python_tag|>Read(**{"file_path": "/a"})',
        "```tool_code\nfor path in paths:\n    Read(file_path=path)\n```",
    ],
    ("unparsed_call", None): [
        "Reading now.\n<tool_call>",
        "Reading now.\n<tool_call>\n\n",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>Read",
        'Reading now.\n<tool_call>\n{"arguments": {"file_path": "/a',
        "Look.\n<|start|>assistant<|channel|>commentary to=functions.Read <|constrain|>js",
        "```tool_code\nimport os\nprint(os.listdir())\n```",
    ],
    ("unparsed_call", "Ping"): [
        "<function=Ping>\n</function>",
        "<tool_call>Ping\n</tool_call>",
    ],
    ("orphan_tags", None): [
        "<parameter=file_path>\n/a\n</parameter>",
        "<parameter=file_path>/a</parameter>",
        "The file is fixed.\n</parameter>",
        "The file is fixed.\n</parameter>\n</function>\n</tool_call>",
        "</parameter></function></tool_call>",
        "```python\nx = 1\n```\n</parameter>",
    ],
    ("json_as_text", "Read"): [
        '{"name": "Read", "arguments": {"file_path": "/a"}}',
        '\n {"name": "Read", "input": {"file_path": "/a"}} \n',
        '{"parameters": {"file_path": "/a"}, "name": "Read"}',
        '{"name": "Read", "arguments": "{\\"file_path\\": \\"/a\\"}"}',
        '{"type": "function", "function": {"name": "Read", "arguments": {}}}',
        '{"type": "function", "name": "Read", "parameters": {}}',
        '{"function": "Read", "parameters": {"file_path": "/a"}}',
        '```json\n{"name": "Read", "arguments": {"file_path": "/a"}}\n```',
        '```\n{"name": "Read", "arguments": {"file_path": "/a"}}\n```\n',
        '{"name": "Read", "arguments": {"file_path": "/a"',
    ],
    ("unparsed_call", "Grep"): [
        '<tool_call>\n{"name": "Grep", "arguments": {"pattern": "\\d"}}\n</tool_call>',
    ],
    ("json_as_text", "Ping"): [
        '{"name": "Ping", "arguments": {"host": "a"}}',
    ],
    ("json_as_text", "Write"): [
        '{"name": "Write", "arguments": {"file_path": "/a", "content": ""}}',
    ],
    ("json_as_text", "Grep"): [
        '{"name": "Grep", "arguments": {"pattern": "\\d"}}',
    ],
}
MALFORMED = [text for texts in FAULTS.values() for text in texts]
ECHOES = [
    "<agentic-protocol>",
    "Done.\n</agentic-protocol>",
    text_of("clean"),
    "\n".join(RULES["legacy"][:2]),
    f"1. {RULES['clean'][0]}\n2. {RULES['clean'][1]}\n  ",
]

HEALTHY = [
    "",
    *ECHOES,
    "<tool_call>\n" * 3 + "and so on",
    "</tool_call>\n\nDone.",
    "A call is written like this:\n" + HERMES,
    "So ruft man das Werkzeug auf, ein Beispiel:\n\n" + QWEN,
    "Here is a call:\n\n" + HERMES + "\n\nThe parser takes it apart again.",
    HERMES + "\n\nThat is what the model printed.",
    INVOKE + "\nand so on",
    "The call of another client:\n" + HERMES.replace("Read", "get_weather"),
    'Call it so:\n<tool_call>\n{"name": "Read", "arguments": {...}}\n</tool_call>',
    "The file says so. </parameter> ends it.",
    "The parser missed " + HERMES.replace("\n", ""),
    "Done. All tests pass.",
    "word " * 4000,
    "Hermes models write `<tool_call>` before the JSON and `</tool_call>` after it.",
    "`<tool_call>` opens a call.\n`</parameter>` closes a parameter.",
    'The parser missed <tool_call>{"name": "Read"}</tool_call> in the middle of a line.',
    "<tool_call> is the tag that Hermes uses.",
    "<tool_call> — the tag of Hermes",
    "<function=<name>> begins a call.",
    "The file is fixed. </parameter>",
    '<tool_call> and </tool_call> enclose one JSON object {"name": "Read"}.',
    '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>',
    "<function=NAME> is how Qwen3-Coder begins a call.",
    "<parameter=KEY> holds one value and is closed by </parameter>.",
    '<invoke name="X"> begins a call in Claude\'s format.',
    "[TOOL_CALLS] is Mistral's token.",
    "<|tool_call|> is a special token.",
    "</parameter> was missing, so I added it.",
    "    " + HERMES.replace("\n", "\n    "),
    "\t</parameter>",
    f"```xml\n{HERMES}\n```",
    f"```\n{QWEN}\n```\nand\n~~~~\n{INVOKE}\n```\n</function>\n~~~~",
    f"1. Like so:\n\n   ```xml\n   {HERMES}\n   ```",
    f"```markdown\n{HERMES}",
    f"~~~ `x`\n{HERMES}",
    f"~~~~\n~~~\n{HERMES}",
    f"~~~\n~~~ more\n{HERMES}",
    '<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a}}\n</tool_call>\nThat one was broken.',
    '> <tool_call>\n> {"name": "Read"}\n> </tool_call>',
    "- <tool_call>\n- </tool_call>",
    "| tag | meaning |\n|---|---|\n| <tool_call> | begins a call |\n| </tool_call> | ends it |",
    "A span over lines: `the tag\n</parameter>\nis gone` now.",
    "<html>\n<body>\n<function>x</function>\n</body>\n</html>",
    '<job>\n<parameter name="depth">\n3\n</parameter>\n</job>',
    "The fixed file:\n<tool_call>\nname\n</tool_call>",
    '<tool_call>\n{"name": ["Read"], "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "Bob"}\n</tool_call>',
    '<tool_call>note\n{"a": 1}\n</tool_call>',
    "<tool_calls>\n[]\n</tool_calls>",
    "<function=Read>\n<description>reads a file</description>\n</function>",
    'assistant to=nobody {"a": 1}',
    "```tool_code\nx = 1\n```",
    "<|python_tag|>is Llama's token.",
    "<parameter=file_path> is\nwhat opens it.\n</parameter>",
    "Done.\n</tool_use>",
    '<|tools_prefix|>[{"get_weather": {"city": "Bonn"}}]<|tools_suffix|>',
    'Reading now.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bonn',
    "1. " + HERMES.replace("\n", ""),
    "<div>\n  <parameter>\n  </parameter>\n</div>",
    '{"name": "Bob", "arguments": {"age": 4}}',
    '{"name": "Read", "version": 1, "arguments": {}}',
    '{"name": "Read"}',
    '{"name": "Read", "arguments": [1]}',
    '{"name": "Read", "arguments": {"age": 4}}',
    '{"name": "Grep", "arguments": {"pattern": "\\d"}}\nThat is what the log holds.',
    '{"type": "function", "name": "get_weather", "arguments": {"city": "\\d"}}',
    '{"id": "\\d"}',
    " " * 70 + 'is what came:\n{"name": "Read", "arguments": {"file_path": "/a"}}',
    '{"files": ["a"], "name": "Read", "arguments": {}}',
    'Here it is:\n{"name": "Read", "arguments": {"file_path": "/a"}}',
    'Here it is:\n```json\n{"name": "Read", "arguments": {"file_path": "/a"}}\n```',
    '{"name": "Read", "arguments": {"file_path": "/a"}}\nThat is what the log holds.',
    '```json\n{"name": "Read", "arguments": {}}\n```\nThat is the format.',
    '[{"name": "Read"}]',
    RULES["clean"][0],
    "\n".join(f"I follow: {rule}" for rule in RULES["clean"]),
    "The `<agentic-protocol>` block is added to the system prompt.",
    "You must call a tool to make the fix. You must call a tool.",
    "[link](http://127.0.0.1) and [x] done\n[ ] open\n<https://127.0.0.1>",
]


@pytest.mark.parametrize(("kind", "tool", "text"), [(*key, text) for key, texts in FAULTS.items() for text in texts])
def test_a_call_left_in_the_text_is_malformed(kind: str, tool: str | None, text: str) -> None:
    fault = inspect(text, [], TOOLS)
    assert fault is not None
    assert (fault.kind, fault.tool) == (kind, tool)


@pytest.mark.parametrize("text", ECHOES)
def test_the_rules_of_the_supplement_are_an_echo_only_where_they_were_given(text: str) -> None:
    assert inspect(text, [], TOOLS) is None
    fault = inspect(text, [], TOOLS, rules=True)
    assert fault is not None
    assert fault.kind == "supplement_echo"
    assert inspect("Done.\n<agentic-proto", [], TOOLS, rules=True) is None


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda item: item.name)
@pytest.mark.parametrize("lead", ["", "I will read it.\n\n", "I will read it. ", "Ich lese die Datei:\n"])
def test_every_dialect_is_malformed_at_the_end_of_an_answer_and_prose_in_the_middle(
    dialect: Dialect, lead: str
) -> None:
    fault = inspect(lead + dialect.sample, [], TOOLS)
    assert fault is not None
    assert fault.tool == "Read"
    for more in ("\n\nThat is how it begins.", " is what it wrote", "\n- and more"):
        assert inspect(lead + dialect.sample + more, [], TOOLS) is None


EVERYDAY = [
    "The format is set there.",
    "The date format is wrong in utils.py.",
    "Fixing the token refresh now.",
    "The syntax error is on line 3.",
    "I need to look at the prompt handling.",
    "The template has two tags; an example is in docs.",
    "It looks like the markup is broken.",
    "Such as it is, the notation works.",
    "The wire format of the prompt template:",
    "Here is what the syntax needs:",
    "There are examples like this in the repo.",
    "The tag is emitted twice",
    "Das Format steht dort.",
    "El formato es este:",
    "Формат другой.",
    "格式不对。",
]


@pytest.mark.parametrize("lead", EVERYDAY)
@pytest.mark.parametrize("written", [HERMES, QWEN, INVOKE, f"{HERMES}\n{QWEN}"])
def test_a_complete_call_at_the_end_is_a_call_whatever_the_words_before_it(lead: str, written: str) -> None:
    for between in ("\n", "\n\n"):
        fault = inspect(f"{lead}{between}{written}\n \n", [], TOOLS)
        assert fault is not None
        assert (fault.kind, fault.tool) == ("unparsed_call", "Read")
        assert inspect(f"{lead}{between}{written}\n\nThat is how it is written.", [], TOOLS) is None
        assert inspect(f"{lead}{between}```\n{written}\n```\nThat is it.", [], TOOLS) is None
        assert inspect(f"{lead}{between}`{written.replace(chr(10), '')}` is the form.", [], TOOLS) is None


@pytest.mark.parametrize("lead", ["The format is set there.", "Fixing the token refresh now."])
def test_everyday_words_do_not_hide_a_broken_call(lead: str) -> None:
    fault = inspect(f'{lead}\n<tool_call>\n{{"name": "Read", "arguments": {{"file_path": ', [], TOOLS)
    assert fault is not None
    assert fault.tool == "Read"


@pytest.mark.parametrize("text", HEALTHY)
def test_talk_about_calls_is_healthy(text: str) -> None:
    assert inspect(text, [], TOOLS) is None


@pytest.mark.parametrize("text", MALFORMED)
def test_nothing_is_malformed_without_tools(text: str) -> None:
    assert inspect(text, [], ()) is None


@pytest.mark.parametrize("text", MALFORMED)
@pytest.mark.parametrize("before", ["", "Look:\n\n", "Look:\n"])
def test_a_fence_around_it_makes_it_a_quotation(text: str, before: str) -> None:
    assert inspect(f"{before}~~~~\n{text}\n~~~~\nSo much for that.", [], TOOLS) is None


@pytest.mark.parametrize("text", MALFORMED)
def test_indented_code_is_a_quotation(text: str) -> None:
    quoted = "\n".join("    " + line for line in text.split("\n"))
    assert inspect("Look:\n\n" + quoted, [], TOOLS) is None


def test_a_cut_off_opening_tag_is_no_fault() -> None:
    assert inspect("Reading.\n<tool_call>", [], TOOLS, truncated=True) is None
    assert inspect(HERMES[:-30], [], TOOLS, truncated=True) is not None


def test_the_tool_meant_is_named_when_it_was_offered() -> None:
    for text in (HERMES, QWEN, INVOKE, '{"name": "Read", "arguments": {}}'):
        fault = inspect(text, [], TOOLS)
        assert fault is not None
        assert fault.tool == "Read"
        assert fault.detail.startswith("Read: ")
    unknown = inspect('<tool_call>\n{"name": "hunter2", "arguments": {}}', [], TOOLS)
    assert unknown is not None
    assert unknown.tool is None
    assert unknown.detail.startswith("a tool: ")
    assert "hunter2" not in unknown.detail


_PLAIN_LINE = st.text(st.characters(exclude_characters="\n`~"), max_size=40).filter(
    lambda line: not line.lstrip().startswith(("<", "[", "{")) and not any(opening in line for opening in OPENS)
)


@given(st.lists(_PLAIN_LINE, max_size=8))
def test_a_text_whose_lines_begin_with_no_marker_is_healthy(lines: list[str]) -> None:
    assert inspect("\n".join(lines), [], TOOLS) is None


_PIECES = st.sampled_from(
    ["<tool_call>", "</tool_call>", '{"name": "Read"', "<function=Read>", "</parameter>", "\n", " "]
)


@given(st.lists(_PIECES | st.text(st.characters(exclude_characters="~"), max_size=5), max_size=12).map("".join))
def test_any_payload_in_a_fence_is_healthy(payload: str) -> None:
    assert inspect(f"Quoted:\n~~~\n{payload}\n~~~\n", [], TOOLS) is None


def test_a_closing_tag_behind_a_long_paragraph_of_code_spans_is_found() -> None:
    for words in ("`a` b", "some `code` here"):
        assert inspect(f"{words}\n" * 2000 + "</parameter>\n", [], TOOLS) is not None


@pytest.mark.timeout(20)
@pytest.mark.parametrize("unit", ["<tool_call>{\n", "a `\n</parameter>\n`", "`\n<tool_call>{\n`", "<parameter=a> x\n`"])
def test_inspection_of_a_long_text_ends(unit: str) -> None:
    inspect(unit * 20_000, [], TOOLS)
