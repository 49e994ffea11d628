"""How models write tool calls as text: every dialect declared once, as data.

Sources: the chat templates and model cards of the models named. The reader (`markup`) takes any payload inside any
dialect's opening, since models mix them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdash.system.data import dataclass

if TYPE_CHECKING:
    from specdash.proxy.translate.parse import Tool


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way of writing calls. `opens` and `closes` are the literals around a call; `sample` calls Read with /a."""

    name: str
    models: str
    opens: tuple[str, ...]
    closes: tuple[str, ...]
    sample: str


_JSON = '{"name": "Read", "arguments": {"file_path": "/a"}}'
_PARAMETERS = '{"name": "Read", "parameters": {"file_path": "/a"}}'
_ARGUMENTS = '{"file_path": "/a"}'
_FUNCTION = "<function=Read>\n<parameter=file_path>\n/a\n</parameter>\n</function>"
_INVOKE = '<invoke name="Read">\n<parameter name="file_path">/a</parameter>\n</invoke>'
_CLAUDE = "antml:"

DIALECTS: tuple[Dialect, ...] = (
    Dialect("hermes", "Hermes, Qwen 2.5 and 3, Granite 3, ERNIE", ("<tool_call>",), ("</tool_call>",),
            f"<tool_call>\n{_JSON}\n</tool_call>"),
    Dialect("qwen3-coder", "Qwen3-Coder, Nemotron 3, Step 3.5", ("<tool_call>", "<function="),
            ("</parameter>", "</function>", "</tool_call>"), f"<tool_call>\n{_FUNCTION}\n</tool_call>"),
    Dialect("llama-function", "Llama 3.x, Functionary 3.1", ("<function=",), ("</function>",),
            f"<function=Read>{_ARGUMENTS}</function>"),
    Dialect("llama-python-tag", "Llama 3.1 to 3.3", ("<|python_tag|>",), ("<|eom_id|>", "<|eot_id|>"),
            f"<|python_tag|>{_PARAMETERS}"),
    Dialect("claude", "the Claude prompt format", (f"<{_CLAUDE}function_calls>", f"<{_CLAUDE}invoke name=",
            "<function_calls>", "<invoke name="),
            (f"</{_CLAUDE}parameter>", f"</{_CLAUDE}invoke>", f"</{_CLAUDE}function_calls>",
             "</invoke>", "</function_calls>"),
            f"<function_calls>\n{_INVOKE}\n</function_calls>"),
    Dialect("minimax", "MiniMax M2", ("<minimax:tool_call>",), ("</minimax:tool_call>",),
            f"<minimax:tool_call>\n{_INVOKE}\n</minimax:tool_call>"),
    Dialect("tool-calls", "MiniMax M1, Jamba, Hunyuan", ("<tool_calls>",), ("</tool_calls>",),
            f"<tool_calls>\n{_JSON}\n</tool_calls>"),
    Dialect("function-call", "fine-tunes", ("<function_call>", "<|function_call|>", "<tool_use>"),
            ("</function_call>", "</tool_use>"), f"<function_call>{_JSON}</function_call>"),
    Dialect("seed", "Seed-OSS", ("<seed:tool_call>",), ("</seed:tool_call>",),
            f"<seed:tool_call>\n{_FUNCTION}\n</seed:tool_call>"),
    Dialect("nemotron", "Nemotron", ("<TOOLCALL>",), ("</TOOLCALL>",), f"<TOOLCALL>[{_JSON}]</TOOLCALL>"),
    Dialect("glm", "GLM 4.5 and later", ("<tool_call>",), ("</tool_call>",),
            "<tool_call>Read\n<arg_key>file_path</arg_key>\n<arg_value>/a</arg_value>\n</tool_call>"),
    Dialect("kimi", "Kimi K2", ("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
            ("<|tool_call_end|>", "<|tool_calls_section_end|>"),
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.Read:0<|tool_call_argument_begin|>"
            f"{_ARGUMENTS}<|tool_call_end|><|tool_calls_section_end|>"),
    Dialect("deepseek", "DeepSeek V3 and R1", ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>",
            "<｜tool_calls_begin｜>", "<｜tool_call_begin｜>"),
            ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<｜tool_call_end｜>", "<｜tool_calls_end｜>"),
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>Read\n```json\n"
            f"{_ARGUMENTS}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
    Dialect("deepseek-dsml", "DeepSeek V3.2", ("<｜DSML｜function_calls>", "<｜DSML｜invoke name="),
            ("</｜DSML｜parameter>", "</｜DSML｜invoke>", "</｜DSML｜function_calls>"),
            '<｜DSML｜function_calls>\n<｜DSML｜invoke name="Read">\n'
            '<｜DSML｜parameter name="file_path" string="true">/a'
            "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"),
    Dialect("mistral", "Mistral, Magistral, Devstral", ("[TOOL_CALLS]",), ("[/TOOL_CALLS]",),
            f"[TOOL_CALLS]Read[ARGS]{_ARGUMENTS}"),
    Dialect("harmony", "gpt-oss", ("<|start|>assistant", "<|channel|>commentary", "<|channel|>analysis",
            "assistantcommentary to=", "assistantanalysis to=", "commentary to=", "analysis to=", "assistant to=",
            "to=functions."), ("<|call|>", "<|end|>"),
            "<|start|>assistant<|channel|>commentary to=functions.Read <|constrain|>json<|message|>"
            f"{_ARGUMENTS}<|call|>"),
    Dialect("gemma-tool-code", "Gemma 3", ("```tool_code", "``` tool_code", "<tool_code>"), ("```", "</tool_code>"),
            '```tool_code\nprint(Read(file_path="/a"))\n```'),
    Dialect("fenced", "Gemma 3, Cohere, fine-tunes", ("```tool_call", "```tool_calls", "```tool_use",
            "```function_call"), ("```",), f"```tool_call\n{_JSON}\n```"),
    Dialect("gemma-4", "Gemma 4", ("<|tool_call>",), ("<tool_call|>",),
            '<|tool_call>call:Read{file_path:<|"|>/a<|"|>}<tool_call|>'),
    Dialect("phi", "Phi 4, Granite", ("<|tool_call|>",), ("<|/tool_call|>",), f"<|tool_call|>[{_JSON}]<|/tool_call|>"),
    Dialect("lfm2", "LFM2", ("<|tool_call_start|>",), ("<|tool_call_end|>",),
            '<|tool_call_start|>[Read(file_path="/a")]<|tool_call_end|>'),
    Dialect("command", "Command R7B and A", ("<|START_ACTION|>",), ("<|END_ACTION|>",),
            '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "Read", "parameters": {"file_path": "/a"}}]'
            "<|END_ACTION|>"),
    Dialect("apertus", "Apertus", ("<|tools_prefix|>",), ("<|tools_suffix|>",),
            f'<|tools_prefix|>[{{"Read": {_ARGUMENTS}}}]<|tools_suffix|>'),
    Dialect("internlm", "InternLM 2.5", ("<|action_start|><|plugin|>", "<|action_start|><|interpreter|>"),
            ("<|action_end|>",), f"<|action_start|><|plugin|>{_PARAMETERS}<|action_end|>"),
    Dialect("firefunction", "Firefunction 2", ("functools[",), ("]",), f"functools[{_JSON}]"),
)  # fmt: skip

OPENS: tuple[str, ...] = tuple(dict.fromkeys(name for dialect in DIALECTS for name in dialect.opens))
STOPS: tuple[str, ...] = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>", "<|endoftext|>", "<end_of_turn>", "</s>",
    "<｜end▁of▁sentence｜>",
)  # fmt: skip
"""Tokens that end a turn, and stand behind a call where the server did not take them away."""
CLOSES: tuple[str, ...] = tuple(
    dict.fromkeys(
        [close for dialect in DIALECTS for close in dialect.closes if close not in {"```", "]"}] + list(STOPS)
    )
)
NAME_ENDS: tuple[str, ...] = ("[ARGS]", "<|tool_call_argument_begin|>", "<｜tool▁sep｜>", "<｜tool_sep｜>")
"""What separates a tool's name from the JSON of its arguments."""
NAMESPACES: tuple[str, ...] = ("functions.", "default_api.", "tools.")
"""What models write before the name of a tool; not part of it."""


# Whether a call's input fits its tool's JSON schema, as far as a provably bad call needs it.
#
# Only what is certain counts: an unknown keyword, a reference or a schema that is none allows anything. Two levels
# deep types, `required`, `enum` and `const` are checked; patterns, lengths and deeper levels are the client's
# business.

_DEPTH = 2
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}


def problem(tool: Tool, value: Any) -> str | None:
    """What is wrong with `value` as the input of `tool`, in names and types only, or None.

    Example: `Write: required property file_path is missing`.
    """
    if not isinstance(value, dict):
        return f"{tool.name}: input is {json_type(value)}, not object"
    try:
        found = _object_problem(value, tool.schema, "", 1)
    except RecursionError:
        return None
    return f"{tool.name}: {found}" if found else None


def json_type(value: Any) -> str:
    """The JSON type of a parsed value."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "integer" if isinstance(value, int) else "number"
    return next((name for name, types in _TYPES.items() if isinstance(value, types)), "unknown")


def types_of(schema: Any) -> frozenset[str] | None:
    """The JSON types a schema declares, those of its alternatives included; None when it allows any."""
    if not isinstance(schema, dict):
        return None
    declared = schema.get("type")
    if isinstance(declared, str):
        declared = [declared]
    if isinstance(declared, list) and all(isinstance(entry, str) for entry in declared) and declared:
        return frozenset(declared) | ({"null"} if schema.get("nullable") is True else frozenset())
    types: frozenset[str] = frozenset()
    for branch in _alternatives(schema):
        inner = types_of(branch)
        if inner is None:
            return None
        types |= inner
    return types or None


def _alternatives(schema: dict[str, Any]) -> list[Any]:
    for key in ("anyOf", "oneOf"):
        branches = schema.get(key)
        if isinstance(branches, list) and branches:
            return branches
    return []


def _object_problem(value: dict[str, Any], schema: dict[str, Any], path: str, depth: int) -> str | None:
    properties = schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    required = schema.get("required")
    for name in required if isinstance(required, list) else ():
        if isinstance(name, str) and name not in value:
            return f"required property {path}{name} is missing"
    for name, inner in properties.items():
        if name in value and (found := _value_problem(value[name], inner, f"{path}{name}", depth)):
            return found
    return None


def _value_problem(value: Any, schema: Any, path: str, depth: int) -> str | None:
    if not isinstance(schema, dict):
        return None
    types = types_of(schema)
    if types is not None and not any(_is(value, kind) for kind in types):
        return f"property {path} is {json_type(value)}, not {' or '.join(sorted(types))}"
    if not _allowed(value, schema):
        return f"property {path} is not one of its allowed values"
    branches = _alternatives(schema)
    if branches and all(_value_problem(value, branch, path, depth) for branch in branches):
        return f"property {path} fits none of its alternatives"
    if depth >= _DEPTH:
        return None
    if isinstance(value, dict):
        return _object_problem(value, schema, f"{path}.", depth + 1)
    if isinstance(value, list):
        items = schema.get("items")
        found = (_value_problem(entry, items, f"{path}[]", depth + 1) for entry in value)
        return next((name for name in found if name), None)
    return None


def _is(value: Any, declared: str) -> bool:
    if declared in {"integer", "number"}:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return declared == "number" or isinstance(value, int) or value.is_integer()
    types = _TYPES.get(declared)
    return types is None or isinstance(value, types)


def _allowed(value: Any, schema: dict[str, Any]) -> bool:
    if "const" in schema and not _same(value, schema["const"]):
        return False
    choices = schema.get("enum")
    return not isinstance(choices, list) or not choices or any(_same(value, choice) for choice in choices)


def _same(left: Any, right: Any) -> bool:
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)
