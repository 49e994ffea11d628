"""What the catalogues say of the lines of an env file: keys that nobody reads, values that cannot be meant, and what
has no effect. For reading along; `control.preflight` is the judge before a change."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from specdash.core import parameter_catalogue as backend
from specdash.core import passed_on_parameters as passed_on
from specdash.core import proxy_parameters as proxy
from specdash.core.changes import Role
from specdash.core.errors import InputError
from specdash.core.masking import without_secrets
from specdash.core.speculation import KNOBS, is_auto, knob_readers, parse_chain, readers_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from specdash.core.envfile import EnvFile
    from specdash.core.parameters import Parameter

_PREFIX = {Role.BACKEND: "LLAMA_", Role.PROXY: "PROXY_"}
_ALIKE = 0.85
_ALIKE_OURS = 0.75
_CHAIN_KEY = "LLAMA_SPEC_TYPE"


def remarks(role: Role, file: EnvFile) -> dict[int, tuple[str, ...]]:
    """What is to be said of each assignment of the file, by its place among the entries. No text tells a secret."""
    values = file.values
    last = {entry.key: (at, entry.line) for at, entry in enumerate(file.entries)}
    found: dict[int, tuple[str, ...]] = {}
    for at, entry in enumerate(file.entries):
        if entry.key is None or entry.value is None:
            continue
        counts_at, line = last[entry.key]
        if counts_at != at:
            found[at] = (f"ineffective: line {line} sets it again",)
        elif said := tuple(_of_key(role, entry.key, entry.value, values)):
            found[at] = said
    return found


def check_value(role: Role, key: str, value: str) -> None:
    """Raise `InputError` when the value of a known key cannot be meant. The message tells no secret."""
    if key in backend.REMOVED_KEYS and role is Role.BACKEND:
        raise InputError(f"{key}: llama.cpp removed this variable; use {backend.REMOVED_KEYS[key]}")
    declared = parameter_of(role, key)
    if declared is None or value == "" or key not in declared.keys:
        return  # of a LLAMA_ARG_NO_... it only counts that it is there
    try:
        declared.parse(value, key)
        if declared.key == _CHAIN_KEY and not is_auto(value):
            parse_chain(value, key)
    except InputError as error:
        said = f"{key}: the value cannot be read; it must be: {declared.allowed}" if declared.secret else str(error)
        raise InputError(without_secrets(said)) from None


def parameter_of(role: Role, key: str) -> Parameter | None:
    """What the service's catalogue declares of the key, None when it is in none."""
    if role is Role.PROXY:
        return proxy.BY_KEY.get(key)
    plain = key.replace("LLAMA_ARG_NO_", "LLAMA_ARG_", 1)
    return next((t[name] for name in (key, plain) for t in (backend.BY_KEY, passed_on.BY_KEY) if name in t), None)


def unknown(role: Role, key: str) -> str | None:
    """What to say of a key that the service's catalogue lacks, with the one that may be meant; None for others."""
    if parameter_of(role, key) is not None or (role is Role.BACKEND and key in backend.REMOVED_KEYS):
        return None
    other = Role.PROXY if role is Role.BACKEND else Role.BACKEND
    if key.startswith(_PREFIX[other]) and parameter_of(other, key) is not None:
        return f"is the {other}'s: the {role} does not read it"
    close = _close(role, key)
    hint = f"; did you mean {close}?" if close else ""
    if key.startswith(_PREFIX[role]) or close:
        return f"is not a known key{hint}"
    return "is not a key of the proxy, which does not read it" if role is Role.PROXY else None


def _close(role: Role, key: str) -> str | None:
    known: Iterable[str] = proxy.BY_KEY if role is Role.PROXY else [*backend.BY_KEY, *passed_on.BY_KEY]
    cutoff = _ALIKE_OURS if key.startswith(_PREFIX[role]) else _ALIKE
    close = difflib.get_close_matches(key.upper(), known, n=1, cutoff=cutoff)
    return close[0] if close else None


def _of_key(role: Role, key: str, value: str, values: Mapping[str, str]) -> Iterable[str]:
    said = unknown(role, key)
    if said is not None:
        yield f"unknown: {said.removeprefix('is ')}"
        return
    try:
        check_value(role, key, value)
    except InputError as error:
        yield f"bad value: {str(error).removeprefix(f'{key}: ')}"
        return
    declared = parameter_of(role, key)
    if declared is None:
        return
    if value.strip() == "":
        yield "ineffective: an empty value is as none"
        return
    winner = next((name for name in declared.keys if values.get(name)), key)
    if winner != key and role is Role.BACKEND:
        yield f"ineffective: {winner} wins"
        return
    yield from _without_reader(declared, values)


def _without_reader(declared: Parameter, values: Mapping[str, str]) -> Iterable[str]:
    """Whether a parameter of speculation is read by none of the types that are configured."""
    readers = [t.name for t in knob_readers(declared.key)] if declared.key in KNOBS else readers_of(declared.name)
    chain = _chain(values)
    if not readers or chain is None or set(readers) & set(chain):
        return
    if chain:
        read = "reads" if len(readers) == 1 else "read"
        yield f"ineffective: only {', '.join(readers)} {read} it, and {_CHAIN_KEY} is {','.join(chain)}"
    else:
        yield "ineffective: no speculation is configured"


def _chain(values: Mapping[str, str]) -> tuple[str, ...] | None:
    """The spec types that are configured; None where the file alone does not tell."""
    if "--spec-" in values.get("LLAMA_EXTRA_ARGS", "").replace("_", "-"):
        return None
    text = next((values[key] for key in backend.BY_KEY[_CHAIN_KEY].keys if values.get(key)), None)
    if text is None:
        draft = any(
            values.get(key) for name in ("spec-draft-model", "spec-draft-hf") for key in backend.BY_NAME[name].keys
        )
        return None if draft else ()
    try:
        return tuple(one.name for one in parse_chain(text, _CHAIN_KEY))
    except InputError:
        return None
