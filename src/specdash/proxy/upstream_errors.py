"""llama.cpp's error answers, and those of servers and gateways like it, as errors the client understands.

Source: the error objects of llama.cpp's server (`format_error_response`), builds b4000 to b11549: a JSON object with an
`error` of `code`, `message` and `type`, and for a full context `n_prompt_tokens` and `n_ctx`.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from specdash.proxy.errors import ApiError, PromptTooLongError

LOADING_RETRY_S = 2
LONGEST_QUOTE = 600
"""Characters of an upstream's own words that reach the client."""

_OVERFLOW = (
    re.compile(r"exceeds? the available context size", re.IGNORECASE),
    re.compile(r"larger than the max(?:imum)? context size", re.IGNORECASE),
    re.compile(r"exceeds? (?:the )?(?:model's )?(?:maximum )?context (?:window|length|size)", re.IGNORECASE),
    re.compile(r"maximum context length", re.IGNORECASE),
    re.compile(r"prompt is too long", re.IGNORECASE),
)
_LIMIT = (
    re.compile(r"context (?:size|window|length) *\(?(?:of |is )?\(?(\d+)", re.IGNORECASE),
    re.compile(r"> *(\d+) maximum", re.IGNORECASE),
)
_TOKENS = (
    re.compile(r"(?:request|input|prompt|requested tokens) *\((\d+)", re.IGNORECASE),
    re.compile(r"requested (?:about )?(\d+) tokens", re.IGNORECASE),
    re.compile(r"(\d+) tokens *>", re.IGNORECASE),
)
_CLIENT_MADE = re.compile(
    r"input is not supported|failed to (?:load|decode|process) (?:image|audio|media)|mmproj"
    r"|template|jinja|failed to parse|grammar|json schema|tool_choice|unsupported content",
    re.IGNORECASE,
)
"""Faults of the request that llama.cpp reports as its own (500)."""
_MARKUP = re.compile(rb"^\s*<(?:!doctype|html|\?xml|head|body)", re.IGNORECASE)
_TAGS = re.compile(r"<[^>]*>")


def error_parts(body: bytes) -> tuple[str, dict[str, Any]]:
    """The message of an error body, "" when it has none, and its error object. Never fails."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return _plain_text(body), {}
    error = value.get("error", value) if isinstance(value, dict) else value
    if isinstance(error, dict):
        message = error.get("message") or error.get("detail") or ""
        return _bounded(message if isinstance(message, str) else ""), error
    return _bounded(error) if isinstance(error, str) else "", {}


def api_error(status: int, body: bytes) -> ApiError:
    """The error for the client when the upstream answered `status` (anything but 2xx) with `body`."""
    message, error = error_parts(body)
    return error_for(status, message, error)


def error_for(status: int, message: str, error: dict[str, Any]) -> ApiError:
    """The same from a message and its error object, as a stream's error chunk carries them."""
    if (found := _overflow(status, message, error)) is not None:
        return found
    said = f": {message}" if message else ""
    if status == 503:
        if "oading" in message:
            return ApiError(529, "the model is loading; try again", retry_after=LOADING_RETRY_S)
        return ApiError(529, f"the upstream is not ready (503){said}", retry_after=LOADING_RETRY_S)
    if status in {401, 403}:
        return ApiError(
            502,
            "the upstream refuses the proxy's own key: set PROXY_UPSTREAM_API_KEY to the key of the llama.cpp server",
            retry=False,
        )
    if status == 404:
        return ApiError(502, f"LLAMA_CPP_BASE does not look like a llama.cpp server: it answers 404{said}", retry=False)
    if status == 429:
        return ApiError(429, message or "the upstream has too many requests", retry_after=LOADING_RETRY_S)
    if status == 413:
        return ApiError(413, message or "the upstream finds the request too large")
    if 400 <= status < 500 or (status >= 500 and _CLIENT_MADE.search(message)):
        return ApiError(400, message or f"the upstream refuses the request ({status})")
    if 300 <= status < 400:
        return ApiError(502, f"the upstream redirects ({status}): LLAMA_CPP_BASE must be its final URL", retry=False)
    return ApiError(500, message or f"the upstream failed ({status})")


def _overflow(status: int, message: str, error: dict[str, Any]) -> ApiError | None:
    tokens, limit = error.get("n_prompt_tokens"), error.get("n_ctx")
    named = error.get("type") == "exceed_context_size_error" or error.get("code") == "context_length_exceeded"
    if not named and (status < 400 or not any(one.search(message) for one in _OVERFLOW)):
        return None
    if not isinstance(tokens, int):
        tokens = _first_number(_TOKENS, message)
    if not isinstance(limit, int):
        limit = _first_number(_LIMIT, message)
    if tokens is not None and limit is not None:
        return PromptTooLongError(tokens, limit)
    # Clients compact on these very words, whatever follows them.
    return ApiError(400, f"prompt is too long: {message or 'it does not fit the context window'}")


def _first_number(patterns: tuple[re.Pattern[str], ...], text: str) -> int | None:
    found = (one.search(text) for one in patterns)
    return next((int(match.group(1)) for match in found if match), None)


def _plain_text(body: bytes) -> str:
    text = body[:4096].decode("utf-8", "replace")
    if _MARKUP.match(body):
        text = " ".join(_TAGS.sub(" ", text).split())
    elif "\ufffd" in text or "\x00" in text:
        return ""
    return _bounded(text.strip())


def _bounded(text: str) -> str:
    return text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 3] + "..."
