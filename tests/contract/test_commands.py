"""Commands, actions and options that scripts use are those of `commands.txt`."""

import os
from pathlib import Path

import pytest

from specdash.cli.commands import COMMANDS
from support.outside import commands, say

FROZEN = Path(__file__).parent / "commands.txt"


def test_the_commands_are_those_that_are_frozen() -> None:
    """`FREEZE=1 pytest tests/contract` writes them anew: an addition is free, a removal breaks somebody's script."""
    if os.environ.get("FREEZE") == "1":
        FROZEN.write_text(commands(), encoding="utf-8")
    assert commands().splitlines() == FROZEN.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", [command.name for command in COMMANDS])
def test_every_command_explains_itself(name: str) -> None:
    code, out, err = say(name, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: specdash {name}")
    assert say("help", name)[1] == out
