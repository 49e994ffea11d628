"""Does speculation do what it is for: pure rules."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import islice
from math import inf, sqrt
from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.core.changes import ApplyOutcome, Role
from specdash.core.masking import MASK
from specdash.core.readings import Source
from specdash.core.records import AlertSeverity, Drafting, Symptom
from specdash.insight.picture import BackendState
from specdash.insight.request import NO_DRAFTS, drafts_of
from specdash.insight.rules.catalogue import rule
from specdash.insight.rules.known import grown_while_still, of_late, parameter
from specdash.insight.speculation.drafting import PROBLEM_CLASSES
from specdash.insight.speedup.verdict import WITHOUT, VerdictKind, advice, kind_of
from specdash.system.stats import wilson
from specdash.system.text import UNKNOWN, number, percent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from specdash.core.changes import Change
    from specdash.insight.picture import ApplyMark, SpeculationPicture
    from specdash.insight.request import ServedRequest
    from specdash.insight.rules.catalogue import Limits
    from specdash.insight.rules.scene import PictureSample, RuleScene

    _Total = Callable[[PictureSample], float | None]


# Has acceptance collapsed? Recent requests against earlier ones of the same kind of work.
#
# Acceptance differs by what is written: tool calls are accepted more than prose, long contexts less than short ones.
# So requests are compared within strata of context length and work only, and what the strata say is added up (the van
# Elteren test: stratified rank sums). That says whether it is chance; how far it fell is shown by the acceptance that
# the recent requests would have had at their strata's earlier rates.

LEAST_DRAFTED = 8
"""A request with fewer draft tokens says nothing by itself."""
_CONTEXTS = (1024, 4096, 16384, 65536)


class StrataComparison(Struct, frozen=True):
    """Recent requests against earlier ones of the same strata."""

    recent: int
    before: int
    drafted: int
    """Draft tokens of the recent requests."""
    acceptance: float
    """Of the recent requests."""
    expected: float
    """What it would be at the earlier rates of the same strata."""
    strata: tuple[tuple[Sequence[ServedRequest], Sequence[ServedRequest]], ...]
    """The recent requests and the earlier ones of each."""

    @property
    def sigma(self) -> float:
        """By how many standard deviations the recent requests rank below the earlier ones."""
        below = variance = 0.0
        for now, then in self.strata:
            deficit, spread = _rank_deficit(
                [request.acceptance or 0.0 for request in now], [request.acceptance or 0.0 for request in then]
            )
            weight = 1.0 / (len(now) + len(then) + 1)
            below, variance = below + weight * deficit, variance + weight**2 * spread
        return below / sqrt(variance) if variance > 0 else 0.0


def stratum(sample: ServedRequest) -> tuple[int, str]:
    """What a request is compared within: its context's size class and its work, or whether it went on from a cache."""
    length = (sample.prompt_tokens or 0) + (sample.decode_tokens or 0)
    size = sum(length > bound for bound in _CONTEXTS)
    if sample.purpose is not None:
        return size, str(sample.purpose)
    cached = (sample.cached_tokens or 0) * 2 >= (sample.prompt_tokens or 0) > 0
    return size, "went on" if cached else "began"


def usable(samples: Iterable[ServedRequest]) -> list[ServedRequest]:
    """Those that drafted enough to have an acceptance."""
    return [
        sample
        for sample in samples
        if sample.draft_accepted is not None and (sample.draft_generated or 0) >= LEAST_DRAFTED
    ]


def compare(recent: Sequence[ServedRequest], before: Sequence[ServedRequest]) -> StrataComparison | None:
    """The comparison over the strata that both have; None where there is none."""
    strata: defaultdict[tuple[int, str], tuple[list[ServedRequest], list[ServedRequest]]] = defaultdict(
        lambda: ([], [])
    )
    for side, samples in enumerate((recent, before)):
        for request_sample in usable(samples):
            strata[stratum(request_sample)][side].append(request_sample)
    shared = tuple((now, then) for now, then in strata.values() if now and then)
    if not shared:
        return None
    drafts = NO_DRAFTS
    expected = 0.0
    for now, then in shared:
        of_now = drafts_of(now)
        drafts += of_now
        expected += of_now.drafted * (drafts_of(then).acceptance or 0.0)
    return StrataComparison(
        recent=sum(len(now) for now, _ in shared),
        before=sum(len(then) for _, then in shared),
        drafted=int(drafts.drafted),
        acceptance=drafts.acceptance or 0.0,
        expected=expected / drafts.drafted,
        strata=shared,
    )


def _rank_deficit(now: Sequence[float], then: Sequence[float]) -> tuple[float, float]:
    """How far the rank sum of `now` lies below its mean under no difference, and its variance, ties allowed for."""
    pooled = sorted((*now, *then))
    counts = Counter(pooled)
    ranks: dict[float, float] = {}
    place = 0
    for value in dict.fromkeys(pooled):
        ranks[value] = place + (counts[value] + 1) / 2
        place += counts[value]
    n, m = len(now), len(then)
    total = n + m
    ties = sum(count**3 - count for count in counts.values()) / (total * (total - 1)) if total > 1 else 0.0
    return n * (total + 1) / 2 - sum(ranks[value] for value in now), n * m / 12 * (total + 1 - ties)


_CLOCKS_S = 2.0
SURE = 3.5
"""Standard deviations, of what is asked every second for days."""
COMPARED = 256
"""The newest requests; older ones are another day's work."""


@rule(
    "Acceptance has collapsed",
    AlertSeverity.WARNING,
    trial_s=inf,
    ends_with_server=True,
    of_drafts=True,
    clear_after_s=60,
    explains=("speculation_hurting",),
    chart="acceptance",
    limits={"recent_s": 600, "recent_requests": 12, "least_recent": 8, "least_before": 24, "sigma": 3.5, "share": 0.6},
)
def acceptance_collapse(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Far fewer draft tokens are accepted than of earlier requests of the same kind on this server. Requests are
    compared within classes of context length and work (tool call, agent text, chat; from the log: began or went on), so
    that another mix of work is no collapse. 3.5 standard deviations, because it is asked every second for days; 60 % of
    what was expected, because less is no trouble even where it is certain.

    - acceptance by position and by context length in the speculation panel
    - the log: draft_behind, draft_decode_failed, ngram_mod resetting
    - did clients change: temperature, another language, images?
    - specdash history query acceptance

    When it came with a build or a draft model, go back to the one before. When clients sample hotter or write something
    else, shorter drafts cost less.
    """
    if not scene.samples.logged and not scene.samples.told:
        return
    ended = _of_this_server(scene)
    since = scene.picture.wall - limits["recent_s"]
    recent = [request_sample for request_sample in ended if request_sample.ended >= since][
        -int(limits["recent_requests"]) :
    ]
    if len(recent) < limits["least_recent"]:
        return
    found = compare(recent, ended[: -len(recent)])
    if found is None or found.recent < limits["least_recent"] or found.before < limits["least_before"]:
        return
    if found.acceptance > limits["share"] * found.expected or found.sigma < limits["sigma"]:
        return
    apply = _apply_between(scene, ended[-len(recent) - 1].ended, recent[-1].ended)
    summary = (
        f"{percent(found.acceptance)} of drafts accepted in the last {found.recent} requests, "
        f"{percent(found.expected)} expected from the {found.before} before"
    )
    changes = apply.record.changes if apply is not None else ()
    yield Symptom(
        summary if apply is None else f"{summary}; apply {apply.record.number} came between them: {apply.text}",
        (
            *((f"apply {apply.record.number}", _changed(change)) for change in changes if apply is not None),
            ("acceptance", percent(found.acceptance)),
            ("expected", percent(found.expected)),
            ("below by", f"{found.sigma:.1f} standard deviations"),
            ("draft tokens", str(found.drafted)),
            ("kinds of work compared", str(len(found.strata))),
        ),
        fix=tuple(
            (change.key, change.before) for change in changes if change.role is Role.BACKEND and change.before != MASK
        ),
        remedy=f"Take apply {apply.record.number} back: specdash rollback {apply.record.number}, or the settings above."
        if apply is not None
        else "",
    )


def _apply_between(scene: RuleScene, before: float, after: float) -> ApplyMark | None:
    """The newest apply that changed the server's settings between the requests that are compared."""
    changed = (
        mark
        for mark in reversed(scene.picture.applies)
        if mark.record.outcome is ApplyOutcome.APPLIED
        and any(change.role is Role.BACKEND for change in mark.record.changes)
    )
    return next((mark for mark in changed if before - _CLOCKS_S <= mark.wall <= after), None)


def _changed(change: Change) -> str:
    before, after = (value if value is not None else "unset" for value in (change.before, change.after))
    return f"{change.key}: {before} to {after}"


def speculation_hurting_is_over(scene: RuleScene) -> bool:
    """The same figure says that it pays, or makes no difference: no warning may stand beside that."""
    speedup = scene.picture.speedup
    return kind_of(speedup) in (VerdictKind.PAYS, VerdictKind.NO_DIFFERENCE)


@rule(
    "Speculation slows decode down",
    AlertSeverity.WARNING,
    trial_s=inf,
    ends_with_server=True,
    of_drafts=True,
    raise_after_s=20,
    clear_after_s=60,
    chart="decode",
    is_over=speculation_hurting_is_over,
    # Finished requests that it must rest on; 0, since the verdict judges that itself.
    limits={"requests": 0},
)
def speculation_hurting(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Decode is slower than it would be without speculation, by the whole of its 95 % interval: drafting and verifying
    cost more than accepted tokens save. By measurement or, where no draft can be worth what it costs at the least, by
    estimate; and for 20 s, because one long answer is not a workload. It is over as soon as the same figure says that
    speculation pays, or makes no difference.

    - the speed-up panel: measured, or an estimate?
    - specdash baseline record, for a measured figure
    - acceptance by position: how far do drafts hold?

    Take the change that the verdict names: shorter drafts, or no speculation. docs/speedup.md explains the figure.
    """
    speedup = scene.picture.speedup
    if kind_of(speedup) is not VerdictKind.COSTS or speedup.value is None or speedup.requests < limits["requests"]:
        return
    bounds = (
        f" ({speedup.low:.2f} to {speedup.high:.2f})" if speedup.low is not None and speedup.high is not None else ""
    )
    speculation = scene.picture.backend.speculation
    _, _, fix = advice(scene.picture.speedup, scene.picture.views.drafter)
    yield Symptom(
        f"decode runs at {speedup.value:.2f}{bounds} of its speed without speculation",
        (
            ("speed-up", f"{speedup.value:.2f}{bounds}"),
            ("basis", str(speedup.basis)),
            ("requests", str(speedup.requests)),
            ("tokens per step", _figure(speculation.mean_accepted_length)),
            ("break-even", _figure(speedup.break_even_length)),
        ),
        fix=fix,
    )


@rule(
    "Hardly any draft is accepted",
    AlertSeverity.WARNING,
    needs=(Source.METRICS,),
    counters=("draft_tokens", "accepted_tokens", "verification_steps"),
    trial_s=inf,
    ends_with_server=True,
    of_drafts=True,
    clear_after_s=0,
    explains=("speculation_hurting", "acceptance_collapse", "replay_thrash"),
    chart="acceptance",
    limits={"drafts": 100, "requests": 3, "drafts_of_one": 1000, "window_s": 900, "acceptance": 0.02},
)
def zero_acceptance(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Drafts are made, and not one token of them is accepted, or so few that no drafter could pay: the upper bound of
    their share lies below what a draft token costs at the least, a fiftieth of a token's decode. It is the sign of a
    drafter that computes NaN, of the wrong draft model, or of a prompt that the drafter does not get to see. It costs
    time and gains nothing. 100 drafts in a row over three requests, or 1000 of whatever request: a drafter that is
    right one time in twenty fails 100 times running once in 170 times, and one request that repeats itself may never be
    guessed right. A notice only where nothing but n-gram types draft: they are wrong where nothing repeats.

    - does the same prompt at /v1/completions get drafts accepted? then the chat path is broken for this drafter
    - another build of llama.cpp
    - is the draft model of the same family and tokenizer?
    - the log: draft_behind, draft_input_dropped

    Switch speculation off until the drafter is right; then set it again and look at the first requests.
    """
    samples = scene.past.since(scene.now - limits["window_s"])
    found = max(
        (
            _in_vain(samples, limits, (_of_live("drafted"), _of_live("accepted"), _of_live("steps"))),
            _in_vain(samples, limits, (_of_totals("draft_tokens"), _exact_accepted, _of_totals("verification_steps"))),
        ),
        key=lambda vain: vain.drafts,
    )
    # Counters move when a request ends, so that every look at which they moved is another request.
    several = found.times >= limits["requests"] and found.drafts >= limits["drafts"]
    if not several and found.drafts < limits["drafts_of_one"]:
        return
    guesses = _only_repeats(scene.picture.backend.speculation)
    what = f"{found.accepted:.0f}" if found.accepted else "none"
    yield Symptom(
        f"{what} of the last {found.drafted:.0f} draft tokens was accepted, in {found.drafts:.0f} drafts"
        if found.accepted <= 1
        else f"{what} of the last {found.drafted:.0f} draft tokens were accepted, in {found.drafts:.0f} drafts",
        (
            ("drafts", f"{found.drafts:.0f}"),
            ("draft tokens", f"{found.drafted:.0f}"),
            ("accepted", f"{found.accepted:.0f}"),
            *_types(scene),
        ),
        fix=WITHOUT,
        severity=AlertSeverity.NOTICE if guesses else None,
    )


class _Vain(Struct, frozen=True):
    """The longest stretch up to now in which so few draft tokens were accepted that no drafter could pay."""

    drafted: float = 0.0
    accepted: float = 0.0
    drafts: float = 0.0
    times: int = 0


def _in_vain(samples: Sequence[PictureSample], limits: Limits, totals: tuple[_Total, _Total, _Total]) -> _Vain:
    """Back from now. None accepted is judged by how many drafts there were; a few by the upper bound of what was
    accepted, which must lie below the least that a draft token can cost."""
    found, drafted = _Vain(), totals[0]
    if not samples or drafted(samples[0]) == drafted(samples[-1]):
        return found
    sums, times, after = (0.0, 0.0, 0.0), 0, samples[-1]
    for before in reversed(samples[:-1]):
        if before.totals is after.totals and before.live is after.live:
            # Samples that share their tables saw nothing move.
            after = before
            continue
        pairs = [(total(before), total(after)) for total in totals]
        grown = [new - old for old, new in pairs if old is not None and new is not None and new >= old]
        if len(grown) < len(pairs):
            break
        sums = (sums[0] + grown[0], sums[1] + grown[1], sums[2] + grown[2])
        times += bool(grown[0])
        after = before
        if not sums[1] or (sums[0] and _most(sums[1] / sums[0], sums[2] or 1.0) < limits["acceptance"]):
            found = _Vain(*sums, times)
    return found


def _most(share: float, drafts: float) -> float:
    """The upper bound of an acceptance that was seen over so many drafts."""
    return wilson(share, drafts, SURE)[1]


@rule(
    "Drafts are never made",
    AlertSeverity.WARNING,
    needs=(Source.METRICS,),
    counters=("draft_tokens", "predicted_tokens"),
    trial_s=inf,
    ends_with_server=True,
    of_drafts=True,
    clear_after_s=0,
    chart="acceptance",
    limits={"tokens": 400, "tokens_repeats": 4000, "window_s": 900},
)
def drafts_never_made(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Speculation is on and tokens are generated, and none is ever drafted: the drafter stops before its first token.
    400 tokens, because a draft model drafts at nearly every step; 4000 and a notice where nothing but n-gram types
    draft, which wait for text that repeats.

    - LLAMA_DRAFT_P_MIN: is it near 1?
    - LLAMA_DRAFT_MIN against LLAMA_DRAFT_MAX
    - n-gram types: size-n, n-match and min-hits against how much the text repeats
    - the log: draft_decode_failed

    Lower LLAMA_DRAFT_P_MIN or LLAMA_DRAFT_MIN; of n-gram types the length that must match (LLAMA_EXTRA_ARGS).
    """
    speculation = scene.picture.backend.speculation
    if not speculation.active:
        return
    guesses = _only_repeats(speculation)
    samples = scene.past.since(scene.now - limits["window_s"])
    (tokens,) = grown_while_still(samples, _of_totals("draft_tokens"), _of_totals("predicted_tokens")).totals
    if tokens < limits["tokens_repeats" if guesses else "tokens"]:
        return
    if scene.past.grown("live", "drafted", limits["window_s"]):
        return
    yield Symptom(
        f"{tokens:.0f} tokens generated with speculation on, and not one was drafted",
        (("generated", f"{tokens:.0f}"), ("drafted", "0"), *_types(scene)),
        severity=AlertSeverity.NOTICE if guesses else None,
    )


@rule(
    "Runs without speculation",
    AlertSeverity.WARNING,
    trial_s=inf,
    ends_with_server=True,
    raise_after_s=3,
    clear_after_s=3,
    needs=(Source.SLOTS,),
    explains=("acceptance_collapse",),
    chart="acceptance",
)
def speculation_off(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Speculation was asked for, and the server goes on without it, as llama.cpp does when its set-up fails: /slots
    says so, and nothing else does after the start. A draft model alone (-md) is loaded and not used.

    - specdash backend show
    - the first lines of the log: failed to initialize speculative decoding context, vocabs are not compatible
    - specdash preflight

    Give the type its draft model, one of the target's family and tokenizer; or take the type away, and free the draft
    model's memory.
    """
    found = scene.picture.views.drafting
    if found.state is not Drafting.FAILED:
        return
    wanted, draft = parameter(scene, "spec-type"), parameter(scene, "spec-draft-model")
    problems = of_late(scene, PROBLEM_CLASSES, float("inf"), of_this_server=True)
    yield Symptom(
        f"the server runs without speculation because {found.because}",
        (
            ("asked for", wanted or UNKNOWN),
            ("to do", found.fix or UNKNOWN),
            *((picture.title, picture.sample) for picture in problems),
        ),
        fix=(("LLAMA_SPEC_TYPE", "draft-simple"),) if wanted is None and draft is not None and not problems else (),
    )


def _of_this_server(scene: RuleScene) -> list[ServedRequest]:
    """Finished requests with drafts since the server's start, in the order in which they ended: of the proxy, which
    tells what they were for, unless the log tells of many more."""
    return scene.once("of this server", lambda: _ended_here(scene))


def _ended_here(scene: RuleScene) -> list[ServedRequest]:
    uptime = scene.picture.backend.uptime_s
    if uptime is None and scene.picture.backend.state is BackendState.DOWN:
        return []
    since = scene.picture.wall - uptime - _CLOCKS_S if uptime is not None else 0.0
    from_proxy, logged = (
        sorted(
            (request_sample for request_sample in usable(samples) if request_sample.began >= since),
            key=lambda request_sample: request_sample.ended,
        )
        for samples in (
            islice(reversed(scene.samples.told.values()), COMPARED),
            islice(reversed(scene.samples.logged), COMPARED),
        )
    )
    return from_proxy if 2 * len(from_proxy) >= len(logged) else logged


def _only_repeats(speculation: SpeculationPicture) -> bool:
    """Whether all that drafts looks for repeated text: it is right not to draft, or to be wrong, where none repeats."""
    types = speculation.types or ()
    return bool(types) and all(kind.startswith("ngram") for kind in types)


def _types(scene: RuleScene) -> Iterable[tuple[str, str]]:
    types = scene.picture.backend.speculation.types
    return (("types", ", ".join(types)),) if types else ()


def _exact_accepted(sample: PictureSample) -> float | None:
    return sample.exact_accepted


def _of_totals(name: str) -> _Total:
    return lambda sample: sample.totals.get(name)


def _of_live(name: str) -> _Total:
    return lambda sample: sample.live.get(name, 0)


def _figure(value: float | None) -> str:
    return number(value, 2)
