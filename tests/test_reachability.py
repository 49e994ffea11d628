"""Nothing is in the wheel that no command reaches: rigs and generators live beside the package."""

from __future__ import annotations

import ast
from pathlib import PurePath

from specdash.cli import commands
from specdash.cli.bench import bench
from specdash.insight.rules import catalogue
from specdash.tui.action_table import FooterScreen
from support.sources import ROOT, nodes

MODULES = {
    ".".join(("specdash", *PurePath(name).with_suffix("").parts)).removesuffix(".__init__"): name
    for name in (str(file.relative_to(ROOT)) for file in ROOT.rglob("*.py"))
}
NAMED_IN_TABLES = {
    "specdash.cli.main",
    "specdash.__main__",
    *(command.module for command in commands.COMMANDS),
    *(action.module for action in bench.ACTIONS),
    *(f"{catalogue.__package__}.{family}" for family in catalogue.FAMILIES),
    *(f"specdash.tui.screens.{place}" for place in FooterScreen),
}
"""What is imported by name: the console entry, `python -m`, commands, families of rules, and screens."""


def imported(file: str) -> set[str]:
    names: set[str] = set()
    for node in nodes()[file]:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)  # of a process of its own: `python -m specdash.backend.workload`
    return names & MODULES.keys()


def reached(start: set[str]) -> set[str]:
    seen: set[str] = set()
    waiting = set(start)
    while waiting:
        name = waiting.pop()
        seen.add(name)
        parent = name.rpartition(".")[0]
        waiting |= (imported(MODULES[name]) | ({parent} & MODULES.keys())) - seen
    return seen


def test_every_module_is_reached_from_a_command() -> None:
    assert MODULES.keys() - reached(NAMED_IN_TABLES) == set()
