"""Command lines: whether one is specdash's own, and the settings in one of a llama-server that was started by hand."""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import psutil

from specdash.backend import settings
from specdash.core.errors import InputError
from specdash.core.parameter_catalogue import BY_KEY, BY_NAME
from specdash.core.parameters import ValueKind
from specdash.core.target import local_port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.core.changes import Role
    from specdash.core.parameters import Parameter
    from specdash.core.target import Target


_SERVER = "llama-server"
_VARIABLES = ("LLAMA_ARG_", "CUDA_", "GGML_")


def adopted_values(argv: Sequence[str], variables: Mapping[str, str], target: Target) -> dict[str, str] | None:
    """The settings that a running llama-server has, as an env file that people read: a key for each argument that has
    one, and whole paths. None where it is none, or they cannot be told. Holds secrets."""
    ours = argv and PurePath(argv[0]).name.startswith(_SERVER)
    whole = _as_ours(argv[0], argv[1:], variables) if ours else None
    if whole is None:
        return None
    given = settings.parse(whole.pop(settings.SOURCE))
    known = {BY_NAME[name]: text for name, text in given.known.items()}
    named = {_operators_key(parameter): text for parameter, text in known.items() if parameter.keys}
    rest = [word for parameter, text in known.items() if not parameter.keys for word in _as_words(parameter, text)]
    extra = {settings.SOURCE: shlex.join([*rest, *given.rest])} if rest or given.rest else {}
    port = local_port(target.url)
    values = {**whole, **({"LLAMA_PORT": str(port)} if port is not None else {}), **named, **extra}
    try:
        cwd = Path(psutil.Process(target.pid).cwd())
    except (psutil.Error, OSError):
        return values
    files = {key for key in values if key in BY_KEY and BY_KEY[key].kind is ValueKind.PATH} | {"LLAMA_BIN"}
    return {
        key: str(cwd / value) if (key in files and "/" in value) or (cwd / value).is_file() else value
        for key, value in values.items()
    }


def _operators_key(parameter: Parameter) -> str:
    """The name that operators use, where it has one beside llama.cpp's own."""
    return next((key for key in parameter.keys if not key.startswith("LLAMA_ARG_")), parameter.keys[0])


def _as_words(parameter: Parameter, text: str) -> tuple[str, ...]:
    if parameter.kind is not ValueKind.SWITCH:
        return (parameter.flags[0], text)
    return (parameter.flags[0] if text == "1" else parameter.off_flags[0],)


def _as_ours(path: str, arguments: Sequence[str], variables: Mapping[str, str]) -> dict[str, str] | None:
    text = shlex.join(part for word in arguments for part in _parted(word))
    try:
        settings.parse(text)
    except InputError:
        return None
    own = {key: value for key, value in variables.items() if key.startswith(_VARIABLES) or key == "LLAMA_API_KEY"}
    return {**own, "LLAMA_ENGINE": _SERVER, "LLAMA_BIN": path, settings.SOURCE: text}


def _parted(word: str) -> tuple[str, ...]:
    flag, equals, value = word.partition("=")
    return (flag, value) if equals and word.startswith("--") else (word,)


def option_of(words: Sequence[str], option: str) -> str | None:
    """The value of an option of a command line; None where it is not given."""
    for word, after in pairwise([*words, ""]):
        if word == option:
            return after or None
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None


def is_ours(words: Sequence[str], role: Role) -> bool:
    """Whether the command is `specdash backend run` or `specdash proxy run`, by whichever way."""
    rest = list(words[1:])
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        rest = rest[1:]
    if rest[:2] == ["-m", "specdash"]:
        rest = rest[2:]
    elif not words or Path(words[0]).name != "specdash":
        return False
    return rest[:2] == [str(role), "run"]


def started_with(pid: int) -> tuple[list[str], dict[str, str]] | None:
    """Arguments and environment of a process; None where the system does not tell. Hold secrets."""
    try:
        process = psutil.Process(pid)
        return process.cmdline(), process.environ()
    except (psutil.Error, OSError):
        return None
