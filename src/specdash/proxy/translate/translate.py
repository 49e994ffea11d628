"""A Messages request as the body of llama.cpp's POST /v1/chat/completions.

The body is a pure function of the request, and what a turn renders to never depends on later turns: the upstream keeps
the prefix of a growing conversation in its cache only as long as not one token of it changes.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from specdash.proxy.translate.parse import Block, Message, MessagesRequest


# Claude Code's billing header, a line at the start of the system prompt whose values change with every request.
#
# `x-anthropic-billing-header: cc_version=2.1.50.d2a; cc_entrypoint=cli; cch=81ac4;`: left alone it makes every prompt
# new from its first tokens on, and the upstream's prefix cache useless.

# Only the run of `key=value;` right after the name belongs to the header: text that follows may speak of `cch=` too.
_HEADER = re.compile(r"\s*x-anthropic-billing-header:(?:[ \t]*[\w-]+=[^;\s]*;?)*", re.IGNORECASE)
_NONCE = re.compile(r"\b(cch=)[^;\s]*")
_VERSION = re.compile(r"\b(cc_version=\d+\.\d+\.\d+)[^;\s]*")


def steady(text: str) -> str:
    """A system text with the header's rotating values replaced by constants; other text comes back as it is."""
    header = _HEADER.match(text)
    if header is None:
        return text
    return _VERSION.sub(r"\1", _NONCE.sub(r"\g<1>0", header[0])) + text[header.end() :]


_REMINDER, _REMINDER_END = "<system-reminder>", "</system-reminder>"


def without_reminders(text: str) -> str:
    """A user's text without what the client, not the user, says in it."""
    *pieces, last = text.split(_REMINDER_END)
    return "".join(piece.partition(_REMINDER)[0] for piece in pieces) + last


# Content blocks rendered for a chat completion: runs of text, and images as `image_url` parts.

Part = str | dict[str, Any]
"""A text, or an `image_url` part."""

JOINT = "\n\n"
"""Between two texts that become one."""


def parts_of(blocks: Iterable[Block]) -> Iterator[Part]:
    """What text and image blocks show, in order; other blocks show nothing."""
    for block in blocks:
        if block["type"] == "text":
            yield block["text"]
        elif block["type"] == "image":
            source = block["source"]
            url = source["url"] if source["type"] == "url" else f"data:{source['media_type']};base64,{source['data']}"
            yield {"type": "image_url", "image_url": {"url": url}}


def result_parts(block: Block) -> list[Part]:
    """What a tool result shows; a failed one says that it is an error."""
    content = block.get("content") or ""
    parts: list[Part] = [content] if isinstance(content, str) else list(parts_of(content))
    if not block.get("is_error"):
        return parts
    first = parts[0] if parts and isinstance(parts[0], str) else ""
    if first.lstrip()[:24].lower().lstrip("<[(*# ").startswith(("error", "tool_use_error")):
        return parts
    return [f"Error: {first}", *parts[1:]] if first else ["Error", *parts]


def content_of(parts: Iterable[Part]) -> str | list[dict[str, Any]]:
    """A chat message's `content`: one string, or a list of parts when there is an image."""
    runs: list[tuple[bool, list[Any]]] = [
        (is_text, list(run)) for is_text, run in groupby(filter(None, parts), lambda part: isinstance(part, str))
    ]
    if all(is_text for is_text, _ in runs):
        return "".join(JOINT.join(run) for _, run in runs)
    return [part for is_text, run in runs for part in ([{"type": "text", "text": JOINT.join(run)}] if is_text else run)]


ChatMessage = dict[str, Any]

TELLING: dict[str, Any] = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "timings_per_token": True,
    "return_progress": True,
}
"""Asked of every generation: an answer as it comes, with usage, timings, and progress of the prompt."""

_CHOICES = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}


def chat_body(
    request: MessagesRequest, model: str, *, max_tokens: int | None = None, thinking_off: bool = False
) -> dict[str, Any]:
    """The whole upstream body. `max_tokens` replaces the request's; `thinking_off` keeps the model from reasoning."""
    messages = chat_messages(request)
    body: dict[str, Any] = {"model": model, "messages": messages}
    body |= _tool_fields(request)
    body["max_tokens"] = request.max_tokens if max_tokens is None else max_tokens
    for name in ("temperature", "top_p", "top_k"):
        value = getattr(request, name)
        if value is not None:
            body[name] = value
    if request.schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"schema": request.schema}}
    is_prefill = bool(messages) and messages[-1]["role"] == "assistant"
    body |= _thinking_fields(request, thinking_off or is_prefill)
    if is_prefill:
        # Left to itself, one build repeats the prefill in a stream and another does not; asked, all do.
        body["echo"] = True
    return body | TELLING


def prefill_of(request: MessagesRequest) -> str:
    """The text the answer has to continue, when the conversation ends in an assistant turn; else ""."""
    if request.messages[-1].role != "assistant":
        return ""
    last = next(turns for role, turns in _runs(reversed(request.messages)) if role == "assistant")
    return _text_in(block for turn in reversed(last) for block in turn.content)


def chat_messages(request: MessagesRequest) -> list[ChatMessage]:
    """System and conversation: user and assistant turns alternate, tool results follow the calls they answer."""
    found: list[ChatMessage] = []
    system = JOINT.join(filter(None, (steady(block["text"]) for block in request.system)))
    if system:
        found.append({"role": "system", "content": system})
    calls: list[str] = []
    for role, turns in _runs(request.messages):
        if role == "assistant":
            message = _assistant(turns)
            calls = [call["id"] for call in message.get("tool_calls", ())]
            found.append(message)
        else:
            found += _answers(turns, calls)
            calls = []
    # No template ends in a call; a guardrail's cut or a count of tokens may.
    found += [{"role": "tool", "tool_call_id": call, "content": ""} for call in calls]
    return found


def _tool_fields(request: MessagesRequest) -> dict[str, Any]:
    """Tools as functions, their schemas the client's but for what llama.cpp's grammar and templates stumble over."""
    choice = request.tool_choice
    tools: list[dict[str, Any]] = []
    for tool in request.tools:
        # llama.cpp has no form that names a function: the only tool offered is the one that can be called.
        if choice.kind != "tool" or tool.name == choice.name:
            schema = {key: value for key, value in tool.schema.items() if key != "$schema"}
            schema.setdefault("properties", {})
            function = {"name": tool.name, "description": tool.description, "parameters": schema}
            tools.append({"type": "function", "function": function})
    if not tools:
        return {}
    return {"tools": tools, "tool_choice": _CHOICES[choice.kind], "parallel_tool_calls": choice.parallel}


def _thinking_fields(request: MessagesRequest, off: bool) -> dict[str, Any]:
    if off or request.thinking == "disabled":
        return {"chat_template_kwargs": {"enable_thinking": False}}
    if request.thinking is None:
        return {}
    fields: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": True}}
    if request.thinking == "enabled" and request.thinking_budget is not None:
        fields["thinking_budget_tokens"] = request.thinking_budget
    return fields


def _runs(messages: Iterable[Message]) -> Iterator[tuple[str, list[Message]]]:
    """Turns of the same side in a row: templates want the sides to alternate."""
    for is_assistant, turns in groupby(messages, lambda message: message.role == "assistant"):
        yield "assistant" if is_assistant else "user", list(turns)


def _text_in(blocks: Iterable[Block]) -> str:
    return JOINT.join(block["text"] for block in blocks if block["type"] == "text" and block["text"])


def _assistant(turns: Iterable[Message]) -> ChatMessage:
    blocks = [block for turn in turns for block in turn.content]
    thinking = JOINT.join(block["thinking"] for block in blocks if block["type"] == "thinking" and block["thinking"])
    calls: list[dict[str, Any]] = []
    for block in blocks:
        if block["type"] == "tool_use":
            function = {"name": block["name"], "arguments": msgspec.json.encode(block["input"]).decode()}
            calls.append({"id": block["id"], "type": "function", "function": function})
    text = _text_in(blocks)
    message: ChatMessage = {"role": "assistant", "content": text if text or not calls else None}
    if thinking:
        message["reasoning_content"] = thinking
    if calls:
        message["tool_calls"] = calls
    return message


def _answers(turns: Iterable[Message], calls: Sequence[str]) -> list[ChatMessage]:
    """Results of `calls` as tool messages, in the client's order, then everything else as one user message."""
    found: list[ChatMessage] = []
    parts: list[Part] = []
    for turn in turns:
        if turn.role == "system":
            # An instruction in mid-conversation stays in its place: moved to the top it would change the cached prefix.
            if text := _text_in(turn.content):
                parts.append(f"<system-reminder>\n{text}\n</system-reminder>")
            continue
        for block in turn.content:
            if block["type"] != "tool_result":
                parts += parts_of((block,))
            elif block["tool_use_id"] in calls:
                content = content_of(result_parts(block))
                found.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": content})
            else:
                # Its call was pruned away, and templates refuse an answer to nothing.
                parts += ["Result of an earlier tool call:", *result_parts(block)]
    if parts or not found:
        found.append({"role": "user", "content": content_of(parts)})
    return found
