"""Bodies of Messages requests: one that uses everything, and strategies for valid conversations and for any JSON."""

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

Json = Any

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

READ = {
    "name": "Read",
    "description": "Reads a file.",
    "input_schema": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["path"],
        "additionalProperties": False,
    },
    "cache_control": {"type": "ephemeral"},
    "strict": True,
    "defer_loading": False,
}


def rich_body() -> dict[str, Any]:
    """A body with every field and every block type the API has."""
    return copy.deepcopy(_RICH)


_RICH: dict[str, Any] = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 1024,
    "stream": True,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 40,
    "stop_sequences": ["END", " "],
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.50.d2a; cc_entrypoint=cli; cch=81ac4;"},
        {"type": "text", "text": "You are helpful.", "cache_control": {"type": "ephemeral"}},
    ],
    "thinking": {"type": "enabled", "budget_tokens": 2000},
    "metadata": {"user_id": "user_ab12_account_cd34_session_11111111-2222-3333-4444-555555555555"},
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
    "tools": [READ, {"type": "custom", "name": "Now"}, {"type": "web_search_20250305", "name": "web_search"}],
    "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
    "output_config": {"effort": "high"},
    "service_tier": "auto",
    "container": None,
    "mcp_servers": [],
    "betas": ["x"],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look", "cache_control": {"type": "ephemeral"}},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
                {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
                {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
                {
                    "type": "document",
                    "title": "Notes",
                    "context": "mine",
                    "source": {"type": "text", "media_type": "text/plain", "data": "plain"},
                },
                {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "inner"}]}},
                {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}},
                {"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}},
                {
                    "type": "search_result",
                    "source": "https://example.org",
                    "title": "Found",
                    "content": [{"type": "text", "text": "snippet"}],
                },
                {"type": "container_upload", "file_id": "file_1"},
            ],
            "output_config": {"effort": "low"},
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "xxxx"},
                {"type": "text", "text": "Reading.", "citations": None},
                {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}},
                {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
                {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"path": "ä", "limit": 3}},
                {"type": "tool_use", "id": "toolu_2", "name": "Now", "input": {}},
            ],
        },
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": [
                        {"type": "text", "text": "line"},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
                        {"type": "tool_reference", "tool_name": "Other"},
                    ],
                },
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no clock", "is_error": True},
                {"type": "tool_result", "tool_use_id": "toolu_0"},
                {"type": "text", "text": "Go on"},
            ],
        },
    ],
}


def places(value: Json, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of every value inside `value`, itself included."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*path, index))


def replaced(value: Json, path: tuple[str | int, ...], new: Json) -> Json:
    """A copy of `value` with `new` at `path`."""
    if not path:
        return new
    result = copy.copy(value)
    result[path[0]] = replaced(value[path[0]], path[1:], new)
    return result


any_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["text", "tool_use", "tool_result", "user", "assistant", "any", "tool"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "text", "name", "id", "input", "source", "messages"])
            | st.text(),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)

words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
text_blocks = st.builds(lambda text: {"type": "text", "text": text}, words)
images = st.just({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}})
calls = st.builds(
    lambda number, arguments: {"type": "tool_use", "id": f"toolu_{number}", "name": "Read", "input": arguments},
    st.integers(0, 3),
    st.dictionaries(words, words | st.integers(-9, 9) | st.lists(words, max_size=2), max_size=3),
)
results = st.builds(
    lambda number, content, failed: {
        "type": "tool_result",
        "tool_use_id": f"toolu_{number}",
        "content": content,
        "is_error": failed,
    },
    st.integers(0, 3),
    words | st.lists(text_blocks | images, max_size=2),
    st.booleans(),
)
thoughts = st.builds(lambda text: {"type": "thinking", "thinking": text, "signature": ""}, words)
unknown = st.just({"type": "of_the_future"})

user_turns = st.builds(
    lambda content: {"role": "user", "content": content}, words | st.lists(text_blocks | images | results | unknown)
)
assistant_turns = st.builds(
    lambda content: {"role": "assistant", "content": content},
    words | st.lists(text_blocks | thoughts | calls | unknown),
)
system_turns = st.builds(lambda content: {"role": "system", "content": content}, words | st.lists(text_blocks))
turns = user_turns | assistant_turns | system_turns


def body_of(messages: list[Json], **fields: Json) -> dict[str, Any]:
    """A body that asks to continue `messages`."""
    return {"model": "m", "max_tokens": 100, "messages": messages, **fields}
