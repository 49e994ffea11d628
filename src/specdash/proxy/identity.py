"""Which session a request belongs to: the client's own word, else a fingerprint of how the conversation begins.

The fingerprint leaves out whatever changes between the turns of one conversation: the billing header, dates, numbers
and ids in the system prompt, reminders the client inserts, ids of tool calls.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

import orjson

from specdash.proxy.billing import without_header

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdash.proxy.messages import Block, MessagesRequest

SESSION_HEADER = "x-claude-code-session-id"
AGENT_HEADER = "x-claude-code-agent-id"
OTHER_HEADERS = ("x-uap-session-id", "x-claude-session-id", "anthropic-session-id", "x-session-id")
METADATA_KEYS = ("session_id", "conversation_id", "thread_id")
LONGEST = 128
"""Characters of a client's id that are kept; a longer one is replaced by its digest."""

SYSTEM_CHARS = 512
USER_CHARS = 1024

_SYSTEM_READ = 2 * SYSTEM_CHARS
_USER_READ = 8 * USER_CHARS
_DIGEST_CHARS = 20

_USER_SESSION = re.compile(r"_session_([0-9A-Za-z-]+)\s*\Z")
_REMINDER, _REMINDER_END = "<system-reminder>", "</system-reminder>"
_CHANGING = re.compile(
    r"\b(?:(?:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|[0-9a-f]{6,}"
    r"|(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?"
    r"|jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sep(?:t(?:ember)?)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?|[ap]m)\b|\w*\d\w*)",
    re.IGNORECASE,
)
"""Ids, parts of dates, and every word with a digit in it."""

_GAPS = re.compile(r"#(?:[\s#.,:/+-]*#)+")

KINDS = ("hdr:", "meta:", "fp:")
"""How our ids begin: named by a header, by metadata, or known by a fingerprint."""


def session_id(headers: Mapping[str, str], request: MessagesRequest, client_host: str) -> str:
    """The session of a Messages request; `headers` have lower-case names.

    `hdr:<session>` or `hdr:<session>/<agent>` from headers, `meta:<session>` from the body's metadata, else
    `fp:<20 hex>`. Printable ASCII of bounded length, whatever the client sends.
    """
    user = request.metadata.get("user_id")
    return (
        _from_headers(headers)
        or _from_metadata(request.metadata, user)
        or _fingerprint(client_host, user, lambda: _system_text(request.system), lambda: _first_turn(request))
    )


def chat_session_id(headers: Mapping[str, str], body: dict[str, Any], client_host: str) -> str:
    """The session of a chat completion request; its `body` may be any JSON object."""
    metadata = body.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    user = metadata.get("user_id") or body.get("user")
    messages = body.get("messages")
    turns = [one for one in messages if isinstance(one, dict)] if isinstance(messages, list) else []
    return (
        _from_headers(headers)
        or _from_metadata({**body, **metadata}, user)
        or _fingerprint(
            client_host,
            user,
            lambda: _chat_text(turns, ("system", "developer")),
            lambda: _chat_text(turns, ("user",)) or _text(body.get("prompt")),
        )
    )


def _from_headers(headers: Mapping[str, str]) -> str | None:
    session = headers.get(SESSION_HEADER, "").strip()
    if session:
        agent = headers.get(AGENT_HEADER, "").strip()
        return f"hdr:{_bounded(session)}/{_bounded(agent)}" if agent else f"hdr:{_bounded(session)}"
    for name in OTHER_HEADERS:
        session = headers.get(name, "").strip()
        if session:
            return f"hdr:{_bounded(session)}"
    return None


def _from_metadata(metadata: Mapping[str, Any], user: Any) -> str | None:
    for key in METADATA_KEYS:
        session = _id_text(metadata.get(key))
        if session:
            return f"meta:{_bounded(session)}"
    session = _session_of_user(user) if isinstance(user, str) else ""
    return f"meta:{_bounded(session)}" if session else None


def _id_text(value: Any) -> str:
    if isinstance(value, str):
        return value.strip()
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def _session_of_user(user: str) -> str:
    """Claude Code says `user_<hash>_account_<uuid>_session_<uuid>`, or the like as JSON text."""
    if user.lstrip().startswith("{"):
        try:
            inner = orjson.loads(user)
        except orjson.JSONDecodeError:
            return ""
        return _id_text(inner.get("session_id")) if isinstance(inner, dict) else ""
    found = _USER_SESSION.search(user)
    return found[1] if found else ""


def _bounded(value: str) -> str:
    """An id as it is when it is short, printable and no path; else its digest. A slash would also forge an agent."""
    if len(value) <= LONGEST and value.isascii() and value.isprintable() and not set(value) & set("/\\"):
        return value
    return f"sha256-{_digest(value)}"


def _digest(value: Any) -> str:
    return hashlib.sha256(ascii(value).encode()).hexdigest()[:_DIGEST_CHARS]


def _fingerprint(client_host: str, user: Any, system: Callable[[], str], first: Callable[[], str]) -> str:
    opaque = user if isinstance(user, str) else ""
    return f"fp:{_digest((client_host, opaque, _unchanging(system()), _first_words(first())))}"


def _unchanging(text: str) -> str:
    return _GAPS.sub("#", _CHANGING.sub("#", text[:_SYSTEM_READ]))[:SYSTEM_CHARS]


def _first_words(text: str) -> str:
    own = " ".join(_without_reminders(text)[:_USER_READ].split())
    return own[:USER_CHARS] if own else _unchanging(text)


def _without_reminders(text: str) -> str:
    *pieces, last = text.split(_REMINDER_END)
    return "".join(piece.partition(_REMINDER)[0] for piece in pieces) + last


def _system_text(system: tuple[Block, ...]) -> str:
    return "\n".join(filter(None, (without_header(block["text"]).strip() for block in system)))


def _first_turn(request: MessagesRequest) -> str:
    first = next((one for one in request.messages if one.role == "user"), request.messages[0])
    return "\n".join(_opening(block) for block in first.content)


def _opening(block: Block) -> str:
    """What identifies a block at the start of a conversation."""
    match block["type"]:
        case "text":
            return str(block["text"])
        case "tool_use":
            return str(block["name"])
        case "tool_result":
            content = block.get("content") or ""
            return content if isinstance(content, str) else "\n".join(map(_opening, content))
        case "image" | "document":
            return _source_opening(block["source"])
    return ""


def _source_opening(source: Block) -> str:
    values = (source.get(key) for key in ("data", "url", "file_id", "content"))
    return next((value[:USER_CHARS] for value in values if isinstance(value, str)), "")


def _chat_text(turns: list[dict[str, Any]], roles: tuple[str, ...]) -> str:
    content = next((one.get("content") for one in turns if one.get("role") in roles), None)
    if isinstance(content, list):
        content = "\n".join(_text(part.get("text")) for part in content if isinstance(part, dict))
    return without_header(_text(content))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
