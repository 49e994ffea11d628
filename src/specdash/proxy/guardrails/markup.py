"""Reads call markup from text: where it ends, and which calls are in it. Pure functions of the text.

What is read may still grow: a text that ends where more could follow counts as markup up to its end.
"""

from __future__ import annotations

import ast
import functools
import json
import re
from dataclasses import field
from typing import TYPE_CHECKING, Any, NoReturn

from specdash.proxy.guardrails.dialects import CLOSES, NAME_ENDS, NAMESPACES, OPENS, types_of
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from specdash.proxy.translate.parse import Tool

_PYTHON_MAX = 200_000
_NAME = re.compile(r"[\w.:\-]{1,128}")
_BLANK = re.compile(r"\s*")
_JSON_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)
_PYTHON_TOKEN = re.compile(
    r"""\"\"\".*?\"\"\"|'''.*?'''|"[^"\\\n]*(?:\\.[^"\\\n]*)*"|'[^'\\\n]*(?:\\.[^'\\\n]*)*'|["'()\[\]{}]""", re.DOTALL
)
_NAME_KEY = re.compile(r"""["'](?:name|function|tool_name)["']\s*:\s*["']([^"'\n]*)["']""")
_ARGUMENTS_KEY = re.compile(r"""["'](?:arguments|parameters|input)["']\s*:""")
_PLACEHOLDER = re.compile(r"""[:{\[,(=]\s*(?:\.\.\.|…|<[^<>\n"|]{1,60}>)""")
_PYTHON_CALL = re.compile(r"(?:(?:await|print)\b[\s(]*)?([A-Za-z_][\w.\-]*)\(")
_PYTHON_START = re.compile(r"\[?\s*(?:print\(|await\s+)?\s*([A-Za-z_][\w.\-]*)\(")
_TAG = re.compile(r"""<(?P<space>antml:|｜DSML｜)?(?P<kind>function=|invoke name=|parameter=|parameter name=)""")
_TAG_REST = re.compile(r"""["']?(?P<name>[\w.:\-]{1,128})["']?(?P<more>[^<>\n]{0,64})>""")
_TAG_PART = re.compile(r"""["']?[\w.:\-]{0,128}["']?[^<>\n]{0,64}\Z""")
_HARMONY = re.compile(
    r"(?:<\|start\|>)?(?:assistant)?\s?(?:<\|channel\|>)?\s?(?:commentary|analysis)?\s?to=(?P<name>[\w.\-]{1,128})\s{0,3}"
    r"(?:<\|channel\|>(?:commentary|analysis)\s{0,3})?(?:<\|constrain\|>\s?)?(?:json|code)?\s{0,3}(?:<\|message\|>\s{0,3})?"
    r"(?=\{)"
)
_KIND = re.compile(r"function\s*<｜tool[▁_]sep｜>")
_HARMONY_HEAD = re.compile(r"(?:<\|start\|>)?(?:assistant)?\s?(?:<\|channel\|>)?\s?(?:commentary|analysis)?\s?to=")
_HARMONY_PART = re.compile(r"[\w.\-=<>|\s]{0,220}\Z")
_TOOL_TYPES = frozenset({"function", "tool"})
_ARGUMENTS = ("arguments", "parameters", "input")
_CALL_KEYS = frozenset({"name", "tool_name", "tool_call_id", "function", "type", "id", "index", *_ARGUMENTS})
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None, "none": None}
_TAGS = tuple(
    f"<{space}{kind}"
    for space in ("", "antml:", "｜DSML｜")
    for kind in ("function=", "invoke name=", "parameter=", "parameter name=")
)
_PLAIN_OPENS = tuple(name for name in OPENS if name not in _TAGS)
_LITERAL_MAX = max(map(len, (*OPENS, *CLOSES, *_TAGS)))
_CLOSING_TAG = re.compile(r"</(?:antml:|｜DSML｜)?([\w:]+)>")
_ORPHANS = frozenset({"parameter", "function", "tool_call", "invoke", "function_calls", "tool_calls"})
_FENCE_START = re.compile(r"```(?:json)?[ \t\r]*\n\s*")
_PRINTED = re.compile(r"print\(\w*\)")
_STRAY = re.compile(r"[\]}]{1,3}")
"""Brackets too many behind a whole value: they say nothing."""
_DECODER = json.JSONDecoder(strict=False)


class _UnfinishedError(Exception):
    """The text ends where more must follow."""


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call as text. `name` is None where it cannot be told; `arguments` where they are not readable.

    `placeholder` says that the arguments are those of an illustration: dots, or a word in angle brackets.
    """

    name: str | None
    arguments: dict[str, Any] | None
    placeholder: bool = False


@dataclass(slots=True)
class Markup:
    """A run of call markup: `end` is its first character that is none, the text's length when nothing else follows.

    `opened` says that a dialect's whole opening is in it, `unfinished` that its last call may go on; `orphans` are
    names of closing tags in a run without an opening.
    """

    start: int
    end: int = 0
    calls: list[WrittenCall] = field(default_factory=list)
    opened: bool = False
    unfinished: bool = False
    orphans: list[str] = field(default_factory=list)
    is_object: bool = False
    """The whole answer is JSON."""
    is_rules: bool = False
    """An echo of the supplement's rules."""


def read_markup(text: str, at: int, offered: Mapping[str, Tool], *, line_start: bool = True) -> Markup | None:
    """The run of call markup at `at`, or None when there is none. Closing tags alone are one only at a line's start."""
    reader = _Reader(text, at, offered)
    return reader.run(line_start=line_start)


def read_object(text: str, at: int, offered: Mapping[str, Tool]) -> Markup | None:
    """The calls of an answer that is nothing but JSON from `at` on, in a fence or not; None when it is another text.

    JSON is no markup by itself: the tool must be offered, and its parameters know every argument.
    """
    reader = _Reader(text, at, offered)
    found = Markup(at, len(text), is_object=True)
    try:
        if not reader.object_start():
            return None
        opened = reader.at
        fenced = text.startswith("`", at)
        found.opened = True
        end = _bracket_end(text, opened, _JSON_TOKEN)
        try:
            calls = _calls_of(_DECODER.decode(text[opened:end]), offered)
        except (ValueError, RecursionError):
            written = _broken_call(text[opened:end])
            if written is None or written.name not in offered:
                return None
            calls = [written]
        else:
            if calls is None or not all(_fits_loosely(call, offered) for call in calls):
                return None
        found.calls = calls
        reader.at = end
        reader.blank()
        if fenced:
            reader.literal("```")
            reader.blank()
    except _UnfinishedError:
        found.unfinished = True
        name = _NAME_KEY.search(text, at)
        if found.opened:
            found.calls = [WrittenCall(name[1] if name else None, None)]
        return found
    more = read_markup(text, reader.at, offered) if reader.at < len(text) else None
    if more is not None:
        reader.at = more.end
        found.calls += more.calls
        found.unfinished = more.unfinished
    found.end = reader.at
    return found if found.end == len(text) else None


def _with(values: dict[str, Any] | None, name: str, raw: str, types: frozenset[str] | None) -> dict[str, Any] | None:
    """`values` with one more; None once a name comes twice or its text is not of its type."""
    if values is None or name in values:
        return None
    try:
        return {**values, name: _typed(raw, types)}
    except (ValueError, RecursionError):
        return None


def _typed(raw: str, types: frozenset[str] | None) -> Any:
    """A parameter's text as the JSON value its schema asks for; text when it may be text."""
    word = raw.strip()
    if types is None or "string" in types:
        return None if types and "null" in types and word in {"null", "None"} else raw
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    return _DECODER.decode(word)


@functools.lru_cache(maxsize=64)
def _any_of(options: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(option) for option in sorted(options, key=len, reverse=True)))


def _decoded(text: str) -> Any:
    """The JSON value of a text, None for one that is none."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


def _fits_loosely(call: WrittenCall, offered: Mapping[str, Tool]) -> bool:
    tool = offered.get(call.name or "")
    if tool is None or call.arguments is None:
        return False
    properties = tool.schema.get("properties")
    return not isinstance(properties, dict) or not properties or properties.keys() >= call.arguments.keys()


def _bracket_end(text: str, at: int, token: re.Pattern[str]) -> int:
    """Where the value that begins with a bracket at, or after, `at` ends. Raises when the text ends before.

    `token` finds brackets and whole strings; a lone quote is a string that does not end.
    """
    depth = 0
    for found in token.finditer(text, at):
        mark = found[0]
        if mark in "([{":
            depth += 1
        elif mark in ")]}":
            depth -= 1
            if depth <= 0:
                return found.end()
        elif len(mark) == 1:
            break
    raise _UnfinishedError


def _plain(name: str, offered: Mapping[str, Tool]) -> str:
    """A tool's name without what models write around it."""
    if name in offered:
        return name
    for namespace in NAMESPACES:
        name = name.removeprefix(namespace)
    return re.sub(r":\d+\Z", "", name)


def _calls_of(value: Any, offered: Mapping[str, Tool]) -> list[WrittenCall] | None:
    """The calls that a JSON value is, None when it is anything else."""
    values = value if isinstance(value, list) else [value]
    found = [_call_of(value, offered) for value in values]
    return [call for call in found if call is not None] if found and None not in found else None


def _call_of(value: Any, offered: Mapping[str, Tool]) -> WrittenCall | None:
    if not isinstance(value, dict):
        return None
    if len(value) == 1:
        ((name, arguments),) = value.items()
        if name in offered and isinstance(arguments, dict):
            return WrittenCall(name, arguments)
    if not _CALL_KEYS.issuperset(value):
        return None
    function = value.get("function")
    if isinstance(function, dict):
        return _call_of(function, offered) if "function" not in function else None
    name = value.get("name", value.get("tool_name", function))
    arguments = next((value[key] for key in _ARGUMENTS if key in value), None)
    if isinstance(arguments, str):
        arguments = _decoded(arguments)
    if not isinstance(name, str) or not name or not any(key in value for key in _ARGUMENTS):
        return None
    return WrittenCall(_plain(name, offered), arguments if isinstance(arguments, dict) else None)


def _broken_call(written: str) -> WrittenCall | None:
    """What can be told of JSON that is none."""
    name = _NAME_KEY.search(written)
    if name is None or _ARGUMENTS_KEY.search(written) is None:
        return None
    return WrittenCall(name[1], None, _PLACEHOLDER.search(written) is not None)


class _Reader:
    """Reads one run. Each step either advances, or finds that no markup is here (returns a false value), or raises
    `_UnfinishedError` because the text ends before that is decided.
    """

    def __init__(self, text: str, at: int, offered: Mapping[str, Tool]) -> None:
        self.text = text
        self.at = at
        self.found = Markup(at)
        self._offered = offered
        self._inside = False
        self._needs_payload = False
        self._fenced = False
        self._opening = at

    def run(self, *, line_start: bool) -> Markup | None:
        found, first = self.found, True
        while True:
            self.blank()
            if self.at == len(self.text) and not first:
                found.unfinished |= self._needs_payload
                break
            begun = self.at
            try:
                if not self._step(first=first, line_start=line_start):
                    break
            except _UnfinishedError:
                found.unfinished = True
                self.at = len(self.text)
                break
            first = first and self.at == begun
        if first and self.at != len(self.text):
            return None
        if self._needs_payload and self.at < len(self.text):
            # The last opening leads to nothing: it is a word of the prose that follows.
            self.at = self._opening
            if self.at == found.start:
                return None
        found.end = self.at
        return found

    def blank(self) -> None:
        blank = _BLANK.match(self.text, self.at)
        self.at = blank.end() if blank else self.at

    def literal(self, *options: str) -> str | None:
        """Take the longest of `options` that stands here."""
        if len(self.text) - self.at < _LITERAL_MAX:
            rest = self.text[self.at :]
            if any(len(option) > len(rest) and option.startswith(rest) for option in options):
                raise _UnfinishedError
        here = _any_of(options).match(self.text, self.at)
        if here is None:
            return None
        self.at = here.end()
        return here[0]

    def _fence(self) -> bool:
        """Take a fence's first line, where one stands here."""
        fence = _FENCE_START.match(self.text, self.at)
        if fence is None:
            rest = self.text[self.at : self.at + 80].rstrip(" \t\r")
            if rest and "```json".startswith(rest) and self.at + len(rest) >= len(self.text.rstrip(" \t\r")):
                raise _UnfinishedError
            return False
        self.at = fence.end()
        return True

    def object_start(self) -> bool:
        """Take what stands before the JSON of an answer; true when its first key is one of a call's."""
        self._fence()
        if self.at == len(self.text):
            raise _UnfinishedError
        begun = self.at
        head = re.compile(r'(?:\[\s*)?\{\s*"(?P<key>\w*)"\s*:\s*(?:"(?P<value>[^"\\\n]*)"|(?P<other>[^\s"]))')
        found = head.match(self.text, begun)
        if found is None:
            part = re.compile(r'(?:\[\s*)?(?:\{\s*(?:"\w{0,64}(?:"\s*(?::\s*(?:"[^"\\\n]{0,128})?)?)?)?)?\Z')
            if self.text[begun] in "{[" and part.match(self.text, begun):
                raise _UnfinishedError
            return False
        key, value = found["key"], found["value"]
        if key in {"name", "tool_name"} or (key == "function" and value is not None):
            return value is not None and (_plain(value, self._offered) in self._offered)
        if key == "type":
            return value in _TOOL_TYPES
        return key in {"function", "id", "tool_call_id", *_ARGUMENTS} or key in self._offered

    def _step(self, *, first: bool, line_start: bool) -> bool:
        if self._inside and self._needs_payload and self._payload():
            return True
        at = self.at
        if self._fenced and self.literal("```"):
            self._inside = self._fenced = False
            return True
        if self._closer(alone=line_start or not first):
            return True
        self.at = at
        if self._tag() or self._harmony():
            return True
        opened = self.literal(*_PLAIN_OPENS)
        if opened is not None:
            self._opening = at
            self._inside = self._needs_payload = self.found.opened = True
            self._fenced = opened.startswith("```")
            if opened == "functools[":
                self.at -= 1
            return True
        if not self._inside or not self.found.calls:
            return False
        separated = self.literal(",", ";") is not None
        self.blank()
        return (separated or self._fenced or self.text.startswith(("{", "["), self.at)) and self._payload()

    def _closer(self, *, alone: bool) -> bool:
        """A closing tag, where one may stand `alone` or something was opened; or a token that ends a turn."""
        closed = self.literal(*CLOSES)
        if closed is None:
            return False
        self._inside = self._needs_payload = False
        tag = _CLOSING_TAG.match(closed)
        if tag is not None and not self.found.opened:
            # Alone, only a template's own tags are debris, and a single one only when its line ends with it.
            if tag[1] not in _ORPHANS or not alone:
                return False
            self.found.orphans.append(tag[1])
        return True

    def _tag(self) -> bool:
        """A call or a lone parameter in tags that carry names."""
        opening = _TAG.match(self.text, self.at)
        if opening is None:
            rest = self.text[self.at : self.at + 40]
            if self.at + len(rest) == len(self.text) and rest and any(tag.startswith(rest) for tag in _TAGS):
                raise _UnfinishedError
            return False
        head = _TAG_REST.match(self.text, opening.end())
        if head is None:
            if _TAG_PART.match(self.text, opening.end()):
                raise _UnfinishedError
            return False
        begun, self.at = self.at, head.end()
        name = _plain(head["name"], self._offered)
        space = opening["space"] or ""
        if opening["kind"].startswith("parameter"):
            return self._lone_parameter(begun, space)
        try:
            call = self._tagged(name, space, "function" if opening["kind"] == "function=" else "invoke")
        except _UnfinishedError:
            self._breaks_off(name)
        if call is None:
            self.at = begun
            return False
        self.found.opened = True
        self._needs_payload = False
        self.found.calls.append(call)
        return True

    def _types_of(self, name: str) -> Callable[[str], frozenset[str] | None]:
        """The declared types of the parameters of a tool, by their names."""
        tool = self._offered.get(name)
        properties = tool.schema.get("properties") if tool is not None else None
        declared = properties if isinstance(properties, dict) else {}
        return lambda parameter: types_of(declared.get(parameter))

    def _lone_parameter(self, begun: int, space: str) -> bool:
        """A parameter outside a call: the rest of one whose head the upstream took away."""
        end = self.text.find(f"</{space}parameter>", self.at)
        if end < 0:
            line = self.text.find("\n", self.at)
            if line >= 0 and self.text[self.at : line].strip():
                self.at = begun
                return False
            raise _UnfinishedError
        value = self.text[self.at : end]
        if "\n" in value and not value.startswith(("\n", "\r")):
            self.at = begun
            return False
        self.at = end
        return self._closer(alone=True)

    def _tagged(self, name: str, space: str, tag: str) -> WrittenCall | None:
        text = self.text
        self.blank()
        closers = (f"</{space}{tag}>", f"</{tag}>")
        if self.at == len(text):
            raise _UnfinishedError
        if text.startswith("{", self.at):
            return WrittenCall(name, self._json_arguments(*closers))
        types_of = self._types_of(name)
        values: dict[str, Any] | None = {}
        parameters = ("<parameter=", "<parameter name=", f"<{space}parameter name=")
        while (opener := self.literal(*parameters)) is not None:
            head = _TAG_REST.match(text, self.at)
            if head is None:
                return self._spoilt(name, closers)
            raw = self._value(head.end(), space)
            if opener == "<parameter=":
                raw = raw.removeprefix("\n").removesuffix("\n")
            if head["more"].startswith(" string=") and "true" not in head["more"]:
                types: frozenset[str] | None = frozenset({"object"})
            else:
                types = types_of(head["name"])
            values = _with(values, head["name"], raw, types)
            self.blank()
        if self.literal(*closers) is None:
            # Another tag than one of a call: markup of something else, unless parameters were read before it.
            return self._spoilt(name, closers) if values is None or values else None
        return WrittenCall(name, values)

    def _spoilt(self, name: str, closers: tuple[str, ...]) -> WrittenCall:
        """A call whose parameters cannot be read, up to what closes it."""
        self._skip_to(closers, self.at)
        self.literal(*closers)
        return WrittenCall(name, None)

    def _value(self, at: int, space: str) -> str:
        """The text of a parameter that begins at `at`: up to the closing tag that another tag of the call follows."""
        follows = rf"\s*(?:<(?:{space})?parameter[ =]|</(?:{space})?(?:invoke|function)>|\Z)"
        ending = re.compile(rf"</(?:{space})?parameter>(?={follows})").search(self.text, at)
        if ending is None:
            raise _UnfinishedError
        self.at = ending.end()
        return self.text[at : ending.start()]

    def _harmony(self) -> bool:
        """A call addressed as the Harmony format does."""
        found = _HARMONY.match(self.text, self.at)
        if found is None:
            rest = self.text[self.at : self.at + 240]
            is_all = self.at + len(rest) == len(self.text) and "\n\n" not in rest
            if is_all and _HARMONY_HEAD.match(rest) and _HARMONY_PART.match(rest):
                self.found.opened |= "to=functions." in rest
                raise _UnfinishedError
            return False
        name = _plain(found["name"], self._offered)
        if "functions." not in found["name"] and name not in self._offered:
            return False
        self._opening, self.at = self.at, found.end()
        self.found.opened, self._needs_payload, self._inside = True, False, True
        self._append(name, lambda: self._json_arguments("<|call|>", "<|end|>"))
        return True

    def _append(self, name: str | None, read: Callable[[], dict[str, Any] | None]) -> None:
        try:
            self.found.calls.append(WrittenCall(name, read()))
        except _UnfinishedError:
            self._breaks_off(name)

    def _breaks_off(self, name: str | None) -> NoReturn:
        self.found.calls.append(WrittenCall(name, None))
        raise _UnfinishedError from None

    def _payload(self) -> bool:
        """What stands inside an opening, in whatever form."""
        text = self.text
        if self.at == len(text):
            raise _UnfinishedError
        at = self.at
        fenced = self._fence()
        begun = self.at
        for read in (self._named, self._json_calls, self._python):
            self.at = begun
            if read():
                break
        else:
            self.at = at
            return False
        if fenced:
            self.blank()
            self.literal("```")
        self._needs_payload = False
        return True

    def _json_calls(self) -> bool:
        text, at = self.text, self.at
        if not text.startswith(("{", "["), at) or _PYTHON_START.match(text, at):
            return False
        try:
            end = _bracket_end(text, at, _JSON_TOKEN)
            value = _DECODER.decode(text[at:end])
        except _UnfinishedError:
            return self._unreadable(at, None)
        except (ValueError, RecursionError):
            return self._unreadable(at, self._nearest(CLOSES, at))
        calls = _calls_of(value, self._offered)
        if calls is None:
            name = value.get("name") if isinstance(value, dict) else None
            if not isinstance(name, str) or name not in self._offered:
                return False
            calls = [WrittenCall(name, None)]
        self.at = self._past_stray(end)
        self.found.calls += calls
        return True

    def _past_stray(self, at: int) -> int:
        stray = _STRAY.match(self.text, at)
        return stray.end() if stray else at

    def _unreadable(self, at: int, stop: int | None) -> bool:
        """JSON that is none, up to the closing literal at `stop`; None: up to the text's end."""
        call = _broken_call(self.text[at:stop])
        if stop is None:
            name = _NAME_KEY.search(self.text, at)
            self.found.calls.append(call or WrittenCall(name[1] if name else None, None))
            raise _UnfinishedError
        if call is None:
            return False
        self.found.calls.append(call)
        self.at = stop
        return True

    def _json_arguments(self, *closers: str) -> dict[str, Any] | None:
        """The JSON object here; None for one that cannot be read, up to what closes the call."""
        text, at = self.text, self.at
        end = _bracket_end(text, at, _JSON_TOKEN)
        value = _decoded(text[at:end])
        if isinstance(value, dict):
            self.at = self._past_stray(end)
            return value
        self._skip_to(closers, at)
        return None

    def _named(self) -> bool:
        """A name, then its arguments: as JSON behind a separator, as pairs of tags, or none at all."""
        text, begun = self.text, self.at
        if text.startswith(("{", "[", "<", "`"), begun):
            return False
        kind = _KIND.match(text, begun)
        if kind is not None:
            self.at = kind.end()
        self.literal("call:")
        if self.at == len(text):
            raise _UnfinishedError
        word = _NAME.match(text, self.at)
        if word is None:
            return False
        self.at = word.end()
        if self.at == len(text):
            raise _UnfinishedError
        name = _plain(word[0], self._offered)
        if text.startswith("call:", begun) and text.startswith("{", self.at):
            return self._gemma(name)
        self.blank()
        if self.at == len(text) and name in self._offered:
            self._breaks_off(name)
        return self._arguments_of(name, is_known=kind is not None or name in self._offered)

    def _arguments_of(self, name: str, *, is_known: bool) -> bool:
        text = self.text
        if self.literal("[CALL_ID]"):
            _, end = self._until("[ARGS]")
            self.at = end - len("[ARGS]")
        if text.startswith("<arg_key>", self.at):
            return self._pairs(name)
        separated = self.literal("<arg_key>", *NAME_ENDS, *CLOSES)
        if separated in CLOSES:
            self.at -= len(separated)
            if name not in self._offered:
                return False
            self.found.calls.append(WrittenCall(name, {}))
            return True
        self.blank()
        fenced = self._fence()
        is_known |= separated is not None
        if is_known and text.startswith("{", self.at):
            self._append(name, lambda: self._json_arguments(*CLOSES))
            if fenced:
                self.blank()
                self.literal("```")
            return True
        if is_known and self.at == len(text):
            self._breaks_off(name)
        return False

    def _gemma(self, name: str) -> bool:
        """Gemma 4's own notation; its strings stand between tokens."""
        end = self.text.find("<tool_call|>", self.at)
        if end < 0:
            self._breaks_off(name)
        raw = self.text[self.at : end].replace('<|"|>', '"')
        raw = re.sub(r"([{,]\s*)([A-Za-z_]\w*)\s*:", r'\1"\2":', raw)
        value = _decoded(raw.strip())
        self.found.calls.append(WrittenCall(name, value if isinstance(value, dict) else None))
        self.at = end
        return True

    def _pairs(self, name: str) -> bool:
        types_of = self._types_of(name)
        values: dict[str, Any] | None = {}
        try:
            while self.literal("<arg_key>"):
                key, at = self._until("</arg_key>")
                self.at = at
                self.blank()
                if not self.literal("<arg_value>"):
                    values = None
                    break
                raw, self.at = self._until("</arg_value>")
                values = _with(values, key.strip(), raw, types_of(key.strip()))
                self.blank()
        except _UnfinishedError:
            self._breaks_off(name)
        if values is None:
            _, end = self._until("</tool_call>")
            self.at = end - len("</tool_call>")
        self.found.calls.append(WrittenCall(name, values))
        return True

    def _nearest(self, closers: Iterable[str], at: int) -> int | None:
        """Where the first of `closers` stands from `at` on."""
        return min((place for closer in closers if (place := self.text.find(closer, at)) >= 0), default=None)

    def _skip_to(self, closers: Iterable[str], at: int) -> None:
        place = self._nearest(closers, at)
        if place is None:
            raise _UnfinishedError
        self.at = place

    def _until(self, tag: str) -> tuple[str, int]:
        end = self.text.find(tag, self.at)
        if end < 0:
            raise _UnfinishedError
        return self.text[self.at : end], end + len(tag)

    def _python(self) -> bool:
        """Calls in Python's notation: one, a list of them, or several in lines."""
        text, at = self.text, self.at
        if self._fenced:
            return self._python_code()
        start = _PYTHON_START.match(text, at)
        if start is None:
            if re.compile(r"\[?\s*(?:print\(|await\s+)?\s*[\w.\-]*\Z").match(text, at):
                raise _UnfinishedError
            return False
        name = _plain(start[1].removesuffix(".call"), self._offered)
        try:
            end = _bracket_end(text, at, _PYTHON_TOKEN)
        except _UnfinishedError:
            self._breaks_off(name)
        self.at = end
        self.found.calls += self._python_calls(text[at:end]) or [
            WrittenCall(name, None, _PLACEHOLDER.search(text[at:end]) is not None)
        ]
        return True

    def _python_code(self) -> bool:
        """The code of a fence that is for calls; any that is to be run in it counts."""
        source, _ = self._until("```") if "```" in self.text[self.at :] else (self.text[self.at :], 0)
        names = [_plain(found[1], self._offered) for found in _PYTHON_CALL.finditer(source)]
        known = next((name for name in names if name in self._offered), names[0] if names else None)
        if self.at + len(source) == len(self.text):
            self._breaks_off(known)
        if known is None:
            return False
        self.at += len(source)
        self.found.calls += self._python_calls(source) or [
            WrittenCall(known, None, _PLACEHOLDER.search(source) is not None)
        ]
        return True

    def _python_calls(self, source: str) -> list[WrittenCall] | None:
        if len(source) > _PYTHON_MAX:
            return None
        try:
            tree = ast.parse(source.strip())
            found: list[WrittenCall] = []
            for statement in tree.body:
                if not isinstance(statement, ast.Expr | ast.Assign):
                    return None
                value = statement.value
                if _PRINTED.fullmatch(ast.unparse(value)):
                    continue
                found += [self._python_call(elt) for elt in (value.elts if isinstance(value, ast.List) else [value])]
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            return None
        return found

    def _python_call(self, node: ast.expr) -> WrittenCall:
        if isinstance(node, ast.Await):
            node = node.value
        if not isinstance(node, ast.Call):
            raise TypeError(ast.dump(node))
        if isinstance(node.func, ast.Name) and node.func.id == "print" and len(node.args) == 1 and not node.keywords:
            return self._python_call(node.args[0])
        if node.args or any(keyword.arg is None for keyword in node.keywords):
            raise ValueError
        name = _plain(ast.unparse(node.func).removesuffix(".call"), self._offered)
        return WrittenCall(name, {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords})
