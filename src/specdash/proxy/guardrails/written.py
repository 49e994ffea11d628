"""Tool calls that a model wrote as text at the end of its answer, read once the answer is whole.

A complete call of an offered tool, with arguments of its schema and nothing behind it, is a call. One that names an
offered tool and cannot be read, closing tags that nothing opened, and echoed tool rules are faults. The rest is text:
what is quoted, followed by prose, or introduced as an example. Sources of the forms: the models' chat templates.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from specdash.proxy.answer.blocks import ToolCall
from specdash.proxy.guardrails.openings import Openings, plain_name, prose_lines
from specdash.proxy.guardrails.schema import problem, types_of
from specdash.proxy.guardrails.unexpected_end import announces_action
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.proxy.translate.parse import Tool


@dataclass(frozen=True, slots=True)
class ToolUseFault:
    """Why an answer's tool use is malformed; safe to log: names and types, never text of the answer.

    `kind` is empty_name, unknown_tool, bad_json, not_an_object, schema, missing_call, unparsed_call, orphan_tags,
    json_as_text or supplement_echo. `tool` is the tool meant, when that is known.
    """

    kind: str
    tool: str | None
    detail: str


@dataclass(frozen=True, slots=True)
class Written:
    """What the end of an answer is, from `start` on: `text`, then `calls`; or, with a `fault`, what cannot be read."""

    start: int
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    fault: ToolUseFault | None = None

    def moved(self, by: int) -> Written:
        """The same in a text that begins elsewhere."""
        return Written(max(0, self.start + by), self.text, self.calls, self.fault)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call as it stands in the text; `arguments` is None where they are no object, or the call `is_broken`.

    `is_sample` says that dots or a word in angle brackets stand for them, `is_cut` that the text ends inside.
    """

    name: str | None
    arguments: dict[str, Any] | None
    is_sample: bool = False
    is_cut: bool = False
    is_broken: bool = False


_DEEPEST = 64
_LOOKED_AT = 4000
"""Characters of a call that cannot be read in which its name is looked for."""
_ECHO_MAX = 4000
"""Characters at the end of an answer in which rules are looked for."""
IN_TEXT = frozenset({"unparsed_call", "json_as_text"})
"""Kinds of faults of a call that stands in the text."""
_MOST_PLACES = 24
"""So many places at either end of a text are looked at."""
_SPACE = r"(?:antml:|｜DSML｜|minimax:|seed:)?"
_NOISE = re.compile(
    rf"""\s+|[,;]|</[\w:]*\Z|</s>|<(?:start|end)_of_turn>
    |(?P<opens><{_SPACE}(?:tool_calls?|tools|function_calls?|tool_use|tool_code|TOOLCALL)>|\[TOOL_CALLS\]|functools(?=\[)
      |<\|(?!\w*(?:end|suffix)\b)(?:tool|python_tag|function_call|START_ACTION|action_start|plugin|interpreter)\w*\|?>
      |<｜tool[\w▁]*begin｜>|```[ ]?(?:tool_calls?|tool_code|tool_use|function_call)[ \t\r]*(?=\n|\Z))
    |(?:<\|start\|>assistant)?<\|channel\|>analysis<\|message\|>.*?(?:<\|end\|>|\Z)
    |</{_SPACE}(?:tool_calls?|tools|function_calls?|tool_use|tool_code|TOOLCALL|parameter|function|invoke)>|<\|(?!start\||channel\|)/?\w+\|>|<\w+\|>
    |<｜[\w▁]+｜>|\[/TOOL_CALLS\]|```(?:json|JSON)?[ \t\r]*(?=\n|\Z|<)|(?<=[\]}}])[\]}}]{{1,3}}(?=\s*(?:[<`]|\Z))""",
    re.VERBOSE | re.DOTALL,
)
_CLOSERS = r"parameter|function|tool_call|invoke|function_calls|tool_calls"
_CLOSER = re.compile(
    rf"</{_SPACE}(?:{_CLOSERS}|tool_use|function_call|TOOLCALL)>|\[/TOOL_CALLS\]|<\|(?!python)\w+\|>|<tool_call\|>|<｜tool"
)
_FUNCTION = re.compile(
    rf"""<{_SPACE}(?:function=|invoke\ name=)["']?(?P<name>[\w.:\-]{{1,128}})["']?[^<>\n]{{0,64}}>
    (?P<body>\s*(?=\{{|<{_SPACE}parameter|</{_SPACE}(?:function|invoke)>|<?\Z))""",
    re.VERBOSE,
)
_FUNCTION_END = re.compile(rf"(?:(?<=\}})\}}{{1,3}})?\s*</{_SPACE}(?:function|invoke)>")
_PARAMETER = re.compile(
    rf"""\s*<{_SPACE}parameter(?P<is>=|\ name=)["']?(?P<name>[\w.:\-]{{1,128}})["']?(?P<more>[^<>\n]{{0,64}})>
    (?P<value>.*?)</{_SPACE}parameter>(?=\s*(?:<{_SPACE}parameter[=\ ]|</{_SPACE}(?:function|invoke)>|\Z))""",
    re.VERBOSE | re.DOTALL,
)
_PAIRED = re.compile(r"(?P<name>[\w.\-]{1,128})[ \t]*\n?\s*(?=<arg_key>|</tool_call>|\Z)")
_PAIR = re.compile(
    r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>(?=\s*(?:<arg_key>|</tool_call>|\Z))", re.DOTALL
)
_NAMED = re.compile(
    r"(?:function\s*<｜tool[▁_]sep｜>)?(?P<name>[\w.:\-]{1,128})\s*(?:\[CALL_ID\]\w+)?"
    r"(?P<mark>\[ARGS\]|<\|tool_call_argument_begin\|>|<｜tool[▁_]sep｜>)?\s*(?:```json\s*)?(?=\{|\Z)"
)
_HARMONY = re.compile(
    r"(?:<\|start\|>)?(?:assistant)?\s?(?:<\|channel\|>)?\s?(?:commentary|analysis)?\s?to=(?P<name>[\w.\-]{1,128})\s{0,3}"
    r"(?:<\|channel\|>(?:commentary|analysis)\s{0,3})?(?:<\|constrain\|>\s?)?(?:json|code)?\s{0,3}(?:<\|message\|>\s{0,3})?"
    r"(?=\{|\w{0,4}\Z)"
)
_FINAL = re.compile(
    r"(?:<\|start\|>assistant)?<\|channel\|>final<\|message\|>(.*?)(?:<\|(?:return|end)\|>\s*)?\Z", re.DOTALL
)
_GEMMA = re.compile(r"call:(?P<name>[\w.\-]{1,128})(?=\{)")
_GEMMA_TEXT = re.compile(r'<\|"\|>(.*?)<\|"\|>|(?<=[{,])\s*(\w+):', re.DOTALL)
_PYTHON = re.compile(
    r"(?:\[\s*)?(?:(?:await|print)\b[\s(]*|\w+\s*=\s*)*[A-Za-z_][\w.\-]*\(|(?:for|if|try|with|import|from)\b"
)
_PYTHON_END = re.compile(r"\n?```|</tool_code>|<\|\w+\|>|<tool_call\|>|\Z")
_BARE = re.compile(r"(?:```(?:json|JSON)?[ \t\r]*\n\s*)?(?:\[\s*)?\{")
_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)
_NAME_KEY = re.compile(r"""["'](?:name|function|tool_name|tool)["']\s*:\s*["']([^"'\n]*)["']""")
_ARGUMENTS_KEY = re.compile(r"""["'](?:arguments|parameters|input|args)["']\s*:""")
_SAMPLE = re.compile(r"""[:{\[,(=]\s*(?:\.\.\.|…|<[^<>\n"|]{1,60}>)""")
_ARGUMENTS = ("arguments", "parameters", "input", "args")
_CALL_KEYS = frozenset({"name", "tool_name", "tool", "tool_call_id", "function", "type", "id", "index", *_ARGUMENTS})
_PLAIN_NAME = re.compile(r"[\w.:\-/]{1,128}")
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None, "none": None}
_DECODER = json.JSONDecoder(strict=False)

_ORPHANS = re.compile(
    rf"(?:^[ ]{{0,3}}|(?<=[.!?…:。！？：])[ \t]{{0,3}}|(?<=[\w.!?])(?=</\w+>\s*</))"
    rf"(?:<parameter(?:=|\ name=)[^<>\n]+>(?:[ \t]*\n(?:(?!</?parameter)[^\0])*?|[^\n<]*)</parameter>\s*)*"
    rf"(?P<closers>(?:</{_SPACE}(?:{_CLOSERS})>\s*)*)\Z",
    re.MULTILINE,
)
_EXAMPLE = re.compile(
    r"\b(?:examples?|for\s+instance|e\.g|like\s+(?:this|so)|in\s+this\s+form|as\s+follows|samples?|illustrat\w+|"
    r"beispiel\w*|so\s+aus|exemples?|comme\s+(?:ceci|suit)|ejemplos?|así|esempi\w*|così|exemplos?|assim|пример\w*|например)"
    r"\b|例|예"
)
_FORM = re.compile(
    r"\b(?:such\s+as|looks?\s+like|written\s+as|formats?|formatted|syntax|templates?|markup|notation|tags?|tokens?|dialects?"
    r"|(?:writes?|makes?|represents?|encodes?)\s+(?:an?|the|its|their)\b.{0,12}\bcalls?|emits?|emitted|wire|prompts?|syntaxe|formato|sintaxis|sintassi|формат\w*|синтаксис\w*)\b|形式|格式|構文|语法|語法"
)
_MODEL = re.compile(
    r"\b(?:hermes|qwen|mistral|llama|claude|gemma|deepseek|kimi|minimax|glm|gpt-oss|harmony"
    r"|(?:tool|function)[- ]calls?\b)"
)
_SHOWS = re.compile(
    r"\b(?:here(?:'s|\s+is|\s+are)|this\s+is|below\s+is|hier\s+ist|voici|aquí|ecco|aqui)\b.{0,40}"
    r"\b(?:example|sample|beispiel\w*|exemple|ejemplo|esempio|exemplo)\b"
    r"|\b(?:example|sample)\s+(?:of\s+)?(?:an?\s+|the\s+)?(?:\w+\s+)?(?:call|invocation)"
)
_SENTENCE = re.compile(r"[.!?…。！？]\s+|\n")
_INTENDS = re.compile(
    r"(?i)(?:(?:now|next|first|so|ok|okay|good|great|sure),? )*(?:let me|let's|i'll|i will|i'm going to) "
    r"|(?i:sure|ok|okay|certainly|of course|alright)\W*\Z"
)
_POLICY = re.compile(
    r"(?i)(?:\d+\.\s*|[-*]\s*)?(?P<rule></?agentic-protocol>|you must call a tool\b|do not summari[sz]e the"
    r"|never describe a call|if you have (?:found|identified) a problem|after a change you must call"
    r"|when a step needs a tool, emit|use only the tools offered|wait for a tool's result|keep these rules to yourself"
    r"|when the task is done or cannot go on)"
)
_ECHO = ToolUseFault("supplement_echo", None, "the answer echoes the tool rules of the system prompt")


def written_at_end(
    text: str, offered: Mapping[str, Tool], *, is_truncated: bool = False, seed: str = ""
) -> Written | None:
    """What the end of a whole answer is; None for plain text.

    `is_truncated` says that the token limit ended it. Ids of calls depend on `seed`, text and position.
    """
    start, ended, closed = -1, 0, None
    for start in Openings(offered).places(text, _MOST_PLACES):
        if start < ended:
            # In a run of markup behind which text follows.
            continue
        if closed is None:
            closed = max((found.end() for found in _CLOSER.finditer(text)), default=0)
        reader = _Reader(text, start, offered, closed)
        if (found := reader.read()) is not None:
            return _judged(text, start, found, offered, is_truncated=is_truncated, seed=seed)
        ended = reader.at
    return _orphans(text) if start >= 0 else echoed_rules(text)


def _judged(
    text: str, start: int, found: _Reader, offered: Mapping[str, Tool], *, is_truncated: bool, seed: str
) -> Written | None:
    """What a run of markup that reaches the end is."""
    lead, calls = text[:start], found.calls
    if found.final is not None and not calls:
        return Written(start, found.final)
    fits = bool(calls) and all(_fits(call, offered) for call in calls)
    if found.is_bare:
        if not all(_knows_arguments(call, offered) for call in calls):
            return None
        is_readable = fits or calls[-1].is_broken
        if lead.strip() and not (is_readable and _INTENDS.match(_last_sentence(lead))):
            return None
    if _is_example(lead, fits=fits):
        return None
    if fits:
        digest = hashlib.sha256(f"{seed}\0{text[start:]}".encode("utf-8", "surrogatepass"))
        made = []
        for call in calls:
            digest.update(b"\0")
            made.append(ToolCall(f"toolu_{digest.hexdigest()[:24]}", call.name or "", json.dumps(call.arguments)))
        return Written(start, calls=tuple(made))
    named = next((call.name for call in calls if call.name in offered), None)
    is_cut = bool(calls) and calls[-1].is_cut and calls[-1].name is None
    if any(call.name and not _PLAIN_NAME.fullmatch(call.name) for call in calls):
        return None
    if (calls and all(call.is_sample for call in calls)) or (calls and lead.strip() and not (named or is_cut)):
        return None
    if not calls and (is_truncated or text[start] in "{[`"):
        return None
    kind = "json_as_text" if found.is_bare else "unparsed_call"
    what = "the call was left unparsed in the text" if calls else "only its call's opening came"
    return Written(start, fault=ToolUseFault(kind, named, f"{named or 'a tool'}: {what}"))


def _fits(call: _Call, offered: Mapping[str, Tool]) -> bool:
    tool = offered.get(call.name or "")
    if tool is None or call.arguments is None or call.is_sample or call.is_cut or problem(tool, call.arguments):
        return False
    try:
        json.dumps(call.arguments, allow_nan=False)
    except (TypeError, ValueError):  # a value of Python's that JSON has not, or an infinite number
        return False
    return True


def _knows_arguments(call: _Call, offered: Mapping[str, Tool]) -> bool:
    """True where JSON without a tag can be meant as a call: its tool is offered, and knows every argument."""
    tool = offered.get(call.name or "")
    if tool is None or call.arguments is None:
        return tool is not None and call.is_broken
    properties = tool.schema.get("properties")
    return not isinstance(properties, dict) or not properties or properties.keys() >= call.arguments.keys()


def _last_sentence(lead: str) -> str:
    return _SENTENCE.split(lead.rstrip()[-400:].replace("’", "'"))[-1].strip("*_ ")


def _is_example(lead: str, *, fits: bool) -> bool:
    """True when what follows `lead` is shown as an example; everyday words make none of a call that `fits`."""
    lead = lead.rstrip()[-400:].casefold()
    last = _SENTENCE.split(lead.rstrip(":： "))[-1]
    if _SHOWS.search(last):
        return True
    if not lead.endswith((":", "：")) or announces_action(lead):
        return False
    shown = last if fits else lead[lead.rfind("\n\n") + 1 :]
    if _EXAMPLE.search(shown):
        return True
    return _FORM.search(shown) is not None and (not fits or _MODEL.search(shown) is not None)


def _orphans(text: str) -> Written | None:
    """The closing tags that end an answer and that nothing opened."""
    found = next((m for m in _ORPHANS.finditer(text) if m[0].strip()), None)
    if found is None:
        return echoed_rules(text)
    lead = text[: found.start()]
    closers = re.findall(rf"</{_SPACE}({_CLOSERS})>", found[0])
    at_line_start = not lead or lead.endswith("\n")
    if not at_line_start and len(closers) < 2:
        return None
    if lead.rstrip().endswith((":", "：")) and not announces_action(lead):
        return None
    for tag in dict.fromkeys(closers):
        opened = len(re.findall(rf"<{_SPACE}{tag}(?=[\s=>/])", lead)) - lead.count(f"</{tag}>")
        if opened < closers.count(tag):
            return Written(
                found.start(), fault=ToolUseFault("orphan_tags", None, f"closing tag {tag} was never opened")
            )
    return None


def echoed_rules(text: str) -> Written | None:
    """Rules for tool use, two at least, that end an answer outside code, unless a colon introduces them."""
    lines = list(prose_lines(text[-_ECHO_MAX:]))[-12:]
    start = len(text) - min(len(text), _ECHO_MAX)
    if not lines or text.rstrip().rpartition("\n")[2].strip() != lines[-1][1].strip():
        return None
    rules: dict[str, int] = {}
    at = next((at for at, line in lines if "<agentic-protocol>" in line), lines[-1][0])
    if lines[-1][1].strip() != "</agentic-protocol>":
        sentences = [(at, part) for at, line in lines for part in re.split(r"(?<=\w\w[.!?])\s+", line.strip())]
        for place, sentence in reversed(sentences):
            if (rule := _POLICY.match(sentence)) is None:
                break
            rules[rule["rule"].casefold()[:16]] = at = place
        if len(rules) < 2:
            return None
    is_quoted = text[: start + at].rstrip().endswith((":", "："))
    return None if is_quoted else Written(start + at, fault=_ECHO)


class _Reader:
    """Reads the markup at a place, up to `at`.

    `is_bare` says that no tag opens it; `final` is a last message in Harmony's form; `closed` is where the last closing
    tag of the text ends.
    """

    def __init__(self, text: str, at: int, offered: Mapping[str, Tool], closed: int) -> None:
        self.calls: list[_Call] = []
        self.final: str | None = None
        self.is_bare = _BARE.match(text, at) is not None
        self._text = text
        self._closed = closed
        self.at = at
        self._offered = offered

    def read(self) -> _Reader | None:
        """Itself when nothing but markup reaches the text's end, None when that is text."""
        text, opened = self._text, self.is_bare
        while True:
            while (noise := _NOISE.match(text, self.at)) is not None:
                opened = opened or noise["opens"] is not None
                self.at = noise.end()
            if self.at == len(text):
                if opened and self.calls:
                    self._add(None, None, is_cut=True)
                return self if opened or self.calls else None
            if (final := _FINAL.match(text, self.at)) is not None:
                self.final = final[1]
                return self
            if self.calls and re.compile(r"<[\w:=]*\Z").match(text, self.at):
                self.at, opened = len(text), True
            elif (
                self._function() or self._python() or self._json() or self._named(is_tagged=opened or bool(self.calls))
            ):
                opened = False
            else:
                return None

    def _add(
        self, name: str | None, arguments: dict[str, Any] | None, *, is_sample: bool = False, is_cut: bool | None = None
    ) -> bool:
        name = plain_name(name, self._offered) if name is not None else None
        self.calls.append(_Call(name, arguments, is_sample, bool(is_cut), is_broken=is_cut is not None))
        return True

    def _broken(self, name: str | None) -> bool:
        """A call that cannot be read: it ends with its brackets, the last closing tag behind it, or the text."""
        begun = self.at
        self.at = end = self._broken_end(begun)
        is_sample = _SAMPLE.search(self._text, begun, min(end, begun + _LOOKED_AT)) is not None
        return self._add(name, None, is_sample=is_sample, is_cut=end == len(self._text) and not _is_closed(self._text))

    def _broken_end(self, at: int) -> int:
        """Where a call that cannot be read ends."""
        text, depth = self._text, 0
        for found in _BRACKET.finditer(text, at) if text.startswith(("{", "["), at) else ():
            depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(found[0], 0)
            if depth == 0 and len(found[0]) == 1:
                return found.end()
            if found[0] == '"' or depth > _DEEPEST:
                break
        return self._closed if self._closed > at else len(text)

    def _object(self, name: str) -> bool:
        """The JSON of a call's arguments."""
        try:
            value, end = _DECODER.raw_decode(self._text, self.at)
        except (ValueError, RecursionError):
            return self._broken(name)
        self.at = end
        return self._add(name, value if isinstance(value, dict) else None)

    def _types(self, name: str, key: str) -> frozenset[str] | None:
        tool = self._offered.get(plain_name(name, self._offered))
        properties = tool.schema.get("properties") if tool is not None else None
        return types_of(properties.get(key)) if isinstance(properties, dict) else None

    def _function(self) -> bool:
        text = self._text
        head = _FUNCTION.match(text, self.at)
        if head is None:
            return False
        name, self.at = head["name"], head.end()
        if text[self.at : self.at + 1] == "{":
            self._object(name)
        else:
            values: dict[str, Any] | None = {}
            while (found := _PARAMETER.match(text, self.at)) is not None:
                raw, key, types = found["value"], found["name"], self._types(name, found["name"])
                if found["is"] == "=":
                    raw = raw.removeprefix("\n").removesuffix("\n")
                if 'string="true"' in found["more"]:
                    types = frozenset({"string"})
                elif 'string="false"' in found["more"]:
                    types = types or frozenset({"number"})
                values = _with(values, key, raw, types)
                self.at = found.end()
            if _FUNCTION_END.match(text, self.at) is None:
                return self._broken(name)
            self._add(name, values)
        ended = _FUNCTION_END.match(text, self.at)
        self.at = ended.end() if ended else self.at
        return True

    def _json(self) -> bool:
        text, begun = self._text, self.at
        if text[begun] not in "{[":
            return False
        try:
            value, self.at = _DECODER.raw_decode(text, begun)
        except (ValueError, RecursionError):
            end = self._broken_end(begun)
            written = text[begun : min(end, begun + _LOOKED_AT)]
            is_cut = end == len(text) and not _is_closed(text)
            name = _NAME_KEY.search(written)
            if name is None and not (is_cut and re.match(r"(?:\[\s*)?\{\s*\"", written)):
                return False
            if name is not None and not is_cut and _ARGUMENTS_KEY.search(written) is None:
                return False
            return self._broken(name[1] if name else None)
        calls = _calls_of(value, self._offered)
        if calls is None and not self.is_bare and isinstance(value, dict) and value.keys() == {"name"}:
            calls = [_Call(value["name"], {})] if value["name"] in self._offered else None
        self.calls += calls or ()
        return calls is not None

    def _named(self, *, is_tagged: bool) -> bool:
        """A name, then the arguments: GLM's pairs, Harmony's header, or a mark before JSON."""
        text = self._text
        for form in (_HARMONY, _GEMMA, _NAMED):
            head = form.match(text, self.at)
            if head is None or not (is_tagged or form is _HARMONY):
                continue
            has_mark = head["mark"] if form is _NAMED else head[0].startswith("<") or form is _GEMMA
            if not has_mark and not self._is_offered(head["name"]):
                continue
            self.at = head.end()
            if not text.startswith("{", self.at):
                self.at = len(text)
                return self._add(head["name"], None, is_cut=True)
            if form is not _GEMMA:
                return self._object(head["name"])
            ended = _CLOSER.search(text, self.at)
            written = text[self.at : ended.start() if ended else len(text)]
            self.at += len(written)
            value = _decoded(
                _GEMMA_TEXT.sub(lambda m: json.dumps(m[1] if m[2] is None else m[2]) + (":" if m[2] else ""), written)
            )
            return self._add(head["name"], value if isinstance(value, dict) else None)
        head = _PAIRED.match(text, self.at)
        if head is None or not is_tagged:
            return False
        self.at = head.end()
        values: dict[str, Any] | None = {}
        while (pair := _PAIR.match(text, self.at)) is not None:
            values = _with(values, pair[1], pair[2], self._types(head["name"], pair[1]))
            self.at = pair.end()
        if not re.compile(r"\s*</tool_call>").match(text, self.at):
            return self._broken(head["name"])
        return self._add(head["name"], values)

    def _is_offered(self, name: str) -> bool:
        return plain_name(name, self._offered) in self._offered

    def _python(self) -> bool:
        if _PYTHON.match(self._text, self.at) is None:
            return False
        ended = _PYTHON_END.search(self._text, self.at)
        source = self._text[self.at : ended.start() if ended else len(self._text)]
        calls = _python_calls(source)
        names = (found[1] for found in re.finditer(r"([A-Za-z_][\w.\-]*)\(", source[:_LOOKED_AT]))
        named = next((name for name in names if self._is_offered(name.removesuffix(".call"))), None)
        if calls is None and named is None:
            return False
        self.at += len(source)
        for name, arguments in calls if calls is not None else [(named, None)]:
            self._add(name, arguments, is_sample=_SAMPLE.search(source, 0, _LOOKED_AT) is not None)
        return True


def _is_closed(text: str) -> bool:
    """True when the text ends in a bracket or a closing tag."""
    return text.rstrip().endswith(("}", "]", ">", "`"))


def _python_calls(source: str) -> list[tuple[str, dict[str, Any] | None]] | None:
    """The calls that lines of Python are, None when they are anything else. Source: Gemma, Llama and LFM2 cards."""
    try:
        body = ast.parse(source.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    found: list[tuple[str, dict[str, Any] | None]] = []
    for statement in body:
        whole = statement.value if isinstance(statement, ast.Expr | ast.Assign) else None
        for value in whole.elts if isinstance(whole, ast.List | ast.Tuple) else [whole]:
            inner: ast.AST | None = value
            if isinstance(value, ast.Call) and ast.unparse(value.func) == "print" and len(value.args) == 1:
                inner = value.args[0]
                if isinstance(inner, ast.Name):
                    continue
            inner = inner.value if isinstance(inner, ast.Await) else inner
            if not isinstance(inner, ast.Call):
                return None
            name = ast.unparse(inner.func).removesuffix(".call")
            try:
                arguments = {word.arg or "": ast.literal_eval(word.value) for word in inner.keywords}
            except (ValueError, TypeError, RecursionError):
                found.append((name, None))
            else:
                found.append((name, None if inner.args or "" in arguments else arguments))
    return found


def _calls_of(value: Any, offered: Mapping[str, Tool]) -> list[_Call] | None:
    """The calls that a JSON value is, None when it is anything else."""
    calls = [_call_of(entry, offered) for entry in (value if isinstance(value, list) else [value])]
    found = [call for call in calls if call is not None]
    return found if found and len(found) == len(calls) else None


def _call_of(value: Any, offered: Mapping[str, Tool]) -> _Call | None:
    if not isinstance(value, dict):
        return None
    if len(value) == 1:
        ((name, arguments),) = value.items()
        if name in offered and isinstance(arguments, dict):
            return _Call(name, arguments)
    function = value.get("function")
    if not _CALL_KEYS.issuperset(value) or isinstance(function, dict):
        return _call_of(function, offered) if _CALL_KEYS.issuperset(value) else None
    name = value.get("name", value.get("tool_name", value.get("tool", function)))
    arguments = next((value[key] for key in _ARGUMENTS if key in value), _CALL_KEYS)
    if not isinstance(name, str) or not name or arguments is _CALL_KEYS:
        return None
    arguments = _decoded(arguments) if isinstance(arguments, str) else arguments
    return _Call(plain_name(name, offered), arguments if isinstance(arguments, dict) else None)


def _decoded(text: str) -> Any:
    """The JSON value of a text, None for one that is none."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


def _with(values: dict[str, Any] | None, name: str, raw: str, types: frozenset[str] | None) -> dict[str, Any] | None:
    """`values` and one more, of the type that the schema asks for; None once a name comes twice or one does not fit."""
    word = raw.strip()
    if values is None or name in values:
        return None
    if types is None or "string" in types:
        value: Any = None if types and "null" in types and word in {"null", "None"} else raw
    elif word.lower() in _WORDS:
        value = _WORDS[word.lower()]
    elif (value := _decoded(word)) is None:
        return None
    return {**values, name: value}
