"""Finds loops of identical tool calls with identical results, and breaks them.

A tool turn is an assistant message with calls and the results that followed. Two turns are the same when all their
calls, arguments and results are: a changed result is progress, and so are other arguments. A cycle that waits is no
loop: a tool or a command in it has such a name.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec.structs
from msgspec import Struct

from specdash.core.proxy_events import Guardrail, GuardrailAction
from specdash.proxy.guardrails import GuardrailNote
from specdash.proxy.guardrails.history import blocks_of, digest, instruction_of, with_text
from specdash.proxy.translate.translate import result_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.proxy.settings import ProxySettings
    from specdash.proxy.translate.parse import Block, Message, MessagesRequest

PERIODS = (1, 2, 3)
STOP_FACTOR = 2
"""A run of so many times the threshold gets no tools at all, for one turn."""
_WAITS = re.compile(r"(?:\b|_)(?:sleep|wait|poll|watch|monitor|tail -\w*f)|output\b", re.IGNORECASE)
_COMMANDS = ("command", "cmd", "script", "code")
MARKER = (
    "[LOOP BREAKER: the last {repeats} tool turns only repeated the same calls ({tools}) with the same results. "
    "{advice}]"
)
ADVICE = "Repeating them again will not change anything. Try a different approach, or report what is blocking you."
STOP_ADVICE = "Tools are off for this answer: say in words what was done, what was found and what is blocking you."


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
    """Calls of the assistant, and their results; its key is made only when it is asked for."""

    def __init__(self) -> None:
        self.calls: list[Block] = []
        self.results: list[Block] = []

    @property
    def pattern(self) -> str:
        """Names of the tools called."""
        return "+".join(sorted(call["name"] for call in self.calls))

    @cached_property
    def key(self) -> str:
        # Results as the model sees them.
        shown = {block["tool_use_id"]: [bool(block.get("is_error")), result_parts(block)] for block in self.results}
        return digest("tools", sorted(digest(c["name"], c["input"], shown.get(c["id"])) for c in self.calls))


def loop_state(messages: Sequence[Message], settings: ProxySettings) -> LoopState:
    """What the history shows; a request sent twice counts once, because nothing but the history does."""
    turns = _turns(messages)
    if not turns:
        return LoopState()
    runs: dict[int, int] = {}
    """How many of the last turns go round in a cycle of so many turns."""
    for period in PERIODS[: len(turns)]:
        run = period
        while run < len(turns) and turns[-run - 1].key == turns[-run - 1 + period].key:
            run += 1
        runs[period] = run
    period = max(runs, key=lambda number: (runs[number] - number, -number))
    repeats = runs[period]
    no_progress = repeats - period
    patterns = tuple(turn.pattern for turn in turns[len(turns) - period :])
    repeated = (
        repeats >= settings.loop_repeat_threshold
        and repeats >= settings.loop_window
        and no_progress >= settings.no_progress_threshold
    )
    texts = (
        text
        for turn in turns[len(turns) - period :]
        for call in turn.calls
        for text in (call["name"], *(str(call["input"].get(name, "")) for name in _COMMANDS))
    )
    waits = any(_WAITS.search(text) for text in texts)
    return LoopState(repeats, period, no_progress, repeated and not waits, patterns, len(turns))


def break_loop(
    request: MessagesRequest,
    state: LoopState,
    settings: ProxySettings,
    *,
    forced: int,
    utilisation: float | None,
) -> tuple[MessagesRequest, tuple[GuardrailNote, ...]]:
    """Tell the model of a loop, release a forced tool_choice, and stop a long loop by an answer without tools.

    `forced` counts consecutive requests with a forced tool_choice, `utilisation` is the used share of the window. A
    request without tools, or with none to be called, is returned as it is, and so is every healthy one.
    """
    kind = request.tool_choice.kind
    if not settings.loop_breaker or not request.tools or kind == "none":
        return request, ()
    notes: list[GuardrailNote] = []
    choice = kind

    def noted(action: GuardrailAction, **more: Any) -> None:
        facts = {name: getattr(state, name) for name in ("repeats", "period", "no_progress")}
        tools = {"tools": list(state.tools)}
        notes.append(GuardrailNote(Guardrail.LOOP_BREAKER, action, {**facts, **tools, **more}))

    if state.is_looping:
        stop = state.repeats >= STOP_FACTOR * settings.loop_repeat_threshold
        messages = list(request.messages)
        place = max(index for index, message in enumerate(messages) if message.role == "user")
        advice = STOP_ADVICE if stop else ADVICE
        text = MARKER.format(repeats=state.repeats, tools=", ".join(state.tools), advice=advice)
        messages[place] = with_text(messages[place], text)
        request = msgspec.structs.replace(request, messages=tuple(messages))
        noted(GuardrailAction.APPLIED, stage=2 if stop else 1)
        choice = "none" if stop else "auto"
    is_stuck = forced >= settings.forced_threshold and state.no_progress >= settings.no_progress_threshold
    is_full = utilisation is not None and utilisation >= settings.context_release_threshold
    reason = "loop" if state.is_looping else "forced" if is_stuck else "context" if is_full else None
    if reason is not None and kind in {"any", "tool"}:
        use = {"utilisation": round(utilisation, 4)} if utilisation is not None else {}
        noted(GuardrailAction.RELEASED, reason=reason, forced=forced, **use)
        choice = "auto" if choice == kind else choice
    if choice != kind:
        released = msgspec.structs.replace(request.tool_choice, kind=choice, name=None, is_ours=choice == "none")
        request = msgspec.structs.replace(request, tool_choice=released)
    return request, tuple(notes)


def _turns(messages: Sequence[Message]) -> list[_Turn]:
    """The completed turns since the latest instruction."""
    turns: list[_Turn] = []
    for message in messages:
        if calls := blocks_of(message, "tool_use"):
            if not turns or turns[-1].results:
                turns.append(_Turn())
            turns[-1].calls += calls
        elif instruction_of(message):
            turns = []
        elif turns:
            turns[-1].results += blocks_of(message, "tool_result")
    return turns if not turns or turns[-1].results else turns[:-1]
