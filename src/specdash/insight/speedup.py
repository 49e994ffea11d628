"""Is speculation paying? The net speed-up of decode over the window, and where it comes from. docs/speedup.md."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from specdash.core.readings import Source
from specdash.core.speculation import spec_type
from specdash.insight import speculation
from specdash.insight.acceptance import between
from specdash.insight.baseline_match import RECORD, Reference, Server, matching
from specdash.insight.counter_log import delta
from specdash.insight.overlap import PREFILL_SHARE, Overlap
from specdash.insight.speedup_groups import CONTEXT_NAMES, PHASES, context_of, grouped, phase_of, works
from specdash.insight.speedup_model import (
    VERIFY_COSTS,
    VERIFY_COSTS_ANYWHERE,
    Effort,
    Range,
    break_even,
    compared,
    draft_costs_of,
    effort_of,
    from_own_steps,
    leviathan,
)
from specdash.insight.speedup_picture import Basis, Paying, SpeedUpPicture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.core.observations import Gpus, Props, Slots
    from specdash.core.speculation import SpecType
    from specdash.insight.samples import RequestSample
    from specdash.insight.state import TargetState

ENOUGH = 6
"""Requests that an interval needs."""
HELD_S = 1800.0
"""Where the window has fewer requests, the newest of this time stand for it."""
HELD_REQUESTS = 24
MOST = 96
LEAST_TOKENS = 8
"""A shorter answer tells nothing of speed."""
LEAST_GAIN = 0.02
"""Two starts of one configuration differ by as much."""
NARROW = 0.25
"""An interval that holds 1 and is no wider says that there is no clear gain; a wider one says nothing."""
WINDOWS_KEPT = 8
OFF = "the server does not speculate"


@dataclass(frozen=True, slots=True)
class _Pool:
    """The requests to judge. `every` are all that may have run beside them."""

    chosen: tuple[RequestSample, ...]
    every: tuple[RequestSample, ...]
    held: bool


@dataclass(frozen=True, slots=True)
class _Pair:
    """A request against its baseline: seconds without and with speculation."""

    without: float
    took: float
    deviation: float


class SpeedUps:
    """Keeps what pictures were derived from, so that one is only computed anew when requests or baselines came."""

    def __init__(self) -> None:
        self._busy: deque[tuple[float, int]] = deque(maxlen=4096)
        self._kept: dict[float, tuple[object, SpeedUpPicture]] = {}

    def note_slots(self, at: float, slots: Slots) -> None:
        """How many slots work at monotonic `at`."""
        self._busy.append((at, sum(slot.is_processing for slot in slots.slots)))

    def kept(self, window_s: float, key: object) -> SpeedUpPicture | None:
        """The picture of this window, if it was derived from the same."""
        known = self._kept.get(window_s)
        return known[1] if known is not None and known[0] == key else None

    def keep(self, window_s: float, key: object, picture: SpeedUpPicture) -> None:
        """Remember a picture."""
        if window_s not in self._kept and len(self._kept) >= WINDOWS_KEPT:
            self._kept.pop(next(iter(self._kept)))
        self._kept[window_s] = (key, picture)

    def busy(self, since: float) -> list[tuple[float, int]]:
        """Slots at work since monotonic `since`, oldest first."""
        found = []
        for one in reversed(self._busy):
            if one[0] < since:
                break
            found.append(one)
        return found[::-1]


def derive(state: TargetState, now: float, wall: float, window_s: float) -> SpeedUpPicture:
    """The speed-up part of the picture. The caller holds the state's lock; `now` and `wall` are one moment."""
    log = state.log
    if speculation.is_active(state) is False:
        return SpeedUpPicture(why=OFF)
    state.experiments.samples.date(now, wall)
    pool = _pool(state, now, wall, window_s)
    cost = log.drafting.seconds_per_token(now - window_s)
    key = (
        state.experiments.samples.version,
        pool.held,
        len(pool.chosen),
        pool.chosen[0].ended if pool.chosen else None,
        cost,
        state.baselines,
        len(state.experiments.records),
        state.value(Source.PROPS),
        _counted(state, now, window_s) if not pool.chosen else None,
    )
    picture = state.speedups.kept(window_s, key)
    if picture is None:
        picture = _picture(state, pool, cost, (now, wall, window_s))
        state.speedups.keep(window_s, key, picture)
    return replace(picture, by_generated=log.answers.figures(now, max(window_s, 60.0)), by_type=log.drafting.figures())


def _pool(state: TargetState, now: float, wall: float, window_s: float) -> _Pool:
    """The requests of this server that ended in the window, or the newest ones where there are too few."""
    uptime = state.uptime(now, wall)
    restarts = [one.ended_at for one in state.experiments.records if one.downtime_s is not None]
    started = max([*restarts[-1:], *([wall - uptime] if uptime is not None else [])], default=float("-inf"))
    samples = state.experiments.samples
    every: list[RequestSample] = []
    for source in (samples.logged, samples.told.values()):
        for one in reversed(source):
            if one.ended < wall - HELD_S or len(every) >= 2 * MOST:
                break
            if one.began >= started - 1.0:
                every.append(one)
        if every:
            break
    every.sort(key=lambda one: one.ended)
    usable = [one for one in every if one.decode_s and (one.decode_tokens or 0) >= LEAST_TOKENS]
    recent = [one for one in usable if one.ended >= wall - window_s]
    held = len(recent) < ENOUGH and len(usable) > len(recent)
    chosen = usable[-HELD_REQUESTS:] if held else recent[-MOST:]
    return _Pool(tuple(chosen), tuple(every), held)


def _picture(state: TargetState, pool: _Pool, cost: float | None, moment: tuple[float, float, float]) -> SpeedUpPicture:
    now, wall, window_s = moment
    overlap = Overlap(pool.every)
    profiles = [overlap.profile(one) for one in pool.chosen]
    effort = effort_of(pool.chosen)
    beside = _mean_count(profiles)
    if not pool.chosen:
        counted = _counted(state, now, window_s)
        if counted is None:
            return SpeedUpPicture()
        effort, beside = counted, None
    share = _draft_share(state, effort, cost, beside)
    baselines, why_not = matching(state.baselines, _server(state), state.experiments.records)
    reference = Reference(baselines) if baselines else None
    pairs: list[_Pair | None] = [None] * len(pool.chosen)
    if reference is not None:
        unseen = _unseen(state, pool, wall - now)
        for index, one in enumerate(pool.chosen):
            if index not in unseen:
                pairs[index] = _pair(reference, one, *profiles[index])
        why_not = why_not or _why_uncovered(reference, pool, profiles)
    known = [one for one in pairs if one is not None]
    if known and reference is not None:
        picture = _measured(known, pool, reference)
    else:
        costs = verify_costs_of(state), draft_costs_of(_known_types(state), effort.drafted_per_step)
        picture = _estimated(effort, share, pool, why_not, costs)
    if effort.length is not None and picture.value:
        length, acceptance = break_even(effort.length, picture.value, effort.drafted_per_step)
        picture = replace(picture, break_even_length=length, break_even_acceptance=acceptance)
    picture = replace(picture, mean_accepted_length=effort.length, draft_share=share)
    return _with_groups(picture, state, pool, pairs)


def _measured(pairs: Sequence[_Pair], pool: _Pool, reference: Reference) -> SpeedUpPicture:
    took = sum(one.took for one in pairs)
    value = sum(one.without for one in pairs) / took
    tokens = effort_of(pool.chosen).tokens
    rate = tokens / sum(one.decode_s or 0.0 for one in pool.chosen)
    middle = sum(_middle(one) for one in pool.chosen) / len(pool.chosen)
    picture = SpeedUpPicture(
        value=value,
        basis=Basis.MEASURED,
        requests=len(pairs),
        baseline=reference.nearest(middle, 1.0 if 1 in reference.concurrencies else reference.concurrencies[0]),
        decode_rate=rate,
        baseline_rate=rate / value,
    )
    words = f"{len(pairs)} requests against {_words(reference)}"
    if len(pairs) < len(pool.chosen):
        words += f"; {len(pool.chosen) - len(pairs)} more ran longer, or beside more others, than was recorded"
    if pool.held:
        words += "; the newest ones, for the window has too few"
    if len(pairs) < ENOUGH:
        return replace(picture, why=f"{words}; {ENOUGH} are needed for an interval")
    found = compared([(one.without, one.took, one.deviation) for one in pairs])
    return replace(picture, low=found.low, high=found.high, verdict=_verdict(found, len(pairs)), why=words)


def _estimated(
    effort: Effort, share: float | None, pool: _Pool, why_not: str, costs: tuple[tuple[float, ...], tuple[float, ...]]
) -> SpeedUpPicture:
    if effort.length is None or effort.rate is None:
        return SpeedUpPicture(why=why_not or "no request has ended yet")
    found = from_own_steps(pool.chosen)
    how = "from its own steps, of which some drafted less"
    if found is None:
        found = leviathan(effort.length, effort.drafted_per_step, share, *costs)
        how = "from tokens per step"
        how += " and the time spent drafting" if share is not None else "; what drafting costs is assumed"
        how += "; what verifying costs is assumed" if effort.drafted_per_step > 0 else ""
    verdict = _verdict(found, effort.requests)
    if verdict is Paying.EVEN and found.high - found.low > NARROW:
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


def _verdict(found: Range, requests: int) -> Paying:
    if requests < ENOUGH:
        return Paying.UNKNOWN
    if found.low > 1 and found.value >= 1 + LEAST_GAIN:
        return Paying.PAYING
    if found.high < 1 and found.value <= 1 - LEAST_GAIN:
        return Paying.HURTING
    return Paying.EVEN


def _middle(sample: RequestSample) -> float:
    """Tokens in the context halfway through the answer."""
    return (sample.prompt_tokens or 0) + (sample.decode_tokens or 0) / 2


def _pair(reference: Reference, sample: RequestSample, profile: dict[int, float], filled: float) -> _Pair | None:
    if filled > PREFILL_SHARE or sample.prompt_tokens is None or not sample.decode_s:
        return None
    found = reference.over(_middle(sample), profile)
    if found is None:
        return None
    return _Pair(found.seconds * ((sample.decode_tokens or 1) - 1), sample.decode_s, found.deviation)


def _words(reference: Reference) -> str:
    contexts = sorted({one.context for one in reference.baselines})
    spans = f"{contexts[0]}" if len(contexts) == 1 else f"{contexts[0]} to {contexts[-1]}"
    at_once = ", ".join(map(str, reference.concurrencies))
    return f"the baseline (context {spans} tokens, {at_once} at once)"


def _why_uncovered(reference: Reference, pool: _Pool, profiles: Sequence[tuple[dict[int, float], float]]) -> str:
    """Why no request could be compared with the baselines there are."""
    counts = sorted(max(profile, key=lambda count: profile[count]) for profile, _ in profiles if profile)
    usual = counts[len(counts) // 2] if counts else 1
    recorded = reference.concurrencies
    if not recorded[0] <= usual <= recorded[-1]:
        return f"requests ran {usual} at once, and no baseline was recorded so; {RECORD} --concurrency {usual}"
    longest = max((_middle(one) for one in pool.chosen), default=0.0)
    if longest > reference.reach:
        return f"contexts are longer than any baseline's; {RECORD} --context {round(longest)}"
    return "prompts of others, or requests that have not ended, ran beside all of them"


def _unseen(state: TargetState, pool: _Pool, offset: float) -> set[int]:
    """Indices of requests beside which others ran that no sample tells of: cancelled ones, and those still running."""
    if not pool.chosen:
        return set()
    busy = state.speedups.busy(pool.chosen[0].began - offset)
    moments = [at + offset for at, _ in busy]
    begins, ends = sorted(one.began for one in pool.every), sorted(one.ended for one in pool.every)
    found = set()
    for index, one in enumerate(pool.chosen):
        first, last = bisect_left(moments, one.ended - (one.decode_s or 0.0)), bisect_right(moments, one.ended)
        if last - first < 2:
            continue
        more = sum(
            busy[place][1] - (bisect_right(begins, moments[place]) - bisect_left(ends, moments[place]))
            for place in range(first, last)
        )
        if more > 0.5 * (last - first):
            found.add(index)
    return found


def _mean_count(profiles: Sequence[tuple[dict[int, float], float]]) -> float | None:
    total = sum(sum(profile.values()) for profile, _ in profiles)
    return sum(count * span for profile, _ in profiles for count, span in profile.items()) / total if total else None


def _draft_share(state: TargetState, effort: Effort, cost: float | None, beside: float | None) -> float | None:
    """Share of decode time that went into drafting. All slots wait while one drafts."""
    if cost is not None and effort.seconds > 0 and beside is not None:
        return min(0.95, cost * effort.drafted * beside / effort.seconds)
    known = _known_types(state)
    # A look into a table of n-grams costs microseconds.
    return 0.0 if known and not any(one.reads_draft_model for one in known) else None


def _known_types(state: TargetState) -> list[SpecType]:
    return [one for name in speculation.types_of(state) or () if (one := spec_type(name)) is not None]


def verify_costs_of(state: TargetState) -> tuple[float, ...]:
    """What verifying a draft token adds to a step on this machine, as a share of a token's decode: an assumption."""
    gpus: Gpus | None = state.value(Source.GPU)
    return VERIFY_COSTS if gpus is not None and gpus.gpus else VERIFY_COSTS_ANYWHERE


def _counted(state: TargetState, now: float, window_s: float) -> Effort | None:
    """What the counters tell of the window, for a server whose requests nobody logs."""
    bounds = state.window(now, window_s)
    if bounds is None:
        return None
    first, last = bounds[0].counters, bounds[1].counters
    drafted = between(*bounds)
    tokens = delta(first.predicted_tokens, last.predicted_tokens)
    seconds = delta(first.predicted_seconds, last.predicted_seconds)
    if drafted is None or not tokens or not seconds or drafted.accepted >= tokens:
        return None
    return Effort(0, tokens, seconds, tokens - drafted.accepted, drafted.generated, drafted.accepted)


def _server(state: TargetState) -> Server:
    props: Props | None = state.value(Source.PROPS)
    gpus: Gpus | None = state.value(Source.GPU)
    names = sorted(gpu.name for gpu in gpus.gpus if gpu.name) if gpus is not None else []
    path = props.model_path if props is not None else None
    return Server(
        model=PurePath(path).name if path else None,
        model_bytes=props.model_bytes if props is not None else None,
        engines=tuple(one for one in (state.target.engine, props.build_info if props else None) if one),
        gpu=", ".join(names) or None,
    )


def _with_groups(
    picture: SpeedUpPicture, state: TargetState, pool: _Pool, pairs: Sequence[_Pair | None]
) -> SpeedUpPicture:
    def speedup(index: int) -> tuple[float, float] | None:
        pair = pairs[index]
        return (pair.without, pair.took) if pair is not None else None

    chosen = pool.chosen
    told = works(chosen, state.experiments.samples.told.values())
    contexts = {index: context_of(one) for index, one in enumerate(chosen)}
    phases = {index: phase_of(one, one.work or told.get(index)) for index, one in enumerate(chosen)}
    return replace(
        picture,
        by_context=grouped(chosen, contexts, CONTEXT_NAMES, speedup),
        by_phase=grouped(chosen, phases, PHASES, speedup),
    )
