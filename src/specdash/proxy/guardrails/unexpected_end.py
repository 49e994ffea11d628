"""Turns inside a tool loop that announce their next call and end without it.

A finished agent must never be made to act. So only two kinds of last sentence count, in the first person and about
what comes now: one that ends in a colon, and one that names the tool, file or command it acts on. A summary, a
question, a promise for later, a condition, or a turn that waits for the user is a proper end, and so is all that stays
in doubt, in any language.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from specdash.proxy.guardrails.history import calls_of, instruction_of
from specdash.proxy.guardrails.markup_search import prose_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdash.proxy.answer.blocks import ToolCall
    from specdash.proxy.translate.parse import Message, MessagesRequest


ADDED_ID = "toolu_added_"
"""Begins the id of a call that a retry added to an announcement: the client sends it back with its history."""

_LONGEST = 400
_CONTEXT = 600
"""Characters before the last sentence in which a question or a request to the user makes the turn one that waits."""
_VERBS = (
    "adjust|analy[sz]e|apply|check|clean|commit|compare|compile|configure|convert|copy|correct|create|debug|delete"
    "|double[- ]check|download|edit|examine|execute|explore|extract|fetch|find|fix|format|generate|get|grep|implement"
    "|inspect|install|investigate|launch|load|locate|look|modify|move|open|parse|patch|query|read|re-?check|re-?read"
    "|re-?run|re-?try|refactor|remove|rename|replace|restart|rewrite|review|run|scan|search|see|switch|test|trace|try"
    "|update|validate|verify|view|write|add|build|call|list|set|start|begin|continue|proceed|use"
    "|(?:take|have)\\s+(?:a|another)\\s+(?:\\w+\\s+)?look"
)
_GERUNDS = (
    "adding|analy[sz]ing|applying|building|calling|changing|checking|creating|debugging|deleting|editing|examining"
    "|executing|exploring|fetching|finding|fixing|grepping|implementing|inspecting|installing|investigating"
    "|listing|locating|looking|modifying|moving|opening|patching|reading|re-?checking|re-?reading|re-?running|refactoring"
    "|removing|renaming|replacing|reviewing|rewriting|running|scanning|searching|testing|tracing|trying|updating"
    "|verifying|viewing|writing"
)
_FILLER = (
    "(?:now|first|next|also|just|quickly|again|instead|simply|directly|actually|carefully|briefly|quick|proceed\\s+to"
    "|go\\s+ahead\\s+and|try\\s+to|start\\s+by|begin\\s+by)"
)
_LEAD = (
    "ok(?:ay)?|now|next|first|then|great|good|perfect|alright|right|sure|so|and|but|also|instead|finally|wait|hmm|again"
    "|you(?:[’']re|\\s+are)\\s+right|i\\s+see"
)
_INTENT = re.compile(
    rf"""(?:(?:^(?:(?:{_LEAD})[,.:]?\s+)*|;\s+|\s[–—-]\s+|\b(?:so|but)\s+)
       (?:let\s+me|let[’']?s|i[’']ll|i\s+will|i[’']m\s+going\s+to|i\s+am\s+going\s+to)
      |(?:,|\band)\s+(?:let\s+me|let[’']?s))\s+(?:{_FILLER},?\s+)*
    (?P<verb>{_VERBS}|{_GERUNDS})\b(?P<rest>[^\n]*)\Z""",
    re.IGNORECASE | re.VERBOSE,
)
_GERUND = re.compile(rf"(?:now,?|next,?|first,?)\s+(?:{_GERUNDS})\b[^:]*:\Z", re.IGNORECASE)
_NEEDS_OBJECT = re.compile(
    r"(?:see|get|add|list|set|start|begin|continue|proceed|use|call|open|move|write)\Z", re.IGNORECASE
)
_NEEDS_TOOL = re.compile(r"(?:use|call)\Z", re.IGNORECASE)
_NEEDS_DEED = re.compile(r"(?:start|begin|continue|proceed)\Z", re.IGNORECASE)
_DEED = re.compile(rf"\s+(?:by|with)\s+(?:{_GERUNDS})\b", re.IGNORECASE)
_MAKES_TEXT = re.compile(
    r"(?:add|build|compare|compile|create|format|generate|get|list|open|set|update|write)\Z", re.IGNORECASE
)
_SPEECH = re.compile(
    r"""\b(?:table|list|chart|comparison|record|draft|what\s+changed|summar\w+|recap|overview|explanation|conclusions?|answer|reply|response|message|findings?|results?|note
    |caveats?|remark|point|words?|details?|thoughts?|suggestions?|recommendations?|proposal|plan|options?|steps?
    |questions?|report|changes|reasons?|issue|ticket|task|reminder|one\s+(?:more\s+)?thing|something|that|this)\b""",
    re.IGNORECASE | re.VERBOSE,
)
_IDIOM = re.compile(
    r"""\s+(?:back|out\s+for|forward|after|to\b|in\s+on|in\s+with|up\s+(?:on|with)|off\b|around\s+to|going|ready|started
    |over\b|on\b(?!\s+to)|(?:the\s+changes|what)\s+(?:i|we)\b|as\b|aside|along|away|along|(?:it|that|this|things?|everything)\s+(?:a|as|at|down|up|off
    |aside|over|with|out|there|be|for\s+now|here)\b|not\b|nothing|no\b|none|neither|only\s+(?:if|when)|my|ahead)\b|\s+out(?:\s+of\b|:?\Z)|\s+(?:how|what)\s+(?:\w+\s+){0,2}(?:goes|happens|says?)\b""",
    re.IGNORECASE | re.VERBOSE,
)
"""What makes another meaning of a verb that stands before it: "get back to", "look forward to", "call it a day"."""
_ASIDE = re.compile(
    r"""\b(?:check|see|verify|test|confirm|determine|find\s+out|look)(?:ing)?\s+(?:whether|if|when|once|until)\b
    |\bonce\s+(?:more|again)\b|\bbefore\s+\w+ing\b(?=.*:\Z)
    |\bas\s+(?:you|i)\s+(?:asked|said|requested|suggested|mentioned|noted|wanted)\b|\byou(?:[’']re|\s+are)\s+right\b
    |\bafter\s+(?:this|that|these|those|my|the)\s+(?:change|edit|fix|update)s?\b""",
    re.IGNORECASE | re.VERBOSE,
)
"""Harmless uses of the words in `_NOT_NOW`."""
_NOT_NOW = re.compile(
    r"""\b(?:stop\w*|done|finish\w*|completed|conclud\w*|wrap\w*|nothing|never|leave|leaving|skip\w*|hold|wait\w*|pause\w*|refrain\w*
    |avoid\w*|rest|leave|remain\w*|enough|no\s+(?:longer|more|further|need)|any\s?more
    |explain\w*|describe|summari[sz]\w*|say|tell|show|clarify|mention|recommend|suggest|propose|ask|recap|share|outline
    |later|tomorrow|tonight|today|eventually|some\s?day|soon|shortly|afterwards?|meanwhile|meantime|subsequent\w*
    |(?:next|another|other|some|which|any|same|the)\s+(?:time|day|session|week|month|sprint|release|version|turn|round)
    |(?:next|another|separate|different|future|follow\w*|upcoming|later)\s+(?:time|step|phase|stage|iteration|pass|commit|pr|pull|change|branch|milestone|task|message|conversation)
    |future|follow[- ]?ups?|from\s+(?:now|here|then|this\s+point)\s+on\w*|going\s+forward|henceforth|from\s+here
    |(?:in|for|during)\s+(?:a|an|the|my|our|this)\s+(?:[\w-]+\s+)?(?:phase|stage|round|iteration|commit|pr|pull|session|turn|sprint|release|version|milestone|cleanup|project|repo|repository|morning|evening|afternoon|weekend|meeting)
    |(?:as|if|when|where)\s+(?:needed|necessary|required|possible|appropriate)|when|whenever|once|unless|until|till|as\s+soon\s+as
    |as\s+long\s+as|in\s+case|in\s+the\s+event|provided|providing|assuming|suppos\w+|depending|pending|subject\s+to|upon|if|whether|should|otherwise
    |after|before|always|each\s+time|every\s+time|daily|nightly|weekly|regularly|periodically|usually|normally|generally
    |occasionally|sparingly|would|might|maybe|perhaps|probably|possibly|hope\w*|hoping|intend\w*|happy|glad|gladly
    |at\s+(?:some|a\s+later|that)\s+point|at\s+the\s+end\b(?!\s+of)|in\s+the\s+end|down\s+the\s+(?:road|line)|to\s+sum\s+up|given|with\s+(?:more|the\s+(?:right|log))|in\s+due\s+course|in\s+time
    |in\s+(?:an?|one|two|a\s+few|some)\s+(?:second|moment|minute|hour|day|week|month)s?|at\s+(?:noon|midnight|night|\d\S*)
    |on\s+(?:request|demand|monday|tuesday|wednesday|thursday|friday|saturday|sunday)|in\s+\d+\s+\w+|to-?do|backlog|by\s+(?:hand|default)
    |please|confirm\w*|approv\w*|permission|go-ahead|sign-?off|review(?:er)?s?\s+by|you|your|yours|user|users|reviewer|maintainers?
    |(?:open|file|create|raise|submit|write|draft|log)\s+(?:an?|another|the)\s+(?:\w+\s+)?(?:issue|ticket|task|bug|reminder))\b""",
    re.IGNORECASE | re.VERBOSE,
)
_NEGATED = re.compile(r"(?:\s+\S+){0,2}\s+(?:not|no|nothing|none|never|neither)\b", re.IGNORECASE)
_NOT_NOW_UNMARKED = re.compile(
    r"\b(?:then|not|no|none|neither|nor|could|can|may|each|every|while|during|than|because|since|eventually|ci)\b"
    r"|\bas\s+(?:is|it\s+is|they\s+are|usual|the|a|an|our|my)\b",
    re.IGNORECASE,
)
"""What makes a sentence without a colon doubtful as well."""
_FOR_THE_USER = re.compile(
    r"""\b(?:please|let\s+me\s+know|tell\s+me|confirm\w*|approv\w*|go-ahead|permission|sign-?off|wait(?:ing)?\s+(?:for|on|until)
    |(?:if|once|when|after|until|unless|whenever|before|as\s+soon\s+as)\s+you|up\s+to\s+you
    |you(?:[’']ll)?\s+(?:can|could|should|need|may|must|might|have\s+to|want)|your\s+(?:call|move|turn|answer|reply|response|decision|input
    |feedback|choice|ok|okay|word|review)|need\s+(?:you|your|some|more)|awaiting|standing\s+by|blocked|(?:and|,|or)\s+i[’']ll\s+\w+)\b
    |\b(?:i[’']m|i\s+am|we[’']re|we\s+are|all|everything[’']?s?(?:\s+is)?)\s+(?:now\s+)?(?:all\s+)?(?:done|finished|complete|set)\b
    |\b(?:task|work|job|request|everything)\s+(?:is|has\s+been)\s+(?:now\s+)?(?:\w+\s+)?(?:done|finished|completed?)\b
    |\bnothing\s+(?:else|more|left|further|to\s+do|remains)\b|\bthat[’']?s?\s+(?:is\s+)?(?:all|it|everything)\b
    |\bstop(?:ping)?\s+(?:here|now|there)\b|\bno\s+(?:further|more|other)\s+(?:changes?|action|work|steps?)\b""",
    re.IGNORECASE | re.VERBOSE,
)
_FINISHED = re.compile(
    r"\b(?:done|finished|completed?|over|ready|resolved|no\s+need|i\s+(?:still\s+)?need(?!\s+to))\b|\?", re.IGNORECASE
)
"""What makes a sentence behind it doubtful, where that has no colon."""
_BEFORE_NAME = re.compile(r"\b(?:about|like|as)\b|\b(?:with|by)\s+\w", re.IGNORECASE)
_AFTER_NAME = re.compile(
    rf"""[`*"')]*(?:,?\s+(?:now|again|first|next|too|as\s+well|directly|myself|instead|once\s+more|one\s+more\s+time|quickly))*
    (?:\s+(?:(?:to|and)\s+(?:(?:then|also)\s+)?(?:{_VERBS}|see|learn|know|make\s+sure|ensure|understand|reproduce|include|reflect
        |match|handle|confirm|get|find\s+out)\b[^,;]*
      |for\s+(?!now|good|ever|later|the\s+(?:moment|time|rest))(?:\w+\s+){{0,2}}\w+|(?:at|around|near|on)?\s*lines?\s+[\d–-]+))?\Z""",
    re.IGNORECASE | re.VERBOSE,
)
"""All that may follow the name of what a sentence without a colon acts on."""
_WONDERS = re.compile(
    r"\s*(?:(?:ok(?:ay)?|so|but|and|hmm|wait|now)[,.]?\s+)*(?:why|what|where|which|how|who|when|is\s+it|could\s+it)\b",
    re.IGNORECASE,
)
_ASKS = re.compile(
    r"\b(?:you|your|shall|should|may|ok(?:ay)?|want|prefer|proceed|go\s+ahead|continue|next)\b", re.IGNORECASE
)
_STRUCTURE = re.compile(r"\s*(?:[-*+•|>#]\s|\d+[.)]\s|\||#{1,6}\s|✅|✔|❌|[-=_*]{3,}\s*\Z)")
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’)*_`]*\s+")
_DRESSING = " \t*_\"'“”‘’()"

_SUFFIXES = (
    "pyi?|ipynb|m?jsx?|cjs|tsx?|vue|svelte|json|jsonl|toml|ya?ml|md|rst|txt|cc?|cpp|hh?|hpp|cu|rs|go|java|kts?|scala|rb|php|pl"
    "|lua|swift|sh|bash|zsh|ps1|sql|html?|s?css|xml|cfg|ini|conf|lock|log|csv|tsv|env|gradle|proto|tf|cmake|mk|patch|diff|gguf"
)
_FILE = re.compile(
    rf"""(?<![\w.@/-])(?:
      (?:~|\.{{1,2}})?/[\w.@~+/-]*\w[\w.@~+/-]*
    | (?:src|tests?|lib|libs|docs?|app|apps|bin|scripts?|configs?|include|pkg|cmd|internal|tools?|build|dist|public
        |packages?|components?|\.\w+)/[\w.@~+/-]*
    | (?:[\w.@~+-]+/)*[\w@~+-][\w.@~+-]*\.(?:{_SUFFIXES})
    | (?:[\w.@~+-]+/)*(?:Makefile|Dockerfile|Rakefile|Gemfile|Justfile|Jenkinsfile|LICENSE|README|CHANGELOG
        |\.[a-z]\w{{2,}})
    )(?![\w/])""",
    re.VERBOSE,
)
_PROGRAMS = (
    "make|cmake|ninja|bazel|git|gh|python3?|pip3?|uv|poetry|pytest|tox|nox|mypy|ruff|black|flake8|npm|npx|pnpm|yarn|bun|deno|node|tsc"
    "|eslint|jest|vitest|cargo|rustc|go|gofmt|mvn|gradle|java|javac|dotnet|gcc|clang|bash|sh|ls|cat|head|tail|grep|rg|find|sed|awk"
    "|curl|wget|docker|podman|kubectl|systemctl|journalctl|ps|kill|rm|mv|cp|mkdir|chmod|diff|patch|touch|wc|sort|env|psql|sqlite3|ssh"
)
_COMMAND = re.compile(rf"`\s*(?:\$\s*)?(?:sudo\s+)?(?:(?:{_PROGRAMS})(?=[\s`])|\./\S)[^`]*`")
_BARE_COMMAND = re.compile(
    r"\b(?:git\s+[a-z-]{2,}|make\s+[a-z][\w-]+|pytest|npm\s+(?:run\s+\w+|test|install|ci)|cargo\s+[a-z]+|go\s+(?:test|build|vet))(?=[\s.:;!)…]|\Z)"
)
_RUNS = re.compile(
    r"(?:re-?)?run(?:ning)?\Z|execut(?:e|ing)\Z|launch\Z|re-?try\Z|try(?:ing)?\Z|start\Z|restart\Z|call(?:ing)?\Z",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"`[^`\n]{2,}`")


def is_unexpected_end(
    request: MessagesRequest, text: str, calls: Sequence[ToolCall], finish_reason: str | None
) -> bool:
    """True for an answer without calls that ends a running tool loop by announcing the call it lacks."""
    if finish_reason != "stop" or calls or not _in_tool_loop(request):
        return False
    return announces_action(text, [tool.name for tool in request.tools])


def has_been_added_to(messages: Sequence[Message], text: str) -> bool:
    """True when a call was already added since the user's latest instruction, or the model wrote the same before.

    An added call has an id of its own, which comes back with the history.
    """
    ending = _ending(text)
    for message in reversed(messages):
        if instruction_of(message):
            return False
        if message.role != "assistant":
            continue
        if any(str(call.get("id", "")).startswith(ADDED_ID) for call in calls_of(message)):
            return True
        earlier = "\n".join(block["text"] for block in message.content if block["type"] == "text")
        if ending and _ending(earlier) == ending:
            return True
    return False


def _ending(text: str) -> str:
    return " ".join(text.rstrip().rpartition("\n")[2].split()).casefold()


def _in_tool_loop(request: MessagesRequest) -> bool:
    if not request.tools or request.tool_choice.kind == "none" or request.messages[-1].role == "assistant":
        return False
    last = request.last_user
    return last is not None and any(block.get("type") == "tool_result" for block in last.content)


def announces_action(text: str, tools: Iterable[str] = ()) -> bool:
    """True when the last sentence of `text` says in the first person that a call comes now; `tools` are names."""
    text = text.rstrip()
    last_line = text.rfind("\n") + 1
    if not any(start == last_line for start, _ in prose_lines(text)) or text.endswith("```"):
        return False
    paragraph = re.split(r"\n[ \t\r]*\n", text)[-1]
    if any(_STRUCTURE.match(line) for line in paragraph.split("\n")):
        return False
    *before, sentence = _SENTENCE_END.split(paragraph)
    sentence = sentence.strip(_DRESSING).replace("\n", " ")
    if len(sentence) > _LONGEST or "?" in sentence:
        return False
    has_colon = sentence.endswith((":", "："))
    if _waits(text[: len(text) - len(paragraph)] + " ".join(before), has_colon=has_colon):
        return False
    intent = _INTENT.search(sentence)
    if intent is None:
        return _GERUND.match(sentence) is not None and not _NOT_NOW.search(_ASIDE.sub("", sentence))
    if _is_not_now(sentence, intent["rest"], has_colon=has_colon):
        return False
    return _acts(intent["verb"], intent["rest"].rstrip(" .!…"), tools, has_colon=has_colon)


def _waits(before: str, *, has_colon: bool) -> bool:
    """True when the text `before` the last sentence says that the agent is finished, or waits for the user."""
    near = before[-_CONTEXT:]
    if _FOR_THE_USER.search(near):
        return True
    sentences = map(str.rstrip, _SENTENCE_END.split(near))
    if any(asked.endswith("?") and (_ASKS.search(asked) or not _WONDERS.match(asked)) for asked in sentences):
        return True
    return not has_colon and _FINISHED.search(near) is not None


def _is_not_now(sentence: str, rest: str, *, has_colon: bool) -> bool:
    """True for a sentence about what comes later, under a condition, or not at all."""
    if _NOT_NOW.search(_ASIDE.sub(" ", sentence)) or _IDIOM.match(rest) or _NEGATED.match(rest):
        return True
    # What stands behind a colon or a dash has been carried out already.
    if re.search(r":\s|\s[–—-]\s", rest.rstrip()):
        return True
    return not has_colon and _NOT_NOW_UNMARKED.search(_ASIDE.sub(" ", rest)) is not None


def _acts(verb: str, rest: str, tools: Iterable[str], *, has_colon: bool) -> bool:
    """True when `verb` and its object are a deed that a call does."""
    rest = rest.rstrip(":： ")
    if not has_colon:
        named = _named(verb, rest, tools)
        return (
            named is not None and not _BEFORE_NAME.search(rest[: named[0]]) and bool(_AFTER_NAME.match(rest, named[1]))
        )
    if _tools_named(rest, tools):
        return True
    head = re.split(r"\s(?:for|of|to|in|about|on|at|from|into)\s", rest)[0]
    if _MAKES_TEXT.match(verb) and re.match(r"\s+(?:that|what|how|why|them|here|it\s+here)\b", rest):
        return False
    if _MAKES_TEXT.match(verb) and _SPEECH.search(head) and _named(verb, rest, tools) is None:
        return False
    if _NEEDS_TOOL.match(verb):
        return re.search(r"\bto\s+\w+", rest) is not None and not _SPEECH.search(head)
    if _NEEDS_DEED.match(verb):
        return _DEED.match(rest) is not None or _named(verb, rest, tools) is not None
    return bool(rest.strip()) or not _NEEDS_OBJECT.match(verb)


def _named(verb: str, rest: str, tools: Iterable[str]) -> tuple[int, int] | None:
    """The last name of a tool, file or command in the object of `verb`: where it begins, and ends."""
    places = (
        []
        if _NEEDS_TOOL.match(verb)
        else [*_FILE.finditer(rest), *_COMMAND.finditer(rest), *_BARE_COMMAND.finditer(rest)]
    )
    if _RUNS.match(verb):
        places += _QUOTED.finditer(rest)
    if _NEEDS_DEED.match(verb) and not re.match(r"\s+(?:by|with)\b|\s+`", rest):
        places = []
    places += _tools_named(rest, tools)
    return max((place.span() for place in places), key=lambda span: span[1], default=None)


def _tools_named(rest: str, tools: Iterable[str]) -> list[re.Match[str]]:
    """Where offered tools are named as tools: as "the X tool", in code, or by a name that is no English word."""
    places: list[re.Match[str]] = []
    for name in tools:
        word = re.escape(name)
        places += re.finditer(rf"\b(?:the|a)\s+[`\"]?{word}[`\"]?\s+(?:tool|function|command)\b|`{word}`", rest)
        if re.search(r"[_\d]|[a-z][A-Z]", name):
            places += re.finditer(rf"(?<![\w./-]){word}(?![\w/-])", rest)
        elif name[:1].isupper():
            places += re.finditer(rf"(?:^\s*){word}(?=\s+(?:to\s+\w+|on\b|tool\b))", rest)
    return places
