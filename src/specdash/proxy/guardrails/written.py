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

from msgspec import Struct

from specdash.proxy.answer.blocks import ToolCall
from specdash.proxy.guardrails.calls import ToolUseFault, problem, types_of
from specdash.proxy.guardrails.unexpected_end import CODE, announces_action, fence_after, prose_lines

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from specdash.proxy.translate.parse import Tool


class Written(Struct, frozen=True):
    """What the end of an answer is, from `start` on: `text`, then `calls`; or, with a `fault`, what cannot be read."""

    start: int
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    fault: ToolUseFault | None = None


class _Call(Struct, frozen=True):
    """A call as it stands in the text; `arguments` is None where they are not an object, or the call is broken."""

    name: str
    arguments: dict[str, Any] | None
    is_broken: bool = False


_DEEPEST = 64
_LOOKED_AT = 4000
"""Characters of a call that cannot be read in which its name is looked for."""
_ECHO_MAX = 4000
"""Characters at the end of an answer in which rules are looked for."""
_MOST_PLACES = 24
"""So many places at either end of a text are looked at."""
_SPACE = r"(?:antml:|｜DSML｜|minimax:|seed:)?"
_NOISE = re.compile(
    rf"""\s+|[,;]|</[\w:]*\Z|</s>|<(?:start|end)_of_turn>
    |(?P<opens><{_SPACE}(?:tool_calls?|tools|function_calls?|tool_use|tool_code|TOOLCALL)>|\[TOOL_CALLS\]
      |<\|(?!\w*(?:end|suffix)\b)(?:tool|python_tag|function_call)\w*\|>
      |<｜tool[\w▁]*begin｜>|```[ ]?(?:tool_calls?|tool_code|tool_use|function_call)[ \t\r]*(?=\n|\Z))
    |(?:<\|start\|>assistant)?<\|channel\|>analysis<\|message\|>.*?(?:<\|end\|>|\Z)
    |</{_SPACE}(?:tool_calls?|tools|function_calls?|tool_use|tool_code|TOOLCALL|parameter|function|invoke)>|<\|(?!start\||channel\|)/?\w+\|>|<\w+\|>
    |<｜[\w▁]+｜>|\[/TOOL_CALLS\]|```(?:json|JSON)?[ \t\r]*(?=\n|\Z|<)|(?<=[\]}}])[\]}}]{{1,3}}(?=\s*(?:[<`]|\Z))""",
    re.VERBOSE | re.DOTALL,
)
_CLOSERS = r"parameter|function|tool_call|invoke|function_calls|tool_calls"
_CLOSER = re.compile(
    rf"</{_SPACE}(?:{_CLOSERS}|tool_use|function_call|TOOLCALL)>|\[/TOOL_CALLS\]|<\|(?!python)\w+\|>|<｜tool"
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
    r"\s*<arg_key>(?P<name>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>(?=\s*(?:<arg_key>|</tool_call>|\Z))",
    re.DOTALL,
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
_PYTHON = re.compile(r"(?:\[\s*)?(?P<name>[A-Za-z_][\w.\-]*)\(")
_PYTHON_END = re.compile(r"\n?```|</tool_code>|<\|\w+\|>|\Z")
_TAG_PART = re.compile(r"<[\w:=]*\Z")
_PAIRED_END = re.compile(r"\s*</tool_call>")
_BARE = re.compile(r"(?:```(?:json|JSON)?[ \t\r]*\n\s*)?(?:\[\s*)?\{")
_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)
_NAME_KEY = re.compile(r"""["'](?:name|function|tool)["']\s*:\s*["']([^"'\n]*)["']""")
_ARGUMENTS_KEY = re.compile(r"""["'](?:arguments|parameters|input|args)["']\s*:""")
_SAMPLE = re.compile(r"""[:{\[,(=]\s*(?:\.\.\.|…|<[^<>\n"|]{1,60}>)""")
_ARGUMENTS = ("arguments", "parameters", "input", "args")
_CALL_KEYS = frozenset({"name", "tool", "function", "type", "id", "index", *_ARGUMENTS})
_PLAIN_NAME = re.compile(r"[\w.:\-/]{1,128}")
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None, "none": None}
_DECODER = json.JSONDecoder(strict=False)
_NO_VALUE: Any = object()
_OBJECT_PART = re.compile(r"(?:\[\s*)?\{\s*\"")
_FORMS = (
    # How a call begins; where its arguments stand one by one, each of them; and what closes it.
    (_FUNCTION, _PARAMETER, _FUNCTION_END),
    (_HARMONY, None, None),
    (_NAMED, None, None),
    (_PAIRED, _PAIR, _PAIRED_END),
)

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
    places, ended = call_places(text, offered), 0
    for start in places[:_MOST_PLACES] + places[_MOST_PLACES:][-_MOST_PLACES:]:
        if start < ended:
            # In a run of markup behind which text follows.
            continue
        run = _Run(text, start, offered)
        if run.reaches_end():
            return _judged(text, start, run, offered, is_truncated=is_truncated, seed=seed)
        ended = run.at
    return (_orphans(text) if places else None) or echoed_rules(text)


def _judged(
    text: str, start: int, run: _Run, offered: Mapping[str, Tool], *, is_truncated: bool, seed: str
) -> Written | None:
    """What a run of markup that reaches the end is."""
    lead, calls = text[:start], run.calls
    if run.final is not None and not calls:
        return Written(start, run.final)
    fits = bool(calls) and all(_fits(call, offered) for call in calls)
    if run.is_bare:
        if not all(_knows_arguments(call, offered) for call in calls):
            return None
        last = _SENTENCE.split(lead.rstrip()[-400:].replace("’", "'"))[-1].strip("*_ ")
        if lead.strip() and not ((fits or calls[-1].is_broken) and _INTENDS.match(last)):
            return None
    if _is_example(lead):
        return None
    if fits:
        digest = hashlib.sha256(f"{seed}\0{text[start:]}".encode("utf-8", "surrogatepass"))
        made = []
        for call in calls:
            digest.update(b"\0")
            made.append(ToolCall(f"toolu_{digest.hexdigest()[:24]}", call.name, json.dumps(call.arguments)))
        return Written(start, calls=tuple(made))
    named = next((call.name for call in calls if call.name in offered), None)
    if any(call.name and not _PLAIN_NAME.fullmatch(call.name) for call in calls):
        return None
    if calls and _SAMPLE.search(text, start, start + _LOOKED_AT):
        return None
    is_nameless = bool(calls) and calls[-1].is_broken and not calls[-1].name
    if calls and lead.strip() and not (named or is_nameless):
        return None
    if not calls and (is_truncated or text[start] in "{[`"):
        return None
    what = "the call was left unparsed in the text" if calls else "only its call's opening came"
    return Written(start, fault=ToolUseFault("unparsed_call", named, f"{named or 'a tool'}: {what}"))


def _fits(call: _Call, offered: Mapping[str, Tool]) -> bool:
    tool = offered.get(call.name)
    if tool is None or call.arguments is None or problem(tool, call.arguments):
        return False
    try:
        json.dumps(call.arguments, allow_nan=False)
    except (TypeError, ValueError):  # a value of Python's that JSON has not, or an infinite number
        return False
    return True


def _knows_arguments(call: _Call, offered: Mapping[str, Tool]) -> bool:
    """Whether JSON without a tag can be meant as a call: its tool is offered, and knows every argument."""
    tool = offered.get(call.name)
    if tool is None or call.arguments is None:
        return tool is not None and call.is_broken
    properties = tool.schema.get("properties")
    return not isinstance(properties, dict) or not properties or properties.keys() >= call.arguments.keys()


def _is_example(lead: str) -> bool:
    """True when what follows `lead` is shown as an example."""
    lead = lead.rstrip()[-400:].casefold()
    last = _SENTENCE.split(lead.rstrip(":： "))[-1]
    if _SHOWS.search(last):
        return True
    if not lead.endswith((":", "：")) or announces_action(lead):
        return False
    return _EXAMPLE.search(last) is not None or bool(_FORM.search(last) and _MODEL.search(last))


def _orphans(text: str) -> Written | None:
    """The closing tags that end an answer and that nothing opened."""
    found = next((m for m in _ORPHANS.finditer(text) if m[0].strip()), None)
    if found is None:
        return None
    lead = text[: found.start()]
    closers = re.findall(rf"</{_SPACE}({_CLOSERS})>", found[0])
    is_in_line = bool(lead) and not lead.endswith("\n")
    is_shown = lead.rstrip().endswith((":", "：")) and not announces_action(lead)
    if is_shown or (is_in_line and len(closers) < 2):
        return None
    for tag in dict.fromkeys(closers):
        opened = len(re.findall(rf"<{_SPACE}{tag}(?=[\s=>/])", lead)) - lead.count(f"</{tag}>")
        if opened < closers.count(tag):
            fault = ToolUseFault("orphan_tags", None, f"closing tag {tag} was never opened")
            return Written(found.start(), fault=fault)
    return None


def echoed_rules(text: str) -> Written | None:
    """Rules for tool use, two at least, that end an answer outside code, unless a colon introduces them."""
    start = max(0, len(text) - _ECHO_MAX)
    lines = list(prose_lines(text[start:]))[-12:]
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


class _Run:
    """A run of markup from `start` up to `at`, and the calls in it.

    `is_bare` says that no tag opens it; `final` is a last message in Harmony's form.
    """

    def __init__(self, text: str, start: int, offered: Mapping[str, Tool]) -> None:
        self.at = start
        self.calls: list[_Call] = []
        self.is_bare = _BARE.match(text, start) is not None
        self.final: str | None = None
        self._text = text
        self._offered = offered

    def reaches_end(self) -> bool:
        """Read on; True when nothing but markup reaches the text's end."""
        text, opened = self._text, self.is_bare
        while True:
            while (noise := _NOISE.match(text, self.at)) is not None:
                opened = opened or noise["opens"] is not None
                self.at = noise.end()
            if self.at == len(text):
                if opened and self.calls:
                    self.calls.append(_Call("", None, is_broken=True))
                return opened or bool(self.calls)
            if (final := _FINAL.match(text, self.at)) is not None:
                self.final = final[1]
                return True
            if self.calls and _TAG_PART.match(text, self.at):
                self.at, opened = len(text), True
            elif self._python(is_tagged := opened or bool(self.calls)) or self._json() or self._named(is_tagged):
                opened = False
            else:
                return False

    def _add(self, end: int, *calls: _Call) -> bool:
        self.calls += calls
        self.at = end
        return True

    def _is_offered(self, name: str) -> bool:
        return plain_name(name, self._offered) in self._offered

    def _python(self, is_tagged: bool) -> bool:
        """A call in Python's words, or a list of them."""
        if _PYTHON.match(self._text, self.at) is None:
            return False
        ended = _PYTHON_END.search(self._text, self.at)
        end = ended.start() if ended else len(self._text)
        found = _python_calls(self._text[self.at : end], self._offered)
        is_meant = is_tagged or any(call.name in self._offered for call in found)
        return bool(found) and is_meant and self._add(end, *found)

    def _json(self) -> bool:
        """An object or a list of objects that name a tool and its arguments."""
        value, end = _value(self._text, self.at)
        calls = [_call_of(entry, self._offered) for entry in (value if isinstance(value, list) else [value])]
        if not self.is_bare and isinstance(value, dict) and list(value) == ["name"]:
            calls = [_Call(name, {}) for name in self._offered if name == value["name"]]
        return bool(calls) and None not in calls and self._add(end, *filter(None, calls))

    def _named(self, is_tagged: bool) -> bool:
        """A name, then its arguments: as JSON (Mistral, Kimi, DeepSeek, Harmony), as parameters, as pairs (GLM).

        A head counts where the form itself, a mark or the name of an offered tool shows a call. One that cannot be
        read, or not to its end, is a broken call; so is JSON that breaks off behind a tool's name.
        """
        text, heads = self._text, []
        for form, entry, close in _FORMS:
            head = form.match(text, self.at)
            if head is None or (form in (_NAMED, _PAIRED) and not is_tagged):
                continue
            is_shown = form is _PAIRED or head[0].startswith("<") or head.groupdict().get("mark")
            if not is_shown and not self._is_offered(head["name"]):
                continue
            heads.append(head)
            values, at = _NO_VALUE, head.end()
            if text.startswith("{", at):
                values, at = _value(text, at)
                ended = close.match(text, at) if close else None
                at = ended.end() if ended else at
            elif entry and close:
                values, at = self._entries(head["name"], at, entry, close)
            if values is not _NO_VALUE:
                return self._add(at, self._call(head["name"], values))
        if (python := _PYTHON.match(text, self.at)) is not None and self._is_offered(python["name"]):
            heads.append(python)
        end = _broken_end(text, heads[0].end() if heads else self.at)
        is_cut = end == len(text) and not text.rstrip().endswith(("}", "]", ">", "`"))
        looked_at = text[self.at : min(end, self.at + _LOOKED_AT)]
        name = heads[0]["name"] if heads else None
        if name is None and looked_at[:1] in ("{", "[") and _value(text, self.at)[0] is _NO_VALUE:
            named = _NAME_KEY.search(looked_at)
            if named is not None:
                name = named[1] if is_cut or _ARGUMENTS_KEY.search(looked_at) else None
            elif is_cut and _OBJECT_PART.match(looked_at):
                name = ""
        return name is not None and self._add(end, self._call(name, None, is_broken=True))

    def _call(self, name: str, arguments: Any, *, is_broken: bool = False) -> _Call:
        return _Call(
            plain_name(name, self._offered), arguments if isinstance(arguments, dict) else None, is_broken=is_broken
        )

    def _entries(self, name: str, at: int, entry: re.Pattern[str], close: re.Pattern[str]) -> tuple[Any, int]:
        """Arguments one by one up to the closing tag, each of the type that the schema asks for.

        None in their place once a name comes twice or one does not fit.
        """
        tool = self._offered.get(plain_name(name, self._offered))
        properties = tool.schema.get("properties") if tool is not None else None
        values: dict[str, Any] | None = {}
        while (found := entry.match(self._text, at)) is not None:
            fields, at = found.groupdict(), found.end()
            raw, more = found["value"], fields.get("more") or ""
            types = types_of(properties.get(found["name"])) if isinstance(properties, dict) else None
            if fields.get("is") == "=":
                raw = raw.removeprefix("\n").removesuffix("\n")
            if 'string="true"' in more:
                types = frozenset({"string"})
            elif 'string="false"' in more:
                types = types or frozenset({"number"})
            word = raw.strip()
            if types is None or "string" in types:
                value: Any = None if types and "null" in types and word in {"null", "None"} else raw
            else:
                value, end = (_WORDS[word.lower()], len(word)) if word.lower() in _WORDS else _value(word, 0)
                if end < len(word) or not word:
                    values = None
            values = {**values, found["name"]: value} if values is not None and found["name"] not in values else None
        ended = close.match(self._text, at)
        return (values, ended.end()) if ended else (_NO_VALUE, at)


def _python_calls(source: str, offered: Mapping[str, Tool]) -> list[_Call]:
    """The calls of an expression, which is one or a list of them."""
    try:
        tree = ast.parse(source.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = []
    for node in tree.elts if isinstance(tree, ast.List) else [tree]:
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print" and node.args:
            node = node.args[0]
        if not isinstance(node, ast.Call):
            return []
        try:
            values: Any = {word.arg: ast.literal_eval(word.value) for word in node.keywords}
        except (ValueError, TypeError, RecursionError):
            values = None
        is_read = not node.args and values is not None and None not in values
        found.append(_Call(plain_name(ast.unparse(node.func), offered), values if is_read else None))
    return found


def _call_of(value: Any, offered: Mapping[str, Tool]) -> _Call | None:
    if not isinstance(value, dict):
        return None
    function = value.get("function")
    if not _CALL_KEYS.issuperset(value) or isinstance(function, dict):
        return _call_of(function, offered) if _CALL_KEYS.issuperset(value) else None
    name = value.get("name", value.get("tool", function))
    arguments = next((value[key] for key in _ARGUMENTS if key in value), _CALL_KEYS)
    if not isinstance(name, str) or not name or arguments is _CALL_KEYS:
        return None
    arguments = _value(arguments.strip(), 0)[0] if isinstance(arguments, str) else arguments
    return _Call(plain_name(name, offered), arguments if isinstance(arguments, dict) else None)


def _value(text: str, at: int) -> tuple[Any, int]:
    """The JSON value at a place and where it ends; `_NO_VALUE` where none can be read."""
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return _NO_VALUE, at


def _broken_end(text: str, at: int) -> int:
    """Where a call that cannot be read ends: with its brackets, the last closing tag, or the text."""
    depth = 0
    for found in _BRACKET.finditer(text, at) if text.startswith(("{", "["), at) else ():
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(found[0], 0)
        if depth == 0 and len(found[0]) == 1:
            return found.end()
        if found[0] == '"' or depth > _DEEPEST:
            break
    return max((found.end() for found in _CLOSER.finditer(text, at)), default=len(text))


# Where in a text a written call may begin, found while the text still comes in pieces.
#
# At the start of a line, up to three spaces in, or behind the end of a sentence; special tokens (`<|…`) anywhere. Never
# in a fence or in indented code: what stands there is quoted.

_SPECIAL = (
    "<|tool", "<|python_tag|>", "<|function_call|>", "<|start|>", "<|channel|>", "<|end|>", "<|call|>", "<｜tool",
    "<｜DSML｜", "</｜DSML｜",
)  # fmt: skip
_CLAUDE = "antml:"
_PLAIN = (
    "<tool_call", "<tool_use>", "<tools>", "<tool_code>", "<function_call", "<function=", "<invoke name=",
    "<parameter=", "<parameter name=", "<TOOLCALL>", "<minimax:tool_call",
    "<seed:tool_call", f"<{_CLAUDE}", "</parameter>",
    "</function", "</tool_", "</invoke>", f"</{_CLAUDE}", "</minimax:", "</seed:", "<agentic-protocol>",
    "</agentic-protocol>", "[TOOL_CALLS]", "```tool_c", "``` tool_c", "```tool_use", "```function_call",
    "to=functions.", "assistantcommentary to=", "assistantanalysis to=", "commentary to=", "analysis to=",
    "assistant to=",
)  # fmt: skip
_LITERALS = (*_SPECIAL, *_PLAIN)
_LITERAL = re.compile("|".join(map(re.escape, _LITERALS)))
_PARTS = frozenset(literal[:size] for literal in _LITERALS for size in range(1, len(literal)))
_FENCED = re.compile(r"```(?:json|JSON)?[ \t\r]*\n\s*")
_HEAD = re.compile(r'(?:\[\s*)?\{\s*"(?P<key>\w*)"\s*:\s*(?:"(?P<value>[^"\\\n]*)"|(?P<other>[^\s"]))')
_HEAD_BEGUN = re.compile(r'(?:\[\s*)?(?:\{\s*(?:"\w{0,64}(?:"\s*(?::\s*(?:"[^"\\\n]{0,128})?)?)?)?)?\Z')
_PYTHON_LIST = re.compile(r"\[\s*([A-Za-z_][\w.\-]*)\(")
_BEGUN = re.compile(r"`{1,3}(?:j(?:s(?:o(?:n)?)?)?)?[ \t\r]*\Z|\[\s*(?:[A-Za-z_][\w.\-]{0,64})?\Z")
"""The beginning of a fence or of a list in Python."""
_PLACE = re.compile(
    r"^ {0,3}(?=\S)|(?<=[^\s\d][.!?…:。！？：])[ \t]{0,3}(?=[\[{`]|<(?:[\w|/｜]|\Z))|(?=</?(?:[|｜]|\Z))", re.MULTILINE
)
_FENCE_MARK = re.compile(r" *(?:```|~~~)")
_PROSE = re.compile(r"[^\n<\[{`~.!?…:。！？：]*")
"""Characters that neither begin a call nor let one begin behind them, but at the start of a line."""
_LONGEST_WORD = 40
_LOOK = 600
"""Characters behind a place that decide whether a call may begin there."""


def plain_name(name: str, offered: Collection[str]) -> str:
    """A tool's name without what models write around it."""
    if name in offered:
        return name
    return re.sub(r"^(?:functions\.|default_api\.|tools\.)|:\d+\Z|\.call\Z", "", name)


def begins_call(text: str, offered: Collection[str]) -> bool | None:
    """Whether a written call may begin where `text` does; None when more of the text decides that."""
    if _LITERAL.match(text):
        return True
    if text in _PARTS:
        return None
    if text[0] not in "{[`":
        return False
    if (python := _PYTHON_LIST.match(text)) is not None:
        return plain_name(python[1], offered) in offered
    fenced = _FENCED.match(text)
    at = fenced.end() if fenced else 0
    if _BEGUN.match(text) or _HEAD_BEGUN.match(text, at):
        return None
    if (head := _HEAD.match(text, at)) is None:
        return False
    key, value = head["key"], head["value"]
    if key in {"name", "tool"} or (key == "function" and value is not None):
        return value is not None and plain_name(value, offered) in offered
    if key == "type":
        return value in {"function", "tool"}
    return key in {"function", "arguments", "parameters", "input", "args"}


def call_places(text: str, offered: Collection[str]) -> list[int]:
    """Where in a whole text a written call may begin."""
    openings = Openings(offered)
    openings.text = text
    return [at for at, begins in openings.places() if begins is not False]


class Openings:
    """The first place in a text, given in pieces, from which on it may be a written call.

    `held` counts the characters at the end of what came that are to wait; once `found`, they are all from there on.
    """

    def __init__(self, offered: Collection[str]) -> None:
        self.held = 0
        self.found = False
        self.text = ""
        """The current line from `_start` on, looked at up to `_checked`."""
        self._start = 0
        self._checked = 0
        self._fence = ""
        self._offered = offered

    def feed(self, text: str) -> None:
        """The next piece."""
        if self.found:
            self.held += len(text)
            return
        self.text += text
        if not self.held and len(self.text) - len(text) > _LONGEST_WORD and _PROSE.fullmatch(text):
            return
        self.held = 0
        for at, begins in self.places():
            if begins is not False:
                self.found = begins is True
                self.held = len(self.text) - at
                return
        self.text = self.text[self._start :]
        self._checked -= self._start
        self._start = 0

    def places(self) -> Iterator[tuple[int, bool | None]]:
        """The places not looked at yet, and whether a call begins there; None is looked at again."""
        text = self.text
        while True:
            end = text.find("\n", self._checked)
            if not self._fence and not CODE.match(text, self._start):
                is_fence = _FENCE_MARK.match(text, self._start) is not None
                for place in _PLACE.finditer(text, self._checked, end if end >= 0 else len(text)):
                    at = place.end()
                    if is_fence and place.start() > self._start:
                        break
                    begins = begins_call(text[at : at + _LOOK], self._offered)
                    self._checked = place.start() if begins is None else at + 1
                    yield at, begins
            if end < 0:
                # Behind the last characters a place may begin.
                self._checked = max(self._checked, self._start, len(text) - 5)
                return
            self._fence = fence_after(text[self._start : end], self._fence)
            self._start = self._checked = end + 1
