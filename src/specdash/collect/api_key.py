"""Where an API key comes from: the environment variable or the file that the user names, never the command line."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVER_KEYS = "LLAMA_API_KEY"
"""The variable of llama-server that may hold several keys."""
_USABLE = re.compile(r"[\x21-\x7e]+")

_MAX_BYTES = 64 * 1024


def resolve_api_key(
    env_name: str | None, file: str | None, env: Mapping[str, str] = os.environ, option: str = "--api-key-env"
) -> str | None:
    """The key, None when the user names neither source; the variable (by `option`) goes before the file.

    Of several lines in a file (llama-server's own --api-key-file has one key a line) the first is taken. Raises
    InputError when the named source is missing, unreadable, empty, or holds what cannot be sent in an HTTP header.
    """
    if env_name is not None:
        if not env_name.isidentifier():
            raise InputError(f"{option} must name an environment variable that holds the key, never be the key itself")
        key = env.get(env_name, "").strip()
        if not key:
            raise InputError(f"the environment variable {env_name} ({option}) is not set or empty")
        key = first_key(key) or key if env_name == SERVER_KEYS else key
        return _usable(key, f"the environment variable {env_name} ({option})")
    if file is not None:
        if (first := _first_line(file)) is None:
            raise InputError(f"{file} (--api-key-file) holds no key")
        return _usable(first, f"{file} (--api-key-file)")
    return None


def first_key(keys: str) -> str | None:
    """The first of the comma-separated keys that llama-server takes in `LLAMA_API_KEY`."""
    return next((key.strip() for key in keys.split(",") if key.strip()), None)


def first_key_of(file: str) -> str | None:
    """The first key in a file that has one a line; None where it cannot be read or has none."""
    with contextlib.suppress(InputError):
        return _first_line(file)
    return None


def _first_line(file: str) -> str | None:
    try:
        with Path(file).open("rb") as stream:
            lines = stream.read(_MAX_BYTES).decode("utf-8").splitlines()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "not a text file"
        raise InputError(f"cannot read {file} (--api-key-file): {why}") from None
    return next((line.strip() for line in lines if line.strip() and not line.strip().startswith("#")), None)


def key_file_warning(file: str | None) -> str | None:
    """What is wrong with the permissions of a key file, None when nothing is."""
    if file is None:
        return None
    try:
        mode = stat.S_IMODE(Path(file).stat().st_mode)
    except OSError:
        return None
    if mode & 0o077:
        return f"{file} can be read by others (mode {mode:04o}); run: chmod 600 {file}"
    return None


def _usable(key: str, where: str) -> str:
    if not _USABLE.fullmatch(key):
        raise InputError(f"{where} holds characters that cannot be part of an API key")
    return key
