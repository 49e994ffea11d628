"""The rules of speculation on counters, requests and baselines that a server could have.

What a real server can be made to do is in tests/e2e/test_speculation_rules.py.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from insight.scenes import NOW, OK, WALL, Watch, baseline, measured, only, process, row_of, tell
from specdash.core.readings import Counters, Slot, Slots
from specdash.core.records import AlertSeverity
from specdash.insight.rules.catalogue import OverError
from specdash.insight.rules.scene import PictureHistory, RuleScene
from specdash.insight.rules.speculation import speculation_hurting

OWN = only("speculation")
OFF = Slots((Slot(0, is_processing=True, speculative=False, n_decoded=5),))


def drafting(kind: str) -> Slots:
    return Slots((Slot(0, is_processing=True, speculative=True, n_decoded=5, speculative_types=(kind,)),))


def totals(predicted: float, drafted: float, accepted: float, steps: float) -> Counters:
    return Counters(
        predicted_tokens=predicted,
        predicted_seconds=predicted / 20.0,
        draft_tokens=drafted,
        accepted_tokens=accepted,
        verification_steps=steps,
        requests_processing=1.0,
    )


def run(kind: str, requests: list[tuple[float, float, float, float]]) -> Watch:
    """A server whose counters grow by these figures, request by request."""
    watch = Watch(OWN)
    now = [1000.0, 400.0, 200.0, 100.0]
    for grown in [(0.0, 0.0, 0.0, 0.0), *requests]:
        now = [total + more for total, more in zip(now, grown, strict=True)]
        watch.look(3, metrics=totals(*now), slots=drafting(kind), process=process(), health=OK)
    return watch


IN_VAIN = (40.0, 160.0, 0.0, 40.0)
UNDRAFTED = (300.0, 0.0, 0.0, 0.0)


WELL = (40.0, 160.0, 120.0, 40.0)


@pytest.mark.parametrize(
    ("kind", "requests", "severity"),
    [
        ("draft-dflash", [IN_VAIN] * 3, AlertSeverity.WARNING),
        ("ngram-mod", [IN_VAIN] * 3, AlertSeverity.NOTICE),
        # One request that repeats itself, one accepted token of the last, few drafts, none drafted once: nothing.
        ("draft-simple", [(200.0, 800.0, 0.0, 200.0)], None),
        ("draft-simple", [IN_VAIN, IN_VAIN, (40.0, 160.0, 1.0, 40.0)], None),
        ("draft-simple", [(5.0, 20.0, 0.0, 5.0)] * 3, None),
        ("draft-simple", [UNDRAFTED], None),
        # Next to none is none: 11 of 6,963 accepted. One in ten is another matter.
        ("draft-mtp", [(212.0, 633.0, 1.0, 211.0)] * 11, AlertSeverity.WARNING),
        ("draft-mtp", [(212.0, 633.0, 3.0, 211.0)] * 11, AlertSeverity.WARNING),
        ("draft-mtp", [(212.0, 633.0, 60.0, 211.0)] * 11, None),
        # One that breaks after it was right for long is found within a minute.
        ("draft-simple", [WELL] * 30, None),
        ("draft-simple", [WELL] * 30 + [IN_VAIN] * 12, AlertSeverity.WARNING),
        # Never made: soon of a draft model, late and milder of n-grams.
        ("draft-simple", [UNDRAFTED] * 2, AlertSeverity.WARNING),
        ("ngram-simple", [UNDRAFTED] * 2, None),
        ("ngram-simple", [UNDRAFTED] * 14, AlertSeverity.NOTICE),
    ],
)
def test_drafts_in_vain_or_never_made(kind: str, requests: list[Any], severity: AlertSeverity | None) -> None:
    alert = run(kind, requests).alert("zero_acceptance")
    assert (alert.severity if alert else None) is severity


def test_an_alert_is_over_with_the_first_accepted_token_or_with_speculation() -> None:
    assert "speculation_hurting" in run("draft-mtp", [(212.0, 633.0, 1.0, 211.0)] * 15).raised(), "by its best case"
    watch = run("draft-simple", [IN_VAIN] * 4)
    assert watch.raised() == {"zero_acceptance"}
    watch.look(2, metrics=totals(2000.0, 2000.0, 201.0, 500.0), slots=drafting("draft-simple"), health=OK)
    assert watch.raised() == set()
    watch = run("draft-dflash", [IN_VAIN] * 3)
    watch.retarget(engine="llama.cpp", pid=10)
    watch.look(2, slots=OFF, process=process(), health=OK, metrics=Counters(predicted_tokens=5.0))
    assert (watch.picture.views.drafting.state, watch.raised()) == ("off", set())


def test_what_a_server_before_this_one_or_without_drafts_generated_is_nothing_of_its_drafter() -> None:
    watch = Watch(OWN)
    for count in range(10):
        watch.look(1, metrics=totals(1000.0 * count, 0.0, 0.0, 0.0), slots=OFF, process=process(), health=OK)
    assert watch.raised() == set()
    watch = run("draft-simple", [(100.0, 0.0, 0.0, 0.0)] * 3)
    for tokens in (10.0, 200.0, 350.0):
        now = process(11, started=WALL + 20)
        watch.look(3, metrics=totals(tokens, 0.0, 0.0, 0.0), slots=drafting("draft-simple"), process=now, health=OK)
    assert watch.raised() == set()


def hurting(rate: float, *, accepted: int = 20, **drafter: Any) -> list[tuple[str, object]]:
    """Summary and fix for requests at `rate` against a baseline of 50 tokens per second, with this drafter."""
    server = measured(row_of(12, rate=rate, every_s=8.0, accepted=accepted, drafted=400), (baseline(),))
    tell(server, NOW - 100, metrics=totals(0, 0, 0, 0))
    tell(server, NOW - 1, metrics=totals(2400, 4800, 240, 400))
    picture = server.picture(NOW, WALL, 300.0)
    picture = replace(picture, views=replace(picture.views, drafter=replace(picture.views.drafter, **drafter)))
    scene = RuleScene(picture, PictureHistory())
    limits = next(rule.limits for rule in OWN if rule.id == "speculation_hurting")
    return [(symptom.summary, symptom.fix) for symptom in speculation_hurting(scene, limits)]


def test_decode_slower_than_its_baseline_has_its_interval_and_the_fix_of_the_verdict() -> None:
    ((summary, fix),) = hurting(30.0)
    assert summary.startswith("decode runs at 0.60 (")
    assert fix == (("LLAMA_SPEC_TYPE", "none"),)
    ((_, fix),) = hurting(30.0, effective_length=12, best_length=3, best_gain=0.9)
    assert fix == (("LLAMA_DRAFT_MAX", "3"),)
    with pytest.raises(OverError):
        hurting(90.0, accepted=150)


def test_acceptance_that_falls_to_a_tenth_of_what_it_was_is_a_collapse_and_another_mix_of_work_is_none() -> None:
    tools, prose, broken = (40.0, 160.0, 128.0, 40.0), (40.0, 160.0, 30.0, 40.0), (40.0, 160.0, 10.0, 40.0)
    assert run("draft-simple", [tools] * 20 + [prose] * 12).raised() == set()
    watch = run("draft-simple", [tools] * 20 + [broken] * 6)
    assert watch.raised() == {"acceptance_collapse"}
    summary = watch.found("acceptance_collapse").summary
    assert summary.startswith("6 % of the last 800 draft tokens were accepted, and 74 %")
    assert run("draft-simple", [broken] * 20).raised() == set(), "it never was better"


def test_speculation_that_was_asked_for_and_is_not_there() -> None:
    watch = Watch(OWN)
    watch.retarget(parameters=(("spec-type", "draft-simple"),))
    watch.look(20, slots=OFF, process=process(), health=OK)
    assert watch.found("speculation_off").summary.startswith("the server runs without speculation because")
    watch.look(8, slots=drafting("draft-simple"), process=process(), health=OK)
    assert watch.raised() == set()
