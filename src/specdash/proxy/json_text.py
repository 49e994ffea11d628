"""JSON from the outside, read as leniently as is safe."""

from __future__ import annotations

import re
from typing import Any

import orjson

_ESCAPE = re.compile(
    r"\\(?:u[dD][89aAbB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)"
)


def read_json(data: bytes | str) -> Any:
    """The value of a JSON text; bytes that are not UTF-8 and halves of a surrogate pair become U+FFFD.

    Raises ValueError when it is not JSON even so.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
        if text is data and "\\ud" not in text.lower():
            raise
        return orjson.loads(_ESCAPE.sub(lambda one: "\\ufffd" if one["lone"] else one[0], text))


def object_of(text: str) -> dict[str, Any] | None:
    """The JSON object that `text` is, whole and alone; None when it is anything else."""
    if not text.rstrip().endswith("}"):
        return None
    try:
        value = read_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
