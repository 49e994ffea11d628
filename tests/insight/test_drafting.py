"""Whether a server really speculates: from its slots, its drafts, its runner's check, its log and its parameters."""

import pytest
from msgspec.structs import replace

from specdash.core.readings import ProcessTree, Reading, Source
from specdash.core.records import Drafting, StartCheck
from specdash.core.target import Target
from specdash.insight.speculation.drafting import DraftingEvidence, judge, seen_of
from specdash.insight.state import TargetState

ASKED = (("spec-type", "draft-simple"), ("spec-draft-model", "d.gguf"))
MISMATCH = "0.00.030.210 E srv    load_model: failed to initialize speculative decoding context: draft model vocab type"
VOCABULARY = "0.00.030.070 E spec common_specu: the target and draft vocabs are not compatible"
FAILED = StartCheck(Drafting.FAILED, 1.0, "the file is another", "take the right one", slots=1, slots_drafting=0)
YES = StartCheck(Drafting.YES, 1.0, "draft-simple, 5 of 8 drafted tokens accepted")


def state_of(**seen: object) -> Drafting:
    return judge(DraftingEvidence(**seen)).state  # type: ignore[arg-type]


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
        (
            DraftingEvidence(slots=(False,), parameters=(("spec-draft-model", "d.gguf"),), knows_parameters=True),
            Drafting.FAILED,
        ),
        (DraftingEvidence(slots=(False,), parameters=(("spec-type", "none,ngram-mod"),)), Drafting.FAILED),
        (DraftingEvidence(check=FAILED), Drafting.FAILED),
        (DraftingEvidence(check=YES), Drafting.YES),
        (DraftingEvidence(drafted=8), Drafting.YES),
        (DraftingEvidence(problems=(VOCABULARY,)), Drafting.FAILED),
        (DraftingEvidence(knows_parameters=True), Drafting.OFF),
        (DraftingEvidence(knows_parameters=True, hidden="/slots: no answer within 3 s"), Drafting.UNKNOWN),
        (DraftingEvidence(parameters=ASKED, knows_parameters=True), Drafting.UNKNOWN),
        (DraftingEvidence(slots=(True,), away="the server does not answer"), Drafting.UNKNOWN),
    ],
)
def test_what_is_seen_gives_one_state(seen: DraftingEvidence, wanted: Drafting) -> None:
    found = judge(seen)
    assert found.state is wanted
    assert found.because
    assert bool(found.fix) is (wanted is Drafting.FAILED)


def test_a_check_under_way_says_nothing_yet() -> None:
    pending = replace(FAILED, drafting=Drafting.UNKNOWN, pending=True)
    assert state_of(slots=(True,), check=pending) is Drafting.READY
    assert state_of(check=pending) is Drafting.UNKNOWN


def test_the_cause_is_the_runners_else_the_logs_else_the_parameters() -> None:
    seen = DraftingEvidence(
        slots=(False,), problems=(VOCABULARY,), parameters=(("spec-draft-model", "d.gguf"),), check=FAILED
    )
    assert judge(seen).because == "the file is another"
    assert judge(replace(seen, check=None)).because == "the draft model's vocabulary is not the target's"
    assert "does nothing" in judge(replace(seen, check=None, problems=())).because


def test_what_a_server_was_started_with_is_its_records_else_its_command_lines() -> None:
    tree = ProcessTree(10, command=("llama-server", "--spec-type", "draft-simple", "--spec-draft-n-max", "3"))

    def seen(target: Target, *, process: bool) -> DraftingEvidence:
        state = TargetState(target)
        if process:
            state.apply(Reading.known(Source.PROCESS, 1.0, tree))
        return seen_of(state)

    unknown = seen(Target("http://x"), process=False)
    assert (unknown.parameters, unknown.knows_parameters) == ((), False)
    of_process = seen(Target("http://x"), process=True)
    assert dict(of_process.parameters)["spec-draft-n-max"] == "3"
    assert of_process.knows_parameters
    ours = (("spec-type", "ngram-mod"),)
    recorded = seen(Target("http://x", pid=10, parameters=ours), process=True)
    assert (recorded.parameters, recorded.knows_parameters) == (ours, True)
    none_asked = seen(Target("http://x", pid=10), process=True)
    assert (none_asked.parameters, none_asked.knows_parameters) == ((), True)
