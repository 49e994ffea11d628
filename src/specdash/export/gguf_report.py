"""What `specdash gguf` says of a file, as text of 80 columns and as JSON."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from specdash.core.structs import json_of
from specdash.llama.gguf import TENSOR_TYPES
from specdash.system.text import billions, clean, counted, percent, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from specdash.llama.model_facts import DraftPair, ModelFacts

_INDENT = 12
_WIDTH = 80
_FITS = {True: "yes", False: "no", None: "with"}
_TYPES_SHOWN = 6


def facts_text(model: ModelFacts) -> list[str]:
    """The lines about the file itself."""
    kind = f"{model.kind}: " if model.refusal is not None else ""
    lines = labelled("file", clean(model.path))
    lines += labelled(
        "",
        f"whole: {size(model.file_bytes, exact=True)}{f' in {model.parts} files' if model.parts > 1 else ''}",
    )
    lines += labelled("what", kind + ", ".join(_what(model)))
    if model.types:
        lines += labelled("weights", ", ".join(_weights(model)))
    if model.memory is not None:
        lines += labelled("memory", "; ".join(_memory(model)))
    if model.context is not None:
        lines += labelled("context", f"trained on {model.context} tokens")
    if model.vocabulary is not None:
        lines += labelled("vocabulary", f"{model.vocabulary} tokens ({model.tokenizer or 'unknown'})")
    if model.generates:
        lines += labelled("tuning", f"{model.tuning}: {clean('; '.join(model.tuning_reasons))}")
    if model.draft_needs is not None:
        lines += labelled("drafts", "; ".join(_needs(model)))
    for remark in model.remarks:
        lines += labelled("remark", clean(remark))
    if model.spec_types:
        lines += ["", *_spec_table(model)]
    if model.pair is not None:
        lines += ["", *pair_text(model.pair)]
    return lines


def pair_text(pair: DraftPair) -> list[str]:
    """The lines about a draft beside its target."""
    verdict = "fits" if pair.fits else "does NOT fit"
    lines = labelled("draft", f"{clean(pair.draft)} {verdict} as {pair.spec_type}")
    for row in pair.misfits:
        lines += labelled("", f"{row.severity}: {clean(row.said)}{f'; {row.fix}' if row.fix else ''}")
    return lines


def facts_json(model_facts: ModelFacts) -> dict[str, Any]:
    """Every fact, with its own name."""
    found: dict[str, Any] = json_of(model_facts)
    found["bits_per_parameter"] = round(model_facts.bits, 3) if model_facts.bits is not None else None
    found["refusal"] = model_facts.refusal
    if model_facts.pair is not None:
        found["pair"]["fits"] = model_facts.pair.fits
    return found


def _what(model_facts: ModelFacts) -> Iterator[str]:
    name = clean(model_facts.name) if model_facts.name else "unnamed"
    yield f"{name} ({model_facts.architecture or 'no architecture'})"
    if model_facts.parameters:
        yield f"{billions(model_facts.parameters)} parameters"
        yield model_facts.quantisation
        yield size(model_facts.size, exact=True)
    if model_facts.bits is not None and all(kind.name in _KNOWN for kind in model_facts.types):
        yield f"{model_facts.bits:.2f} bits a parameter"


_KNOWN = frozenset(known.name for known in TENSOR_TYPES.values())


def _weights(model_facts: ModelFacts) -> Iterator[str]:
    for row in model_facts.types[:_TYPES_SHOWN]:
        yield f"{row.name} {percent(row.share, bounded=True)}"
    if len(model_facts.types) > _TYPES_SHOWN:
        yield f"{len(model_facts.types) - _TYPES_SHOWN} more types"


def _memory(model_facts: ModelFacts) -> Iterator[str]:
    window = f" of {model_facts.window} tokens" if model_facts.window else ""
    yield f"{model_facts.memory}{window}, {counted(model_facts.layers, 'layer')}"
    if model_facts.experts is not None:
        yield f"{model_facts.experts[0]} of {model_facts.experts[1]} experts a token"
    yield f"{counted(model_facts.heads, 'prediction (nextn) layer')}" if model_facts.heads else "no prediction layers"
    if model_facts.gives_states:
        yield "keeps states for drafts"


def _needs(model_facts: ModelFacts) -> Iterator[str]:
    needs = model_facts.draft_needs
    if needs is None:
        return
    yield f"{needs.method}, for {needs.spec_type}"
    if needs.block_size:
        longest = f", drafts of up to {needs.longest_draft}" if needs.longest_draft is not None else ""
        yield f"blocks of {needs.block_size} tokens{longest}"
    layers = ", ".join(map(str, needs.target_layers)) or "not named"
    width = f" of width {needs.target_width}" if needs.target_width else ""
    yield f"reads layers {layers} of a target{width}"


def _spec_table(model_facts: ModelFacts) -> Iterable[str]:
    yield f"{'spec type':<15}{'fits':<6}{'takes back by':<21}needs"
    for row in model_facts.spec_types:
        back = str(row.takes_back) if row.takes_back is not None and row.fits is not False else "-"
        because = row.because.removeprefix("with ") if row.fits is None else row.because
        first, *rest = textwrap.wrap(because, _WIDTH - 42) or [""]
        yield f"{row.name:<15}{_FITS[row.fits]:<6}{back:<21}{first}".rstrip()
        for more in rest:
            yield f"{'':<42}{more}"


def labelled(label: str, text: str) -> list[str]:
    """Lines of a text under a label."""
    wrapped = textwrap.wrap(text, _WIDTH - _INDENT, break_on_hyphens=False) or [""]
    return [f"{label if at == 0 else '':<{_INDENT}}{line}" for at, line in enumerate(wrapped)]
