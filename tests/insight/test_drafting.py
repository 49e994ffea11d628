"""Whether a server really speculates: from its slots, its drafts, its runner's check, its log and its parameters."""

import pytest
from msgspec.structs import replace

from insight.scenes import server, tell
from specdash.core.readings import ProcessTree
from specdash.core.records import Drafting, StartCheck
from specdash.insight.speculation.drafting import DraftingEvidence, judge, seen_of

MODEL = (("spec-draft-model", "d.gguf"),)
ASKED = (("spec-type", "draft-simple"), ("spec-draft-model", "d.gguf"))
MISMATCH = "0.00.030.210 E srv    load_model: failed to initialize speculative decoding context: draft model vocab type"
VOCABULARY = "0.00.030.070 E spec common_specu: the target and draft vocabs are not compatible"
FAILED = StartCheck(Drafting.FAILED, 1.0, "the file is another", "take the right one", slots=1, slots_drafting=0)
PENDING = replace(FAILED, drafting=Drafting.UNKNOWN, pending=True)
YES = StartCheck(Drafting.YES, 1.0, "draft-simple, 5 of 8 drafted tokens accepted")


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        (DraftingEvidence(), Drafting.UNKNOWN),
        (DraftingEvidence(slots=(True, True)), Drafting.READY),
        (DraftingEvidence(slots=(True,), drafted=8, accepted=5), Drafting.YES),
        (DraftingEvidence(slots=(True,), check=YES), Drafting.YES),
        (DraftingEvidence(slots=(False,)), Drafting.OFF),
        (DraftingEvidence(slots=(False,), knows_parameters=True), Drafting.OFF),
        (DraftingEvidence(slots=(False,), parameters=(("spec-type", "none"),)), Drafting.OFF),
        (DraftingEvidence(slots=(False,), parameters=ASKED), Drafting.FAILED),
        (DraftingEvidence(slots=(False,), problems=(VOCABULARY, MISMATCH)), Drafting.FAILED),
        (DraftingEvidence(slots=(False,), check=FAILED), Drafting.FAILED),
        (DraftingEvidence(slots=(True, False), parameters=ASKED), Drafting.FAILED),
        (DraftingEvidence(slots=(False,), parameters=MODEL, knows_parameters=True), Drafting.FAILED),
        (DraftingEvidence(slots=(False,), parameters=(("spec-type", "none,ngram-mod"),)), Drafting.FAILED),
        (DraftingEvidence(check=FAILED), Drafting.FAILED),
        (DraftingEvidence(check=YES), Drafting.YES),
        (DraftingEvidence(drafted=8), Drafting.YES),
        (DraftingEvidence(problems=(VOCABULARY,)), Drafting.FAILED),
        (DraftingEvidence(knows_parameters=True), Drafting.OFF),
        (DraftingEvidence(knows_parameters=True, hidden="/slots: no answer within 3 s"), Drafting.UNKNOWN),
        (DraftingEvidence(parameters=ASKED, knows_parameters=True), Drafting.UNKNOWN),
        # A check under way shows nothing yet.
        (DraftingEvidence(slots=(True,), check=PENDING), Drafting.READY),
        (DraftingEvidence(check=PENDING), Drafting.UNKNOWN),
        (DraftingEvidence(slots=(True,), away="the server does not answer"), Drafting.UNKNOWN),
    ],
)
def test_what_is_seen_gives_one_state(seen: DraftingEvidence, wanted: Drafting) -> None:
    found = judge(seen)
    assert found.state is wanted
    assert found.because
    assert bool(found.fix) is (wanted is Drafting.FAILED)


def test_the_cause_is_the_runners_else_the_logs_else_the_parameters() -> None:
    seen = DraftingEvidence(slots=(False,), problems=(VOCABULARY,), parameters=MODEL, check=FAILED)
    assert judge(seen).because == "the file is another"
    assert judge(replace(seen, check=None)).because == "the draft model's vocabulary is not the target's"
    assert "does nothing" in judge(replace(seen, check=None, problems=())).because


OURS = (("spec-type", "ngram-mod"),)


@pytest.mark.parametrize(
    ("known", "process", "expected"),
    [
        ({}, False, ((), False)),
        ({}, True, ((("spec-type", "draft-simple"), ("spec-draft-n-max", "3")), True)),
        ({"pid": 10, "parameters": OURS}, True, (OURS, True)),
        ({"pid": 10}, True, ((), True)),
    ],
)
def test_what_a_server_was_started_with_is_its_records_else_its_command_lines(
    known: dict[str, object], process: bool, expected: tuple[object, bool]
) -> None:
    tree = ProcessTree(10, command=("llama-server", "--spec-type", "draft-simple", "--spec-draft-n-max", "3"))
    found = seen_of(tell(server(**known), 1.0, **({"process": tree} if process else {})))
    assert (found.parameters, found.knows_parameters) == expected
