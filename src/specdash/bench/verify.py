"""Are two servers' greedy answers the same, and where they are not, is it a near tie or damage? Judgement without I/O.

Greedy decoding promises the same text whether drafts are used or not, as long as the logits are the same. They are the
same only up to rounding: other batch shapes run other kernels (llama.cpp #23335). So at the first token that differs
the question is how much the baseline itself preferred its own: by next to nothing, and rounding decided; or by more,
and something is broken (#27975). After a near tie the texts go apart, and what follows would be unchecked; so the
baseline is asked again from the candidate's own text on, until the end or the first real difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

EPSILON = 0.1
"""Nats by which the baseline may prefer its own token where rounding explains the other one."""
FOLLOWED = 12
"""Near ties after which a run is not followed any further."""

Continue = Callable[[tuple[int, ...], int], tuple[int, ...]]
"""The baseline's tokens after the prompt and a prefix, so many."""
Weigh = Callable[[tuple[int, ...], int, int], "Weights"]
"""What a server thinks of two tokens after the prompt and a prefix, read anew as one prompt."""


class Side(StrEnum):
    """Which server."""

    BASELINE = "baseline"
    CANDIDATE = "candidate"


class Way(StrEnum):
    """How the prompts are sent."""

    SEQUENTIAL = "one after another"
    CACHED = "again, prompt cached"
    PARALLEL = "in parallel"


class Verdict(StrEnum):
    """What a comparison shows, the best first."""

    IDENTICAL = "identical"
    BATCH_SHAPE = "batch-shape effect"
    """Only near ties fell the other way."""
    UNDECIDED = "undecided"
    """It differs by more than a near tie, but so does the baseline from itself."""
    DAMAGED = "DAMAGED"


SEVERITY = tuple(Verdict)
_SHAKEN = (Verdict.BATCH_SHAPE, Verdict.UNDECIDED)


@dataclass(frozen=True, slots=True)
class Weights:
    """Log probabilities (nats) of two tokens at one place; None: not among the many most likely ones. `first` is the
    token the server takes there when it reads the text anew."""

    expected: float | None
    got: float | None
    first: int | None = None

    @property
    def gap(self) -> float | None:
        """By how much the expected token is preferred; None where that is too much to be told."""
        return None if self.expected is None or self.got is None else self.expected - self.got


@dataclass(frozen=True, slots=True)
class Answer:
    """One greedy answer: token ids, and what the server tells of drafts and of the cache."""

    tokens: tuple[int, ...]
    drafted: int = 0
    accepted: int = 0
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where the candidate's token is not the baseline's. None as a token: the answer had ended."""

    at: int
    """Index of the token in the answer, from 0."""
    expected: int | None
    got: int | None
    gap: float | None = None
    """Nats by which the baseline prefers its own token; None: it does not have the other one among its likely ones."""
    candidate_gap: float | None = None
    """The same as the candidate sees it when it reads the same text as a prompt; None where it was not asked."""
    candidate_first: int | None = None
    """The token that the candidate takes there when it reads the same text as a prompt."""
    near_tie: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """One answer against the baseline's first."""

    side: Side
    way: Way
    round: int
    prompt: int
    answer: Answer
    verdict: Verdict
    length: int
    """Tokens of the baseline's answer."""
    differences: tuple[Difference, ...] = ()
    as_baseline: Way | None = None
    """The way in which the baseline itself gave just this answer, where it differs from its first."""
    checked: int = 0
    """Tokens up to which the answer is judged."""

    @property
    def telling(self) -> Difference | None:
        """The difference that the verdict rests on: the real one, else the first."""
        if not self.differences:
            return None
        return self.differences[0 if self.verdict is Verdict.BATCH_SHAPE else -1]

    @property
    def matched(self) -> int:
        """Tokens before the first difference."""
        return self.differences[0].at if self.differences else self.length


@dataclass(slots=True)
class Report:
    """What a verification found; filled as it goes, so that a run that is cut short has what there is."""

    runs: list[Run] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    stopped: bool = False
    planned: int = 0
    """Runs of the candidate that were to be judged."""

    def of(self, side: Side) -> list[Run]:
        """The judged runs of one side."""
        return [run for run in self.runs if run.side is side]

    @property
    def verdict(self) -> Verdict | None:
        """The worst of the candidate; None before anything of it was judged."""
        return worst(run.verdict for run in self.of(Side.CANDIDATE))

    @property
    def drafted(self) -> int:
        """Draft tokens in the candidate's answers."""
        return sum(run.answer.drafted for run in self.of(Side.CANDIDATE))

    @property
    def accepted(self) -> int:
        """Draft tokens that were accepted."""
        return sum(run.answer.accepted for run in self.of(Side.CANDIDATE))


def worst(verdicts: Iterable[Verdict]) -> Verdict | None:
    """The worst of some verdicts, None of none."""
    return max(verdicts, key=SEVERITY.index, default=None)


def first_difference(expected: Sequence[int], got: Sequence[int]) -> int | None:
    """Index of the first token that differs, or at which one of the two has ended; None when they are the same."""
    for at, (one, other) in enumerate(zip(expected, got, strict=False)):
        if one != other:
            return at
    return None if len(expected) == len(got) else min(len(expected), len(got))


def difference(expected: Sequence[int], got: Sequence[int], at: int) -> Difference:
    """The difference at a place, not weighed yet."""
    return Difference(at, expected[at] if at < len(expected) else None, got[at] if at < len(got) else None)


def weighed(one: Difference, baseline: Weights | None, candidate: Weights | None, epsilon: float) -> Difference:
    """The difference with what both servers think of the two tokens there; a near tie only where both think so.

    Without the candidate's opinion the baseline's alone counts; without the baseline's it is none.
    """
    told = baseline.gap if baseline is not None else None
    seen = candidate.gap if candidate is not None else None
    near = told is not None and abs(told) <= epsilon
    if candidate is not None:
        near = near and seen is not None and abs(seen) <= epsilon
    first = candidate.first if candidate is not None else None
    return Difference(one.at, one.expected, one.got, told, seen, first, near)


def judge(
    run: Run,
    reference: Answer,
    *,
    weigh: Weigh,
    resume: Continue,
    candidate: Weights | None,
    epsilon: float = EPSILON,
    followed: int = FOLLOWED,
) -> Run:
    """The run with its differences from the baseline's answer weighed, and followed to the end past near ties.

    `candidate` is what the run's own server thinks at the first difference, where it was asked.
    """
    got, expected = run.answer.tokens, reference.tokens
    found: list[Difference] = []
    checked = run.length
    while (at := first_difference(expected, got)) is not None:
        one = difference(expected, got, at)
        if one.expected is not None and one.got is not None:
            own = candidate if not found else None
            one = weighed(one, weigh(got[:at], one.expected, one.got), own, epsilon)
        found.append(one)
        if not one.near_tie or len(found) > followed:
            checked = at + 1
            break
        left = len(reference.tokens) - (at + 1)
        expected = (*got[: at + 1], *(resume(got[: at + 1], left) if left > 0 else ()))
    real = any(not one.near_tie for one in found)
    verdict = Verdict.DAMAGED if real else Verdict.BATCH_SHAPE if found else Verdict.IDENTICAL
    return replace(run, verdict=verdict, differences=tuple(found), checked=checked)


def against_itself(run: Run, baseline: Sequence[Run]) -> Run:
    """The candidate's run in the light of what the baseline does to itself on the same prompt.

    A text that the baseline gives too, another way, is none of speculation's; and where the baseline differs from
    itself by more than a near tie, nothing can be claimed of a candidate that does.
    """
    own = [one for one in baseline if one.prompt == run.prompt]
    same = next((one for one in own if one.answer.tokens == run.answer.tokens), None)
    if run.verdict in (Verdict.IDENTICAL, Verdict.UNDECIDED):
        return run
    if same is not None and same.verdict is Verdict.BATCH_SHAPE:
        return replace(run, verdict=Verdict.BATCH_SHAPE, as_baseline=same.way, checked=run.length)
    if run.verdict is Verdict.DAMAGED and any(one.verdict is Verdict.DAMAGED for one in own):
        return replace(run, verdict=Verdict.UNDECIDED)
    return run


def cause(run: Run, epsilon: float = EPSILON) -> str:
    """In one sentence what the last difference of a run says about its cause; empty where the run is identical."""
    if not run.differences:
        return ""
    if run.verdict is Verdict.BATCH_SHAPE:
        if run.as_baseline is not None:
            return f"the baseline gives this very text {run.as_baseline}: a known batch-shape effect"
        gaps = [abs(one.gap) for one in run.differences if one.gap is not None]
        return f"near ties, {max(gaps, default=0.0):.3g} nats at most: a known batch-shape effect"
    one = run.differences[-1]
    if one.expected is None or one.got is None:
        return "one of the answers ended early"
    if run.verdict is Verdict.UNDECIDED:
        return "the baseline differs from itself by more than a near tie, so this proves nothing"
    if one.candidate_first is None:
        return "more than rounding explains"
    if _drafting_at_fault(run):
        return "reading the same text as a prompt, the candidate takes the baseline's token: its drafting is at fault"
    if one.candidate_gap is not None and abs(one.candidate_gap) <= epsilon:
        return "the candidate's own probabilities are another model's, or other settings'"
    return "the candidate takes its token without drafting too: another model, or other settings"


def _drafting_at_fault(run: Run) -> bool:
    one = run.differences[-1]
    return one.candidate_first is not None and one.candidate_first == one.expected


def advice(report: Report, *, slots: int, speculates: bool, done: frozenset[str] = frozenset()) -> list[str]:
    """What to do about what was found, and what the result does not show. `done` names what both sides have already:
    `flash-attn` off, `kv-unified` off."""
    said: list[str] = []
    candidate = report.of(Side.CANDIDATE)
    shaken = {(run.side, run.prompt, run.way) for run in report.runs if run.verdict in _SHAKEN}
    alone = {one for one in shaken if one[2] is Way.PARALLEL and (one[0], one[1], Way.SEQUENTIAL) not in shaken}
    damaged = {run.way for run in candidate if run.verdict is Verdict.DAMAGED}
    if (alone or damaged == {Way.PARALLEL}) and "kv-unified" not in done:
        said.append(
            "in parallel, requests share batches; --no-kv-unified (LLAMA_ARG_KV_UNIFIED=0) gives every slot a cache of "
            "its own, which makes parallel answers reproducible on many backends"
        )
    if shaken - alone and "flash-attn" not in done:
        said.append(
            "on a CPU, LLAMA_FLASH_ATTN=off makes answers reproducible over more batch sizes; give it to both sides "
            "with --set LLAMA_FLASH_ATTN=off --baseline LLAMA_FLASH_ATTN=off to tell rounding from damage"
        )
    if not candidate:
        return said
    if speculates and not report.drafted:
        said.append("the candidate drafted nothing in these answers, so nothing of speculation was put to the test")
    elif speculates and report.drafted == report.accepted:
        said.append("no draft token was rejected, so taking rejected tokens back was not put to the test")
    if slots < 2:
        said.append("the server has one slot, so nothing was run in parallel; --parallel N gives engines of ours more")
    return said
