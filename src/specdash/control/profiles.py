"""Named sets of settings: those that ship with specdash, and the user's own, an env file each.

Backend and proxy keys stand in one file. Its first comment is the summary; the others are notes, one a line.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
from importlib import resources
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from specdash.core.changes import Role, is_secret, role_of
from specdash.core.envfile import decode, parse, quote
from specdash.core.errors import InputError
from specdash.core.masking import without_secrets
from specdash.core.parameter_catalogue import BY_KEY as BACKEND_KEYS
from specdash.core.parameter_catalogue import PASSED_ON
from specdash.core.paths import user_profiles_dir
from specdash.core.proxy_parameters import BY_KEY as PROXY_KEYS
from specdash.core.removed import REMOVED_SETTINGS
from specdash.system import files

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from specdash.core.parameters import Parameter

BUILT_IN = "built in"
_ENDING, _OLD_ENDING, _CONVERTED = ".env", ".toml", ".converted"
_SOURCE = "Source: "
"""What the comment begins with that says where the values come from."""
_KNOWN_KEYS: dict[Role, Mapping[str, Parameter]] = {Role.BACKEND: {**PASSED_ON, **BACKEND_KEYS}, Role.PROXY: PROXY_KEYS}


class Profile(Struct, frozen=True):
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
    broken: str = ""
    """Why the user's file cannot be read as a profile: the reason names file and key."""

    @property
    def own(self) -> bool:
        """Whether it is the user's."""
        return self.origin != BUILT_IN


def all_profiles(env: Mapping[str, str] = os.environ) -> tuple[Profile, ...]:
    """Every profile, the built-in ones first. A user's profile stands in for a built-in one of its name, also where it
    is broken: then neither can be applied."""
    folder = resources.files("specdash.control") / "profiles_data"
    found = {}
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith(_ENDING):
            name = file.name.removesuffix(_ENDING)
            found[name] = parse_profile(file.read_bytes(), file.name, name)
    found |= _convert_old(env)
    for path in sorted(user_profiles_dir(env).glob(f"*{_ENDING}")):
        name = path.name.removesuffix(_ENDING)
        try:
            profile = parse_profile(path.read_bytes(), str(path), name, str(path))
            found[name] = replace(profile, replaces=name in found)
        except (InputError, OSError) as error:
            found[name] = _broken(path, str(error))
    return tuple(found.values())


def find_profile(name: str, env: Mapping[str, str] = os.environ) -> Profile:
    """The profile of that name. Raises `InputError` when there is none, or when its file is broken."""
    profiles = {profile.name: profile for profile in all_profiles(env)}
    if name not in profiles:
        hint = _close(name, profiles) or f"known: {', '.join(profiles)}"
        raise InputError(f"no profile {name!r}; {hint}")
    if profiles[name].broken:
        raise InputError(profiles[name].broken)
    return profiles[name]


def parse_profile(data: bytes, where: str, name: str, origin: str = BUILT_IN) -> Profile:
    """The profile in an env file. Raises `InputError` naming `where` it comes from, and the key."""
    file = parse(decode(data)).check(where)
    lines = [entry.raw.strip() for entry in file.entries if entry.key is None]
    comments = [text for line in lines if (text := line.lstrip("#;").strip())]
    source = next((comment for comment in comments[1:] if comment.startswith(_SOURCE)), "")
    notes = tuple(comment for comment in comments[1:] if comment != source)
    values: dict[Role, dict[str, str]] = {role: {} for role in Role}
    for key, text in file.values.items():
        if key in REMOVED_SETTINGS:
            continue
        role = role_of(key)
        if role is None or key not in _KNOWN_KEYS[role]:
            hint = _close(key, (known for keys in _KNOWN_KEYS.values() for known in keys))
            what = f"{key}: neither the backend nor the proxy has such a key"
            raise InputError(f"{where}: {what}{hint and f'; {hint}'}")
        if is_secret(key) or without_secrets(text) != text:
            raise InputError(f"{where}: {key}: profiles hold no secrets; leave it in the env file")
        values[role][key] = text
        try:
            _ = text and _KNOWN_KEYS[role][key].parse(text, key)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
    by_role = {role: keys for role, keys in values.items() if keys}
    if not by_role:
        raise InputError(f"{where}: sets nothing; add lines of KEY=value")
    return Profile(name, comments[0] if comments else "", source.removeprefix(_SOURCE), by_role, notes, origin)


def means_the_same(role: Role, key: str, name: str | None, other: str | None) -> bool:
    """Whether two texts of a key are one value, as `on` and `1` are. None, a key that is not set, is as the empty text:
    the default."""
    if (name or "") == (other or ""):
        return True
    parameter = _KNOWN_KEYS[role].get(key)
    with contextlib.suppress(InputError):
        if parameter is not None and name and other:
            return parameter.parse(name, key) == parameter.parse(other, key)
    return False


def _close(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]}?" if close else ""


def _broken(path: Path, reason: str) -> Profile:
    return Profile(path.stem, "", "", {}, origin=str(path), broken=reason)


# Profiles of specdash 0.1 were TOML files.


def _convert_old(env: Mapping[str, str]) -> dict[str, Profile]:
    """Write each old profile as an env file beside it and rename the old one; those that cannot be converted."""
    broken = {}
    for path in sorted(user_profiles_dir(env).glob(f"*{_OLD_ENDING}")):
        new, kept = path.with_suffix(_ENDING), path.with_name(path.name + _CONVERTED)
        if new.exists():
            continue
        try:
            text = _env_text(path)
            parse_profile(text.encode(), str(path), path.stem)
            files.create(new, text.encode())
            path.rename(kept)
        except InputError as error:
            broken[path.stem] = _broken(path, str(error))
        except OSError as error:
            broken[path.stem] = _broken(path, files.not_written(new, error))
        else:
            sys.stderr.write(f"specdash: profile {path} is now {new}; the old file was kept as {kept.name}\n")
    return broken


def _env_text(path: Path) -> str:
    import tomllib

    try:
        # Fractions are kept as they are written: 0.80 stays 0.80.
        data = tomllib.loads(path.read_text(encoding="utf-8"), parse_float=str)
    except ValueError as error:
        raise InputError(f"{path}: is not valid TOML: {error}") from None
    source, notes = data.get("source"), data.get("notes")
    comments = [data.get("summary") or f"converted from {path.name}", *([f"{_SOURCE}{source}"] if source else [])]
    comments += notes if isinstance(notes, list) else []
    # A backslash at the end of a comment would hide the next line from systemd before 254.
    lines = [f"# {' '.join(str(comment).split())}".rstrip("\\") for comment in comments]
    for role in Role:
        table = data.get(role, {})
        if not isinstance(table, dict):
            raise InputError(f"{path}: {role} must be a table: write [{role}] above its keys")
        for key, value in table.items():
            if not isinstance(value, str | int) or "\n" in str(value):
                raise InputError(f"{path}: {key}: must be a text, a number, true or false, on one line")
            lines.append(f"{key}={('on' if value else 'off') if isinstance(value, bool) else quote(str(value))}")
    return "\n".join(lines) + "\n"
