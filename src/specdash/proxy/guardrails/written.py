"""Tool calls that a model wrote as text at the end of its answer, read once the answer is whole.

A complete call of an offered tool, with arguments of its schema and nothing behind it, is a call. One that names an
offered tool and cannot be read, closing tags that nothing opened, and echoed tool rules are faults. The rest is text:
what is quoted, followed by prose, or introduced as an example. Sources of the forms: the models' chat templates.
"""

from __future__ import annotations

import ast
import json
import re
import secrets
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from specdash.proxy.answer.blocks import ToolCall
from specdash.proxy.guardrails.calls import ToolUseFault, fits, types_of
from specdash.proxy.guardrails.tools import RULES
from specdash.proxy.guardrails.unexpected_end import CODE, announces_action, fence_after

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from specdash.proxy.translate.parse import Tool

    Offered = Mapping[str, Tool]


class Written(Struct, frozen=True):
    """What the end of an answer is, from `start` on: `text`, then `calls`; or, with a `fault`, what cannot be read."""

    start: int
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    fault: ToolUseFault | None = None


class _Call(Struct, frozen=True):
    """A call as it stands in the text; `arguments` is None where they are not an object, or the call is broken.

    A broken one whose name cannot be read either has an empty one.
    """

    name: str
    arguments: Any = None
    is_broken: bool = False


class _Run(Struct):
    """A run of markup up to `at`, and the calls in it.

    `is_bare` says that no tag opens it; `final` is a last message in Harmony's form, "" behind a hidden analysis.
    """

    at: int
    is_bare: bool
    calls: list[_Call] = []
    final: str | None = None


_LOOKED_AT = 4000
"""Characters of a call that cannot be read in which its name is looked for, or of an end in which rules are."""
_MOST_PLACES = 24
"""So many places at either end of a text are looked at."""
_SPACE = r"(?:antml:|｜DSML｜|minimax:|seed:)?"
_WRAPPERS = "tool_calls?|tools|function_calls?|tool_use|tool_code|TOOLCALL"
_CLOSERS = r"parameter|function|tool_call|invoke|function_calls|tool_calls"

# What stands between calls, around them, and behind the last: wrappers, end tokens, a hidden analysis.
_NOISE = re.compile(
    rf"""\s+|[,;]|</[\w:]*\Z|</s>|<(?:start|end)_of_turn>
    |(?P<opens><{_SPACE}(?:{_WRAPPERS})>|\[TOOL_CALLS\]
      |<\|(?!\w*(?:end|suffix)\b)(?:tool|python_tag|function_call)\w*\|>
      |<｜tool[\w▁]*begin｜>|```[ ]?(?:tool_calls?|tool_code|tool_use|function_call)[ \t\r]*(?=\n|\Z))
    |(?P<hidden>(?:<\|start\|>assistant)?<\|channel\|>analysis<\|message\|>.*?(?:<\|end\|>|\Z))
    |</{_SPACE}(?:{_WRAPPERS}|parameter|function|invoke)>|<\|(?!start\||channel\|)/?\w+\|>|<\w+\|>
    |<｜[\w▁]+｜>|\[/TOOL_CALLS\]|```(?:json|JSON)?[ \t\r]*(?=\n|\Z|<)|(?<=[\]}}])[\]}}]{{1,3}}(?=\s*(?:[<`]|\Z))""",
    re.VERBOSE | re.DOTALL,
)
_CLOSER = re.compile(
    rf"</{_SPACE}(?:{_CLOSERS}|tool_use|function_call|TOOLCALL)>|\[/TOOL_CALLS\]|<\|(?!python)\w+\|>|<｜tool"
)
_FINAL = re.compile(
    r"(?:<\|start\|>assistant)?<\|channel\|>final<\|message\|>(.*?)(?:<\|(?:return|end)\|>\s*)?\Z", re.DOTALL
)

# How a call begins: XML functions, Harmony, and a name with a mark of Mistral, Kimi or DeepSeek, or inside a tag (GLM).
# What follows is JSON, or arguments one by one.
_FUNCTION = re.compile(
    rf"""(?P<mark><{_SPACE}(?:function=|invoke\ name=))["']?(?P<name>[\w.:\-]{{1,128}})["']?[^<>\n]{{0,64}}>
    \s*(?=\{{|<{_SPACE}parameter|</{_SPACE}(?:function|invoke)>|<?\Z)""",
    re.VERBOSE,
)
_HARMONY = re.compile(
    r"(?P<mark><\|start\|>)?(?:assistant)?\s?(?:<\|channel\|>)?\s?(?:commentary|analysis)?\s?to=(?P<name>[\w.\-]{1,128})"
    r"\s{0,3}(?:<\|channel\|>(?:commentary|analysis)\s{0,3})?(?:<\|constrain\|>\s?)?(?:json|code)?\s{0,3}"
    r"(?:<\|message\|>\s{0,3})?(?=\{|\w{0,4}\Z)"
)
_NAMED = re.compile(
    r"(?:function\s*<｜tool▁sep｜>)?(?P<name>[\w.:\-]{1,128})\s*(?:\[CALL_ID\]\w+)?"
    r"(?P<mark>\[ARGS\]|<\|tool_call_argument_begin\|>|<｜tool▁sep｜>)?\s*(?:```json\s*)?"
    r"(?=\{|<arg_key>|</tool_call>|\Z)"
)
_ENTRY = re.compile(
    rf"""\s*(?:<{_SPACE}parameter(?P<is>=|\ name=)["']?(?P<name>[\w.:\-]{{1,128}})["']?(?P<more>[^<>\n]{{0,64}})>
      (?P<value>.*?)</{_SPACE}parameter>(?=\s*(?:<{_SPACE}parameter[=\ ]|</{_SPACE}(?:function|invoke)>|\Z))
    |<arg_key>(?P<key>.*?)</arg_key>\s*
      <arg_value>(?P<worth>.*?)</arg_value>(?=\s*(?:<arg_key>|</tool_call>|\Z)))""",
    re.VERBOSE | re.DOTALL,
)
_ENTRIES_END = re.compile(rf"\s*</{_SPACE}(?:function|invoke|tool_call)>")
_PYTHON = re.compile(r"(?:\[\s*)?(?P<name>[A-Za-z_][\w.\-]*)\(")
_PYTHON_END = re.compile(r"\n?```|</tool_code>|<\|\w+\|>|\Z")
_BARE = re.compile(r"(?:```(?:json|JSON)?[ \t\r]*\n\s*)?(?:\[\s*)?\{")
_OBJECT_PART = re.compile(r"(?:\[\s*)?\{\s*\"")
_NAME_KEY = re.compile(r"""["'](?:name|function|tool)["']\s*:\s*["']([^"'\n]*)["']""")
_SAMPLE = re.compile(r"""[:{\[,(=]\s*(?:\.\.\.|…|<[^<>\n"|]{1,60}>)""")
_DOTS = re.compile(r"\s*(?:\.\.\.|…)\s*")
_PLACEHOLDER = re.compile(r"\s*<([a-z][\w -]*)>\s*")
_STARTS = re.compile(r"(?:\A|[.!?…:。！？：\n])\s*\Z")
_ITEM = re.compile(r"\s*(?:[-*+•|>]|\d+[.)])\s.*[:：]\s*")
"""An item of a list, up to what it shows."""
_ARGUMENTS = ("arguments", "parameters", "input", "args")
_CALL_KEYS = frozenset({"name", "tool", "function", "type", "id", "index", *_ARGUMENTS})
_PLAIN_NAME = re.compile(r"[\w.:\-/]{0,128}")
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None, "none": None}
_DECODER = json.JSONDecoder(strict=False)
_NO_VALUE: Any = object()

_ORPHANS = re.compile(rf"(?:</{_SPACE}(?:{_CLOSERS})>\s*)+\Z")
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
_POLICY = tuple(" ".join(rule.casefold().split()[:4]) for rules in RULES.values() for rule in rules)
"""How the rules begin that a system prompt may have."""
_RULE_SENTENCE = re.compile(r"\S.*?(?:(?<=\w\w[.!?])(?=\s)|$)", re.MULTILINE)


def written_at_end(text: str, offered: Offered, *, is_truncated: bool = False) -> Written | None:
    """What the end of a whole answer is; None for plain text. `is_truncated` says that the token limit ended it."""
    places, ended = call_places(text, offered), 0
    for start in places[:_MOST_PLACES] + places[_MOST_PLACES:][-_MOST_PLACES:]:
        if start < ended:
            # In a run of markup behind which text follows.
            continue
        run = _run(text, start, offered)
        if run.at == len(text) and (run.calls or run.final is not None):
            return _judged(text, start, run, offered, is_truncated=is_truncated)
        ended = run.at
    return _orphans(text, places) or echoed_rules(text)


def _judged(text: str, start: int, run: _Run, offered: Offered, *, is_truncated: bool) -> Written | None:
    """What a run of markup that reaches the end is."""
    lead, calls = text[:start], run.calls
    if not calls:
        # In the middle of a sentence the channel is spoken of.
        is_shown = _is_example(lead) or not (run.final or _STARTS.search(lead))
        return None if is_shown else Written(start, run.final or "")
    inputs = [_input(call, offered) for call in calls]
    if run.is_bare:
        last = _SENTENCE.split(lead.rstrip()[-400:].replace("’", "'"))[-1].strip("*_ ")
        is_meant = None not in inputs or calls[-1].is_broken
        if not all(_knows_arguments(call, offered) for call in calls) or (
            lead.strip() and not (is_meant and _INTENDS.match(last))
        ):
            return None
    if _is_example(lead):
        return None
    made = [
        ToolCall(f"toolu_{secrets.token_hex(12)}", call.name, value)
        for call, value in zip(calls, inputs, strict=True)
        if value is not None
    ]
    if any(_is_sample(call) for call in calls):
        return None
    if len(made) == len(calls):
        return Written(start, calls=tuple(made))
    named = next((call.name for call in calls if call.name in offered), None)
    is_nameless = not calls[-1].name
    if (
        not all(_PLAIN_NAME.fullmatch(call.name) for call in calls)
        or _SAMPLE.search(text, start, start + _LOOKED_AT)
        or (is_truncated and calls == [_Call("", is_broken=True)])
        or (lead.strip() and not (named or is_nameless))
    ):
        return None
    return Written(start, fault=ToolUseFault("unparsed_call", named))


def _input(call: _Call, offered: Offered) -> str | None:
    """The input of a call as JSON, None where its tool does not take it."""
    tool = offered.get(call.name)
    if tool is None or call.arguments is None or not fits(tool, call.arguments):
        return None
    try:
        return json.dumps(call.arguments, allow_nan=False)
    except (TypeError, ValueError):  # a value of Python's that JSON has not, or an infinite number
        return None


def _knows_arguments(call: _Call, offered: Offered) -> bool:
    """Whether JSON without a tag can be meant as a call: its tool is offered, and knows every argument."""
    tool = offered.get(call.name)
    if tool is None or call.arguments is None:
        return tool is not None and call.is_broken
    properties = tool.schema.get("properties")
    return not isinstance(properties, dict) or not properties or properties.keys() >= call.arguments.keys()


def _is_sample(call: _Call) -> bool:
    """Whether a placeholder stands for an argument: `...`, or `<path>` for a path."""
    values = call.arguments.items() if call.arguments else ()
    return any(
        _DOTS.fullmatch(value) or ((found := _PLACEHOLDER.fullmatch(value)) and (" " in value or found[1] in name))
        for name, value in values
        if isinstance(value, str)
    )


def _is_example(lead: str) -> bool:
    """True when what follows `lead` is shown as an example."""
    if _ITEM.fullmatch(lead.rpartition("\n")[2]):
        return True
    lead = lead.rstrip()[-400:].casefold()
    last = _SENTENCE.split(lead.rstrip(":： "))[-1]
    if _SHOWS.search(last):
        return True
    if not lead.endswith((":", "：")) or announces_action(lead):
        return False
    if _EXAMPLE.search(last) or _MODEL.fullmatch(last.strip("*_`#- ")):
        return True
    return bool(_FORM.search(last) and _MODEL.search(last))


def _orphans(text: str, places: Collection[int]) -> Written | None:
    """The closing tags that end an answer and that nothing opened."""
    found = _ORPHANS.search(text)
    if found is None or not any(found.start() <= at < found.end() for at in places):
        return None
    lead = text[: found.start()]
    closers = re.findall(rf"</{_SPACE}({_CLOSERS})>", found[0])
    is_in_line = lead.rpartition("\n")[2].strip() != ""
    is_shown = lead.rstrip().endswith((":", "：")) and not announces_action(lead)
    if is_shown or (is_in_line and len(closers) < 2):
        return None
    for tag in dict.fromkeys(closers):
        opened = len(re.findall(rf"<{_SPACE}{tag}(?=[\s=>/])", lead)) - lead.count(f"</{tag}>")
        if opened < closers.count(tag):
            return Written(found.start(), fault=ToolUseFault("orphan_tags"))
    return None


def echoed_rules(text: str) -> Written | None:
    """Rules for tool use, two at least, that end an answer outside code, unless a colon introduces them."""
    start = len(text)
    rules: set[str] = set()
    for sentence in reversed(list(_RULE_SENTENCE.finditer(text, max(0, start - _LOOKED_AT)))):
        rule = sentence[0].casefold().lstrip("0123456789.-* ")
        if not rule.startswith((*_POLICY, "<agentic-protocol>", "</agentic-protocol>")):
            break
        rules.add(rule[:16])
        start = sentence.start()
    is_code = CODE.match(text.rstrip().rpartition("\n")[2]) is not None
    is_quoted = text[:start].rstrip().endswith((":", "："))
    if is_code or is_quoted or (len(rules) < 2 and "</agentic-protoc" not in rules):
        return None
    return Written(start, fault=ToolUseFault("supplement_echo"))


def _run(text: str, start: int, offered: Offered) -> _Run:
    """The run of markup from `start` on; where no more than that reaches the text's end, `at` is there."""
    run = _Run(start, is_bare=_BARE.match(text, start) is not None)
    is_open = False
    while run.at < len(text):
        if (noise := _NOISE.match(text, run.at)) is not None:
            is_open = is_open or noise["opens"] is not None
            run.final = "" if noise["hidden"] else run.final
            run.at = noise.end()
        elif (final := _FINAL.match(text, run.at)) is not None:
            run.final, run.at = final[1], len(text)
        elif (found := _calls(text, run.at, offered, is_tagged=is_open or bool(run.calls), is_bare=run.is_bare))[0]:
            run.calls += found[0]
            run.at, is_open = found[1], False
        else:
            return run
    if is_open:
        run.calls.append(_Call("", is_broken=True))
    return run


def _calls(text: str, at: int, offered: Offered, *, is_tagged: bool, is_bare: bool) -> tuple[list[_Call], int]:
    """The calls that begin at a place, none or more, and where they end.

    A name counts where a mark, a tag or the list of offered tools shows that a call is meant. One that cannot be read,
    or not to its end, is a broken call; so is JSON that breaks off behind a tool's name.
    """
    name, behind = None, at
    if (head := _PYTHON.match(text, at)) is not None:
        ended = _PYTHON_END.search(text, at)
        end = ended.start() if ended else len(text)
        calls = _python_calls(text[at:end], offered)
        if calls and (is_tagged or any(call.name in offered for call in calls)):
            return calls, end
        if plain_name(head["name"], offered) in offered:
            name, behind = head["name"], head.end()
    elif text[at] in "{[":
        value, end = _value(text, at)
        if value is not _NO_VALUE:
            read = [_call_of(entry, offered, is_bare) for entry in (value if isinstance(value, list) else [value])]
            return ([call for call in read if call] if None not in read else []), end
        key = _NAME_KEY.search(text, at, at + _LOOKED_AT)
        is_cut = _OBJECT_PART.match(text, at) and not text.rstrip().endswith(("}", "]", ">", "`"))
        name = key[1] if key else "" if is_cut else None
    for form in (_FUNCTION, _HARMONY, _NAMED):
        head = form.match(text, at)
        if head is None or (form is _NAMED and not is_tagged):
            continue
        called = plain_name(head["name"], offered)
        if called in offered or head["mark"]:
            values, end = _arguments(text, head.end(), offered.get(called))
            if values is not _NO_VALUE:
                return [_Call(called, values if isinstance(values, dict) else None)], end
            name, behind = head["name"], head.end()
            break
    if name is None or (is_bare and re.search(r"\n\w", text[at:])):
        return [], at
    end = max((found.end() for found in _CLOSER.finditer(text, behind)), default=len(text))
    return [_Call(plain_name(name, offered), is_broken=True)], end


def _arguments(text: str, at: int, tool: Tool | None) -> tuple[Any, int]:
    """The arguments of a call as JSON, or one by one up to a closing tag, each of the type that the schema asks for.

    `_NO_VALUE` where they cannot be read; None in their place once a name comes twice or one does not fit.
    """
    if text.startswith("{", at):
        return _value(text, at)
    properties = tool.schema.get("properties") if tool is not None else None
    values: dict[str, Any] | None = {}
    while (found := _ENTRY.match(text, at)) is not None:
        at, name, more = found.end(), found["name"] or found["key"], found["more"] or ""
        raw = found["worth"] if found["value"] is None else found["value"]
        types = types_of(properties.get(name)) if isinstance(properties, dict) else None
        if found["is"] == "=":
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
        values = {**values, name: value} if values is not None and name not in values else None
    ended = _ENTRIES_END.match(text, at)
    return (values, ended.end()) if ended else (_NO_VALUE, at)


def _python_calls(source: str, offered: Offered) -> list[_Call]:
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


def _call_of(value: Any, offered: Offered, is_bare: bool) -> _Call | None:
    """A JSON value as a call; where it has a name alone, one without arguments, if a tag and the tool say so."""
    if not isinstance(value, dict) or not _CALL_KEYS.issuperset(value):
        return None
    function = value.get("function")
    if isinstance(function, dict):
        return _call_of(function, offered, is_bare)
    name = value.get("name", value.get("tool", function))
    arguments = next((value[key] for key in _ARGUMENTS if key in value), _NO_VALUE)
    if not isinstance(name, str) or not name:
        return None
    name = plain_name(name, offered)
    if arguments is _NO_VALUE:
        return _Call(name, {}) if name in offered and not is_bare else None
    arguments = _value(arguments.strip(), 0)[0] if isinstance(arguments, str) else arguments
    return _Call(name, arguments if isinstance(arguments, dict) else None)


def _value(text: str, at: int) -> tuple[Any, int]:
    """The JSON value at a place and where it ends; `_NO_VALUE` where none can be read."""
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return _NO_VALUE, at


# Where in a text a written call may begin, found while the text still comes in pieces.
#
# At the start of a line, up to three spaces in, or behind the end of a sentence; special tokens (`<|…`) anywhere. Never
# in a fence or in indented code: what stands there is quoted.

_CLAUDE = "antml:"
_LITERALS = (
    "<|tool", "<|python_tag|>", "<|function_call|>", "<|start|>", "<|channel|>", "<|end|>", "<|call|>", "<｜tool",
    "<｜DSML｜", "</｜DSML｜", "<tool_call", "<tool_use>", "<tools>", "<tool_code>", "<function_call", "<function=",
    "<invoke name=", "<TOOLCALL>", "<minimax:tool_call", "<seed:tool_call", f"<{_CLAUDE}",
    "</parameter>", "</function", "</tool_", "</invoke>", f"</{_CLAUDE}", "</minimax:", "</seed:",
    "<agentic-protocol>", "</agentic-protocol>", "[TOOL_CALLS]", "```tool_c", "``` tool_c", "```tool_use",
    "```function_call", "to=functions.", "assistantcommentary to=", "assistantanalysis to=", "commentary to=",
    "analysis to=", "assistant to=",
)  # fmt: skip
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


def _places(text: str, offered: Collection[str], fence: str = "", since: int = 0) -> Iterator[tuple[int, bool | None]]:
    """Where a written call may begin in a text, with `fence` open before it; None where more of the text decides."""
    start = 0
    for line in text.split("\n"):
        end = start + len(line)
        if not fence and not CODE.match(line):
            is_fence = _FENCE_MARK.match(line) is not None
            for place in _PLACE.finditer(text, max(start, since), end):
                if is_fence and place.start() > start:
                    break
                at = place.end()
                if (begins := begins_call(text[at : at + _LOOK], offered)) is not False:
                    yield at, begins
        fence = fence_after(line, fence)
        start = end + 1


def call_places(text: str, offered: Collection[str]) -> list[int]:
    """Where in a whole text a written call may begin."""
    return [at for at, _ in _places(text, offered)]


class Openings:
    """The first place in a text, given in pieces, from which on it may be a written call.

    `held` counts the characters at the end of what came that are to wait; once `found`, they are all from there on.
    """

    def __init__(self, offered: Collection[str]) -> None:
        self.held = 0
        self.found = False
        self._line = ""
        """The current line; of a long one its start and its end. With what is held, also the lines from there on."""
        self._fence = ""
        self._offered = offered

    def feed(self, text: str) -> None:
        """The next piece."""
        if self.found:
            self.held += len(text)
            return
        is_inside = not self.held and self._line != "" and not self._line.isspace()
        if is_inside and len(self._line) > 2 * _LOOK:
            self._line = f"{self._line[:_LOOK]}w{self._line[-_LOOK:]}"
        # A place is at most five characters before what it needs.
        since = max(0, len(self._line) - self.held - 8)
        self._line += text
        if is_inside and _PROSE.fullmatch(text):
            return
        self.held = 0
        for at, begins in _places(self._line, self._offered, self._fence, since):
            self.found = begins is True
            self.held = len(self._line) - at
            return
        *lines, line = self._line.split("\n")
        for ended in lines:
            self._fence = fence_after(ended, self._fence)
        self._line = line
