"""What `specdash gguf` says of a file, as text of 80 columns and as JSON."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from specdash.llama.gguf_types import TENSOR_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from specdash.llama.memory import Estimate
    from specdash.llama.model_facts import ModelFacts, Pair

_INDENT = 12
_WIDTH = 80
_GIB, _MIB = 1024**3, 1024**2
_FITS = {True: "yes", False: "no", None: "with"}
_COLUMNS = ("weights", "KV cache", "recurrent state", "compute")
_TYPES_SHOWN = 6


def facts_text(one: ModelFacts) -> list[str]:
    """The lines about the file itself."""
    kind = f"{one.kind}: " if one.refusal is not None else ""
    lines = labelled("file", _clean(one.path))
    lines += labelled("", f"whole: {in_words(one.file_bytes)}{f' in {one.parts} files' if one.parts > 1 else ''}")
    lines += labelled("what", kind + ", ".join(_what(one)))
    if one.types:
        lines += labelled("weights", ", ".join(_weights(one)))
    if one.memory is not None:
        lines += labelled("memory", "; ".join(_memory(one)))
    if one.context is not None:
        lines += labelled("context", f"trained on {one.context} tokens")
    if one.vocabulary is not None:
        lines += labelled("vocabulary", f"{one.vocabulary} tokens ({one.tokenizer or 'unknown'})")
    if one.generates:
        lines += labelled("tuning", f"{one.tuning}: {_clean('; '.join(one.tuning_reasons))}")
    if one.draft_needs is not None:
        lines += labelled("drafts", "; ".join(_needs(one)))
    for remark in one.remarks:
        lines += labelled("remark", _clean(remark))
    if one.spec_types:
        lines += ["", *_spec_table(one)]
    if one.pair is not None:
        lines += ["", *pair_text(one.pair)]
    return lines


def pair_text(pair: Pair) -> list[str]:
    """The lines about a draft beside its target."""
    verdict = "fits" if pair.fits else "does NOT fit"
    lines = labelled("draft", f"{_clean(pair.draft)} {verdict} as {pair.spec_type}")
    for row in pair.misfits:
        lines += labelled("", f"{row.severity}: {_clean(row.said)}{f'; {row.fix}' if row.fix else ''}")
    return lines


def estimate_text(found: Estimate, *, gpus: int) -> list[str]:
    """What is needed, a row for each place and model."""
    lines = [f"{'':{_INDENT}}{'':10}" + "".join(f"{_HEADS[name]:>11}" for name in _COLUMNS) + f"{'total':>11}"]
    models = [name for name in ("model", "draft") if any(part.model == name for part in found.parts)]
    places = [("gpu", "GPU" if gpus < 2 else f"{gpus} GPUs")] if gpus else []
    for field, place in [*places, ("host", "host")]:
        for model in models:
            sizes = [
                sum(getattr(p, field) for p in found.parts if p.model == model and p.what == what) for what in _COLUMNS
            ]
            if sum(sizes):
                cells = "".join(f"{in_words(size) if size else '-':>11}" for size in (*sizes, sum(sizes)))
                lines.append(f"{'':{_INDENT}}{place:<5}{model:<5}{cells}")
    return lines


_HEADS = {"weights": "weights", "KV cache": "KV cache", "recurrent state": "state", "compute": "compute ~"}


def facts_json(one: ModelFacts) -> dict[str, Any]:
    """Every fact, with its own name."""
    found = asdict(one)
    found["bits_per_parameter"] = round(one.bits, 3) if one.bits is not None else None
    found["refusal"] = one.refusal
    if one.pair is not None:
        found["pair"]["fits"] = one.pair.fits
    return found


def estimate_json(found: Estimate) -> dict[str, Any]:
    """The parts in bytes, and their sums."""
    return {
        "exact": found.exact,
        "gpu_bytes": found.gpu,
        "host_bytes": found.host,
        "parts": [
            {"model": p.model, "what": p.what, "gpu_bytes": p.gpu, "host_bytes": p.host, "estimated": p.estimated}
            for p in found.parts
        ],
    }


def in_words(count: int) -> str:
    """Bytes in words of up to 10 characters."""
    if count >= _GIB:
        return f"{count / _GIB:.2f} GiB"
    return f"{count / _MIB:.1f} MiB" if count >= _MIB / 10 else f"{count} B"


def _count(count: int) -> str:
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= unit:
            return f"{count / unit:.2f}{name}"
    return str(count)


def _what(one: ModelFacts) -> Iterator[str]:
    name = _clean(one.name) if one.name else "unnamed"
    yield f"{name} ({one.architecture or 'no architecture'})"
    if one.parameters:
        yield f"{_count(one.parameters)} parameters"
        yield one.quantisation
        yield in_words(one.size)
    if one.bits is not None and all(kind.name in _KNOWN for kind in one.types):
        yield f"{one.bits:.2f} bits a parameter"


_KNOWN = frozenset(known.name for known in TENSOR_TYPES.values())


def _weights(one: ModelFacts) -> Iterator[str]:
    for row in one.types[:_TYPES_SHOWN]:
        yield f"{row.name} {_percent(row.share)}"
    if len(one.types) > _TYPES_SHOWN:
        yield f"{len(one.types) - _TYPES_SHOWN} more types"


def _percent(share: float) -> str:
    if share in (0, 1):
        return f"{share:.0%}"
    return ">99%" if share > 0.99 else f"{share * 100:.2g}%"


def _memory(one: ModelFacts) -> Iterator[str]:
    window = f" of {one.window} tokens" if one.window else ""
    yield f"{one.memory}{window}, {one.layers} layer{'s' if one.layers != 1 else ''}"
    if one.experts is not None:
        yield f"{one.experts[0]} of {one.experts[1]} experts a token"
    yield f"{one.heads} prediction (nextn) layer{'s' if one.heads > 1 else ''}" if one.heads else "no prediction layers"
    if one.gives_states:
        yield "keeps states for drafts"


def _needs(one: ModelFacts) -> Iterator[str]:
    needs = one.draft_needs
    if needs is None:
        return
    yield f"{needs.method}, for {needs.spec_type}"
    if needs.block_size:
        longest = f", drafts of up to {needs.longest_draft}" if needs.longest_draft is not None else ""
        yield f"blocks of {needs.block_size} tokens{longest}"
    layers = ", ".join(map(str, needs.target_layers)) or "not named"
    width = f" of width {needs.target_width}" if needs.target_width else ""
    yield f"reads layers {layers} of a target{width}"


def _spec_table(one: ModelFacts) -> Iterable[str]:
    yield f"{'spec type':<15}{'fits':<6}{'takes back by':<21}needs"
    for row in one.spec_types:
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


def _clean(text: str) -> str:
    """Text of a file, fit for a terminal."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
