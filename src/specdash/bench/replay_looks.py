"""What is asked of a server about a prompt before it is sent: how long it is, and whether its template knows tools."""

from __future__ import annotations

import contextlib
import http.client
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdash.bench.line import connected, get, headers_of, of_model, path_of
from specdash.bench.transcript_parts import joined
from specdash.llama.bodies import ParseError, load_json, mapping, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.bench.samples import Place

    Message = dict[str, Any]

_ANSWER_S = 60.0
"""A prefix of megabytes is tokenised."""
_MOST_BYTES = 1024 * 1024 * 1024
_MARK = "specdash-probe-7261"
_PROBE: tuple[Message, ...] = (
    {"role": "user", "content": "Look."},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": _MARK},
)


@dataclass(frozen=True, slots=True)
class Looks:
    """Questions to one place. None where the server does not tell."""

    place: Place

    def takes_tools(self, tools: Sequence[Message]) -> bool:
        """Whether a tool's result gets into the prompt; True where the server cannot be asked."""
        prompt = self.prompt(list(_PROBE), tools)
        if prompt is not None:
            return _MARK in prompt
        return self.prompt(flat(list(_PROBE)), ()) is None

    def takes_images(self) -> bool:
        """Whether the model sees."""
        try:
            told = load_json(get(self.place, f"/props{of_model(self.place)}", _ANSWER_S).body)
        except (OSError, ParseError):
            return False
        return mapping(mapping(told).get("modalities")).get("vision") is True

    def prompt(self, messages: list[Message], tools: Sequence[Message]) -> str | None:
        """What the model's chat template makes of messages."""
        body: dict[str, Any] = {"messages": messages, **({"tools": list(tools)} if tools else {})}
        return text(self._post("/apply-template", body).get("prompt"))

    def count(self, prompt: str) -> int | None:
        """The text's tokens."""
        found = self._post("/tokenize", {"content": prompt, "add_special": True}).get("tokens")
        return len(found) if isinstance(found, list) else None

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if self.place.model is not None:
            body["model"] = self.place.model
        try:
            with contextlib.closing(connected(self.place, _ANSWER_S)) as line:
                head = {**headers_of(self.place), "Content-Type": "application/json"}
                line.request("POST", path_of(self.place, path), json.dumps(body).encode(), head)
                answer = line.getresponse()
                return mapping(json.loads(answer.read(_MOST_BYTES))) if answer.status == http.client.OK else {}
        except (OSError, http.client.HTTPException, ValueError):
            return {}


def flat(messages: list[Message]) -> list[Message]:
    """Tool calls and results as text, for templates that know no tools."""
    found: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            found.append({"role": "user", "content": _wrapped(message["content"])})
        elif message.get("tool_calls"):
            calls = [
                f"<tool_call name={one['function']['name']}>{one['function']['arguments']}</tool_call>"
                for one in message["tool_calls"]
            ]
            said = message["content"] if isinstance(message["content"], str) else ""
            found.append({"role": "assistant", "content": "\n".join([*([said] if said else []), *calls])})
        else:
            found.append(message)
    return joined(found)


def _wrapped(content: Any) -> Any:
    begin, end = "<tool_response>", "</tool_response>"
    if isinstance(content, str):
        return begin + content + end
    return [{"type": "text", "text": begin}, *content, {"type": "text", "text": end}]
