"""While settings are tried on the server, what the trial does to it raises nothing; real faults do, and afterwards
everything is judged again."""

from math import inf
from typing import Any

import pytest
from msgspec.structs import replace

from insight.scenes import IDLE, LOADING, OK, WALL, Watch, counters, live, only, process, rule, tell, working
from specdash.core.readings import Disk, FailureKind, Host
from specdash.core.records import Symptom, TrialNote
from specdash.insight.rules.catalogue import shipped

NOTE = TrialNote("tune", "specdash-backend", WALL, boot=4, planned=12)
REFUSED, ENDED = FailureKind.REFUSED, FailureKind.UNAVAILABLE


def tried(watch: Watch, *notes: TrialNote) -> None:
    """The trials from now on."""
    tell(watch.state, watch.at, trial=notes)


AS_BEFORE = {"health": OK, "metrics": counters(100), "slots": IDLE, "process": process()}
GONE = {"health": REFUSED, "process": ENDED}


def another(pid: int, started: float) -> dict[str, Any]:
    """All is well, of a process that began so long after the watch."""
    begun = process(pid, started=WALL + started)
    return {"health": OK, "metrics": counters(1), "slots": IDLE, "process": begun}


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        # The start that puts the settings back is the trial's too, however late its process is seen: on a busy machine
        # the port may not have been seen closed at all.
        ([(2, [NOTE], GONE), (9, [], another(11, 22))], set()),
        ([(5, [NOTE], AS_BEFORE), (12, [], AS_BEFORE), (10, [], another(11, 24))], set()),
        # A server that stays away, crashes after a trial, or whose trial died.
        ([(100, [NOTE], GONE)], set()),
        ([(140, [NOTE], GONE)], {"backend_down"}),
        ([(2, [NOTE], GONE), (11, [NOTE], another(11, 22)), (20, [], another(11, 22)), (1, [], GONE)],
         {"backend_down"}),
        ([(20, [NOTE], AS_BEFORE), (8, [replace(NOTE, alive=False)], AS_BEFORE),
          (1, [replace(NOTE, alive=False)], GONE)], {"backend_down"}),
    ],
)  # fmt: skip
def test_what_a_trial_does_raises_nothing_and_what_it_does_not_do_does(
    looks: list[tuple[float, list[TrialNote], dict[str, Any]]], expected: set[str]
) -> None:
    watch = live()
    for seconds, notes, readings in looks:
        tried(watch, *notes)
        watch.look(seconds, **readings)
    assert watch.raised() == expected


def test_the_restarts_of_a_trial_are_no_crash_loop_and_one_after_it_counts() -> None:
    watch = live()
    tried(watch, NOTE)
    for pid in range(11, 16):
        watch.look(2, **GONE)
        watch.look(3, health=LOADING, process=process(pid, started=WALL + watch.at))
        watch.look(8, **another(pid, watch.at - 3))
        assert watch.raised() == set()
    tried(watch)
    watch.look(40, **another(15, watch.at))
    assert watch.heard.events == []
    watch.look(10, **another(16, watch.at))
    assert [start.on_trial for start in watch.state.alerts.past.starts.seen] == [True] * 5 + [False]


def test_a_rule_of_settings_is_not_judged_until_its_window_has_left_the_trial_behind() -> None:
    watch = Watch([rule(lambda *_: [Symptom("bad")], trial_s=inf, limits={"window_s": 60.0})])
    tried(watch, NOTE)
    watch.look(5, health=OK)
    assert watch.unjudged == {"scripted": "on trial by `specdash tune`, boot 4 of 12"}
    tried(watch)
    watch.look(50, health=OK)
    assert watch.raised() == set()
    watch.look(20, health=OK)
    assert watch.raised() == {"scripted"}
    tried(watch, NOTE)
    watch.look(60, health=OK)
    assert watch.raised() == {"scripted"}, "what was wrong before a trial stays to be seen"


def test_faults_that_no_settings_make_are_alerts_during_a_trial() -> None:
    watch = Watch(only("slot_hung", "disk_full"))
    tried(watch, NOTE)
    full = Host(disks=(Disk("/var/log", "server log", 1 << 20, 1 << 30),))
    watch.look(200, health=OK, metrics=counters(1), slots=working(5), process=process(), host=full)
    assert watch.raised() == {"slot_hung", "disk_full"}
    judged = {item.id for item in shipped() if item.trial_s is None}
    assert judged >= {"gpu_lost", "memory_pressure", "gpu_throttled", "proxy_down", "proxy_errors", "clients_leaving"}


def test_the_words_name_who_tries_and_how_far_that_is() -> None:
    cut_short = "left on trial: `specdash tune` was cut short; the next start of the backend puts the original back"
    for changes, words in (
        ({"what": "bench ab", "planned": None}, "on trial by `specdash bench ab`, boot 4"),
        ({"boot": 13}, "on trial by `specdash tune`, boot 13"),
        ({"boot": None}, "on trial by `specdash tune`"),
        ({"alive": False}, cut_short),
    ):
        assert replace(NOTE, **changes).words == words
