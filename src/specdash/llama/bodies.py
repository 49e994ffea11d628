"""Reading JSON bodies of a llama-server leniently: a field that is missing or of another type is None."""

from __future__ import annotations

import json
import math
from typing import Any


class ParseError(ValueError):
    """The body is not what the endpoint answers. The message names the difference and quotes nothing of the body."""


def load_json(body: bytes | str) -> Any:
    """The JSON value of a body. Raises ParseError for anything else."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise ParseError(f"not JSON ({len(body)} bytes)") from None


def load_object(body: bytes | str) -> dict[str, Any]:
    """The JSON object of a body. Raises ParseError for anything else."""
    value = load_json(body)
    if not isinstance(value, dict):
        raise ParseError(f"a JSON {type(value).__name__} where an object was expected")
    return value


def mapping(value: object) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def integer(value: object) -> int | None:
    """A whole number, also one written as `3.0`; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return None


def natural(value: object) -> int | None:
    """A whole number from zero; llama-server writes -1 for none."""
    number = integer(value)
    return number if number is not None and number >= 0 else None


def fraction(value: object) -> float | None:
    """A number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    return float(value) if 0 <= value <= 1 else None


def flag(value: object) -> bool | None:
    """True or false."""
    return value if isinstance(value, bool) else None


def text(value: object) -> str | None:
    """A text that is not empty."""
    return value if isinstance(value, str) and value else None


def error_message(body: bytes | str) -> str:
    """The message of llama-server's error object on one short line, empty when the body holds none."""
    try:
        error = load_object(body).get("error")
    except ParseError:
        return ""
    message = mapping(error).get("message") if isinstance(error, dict) else error
    return one_line(message) if isinstance(message, str) else ""


def one_line(words: str, limit: int = 200) -> str:
    """The text without control characters, in one line of at most `limit` characters."""
    clean = "".join(character if character.isprintable() else " " for character in words[: 4 * limit])
    clean = " ".join(clean.split())
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"
