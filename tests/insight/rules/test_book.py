"""Alerts come when a symptom has lasted, stay through flicker and silence, go when it is gone, and have a cause."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insight.scenes import OK, WALL, Watch, rule
from specdash.core.readings import ReadingStatus, Source
from specdash.core.records import Alert, AlertEvent, AlertSeverity, Symptom, Transition
from specdash.insight.picture import BackendPicture, BackendState, Picture, SourcePicture
from specdash.insight.rules.book import (
    FORGOTTEN_AFTER_S,
    LATER_S,
    PAST_KEPT,
    SETTLE_S,
    SUBJECTS,
    AlertBook,
    likely_cause,
)
from specdash.insight.rules.catalogue import Limits, OverError
from specdash.insight.rules.scene import KEEP_S, PictureHistory, PictureSample, RuleScene, sample_of

NOTICE, WARNING, CRITICAL = AlertSeverity


class Play:
    """A book that judges one scripted rule, moment after moment."""

    def __init__(self, **fields: Any) -> None:
        self.symptoms: list[Symptom] | None = []
        """What the rule sees; None for the contrary of a symptom."""
        self.book = AlertBook((rule(self.judge, **fields),))
        self.past = PictureHistory()
        self.events: list[AlertEvent] = []

    def judge(self, scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
        if self.symptoms is None:
            raise OverError
        return self.symptoms

    def moment(
        self,
        at: float,
        *subjects: str,
        severity: AlertSeverity | None = None,
        state: BackendState = BackendState.LIVE,
        fresh: bool = True,
        busy: bool = True,
        wall: float = WALL,
    ) -> tuple[AlertEvent, ...]:
        """One judgement: what the rule sees, and what the server is like."""
        if self.symptoms is not None:
            self.symptoms = [Symptom(f"at {at:g}", subject=subject, severity=severity) for subject in subjects]
        slots = SourcePicture(Source.SLOTS, ReadingStatus.KNOWN if fresh else ReadingStatus.STALE)
        backend = BackendPicture("http://x", state, requests_processing=float(busy), sources=(slots,))
        picture = Picture(at, wall + at, 60.0, backend)
        self.past.add(sample_of(picture))
        events = self.book.judge(RuleScene(picture, self.past))
        self.events += events
        return events

    def seconds(self, first: int, last: int, *subjects: str, **more: Any) -> None:
        for at in range(first, last + 1):
            self.moment(float(at), *subjects, **more)

    def heard(self) -> list[tuple[str, float]]:
        return [(str(event.transition), event.at - WALL) for event in self.events]


SLOTS = {"needs": (Source.SLOTS,)}
BAD, GONE, DOWN = ("bad",), (), {"state": BackendState.DOWN}


@pytest.mark.parametrize(
    ("rule", "seconds", "expected"),
    [
        # Raised once the symptom has lasted, and over once it has been gone.
        ({"raise_after_s": 3, "clear_after_s": 5}, [(10, BAD, {}), (20, GONE, {})], [("raised", 3), ("ended", 15)]),
        # Drafts are over with the server that made them; what the machine did outlasts it.
        ({"clear_after_s": 60, "of_drafts": True}, [(5, BAD, {}), (8, GONE, DOWN)], [("raised", 0)]),
        ({"clear_after_s": 60, "of_drafts": True}, [(5, BAD, {}), (8, GONE, DOWN), (9, GONE, {})],
         [("raised", 0), ("ended", 9)]),
        ({"clear_after_s": 60}, [(5, BAD, {}), (8, GONE, DOWN), (70, GONE, {})], [("raised", 0), ("ended", 65)]),
        # A silent source neither raises nor ends; what cannot be judged is forgotten in the end.
        ({"clear_after_s": 2, **SLOTS}, [(5, BAD, {}), (60, GONE, {"fresh": False}), (61, BAD, {}), (64, GONE, {})],
         [("raised", 0), ("ended", 63)]),
        (SLOTS, [(0, BAD, {}), (int(FORGOTTEN_AFTER_S) + 5, GONE, {"fresh": False})],
         [("raised", 0), ("ended", FORGOTTEN_AFTER_S)]),
        # A short silence does not make a symptom begin again, and a long one does.
        ({"raise_after_s": 20, **SLOTS}, [(10, BAD, {}), (18, BAD, {"fresh": False}), (25, BAD, {})], [("raised", 20)]),
        ({"raise_after_s": 20, **SLOTS}, [(10, BAD, {}), (22, BAD, {"fresh": False}), (25, BAD, {})], []),
        # Not while the server loads or has just begun, nor, of work, while nothing runs.
        ({"hold_back": True}, [(5, BAD, {"state": BackendState.LOADING}), (20, BAD, {})], [("raised", 5 + SETTLE_S)]),
        ({"while_idle": False}, [(5, BAD, {"busy": False}), (6, BAD, {})], [("raised", 6)]),
        # Worse at once, and better as slowly as it clears.
        ({"clear_after_s": 4}, [(2, BAD, {}), (3, BAD, {"severity": CRITICAL}), (8, BAD, {})],
         [("raised", 0), ("changed", 3), ("changed", 7)]),
    ],
)  # fmt: skip
def test_an_alert_comes_and_goes(
    rule: dict[str, Any], seconds: list[tuple[int, tuple[str, ...], dict[str, Any]]], expected: list[Any]
) -> None:
    play, first = Play(**rule), 0
    for last, subjects, more in seconds:
        play.seconds(first, last, *subjects, **more)
        first = last + 1
    assert play.heard() == expected


def test_alerts_are_dated_each_subject_is_one_and_the_contrary_ends_them_at_once() -> None:
    play = Play(raise_after_s=3, clear_after_s=60)
    play.seconds(0, 5, "a")
    play.seconds(6, 9, "a", "b")
    assert [alert.subject for alert in play.book.active] == ["b", "a"], "the newest first"
    play.seconds(10, 10, "a", severity=CRITICAL)
    assert [alert.subject for alert in play.book.active] == ["a", "b"], "the worst first"
    play.symptoms = None
    play.seconds(11, 11)
    first = next(alert for alert in play.book.past if alert.subject == "a")
    assert (first.since, first.raised, first.last, first.ended) == (WALL, WALL + 3, WALL + 10, WALL + 11)
    play = Play(clear_after_s=0)
    play.moment(1.0, "")
    play.moment(2.0, wall=WALL - 3600.0)
    (alert,) = play.book.past
    assert alert.ended == alert.raised == WALL + 1, "though the clock was set back"


def test_subjects_and_past_are_bounded() -> None:
    play = Play(clear_after_s=0)
    for at in range(0, 12, 2):
        play.seconds(at, at, *(f"s{number}" for number in range(SUBJECTS * 2)))
        assert len(play.book.active) == SUBJECTS
        play.seconds(at + 1, at + 1)
    assert len(play.book.past) == PAST_KEPT


def test_a_rule_with_a_fault_blinds_no_other_and_one_that_is_off_is_not_judged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(scene: RuleScene, limits: Limits) -> Iterable[Symptom]:
        yield Symptom("one")
        raise ZeroDivisionError

    well: Any = lambda *_: (Symptom("well"),)  # noqa: E731
    watch = Watch((rule(broken, "broken"), rule(well, "sound"), rule(well, "off", enabled=False)))
    watch.look(health=OK)
    assert watch.raised() == {"sound"}
    assert watch.unjudged == {"broken": "the rule failed: ZeroDivisionError"}
    assert "broken" in caplog.text


LOOKED = {
    "state": st.sampled_from((BackendState.LIVE, BackendState.LIVE, BackendState.LOADING, BackendState.DOWN)),
    "fresh": st.booleans(),
    "busy": st.booleans(),
    "severity": st.sampled_from((None, NOTICE, CRITICAL)),
}
SEEN = st.sampled_from(((), ("",), ("a",), ("", "a")))
MOMENTS = st.lists(st.tuples(st.integers(1, 12), SEEN, st.fixed_dictionaries(LOOKED)), max_size=60)
"""The time since the one before, what the rule sees, and what the server is like."""
FIELDS = {
    "raise_after_s": st.sampled_from((0, 3, 15)),
    "clear_after_s": st.sampled_from((0, 4, 20)),
    "hold_back": st.booleans(),
    "while_idle": st.booleans(),
    "needs": st.sampled_from(((), (Source.SLOTS,))),
}


@given(MOMENTS, st.fixed_dictionaries(FIELDS))
def test_events_of_one_alert_alternate_and_add_up_to_what_is_active(
    moments: list[tuple[int, tuple[str, ...], dict[str, Any]]], fields: dict[str, Any]
) -> None:
    play, now = Play(**fields), 0.0
    active: dict[tuple[str, str], Alert] = {}
    for passed, subjects, looked in moments:
        now += passed
        for event in play.moment(now, *subjects, **looked):
            alert = event.alert
            assert (alert.key in active) is (event.transition is not Transition.RAISED)
            if event.transition is Transition.ENDED:
                assert alert.ended is not None
                assert alert.since <= alert.raised <= alert.last <= alert.ended
                assert now - (alert.last - WALL) >= min(fields["clear_after_s"], FORGOTTEN_AFTER_S)
                del active[alert.key]
            else:
                assert alert.subject in subjects
                assert alert.raised - alert.since >= fields["raise_after_s"]
                active[alert.key] = alert
    assert {alert.key: alert.severity for alert in play.book.active} == {
        key: alert.severity for key, alert in active.items()
    }


# The likely cause explains the rest, over others too, and is never a notice alone


EXPLAINS = {"oom": ("crash",), "crash": ("down",), "down": ("errors",), "errors": (), "throttled": ("slow",)}
RULES = tuple(rule(lambda *_: (), key, explains=others) for key, others in EXPLAINS.items())


def alert(rule_id: str, severity: AlertSeverity = WARNING, since: float = 0.0, subject: str = "") -> Alert:
    at = WALL + since
    return Alert(rule_id, rule_id, severity, "", since=at, raised=at, last=at, subject=subject)


@pytest.mark.parametrize(
    ("active", "cause"),
    [
        ([], None),
        ([alert("slow", NOTICE)], None),
        ([alert("slow")], "slow"),
        # What explains another, though it is milder and newer, and over others; unless it began much later.
        ([alert("down", CRITICAL), alert("crash", since=10)], "crash"),
        ([alert("errors", CRITICAL), alert("down"), alert("crash"), alert("oom", NOTICE)], "oom"),
        ([alert("down", CRITICAL), alert("crash", since=LATER_S + 1)], "down"),
        # Of two causes that of the worst, then that which explains more, then the older.
        ([alert("throttled"), alert("slow"), alert("down", CRITICAL)], "down"),
        ([alert("throttled"), alert("slow", CRITICAL), alert("down")], "throttled"),
        ([alert("slow"), alert("throttled"), alert("errors", since=-5)], "throttled"),
        ([alert("slow"), alert("errors", since=-5)], "errors"),
    ],
)
def test_the_cause_explains_the_worst_of_what_is_wrong(active: list[Alert], cause: str | None) -> None:
    found = likely_cause(active, RULES)
    assert (found.rule if found is not None else None) == cause


# What rules look at: a quarter of an hour, one sample a second, and the server's command line


LIVE, DOWN_STATE = BackendState.LIVE, BackendState.DOWN


def test_a_quarter_of_an_hour_is_kept_and_a_state_lasts_longer() -> None:
    kept, dense = PictureHistory(), PictureHistory()
    for step in range(3600):
        kept.add(PictureSample(float(step), LIVE))
    samples = kept.since(0.0)
    assert (samples[-1].at - samples[0].at, len(samples)) == (KEEP_S, KEEP_S + 1)
    assert (kept.lasting(LIVE), kept.lasting(DOWN_STATE)) == (3599.0, None)
    for step in range(1000):
        dense.add(PictureSample(step * 0.1, DOWN_STATE if step == 500 else LIVE))
    assert len(dense.since(0.0)) <= 125, "looks closer than a second share a sample"
    assert sum(sample.state is DOWN_STATE for sample in dense.since(0.0)) == 1, "and no change of state is lost"
    assert dense.last is not None
    assert dense.last.at == 99.9
