"""What is to be said of a model itself, and of its draft beside it, found out once for every state of their files.

A large vocabulary takes a tenth of a second to read, and a check runs at every keystroke in the dashboard.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.backend import auto
from specdash.backend.auto import slowed_down
from specdash.control.preflight.machine import OwnProcesses
from specdash.control.preflight.memory import available_bytes, free_on, used_gpus
from specdash.core.errors import InputError, Severity
from specdash.core.speculation import spec_type
from specdash.llama.gguf import GgufError, GgufFacts, Kept, cached_facts, file_state
from specdash.llama.model_facts import ModelFacts, Tuning, describe, draft_misfits, misfit, refusal_of
from specdash.system.text import size

if TYPE_CHECKING:
    from specdash.control.preflight.context import Findings
    from specdash.control.preflight.settings import BackendSubject
    from specdash.llama.gguf import GgufFacts


# Files the settings name: there, readable, and what they must be.

_PLAIN = ("chat-template-file", "api-key-file", "ssl-cert-file", "ssl-key-file", "lookup-cache-static")
_NATIVE = ("LLAMA_ARG_MODELS_PRESET", "LLAMA_ARG_UI_CONFIG_FILE")


def check_files(subject: BackendSubject, out: Findings) -> BackendSubject:
    """Add what is to be said of the files; the subject with the facts of its models."""
    settings = subject.settings
    for name in _PLAIN:
        path = settings.text(name)
        if path is not None:
            _plain(subject.source(name), path, out)
    certificate, key_file = (settings.text(name) for name in ("ssl-cert-file", "ssl-key-file"))
    if bool(certificate) is not bool(key_file):
        given = "ssl-cert-file" if certificate else "ssl-key-file"
        said = f"{subject.named(given)}: TLS needs the certificate and its key, and the server answers without TLS"
        out.error("tls", said, key=subject.source(given), fix="name both, or neither")
    for key in _NATIVE:
        if settings.native.get(key):
            _plain(key, settings.native[key], out)
    folder = settings.text("slot-save-path")
    if folder is not None and ("\0" in folder or not os.access(_path(folder), os.W_OK | os.X_OK)):
        said = f"{subject.named('slot-save-path')}: is no directory that can be written"
        out.error("file", said, key=subject.source("slot-save-path"), fix="create it, or name another")
    _gguf(subject, "mmproj", out)
    return replace(subject, model=_gguf(subject, "model", out), draft=_gguf(subject, "spec-draft-model", out))


def _path(text: str) -> str:
    return os.path.expanduser(text)  # noqa: PTH111 - the path stays as the user spelled it


def _plain(key: str, path: str, out: Findings) -> None:
    reason = None
    try:
        file = Path(_path(path))
        if file.is_dir():
            reason = "is a directory"
        else:
            with file.open("rb") as opened:
                reason = None if opened.read(1) else "is empty"
    except FileNotFoundError:
        reason = "no such file"
    except (OSError, ValueError) as error:
        reason = f"cannot be read ({getattr(error, 'strerror', None) or error})"
    if reason is not None:
        out.error("file", f"{key}={path}: {reason}", key=key, fix=f"correct the path, or unset {key}")


def _gguf(subject: BackendSubject, name: str, out: Findings) -> GgufFacts | None:
    path = subject.settings.text(name)
    key = subject.source(name)
    if path is None or key in subject.dropped:
        return None
    try:
        facts = cached_facts(_path(path))
    except GgufError as error:
        fix = error.problem.fix or f"correct the path in {key}"
        out.error("file", f"{key}: {error.path}: {error.problem.what}", key=key, fix=fix)
        return None
    refused = refusal_of(facts, name)
    if refused is None:
        return facts
    out.error("file-kind", f"{key}={path}: {refused.what}", key=key, fix=refused.fix)
    return None


_MISFITS: Kept[str | None] = Kept()
_DESCRIBED: Kept[ModelFacts] = Kept()


def check_models(subject: BackendSubject, out: Findings) -> None:
    """Add what is to be said of the model itself."""
    if subject.model is None:
        return
    found = cached_description(subject.model)
    key, named = subject.source("model"), subject.named("model")
    for remark in found.remarks:
        out.warning("model", f"{named}: {remark}", key=key)
    if found.tuning is Tuning.BASE and _chats(subject):
        said = (
            f"{named}: a base model ({found.tuning_reasons[0]}) goes on with a text and does not answer: chats run on"
        )
        out.warning("base-model", said, key=key, fix="use the instruct model of its family")


def _chats(subject: BackendSubject) -> bool:
    """Whether chats are what the server is for: a proxy is beside it, or somebody chose a chat template."""
    templates = ("chat-template", "chat-template-file")
    return subject.context.other is not None or any(subject.settings.text(name) is not None for name in templates)


def cached_description(facts: GgufFacts) -> ModelFacts:
    """`llama.model_facts.describe` of one model, made once."""
    state = file_state(facts.path)
    return describe(facts) if state is None else _DESCRIBED.get(state, lambda: describe(facts))


def cached_misfit(target: GgufFacts, draft: GgufFacts) -> str | None:
    """`llama.draft_fit.misfit`, compared once. Raises `OSError` when a file went away."""
    states = file_state(target.path), file_state(draft.path)
    return _MISFITS.get(states, lambda: misfit(target, draft))


# Whether the draft model, or the model's own heads, can draft for the model: the rules are `llama.draft_fit`'s.


_DRAFT = "spec-draft-model"


def check_draft(subject: BackendSubject, out: Findings) -> None:
    """Add what is to be said of the draft model."""
    settings = subject.settings
    key, named = subject.source(_DRAFT), subject.named(_DRAFT)
    unseen = settings.text("spec-draft-hf") is not None or (settings.draft_model is not None and subject.draft is None)
    for item in filter(None, map(spec_type, settings.spec_types)):
        if item.needs_heads and unseen:
            continue
        for found in draft_misfits(
            item,
            subject.model,
            subject.draft,
            set_types=settings.spec_change,
            draft_key=subject.place(_DRAFT),
            compare=cached_misfit,
        ):
            say = {Severity.ERROR: out.error, Severity.WARNING: out.warning}.get(found.severity, out.info)
            about = found.said if found.rule == "nextn-layers" else f"{named}: {found.said}"
            say(found.rule, about, key=key if found.of_draft else subject.spec_key, fix=found.fix)
    _size(subject, out)


def _size(subject: BackendSubject, out: Findings) -> None:
    """A draft that takes longer to read than its target makes nothing faster; most often the two were swapped."""
    if subject.model is None or subject.draft is None:
        return
    large, small = (sum(tensor.size for tensor in facts.tensors) for facts in (subject.draft, subject.model))
    if large > small:
        said = (
            f"{subject.named(_DRAFT)}: the draft has {size(large, exact=True)} of weights, "
            f"its target {size(small, exact=True)}: drafting takes longer than decoding"
        )
        fix = f"name a smaller draft; if the two were swapped, exchange {subject.place(_DRAFT)} and "
        out.warning("draft-size", said, key=subject.source(_DRAFT), fix=f"{fix}{subject.place('model')}")


# What `auto` becomes with these settings, on this machine: said, with its arithmetic.


def check_decisions(subject: BackendSubject, out: Findings) -> BackendSubject:
    """Add what was decided, and what slows down what the operator decided; the subject with a context in numbers."""
    if auto.wanted(subject.settings):
        subject = _context(subject, out)
    keys = {"spec-type": subject.spec_key, "ctx-size": subject.source("ctx-size")}
    for decision in subject.settings.decisions:
        steps = f" ({'; '.join(decision.steps)})" if decision.steps else ""
        key = keys.get(decision.name)
        out.info("auto", f"{key}=auto is {decision.value} here: {decision.because}{steps}", key=key)
    slowed = slowed_down(subject.settings, subject.model)
    if slowed is not None:
        out.warning("small-mtp", slowed, key=subject.spec_key, fix="use ngram-mod, or a draft model")
    return subject


def _context(subject: BackendSubject, out: Findings) -> BackendSubject:
    room = _room(subject)
    if room is None or subject.model is None:
        # Nothing can be said of the memory, or the model's file has a finding of its own.
        return replace(subject, settings=auto.without(subject.settings))
    try:
        return replace(subject, settings=auto.fitted(subject.settings, subject.model, subject.draft, room))
    except InputError as error:
        out.error("context", error.problem.what, key=subject.source("ctx-size"), fix=error.problem.fix)
        return replace(subject, settings=auto.without(subject.settings))


def _room(subject: BackendSubject) -> auto.MemoryRoom | None:
    gpus = used_gpus(subject)
    if gpus:
        free, _ = free_on(gpus, OwnProcesses(subject.context))
        words = " and ".join(f"GPU {gpu.index} ({gpu.name or 'unnamed'})" for gpu in gpus)
        return None if free is None else auto.MemoryRoom(free, len(gpus), words)
    return auto.MemoryRoom(available_bytes(subject), 0, "main memory")
