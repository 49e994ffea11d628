"""The chat template the GGUF carries, and its rendering for training, so that both are the same text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jinja2 import Environment

TEMPLATE = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8").rstrip("\n")
_ENVIRONMENT = Environment(autoescape=False)  # noqa: S701 - a prompt is plain text, never HTML
_ENVIRONMENT.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
_COMPILED = _ENVIRONMENT.from_string(TEMPLATE)


def render(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None, prompt: bool = False) -> str:
    """The text of a conversation; ``prompt`` opens the assistant's turn after it."""
    return _COMPILED.render(messages=messages, tools=tools, add_generation_prompt=prompt)
