"""Is speculation paying? The net speed-up of decode over the window, and where it comes from. docs/speedup.md."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import islice
from math import exp, inf, log, sqrt
from operator import itemgetter
from pathlib import PurePath
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from specdash.core.readings import Source
from specdash.core.records import BaselineMethod
from specdash.insight.log.counter_log import decoded
from specdash.insight.picture import Basis, Paying, SpeedUpPicture
from specdash.insight.request import DraftTally
from specdash.insight.speculation import speculation
from specdash.insight.speedup.baselines import RECORD, DecodingServer, Reference, matching
from specdash.insight.speedup.estimate import (
    VERIFY_COSTS,
    VERIFY_COSTS_ANYWHERE,
    DecodeTotals,
    Pair,
    break_even,
    compared,
    draft_costs_of,
    effort_of,
    leviathan,
    sampled,
)
from specdash.insight.speedup.verdict import ENOUGH, VerdictKind, judged
from specdash.system.stats import Z_95, Interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.core.readings import Gpus, Props
    from specdash.insight.request import ServedRequest
    from specdash.insight.state import TargetState


PREFILL_SHARE = 0.1
"""A request whose decode ran beside other prompts' prefill for more of its time shows nothing of decode."""


def beside(sample: ServedRequest, every: Sequence[ServedRequest]) -> tuple[float, float]:
    """How many of `every` decoded at a time during its decode, itself included, and the share of it during which others
    were in prefill."""
    start, end = sample.ended - (sample.decode_s or 0.0), sample.ended
    shared = filled = 0.0
    for other in every:
        if other is not sample and other.ended > start and other.began < end:
            first = other.ended - (other.decode_s or 0.0)
            shared += max(0.0, min(end, other.ended) - max(start, first))
            filled += max(0.0, min(end, first) - max(start, other.began))
    return 1.0 + shared / (end - start or inf), min(1.0, filled / (end - start or inf))


HELD_S = 1800.0
"""Where the window has fewer requests, the newest of this time stand for it."""
HELD_REQUESTS = 24
MOST = 96
EVERY_S = 2.0
"""Requests that end within so long are one change, where there are many: dozens a second would be computed at each."""
LEAST_TOKENS = 8
"""A shorter answer shows nothing of speed."""
REQUEST_SPREAD = 0.5
"""Standard deviation of the logarithm of one request's speed-up, where too few have ended to tell: what text and
context make of it is less."""
NARROW = 0.25
"""An interval that holds 1 and is no wider says that there is no clear gain; a wider one says nothing."""
MOST_GAIN = 1.6
"""A step brings so many tokens and takes no less time than a plain one, so the gain is at most that many. With this
much more for chance, and for CPUs where a batch of two tokens is the faster one, the baseline is of a machine that had
other things to do."""
TOO_GOOD = f"by the baseline, a step with a draft would take less time than one without; record it again with {RECORD}"
OFF = "the server does not speculate"


class _Pool(Struct, frozen=True):
    """The requests to judge. `every` are all that may have run beside them."""

    chosen: tuple[ServedRequest, ...]
    every: tuple[ServedRequest, ...]
    held: bool


def derive(state: TargetState, now: float, wall: float, window_s: float) -> SpeedUpPicture:
    """The speed-up part of the picture. The caller holds the state's lock; `now` and `wall` are one moment."""
    if speculation.is_active(state) is False:
        return SpeedUpPicture(why=OFF)
    pool = _pool(state, now, wall, window_s)
    samples, chosen = state.experiments.samples, pool.chosen
    key = (
        samples,
        samples.version if len(chosen) < HELD_REQUESTS else int(chosen[-1].ended / EVERY_S),
        int(chosen[0].ended / EVERY_S) if chosen else _counted(state, now, window_s),
        pool.held,
        state.baselines,
        len(state.experiments.records),
        state.value(Source.PROPS),
        # What is known of a speed grows less sure by the minute.
        int(wall / 60.0),
    )
    if window_s not in state.speedups or state.speedups[window_s][0] != key:
        state.speedups[window_s] = key, _picture(state, pool, (now, wall, window_s))
    return replace(state.speedups[window_s][1], by_type=state.log.by_type)


def _pool(state: TargetState, now: float, wall: float, window_s: float) -> _Pool:
    """The requests of this server that ended in the window, or the newest ones where there are too few."""
    started = _started(state, now, wall)
    samples = state.experiments.samples
    every: list[ServedRequest] = []
    for source in (samples.logged, samples.reported.values()):
        for sample in reversed(source):
            if sample.ended < wall - HELD_S or len(every) >= 2 * MOST:
                break
            if sample.began >= started - 1.0:
                every.append(sample)
        if every:
            break
    every.sort(key=lambda sample: sample.ended)
    usable = [sample for sample in every if sample.decode_s and (sample.decode_tokens or 0) >= LEAST_TOKENS]
    recent = [sample for sample in usable if sample.ended >= wall - window_s]
    held = len(recent) < ENOUGH and len(usable) > len(recent)
    chosen = usable[-HELD_REQUESTS:] if held else recent[-MOST:]
    return _Pool(tuple(chosen), tuple(every), held)


def _started(state: TargetState, now: float, wall: float) -> float:
    """When the running server began, in Unix time; no moment where that is not known."""
    uptime = state.uptime(now, wall)
    restarts = [record.ended_at for record in state.experiments.records if record.downtime_s is not None]
    return max([*restarts[-1:], *([wall - uptime] if uptime is not None else [])], default=-inf)


def _picture(state: TargetState, pool: _Pool, moment: tuple[float, float, float]) -> SpeedUpPicture:
    now, wall, window_s = moment
    rows: list[tuple[ServedRequest, float, Pair | None]] = []
    baselines, why_not = matching(state.baselines, _server(state), state.experiments.records)
    started = _started(state, now, wall)
    reference = Reference(baselines, wall, started if started > -inf else inf) if baselines else None
    looks = [(at + wall - now, busy) for at, busy in state.busy_slots]
    for sample in pool.chosen:
        count, filled = beside(sample, pool.every)
        is_fair = reference is not None and filled <= PREFILL_SHARE and not _is_unseen(looks, sample, count)
        rows.append((sample, count, _pair(reference, sample, count) if reference is not None and is_fair else None))
    if reference is not None:
        why_not = why_not or _why_uncovered(reference, pool, sorted(count for _, count, _ in rows))
    covered = [row for row in rows if row[2] is not None]
    pairs = [pair for _, _, pair in covered if pair is not None]
    most = MOST_GAIN * (effort_of([sample for sample, _, _ in covered]).length or inf)
    if sum(pair.without for pair in pairs) > most * sum(pair.took for pair in pairs):
        covered, why_not = [], TOO_GOOD
    # The text beside the figure is about the requests that are compared.
    about = covered or rows
    samples = [sample for sample, _, _ in about]
    effort = effort_of(samples) if samples else _counted(state, now, window_s)
    if effort is None:
        return SpeedUpPicture()
    if covered and reference is not None:
        picture = _measured(pairs, samples, reference, len(rows) - len(covered), held=pool.held)
    else:
        costs = verify_costs_of(state), draft_costs_of(speculation.chain_of(state), effort.drafted_per_step)
        picture = _estimated(effort, why_not, costs)
    if effort.length is not None and picture.value:
        length, acceptance = break_even(effort.length, picture.value, effort.drafted_per_step)
        picture = replace(picture, break_even_length=length, break_even_acceptance=acceptance)
    return replace(picture, mean_accepted_length=effort.length)


def _measured(
    pairs: Sequence[Pair], samples: Sequence[ServedRequest], reference: Reference, left_out: int, *, held: bool
) -> SpeedUpPicture:
    """`samples` are the requests of the pairs; `left_out` could not be compared."""
    took = sum(pair.took for pair in pairs)
    without = sum(pair.without for pair in pairs)
    value, tokens = without / took, effort_of(samples).tokens
    baseline = reference.nearest(sum(map(_middle, samples)) / len(samples))
    deviation = reference.deviation(baseline)
    words = f"{len(pairs)} requests against {_words(reference)}"
    if left_out:
        words += f"; {left_out} more ran longer, or beside more others, than was recorded"
    if held:
        words += "; the newest ones, for the window has too few"
    picture = SpeedUpPicture(
        value=value,
        basis=Basis.MEASURED,
        requests=len(pairs),
        baseline=baseline,
        decode_rate=tokens / took,
        baseline_rate=tokens / without,
        why=words,
    )
    if len(pairs) < ENOUGH:
        # No interval of their own; but a loss that no spread of requests explains need not wait.
        reach = Z_95 * sqrt(REQUEST_SPREAD**2 / len(pairs) + deviation**2)
        picture = replace(picture, why=f"{words}; {ENOUGH} are needed for an interval")
        if value * exp(reach) >= 1:
            return picture
        return replace(picture, low=value * exp(-reach), high=value * exp(reach), verdict=Paying.HURTING)
    found = compared(pairs, deviation)
    # A new baseline narrows the interval most where it is half of the variance.
    needs_baseline = found.low > 0 and 2 * deviation**2 > (log(found.high / found.low) / (2 * Z_95)) ** 2
    return replace(picture, low=found.low, high=found.high, verdict=_verdict(found), needs_baseline=needs_baseline)


def _estimated(
    effort: DecodeTotals, why_not: str, costs: tuple[tuple[float, ...], tuple[float, ...]]
) -> SpeedUpPicture:
    if effort.length is None or effort.rate is None:
        return SpeedUpPicture(why=why_not or "no request has ended yet")
    found = leviathan(effort.length, effort.drafted_per_step, *costs)
    how = "from tokens per step; what drafting costs is assumed"
    how += "; what verifying costs is assumed" if effort.drafted_per_step > 0 else ""
    found = sampled(found, effort)
    verdict = _verdict(found)
    is_wide = verdict is Paying.EVEN and found.high - found.low > NARROW
    if is_wide or (effort.requests < ENOUGH and verdict is not Paying.HURTING):
        verdict = Paying.UNKNOWN
    return SpeedUpPicture(
        value=found.value,
        low=found.low,
        high=found.high,
        basis=Basis.ESTIMATED,
        verdict=verdict,
        why=f"{how}: {why_not}" if why_not else how,
        requests=effort.requests,
        decode_rate=effort.rate,
        baseline_rate=effort.rate / found.value,
    )


def _verdict(found: Interval) -> Paying:
    """`judged`, as the picture keeps it: EVEN also where the interval is known and holds 1."""
    kind = judged(found.low, found.high)
    if kind is VerdictKind.PAYS:
        return Paying.PAYING
    return Paying.HURTING if kind is VerdictKind.COSTS else Paying.EVEN


def _middle(sample: ServedRequest) -> float:
    """Tokens in the context halfway through the answer."""
    return (sample.prompt_tokens or 0) + (sample.decode_tokens or 0) / 2


def _pair(reference: Reference, sample: ServedRequest, at_once: float) -> Pair | None:
    seconds = reference.at(_middle(sample), at_once) if sample.prompt_tokens is not None else None
    if seconds is None or not sample.decode_s:
        return None
    return Pair(seconds * ((sample.decode_tokens or 1) - 1), sample.decode_s)


_SOURCES = {
    BaselineMethod.WITHOUT: "recorded without speculation",
    BaselineMethod.TWO_TOKENS: "measured by completions of two tokens",
}


def _words(reference: Reference) -> str:
    contexts = sorted({baseline.context for baseline in reference.baselines})
    spans = f"{contexts[0]}" if len(contexts) == 1 else f"{contexts[0]} to {contexts[-1]}"
    at_once = ", ".join(map(str, reference.concurrencies))
    methods = sorted({baseline.method for baseline in reference.baselines}, reverse=True)
    source = " and ".join(_SOURCES[method] for method in methods)
    return f"the baseline (context {spans} tokens, {at_once} at once; {source})"


def _why_uncovered(reference: Reference, pool: _Pool, counts: Sequence[float]) -> str:
    """Why no request could be compared with the baselines there are."""
    usual = round(counts[len(counts) // 2]) if counts else 1
    recorded, contexts = reference.concurrencies, [_middle(sample) for sample in pool.chosen] or [0.0]
    if not recorded[0] <= usual <= recorded[-1]:
        return f"requests ran {usual} at once, and no baseline was recorded so; {RECORD} --concurrency {usual}"
    if max(contexts) > reference.reach:
        return f"contexts are longer than any baseline's; {RECORD} --context {round(max(contexts))}"
    if reference.at(min(contexts), usual) is None:
        return f"contexts are shorter than any baseline's; {RECORD} --context {round(min(contexts))}"
    return "prompts of others, or requests that have not ended, ran beside all of them"


def _is_unseen(looks: Sequence[tuple[float, int]], sample: ServedRequest, at_once: float) -> bool:
    """Whether others ran beside it that no sample shows: cancelled ones, and those still running. `looks` are how
    many slots were at work, by Unix time."""
    first = bisect_left(looks, sample.ended - (sample.decode_s or 0.0), key=itemgetter(0))
    busy = [count for _, count in islice(looks, first, bisect_right(looks, sample.ended, key=itemgetter(0)))]
    return len(busy) >= 2 and sum(busy) / len(busy) > at_once + 0.5


def verify_costs_of(state: TargetState) -> tuple[float, ...]:
    """What verifying a draft token adds to a step on this machine, as a share of a token's decode: an assumption."""
    gpus: Gpus | None = state.value(Source.GPU)
    return VERIFY_COSTS if gpus is not None and gpus.gpus else VERIFY_COSTS_ANYWHERE


def _counted(state: TargetState, now: float, window_s: float) -> DecodeTotals | None:
    """What the counters tell of the window, else of the server's life, for a server whose requests are not logged."""
    if state.totals_stale_s(now) is not None:
        return None
    for bounds in (state.window(now, window_s), state.counters.life):
        found = decoded(*bounds) if bounds is not None else None
        if found is not None and found[1] and found[2].drafted:
            tokens, seconds, drafts = found
            return DecodeTotals(
                0, tokens, seconds, DraftTally(drafts.drafted, drafts.accepted, tokens - drafts.accepted)
            )
    return None


def _server(state: TargetState) -> DecodingServer:
    props: Props | None = state.value(Source.PROPS)
    gpus: Gpus | None = state.value(Source.GPU)
    names = sorted(gpu.name for gpu in gpus.gpus if gpu.name) if gpus is not None else []
    path = props.model_path if props is not None else None
    return DecodingServer(
        model=PurePath(path).name if path else None,
        model_bytes=props.model_bytes if props is not None else None,
        engines=tuple(name for name in (state.target.engine, props.build_info if props else None) if name),
        gpu=", ".join(names) or None,
    )
