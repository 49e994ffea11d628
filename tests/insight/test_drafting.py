"""Whether a server really speculates: from its slots, its drafts, its runner's check, its log and its parameters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specdash.core.start_check import Drafting, StartCheck
from specdash.insight.drafting import Seen, judge

ASKED = (("spec-type", "draft-simple"), ("spec-draft-model", "d.gguf"))
MISMATCH = "0.00.030.210 E srv    load_model: failed to initialize speculative decoding context: draft model vocab type"
VOCABULARY = "0.00.030.070 E spec common_specu: the target and draft vocabs are not compatible"
FAILED = StartCheck(Drafting.FAILED, 1.0, "the file is another", "take the right one", slots=1, slots_drafting=0)
YES = StartCheck(Drafting.YES, 1.0, "draft-simple, 5 of 8 drafted tokens accepted")


def state_of(**seen: object) -> Drafting:
    return judge(Seen(**seen)).state  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        (Seen(), Drafting.UNKNOWN),
        (Seen(slots=(True, True)), Drafting.READY),
        (Seen(slots=(True,), drafted=8, accepted=5), Drafting.YES),
        (Seen(slots=(True,), check=YES), Drafting.YES),
        (Seen(slots=(False,)), Drafting.OFF),
        (Seen(slots=(False,), knows_parameters=True), Drafting.OFF),
        (Seen(slots=(False,), parameters=(("spec-type", "none"),)), Drafting.OFF),
        (Seen(slots=(False,), parameters=ASKED), Drafting.FAILED),
        (Seen(slots=(False,), problems=(VOCABULARY, MISMATCH)), Drafting.FAILED),
        (Seen(slots=(False,), check=FAILED), Drafting.FAILED),
        (Seen(slots=(True, False), parameters=ASKED), Drafting.FAILED),
        (Seen(slots=(False,), parameters=(("spec-draft-model", "d.gguf"),), knows_parameters=True), Drafting.FAILED),
        (Seen(slots=(False,), parameters=(("spec-type", "none,ngram-mod"),)), Drafting.FAILED),
        (Seen(check=FAILED), Drafting.FAILED),
        (Seen(check=YES), Drafting.YES),
        (Seen(drafted=8), Drafting.YES),
        (Seen(problems=(VOCABULARY,)), Drafting.FAILED),
        (Seen(knows_parameters=True), Drafting.OFF),
        (Seen(parameters=ASKED, knows_parameters=True), Drafting.UNKNOWN),
        (Seen(slots=(True,), away="the server does not answer"), Drafting.UNKNOWN),
    ],
)
def test_what_is_seen_gives_one_state(seen: Seen, wanted: Drafting) -> None:
    found = judge(seen)
    assert found.state is wanted
    assert found.because
    assert bool(found.fix) is (wanted is Drafting.FAILED)


def test_slots_that_draft_now_count_more_than_a_check_that_failed() -> None:
    assert state_of(slots=(True,), check=FAILED) is Drafting.READY
    assert state_of(slots=(False,), check=YES, parameters=ASKED) is Drafting.FAILED


def test_a_check_under_way_says_nothing_yet() -> None:
    pending = replace(FAILED, drafting=Drafting.UNKNOWN, pending=True)
    assert state_of(slots=(True,), check=pending) is Drafting.READY
    assert state_of(check=pending) is Drafting.UNKNOWN


def test_the_cause_is_the_runners_else_the_logs_else_the_parameters() -> None:
    seen = Seen(slots=(False,), problems=(VOCABULARY,), parameters=(("spec-draft-model", "d.gguf"),), check=FAILED)
    assert judge(seen).because == "the file is another"
    assert judge(replace(seen, check=None)).because == "the draft model's vocabulary is not the target's"
    assert "does nothing" in judge(replace(seen, check=None, problems=())).because


def test_a_server_asked_for_none_is_off_whatever_the_log_of_another_says() -> None:
    assert state_of(slots=(False,), problems=(VOCABULARY,), parameters=(("spec-type", "none"),)) is Drafting.OFF
