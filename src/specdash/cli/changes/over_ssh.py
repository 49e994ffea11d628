"""Commands that change services, of a server on another machine: the same command there, over the user's ssh.

What it prints there is printed here, and its exit code is ours. It goes on there whatever becomes of the connection.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from specdash.cli.options import bare_target, resolved_settings, said_there, say
from specdash.core.config import SERVICE_SETTINGS
from specdash.core.errors import ExitCode, UnreachableError, UsageError
from specdash.core.target import is_local, is_over_ssh

if TYPE_CHECKING:
    import argparse

    from specdash.control.far import FarCommand, FarHost
    from specdash.core.target import SshHost

_OPTIONS = ("--url", "--target")


def add_far_options(parser: argparse.ArgumentParser) -> None:
    """How a command names the machine: only here, never by what the settings say of the server to watch."""
    parser.add_argument("--url", metavar="URL", help="run it on another machine: ssh://user@host (docs/remote.md)")
    parser.add_argument(
        "--target", dest="target_name", metavar="NAME", help="the machine of that [[target]] in config.toml"
    )


def far_machine(args: argparse.Namespace) -> SshHost | None:
    """The other machine on which a command is to be done; None for this one. Raises `UsageError`."""
    if args.url is None and args.target_name is None:
        return None
    settings = resolved_settings(args)
    url = settings["url"].value or ""
    if is_over_ssh(url.strip()):
        return bare_target(settings).ssh
    from urllib.parse import urlsplit

    if args.url is None and is_local(urlsplit(url).hostname):
        return None
    raise UsageError(
        f"{url}: services are changed on their own machine: ssh://user@host names it, those of this one need no --url"
    )


def carry_over(host: SshHost, args: argparse.Namespace) -> int:
    """Have the command done there, and say what it says; its exit code."""
    from specdash.control.far import FarCommand, FarHost, LostConnectionError

    services = [name for name in SERVICE_SETTINGS if hasattr(args, name)]
    argv = [*_without_machine(args.argv), *said_there(resolved_settings(args), services, typed=False)]
    given = sys.stdin.readline() if getattr(args, "from_stdin", False) else ""
    far = FarHost(host)
    command = FarCommand(far, argv, given, terminal=sys.stdin.isatty() and sys.stderr.isatty())
    try:
        _follow(command, host)
        if command.exit_code is not None:
            return command.exit_code
        return _killed_there(command, far, host, as_json=bool(getattr(args, "json", False)))
    except LostConnectionError as error:
        if command.began:
            raise UnreachableError(
                f"{error}; `specdash {argv[0]}` goes on there, to its end or back to where it began: "
                f"`specdash applies --url {host.url}` says how it ended"
            ) from None
        raise
    finally:
        far.close()


def _without_machine(argv: tuple[str, ...]) -> list[str]:
    words = iter(argv)
    kept: list[str] = []
    for word in words:
        if word in _OPTIONS:
            next(words, None)
        elif not word.startswith(tuple(f"{option}=" for option in _OPTIONS)):
            kept.append(word)
    return kept


def _follow(command: FarCommand, host: SshHost) -> None:
    from specdash.cli.changes.apply_run import StepPrinter
    from specdash.cli.signals import cancelled_by_signals, stopped_by_signals

    printer = StepPrinter()

    def show(name: str, text: str) -> None:
        if name == "out":
            print(text, end="", flush=True)
        else:
            printer.write(text)

    def answer() -> str:
        # Ctrl-C at a question ends us, and the question with the connection.
        with stopped_by_signals():
            return sys.stdin.readline()

    def lost(why: str) -> None:
        words = f"{why}; it goes on there, connecting again" if why else f"connected to {host.name} again"
        printer.write(f"specdash: {words}\n")

    command.on_text, command.on_progress, command.on_question, command.on_lost = show, printer, answer, lost
    with cancelled_by_signals(command):
        command.run()


def _killed_there(command: FarCommand, far: FarHost, host: SshHost, *, as_json: bool) -> int:
    """It ended there without a word: what was cut short is rolled back, and what was recorded counts."""
    from specdash.cli.changes.apply_run import StepPrinter, exit_code, report
    from specdash.control.far import recovered

    record = command.record
    if command.unfinished:
        say(f"{command.unfinished} by the death of specdash on {host.name}: rolling it back there")
        record = recovered(far, StepPrinter())
    if record is None:
        say(f"it ended on {host.name} before it changed anything")
        return ExitCode.FAILED
    report(record, as_json=as_json)
    return exit_code(record, None, changed=True)
