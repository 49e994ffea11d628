"""What `auto` becomes with these settings, on this machine: said, with its arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from specdash.backend import auto_context
from specdash.backend.auto import slowed_down
from specdash.control.preflight.context import parted
from specdash.control.preflight.memory import available_bytes, free_on, used_gpus
from specdash.control.preflight.processes import Own
from specdash.core.errors import InputError

if TYPE_CHECKING:
    from specdash.control.preflight.context import Findings
    from specdash.control.preflight.subject import Subject


def check(subject: Subject, out: Findings) -> Subject:
    """Add what was decided, and what slows down what the operator decided; the subject with a context in numbers."""
    if auto_context.wanted(subject.settings):
        subject = _context(subject, out)
    keys = {"spec-type": subject.spec_key, "ctx-size": subject.source("ctx-size")}
    for one in subject.settings.decisions:
        steps = f" ({'; '.join(one.steps)})" if one.steps else ""
        key = keys.get(one.name)
        out.info("auto", f"{key}=auto is {one.value} here: {one.because}{steps}", key=key)
    slowed = slowed_down(subject.settings, subject.model)
    if slowed is not None:
        out.warning("small-mtp", slowed, key=subject.spec_key, fix="use ngram-mod, or a draft model")
    return subject


def _context(subject: Subject, out: Findings) -> Subject:
    room = _room(subject)
    if room is None or subject.model is None:
        # Nothing can be said of the memory, or the model's file has a finding of its own.
        return replace(subject, settings=auto_context.without(subject.settings))
    try:
        return replace(subject, settings=auto_context.fitted(subject.settings, subject.model, subject.draft, room))
    except InputError as error:
        said, fix = parted(str(error))
        out.error("context", said, key=subject.source("ctx-size"), fix=fix)
        return replace(subject, settings=auto_context.without(subject.settings))


def _room(subject: Subject) -> auto_context.Room | None:
    gpus = used_gpus(subject)
    if gpus:
        free, _ = free_on(gpus, Own(subject.context))
        words = " and ".join(f"GPU {one.index} ({one.name or 'unnamed'})" for one in gpus)
        return None if free is None else auto_context.Room(free, len(gpus), words)
    return auto_context.Room(available_bytes(subject), 0, "main memory")
