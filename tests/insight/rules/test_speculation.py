"""The rules of speculation on counters, requests and baselines that a server could have told.

What a real server can be made to do is in tests/e2e/test_speculation_rules.py.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from insight.experiment_data import record
from insight.rules.judging import OK, Watch, process
from insight.speedup_data import baseline, row_of, state
from specdash.core.changes import Change, Role
from specdash.core.proxy_events import ProxyEvents, RequestEvent
from specdash.core.readings import Counters, Reading, Slot, Slots, Source
from specdash.core.records import AlertSeverity
from specdash.insight.rules.catalogue import runbook, shipped
from specdash.insight.rules.scene import PictureHistory, RuleScene, sample_of
from specdash.insight.rules.speculation import speculation_hurting, speculation_hurting_is_over

OWN = tuple(rule for rule in shipped() if rule.spec.family == "speculation")
LIMITS = {rule.spec.id: rule.spec.limits for rule in OWN}
JUDGED = 1_800_000_000.0
"""Unix time of monotonic time 0 of a `Watch`."""
NOW, WALL = 5000.0, 1_790_000_000.0


def speculating(kind: str) -> Slots:
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
        watch.look(3, metrics=totals(*now), slots=speculating(kind), process=process(), health=OK)
    return watch


IN_VAIN = (40.0, 160.0, 0.0, 40.0)
UNDRAFTED = (300.0, 0.0, 0.0, 0.0)


def test_three_requests_without_one_accepted_token_say_that_the_drafter_is_broken() -> None:
    assert run("draft-dflash", [IN_VAIN] * 3).raised() == {"zero_acceptance"}


@pytest.mark.parametrize(
    "requests",
    [
        [(200.0, 800.0, 0.0, 200.0)],
        [IN_VAIN, IN_VAIN, (40.0, 160.0, 1.0, 40.0)],
        [(5.0, 20.0, 0.0, 5.0)] * 3,
        [UNDRAFTED],
    ],
    ids=["one that repeats itself", "one token of the last was accepted", "few drafts", "none drafted, once"],
)
def test_less_than_that_says_nothing(requests: list[tuple[float, float, float, float]]) -> None:
    assert run("draft-simple", requests).raised() == set()


@pytest.mark.parametrize(
    ("accepted", "raised"), [(1.0, {"zero_acceptance"}), (3.0, {"zero_acceptance"}), (60.0, set())]
)
def test_next_to_none_is_none(accepted: float, raised: set[str]) -> None:
    """One of 633 at each request, eleven times: 11 of 6,963. One in ten is another matter."""
    found = run("draft-mtp", [(212.0, 633.0, accepted, 211.0)] * 11).raised() - {"speculation_hurting"}
    assert found == raised


def test_an_estimate_whose_best_case_is_a_loss_raises_the_alert_without_a_log() -> None:
    assert "speculation_hurting" in run("draft-mtp", [(212.0, 633.0, 1.0, 211.0)] * 15).raised()


def test_the_alert_is_over_with_the_first_accepted_token() -> None:
    watch = run("draft-simple", [IN_VAIN] * 4)
    assert watch.raised() == {"zero_acceptance"}
    watch.look(2, metrics=totals(2000.0, 2000.0, 201.0, 500.0), slots=speculating("draft-simple"), health=OK)
    assert watch.raised() == set()


def test_a_drafter_that_breaks_after_it_was_right_for_long_is_found_within_a_minute() -> None:
    well = (40.0, 160.0, 120.0, 40.0)
    assert run("draft-simple", [well] * 30).raised() == set()
    assert run("draft-simple", [well] * 30 + [IN_VAIN] * 12).raised() == {"zero_acceptance"}


def test_what_a_server_before_this_one_generated_says_nothing_of_its_drafter() -> None:
    watch = run("draft-simple", [(100.0, 0.0, 0.0, 0.0)] * 3)
    for tokens in (10.0, 200.0, 350.0):
        now = process(11, started=JUDGED + 20)
        watch.look(3, metrics=totals(tokens, 0.0, 0.0, 0.0), slots=speculating("draft-simple"), process=now, health=OK)
    assert watch.raised() == set()


def test_n_grams_that_are_never_right_are_a_notice() -> None:
    alert = run("ngram-mod", [IN_VAIN] * 3).alert("zero_acceptance")
    assert alert is not None
    assert alert.severity is AlertSeverity.NOTICE


def test_tokens_without_drafts_are_told_of_a_draft_model_soon_and_of_n_grams_late() -> None:
    assert run("draft-simple", [UNDRAFTED] * 2).raised() == {"drafts_never_made"}
    assert run("ngram-simple", [UNDRAFTED] * 2).raised() == set()
    assert run("ngram-simple", [UNDRAFTED] * 14).raised() == {"drafts_never_made"}


def test_a_server_that_nobody_asked_to_speculate_raises_nothing() -> None:
    watch = Watch(OWN)
    for count in range(10):
        slots = Slots((Slot(0, is_processing=True, speculative=False, n_decoded=count),))
        watch.look(1, metrics=totals(1000.0 * count, 0.0, 0.0, 0.0), slots=slots, process=process(), health=OK)
    assert watch.raised() == set()


def decoding(rate: float, *, accepted: int = 20, **drafter: Any) -> RuleScene:
    """Requests at `rate` against a baseline of 50 tokens per second, with this drafter."""
    told = state(row_of(12, rate=rate, every_s=8.0, accepted=accepted, drafted=400), (baseline(),))
    told.apply(Reading.known(Source.METRICS, NOW - 100, totals(0, 0, 0, 0)))
    told.apply(Reading.known(Source.METRICS, NOW - 1, totals(2400, 4800, 240, 400)))
    picture = told.picture(NOW, WALL, 300.0)
    views = replace(picture.views, drafter=replace(picture.views.drafter, **drafter))
    picture = replace(picture, views=views)
    past = PictureHistory()
    past.add(sample_of(picture))
    return RuleScene(picture, past, told.experiments.samples)


def hurting(rate: float, **drafter: Any) -> list[tuple[str, tuple[tuple[str, str | None], ...]]]:
    """What is said of them."""
    scene = decoding(rate, **drafter)
    return [(symptom.summary, symptom.fix) for symptom in speculation_hurting(scene, LIMITS["speculation_hurting"])]


def test_decode_slower_than_its_baseline_is_told_with_its_interval() -> None:
    ((summary, fix),) = hurting(30.0)
    assert summary.startswith("decode runs at 0.60 (")
    assert fix == (("LLAMA_SPEC_TYPE", "none"),)


def test_the_fix_is_the_draft_length_that_the_verdict_names() -> None:
    ((_, fix),) = hurting(30.0, effective_length=12, best_length=3, best_gain=0.9)
    assert fix == (("LLAMA_DRAFT_MAX", "3"),)


def test_decode_faster_than_its_baseline_is_no_trouble() -> None:
    assert hurting(90.0) == []


@pytest.mark.parametrize(("rate", "over"), [(30.0, False), (90.0, True)])
def test_its_alert_is_over_as_soon_as_the_verdict_says_the_contrary(rate: float, over: bool) -> None:
    assert speculation_hurting_is_over(decoding(rate, accepted=150)) is over


def test_what_was_wrong_with_drafts_is_over_when_speculation_is_switched_off() -> None:
    watch = run("draft-dflash", [IN_VAIN] * 3)
    assert watch.raised() == {"zero_acceptance"}
    off = Slots((Slot(0, is_processing=False, speculative=False),))
    watch.state.retarget(replace(watch.state.target, engine="llama.cpp", pid=10))
    watch.look(2, slots=off, process=process(), health=OK, metrics=Counters(predicted_tokens=5.0))
    assert watch.state.picture(watch.at, WALL).views.drafting.state == "off"
    assert watch.raised() == set()


def drafted(at: float, accepted: int) -> RequestEvent:
    return RequestEvent(
        JUDGED + at, "s", f"r{at}", prompt_tokens=500, completion_tokens=100, duration_s=1.0,
        draft_tokens=100, accepted_tokens=accepted,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        ((Change(Role.BACKEND, "LLAMA_DRAFT_MAX", "4", "16"),), (("LLAMA_DRAFT_MAX", "4"),)),
        (
            (
                Change(Role.BACKEND, "LLAMA_DRAFT_P_MIN", None, "0.1"),
                Change(Role.BACKEND, "LLAMA_API_KEY", "***", "***"),
            ),
            (("LLAMA_DRAFT_P_MIN", None),),
        ),
        ((Change(Role.PROXY, "PROXY_PORT", "1", "2"),), ()),
        ((), ()),
    ],
)
def test_a_collapse_after_an_apply_names_it_and_what_takes_it_back(
    changes: tuple[Change, ...], fix: tuple[tuple[str, str | None], ...]
) -> None:
    watch = Watch(OWN)
    watch.at = 300.0
    watch.state.retarget(replace(watch.state.target, proxy_log="events.jsonl"))
    events = [drafted(3.0 * at, 78 + at % 5) for at in range(60)] + [
        drafted(200.0 + 5 * at, 9 + at % 4) for at in range(12)
    ]
    watch.tell(Source.PROXY_EVENTS, ProxyEvents(tuple(events)))
    if changes:
        watch.tell(Source.APPLIES, (record(7, JUDGED + 185.0, changes=changes, step_seconds={}),))
    watch.look(3, process=process(started=JUDGED), health=OK)
    alert = watch.alert("acceptance_collapse")
    assert alert is not None
    assert alert.fix == fix
    spec = next(rule.spec for rule in OWN if rule.spec.id == alert.rule)
    assert ("apply 7" in alert.summary, "specdash rollback 7" in runbook(spec, alert).remedy) == (bool(fix),) * 2
