"""What a llama-server log can say, as data: the facts that the log parser makes and everything above reads.

A *batch* is what one read of the log yielded. Lines that carry numbers become facts, in file order. Those that may come
by the million are added up: verification steps to one fact for many, warnings to one tally per batch, so that a storm
costs one small object. `at_s` is the line's own time stamp: seconds since the server's start, None when the log has no
time stamps. `origin` is the port of the child server whose line a router repeated, None for the server's own lines:
slot and task numbers, and time stamps, count per origin.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def fact(cls: type[T]) -> type[T]:
    """A slotted dataclass that type checkers hold to be frozen.

    Facts are made by the hundred thousand. A dataclass frozen at run time takes four times as long to make, which would
    be a third of the whole cost of a line, so the check is left to mypy.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


@fact
class TaskLaunched:
    """A slot began a task (`processing task`)."""

    slot: int
    task: int
    at_s: float | None = None
    origin: int | None = None


@fact
class TaskReleased:
    """A slot ended a task (`stop processing`); `n_tokens` is the slot's length then."""

    slot: int
    task: int
    n_tokens: int | None = None
    truncated: bool | None = None
    at_s: float | None = None
    origin: int | None = None


@fact
class TaskCancelled:
    """The client went away or cancelled (`cancel task, id_task = N`); the slot is not named by the line."""

    task: int
    at_s: float | None = None
    origin: int | None = None


@fact
class TaskFailed:
    """The server answered a task with an error (`task id = N, error: …`); `error` is the server's own text."""

    task: int
    error: str
    at_s: float | None = None
    origin: int | None = None


@fact
class PromptStarted:
    """`new prompt`: length of the request's prompt in tokens."""

    slot: int
    task: int
    n_ctx_slot: int | None = None
    prompt_tokens: int | None = None
    at_s: float | None = None
    origin: int | None = None


@fact
class PromptReused:
    """`cached n_tokens = N, memory_seq_rm [..)`: the first after `PromptStarted` is the prompt-cache hit in tokens."""

    slot: int
    task: int
    cached_tokens: int
    at_s: float | None = None
    origin: int | None = None


@fact
class PrefillProgress:
    """Prefill under way: tokens so far, fraction 0 to 1, and the rate in tokens per second where the line has it."""

    slot: int
    task: int
    n_tokens: int
    progress: float
    seconds: float | None = None
    tokens_per_second: float | None = None
    at_s: float | None = None
    origin: int | None = None


@fact
class DecodeProgress:
    """Decode under way: tokens generated so far, mean tokens per second, and of the last seconds, where printed."""

    slot: int
    task: int
    n_decoded: int
    tokens_per_second: float
    recent_tokens_per_second: float | None = None
    at_s: float | None = None
    origin: int | None = None


@fact
class PromptTiming:
    """`prompt eval time`: milliseconds and tokens actually processed (cached tokens excluded)."""

    slot: int | None
    task: int | None
    ms: float
    tokens: int
    at_s: float | None = None
    origin: int | None = None


@fact
class DecodeTiming:
    """`eval time`: milliseconds and tokens generated."""

    slot: int | None
    task: int | None
    ms: float
    tokens: int
    at_s: float | None = None
    origin: int | None = None


@fact
class TotalTiming:
    """`total time`."""

    slot: int | None
    task: int | None
    ms: float
    tokens: int
    at_s: float | None = None
    origin: int | None = None


@fact
class RequestAcceptance:
    """`draft acceptance`: draft tokens accepted and generated over one finished request."""

    slot: int | None
    task: int | None
    accepted: int
    generated: int
    mean_accepted_length: float | None = None
    per_position: tuple[float, ...] | None = None
    at_s: float | None = None
    origin: int | None = None


@fact
class AcceptancePerPosition:
    """`acc per pos`: share of one request's verification steps whose draft token at position 0, 1, … was accepted."""

    slot: int | None
    task: int | None
    rates: tuple[float, ...]
    at_s: float | None = None
    origin: int | None = None


@fact
class VerificationSteps:
    """Verification steps of one slot's task, added up (`LLAMA_TRACE=1`), from `first_s` to `at_s`.

    The steps come one after the other, with no fact about anything but steps between them, and within a second where
    the log has time stamps. `accepted` draft tokens of `generated` belong to `steps`. A step that follows a checkpoint
    restore repeats tokens already counted: it is one of `replays`, and no part of the sums. `restored` says how many of
    them all, replays included, were followed by a restore. The replays decoded `replayed` tokens for a second time, and
    took `replay_s` seconds from the restore to their own end, 0 where the log has no time stamps.
    """

    slot: int
    task: int
    steps: int
    accepted: int
    generated: int
    replays: int = 0
    restored: int = 0
    first_s: float | None = None
    at_s: float | None = None
    origin: int | None = None
    replayed: int = 0
    replay_s: float = 0.0


@fact
class SpeculativeStatistics:
    """`statistics TYPE`: cumulative over all slots since the server's start, per speculative implementation.

    `type` is the current name of the implementation (`draft-simple`), `printed_type` the name as printed by the build
    that wrote the log (`draft`). Call counts are (begin, generate, accept), of old builds the one count they print;
    durations in milliseconds likewise. On checkpoint models the accepted tokens include replays, so never mix them with
    per-request numbers.
    """

    type: str
    drafts_generated: int
    drafts_accepted: int
    tokens_generated: int
    tokens_accepted: int
    calls: tuple[int, ...] = ()
    mean_accepted_length: float | None = None
    acceptance_per_position: tuple[float, ...] | None = None
    durations_ms: tuple[float, ...] = ()
    at_s: float | None = None
    origin: int | None = None
    printed_type: str = ""


@fact
class CheckpointEvent:
    """A context or speculative checkpoint was created, restored or erased. `size_mib` is its size in MiB."""

    action: str
    """`created`, `restored`, `erased`, `superseded`, `checked` or `full_reprocess`."""
    kind: str
    """`context` or `speculative`."""
    slot: int | None = None
    task: int | None = None
    n_tokens: int | None = None
    size_mib: float | None = None
    at_s: float | None = None
    origin: int | None = None


@fact
class PromptCacheState:
    """` - cache state: N prompts, M MiB`: what the prompt cache in host memory holds."""

    prompts: int
    size_mib: float
    limit_mib: float | None = None
    limit_tokens: int | None = None
    at_s: float | None = None
    origin: int | None = None


@fact
class SlotSelected:
    """Why a slot was picked: `lcp` (shared prefix), `lru` or `id`. `similarity` is the prompt's shared fraction."""

    slot: int
    how: str
    similarity: float | None = None
    at_s: float | None = None
    origin: int | None = None


@fact
class ServerEvent:
    """A start-up or life-cycle line worth showing: `name` is the line class, `fields` its values as text.

    The name `restarted` stands for no line: it marks the place where a new server begins to write to the same log.
    """

    name: str
    fields: tuple[tuple[str, str], ...] = ()
    at_s: float | None = None
    origin: int | None = None

    def get(self, key: str) -> str | None:
        """The value of one field, None when the line has no such field."""
        return dict(self.fields).get(key)


TOUCHED_KEPT: Final = 256


@dataclass(frozen=True, slots=True)
class Touched:
    """Which slots, or tasks, lines of one class name: distinct numbers, those named last at the end, `TOUCHED_KEPT` at
    most. `more` says that there are or may be others, so that their count is a least one."""

    ids: tuple[int, ...] = ()
    more: bool = False

    def and_then(self, later: Touched) -> Touched:
        """Those of earlier and of `later` lines."""
        if not later.ids or later.ids == self.ids:
            return self if self.more or not later.more else Touched(self.ids, more=True)
        latest = frozenset(later.ids)
        ids = (*(one for one in self.ids if one not in latest), *later.ids)
        return Touched(ids[-TOUCHED_KEPT:], self.more or later.more or len(ids) > TOUCHED_KEPT)


UNTOUCHED: Final = Touched()


@dataclass(frozen=True, slots=True)
class WarningTally:
    """All lines of one warning class that one server wrote in one batch: how many, time stamps of the first
    and last, the first line, and the slots and tasks that they name.

    `warning` is the line class's id; `specdash.llama.log_grammar.WARNING_CLASSES` has its title, severity and note.
    """

    warning: str
    count: int
    first_s: float | None
    last_s: float | None
    sample: str
    slots: Touched = UNTOUCHED
    tasks: Touched = UNTOUCHED
    lives_ago: int = 0
    """How many times a new server began in the batch after these lines."""

    def and_then(self, later: WarningTally) -> WarningTally:
        """Both tallies of the class in one."""
        return replace(
            self,
            count=self.count + later.count,
            first_s=self.first_s if self.first_s is not None else later.first_s,
            last_s=later.last_s if later.last_s is not None else self.last_s,
            slots=self.slots.and_then(later.slots),
            tasks=self.tasks.and_then(later.tasks),
        )


LogFact = (
    TaskLaunched
    | TaskReleased
    | TaskCancelled
    | TaskFailed
    | PromptStarted
    | PromptReused
    | PrefillProgress
    | DecodeProgress
    | PromptTiming
    | DecodeTiming
    | TotalTiming
    | RequestAcceptance
    | AcceptancePerPosition
    | VerificationSteps
    | SpeculativeStatistics
    | CheckpointEvent
    | PromptCacheState
    | SlotSelected
    | ServerEvent
)


@dataclass(frozen=True, slots=True)
class LogBatch:
    """What one read of the log yielded."""

    lines: int = 0
    unrecognised: int = 0
    facts: tuple[LogFact, ...] = ()
    warnings: tuple[WarningTally, ...] = ()
    tail: tuple[str, ...] = field(default=(), repr=False)
    """The last raw lines of the batch, cleaned of colour codes, for the log pane; bounded."""
    restarted: bool = False
    """The file was truncated or replaced, or its time stamps went back: a new server writes it now."""
    unrecognised_samples: tuple[str, ...] = field(default=(), repr=False)
    """A few of the lines not understood, cleaned and cut like `tail`."""
    age_s: float | None = None
    """How old the newest of these lines was when it was read, in seconds by the file's own time; None if unknown. Of a
    server that another one followed before anybody looked it is the least that it can be."""
    more_follows: bool = False
    """More of what the file had before anybody looked follows."""
