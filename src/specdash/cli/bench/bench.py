"""`specdash bench ACTION`: measurements and trials, each in a module of its own."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    import argparse


class BenchAction(Struct, frozen=True):
    """One action: its name, the module that implements it, its help, and what its exit codes mean where that wants
    saying.

    The module offers `configure(parser)` and `run(args)`, as that of a command; one of several actions `add_NAME` and
    `NAME` instead.
    """

    name: str
    place: str
    help: str
    description: str = ""

    @property
    def module(self) -> str:
        """The name to import it by."""
        return f"{__package__}.{self.place}"

    def part(self, alone: str, prefix: str = "") -> Any:
        """The module's function of that name, or the one of this action's."""
        module, name = importlib.import_module(self.module), prefix + self.name.replace("-", "_")
        return getattr(module, alone if hasattr(module, alone) else name)


ACTIONS: tuple[BenchAction, ...] = (
    BenchAction(
        "live",
        "bench_live",
        "measure a running server on prompts: prefill, decode, time to the first token, real acceptance",
        "Exit code 0: measured; 1: every request failed; 3: no prompts, or no such model; 4: no server answers.",
    ),
    BenchAction(
        "replay",
        "bench_replay",
        "ask an agent's recorded session again, call by call, with the prompt cache off and on",
        "Exit code 0: measured; 1: every call failed, or an answer was empty with the cache only; 3: the session "
        "cannot be read, or no call fits; 4: no server answers; 130: Ctrl-C, with what was measured kept.",
    ),
    BenchAction(
        "ab",
        "bench_trials",
        "compare configurations on the service or beside it, boot by boot: real, or within noise",
        "Each round boots every configuration once, in a random order and then in that backwards. Exit code 0: "
        "measured, with any result; 1: nothing was, or one alone; 3: a profile or prompts that are not there; "
        "12: the service could not be put back; 130: stopped, and put back.",
    ),
    BenchAction(
        "sweep",
        "bench_trials",
        "measure a grid of settings, resumable, with the best five and what they cannot be distinguished from",
        "Exit codes as of ab.",
    ),
    BenchAction(
        "matrix",
        "bench_trials",
        "measure drafters by classes of prompts, on one target model or several",
        "Combinations that are refused are listed with the reason. Exit codes as of ab.",
    ),
    BenchAction(
        "soak",
        "bench_soak",
        "alternate turns that provoke malformed tool calls with normal tool turns, in one session",
        "Exit code 0: no error, nothing malformed visible, and every normal turn a usable tool call; 130: Ctrl-C, with "
        "what was measured kept; else 1.",
    ),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their options."""
    names = ",".join(action.name for action in ACTIONS)
    actions = parser.add_subparsers(dest="action", required=True, metavar=f"{{{names}}}")
    for action in ACTIONS:
        of_action = actions.add_parser(
            action.name, help=action.help, description=action.description or None, allow_abbrev=False
        )
        action.part("configure", "add_")(of_action)


def run(args: argparse.Namespace) -> int:
    return int(next(action for action in ACTIONS if action.name == args.action).part("run")(args))
