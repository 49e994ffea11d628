"""Structured tool calls that are invalid, as far as a provably bad call needs it.

Only what is certain counts: an unknown keyword, a reference or a schema that is none allows anything. `required` and
the types, `enum` and `const` of properties are checked; patterns, lengths and deeper levels are the client's business.
Strings inside a call's input are data and never searched.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from specdash.proxy.http.responses import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.proxy.answer.blocks import ToolCall
    from specdash.proxy.translate.parse import Tool


class ToolUseFault(Struct, frozen=True):
    """Why an answer's tool use is malformed; safe to log: names and types, never text of the answer.

    `kind` is empty_name, unknown_tool, bad_json, not_an_object, schema, missing_call, unparsed_call, orphan_tags or
    supplement_echo. `tool` is the tool meant, when that is known.
    """

    kind: str
    tool: str | None
    detail: str


_PLAIN_NAME = re.compile(r"[\w.:\-]{1,64}\Z")


def call_fault(call: ToolCall, offered: Mapping[str, Tool], *, is_cut: bool = False) -> ToolUseFault | None:
    """The fault of one structured call; `is_cut` excuses what its arguments lack at their end."""
    if not call.name.strip():
        return ToolUseFault("empty_name", None, "a call has no tool name")
    tool = offered.get(call.name)
    if tool is None:
        name = call.name if _PLAIN_NAME.match(call.name) else None
        return ToolUseFault("unknown_tool", name, f"{name or 'the tool called'} was not offered")
    if is_cut:
        return None
    try:
        value: Any = read_json(call.arguments) if call.arguments.strip() else {}
    except ValueError:
        return ToolUseFault("bad_json", tool.name, f"{tool.name}: arguments are not JSON")
    if not isinstance(value, dict):
        return ToolUseFault("not_an_object", tool.name, f"{tool.name}: arguments are {json_type(value)}, not object")
    if detail := problem(tool, value):
        return ToolUseFault("schema", tool.name, detail)
    return None


_TYPES: dict[str, type] = {"string": str, "boolean": bool, "object": dict, "array": list, "null": type(None)}


def problem(tool: Tool, value: Any) -> str | None:
    """What is wrong with `value` as the input of `tool`, in names and types only, or None.

    Example: `Write: required property file_path is missing`.
    """
    if not isinstance(value, dict):
        return f"{tool.name}: input is {json_type(value)}, not object"
    properties, required = tool.schema.get("properties"), tool.schema.get("required")
    for name in required if isinstance(required, list) else ():
        if isinstance(name, str) and name not in value:
            return f"{tool.name}: required property {name} is missing"
    for name, schema in properties.items() if isinstance(properties, dict) else ():
        if name in value and isinstance(schema, dict) and (found := _value_problem(value[name], schema)):
            return f"{tool.name}: property {name} is {found}"
    return None


def json_type(value: Any) -> str:
    """The JSON type of a parsed value; 1.0 is an integer too."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "integer" if value % 1 == 0 else "number"
    return next((name for name, kind in _TYPES.items() if isinstance(value, kind)), "unknown")


def types_of(schema: Any) -> frozenset[str] | None:
    """The JSON types a schema declares, those of its alternatives included; None when it allows any."""
    branches: Any = [schema]
    if isinstance(schema, dict) and "type" not in schema:
        branches = next((found for key in ("anyOf", "oneOf") if isinstance(found := schema.get(key), list)), [])
    declared = [_declared(branch) for branch in branches]
    return frozenset().union(*(types for types in declared if types)) if declared and None not in declared else None


def _declared(schema: Any) -> frozenset[str] | None:
    declared = schema.get("type") if isinstance(schema, dict) else None
    names = [declared] if isinstance(declared, str) else declared
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        return None
    return frozenset(names) | ({"null"} if schema.get("nullable") is True else frozenset())


def _value_problem(value: Any, schema: dict[str, Any]) -> str | None:
    types, choices = types_of(schema), schema.get("enum")
    kind = json_type(value)
    fitting = {kind, "number"} if kind == "integer" else {kind}
    if types is not None and types <= {*_TYPES, "integer", "number"} and not types & fitting:
        return f"{kind}, not {' or '.join(sorted(types))}"
    allowed = [schema["const"]] if "const" in schema else choices if isinstance(choices, list) else []
    # In JSON true is not 1.
    same = (value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in allowed)
    return "not one of its allowed values" if allowed and not any(same) else None
