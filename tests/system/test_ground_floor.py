"""What has one home on the ground floor is done nowhere else: method calls, which ruff and import-linter do not see."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from support.sources import nodes

if TYPE_CHECKING:
    from collections.abc import Callable


def replaces_a_file(call: ast.Call) -> bool:
    """`Path.replace` and `Path.rename` take one argument; those of texts and dataclasses take others."""
    method = call.func
    named = isinstance(method, ast.Attribute) and method.attr in ("replace", "rename")
    return named and len(call.args) == 1 and not call.keywords


def asks_for_a_start(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "create_time"


def asks_whether_a_pid_is_there(call: ast.Call) -> bool:
    is_kill = isinstance(call.func, ast.Attribute) and call.func.attr == "kill" and len(call.args) == 2
    return is_kill and isinstance(call.args[1], ast.Constant) and call.args[1].value == 0


@pytest.mark.parametrize(
    ("is_one", "home"),
    [
        (replaces_a_file, "files.py"),
        (asks_for_a_start, "processes.py"),
        (asks_whether_a_pid_is_there, "processes.py"),
    ],
)
def test_it_is_done_in_one_place(is_one: Callable[[ast.Call], bool], home: str) -> None:
    elsewhere = [
        f"{name}:{node.lineno}"
        for name, tree in nodes().items()
        if name != f"system/{home}"
        for node in tree
        if isinstance(node, ast.Call) and is_one(node)
    ]
    assert elsewhere == []
