"""Does speculation do what it is for: pure rules."""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from itertools import islice, pairwise
from math import inf, sqrt
from statistics import fmean
from typing import TYPE_CHECKING

from msgspec import Struct

from specdash.core.changes import ApplyOutcome, Role
from specdash.core.masking import MASK
from specdash.core.readings import Source
from specdash.core.records import AlertSeverity, Drafting, Symptom
from specdash.insight.picture import BackendState
from specdash.insight.request import drafts_of
from specdash.insight.rules.catalogue import OverError, rule
from specdash.insight.rules.known import of_late, parameter
from specdash.insight.rules.scene import increase
from specdash.insight.speculation.drafting import PROBLEM_CLASSES
from specdash.insight.speedup.verdict import WITHOUT, VerdictKind, advice, kind_of
from specdash.system.stats import pooled_deviation, wilson
from specdash.system.text import UNKNOWN, number, percent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdash.insight.request import ServedRequest
    from specdash.insight.rules.catalogue import Limits
    from specdash.insight.rules.known import Fix
    from specdash.insight.rules.scene import PictureSample, RuleScene


LEAST_DRAFTED = 8
"""A request with fewer draft tokens says nothing by itself."""
COMPARED = 256
"""The newest requests; older ones are another day's work."""
_CLOCKS_S = 2.0
SURE = 3.5
"""Standard deviations, of what is asked every second for days."""
_CONTEXTS = (256, 1024, 4096, 16384, 65536)
_LONG_PROMPT = 2048
"""Tokens to process from which a request counts as one with a long prompt."""
_SHARES = (1 / 30, 1 / 9, 1 / 3, 1.0)
"""Of the window: drafts in vain are looked for in each part, since a drafter may have broken a moment ago."""


class StrataComparison(Struct, frozen=True):
    """Recent requests against earlier ones of the same strata: how many, what is accepted of the recent ones' drafts,
    what would be at the earlier rates, and by how many standard deviations they lie below the earlier ones."""

    recent: int
    before: int
    acceptance: float
    expected: float
    sigma: float


def _stratum(request: ServedRequest) -> tuple[object, ...]:
    """Length of the context at its end, and the work: what the proxy saw it was for, else the shape of its prompt."""
    if request.prompt_tokens is None:
        return None, request.purpose
    length = bisect(_CONTEXTS, request.prompt_tokens + (request.decode_tokens or 0))
    if request.purpose is not None:
        return length, request.purpose
    cached = request.cached_tokens or 0
    if request.prompt_tokens - cached >= _LONG_PROMPT:
        return length, "long prompt"
    return length, "follow-up" if cached and 2 * cached >= request.prompt_tokens else "new prompt"


def compare(recent: Sequence[ServedRequest], before: Sequence[ServedRequest]) -> StrataComparison | None:
    """Has acceptance collapsed? Tool calls are accepted more than prose, long contexts less than short ones, so recent
    requests are compared with earlier ones within strata of context length and work. Whether the difference is chance
    is judged by how requests scatter about the means of their strata. None where no stratum has both."""
    strata: defaultdict[object, tuple[list[ServedRequest], list[ServedRequest]]] = defaultdict(lambda: ([], []))
    for side, samples in enumerate((recent, before)):
        for request in samples:
            strata[_stratum(request)][side].append(request)
    shared = [both for both in strata.values() if all(both)]
    if not shared:
        return None
    drafts = drafts_of([request for now, _ in shared for request in now])
    expected = sum(drafts_of(now).drafted * (drafts_of(then).acceptance or 0.0) for now, then in shared)
    rates = [[[request.acceptance or 0.0 for request in side] for side in both] for both in shared]
    weights = [len(now) * len(then) / (len(now) + len(then)) for now, then in rates]
    below = sum(weight * (fmean(then) - fmean(now)) for weight, (now, then) in zip(weights, rates, strict=True))
    deviation, _ = pooled_deviation(side for both in rates for side in both)
    error = (deviation or 0.0) * sqrt(sum(weights))
    return StrataComparison(
        recent=sum(len(now) for now, _ in shared),
        before=sum(len(then) for _, then in shared),
        acceptance=drafts.acceptance or 0.0,
        expected=expected / drafts.drafted,
        sigma=below / error if error else inf if below > 0 else 0.0,
    )


@rule(
    "Acceptance has collapsed",
    AlertSeverity.WARNING,
    trial_s=inf,
    of_drafts=True,
    clear_after_s=60,
    explains=("speculation_hurting",),
    chart="acceptance",
    limits={"recent_s": 600, "recent_requests": 12, "least_recent": 8, "least_before": 24, "sigma": 3.5, "share": 0.6},
)
def acceptance_collapse(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Far fewer draft tokens are accepted than of earlier requests of the same kind on this server: requests are
    compared within classes of context length and work, so that another mix of work does not count.

    - acceptance by position in the speculation panel
    - the log: draft_degraded, draft_decode_failed, ngram_mod_reset
    - did clients change: temperature, another language, images?

    When it came with a build or a draft model, go back to the one before. When clients sample hotter or write something
    else, shorter drafts cost less.
    """
    ended = _of_this_server(scene)
    since = scene.picture.wall - limits["recent_s"]
    recent = [request for request in ended if request.ended >= since][-int(limits["recent_requests"]) :]
    if len(recent) < limits["least_recent"]:
        return
    found = compare(recent, ended[: -len(recent)])
    if found is None or found.recent < limits["least_recent"] or found.before < limits["least_before"]:
        return
    if found.acceptance > limits["share"] * found.expected or found.sigma < limits["sigma"]:
        return
    fix: Fix = ()
    remedy = ""
    words = (
        f"{percent(found.acceptance)} of drafts accepted in the last {found.recent} requests, "
        f"{percent(found.expected)} expected from the {found.before} before"
    )
    first, last = ended[-len(recent) - 1].ended - _CLOCKS_S, recent[-1].ended
    # The newest that changed the server's settings between the requests that are compared.
    for mark in reversed(scene.picture.applies):
        record, own = mark.record, [change for change in mark.record.changes if change.role is Role.BACKEND]
        if own and record.outcome is ApplyOutcome.APPLIED and first <= mark.wall <= last:
            words += f"; apply {record.number} came between them: {mark.text}"
            remedy = f"Take apply {record.number} back: specdash rollback {record.number}, or the settings above."
            fix = tuple((change.key, change.before) for change in own if change.before != MASK)
            break
    yield Symptom(
        words,
        (("below by", f"{found.sigma:.1f} standard deviations"),),
        fix=fix,
        remedy=remedy,
    )


@rule(
    "Speculation slows decode down",
    AlertSeverity.WARNING,
    trial_s=inf,
    of_drafts=True,
    raise_after_s=20,
    clear_after_s=60,
    chart="decode",
    # Finished requests that it must rest on; 0, since the verdict judges that itself.
    limits={"requests": 0, "window_s": 60, "steps": 50, "share": 0.5},
)
def speculation_hurting(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Decode is slower than it would be without speculation, by the whole of its 95 % interval: drafting and verifying
    cost more than accepted tokens save. Or, where that is not known, most rejected drafts are paid twice: a recurrent
    or hybrid model cannot drop rejected tokens from its memory, and every step that rejects one restores a checkpoint
    and decodes what was accepted again (seen in the log of LLAMA_TRACE=1, or verbosity 5).

    - the speed-up panel: measured, or an estimate? tokens per decode against mean accepted length
    - specdash baseline record, for a measured figure
    - a spec type with rollback (MTP, EAGLE-3) for this architecture

    Take the change that the verdict names: shorter drafts, or no speculation. docs/speedup.md explains the figure.
    """
    speedup, window = scene.picture.speedup, limits["window_s"]
    kind, (_, _, fix) = kind_of(speedup), advice(speedup, scene.picture.views.drafter)
    if kind in (VerdictKind.PAYS, VerdictKind.NO_DIFFERENCE):
        raise OverError  # no warning may stand beside the figure that says the contrary
    steps, accepted = scene.logged("steps", window), scene.logged("accepted", window)
    replays = max(scene.logged("replays", window), scene.logged("speculative restored", window))
    evidence = [("steps that were decoded again", f"{replays:.0f} of {steps:.0f}" if steps else UNKNOWN)]
    if kind is VerdictKind.COSTS and speedup.value is not None and speedup.requests >= limits["requests"]:
        known = speedup.low is not None and speedup.high is not None
        bounds = f" ({speedup.low:.2f} to {speedup.high:.2f})" if known else ""
        summary = f"decode runs at {speedup.value:.2f}{bounds} of its speed without speculation"
        evidence += [
            ("basis", str(speedup.basis)),
            ("requests", str(speedup.requests)),
            ("tokens per step", number(scene.picture.backend.speculation.mean_accepted_length, 2)),
            ("break-even", number(speedup.break_even_length, 2)),
        ]
    elif steps >= limits["steps"] and replays >= limits["share"] * steps:
        summary = f"{percent(replays / steps)} of verification steps restored a checkpoint and decoded again"
        evidence.append(("tokens per decode", f"{(accepted + steps + replays) / (steps + replays):.2f}"))
        # As long as what is accepted, so that fewer steps reject any.
        longest, wanted = parameter(scene, "spec-draft-n-max") or "", max(1, round(accepted / steps))
        is_shorter = longest.isdigit() and wanted < int(longest)
        fix = (("LLAMA_DRAFT_MAX", str(wanted)),) if is_shorter else WITHOUT
    else:
        return
    yield Symptom(summary, tuple(evidence), fix=fix)


@rule(
    "Drafts are in vain, or never made",
    AlertSeverity.WARNING,
    needs=(Source.METRICS,),
    counters=("draft_tokens", "predicted_tokens"),
    trial_s=inf,
    of_drafts=True,
    clear_after_s=0,
    explains=("speculation_hurting", "acceptance_collapse"),
    chart="acceptance",
    # A drafter that is right one time in twenty fails 100 times running once in 170 times, and one request that repeats
    # itself may never be guessed right. A draft token costs at least a fiftieth of a token's decode.
    limits={
        "drafts": 100,
        "requests": 3,
        "drafts_of_one": 1000,
        "window_s": 900,
        "acceptance": 0.02,
        "tokens": 400,
        "tokens_repeats": 4000,
    },
)
def zero_acceptance(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Drafts are made, and not one token of them is accepted, or so few that no drafter could pay: a drafter that
    computes NaN, the wrong draft model, or a prompt that the drafter does not get to see. Or none is ever made, because
    the drafter stops before its first token. A notice where nothing but n-gram types draft: they are wrong, and wait,
    where nothing repeats.

    - does the same prompt at /v1/completions get drafts accepted? then the chat path is broken for this drafter
    - is the draft model of the same family and tokenizer? does another build of llama.cpp do it too?
    - the log: draft_degraded, draft_decode_failed
    - never made: is LLAMA_DRAFT_P_MIN near 1? LLAMA_DRAFT_MIN against LLAMA_DRAFT_MAX

    Switch speculation off until the drafter is right; then set it again and look at the first requests.
    """
    speculation = scene.picture.backend.speculation
    types = speculation.types or ()
    # What looks for repeated text is right not to draft, or to be wrong, where none repeats.
    only_repeats = bool(types) and all(kind.startswith("ngram") for kind in types)
    evidence = (("types", ", ".join(types) or UNKNOWN),)
    severity = AlertSeverity.NOTICE if only_repeats else None
    windows = [scene.own(share * limits["window_s"]) for share in _SHARES]
    drafts, drafted, accepted = max(_in_vain(window, limits) for window in windows)
    if drafts:
        yield Symptom(
            f"{f'{accepted:.0f}' if accepted else 'none'} of the last {drafted:.0f} draft tokens "
            f"{'was' if accepted <= 1 else 'were'} accepted, in {drafts:.0f} drafts",
            evidence,
            fix=WITHOUT,
            severity=severity,
        )
    tokens, made = (increase(_totals(windows[-1], name)) for name in ("predicted_tokens", "draft_tokens"))
    logged = increase([one.live.get("drafted", 0) for one in windows[-1]])
    if not speculation.active or tokens is None or made != 0 or logged:
        return
    if tokens >= limits["tokens_repeats" if only_repeats else "tokens"]:
        yield Symptom(
            f"{tokens:.0f} tokens generated with speculation on, and not one was drafted",
            evidence,
            severity=severity,
            remedy="Lower LLAMA_DRAFT_P_MIN or LLAMA_DRAFT_MIN; of n-gram types the length that must match "
            "(LLAMA_EXTRA_ARGS).",
        )


def _totals(samples: Iterable[PictureSample], name: str) -> list[float | None]:
    return [sample.totals.get(name) for sample in samples]


def _in_vain(samples: Sequence[PictureSample], limits: Limits) -> tuple[float, float, float]:
    """Drafts, draft tokens and those accepted, where no drafter could pay; else nothing."""
    tokens = _totals(samples, "draft_tokens")
    drafted, accepted, drafts = (
        increase(_totals(samples, name)) for name in ("draft_tokens", "accepted_tokens", "verification_steps")
    )
    # Counters move when a request ends, so that every look at which they moved is another request.
    times = sum(before != after for before, after in pairwise(tokens))
    if not drafted or accepted is None or not drafts:
        return 0.0, 0.0, 0.0
    enough = drafts >= limits["drafts_of_one"] or (drafts >= limits["drafts"] and times >= limits["requests"])
    is_vain = not accepted or wilson(accepted / drafted, drafts, SURE)[1] < limits["acceptance"]
    return (drafts, drafted, accepted) if enough and is_vain else (0.0, 0.0, 0.0)


@rule(
    "Runs without speculation",
    AlertSeverity.WARNING,
    trial_s=inf,
    of_drafts=True,
    raise_after_s=3,
    clear_after_s=3,
    needs=(Source.SLOTS,),
    explains=("acceptance_collapse",),
    chart="acceptance",
)
def speculation_off(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Speculation was asked for, and the server goes on without it, as llama.cpp does when its set-up fails: /slots
    says so, and nothing else does after the start. A draft model alone (-md) is loaded and not used.

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
    """Finished requests since the server's start that drafted enough to have an acceptance, in the order in which they
    ended: of the proxy, which knows what they were for, unless the log has many more."""
    uptime = scene.picture.backend.uptime_s
    if uptime is None and scene.picture.backend.state is BackendState.DOWN:
        return []
    since = scene.picture.wall - uptime - _CLOCKS_S if uptime is not None else 0.0
    sides = []
    for side in (scene.samples.reported.values(), scene.samples.logged):
        newest = (one for one in islice(reversed(side), COMPARED) if one.began >= since)
        usable = [one for one in newest if one.draft_accepted is not None]
        sides.append([one for one in usable if (one.draft_generated or 0) >= LEAST_DRAFTED])
    from_proxy, logged = (sorted(side, key=lambda one: one.ended) for side in sides)
    return from_proxy if 2 * len(from_proxy) >= len(logged) else logged
