"""Knobs that nobody reads, block limits, chains, and how a model takes rejected tokens back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.backend.settings import DEFAULT
from specdash.core.parameter_catalogue import BY_NAME
from specdash.core.speculation import KNOBS, SpecType, readers_of
from specdash.llama.memory import snapshots_of
from specdash.llama.model_shape import shape_of

if TYPE_CHECKING:
    from specdash.control.preflight.context import Findings
    from specdash.control.preflight.subject import Subject


def check(subject: Subject, out: Findings) -> None:
    """Add what is to be said of the spec types and their knobs."""
    types = subject.spec_types
    if subject.readable("llama_spec_type"):
        _deaf_knobs(subject, types, out)
        _foreign_parameters(subject, types, out)
    _blocks(subject, types, out)
    _confidence(subject, types, out)
    _checkpoints(subject, types, out)
    _shared_cache(subject, types, out)


def _deaf_knobs(subject: Subject, types: list[SpecType], out: Findings) -> None:
    for key in KNOBS:
        text = subject.values.get(key, "")
        if not text or key in subject.dropped:
            continue
        if not types:
            fix = f"set {subject.spec_change('TYPE')}, or remove {key}"
            out.warning("no-effect", f"{key}={text} has no effect: no speculation is configured", key=key, fix=fix)
            continue
        for one in types:
            if one.knob(key) is None:
                said, fix = _deaf(key, text, one)
                out.warning("no-effect", said, key=key, fix=fix)


def _deaf(key: str, text: str, one: SpecType) -> tuple[str, str]:
    if one.fixed_draft_length is not None:
        length = f", its draft length is {one.fixed_draft_length}" if key == KNOBS[0] else ""
        return f"{key}={text} has no effect on {one.name}: it has no knob{length}", "ngram-mod has knobs"
    knobs = [name for name in KNOBS if one.knob(name) is not None]
    works = f"of the knobs, {', '.join(knobs)} works" if len(knobs) == 1 else f"{' and '.join(knobs)} work"
    return f"{key}={text} has no effect on {one.name}: there is no such knob", works


def _foreign_parameters(subject: Subject, types: list[SpecType], out: Findings) -> None:
    """Parameters set for a type that is not in the chain."""
    names = {one.name for one in types}
    for name, assigned in subject.settings.parameters.items():
        if assigned.source.startswith(DEFAULT) or assigned.source in KNOBS:
            continue
        readers = readers_of(name)
        if not readers or name in ("spec-draft-model", "spec-draft-hf") or name.startswith("spec-synth-"):
            continue
        if not names.intersection(readers):
            reader = readers[0] if len(readers) == 1 else "a draft model"
            chain = ",".join(subject.settings.spec_types) or "none"
            said = f"{assigned.source} sets --{name}, which only {reader} reads; the chain is {chain}"
            out.warning("no-effect", said, key=assigned.source, fix=_instead(name, types))


def _instead(name: str, types: list[SpecType]) -> str:
    for ending, knob in (("-max", KNOBS[0]), ("-size-m", KNOBS[0]), ("-min", KNOBS[1]), ("p-min", KNOBS[2])):
        if name.endswith(ending) and any(one.knob(knob) for one in types):
            return f"{knob} sets it for the types in force"
    return "remove it, or add the type"


def _blocks(subject: Subject, types: list[SpecType], out: Findings) -> None:
    size = subject.draft.number("block_size") if subject.draft is not None else None
    longest = subject.number("spec-draft-n-max")
    for one in types:
        effective = one.longest_draft(size)
        if effective is not None and longest > effective:
            said = f"{subject.named('spec-draft-n-max')}: the draft was trained on blocks of {size}, {effective} counts"
            key = subject.source("spec-draft-n-max")
            out.warning("block-size", said, key=key, fix=f"use {effective} or less")


def _confidence(subject: Subject, types: list[SpecType], out: Findings) -> None:
    """DSpark holds the threshold against its confidence head, other types against the draft's own probabilities."""
    draft, threshold = subject.draft, "spec-draft-p-min"
    if draft is None or draft.draft_architecture != "dspark" or "draft-dspark" not in (one.name for one in types):
        return
    least = float(subject.settings.value(threshold) or 0)
    if least > 0 and not any(one.name.startswith("conf_proj") for one in draft.tensors):
        said = f"{subject.named(threshold)}: {draft.path} has no confidence head, and the server would draft nothing"
        key = subject.source(threshold)
        out.error(
            "confidence-head", said, key=key, fix=f"set {subject.change(threshold, 0)}, or use a draft with that head"
        )


def _checkpoints(subject: Subject, types: list[SpecType], out: Findings) -> None:
    if subject.model is None or not types:
        return
    shape = shape_of(subject.model)
    if shape is None or not shape.recurrent:
        return
    longest = int(subject.settings.value("spec-draft-n-max") or BY_NAME["spec-draft-n-max"].default or 0)
    if snapshots_of(subject.model.architecture, subject.settings.spec_types, longest):
        return
    said = (
        f"{subject.model.architecture} has recurrent layers: after a rejected draft token llama.cpp restores a "
        "checkpoint and replays, so long drafts cost more than on other models"
    )
    out.info("checkpoints", said, key=subject.spec_key, fix="short drafts and a high LLAMA_DRAFT_P_MIN lose less")


def _shared_cache(subject: Subject, types: list[SpecType], out: Findings) -> None:
    """llama.cpp #24840: a batch that is split for want of room loses the drafts' places in it."""
    slots = subject.slots
    if not types or not slots.unified or slots.sequences < 2:
        return
    limit = int(subject.settings.value("kv-unified-per-slot") or 0)
    if limit and limit * slots.sequences <= subject.cells:
        return
    said = (
        f"{slots.sequences} slots share one cache of {subject.cells} tokens: where it is nearly full, a draft can fail "
        "its request with HTTP 500 (speculative batch index)"
    )
    fix = "give each slot its own (LLAMA_ARG_KV_UNIFIED=0 and a number in LLAMA_PARALLEL), or raise LLAMA_CTX_SIZE"
    out.warning("shared-cache", said, key=subject.source("parallel"), fix=fix)
