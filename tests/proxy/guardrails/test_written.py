"""Calls that a model wrote as text: what is one, what is a broken one, and what is text."""
# ruff: noqa: E501 - a row of a table is one answer

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.proxy.guardrails.tools import RULES, text_of
from specdash.proxy.guardrails.written import Written, written_at_end
from support.offered_tools import TOOLS

HERMES = '<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>'
QWEN = "<function=Read>\n<parameter=file_path>\n/a\n</parameter>\n</function>"
INVOKE = '<invoke name="Read">\n<parameter name="file_path">/a</parameter>\n</invoke>'
READ_A = ("Read", {"file_path": "/a"})
OFFERED = {tool.name: tool for tool in TOOLS}

FAMILIES: dict[str, str] = {
    "hermes": '<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>',
    "qwen3-coder": "<tool_call>\n<function=Read>\n<parameter=file_path>\n/a\n</parameter>\n</function>\n</tool_call>",
    "llama-function": '<function=Read>{"file_path": "/a"}</function>',
    "llama-python-tag": '<|python_tag|>{"name": "Read", "parameters": {"file_path": "/a"}}',
    "claude": '<function_calls>\n<invoke name="Read">\n<parameter name="file_path">/a</parameter>\n</invoke>\n</function_calls>',
    "minimax": '<minimax:tool_call>\n<invoke name="Read">\n<parameter name="file_path">/a</parameter>\n</invoke>\n</minimax:tool_call>',
    "tool-calls": '<tool_calls>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_calls>',
    "function-call": '<function_call>{"name": "Read", "arguments": {"file_path": "/a"}}</function_call>',
    "seed": "<seed:tool_call>\n<function=Read>\n<parameter=file_path>\n/a\n</parameter>\n</function>\n</seed:tool_call>",
    "nemotron": '<TOOLCALL>[{"name": "Read", "arguments": {"file_path": "/a"}}]</TOOLCALL>',
    "glm": "<tool_call>Read\n<arg_key>file_path</arg_key>\n<arg_value>/a</arg_value>\n</tool_call>",
    "kimi": '<|tool_calls_section_begin|><|tool_call_begin|>functions.Read:0<|tool_call_argument_begin|>{"file_path": "/a"}<|tool_call_end|><|tool_calls_section_end|>',
    "deepseek": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>Read\n```json\n{"file_path": "/a"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek-dsml": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="Read">\n<｜DSML｜parameter name="file_path" string="true">/a</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
    "mistral": '[TOOL_CALLS]Read[ARGS]{"file_path": "/a"}',
    "harmony": '<|start|>assistant<|channel|>commentary to=functions.Read <|constrain|>json<|message|>{"file_path": "/a"}<|call|>',
    "gemma-tool-code": '```tool_code\nprint(Read(file_path="/a"))\n```',
    "fenced": '```tool_call\n{"name": "Read", "arguments": {"file_path": "/a"}}\n```',
    "gemma-4": '<|tool_call>call:Read{file_path:<|"|>/a<|"|>}<tool_call|>',
    "phi": '<|tool_call|>[{"name": "Read", "arguments": {"file_path": "/a"}}]<|/tool_call|>',
    "lfm2": '<|tool_call_start|>[Read(file_path="/a")]<|tool_call_end|>',
    "command": '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "Read", "parameters": {"file_path": "/a"}}]<|END_ACTION|>',
    "apertus": '<|tools_prefix|>[{"Read": {"file_path": "/a"}}]<|tools_suffix|>',
    "internlm": '<|action_start|><|plugin|>{"name": "Read", "parameters": {"file_path": "/a"}}<|action_end|>',
    "firefunction": 'functools[{"name": "Read", "arguments": {"file_path": "/a"}}]',
}
"""Every form, calling Read with /a. Sources: the chat templates and model cards."""
CALLS: list[tuple[str, str, list[tuple[str, dict[str, Any]]]]] = [
    (
        '<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>',
        "",
        [("Read", {"file_path": "/a"})],
    ),
    (
        '<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>\n<tool_call>\n{"name": "Ping", "arguments": {}}\n</tool_call>',
        "",
        [("Read", {"file_path": "/a"}), ("Ping", {})],
    ),
    ('<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}', "", [("Read", {"file_path": "/a"})]),
    (
        'I read.\n\n<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>\n',
        "I read.\n\n",
        [("Read", {"file_path": "/a"})],
    ),
    (
        '<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>\n</parameter>',
        "",
        [("Read", {"file_path": "/a"})],
    ),
    (
        '</parameter>\n<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>',
        "",
        [("Read", {"file_path": "/a"})],
    ),
    ('[TOOL_CALLS]Read[ARGS]{"file_path": "/a"}', "", [("Read", {"file_path": "/a"})]),
    (
        "<tool_call>\n<function=Read>\n<parameter=file_path>\n/a\n</parameter>\n</function>\n</tool_call>",
        "",
        [("Read", {"file_path": "/a"})],
    ),
    (
        "<function=Read>\n<parameter=file_path>\n/a\n</parameter>\n</function>\n</tool_call>",
        "",
        [("Read", {"file_path": "/a"})],
    ),
    ('<function=Read>{"file_path": "/a"}</function>', "", [("Read", {"file_path": "/a"})]),
    ('<function=Read>{"file_path": "/a"}}', "", [("Read", {"file_path": "/a"})]),
    ("<function=Ping>\n</function>", "", [("Ping", {})]),
    (
        '<function_calls>\n<invoke name="Read">\n<parameter name="file_path">/a</parameter>\n</invoke>\n</function_calls>',
        "",
        [("Read", {"file_path": "/a"})],
    ),
    ('<invoke name="Read"><parameter name="file_path">/a</parameter></invoke>', "", [("Read", {"file_path": "/a"})]),
    (
        '<antml:function_calls>\n<antml:invoke name="Read">\n<antml:parameter name="file_path">/a</antml:parameter>\n</antml:invoke>\n</antml:function_calls>',
        "",
        [("Read", {"file_path": "/a"})],
    ),
    ('[TOOL_CALLS][{"name": "Read", "arguments": {"file_path": "/a"}}]', "", [("Read", {"file_path": "/a"})]),
    ('\n {"name": "Read", "arguments": {"file_path": "/a"}} \n', "", [("Read", {"file_path": "/a"})]),
    ('```json\n{"name": "Read", "parameters": {"file_path": "/a"}}\n```\n', "", [("Read", {"file_path": "/a"})]),
    (
        '{"name": "Read", "input": {"file_path": "/a"}}\n</tool_call>\n<tool_call>\n{"name": "Ping", "arguments": {}}\n</tool_call>',
        "",
        [("Read", {"file_path": "/a"}), ("Ping", {})],
    ),
    (
        '```tool_call\n{"name": "Read", "arguments": {"file_path": "/a"}}\n```\n```tool_call\n{"name": "Read", "arguments": {"file_path": "/a"}}\n```\n',
        "",
        [("Read", {"file_path": "/a"}), ("Read", {"file_path": "/a"})],
    ),
    ('<tool_call>\n{"function": {"name": "Ping", "arguments": {}}}\n</tool_call>', "", [("Ping", {})]),
    ("<tool_call>Ping\n</tool_call>", "", [("Ping", {})]),
    (
        '<tool_calls>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n{"name": "Ping", "arguments": {}}\n</tool_calls>',
        "",
        [("Read", {"file_path": "/a"}), ("Ping", {})],
    ),
    (
        '<tool_call>{"name": "Read", "arguments": {"file_path": "/a"}}, {"name": "Ping", "arguments": {}}</tool_call>',
        "",
        [("Read", {"file_path": "/a"}), ("Ping", {})],
    ),
    (
        '<tool_call>\n```json\n{"name": "Read", "arguments": {"file_path": "/a"}}\n```\n</tool_call>',
        "",
        [("Read", {"file_path": "/a"})],
    ),
    ('<tool_call>{"name": "Read", "arguments": {"file_path": "/a"}}}</tool_call>', "", [("Read", {"file_path": "/a"})]),
    (
        '\n<invoke name="Read">\n<parameter name="file_path">/a</parameter>\n</invoke>\n</minimax:tool_call>',
        "",
        [("Read", {"file_path": "/a"})],
    ),
    ('commentary to=Read json{"file_path": "/a"}', "", [("Read", {"file_path": "/a"})]),
    ('[TOOL_CALLS]Read[CALL_ID]abc123[ARGS]{"file_path": "/a"}', "", [("Read", {"file_path": "/a"})]),
    ('<|python_tag|>[Read(file_path="/a"), Ping()]', "", [("Read", {"file_path": "/a"}), ("Ping", {})]),
    (
        "```tool_code\nfound = await default_api.Read(file_path='/a')\nprint(found)\n```",
        "",
        [("Read", {"file_path": "/a"})],
    ),
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
        '<｜DSML｜invoke name="Grep"><｜DSML｜parameter name="pattern" string="true">7</｜DSML｜parameter>\n<｜DSML｜parameter name="anything" string="false">7</｜DSML｜parameter></｜DSML｜invoke>',
        "",
        [("Grep", {"pattern": "7", "anything": 7})],
    ),
    ('<tool_call>\n{"name": "Read", "arguments": {"file_path": ""}}\n</tool_call>', "", [("Read", {"file_path": ""})]),
    ('<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a\n"}}', "", [("Read", {"file_path": "/a\n"})]),
]
BROKEN: dict[tuple[str, str | None], list[str]] = {
    ("unparsed_call", "Read"): [
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>Read",
        "Look.\n<|start|>assistant<|channel|>commentary to=functions.Read <|constrain|>js",
        "<tool_call>\n{'name': 'Read', 'arguments': {}}",
        '<tool_call>\n{"name": "Read", "arguments": {"file_path": ',
        "<function=Read>",
        "<function=Read>\n<parameter=fi\n</parameter>\n</function>",
        'Text.\r\n<tool_call>\r\n{"name": "Read", "arguments": {}}\r\n',
        '<|tool_call|>{"name": "Read"}',
        "<|tool_call>call:Read{file_path:/a}<tool_call|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.Read:0<|tool_call_argument_begin|>{}",
        '[TOOL_CALLS][{"name": "Read", "arguments": {}}]',
        '<|python_tag|>Read(file_path="/a',
        "<tool_call>Read\n<arg_key>file_path</arg_key>\n<arg_value>/a",
        "<function=Read>\n<parameter=file_path>\n/a",
        '<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a}}\n</parameter>\n</tool_',
        "<function=Read>\n<parameter=file_path>\n/a\n</parameter>\nNow.\n</function>",
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
        'Reading now.\n<tool_call>\n{"arguments": {"file_path": "/a',
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
        '{"type": "function", "function": {"name": "Read", "arguments": {}}}',
        '{"type": "function", "name": "Read", "parameters": {}}',
        '{"name": "Read", "arguments": {"file_path": "/a"',
    ],
    ("unparsed_call", "Grep"): [
        '<tool_call>\n{"name": "Grep", "arguments": {"pattern": "\\d"}}\n</tool_call>',
    ],
    ("json_as_text", "Grep"): [
        '{"name": "Grep", "arguments": {"pattern": "\\d"}}',
    ],
}
TEXT = [
    "",
    "<tool_call>\n<tool_call>\n<tool_call>\nand so on",
    "</tool_call>\n\nDone.",
    'A call is written like this:\n<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>',
    "So ruft man das Werkzeug auf, ein Beispiel:\n\n<function=Read>\n<parameter=file_path>\n/a\n</parameter>\n</function>",
    'Here is a call:\n\n<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>\n\nThe parser takes it apart again.',
    '<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>\n\nThat is what the model printed.',
    '<invoke name="Read">\n<parameter name="file_path">/a</parameter>\n</invoke>\nand so on',
    'The call of another client:\n<tool_call>\n{"name": "get_weather", "arguments": {"file_path": "/a"}}\n</tool_call>',
    'Call it so:\n<tool_call>\n{"name": "Read", "arguments": {...}}\n</tool_call>',
    "The file says so. </parameter> ends it.",
    'The parser missed <tool_call>{"name": "Read", "arguments": {"file_path": "/a"}}</tool_call>',
    "Done. All tests pass.",
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
    '    <tool_call>\n    {"name": "Read", "arguments": {"file_path": "/a"}}\n    </tool_call>',
    "\t</parameter>",
    '```xml\n<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>\n```',
    '```\n<function=Read>\n<parameter=file_path>\n/a\n</parameter>\n</function>\n```\nand\n~~~~\n<invoke name="Read">\n<parameter name="file_path">/a</parameter>\n</invoke>\n```\n</function>\n~~~~',
    '1. Like so:\n\n   ```xml\n   <tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>\n   ```',
    '```markdown\n<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>',
    '~~~ `x`\n<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>',
    '~~~~\n~~~\n<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>',
    '~~~\n~~~ more\n<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>',
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
    '1. <tool_call>{"name": "Read", "arguments": {"file_path": "/a"}}</tool_call>',
    "<div>\n  <parameter>\n  </parameter>\n</div>",
    '{"name": "Bob", "arguments": {"age": 4}}',
    '{"name": "Read", "version": 1, "arguments": {}}',
    '{"name": "Read"}',
    '{"name": "Read", "arguments": [1]}',
    '{"name": "Read", "arguments": {"age": 4}}',
    '{"name": "Grep", "arguments": {"pattern": "\\d"}}\nThat is what the log holds.',
    '{"type": "function", "name": "get_weather", "arguments": {"city": "\\d"}}',
    '{"id": "\\d"}',
    '                                                                      is what came:\n{"name": "Read", "arguments": {"file_path": "/a"}}',
    '{"files": ["a"], "name": "Read", "arguments": {}}',
    'Here it is:\n{"name": "Read", "arguments": {"file_path": "/a"}}',
    'Here it is:\n```json\n{"name": "Read", "arguments": {"file_path": "/a"}}\n```',
    '{"name": "Read", "arguments": {"file_path": "/a"}}\nThat is what the log holds.',
    '```json\n{"name": "Read", "arguments": {}}\n```\nThat is the format.',
    '[{"name": "Read"}]',
    "When a step needs a tool, emit exactly one well-formed call for it, in the tool call format you were given.",
    "The `<agentic-protocol>` block is added to the system prompt.",
    "You must call a tool to make the fix. You must call a tool.",
    "[link](http://127.0.0.1) and [x] done\n[ ] open\n<https://127.0.0.1>",
]
REFUSED = [
    "Done.",
    "`<tool_call>`",
    '```\n<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>\n```',
    '<tool_call>\n{"name": "Delete", "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "Read", "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "Read", "arguments": {"file_path": 1}}\n</tool_call>',
    '<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>\n<tool_call>\n{"name": "Read", "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>\nThen I go on.',
    '<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>\n<tool_call>',
    '<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>\n<tool_',
    '[TOOL_CALLS][{"name": "Ping", "arguments": {}}, 3]',
    '<|python_tag|>Grep(pattern="a", anything={1, 2})',
    "<|python_tag|>Ping(host=...)",
    '<tool_call>{"name": "Grep", "arguments": {"pattern": "x", "anything": NaN}}</tool_call>',
    '<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}} and more',
    "<function=Read>\n<parameter=file_path>\n/a\n</function>",
    "<function=Read>\n<parameter=file_path>\n/a\n</parameter>",
    "<function=Read>\n<parameter=file_path>\n/a\n</parameter>\n<parameter=file_path>\n/b\n</parameter>\n</function>",
    "<function=Read>\n<parameter=file_path>/a</parameter>\n<parameter=limit>\nmany\n</parameter>\n</function>",
    "</agentic-protocol>",
    '{"name": "Bob", "arguments": {}}',
]
MORE_CALLS = [
    'Let me check that file.\n\n<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>\n',
    '<think>\nI should read.\n</think>\n\n<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>',
    'I\'ll look at it now:\n\n```json\n{"name": "Read", "arguments": {"file_path": "/a"}}\n```',
    'I\'ll look at it now:\n\n```\n{"name": "Read", "arguments": {"file_path": "/a"}}\n```',
    'Sure!\n\n```json\n[{"name": "Read", "arguments": {"file_path": "/a"}}]\n```',
    "[Read(file_path='/a')]",
    'I\'ll read the file.\n[Read(file_path="/a")]',
    "[Read(file_path='/a'), Ping()]",
    '<|python_tag|>{"type": "function", "name": "Read", "parameters": {"file_path": "/a"}}',
    '<|tool_call|>{"name": "Read", "arguments": {"file_path": "/a"}}<|/tool_call|>',
    '[TOOL_CALLS] [{"name": "Read", "arguments": {"file_path": "/a"}}]',
    '[TOOL_CALLS]Read{"file_path": "/a"}',
    "<function=Read>\n<parameter=file_path>/a</parameter>\n</function>\n</tool_call>",
    'Okay.\n<function=Read>{"file_path": "/a"}</function>',
    '<function_calls><invoke name="Read"><parameter name="file_path">/a</parameter></invoke></function_calls>',
    "<tool_call>Read\n<arg_key>file_path</arg_key>\n<arg_value>/a</arg_value>\n</tool_call>",
    "<tool_call>Read<arg_key>file_path</arg_key><arg_value>/a</arg_value></tool_call>",
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>Read<｜tool▁sep｜>{"file_path": "/a"}<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>',
    '<|channel|>commentary to=functions.Read <|constrain|>json<|message|>{"file_path": "/a"}',
    '<|channel|>analysis<|message|>Need file<|end|><|start|>assistant<|channel|>commentary to=functions.Read <|constrain|>json<|message|>{"file_path":"/a"}<|call|>',
    '<|start|>assistant<|channel|>analysis to=functions.Read code<|message|>{"file_path":"/a"}<|call|>',
    'The token is wrong.\n<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call><|im_end|>',
    'Die Vorlage ist falsch, ich lese die Datei.\n<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>',
    '<tools>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tools>',
    '<tool_call>{"name": "Read", "arguments": "{\\"file_path\\": \\"/a\\"}"}</tool_call>',
    '<tool_call>\n{"function": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>',
    '<tool_call>\n{"tool": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>',
    '<tool_call>\n{"name": "Read", "args": {"file_path": "/a"}}\n</tool_call>',
    '<tool_call>\n{"arguments": {"file_path": "/a"}, "name": "Read"}\n</tool_call>',
    '<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>\n</tool_call>',
    '**Reading the file**\n\n<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>',
    '<tool_use>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_use>',
    '<function_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</function_call>',
    '<invoke name="Read">\n<parameter name="file_path">/a</parameter>\n</invoke>\n</function_calls>',
    'Step 3: read it.\n<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>',
    'Here are the results of the tests: 3 failed.\n<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>',
    'For example the parser fails on tags.\n<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>',
]
"""Each calls Read with /a."""
MORE_BROKEN = [
    '<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}\n</tool_call>',
    '<tool_call>\n{"name": "Read", "arguments": {file_path: "/a"}}\n</tool_call>',
    'Let me look.\n<tool_call>\n{"name": "Read"',
    '<tool_call>\n{"name": "Write", "arguments": {"file_path": "/a", "content": "x = "1""}}\n</tool_call>',
    "<function=Read>\n<parameter=file_path>\n/a",
    "<function=Write>\n<parameter=file_path>/a</parameter>\n</function>\n</tool_call>",
    '<tool_call>\n{"name": "Read", "arguments": {"path": "/a"}}\n</tool_call>',
    "I fixed it.\n</parameter>\n</function>",
    "All done.</parameter></function></tool_call>",
    "Done.\n\n</tool_call>",
    "Done.\n</invoke>\n</function_calls>",
    "Everything passes.\n\nYou must call a tool whenever the task needs something. Do not summarize the problem and stop.",
    "[Read(file_path=",
    "<|python_tag|>Read(",
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>Read\n```json\n{"file_path": ',
    'commentary to=functions.Read json{"file_path": ',
    "<tool_call>Read\n<arg_key>file_path</arg_key>\n<arg_value>/a",
    '<tool_call>\n{"name": "read", "arguments": {"file_path": "/a"}}\n</tool_call>',
    '[TOOL_CALLS][{"name": "Read", "arguments": {"file_path": "/a"}',
    'Reading.\n\n<invoke name="Read">\n<parameter name="file_path">/a',
    'Let me see:\n\n```json\n{"name": "Read", "arguments": {"file_path": "/a"',
]
MORE_TEXT = [
    "Use `<tool_call>` to open a call. The closing tag is `</tool_call>`.",
    'The template emits:\n\n    <tool_call>\n    {"name": ...}\n    </tool_call>\n\nwhich is then parsed.',
    "<details>\n<summary>Log</summary>\n\nok\n</details>",
    "```python\nprint('<tool_call>')\n```\nThat prints the tag.",
    'Here is an example of a call:\n\n<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>',
    'Example:\n<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>',
    "An example of the format:\n\n<function=Read>\n<parameter=file_path>\n/a\n</parameter>\n</function>",
    'Ein Beispiel:\n\n<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>',
    'Par exemple :\n\n<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>',
    '例如：\n\n<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>',
    "[1] https://example.org\n[2] https://example.com",
    "[x] done\n[ ] open",
    '{"status": "ok", "items": [1, 2]}',
    '{"name": "Alice", "age": 3}',
    '```json\n{"name": "demo", "version": "1.0"}\n```',
    '```json\n{"name": "Read", "description": "reads a file"}\n```',
    'The schema of the tool:\n```json\n{"name": "Read", "parameters": {"type": "object"}}\n```',
    'Call it as Read(file_path="/a").',
    "In Python:\n\n[f(x) for x in xs]",
    "<function>\n  <name>f</name>\n</function>",
    '<parameter name="x">1</parameter> is XML.',
    "The tags are:\n</parameter>\n</function>",
    "It ended with </tool_call>.",
    "- to=functions.Read is the recipient",
    "to=functions.X means the recipient in harmony.",
    "<|im_start|> opens a turn and <|im_end|> closes it.",
    'A tool call looks like this:\n\n<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>\n\nIt is closed by the tag.',
    'The request failed with this body:\n```json\n{"name": "Read", "arguments": {"file_path": "/a"}}\n```',
    "The rules say: you must call a tool. I did.",
    "Commentary to the change: it is small.\ncommentary to follow.",
    '<tool_call>\n{"name": "<name>", "arguments": {}}\n</tool_call>',
    'Replace X:\n<tool_call>\n{"name": "X", "arguments": {"a": 1}}\n</tool_call>',
    "analysis to= is a header.",
    'The XML:\n<invoke name="Build">\n<parameter name="x">1</parameter>\n</invoke>',
    'That\'s how models like Hermes write a call:\n\n<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>',
    'For reference, the raw output was:\n\n```\n<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>\n```',
    "You could write\n\n> <tool_call>\n\nthere.",
]
ECHOES = [
    "Done.\n</agentic-protocol>",
    "I have no more to do.\n" + text_of("clean"),
    text_of("legacy"),
    "\n".join(RULES["legacy"][:2]),
    f"1. {RULES['clean'][0]}\n2. {RULES['clean'][1]}\n  ",
    "The tests fail. You must call a tool to make the fix. Do not summarize the issue and stop.",
]
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
    "Let me read the example first:",
]
EXAMPLES = [
    "Here is an example of a call:",
    "Here is an example of a call.",
    "This is an example:",
    "A tool call looks like this:",
    "For instance:",
    "The format of a tool call is this:",
    "The syntax of Qwen3-Coder:",
    "Ein Beispiel für einen Aufruf:",
    "Por ejemplo:",
    "Voici un exemple :",
    "Ecco un esempio:",
    "Например:",
    "Hermes形式の例:",
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


@pytest.mark.parametrize(("text", "rest", "calls"), CALLS)
def test_a_complete_call_is_one(text: str, rest: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    assert calls_in(text) == calls
    found = read(text)
    assert found is not None
    assert text[: found.start].strip() == rest.strip()


@pytest.mark.parametrize("text", MORE_CALLS)
def test_calls_as_models_write_them(text: str) -> None:
    assert calls_in(text)[0] == READ_A


@pytest.mark.parametrize("text", MORE_BROKEN)
def test_faults_as_models_write_them(text: str) -> None:
    found = read(text)
    assert found is not None
    assert found.fault is not None


@pytest.mark.parametrize(("kind", "tool", "text"), [(*key, text) for key, texts in BROKEN.items() for text in texts])
def test_one_that_cannot_be_read_is_a_fault(kind: str, tool: str | None, text: str) -> None:
    found = read(text)
    assert found is not None
    assert found.fault is not None
    assert (found.fault.kind, found.fault.tool, found.calls) == (kind, tool, ())


@pytest.mark.parametrize("text", [*TEXT, *MORE_TEXT])
def test_talk_about_calls_is_text(text: str) -> None:
    assert read(text) is None


@pytest.mark.parametrize("text", REFUSED)
def test_nothing_doubtful_becomes_a_call(text: str) -> None:
    found = read(text)
    assert found is None or not found.calls


@pytest.mark.parametrize("lead", EVERYDAY)
@pytest.mark.parametrize("written", [HERMES, QWEN, INVOKE, f"{HERMES}\n{QWEN}"])
def test_everyday_words_before_a_call_change_nothing(lead: str, written: str) -> None:
    for between in ("\n", "\n\n"):
        assert calls_in(f"{lead}{between}{written}\n \n")[0] == READ_A
        assert read(f"{lead}{between}{written}\n\nThat is how it is written.") is None
        assert read(f"{lead}{between}```\n{written}\n```\nThat is it.") is None
        assert read(f"{lead}{between}`{written.replace(chr(10), '')}` is the form.") is None


@pytest.mark.parametrize("lead", EXAMPLES)
@pytest.mark.parametrize("written", [HERMES, QWEN, INVOKE, f"```json\n{FAMILIES['hermes'][12:-13]}\n```"])
def test_an_example_is_text(lead: str, written: str) -> None:
    assert read(f"{lead}\n\n{written}") is None


@pytest.mark.parametrize("lead", ["The format is set there.", "Fixing the token refresh now."])
def test_everyday_words_do_not_hide_a_broken_call(lead: str) -> None:
    found = read(f'{lead}\n<tool_call>\n{{"name": "Read", "arguments": {{"file_path": ')
    assert found is not None
    assert found.fault is not None
    assert found.fault.tool == "Read"


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


@pytest.mark.parametrize("text", [text_of("clean"), "\n".join(RULES["legacy"][:2])])
def test_rules_behind_a_colon_are_quoted(text: str) -> None:
    assert read(f"The prompt says:\n\n{text}") is None


def test_the_analysis_of_harmony_is_hidden() -> None:
    thought = "<|channel|>analysis<|message|>The user wants a file.<|end|>"
    assert calls_in(f"{thought}{FAMILIES['harmony']}") == [READ_A]
    found = read(f"{thought}<|start|>assistant<|channel|>final<|message|>It is done.<|return|>")
    assert found is not None
    assert (found.start, found.text, found.calls) == (0, "It is done.", ())


BAD = [text for texts in BROKEN.values() for text in texts]


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


def test_a_cut_off_opening_tag_is_no_fault() -> None:
    assert read("Reading.\n<tool_call>", is_truncated=True) is None
    assert read(HERMES[:-30], is_truncated=True) is not None


def test_a_fault_says_nothing_of_the_text() -> None:
    unknown = read('<tool_call>\n{"name": "hunter2", "arguments": {}}')
    assert unknown is not None
    assert unknown.fault is not None
    assert "hunter2" not in f"{unknown.fault.detail} {unknown.fault.tool}"


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


def test_python_spellings_of_constants_are_understood() -> None:
    text = qwen("Grep", {"pattern": "None", "multiline": "True", "context": "None"})
    assert calls_in(text) == [("Grep", {"pattern": "None", "multiline": True, "context": None})]


def test_ids_depend_on_content_position_and_seed_only() -> None:
    text = f"{HERMES}\n{HERMES}"
    first, again, other = read(text), read(text), read(text, seed="msg_2")
    assert first is not None
    assert other is not None
    assert first == again
    ids = [call.id for call in (*first.calls, *other.calls)]
    assert len(set(ids)) == 4
    assert all(name.startswith("toolu_") for name in ids)


_WORDS = st.text(st.characters(exclude_characters="<>\r"), max_size=30)


@given(content=_WORDS, path=_WORDS, form=st.sampled_from(FORMS))
def test_any_content_survives_the_way_through_text(content: str, path: str, form: Any) -> None:
    value = {"file_path": path, "content": content}
    assert calls_in(form("Write", value)) == [("Write", value)]


_PLAIN_LINE = st.text(st.characters(exclude_characters="\n`~<[{"), max_size=40)


@given(st.lists(_PLAIN_LINE, max_size=8))
def test_a_text_without_a_marker_is_text(lines: list[str]) -> None:
    assert read("\n".join(lines)) is None


_PIECES = st.sampled_from(
    ["<tool_call>", "</tool_call>", '{"name": "Read"', "<function=Read>", "</parameter>", "\n", " "]
)


@given(st.lists(_PIECES | st.text(st.characters(exclude_characters="~"), max_size=5), max_size=12).map("".join))
def test_any_payload_in_a_fence_is_text(payload: str) -> None:
    assert read(f"Quoted:\n~~~\n{payload}\n~~~\n") is None


@pytest.mark.timeout(20)
@pytest.mark.parametrize("unit", ["<tool_call>{\n", "a `\n</parameter>\n`", "`\n<tool_call>{\n`", "<parameter=a> x\n`"])
def test_reading_a_long_text_ends(unit: str) -> None:
    read(unit * 20_000)
