"""`specdash bench ACTION`: measurements and trials, each in a module of its own."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from specdash.system.data import dataclass

if TYPE_CHECKING:
    import argparse


@dataclass(frozen=True, slots=True)
class BenchAction:
    """One action: its name, its help, and what its exit codes mean where that wants saying.

    Its module, `bench_NAME` beside this one, offers `configure(parser)` and `run(args)` as a command does.
    """

    name: str
    help: str
    description: str = ""

    @property
    def module(self) -> str:
        return f"{__package__}.bench_{self.name.replace('-', '_')}"


ACTIONS: tuple[BenchAction, ...] = (
    BenchAction(
        "live",
        "measure a running server on prompts: prefill, decode, time to the first token, real acceptance",
        "Exit code 0: measured; 1: every request failed; 3: no prompts, or no such model; 4: nobody answers.",
    ),
    BenchAction(
        "replay",
        "ask an agent's recorded session again, call by call, with the prompt cache off and on",
        "Exit code 0: measured; 1: every call failed, or an answer was empty with the cache only; 3: the session "
        "cannot be read, or no call fits; 4: nobody answers; 130: Ctrl-C, with what was measured kept.",
    ),
    BenchAction(
        "ab",
        "compare configurations on the service or beside it, boot by boot: real, or within noise",
        "Each round boots every configuration once, in a random order and then in that backwards. Exit code 0: "
        "measured, whatever came of it; 1: nothing was, or one alone; 3: a profile or prompts that are not there; "
        "12: the service could not be put back; 130: stopped, and put back.",
    ),
    BenchAction(
        "sweep",
        "measure a grid of settings, resumable, with the best five and what they cannot be told apart from",
        "Exit codes as of ab.",
    ),
    BenchAction(
        "matrix",
        "measure drafters by classes of prompts, on one target model or several",
        "Combinations that are refused are told with the reason. Exit codes as of ab.",
    ),
    BenchAction(
        "soak",
        "alternate turns that provoke malformed tool calls with normal tool turns, in one session",
        "Exit code 0: no error, nothing malformed visible, every normal turn a usable tool call, and no process that "
        "grows where it must not; 130: Ctrl-C, with what was measured kept; else 1.",
    ),
    BenchAction(
        "apply-storm",
        "apply good, bad and crashing settings in a row while clients never stop asking",
        "Starts a backend on the bundled models and a proxy of its own. Exit code 0: no client saw an "
        "error, every apply ended as it must, and the env files are those of the last good one; else 1.",
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
        _module(action).configure(of_action)


def run(args: argparse.Namespace) -> int:
    return int(_module(next(action for action in ACTIONS if action.name == args.action)).run(args))


def _module(action: BenchAction) -> Any:
    return importlib.import_module(action.module)
