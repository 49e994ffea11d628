"""docs/settings.md, generated from the catalogues: `python -m specdash.core.settings_page > docs/settings.md`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core import parameter_catalogue as backend
from specdash.core import passed_on_parameters as passed_on
from specdash.core.changes import Role
from specdash.core.key_help import PASSED_ON_GROUP, KeyHelp, all_keys
from specdash.core.speculation import KNOBS, SPEC_TYPES, SpecType, readers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from specdash.core.parameters import Parameter

_INTRODUCTION = """\
# Settings

Every key of the two services, generated from the catalogues by `python -m specdash.core.settings_page`; do not edit.
`specdash env show` prints what is set, `specdash apply KEY=VALUE` changes it safely, `specdash backend show` says which
key each value came from. No default means that the engine decides, or that nothing is set."""

_BACKEND = """\
## The backend's keys

In the backend's env file. A change needs a restart of the server, for every key: llama.cpp reads none while it runs.
For every parameter a flag in `LLAMA_EXTRA_ARGS` wins over the key, and the key over llama.cpp's own `LLAMA_ARG_*`
("also" names it). Flags are those of today's builds; for an older one specdash asks `llama-server --help` and takes
the names it knows."""

_KNOBS = """\
### Spec types and their knobs

`LLAMA_SPEC_TYPE` is one chain, as `ngram-mod,draft-simple`, passed as one `--spec-type`. The table is in the engine's
fixed priority: whatever order the chain has, the first type that yields a draft wins the step. Each knob sets the
parameter that the types in the chain read; where one reads none, a warning says so. **`ngram-cache` has no knob: its
draft length is always 8 tokens.** `ngram-simple` discards drafts shorter than the n-gram it looks up, so a shorter
`LLAMA_DRAFT_MAX` lowers `--spec-ngram-simple-size-n` too. Nothing here can be set per request: llama.cpp ignores such
fields."""

_FLAGS = """\
### Flags without a key

Parameters that have a name on the command line alone. Put them into `LLAMA_EXTRA_ARGS`."""

_PROXY = """\
## The proxy's keys

In the proxy's env file. Keys marked "restart" are read when the proxy starts; every other one is read again on SIGHUP,
and requests that run keep the values they began with. What the guardrails do: [proxy.md](proxy.md)."""


_LEADS = {
    PASSED_ON_GROUP: (
        "Variables of llama-server's own, handed to it unread. xllamacpp does not read them; a warning names them.",
    )
}
"""What stands between a heading and its table."""
_BACKEND_HEAD = ("key", "also", "value", "default", "flag", "read by", "meaning")
_PROXY_HEAD = ("key", "value", "default", "restart", "meaning")
_OWN_ROWS = (*KNOBS, *passed_on.BY_KEY)
"""Keys whose notes are said once, above or in a table of their own."""


def page() -> str:
    """The whole page."""
    parts = [_INTRODUCTION, _BACKEND]
    parts += _sections(all_keys(Role.BACKEND), _BACKEND_HEAD, _backend)
    parts += [_KNOBS, _knob_table(), _FLAGS, _flag_table(), _PROXY]
    parts += _sections(all_keys(Role.PROXY), _PROXY_HEAD, _proxy)
    return "\n\n".join(parts) + "\n"


def _sections(keys: tuple[KeyHelp, ...], head: Iterable[str], row: Callable[[KeyHelp], Iterable[str]]) -> list[str]:
    parts = []
    for group in dict.fromkeys(one.group for one in keys):
        parts += [
            f"### {group}",
            *_LEADS.get(group, ()),
            _table(head, (row(one) for one in keys if one.group == group)),
        ]
    return parts


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _backend(one: KeyHelp) -> tuple[str, ...]:
    declared = backend.BY_KEY.get(one.key)
    also = _code(declared.keys[1:]) if declared is not None else ""
    flags = _code(one.flags) if one.key not in KNOBS else "see Spec types"
    meaning = "; ".join((one.meaning, *(() if one.key in _OWN_ROWS else one.notes)))
    return (f"`{one.key}`", also, one.values, _default(one.default), flags, _readers(one.readers), meaning)


def _proxy(one: KeyHelp) -> tuple[str, ...]:
    secret = "; secret" if one.secret else ""
    restart = "restart" if one.restart else ""
    return (f"`{one.key}`", one.values, _default(one.default), restart, f"{one.meaning}{secret}")


def _knob_table() -> str:
    titles = ("type", "older names", "needs", *(f"`{key}` sets" for key in KNOBS), "meaning")
    rows = []
    for one in SPEC_TYPES:
        knobs = (_knob(one, key) for key in KNOBS)
        rows.append((f"`{one.name}`", _code(one.aliases), _needs(one), *knobs, one.meaning))
    return _table(titles, rows)


def _knob(one: SpecType, key: str) -> str:
    moved = one.knob(key)
    if moved is not None:
        return f"`--{moved}`"
    fixed = key == "LLAMA_DRAFT_MAX" and one.fixed_draft_length is not None
    return f"nothing: always {one.fixed_draft_length}" if fixed else "nothing"


def _needs(one: SpecType) -> str:
    if one.needs_heads:
        return "prediction (nextn) layers"
    return "a draft model" if one.needs_draft_model else ""


def _flag_table() -> str:
    keyless = [one for one in backend.ENGINE if not one.keys]
    return _table(("flag", "also", "value", "default", "read by", "meaning"), (_flag(one) for one in keyless))


def _flag(one: Parameter) -> tuple[str, ...]:
    names = (*one.flags[1:], *one.off_flags)
    readers = _readers(readers_of(one.name))
    only = "; llama-server only" if one.attribute is None else ""
    former = f"; older builds: {', '.join(one.former_flags)}" if one.former_flags else ""
    default = _default(one.shown_default)
    return (f"`{one.flags[0]}`", _code(names), one.allowed, default, readers, f"{one.meaning}{only}{former}")


def _default(text: str | None) -> str:
    return "" if text is None else f"`{text}`"


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _readers(names: tuple[str, ...]) -> str:
    drafted = tuple(one.name for one in SPEC_TYPES if one.reads_draft_model)
    if len(names) == len(SPEC_TYPES):
        return "every type"
    if set(drafted) <= set(names):
        return ", ".join(("every `draft-*`", *(f"`{name}`" for name in names if name not in drafted)))
    return _code(names)


if __name__ == "__main__":
    print(page(), end="")
