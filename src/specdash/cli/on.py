"""`--on USER@HOST`, or `--url ssh://USER@HOST`: the same command on that machine, through the user's own ssh."""

from __future__ import annotations

import shlex
import subprocess
import sys
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from specdash.cli.commands import MACHINE_OPTIONS
from specdash.core.errors import SpecdashError, UnreachableError
from specdash.core.target import SSH, is_over_ssh, machine_and_server

if TYPE_CHECKING:
    from collections.abc import Sequence

_THERE = 'PATH="$PATH:$HOME/.local/bin"; command -v specdash >/dev/null || exit 127; exec env "$@"'
_PLAIN_SCREEN = "\x1b[?1049l\x1b[?1000;1002;1003;1004;1006;1015;2004l\x1b[?25h\x1b[<u"
"""For the terminal of a dashboard that the end of the connection has cut off."""


def taken_from(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The first machine that a command line names, as ssh://HOST, and the words for it. Raises `UsageError`."""
    kept, left = list[str](), iter(words)
    for word in left:
        option, _, value = word.partition("=")
        own = [word, *islice(left, 1)] if word in MACHINE_OPTIONS else [word]
        address = _address(option, value or own[-1]) if option in MACHINE_OPTIONS else ""
        if is_over_ssh(address):
            machine, server = machine_and_server(address)
            return machine, [*kept, *(["--url", server] if server else []), *left]
        kept += [*own, *left] if word == "--" else own
    return None, kept


def _address(option: str, value: str) -> str:
    if option == "--target":
        from specdash.cli.options import resolved_settings

        with suppress(SpecdashError):  # the command itself says what is wrong with config.toml
            return next((t["url"] for t in resolved_settings(None)["target"].value if t["name"] == value), "")
    return SSH + value if option == "--on" and not is_over_ssh(value) else value


def run(machine: str, words: Sequence[str]) -> int:
    """Run the command there with this process's input and output; its exit code. Raises `UnreachableError`."""
    from specdash.cli.signals import HAS_NO_TERMINAL, stopped_by_signals

    has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    kind = ["-t"] if has_terminal else []
    there = shlex.join(["sh", "-c", _THERE, "sh", *([] if kind else [f"{HAS_NO_TERMINAL}=1"]), "specdash", *words])
    command = ["ssh", *kind, "--", machine, there]
    try:
        with stopped_by_signals(), subprocess.Popen(command) as ssh:
            try:
                code = ssh.wait()
            except KeyboardInterrupt:
                ssh.terminate()
                raise
    except FileNotFoundError:
        raise UnreachableError("there is no ssh on this machine") from None
    if code == 127:
        raise UnreachableError(f"{machine} has no specdash on its PATH or in ~/.local/bin: install or link it there")
    if code == 255:
        print(_PLAIN_SCREEN if has_terminal else "", end="", flush=True)
        raise UnreachableError(
            f"the connection to {machine} failed, or specdash was killed there; `ssh {machine}` tries it"
        )
    return code
