"""The model files: whether they are there, what they are, and whether the draft can draft for the model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.backend.rules import error, info, warning
from specdash.core.errors import Finding
from specdash.llama.gguf import GgufFacts, Kept, file_state
from specdash.llama.memory import snapshots_of
from specdash.llama.model_facts import MTP_PAYS_FROM, ModelFacts, Tuning, describe, draft_misfits, misfit, shape_of
from specdash.system.text import billions, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdash.backend.plan import Plan

_PLAIN = ("chat-template-file", "api-key-file", "ssl-cert-file", "ssl-key-file", "lookup-cache-static")
_DRAFT = "spec-draft-model"
# A large vocabulary takes a tenth of a second to compare, and a plan is made at every keystroke in the dashboard.
_MISFITS: Kept[str | None] = Kept()
_DESCRIBED: Kept[ModelFacts] = Kept()


def plain_files(plan: Plan) -> Iterator[Finding]:
    """Files beside the models: there, readable, and a certificate with its key."""
    settings = plan.settings
    given = [(plan.source(name), settings.text(name)) for name in _PLAIN]
    for key, path in given:
        reason = _unreadable(path) if path else None
        if reason is not None:
            yield error("file", f"{key}={path}: {reason}", key, f"correct the path, or unset {key}")
    certificate, key_file = (settings.text(name) for name in ("ssl-cert-file", "ssl-key-file"))
    if bool(certificate) is not bool(key_file):
        name = "ssl-cert-file" if certificate else "ssl-key-file"
        message = f"{plan.named(name)}: TLS needs the certificate and its key, and the server answers without TLS"
        yield error("tls", message, plan.source(name), "name both, or neither")
    folder = settings.text("slot-save-path")
    if folder is not None and ("\0" in folder or not os.access(_path(folder), os.W_OK | os.X_OK)):
        message = f"{plan.named('slot-save-path')}: is no directory that can be written"
        yield error("file", message, plan.source("slot-save-path"), "create it, or name another")


def _path(text: str) -> str:
    return os.path.expanduser(text)  # noqa: PTH111 - the path stays as the user spelled it


def _unreadable(path: str) -> str | None:
    try:
        file = Path(_path(path))
        if file.is_dir():
            return "is a directory"
        with file.open("rb") as opened:
            return None if opened.read(1) else "is empty"
    except FileNotFoundError:
        return "no such file"
    except (OSError, ValueError) as problem:
        return f"cannot be read ({getattr(problem, 'strerror', None) or problem})"


def decisions(plan: Plan) -> Iterator[Finding]:
    """What `auto` became, with its arithmetic; and prediction layers that slow down what the operator chose."""
    keys = {"spec-type": plan.spec_key, "ctx-size": plan.source("ctx-size")}
    for decision in plan.settings.decisions:
        steps = f" ({'; '.join(decision.steps)})" if decision.steps else ""
        key = keys.get(decision.name)
        yield info("auto", f"{key}=auto is {decision.value} here: {decision.because}{steps}", key)
    if plan.model is None or plan.settings.decisions or "draft-mtp" not in plan.settings.spec_types:
        return
    parameters = describe(plan.model).parameters
    if 0 < parameters < MTP_PAYS_FROM:
        slowed = (
            f"{plan.settings.spec_setting}: the model has {billions(parameters)} parameters, and under "
            f"{billions(MTP_PAYS_FROM)} its prediction layers slow it down (0.8B: 452 to 283 tok/s)"
        )
        yield warning("small-mtp", slowed, plan.spec_key, "use ngram-mod, or a draft model")


def model(plan: Plan) -> Iterator[Finding]:
    """The model itself."""
    if plan.model is None:
        return
    facts, state = plan.model, file_state(plan.model.path)
    found = describe(facts) if state is None else _DESCRIBED.get(state, lambda: describe(facts))
    key, named = plan.source("model"), plan.named("model")
    for remark in found.remarks:
        yield warning("model", f"{named}: {remark}", key)
    # Chats are what it is for where a proxy is beside it, or a chat template was chosen.
    templates = ("chat-template", "chat-template-file")
    chats = plan.circumstances.other is not None or any(plan.settings.text(name) is not None for name in templates)
    if found.tuning is Tuning.BASE and chats:
        why = f"a base model ({found.tuning_reasons[0]}) goes on with a text and does not answer: chats run on"
        yield warning("base-model", f"{named}: {why}", key, "use the instruct model of its family")


def draft(plan: Plan) -> Iterator[Finding]:
    """Whether the draft model, or the model's own heads, can draft for the model (`llama.model_facts`)."""
    settings, key, named = plan.settings, plan.source(_DRAFT), plan.named(_DRAFT)
    unseen = settings.text("spec-draft-hf") is not None or (settings.draft_model is not None and plan.draft is None)
    for kind in plan.spec_types:
        if kind.needs_heads and unseen:
            continue
        place = plan.place(_DRAFT)
        for found in draft_misfits(
            kind, plan.model, plan.draft, set_types=settings.spec_change, draft_key=place, compare=_misfit
        ):
            about = found.said if found.rule == "nextn-layers" else f"{named}: {found.said}"
            yield Finding(found.rule, found.severity, about, key if found.of_draft else plan.spec_key, found.fix)
    if plan.model is None or plan.draft is None:
        return
    large, small = (sum(tensor.size for tensor in facts.tensors) for facts in (plan.draft, plan.model))
    if large > small:
        # Most often the two were swapped.
        message = (
            f"{named}: the draft has {size(large, exact=True)} of weights, "
            f"its target {size(small, exact=True)}: drafting takes longer than decoding"
        )
        swapped = f"exchange {plan.place(_DRAFT)} and {plan.place('model')}"
        yield warning("draft-size", message, key, f"name a smaller draft; if the two were swapped, {swapped}")


def _misfit(target: GgufFacts, small: GgufFacts) -> str | None:
    """`llama.model_facts.misfit`, compared once. Raises `OSError` when a file went away."""
    return _MISFITS.get((file_state(target.path), file_state(small.path)), lambda: misfit(target, small))


def block_size(plan: Plan) -> Iterator[Finding]:
    """Drafts longer than the blocks that the draft model was trained on."""
    block = plan.draft.number("block_size") if plan.draft is not None else None
    name = "spec-draft-n-max"
    for kind in plan.spec_types:
        effective = kind.longest_draft(block)
        if effective is not None and plan.number(name) > effective:
            message = f"{plan.named(name)}: the draft was trained on blocks of {block}, {effective} counts"
            yield warning("block-size", message, plan.source(name), f"use {effective} or less")


def confidence(plan: Plan) -> Iterator[Finding]:
    """DSpark holds the threshold against its confidence head, other types against the draft's own probabilities."""
    facts, name = plan.draft, "spec-draft-p-min"
    if facts is None or facts.draft_architecture != "dspark" or "draft-dspark" not in plan.settings.spec_types:
        return
    headless = not any(tensor.name.startswith("conf_proj") for tensor in facts.tensors)
    if headless and float(plan.settings.value(name) or 0) > 0:
        message = f"{plan.named(name)}: {facts.path} has no confidence head, and the server would draft nothing"
        fix = f"set {plan.change(name, 0)}, or use a draft with that head"
        yield error("confidence-head", message, plan.source(name), fix)


def checkpoints(plan: Plan) -> Iterator[Finding]:
    """How a recurrent model takes rejected tokens back."""
    shape = shape_of(plan.model) if plan.model is not None else None
    if plan.model is None or not plan.spec_types or shape is None or not shape.recurrent:
        return
    if not snapshots_of(plan.model.architecture, plan.settings.spec_types, plan.number("spec-draft-n-max")):
        message = (
            f"{plan.model.architecture} has recurrent layers: after a rejected draft token llama.cpp restores a "
            "checkpoint and replays, so long drafts cost more than on other models"
        )
        fix = "short drafts and a high LLAMA_DRAFT_P_MIN lose less"
        yield info("checkpoints", message, plan.spec_key, fix)


RULES = (plain_files, decisions, model, draft, block_size, confidence, checkpoints)
