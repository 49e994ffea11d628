"""docs/spec-types.md, from the catalogue of spec types."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from pages.markdown import code
from specdash.core.parameter_catalogue import SPECULATION
from specdash.core.speculation import KNOBS, SPEC_TYPES, MemoryKind, SpecType, readers_of, rollback
from specdash.system.text import markdown_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_INTRODUCTION = """\
# Spec types

Every type of drafting that llama.cpp b11434 knows, generated from the catalogue by `python tools/make_docs.py`; do
not edit. The order is the engine's fixed priority in a [chain](speculation.md#chains). `none` switches speculation
off, and stands alone; `auto` leaves the choice to specdash ([auto](backend.md#auto)). How each type drafts, and
when it pays: [speculation](speculation.md); older names: [settings](settings.md#spec-types-and-their-knobs)."""

_NEEDS = """\
## What each needs

"Layers read" are layers of the target whose states the draft reads. "Longest draft" is what the type's block allows,
of a draft that was trained on blocks of N tokens: more is clamped. A type with its own context needs as many
sequences there as the server has slots, which the server ensures."""

_KNOBS_TEXT = """\
## Which knobs each reads

Each `LLAMA_DRAFT_*` key sets the parameter shown, for every type in the chain that has one; "nothing" is warned
about. "More" are flags for `LLAMA_EXTRA_ARGS`."""

_ROLLBACK = """\
## How rejected tokens are taken back

What each way means and costs: [views](views.md#checkpoints). "Gives states" are architectures that can keep the
states of several tokens."""

_LOG = """\
## Lines in the log that only some types write

By their [class](parse-log.md#warning-classes). `adding speculative implementation`, `statistics` and the acceptance
lines are the same for every type, with the type's name."""


def page() -> str:
    """The whole page."""
    parts = [_INTRODUCTION, _NEEDS, _needs(), _KNOBS_TEXT, _knobs(), _ROLLBACK, _rollbacks(), _LOG, _log()]
    return "\n\n".join(parts) + "\n"


def _joined(rows: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """One row for neighbours that differ in their type alone."""
    for rest, same in groupby(rows, key=lambda row: row[1:]):
        yield (", ".join(row[0] for row in same), *rest)


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
    return markdown_table([heads, *_joined(map(_need, SPEC_TYPES))])


def _need(spec_type: SpecType) -> tuple[str, ...]:
    need = "a draft model" if spec_type.needs_draft_model else "nothing"
    if spec_type.needs_heads:
        need = "prediction (nextn) layers, in the model or in a draft file"
    any_draft = "any of the same vocabulary" if spec_type.needs_draft_model else ""
    layers = (
        ""
        if spec_type.reads_layers is None
        else str(spec_type.reads_layers)
        if spec_type.reads_layers
        else "as the draft says"
    )
    longest = str(spec_type.fixed_draft_length) if spec_type.fixed_draft_length is not None else ""
    if spec_type.block_margin is not None:
        longest = f"N - {spec_type.block_margin}" if spec_type.block_margin else "N"
    found = "a draft with such layers" if spec_type.needs_heads else code(spec_type.detected_from)
    own = "yes" if spec_type.reads_draft_model else ""
    slots = "sampled off the device, or slots get each other's drafts" if spec_type.mixes_slots else ""
    return (
        f"`{spec_type.name}`",
        need,
        code(spec_type.draft_architectures) or any_draft,
        layers,
        longest,
        own,
        slots,
        found,
    )


def _knobs() -> str:
    rows = []
    for spec_kind in SPEC_TYPES:
        knobs = tuple(_knob(spec_kind, key) for key in KNOBS)
        own = [p for p in SPECULATION if readers_of(p.name) == (spec_kind.name,)]
        more = [f"--{p.name}" for p in own if p.name not in (spec_kind.max_parameter, spec_kind.min_parameter)]
        rows.append((f"`{spec_kind.name}`", *knobs, "`--spec-draft-*`" if spec_kind.reads_draft_model else code(more)))
    return markdown_table([("type", *(f"`{key}`" for key in KNOBS), "more"), *_joined(rows)])


def _knob(spec_type: SpecType, key: str) -> str:
    moved = spec_type.knob(key)
    if moved is None:
        fixed = spec_type.fixed_draft_length if key == KNOBS[0] else None
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
        (f"`{spec_kind.name}`", *(str(rollback(spec_kind, memory, gives_states=gives)) for _, memory, gives in columns))
        for spec_kind in SPEC_TYPES
    )
    return markdown_table([("type", *(title for title, _, _ in columns)), *_joined(rows)])


def _log() -> str:
    rows = ((f"`{spec_kind.name}`", code(spec_kind.log_classes)) for spec_kind in SPEC_TYPES if spec_kind.log_classes)
    return markdown_table([("type", "line classes"), *rows])
