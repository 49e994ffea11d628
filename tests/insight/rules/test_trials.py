"""While settings are tried on the server, what the trial does to it raises nothing; real faults do, and afterwards
everything is judged again."""

from math import inf
from typing import Any

import pytest
from msgspec.structs import replace

from insight.rules.judging import IDLE, LOADING, OK, WALL, Watch, counters, live, only, process, rule, working
from specdash.core.readings import Disk, FailureKind, Host, Source
from specdash.core.records import Symptom, TrialNote
from specdash.insight.rules.catalogue import shipped

NOTE = TrialNote("tune", "specdash-backend", WALL, boot=4, planned=12)
REFUSED, ENDED = FailureKind.REFUSED, FailureKind.UNAVAILABLE


def tried(watch: Watch, *notes: TrialNote) -> None:
    """The trials from now on."""
    watch.tell(Source.TRIAL, notes)


def restart(watch: Watch, pid: int) -> None:
    """It goes away and comes back as another process."""
    watch.look(2, health=REFUSED, process=ENDED)
    begun = process(pid, started=WALL + watch.at)
    watch.look(3, health=LOADING, process=begun)
    watch.look(8, health=OK, metrics=counters(1), slots=IDLE, process=begun)


def always(seconds_tried: float | None, **more: Any) -> Watch:
    """A rule whose symptom is always there."""
    return Watch([rule(lambda *_: [Symptom("bad")], trial_s=seconds_tried, **more)])


def test_the_restarts_of_a_trial_are_neither_an_outage_nor_a_crash_loop() -> None:
    watch = live()
    tried(watch, NOTE)
    for pid in range(11, 16):
        restart(watch, pid)
        assert watch.raised() == set()
    tried(watch)
    watch.look(10, health=OK, metrics=counters(2), slots=IDLE, process=process(15))
    assert watch.heard.events == []


def test_a_start_that_puts_the_settings_back_is_the_trials_too() -> None:
    watch = live()
    tried(watch, NOTE)
    watch.look(2, health=REFUSED, process=ENDED)
    tried(watch)
    watch.look(9, health=OK, metrics=counters(1), slots=IDLE, process=process(11))
    assert watch.raised() == set()


def test_so_it_is_however_late_its_process_is_seen() -> None:
    """On a busy machine processes are looked for seldom; the port may not have been seen closed at all."""
    watch = live()
    tried(watch, NOTE)
    watch.look(5, health=OK, metrics=counters(100), slots=IDLE, process=process())
    begun = process(11, started=WALL + watch.at - 1)
    tried(watch)
    watch.look(12, health=OK, metrics=counters(100), slots=IDLE, process=process())
    watch.look(10, health=OK, metrics=counters(1), slots=IDLE, process=begun)
    assert watch.raised() == set()


def test_a_process_that_began_after_the_trial_is_told() -> None:
    watch = live()
    tried(watch, NOTE)
    watch.look(5, health=OK, metrics=counters(100), slots=IDLE, process=process())
    tried(watch)
    watch.look(12, health=OK, metrics=counters(100), slots=IDLE, process=process())
    begun = process(11, started=WALL + watch.at)
    watch.look(10, health=OK, metrics=counters(1), slots=IDLE, process=begun)
    assert [start.on_trial for start in watch.state.alerts.past.starts.seen] == [False]


def test_a_server_that_stays_away_is_told_also_during_a_trial() -> None:
    watch = live()
    tried(watch, NOTE)
    watch.look(100, health=REFUSED, process=ENDED)
    assert watch.raised() == set()
    watch.look(40, health=REFUSED, process=ENDED)
    assert "backend_down" in watch.raised()


def test_a_crash_after_a_trial_is_told_at_once() -> None:
    watch = live()
    tried(watch, NOTE)
    restart(watch, 11)
    tried(watch)
    watch.look(20, health=OK, metrics=counters(2), slots=IDLE, process=process(11))
    watch.look(1, health=REFUSED, process=ENDED)
    assert "backend_down" in watch.raised()


def test_a_trial_whose_process_died_excuses_nothing() -> None:
    watch = live()
    tried(watch, NOTE)
    watch.look(20, health=OK, metrics=counters(100), slots=IDLE, process=process())
    tried(watch, replace(NOTE, alive=False))
    watch.look(8, health=OK, metrics=counters(100), slots=IDLE, process=process())
    watch.look(1, health=REFUSED, process=ENDED)
    assert "backend_down" in watch.raised()


def test_a_rule_of_settings_is_not_judged_and_says_why() -> None:
    watch = always(inf)
    tried(watch, NOTE)
    watch.look(30, health=OK)
    assert watch.state.alerts.picture().unjudged == (("scripted", "on trial by `specdash tune`, boot 4 of 12"),)


def test_a_rule_of_settings_is_judged_again_once_its_window_has_left_the_trial_behind() -> None:
    watch = always(inf, limits={"window_s": 60.0})
    tried(watch, NOTE)
    watch.look(5, health=OK)
    tried(watch)
    watch.look(50, health=OK)
    assert watch.raised() == set()
    watch.look(20, health=OK)
    assert watch.raised() == {"scripted"}


def test_what_was_wrong_before_a_trial_stays_to_be_seen() -> None:
    watch = always(inf)
    watch.look(3, health=OK)
    tried(watch, NOTE)
    watch.look(60, health=OK)
    assert watch.raised() == {"scripted"}


def test_a_full_disk_and_a_hung_slot_are_told_during_a_trial() -> None:
    watch = Watch(only("slot_hung", "disk_full"))
    tried(watch, NOTE)
    full = Host(disks=(Disk("/var/log", "server log", 1 << 20, 1 << 30),))
    watch.look(200, health=OK, metrics=counters(1), slots=working(5), process=process(), host=full)
    assert watch.raised() == {"slot_hung", "disk_full"}


@pytest.mark.parametrize("name", ["gpu_lost", "memory_pressure", "gpu_throttled", "disk_full", "slot_hung",
                                  "proxy_down", "proxy_errors", "clients_leaving", "port_taken"])  # fmt: skip
def test_faults_that_no_settings_make_are_judged_as_ever(name: str) -> None:
    found = next(item.spec for item in shipped() if item.spec.id == name)
    assert found.trial_s is None


@pytest.mark.parametrize(
    ("note", "words"),
    [
        (NOTE, "on trial by `specdash tune`, boot 4 of 12"),
        (replace(NOTE, what="bench ab", planned=None), "on trial by `specdash bench ab`, boot 4"),
        (replace(NOTE, boot=13), "on trial by `specdash tune`, boot 13"),
        (replace(NOTE, boot=None), "on trial by `specdash tune`"),
        (
            replace(NOTE, alive=False),
            "left on trial: `specdash tune` was cut short; the next start of the backend puts the original back",
        ),
    ],
)
def test_the_words_say_who_tries_and_how_far_that_is(note: TrialNote, words: str) -> None:
    assert note.words == words
