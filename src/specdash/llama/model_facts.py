"""What a GGUF file is: kind, size, quantisation, memory, what can draft for it, base or instruct. No engine is asked.

`describe` is the one place that turns a header into these answers; `specdash gguf` prints them, preflight and the
choice of a spec type read them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.core.errors import Problem
from specdash.core.speculation import SPEC_TYPES, MemoryKind, Rollback, SpecType, detected_type, rollback, spec_type
from specdash.llama.architectures import DIFFUSION, DRAFTS, ENCODERS, KNOWN, STATE_ROLLBACK
from specdash.llama.draft_fit import DraftMisfit, draft_misfits, gives_layer_inputs
from specdash.llama.gguf import FILE_TYPES, GUESSED, TENSOR_TYPES
from specdash.llama.model_shape import shape_of

if TYPE_CHECKING:
    from specdash.llama.gguf import GgufFacts, Tensor


class Tuning(StrEnum):
    """What a model was trained for last."""

    INSTRUCT = "instruct"
    """To answer in a chat."""
    BASE = "base"
    """To go on with a text, and nothing else."""
    UNKNOWN = "unknown"
    """The file does not say."""


_INSTRUCT = frozenset(
    {"it", "instruct", "instruction", "instructed", "chat", "assistant", "sft", "dpo", "orpo", "rlhf", "thinking"}
    | {"reasoning"}
)
_BASE = frozenset({"base", "pt", "pretrain", "pretrained", "foundation", "backbone"})
_WORD = re.compile(r"[a-z]+")


def tuning_of(facts: GgufFacts) -> tuple[Tuning, tuple[str, ...]]:
    """What the header says, by the words of its names, else by its chat template; and where it says so."""
    reasons: list[str] = []
    decided = Tuning.UNKNOWN
    # The words of a T5 model's name are its size: small, base, large.
    names = () if facts.architecture == "t5" else ("general.name", "general.basename")
    for key in ("general.finetune", *names):
        text = (facts.text(key) or "")[:120]
        words = set(_WORD.findall(text.lower()))
        if not words & (_INSTRUCT | _BASE):
            continue
        found = Tuning.INSTRUCT if words & _INSTRUCT else Tuning.BASE
        decided = found if decided is Tuning.UNKNOWN else decided
        reasons.append(f"{key} is {text!r}" + (f", which says {found}" if found is not decided else ""))
    if facts.has_chat_template:
        reasons.append("it has a chat template" + (", as some base models do" if decided is Tuning.BASE else ""))
        decided = Tuning.INSTRUCT if decided is Tuning.UNKNOWN else decided
    else:
        reasons.append("it has no chat template")
    return decided, tuple(reasons)


MTP_PAYS_FROM = 2_000_000_000
"""Parameters below which a model's prediction layers make it slower (docs/speculation.md)."""


class FileKind(StrEnum):
    """What a GGUF file is for."""

    MODEL = "model"
    DRAFT = "draft"
    """A model that only drafts for another one, whose hidden states it reads."""
    PROJECTOR = "multimodal projector"
    ADAPTER = "LoRA adapter"
    CONTROL_VECTOR = "control vector"
    IMATRIX = "importance matrix"
    VOCABULARY = "vocabulary without weights"


_USE = {
    FileKind.PROJECTOR: "load it beside its model with LLAMA_ARG_MMPROJ",
    FileKind.ADAPTER: "load it beside its model with --lora",
    FileKind.CONTROL_VECTOR: "load it beside a model with --control-vector",
    FileKind.IMATRIX: "llama-quantize reads it; name the model itself",
    FileKind.VOCABULARY: "name a file with weights",
}


class TypeShare(Struct, frozen=True):
    """The tensors of one type. `share` is their part of all parameters."""

    name: str
    tensors: int
    parameters: int
    size: int
    share: float


class SpecFit(Struct, frozen=True):
    """Whether a spec type can be used with this model. `fits` is None where it takes a draft that was not named.

    `takes_back` is how its rejected tokens are taken back; None where the model's memory is not known.
    """

    name: str
    fits: bool | None
    because: str
    takes_back: Rollback | None


class DraftNeeds(Struct, frozen=True):
    """What a draft was trained for; None where its file does not say."""

    method: str
    spec_type: str
    block_size: int | None
    longest_draft: int | None
    """Tokens of its longest draft, None where nothing limits it."""
    target_layers: tuple[int, ...]
    target_width: int | None


class DraftPair(Struct, frozen=True):
    """A draft beside its target. `spec_type` is the one it was judged for."""

    draft: str
    spec_type: str
    misfits: tuple[DraftMisfit, ...]

    @property
    def fits(self) -> bool:
        """Whether the server would run and speculate with the pair."""
        return not any(misfit.severity == "error" for misfit in self.misfits)


class ModelFacts(Struct, frozen=True):
    """Everything the file says. Counts are 0 and texts None where it says nothing; `size` is bytes of tensors."""

    path: str
    kind: FileKind
    name: str | None
    architecture: str | None
    known_architecture: bool
    """b11434 loads it."""
    parameters: int
    size: int
    file_bytes: int
    parts: int
    quantisation: str
    types: tuple[TypeShare, ...]
    layers: int
    """Without the prediction layers."""
    heads: int
    """Prediction (nextn) layers."""
    experts: tuple[int, int] | None
    """How many experts a token uses, of how many; None for a dense model."""
    width: int | None
    memory: MemoryKind | None
    window: int | None
    """Length of the sliding window in tokens."""
    gives_states: bool
    """Its architecture can keep the states of several tokens, so that draft types need no checkpoint."""
    context: int | None
    """Tokens it was trained on."""
    tokenizer: str | None
    vocabulary: int | None
    chat_template: bool
    tuning: Tuning
    tuning_reasons: tuple[str, ...]
    generates: bool
    """It writes text token by token."""
    spec_types: tuple[SpecFit, ...]
    draft_needs: DraftNeeds | None
    pair: DraftPair | None
    remarks: tuple[str, ...]

    @property
    def bits(self) -> float | None:
        """Bits a parameter, on average."""
        return self.size * 8 / self.parameters if self.parameters else None

    @property
    def refusal(self) -> str | None:
        """Why it cannot be named as a model, and what it is for; None for a model."""
        if self.kind is FileKind.MODEL:
            return None
        return str(_refusal(self.kind, self.draft_needs, wanted="model"))


MAY_BE = {
    "model": (FileKind.MODEL,),
    "spec-draft-model": (FileKind.MODEL, FileKind.DRAFT),
    "mmproj": (FileKind.PROJECTOR,),
}
"""Engine parameters that name a GGUF file, and what it must be."""


_DAMAGED = "download or convert it again"


def refusal_of(facts: GgufFacts, parameter: str) -> Problem | None:
    """Why the file cannot be what an engine parameter names, and what to do; None when it can."""
    kind = kind_of(facts)
    if kind not in MAY_BE[parameter]:
        return _refusal(kind, needs_of(facts), wanted=parameter)
    if kind is FileKind.PROJECTOR:
        return None
    # llama-model-loader.cpp and load_hparams: both keys are required of every model.
    needed = {"general.architecture": facts.architecture, f"{facts.architecture}.block_count": facts.block_count}
    missing = next((key for key, value in needed.items() if not value), None)
    if missing is None:
        return None
    return Problem(f"its header has no {missing}, and llama.cpp does not load it", _DAMAGED)


def _refusal(kind: FileKind, needs: DraftNeeds | None, *, wanted: str) -> Problem:
    if wanted == "mmproj":
        return Problem(f"is {_a(kind)}, no multimodal projector", "name the model's mmproj file")
    if kind is FileKind.DRAFT:
        method = f" ({needs.method})" if needs is not None else ""
        fix = "name it as LLAMA_DRAFT_MODEL beside the model it was made for"
        return Problem(f"is a draft{method}, no model", fix)
    return Problem(f"is {_a(kind)}, no model", _USE[kind])


def describe(facts: GgufFacts, draft: GgufFacts | None = None, *, draft_type: str | None = None) -> ModelFacts:
    """What the file is, with the draft beside it where one is named. Reads vocabularies from the files.

    The pair is judged for `draft_type`, or else for the type the engine would take for such a draft.
    """
    kind, shape, architecture = kind_of(facts), shape_of(facts), facts.architecture
    memory = shape.memory if shape is not None else None
    generates = kind is FileKind.MODEL and architecture not in ENCODERS | DIFFUSION
    gives_states = architecture in STATE_ROLLBACK
    types = _types(facts)
    parameters = sum(row.parameters for row in types)
    heads = facts.nextn_layers or 0
    tuning, tuning_reasons = tuning_of(facts)
    pair, spec_types = None, []
    if draft is not None:
        judged = (spec_type(draft_type) if draft_type is not None else None) or type_for(draft)
        pair = DraftPair(draft.path, judged.name, tuple(draft_misfits(judged, facts, draft)))
    for item in SPEC_TYPES if generates else ():
        fits, because = _fit(item, facts, pair, parameters)
        back = rollback(item, memory, gives_states=gives_states) if memory is not None else None
        spec_types.append(SpecFit(item.name, fits, because, back))
    experts, used = facts.number("expert_count"), facts.number("expert_used_count")
    windows = {layer.window for layer in shape.layers if layer.window} if shape is not None else set()
    return ModelFacts(
        path=facts.path,
        kind=kind,
        name=facts.name,
        architecture=architecture,
        known_architecture=architecture in KNOWN,
        parameters=parameters,
        size=sum(row.size for row in types),
        file_bytes=facts.file_bytes,
        parts=facts.parts,
        quantisation=_quantisation(facts, types),
        types=types,
        layers=max((facts.block_count or 0) - heads, 0),
        heads=heads,
        experts=(used or 0, experts) if experts else None,
        width=facts.number("embedding_length"),
        memory=memory,
        window=max(windows, default=None),
        gives_states=gives_states,
        context=facts.context_length,
        tokenizer=facts.tokenizer,
        vocabulary=facts.vocabulary_size,
        chat_template=facts.has_chat_template,
        tuning=tuning if generates else Tuning.UNKNOWN,
        tuning_reasons=tuning_reasons if generates else (f"{_a(kind)} is neither",),
        generates=generates,
        spec_types=tuple(spec_types),
        draft_needs=needs_of(facts),
        pair=pair,
        remarks=_remarks(facts, kind),
    )


def kind_of(facts: GgufFacts) -> FileKind:
    """What the file is for, by `general.type`, its architecture, and its tensors."""
    declared, architecture = facts.text("general.type"), facts.architecture
    if declared == "imatrix" or "imatrix.chunk_count" in facts.values:
        return FileKind.IMATRIX
    if architecture == "controlvector":
        return FileKind.CONTROL_VECTOR
    if declared == "adapter" or "adapter.type" in facts.values:
        return FileKind.ADAPTER
    if declared == "mmproj" or architecture == "clip":
        return FileKind.PROJECTOR
    if not facts.tensors and facts.vocabulary_size:
        return FileKind.VOCABULARY
    return FileKind.DRAFT if architecture in DRAFTS else FileKind.MODEL


def needs_of(facts: GgufFacts) -> DraftNeeds | None:
    """What a draft needs of its target; None for a model that needs nothing."""
    if facts.architecture not in DRAFTS:
        return None
    kind = facts.draft_architecture
    method = {"dspark": "DSpark", "eagle3": "EAGLE-3"}.get(kind or "", "DFlash")
    if method == "DFlash" and facts.number("selector_rank"):
        method = "DFlash 2"
    item = spec_type(f"draft-{kind}")
    block = facts.number("block_size")
    return DraftNeeds(
        method=method,
        spec_type=f"draft-{kind}",
        block_size=block,
        longest_draft=item.longest_draft(block) if item is not None else None,
        target_layers=facts.array("target_layers") or (),
        target_width=facts.number("target_hidden_size") or facts.number("embedding_length"),
    )


def type_for(draft: GgufFacts) -> SpecType:
    """The spec type a draft file is for: the one the engine detects, EAGLE-3 for its heads, else `draft-simple`."""
    found = detected_type(draft.draft_architecture, draft.nextn_layers)
    name = "draft-eagle3" if draft.architecture == "eagle3" else "draft-simple"
    return found or next(spec_kind for spec_kind in SPEC_TYPES if spec_kind.name == name)


def _types(facts: GgufFacts) -> tuple[TypeShare, ...]:
    by_kind: dict[int, list[Tensor]] = defaultdict(list)
    for tensor in facts.tensors:
        by_kind[tensor.kind].append(tensor)
    total = sum(tensor.elements for tensor in facts.tensors) or 1
    shares = []
    for kind, tensors in by_kind.items():
        name = TENSOR_TYPES[kind].name if kind in TENSOR_TYPES else f"type {kind}"
        count = sum(tensor.elements for tensor in tensors)
        shares.append(TypeShare(name, len(tensors), count, sum(tensor.size for tensor in tensors), count / total))
    return tuple(sorted(shares, key=lambda row: (-row.parameters, row.name)))


def _quantisation(facts: GgufFacts, types: tuple[TypeShare, ...]) -> str:
    """The declared one where a tensor is of its family, such as `Q4` or `IQ3`, else the most frequent type."""
    if not types:
        return "none"
    number = facts.values.get("general.file_type")
    declared = FILE_TYPES.get(number & ~GUESSED, "") if isinstance(number, int) and number >= 0 else ""
    if any(declared.split("_")[0] == row.name.split("_")[0] for row in types):
        return declared
    return types[0].name if len(types) == 1 else f"mostly {types[0].name}"


_METHODS = {"draft-eagle3": "an EAGLE-3", "draft-dflash": "a DFlash", "draft-dspark": "a DSpark"}


def _fit(item: SpecType, facts: GgufFacts, pair: DraftPair | None, parameters: int) -> tuple[bool | None, str]:
    """Whether a spec type can be used, and what it needs; None where it takes a draft that was not named."""
    if pair is not None and pair.spec_type == item.name:
        reason = next((row.said for row in pair.misfits if row.severity == "error"), "the draft fits")
        return pair.fits, reason
    if item.needs_heads:
        if not facts.nextn_layers:
            return False, "it has no prediction (nextn) layers; a draft file that has them would do"
        slow = parameters < MTP_PAYS_FROM
        return True, "it has the layers" + (", but under 2B parameters they slow it down" if slow else "")
    if item.reads_layers is not None:
        if not gives_layer_inputs(facts.architecture):
            return False, f"{facts.architecture} models do not give the layer inputs that it reads"
        return None, f"with {_METHODS[item.name]} draft made for this model"
    if item.needs_draft_model:
        return None, "with a smaller model of the same vocabulary"
    return True, "nothing"


def _remarks(facts: GgufFacts, kind: FileKind) -> tuple[str, ...]:
    found = []
    strange = sorted({tensor.kind for tensor in facts.tensors if tensor.kind not in TENSOR_TYPES})
    if strange:
        shown = ", ".join(str(number) for number in strange[:5])
        found.append(
            f"tensor types {shown} are unknown to b11434: removed, of a fork, or newer; sizes and length are not judged"
        )
    if kind in (FileKind.MODEL, FileKind.DRAFT) and facts.architecture not in KNOWN:
        named = f"the architecture {facts.architecture!r}" if facts.architecture else "a file without an architecture"
        found.append(f"{named} is unknown to b11434: the server would not load it, unless it is newer")
    return tuple(found)


def _a(kind: FileKind) -> str:
    return f"{'an' if str(kind)[0] in 'aeiou' else 'a'} {kind}"
