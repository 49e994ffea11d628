"""The truth table of loops, and what breaking one does to a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given

from specdash.core.proxy_events import Guardrail, GuardrailAction
from specdash.proxy.guardrails.loops import LoopState, break_loop, loop_state
from specdash.proxy.settings import settings_from_env
from specdash.proxy.translate.parse import Message, ToolChoice
from support.histories import assistant, calling, growing, request, result, system, text, tool_turn, tools, user

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdash.proxy.guardrails import GuardrailNote
    from specdash.proxy.translate.parse import MessagesRequest

SETTINGS = settings_from_env({})
OFF = settings_from_env({"PROXY_LOOP_BREAKER": "off"})
TASK = [user("the task")]
TOOLS = tools("Read", "Grep", "Edit")


def turns(count: int, function: Callable[[int], list[Message]]) -> list[Message]:
    return [message for turn in range(count) for message in function(turn)]


def same(turn: int) -> list[Message]:
    return tool_turn(turn, "Read", {"path": "/a", "limit": 5}, "content")


def polling(turn: int) -> list[Message]:
    return tool_turn(turn, "Read", {"path": "/log"}, f"line {turn}")


def other_arguments(turn: int) -> list[Message]:
    return tool_turn(turn, "Read", {"path": f"/{turn}"}, "")


def cycle(*names: str) -> Callable[[int], list[Message]]:
    return lambda turn: tool_turn(turn, names[turn % len(names)], {"q": 1}, f"found by {names[turn % len(names)]}")


def half_changing(turn: int) -> list[Message]:
    return tool_turn(turn, "Edit", {}, f"version {turn}") if turn % 2 else tool_turn(turn, "Read", {}, "same")


def key_order(turn: int) -> list[Message]:
    arguments = {"limit": 5, "path": "/a"} if turn % 2 else {"path": "/a", "limit": 5}
    return tool_turn(turn, "Read", arguments, "content")


def parallel(turn: int) -> list[Message]:
    pairs = [("Read", "/a"), ("Grep", "/b")]
    if turn % 2:
        pairs.reverse()
    made = calling(turn, *((name, {"path": path}) for name, path in pairs))
    return [made, Message("user", tuple(result(turn, f"of {path}", place) for place, (_, path) in enumerate(pairs)))]


def swapped_results(turn: int) -> list[Message]:
    made = calling(turn, ("Read", {}), ("Grep", {}))
    found = [f"a{turn}", "b"] if turn % 2 else ["b", f"a{turn}"]
    return [made, Message("user", tuple(result(turn, name, place) for place, name in enumerate(found)))]


def errors(turn: int) -> list[Message]:
    return tool_turn(turn, "Edit", {"old": "x"}, "String to replace not found", error=True)


def error_then_not(turn: int) -> list[Message]:
    return tool_turn(turn, "Edit", {"old": "x"}, "Errors: 0", error=turn % 2 == 0)


def with_reminder(turn: int) -> list[Message]:
    made, answer = same(turn)
    block = text(f"<system-reminder>todo list {turn}</system-reminder>")
    return [made, Message("user", (*answer.content, block)), system(f"note {turn}")]


def string_or_list(turn: int) -> list[Message]:
    return tool_turn(turn, "Read", {}, "content" if turn % 2 else [text("content")])


def split_calls(turn: int) -> list[Message]:
    answers = Message("user", (result(turn, f"line {turn}"), result(turn, "same", 1)))
    first, second = calling(turn, ("Read", {}), ("Grep", {})).content
    return [Message("assistant", (first,)), Message("assistant", (second,)), answers]


def instructed(turn: int) -> list[Message]:
    return [*same(turn), *([assistant("stuck"), user(f"go on {turn}")] if turn % 4 == 3 else [])]


def asked_again(turn: int) -> list[Message]:
    return [*same(turn), assistant("passes"), user("run it again")]


@pytest.mark.parametrize(
    ("taken_turn", "count", "repeats", "period", "looping"),
    [
        (same, 0, 0, 0, False),
        (same, 1, 1, 1, False),
        (same, 7, 7, 1, False),
        (same, 8, 8, 1, True),
        (polling, 40, 1, 1, False),
        (other_arguments, 40, 1, 1, False),
        (cycle("Read", "Grep"), 7, 7, 2, False),
        (cycle("Read", "Grep"), 141, 141, 2, True),
        (cycle("Read", "Grep", "Edit"), 8, 8, 3, True),
        (cycle("Read", "Read", "Edit"), 9, 9, 3, True),
        (half_changing, 40, 1, 1, False),
        (key_order, 8, 8, 1, True),
        (parallel, 8, 8, 1, True),
        (swapped_results, 8, 1, 1, False),
        (errors, 8, 8, 1, True),
        (error_then_not, 8, 8, 2, True),
        (with_reminder, 8, 8, 1, True),
        (string_or_list, 8, 8, 1, True),
        (split_calls, 20, 1, 1, False),
        (instructed, 40, 0, 0, False),
        (asked_again, 40, 0, 0, False),
    ],
)
def test_truth_table(
    taken_turn: Callable[[int], list[Message]], count: int, repeats: int, period: int, looping: bool
) -> None:
    state = loop_state(TASK + turns(count, taken_turn), SETTINGS)
    assert (state.repeats, state.period, state.is_looping) == (repeats, period, looping)
    assert state.no_progress == repeats - period


def test_a_new_instruction_starts_over() -> None:
    history = [*TASK, *turns(9, same), assistant("I am stuck"), user("then try this"), *same(9)]
    assert loop_state(history, SETTINGS) == LoopState(1, 1, 0, False, ("Read",), 1)


def test_calls_still_without_results_do_not_count() -> None:
    history = [*TASK, *turns(7, same), calling(7, ("Read", {"path": "/a", "limit": 5}))]
    assert loop_state(history, SETTINGS).repeats == 7


@pytest.mark.parametrize(
    ("env", "turns_needed"),
    [
        ({"LOOP_WINDOW": "20"}, 20),
        ({"LOOP_WINDOW": "2", "LOOP_REPEAT_THRESHOLD": "2", "NO_PROGRESS_THRESHOLD": "4"}, 5),
    ],
)
def test_the_window_lies_within_the_run_and_both_thresholds_are_needed(env: dict[str, str], turns_needed: int) -> None:
    settings = settings_from_env({f"PROXY_{name}": text for name, text in env.items()})
    found = [loop_state(TASK + turns(count, same), settings).is_looping for count in (turns_needed - 1, turns_needed)]
    assert found == [False, True]


def broken(
    messages: Sequence[Message], kind: str = "auto", *, forced: int = 0, utilisation: float | None = None, **fields: Any
) -> tuple[MessagesRequest, MessagesRequest, tuple[GuardrailNote, ...]]:
    settings = fields.pop("settings", SETTINGS)
    choice = ToolChoice(kind, "Read" if kind == "tool" else None, parallel=False)
    given_request = request(TASK + list(messages), tools=TOOLS, tool_choice=choice, **fields)
    state = loop_state(given_request.messages, settings)
    made, notes = break_loop(given_request, state, settings, forced=forced, utilisation=utilisation)
    return given_request, made, notes


def test_a_loop_is_named_in_the_last_user_message() -> None:
    given_request, made, notes = broken(turns(9, same))
    assert made.messages[:-1] == given_request.messages[:-1]
    *content, added = made.messages[-1].content
    assert tuple(content) == given_request.messages[-1].content
    assert added["text"].startswith("[LOOP BREAKER: the last 9 tool turns only repeated the same calls (Read)")
    assert made.tool_choice == given_request.tool_choice
    (note,) = notes
    assert (note.guardrail, note.action) == (Guardrail.LOOP_BREAKER, GuardrailAction.APPLIED)
    assert note.facts == {"repeats": 9, "period": 1, "no_progress": 8, "tools": ["Read"], "stage": 1}


@pytest.mark.parametrize("kind", ["any", "tool"])
def test_a_loop_releases_a_forced_choice(kind: str) -> None:
    _, made, notes = broken(turns(8, same), kind)
    assert made.tool_choice == ToolChoice("auto", None, parallel=False)
    assert [note.action for note in notes] == [GuardrailAction.APPLIED, GuardrailAction.RELEASED]
    assert notes[1].facts["reason"] == "loop"


@pytest.mark.parametrize(("count", "choice"), [(15, "auto"), (16, "none"), (30, "none")])
@pytest.mark.parametrize("kind", ["auto", "any"])
def test_a_long_loop_gets_an_answer_in_words(kind: str, count: int, choice: str) -> None:
    _, made, notes = broken(turns(count, same), kind)
    assert made.tool_choice.kind == choice
    assert ("Tools are off" in made.messages[-1].content[-1]["text"]) == (choice == "none")
    assert notes[0].facts["stage"] == (2 if choice == "none" else 1)


@pytest.mark.parametrize(
    ("name", "command", "is_looping"),
    [
        ("Bash", "cd /x && sleep 30 && gh run list", False),
        ("Bash", "timeout 60 tail -f build.log", False),
        ("BashOutput", "", False),
        ("mcp__ci__wait_for_run", "", False),
        ("Bash", "pytest -q", True),
    ],
)
def test_a_cycle_with_a_call_that_waits_polls(name: str, command: str, *, is_looping: bool) -> None:
    history = turns(30, lambda turn: tool_turn(turn, name, {"command": command}, "PENDING"))
    assert loop_state(TASK + history, SETTINGS).is_looping is is_looping


def test_a_prefilled_answer_leaves_the_note_in_the_user_message() -> None:
    _, made, _ = broken([*turns(8, same), assistant("So")])
    assert made.messages[-1] == assistant("So")
    assert "LOOP BREAKER" in made.messages[-2].content[-1]["text"]


FOUR_STALLS = turns(5, same)


@pytest.mark.parametrize(
    ("messages", "forced", "utilisation", "reason"),
    [
        (FOUR_STALLS, 14, None, None),
        (FOUR_STALLS, 15, None, "forced"),
        (FOUR_STALLS[:-2], 15, None, None),
        (turns(30, polling), 100, 0.89, None),
        (turns(30, polling), 0, 0.9, "context"),
        ([], 0, 1.2, "context"),
    ],
)
@pytest.mark.parametrize("kind", ["any", "tool"])
def test_when_a_forced_choice_is_released(
    kind: str, messages: list[Message], forced: int, utilisation: float | None, reason: str | None
) -> None:
    given_request, made, notes = broken(messages, kind, forced=forced, utilisation=utilisation)
    if reason is None:
        assert made is given_request
        assert notes == ()
        return
    assert made.tool_choice == ToolChoice("auto", None, parallel=False)
    assert made.messages == given_request.messages
    (note,) = notes
    assert (note.action, note.facts["reason"], note.facts["forced"]) == (GuardrailAction.RELEASED, reason, forced)
    assert note.facts.get("utilisation") == utilisation


def test_a_request_that_may_not_call_is_left_alone_and_switched_off_every_one() -> None:
    given_request, made, _ = broken(turns(40, same), "none")
    assert made is given_request
    given_request, made, notes = broken(turns(40, same), "any", forced=99, utilisation=1.0, settings=OFF)
    assert (made, notes) == (given_request, ())
    assert loop_state(given_request.messages, OFF).is_looping


@given(growing(most=8))
def test_a_healthy_request_is_the_same_object(history: list[list[Message]]) -> None:
    given_request = request(history[-1], tools=TOOLS)
    state = loop_state(given_request.messages, SETTINGS)
    made, notes = break_loop(given_request, state, SETTINGS, forced=0, utilisation=0.99)
    assert made is given_request
    assert notes == ()
