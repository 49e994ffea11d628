"""Every pair of tiny models with every way to speculate: what fits, how tokens are taken back, what is counted.

What fits follows from what a model gives and what a type needs, as the catalogue (`core.speculation`) has it; a type of
which nobody has said here what it drafts fails `test_every_type_is_in_the_matrix`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from specdash.core.speculation import SPEC_TYPES, MemoryKind, Rollback, SpecType, rollback
from support import known_truth as truth
from support import tiny_models as tiny
from support.known_truth import Counts, Drafter

WRONG_EVERY = 8
"""All drafts have the same words wrong, so that all types must be counted alike."""
TOKENS = 70
LONGEST = 7
"""Draft length of the types that draft with a model: all that a block of 8 allows."""
_SHORT, _LONG = 2, 600
"""Words in a prompt. n-gram types draft from what was there already: in the long one every word was. It is longer than
what the runner asks at the start, because ngram-map and ngram-cache learn nothing from the places of a slot's text at
which there was another before (b11549).
"""


class Fit(StrEnum):
    """What becomes of a combination."""

    FITS = "fits"
    POOR = "starts, and drafts badly"
    REFUSED = "refused"


@dataclass(frozen=True)
class Model:
    """A tiny model: how to write it, and what it gives. `made_for` is the type whose draft it is."""

    name: str
    write: Callable[[Path], Path]
    memory: MemoryKind = MemoryKind.ATTENTION
    gives_states: bool = False
    gives_layers: bool = True
    has_heads: bool = False
    made_for: str = "draft-simple"
    wrong_every: int = WRONG_EVERY
    """Of what it drafts by itself, as a plain draft model."""

    @property
    def recurrent(self) -> bool:
        """Whether some of its layers keep a state."""
        return self.memory in (MemoryKind.RECURRENT, MemoryKind.HYBRID)


def _small(write: Callable[..., Path]) -> Callable[[Path], Path]:
    return lambda path: write(path, wrong_every=WRONG_EVERY)


def _heads(path: Path) -> Path:
    return tiny.write_qwen35(path, heads_too=True, wrong_every=WRONG_EVERY)


_HYBRID = MemoryKind.HYBRID
TARGETS: dict[str, Model] = {
    model.name: model
    for model in (
        Model("plain", lambda path: tiny.write_llama(path, layers=3)),
        Model("recurrent", lambda path: tiny.write_mamba(path, layers=2), MemoryKind.RECURRENT, gives_layers=False),
        Model("hybrid", tiny.write_lfm2, _HYBRID, gives_states=True),
        Model("heads", _heads, _HYBRID, gives_states=True, has_heads=True),
    )
}
DRAFTS: dict[str, Model] = {
    model.name: model
    for model in (
        Model("small", _small(tiny.write_llama)),
        Model("small-recurrent", _small(tiny.write_mamba), MemoryKind.RECURRENT),
        Model("small-hybrid", _small(tiny.write_lfm2), _HYBRID),
        Model("heads-draft", _heads, _HYBRID, has_heads=True, made_for="draft-mtp", wrong_every=0),
        Model("eagle3", _small(tiny.write_eagle3), made_for="draft-eagle3"),
        Model("dflash", _small(tiny.write_dflash), made_for="draft-dflash"),
        Model("dspark", _small(tiny.write_dspark), made_for="draft-dspark"),
    )
}
_BLOCKS = {"draft-dflash", "draft-dspark"}
"""Types that load each other's drafts: one architecture, with a Markov head or without."""


def fit(target: Model, draft: Model | None, spec_type: SpecType) -> tuple[Fit, str]:
    """What becomes of a combination, and the rule of preflight that says so."""
    if not spec_type.reads_draft_model:
        return (Fit.FITS, "") if draft is None else (Fit.POOR, "settings")
    if spec_type.needs_heads:
        return (Fit.FITS, "") if (draft or target).has_heads else (Fit.REFUSED, "nextn-layers")
    if draft is None:
        return Fit.REFUSED, "settings"
    if spec_type.reads_layers is not None:
        kin = {spec_type.name, draft.made_for} <= _BLOCKS
        if not target.gives_layers or (draft.made_for != spec_type.name and not kin):
            return Fit.REFUSED, "draft-architecture"
        return (Fit.FITS, "") if draft.made_for == spec_type.name else (Fit.POOR, "draft-architecture")
    if draft.recurrent and not target.recurrent:
        return Fit.REFUSED, "recurrent-draft"
    if any(other.reads_layers is not None and draft.made_for == other.name for other in SPEC_TYPES):
        return Fit.POOR, "draft-architecture"
    return Fit.FITS, ""


def combinations() -> Iterator[tuple[Model, Model | None, SpecType]]:
    """Every target with every draft, and without, with every type."""
    for spec_kind in SPEC_TYPES:
        for target in TARGETS.values():
            for draft in (None, *DRAFTS.values()):
                yield target, draft, spec_kind


@dataclass(frozen=True)
class Cell:
    """One combination that works. `types` is the chain, in the engine's priority."""

    target: Model
    draft: Model | None
    types: tuple[SpecType, ...]

    @property
    def name(self) -> str:
        """A name for reports."""
        drafts = f"+{self.draft.name}" if self.draft is not None else ""
        return f"{self.target.name}{drafts}:{','.join(kind.name for kind in self.types)}"

    @property
    def rollback(self) -> Rollback:
        """How the target takes rejected tokens of this chain back: of several ways, the costliest."""
        ways = {rollback(kind, self.target.memory, gives_states=self.target.gives_states) for kind in self.types}
        return next(way for way in (Rollback.CHECKPOINT, Rollback.STATE, Rollback.CUT) if way in ways)

    @property
    def cut_back(self) -> int | None:
        """How long a draft may be to be taken back without a replay; None: as long as any."""
        if not self.target.recurrent:
            return None
        keeps = self.target.gives_states and any(kind.keeps_states for kind in self.types)
        return LONGEST if keeps else 0

    @property
    def drafts_with_model(self) -> bool:
        """Whether a model is among the drafters."""
        return any(kind.reads_draft_model for kind in self.types)

    def env(self, files: dict[str, Path], slots: int) -> dict[str, str]:
        """The env file's keys that run it, but for engine and port."""
        values = {
            "LLAMA_MODEL": str(files[self.target.name]),
            "LLAMA_SPEC_TYPE": ",".join(kind.name for kind in self.types),
            "LLAMA_CTX_SIZE": str(4096 * slots),
            "LLAMA_PARALLEL": str(slots),
            "LLAMA_THREADS": "1",
        }
        if self.draft is not None:
            values["LLAMA_DRAFT_MODEL"] = str(files[self.draft.name])
        if self.drafts_with_model:
            values["LLAMA_EXTRA_ARGS"] = f"--spec-draft-n-max {LONGEST}"
        return values

    def prompts(self, count: int = 2) -> list[list[int]]:
        """So many prompts as tokens; a chain learns its n-grams on the way."""
        firsts = [5 + 12 * number for number in range(count)]
        if self.types[0].name == "ngram-simple":
            return [_misleading(first) for first in firsts]
        if self.drafts_with_model:
            return [[1, *_recited(first, _SHORT + number)] for number, first in enumerate(firsts)]
        return [[1, *_recited(5, _LONG + number)] for number in range(count)]

    @property
    def tokens(self) -> int:
        """Tokens to ask for: in a chain more, until the n-gram type has seen the sentence."""
        return TOKENS if len(self.types) == 1 else 3 * TOKENS

    def known(self, tokens: int | None = None, count: int = 2) -> list[Counts]:
        """What must be counted for each of so many prompts, asked one after the other; of `tokens` tokens each."""
        table = truth.NgramMod(24, 48, 64)
        drafter = truth.chain([self._drafter(kind, table) for kind in self.types])
        found = []
        for prompt in self.prompts(count):
            table.start(prompt)
            found.append(truth.run(prompt, tokens or self.tokens, drafter, self.cut_back))
        return found

    @property
    def depends_on_order(self) -> bool:
        """Whether what two requests at once draft depends on which is ahead: they fill one table."""
        return len(self.types) > 1 and any(kind.name == "ngram-mod" for kind in self.types)

    def _drafter(self, spec_type: SpecType, table: truth.NgramMod) -> Drafter:
        if spec_type.reads_draft_model:
            wrong = self.draft.wrong_every if self.draft is not None and not spec_type.needs_heads else WRONG_EVERY
            return truth.by_model(wrong, LONGEST)
        return table if spec_type.name == "ngram-mod" else _NGRAMS[spec_type.name]


def _recited(first: int, words: int) -> Sequence[int]:
    return [tiny.FIRST_WORD + (first + word) % len(tiny.SENTENCE) for word in range(words)]


def _misleading(first: int) -> list[int]:
    """A prompt of which a part is there twice, and goes on as the sentence does the second time only."""
    return [1, *_recited(first, 20), *_recited(first + 35, 60), *_recited(first, 15)]


_NGRAMS: dict[str, Drafter] = {
    "ngram-simple": truth.ngram_simple,
    "ngram-map-k": truth.ngram_map,
    "ngram-map-k4v": truth.ngram_map,
    "ngram-cache": truth.by_model(0, 8),
}
"""What each draws from a prompt that has the whole sentence; the cache learns from prompts alone."""
DRAFTERS = {spec_kind.name for spec_kind in SPEC_TYPES if spec_kind.reads_draft_model} | {"ngram-mod", *_NGRAMS}
"""Types of which the matrix knows what they draft."""
CHAINS = (
    ("plain", "small", "ngram-simple,draft-simple"),
    ("recurrent", "small", "ngram-mod,draft-simple"),
    ("hybrid", "eagle3", "ngram-simple,draft-eagle3"),
    ("heads", None, "ngram-mod,draft-mtp"),
)


def cells() -> list[Cell]:
    """Every combination that fits, and some chains."""
    single = [
        Cell(target, draft, (spec_type,))
        for target, draft, spec_type in combinations()
        if fit(target, draft, spec_type)[0] is Fit.FITS
    ]
    chained = [
        Cell(
            TARGETS[target],
            DRAFTS[draft] if draft is not None else None,
            tuple(spec_kind for spec_kind in SPEC_TYPES if spec_kind.name in names.split(",")),
        )
        for target, draft, names in CHAINS
    ]
    return single + chained


def write_models(folder: Path) -> dict[str, Path]:
    """Write all models; their files by name."""
    return {
        target.name: target.write(folder / f"{target.name}.gguf") for target in (*TARGETS.values(), *DRAFTS.values())
    }
