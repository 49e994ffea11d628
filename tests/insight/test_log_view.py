"""The live view of a log keeps the verification steps of each slot's current task."""

from specdash.core.log_facts import LogBatch, ServerEvent, TaskLaunched, VerificationSteps, WarningTally
from specdash.insight.log.log_view import LogView, SlotSteps
from specdash.insight.request import DraftTally


def steps(drafted: int, accepted: int, count: int, replays: int = 0, span: tuple[float, int] = (0.0, 0)) -> DraftTally:
    return DraftTally(drafted, accepted, count, replays=replays, span_s=span[0], span_calls=span[1])


def test_steps_of_a_slots_task_add_up_over_batches() -> None:
    view = LogView()
    view.add(100.0, LogBatch(facts=(VerificationSteps(0, 7, 2, 9, 16, 1, 1, 1.0, at_s=1.5),)))
    fresh = view.add(101.0, LogBatch(facts=(VerificationSteps(0, 7, 3, 10, 24, 0, 0, 2.0, at_s=2.5),)))
    assert view.slot_steps == {0: SlotSteps(7, steps(40, 19, 5, 1, (2.5 - 1.0, 5)), 2.5, restored=1)}
    assert (fresh.drafts.drafted, fresh.drafts.accepted) == (24, 10)


def test_replays_move_the_time_but_not_the_sums() -> None:
    view = LogView()
    view.add(100.0, LogBatch(facts=(VerificationSteps(0, 7, 1, 6, 8, 0, 1, 1.0, at_s=1.0),)))
    view.add(101.0, LogBatch(facts=(VerificationSteps(0, 7, 0, 0, 0, 1, 0, 2.0, at_s=2.0),)))
    assert view.slot_steps == {0: SlotSteps(7, steps(8, 6, 1, 1, (1.0, 1)), 2.0, restored=1)}


def test_another_task_of_the_slot_begins_anew() -> None:
    view = LogView()
    facts = (
        VerificationSteps(0, 7, 2, 9, 16, 0, 0, 1.0, at_s=1.5),
        VerificationSteps(0, 8, 1, 4, 8, 0, 0, 1.8, at_s=1.8),
    )
    view.add(100.0, LogBatch(facts=facts))
    assert view.slot_steps == {0: SlotSteps(8, steps(8, 4, 1), 1.8)}
    window = view.live_steps(100.0, 10.0)
    assert (window.drafted, window.accepted, window.steps) == (24, 13, 3)


def test_what_the_log_told_of_the_past_is_not_counted_as_happening_now() -> None:
    old, now = VerificationSteps(0, 1, 100, 0, 800, at_s=10.0), VerificationSteps(0, 2, 3, 4, 24, at_s=99.9)
    view = LogView()
    view.add(1.0, LogBatch(2, facts=(old, now)))
    assert (view.live["steps"], view.live["drafted"], view.live["accepted"]) == (3, 24, 4)


def test_a_warning_of_a_server_that_is_gone_is_dated_by_its_own_clock() -> None:
    started = ServerEvent("restarted", (), at_s=0.0)
    old = WarningTally("compute_buffer_failed", 1, 0.2, 0.2, "...", lives_ago=1)
    view = LogView()
    facts = (TaskLaunched(0, 1, at_s=500.0), started, TaskLaunched(0, 1, at_s=60.0))
    view.add(1000.0, LogBatch(3, facts=facts, warnings=(old,), restarted=True))
    (storm,) = view.storms.newest_first
    assert storm.last_at <= 1000.0 - 60.0 - 499.0
