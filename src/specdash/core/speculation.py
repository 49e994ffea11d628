"""The kinds of speculative decoding llama.cpp knows: what each needs, and which parameter each LLAMA_DRAFT_* key moves.

Source: llama.cpp b11434 (`common/speculative.cpp`, `common/arg.cpp`). The order of `SPEC_TYPES` is the engine's fixed
priority: the first type that yields a draft wins the step.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from specdash.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

NO_SPECULATION = "none"
"""The name that disables speculation; anywhere in a chain it silently disables the whole chain."""
AUTO = "auto"
"""The name that leaves the choice to specdash, from the model, its draft and the machine; it stands alone."""
KNOBS = ("LLAMA_DRAFT_MAX", "LLAMA_DRAFT_MIN", "LLAMA_DRAFT_P_MIN")
"""The env keys that set a parameter of every type in the chain, each type its own."""


class MemoryKind(StrEnum):
    """How a model remembers a sequence."""

    ATTENTION = "attention"
    """A KV cache of the whole sequence in every layer."""
    WINDOW = "sliding window"
    """A KV cache, in some layers of the last tokens only."""
    RECURRENT = "recurrent"
    """One state a sequence, which cannot be cut back."""
    HYBRID = "hybrid"
    """A KV cache in some layers and a recurrent state in others."""


class Rollback(StrEnum):
    """How rejected draft tokens are taken back."""

    CUT = "seq_rm"
    """They are cut from the KV cache; costs nothing."""
    STATE = "state"
    """The recurrent states of the last draft's tokens are kept, and the right one is taken up again; costs memory."""
    CHECKPOINT = "checkpoint + replay"
    """The state before the draft is restored and the accepted tokens are decoded again; costs a decode a rejection."""


class SpecType(Struct, frozen=True):
    """One type of drafting.

    `max_parameter`, `min_parameter` and `p_min_parameter` name the engine parameter (`core.parameters`) that
    `LLAMA_DRAFT_MAX`, `LLAMA_DRAFT_MIN` and `LLAMA_DRAFT_P_MIN` set for this type; None means that the type does not
    read the knob. `detected_from` are the draft-model architectures from which the engine picks the type by itself.
    """

    name: str
    meaning: str
    aliases: tuple[str, ...] = ()
    needs_draft_model: bool = False
    needs_heads: bool = False
    """Needs next-token-prediction (nextn) layers, in the target model or in the draft model."""
    max_parameter: str | None = None
    min_parameter: str | None = None
    p_min_parameter: str | None = None
    floor_parameter: str | None = None
    """The engine parameter below whose value, in tokens, the type discards its drafts, where no knob sets that."""
    detected_from: tuple[str, ...] = ()
    fixed_draft_length: int | None = None
    """Draft length in tokens where the engine offers no knob for it."""
    keeps_states: bool = False
    """Asks for the recurrent states of a whole draft; where the architecture gives them, nothing is replayed."""
    draft_architectures: tuple[str, ...] = ()
    """Architectures of draft models that the type loads, the one made for it first; empty: any."""
    reads_layers: int | None = None
    """How many of the target's layers its draft reads; 0: as many as the draft says, None: none."""
    block_margin: int | None = None
    """Where drafts are blocks: how many tokens a draft is shorter than the block the draft was trained on."""
    mixes_slots: bool = False
    """With backend sampling, which is on by default, slots that draft at once all get the last one's draft (b11549)."""
    parameters: str = ""
    """What the names of the engine parameters begin with that only this type reads."""
    log_classes: tuple[str, ...] = ()
    """Line classes (`llama.log`) that no type but this, or its kin, writes."""
    pays_when: str = ""
    """On which work it gains, in a few words."""

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every name a build of llama.cpp ever had for the type, today's first."""
        return (self.name, *self.aliases)

    @property
    def reads_draft_model(self) -> bool:
        """Whether the type drafts with a model: a separate one, or heads inside the target."""
        return self.needs_draft_model or self.needs_heads

    def longest_draft(self, block: int | None) -> int | None:
        """How many tokens a draft can have where drafts are blocks of `block` tokens; None where nothing limits it."""
        return None if self.block_margin is None or not block else block - self.block_margin

    def knob(self, key: str) -> str | None:
        """The engine parameter that the env key `key` moves for this type, or None when the type ignores it."""
        return dict(zip(KNOBS, (self.max_parameter, self.min_parameter, self.p_min_parameter), strict=True)).get(key)


def _ngram(name: str, meaning: str, pays_when: str, **more: Any) -> SpecType:
    given = {"parameters": f"spec-{name}-", **more}
    return SpecType(name, meaning, pays_when=pays_when, **given)


def _drafted(name: str, meaning: str, pays_when: str, *aliases: str, **more: Any) -> SpecType:
    return SpecType(
        name,
        meaning,
        aliases,
        max_parameter="spec-draft-n-max",
        min_parameter="spec-draft-n-min",
        p_min_parameter="spec-draft-p-min",
        pays_when=pays_when,
        **{"needs_draft_model": True, **more},
    )


SPEC_TYPES: tuple[SpecType, ...] = (
    _ngram(
        "ngram-simple",
        "repeats what followed the last occurrence of the current n-gram",
        "the answer copies long runs of its own context: edits of a file, quotes",
        max_parameter="spec-ngram-simple-size-m",
        floor_parameter="spec-ngram-simple-size-n",
    ),
    _ngram(
        "ngram-map-k",
        "a map of n-grams in the context to one continuation each",
        "the answer repeats its context again and again",
        max_parameter="spec-ngram-map-k-size-m",
    ),
    _ngram(
        "ngram-map-k4v",
        "a map of n-grams in the context to up to four continuations each",
        "the answer repeats its context, with variants",
        max_parameter="spec-ngram-map-k4v-size-m",
    ),
    _ngram(
        "ngram-mod",
        "a hash table of n-grams shared by all slots",
        "requests resemble earlier ones, also of other slots: agents, code, reasoning that repeats itself",
        max_parameter="spec-ngram-mod-n-max",
        min_parameter="spec-ngram-mod-n-min",
        log_classes=("ngram_mod_reset", "ngram_match_short"),
    ),
    _ngram(
        "ngram-cache",
        "n-gram statistics of the context and of lookup cache files",
        "answers resemble a corpus from which a lookup cache was made",
        fixed_draft_length=8,
        parameters="lookup-cache-",
        log_classes=("lookup_cache_failed",),
    ),
    _drafted(
        "draft-simple",
        "a small model of the same vocabulary drafts",
        "a model of the family exists that is ten or more times smaller; on any text",
        "draft",
    ),
    _drafted(
        "draft-eagle3",
        "an EAGLE-3 head drafts from the target's hidden states",
        "a head made for this very model exists; on any text",
        "eagle3",
        keeps_states=True,
        draft_architectures=("eagle3",),
        reads_layers=3,
        mixes_slots=True,
    ),
    _drafted(
        "draft-mtp",
        "the model's own multi-token-prediction layers draft",
        "the model has such layers and 2B parameters or more (smaller ones get slower); on any text",
        "mtp",
        needs_draft_model=False,
        needs_heads=True,
        keeps_states=True,
    ),
    _drafted(
        "draft-dflash",
        "a block-diffusion draft model (DFlash)",
        "a draft made for this very model exists, and the text is predictable: code, mathematics",
        "dflash",
        keeps_states=True,
        detected_from=("dflash",),
        draft_architectures=("dflash", "dspark"),
        reads_layers=0,
        block_margin=1,
        log_classes=("draft_clamped",),
    ),
    _drafted(
        "draft-dspark",
        "a block draft model (DSpark)",
        "a draft made for this very model exists, and the text is predictable: code, mathematics",
        "dspark",
        keeps_states=True,
        detected_from=("dspark",),
        draft_architectures=("dspark", "dflash"),
        reads_layers=0,
        block_margin=0,
        log_classes=("draft_clamped",),
    ),
)

_BY_NAME: dict[str, SpecType] = {name: t for t in SPEC_TYPES for name in (t.name, *t.aliases)}


def spec_type(name: str) -> SpecType | None:
    """The type called `name`, in any spelling that a build of llama.cpp ever used (`draft`, `ngram_mod`), or None."""
    return _BY_NAME.get(name.strip().lower().replace("_", "-"))


def named_type(name: str) -> SpecType:
    """The type called `name`; one that the catalogue lacks has the knobs of all that draft with a model, or none."""
    known = spec_type(name)
    if known is not None:
        return known
    meaning = "a type that the engine lists and specdash does not know"
    if name.startswith("draft-"):
        return _drafted(name, meaning, "", needs_draft_model=False)
    return SpecType(name, meaning)


def is_auto(text: str) -> bool:
    """Whether the text of a chain leaves the choice to specdash."""
    return text.strip().lower() == AUTO


def parse_chain(text: str, source: str, is_listed: Callable[[str], bool] = lambda _: False) -> tuple[SpecType, ...]:
    """The types in a comma-separated chain, without repeats, in the engine's priority; `none` is the empty chain.

    `source` names where the text came from, for the error. `is_listed` says of a type that the catalogue lacks whether
    the engine has it, by its own help; such types come last. Raises `InputError` for an unknown type and for `none`
    beside others, because the engine would then silently disable all of them.
    """
    names = [part.strip() for part in text.split(",") if part.strip()]
    chosen: set[str] = set()
    others: list[str] = []
    for name in names:
        if name.lower() == NO_SPECULATION:
            if len({other.lower() for other in names}) > 1:
                what = f"{source}={text}: 'none' would silently disable the other types"
                raise InputError(what, "remove one or the other", key=source)
            continue
        found = spec_type(name)
        if found is None and is_listed(name):
            others.append(name)
            continue
        if found is None:
            known = ", ".join([NO_SPECULATION, *(t.name for t in SPEC_TYPES), f"{AUTO} (alone)"])
            what = f"{source}={text}: unknown speculative type {name!r}"
            raise InputError(what, f"use one of: {known}", key=source)
        chosen.add(found.name)
    return (*(t for t in SPEC_TYPES if t.name in chosen), *map(named_type, dict.fromkeys(others)))


def rollback(item: SpecType, memory: MemoryKind, *, gives_states: bool) -> Rollback:
    """How a type's rejected tokens are taken back by a model with this memory.

    `gives_states`: its architecture can keep the states of several tokens (`llama.model_facts.STATE_ROLLBACK`).
    """
    if memory in (MemoryKind.ATTENTION, MemoryKind.WINDOW):
        return Rollback.CUT
    return Rollback.STATE if item.keeps_states and gives_states else Rollback.CHECKPOINT


def detected_type(draft_architecture: str | None, nextn_layers: int | None) -> SpecType | None:
    """The type the engine picks from the draft model alone when none is named, or None when it would not speculate."""
    for candidate in SPEC_TYPES:
        if draft_architecture in candidate.detected_from:
            return candidate
    return _BY_NAME["draft-mtp"] if nextn_layers else None


def readers_of(parameter: str) -> tuple[str, ...]:
    """Names of the spec types that read an engine parameter; none for one that is not about speculation."""
    if parameter.startswith("spec-synth-"):
        return tuple(t.name for t in SPEC_TYPES)
    if parameter.startswith("spec-draft-"):
        return tuple(t.name for t in SPEC_TYPES if t.reads_draft_model)
    return tuple(t.name for t in SPEC_TYPES if t.parameters and parameter.startswith(t.parameters))


# Acceptance of drafts as others have published it, not measured here: of another model, quantisation and text each, so
# that they say what is usual, not what must be reached. What n-gram types accept depends on the text alone.


class PublishedAcceptance(Struct, frozen=True):
    """One publication. `per_position` is the share of verification steps whose draft token at position 0, 1, … was
    accepted, empty where only means were published."""

    type: str
    """Name in `core.speculation.SPEC_TYPES`."""
    name: str
    """Model, engine, text, and `n`, the longest draft."""
    source: str
    per_position: tuple[float, ...] = ()
    mean_accepted_length: float | None = None
    acceptance: float | None = None
    """Accepted over drafted tokens."""


_GEMMA = "marksverdhei/llama.cpp#53, after vllm-project/vllm#41703"
_BENCH = "ggml-org/llama.cpp#27342"
_MTP, _EAGLE, _DFLASH = "draft-mtp", "draft-eagle3", "draft-dflash"

PUBLISHED: tuple[PublishedAcceptance, ...] = tuple(
    PublishedAcceptance(*row)
    for row in (
        (_MTP, "MTP, Qwen3.6-27B, n 6", "club-3090#105", (0.917, 0.837, 0.648, 0.538, 0.451, 0.348), 4.74),
        (_MTP, "MTP, Qwen3.8-27B, SPEED-Bench, n 7", _BENCH, (), 2.81),
        (_EAGLE, "EAGLE-3, llama.cpp, n 3", "ggml-org/llama.cpp#24536", (0.805, 0.632, 0.483), 2.92),
        (_EAGLE, "EAGLE, vLLM, n 3", "ggml-org/llama.cpp#24344", (0.77, 0.45, 0.24), 2.46),
        (_EAGLE, "EAGLE-3, coding", "ggml-org/llama.cpp#24655", (), None, 0.481),
        (_EAGLE, "EAGLE-3, reasoning", "ggml-org/llama.cpp#24655", (), None, 0.357),
        (_DFLASH, "DFlash that fits badly, n 5", "AEON-7#6", (0.600, 0.385, 0.215, 0.108, 0.062), 2.37),
        (_DFLASH, "DFlash, Gemma4-26B, HumanEval, n 15", _GEMMA, (), None, 0.4469),
        (_DFLASH, "DFlash, Gemma4-26B, MT-Bench, n 15", _GEMMA, (), None, 0.2168),
        (_DFLASH, "DFlash, SPEED-Bench coding, n 15", _BENCH, (), 4.97),
        (_DFLASH, "DFlash, SPEED-Bench all, n 15", _BENCH, (), 4.40),
        (_DFLASH, "DFlash2, SPEED-Bench all, n 15", _BENCH, (), 5.06),
    )
)
