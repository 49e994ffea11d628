"""What `LLAMA_SPEC_TYPE=auto` stands for on this model and machine, and why.

The rules are those that inference front ends arrived at by measurement: prediction layers alone on a GPU, behind n-gram
drafts on a CPU, and never by themselves in models under 2B parameters, which they slow down (0.8B: 452 to 283 tok/s).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.backend.choices import Choice
from specdash.backend.settings import BackendSettings, settings_from_env
from specdash.core.errors import InputError
from specdash.core.speculation import Rollback
from specdash.llama.model_facts import MTP_PAYS_FROM, describe, type_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdash.backend.settings import DraftDetector
    from specdash.llama.gguf import GgufFacts

WITHOUT_A_DRAFT = "ngram-mod"
"""What drafts without a draft model: one table for all slots, which lasts from request to request."""
_MTP = "draft-mtp"


def choose(facts: GgufFacts | None, draft: GgufFacts | None, on_gpu: bool) -> Choice:
    """The spec types for a model, its draft where one is given, and the device it runs on.

    `facts` None: the model's file is not here, so that nothing is known of it.
    """
    if draft is not None:
        one = type_for(draft)
        pair = describe(facts, draft, draft_type=one.name).pair if facts is not None else None
        if pair is None or pair.fits:
            return Choice((one.name,), _with_a_draft(one.name, draft))
        reason = next(found.said for found in pair.misfits if found.severity == "error")
        rest = _without_a_draft(facts, on_gpu)
        return Choice(rest.types, f"the draft cannot be used ({reason}), and {rest.because}", uses_draft=False)
    return _without_a_draft(facts, on_gpu)


def _without_a_draft(facts: GgufFacts | None, on_gpu: bool) -> Choice:
    if facts is None:
        return Choice((WITHOUT_A_DRAFT,), "the model's file is not here: n-gram drafts need nothing of it")
    if not facts.nextn_layers:
        return Choice((WITHOUT_A_DRAFT,), f"the model has no prediction (nextn) layers{_replays(facts)}")
    parameters = describe(facts).parameters
    layers = f"{facts.nextn_layers} prediction (nextn) layer{'s' if facts.nextn_layers > 1 else ''}"
    has = f"the model has {layers} and {in_billions(parameters)} parameters"
    if parameters < MTP_PAYS_FROM:
        said = f"{has}: under {in_billions(MTP_PAYS_FROM)} its layers slow it down"
        return Choice((WITHOUT_A_DRAFT,), f"{said}{_replays(facts)}")
    if on_gpu:
        return Choice((_MTP,), f"{has}, on a GPU: its layers alone draft best there")
    return Choice((WITHOUT_A_DRAFT, _MTP), f"{has}, on the CPU: n-gram drafts cost nothing and come first")


def _replays(facts: GgufFacts) -> str:
    """What n-gram drafts cost on this model's memory; empty where they cost nothing."""
    fit = next((one for one in describe(facts).spec_types if one.name == WITHOUT_A_DRAFT), None)
    if fit is None or fit.takes_back is not Rollback.CHECKPOINT:
        return ""
    return "; on its recurrent memory every rejected draft costs a replay, so that it gains on repetitive work alone"


def in_billions(parameters: int) -> str:
    """A number of parameters as people say it: `0.8B`, `35B`, `1.2M`."""
    return f"{parameters / 1e9:.3g}B" if parameters >= 1e8 else f"{parameters / 1e6:.3g}M"


def _with_a_draft(name: str, draft: GgufFacts) -> str:
    if name == "draft-simple":
        return "the draft model is an ordinary one, and its vocabulary fits"
    if name == _MTP:
        return "the draft model has prediction (nextn) layers"
    return f"the draft model's architecture is {draft.architecture}"


def slowed_down(settings: BackendSettings, facts: GgufFacts | None) -> str | None:
    """What to say of prediction layers that somebody asked for in a model that they slow down; None otherwise."""
    if _MTP not in settings.spec_types or facts is None or settings.decisions:
        return None
    parameters = describe(facts).parameters
    if not 0 < parameters < MTP_PAYS_FROM:
        return None
    return (
        f"{settings.spec_source}={','.join(settings.spec_types)}: the model has {in_billions(parameters)} parameters, "
        f"and under {in_billions(MTP_PAYS_FROM)} its prediction layers slow it down (0.8B: 452 to 283 tok/s)"
    )


def read_settings(
    env: Mapping[str, str],
    *,
    detect: DraftDetector | None,
    look: Callable[[str], GgufFacts | None],
    on_gpu: Callable[[BackendSettings], bool],
) -> BackendSettings:
    """The settings of a backend env, the spec types chosen where they are left to specdash.

    `look` gives the facts of a model file; `on_gpu` says whether the server would use a GPU. Raises `InputError`.
    """
    settings = settings_from_env(env, detect)
    if not settings.undecided:
        return settings
    if settings.text("spec-draft-hf") is not None:
        source = settings.parameters["spec-draft-hf"].source
        raise InputError(f"{settings.spec_source}=auto: {source} is not here to be looked at; set LLAMA_SPEC_TYPE")
    facts = look(settings.model) if settings.model is not None else None
    draft = look(settings.draft_model) if settings.draft_model is not None else None
    return settings_from_env(env, detect, choose(facts, draft, on_gpu(settings)))
