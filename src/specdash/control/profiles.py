"""Named sets of settings: those that ship with specdash, and the user's own, one TOML file each."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import tomllib
from dataclasses import replace
from importlib import resources
from typing import TYPE_CHECKING, Any

from specdash.core.changes import Role, is_secret, role_of
from specdash.core.errors import ConflictError, InputError, NotWrittenError, UsageError
from specdash.core.masking import without_secrets
from specdash.core.parameter_catalogue import BY_KEY as BACKEND_KEYS
from specdash.core.parameter_catalogue import PASSED_ON
from specdash.core.parameters import ValueKind
from specdash.core.paths import user_profiles_dir
from specdash.core.proxy_parameters import BY_KEY as PROXY_KEYS
from specdash.system import files
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.resources.abc import Traversable
    from pathlib import Path

    from specdash.core.parameters import Parameter

BUILT_IN = "built in"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")
_ENDING = ".toml"
FIELDS = ("name", "summary", "source", "notes", *Role)
_LARGEST = 1 << 20
_MACHINE_NAMES = frozenset(
    {
        *("llama_engine", "host", "port", "alias", "llama_cpp_base", "rpc", "tools", "mcp-servers-json"),
        *(
            "model-url",
            "hf-repo",
            "hf-file",
            "docker-repo",
            "mmproj-url",
            "spec-draft-hf",
            "models-dir",
            "models-preset",
        ),
        *("device", "main-gpu", "tensor-split", "override-tensor"),
    }
)
KNOWN_KEYS: dict[Role, Mapping[str, Parameter]] = {Role.BACKEND: {**PASSED_ON, **BACKEND_KEYS}, Role.PROXY: PROXY_KEYS}


@dataclass(frozen=True, slots=True)
class Profile:
    """One profile. `values` are env texts by service and key, none of them secret; `source` says where they come from.

    `origin` is the user's file, or `built in`; `replaces` says that a file of the user stands in for a built-in one.
    """

    name: str
    summary: str
    source: str
    values: dict[Role, dict[str, str]]
    notes: tuple[str, ...] = ()
    origin: str = BUILT_IN
    replaces: bool = False

    @property
    def own(self) -> bool:
        """Whether it is the user's."""
        return self.origin != BUILT_IN


@dataclass(frozen=True, slots=True)
class BrokenProfile:
    """A file of the user that is no profile, and why: the reason names file and key."""

    name: str
    path: Path
    reason: str


def all_profiles(env: Mapping[str, str] = os.environ) -> tuple[Profile, ...]:
    """Every profile that can be applied, the built-in ones first. A user's profile stands in for a built-in one of its
    name; where that file is broken, neither is here: see `broken_profiles`."""
    return _read_all(env)[0]


def broken_profiles(env: Mapping[str, str] = os.environ) -> tuple[BrokenProfile, ...]:
    """The user's files that cannot be read as profiles."""
    return _read_all(env)[1]


def find_profile(name: str, env: Mapping[str, str] = os.environ) -> Profile:
    """The profile of that name. Raises `InputError` when there is none, or when its file is broken."""
    profiles, broken = _read_all(env)
    for profile in profiles:
        if profile.name == name:
            return profile
    for wrong in broken:
        if wrong.name == name:
            raise InputError(wrong.reason)
    known = [profile.name for profile in profiles]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
    raise InputError(f"no profile {name!r}; {hint}")


def parse_profile(text: str, where: str, name: str, origin: str = BUILT_IN) -> Profile:
    """The profile that a TOML text holds. Raises `InputError` naming `where` it comes from, and the key."""
    try:
        # Texts of fractions are kept as they are written: 0.80 stays 0.80.
        data = tomllib.loads(text, parse_float=str)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where}: is not valid TOML: {error}") from None
    for field in data:
        if field not in FIELDS:
            close = difflib.get_close_matches(field, FIELDS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(FIELDS)}"
            raise InputError(f"{where}: unknown field {field!r}; {hint}")
    texts = {field: data.get(field, "") for field in ("name", "summary", "source")}
    for field, value in texts.items():
        if not isinstance(value, str):
            raise InputError(f"{where}: {field} must be a text")
    if texts["name"] != name:
        raise InputError(f"{where}: name = {texts['name']!r}: must be {name!r}, as the file is called")
    notes = data.get("notes", [])
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise InputError(f"{where}: notes must be a list of texts")
    values = {role: _values(data[role], role, where) for role in Role if role in data}
    if not any(values.values()):
        raise InputError(f"{where}: sets nothing; add [backend] or [proxy] with KEY = value")
    return Profile(name, texts["summary"], texts["source"], values, tuple(notes), origin)


def check_value(role: Role, key: str, text: str, where: str) -> None:
    """Raise `InputError` when a profile cannot hold this: an unknown key, another service's, a secret, a bad value."""
    parameter = KNOWN_KEYS[role].get(key)
    if is_secret(key) or without_secrets(text) != text:
        raise InputError(f"{where}: {key}: profiles hold no secrets; leave it in the env file")
    if parameter is None:
        owner = role_of(key)
        if owner is not None and key in KNOWN_KEYS[owner]:
            raise InputError(f"{where}: {key}: belongs under [{owner}], not under [{role}]")
        close = difflib.get_close_matches(key, KNOWN_KEYS[role], n=1)
        raise InputError(f"{where}: {key}: the {role} has no such key{f'; did you mean {close[0]}?' if close else ''}")
    if text:
        try:
            parameter.parse(text, key)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None


def means_the_same(role: Role, key: str, name: str | None, other: str | None) -> bool:
    """Whether two texts of a key are one value, as `on` and `1` are. None, a key that is not set, is as the empty text:
    the default."""
    if (name or "") == (other or ""):
        return True
    parameter = KNOWN_KEYS[role].get(key)
    with contextlib.suppress(InputError):
        if parameter is not None and name and other:
            return parameter.parse(name, key) == parameter.parse(other, key)
    return False


def is_machine_key(role: Role, key: str) -> bool:
    """Whether a key says where something is on this machine, and not how it works: paths, addresses, models."""
    parameter = KNOWN_KEYS[role].get(key)
    return parameter is None or parameter.kind is ValueKind.PATH or parameter.name in _MACHINE_NAMES


def save_profile(profile: Profile, env: Mapping[str, str] = os.environ, *, replace: bool = False) -> Path:
    """Write a user's profile, mode 0600, whole or not at all; returns its file.

    Raises `UsageError` for a name that cannot be one, and when the file is there and not to be replaced; `InputError`
    for what a profile cannot hold; `NotWrittenError`.
    """
    if not NAME.match(profile.name):
        raise UsageError(f"profile name {profile.name!r}: use small letters, digits, '.', '_' and '-', 64 at most")
    path = user_profiles_dir(env) / f"{profile.name}{_ENDING}"
    text = profile_text(profile)
    parse_profile(text, str(path), profile.name)
    made: list[Path] = []
    try:
        made = files.make_directories(path.parent)
        with files.locked(path.parent):
            if replace:
                files.replace(path, text.encode())
            else:
                files.create(path, text.encode())
        files.sync_directory(path.parent)
    except FileExistsError:
        raise UsageError(f"{path} is there already; add --force to replace it") from None
    except files.BusyError as error:
        raise ConflictError(str(error)) from None
    except OSError as error:
        files.remove_directories(made)
        raise NotWrittenError(files.not_written(path, error)) from None
    return path


def profile_text(profile: Profile) -> str:
    """A profile as its file has it."""
    lines = [f"name = {_quoted(profile.name)}", f"summary = {_quoted(profile.summary)}"]
    lines.append(f"source = {_quoted(profile.source)}")
    if profile.notes:
        lines += ["notes = [", *(f"  {_quoted(note)}," for note in profile.notes), "]"]
    for role, values in profile.values.items():
        if values:
            lines += ["", f"[{role}]", *(f"{key} = {_quoted(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _read_all(env: Mapping[str, str]) -> tuple[tuple[Profile, ...], tuple[BrokenProfile, ...]]:
    found = {profile.name: profile for profile in map(_built_in, _shipped())}
    own: list[Profile] = []
    broken: list[BrokenProfile] = []
    for path in _user_files(env):
        name = path.name.removesuffix(_ENDING)
        try:
            profile = _from_user(path, name, replaces=name in found)
        except InputError as error:
            broken.append(BrokenProfile(name, path, str(error)))
            found.pop(name, None)
            continue
        if profile.replaces:
            found[name] = profile
        else:
            own.append(profile)
    return (*found.values(), *own), tuple(broken)


def _shipped() -> list[Traversable]:
    folder = resources.files("specdash.control") / "profiles_data"
    return sorted(
        (path for path in folder.iterdir() if path.name.endswith(_ENDING)), key=lambda traversable: traversable.name
    )


def _built_in(file: Traversable) -> Profile:
    return parse_profile(file.read_text(encoding="utf-8"), file.name, file.name.removesuffix(_ENDING))


def _user_files(env: Mapping[str, str]) -> list[Path]:
    try:
        return sorted(path for path in user_profiles_dir(env).iterdir() if path.name.endswith(_ENDING))
    except OSError:
        return []


def _from_user(path: Path, name: str, *, replaces: bool) -> Profile:
    if not NAME.match(name):
        raise InputError(f"{path}: a profile's file is called by small letters, digits, '.', '_' and '-', 64 at most")
    try:
        text = files.read_bounded(path, _LARGEST).decode("utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8 text") from None
    profile = parse_profile(text, str(path), name, str(path))
    return replace(profile, replaces=replaces)


def _values(table: Any, role: Role, where: str) -> dict[str, str]:
    if not isinstance(table, dict):
        raise InputError(f"{where}: {role} must be a table: write [{role}] above its keys")
    values = {key: _text(value, key, where) for key, value in table.items()}
    for key, text in values.items():
        check_value(role, key, text, where)
    return values


def _text(value: Any, key: str, where: str) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if not isinstance(value, str | int):
        raise InputError(f"{where}: {key}: must be a text, a number, true or false")
    text = str(value)
    if "\x00" in text or "\n" in text or "\r" in text:
        raise InputError(f"{where}: {key}: must be a single line")
    return text


def _quoted(text: str) -> str:
    # JSON's strings are TOML's, but for DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
