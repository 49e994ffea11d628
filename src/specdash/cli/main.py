"""Entry point: finds the command, imports it, turns user errors into one line and an exit code."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import importlib
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

from specdash import __version__
from specdash.cli.commands import COMMANDS, DEFAULT_COMMAND, MACHINE_OPTIONS, Command
from specdash.cli.signals import change_begun, follow_connection
from specdash.core.errors import ExitCode, SpecdashError, UsageError
from specdash.core.removed import removed_command

if TYPE_CHECKING:
    from collections.abc import Sequence


_CHANGING = frozenset({"apply", "rollback"})
_OBJECTS_BETWEEN_COLLECTIONS = 5_000
"""Python's own 700 has the collector go a hundred times through what a start creates and keeps."""

ON = "--on USER@HOST runs it on another machine, through ssh (docs/servers.md)."
HELP = "help"
"""`specdash help COMMAND` is `specdash COMMAND --help`."""


class CommandParser(argparse.ArgumentParser):
    """An ArgumentParser whose complaints are one clear line, raised as `UsageError`."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing usage and exiting, so that every complaint reads alike."""
        raise UsageError(f"{message}; see `{self.prog} --help`")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Complain of unknown arguments here, so that the complaint names this command and not the one above it."""
        given, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return given, unknown


def main(argv: Sequence[str] | None = None) -> int:
    """Run specdash and return the exit code (see `ExitCode`)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return int(_dispatch(arguments))
    except SpecdashError as error:
        print(f"specdash: {error}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        if not change_begun.is_set() and _CHANGING.intersection(arguments[:1]):
            print("specdash: interrupted: nothing was changed", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output is gone; point stdout elsewhere so that the interpreter's own flush stays quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.OK)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def entry() -> NoReturn:
    """The program: `main`, then a certain and quick end.

    When the terminal is gone, Textual's threads may never end, and the interpreter would wait for them for ever, one of
    them reading an end of file over and over. Taking apart every object takes a fifth of a short command's time, and
    gives nothing back that the end of a process does not.
    """
    if _CHANGING.intersection(sys.argv[1:2]):
        # Until the change has handlers of its own.
        signal.signal(signal.SIGTERM, _interrupt)
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    follow_connection()
    try:
        code = main()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(ExitCode.FAILED)
    # What was done is done and printed: a Ctrl-C while the interpreter ends must not turn the exit code into another.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if signal.getsignal(signal.SIGTERM) is _interrupt:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    lingering = [t for t in threading.enumerate() if t is not threading.current_thread() and not t.daemon]
    if lingering:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)
    atexit._run_exitfuncs()  # noqa: SLF001 - what was to be done at the end, without what Python itself adds
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except (OSError, ValueError):
        # The interpreter says what it says of a reader that is gone.
        sys.exit(code)
    os._exit(code)


def _dispatch(arguments: list[str]) -> int:
    if any(word.partition("=")[0] in MACHINE_OPTIONS for word in arguments):
        from specdash.cli.on import run, taken_from

        try:
            machine, arguments = taken_from(arguments)
            if machine is not None:
                return run(machine, arguments)
        except SpecdashError as error:
            if "check" not in arguments[:1]:
                raise
            from specdash.cli.check import on_error

            return on_error(error, as_json="--json" in arguments)
    by_name = {command.name: command for command in COMMANDS}
    if arguments and arguments[0] == HELP:
        arguments = [*arguments[1:], "--help"]
    if arguments and arguments[0] in ("-h", "--help"):
        print(_overview())
        return ExitCode.OK
    if arguments and arguments[0] == "--version":
        print(f"specdash {__version__}")
        return ExitCode.OK
    if arguments and not arguments[0].startswith("-"):
        name, rest = arguments[0], arguments[1:]
    else:
        name, rest = DEFAULT_COMMAND, arguments
    instead = removed_command((name, *rest))
    if name not in by_name:
        if instead is not None:
            raise UsageError(instead)
        raise UsageError(f"unknown command {name!r}; {_suggestion(name, [*by_name, HELP])}")
    return _run(by_name[name], rest, instead)


def _run(command: Command, rest: list[str], instead: str | None) -> int:
    module: Any = importlib.import_module(command.module)
    parser = CommandParser(prog=f"specdash {command.name}", description=command.help, epilog=ON, allow_abbrev=False)
    module.configure(parser)
    try:
        given = _parsed(parser, rest, instead)
    except UsageError as error:
        # A monitor's plugin answers in its own way to any question.
        on_error = getattr(module, "on_error", None)
        if on_error is None:
            raise
        return int(on_error(error, as_json="--json" in rest))
    return int(module.run(given))


def _parsed(parser: CommandParser, rest: list[str], instead: str | None) -> argparse.Namespace:
    if instead is not None:
        raise UsageError(instead)
    return parser.parse_args(rest)


def _suggestion(name: str, names: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"one of: {', '.join(names)}"


def _overview() -> str:
    width = max(len(command.name) for command in COMMANDS)
    lines = [f"  {command.name:<{width}}  {command.help}" for command in COMMANDS]
    return "\n".join(
        [
            "usage: specdash [COMMAND] [OPTIONS]",
            "",
            "Live dashboard for llama.cpp speculative decoding.",
            "",
            "commands:",
            *lines,
            "",
            f"With any of them {ON}",
            "`specdash COMMAND --help` or `specdash help COMMAND` shows the options; `specdash --version` the version.",
        ]
    )


if __name__ == "__main__":
    entry()
