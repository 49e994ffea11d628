"""Commands, actions and options that scripts use are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specdash.cli.commands import COMMANDS
from support.outside import commands, frozen, say

HERE = Path(__file__).parent


def gone(promised: dict[str, Any], shown: dict[str, Any], at: str) -> list[str]:
    """Options and actions that are promised and not there, or want more than they did."""
    breaches = []
    for name, option in promised.get("options", {}).items():
        now = shown.get("options", {}).get(name)
        if now is None:
            breaches.append(f"{at} {name}")
        elif now["takes"] != option["takes"] or now["required"] > option["required"]:
            breaches.append(f"{at} {name}: takes {now['takes']}, required {now['required']}")
        elif option["choices"] is not None and not set(option["choices"]) <= set(now["choices"] or option["choices"]):
            breaches.append(f"{at} {name}: choices")
    for name, option in shown.get("options", {}).items():
        if option["required"] and name not in promised.get("options", {}):
            breaches.append(f"{at} {name} is asked for now")
    for name, action in promised.get("actions", {}).items():
        if name not in shown.get("actions", {}):
            breaches.append(f"{at} {name}")
        else:
            breaches += gone(action, shown["actions"][name], f"{at} {name}")
    return breaches


def test_no_command_action_or_option_is_gone() -> None:
    shown = commands()
    promised = frozen(HERE / "commands.json", shown)
    assert set(promised) <= set(shown)
    assert not [breach for name, command in promised.items() for breach in gone(command, shown[name], name)]


def test_what_is_there_is_written_down() -> None:
    """An addition is frozen in the change that makes it."""
    shown = commands()
    assert shown == frozen(HERE / "commands.json", shown)


@pytest.mark.parametrize("name", [command.name for command in COMMANDS])
def test_every_command_explains_itself(name: str) -> None:
    code, out, err = say(name, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: specdash {name}")
    assert say("help", name)[1] == out


def test_a_breach_would_be_found() -> None:
    promised = {"options": {"--json": {"required": False, "takes": 0, "choices": None}}, "actions": {"list": {}}}
    assert gone(promised, {"options": {"--new": {"required": True, "takes": 1, "choices": None}}}, "x") == [
        "x --json",
        "x --new is asked for now",
        "x list",
    ]
