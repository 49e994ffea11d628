"""Turns that end a tool loop although they announce a call, and turns that end it properly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specdash.proxy.guardrails.unexpected_end import (
    ADDED_ID,
    announces_action,
    has_been_added_to,
    is_unexpected_end,
)
from specdash.proxy.translate.parse import Block, Message, MessagesRequest, ToolChoice
from support.offered_tools import TOOLS, call

RESULT: Block = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "ok"}
SAID: Block = {"type": "text", "text": "go on"}


def request(*last: Block, **changes: object) -> MessagesRequest:
    messages = (
        Message("user", (SAID,)),
        Message("assistant", ({"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}},)),
        Message("user", last or (RESULT,)),
    )
    values: dict[str, object] = {"model": "m", "messages": messages, "max_tokens": 100, "tools": TOOLS, **changes}
    return MessagesRequest(**values)  # type: ignore[arg-type]  # a test's shorthand


ANNOUNCED = [
    # It ends in a colon.
    "Let me read the file:",
    "Now, I’ll run the tests:",
    "The import is missing. Let me add it:",
    "The import isn't there, so I'll add it:",
    "The test fails because of a typo.\n\nLet me fix that:",
    "## Findings\n\n- one\n- two\n\nNow let me write the file:",
    "Let's search for its callers:",
    "I'll start by reading the template:",
    "Let me try a different approach:",
    "**Let me check the output:**",
    "You're right. Let me fix that:",
    "Step 1 is done. Now let me update the docs:",
    "The refactoring is complete. Let me run the tests:",
    "```\nold output\n```\n\nI'll run it again:",
    "Now running the tests:",
    "   Let me read the file:",
    "Let me run the following command:",
    "I'm going to fix the import:",
    "Let me verify:",
    # It names a file, a command or a tool.
    "Let me read src/app.py",
    "Let me read src/app.py.",
    "Now I'll edit README.md.",
    "I'll fix the import in `app.py`.",
    "The import is missing, so I'll add it to src/specdash/app.py.",
    "Now I'll run `make test`.",
    "Let me run `git diff` to see what changed.",
    "I'll check /etc/hosts.",
    "I'm going to look at ./config.yaml.",
    "I'll execute `./build.sh --fast`.",
    "All tests pass. Now let me update CHANGELOG.md.",
    "I'll use the Read tool.",
    "I'll call the Grep tool to find the callers.",
    "Let me use Grep to find the callers.",
    "Let me open the Makefile.",
    "Good. Next, let me quickly re-run `make lint`...",
    "I'll restart the server with `docker compose restart`.",
]
FINISHED = [
    "Done.",
    "All tests pass.",
    "All 42 tests pass. I'll stop here.",
    "All 42 tests pass. I'll stop here:",
    "I'll stop running `make test` now.",
    "Tests pass, so I'll call it done.",
    "Tests pass, so I'll call it a day.",
    "Everything is fixed; I'll add nothing more.",
    "Everything works. I'll add nothing to src/app.py.",
    "I will search no further.",
    "I'll change nothing in README.md.",
    "I won't touch src/app.py.",
    "I'll not edit src/app.py.",
    "I will never run `rm -rf`.",
    "I'll leave src/app.py as it is.",
    "I'll use tabs in this project.",
    "I'll use src/app.py as the entry point.",
    "I'll keep src/app.py unchanged.",
    "I'll finish here.",
    "I'll wrap up here:",
    "I'll conclude with `make test` green.",
    "I'm done with src/app.py.",
    "There is nothing left to do. I'll check `make test` off the list.",
    "That's all. I'll review README.md.",
    "All done. Let me check the log:",
    "The task is complete. I'll commit it with `git commit`.",
    "Done! I'll run `make test`.",
    "I'll skip `make lint`.",
    "I fixed the import. All tests pass now.",
    "Let me summarize what was done.",
    "Let me summarize the changes:",
    "Let me write a summary:",
    "Let me write a short report on src:",
    "I'll list the changes:",
    "Let me add one caveat:",
    "Let me start with the good news:",
    "Let me explain what src/app.py does.",
    "Let me explain:",
    "I'll describe src/app.py:",
    "Let me check the output: all 12 tests pass.",
    "Let me check src/app.py: it is fine.",
    "They let me read the file.",
    "The function lets me read src/app.py.",
    "I ran `make test` and it passes.",
    "Here is the summary:\n\n- I'll keep the name\n- Let me read src/app.py",
    "Here is what I'll do next:",
    "The answer is:",
    "The script reads the file and then runs the tests.",
    "Reading the file takes 3 seconds.",
    "You can now run `make`.",
    "Next step: run `make deploy`.",
    "The next step is to run `make deploy`.",
    "Running the server:",
    'The log says "Let me read src/app.py."',
    "Let me read src/app.py first. It was fine, everything is done.",
]
LATER = [
    "I'll check back later.",
    "I'll edit src/app.py later.",
    "I'll run `make test` tomorrow.",
    "I'll update README.md in a follow-up.",
    "I'll update README.md in a separate commit.",
    "I'll get to src/app.py next week.",
    "I'll get to src/app.py.",
    "I'll fix src/app.py in the next session.",
    "I'll look at src/app.py some other time.",
    "Next time I'll run `make format` first.",
    "From now on I'll use `make test`.",
    "I'll run `make test` from here on.",
    "Going forward I'll run `pytest`.",
    "I'll always run `make test` before a commit.",
    "I'll run `make test` every night.",
    "I'll run `make test` after the release.",
    "I'll run `make test` before merging.",
    "I'll run `make deploy` soon.",
    "I'll remove src/old.py in the cleanup phase.",
    "Then I'll run `make deploy`, once CI is green.",
    "I'll open an issue for src/app.py.",
    "I'll add src/app.py to the backlog.",
    "I might run `make test`.",
    "I'll run `make test` in the meantime.",
]
CONDITIONAL = [
    "I'll fix it when CI is green.",
    "I'll run `make test` when CI is green.",
    "If CI fails, I'll edit src/app.py.",
    "If CI fails, I'll edit src/app.py:",
    "I'll revert src/app.py if it breaks.",
    "Should CI fail, I'll edit src/app.py.",
    "Unless that is wrong, I'll edit src/app.py.",
    "I'll edit src/app.py only when needed.",
    "In case of trouble, I'll run `make clean`.",
    "I'll run `make test` as needed.",
    "Assuming that is right, I'll edit src/app.py.",
    "I'll edit src/app.py, provided the plan is right.",
    "Otherwise I'll edit src/app.py.",
    "Depending on CI, I'll edit src/app.py.",
]
WAITING = [
    "Let me know if you want me to run the tests.",
    "Let me know what to check next:",
    "Shall I run the tests?",
    "I'll run the tests. Is that fine?",
    "Is that fine? I'll run `make test`.",
    "Shall I go on? I'll edit src/app.py next.",
    "Would you like me to fix it, or let me check something else?",
    "I'll run the deployment once you confirm.",
    "I'll run `make deploy` once you confirm.",
    "Please confirm. I'll run `make deploy`.",
    "Please confirm, and I'll run `make deploy`:",
    "Say the word, and I'll run `make deploy`.",
    "I'm waiting for the password. I'll run `make deploy`.",
    "I'll wait for your approval.",
    "I'll run `make deploy` on your approval.",
    "I'll run `make deploy` upon approval.",
    "I'll edit src/app.py for you.",
    "I'll update you tomorrow.",
    "I'll get back to you.",
    "I will be happy to help with that.",
    "I'll be glad to edit src/app.py.",
    "You need to set TOKEN. I'll run `make deploy`.",
    "I'll let you run `make deploy`.",
]
UNNAMED = [
    "Let me read the file.",
    "Now I'll run the tests.",
    "I will check the configuration",
    "I'm going to fix the import.",
    "The import is missing, so I'll add it.",
    "I'll look into it, e.g. at version 1.2.",
    "I'll check the client/server split and/or the I/O.",
    "I'll fix `parse_date`.",
]
FOREIGN = [
    "Fertig. Ich höre hier auf.",
    "Ich lese jetzt src/app.py:",
    "Ich werde `make test` ausführen.",
    "Voy a leer src/app.py:",
    "Je vais lancer `make test` :",
    "Vou editar src/app.py.",
    "Ora leggo src/app.py:",
    "Сейчас я прочитаю src/app.py:",
    "让我读取 src/app.py：",
    "src/app.py を読みます：",
    "이제 src/app.py를 읽겠습니다:",
]
SHAPED = [
    "1. Let me read the file:",
    "    Let me read the file:",
    "Run it with:\n\n```\nmake test\n```",
    "I'll run this:\n```\nmake test",
    "| step | result |\n|---|---|\n| Let me run | ok |",
    "> Let me read the file:",
    "word " * 200 + "let me read it:",
]
MORE = [
    "All done, so I'll finish up with a summary:",
    "I'm going to call it a day.",
    "Let's stop here.",
    "Let's look at src/app.py together tomorrow.",
    "Let's discuss src/app.py.",
    "Let me pause here.",
    "Let me give you the summary:",
    "Let me close with a note on src/app.py.",
    "Let me outline the plan:",
    "Let me walk you through it:",
    "Let me thank you.",
    "I'll keep watching app.log.",
    "I'll be done after `make test`.",
    "I'll do nothing more:",
    "I'll ask before I run `make deploy`.",
    "I'll need more information:",
    "I'll proceed when you say so.",
    "I'll continue with src/app.py after lunch.",
    "I'll start once the server is up:",
    "I'll try again in an hour:",
    "I'll retry `make deploy` hourly.",
    "I'll run `make test` on every commit.",
    "I'll run `make deploy` at midnight.",
    "I'll run `make deploy` at noon:",
    "I'll run `make deploy`, if that is OK.",
    "I'll run `make deploy` - just say the word.",
    "I'll run `make deploy` following approval.",
    "I'll edit src/app.py in case CI fails:",
    "I'll edit src/app.py otherwise.",
    "I'll edit src/app.py when I get to it.",
    "I'll check it in the morning.",
    "I'll check off src/app.py.",
    "I'll check out of src/app.py.",
    "I'll see how CI goes:",
    "I'll look no further than src/app.py.",
    "I'll write that down in NOTES.md later.",
    "I'll create a ticket for src/app.py:",
    "I'll update the issue with the findings:",
    "I'll add one remark:",
    "I'll list them here:",
    "I'll list what is left:",
    "I'll use spaces in src/app.py.",
    "I'll use the Read tool if needed.",
    "I would run `make test`.",
    "I may edit src/app.py.",
    "I have edited src/app.py.",
    "You'll want to run `make test`.",
    "Plan: first I'll edit src/app.py, then README.md.",
    "After the merge, I'll run `make deploy`:",
    "For now, I'll stop:",
    "No problem. I'll stop.",
    "Sure, I'll run `make test` next time.",
    "It works. Let me know:",
    "Usage:",
    "Files changed:",
    "Remaining work:",
    "Run this command:",
    "I recommend the following:",
    "Now reading is faster.",
]
DOUBTFUL = [
    "Everything is committed. I'll run `git push`.",
    "I'll look at it over the weekend:",
    "I'll install it during the night:",
    "I'll fix it the moment CI fails:",
    "I'll run the tests, CI permitting:",
    "I'll try to be brief:",
    "Feel free to ask. I'll check src/app.py.",
    "Have a nice day. I'll run `make test`.",
    "Now running the server needs two flags:",
    "Now testing works like this:",
    "Now building takes 3 steps:",
    "Now reading src/app.py is fast:",
    '"Let me read src/app.py."',
    "“I'll run `make test`.”",
    "The log says:\n\nLet me read src/app.py.",
    'It printed "Fine. Now I\'ll edit README.md."',
    "'I'll run `make test`.'",
    "(I'll run `make test`.)",
    "Let me review the main findings:",
    "Let me list the files:",
    "Let me create an overview of src/app.py:",
    "Let me correct myself:",
    "Let me move on to the next point:",
    "Let me run through the changes:",
    "I'll update the description:",
    "Let me find the right words:",
    "Let me examine the pros and cons:",
    "Let me rename things in plain words:",
    "The plan is as follows:\nI'll read src/app.py.\nI'll run `make test`.",
    "Step 2. I'll run `make test`.",
    "What remains is this:\n\nI'll run `make test`.",
    "I'll test drive `make test`.",
    "I'll verify it this Monday:",
    "I'll try harder:",
    "I'll run into limits:",
    "I'll look silly:",
    "I'll read between the lines:",
    "Now checking in:",
    "Let's call it Read.",
    "I'll check the outcome at the deadline:",
    "I'll fix this in a separate branch:",
    "I'll fix the typo in passing:",
    "I'll fix it except in CI:",
    "I'll run the migration with the go-ahead:",
    "I'll verify the fix with QA:",
    "I'll look at that with fresh eyes:",
    "Let me try that in plain English:",
    "I'll run the tests the instant CI is green:",
    "I'll read it at leisure:",
]
PROPER = [*FINISHED, *LATER, *CONDITIONAL, *WAITING, *UNNAMED, *FOREIGN, *SHAPED, *MORE, *DOUBTFUL]


@pytest.mark.parametrize("text", ANNOUNCED)
def test_an_announcement_without_its_call_is_an_unexpected_end(text: str) -> None:
    assert is_unexpected_end(request(), text, [], "stop")


@pytest.mark.parametrize("text", PROPER)
def test_a_proper_end_is_none(text: str) -> None:
    assert not is_unexpected_end(request(), text, [], "stop")


def test_the_corpus_of_endings_is_judged_at_the_rates_of_the_docs() -> None:
    """Rates of the sentences that agents end with, in six languages; docs/proxy.md has them."""
    tests = Path(__file__).parents[2]
    endings = json.loads((tests / "data" / "proxy_corpus" / "endings.json").read_text(encoding="utf-8"))
    tools = ["Read", "Grep", "Bash", "Edit"]
    alarms = [text for text in endings["finished"] if announces_action(text, tools)]
    missed = [text for text in endings["announced"] if not announces_action(text, tools)]
    assert (alarms, len(missed)) == ([], 1), missed
    told = f"{len(endings['finished'])} of {len(endings['finished'])} finished ones are left alone, and "
    told += f"{len(endings['announced']) - len(missed)} of {len(endings['announced'])} announcements noticed"
    docs = (tests.parent / "docs" / "proxy.md").read_text(encoding="utf-8")
    assert told in " ".join(docs.split())


@pytest.mark.parametrize("text", ["", "Let me read the file:"])
def test_outside_a_tool_loop_nothing_is_unexpected(text: str) -> None:
    assert not is_unexpected_end(request(SAID), text, [], "stop")
    assert not is_unexpected_end(request(tools=()), text, [], "stop")
    assert not is_unexpected_end(request(tool_choice=ToolChoice("none")), text, [], "stop")
    assert not is_unexpected_end(request(), text, [call("Read", "{}")], "stop")
    for reason in ("length", "tool_calls", None):
        assert not is_unexpected_end(request(), text, [], reason)


def test_a_tool_result_counts_beside_other_blocks() -> None:
    assert is_unexpected_end(request(RESULT, SAID), "Let me read the file:", [], "stop")


def test_a_prefilled_answer_is_the_clients_own() -> None:
    asked = request()
    prefilled = request(messages=(*asked.messages, Message("assistant", (SAID,))))
    assert not is_unexpected_end(prefilled, "", [], "stop")


@pytest.mark.parametrize("text", ["Let me " * 20_000, "so " * 30_000, "I'll run" + " a" * 40_000, ". " * 50_000])
def test_long_texts_cost_little(text: str) -> None:
    assert not announces_action(text + "done and over")


def added(text: str, call_id: str) -> Message:
    return Message("assistant", (
        {"type": "text", "text": text}, {"type": "tool_use", "id": call_id, "name": "Read", "input": {}}
    ))  # fmt: skip


def test_a_call_is_added_at_most_once_for_each_instruction() -> None:
    text = "Let me read src/b.py."
    fresh = request().messages
    assert not has_been_added_to(fresh, text)
    once = (*fresh, added("Let me read src/a.py.", ADDED_ID + "1"), Message("user", (RESULT,)))
    assert has_been_added_to(once, text)
    assert has_been_added_to((*once, added("", "toolu_2"), Message("user", (RESULT,))), text)
    assert not has_been_added_to((*once, Message("user", (SAID,)), added("", "toolu_3")), text)


def test_a_reminder_of_the_client_is_no_new_instruction() -> None:
    reminder: Block = {"type": "text", "text": "<system-reminder>The date has changed.</system-reminder>"}
    once = (
        *request().messages,
        added("", ADDED_ID + "1"),
        Message("user", (RESULT, reminder)),
        Message("user", (reminder,)),
    )
    assert has_been_added_to(once, "Let me read src/b.py.")


def test_the_same_announcement_again_is_left_alone_whatever_ids_the_client_sends() -> None:
    text = "The first file is fine.\n\nLet me read src/a.py:"
    assert has_been_added_to(
        (*request().messages, added(text, "toolu_7"), Message("user", (RESULT,))), "Let me read  src/a.py:"
    )
    assert not has_been_added_to(
        (*request().messages, added(text, "toolu_7"), Message("user", (RESULT,))), "Let me read src/b.py:"
    )
