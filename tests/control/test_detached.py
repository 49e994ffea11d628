"""Commands that another machine asks for: once or never, and nothing of them but what they say."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from specdash.control.detached import DetachedCommands
from specdash.core.errors import ConflictError, UsageError
from specdash.core.paths import detached_dir
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import TypeAlias

    Begun: TypeAlias = Callable[..., DetachedCommands]

ID = "0123456789abcdef" * 2
CANARY = "sk-canary-detached-0123456789"


@pytest.fixture
def begun() -> Iterator[Begun]:
    """Makes `DetachedCommands`, and sees the processes that they began to their end."""
    made: list[DetachedCommands] = []

    def make(*arguments: Any) -> DetachedCommands:
        made.append(DetachedCommands(*arguments))
        return made[-1]

    yield make
    for process in [process for commands in made for process in commands.processes]:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(20)


def followed(commands: DetachedCommands, command_id: str = ID) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """All that a command says, and what it left where it did not say how it ended."""
    events: list[dict[str, Any]] = []
    after = 0
    while not any("exit" in event for event in events):
        answer = commands.follow(command_id, after, 0.1)
        after = answer["after"]
        events += [json.loads(line) for line in answer["lines"]]
        if "dead" in answer:
            return events, answer["dead"]
    return events, None


def test_a_command_says_what_it_prints_and_its_exit_code(begun: Begun) -> None:
    commands = begun()
    commands.begin(ID, {"argv": ["applies", "--json"]})
    events, dead = followed(commands)
    assert dead is None
    assert "".join(event.get("out", "") for event in events) == "[]\n"
    assert events[-1] == {"exit": 0}
    assert [event for event in followed(begun())[0] if "out" in event], "it can be read again"


def test_a_request_that_comes_after_it_was_asked_for_begins_nothing(begun: Begun) -> None:
    commands = begun()
    assert followed(commands) == ([{"never": True}], {})
    with pytest.raises(ConflictError):
        commands.begin(ID, {"argv": ["applies"]})


def test_a_request_that_comes_twice_begins_once(begun: Begun) -> None:
    commands = begun()
    commands.begin(ID, {"argv": ["applies"]})
    with pytest.raises(ConflictError):
        begun().begin(ID, {"argv": ["applies"]})
    assert sum("exit" in event for event in followed(commands)[0]) == 1


@pytest.mark.parametrize("argv", [None, [], "apply", ["apply", 3], ["demo"], ["agent", "--carry-out", "3"]])
def test_nothing_but_changes_can_be_asked_for(begun: Begun, argv: object) -> None:
    with pytest.raises(UsageError):
        begun().begin(ID, {"argv": argv})
    with pytest.raises(UsageError):
        begun().follow("../../etc/passwd", 0, 0.0)


def test_a_command_that_is_killed_has_left_nothing(begun: Begun, tmp_path: Path) -> None:
    sign = tmp_path / "began"
    program = (sys.executable, "-c", f"open({str(sign)!r}, 'w'); import signal; signal.pause()")
    commands = begun(os.environ, program)
    commands.begin(ID, {"argv": ["apply"]})
    until(sign.exists)
    assert "dead" not in commands.follow(ID, 0, 0.1)
    (process,) = commands.processes
    process.kill()
    process.wait()
    assert followed(commands)[1] == {"unfinished": None, "record": None}


def test_an_apply_that_has_lost_its_lock_but_not_yet_ended_was_cut_short(begun: Begun) -> None:
    """A process that is killed gives back its files a moment before it is gone."""
    program = """
import os, sys, time
from specdash.control.apply.journal import Journal, journal_file
from specdash.control.detached import write_event
from specdash.core.changes import ApplyKind, ApplyStep
from specdash.system.processes import own_start
write_event(int(sys.argv[1]), pid=os.getpid())
journal_file().write(Journal(3, ApplyKind.APPLY, 0.0, os.getpid(), own_start(), ApplyStep.WRITE, ()))
os.close(int(sys.argv[1]))
time.sleep(0.5)
"""
    commands = begun(os.environ, (sys.executable, "-c", program))
    commands.begin(ID, {"argv": ["apply"]})
    dead = followed(commands)[1]
    assert dead is not None
    assert "apply 3" in dead["unfinished"]
    assert "cut short at step write" in dead["unfinished"]


def test_half_a_request_does_nothing_and_what_was_read_is_not_repeated(begun: Begun, tmp_path: Path) -> None:
    half = json.dumps({"argv": ["apply", f"LLAMA_API_KEY={CANARY}"]})[:-3]
    cut = (
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, '-m', 'specdash', 'agent', '--carry-out', sys.argv[1]],"
        f" input={half.encode()!r}, pass_fds=[int(sys.argv[1])])"
    )
    commands = begun(os.environ, (sys.executable, "-c", cut))
    commands.begin(ID, {"argv": ["apply"]})
    until(lambda: "dead" in commands.follow(ID, 1 << 20, 0.1))
    said = (detached_dir(os.environ) / ID).read_text()
    assert "the connection ended before the request did: nothing was changed" in said
    assert CANARY not in said
