"""Are two servers' greedy answers the same, and where they are not, is it a near tie or damage? Judgement without I/O.

Greedy decoding promises the same text whether drafts are used or not, as long as the logits are the same. They are the
same only up to rounding: other batch shapes run other kernels (llama.cpp #23335). So at the first token that differs
the question is how much the baseline itself preferred its own: by next to nothing, and rounding decided; or by more,
and something is broken (#27975). After a near tie the texts go apart, and what follows would be unchecked; so the
baseline is asked again from the candidate's own text on, until the end or the first real difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from specdash.bench.load.workloads import PromptEntry, entries, name_of
from specdash.core.errors import InputError
from specdash.core.structs import Masked

EPSILON = 0.1
"""Nats by which the baseline may prefer its own token where rounding explains the other one."""
FOLLOWED = 12
"""Near ties after which a run is not followed any further."""

Continue = Callable[[tuple[int, ...], int], tuple[int, ...]]
"""The baseline's tokens after the prompt and a prefix, so many."""
Weigh = Callable[[tuple[int, ...], int, int], "Weights"]
"""What a server thinks of two tokens after the prompt and a prefix, read again as one prompt."""


class VerifySide(StrEnum):
    BASELINE = "baseline"
    CANDIDATE = "candidate"


class SendMode(StrEnum):
    """How the prompts are sent."""

    SEQUENTIAL = "one after another"
    CACHED = "again, prompt cached"
    PARALLEL = "in parallel"


class Agreement(StrEnum):
    """What a comparison shows, the best first."""

    IDENTICAL = "identical"
    BATCH_SHAPE = "batch-shape effect"
    """Only near ties fell the other way."""
    UNDECIDED = "undecided"
    """It differs by more than a near tie, but so does the baseline from itself."""
    DAMAGED = "DAMAGED"


SEVERITY = tuple(Agreement)
_SHAKEN = (Agreement.BATCH_SHAPE, Agreement.UNDECIDED)


class Weights(Struct, frozen=True):
    """Log probabilities (nats) of two tokens at one place; None: not among the many most likely ones. `first` is the
    token the server takes there when it reads the text again."""

    expected: float | None
    got: float | None
    first: int | None = None

    @property
    def gap(self) -> float | None:
        """By how much the expected token is preferred; None where it is beyond what the server lists."""
        return None if self.expected is None or self.got is None else self.expected - self.got


class GreedyAnswer(Struct, frozen=True):
    """One greedy answer: token ids, and what the server reports of drafts and the cache."""

    tokens: tuple[int, ...]
    drafted: int = 0
    accepted: int = 0
    cached: int = 0


class TokenDifference(Struct, frozen=True):
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


class VerifiedAnswer(Struct, frozen=True):
    """One answer against the baseline's first."""

    side: VerifySide
    way: SendMode
    round: int
    prompt: int
    answer: GreedyAnswer
    verdict: Agreement
    length: int
    """Tokens of the baseline's answer."""
    differences: tuple[TokenDifference, ...] = ()
    as_baseline: SendMode | None = None
    """The way in which the baseline itself gave just this answer, where it differs from its first."""
    checked: int = 0
    """Tokens up to which the answer is judged."""

    @property
    def telling(self) -> TokenDifference | None:
        """The difference that the verdict rests on: the real one, else the first."""
        if not self.differences:
            return None
        return self.differences[0 if self.verdict is Agreement.BATCH_SHAPE else -1]

    @property
    def matched(self) -> int:
        """Tokens before the first difference."""
        return self.differences[0].at if self.differences else self.length


class VerifyReport(Struct):
    """What a verification found; filled as it goes, so that a run that is cut short has what there is."""

    runs: list[VerifiedAnswer] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    stopped: bool = False
    planned: int = 0
    """Runs of the candidate that were to be judged."""

    def of(self, side: VerifySide) -> list[VerifiedAnswer]:
        """The judged runs of one side."""
        return [run for run in self.runs if run.side is side]

    @property
    def verdict(self) -> Agreement | None:
        """The worst of the candidate; None before anything of it was judged."""
        return worst(run.verdict for run in self.of(VerifySide.CANDIDATE))

    @property
    def drafted(self) -> int:
        """Draft tokens in the candidate's answers."""
        return sum(run.answer.drafted for run in self.of(VerifySide.CANDIDATE))

    @property
    def accepted(self) -> int:
        """Draft tokens that were accepted."""
        return sum(run.answer.accepted for run in self.of(VerifySide.CANDIDATE))


def worst(verdicts: Iterable[Agreement]) -> Agreement | None:
    """The worst of some verdicts, None of none."""
    return max(verdicts, key=SEVERITY.index, default=None)


def first_difference(expected: Sequence[int], got: Sequence[int]) -> int | None:
    """Index of the first token that differs, or at which one of the two has ended; None when they are the same."""
    for at, (index, other) in enumerate(zip(expected, got, strict=False)):
        if index != other:
            return at
    return None if len(expected) == len(got) else min(len(expected), len(got))


def difference(expected: Sequence[int], got: Sequence[int], at: int) -> TokenDifference:
    """The difference at a place, not weighed yet."""
    return TokenDifference(at, expected[at] if at < len(expected) else None, got[at] if at < len(got) else None)


def weighed(
    token_difference: TokenDifference, baseline: Weights | None, candidate: Weights | None, epsilon: float
) -> TokenDifference:
    """The difference with what both servers think of the two tokens there; a near tie only where both think so.

    Without the candidate's opinion the baseline's alone counts; without the baseline's it is none.
    """
    gap = baseline.gap if baseline is not None else None
    seen = candidate.gap if candidate is not None else None
    near = gap is not None and abs(gap) <= epsilon
    if candidate is not None:
        near = near and seen is not None and abs(seen) <= epsilon
    first = candidate.first if candidate is not None else None
    return TokenDifference(token_difference.at, token_difference.expected, token_difference.got, gap, seen, first, near)


def judge(
    run: VerifiedAnswer,
    reference: GreedyAnswer,
    *,
    weigh: Weigh,
    resume: Continue,
    candidate: Weights | None,
    epsilon: float = EPSILON,
    followed: int = FOLLOWED,
) -> VerifiedAnswer:
    """The run with its differences from the baseline's answer weighed, and followed to the end past near ties.

    `candidate` is what the run's own server thinks at the first difference, where it was asked.
    """
    got, expected = run.answer.tokens, reference.tokens
    found: list[TokenDifference] = []
    checked = run.length
    while (at := first_difference(expected, got)) is not None:
        token_difference = difference(expected, got, at)
        if token_difference.expected is not None and token_difference.got is not None:
            own = candidate if not found else None
            token_difference = weighed(
                token_difference, weigh(got[:at], token_difference.expected, token_difference.got), own, epsilon
            )
        found.append(token_difference)
        if not token_difference.near_tie or len(found) > followed:
            checked = at + 1
            break
        left = len(reference.tokens) - (at + 1)
        expected = (*got[: at + 1], *(resume(got[: at + 1], left) if left > 0 else ()))
    real = any(not token_difference.near_tie for token_difference in found)
    verdict = Agreement.DAMAGED if real else Agreement.BATCH_SHAPE if found else Agreement.IDENTICAL
    return replace(run, verdict=verdict, differences=tuple(found), checked=checked)


def against_itself(run: VerifiedAnswer, baseline: Sequence[VerifiedAnswer]) -> VerifiedAnswer:
    """The candidate's run in the light of what the baseline does to itself on the same prompt.

    A text that the baseline gives too, another way, is none of speculation's; and where the baseline differs from
    itself by more than a near tie, nothing can be claimed of a candidate that does.
    """
    own = [answer for answer in baseline if answer.prompt == run.prompt]
    same = next((answer for answer in own if answer.answer.tokens == run.answer.tokens), None)
    if run.verdict in (Agreement.IDENTICAL, Agreement.UNDECIDED):
        return run
    if same is not None and same.verdict is Agreement.BATCH_SHAPE:
        return replace(run, verdict=Agreement.BATCH_SHAPE, as_baseline=same.way, checked=run.length)
    if run.verdict is Agreement.DAMAGED and any(answer.verdict is Agreement.DAMAGED for answer in own):
        return replace(run, verdict=Agreement.UNDECIDED)
    return run


def cause(run: VerifiedAnswer, epsilon: float = EPSILON) -> str:
    """In one sentence what the last difference of a run says about its cause; empty where the run is identical."""
    if not run.differences:
        return ""
    if run.verdict is Agreement.BATCH_SHAPE:
        if run.as_baseline is not None:
            return f"the baseline gives this very text {run.as_baseline}: a known batch-shape effect"
        gaps = [abs(token_difference.gap) for token_difference in run.differences if token_difference.gap is not None]
        return f"near ties, {max(gaps, default=0.0):.3g} nats at most: a known batch-shape effect"
    token_difference = run.differences[-1]
    if token_difference.expected is None or token_difference.got is None:
        return "one of the answers ended early"
    if run.verdict is Agreement.UNDECIDED:
        return "the baseline differs from itself by more than a near tie, so this proves nothing"
    if token_difference.candidate_first is None:
        return "more than rounding explains"
    if _drafting_at_fault(run):
        return "reading the same text as a prompt, the candidate takes the baseline's token: its drafting is at fault"
    if token_difference.candidate_gap is not None and abs(token_difference.candidate_gap) <= epsilon:
        return "the candidate's own probabilities are another model's, or other settings'"
    return "the candidate takes its token without drafting too: another model, or other settings"


def _drafting_at_fault(run: VerifiedAnswer) -> bool:
    token_difference = run.differences[-1]
    return (
        token_difference.candidate_first is not None and token_difference.candidate_first == token_difference.expected
    )


def advice(report: VerifyReport, *, slots: int, speculates: bool, done: frozenset[str] = frozenset()) -> list[str]:
    """What to do about what was found, and what the result does not show. `done` names what both sides have already:
    `flash-attn` off, `kv-unified` off."""
    notes: list[str] = []
    candidate = report.of(VerifySide.CANDIDATE)
    shaken = {(run.side, run.prompt, run.way) for run in report.runs if run.verdict in _SHAKEN}
    alone = {
        pair
        for pair in shaken
        if pair[2] is SendMode.PARALLEL and (pair[0], pair[1], SendMode.SEQUENTIAL) not in shaken
    }
    damaged = {run.way for run in candidate if run.verdict is Agreement.DAMAGED}
    if (alone or damaged == {SendMode.PARALLEL}) and "kv-unified" not in done:
        notes.append(
            "in parallel, requests share batches; --no-kv-unified (LLAMA_ARG_KV_UNIFIED=0) gives every slot a cache of "
            "its own, which makes parallel answers reproducible on many backends"
        )
    if shaken - alone and "flash-attn" not in done:
        notes.append(
            "on a CPU, LLAMA_FLASH_ATTN=off makes answers reproducible over more batch sizes; give it to both sides "
            "with --set LLAMA_FLASH_ATTN=off --baseline LLAMA_FLASH_ATTN=off to tell rounding from damage"
        )
    if not candidate:
        return notes
    if speculates and not report.drafted:
        notes.append("the candidate drafted nothing in these answers, so nothing of speculation was put to the test")
    elif speculates and report.drafted == report.accepted:
        notes.append("no draft token was rejected, so taking rejected tokens back was not put to the test")
    if slots < 2:
        notes.append("the server has one slot, so nothing was run in parallel; --parallel N gives our engines more")
    return notes


# The prompts that answers are compared on: our own, or the operator's from a file.

LEAST_TOKENS = 64
"""A shorter prompt is read with other kernels on some backends (PR #19493: 30 tokens on Metal)."""
_MOST = 64
_LARGEST = 16 << 20


class VerifyPrompt(Masked, Struct, frozen=True):
    """One prompt: a text as it is, or messages for the model's chat template."""

    hidden = ("text", "messages")

    name: str
    text: str = ""
    messages: tuple[dict[str, Any], ...] = ()


def _quicksort(language: str) -> str:
    return (
        f"Write a quicksort demo in {language}. Please, write just code, in one file that compiles as it is, and do "
        "not write any extra comments. Sort the numbers 33, 7, 91, 2, 58, 14, 76, 5, 40 and 19 in place, with the last "
        "element as the pivot, and print the numbers once before they are sorted and once after that, on one line "
        "each, with a single space between two numbers and none at the end of a line. Use no library functions for "
        "sorting, and give the functions for partitioning and for sorting names that say what they do."
    )


_SENTENCES = (
    "A server keeps the weights of its model in memory and reads all of them once for every token that it writes. "
    "A draft guesses the next few tokens, and the model checks all of them in one pass over the same weights. "
    "What the model would have written itself is kept, and from the first wrong guess on everything is thrown away. "
    "So the text is the same as without a draft, and only the time that it takes to write the text is another one. "
)


def _chat(name: str, text: str) -> VerifyPrompt:
    return VerifyPrompt(name, messages=({"role": "user", "content": text},))


BUILT_IN: tuple[VerifyPrompt, ...] = (
    _chat("quicksort-c", _quicksort("C")),
    _chat("quicksort-python", _quicksort("Python")),
    _chat("repetition", f"Write the following text down three times, and nothing else: {_SENTENCES * 2}"),
    _chat(
        "prose",
        f"{_SENTENCES}Explain to a curious reader, without lists, why this can make a server faster, when it makes it "
        "slower, and what decides between the two.",
    ),
)
"""Code as in PR #19493, text that n-gram drafts can copy, and prose that nothing can."""


def read_prompts(path: str) -> tuple[VerifyPrompt, ...]:
    """Prompts of a file: JSON or JSON Lines of texts or objects with `prompt` or `messages` and perhaps `name`, or
    plain texts between lines of `---`. Raises `InputError` naming file and entry; quotes nothing of it."""
    held = entries(path, largest=_LARGEST)
    if not held:
        raise InputError(f"prompts {path}: has no prompt")
    if len(held) > _MOST:
        raise InputError(f"prompts {path}: {len(held)} prompts; {_MOST} are the most")
    return tuple(_prompt(entry, number) for number, entry in enumerate(held, 1))


def _prompt(entry: PromptEntry, number: int) -> VerifyPrompt:
    where, value = entry.where, entry.value
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, dict):
        raise InputError(f"{where}: must be a text, or an object with prompt or messages")
    text, messages = value.get("prompt"), value.get("messages")
    name = name_of(entry, value.get("name"), f"prompt {number}")
    if (text is None) is (messages is None):
        raise InputError(f"{where}: needs either prompt or messages")
    if text is not None:
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"{where}: prompt must be a text that is not empty")
        return VerifyPrompt(name, text=text)
    if not isinstance(messages, list) or not messages or not all(_is_message(message) for message in messages):
        raise InputError(f"{where}: messages must be a list of objects with role and content")
    return VerifyPrompt(name, messages=tuple(messages))


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and "content" in value
