"""What a server is seen to do wrong, what looks like it and is not, and what a trial of settings may do to it."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from insight.scenes import IDLE, LOADING, OK, WALL, Watch, counters, live, only, process, record, rule, tell, working
from specdash.core.readings import (
    OTHER_SERVERS,
    Counters,
    FailureKind,
    Health,
    HealthStatus,
    Host,
    ProcessTree,
    SchedulingDelay,
    Slot,
    Slots,
)
from specdash.core.records import AlertSeverity, Symptom, TrialNote
from specdash.insight.rules.catalogue import runbook, shipped

REFUSED, TIMEOUT, RESET = FailureKind.REFUSED, FailureKind.TIMEOUT, FailureKind.RESET
ENDED, DENIED, NOTHING = FailureKind.UNAVAILABLE, FailureKind.UNAUTHORIZED, FailureKind.NOT_FOUND
STARVED, ON_TIME = SchedulingDelay(3.0, 5.0), SchedulingDelay(0.0, 5.0)
SLOW = process(cpu_wait=0.9)
WELL = {"health": OK, "metrics": counters(100), "slots": IDLE, "process": process()}
REMOTE = {"health": OK, "metrics": counters(100), "slots": IDLE}
BEGUN = {**WELL, "metrics": counters(1)}
GONE = {"health": REFUSED, "process": ENDED}
STUCK = {"health": OK, "metrics": counters(100, running=1.0), "slots": working(50), "process": process()}
UNANSWERED = {**WELL, "metrics": TIMEOUT, "slots": TIMEOUT}
BROKEN = {"health": Health(HealthStatus.ERROR, "out of slots")}
NO_KEY = {"health": OK, "metrics": DENIED, "slots": DENIED}
THIEF = ProcessTree(pid=99, name="nc")
COUNTED = Counters(prompt_tokens=9, predicted_tokens=9, draft_tokens=4, accepted_tokens=2, verification_steps=1)
CRITICAL, WARNING = AlertSeverity.CRITICAL, AlertSeverity.WARNING
UNUSABLE = "endpoint_unusable"


def prefill(done: int) -> Slots:
    return Slots((Slot(0, is_processing=True, task=7, n_decoded=0, n_prompt_tokens_processed=done),))


@pytest.mark.parametrize(
    ("watch", "looks"),
    [
        # Down: at once, with the process that ended, and over at once; also where it was never there.
        (live, [(1, GONE, {"backend_down": ("process 10 has ended", CRITICAL)}),
                (1, {"health": OK, "process": process(11)}, {})]),
        (Watch, [(1, {"health": REFUSED}, {"backend_down": ""})]),
        # An engine that is swapped under its runner is not down, unless it stays away.
        (live, [(1, {"health": REFUSED, "process": process()}, {}), (3, BEGUN, {}),
                (2, {"health": REFUSED, "process": process()}, {"backend_down": ""})]),
        # Silence is a hang, and sooner where the process was stopped, later where it gets no CPU.
        (live, [(4, {"health": TIMEOUT}, {}), (2, {"health": TIMEOUT}, {"server_hung": ""}),
                (4, {"health": OK, "metrics": counters(100)}, {})]),
        (live, [(1, {"health": OK, "process": SLOW}, {}), (25, {"health": TIMEOUT, "process": SLOW}, {}),
                (10, {"health": TIMEOUT, "process": SLOW}, {"server_hung": ""})]),
        # What needs no silence is raised though specdash is starved.
        (live, [(5, {"scheduling": STARVED, "health": REFUSED, "process": ENDED},
                 {"cpu_starved": "", "backend_down": ""})]),
        (live, [(5, {"scheduling": STARVED, "health": TIMEOUT, "process": process(stopped=True)},
                 {"cpu_starved": "", "server_hung": "process 10 was stopped by a signal"})]),
        # A stopped process hangs before its port shows it.
        (live, [(1, {"process": process(stopped=True)}, {"server_hung": ""}), (4, WELL, {})]),
        # A slot without progress, also in its prefill; other tasks and moving prompts are none.
        (live, [(29, STUCK, {}),
                (3, STUCK, {"slot_hung": "slot 0 is busy and has generated no token for 31 s"}),
                (1, {**STUCK, "slots": working(51)}, {})]),
        (live, [(1, {**STUCK, "slots": working(1, task=task)}, {}) for task in range(80)]),
        (live, [*[(100, {**STUCK, "slots": prefill(step)}, {}) for step in range(3)],
                (190, {**STUCK, "slots": prefill(3)}, {"slot_hung": "processed no prompt token"})]),
        # One that may wait for others at work gets longer.
        (live, [*[(1, {**STUCK, "metrics": counters(100, running=2.0, calls=step)},
                   None if 170 < step < 189 else {"slot_hung": ""} if step > 170 else {}) for step in range(190)]]),
        # Loading is no fault until it takes too long, and worse when it does not end; it may have begun before, but not
        # where the server has served.
        (lambda: Watch(only("loading_too_long")),
         [(299, {"health": LOADING}, {}), (5, {"health": LOADING}, {"loading_too_long": ("", WARNING)}),
          (600, {"health": LOADING}, {"loading_too_long": ("", CRITICAL)}), (1, {"health": OK}, {})]),
        (lambda: Watch(only("loading_too_long")),
         [(2, {"health": LOADING, "process": process(started=WALL - 400.0)}, {"loading_too_long": ""})]),
        (live, [(20, {"health": LOADING, "process": process(started=WALL - 86400.0)}, {})]),
        # One that dies while it loads is a crash loop.
        (lambda: Watch(only("crash_loop")),
         [*[(4, {"health": REFUSED}, None), (3, {"health": LOADING}, None)] * 3, (1, {}, {"crash_loop": ""})]),
        # Totals that begin again in the same process are no restart.
        (live, [(30, BEGUN, {})]),
        # Busy for a moment is normal, and for a minute is not.
        (live, [(50, UNANSWERED, {}), (15, UNANSWERED, {"server_hung": ("/metrics and /slots not in time", WARNING)}),
                (12, WELL, {})]),
        # Another program has the port: by what it answers, or cannot, or by its process; a closed port is not taken.
        *((live, [(1, {"health": kind, "metrics": kind, "slots": kind, "process": ENDED},
                   {"port_taken": "not a llama-server"})])
          for kind in (NOTHING, FailureKind.GARBAGE, FailureKind.TOO_LARGE)),
        (live, [(2, {"health": OK, "metrics": NOTHING, "slots": FailureKind.GARBAGE, "process": THIEF},
                 {"port_taken": ""}), (12, WELL, {})]),
        (live, [(2, {"health": TIMEOUT, "process": THIEF}, {"port_taken": "process 99 (nc)"})]),
        (live, [(2, {"health": RESET, "process": THIEF}, {"port_taken": "process 99 (nc)", "backend_down": ""})]),
        # A refused key, until an endpoint takes it again, which shows what else is wrong.
        (Watch, [(3, NO_KEY, {}), (2, NO_KEY, {UNUSABLE: "refuses the API key"}), (4, REMOTE, {})]),
        (Watch, [(5, NO_KEY, {UNUSABLE: ""}), (4, {"metrics": counters(1), "health": OK}, {}),
                 (10, {"metrics": FailureKind.DISABLED, "health": OK}, {UNUSABLE: "does not serve /metrics"})]),
        # An error of /health that stays, and answers that are none.
        (Watch, [(2, BROKEN, {}), (4, BROKEN, {UNUSABLE: "out of slots"})]),
        (Watch, [(5, REMOTE, {}), (1, {**REMOTE, "metrics": FailureKind.GARBAGE}, {}),
                 (4, {"health": OK, "slots": IDLE}, {UNUSABLE: ""})]),
        (Watch, [(5, {**REMOTE, "metrics": Counters(decode_calls=5, draft_tokens=0)},
                  {UNUSABLE: "lacks predicted_tokens"})]),
        # Health: idle, at work, asleep.
        (live, [*[(1, {**STUCK, "metrics": counters(100 + step), "slots": working(step)}, {}) for step in range(120)],
                (60, {**WELL, "slots": FailureKind.SLEEPING}, {})]),
    ],
)  # fmt: skip
def test_what_is_raised_while_a_server_does_this(
    watch: Callable[[], Watch], looks: list[tuple[float, dict[str, Any], dict[str, Any] | None]]
) -> None:
    """Seconds, what every source shows in them, and the alerts after them: words of the summary, and the severity."""
    watched = watch()
    for seconds, readings, expected in looks:
        watched.look(seconds, **readings)
        if expected is None:
            continue
        assert watched.raised() == expected.keys()
        for rule_id, what in expected.items():
            words, severity = what if isinstance(what, tuple) else (what, None)
            alert = watched.found(rule_id)
            assert words in alert.summary
            assert severity in (None, alert.severity)


def test_where_specdash_gets_no_cpu_it_says_so_and_blames_no_one_for_silence() -> None:
    watch = live()
    watch.look(60, scheduling=STARVED, health=TIMEOUT, metrics=TIMEOUT, slots=working(5), process=process())
    assert watch.raised() == {"cpu_starved"}
    assert watch.unjudged.keys() >= {"server_hung", "slot_hung"}
    assert "too busy" in watch.unjudged["server_hung"]
    watch.look(10, scheduling=ON_TIME, **WELL)
    assert {alert.rule for alert in watch.picture.alerts.past} == {"cpu_starved"}
    assert watch.raised() == set()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # The port was closed; totals went back elsewhere, or of a runner whose child is another one; another process.
        ([(20, WELL)], [(2, {"health": REFUSED, "process": ENDED}), (1, {"health": LOADING, "process": process(11)}),
                        (80, {**BEGUN, "process": process(11)})]),
        ([(20, REMOTE)], [(5, {**REMOTE, "metrics": counters(1)})]),
        ([(20, {**WELL, "process": replace(process(), processes=2)})],
         [(25, {**BEGUN, "process": replace(process(), processes=2)})]),
        ([(20, WELL)], [(2, BEGUN), (20, {**BEGUN, "process": process(11)})]),
    ],
)  # fmt: skip
def test_one_restart_counts_once(before: list[Any], after: list[Any]) -> None:
    watch = Watch()
    for seconds, readings in (*before, *after):
        watch.look(seconds, **readings)
    assert len(watch.state.alerts.past.starts.seen) == 1
    assert watch.raised() == set()


@pytest.mark.parametrize(
    ("pause_s", "by_apply", "is_loop"), [(40, False, True), (650, False, False), (40, True, False)]
)
def test_three_restarts_within_minutes_are_a_crash_loop_unless_applies_made_them(
    pause_s: float, by_apply: bool, is_loop: bool
) -> None:
    watch, applies = live(), []
    for number, pid in enumerate((11, 12, 13), 1):
        assert "crash_loop" not in watch.raised()
        applies.append(replace(record(number, WALL + watch.at + 2.0), url=None))
        watch.look(2, **GONE)
        watch.look(1, health=LOADING, process=process(pid))
        tell(watch.state, watch.at, applies=tuple(applies) if by_apply else ())
        watch.look(5 + (pause_s if number < 3 else 1), **{**BEGUN, "process": process(pid)})
    assert ("crash_loop" in watch.raised()) is is_loop
    watch.look(3, **GONE)
    assert watch.state.alerts.picture().cause_key == ("crash_loop" if is_loop else "backend_down", "")


@pytest.mark.parametrize(
    ("source", "key", "rules"),
    [
        ("metrics", "LLAMA_ARG_ENDPOINT_METRICS", {"zero_acceptance"}),
        ("slots", "LLAMA_ARG_ENDPOINT_SLOTS", {"speculation_off"}),
    ],
)
def test_what_rests_on_an_endpoint_that_is_off_or_not_understood_is_unjudged(
    source: str, key: str, rules: set[str]
) -> None:
    seen = {"health": OK, "metrics": COUNTED, "slots": IDLE}
    for kind in (FailureKind.DISABLED, FailureKind.GARBAGE, FailureKind.RESET):
        watch = Watch()
        watch.look(20, **seen)
        assert watch.raised() == set()
        watch.look(4, **{**seen, source: kind})
        assert watch.raised() == {UNUSABLE}
        alert = watch.found(UNUSABLE)
        assert alert.subject == f"/{source}"
        assert alert.fix == (((key, "1"),) if kind is FailureKind.DISABLED else ())
        assert rules <= {rule for rule, why in watch.unjudged.items() if why == f"no fresh data from {source}"}
        watch.look(12, **seen)
        assert watch.raised() == set()
    watch.look(5, health=OK, metrics=Counters(decode_calls=5, draft_tokens=0), slots=IDLE)
    assert watch.unjudged["zero_acceptance"] == "/metrics has no predicted_tokens"


def test_a_server_that_is_gone_is_up_for_no_time_and_one_behind_a_closed_port_is() -> None:
    watch = live()
    for process_now, uptime in ((process(), 1000.0 + 25), (ENDED, None)):
        watch.look(5, health=REFUSED, process=process_now)
        assert watch.picture.backend.uptime_s == uptime


def test_where_nothing_was_ever_seen_alive_the_address_is_in_doubt_and_the_others_are_named() -> None:
    spec = next(rule for rule in shipped() if rule.id == "backend_down")
    watch = Watch()
    watch.look(3, health=(REFUSED, f"nothing listens there{OTHER_SERVERS}http://127.0.0.1:8081"))
    remedy = runbook(spec, watch.found("backend_down")).remedy
    assert "http://127.0.0.1:8081" in remedy
    assert "services start" not in remedy
    watch = live()
    watch.look(5, **GONE)
    assert "specdash services start backend" in runbook(spec, watch.found("backend_down")).remedy


def test_an_edited_env_file_that_is_not_in_force_is_an_alert_until_it_is_mended() -> None:
    watch = live()
    refused = "backend.env as it was edited is not in force, the last good settings run: LLAMA_DRAFT_MAX=0"
    watch.retarget(refused=refused)
    watch.look(1, **WELL)
    assert watch.found("edit_refused").summary == f"mend it, then `specdash services restart backend`: {refused}"
    watch.retarget(refused="")
    watch.look(1, **WELL)
    assert watch.raised() == set()


# While settings are tried on the server, what the trial does to it raises nothing; real faults do


NOTE = TrialNote("tune", "specdash-backend", WALL, boot=4, planned=12)


def tried(watch: Watch, *notes: TrialNote) -> None:
    """The trials from now on."""
    tell(watch.state, watch.at, trial=notes)


def another(pid: int, started: float) -> dict[str, Any]:
    """All is well, of a process that began so long after the watch."""
    return {**BEGUN, "process": process(pid, started=WALL + started)}


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        # The start that puts the settings back is the trial's too, however late its process is seen: on a busy machine
        # the port may not have been seen closed at all.
        ([(2, [NOTE], GONE), (9, [], another(11, 22))], set()),
        ([(5, [NOTE], WELL), (12, [], WELL), (10, [], another(11, 24))], set()),
        # Its restarts are no crash loop.
        ([look for pid in range(11, 16) for look in ((2, [NOTE], GONE), (9, [NOTE], another(pid, 11 * pid - 99)))],
         set()),
        # A server that stays away, crashes after a trial, or whose trial died.
        ([(100, [NOTE], GONE)], set()),
        ([(140, [NOTE], GONE), (12, [], GONE)], {"backend_down"}),
        ([(2, [NOTE], GONE), (11, [NOTE], another(11, 22)), (20, [], another(11, 22)), (1, [], GONE)],
         {"backend_down"}),
        ([(20, [NOTE], WELL), (8, [replace(NOTE, alive=False)], WELL),
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


def test_a_rule_of_settings_is_not_judged_until_its_window_has_left_the_trial_behind() -> None:
    watch = Watch([rule(lambda *_: [Symptom("bad")], in_trials=False, limits={"window_s": 60.0})])
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
    watch = Watch(only("slot_hung", "memory_pressure"))
    tried(watch, NOTE)
    full = Host(memory_used_bytes=99 << 24, memory_total_bytes=100 << 24)
    watch.look(200, health=OK, metrics=counters(1), slots=working(5), process=process(), host=full)
    assert watch.raised() == {"slot_hung", "memory_pressure"}
    judged = {item.id for item in shipped() if item.in_trials}
    assert judged >= {"gpu_lost", "memory_pressure", "gpu_throttled", "proxy_down", "proxy_errors"}
