"""The arithmetic of the speed-up: what requests did, what they would have taken, and where it breaks even. Pure.

The estimate is Leviathan et al. 2023 (arXiv 2211.17192): tokens per step over the cost of a step, whose parts
are bounded. Method and limits: docs/speedup.md.
"""

from __future__ import annotations

from math import exp, log, sqrt
from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.core.proxy_events import DECODE, speed
from specdash.insight.request import NO_DRAFTS, DraftTally
from specdash.system.stats import Z_95, Interval, bootstrap, ratio, wilson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.core.speculation import SpecType
    from specdash.insight.request import ServedRequest


VERIFY_COSTS = (0.01, 0.2, 0.8)
"""What each draft token adds to a step's verification, as a share of a token's decode: least, usual, most. Published: 0
while memory bandwidth is the limit (Leviathan's assumption), 0.2 on an RTX 3090, 0.8 on an Apple M4. Its logits and its
sampling are never free, so a drafter that is hardly ever right costs something, however little."""
VERIFY_COSTS_ANYWHERE = (0.01, 0.5, 1.5)
"""The same where no NVIDIA GPU is seen. Measured with llama.cpp: 0.15 for a 99 MB model on several cores, 1.24 for the
demo's of 2 MB on one, whose batches of a few tokens cost more than as many single ones."""
DRAFT_COSTS = (0.02, 0.1, 0.4)
"""What a draft model adds a token, likewise. Least: one layer of a model of fifty."""
BLOCK_DRAFT_COSTS = (0.1, 0.75, 1.5)
"""What a draft of one block costs, however long it is. Usual: what the published break-even of about 25 % at block size
16 leaves (marksverdhei/llama.cpp#53), when verifying a token costs 0.2."""
BLOCKS = 24
"""More requests than this are resampled in as many blocks of neighbours: what lasts minutes shows in the interval."""


def draft_costs_of(types: Sequence[SpecType], drafted_per_step: float) -> tuple[float, ...]:
    """What a draft token may cost, for drafts of that many tokens by such types."""
    if types and not any(kind.reads_draft_model for kind in types):
        return (0.0, 0.0, 0.0)
    if any(kind.block_margin is not None for kind in types):
        return tuple(cost / max(drafted_per_step, 1.0) for cost in BLOCK_DRAFT_COSTS)
    return DRAFT_COSTS


class DecodeTotals(Struct, frozen=True):
    """What requests did in all. The steps of `drafts` are decode calls of the target, replays included."""

    requests: int = 0
    tokens: float = 0.0
    """Generated, the first of each request apart: it is the prompt's."""
    seconds: float = 0.0
    drafts: DraftTally = NO_DRAFTS

    @property
    def length(self) -> float | None:
        """Tokens per step."""
        return self.tokens / self.drafts.steps if self.drafts.steps else None

    @property
    def drafted_per_step(self) -> float:
        """Draft tokens that a step verifies."""
        return self.drafts.drafted / self.drafts.steps if self.drafts.steps else 0.0

    @property
    def rate(self) -> float | None:
        """Tokens over decode time."""
        return speed(self.tokens, self.seconds * 1000.0, DECODE)


def effort_of(samples: Sequence[ServedRequest]) -> DecodeTotals:
    """The sum over requests that `is_usable`."""
    tokens = calls = drafted = accepted = 0
    seconds = 0.0
    for sample in samples:
        own = (sample.decode_tokens or 1) - 1
        hit = min(sample.draft_accepted or 0, own)
        tokens += own
        # Every decode call brings one token beside those accepted: a step, a step without a draft, and also a replay,
        # which decodes accepted tokens again and then goes one on.
        calls += max(1, own - hit)
        drafted += sample.draft_generated or 0
        accepted += hit
        seconds += sample.decode_s or 0.0
    return DecodeTotals(len(samples), tokens, seconds, DraftTally(drafted, accepted, calls))


class Pair(Struct, frozen=True):
    """A request against its baseline: seconds without and with speculation."""

    without: float
    took: float


def compared(pairs: Sequence[Pair], deviation: float) -> Interval:
    """The speed-up over requests in the order in which they ran: the time that all would have taken over the time that
    they took. `deviation` is that of the baseline's logarithm."""
    count = min(len(pairs), BLOCKS)
    parts = [pairs[at * len(pairs) // count : (at + 1) * len(pairs) // count] for at in range(count)]
    blocks = [(sum(pair.without for pair in part), sum(pair.took for pair in part)) for part in parts]
    found = bootstrap([blocks], ratio)
    # One baseline is behind many requests, so its error does not average out.
    value = max(found.value, 1e-9)
    low = sqrt(log(value / max(found.low, 1e-9)) ** 2 + (Z_95 * deviation) ** 2)
    high = sqrt(log(max(found.high, value) / value) ** 2 + (Z_95 * deviation) ** 2)
    return Interval(value, value * exp(-low), value * exp(high))


def leviathan(
    length: float,
    drafted_per_step: float,
    verify_costs: tuple[float, ...] = VERIFY_COSTS,
    draft_costs: tuple[float, ...] = DRAFT_COSTS,
) -> Interval:
    """The speed-up of steps that bring `length` tokens and verify `drafted_per_step` draft tokens.

    `draft_costs` bound what each draft token costs, as shares of a token's decode, and `verify_costs` what verifying
    one adds.
    """
    costs = zip(verify_costs, draft_costs, strict=True)
    drafted = max(drafted_per_step, 0.0)
    best, usual, worst = (length / (1 + (verify + draft) * drafted) for verify, draft in costs)
    return Interval(usual, worst, best)


def sampled(found: Interval, effort: DecodeTotals) -> Interval:
    """The interval with what chance adds: so few steps may have been lucky, or unlucky, with their drafts.

    Wilson's bounds of the acceptance, with a step as one trial: its tokens are accepted one after the other, and so not
    each by itself.
    """
    steps, drafted, length = effort.drafts.steps, effort.drafts.drafted, effort.length
    if not steps or drafted <= 0 or length is None:
        return found
    low, high = (1 + bound * drafted / steps for bound in wilson(effort.drafts.accepted / drafted, steps))
    return Interval(found.value, found.low * min(1.0, low / length), found.high * max(1.0, high / length))


def break_even(length: float, speedup: float, drafted_per_step: float) -> tuple[float, float | None]:
    """Tokens per step at which the speed-up is 1, and the acceptance that brings them, None where none would do."""
    needed = length / speedup
    if drafted_per_step <= 0:
        return needed, None
    acceptance = (needed - 1) / drafted_per_step
    return needed, max(0.0, acceptance) if acceptance <= 1 else None
