"""docs/spec-types.md, generated from the catalogue: `python -m specdash.core.spec_types_page > docs/spec-types.md`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.parameter_catalogue import SPECULATION
from specdash.core.speculation import KNOBS, SPEC_TYPES, MemoryKind, Rollback, SpecType, readers_of, rollback

if TYPE_CHECKING:
    from collections.abc import Iterable

_INTRODUCTION = """\
# Spec types

Every type of drafting that llama.cpp b11434 knows, generated from the catalogue by `python -m
specdash.core.spec_types_page`; do not edit. The order is the engine's fixed priority: whatever order `LLAMA_SPEC_TYPE`
has, the first type of a chain that yields a draft wins the step. `none` switches speculation off, and stands alone;
`auto` leaves the choice to specdash ([backend.md](backend.md#auto))."""

_NEEDS = """\
## What each needs

"Layers read" are layers of the target whose states the draft reads. "Longest draft" is what the type's block allows,
of a draft that was trained on blocks of N tokens: more is clamped. A type with a context of its own needs as many
sequences there as the server has slots (`--parallel`); the server sees to that, for every type. "Several slots" says
what is special where slots draft at once."""

_KNOBS_TEXT = """\
## Which knobs each reads

Each `LLAMA_DRAFT_*` key sets the parameter shown, for every type in the chain that has one; "nothing" is warned about.
"More" are flags for `LLAMA_EXTRA_ARGS`."""

_ROLLBACK = """\
## How rejected tokens are taken back

`seq_rm` cuts them from the KV cache and costs nothing. `state` takes up a kept recurrent state again and costs memory.
`checkpoint + replay` restores the state before the draft and decodes the accepted tokens again: a decode a rejection.
"Gives states" are architectures that can keep the states of several tokens."""

_LOG = """\
## Lines in the log that only some types write

By their class in the log grammar (`specdash parse-log` prints them). `adding speculative implementation`,
`statistics` and the acceptance lines are the same for every type, with the type's name."""


def page() -> str:
    """The whole page."""
    parts = [_INTRODUCTION, _overview(), _NEEDS, _needs(), _KNOBS_TEXT, _knobs(), _ROLLBACK, _rollbacks(), _LOG, _log()]
    return "\n\n".join(parts) + "\n"


def _overview() -> str:
    rows = ((f"`{one.name}`", _code(one.aliases), one.meaning, one.pays_when) for one in SPEC_TYPES)
    return _table(("type", "older names", "how it drafts", "pays when"), rows)


def _needs() -> str:
    heads = (
        "type",
        "needs",
        "draft architectures",
        "layers read",
        "longest draft",
        "own context",
        "several slots",
        "found by itself",
    )
    return _table(heads, map(_need, SPEC_TYPES))


def _need(one: SpecType) -> tuple[str, ...]:
    need = "a draft model" if one.needs_draft_model else "nothing"
    if one.needs_heads:
        need = "prediction (nextn) layers, in the model or in a draft file"
    any_draft = "any of the same vocabulary" if one.needs_draft_model else ""
    layers = "" if one.reads_layers is None else str(one.reads_layers) if one.reads_layers else "as the draft says"
    longest = str(one.fixed_draft_length) if one.fixed_draft_length is not None else ""
    if one.block_margin is not None:
        longest = f"N - {one.block_margin}" if one.block_margin else "N"
    found = "a draft with such layers" if one.needs_heads else _code(one.detected_from)
    own = "yes" if one.own_context else ""
    slots = "sampled off the device, or slots get each other's drafts" if one.mixes_slots else ""
    return (f"`{one.name}`", need, _code(one.draft_architectures) or any_draft, layers, longest, own, slots, found)


def _knobs() -> str:
    rows = []
    for one in SPEC_TYPES:
        knobs = tuple(_knob(one, key) for key in KNOBS)
        own = [p for p in SPECULATION if readers_of(p.name) == (one.name,)]
        more = [f"--{p.name}" for p in own if p.name not in (one.max_parameter, one.min_parameter)]
        rows.append((f"`{one.name}`", *knobs, "`--spec-draft-*`" if one.reads_draft_model else _code(more)))
    return _table(("type", *(f"`{key}`" for key in KNOBS), "more"), rows)


def _knob(one: SpecType, key: str) -> str:
    moved = one.knob(key)
    if moved is None:
        fixed = one.fixed_draft_length if key == KNOBS[0] else None
        return "nothing" if fixed is None else f"nothing: always {fixed}"
    declared = next(p for p in SPECULATION if p.name == moved)
    return f"`--{moved}` (default {declared.shown_default})"


def _rollbacks() -> str:
    columns = (
        ("KV cache, sliding window", MemoryKind.ATTENTION, False),
        ("recurrent or hybrid, gives states", MemoryKind.HYBRID, True),
        ("recurrent or hybrid, others", MemoryKind.HYBRID, False),
    )
    rows = (
        (f"`{one.name}`", *(_back(rollback(one, memory, gives_states=gives)) for _, memory, gives in columns))
        for one in SPEC_TYPES
    )
    return _table(("type", *(title for title, _, _ in columns)), rows)


def _back(how: Rollback) -> str:
    return str(how)


def _log() -> str:
    rows = ((f"`{one.name}`", _code(one.log_classes)) for one in SPEC_TYPES if one.log_classes)
    return _table(("type", "line classes"), rows)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *(list(row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    print(page(), end="")
