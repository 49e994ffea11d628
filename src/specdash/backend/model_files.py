"""Checks of the model files that are cheap before an engine is started and costly after."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.backend.settings import DEFAULT
from specdash.core.errors import InputError
from specdash.core.findings import Severity
from specdash.core.parameter_catalogue import BY_NAME
from specdash.core.speculation import detected_type, spec_type
from specdash.llama.draft_fit import draft_misfits
from specdash.llama.gguf import GgufError, GgufFacts, read_facts
from specdash.llama.model_facts import refusal_of

if TYPE_CHECKING:
    from specdash.backend.settings import BackendSettings
    from specdash.core.speculation import SpecType


def detect(path: str) -> SpecType | None:
    """The spec type the engine would pick by itself from this draft model. Raises `GgufError`."""
    facts = read_facts(path)
    return detected_type(facts.draft_architecture, facts.nextn_layers)


def look(path: str) -> GgufFacts | None:
    """The facts of a model file; None when it is unusable, which `check` says."""
    try:
        return read_facts(path)
    except GgufError:
        return None


def check(settings: BackendSettings) -> tuple[GgufFacts | None, GgufFacts | None]:
    """What the files of the model and its draft say; None where none is named.

    Raises `InputError` when one is unusable, or cannot do what the settings ask of it.
    """
    facts = _facts(settings, "model")
    draft = _facts(settings, "spec-draft-model")
    unseen = settings.text("spec-draft-hf") is not None
    held = settings.parameters.get("spec-draft-model")
    key = held.source if held is not None else "LLAMA_DRAFT_MODEL"
    for one in filter(None, map(spec_type, settings.spec_types)):
        if one.needs_heads and unseen:
            continue
        for found in draft_misfits(one, facts, draft, set_types=settings.spec_change, draft_key=key):
            if found.severity is Severity.ERROR:
                chain = settings.spec_setting
                named = f"{key}={settings.draft_model}" if found.of_draft else chain
                raise InputError(f"{named}: {found.said}; {found.fix}")
    return facts, draft


def _facts(settings: BackendSettings, name: str) -> GgufFacts | None:
    assigned = settings.parameters.get(name)
    if assigned is None:
        return None
    key = BY_NAME[name].key if assigned.source == DEFAULT else assigned.source
    try:
        facts = read_facts(str(assigned.value))
    except GgufError as error:
        raise InputError(f"{key}: {error}") from None
    refused = refusal_of(facts, name)
    if refused is not None:
        raise InputError(f"{key}={assigned.value}: {refused}")
    return facts
