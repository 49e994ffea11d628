"""Whether a call's input fits its tool's JSON schema, as far as a provably bad call needs it.

Only what is certain counts: an unknown keyword, a reference or a schema that is none allows anything. Two levels deep
types, `required`, `enum` and `const` are checked; patterns, lengths and deeper levels are the client's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdash.proxy.translate.parse import Tool

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
