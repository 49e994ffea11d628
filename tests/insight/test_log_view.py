"""The live view of a log keeps the verification steps of each slot's current task."""

from __future__ import annotations

from specdash.core.log_facts import LogBatch, VerificationSteps
from specdash.insight.log_view import LogView, SlotSteps


def test_steps_of_a_slots_task_add_up_over_batches() -> None:
    view = LogView()
    view.add(100.0, LogBatch(facts=(VerificationSteps(0, 7, 2, 9, 16, 1, 1, 1.0, 1.5),)), 2.0)
    fresh = view.add(101.0, LogBatch(facts=(VerificationSteps(0, 7, 3, 10, 24, 0, 0, 2.0, 2.5),)), 3.0)
    assert view.slot_steps == {0: SlotSteps(7, generated=40, accepted=19, steps=5, first_s=1.0, last_s=2.5)}
    assert (fresh.generated, fresh.accepted) == (24, 10)


def test_replays_move_the_time_but_not_the_sums() -> None:
    view = LogView()
    view.add(100.0, LogBatch(facts=(VerificationSteps(0, 7, 1, 6, 8, 0, 1, 1.0, 1.0),)), 2.0)
    view.add(101.0, LogBatch(facts=(VerificationSteps(0, 7, 0, 0, 0, 1, 0, 2.0, 2.0),)), 3.0)
    assert view.slot_steps == {0: SlotSteps(7, generated=8, accepted=6, steps=1, first_s=1.0, last_s=2.0)}


def test_another_task_of_the_slot_begins_anew() -> None:
    view = LogView()
    facts = (VerificationSteps(0, 7, 2, 9, 16, 0, 0, 1.0, 1.5), VerificationSteps(0, 8, 1, 4, 8, 0, 0, 1.8, 1.8))
    view.add(100.0, LogBatch(facts=facts), 2.0)
    assert view.slot_steps == {0: SlotSteps(8, generated=8, accepted=4, steps=1, first_s=1.8, last_s=1.8)}
    window = view.steps_exact.window(100.0, 10.0)
    assert window is not None
    assert (window.generated, window.accepted, window.steps) == (24, 13, 3)
