"""docs/settings.md, from the catalogues of parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pages.markdown import code
from specdash.core import parameter_catalogue as backend
from specdash.core import parameter_catalogue as passed_on
from specdash.core.changes import Role
from specdash.core.env_edit import PASSED_ON_GROUP, KeyHelp, all_keys
from specdash.core.speculation import KNOBS, SPEC_TYPES, SpecType, readers_of
from specdash.system.text import markdown_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdash.core.parameters import Parameter

_INTRODUCTION = """\
# Settings

Every key of the two services, generated from the catalogues by `python tools/make_docs.py`; do not edit.
`specdash env show` prints what is set, `specdash apply KEY=VALUE` changes it safely, `specdash backend show` names
the key each value came from. No default means that the engine decides, or that nothing is set."""

_BACKEND = """\
## The backend's keys

In the backend's env file. Every change needs a restart of the server. A flag in `LLAMA_EXTRA_ARGS` wins over the
key, and the key over llama.cpp's own `LLAMA_ARG_*` ("also" names it)."""

_KNOBS = """\
### Spec types and their knobs

`LLAMA_SPEC_TYPE` is one [chain](speculation.md#chains), as `ngram-mod,draft-simple`. Each knob sets the parameter
that the types in the chain read; where none reads it, there is a warning. **`ngram-cache` has no knob: its draft
length is always 8 tokens.** `ngram-simple` discards drafts shorter than the n-gram it looks up, so a shorter
`LLAMA_DRAFT_MAX` lowers `--spec-ngram-simple-size-n` too. Nothing here can be set per request: llama.cpp ignores
such fields."""

_FLAGS = """\
### Flags without a key

Parameters that have a name on the command line alone. Put them into `LLAMA_EXTRA_ARGS`."""

_PROXY = """\
## The proxy's keys

In the proxy's env file. Keys marked "restart" are read when the proxy starts, all others again on SIGHUP; running
requests keep the values they began with. What the guardrails do: [proxy](proxy.md)."""


_LEADS = {
    PASSED_ON_GROUP: (
        "Variables of llama-server's own, handed to it unread. xllamacpp does not read them; a warning names them.",
    )
}
"""What stands between a heading and its table."""
_BACKEND_HEAD = ("key", "also", "value", "default", "flag", "read by", "meaning")
_PROXY_HEAD = ("key", "value", "default", "restart", "meaning")
_OWN_ROWS = (*KNOBS, *passed_on.PASSED_ON)
"""Keys whose notes are said once, above or in a table of their own."""


def page() -> str:
    """The whole page."""
    parts = [_INTRODUCTION, _BACKEND]
    parts += _sections(all_keys(Role.BACKEND), _BACKEND_HEAD, _backend)
    parts += [_KNOBS, _knobtable(), _FLAGS, _flagtable(), _PROXY]
    parts += _sections(all_keys(Role.PROXY), _PROXY_HEAD, _proxy)
    return "\n\n".join(parts) + "\n"


def _sections(keys: tuple[KeyHelp, ...], head: tuple[str, ...], row: Callable[[KeyHelp], tuple[str, ...]]) -> list[str]:
    parts = []
    for group in dict.fromkeys(key.group for key in keys):
        parts += [
            f"### {group}",
            *_LEADS.get(group, ()),
            markdown_table([head, *(row(key) for key in keys if key.group == group)]),
        ]
    return parts


def _backend(key_help: KeyHelp) -> tuple[str, ...]:
    declared = backend.BY_KEY.get(key_help.key)
    also = code(declared.keys[1:]) if declared is not None else ""
    flags = code(key_help.flags) if key_help.key not in KNOBS else "see Spec types"
    meaning = "; ".join((key_help.meaning, *(() if key_help.key in _OWN_ROWS else key_help.notes)))
    return (
        f"`{key_help.key}`",
        also,
        key_help.values,
        _default(key_help.default),
        flags,
        _readers(key_help.readers),
        meaning,
    )


def _proxy(key_help: KeyHelp) -> tuple[str, ...]:
    secret = "; secret" if key_help.secret else ""
    restart = "restart" if key_help.restart else ""
    return (f"`{key_help.key}`", key_help.values, _default(key_help.default), restart, f"{key_help.meaning}{secret}")


def _knobtable() -> str:
    titles = ("type", "older names", "needs", *(f"`{key}` sets" for key in KNOBS), "meaning")
    rows = []
    for spec_kind in SPEC_TYPES:
        knobs = (_knob(spec_kind, key) for key in KNOBS)
        rows.append((f"`{spec_kind.name}`", code(spec_kind.aliases), _needs(spec_kind), *knobs, spec_kind.meaning))
    return markdown_table([titles, *rows])


def _knob(spec_type: SpecType, key: str) -> str:
    moved = spec_type.knob(key)
    if moved is not None:
        return f"`--{moved}`"
    fixed = key == "LLAMA_DRAFT_MAX" and spec_type.fixed_draft_length is not None
    return f"nothing: always {spec_type.fixed_draft_length}" if fixed else "nothing"


def _needs(spec_type: SpecType) -> str:
    if spec_type.needs_heads:
        return "prediction (nextn) layers"
    return "a draft model" if spec_type.needs_draft_model else ""


def _flagtable() -> str:
    keyless = [parameter for parameter in backend.ENGINE if not parameter.keys]
    return markdown_table(
        [("flag", "also", "value", "default", "read by", "meaning"), *(_flag(parameter) for parameter in keyless)]
    )


def _flag(parameter: Parameter) -> tuple[str, ...]:
    names = (*parameter.flags[1:], *parameter.off_flags)
    readers = _readers(readers_of(parameter.name))
    only = "; llama-server only" if parameter.attribute is None else ""
    default = _default(parameter.shown_default)
    return (
        f"`{parameter.flags[0]}`",
        code(names),
        parameter.allowed,
        default,
        readers,
        f"{parameter.meaning}{only}",
    )


def _default(text: str | None) -> str:
    return "" if text is None else f"`{text}`"


def _readers(names: tuple[str, ...]) -> str:
    drafted = tuple(spec_kind.name for spec_kind in SPEC_TYPES if spec_kind.reads_draft_model)
    if len(names) == len(SPEC_TYPES):
        return "every type"
    if set(drafted) <= set(names):
        return ", ".join(("every `draft-*`", *(f"`{name}`" for name in names if name not in drafted)))
    return code(names)
