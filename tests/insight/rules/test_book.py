"""Alerts come when a symptom has lasted, stay through flicker and silence, and go when it is gone."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from insight.rules.judging import OK, WALL, Watch, rule
from specdash.core.readings import ReadingStatus, Source
from specdash.core.records import Alert, AlertEvent, AlertSeverity, Symptom, Transition
from specdash.insight.picture import BackendPicture, BackendState, Picture, SourcePicture
from specdash.insight.request import Samples
from specdash.insight.rules.book import FORGOTTEN_AFTER_S, INTERRUPTED_S, PAST_KEPT, SETTLE_S, SUBJECTS, AlertBook
from specdash.insight.rules.catalogue import Limits, Rule
from specdash.insight.rules.scene import PictureHistory, RuleScene, sample_of

NOTICE, WARNING, CRITICAL = AlertSeverity


class Moment(Struct, frozen=True):
    """One judgement: what the scripted rule sees, and what the server is like. `wall` overrides the clock."""

    at: float
    subjects: tuple[str, ...] = ()
    state: BackendState = BackendState.LIVE
    fresh: bool = True
    busy: bool = True
    severity: AlertSeverity | None = None
    wall: float | None = None


class Play:
    """A book that judges one scripted rule, moment after moment."""

    def __init__(self, **said: Any) -> None:
        self.now: Moment = Moment(0.0)
        self.contrary = False
        self.rule: Rule = replace(rule(self.judge, **said), is_over=lambda _: self.contrary)
        self.book = AlertBook((self.rule,))
        self.past = PictureHistory()
        self.events: list[AlertEvent] = []

    def judge(self, scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
        for subject in self.now.subjects:
            yield Symptom(f"at {scene.now:g}", subject=subject, severity=self.now.severity)

    def moment(self, now: Moment) -> tuple[AlertEvent, ...]:
        self.now = now
        status = ReadingStatus.KNOWN if now.fresh else ReadingStatus.STALE
        backend = BackendPicture(
            "http://x",
            now.state,
            requests_processing=float(now.busy),
            sources=(SourcePicture(Source.SLOTS, status),),
        )
        wall = WALL + now.at if now.wall is None else now.wall
        picture = Picture(now.at, wall, 60.0, backend)
        self.past.add(sample_of(picture))
        events = self.book.judge(RuleScene(picture, self.past, Samples()))
        self.events += events
        return events

    def seconds(self, first: int, last: int, *subjects: str, **more: object) -> None:
        for at in range(first, last + 1):
            self.moment(replace(Moment(float(at), subjects), **more))

    def told(self) -> list[tuple[str, float]]:
        return [(str(event.transition), event.at - WALL) for event in self.events]


def test_an_alert_is_raised_once_its_symptom_has_lasted_and_over_once_it_has_been_gone() -> None:
    play = Play(raise_after_s=3, clear_after_s=5)
    play.seconds(0, 10, "")
    play.seconds(11, 20)
    assert play.told() == [("raised", 3.0), ("ended", 15.0)]
    (alert,) = play.book.past
    assert (alert.since, alert.raised, alert.last, alert.ended) == (WALL, WALL + 3, WALL + 10, WALL + 15)


def test_it_is_over_at_once_when_the_contrary_is_seen() -> None:
    play = Play(clear_after_s=60)
    play.seconds(0, 5, "bad")
    play.contrary = True
    play.seconds(6, 6)
    assert play.told() == [("raised", 0), ("ended", 6)]


def test_what_a_server_did_is_over_when_another_is_started() -> None:
    play = Play(clear_after_s=60, of_drafts=True)
    play.seconds(0, 5, "bad")
    play.seconds(6, 8, state=BackendState.DOWN)
    assert play.told() == [("raised", 0)]
    play.seconds(9, 9)
    assert play.told() == [("raised", 0), ("ended", 9)]


def test_what_the_machine_did_outlasts_the_server() -> None:
    play = Play(clear_after_s=60)
    play.seconds(0, 5, "bad")
    play.seconds(6, 8, state=BackendState.DOWN)
    play.seconds(9, 64)
    assert play.told() == [("raised", 0)]
    play.seconds(65, 65)
    assert play.told() == [("raised", 0), ("ended", 65)]


def test_each_subject_is_an_alert_of_its_own() -> None:
    play = Play(raise_after_s=0, clear_after_s=0)
    play.seconds(0, 1, "slot 0")
    play.seconds(2, 3, "slot 0", "slot 1")
    play.seconds(4, 4, "slot 1")
    assert [(str(e.transition), e.alert.subject) for e in play.events] == [
        ("raised", "slot 0"),
        ("raised", "slot 1"),
        ("ended", "slot 0"),
    ]


def test_a_silent_source_neither_raises_nor_ends() -> None:
    play = Play(raise_after_s=0, clear_after_s=2, needs=(Source.SLOTS,))
    play.seconds(0, 5, "")
    play.seconds(6, 60, fresh=False)
    assert play.told() == [("raised", 0.0)]
    assert play.book.unjudged[0][1] == "no fresh data from slots"
    play.seconds(61, 61, "")
    assert play.told() == [("raised", 0.0)], "it goes on"
    play.seconds(62, 64)
    assert play.told()[1:] == [("ended", 63.0)]


def test_an_alert_that_cannot_be_judged_is_forgotten_in_the_end() -> None:
    play = Play(raise_after_s=0, needs=(Source.SLOTS,))
    play.seconds(0, 0, "")
    play.seconds(1, int(FORGOTTEN_AFTER_S) + 5, fresh=False)
    assert play.told() == [("raised", 0.0), ("ended", FORGOTTEN_AFTER_S)]


def test_a_short_silence_does_not_make_a_symptom_begin_anew_and_a_long_one_does() -> None:
    for silence, raised in ((INTERRUPTED_S - 2, True), (INTERRUPTED_S + 2, False)):
        play = Play(raise_after_s=20, needs=(Source.SLOTS,))
        play.seconds(0, 10, "")
        back = 10 + int(silence)
        play.seconds(11, back, fresh=False)
        play.seconds(back + 1, 25, "")
        assert bool(play.events) is raised


def test_nothing_is_judged_while_a_server_loads_or_has_just_begun() -> None:
    play = Play(raise_after_s=0, hold_back=True)
    play.seconds(0, 5, "", state=BackendState.LOADING)
    play.seconds(6, 20, "")
    assert play.told() == [("raised", 5.0 + SETTLE_S)]


def test_a_rule_of_work_is_not_judged_while_nothing_runs() -> None:
    play = Play(raise_after_s=0, while_idle=False)
    play.seconds(0, 5, "", busy=False)
    assert play.events == []
    assert play.book.unjudged[0][1] == "the server is idle"
    play.seconds(6, 6, "")
    assert play.told() == [("raised", 6.0)]


def test_severity_rises_at_once_and_falls_as_slowly_as_the_alert_clears() -> None:
    play = Play(raise_after_s=0, clear_after_s=4)
    play.seconds(0, 2, "")
    play.seconds(3, 3, "", severity=CRITICAL)
    play.seconds(4, 6, "")
    assert play.book.active[0].severity is CRITICAL
    play.seconds(7, 8, "")
    assert play.book.active[0].severity is WARNING
    assert play.told() == [("raised", 0.0), ("changed", 3.0), ("changed", 7.0)]


def test_the_worst_comes_first_then_the_newest() -> None:
    def judge(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
        yield Symptom("mild", subject="a", severity=NOTICE)
        if scene.now >= 1:
            yield Symptom("bad", subject="b", severity=CRITICAL)
        if scene.now >= 2:
            yield Symptom("worse, because newer", subject="c", severity=CRITICAL)

    play = Play()
    play.book = AlertBook((rule(judge),))
    play.seconds(0, 3)
    assert [alert.subject for alert in play.book.active] == ["c", "b", "a"]


def test_a_rule_with_a_fault_blinds_no_other(caplog: pytest.LogCaptureFixture) -> None:
    def broken(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
        yield Symptom("one")
        raise ZeroDivisionError

    watch = Watch((rule(broken, "broken"), rule(lambda *_: (Symptom("well"),), "sound")))
    watch.look(health=OK)
    assert watch.raised() == {"sound"}
    assert watch.state.alerts.picture().unjudged == (("broken", "the rule failed: ZeroDivisionError"),)
    assert "broken" in caplog.text


def test_a_rule_that_is_switched_off_is_not_judged() -> None:
    watch = Watch((rule(lambda *_: (Symptom("x"),), enabled=False),))
    watch.look(health=OK)
    assert watch.raised() == set()
    assert watch.state.alerts.picture().unjudged == ()


def test_subjects_and_past_are_bounded() -> None:
    play = Play(raise_after_s=0, clear_after_s=0)
    many = tuple(f"s{number}" for number in range(SUBJECTS * 2))
    for at in range(0, 40, 2):
        play.seconds(at, at, *many)
        assert len(play.book.active) == SUBJECTS
        play.seconds(at + 1, at + 1)
    assert len(play.book.past) == PAST_KEPT


def test_an_alert_never_ends_before_it_was_raised_though_the_clock_is_set_back() -> None:
    play = Play(raise_after_s=0, clear_after_s=0)
    play.moment(Moment(1.0, ("",)))
    play.moment(Moment(2.0, wall=WALL - 3600.0))
    (alert,) = play.book.past
    assert alert.ended == alert.raised == WALL + 1


MOMENTS = st.lists(
    st.builds(
        Moment,
        at=st.integers(1, 12).map(float),
        subjects=st.sampled_from(((), ("",), ("a",), ("", "a"))),
        state=st.sampled_from((BackendState.LIVE, BackendState.LIVE, BackendState.LOADING, BackendState.DOWN)),
        fresh=st.booleans(),
        busy=st.booleans(),
        severity=st.sampled_from((None, NOTICE, CRITICAL)),
    ),
    max_size=60,
)
SAID = st.fixed_dictionaries(
    {
        "raise_after_s": st.sampled_from((0, 3, 15)),
        "clear_after_s": st.sampled_from((0, 4, 20)),
        "hold_back": st.booleans(),
        "while_idle": st.booleans(),
        "needs": st.sampled_from(((), (Source.SLOTS,))),
    }
)


def played(
    moments: Sequence[Moment], said: dict[str, object]
) -> tuple[Play, list[tuple[Moment, tuple[AlertEvent, ...]]]]:
    """`at` of each moment is the time since the one before."""
    play, heard, now = Play(**said), [], 0.0
    for moment in moments:
        now += moment.at
        timed = replace(moment, at=now)
        heard.append((timed, play.moment(timed)))
    return play, heard


@given(MOMENTS, SAID)
def test_events_of_one_alert_alternate_and_add_up_to_what_is_active(
    moments: list[Moment], said: dict[str, object]
) -> None:
    play, heard = played(moments, said)
    active: dict[tuple[str, str], Alert] = {}
    for _, events in heard:
        for event in events:
            key = event.alert.key
            assert (key in active) is (event.transition is not Transition.RAISED)
            if event.transition is Transition.ENDED:
                assert event.alert.ended is not None
                assert event.alert.since <= event.alert.raised <= event.alert.ended
                assert event.alert.raised <= event.alert.last <= event.alert.ended
                del active[key]
            else:
                active[key] = event.alert
    assert {alert.key: alert.severity for alert in play.book.active} == {
        key: alert.severity for key, alert in active.items()
    }


@given(MOMENTS, SAID)
def test_an_alert_is_raised_only_in_a_moment_that_may_be_judged_after_its_symptom_has_lasted(
    moments: list[Moment], said: dict[str, object]
) -> None:
    play, heard = played(moments, said)
    spec = play.rule.spec
    settled = -SETTLE_S
    seen: dict[str, list[float]] = defaultdict(list)
    for moment, events in heard:
        if moment.state is BackendState.LOADING:
            settled = moment.at
        judged = (
            (moment.fresh or not spec.needs)
            and (moment.busy or spec.while_idle)
            and not (spec.hold_back and moment.at - settled < SETTLE_S)
        )
        if judged:
            for subject in ("", "a"):
                if subject in moment.subjects:
                    seen[subject].append(moment.at)
                else:
                    seen[subject].clear()
        for event in events:
            if event.transition is not Transition.RAISED:
                continue
            assert judged
            times = seen[event.alert.subject]
            assert times[-1] == moment.at
            assert moment.at - times[0] >= spec.raise_after_s


@given(MOMENTS, SAID)
def test_an_alert_ends_only_when_its_symptom_was_gone_long_enough_or_could_not_be_judged_for_very_long(
    moments: list[Moment], said: dict[str, object]
) -> None:
    play, heard = played(moments, said)
    spec = play.rule.spec
    for moment, events in heard:
        for event in events:
            if event.transition is Transition.ENDED:
                gone = moment.at - (event.alert.last - WALL)
                assert gone >= min(spec.clear_after_s, FORGOTTEN_AFTER_S)
                assert event.alert.subject not in moment.subjects or gone >= FORGOTTEN_AFTER_S


@given(MOMENTS, SAID)
def test_the_same_moments_make_the_same_alerts(moments: list[Moment], said: dict[str, object]) -> None:
    play, other = played(moments, said)[0], played(moments, said)[0]
    assert play.events == other.events
    assert play.book.active == other.book.active
    assert tuple(play.book.past) == tuple(other.book.past)
