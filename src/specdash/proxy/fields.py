"""Reading values out of a client's JSON: each accessor returns the right kind or names the path of the wrong one.

The wording follows the Anthropic API (`messages.0.role: Field required`). JSON null counts as an absent field.
Paths hold the API's own field names and indexes only, never a client's text.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from specdash.proxy.errors import ApiError, InvalidRequestError

MAX_INT = 2**31 - 1
"""Largest number llama.cpp takes where it wants an integer; a larger one is lowered to it."""

JsonObject = dict[str, Any]

_HALF = re.compile(rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(\\u[dD][c-fC-F][0-9a-fA-F]{2})?|[c-fC-F][0-9a-fA-F]{2})")
"""What may be half a surrogate pair in JSON text; the group makes a pair of it."""
_ESCAPE_SIZE = len(rb"\ud83d")
_MOST_HALVES = 100_000
_BACKSLASH = ord("\\")
_REPLACEMENT = rb"\ufffd"


def load_object(body: bytes) -> JsonObject:
    """The JSON object of a request body.

    Half a surrogate pair (a client cut a text inside an emoji) becomes U+FFFD: the whole conversation would be lost
    over it otherwise. Everything else that is not JSON raises `InvalidRequestError`.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        value = _load_repaired(body, error)
    if not isinstance(value, dict):
        raise InvalidRequestError("", "The request body is not a JSON object")
    return value


def _load_repaired(body: bytes, error: orjson.JSONDecodeError) -> Any:
    repaired = _HALF.sub(_without_half, body, _MOST_HALVES)
    if repaired != body:
        try:
            return orjson.loads(repaired)
        except orjson.JSONDecodeError as other:
            error = other
    raise InvalidRequestError("", f"The request body is not valid JSON: {error}") from None


def _without_half(found: re.Match[bytes]) -> bytes:
    text, body = found[0], found.string
    at = found.start()
    while at and body[at - 1] == _BACKSLASH:
        at -= 1
    if (found.start() - at) % 2 == 0:
        return text if found[1] else _REPLACEMENT
    # The backslash itself is escaped: the first is no escape, the second, if any, stands alone.
    return text[:-_ESCAPE_SIZE] + _REPLACEMENT if found[1] else text


def writable(value: Any, where: str) -> None:
    """Refuse what can be read but not sent on: a nesting beyond what the JSON library writes (about 250 levels)."""
    # The levels the value lies deeper in what is sent upstream than here.
    dumped([[[[[[[[value]]]]]]]], where)


def check_pieces(source: JsonObject, most: int) -> None:
    """Raise `ApiError` 413 when a body has more than `most` messages, content blocks, tools and stop words together.

    Each takes a while to look at, in which nobody else is served.
    """
    lists = ("messages", "system", "tools", "stop_sequences", "stop")
    left: list[Any] = [source.get(name) for name in lists]
    count = 0
    while left:
        value = left.pop()
        if isinstance(value, list):
            count += len(value)
            if count > most:
                what = "messages, content blocks, tools and stop sequences"
                raise ApiError(413, f"the request has more than {most} {what} (PROXY_MAX_BLOCKS)")
            left += value
        elif isinstance(value, dict):
            left += (value.get("content"), value.get("source"))


def dumped(value: Any, where: str = "") -> bytes:
    """The JSON text of what a client sent. Raises `InvalidRequestError` when it is nested too deeply."""
    try:
        return orjson.dumps(value)
    except TypeError:
        raise InvalidRequestError(where, "Input is nested too deeply") from None


def required(source: JsonObject, key: str, where: str) -> Any:
    """The value of a field that has to be there."""
    value = source.get(key)
    if value is None:
        raise InvalidRequestError(at(where, key), "Field required")
    return value


def at(where: str, key: str | int) -> str:
    """The path of `key` inside `where`."""
    return f"{where}.{key}" if where else str(key)


def text(source: JsonObject, key: str, where: str) -> str:
    """A required string; it may be empty."""
    value = source.get(key)
    if isinstance(value, str):
        return value
    required(source, key, where)
    raise InvalidRequestError(at(where, key), "Input should be a valid string")


def filled_text(source: JsonObject, key: str, where: str, *, longest: int | None = None) -> str:
    """A required string of at least one and at most `longest` characters."""
    value = text(source, key, where)
    if not value:
        raise InvalidRequestError(at(where, key), "String should have at least 1 character")
    if longest is not None and len(value) > longest:
        raise InvalidRequestError(at(where, key), f"String should have at most {longest} characters")
    return value


def optional_text(source: JsonObject, key: str, where: str) -> str:
    """A string, or "" when absent."""
    return "" if source.get(key) is None else text(source, key, where)


def optional_object(source: JsonObject, key: str, where: str) -> JsonObject | None:
    """An object, or None when absent."""
    value = source.get(key)
    if value is None or isinstance(value, dict):
        return value
    raise InvalidRequestError(at(where, key), "Input should be a valid dictionary")


def required_object(source: JsonObject, key: str, where: str) -> JsonObject:
    """An object that has to be there."""
    required(source, key, where)
    return optional_object(source, key, where) or {}


def optional_list(source: JsonObject, key: str, where: str) -> list[Any]:
    """A list, empty when absent."""
    value = source.get(key)
    if value is None:
        return []
    if isinstance(value, list):
        return value
    raise InvalidRequestError(at(where, key), "Input should be a valid list")


def an_object(value: Any, where: str) -> JsonObject:
    """`value` itself, which has to be an object."""
    if isinstance(value, dict):
        return value
    raise InvalidRequestError(where, "Input should be a valid dictionary")


def flag(source: JsonObject, key: str, where: str) -> bool:
    """A boolean, False when absent."""
    value = source.get(key)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise InvalidRequestError(at(where, key), "Input should be a valid boolean")


def optional_integer(source: JsonObject, key: str, where: str, least: int) -> int | None:
    """An integer of at least `least`, at most `MAX_INT`; a number such as 1024.0 counts as one. None when absent."""
    value = source.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or (isinstance(value, float) and value % 1):
        raise InvalidRequestError(at(where, key), "Input should be a valid integer")
    if value < least:
        raise InvalidRequestError(at(where, key), f"Input should be greater than or equal to {least}")
    return min(int(value), MAX_INT)


def optional_number(source: JsonObject, key: str, where: str, most: float) -> float | None:
    """A number from 0 to `most`, or None when absent."""
    value = source.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequestError(at(where, key), "Input should be a valid number")
    if not 0 <= value <= most:
        raise InvalidRequestError(at(where, key), f"Input should be between 0 and {most:g}")
    return value


def choice(source: JsonObject, key: str, where: str, allowed: tuple[str, ...]) -> str:
    """A required string out of `allowed`."""
    value = required(source, key, where)
    if isinstance(value, str) and value in allowed:
        return value
    names = [f"'{one}'" for one in allowed]
    raise InvalidRequestError(at(where, key), f"Input should be {', '.join(names[:-1])} or {names[-1]}")
