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
    """Why an answer's tool use is malformed; safe to log, for it holds no text of the answer.

    `kind` is empty_name, unknown_tool, bad_json, not_an_object, schema, missing_call, unparsed_call, orphan_tags or
    supplement_echo. `tool` is the tool meant, when that is known.
    """

    kind: str
    tool: str | None = None


_PLAIN_NAME = re.compile(r"[\w.:\-]{1,64}\Z")


def call_fault(call: ToolCall, offered: Mapping[str, Tool], *, is_cut: bool = False) -> ToolUseFault | None:
    """The fault of one structured call; `is_cut` excuses what its arguments lack at their end."""
    if not call.name.strip():
        return ToolUseFault("empty_name")
    if call.name not in offered:
        return ToolUseFault("unknown_tool", call.name if _PLAIN_NAME.match(call.name) else None)
    if is_cut:
        return None
    try:
        value: Any = read_json(call.arguments) if call.arguments.strip() else {}
    except ValueError:
        return ToolUseFault("bad_json", call.name)
    if not isinstance(value, dict):
        return ToolUseFault("not_an_object", call.name)
    return None if fits(offered[call.name], value) else ToolUseFault("schema", call.name)


_TYPES: dict[str, type] = {"string": str, "boolean": bool, "object": dict, "array": list, "null": type(None)}


def fits(tool: Tool, value: dict[str, Any]) -> bool:
    """Whether `value` can be the input of `tool`."""
    properties, required = tool.schema.get("properties"), tool.schema.get("required")
    names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    schemas = properties.items() if isinstance(properties, dict) else ()
    return value.keys() >= set(names) and all(
        _may_be(value[name], schema) for name, schema in schemas if name in value and isinstance(schema, dict)
    )


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


def _may_be(value: Any, schema: dict[str, Any]) -> bool:
    types, choices = types_of(schema), schema.get("enum")
    kinds = {name for name, kind in _TYPES.items() if isinstance(value, kind)}
    if isinstance(value, int | float) and not isinstance(value, bool):
        # 1.0 is an integer too.
        kinds = {"number", "integer"} if value % 1 == 0 else {"number"}
    if types is not None and types <= {*_TYPES, "integer", "number"} and not types & kinds:
        return False
    allowed = [schema["const"]] if "const" in schema else choices if isinstance(choices, list) else []
    # In JSON true is not 1.
    same = (value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in allowed)
    return not allowed or any(same)
