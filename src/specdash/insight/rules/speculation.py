"""Does speculation do what it is for: pure rules."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import TYPE_CHECKING

from specdash.core.readings import Source
from specdash.core.records import AlertSeverity, Drafting, Symptom
from specdash.insight.rules.catalogue import OverError, rule
from specdash.insight.rules.known import of_late, parameter
from specdash.insight.rules.scene import increase
from specdash.insight.speculation.drafting import PROBLEM_CLASSES
from specdash.insight.speedup.verdict import WITHOUT, VerdictKind, advice, kind_of
from specdash.system.stats import wilson
from specdash.system.text import UNKNOWN, number, percent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdash.insight.rules.catalogue import Limits
    from specdash.insight.rules.scene import PictureSample, RuleScene


SURE = 3.5
"""Standard deviations, of what is asked every second for days."""
_SHARES = (1 / 30, 1 / 9, 1 / 3, 1.0)
"""Of the window: drafts in vain are looked for in each part, since a drafter may have broken a moment ago."""


@rule(
    "Acceptance has collapsed",
    AlertSeverity.WARNING,
    needs=(Source.METRICS,),
    counters=("draft_tokens",),
    in_trials=False,
    of_drafts=True,
    clear_after_s=60,
    explains=("speculation_hurting",),
    chart="acceptance",
    # Prose at a high temperature after code is accepted a quarter as often: that is no collapse.
    limits={"recent_s": 600, "least_recent": 5, "drafts": 200, "before": 1000, "share": 0.15},
)
def acceptance_collapse(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
    """Far fewer draft tokens are accepted now than this server accepted from its start until a moment ago. What clients
    ask for changes acceptance too, but leaves about a quarter of it.

    - acceptance by position in the speculation panel
    - the log: draft_degraded, draft_decode_failed, ngram_mod_reset
    - did clients change: temperature, another language, images?

    Restart a server whose drafter broke: specdash services restart backend. When clients sample hotter or write
    something else, shorter drafts cost less.
    """
    samples = scene.own(limits["recent_s"])

    def suffices(count: int) -> bool:
        drafts, _, _, times = _drafted(samples[-count:])
        return drafts >= limits["drafts"] and times >= limits["least_recent"]

    # As few of the last requests as suffice.
    count = bisect_left(range(len(samples) + 1), 1, lo=1, key=suffices)
    if count > len(samples):
        return
    _, drafted, accepted, _ = _drafted(samples[-count:])
    former = samples[-count].totals
    before, kept = former.get("draft_tokens", 0.0), former.get("accepted_tokens", 0.0)
    if drafted and before >= limits["before"] and accepted * before <= limits["share"] * kept * drafted:
        yield Symptom(
            f"{percent(accepted / drafted)} of the last {drafted:.0f} draft tokens were accepted, and "
            f"{percent(kept / before)} of the {before:.0f} before them"
        )


@rule(
    "Speculation slows decode down",
    AlertSeverity.WARNING,
    in_trials=False,
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
    speedup = scene.picture.speedup
    kind, (_, _, fix) = kind_of(speedup), advice(speedup, scene.picture.views.drafter)
    if kind in (VerdictKind.PAYS, VerdictKind.NO_DIFFERENCE):
        raise OverError  # no warning may stand beside the figure that says the contrary
    if kind is VerdictKind.COSTS and speedup.value is not None and speedup.requests >= limits["requests"]:
        known = speedup.low is not None and speedup.high is not None
        bounds = f" ({speedup.low:.2f} to {speedup.high:.2f})" if known else ""
        yield Symptom(
            f"decode runs at {speedup.value:.2f}{bounds} of its speed without speculation",
            (
                ("basis", str(speedup.basis)),
                ("requests", str(speedup.requests)),
                ("tokens per step", number(scene.picture.backend.speculation.mean_accepted_length, 2)),
                ("break-even", number(speedup.break_even_length, 2)),
            ),
            fix=fix,
        )
        return
    steps, replays = (scene.logged(name, limits["window_s"]) for name in ("steps", "replays"))
    if steps >= limits["steps"] and replays >= limits["share"] * steps:
        words = f"{percent(replays / steps)} of verification steps restored a checkpoint and decoded again"
        yield Symptom(words, (("steps that were decoded again", f"{replays:.0f} of {steps:.0f}"),), fix=WITHOUT)


@rule(
    "Drafts are in vain, or never made",
    AlertSeverity.WARNING,
    needs=(Source.METRICS,),
    counters=("draft_tokens", "predicted_tokens"),
    in_trials=False,
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


def _drafted(samples: Sequence[PictureSample]) -> tuple[float, float, float, int]:
    """Drafts, draft tokens and those accepted, and at how many looks there were more of them: counters move when a
    request ends."""
    tokens = _totals(samples, "draft_tokens")
    grown = [increase(_totals(samples, name)) for name in ("verification_steps", "draft_tokens", "accepted_tokens")]
    drafts, drafted, accepted = (growth or 0.0 for growth in grown)
    return drafts, drafted, accepted, sum(before != after for before, after in pairwise(tokens))


def _in_vain(samples: Sequence[PictureSample], limits: Limits) -> tuple[float, float, float]:
    """Drafts, draft tokens and those accepted, where no drafter could pay; else nothing."""
    drafts, drafted, accepted, times = _drafted(samples)
    enough = drafts >= limits["drafts_of_one"] or (drafts >= limits["drafts"] and times >= limits["requests"])
    if not enough or not drafted:
        return 0.0, 0.0, 0.0
    is_vain = not accepted or wilson(accepted / drafted, drafts, SURE)[1] < limits["acceptance"]
    return (drafts, drafted, accepted) if is_vain else (0.0, 0.0, 0.0)


@rule(
    "Runs without speculation",
    AlertSeverity.WARNING,
    in_trials=False,
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
