"""Whether the draft model, or the model's own heads, can draft for the model: the rules are `llama.draft_fit`'s."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.control.preflight.memory import size_text
from specdash.control.preflight.models import cached_misfit
from specdash.core.findings import Severity
from specdash.core.speculation import spec_type
from specdash.llama.draft_fit import draft_misfits

if TYPE_CHECKING:
    from specdash.control.preflight.context import Findings
    from specdash.control.preflight.subject import Subject

_DRAFT = "spec-draft-model"


def check(subject: Subject, out: Findings) -> None:
    """Add what is to be said of the draft model."""
    settings = subject.settings
    key, named = subject.source(_DRAFT), subject.named(_DRAFT)
    unseen = settings.text("spec-draft-hf") is not None or (settings.draft_model is not None and subject.draft is None)
    for one in filter(None, map(spec_type, settings.spec_types)):
        if one.needs_heads and unseen:
            continue
        for found in draft_misfits(
            one,
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


def _size(subject: Subject, out: Findings) -> None:
    """A draft that takes longer to read than its target makes nothing faster; most often the two were swapped."""
    if subject.model is None or subject.draft is None:
        return
    large, small = (sum(tensor.size for tensor in facts.tensors) for facts in (subject.draft, subject.model))
    if large > small:
        said = (
            f"{subject.named(_DRAFT)}: the draft has {size_text(large)} of weights, its target {size_text(small)}: "
            "drafting takes longer than decoding"
        )
        fix = f"name a smaller draft; if the two were swapped, exchange {subject.place(_DRAFT)} and "
        out.warning("draft-size", said, key=subject.source(_DRAFT), fix=f"{fix}{subject.place('model')}")
