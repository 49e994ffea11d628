"""Checks of the model files that are cheap before an engine is started and costly after."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.backend.settings import DEFAULT
from specdash.core.errors import InputError
from specdash.core.parameter_catalogue import BY_NAME
from specdash.core.speculation import detected_type
from specdash.llama.gguf import GgufError, GgufFacts, read_facts

if TYPE_CHECKING:
    from specdash.backend.settings import BackendSettings
    from specdash.core.speculation import SpecType


def detect(path: str) -> SpecType | None:
    """The spec type the engine would pick by itself from this draft model. Raises `GgufError`."""
    facts = read_facts(path)
    return detected_type(facts.architecture, facts.nextn_layers)


def check(settings: BackendSettings) -> None:
    """Raise `InputError` when a model file is unusable, or cannot do what the settings ask of it."""
    facts = _facts(settings, "model")
    draft = _facts(settings, "spec-draft-model")
    if "draft-mtp" in settings.spec_types and facts is not None:
        heads = facts.nextn_layers or (draft.nextn_layers if draft is not None else None)
        if not heads:
            raise InputError(
                f"{settings.spec_source}={','.join(settings.spec_types)}: draft-mtp needs prediction (nextn) layers, "
                f"and {facts.path} has none; use another type"
            )
    if draft is not None and facts is not None and "draft-simple" in settings.spec_types:
        _check_vocabulary(settings, facts.vocabulary_size, draft.vocabulary_size)


def _check_vocabulary(settings: BackendSettings, target: int | None, draft: int | None) -> None:
    # llama.cpp tolerates a difference of 128 tokens (common/speculative.cpp, SPEC_VOCAB_MAX_SIZE_DIFFERENCE).
    if target is not None and draft is not None and abs(target - draft) > 128:
        raise InputError(
            f"{settings.parameters['spec-draft-model'].source}={settings.draft_model}: its vocabulary has {draft} "
            f"tokens, the model's has {target}; the server would run without speculation. Use a draft of its family"
        )


def _facts(settings: BackendSettings, name: str) -> GgufFacts | None:
    assigned = settings.parameters.get(name)
    if assigned is None:
        return None
    try:
        return read_facts(str(assigned.value))
    except GgufError as error:
        key = BY_NAME[name].key if assigned.source == DEFAULT else assigned.source
        raise InputError(f"{key}: {error}") from None
