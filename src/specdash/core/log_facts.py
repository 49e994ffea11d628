"""What a llama-server log can say, as data: the facts that the log parser makes and everything above reads.

A *batch* is what one read of the log yielded. Lines that carry numbers become facts, in file order. Those that may come
by the million are added up: verification steps to one fact for many, warnings to one tally per batch, so that a storm
costs one small object. `at_s` is the line's own time stamp: seconds since the server's start, None when the log has no
time stamps. A router repeats the lines of its children: their facts are apart, by the port of the child.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from typing import Final

from msgspec.structs import replace

from specdash.core.structs import Fact, Masked, TaggedFact


class OfLine(TaggedFact, frozen=True, kw_only=True):
    """What a line says; `at_s` is its own time stamp."""

    at_s: float | None = None


class OfTask(OfLine, frozen=True):
    """What a line says of a slot's task."""

    slot: int
    task: int


class _OfRequest(OfLine, frozen=True):
    """The same at a request's end, where some lines name neither."""

    slot: int | None
    task: int | None


class _Timing(_OfRequest, frozen=True):
    ms: float
    tokens: int


class TaskLaunched(OfTask, frozen=True):
    """A slot began a task (`processing task`)."""


class TaskReleased(OfTask, frozen=True):
    """A slot ended a task (`stop processing`); `n_tokens` is the slot's length then."""

    n_tokens: int | None = None
    truncated: bool | None = None


class TaskCancelled(OfLine, frozen=True):
    """The client went away or cancelled (`cancel task, id_task = N`); the slot is not named by the line."""

    task: int


class TaskFailed(OfLine, frozen=True):
    """The server answered a task with an error (`task id = N, error: …`); `error` is the server's own text."""

    task: int
    error: str


class PromptStarted(OfTask, frozen=True):
    """`new prompt`: length of the request's prompt in tokens."""

    n_ctx_slot: int | None = None
    prompt_tokens: int | None = None


class PromptReused(OfTask, frozen=True):
    """`cached n_tokens = N, memory_seq_rm [..)`: the first after `PromptStarted` is the prompt-cache hit in tokens."""

    cached_tokens: int


class PrefillProgress(OfTask, frozen=True):
    """Prefill under way: tokens so far, fraction 0 to 1, and the rate in tokens per second where the line has it."""

    n_tokens: int
    progress: float
    seconds: float | None = None
    tokens_per_second: float | None = None


class DecodeProgress(OfTask, frozen=True):
    """Decode under way: tokens generated so far and their mean tokens per second."""

    n_decoded: int
    tokens_per_second: float


class PromptTiming(_Timing, frozen=True):
    """`prompt eval time`: milliseconds and tokens actually processed (cached tokens excluded)."""


class DecodeTiming(_Timing, frozen=True):
    """`eval time`: milliseconds and tokens generated."""


class TotalTiming(_Timing, frozen=True):
    """`total time`."""


class RequestAcceptance(_OfRequest, frozen=True):
    """`draft acceptance`: draft tokens accepted and generated over one finished request."""

    accepted: int
    generated: int
    mean_accepted_length: float | None = None
    per_position: tuple[float, ...] | None = None


class AcceptancePerPosition(_OfRequest, frozen=True):
    """`acc per pos`: share of one request's verification steps whose draft token at position 0, 1, … was accepted."""

    rates: tuple[float, ...]


class VerificationSteps(OfTask, frozen=True):
    """Verification steps of one slot's task, added up (`LLAMA_TRACE=1`), from `first_s` to `at_s`.

    The steps come one after the other, with no fact about anything but steps between them, and within a second where
    the log has time stamps. `accepted` draft tokens of `generated` belong to `steps`. A step that follows a checkpoint
    restore repeats tokens already counted: it is one of `replays`, and no part of the sums. `restored` says how many of
    them all, replays included, were followed by a restore. The replays decoded `replayed` tokens for a second time, and
    took `replay_s` seconds from the restore to their own end, 0 where the log has no time stamps.
    """

    steps: int
    accepted: int
    generated: int
    replays: int = 0
    restored: int = 0
    first_s: float | None = None
    replayed: int = 0
    replay_s: float = 0.0


class SpeculativeStatistics(OfLine, frozen=True):
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
    printed_type: str = ""

    @property
    def acceptance(self) -> float | None:
        """Accepted over generated tokens."""
        return self.tokens_accepted / self.tokens_generated if self.tokens_generated else None

    @property
    def length(self) -> float | None:
        """Tokens per draft: one and those accepted."""
        return 1.0 + self.tokens_accepted / self.drafts_generated if self.drafts_generated else None

    @property
    def seconds(self) -> float | None:
        """Time spent drafting."""
        return sum(self.durations_ms) / 1000.0 if self.durations_ms else None


class CheckpointEvent(OfLine, frozen=True):
    """A context or speculative checkpoint was created, restored or erased. `size_mib` is its size in MiB."""

    action: str
    """`created`, `restored`, `erased`, `superseded`, `checked` or `full_reprocess`."""
    kind: str
    """`context` or `speculative`."""
    slot: int | None = None
    task: int | None = None
    n_tokens: int | None = None
    size_mib: float | None = None


class PromptCacheState(OfLine, frozen=True):
    """` - cache state: N prompts, M MiB`: what the prompt cache in host memory holds."""

    prompts: int
    size_mib: float
    limit_mib: float | None = None
    limit_tokens: int | None = None


class SlotSelected(OfLine, frozen=True):
    """Why a slot was picked: `lcp` (shared prefix), `lru` or `id`. `similarity` is the prompt's shared fraction."""

    slot: int
    how: str
    similarity: float | None = None
    kept: float | None = None
    """Share of what the slot held that this start is."""


class ServerEvent(OfLine, frozen=True):
    """A start-up or life-cycle line worth showing: `name` is the line class, `fields` its values as text.

    The name `restarted` stands for no line: it marks the place where a new server begins to write to the same log.
    """

    name: str
    fields: tuple[tuple[str, str], ...] = ()

    def get(self, key: str) -> str | None:
        """The value of one field, None when the line has no such field."""
        return dict(self.fields).get(key)


TOUCHED_KEPT: Final = 256


class Touched(Fact, frozen=True):
    """Which slots, or tasks, lines of one class name: distinct numbers, those named last at the end, `TOUCHED_KEPT` at
    most. `more` says that there are or may be others, so that their count is a least one."""

    ids: tuple[int, ...] = ()
    more: bool = False

    def and_then(self, later: Touched) -> Touched:
        """Those of earlier and of `later` lines."""
        latest_first = dict.fromkeys(reversed((*self.ids, *later.ids)))
        more = self.more or later.more or len(latest_first) > TOUCHED_KEPT
        return Touched(tuple(latest_first)[TOUCHED_KEPT - 1 :: -1], more)


UNTOUCHED: Final = Touched()


class WarningTally(Fact, frozen=True):
    """All lines of one warning class that one server wrote in one batch: how many, time stamps of the first
    and last, the first line, and the slots and tasks that they name.

    `warning` is the line class's id; `specdash.llama.log.LINE_CLASSES` has its title, severity and note.
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


DETAIL, NOTABLE = "-", "+"
"""A log line about a step within a request, and one that an operator looks for."""


LogLine = tuple[str, bool]
"""A raw line for people, and whether it is detail."""


class ChildFacts(Fact, frozen=True):
    """What lines of a router's child say; its slots, tasks and time stamps are its own."""

    port: int
    facts: tuple[LogFact, ...] = ()


class LogBatch(Masked, Fact, frozen=True):
    """What one read of the log yielded."""

    hidden = ("tail", "unrecognised_samples", "tail_kinds")

    lines: int = 0
    unrecognised: int = 0
    """Lines with the level of a warning or an error that are of no class."""
    facts: tuple[LogFact, ...] = ()
    warnings: tuple[WarningTally, ...] = ()
    tail: tuple[str, ...] = ()
    """The last raw lines of the batch, and of those before them the last that are no detail, in order and cleaned of
    colour codes, for the log pane; bounded."""
    restarted: bool = False
    """The file was truncated or replaced, or its time stamps went back: a new server writes it now."""
    unrecognised_samples: tuple[str, ...] = ()
    """A few of the warnings and errors of no class, cleaned and cut like `tail`."""
    age_s: float | None = None
    """How old the newest of these lines was when it was read, in seconds by the file's own time; None if unknown."""
    more_follows: bool = False
    """More of what the file had before anybody looked follows."""
    tail_kinds: str = ""
    """Of each line of `tail` whether it is `DETAIL` or `NOTABLE`; "" where it is unknown."""
    children: tuple[ChildFacts, ...] = ()
    """Of a router's children."""

    @property
    def by_server(self) -> tuple[tuple[int | None, tuple[LogFact, ...]], ...]:
        """The facts of the server itself, whose port is None, and of each child."""
        return ((None, self.facts), *((child.port, child.facts) for child in self.children))

    @property
    def every_fact(self) -> tuple[LogFact, ...]:
        """The facts of the server and its children."""
        return tuple(fact for _, facts in self.by_server for fact in facts)


class Series:
    """The newest (monotonic time, value) samples.

    A gap is stored as NaN: the source was asked and had nothing to say. Times must not decrease.
    """

    __slots__ = ("_capacity", "_times", "_values")

    def __init__(self, capacity: int = 4096) -> None:
        self._capacity = capacity
        self._times: array[float] = array("d")
        self._values: array[float] = array("d")

    def append(self, at: float, value: float | None) -> None:
        """Add one sample; None is a gap."""
        self._times.append(at)
        self._values.append(math.nan if value is None else float(value))
        if len(self._times) >= self._capacity + 256:
            del self._times[:256], self._values[:256]

    def since(self, start: float) -> list[tuple[float, float]]:
        """Samples with time >= start, oldest first; gaps are NaN."""
        low = max(bisect_left(self._times, start), len(self._times) - self._capacity)
        return list(zip(self._times[low:], self._values[low:], strict=True))

    def columns(self, now: float, window: float, count: int) -> list[float | None]:
        """Mean per column for a chart of `count` columns ending at `now`, `window` seconds wide; None where nothing
        is known.

        Columns are aligned to multiples of window / count of the clock, so a column's value never changes once its time
        has passed: the chart moves by whole columns and only its last one is live.
        """
        if count < 1:
            return []
        width = window / count
        first_column = math.floor(now / width) - count + 1
        found: list[list[float]] = [[] for _ in range(count)]
        for at, value in self.since(first_column * width):
            index = math.floor(at / width) - first_column
            if 0 <= index < count and not math.isnan(value):
                found[index].append(value)
        return [sum(values) / len(values) if values else None for values in found]
