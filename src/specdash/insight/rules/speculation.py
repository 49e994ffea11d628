"""Does speculation do what it is for: pure rules, described in speculation.toml."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import PurePath
from typing import TYPE_CHECKING

from specdash.core.alerts import AlertSeverity, Symptom
from specdash.core.readings import Status
from specdash.core.start_check import Drafting
from specdash.insight.drafting import PROBLEM_CLASSES
from specdash.insight.rules.collapse import compare, usable
from specdash.insight.rules.known import grown_while_still, of_late, parameter
from specdash.insight.rules.wording import percent
from specdash.insight.speedup_picture import Paying

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdash.insight.picture import SpeculationPicture
    from specdash.insight.rules.catalogue import Limits
    from specdash.insight.rules.known import Fix
    from specdash.insight.rules.scene import Sample, Scene
    from specdash.insight.samples import RequestSample

NO_SPECULATION: Fix = (("LLAMA_SPEC_TYPE", "none"),)
_CLOCKS_S = 2.0
COMPARED = 256
"""The newest requests; older ones are another day's work."""


def acceptance_collapse(scene: Scene, limits: Limits) -> Iterable[Symptom]:
    """Far less is accepted than of earlier requests of the same kind."""
    if not scene.samples.logged and not scene.samples.told:
        return
    ended = _of_this_server(scene)
    since = scene.picture.wall - limits["recent_s"]
    recent = [one for one in ended if one.ended >= since][-int(limits["recent_requests"]) :]
    if len(recent) < limits["least_recent"]:
        return
    found = compare(recent, ended[: -len(recent)])
    if found is None or found.recent < limits["least_recent"] or found.before < limits["least_before"]:
        return
    if found.sigma < limits["sigma"] or found.acceptance > limits["share"] * found.expected:
        return
    yield Symptom(
        f"{percent(found.acceptance)} of drafts accepted in the last {found.recent} requests, "
        f"{percent(found.expected)} expected of such work by the {found.before} before",
        (
            ("acceptance", percent(found.acceptance)),
            ("expected", percent(found.expected)),
            ("below by", f"{found.sigma:.1f} standard deviations"),
            ("draft tokens", str(found.drafted)),
            ("kinds of work compared", str(found.strata)),
        ),
    )


def speculation_hurting(scene: Scene, limits: Limits) -> Iterable[Symptom]:
    """Decode is slower than it would be without."""
    speedup = scene.picture.speedup
    if speedup.verdict is not Paying.HURTING or speedup.value is None or speedup.requests < limits["requests"]:
        return
    bounds = (
        f" ({speedup.low:.2f} to {speedup.high:.2f})" if speedup.low is not None and speedup.high is not None else ""
    )
    speculation = scene.picture.backend.speculation
    yield Symptom(
        f"decode runs at {speedup.value:.2f}{bounds} of its speed without speculation",
        (
            ("speed-up", f"{speedup.value:.2f}{bounds}"),
            ("basis", str(speedup.basis)),
            ("requests", str(speedup.requests)),
            ("tokens per step", _figure(speculation.mean_accepted_length)),
            ("break-even", _figure(speedup.break_even_length)),
        ),
        fix=_shorter_drafts(scene, speculation.mean_accepted_length),
    )


def zero_acceptance(scene: Scene, limits: Limits) -> Iterable[Symptom]:
    """Drafts are made, and not one token of them is accepted: the sign of a drafter that computes NaN."""
    samples = scene.past.since(scene.now - limits["window_s"])
    live = grown_while_still(samples, _of_live("accepted"), _of_live("drafted"), _of_live("steps"))
    ended = grown_while_still(
        samples, lambda one: one.exact_accepted, _of_totals("draft_tokens"), _of_totals("verification_steps")
    )
    tokens, drafts = max(live.totals, ended.totals)
    # Counters move when a request ends, so that every look at which they moved is another request.
    several = ended.times >= limits["requests"] and ended.totals[1] >= limits["drafts"]
    if not several and drafts < limits["drafts_of_one"]:
        return
    guesses = _only_repeats(scene.picture.backend.speculation)
    yield Symptom(
        f"none of the last {tokens:.0f} draft tokens was accepted, in {drafts:.0f} drafts",
        (("drafts", f"{drafts:.0f}"), ("draft tokens", f"{tokens:.0f}"), ("accepted", "0"), *_types(scene)),
        fix=NO_SPECULATION,
        severity=AlertSeverity.NOTICE if guesses else None,
    )


def drafts_never_made(scene: Scene, limits: Limits) -> Iterable[Symptom]:
    """Speculation is on, tokens are generated, and nobody drafts any."""
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


def repeating_answer(scene: Scene, limits: Limits) -> Iterable[Symptom]:
    """Nearly every draft token of a long answer is accepted, which is usual for nothing that says anything new."""
    if _is_draft_the_target(scene) or _drafts_are_always_right(scene, limits):
        return
    guesses = _only_repeats(scene.picture.backend.speculation)
    found = [one for one in _answers(scene, limits["shown_s"]) if one.tokens >= limits["tokens"]]
    for one in found:
        if one.acceptance < limits["acceptance"] or (one.drafted_share or 1.0) < limits["drafted_share"]:
            continue
        yield Symptom(
            f"{percent(one.acceptance)} of drafts accepted over an answer of {one.tokens} tokens ({one.words}): "
            "it repeats itself, or copies",
            (
                ("request", one.words),
                ("answer", f"{one.tokens} tokens"),
                ("acceptance", f"{one.acceptance * 100:.1f} %"),
                ("drafted", percent(one.drafted_share) if one.drafted_share is not None else "--"),
                ("other answers", _others(scene, limits)),
            ),
            subject=one.subject,
            severity=AlertSeverity.NOTICE if guesses else None,
        )


@dataclass(frozen=True, slots=True)
class _Answer:
    """One answer with drafts: `subject` and `words` say which, `drafted_share` how much of it drafts gave."""

    subject: str
    words: str
    tokens: int
    acceptance: float
    drafted_share: float | None = None


def _answers(scene: Scene, seconds: float) -> Iterable[_Answer]:
    """Answers that are made now, and those of the last `seconds`, by the log, else by the proxy. One for a subject."""
    found: dict[str, _Answer] = {}
    for slot in scene.picture.backend.slots or ():
        if slot.acceptance is not None and slot.decoded:
            subject = f"slot {slot.id}"
            found[subject] = _Answer(subject, f"{subject}, task {slot.task}, running", slot.decoded, slot.acceptance)
    for ended in scene.picture.log.requests:
        rate, tokens = ended.acceptance, ended.decode_tokens
        if ended.ended_age_s <= seconds and rate is not None and tokens:
            subject = f"slot {ended.slot}" if ended.slot is not None else f"task {ended.task}"
            words = f"{subject}, task {ended.task}" if ended.slot is not None else subject
            one = _Answer(subject, words, tokens, rate, (ended.draft_accepted or 0) / tokens)
            if subject not in found or found[subject].tokens < tokens:
                found[subject] = one
    if scene.picture.log.status is Status.KNOWN:
        return found.values()
    since = scene.picture.wall - seconds
    for event in scene.picture.proxy.finished:
        if event.draft_tokens and event.accepted_tokens is not None and event.completion_tokens and event.at >= since:
            subject, accepted, tokens = f"session {event.session}", event.accepted_tokens, event.completion_tokens
            one = _Answer(
                subject,
                f"{subject}, request {event.request_id}",
                tokens,
                accepted / event.draft_tokens,
                accepted / tokens,
            )
            found.setdefault(subject, one)
    return found.values()


def _is_draft_the_target(scene: Scene) -> bool:
    """Whether the draft model is the model itself, whose drafts are right by nature."""
    draft, model = parameter(scene, "spec-draft-model"), scene.picture.backend.model_path
    return draft is not None and model is not None and PurePath(draft).name == PurePath(model).name


def _drafts_are_always_right(scene: Scene, limits: Limits) -> bool:
    """Whether short answers of this server are drafted as well as that: then it is the drafter, and no loop."""
    drafted, accepted = _of_short_answers(scene, limits)
    return drafted >= limits["others_drafted"] and accepted >= limits["others_acceptance"] * drafted


def _of_short_answers(scene: Scene, limits: Limits) -> tuple[int, int]:
    """Drafted and accepted tokens of answers that are too short to be judged."""
    short = [one for one in _of_this_server(scene) if (one.decode_tokens or 0) < limits["tokens"]]
    return sum(one.drafted or 0 for one in short), sum(one.accepted or 0 for one in short)


def _others(scene: Scene, limits: Limits) -> str:
    drafted, accepted = _of_short_answers(scene, limits)
    return f"{percent(accepted / drafted)} of drafts accepted" if drafted else "none to compare with"


def speculation_off(scene: Scene, limits: Limits) -> Iterable[Symptom]:
    """It was asked for, and the server runs without."""
    del limits
    found = scene.picture.views.drafting
    if found.state is not Drafting.FAILED:
        return
    wanted, draft = parameter(scene, "spec-type"), parameter(scene, "spec-draft-model")
    said = of_late(scene, PROBLEM_CLASSES, float("inf"), of_this_server=True)
    yield Symptom(
        f"the server runs without speculation because {found.because}",
        (("asked for", wanted or "--"), ("to do", found.fix or "--"), *((one.title, one.sample) for one in said)),
        fix=(("LLAMA_SPEC_TYPE", "draft-simple"),) if wanted is None and draft is not None and not said else (),
    )


def _of_this_server(scene: Scene) -> list[RequestSample]:
    """Finished requests with drafts since the server's start, in the order in which they ended: of the proxy, which
    tells what they were for, unless the log tells of many more."""
    uptime = scene.picture.backend.uptime_s
    since = scene.picture.wall - uptime - _CLOCKS_S if uptime is not None else 0.0
    told, logged = (
        sorted((one for one in usable(samples) if one.began >= since), key=lambda one: one.ended)
        for samples in (
            islice(reversed(scene.samples.told.values()), COMPARED),
            islice(reversed(scene.samples.logged), COMPARED),
        )
    )
    return told if 2 * len(told) >= len(logged) else logged


def _shorter_drafts(scene: Scene, length: float | None) -> Fix:
    """Drafts as long as what is accepted of them; no speculation where they are no longer than that already."""
    longest = parameter(scene, "spec-draft-n-max")
    if longest is None or not longest.isdigit() or length is None or _only_repeats(scene.picture.backend.speculation):
        return NO_SPECULATION
    wanted = max(1, round(length - 1))
    return (("LLAMA_DRAFT_MAX", str(wanted)),) if wanted < int(longest) else NO_SPECULATION


def _only_repeats(speculation: SpeculationPicture) -> bool:
    """Whether all that drafts looks for repeated text: it is right not to draft, or to be wrong, where none repeats."""
    types = speculation.types or ()
    return bool(types) and all(one.startswith("ngram") for one in types)


def _types(scene: Scene) -> Iterable[tuple[str, str]]:
    types = scene.picture.backend.speculation.types
    return (("types", ", ".join(types)),) if types else ()


def _of_totals(name: str) -> _Total:
    return lambda sample: sample.totals.get(name)


def _of_live(name: str) -> _Total:
    return lambda sample: sample.live.get(name, 0)


def _figure(value: float | None) -> str:
    return f"{value:.2f}" if value is not None else "--"


if TYPE_CHECKING:
    from collections.abc import Callable

    _Total = Callable[[Sample], float | None]
