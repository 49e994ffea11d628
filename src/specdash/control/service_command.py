"""What a service runs that is not specdash's own: its command, what its manager puts into it, and its environment.

Sources: systemd.service(5) "Command lines", systemd.exec(5) "Environment"; tried on systemd 252.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from specdash.backend import extra_args
from specdash.control.unit_files import split_words
from specdash.core.envfile import decode, parse
from specdash.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.control.services import ManagedService

_SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "zsh"})
_FORWARDERS = frozenset({"env", "nice", "ionice", "chrt", "numactl", "taskset", "setsid", "nohup", "stdbuf", "prlimit"})
"""Programs that start the rest of their command line and leave its environment to it."""
_SERVER = "llama-server"
_WHOLE = re.compile(r"\$([A-Za-z_]\w*)\Z")
_BRACED = re.compile(r"\$\$|\$\{([A-Za-z_]\w*)\}")
_LONGEST_SCRIPT = 256 * 1024
_VARIABLES = ("LLAMA_ARG_", "CUDA_", "GGML_")


@dataclass(frozen=True, slots=True)
class ServiceCommand:
    """`words` are as the unit has them. `replaces` says that the manager puts variables into them; `env_files` are read
    in their order, over `environment`, and `unset` is taken out at last. `file` is where all of this is written."""

    words: tuple[str, ...]
    file: str
    env_files: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    unset: tuple[str, ...] = ()
    replaces: bool = True

    def loads(self, env_file: Path) -> bool:
        """Whether the manager reads this file into the environment."""
        return any(_same_file(one, env_file) for one in self.env_files)

    def variables(self, env_file: Path, values: Mapping[str, str]) -> dict[str, str]:
        """The environment with these values in the env file. Holds secrets."""
        found = dict(self.environment)
        for one in self.env_files:
            found |= values if _same_file(one, env_file) else _values(one)
        for entry in self.unset:
            key, equals, value = entry.partition("=")
            if not equals or found.get(key) == value:
                found.pop(key, None)
        return found

    def argv(self, variables: Mapping[str, str]) -> list[str]:
        """The words as the program gets them."""
        if not self.replaces:
            return list(self.words)
        made = list(self.words[:1])
        for one in self.words[1:]:
            whole = _WHOLE.match(one)
            if whole is not None:
                made += split_words(variables.get(whole[1], "")) or []
            else:
                made.append(_BRACED.sub(lambda found: variables.get(found[1], "") if found[1] else "$", one))
        return made


class Program(StrEnum):
    """What kind of program a command line starts."""

    SERVER = "llama-server"
    SCRIPT = "a shell script"
    OTHER = "another program"


@dataclass(frozen=True, slots=True)
class Started:
    """The program, its own arguments, and the text of a shell script."""

    program: Program
    path: str = ""
    arguments: tuple[str, ...] = ()
    text: str = field(default="", repr=False)


def started(argv: Sequence[str]) -> Started:
    """What an expanded command line starts; a script is read, what cannot be read is another program."""
    words = list(argv)
    while words and PurePath(words[0]).name in _FORWARDERS:
        after = next((at for at, one in enumerate(words[1:], 1) if _is_program(one)), None)
        if after is None or any(one in ("-i", "-u", "-", "--ignore-environment") for one in words[1:after]):
            return Started(Program.OTHER, words[0])
        words = words[after:]
    if not words:
        return Started(Program.OTHER)
    name = PurePath(words[0]).name
    if name in _SHELLS:
        return _of_shell(words)
    text = _script(words[0])
    if text is not None:
        shell = PurePath(text.split("\n", 1)[0].removeprefix("#!").strip().split(" ")[-1]).name in _SHELLS
        return Started(Program.SCRIPT if shell else Program.OTHER, words[0], tuple(words[1:]), text if shell else "")
    kind = Program.SERVER if name.startswith(_SERVER) else Program.OTHER
    return Started(kind, words[0], tuple(words[1:]))


def running_values(service: ManagedService, values: Mapping[str, str]) -> dict[str, str]:
    """The settings that a service runs with when its env file holds `values`, as an env file of ours would say it.

    A unit that starts llama-server by itself has them on its command line; any other reads the env file as ours do.
    """
    command = service.command
    if command is None:
        return dict(values)
    variables = command.variables(service.env_file, values)
    found = started(command.argv(variables))
    if found.program is not Program.SERVER:
        return dict(values)
    return _as_ours(found.path, found.arguments, variables) or dict(values)


def process_values(argv: Sequence[str], variables: Mapping[str, str]) -> dict[str, str] | None:
    """The settings that a running llama-server has, likewise; None where it is none, or they cannot be told."""
    if not argv or not PurePath(argv[0]).name.startswith(_SERVER):
        return None
    return _as_ours(argv[0], argv[1:], variables)


def _as_ours(path: str, arguments: Sequence[str], variables: Mapping[str, str]) -> dict[str, str] | None:
    text = shlex.join(part for word in arguments for part in _parted(word))
    try:
        extra_args.parse(text)
    except InputError:
        return None
    own = {key: value for key, value in variables.items() if key.startswith(_VARIABLES) or key == "LLAMA_API_KEY"}
    return {**own, "LLAMA_ENGINE": _SERVER, "LLAMA_BIN": path, extra_args.SOURCE: text}


def _of_shell(words: list[str]) -> Started:
    for at, one in enumerate(words[1:], 1):
        if one.startswith("-") and not one.startswith("--") and "c" in one:
            text = words[at + 1] if at + 1 < len(words) else ""
            return Started(Program.SCRIPT, words[0], tuple(words[at + 2 :]), text)
        if not one.startswith("-"):
            read = _text(one)
            kind = Program.SCRIPT if read is not None else Program.OTHER
            return Started(kind, one, tuple(words[at + 1 :]), read or "")
    return Started(Program.OTHER, words[0])


def _is_program(word: str) -> bool:
    name = PurePath(word).name
    return (
        name in _SHELLS or name in _FORWARDERS or name.startswith(_SERVER) or (word[:1] == "/" and Path(word).is_file())
    )


def _parted(word: str) -> tuple[str, ...]:
    flag, equals, value = word.partition("=")
    return (flag, value) if equals and word.startswith("--") else (word,)


def _script(path: str) -> str | None:
    """The text of a file that begins with `#!`; None for any other."""
    try:
        with Path(path).open("rb") as file:
            return _text(path) if file.read(2) == b"#!" else None
    except OSError:
        return None


def _text(path: str) -> str | None:
    try:
        with Path(path).open("rb") as file:
            data = file.read(_LONGEST_SCRIPT + 1)
    except OSError:
        return None
    return data.decode("utf-8", "replace") if len(data) <= _LONGEST_SCRIPT and b"\0" not in data else None


def _values(path: Path) -> dict[str, str]:
    try:
        return parse(decode(path.read_bytes())).values
    except OSError:
        return {}


def _same_file(one: Path, other: Path) -> bool:
    return one == other or one.resolve() == other.resolve()
