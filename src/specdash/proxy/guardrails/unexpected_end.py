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
    from collections.abc import Collection, Iterator, Sequence

    from specdash.proxy.answer.blocks import ToolCall
    from specdash.proxy.translate.parse import Message, MessagesRequest

_LONGEST, _LOOKED_AT = 160, 4000
"""Characters of a sentence of another language, and of the end of an answer."""
ADDED_ID = "toolu_added_"
"""Begins the id of a call that a retry added to an announcement: the client sends it back with its history."""
_THING, _COMMAND, _CODE = "◆", "▲", "◇"
"""What a sentence names, as it is judged: a file or an address; a tool or a command line; other code."""


def _any_of(phrases: str) -> re.Pattern[str]:
    """Finds any of the words, and phrases with "_" for a space, also with an "s" behind it."""
    found = "|".join(phrases.split()).replace("_", " ")
    return re.compile(rf"(?<![\w'-])(?:{found})(?:'?s)?(?![\w'-])", re.IGNORECASE)


# Verbs of work of several words, or that _TALK would claim. Those of _USES need a tool or a command line behind them.
_DEEDS = _any_of("""
    do_(?:it|that) get_the have_a_look take_(?:one_more|another|an?_new)
    take_an?(?:_closer|_look|_screenshot|_snapshot) list(?=_.*_(?:with|using)_[▲◆]) put see
    list_(?:the_|all_)*(?:files|contents?)(?=_(?:in|of|under|at)) take_care_of hold_on get_an?_(?=.*▲)""")
# Verbs of speech, of rest and of doubt, which neither a colon nor a name makes work.
_TALK = _any_of("""
    admit answer ask assume be call clarify close conclude consider count(?!_the) defer define describe discuss
    emphasize end expand explain express give guess hope illustrate introduce keep know lay_out leave let list
    mark(?!_.*[▲◆]) mention need not note outline pause point postpone present propose put quote recap recommend
    repeat report re(?:mind|iterate|state) respond rest say see share sign skip speak state stay stop(?!_the) stress
    suggest summari[sz]e take talk tell thank think treat trust wait walk want watch wish wonder wrap_up reply
    remember remark offer advise warn get_to never only always rarely refrain avoid flag agree (?!app|supp)\\w+ly hold
    have break sum finish(?!_by)""")
_USES = _any_of("use call invoke spawn dispatch")
_PROGRAM = (
    r"(?:pytest|tox|ruff|mypy|npm|npx|yarn|pnpm|eslint|prettier|tsc|cargo|clippy|gofmt|cmake|ctest|gdb|git|gh|curl|wget|rg"
    r"|grep|sed|awk|find|ls|cat|diff|docker|kubectl|helm|terraform|psql|sqlite3|alembic|pip|uv|poetry|gradle|mvn|dotnet"
    r"|rspec|rubocop|rails|jest|vitest|playwright|bash|make|mkdir|chmod|rm|mv|cp|xxd|jq|python3?|node|ps|tail|head)\b"
)
_NAME = re.compile(f"[{_THING}{_COMMAND}{_CODE}]")
_USED = re.compile(rf"^ (?:an? |the )?(?:{_COMMAND}|{_CODE} (?:to|again|on|with)\b)| (?:with|using) {_COMMAND}")
_IS_RUN = re.compile(rf"(?i)\b(with|using|via|mit|avec|con|com|through|(?:re-?)?run(?:ning)?|check) {_PROGRAM}")
_RUNS_ITSELF = re.compile(r"(?i)(?:git[ -])?(?:grep|rg|curl|wget|cat|bisect|diff|stash|cherry-pick)\b")
# What such a verb makes of itself where it speaks of words, not of work.
_WORDS = _any_of("""
    summary summaries report (?<!get_an_)overview caveat remark recap explanation answer thought plan finding
    conclusion word (?<!entry_)point description ticket an_issue update_the_issue a_pr a_pull_request myself mind
    english question harder list_the(?!_(?:files|contents?)_(?:in|of|under|at)) list_them list_what run_through""")
# Not now, or not surely, wherever it stands.
_LATER = _any_of("""
    later tomorrow tonight overnight soon sometime meanwhile future morning afternoon evening night midnight noon
    weekend week month year hour always every_(?:time|release|commit|build|now|other|night|morning)
    (?:next|this|another|new|coming)_(?:release|sprint|milestone|session) follow-up next_time next_week deadline
    (?<!for_a_)moment separate (?:hold|day)_off meantime from_here from_now_on go(?:ing)?_forward (?:the_)?plan_is
    plan: check_off out_of \\w+day (?:dai|hour|night|week|regular|periodical|usual|short|eventual)ly phase backlog
    instant leisure passing qa other_time permitting drive""")
_DOUBT = _any_of("""
    no not never nothing none without don't won't can't cannot enough if when whenever once(?!_more) unless until till
    (?<!right_)after before as_soon as_needed otherwise in_case should would could can may might must perhaps maybe
    probably possibly provided assuming depending pending given needed necessary approval go-ahead you stop(?!_the)
    wait leave skip keep tell say ask further confirm(?!_that) except_(?:in|for|if|when)""")
# Where a word of doubt means nothing: in what is looked for and why, in the facts before an intent, in its purpose.
_SUBORDINATE = re.compile(
    r"(\b(?:check|see|verify|test|find|determine|confirm|sure|learn)|ing)\b(?: [^.]*?)? (?:if|whether)\b.*"
    r"| (?:what|why|how|where|which|who|for when)\b.*| you (?:mentioned|pasted|shared|asked for|listed|named)\b"
    r"|,? (?:since|because|as|so that)\b(?! soon| needed| you).*"
)
_FACT = re.compile(
    r"(?i)\b(?:not?|nothing|none|enough|without|never|may|might|must|could|can(?:not|'t)?|\w+n't|needed|necessary|i'm)"
    r"(?![\w'])|^(?:since|because|as|to) [^,]*,|without further ado"
)
_PURPOSE = re.compile(r" (?:to (?!you|the\b)|and (?!wait|stop|leave|then|ask|tell))\w+\b.*")
_TO_THE_USER = _any_of("""
    please (?<!to_)confirm(?!s) approval permission_to let_me_know tell_me just_say say_(?:so|the_word|yes|when|go)
    ask feel_free waiting awaiting blocked standing_by nothing_(?:more|left|to) that(?:_i|')s_(?:all(?!_for)|it)
    all_done (?:we're|i'm)_done nice_day you_(?:need|have_to|must|should|can|could|may|would|prefer)
    your_(?:call|decision|choice|feedback|review|input)""")
_SHOWN = re.compile(r"^[ \t]*(?:[-*+•>|#]|\d+[.)])\s|:\W*\n|^Step \d+\.", re.MULTILINE)
_ASIDE = re.compile(r"[?;()\"“”„«»]|(?<!\d)–|: (?!.*[◆▲◇])| - ")
_SENTENCE = re.compile(
    r"(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\n\d\.)(?<=[\w/*)\]◆▲◇'\" ][.!?…])[*_]*\s+|(?<=[。！？])(?=.)"
    r"|\s*[\u2600-\u27bf\U0001f300-\U0001faff]\ufe0f?[.!]?\s+(?=\w)"
)
_OPENERS = (
    r"(?:(?:now|next(?: step| up)?|step \d+|as the \w+ step|first|then|so|and|but|ok(?:ay)?|good|great|perfect"
    r"|(?:al)?right|sure|yes|hmm|wait|hold on|one sec|in that case|for that|with that|instead|therefore"
    r"|to (?!do|answer)\w+ [^,;]{,40}(?=,))[,!:]? )*"
)
_INTENT = re.compile(
    rf"(?i)(?=.{{,300}}$)(?P<cause>.+?[,;:—] (?:so |and |but )?|.+? so |){_OPENERS}"
    r"(?:(?P<subject>let me|lemme|let's|let us|i'll|i will|i(?:'m| am)(?: now| also)? going to|gonna|i need to|i should"
    r"|i want to|i have to|i must|i shall|i'm about to|i'm off to|i can now|i now"
    r"|(?:(?<=next )|(?<=first )|(?<=now )|(?<=then ))i(?! \w+ld| can| might)|time to|now to|allow me to) "
    r"(?:(?:now|first|next|also|just|quickly|then|try to|go ahead and|go and|still|re-?) )*"
    r"|(?<=now )(?=\w+ing the \S+(?: \S+)?:$"
    r"|(?!\w+ing\b|i\b|th\w+|you|it|comes)\w+ (?!this|these|the following|it|you)[^,]*:$))"
    r"(?P<verb>[\w-]+)(?P<object>.*)"
)
_FINITE = re.compile(
    r"\b(?:is|are|was|were|has|have|had|do(?:es)?|did|will|would|can|could|should|must|may|might|needs?|takes?|took|works?"
    r"|fails?|means?|requires?|seems?|makes?)\b|[◆▲◇] (?!tests|files)\w+s (?:the|an?|all|it|every|that|too|only)\b"
)
_GERUND = re.compile(
    rf"(?i)(?P<cause>(?:.+?[,;:] (?:so )?)??){_OPENERS}(?P<subject>(?:i'm (?:now |also |just )?)?)(?P<verb>[\w-]+)ing"
    rf"(?P<object> .*[◆▲◇].*"
    r"| (?:it|this|that|them|the|an?)\b(?: \w+){,3}? (?:now|next|again)\b[^,]*| (?:it|this|that|them)\b[^,]*:)"
)
_STEP = re.compile(r"(?i)(?:now|next|first|step)\b|$")
_FRAGMENT = re.compile(
    rf"(?i){_OPENERS}(?:now|first|next,|next up|then|up next|on to|moving on to)[,:]? (?:for |to |on to )?"
    r"(?:(?:the|an?|its|that|my) |(?=[◆▲◇]))[^;]{,60}:"
    r"|here(?:'s| goes) the (?:\w+ )?(?:edit|change|patch|fix)\b[^,;]*:|(?:first|step \d+):"
)
_IT = re.compile(
    r"[\w-]+(?: [\w'-]+){0,3} (?:so|it|that|this|them|both|those|these|there"
    r"|its|which|what|where|how|whether|if"
    r"|(?:that|this|the) (?:\w+ )?(?:file|line|test|function|module|script|command|one))\b(?: .*)?|.* now\W*"
)
_FILE = (
    r"(?!e\.g|i\.e)(?<![\w.~/-])(?:(?:~|\.{1,2})?/[\w./-]*\w|[\w./-]*(?:\w\.[a-zA-Z]\w{0,6}|README"
    r"|(?:Make|Docker|Jenkins)file))(?![\w/-])|https?://\S+"
)

# Other languages: a clause begins with a verb in the first person, or with a modal; and a name or a colon.
_NO_VERBS = r"""(?:no|yo|io|s[oó]lo|tod|tutt|per[oò]|como|list|hech|pront|quest|quell|nuev|nuov|otr|altr|archivo
    |arquivo|cuando|quando|luego|uso:|поэтому|почему|потому|одну|свою|всю)"""
_OPENERS_ELSEWHERE = r"""(?:also|à\ présent|prima\ di\ \w+|antes\ de\ \w+|jetzt|nun|zuerst|zunächst|dann|danach
    |als\ (?:nächstes|erstes)|und|deshalb|maintenant|ensuite|d'abord|tout\ d'abord|puis|donc|et|ahora|primero|luego
    |entonces|a\ continuación|para\ empezar|así\ que|por\ lo\ que|y|ora|adesso|per\ prima\ cosa|innanzitutto|quindi|e
    |agora|primeiro|em\ seguida|então|por\ isso|próximo\ passo|сначала|для\ начала|теперь|сейчас|далее|поэтому|首先
    |接下来|现在|然后|下面|第一步|最后|先)"""
_ELSEWHERE = re.compile(
    rf"""(?ix) (?:^|[,;:，、；]\ ?) (?:{_OPENERS_ELSEWHERE}[,，、]?\ ?)*
    (?: (?:(?:das|dafür|damit|zu[rm]\ \w+)\ )?(?:(?:\w+e|muss|will)\ ich|ich\ (?:muss|will|\w+e))\b
      | \w{{3,}}e\ (?:das|es|sie|ihn)?\ ?(?:jetzt|nun)\b | lass(?:t|en)?(?:\ sie)?\ (?:mich|uns)\b | \w+en\ wir\b
      | (?:weiter|neuer\ \w+)\ mit\b | (?:je\ (?:l[ae]s?\ |l'|m'y\ )?|j')(?!ai\b)\w+ | laisse[zr]?-moi | nouvel\ essai
      | (?!disons)\w{{3,}}ons\b | il\ (?:me\ faut|faut\ d'abord) | (?:voy|vado|andiamo)\ a\b | (?:vamos|vej?amos|vou)\b
      | e?sto[yu]?\ (?:\w+ndo|per)\b | deixa\ eu | d[ée]j[ae]me | perm[ií]t\w-?m[ei] | (?:fam|lascia|deixe-)m[ei]
      | (?:(?:[lm][oaei]|l[oa]s|gli|ne)\ |l')?(?!{_NO_VERBS})(?:\w+(?:[bcçefghijlmnpqrvxz]|[^\Waiuse]t|[^\Wai]d)o
      |(?:añad|ejecut|consult|ajust|us|aggiust|spost|execut|impost|pass?|revis|esegu|edit|test|necesit|precis)o
      |\w+(?:[aei]ré|[aei]rei|[aei]rò|iamo))\b
      | мне\ (?:нужно|надо)\b | давайте?\b | (?:я\ )?(?!{_NO_VERBS})[а-яё]+(?:[ую]|[аеёи]м)\b | 让我 | 我 | 咱们
      | (?<=[来在面步])\ ?(?=创建|运行|修改|检查|执行|添加|打开|读|更新|查看|提交|测试|安装|删除|写|用|把|开始|继续)
      | .*(?:ます|ましょう|겠습니다)\W*\Z)"""
)
_ELSEWHERE_FRAGMENT = re.compile(
    r"(?i)(?:jetzt|nun|erst ?mal|weiter|als nächstes|ahora|ensuite|maintenant|passons à|ora|adesso|agora|теперь)"
    r"(?: noch| auch| mit| también| la| le| aussi| anche| também)?,? [^,;]{,40}:"
)
_ELSEWHERE_ASIDE = re.compile(r"[?!()？！（）—–„“”«»「」\"]")
# Words of condition, of later, of the user, of habit and cause; then verbs of speech, of rest and of advice.
_ELSEWHERE_DOUBT = re.compile(
    r"""(?ix) \b(?:wenn|falls|sobald|später|morgen|nicht\w*|kein\w*|nie\w*|bitte|notiz\w*|bis
    |bevor(?!\ ich\ (?:etwas|weiter))|nachdem|nach\ \w+er|du\ \w+st|dir|dich|dein\w*|(?-i:Sie|Ihnen|Ihr\w*)|dass|immer
    |jede\w*|künftig|vielleicht|weil|normalerweise|(?:^|,\ ?)s[ie]|s[ie]\ (?:quier|quis|tu|vous)\w*|cuando|luego\W*\Z
    |después(?!\ \w+o\b)|mañana|(?<!antes\ de\ )nada|nunca|favor|tus?|usted|te|permi[st]o|quizás
    |próxim[oa]s?\b(?!\ pass?o)|cada|siempre|porque|con\ tu|com\ o\ seu|quand|lorsque|dès(?!\ maintenant)|après
    |n\w*'?.*\ plus|plus\ tard|trouve|demain|(?<!de\ ce\ )pas|rien|jamais|vous|votre|vos|ton|accord|prochain\w*|chaque
    |toujours|car|quando|(?<!subito\ )dopo|domani|niente|tuo|tua|depois|amanhã|você|suas?|seus?|permissão|sempre|até
    |не\ стал\w*|если|appena|n?el\ caso|en\ caso|au\ cas|no\ caso|\w+rais|apenas|assim\ que|en\ cuanto|tan\ pronto
    |когда|как\ только|после|позже|завтра|ничего|никогда|вы|вам|вас|ваш\w*|бы|потом|всегда|кажд\w*|обычно|zusammen\w*
    |zeige?|erkläre?|fasse?|beschreibe?|warte|höre|lasse(?!.*\ laufen)|bleibe|empfehle|schlage|hoffe|denke|glaube|rate
    |wissen|meine|finde|frage|verstehe|biete|beende|habe|würde|möchte|könnte|sollte|müsste|hätte|wäre|danke|brauche
    |melde|halte|bestätige(?:n\ sie)?|ticket\w*|résum\w*|montr\w*|expliqu\w*|détaill\w*|présente\w*|atten\w+|viens\ d
    |arrêt\w*|je\ reste|laisse(?!-moi)|recommand\w*|(?:dé)?conseill\w*|imagin\w*|gard\w*|mant\w+|cred?o\ que|acho|penso
    |acredito|оставл\w*|deix(?:o|ar)|sag|bescheid|préf\w*|pense|crois|espère|propose|peux|suis|signal\w*|précise
    |rappel\w*|rem[ae]r\w*|comprends|sais|termin(?!ar)\w*|resum\w*|riassum\w*|mo[ns]tr\w*|expli\w*|detall\w*
    |esper(?:[oe]|ar|aré|amos)|parar|paro|quedo|quedar\w*|dejo|dejar\w*|recom[ei]\w*|sug\w*|prefi?er\w*|pr?esent\w*
    |conf[ie]rm(?!ar|er)\w*|aguard\w*|spieg\w*|aspett\w*|ferm\w*|объясн\w*|покаж\w*|подожд\w*|жду|рекоменд\w*|советую
    |думаю|предл\w*|могу|подтвержд\w*|notas?|notes?)\b
    |如果|以后|之后|(?<!然)后再|倾向|稍后|明天|请|等|[不无](?=[^，,]*\Z)|[您你]|每次|(?<!为)(?:了(?!し)|已)[^，,]*\Z
    |我[^，,]*(?:了|已)|可以|总结|介绍|说明|解释|建议|认为|希望|同意|もし|場合|後で|明日|ない(?!の)|ません
    |必要(?:があ|なら)|まとめ|残し|毎回|自動|れば|たら|ください|説明|待ち|お願い
    |(?:思い|でき|なり|れ|てい|てあり|おり|終わり|終了し|報告し)ます|(?:(?<![で次])は|が(?!あ|必要|.*か))(?=[^、，]*\Z)
    |만약|나중|내일|않|요약"""
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


def announces_action(text: str, tools: Collection[str] = ()) -> bool:
    """True when the last sentence of `text` says in the first person that a call comes now; `tools` are names."""
    text = text.rstrip()
    if max((at for at, _ in prose_lines(text)), default=-1) != text.rfind("\n") + 1:
        # The last line is code.
        return False
    text = _with_names_marked(text[-_LOOKED_AT:].replace("’", "'"), tools)
    paragraph = re.split(r"\n[ \t\r]*\n", text)[-1]
    last = _SENTENCE.split(paragraph)[-1]
    before = text[: len(text) - len(last)][-300:]
    is_shown = _SHOWN.search(paragraph) or text[: -len(paragraph)].rstrip().endswith(":")
    if is_shown or "?" in before or _TO_THE_USER.search(re.sub('"[^"]*"', "", before)):
        return False
    sentence = re.sub(r"\bre-(?=\w)", "re", " ".join(last.replace("**", "").strip("*_ ").split()))
    sentence = re.sub(r"^[\u2600-\u27ff\ufe0f\U0001f300-\U0001faff]+|: (?=[◆▲◇]$)", " ", sentence).lstrip()
    in_english = _announces_in_english(sentence, before)
    return _announces_elsewhere(sentence, before) if in_english is None else in_english


def _with_names_marked(text: str, tools: Collection[str]) -> str:
    """`text` with its names replaced by _THING, _COMMAND and _CODE."""

    def mark(code: re.Match[str]) -> str:
        if re.fullmatch(_FILE, code[1]):
            return _THING
        return _COMMAND if " " in code[1].strip() or code[1] in tools else _CODE

    text = re.sub(_FILE, _THING, re.sub("`([^`]*)`", mark, text))
    tool = "|".join(map(re.escape, tools)) or "(?!)"
    tools_named = rf"(?<=\w )(?:an? |the )?(?<!\w)(?:{tool})\b(?: tool\b| agent\b)?|(?:the )?(?:{_CODE}|\b\w+) tool\b"
    text = re.sub(tools_named, _COMMAND, text)
    text = re.sub(r"\b(?:[a-z]+_[a-z_]+\b|[A-Z][a-z]+[A-Z]\w+\b|\w+\(\))", _CODE, text)
    return _IS_RUN.sub(rf"\1 {_COMMAND}", text)


def _announces_in_english(sentence: str, before: str) -> bool | None:
    """None when the sentence has none of the forms."""
    if _FRAGMENT.fullmatch(sentence):
        return not any(words.search(sentence) for words in (_WORDS, _TALK, _LATER))
    if (intent := _INTENT.fullmatch(sentence) or _GERUND.fullmatch(sentence)) is None:
        return None
    subject, cause, verb = intent["subject"] or "", _FACT.sub("", intent["cause"]), intent["verb"]
    rest = verb + intent["object"].rstrip(" .!…:")
    has_colon, is_gerund = sentence.endswith((":", "...")), intent.re is _GERUND
    if (deed := _DEEDS.match(rest) or _USES.match(rest)) is not None:
        verb = deed[0]
    stems = (verb, verb + "e", verb[:-1]) if is_gerund else (verb,)
    if deed is None and any(_TALK.match(stem + rest[len(verb) :]) for stem in stems):
        return False
    plain = re.sub(r'"[^"]{1,40}"', " ", rest[len(verb) :])
    if is_gerund and not subject and (not _STEP.match(cause) or _FINITE.search(_SUBORDINATE.sub(r"\1", plain))):
        return False
    is_use = _USES.fullmatch(verb) is not None
    names = (_USED if is_use else _NAME).search(plain) or _RUNS_ITSELF.match(rest)
    if names is None and _IT.fullmatch(rest):
        names = _NAME.search(cause + re.split(r"[.!:]\s", before.rstrip())[-1])
    needless = _PURPOSE.sub("", _SUBORDINATE.sub(r"\1", verb + plain, count=1), count=1)
    doubtful = needless[len(verb) :]
    if subject.casefold() == "let me":
        cause = re.sub(r"(?i)^before (?!.*\byou).*", "", cause)
        doubtful = "" if has_colon else re.sub(r" before \w+ing\b.*", "", doubtful)
    if _LATER.search(cause + needless) or _DOUBT.search(cause + doubtful) or _WORDS.search(needless):
        return False
    is_concrete = (has_colon and not is_use) or (names is not None and subject.casefold() != "i should")
    return is_concrete and not _ASIDE.search(plain)


def _announces_elsewhere(sentence: str, before: str) -> bool:
    plain = _NAME.sub("", sentence)
    is_short = len(sentence) <= _LONGEST and not _ELSEWHERE_ASIDE.search(plain)
    is_concrete = plain.endswith((":", "：")) or _NAME.search(before[-_LONGEST:] + sentence)
    has_form = _ELSEWHERE_FRAGMENT.fullmatch(sentence) or (is_short and is_concrete and _ELSEWHERE.search(plain))
    return bool(has_form and not _ELSEWHERE_DOUBT.search(plain))
