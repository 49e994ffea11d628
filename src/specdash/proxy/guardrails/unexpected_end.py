"""A turn inside a tool loop that announces its next action and ends without it, or ends with nothing at all.

Only what is provably such a turn counts. A summary, a question, a list or an offer to the user is a proper end.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from specdash.proxy.guardrails import markers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.proxy.blocks import ToolCall
    from specdash.proxy.messages import MessagesRequest

_LONGEST = 400
_VERBS = (
    "add|adjust|analy[sz]e|apply|build|call|change|check|clean|commit|compare|compile|configure|continue|convert|copy"
    "|correct|create|debug|delete|download|edit|examine|execute|explore|extend|extract|fetch|find|fix|format|generate"
    "|get|grep|implement|inspect|install|investigate|launch|list|load|locate|look|modify|move|open|parse|patch|query"
    "|read|re-?check|re-?read|re-?run|re-?try|refactor|remove|rename|replace|restart|rewrite|review|run|scan|search|see"
    "|set|start|stop|switch|test|trace|try|update|use|validate|verify|view|write"
)
_GERUNDS = (
    "adding|analy[sz]ing|applying|building|calling|changing|checking|creating|debugging|deleting|editing|examining"
    "|executing|exploring|fetching|finding|fixing|getting|grepping|implementing|inspecting|installing|investigating"
    "|listing|locating|looking|modifying|moving|opening|patching|reading|re-?checking|re-?reading|re-?running|refactoring"
    "|removing|renaming|replacing|reviewing|rewriting|running|scanning|searching|testing|tracing|trying|updating"
    "|using|verifying|viewing|writing"
)
_FILLER = (
    "(?:now|first|next|also|just|quickly|then|again|instead|simply|directly|actually|carefully|briefly|quick|proceed to"
    "|go ahead and|try to|begin to|start to|continue to|need to|have to)"
)
_LEAD = (
    "ok(?:ay)?|now|next|first|then|great|good|perfect|alright|right|sure|so|and|but|also|instead|finally|wait|hmm|again"
)
_INTENT = re.compile(
    rf"""(?:^(?:(?:{_LEAD})[,.:]?\s+)*|[,;:]\s+|\s[–—-]\s+|\b(?:so|and|then|but)\s+)
    (?:(?:let\s+me|let[’']?s|i[’']ll|i\s+will|i[’']m\s+going\s+to|i\s+am\s+going\s+to)\s+(?:{_FILLER}\s+)*
       (?:(?:{_VERBS})\b|(?:take|have)\s+(?:a|another)\s+(?:\w+\s+)?look\b|double[- ]check\b
          |(?:start|begin|continue|proceed)\s+(?:by|with)\s+(?:{_GERUNDS})\b|proceed\s+(?:to|with)\b)
    )(?P<rest>.*)\Z""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_GERUND = re.compile(rf"(?:now\s+|next,?\s+|first,?\s+)?(?:{_GERUNDS})\b(?P<rest>[^:]*):\Z", re.IGNORECASE)
_NOT_NOW = re.compile(
    r"""\b(?:let\s+me\s+know|when|whenever|once|unless|later|tomorrow|next\s+time|from\s+now\s+on|going\s+forward
    |in\s+the\s+future|please|(?:if|after|until)\s+you|would\s+you|do\s+you|for\s+you|with\s+you|to\s+you
    |your\s+(?:approval|confirmation|permission|go-ahead|answer|reply|response|decision|input|feedback))\b""",
    re.IGNORECASE | re.VERBOSE,
)
_NOT_AN_ACTION = re.compile(r"\s+(?:you|back|that\s+as|with\s+that|out\s+for|forward\s+to)\b", re.IGNORECASE)
_STRUCTURE = re.compile(r"\s*(?:[-*+•|>#]\s|\d+[.)]\s|\||#{1,6}\s|✅|✔|❌|[-=_*]{3,}\s*\Z)")
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’)*_`]*\s+")
_DRESSING = " \t*_\"'“”‘’()"


def is_unexpected_end(
    request: MessagesRequest, text: str, calls: Sequence[ToolCall], finish_reason: str | None
) -> bool:
    """True for an answer without calls that ends a running tool loop blank, or by announcing the call it lacks."""
    if finish_reason != "stop" or calls or not _in_tool_loop(request):
        return False
    return not text.strip() or announces_action(text)


def _in_tool_loop(request: MessagesRequest) -> bool:
    if not request.tools or request.tool_choice.kind == "none" or request.messages[-1].role == "assistant":
        return False
    last = request.last_user
    return last is not None and any(block.get("type") == "tool_result" for block in last.content)


def announces_action(text: str) -> bool:
    """True when the last sentence of `text` says, in the first person, that a concrete action comes now."""
    text = text.rstrip()
    last_line = max(text.rfind("\n") + 1, 0)
    if not any(start == last_line for _, start in markers.line_starts(text)) or text.endswith("```"):
        return False
    paragraph = re.split(r"\n[ \t\r]*\n", text)[-1]
    if any(_STRUCTURE.match(line) for line in paragraph.split("\n")):
        return False
    sentence = _SENTENCE_END.split(paragraph)[-1].strip(_DRESSING).replace("\n", " ")
    if len(sentence) > _LONGEST or "?" in sentence or _NOT_NOW.search(sentence):
        return False
    found = _INTENT.search(sentence)
    if found is None:
        return _GERUND.match(sentence) is not None
    rest = found["rest"].rstrip(":.…! ")
    return not _NOT_AN_ACTION.match(rest) and not re.search(r":\s|\s[–—-]\s", rest)
