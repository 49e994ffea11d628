"""Availability rules on readings: what makes each hold, and what looks like it and does not."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from insight.experiment_data import record
from insight.rules.judging import IDLE, LOADING, OK, WALL, Watch, counters, live, only, process, working
from specdash.core.readings import (
    OTHER_SERVERS,
    Counters,
    FailureKind,
    Health,
    HealthStatus,
    ModelStatus,
    ProcessTree,
    Reading,
    RouterModel,
    RouterModels,
    SchedulingDelay,
    Slot,
    Slots,
    Source,
)
from specdash.core.records import Alert, AlertSeverity
from specdash.insight.rules.book import likely_cause
from specdash.insight.rules.catalogue import runbook, shipped

REFUSED, TIMEOUT, RESET = FailureKind.REFUSED, FailureKind.TIMEOUT, FailureKind.RESET
ENDED = FailureKind.UNAVAILABLE


def test_a_healthy_server_raises_nothing_idle_at_work_and_asleep() -> None:
    watch = live()
    for step in range(300):
        watch.look(1, health=OK, metrics=counters(100 + step, running=1.0), slots=working(step), process=process())
    watch.look(60, health=OK, metrics=counters(400), slots=FailureKind.SLEEPING, process=process())
    assert watch.heard.events == []


def test_an_engine_that_is_swapped_under_its_runner_is_not_down_unless_it_stays_away() -> None:
    watch = live()
    watch.look(1, health=REFUSED, process=process(10))
    watch.look(3, health=OK, metrics=counters(0), process=process(10))
    assert "backend_down" not in {event.alert.rule for event in watch.heard.events}
    watch.look(2, health=REFUSED, process=process(10))
    assert "backend_down" in watch.raised()


STARVED = SchedulingDelay(3.0, 5.0)
ON_TIME = SchedulingDelay(0.0, 5.0)
SLOW = replace(process(), cpu_wait=0.9)
WELL = {"health": OK, "metrics": counters(100), "slots": IDLE, "process": process()}
BEGUN_ANEW = {**WELL, "metrics": counters(1)}
STUCK = {"health": OK, "metrics": counters(100, running=1.0), "slots": working(50), "process": process()}
UNANSWERED = {**WELL, "metrics": TIMEOUT, "slots": TIMEOUT}
BROKEN = {"health": Health(HealthStatus.ERROR, "out of slots")}
CRITICAL, WARNING = AlertSeverity.CRITICAL, AlertSeverity.WARNING


@pytest.mark.parametrize(
    ("watch", "looks"),
    [
        # Down: at once, with the process that ended, and over at once; also where it was never there.
        (live, [(1, {"health": REFUSED, "process": ENDED}, {"backend_down": ("process 10 has ended", CRITICAL)}),
                (1, {"health": OK, "process": process(11)}, {})]),
        (Watch, [(1, {"health": REFUSED}, {"backend_down": ""})]),
        # Silence is a hang, and sooner where the process was stopped, later where it gets no CPU.
        (live, [(4, {"health": TIMEOUT}, {}), (2, {"health": TIMEOUT}, {"server_hung": ""}),
                (4, {"health": OK, "metrics": counters(100)}, {})]),
        (live, [(1, {"health": OK, "process": SLOW}, {}), (25, {"health": TIMEOUT, "process": SLOW}, {}),
                (10, {"health": TIMEOUT, "process": SLOW}, {"server_hung": ""})]),
        (live, [(1, {"metrics": counters(100), "health": TIMEOUT}, {})]),
        # What needs no silence is told though specdash is starved.
        (live, [(5, {"scheduling": STARVED, "health": REFUSED, "process": ENDED},
                 {"cpu_starved": "", "backend_down": ""})]),
        (live, [(5, {"scheduling": STARVED, "health": TIMEOUT, "process": process(stopped=True)},
                 {"cpu_starved": "", "server_hung": ""})]),
        # A slot without progress.
        (live, [(29, STUCK, {}),
                (3, STUCK, {"slot_hung": "slot 0 is busy and has generated no token for 31 s"}),
                (1, {**STUCK, "slots": working(51)}, {})]),
        # Loading is no fault until it takes too long, and worse when it does not end; it may have begun before.
        (lambda: Watch(only("loading_too_long")),
         [(299, {"health": LOADING}, {}), (5, {"health": LOADING}, {"loading_too_long": ("", WARNING)}),
          (600, {"health": LOADING}, {"loading_too_long": ("", CRITICAL)}), (1, {"health": OK}, {})]),
        (lambda: Watch(only("loading_too_long")),
         [(2, {"health": LOADING, "process": process(started=WALL - 400.0)}, {"loading_too_long": ""})]),
        # One that dies while it loads is a crash loop.
        (lambda: Watch(only("crash_loop")),
         [*[(4, {"health": REFUSED}, None), (3, {"health": LOADING}, None)] * 3, (1, {}, {"crash_loop": ""})]),
        # Totals that begin anew in the same process are no restart.
        (live, [(30, BEGUN_ANEW, {})]),
        # Busy for a moment is normal, and for a minute is not.
        (live, [(50, UNANSWERED, {}), (15, UNANSWERED, {"server_hung": ("/metrics and /slots not in time", WARNING)}),
                (12, WELL, {})]),
        # An error of /health that stays, and one answer of /metrics that is none.
        (Watch, [(2, BROKEN, {}), (4, BROKEN, {"endpoint_unusable": ""})]),
        (Watch, [(5, {"health": OK, "metrics": counters(9), "slots": IDLE}, None),
                 (1, {"metrics": FailureKind.GARBAGE}, None),
                 (4, {"health": OK, "slots": IDLE}, {"endpoint_unusable": ""})]),
    ],
)  # fmt: skip
def test_what_is_raised_while_a_server_does_this(
    watch: Callable[[], Watch], looks: list[tuple[float, dict[str, Any], dict[str, Any] | None]]
) -> None:
    """Seconds, what every source says in them, and the alerts after them: words of the summary, and the severity."""
    watched = watch()
    for seconds, told, expected in looks:
        watched.look(seconds, **told)
        if expected is None:
            continue
        assert watched.raised() == expected.keys()
        for rule, said in expected.items():
            words, severity = said if isinstance(said, tuple) else (said, None)
            alert = watched.alert(rule)
            assert alert is not None
            assert words in alert.summary
            assert severity in (None, alert.severity)


def ended_hang(watch: Watch) -> Alert:
    (alert,) = (alert for alert in watch.state.alerts.picture().past if alert.rule == "server_hung")
    return alert


def test_a_hang_is_refuted_by_the_same_process_that_answers_soon_and_is_no_cause_any_more() -> None:
    watch = live()
    watch.look(7, health=TIMEOUT, process=process())
    assert watch.state.alerts.picture().cause.startswith("Server hangs")
    watch.look(5, health=OK, metrics=counters(100), process=process())
    alert = ended_hang(watch)
    assert alert.refuted
    assert dict(alert.evidence)["refuted"].startswith("the same process answered again")
    assert Alert.from_json(alert.to_json()) == alert
    assert likely_cause([alert], shipped()) is None


@pytest.mark.parametrize(
    "hang", [{"process": process(stopped=True)}, {"process": process(), "seconds": 60}], ids=["stopped", "for long"]
)
def test_a_hang_that_was_one_is_not_refuted(hang: dict[str, Any]) -> None:
    watch = live()
    watch.look(hang.pop("seconds", 7), health=TIMEOUT, **hang)
    watch.look(5, health=OK, metrics=counters(100), process=process())
    assert not ended_hang(watch).refuted


def test_a_hang_that_a_restart_ended_is_not_refuted() -> None:
    watch = live()
    watch.look(7, health=TIMEOUT, process=process())
    watch.look(2, health=REFUSED, process=ENDED)
    watch.look(5, health=OK, metrics=counters(0), process=process(11, started=WALL + watch.at))
    assert not ended_hang(watch).refuted


def test_where_specdash_gets_no_cpu_it_says_so_and_blames_nobody_for_silence() -> None:
    watch = live()
    watch.look(60, scheduling=STARVED, health=TIMEOUT, metrics=TIMEOUT, slots=working(5), process=process())
    assert watch.raised() == {"cpu_starved"}
    unjudged = dict(watch.state.alerts.picture().unjudged)
    assert unjudged.keys() >= {"server_hung", "slot_hung"}
    assert "too busy" in unjudged["server_hung"]
    watch.look(10, scheduling=ON_TIME, health=OK, metrics=counters(100), slots=IDLE, process=process())
    assert watch.raised() == set()


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([None, TIMEOUT])), min_size=1, max_size=60))
def test_no_silence_seen_by_a_starved_specdash_raises_anything_critical(looks: list[tuple[bool, Any]]) -> None:
    watch = live(3)
    for _, health in looks:
        watch.look(1, scheduling=STARVED, health=health or OK, metrics=health or counters(100), process=process())
    watch.look(3, scheduling=ON_TIME, health=OK, metrics=counters(100), process=process())
    assert {event.alert.rule for event in watch.heard.events} <= {"cpu_starved"}


def test_a_stopped_process_hangs_before_its_port_can_tell() -> None:
    watch = live()
    watch.at += 0.4
    watch.tell(Source.PROCESS, process(stopped=True))
    alert = watch.alert("server_hung")
    assert alert is not None
    assert "process 10 was stopped by a signal" in alert.summary
    watch.tell(Source.PROCESS, process())
    watch.look(4, health=OK, process=process())
    assert watch.alert("server_hung") is None


def test_a_slot_that_waits_for_others_at_work_gets_longer() -> None:
    watch = live()
    for step in range(170):
        watch.look(1, health=OK, metrics=counters(100, running=2.0, calls=step), slots=working(50))
    assert watch.raised() == set()
    for step in range(170, 190):
        watch.look(1, health=OK, metrics=counters(100, running=2.0, calls=step), slots=working(50))
    assert watch.raised() == {"slot_hung"}
    alert = watch.alert("slot_hung")
    assert alert is not None
    assert alert.subject == "slot 0"


def test_a_long_prefill_hangs_only_when_its_batches_stop() -> None:
    def prefill(done: int) -> Slots:
        return Slots((Slot(0, is_processing=True, task=7, n_decoded=0, n_prompt_tokens_processed=done),))

    watch = live()
    for step in range(300):
        watch.look(1, health=OK, metrics=counters(100, running=1.0), slots=prefill(step // 100))
    assert watch.raised() == set()
    watch.look(190, health=OK, metrics=counters(100, running=1.0), slots=prefill(3))
    assert watch.raised() == {"slot_hung"}


def test_a_task_that_takes_the_place_of_another_in_a_slot_is_no_hang() -> None:
    watch = live()
    for task in range(80):
        watch.look(1, health=OK, metrics=counters(100, running=1.0), slots=working(1, task=task))
    assert watch.raised() == set()


def test_a_server_that_served_for_days_and_loads_now_has_only_begun_to() -> None:
    watch = live()
    watch.look(20, health=LOADING, process=process(started=WALL - 86400.0))
    assert "loading_too_long" not in watch.raised()


def restart(watch: Watch, pid: int, *, gap: float = 2.0) -> None:
    watch.look(gap, health=REFUSED, process=ENDED)
    watch.look(1, health=LOADING, process=process(pid))
    watch.look(5, health=OK, metrics=counters(1), slots=IDLE, process=process(pid))


def starts(watch: Watch) -> int:
    return len(watch.state.alerts.past.starts.seen)


def test_one_restart_counts_once() -> None:
    watch = live()
    restart(watch, 11)
    watch.look(80, health=OK, metrics=counters(1), slots=IDLE, process=process(11))
    assert (starts(watch), watch.raised()) == (1, set())


def test_a_server_elsewhere_restarts_when_its_totals_go_back() -> None:
    watch = Watch()
    watch.look(20, health=OK, metrics=counters(100), slots=IDLE)
    watch.look(5, health=OK, metrics=counters(1), slots=IDLE)
    assert starts(watch) == 1


def test_three_restarts_within_minutes_are_a_crash_loop_that_explains_the_rest() -> None:
    watch = live()
    for pid in (11, 12):
        restart(watch, pid)
        assert "crash_loop" not in watch.raised()
        watch.look(40, health=OK, metrics=counters(1), slots=IDLE, process=process(pid))
    restart(watch, 13)
    alert = watch.alert("crash_loop")
    assert alert is not None
    assert "started 3 times" in alert.summary
    watch.look(3, health=REFUSED, process=ENDED)
    picture = watch.state.alerts.picture()
    assert picture.cause_key == ("crash_loop", "")
    assert "backend_down" in watch.raised()


def test_restarts_hours_apart_are_no_crash_loop() -> None:
    watch = live()
    for pid in range(11, 15):
        restart(watch, pid)
        watch.look(650, health=OK, metrics=counters(1), slots=IDLE, process=process(pid))
    assert "crash_loop" not in watch.raised()


def test_restarts_by_applies_are_no_crash_loop() -> None:
    watch = live()
    records = []
    for number, pid in enumerate(range(11, 15), 1):
        at = WALL + watch.at + 2.0
        records.append(replace(record(number, at), url=None))
        restart(watch, pid)
        watch.tell(Source.APPLIES, tuple(records))
        watch.look(60, health=OK, metrics=counters(1), slots=IDLE, process=process(pid))
    assert "crash_loop" not in watch.raised()


@pytest.mark.parametrize("answer", [FailureKind.NOT_FOUND, FailureKind.GARBAGE, FailureKind.TOO_LARGE])
def test_a_port_with_something_else_on_it_is_taken(answer: FailureKind) -> None:
    watch = live()
    watch.look(1, health=answer, metrics=answer, slots=answer, process=ENDED)
    alert = watch.alert("port_taken")
    assert alert is not None
    assert "not a llama-server" in alert.summary
    assert ("the server was", "process 10, which has ended") in alert.evidence


def test_a_thief_that_says_it_is_healthy_is_found_out_by_what_it_cannot_answer() -> None:
    watch = live()
    watch.look(2, health=OK, metrics=FailureKind.NOT_FOUND, slots=FailureKind.GARBAGE, process=process(99))
    assert "port_taken" in watch.raised()


@pytest.mark.parametrize("silence", [TIMEOUT, RESET])
def test_a_thief_that_answers_nothing_is_found_out_by_its_process(silence: FailureKind) -> None:
    watch = live()
    watch.look(2, health=silence, process=ProcessTree(pid=99, name="nc"))
    alert = watch.alert("port_taken")
    assert alert is not None
    assert "process 99 (nc)" in alert.summary
    assert watch.state.alerts.picture().cause_key == ("port_taken", "")


def test_a_process_that_lives_on_without_its_port_is_down() -> None:
    watch = live()
    watch.look(4, health=REFUSED, process=process())
    assert watch.raised() == {"backend_down"}
    alert = watch.alert("backend_down")
    assert alert is not None
    assert dict(alert.evidence)["process"] == "10"


def test_a_refused_key_is_told_and_a_taken_one_is_not() -> None:
    watch = Watch()
    refused = FailureKind.UNAUTHORIZED
    watch.look(3, health=OK, metrics=refused, slots=refused, props=refused)
    alert = watch.alert("unauthorized")
    assert alert is not None
    assert ("refused", "props, metrics, slots") in [(label, value.replace("/", "")) for label, value in alert.evidence]
    watch.look(1, health=OK, metrics=counters(1), slots=IDLE)
    assert watch.raised() == set()


def test_one_endpoint_that_takes_the_key_again_ends_the_refusal_and_shows_what_else_is_wrong() -> None:
    watch = Watch()
    refused = FailureKind.UNAUTHORIZED
    watch.look(3, health=OK, metrics=refused, slots=refused)
    assert watch.raised() == {"unauthorized"}
    watch.look(1, metrics=counters(1), health=OK)
    assert watch.raised() == set()
    assert watch.state.picture(watch.at, WALL, 60.0).backend.state == "live"
    watch.look(10, metrics=FailureKind.DISABLED, health=OK)
    assert watch.raised() == {"endpoint_unusable"}


def test_what_a_stranger_said_before_the_server_came_back_is_nobodys() -> None:
    watch = live()
    nothing = FailureKind.NOT_FOUND
    watch.look(5, health=nothing, metrics=nothing, slots=nothing, process=process(99))
    assert "port_taken" in watch.raised()
    watch.look(1, health=OK)
    assert "port_taken" not in watch.raised()
    assert watch.state.picture(watch.at, WALL, 60.0).backend.state == "live"


@pytest.mark.parametrize(
    ("source", "key"), [("metrics", "LLAMA_ARG_ENDPOINT_METRICS"), ("slots", "LLAMA_ARG_ENDPOINT_SLOTS")]
)
def test_a_disabled_endpoint_is_told_with_its_fix(source: str, key: str) -> None:
    watch = Watch()
    seen = {"health": OK, "metrics": counters(1), "slots": IDLE}
    watch.look(20, **{**seen, source: FailureKind.DISABLED})
    assert watch.raised() == {"endpoint_unusable"}
    alert = watch.alert("endpoint_unusable")
    assert alert is not None
    assert (alert.subject, alert.fix) == (f"/{source}", ((key, "1"),))
    watch.look(4, **seen)
    assert watch.raised() == set()


def test_a_router_without_a_model_in_memory_lacks_nothing() -> None:
    watch = Watch()
    none = FailureKind.NO_MODEL
    watch.look(120, health=OK, metrics=none, slots=none, router=RouterModels((RouterModel("a", ModelStatus.UNLOADED),)))
    watch.look(60, health=OK, metrics=none, slots=none, router=FailureKind.TIMEOUT)
    assert watch.heard.events == []


COUNTED = Counters(prompt_tokens=9, predicted_tokens=9, draft_tokens=4, accepted_tokens=2, verification_steps=1)


@pytest.mark.parametrize(
    "kind", [FailureKind.GARBAGE, FailureKind.TOO_LARGE, FailureKind.ERROR, FailureKind.RESET], ids=str
)
@pytest.mark.parametrize("source", ["metrics", "slots"])
def test_an_endpoint_that_is_not_understood_is_told_and_what_rests_on_it_is_unjudged(
    source: str, kind: FailureKind
) -> None:
    watch = Watch()
    seen = {"health": OK, "metrics": COUNTED, "slots": IDLE}
    watch.look(20, **seen)
    assert watch.raised() == set()
    watch.look(4, **{**seen, source: kind})
    assert watch.raised() == {"endpoint_unusable"}
    unjudged = dict(watch.state.alerts.picture().unjudged)
    resting = {"metrics": {"zero_acceptance", "drafts_never_made"}, "slots": {"speculation_off"}}
    assert resting[source] <= {rule for rule, why in unjudged.items() if why == f"no fresh data from {source}"}
    watch.look(12, **seen)
    assert watch.raised() == set()


def test_metrics_without_what_every_server_counts_are_told_and_rules_without_their_totals_are_unjudged() -> None:
    watch = Watch()
    watch.look(5, health=OK, metrics=Counters(decode_calls=5, draft_tokens=0), slots=IDLE)
    alert = watch.alert("endpoint_unusable")
    assert alert is not None
    assert "lacks predicted_tokens" in alert.summary
    assert dict(watch.state.alerts.picture().unjudged)["drafts_never_made"] == "/metrics has no predicted_tokens"


def test_totals_of_a_new_process_are_a_restart_and_no_reset() -> None:
    watch = live()
    watch.look(2, health=OK, metrics=counters(1), slots=IDLE, process=process())
    watch.look(20, health=OK, metrics=counters(1), slots=IDLE, process=process(11))
    assert starts(watch) == 1


def test_a_runner_whose_child_is_another_one_is_a_restart_and_no_reset() -> None:
    watch = Watch()
    runner = replace(process(), processes=2)
    watch.look(20, health=OK, metrics=counters(100), slots=IDLE, process=runner)
    watch.look(25, health=OK, metrics=counters(1), slots=IDLE, process=runner)
    assert starts(watch) == 1


def test_a_server_that_is_gone_is_up_for_no_time() -> None:
    watch = live()
    assert watch.state.picture(watch.at, WALL + watch.at).backend.uptime_s == 1000.0 + watch.at
    watch.look(5, health=REFUSED, process=ENDED)
    backend = watch.state.picture(watch.at, WALL + watch.at).backend
    assert (backend.state, backend.uptime_s) == ("down", None)


def test_a_process_that_lives_behind_a_closed_port_is_still_up() -> None:
    watch = live()
    watch.look(5, health=REFUSED, process=process())
    assert watch.state.picture(watch.at, WALL + watch.at).backend.uptime_s == 1000.0 + watch.at


def remedy_of(watch: Watch) -> str:
    alert = watch.alert("backend_down")
    assert alert is not None
    spec = next(rule.spec for rule in shipped() if rule.spec.id == "backend_down")
    return runbook(spec, alert).remedy


def test_where_nothing_was_ever_seen_alive_the_address_is_in_doubt_and_the_others_are_named() -> None:
    watch = Watch()
    for _ in range(3):
        watch.at += 1.0
        detail = f"nothing listens there{OTHER_SERVERS}http://127.0.0.1:8081"
        watch.state.apply(Reading.unknown(Source.HEALTH, watch.at, REFUSED, detail))
    assert "http://127.0.0.1:8081" in remedy_of(watch)
    assert "services start" not in remedy_of(watch)
    assert "http://127.0.0.1:8081" in watch.state.picture(watch.at, WALL).backend.reason


def test_a_server_that_was_alive_a_moment_ago_is_to_be_started_again() -> None:
    watch = live()
    watch.look(5, health=REFUSED, process=ENDED)
    assert "specdash services start backend" in remedy_of(watch)


def test_an_edited_env_file_that_is_not_in_force_is_an_alert_until_it_is_mended() -> None:
    watch = live()
    known = watch.state.target
    refused = "backend.env as it was edited is not in force, the last good settings run: LLAMA_DRAFT_MAX=0"
    watch.state.retarget(replace(known, refused=refused))
    watch.look(1, **WELL)
    alert = watch.alert("edit_refused")
    assert alert is not None
    assert alert.summary == f"mend it, then `specdash services restart backend`: {refused}"
    watch.state.retarget(known)
    watch.look(1, **WELL)
    assert watch.raised() == set()
