"""What an operator wants to know of one env key, gathered from the catalogues: for editors and docs/settings.md."""

from __future__ import annotations

from dataclasses import dataclass

from specdash.core import parameter_catalogue as backend
from specdash.core import passed_on_parameters as passed_on
from specdash.core import proxy_parameters as proxy
from specdash.core.changes import Role
from specdash.core.parameters import Kind, Parameter
from specdash.core.speculation import KNOBS, SPEC_TYPES, knob_readers, readers_of

PASSED_ON_GROUP = "Passed on to llama-server"


@dataclass(frozen=True, slots=True)
class KeyHelp:
    """One env key. `default` None: the engine decides, or nothing is set. Texts are single lines."""

    key: str
    role: Role
    meaning: str
    values: str
    """What it may be, in words: kind, range and unit, or the choices."""
    unit: str
    default: str | None
    secret: bool
    flags: tuple[str, ...]
    """The engine's flags that the key becomes; none for what specdash itself or the proxy reads."""
    readers: tuple[str, ...]
    """The spec types that read it; none for what is not about speculation."""
    restart: bool
    """Whether a change takes effect only when the service is started again."""
    notes: tuple[str, ...]
    group: str = ""
    """Heading under which an editor lists it."""


def key_help(key: str) -> KeyHelp | None:
    """The help for a key of either service, by any name that sets it; None for one that nobody declares."""
    if key in proxy.BY_KEY:
        return _proxy_help(proxy.BY_KEY[key])
    if key in backend.BY_KEY:
        return _backend_help(backend.BY_KEY[key], key)
    return _passed_on_help(passed_on.BY_KEY[key]) if key in passed_on.BY_KEY else None


def all_keys(role: Role) -> tuple[KeyHelp, ...]:
    """Every key of a service in the order of the catalogue, each parameter once, by the name that wins."""
    if role is Role.PROXY:
        return tuple(_proxy_help(one) for one in proxy.PARAMETERS)
    mapped = tuple(_backend_help(one, one.key) for one in backend.PARAMETERS if one.keys)
    return (*mapped, *(_passed_on_help(one) for one in passed_on.PASSED_ON))


def _help(
    one: Parameter,
    role: Role,
    group: str,
    *,
    key: str | None = None,
    flags: tuple[str, ...] = (),
    readers: tuple[str, ...] = (),
    restart: bool = True,
    notes: tuple[str, ...] = (),
) -> KeyHelp:
    default = one.shown_default
    if one.kind is Kind.SWITCH and default is not None:
        default = "on" if one.default else "off"
    return KeyHelp(
        key=key or one.key,
        role=role,
        meaning=one.meaning,
        values=one.allowed,
        unit=one.unit,
        default=default,
        secret=one.secret,
        flags=flags,
        readers=readers,
        restart=restart,
        notes=notes,
        group=group,
    )


def _proxy_help(one: Parameter) -> KeyHelp:
    group = next(title for title, members in proxy.GROUPS if one in members)
    return _help(one, Role.PROXY, group, restart=one.key in proxy.NEEDS_RESTART)


def _backend_help(one: Parameter, key: str) -> KeyHelp:
    group = next(title for title, members in backend.GROUPS if one in members)
    if one.key in KNOBS:
        types = knob_readers(one.key)
        flags = tuple(dict.fromkeys(f"--{knob}" for t in types if (knob := t.knob(one.key)) is not None))
        readers = tuple(t.name for t in types)
    else:
        flags, readers = _engine_flags(one), readers_of(one.name)
    notes = (*_notes(one), *_native_note(one, key))
    return _help(one, Role.BACKEND, group, key=key, flags=flags, readers=readers, notes=notes)


def _passed_on_help(one: Parameter) -> KeyHelp:
    notes = ("handed to llama-server unread; xllamacpp does not read it",)
    return _help(one, Role.BACKEND, PASSED_ON_GROUP, flags=one.flags, notes=notes)


def _engine_flags(one: Parameter) -> tuple[str, ...]:
    if one.key == "LLAMA_SPEC_TYPE":
        return one.flags
    if one.ours or one.environment is not None:
        return ()
    return (one.flags[0], *one.off_flags[:1])


def _native_note(one: Parameter, key: str) -> tuple[str, ...]:
    return (f"{one.key} sets the same, and wins",) if key != one.key else ()


def _notes(one: Parameter) -> tuple[str, ...]:
    notes: list[str] = []
    if one.key in KNOBS:
        notes += knob_notes(one.key)
    if one.former_flags:
        notes.append(f"older builds: {', '.join(one.former_flags)}; the right name is chosen by itself")
    if one.environment is not None:
        notes.append(f"secret: reaches the server as the variable {one.environment}, never on its command line")
    if one.attribute is None and not one.ours:
        notes.append("llama-server only: xllamacpp has no such parameter")
    if one.always:
        notes.append("always passed: the default differs between builds")
    return tuple(notes)


def knob_notes(key: str) -> tuple[str, ...]:
    """What to know of a knob that means another parameter for each spec type: who reads it, and who does not."""
    deaf = [t for t in SPEC_TYPES if t.knob(key) is None]
    notes = [f"{t.name}: sets --{t.knob(key)}" for t in knob_readers(key)]
    for one in deaf:
        fixed = one.fixed_draft_length if key == "LLAMA_DRAFT_MAX" else None
        why = f"has no knob, its draft length is fixed at {fixed} tokens" if fixed is not None else "does not read it"
        notes.append(f"{one.name}: {why}")
    return tuple(notes)
