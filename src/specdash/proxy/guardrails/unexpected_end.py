"""Turns inside a tool loop that announce their next call and end without it.

A finished agent must never be made to act; a missed announcement merely ends the turn. So the last sentence must say in
the first person what is done now, and end in a colon or name its file, command or tool, without one word of doubt.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from specdash.proxy.guardrails.history import calls_of, instruction_of
from specdash.proxy.guardrails.openings import prose_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdash.proxy.answer.blocks import ToolCall
    from specdash.proxy.translate.parse import Message, MessagesRequest

ADDED_ID = "toolu_added_"
"""Begins the id of a call that a retry added to an announcement: the client sends it back with its history."""


def _any_of(phrases: str) -> re.Pattern[str]:
    """Finds any of the words, and phrases with "_" for a space, also with an "s" behind it."""
    found = "|".join(phrases.split()).replace("_", " ")
    return re.compile(rf"(?<![\w'-])(?:{found})(?:'?s)?(?![\w'-])", re.IGNORECASE)


# Verbs that only a call carries out; that may also write a text; that need the name of a tool; that take a command.
_DEEDS = _any_of("""
    check debug edit examine execute explore fetch find fix grep implement inspect install investigate locate look
    patch read recheck refactor remove rename replace rerun restart retry run scan search test trace try verify""")
_WRITES = _any_of("add build create delete modify move open rewrite update write checking reading running testing")
_USES = _any_of("use call")
_RUNS = _any_of("execute rerun restart retry run")
# All that an object may hold beside names, where the verb and a colon do not decide.
_PLAIN = _any_of("a again an at code docs file import in it new now script server template test the to tool with")
_DOUBT = _any_of("""
    no not never nothing none neither nor without don't won't can't cannot only rarely enough any doubt stop done
    finish finished complete completed rest leave left remain remaining skip wait keep end final later tomorrow tonight
    today overnight soon shortly eventually sometime someday meanwhile future due long bit separately afterwards then
    next time date day night morning evening afternoon noon midnight pm am week weekend month year hour minute second
    moment monday tuesday wednesday thursday friday saturday sunday always usually often every each hourly daily
    regularly periodically release version sprint milestone phase session pr pull issue ticket backlog follow-up if
    when whenever whatever once unless until till whether while during after before upon as otherwise case should would
    could can may might must perhaps maybe probably possibly provided assuming depending pending given subject needed
    necessary approval confirm please you you're you'll you've your user customer team everyone someone together we us
    our they my myself me i'm i'll i've thank say tell show explain summarize ask report note finding point word option
    pro plan question thought table list number back up down off out over on through by""")
_TO_THE_USER = _any_of("""
    please you your confirm approve approval permission let_me_know tell say ask feel_free wait waiting awaiting
    blocked standing_by stop stopping nothing that_is_all that's_all that_is_it that's_it all_done all_set we're_done
    i'm_done task_is work_is job_is everything_is goodbye nice_day""")
_OVER = _any_of("done finished complete completed over ready resolved set everything need")

_SHOWN = re.compile(r"^[ \t]*(?:[-*+•>|#]|\d+[.)])\s|:\W*\n", re.MULTILINE)
_ASIDE = re.compile(r"[?,;()–—\"“”„«»]|: | - ")
_INTENT = re.compile(
    r"(?i)(?=.{,300}$)(?P<cause>.+, so |)(?:(?:now|next|first|so|ok|okay|good|great),? )*"
    r"(?:(?:let me|let's|i'll|i will|i'm going to|i am going to) (?:(?:now|first|next|also|just|quickly|start by) )*"
    r"|(?<=now )(?=\w+ing the .*:$))(?P<verb>[\w-]+)(?P<object>.*)"
)
_AWAY = r"(?!.* (?:in|at|with|from|to|sign-off|except|willing|instant|someplace|separate|accomplished|summer)\b)"
_OBJECT = re.compile(
    rf"(?: at| for| into)?{_AWAY}(?: (?:an?|the|its?|this|that|these|those|them|how|what|why|where)\b.*)?"
)
_FILE = r"`?(?<![\w.~/-])(?:(?:~|\.{1,2})?/[\w./-]*\w|[\w./-]*(?:\w\.[a-z]\w{0,4}|Makefile|Dockerfile))(?![\w/-])`?"
_PURPOSE = re.compile(rf" (?:to|and) (?:see|{_DEEDS.pattern})\b.*")


def is_unexpected_end(
    request: MessagesRequest, text: str, calls: Sequence[ToolCall], finish_reason: str | None
) -> bool:
    """True for an answer without calls that ends a running tool loop by announcing the call it lacks."""
    is_open = request.tools and request.tool_choice.kind != "none" and request.messages[-1].role != "assistant"
    last = request.last_user
    results = [block for block in last.content if block.get("type") == "tool_result"] if last else []
    if finish_reason != "stop" or calls or not is_open or not results:
        return False
    return announces_action(text, [tool.name for tool in request.tools])


def has_been_added_to(messages: Sequence[Message], text: str) -> bool:
    """True when a call was already added since the user's latest instruction, or the model wrote the same before."""
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


def announces_action(text: str, tools: Iterable[str] = ()) -> bool:
    """True when the last sentence of `text` says in the first person that a call comes now; `tools` are names."""
    last_line = (text := text.rstrip()).rfind("\n") + 1
    if not any(start == last_line for start, _ in prose_lines(text)):
        return False
    paragraph = re.split(r"\n[ \t\r]*\n", text)[-1]
    earlier = text[: len(text) - len(paragraph)]
    last = re.split(r"(?<=[^\d\s][.!?…])[*_]*\s+", paragraph)[-1]
    before = text[: len(text) - len(last)].replace("’", "'")[-600:]
    if "?" in before or _TO_THE_USER.search(before) or _SHOWN.search(earlier[-6:] + paragraph):
        return False
    sentence = " ".join(last.replace("’", "'").strip("*_ ").split())
    if (intent := _INTENT.fullmatch(sentence)) is None:
        return False
    verb, has_colon = intent["verb"].replace("-", ""), sentence.endswith(":")
    named = "`[^`]+`|" + _FILE if _RUNS.fullmatch(verb) else _FILE
    if uses := _USES.fullmatch(verb):
        named = "|".join(rf"^ (?:the )?`?{re.escape(tool)}\b`?" for tool in tools) or "(?!)"
    rest, names = re.subn(named, " ", intent["object"].rstrip(" .!…:"))
    if _ASIDE.search(rest) or _DOUBT.search(intent["cause"] + rest):
        return False
    if has_colon and _DEEDS.fullmatch(verb) and _OBJECT.fullmatch(rest):
        return True
    acts = _DEEDS.fullmatch(verb) or _WRITES.fullmatch(verb) or (uses and names)
    is_plain = rest and all(map(_PLAIN.fullmatch, _PURPOSE.sub("", rest).split()))
    return bool(acts and is_plain and (has_colon or (names and not _OVER.search(before))))
