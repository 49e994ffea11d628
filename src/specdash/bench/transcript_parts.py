"""Content of recorded messages, checked and made into OpenAI's form: what is sent to a model, and nothing else."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specdash.bench.transcript_lines import BrokenLineError

if TYPE_CHECKING:
    from collections.abc import Mapping

    Message = dict[str, Any]

JOINT = "\n\n"
"""Between texts of one turn, as the proxy has it."""
NO_RESULT = "[no result of this call is in the transcript]"
_SURROGATE = re.compile("[\ud800-\udfff]")
_DROPPED = ("thinking", "redacted_thinking", "reasoning", "refusal", "server_tool_use", "web_search_tool_result")
OPENAI_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


@dataclass(frozen=True, slots=True)
class Text:
    """Words."""

    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """An image: its address or data where it is kept, and the words that stand for it where it is not sent."""

    note: str
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Use:
    """A tool call. `arguments` is JSON as text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool call brought."""

    id: str
    parts: tuple[Text | Image, ...]


Block = Text | Image | Use | Result


@dataclass(slots=True)
class Contents:
    """Reads contents. `images` keeps the images themselves; `left_out` counts blocks that were left out, by type."""

    images: bool = False
    left_out: Counter[str] = field(default_factory=Counter)

    def blocks(self, content: Any, role: str) -> list[Block]:
        """The blocks of a Claude Code message. Raises `BrokenLineError`."""
        if isinstance(content, str):
            return [Text(clean(content))]
        found: list[Block] = []
        for value in _listed(content, "the message's content"):
            kind = _kind(value)
            if kind == "tool_use":
                _only(role, "assistant", "tool use")
                found.append(_use(value))
            elif kind == "tool_result":
                _only(role, "user", "tool result")
                told = value.get("content")
                parts = () if told is None else self.parts(told)
                found.append(Result(_text_of(value, "tool_use_id", "a tool result"), parts))
            else:
                found.extend(self._part(value, kind))
        return found

    def parts(self, content: Any) -> tuple[Text | Image, ...]:
        """Words and images of a content, of either form. Raises `BrokenLineError`."""
        if isinstance(content, str):
            return (Text(clean(content)),)
        listed = _listed(content, "the content")
        return tuple(part for value in listed for part in self._part(value, _kind(value)))

    def message(self, value: Mapping[str, Any]) -> tuple[str, list[Block], dict[str, str]]:
        """Role, blocks and further fields of an OpenAI message. Raises `BrokenLineError`."""
        role = value.get("role")
        if role not in OPENAI_ROLES:
            raise BrokenLineError("a message whose role is none of " + ", ".join(sorted(OPENAI_ROLES)))
        content = value.get("content")
        parts = () if content is None else self.parts(content)
        more = {"name": clean(value["name"])} if isinstance(value.get("name"), str) else {}
        if role == "tool":
            return role, [Result(_text_of(value, "tool_call_id", "a tool message"), parts)], more
        calls = value.get("tool_calls")
        if calls is None or role != "assistant":
            return role, list(parts), more
        return role, [*parts, *(_call(one) for one in _listed(calls, "tool_calls"))], more

    def _part(self, value: Mapping[str, Any], kind: str) -> list[Text | Image]:
        if kind in ("text", "input_text", "output_text"):
            return [Text(clean(_text_of(value, "text", "a text block", empty=True)))]
        if kind in ("image", "image_url", "input_image"):
            return [self._image(value)]
        if kind in ("document", "file", "input_file"):
            self.left_out["document"] += 1
            return [Text("[a document was here]")]
        self.left_out[kind if kind in _DROPPED else "other"] += 1
        return []

    def _image(self, value: Mapping[str, Any]) -> Image:
        url = _image_url(value)
        size = f", {3 * (len(url) - url.find(',')) // 4} bytes" if url.startswith("data:") else ""
        if not self.images:
            self.left_out["image"] += 1
        return Image(f"[an image was here{size}]", url if self.images and url else None)


def clean(text: str) -> str:
    """The text without halves of characters, which cannot be sent."""
    return _SURROGATE.sub("\ufffd", text)


def rendered(role: str, blocks: list[Block], more: Mapping[str, str]) -> list[Message]:
    """The messages of one turn: results of tools come first, as they belong to the calls before."""
    results = [one for one in blocks if isinstance(one, Result)]
    calls = [one for one in blocks if isinstance(one, Use)]
    parts = tuple(one for one in blocks if isinstance(one, Text | Image))
    messages: list[Message] = [
        {"role": "tool", "tool_call_id": one.id, "content": _content(one.parts), **more} for one in results
    ]
    content = _content(parts)
    if calls:
        made = [{"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
                for one in calls]  # fmt: skip
        messages.append({"role": role, "content": content, "tool_calls": made, **more})
    elif content:
        messages.append({"role": role, "content": content, **more})
    return messages


def joined(messages: list[Message]) -> list[Message]:
    """With neighbouring messages of the user made one: templates want turns to alternate."""
    found: list[Message] = []
    for message in messages:
        before = found[-1] if found else None
        if before is not None and before["role"] == message["role"] == "user" and before.keys() == message.keys():
            found[-1] = {**before, "content": _both(before["content"], message["content"])}
        else:
            found.append(message)
    return found


def chars_of(blocks: list[Block]) -> int:
    """Characters of all texts, of tool calls too."""
    return sum(_chars(one) for one in blocks)


def declared(uses: Mapping[str, Mapping[str, set[str]]]) -> tuple[Message, ...]:
    """Tools for the names that were called, with the arguments that were given. A transcript has no schemas."""
    return tuple(
        {
            "type": "function",
            "function": {
                "name": name,
                "description": f"The tool {name}.",
                "parameters": {
                    "type": "object",
                    "properties": {key: _schema(kinds) for key, kinds in sorted(fields.items())},
                },
            },
        }
        for name, fields in uses.items()
    )


def fields_of(arguments: str) -> dict[str, str]:
    """The arguments of a call with their JSON types; none where they are no object."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return {key: _json_type(one) for key, one in value.items()} if isinstance(value, dict) else {}


def _schema(kinds: set[str]) -> dict[str, str]:
    return {"type": next(iter(kinds))} if len(kinds) == 1 else {}


def _json_type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    names = {str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _chars(block: Block) -> int:
    if isinstance(block, Text):
        return len(block.text)
    if isinstance(block, Image):
        return 0 if block.url else len(block.note)
    if isinstance(block, Use):
        return len(block.name) + len(block.arguments)
    return sum(_chars(one) for one in block.parts)


def _content(parts: tuple[Text | Image, ...]) -> str | list[Message]:
    if not any(isinstance(one, Image) and one.url for one in parts):
        return JOINT.join(words for one in parts if (words := one.text if isinstance(one, Text) else one.note))
    return [
        {"type": "image_url", "image_url": {"url": one.url}}
        if isinstance(one, Image) and one.url
        else {"type": "text", "text": one.text if isinstance(one, Text) else one.note}
        for one in parts
    ]


def _both(first: Any, second: Any) -> Any:
    if isinstance(first, str) and isinstance(second, str):
        return first + JOINT + second
    lists = [[{"type": "text", "text": one}] if isinstance(one, str) else one for one in (first, second)]
    return lists[0] + lists[1]


def _image_url(value: Mapping[str, Any]) -> str:
    """Its address, a data URL where the data is there; empty where neither is."""
    source = value.get("source")
    if isinstance(source, dict):
        if isinstance(source.get("data"), str):
            kind = source.get("media_type")
            return f"data:{clean(kind) if isinstance(kind, str) else 'image/png'};base64,{clean(source['data'])}"
        return clean(source["url"]) if isinstance(source.get("url"), str) else ""
    told = value.get("image_url")
    told = told.get("url") if isinstance(told, dict) else told
    return clean(told) if isinstance(told, str) else ""


def _use(value: Mapping[str, Any]) -> Use:
    given = value.get("input")
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise BrokenLineError("a tool use whose input is no object")
    arguments = clean(json.dumps(given, ensure_ascii=False))
    return Use(_text_of(value, "id", "a tool use"), _text_of(value, "name", "a tool use"), arguments)


def _call(value: Any) -> Use:
    made = value.get("function") if isinstance(value, dict) else None
    if not isinstance(made, dict):
        raise BrokenLineError("a tool call without a function")
    arguments = made.get("arguments")
    if arguments is None:
        arguments = "{}"
    if isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    if not isinstance(arguments, str):
        raise BrokenLineError("a tool call whose arguments are neither text nor an object")
    return Use(_text_of(value, "id", "a tool call"), _text_of(made, "name", "a tool call"), clean(arguments))


def _listed(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise BrokenLineError(f"{what} is neither text nor a list" if "content" in what else f"{what} is no list")
    return value


def _kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str):
        raise BrokenLineError("a content block without a type")
    return kind


def _text_of(value: Mapping[str, Any], key: str, what: str, *, empty: bool = False) -> str:
    found = value.get(key)
    if not isinstance(found, str) or not (found or empty):
        raise BrokenLineError(f"{what} without {key}")
    return clean(found)


def _only(role: str, wanted: str, what: str) -> None:
    if role != wanted:
        raise BrokenLineError(f"a {what} in a message of the {role}")
