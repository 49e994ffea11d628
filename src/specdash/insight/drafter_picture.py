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
    """Empty where only means were published."""
    mean_accepted_length: float | None = None
    acceptance: float | None = None
    distance: float | None = None
    """Root mean square difference to the drafter's own shares, over the positions that both have."""


@dataclass(frozen=True, slots=True)
class PositionBin:
    """Neighbouring positions and their mean share: what a chart of 64 positions can show."""

    first: int
    last: int
    rate: float


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
    of_chain: bool = False
    """The figures are of all types of a chain together: the server does not tell them apart."""
    bins: tuple[PositionBin, ...] = ()
    """The positions one by one up to 16 of them, else in bins that double."""
    steps: float | None = None
    """Verification steps that they rest on."""
    references: tuple[ReferenceCurve, ...] = ()
    """Published curves of the same type, the nearest first."""
    acceptance: float | None = None
    """Accepted over drafted tokens, on the same basis."""
    mean_accepted_length: float | None = None
    break_even_length: float | None = None
    """Tokens per decode call, replays counted, at which speculation costs what it gains, at this draft length: what
    `effective_length` is to be compared with."""
    break_even_acceptance: float | None = None
    break_even_basis: str = ""
    """What the cost of a step rests on: `measured`, or the assumption in words."""
    best_length: int | None = None
    """Draft length, up to the present one, at which these positions and costs would give the most tokens per second;
    None where unknown."""
    best_gain: float | None = None
    """How much faster than the present length that would be: 0.08 is 8 %."""
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
class ReplayFigures:
    """What replays cost over some time. See `CheckpointsPicture`."""

    basis: str = ""
    """`trace`: from verification steps (LLAMA_TRACE=1); `counters`: from totals of /metrics; `requests`: from the log's
    lines at the end of the latest requests; "" for none of them. Only a trace tells replays apart."""
    steps: int = 0
    """Verification steps, replays not counted."""
    replays: int = 0
    """Decodes that were a replay after a restore; without a trace the most that there can have been."""
    replayed_tokens: int | None = None
    """Tokens that they decoded for a second time; None where only a trace would tell."""
    lost_s: float | None = None
    """Decode time that went into replays: by the log's time stamps, else the mean time of a decode call each, which is
    too much."""
    lost_share: float | None = None
    """The same as a share of decode time."""
    mean_accepted_length: float | None = None
    """As the server prints it: replays not counted."""
    effective_length: float | None = None
    """Tokens per decode call, replays counted: the honest gain."""


@dataclass(frozen=True, slots=True)
class CheckpointsPicture:
    """How rejected tokens are taken back, and what that costs: over the window where not said otherwise, and since the
    server's start where the window has no step."""

    memory: MemoryKind | None = None
    rollback: Rollback | None = None
    because: str = ""
    """Why it is taken back so, in one sentence."""
    context: CheckpointCounts = CheckpointCounts()
    """Of whole prompts (verbosity 4)."""
    speculative: CheckpointCounts = CheckpointCounts()
    """Before drafts (verbosity 5)."""
    full_reprocessed: int = 0
    """Prompts that were processed from the start again for want of a checkpoint, by the server that writes the log."""
    held: bool = False
    """The figures are since the server's start, for the window has no step."""
    basis: str = ""
    """From what they are: see `ReplayFigures`, which has the meaning of all of them."""
    steps: int = 0
    replays: int = 0
    replayed_tokens: int | None = None
    lost_s: float | None = None
    lost_share: float | None = None
    mean_accepted_length: float | None = None
    effective_length: float | None = None
    lifetime: ReplayFigures = ReplayFigures()
    """The same since the server's start."""
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
    hits: int | None = 0
    """Times that a better prompt was found there, since the server's start (verbosity 4); these three are None where
    the log was not read from its beginning."""
    saves: int | None = 0
    evicted: int | None = 0
    """Prompts dropped from it to make room, or left out because they do not fit, in all of the log."""
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
