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

_LONGEST = 120
"""Characters of a sentence of another language."""
_LOOKED_AT = 4000
"""Characters at the end of an answer."""
ADDED_ID = "toolu_added_"
"""Begins the id of a call that a retry added to an announcement: the client sends it back with its history."""


def _any_of(phrases: str) -> re.Pattern[str]:
    """Finds any of the words, and phrases with "_" for a space, also with an "s" behind it."""
    found = "|".join(phrases.split()).replace("_", " ")
    return re.compile(rf"(?<![\w'-])(?:{found})(?:'?s)?(?![\w'-])", re.IGNORECASE)


# Verbs that a call carries out; those of a command or a test run; those that need a tool's name behind them.
_DEEDS = _any_of("""
    add adjust analyze back_up continue continue_with proceed_with start_by do_the_same take_another have_a_look
    get_the analyse append apply audit begin_by benchmark browse build bump change check clean clone commit compare
    compile configure convert copy correct count create debug delete determine diff dig disable download double-check
    edit enable examine execute experiment explore extract fetch figure_out find fix format generate go_ahead_and
    go_through grep handle implement import include insert inspect install investigate kill launch lint load locate
    look make measure merge migrate modify move open parse patch peek print probe profile pull push put query read
    rebase rebuild recheck recreate redo refactor reload remove rename replace reproduce rerun resolve restart restore
    retry revert review rewrite run save scan search see set_up set show split start stash switch take_a_look
    take_another_look take_a_closer_look test trace try tweak update upgrade validate verify view wire write checking
    reading running testing looking building""")
# Verbs of speech, of rest and of doubt, which a colon makes no deed.
_TALK = _any_of("""
    admit answer apologize ask assume be break break_down call clarify close conclude consider count defer define
    describe discuss elaborate emphasize end enumerate expand explain express finish give guess have highlight hold
    hope illustrate introduce keep know lay lay_out leave let list mark mention need not note outline pause point
    postpone preface present propose put quote recap recommend rephrase repeat report remind respond rest restate say
    see share sign skip speak state stay stop stress suggest sum sum_up summarize summarise take talk tell thank think
    treat trust wait walk want watch wish wonder wrap_up reiterate reply remember reflect confess remark offer advise
    warn translate spell look_silly""")
_RUNS = _any_of("execute rerun restart retry run start launch try use")
_USES = _any_of("use call invoke")
# What such a verb makes of itself where it speaks of words, not of work.
_WORDS = _any_of("""
    summary summaries report overview caveat caveats remark remarks recap explanation answer thought thoughts plan
    news finding findings conclusion conclusions word words point points pros description one_more_thing ticket
    an_issue a_new_issue update_the_issue a_pr a_pull_request myself mind english question questions background sense
    clear sure_you silly harder brief fast eyes between_the_lines into_limits things_up notes_here list_the list_them
    list_what run_through""")
# Not now, or not surely, wherever it stands.
_LATER = _any_of("""
    later tomorrow tonight overnight soon shortly eventually sometime someday meanwhile future afterwards someone
    morning afternoon evening night nights midnight noon weekend monday tuesday wednesday thursday friday saturday
    sunday week weeks month months year hour hours daily hourly nightly weekly regularly periodically always usually
    every release sprint milestone phase session backlog follow-up next_time next_week next_step long_run deadline
    instant moment leisure passing separate drive together qa for_you update_you get_back permitting willing customer
    team everyone on_top off_the_list off commit_message today meantime other_time from_here out_of""")
_DOUBT = _any_of("""
    no not never nothing none neither nor without don't won't can't cannot enough any_doubt rarely if when whenever
    once unless until till after before upon as_soon as_needed otherwise in_case should would could can may might must
    perhaps maybe probably possibly provided assuming depending pending given needed necessary approval go-ahead
    confirm please you except in_CI done finished complete stop wait leave skip keep i'm i've tell say ask further""")
_SUBORDINATE = re.compile(
    r"\b(check|see|verify|look|test|find|determine|figure|understand|confirm|examine|investigate|sure|find out|learn)"
    r"((?: \w+){0,2} (?:if|whether|what|why|how|where|which|who|when|(?<=(?:firm|rify|heck) )that)\b"
    r"|ing .*? (?:if|whether|what)\b).*"
)
_PURPOSE = re.compile(
    r" (?:to|and) (?:see|check|verify|confirm|understand|make|ensure|find|get|learn|be|look|test|handle|use|return"
    r"|support|avoid|prevent|include|match|fix|add|remove|pass|work|run|catch|allow|reflect|reproduce)\b.*"
)
_TO_THE_USER = _any_of("""
    please confirm approve approval permission let_me_know tell say ask feel_free wait waiting awaiting blocked
    standing_by stop stopping nothing that_is_all that's_all that_is_it that's_it all_done all_set we're_done i'm_done
    task_is work_is job_is everything_is goodbye nice_day you_need you_have_to you_must you_should you_can you_could
    you_may you_want you_would you_prefer your_call your_decision your_choice your_feedback your_review your_input""")
_OVER = _any_of("done finished complete completed over ready resolved set everything need committed merged works")

_SHOWN = re.compile(r"^[ \t]*(?:[-*+•>|#]|\d+[.)])\s|:\W*\n", re.MULTILINE)
_ASIDE = re.compile(r"[?;()–—\"“”„«»]|: | - ")
_OPENERS = (
    r"(?:(?:now|next|first|then|so|and|but|ok|okay|good|great|perfect"
    r"|alright|right|sure|yes|excellent|nice|hmm)"
    r"[,!]? )*"
)
_INTENT = re.compile(
    rf"(?i)(?=.{{,300}}$)(?P<cause>.+?, (?:so |and |but )?|.+? so |){_OPENERS}"
    r"(?:(?P<subject>let me|let's|let us|i'll|i will|i'm going to|i am going to|i need to|i should|i want to|i have to)"
    r" (?:(?:now|first|next|also|just|quickly|then|try to|go ahead and|go and|re-?) )*"
    r"|(?<=now )(?=\w+ing the \S+(?: \S+)?:$))(?P<verb>[\w-]+)(?P<object>.*)"
)
_FILE = (
    r"`?(?!e\.g|i\.e)(?<![\w.~/-])(?:(?:~|\.{1,2})?/[\w./-]*\w|[\w./-]*(?:\w\.[a-zA-Z]\w{0,4}|Makefile|Dockerfile))"
    r"(?![\w/-])`?"
    r"|`[\w.-]+/[\w./-]*`|(?:with|using|via|by running) `[^`]+`"
)

# Other languages are judged by form: one short sentence without a comma, an aside or a question before it, that begins
# in the first person, ends in a colon and names a file, a command or a tool. These words are all that is known of them.
_FIRST_PERSON = re.compile(
    r"""(?ix) (?:jetzt|nun|zuerst|als\ nächstes)\ \w+e\ ich\b | ich\ \w+e\ (?:jetzt|nun|zuerst|kurz|noch)\b
    | lass\ mich\b
    | (?:ahora\ )?voy\ a\b | déjame\b | je\ vais\b | laisse[zr]?-moi\b | (?:ora|adesso)\ \w+o\b | fammi\b
    | (?:agora\ )?vou\b | deixe-me\b | (?:сейчас|теперь|сначала)\ (?:я\ )?\w+[юу]\b | 让我 | 我来
    | (?:现在|接下来|首先)我
    | (?:이제|먼저|지금)\ .*겠습니다\W*\Z | .{1,60}(?:ます|ましょう)\W*\Z"""
)
_ELSEWHERE_ASIDE = re.compile(r"[,;?!()，、；？—–]|: ")
_OTHER_DEEDS = re.compile(
    r"""(?ix) \b(?:les|öffn|prüf|änder|bearbeit|führ|start|such|schreib|reparier|korrigier|aktualisier|erstell|lösch
    |test|anseh
    |leer|abrir|revisar|editar|modificar|ejecutar|buscar|corregir|arreglar|actualizar|crear|escribir|probar|comprobar|verificar
    |lire|ouvrir|vérifier|modifier|éditer|exécuter|lancer|chercher|corriger|créer|écrire|tester|regarder|examiner
    |legg|apr|controll|verific|modific|esegu|lanci|cerc|corregg|aggiorn|scriv|esamin|ler|executar|rodar|procurar|corrigir
    |atualizar|criar|escrever|testar|прочита|откро|провер|измен|исправ|запущ|созда|обнов|напиш|посмотр|найд|выполн)
    |读|看|打开|检查|修改|编辑|运行|执行|搜索|修复|更新|创建|写|読み|開き|確認し|修正し|編集し|実行し|検索し|作成し|書き
    |읽|열|확인하|수정하|실행하|검색하|작성하|고치"""
)
_OTHER_DOUBT = re.compile(
    r"""(?ix) \b(?:wenn|falls|sobald|später|morgen|nicht\w*|kein\w*|bitte|zusammen\w*|mehr|notiz\w*
    |si|cuando|luego|después|mañana|no|nada|favor|resum\w*|quand|lorsque|après|plus|demain|ne|pas|rien|résum\w*
    |se|quando|dopo|domani|non|niente|riassum\w*|depois|amanhã|não|если|когда|после|позже|завтра|не|ничего|notas?|notes?)\b
    |如果|以后|之后|稍后|明天|不|总结|もし|場合|後で|明日|ない|ません|まとめ|만약|나중|내일|않|요약"""
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
    last = re.split(r"(?<=\w[\w`)'’\"][.!?…])[*_]*\s+", paragraph)[-1]
    before = text[: len(text) - len(last)].replace("’", "'")[-600:]
    if "?" in before or _TO_THE_USER.search(before) or _SHOWN.search(earlier[-6:] + paragraph):
        return False
    sentence = re.sub(r"\bre-(?=\w)", "re", " ".join(last.replace("’", "'").strip("*_ ").split()))
    if (intent := _INTENT.fullmatch(sentence)) is None:
        plain, names = re.subn("|".join((_FILE, "`[^`]+`", *map(re.escape, tools))), "", sentence.rstrip(" :："))
        has_form = len(sentence) <= _LONGEST and sentence.endswith((":", "：")) and not _ELSEWHERE_ASIDE.search(plain)
        is_deed = _FIRST_PERSON.match(plain) and _OTHER_DEEDS.search(plain) and not _OTHER_DOUBT.search(plain)
        return bool(names and has_form and is_deed)
    rest, has_colon = intent["verb"] + intent["object"].rstrip(" .!…:"), sentence.endswith((":", "..."))
    subject, cause = (intent["subject"] or "").casefold(), intent["cause"]
    deed = _DEEDS.match(rest) or _USES.match(rest)
    verb = deed[0] if deed else intent["verb"]
    if (not has_colon and deed is None) or (deed is None and _TALK.match(rest)) or (subject, verb) == ("i'll", "see"):
        return False
    is_use = _USES.fullmatch(verb) is not None
    named = "`[^`]+`|" + _FILE if _RUNS.fullmatch(verb) else _FILE
    if is_use:
        named = "|".join([r"^ `[^`]+ [^`]+`", *(rf"^ (?:the )?`?{re.escape(tool)}\b`?" for tool in tools)])
    plain, names = re.subn(named, " ", re.sub(r'"[^"]{1,40}"', " ", rest[len(verb) :]))
    needless = _PURPOSE.sub("", _SUBORDINATE.sub(r"\1", verb + plain, count=1), count=1)
    if has_colon and subject == "let me":
        cause = re.sub(r"(?i)^before \w+ing ", "", cause)
        needless = re.sub(r"\b(?:right |just )?(?:before|after) the\b", "", needless)
    if (
        _LATER.search(cause + verb + plain)
        or _ASIDE.search(plain)
        or _DOUBT.search(cause + needless[len(verb) :])
        or _WORDS.search(needless)
    ):
        return False
    return (has_colon and not is_use) or bool(names and subject != "i should" and not _OVER.search(before))
