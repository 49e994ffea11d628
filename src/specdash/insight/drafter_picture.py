"""What is particular to the drafter in force, as the picture has it: types only.

Positions count from 0. Rates are tokens per second, fractions 0 to 1, sizes MiB where named so, times seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specdash.core.start_check import Drafting

if TYPE_CHECKING:
    from specdash.core.speculation import MemoryKind, Rollback


@dataclass(frozen=True, slots=True)
class DraftingPicture:
    """Did it really speculate? `because` is one sentence; `fix` the next step, "" where none is needed."""

    state: Drafting = Drafting.UNKNOWN
    because: str = ""
    fix: str = ""
    checked_age_s: float | None = None
    """Age of the check at the start; None when there was none."""


@dataclass(frozen=True, slots=True)
class ReferenceCurve:
    """A published acceptance per position. `source` names the publication."""

    name: str
    source: str
    per_position: tuple[float, ...]
    mean_accepted_length: float | None = None


@dataclass(frozen=True, slots=True)
class DrafterPicture:
    """How well the drafter does, position by position, against what was published and against the break-even."""

    type: str | None = None
    """The type of the chain that this is about: the one that drafts with a model, else the first."""
    asked_length: int | None = None
    """Longest draft that was asked for."""
    block_size: int | None = None
    """Block that the draft was trained on, for block drafts."""
    effective_length: int | None = None
    """Longest draft after the engine's clamp."""
    clamps: tuple[str, ...] = ()
    """What the engine said that it reduced."""
    per_position: tuple[float, ...] = ()
    """Share of verification steps whose token at position i was accepted: of the window, else since the start."""
    per_position_basis: str = ""
    """`window` or `lifetime`."""
    references: tuple[ReferenceCurve, ...] = ()
    """Published curves of the same type, the nearest first."""
    acceptance: float | None = None
    """Accepted over drafted tokens, on the same basis."""
    mean_accepted_length: float | None = None
    break_even_length: float | None = None
    """Tokens per step at which speculation costs what it gains, at this draft length."""
    break_even_acceptance: float | None = None
    break_even_basis: str = ""
    """What the cost of a step rests on: `measured`, or the assumption in words."""
    best_length: int | None = None
    """Draft length at which these positions and costs would give the most tokens per second; None where unknown."""
    verdict: str = ""
    """One sentence."""


@dataclass(frozen=True, slots=True)
class CheckpointCounts:
    """Checkpoints of one kind, over the life of the server that writes the log."""

    created: int = 0
    restored: int = 0
    erased: int = 0
    size_mib: float | None = None
    """Size of the latest."""


@dataclass(frozen=True, slots=True)
class CheckpointsPicture:
    """How rejected tokens are taken back, and what that costs: over the window where not said otherwise."""

    memory: MemoryKind | None = None
    rollback: Rollback | None = None
    because: str = ""
    """Why it is taken back so, in one sentence."""
    context: CheckpointCounts = CheckpointCounts()
    """Of whole prompts (verbosity 4)."""
    speculative: CheckpointCounts = CheckpointCounts()
    """Before drafts (verbosity 5)."""
    full_reprocessed: int = 0
    """Prompts that were processed from the start again for want of a checkpoint."""
    steps: int = 0
    """Verification steps seen (LLAMA_TRACE=1), replays not counted."""
    replays: int = 0
    """Steps that were a replay after a restore."""
    replayed_tokens: int | None = None
    lost_s: float | None = None
    """Decode time that went into replays, estimated from the time of a step."""
    lost_share: float | None = None
    """The same as a share of decode time."""
    mean_accepted_length: float | None = None
    """As the server prints it: replays not counted."""
    effective_length: float | None = None
    """Tokens per decode call, replays counted: the honest gain."""
    verdict: str = ""
    """One sentence."""


@dataclass(frozen=True, slots=True)
class PrefixRequest:
    """One finished request: how much of its prompt was there already."""

    ended_age_s: float
    slot: int | None = None
    task: int | None = None
    session: str | None = None
    prompt_tokens: int | None = None
    """Length of its prompt."""
    cached: int | None = None
    processed: int | None = None
    ttft_s: float | None = None
    similarity: float | None = None

    @property
    def cached_share(self) -> float | None:
        """Cached over prompt tokens."""
        if not self.prompt_tokens or self.cached is None:
            return None
        return self.cached / self.prompt_tokens


@dataclass(frozen=True, slots=True)
class PrefixSession:
    """One session of the proxy's clients, over the requests kept."""

    id: str
    requests: int
    cached: int
    processed: int
    ttft_warm_s: float | None = None
    ttft_cold_s: float | None = None

    @property
    def cached_share(self) -> float | None:
        """Cached over prompt tokens."""
        total = self.cached + self.processed
        return self.cached / total if total else None


@dataclass(frozen=True, slots=True)
class PrefixSlot:
    """What one slot holds."""

    id: int
    tokens: int | None = None
    similarity: float | None = None
    """Of its last request's prompt with what it held."""
    busy: bool = False


@dataclass(frozen=True, slots=True)
class PrefixCachePicture:
    """Cached against processed prompt tokens, and what the cache saves."""

    cached: int | None = None
    """Prompt tokens that were there already, over the window."""
    processed: int | None = None
    cached_share: float | None = None
    lifetime_share: float | None = None
    requests: tuple[PrefixRequest, ...] = ()
    """Newest first; bounded."""
    sessions: tuple[PrefixSession, ...] = ()
    """Most recent first; bounded."""
    slots: tuple[PrefixSlot, ...] = ()
    ttft_warm_s: float | None = None
    """Median over requests with at least half of their prompt cached."""
    ttft_cold_s: float | None = None
    """Median over the others."""
    warm: int = 0
    cold: int = 0
    saved_s: float | None = None
    """Prefill time that the cache saved over the window, at the prefill rate of the processed tokens."""
    entries: int | None = None
    """Prompts in the prompt cache in host memory (verbosity 4)."""
    size_mib: float | None = None
    limit_mib: float | None = None
    hits: int = 0
    """Times that a better prompt was found there, since the server's start (verbosity 4)."""
    saves: int = 0
    evicted: int = 0
    """Prompts dropped from it to make room, or left out because they do not fit, as far as the log was read."""
    full_reprocessed: int = 0
    """Prompts of the window that were read from their start for want of a checkpoint (verbosity 4)."""
    similarity: float | None = None
    """Median over the window's requests that a slot was picked for because of it."""
    basis: str = ""
    """Where `cached` and `processed` are from: `counters`, `log` or `proxy`; empty where they are not known."""
    ttft_basis: str = ""
    """What the TTFT is: `proxy`, as its clients had it, or `prompt`, the time that the server took for the prompt."""
    prefill_rate: float | None = None
    """Of prompts long enough to tell, in tokens per second: what `saved_s` rests on."""
    unknown: str = ""
    """What cannot be told, and what would tell it; empty where everything is."""
    verdict: str = ""
    """One sentence."""


@dataclass(frozen=True, slots=True)
class RouterModelPicture:
    """One model behind a router."""

    id: str
    status: str
    last_used_age_s: float | None = None
    spec_types: tuple[str, ...] | None = None
    watched: bool = False
    """The one that this picture is of."""
    failure: str = ""


@dataclass(frozen=True, slots=True)
class RouterPicture:
    """The models of a router; empty for a server that is none."""

    models: tuple[RouterModelPicture, ...] = ()
    any_means: str | None = None
    """What the model name `any` means now; None when no model is resident."""
    reason: str = ""
    """Why the models are not known."""


@dataclass(frozen=True, slots=True)
class SpeculationViews:
    """The views of the speculation screen."""

    drafting: DraftingPicture = field(default_factory=DraftingPicture)
    drafter: DrafterPicture = field(default_factory=DrafterPicture)
    checkpoints: CheckpointsPicture = field(default_factory=CheckpointsPicture)
    prefix_cache: PrefixCachePicture = field(default_factory=PrefixCachePicture)
    router: RouterPicture = field(default_factory=RouterPicture)
