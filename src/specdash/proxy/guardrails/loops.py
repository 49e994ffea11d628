"""Finds loops of identical tool calls with identical results, and breaks them.

A tool turn is an assistant message with calls and the results that followed. Two turns are the same when all their
calls, arguments and results are: a changed result is progress, and so are other arguments. Waiting is none: a cycle in
which a call waits polls, and turns whose tools take long are at least no tight loop.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec.structs
from msgspec import Struct

from specdash.core.proxy_events import Guardrail, GuardrailAction
from specdash.proxy.guardrails import GuardrailNote
from specdash.proxy.guardrails.history import calls_of, digest, instruction_of, results_of, with_text
from specdash.proxy.translate.translate import result_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.proxy.settings import ProxySettings
    from specdash.proxy.translate.parse import Block, Message, MessagesRequest

PERIODS = (1, 2, 3)
STOP_FACTOR = 2
"""A run of so many times the threshold gets no tools at all, for one turn."""
SPACED_S = 5.0
"""Median time a tool takes from which its repetition makes no tight loop: a note is added, the tools stay."""
_WAITING_TOOL = re.compile(
    r"(?:\b|_)(?:wait|sleep|poll|watch|monitor|wake\w*|await|delay|follow)(?:\b|_|ing\b|s\b)|(?:bash|task|agent|shell|process)_?output",
    re.IGNORECASE,
)
_WAITING_COMMAND = re.compile(
    r"""(?:^|[;&|\n({`]|\b(?:do|then|else|sudo|exec|time)\s|-c\s+["'])\s*
        (?:sleep|usleep|watch|wait|inotifywait|start-sleep|wait-\w+|timeout\s+/t)(?=[\s;&|)"']|$)
    |\b(?:time|asyncio)\.sleep\(|\s--(?:wait|watch|follow)\b|\btail\s+-\w*f\b""",
    re.IGNORECASE | re.VERBOSE,
)
_QUOTED = re.compile(r"""(?<!-c\s)(?<!\w)("|')(?:\\.|(?!\1)[^\\])*\1""", re.DOTALL)
_COMMAND_ARGUMENTS = frozenset({"command", "commands", "cmd", "script", "code", "shell", "input", "args"})
_WAITING_ARGUMENT = re.compile(r"(?:wait|delay|sleep|poll|interval)(?:_?\w*)?", re.IGNORECASE)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
MARKER = (
    "[LOOP BREAKER: the last {repeats} tool turns only repeated the same calls ({tools}) with the same results. "
    "Repeating them again will not change anything. Try a different approach, or report what is blocking you.]"
)
STOP_MARKER = (
    "[LOOP BREAKER: the last {repeats} tool turns only repeated the same calls ({tools}) with the same results. "
    "Tools are off for this answer: say in words what was done, what was found and what is blocking you.]"
)


class LoopState(Struct, frozen=True):
    """The tail of the turns since the user's latest instruction.

    `repeats` is the length of the run of a cycle of `period` turns, `no_progress` how many of its turns came again,
    `patterns` the tools of each turn of the cycle, and `turns` counts all turns.
    """

    repeats: int = 0
    period: int = 0
    no_progress: int = 0
    is_looping: bool = False
    patterns: tuple[str, ...] = ()
    turns: int = 0

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools of the cycle, each once."""
        return tuple(dict.fromkeys(name for pattern in self.patterns for name in pattern.split("+") if name))


class _Turn:
    """Messages of the assistant in a row and what followed; its key is made only when it is asked for."""

    __slots__ = ("_key", "after", "messages")

    def __init__(self, message: Message) -> None:
        self.messages = [message]
        self.after: list[Message] = []
        self._key: str | None = None

    @property
    def key(self) -> str:
        if self._key is None:
            self._key = self._made_key()
        return self._key

    @property
    def calls(self) -> list[Block]:
        return [call for message in self.messages for call in calls_of(message)]

    @property
    def pattern(self) -> str:
        """Names of the tools called; empty for a turn of text."""
        return "+".join(sorted(call["name"] for call in self.calls))

    @property
    def is_complete(self) -> bool:
        """False while its calls have no results."""
        return not self.calls or any(results_of(message) for message in self.after)

    def _made_key(self) -> str:
        calls = self.calls
        if not calls:
            return digest("text", _text(self.messages[0]), [instruction_of(message) for message in self.after])
        results = {block["tool_use_id"]: block for message in self.after for block in results_of(message)}
        return digest("tools", sorted(digest(c["name"], c["input"], _shown(results.get(c["id"]))) for c in calls))


def loop_state(messages: Sequence[Message], settings: ProxySettings) -> LoopState:
    """What the history shows; a request sent twice counts once, because nothing but the history does."""
    turns = _turns(messages)
    if not turns:
        return LoopState()
    runs = {period: _run(turns, period) for period in PERIODS if period <= len(turns)}
    period = max(runs, key=lambda number: (runs[number] - number, -number))
    repeats = runs[period]
    no_progress = repeats - period
    patterns = tuple(turn.pattern for turn in turns[len(turns) - period :])
    repeated = (
        any(patterns)
        and repeats >= settings.loop_repeat_threshold
        and repeats >= settings.loop_window
        and no_progress >= settings.no_progress_threshold
    )
    polling = repeated and any(waits(call) for turn in turns[len(turns) - period :] for call in turn.calls)
    return LoopState(repeats, period, no_progress, repeated and not polling, patterns, len(turns))


def waits(call: Block) -> bool:
    """True for a call that takes its time on purpose: its tool, its command or an argument says so."""
    if _WAITING_TOOL.search(_CAMEL.sub("_", call["name"])):
        return True
    for name, value in call["input"].items():
        is_command = name.lower() in _COMMAND_ARGUMENTS and isinstance(value, str)
        if is_command and _WAITING_COMMAND.search(_QUOTED.sub("''", value)):
            return True
        if _WAITING_ARGUMENT.fullmatch(name) and value and not isinstance(value, str):
            return True
    return False


def break_loop(
    request: MessagesRequest,
    state: LoopState,
    settings: ProxySettings,
    *,
    forced: int,
    utilisation: float | None,
    pause_s: float | None = None,
) -> tuple[MessagesRequest, tuple[GuardrailNote, ...]]:
    """Tell the model of a loop, release a forced tool_choice, and stop a long loop by an answer without tools.

    `forced` counts consecutive requests with a forced tool_choice, `utilisation` is the used share of the window,
    `pause_s` how long the tools of the run took, None when that was not seen. A
    request without tools, or with none to be called, is returned as it is, and so is every healthy one.
    """
    kind = request.tool_choice.kind
    if not settings.loop_breaker or not request.tools or kind == "none":
        return request, ()
    notes: list[GuardrailNote] = []
    choice = kind
    if state.is_looping:
        spaced = pause_s is not None and pause_s >= SPACED_S
        stop = state.repeats >= STOP_FACTOR * settings.loop_repeat_threshold and not spaced
        request = _noted(request, state, STOP_MARKER if stop else MARKER)
        notes.append(
            GuardrailNote(Guardrail.LOOP_BREAKER, GuardrailAction.APPLIED, _facts(state, stage=2 if stop else 1))
        )
        choice = "none" if stop else "auto"
    reason = _release_reason(state, settings, forced, utilisation) if kind in {"any", "tool"} else None
    if reason is not None:
        notes.append(
            GuardrailNote(
                Guardrail.LOOP_BREAKER,
                GuardrailAction.RELEASED,
                _facts(state, reason=reason, forced=forced)
                | ({"utilisation": round(utilisation, 4)} if utilisation is not None else {}),
            )
        )
        choice = "auto" if choice == kind else choice
    if choice != kind:
        released = msgspec.structs.replace(request.tool_choice, kind=choice, name=None, is_ours=choice == "none")
        request = msgspec.structs.replace(request, tool_choice=released)
    return request, tuple(notes)


def _release_reason(state: LoopState, settings: ProxySettings, forced: int, utilisation: float | None) -> str | None:
    if state.is_looping:
        return "loop"
    if forced >= settings.forced_threshold and state.no_progress >= settings.no_progress_threshold:
        return "forced"
    if utilisation is not None and utilisation >= settings.context_release_threshold:
        return "context"
    return None


def _facts(state: LoopState, **more: Any) -> dict[str, Any]:
    return {
        "repeats": state.repeats,
        "period": state.period,
        "no_progress": state.no_progress,
        "tools": list(state.tools),
        **more,
    }


def _noted(request: MessagesRequest, state: LoopState, marker: str) -> MessagesRequest:
    messages = list(request.messages)
    place = max(index for index, message in enumerate(messages) if message.role == "user")
    text = marker.format(repeats=state.repeats, tools=", ".join(state.tools))
    messages[place] = with_text(messages[place], text)
    return msgspec.structs.replace(request, messages=tuple(messages))


def _turns(messages: Sequence[Message]) -> list[_Turn]:
    """The completed turns since the latest instruction.

    An instruction that only repeats the one before, after an answer in words, is a nudge: the answer is a turn then.
    """
    turns: list[_Turn] = []
    asked = ""
    answer: Message | None = None
    for message in messages:
        if message.role == "assistant":
            answer = message
            if calls_of(message):
                asked = ""
                if turns and not turns[-1].after:
                    turns[-1].messages.append(message)
                else:
                    turns.append(_Turn(message))
        elif message.role == "user":
            text = instruction_of(message)
            nudge = bool(text) and text == asked and answer is not None
            if text and not nudge:
                turns = []
            elif nudge and answer is not None:
                turns.append(_Turn(answer))
            if turns:
                turns[-1].after.append(message)
            if text:
                asked, answer = text, None
    if turns and not turns[-1].is_complete:
        turns.pop()
    return turns


def _run(turns: Sequence[_Turn], period: int) -> int:
    """How many of the last turns go round in a cycle of `period` turns."""
    run = period
    while run < len(turns) and turns[-run - 1].key == turns[-run - 1 + period].key:
        run += 1
    return run


def _shown(result: Block | None) -> Any:
    """A result as the model sees it."""
    return None if result is None else [bool(result.get("is_error")), result_parts(result)]


def _text(message: Message) -> str:
    return "\n".join(block["text"] for block in message.content if block["type"] == "text").strip()
