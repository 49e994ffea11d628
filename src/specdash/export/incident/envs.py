"""Env files as they may be shown: every setting that is known and no secret, and what changed in them, line by line."""

from __future__ import annotations

import difflib
import shlex
import time
from itertools import pairwise
from typing import TYPE_CHECKING

from specdash.core.changes import is_secret
from specdash.core.envfile import parse, quote
from specdash.core.masking import MASK
from specdash.core.parameter_catalogue import BY_FLAG

if TYPE_CHECKING:
    from specdash.core.envfile import Entry
    from specdash.export.incident.parts import EnvPart, EnvVersion
    from specdash.export.incident.redaction import Redactor

COMMENT = "# (comment left out)"
UNREADABLE = "# (unreadable line left out)"


def shown(text: str, redactor: Redactor) -> str:
    """An env file without secrets: comments, which may hold anything, and values of unknown keys are left out too."""
    return "".join(f"{line}\n" for line in _lines(text, redactor))


def diffs(part: EnvPart, redactor: Redactor) -> str:
    """What changed from version to version, as unified diffs; a changed secret shows as changed."""
    versions = [*part.before, part.now]
    found: list[str] = []
    for old, new in pairwise(versions):
        found += [f"# {_name(old)} -> {_name(new)}", *_diff(old, new, part, redactor), ""]
    return "\n".join(found)


def changed_lines(part: EnvPart, redactor: Redactor) -> list[str]:
    """What changed over the whole span, without context."""
    if not part.before:
        return []
    return [
        line
        for line in _diff(part.before[0], part.now, part, redactor)
        if line[:1] in "+-" and line[:3] not in ("+++", "---")
    ]


def secret_values(text: str) -> set[str]:
    """Values in an env file that must never be found in a bundle: of secret keys, and of flags that carry a key."""
    found: set[str] = set()
    for entry in parse(text).entries:
        if entry.key is None or not entry.value:
            continue
        if is_secret(entry.key):
            found.add(entry.value)
        found |= _of_flags(entry.value)
    return found


def _of_flags(value: str) -> set[str]:
    try:
        words = shlex.split(value)
    except ValueError:
        words = value.split()
    found: set[str] = set()
    for at, word in enumerate(words):
        flag, equals, inline = word.partition("=")
        known = BY_FLAG.get(flag.replace("_", "-") if flag.startswith("--") else flag)
        if known is not None and known[0].secret:
            found.update([inline] if equals else words[at + 1 : at + 2])
    return found


def _diff(old: EnvVersion, new: EnvVersion, part: EnvPart, redactor: Redactor) -> list[str]:
    name = redactor.text(part.path.name)
    before, after = _lines(old.text, redactor), _lines(new.text, redactor)
    lines = list(difflib.unified_diff(before, after, name, name, _name(old), _name(new), n=2, lineterm=""))
    hidden = _secrets(old.text), _secrets(new.text)
    changed = sorted(key for key in hidden[0] | hidden[1] if hidden[0].get(key) != hidden[1].get(key))
    return lines + [
        f"! {key}: the secret is another one" for key in changed if hidden[0].get(key) and hidden[1].get(key)
    ]


def _name(version: EnvVersion) -> str:
    if version.at is None:
        return "now"
    number = f"backup {version.number}, " if version.number is not None else ""
    return f"{number}until {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(version.at))}"


def _secrets(text: str) -> dict[str, str | None]:
    return {entry.key: entry.value for entry in parse(text).entries if entry.key is not None and is_secret(entry.key)}


def _lines(text: str, redactor: Redactor) -> list[str]:
    return [line for entry in parse(text).entries for line in _entry(entry, redactor)]


def _entry(entry: Entry, redactor: Redactor) -> list[str]:
    if entry.problem is not None:
        return [UNREADABLE]
    if entry.key is None or entry.value is None:
        return [COMMENT if entry.raw.strip() else ""]
    value = redactor.setting(entry.key, entry.value)
    written = value if value == MASK or value.startswith("(text of") else quote(value)
    return f"{entry.key}={written}".splitlines() or [""]
