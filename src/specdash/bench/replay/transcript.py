"""Reads recorded sessions of agents, so that every request can be sent again with the very prefix it had.

Two formats: what Claude Code writes (one record a line; a message of the model comes in several records with the same
message id), and OpenAI message lists (a JSON list, an object with `messages`, or either a line). The session is a tree:
a prompt that was edited, or an answer asked for again, begins a branch, and a compaction starts over. Every turn of the
model is one call, in the order they were made.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import Struct, field

from specdash.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import BinaryIO

    Message = dict[str, Any]


# The lines of a transcript as JSON values, read one after the other and bounded for any file.

LONGEST_LINE = 64 * 1024 * 1024
LARGEST_DOCUMENT = 256 * 1024 * 1024
"""Of a file that is one JSON value, which must be read whole."""
_BLOCK = 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class TranscriptError(InputError):
    """The transcript cannot be replayed; the message names the line and quotes nothing of it."""


class BrokenLineError(ValueError):
    """One line is not what a transcript holds; the message says what it is instead, and quotes nothing of it."""


class TranscriptLine(Struct, frozen=True):
    """One line that is not empty. `value` is its JSON; where it is none, `broken` says why, and `value` is None."""

    number: int
    value: Any = None
    broken: str = ""


def read_lines(
    stream: BinaryIO, *, longest: int = LONGEST_LINE, largest: int = LARGEST_DOCUMENT
) -> Iterator[TranscriptLine]:
    """The lines of a JSONL stream, or the one value of a stream that is a JSON document over several lines.

    The stream must be one that can be sought in.

    No more than `longest` bytes are held of a line, `largest` of a document.
    """
    number = 0
    while raw := stream.readline(longest + 1):
        number += 1
        if number == 1:
            raw = raw.removeprefix(_BOM)
        if len(raw) > longest and not raw.endswith(b"\n"):
            _skip_line(stream)
            yield TranscriptLine(number, broken=f"longer than {longest // (1024 * 1024)} MiB")
            continue
        if not raw.strip():
            continue
        line = _parsed(number, raw)
        if number == 1 and line.broken and raw.lstrip()[:1] in (b"{", b"["):
            whole = _document(raw, stream, largest)
            if whole is not None:
                yield whole
                return
        yield line


def _document(begun: bytes, stream: BinaryIO, largest: int) -> TranscriptLine | None:
    """The file's one value; None, and the stream where it was, when it is none or longer than `largest`."""
    place = stream.tell()
    whole = begun + stream.read(max(0, largest - len(begun)) + 1)
    line = _parsed(1, whole) if len(whole) <= largest else None
    if line is not None and not line.broken:
        return line
    del whole
    stream.seek(place)
    return None


def _skip_line(stream: BinaryIO) -> None:
    while (block := stream.readline(_BLOCK)) and not block.endswith(b"\n"):
        pass


def _parsed(number: int, raw: bytes) -> TranscriptLine:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return TranscriptLine(number, broken="not UTF-8")
    try:
        return TranscriptLine(number, json.loads(text, parse_constant=_no_number))
    except RecursionError:
        return TranscriptLine(number, broken="nested too deeply")
    except ValueError:
        cut = not raw.endswith(b"\n") and raw.lstrip()[:1] in (b"{", b"[")
        return TranscriptLine(number, broken="not whole JSON; it seems to be cut off" if cut else "not JSON")


def _no_number(_: str) -> NoReturn:
    """Refuse what Python reads and JSON does not know: NaN and the infinities."""
    raise ValueError


# Content of recorded messages, checked and made into OpenAI's form: what is sent to a model, and nothing else.


JOINT = "\n\n"
"""Between texts of one turn, as the proxy has it."""
NO_RESULT = "[no result of this call is in the transcript]"
_SURROGATE = re.compile("[\ud800-\udfff]")
_DROPPED = ("thinking", "redacted_thinking", "reasoning", "refusal", "server_tool_use", "web_search_tool_result")
OPENAI_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


class TranscriptText(Struct, frozen=True):
    text: str


class Image(Struct, frozen=True):
    """An image: its address or data where it is kept, and the words that stand for it where it is not sent."""

    note: str
    url: str | None = None


class ToolUse(Struct, frozen=True):
    """A tool call. `arguments` is JSON as text."""

    id: str
    name: str
    arguments: str


class ToolResult(Struct, frozen=True):
    """What a tool call brought."""

    id: str
    parts: tuple[TranscriptText | Image, ...]


Block = TranscriptText | Image | ToolUse | ToolResult


class Contents(Struct):
    """Reads contents. `images` keeps the images themselves; `left_out` counts blocks that were left out, by type."""

    images: bool = False
    left_out: Counter[str] = field(default_factory=Counter)

    def blocks(self, content: Any, role: str) -> list[Block]:
        """The blocks of a Claude Code message. Raises `BrokenLineError`."""
        if isinstance(content, str):
            return [TranscriptText(clean(content))]
        found: list[Block] = []
        for value in _listed(content, "the message's content"):
            kind = _kind(value)
            if kind == "tool_use":
                _only(role, "assistant", "tool use")
                found.append(_use(value))
            elif kind == "tool_result":
                _only(role, "user", "tool result")
                inner = value.get("content")
                parts = () if inner is None else self.parts(inner)
                found.append(ToolResult(_text_of(value, "tool_use_id", "a tool result"), parts))
            else:
                found.extend(self._part(value, kind))
        return found

    def parts(self, content: Any) -> tuple[TranscriptText | Image, ...]:
        """Words and images of a content, of either form. Raises `BrokenLineError`."""
        if isinstance(content, str):
            return (TranscriptText(clean(content)),)
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
            return role, [ToolResult(_text_of(value, "tool_call_id", "a tool message"), parts)], more
        calls = value.get("tool_calls")
        if calls is None or role != "assistant":
            return role, list(parts), more
        return role, [*parts, *(_call(entry) for entry in _listed(calls, "tool_calls"))], more

    def _part(self, value: Mapping[str, Any], kind: str) -> list[TranscriptText | Image]:
        if kind in ("text", "input_text", "output_text"):
            return [TranscriptText(clean(_text_of(value, "text", "a text block", empty=True)))]
        if kind in ("image", "image_url", "input_image"):
            return [self._image(value)]
        if kind in ("document", "file", "input_file"):
            self.left_out["document"] += 1
            return [TranscriptText("[a document was here]")]
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
    results = [block for block in blocks if isinstance(block, ToolResult)]
    calls = [block for block in blocks if isinstance(block, ToolUse)]
    parts = tuple(block for block in blocks if isinstance(block, TranscriptText | Image))
    messages: list[Message] = [
        {"role": "tool", "tool_call_id": result.id, "content": _content(result.parts), **more} for result in results
    ]
    content = _content(parts)
    if calls:
        made = [{"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in calls]  # fmt: skip
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
    return sum(_chars(block) for block in blocks)


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
    return {key: _json_type(entry) for key, entry in value.items()} if isinstance(value, dict) else {}


def _schema(kinds: set[str]) -> dict[str, str]:
    return {"type": next(iter(kinds))} if len(kinds) == 1 else {}


def _json_type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    names = {str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _chars(block: Block) -> int:
    if isinstance(block, TranscriptText):
        return len(block.text)
    if isinstance(block, Image):
        return 0 if block.url else len(block.note)
    if isinstance(block, ToolUse):
        return len(block.name) + len(block.arguments)
    return sum(_chars(part) for part in block.parts)


def _content(parts: tuple[TranscriptText | Image, ...]) -> str | list[Message]:
    if not any(isinstance(part, Image) and part.url for part in parts):
        return JOINT.join(
            words for part in parts if (words := part.text if isinstance(part, TranscriptText) else part.note)
        )
    return [
        {"type": "image_url", "image_url": {"url": part.url}}
        if isinstance(part, Image) and part.url
        else {"type": "text", "text": part.text if isinstance(part, TranscriptText) else part.note}
        for part in parts
    ]


def _both(first: Any, second: Any) -> Any:
    if isinstance(first, str) and isinstance(second, str):
        return first + JOINT + second
    lists = [[{"type": "text", "text": entry}] if isinstance(entry, str) else entry for entry in (first, second)]
    return lists[0] + lists[1]


def _image_url(value: Mapping[str, Any]) -> str:
    """Its address, a data URL where the data is there; empty where neither is."""
    source = value.get("source")
    if isinstance(source, dict):
        if isinstance(source.get("data"), str):
            kind = source.get("media_type")
            return f"data:{clean(kind) if isinstance(kind, str) else 'image/png'};base64,{clean(source['data'])}"
        return clean(source["url"]) if isinstance(source.get("url"), str) else ""
    image = value.get("image_url")
    image = image.get("url") if isinstance(image, dict) else image
    return clean(image) if isinstance(image, str) else ""


def _use(value: Mapping[str, Any]) -> ToolUse:
    given = value.get("input")
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise BrokenLineError("a tool use whose input is no object")
    arguments = clean(json.dumps(given, ensure_ascii=False))
    return ToolUse(_text_of(value, "id", "a tool use"), _text_of(value, "name", "a tool use"), arguments)


def _call(value: Any) -> ToolUse:
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
    return ToolUse(_text_of(value, "id", "a tool call"), _text_of(made, "name", "a tool call"), clean(arguments))


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


# A recorded session as turns that share their beginnings, and the requests that were made of them.


class TranscriptTurn(Struct, eq=False):
    """One turn; `parent` is the one before it. Turns are shared between all prefixes that hold them."""

    role: str
    parent: TranscriptTurn | None
    id: str | None = None
    """Of the message, where the model made it."""
    blocks: list[Block] = field(default_factory=list)
    more: Mapping[str, str] = field(default_factory=dict)
    has_children: bool = False
    total: int | None = None
    """`chars`, once it was asked for."""

    @property
    def asks(self) -> bool:
        """Whether it is something to answer."""
        return self.role in ("user", "tool") and any(
            not isinstance(block, TranscriptText) or block.text for block in self.blocks
        )

    def up(self) -> Iterator[TranscriptTurn]:
        """This turn and all before it, the first last."""
        turn: TranscriptTurn | None = self
        while turn is not None:
            yield turn
            turn = turn.parent

    def path(self) -> list[TranscriptTurn]:
        """All turns from the first to this one."""
        return list(self.up())[::-1]

    @property
    def chars(self) -> int:
        """Characters of all texts up to here."""
        path: list[TranscriptTurn] = []
        turn: TranscriptTurn | None = self
        while turn is not None and turn.total is None:
            path.append(turn)
            turn = turn.parent
        total = turn.total or 0 if turn is not None else 0
        for transcript_turn in reversed(path):
            total += chars_of(transcript_turn.blocks)
            transcript_turn.total = total
        return total


class TranscriptCall(Struct, frozen=True, eq=False):
    """One request of the session: what was sent is everything up to and with the turn `last`."""

    number: int
    """From 1."""
    line: int
    """Where its answer, or else its last message, begins in the file."""
    last: TranscriptTurn
    given_tools: tuple[Message, ...] | None = None

    @property
    def chars(self) -> int:
        """Characters of all its texts, without tools."""
        return self.last.chars

    def messages(self) -> list[Message]:
        """The exact prefix, in OpenAI's form."""
        found: list[Message] = []
        for turn in self.last.path():
            found.extend(_messages(turn))
        return joined(found)


class Transcript(Struct, frozen=True):
    """A session. `skipped` are lines that were left out as broken, the first of them in words."""

    calls: tuple[TranscriptCall, ...]
    tools: tuple[Message, ...]
    """Made of what was used; for calls that name none themselves."""
    format: str
    lines: int
    skipped: int = 0
    broken: tuple[str, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Blocks and records that were not taken over, by kind."""
    more: bool = False
    """Reading stopped after as many calls as were wanted."""

    def tools_of(self, call: TranscriptCall) -> tuple[Message, ...]:
        """The tools of a call."""
        return self.tools if call.given_tools is None else call.given_tools


def _messages(turn: TranscriptTurn) -> list[Message]:
    """Its messages, with results made up for calls of the turn before that have none: a server would refuse them."""
    blocks = turn.blocks
    before = turn.parent
    if before is not None and before.role == "assistant" and turn.role == "user":
        answered = {block.id for block in blocks if isinstance(block, ToolResult)}
        missing = [block.id for block in before.blocks if isinstance(block, ToolUse) and block.id not in answered]
        blocks = [*(ToolResult(name, (TranscriptText(NO_RESULT),)) for name in missing), *blocks]
    return rendered(turn.role, blocks, turn.more)


# Makes turns and calls of a transcript's lines, one after the other.


CLAUDE, OPENAI = "Claude Code", "OpenAI messages"
_MOST_TOLD = 20
_SYNTHETIC = "<synthetic>"
"""The model of messages that Claude Code made itself."""


class BrokenFileError(ValueError):
    """A line is broken, and broken lines are not to be skipped."""


class Assembly(Struct):
    contents: Contents
    wanted: int | None
    skip_broken: bool = False
    calls: list[TranscriptCall] = field(default_factory=list)
    used: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    format: str | None = None
    chars: int = 0
    full: bool = False
    """As many calls as were wanted."""
    skipped: int = 0
    remarks: list[str] = field(default_factory=list)
    loose: bool = False
    """Messages come one a line."""
    tip: TranscriptTurn | None = None
    sidechain: bool | None = None
    """Whether the session is that of a subagent; None until the first message."""
    places: dict[str, TranscriptTurn | None] = field(default_factory=dict)
    """The tip right after each record, by its uuid."""
    ids: set[str] = field(default_factory=set)
    """Of all tool calls."""
    placed: set[tuple[int, bool, str]] = field(default_factory=set)
    """Calls and results by the turn they are in."""
    seen: dict[bytes, TranscriptTurn] = field(default_factory=dict)
    asked: set[TranscriptTurn] = field(default_factory=set)

    def take(self, line: TranscriptLine) -> None:
        """Add one line. Raises `BrokenFileError`."""
        number, value = line.number, line.value
        if line.broken:
            self._broken(f"line {number}", line.broken)
        elif isinstance(value, list):
            self._conversation(value, None, number)
        elif isinstance(value, dict) and isinstance(value.get("messages"), list):
            tools = value.get("tools")
            given = tuple(tool for tool in tools if isinstance(tool, dict)) if isinstance(tools, list) else ()
            self._conversation(value["messages"], given or None, number)
        else:
            with self._one(f"line {number}"):
                self._single(value, number)

    def finish(self, number: int) -> None:
        """What messages, one a line, end with is asked, too, when that is no answer."""
        if self.loose and not self.full:
            self._ask_last(number, None)

    @contextmanager
    def _one(self, where: str) -> Iterator[None]:
        try:
            yield
        except BrokenLineError as error:
            self._broken(where, str(error))
        except RecursionError:
            self._broken(where, "nested too deeply")

    def _broken(self, where: str, why: str) -> None:
        if not self.skip_broken:
            raise BrokenFileError(f"{where}: {why}")
        self.skipped += 1
        if self.skipped <= _MOST_TOLD:
            self.remarks.append(f"{where}: {why}")

    def _single(self, value: Any, number: int) -> None:
        if not isinstance(value, dict):
            raise BrokenLineError("no JSON object")
        if isinstance(value.get("role"), str) and value.get("type") in (None, "message"):
            self._is(OPENAI)
            self.loose = True
            self._spoken(value, number)
        elif isinstance(value.get("type"), str):
            self._is(CLAUDE)
            self._record(value, number)
        else:
            raise BrokenLineError("neither a record of Claude Code nor an OpenAI message")

    def _is(self, kind: str) -> None:
        if self.format is None:
            self.format = kind
        elif self.format != kind:
            raise BrokenLineError(f"{kind} among {self.format}")

    def _record(self, value: dict[str, Any], number: int) -> None:
        kind, uuid = value["type"], value.get("uuid")
        if isinstance(uuid, str) and uuid in self.places:
            self.left_out["repeated record"] += 1
            return
        if kind in ("user", "assistant"):
            side = value.get("isSidechain") is True
            self.sidechain = side if self.sidechain is None else self.sidechain
            if side != self.sidechain:
                self.left_out["record of a subagent" if side else "record of the main session"] += 1
                return
            self._told(value, kind, number)
        elif kind == "system" and value.get("subtype") == "compact_boundary":
            self.tip = None
        if isinstance(uuid, str):
            self.places[uuid] = self.tip

    def _told(self, value: dict[str, Any], role: str, number: int) -> None:
        message = value.get("message")
        if not isinstance(message, dict):
            raise BrokenLineError(f"a record of the {role} without a message")
        if message.get("role", role) != role:
            raise BrokenLineError(f"a record of the {role} whose message is of another role")
        if value.get("isApiErrorMessage") is True:
            self.left_out["API error"] += 1
            return
        blocks = self.contents.blocks(message.get("content"), role)
        self._check_results(blocks)
        if role == "user":
            self._user(value, blocks)
        else:
            self._assistant(value, message, blocks, number)

    def _check_results(self, blocks: list[Block]) -> None:
        for block in blocks:
            if isinstance(block, ToolResult) and block.id not in self.ids:
                raise BrokenLineError("a tool result without the tool use before it")

    def _user(self, value: dict[str, Any], blocks: list[Block]) -> None:
        if not any(isinstance(block, ToolResult) for block in blocks):
            is_root = "parentUuid" in value and value["parentUuid"] is None
            if value.get("isCompactSummary") is True or (is_root and self._has_assistant()):
                self.tip = None
            else:
                self._branch(value)
        if self.tip is None or self.tip.role != "user" or self.tip.has_children:
            self._new("user")
        self._add(blocks)

    def _assistant(self, value: dict[str, Any], message: dict[str, Any], blocks: list[Block], number: int) -> None:
        identity = message.get("id")
        name = identity if isinstance(identity, str) else None
        open_turn = self._open_assistant()
        if open_turn is not None and name is not None and open_turn.id == name:
            self._add(blocks, open_turn)
            return
        self._branch(value)
        if self.tip is not None and self.tip.role == "assistant" and not self.tip.has_children:
            self._add(blocks)
            self.tip.id = name
            return
        made_up = message.get("model") == _SYNTHETIC
        if not made_up and not self._call(number):
            return
        self._new("assistant", name)
        self._add(blocks)

    def _open_assistant(self) -> TranscriptTurn | None:
        """The turn that further records of the same message belong to, also after results of its first calls."""
        tip = self.tip
        if tip is not None and tip.role == "user" and tip.parent is not None and not tip.has_children:
            tip = tip.parent if all(isinstance(block, ToolResult) for block in tip.blocks) else None
        return tip if tip is not None and tip.role == "assistant" else None

    def _branch(self, value: dict[str, Any]) -> None:
        """Go back to the turn that the record follows, when a turn of the assistant has come since."""
        parent = value.get("parentUuid")
        if not isinstance(parent, str) or parent not in self.places:
            return
        target = self.places[parent]
        turn, passed = self.tip, False
        while turn is not None and turn is not target:
            passed = passed or turn.role == "assistant"
            turn = turn.parent
        if passed:
            self.tip = target
            self.left_out["branch"] += 1

    def _has_assistant(self) -> bool:
        return self.tip is not None and any(turn.role == "assistant" for turn in self.tip.up())

    def _conversation(self, messages: list[Any], tools: tuple[Message, ...] | None, number: int) -> None:
        """One list of messages, which begins again."""
        with self._one(f"line {number}"):
            self._is(OPENAI)
        if self.format != OPENAI:
            return
        self.tip, self.loose = None, False
        for index, message in enumerate(messages, 1):
            with self._one(f"line {number}, message {index}"):
                if not isinstance(message, dict):
                    raise BrokenLineError("no JSON object")
                self._spoken(message, number, tools)
            if self.full:
                return
        self._ask_last(number, tools)

    def _ask_last(self, number: int, tools: tuple[Message, ...] | None) -> None:
        if self.tip is not None and self.tip.role in ("user", "tool"):
            self._call(number, tools)

    def _spoken(self, value: dict[str, Any], number: int, tools: tuple[Message, ...] | None = None) -> None:
        role, blocks, more = self.contents.message(value)
        self._check_results(blocks)
        if role == "assistant" and (self.tip is None or self.tip.role != role) and not self._call(number, tools):
            return
        before = b"" if self.tip is None else self._key(self.tip)
        key = hashlib.blake2b(before + repr((role, blocks, more)).encode(), digest_size=16).digest()
        known = self.seen.get(key)
        if known is not None:
            self.tip = known
            return
        self._new(role, key.hex(), more)
        self._add(blocks)
        if self.tip is not None:
            self.seen[key] = self.tip

    def _key(self, turn: TranscriptTurn) -> bytes:
        return (turn.id or "").encode()

    def _call(self, number: int, tools: tuple[Message, ...] | None = None) -> bool:
        """Note a request with everything so far; False when there are as many as were wanted."""
        if self.tip is None or not any(turn.asks for turn in self.tip.up()):
            self.left_out["answer without a prompt"] += 1
            return True
        if self.tip in self.asked and self.format == OPENAI:
            self.left_out["request that was there already"] += 1
            return True
        if self.wanted is not None and len(self.calls) >= self.wanted:
            self.full = True
            return False
        self.asked.add(self.tip)
        self.calls.append(TranscriptCall(len(self.calls) + 1, number, self.tip, tools))
        return True

    def _new(self, role: str, name: str | None = None, more: Mapping[str, str] | None = None) -> None:
        if self.tip is not None:
            self.tip.has_children = True
        self.tip = TranscriptTurn(role, self.tip, name, more=more or {})

    def _add(self, blocks: list[Block], turn: TranscriptTurn | None = None) -> None:
        """Add blocks to a turn, else to the last; calls and results that are there already are not added again."""
        turn = turn or self.tip
        if turn is None:
            return
        fresh = []
        for block in blocks:
            if isinstance(block, ToolUse | ToolResult):
                mark = (id(turn), isinstance(block, ToolUse), block.id)
                if mark in self.placed:
                    continue
                self.placed.add(mark)
            fresh.append(block)
        turn.blocks.extend(fresh)
        self.chars += chars_of(fresh)
        for text in fresh:
            if isinstance(text, ToolUse):
                self.ids.add(text.id)
                fields = self.used.setdefault(text.name, {})
                for key, kind in fields_of(text.arguments).items():
                    fields.setdefault(key, set()).add(kind)


MOST_CHARS = 512 * 1024 * 1024
"""Of the texts that are kept."""


def read_transcript(
    stream: BinaryIO, name: str, *, turns: int | None = None, skip_broken: bool = False, images: bool = False
) -> Transcript:
    """The session of a file, at most its first `turns` calls; `images` keeps images, for which a note stands else.

    Raises `TranscriptError` for a broken line, unless those are to be skipped, and for a file without any call.
    """
    return assembled(read_lines(stream), name, turns=turns, skip_broken=skip_broken, images=images)


def assembled(
    lines: Iterable[TranscriptLine],
    name: str,
    *,
    turns: int | None = None,
    skip_broken: bool = False,
    images: bool = False,
) -> Transcript:
    """Likewise, of lines that were read already."""
    made = Assembly(Contents(images), turns, skip_broken)
    number = 0
    try:
        for line in lines:
            number = line.number
            made.take(line)
            if made.chars > MOST_CHARS:
                raise TranscriptError(
                    f"{name} line {number}: more than {MOST_CHARS // 2**20} MiB of text; read less of it with --turns"
                )
            if made.full:
                break
        made.finish(number)
    except BrokenFileError as error:
        raise TranscriptError(f"{name} {error}; mend it, or go on with --skip-broken") from None
    if not made.calls:
        raise TranscriptError(f"{name}{_nothing(made, number)}")
    return Transcript(
        tuple(made.calls),
        declared(made.used),
        made.format or "",
        number,
        made.skipped,
        tuple(made.remarks),
        dict(made.contents.left_out + made.left_out),
        made.full,
    )


def _nothing(made: Assembly, lines: int) -> str:
    if not lines:
        return " is empty; name a session that Claude Code wrote, or a list of OpenAI messages"
    if made.format is None:
        why = f" ({made.remarks[0]})" if made.remarks else ""
        return f": none of its {lines} lines is a record of Claude Code or an OpenAI message{why}"
    lost = f", {made.skipped} broken ones left out" if made.skipped else ""
    return f": no turn of an assistant after a prompt in {lines} lines{lost}, so there is nothing to replay"
