"""Turns inside a tool loop that announce their next call and end without it.

A finished agent must never be made to act; a missed announcement merely ends the turn. So the last sentence must say in
the first person what is done now, and end in a colon or name its file, command or tool, without a word of doubt, of
later, or to the user. Judged by word lists: they are data, and tests/data/proxy_corpus/endings.json is what they face.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from specdash.proxy.guardrails.history import blocks_of, instruction_of, texts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from specdash.proxy.answer.blocks import ToolCall
    from specdash.proxy.translate.parse import Message, MessagesRequest

_LONGEST, _LOOKED_AT = 160, 4000
"""Characters of a sentence of another language, and of the end of an answer."""
ADDED_ID = "toolu_added_"
"""Begins the id of a call that a retry added to an announcement: the client sends it back with its history."""


def _any_of(phrases: str) -> re.Pattern[str]:
    """Finds any of the words, and phrases with "_" for a space, also with an "s" behind it."""
    found = "|".join(phrases.split()).replace("_", " ")
    return re.compile(rf"(?<![\w'-])(?:{found})(?:'?s)?(?![\w'-])", re.IGNORECASE)


# Verbs of work of several words, or that _TALK would claim; those of a run; those that need a tool's name behind them.
_DEEDS = _any_of("""
    do_(?:it|that) get_the have_a_look take_an?(?:other|_closer|_look) list(?=_.*_(?:with|using)_`) put see""")
# Verbs of speech, of rest and of doubt, which neither a colon nor a name makes work.
_TALK = _any_of("""
    admit answer ask assume be call clarify close conclude consider count(?!_the) defer define describe discuss
    emphasize end expand explain express give guess hope illustrate introduce keep know lay_out leave let list mark
    mention need not note outline pause point postpone present propose put quote recap recommend repeat report
    re(?:mind|iterate|state) respond rest say see share sign skip speak state stay stop(?!_the) stress suggest
    summari[sz]e take talk tell thank think treat trust wait walk want watch wish wonder wrap_up reply remember remark
    offer advise warn get_to never only always rarely refrain avoid flag agree (?!app|supp)\\w+ly hold have break sum
    finish(?!_by)""")
_RUNS = _any_of("execute rerun restart retry run start launch try use")
_USES = _any_of("use call invoke spawn dispatch")
# What such a verb makes of itself where it speaks of words, not of work.
_WORDS = _any_of("""
    summary summaries report overview caveat remark recap explanation answer thought plan news finding conclusion word
    point pros description ticket an_issue update_the_issue a_pr a_pull_request myself mind english question sense
    (?<=\\s)clear harder brief fast eyes between_the_lines into_limits notes_here list_the list_them list_what
    run_through silly""")
# Not now, or not surely, wherever it stands.
_LATER = _any_of("""
    later tomorrow tonight overnight soon sometime meanwhile future afterwards morning afternoon evening night midnight
    noon weekend week month year hour always every plan phase backlog
    (?:next|this|another|new|coming)_(?:release|sprint|milestone|session) follow-up next_time next_week long_run
    deadline instant moment leisure passing separate drive qa off_the_list (?<!kick_)off meantime other_time from_here
    out_of \\w+day (?:dai|hour|night|week|regular|periodical|usual|short|eventual)ly permitting""")
_DOUBT = _any_of("""
    no not never nothing none without don't won't can't cannot enough if when whenever once(?!_more) unless until till
    after before as_soon as_needed otherwise in_case should would could can may might must perhaps maybe probably
    possibly provided assuming depending pending given needed necessary approval go-ahead you stop(?!_the) wait leave
    skip keep i'm tell say ask further confirm(?!_that) except_(?:in|for|if|when)""")
# Clauses in which a word of doubt means nothing: what is looked for, and what for.
_SUBORDINATE = re.compile(
    r"(\b(?:check|see|verify|test|find|determine|confirm|sure|learn)|ing)\b(?: [^.]*?)? (?:if|whether)\b.*"
    r"| (?:what|why|how|where|which|who)\b.*"
)
_PURPOSE = re.compile(r" (?:to (?!you|the\b)|and (?!wait|stop|leave|then|ask|tell))\w+\b.*")
_TO_THE_USER = _any_of("""
    please confirm(?!s) approval permission_to let_me_know tell say ask feel_free wait waiting awaiting blocked
    standing_by stop nothing_(?:more|left|to) that(?:_i|')s_(?:all|it) all_done (?:we're|i'm)_done nice_day
    you_(?:need|have_to|must|should|can|could|may|want|would|prefer)
    your_(?:call|decision|choice|feedback|review|input)""")
_OVER = re.compile(
    r"(?i)(?:^|[.!] )(?:all )?done\b|\b(?:everything|all|task) .{,40}\b(?:done|finished|complete|committed|works)\b"
)
_SHOWN = re.compile(r"^[ \t]*(?:[-*+•>|#]|\d+[.)])\s|:\W*\n", re.MULTILINE)
_ASIDE = re.compile(r"[?;()–—\"“”„«»]|: | - ")
_INTENT = re.compile(
    r"(?i)(?=.{,300}$)(?P<cause>.+?[,;:—] (?:so |and |but )?|.+? so |)"
    r"(?:(?:now|next|first|then|so|and|but|ok(?:ay)?|good|great|perfect|(?:al)?right|sure|yes|hmm)[,!]? )*"
    r"(?:(?P<subject>let me|let's|let us|i'll|i will|i(?:'m| am)(?: now| also)? going to|i need to|i should|i want to"
    r"|i have to) (?:(?:now|first|next|also|just|quickly|then|try to|go ahead and|go and|re-?) )*"
    r"|(?<=now )(?=(?:\w+ing the \S+(?: \S+)?"
    r"|(?!\w+ing\b|i\b|th\w+|you|it|comes)\w+ (?!this|these|the following|it|you)[^,]*):$))"
    r"(?P<verb>[\w-]+)(?P<object>.*)"
)
_GERUND = re.compile(
    r"(?i)(?:(?:now|next|first) |\w+, |i'm (?:now )?)?(\w+)ing ((?:[a-z]+ ){0,3}(?:`[^`]+`|\S+\.\w+)"
    r"(?: (?:to|for|in|with|again)\b.*)?(?: now\.?|:|\.\.\.|…)|(?:the|an?) (?:\w+ ){1,3}now[.:])"
)
_IT = re.compile(
    r"[\w-]+(?: [\w'-]+){0,3} (?:so|it|that|this|them|both|those|these|there)(?: (?:now|first|next|too|again))?\W*"
)
_FILE = (
    r"`?(?!e\.g|i\.e)(?<![\w.~/-])(?:(?:~|\.{1,2})?/[\w./-]*\w|[\w./-]*(?:\w\.[a-zA-Z]\w{0,6}|Makefile|Dockerfile))"
    r"(?![\w/-])`?|https?://\S+|`[\w.-]+/[\w./-]*`|`\.[\w.-]+`|(?:with|using|via|by running) `[^`]+`"
)

# Other languages: a clause begins with a verb in the first person, or with a modal; and a name or a colon.
_STEMS = r"""(?:abr|acort|actualiz|adicion|agreg|ajust|analiz|añad|apag|apl?[ri]|arregl|atualiz|baj|busc|cambi|cerc
    |começ|comp[arui]|consult|controll|copi|corr|cr[ei]|edit|ejecut|elimin|emp[ie]|escr|es[ae][mg]|guard|sig|ex[ae]|extra|gener
    |in[isv]|lan[cz]|leg?|limp|mir|modific|mov|muev|olh|pas|pr[ou]|quit|re[cegilnv]|remov|rod|scriv|sub|su?s|tra[ij]|us|utiliz|ve|vuel
    |доба|загля|запу|измен|исправ|нач|найд|напи|о[бт]\w+|пере\w+|смотр|срав|сохр|про|чита|созда|соб|уда|установ|выполн|по\w+)"""
_ELSEWHERE = re.compile(
    rf"""(?ix) (?:^|[,;:，、；]\ ?) (?:(?:gut|okay?|also|perfekt|jetzt|nun|zuerst|dann|danach|als\ (?:nächstes|erstes)
    |bon|parfait|maintenant|ensuite|d'abord|puis|ahora|aún|todavía|primero|luego|entonces|a\ continuación|ora|adesso
    |agora|primeiro|em\ seguida|então|сначала|теперь|сейчас|далее|я|首先|接下来|现在|然后|下面)[,，、]?\ ?)*
    (?: (?:das\ )?(?:(?:\w+e|muss|will)\ ich|ich\ (?:muss|will|\w+e))\b | lass(?:t|en)?(?:\ sie)?\ (?:mich|uns)\b
      | \w+en\ wir\b | mal\ sehen | (?:je\ (?:l[ae]s?\ |l')?|j')(?!ai\b)\w+ | laisse[zr]?-moi | \w{{3,}}ons\b
      | il\ (?:me\ faut|faut\ d'abord) | (?:voy|vado|andiamo)\ a\b | vamos\b | d[ée]j[ae]me | perm[ií]t[ea]me
      | ten[gh]o\ que | necesito | debo | devo | fammi | lasciami | vou\b | deixe-me | deixa\ eu | preciso
      | (?:l[oa]s?\ )?{_STEMS}(?:o|\w*(?<![ai]d)o|\w*[aei]r(?:é|ei)|\w*[ae]mos|\w*iamo)\b
      | мне\ (?:нужно|надо)\b | давайте?\b | {_STEMS}\w*[уюм]\b | 让我 | 我 | 咱们 | (?<=[来在面])[\w\ ]+[:：]\Z
      | .*(?:ます|ましょう|겠습니다)\W*\Z)"""
)
_ELSEWHERE_ASIDE = re.compile(r"[?!()？！（）—–„“”«»「」\"]")
# Words of condition, of later, of the user, of habit and cause; then verbs of speech, of rest and of advice.
_ELSEWHERE_DOUBT = re.compile(
    r"""(?ix) \b(?:wenn|falls|sobald|später|morgen|nicht\w*|kein\w*|nie\w*|bitte|mehr|notiz\w*|bis|bevor|nachdem
    |nach\ \w+er|du\ \w+st|dir|dich|dein\w*|(?-i:Sie|Ihnen|Ihr\w*)|dass|immer|jede\w*|künftig|vielleicht|weil|normal\w*
    |(?:^|,\ ?)s[ie]|s[ie]\ (?:quier|quis|tu|vous)\w*|cuando|luego\W*\Z|después|mañana|nada|nunca|favor|tus?|usted|te
    |permi[st]o|quizás|próxim\w*|cada|siempre|porque|con\ tu|com\ o\ seu|quand|lorsque|dès|après|plus|demain|pas|rien
    |jamais|vous|votre|vos|ton|accord|prochain\w*|chaque|toujours|car|quando|dopo|domani|niente|tuo|tua|depois|amanhã
    |você|suas?|seus?|permissão|sempre|até|если|когда|после|позже|завтра|ничего|никогда|вы|вам|вас|ваш\w*|бы|потом|всегда
    |кажд\w*|обычно|zusammen\w*|zeige?|erkläre?|fasse?|beschreibe?|warte|höre|lasse|bleibe|empfehle|schlage|hoffe|denke
    |glaube|rate|wissen|meine|finde|frage|verstehe|biete|beende|habe|würde|möchte|könnte|sollte|müsste|hätte|wäre|danke|brauche
    |melde|halte|bestätig\w*|ticket\w*|résum\w*|montr\w*|expliqu\w*|détaill\w*|présent\w*|atten\w+|arrêt\w*|reste
    |laisse(?!-moi)|recommand\w*|(?:dé)?conseill\w*|imagin\w*|gard\w*|mant\w+|creo\ que|préf\w*|pense|crois
    |espère|propose|peux|suis|signal\w*|précise|rappel\w*|rem[ae]r\w*|comprends|sais|termin\w*|resum\w*|riassum\w*
    |mo[ns]tr\w*|expli\w*|detall\w*|esper\w*|parar|paro|qued\w*|dej[ao]r?|recom[ei]\w*|sug\w*|prefi?er\w*|pr?esent\w*
    |conf[ie]rm\w*|aguard\w*|spieg\w*|aspett\w*|ferm\w*|объясн\w*|покаж\w*|подожд\w*|жду|рекоменд\w*|советую|думаю
    |предл\w*|могу|подтвержд\w*|notas?|notes?)\b
    |如果|以后|之后|后再|稍后|明天|[不无请等]|[您你]|每次|(?<!为)了|可以|已|总结|介绍|说明|解释|建议|认为|希望|同意
    |もし|場合|後で|明日|ない(?!の)|ません|必要(?:があ|なら)|まとめ|毎回|自動|れば|たら|ください|説明|待ち|お願い
    |(?:思い|でき|なり|れ|てい|てあり|おり|終わり|終了し|報告し)ます
    |(?<![で次])は|が(?!あ|必要|.*か)|만약|나중|내일|않|요약"""
)


# Prose, as CommonMark has it: what is not in a fence nor in indented code.

_FENCE = re.compile(r"[ \t\r]*(`{3,}(?=[^`]*\Z)|~{3,})")
CODE = re.compile(r" {4}| {0,3}\t")


def fence_after(line: str, fence: str) -> str:
    """The fence that is open behind `line`, when `fence` ("" for none) was open before it."""
    if not fence:
        return found[1] if (found := _FENCE.match(line)) else ""
    line = line.strip()
    return "" if line.startswith(fence) and not line.strip(fence[0]) else fence


def prose_lines(text: str) -> Iterator[tuple[int, str]]:
    """Every line outside fences and indented code that is not blank: (where it starts, its text)."""
    fence, at = "", 0
    for line in text.split("\n"):
        after = fence_after(line, fence)
        if not fence and not after and line.strip() and not CODE.match(line):
            yield at, line
        fence, at = after, at + len(line) + 1


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
        if any(str(call.get("id", "")).startswith(ADDED_ID) for call in blocks_of(message, "tool_use")):
            return True
        if ending and _ending("\n".join(texts_of(message))) == ending:
            return True
    return False


def _ending(text: str) -> str:
    return " ".join(text.rstrip().rpartition("\n")[2].split()).casefold()


def announces_action(text: str, tools: Iterable[str] = ()) -> bool:
    """True when the last sentence of `text` says in the first person that a call comes now; `tools` are names."""
    text = text.rstrip()
    if max((at for at, _ in prose_lines(text)), default=-1) != text.rfind("\n") + 1:
        # The last line is code.
        return False
    text = text[-_LOOKED_AT:]
    paragraph = re.split(r"\n[ \t\r]*\n", text)[-1]
    earlier = text[: len(text) - len(paragraph)]
    last = re.split(r"(?<=[\w/*)\]][\w`)'’\"][.!?…])[*_]*\s+|(?<=[。！？])(?=.)", paragraph)[-1]
    before = text[: len(text) - len(last)].replace("’", "'")[-600:]
    if "?" in before or _TO_THE_USER.search(before) or _SHOWN.search(earlier[-6:] + paragraph):
        return False
    sentence = re.sub(r"\bre-(?=\w)", "re", " ".join(last.replace("’", "'").replace("**", "").strip("*_ ").split()))
    sentence = re.sub(r"^[\u2300-\u27ff\ufe0f\U0001f300-\U0001faff]+|: (?=`[^`]+`$)", " ", sentence).lstrip()
    if (gerund := _GERUND.fullmatch(sentence)) is not None:
        sentence = f"I'll {gerund[1]} {gerund[2]}"
    if (intent := _INTENT.fullmatch(sentence)) is None:
        plain, names = re.subn("|".join((_FILE, "`[^`]+`", *map(re.escape, tools))), "", sentence)
        has_form = len(sentence) <= _LONGEST and not _ELSEWHERE_ASIDE.search(plain)
        is_concrete = names or sentence.endswith((":", "：")) or re.search("`[^`]+`|" + _FILE, before[-_LONGEST:])
        return bool(has_form and is_concrete and _ELSEWHERE.search(plain) and not _ELSEWHERE_DOUBT.search(plain))
    rest, has_colon = intent["verb"] + intent["object"].rstrip(" .!…:"), sentence.endswith((":", "..."))
    subject, cause = (intent["subject"] or "").casefold(), intent["cause"]
    deed = _DEEDS.match(rest) or _USES.match(rest)
    verb = deed[0] if deed else intent["verb"]
    if (deed is None and _TALK.match(rest)) or (subject, verb) == ("i'll", "see"):
        return False
    is_use = _USES.fullmatch(verb) is not None
    tool = "|".join(map(re.escape, tools)) or "(?!)"
    named = rf"^ `[^`]+ [^`]+`|^ `[^`]+`(?= to )|^ (?:an? |the )?`?(?:{tool})\b`?"
    if not is_use:
        named = ("`[^`]+`|" if _RUNS.fullmatch(verb) else "`[^`]+ [^`]+`|(?:for|in|of|from|whether) `[^`]+`|") + _FILE
        named += rf"|(?:with|using|to) (?:an? |the )?`?(?:{tool})\b`?"
    plain, names = re.subn(named, " ", re.sub(r'"[^"]{1,40}"', " ", rest[len(verb) :]))
    plain = re.sub("`[^`]*`", " ", plain)
    needless = _PURPOSE.sub("", _SUBORDINATE.sub(r"\1", verb + plain, count=1), count=1)
    doubtful = needless[len(verb) :]
    if subject == "let me":
        cause = re.sub(r"(?i)^before (?!.*\byou).*", "", cause)
        doubtful = "" if has_colon else re.sub(r" before \w+ing\b.*", "", doubtful)
    if not names and _IT.fullmatch(verb + doubtful):
        names = len(re.findall("`[^`]+`|" + _FILE, re.split(r"[.!:]\s", before.rstrip())[-1]))
    if (
        _LATER.search(cause + verb + plain)
        or _ASIDE.search(plain)
        or _DOUBT.search(re.sub(r"\b(?:no|not|nothing|\w+n't|i'm) ", "", cause) + doubtful)
        or _WORDS.search(needless)
    ):
        return False
    return (has_colon and not is_use) or bool(names and subject != "i should" and not _OVER.search(before))
