"""The model files: whether they are there, what they are, and whether the draft can draft for the model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.backend.rules import error, info, warning
from specdash.core.errors import Finding
from specdash.llama.draft_fit import draft_misfits
from specdash.llama.model_facts import MTP_PAYS_FROM, Tuning, describe
from specdash.system.text import billions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdash.backend.plan import Plan

_PLAIN = ("chat-template-file", "api-key-file", "ssl-cert-file", "ssl-key-file", "lookup-cache-static")
_DRAFT = "spec-draft-model"


def plain_files(plan: Plan) -> Iterator[Finding]:
    """Files beside the models can be read, and a certificate has its key."""
    settings = plan.settings
    for name in _PLAIN:
        path, key = settings.text(name), plan.source(name)
        file = Path(path or "").expanduser()
        if path and ("\0" in path or not file.is_file() or not os.access(file, os.R_OK)):
            yield error("file", f"{key}={path}: no file that can be read", key, f"correct the path, or unset {key}")
    certificate, key_file = (settings.text(name) for name in ("ssl-cert-file", "ssl-key-file"))
    if bool(certificate) is not bool(key_file):
        name = "ssl-cert-file" if certificate else "ssl-key-file"
        message = f"{plan.named(name)}: TLS needs the certificate and its key, and the server answers without TLS"
        yield error("tls", message, plan.source(name), "name both, or neither")


def decisions(plan: Plan) -> Iterator[Finding]:
    """What `auto` became; and prediction layers that slow down what the operator chose."""
    key = plan.settings.spec_key
    if (choice := plan.settings.choice) is not None:
        yield info("auto", f"{key}=auto is {choice.chain} here: {choice.because}", key)
    if plan.model is None or choice is not None or "draft-mtp" not in plan.settings.spec_types:
        return
    parameters = describe(plan.model).parameters
    if 0 < parameters < MTP_PAYS_FROM:
        slowed = (
            f"{plan.settings.spec_setting()}: the model has {billions(parameters)} parameters, and under "
            f"{billions(MTP_PAYS_FROM)} its prediction layers slow it down (0.8B: 452 to 283 tok/s)"
        )
        yield warning("small-mtp", slowed, key, "use ngram-mod, or a draft model")


def model(plan: Plan) -> Iterator[Finding]:
    """The model itself."""
    if plan.model is None:
        return
    found, key, named = describe(plan.model), plan.source("model"), plan.named("model")
    for remark in found.remarks:
        yield warning("model", f"{named}: {remark}", key)
    # Chats are what it is for where a proxy is beside it, or a chat template was chosen.
    templates = ("chat-template", "chat-template-file")
    chats = plan.circumstances.other is not None or any(plan.settings.text(name) is not None for name in templates)
    if found.tuning is Tuning.BASE and chats:
        why = f"a base model ({found.tuning_reasons[0]}) goes on with a text and does not answer: chats run on"
        yield warning("base-model", f"{named}: {why}", key, "use the instruct model of its family")


def draft(plan: Plan) -> Iterator[Finding]:
    """Whether the draft model, or the model's own heads, can draft for the model (`llama.draft_fit`)."""
    settings, key, named = plan.settings, plan.source(_DRAFT), plan.named(_DRAFT)
    unseen = settings.text("spec-draft-hf") is not None or (settings.draft_model is not None and plan.draft is None)
    for kind in plan.settings.kinds:
        if kind.needs_heads and unseen:
            continue
        for found in draft_misfits(kind, plan.model, plan.draft, set_types=settings.spec_setting, draft_key=named):
            about = found.said if found.rule == "nextn-layers" else f"{named}: {found.said}"
            yield Finding(found.rule, found.severity, about, key if found.of_draft else settings.spec_key, found.fix)


def block_size(plan: Plan) -> Iterator[Finding]:
    """Drafts longer than the blocks that the draft model was trained on."""
    block = plan.draft.number("block_size") if plan.draft is not None else None
    name = "spec-draft-n-max"
    for kind in plan.settings.kinds:
        effective = kind.longest_draft(block)
        if effective is not None and plan.settings.number(name) > effective:
            message = f"{plan.named(name)}: the draft was trained on blocks of {block}, {effective} counts"
            yield warning("block-size", message, plan.source(name), f"use {effective} or less")


RULES = (plain_files, decisions, model, draft, block_size)
