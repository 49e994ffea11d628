"""Whether a server really speculates, how it takes rejected tokens back, and how good its drafter is."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from insight.scenes import (
    LLAMA,
    MAMBA,
    NOW,
    QWEN,
    WALL,
    baseline,
    counted,
    measured,
    read_log,
    row_of,
    server,
    speculating,
    tell,
)
from specdash.core.log_facts import LogBatch, ServerEvent, SpeculativeStatistics
from specdash.core.readings import Gpu, Gpus, ModelOutline, ProcessTree, Slot, Slots
from specdash.core.records import Drafting, StartCheck
from specdash.core.speculation import MemoryKind, Rollback
from specdash.insight.picture import CheckpointsPicture, DrafterPicture
from specdash.insight.speculation.drafter import StepCosts, fitted, replayed, speeds, survival, verdict_of
from specdash.insight.speculation.drafting import DraftingEvidence, judge, seen_of
from specdash.insight.state import TargetState

# Whether it drafts: from its slots, its drafts, its runner's check, its log and its parameters


DRAFT = (("spec-draft-model", "d.gguf"),)
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
        (DraftingEvidence(slots=(False,), parameters=(("spec-type", "none"),)), Drafting.OFF),
        (DraftingEvidence(slots=(False,), parameters=ASKED), Drafting.FAILED),
        (DraftingEvidence(slots=(False,), problems=(VOCABULARY, MISMATCH)), Drafting.FAILED),
        (DraftingEvidence(slots=(False,), check=FAILED), Drafting.FAILED),
        (DraftingEvidence(slots=(True, False), parameters=ASKED), Drafting.FAILED),
        (DraftingEvidence(slots=(False,), parameters=DRAFT, knows_parameters=True), Drafting.FAILED),
        (DraftingEvidence(slots=(False,), parameters=(("spec-type", "none,ngram-mod"),)), Drafting.FAILED),
        (DraftingEvidence(check=FAILED), Drafting.FAILED),
        (DraftingEvidence(check=YES), Drafting.YES),
        (DraftingEvidence(problems=(VOCABULARY,)), Drafting.FAILED),
        (DraftingEvidence(knows_parameters=True), Drafting.OFF),
        (DraftingEvidence(knows_parameters=True, hidden="/slots: no answer within 3 s"), Drafting.UNKNOWN),
        (DraftingEvidence(parameters=ASKED, knows_parameters=True), Drafting.UNKNOWN),
        # A check under way shows nothing yet.
        (DraftingEvidence(slots=(True,), check=PENDING), Drafting.READY),
        (DraftingEvidence(slots=(True,), away="the server does not answer"), Drafting.UNKNOWN),
    ],
)
def test_what_is_seen_gives_one_state(seen: DraftingEvidence, wanted: Drafting) -> None:
    found = judge(seen)
    assert found.state is wanted
    assert found.because
    assert bool(found.fix) is (wanted is Drafting.FAILED)


def test_the_cause_is_the_runners_else_the_logs_else_the_parameters() -> None:
    seen = DraftingEvidence(slots=(False,), problems=(VOCABULARY,), parameters=DRAFT, check=FAILED)
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
    known: dict[str, Any], process: bool, expected: tuple[object, bool]
) -> None:
    tree = ProcessTree(10, command=("llama-server", "--spec-type", "draft-simple", "--spec-draft-n-max", "3"))
    found = seen_of(tell(server(**known), 1.0, **({"process": tree} if process else {})))
    assert (found.parameters, found.knows_parameters) == expected


# What taking rejected tokens back costs is known from what the server did


def rollback_of(state: TargetState, now: float = NOW, window_s: float = 300.0) -> CheckpointsPicture:
    return state.picture(now, WALL, window_s).views.checkpoints


@pytest.mark.parametrize(
    ("types", "model", "way", "because"),
    [
        ("draft-simple", LLAMA, Rollback.CUT, "llama keeps a KV cache of every token"),
        ("draft-simple", MAMBA, Rollback.CHECKPOINT, "mamba is recurrent: its state cannot be cut back"),
        ("draft-mtp", QWEN, Rollback.STATE, "qwen35 is hybrid, and keeps the states of the last tokens for draft-mtp"),
        ("ngram-mod", QWEN, Rollback.CHECKPOINT, "qwen35 is hybrid, and for ngram-mod no states are kept"),
        (
            # Seen on b11434: drafts of up to n_max of draft-mtp are taken back, longer ones restore a checkpoint.
            "draft-mtp,ngram-mod",
            QWEN,
            Rollback.CHECKPOINT,
            "qwen35 is hybrid: states are kept for draft-mtp, not for longer drafts of ngram-mod",
        ),
    ],
)
def test_the_models_memory_and_the_type_decide_how_tokens_are_taken_back(
    types: str, model: ModelOutline, way: Rollback, because: str
) -> None:
    found = rollback_of(speculating(types, model=model))
    assert (found.memory, found.rollback, found.because) == (model.memory, way, because)


def test_what_the_server_does_overrules_both() -> None:
    found = rollback_of(read_log(speculating("draft-simple", model=LLAMA), "mamba_draft75_lv3_trace1"))
    assert (found.rollback, found.because) == (Rollback.CHECKPOINT, "the log shows restores and replays")
    off = Slots((Slot(0, False, 4096, False),))
    found = rollback_of(tell(speculating("draft-simple", model=MAMBA), NOW - 1, slots=off))
    assert (found.rollback, found.because) == (None, "it does not speculate")
    assert found.memory is MemoryKind.RECURRENT


def test_a_trace_shows_what_each_decode_call_brought_and_what_replays_cost() -> None:
    """18 steps and 18 replays for two requests of 60 tokens: n_decode_total counted 19 decode calls each."""
    found = rollback_of(read_log(speculating("draft-simple", model=MAMBA), "mamba_draft75_lv3_trace1"))
    assert (found.basis, found.steps, found.replays, found.replayed_tokens) == ("trace", 18, 18, 98)
    assert found.mean_accepted_length == pytest.approx(5.44, abs=0.005)
    # Two calls brought one token each without a draft, and left no trace.
    assert found.effective_length == pytest.approx((2 * 59 - 2) / (2 * 19 - 2))
    assert "not the 5.4 that the server prints" in found.verdict
    assert found.lost_s is not None
    assert found.lost_share is not None
    assert (found.lost_s, found.lost_share) == pytest.approx((0.0547, 0.334), rel=0.01)
    # The server timed 169.2 ms of decode; the trace leaves out the two calls without a draft.
    assert found.lost_s / found.lost_share == pytest.approx(0.1692, rel=0.05)


def test_of_which_the_window_has_nothing_shows_what_was_since_the_start() -> None:
    state = read_log(speculating("draft-simple", model=MAMBA), "mamba_draft75_lv3_trace1", at=NOW - 1000)
    found = rollback_of(state)
    assert (found.held, found.steps, found.replays) == (True, 18, 18)
    assert (found.lifetime.steps, found.lifetime.replays) == (18, 18)
    assert not rollback_of(state, window_s=2000).held


@pytest.mark.parametrize(
    ("state", "replays", "lost_share", "length", "words"),
    [
        (counted(speculating("draft-simple", model=MAMBA), (16, 16, 12, 12, 12, 12), steps=18, drafted=144, plain=22),
         18, 18 / 40, 120 / 40, "at most 45 %"),
        # A model that cuts its cache loses nothing.
        (counted(speculating("draft-simple", model=LLAMA), (9, 5, 1), steps=10, drafted=30, plain=1),
         0, 0.0, 26 / 11, "Rejected tokens are cut from the KV cache, which costs nothing."),
        # Of an n-gram type the counters cannot tell replays from steps without a draft.
        (counted(speculating("ngram-mod", model=MAMBA), (3, 3), steps=3, drafted=48, plain=60),
         0, None, 69 / 63, "LLAMA_TRACE=1"),
    ],
)  # fmt: skip
def test_without_a_trace_the_counters_show_nearly_the_same(
    state: TargetState, replays: int, lost_share: float | None, length: float, words: str
) -> None:
    found = rollback_of(state)
    assert (found.basis, found.replays, found.lost_share) == ("counters", replays, lost_share)
    assert found.effective_length == pytest.approx(length)
    assert words in found.verdict


def test_the_log_counts_checkpoints_at_verbosity_5_and_those_of_a_new_server_from_zero() -> None:
    state = read_log(speculating("draft-simple", model=MAMBA), "mamba_draft75_lv5")
    found = rollback_of(state)
    assert (found.speculative.created, found.speculative.restored) == (18, 18)
    assert (found.context.created, found.context.restored, found.context.erased) == (2, 1, 1)
    assert (found.speculative.size_mib, found.context.size_mib) == pytest.approx((0.037, 0.096), rel=0.02)
    tell(state, NOW, log=LogBatch(1, facts=(ServerEvent("server_starting"),), restarted=True))
    found = rollback_of(state, NOW + 1)
    assert (found.context.created, found.speculative.created, found.steps) == (0, 0, 0)


# The drafter: judged position by position, against what was published and what it costs


FALLING = (90, 75, 60, 20, 10, 4)
"""Accepted in 100 steps at each position."""
IN_A_CHAIN = (50, *(30,) * 63)
GPU = Gpus((Gpu(0, "H100"),))


def seen(state: TargetState, now: float = NOW) -> DrafterPicture:
    return state.picture(now, WALL, 300.0).views.drafter


def test_positions_are_of_the_window_or_the_life_and_a_shorter_draft_is_named_with_its_gain() -> None:
    state = counted(speculating("draft-mtp", model=QWEN, draft_n_max="6"), FALLING, steps=100, drafted=600)
    found = seen(tell(state, NOW - 600, gpu=GPU))
    assert found.per_position == pytest.approx([number / 100 for number in FALLING])
    assert (found.per_position_basis, found.steps) == ("window", 100)
    assert (found.asked_length, found.effective_length, found.block_size) == (6, 6, None)
    assert (found.acceptance, found.mean_accepted_length) == pytest.approx((259 / 600, 3.59))
    assert (found.best_length, 0.1 < (found.best_gain or 0) < 0.3) == (3, True)
    assert "; draft length 3 would be" in found.verdict
    assert found.verdict.endswith("% faster (estimate).")
    last = state.counters.last
    assert last is not None
    for at in (NOW + 1600, NOW + 2000):
        tell(state, at, metrics=replace(last.counters))
    assert seen(state, NOW + 2000.0).per_position_basis == "lifetime"
    assert seen(state, NOW + 2000.0).per_position == pytest.approx(found.per_position)


def test_a_block_of_16_breaks_even_at_about_a_quarter() -> None:
    # marksverdhei/llama.cpp#53: "break-even point (~25 % accept at block_size=16)"; DFlash drafts one token less.
    draft = ModelOutline("dflash", LLAMA.memory, block_size=16)
    state = tell(speculating("draft-dflash", model=LLAMA, draft=draft, draft_n_max="15"), NOW - 600, gpu=GPU)
    found = seen(state)
    assert (found.asked_length, found.block_size, found.effective_length) == (15, 16, 15)
    assert (found.break_even_acceptance, found.break_even_length) == pytest.approx((0.25, 4.75), abs=0.01)
    assert "drafting a block 0.75" in found.break_even_basis
    # The published acceptance of that draft on conversations does not reach it.
    accepted = counted(state, (60, 38, 21, 11, 5, 1), steps=100, drafted=1500)
    assert "9 % accepted, about 25 % needed to pay" in seen(accepted).verdict


@pytest.mark.parametrize(
    ("log", "kind", "length", "accepted", "clamps", "words"),
    [
        ("qwen35_mtp_noisy_lv4", "draft-mtp", 3, 64 / 510, (), ""),
        ("llama_eagle3_lv4", "draft-eagle3", 4, 4 / 916, (), ""),
        ("mamba_draft75_lv4", "draft-simple", 8, 168 / 280, (), ""),
        ("ngram_mod_lv4", "ngram-mod", 16, 164 / 164, (), ""),
        ("llama_dflash_lv4", "draft-dflash", 7, 8 / 1558, ("15 asked, 7 drafted: the draft's block has 8 tokens",),
         "draft length 1 would be"),
    ],
)  # fmt: skip
def test_a_log_alone_has_type_length_and_acceptance(
    log: str, kind: str, length: int, accepted: float, clamps: tuple[str, ...], words: str
) -> None:
    found = seen(read_log(server(), log))
    assert (found.type, found.effective_length, found.clamps) == (kind, length, clamps)
    assert found.acceptance == pytest.approx(accepted)
    assert words in found.verdict


def test_in_a_chain_the_log_tells_the_types_apart_and_counters_do_not() -> None:
    state = counted(speculating("draft-mtp,ngram-mod", model=QWEN), IN_A_CHAIN, steps=60, drafted=3000)
    found = seen(state)
    assert (found.type, found.of_chain, found.best_length) == ("draft-mtp", True, None)
    own = SpeculativeStatistics("draft-mtp", 40, 30, 120, 60, acceptance_per_position=(0.75, 0.5, 0.25))
    other = SpeculativeStatistics("ngram-mod", 20, 15, 1280, 900)
    found = seen(tell(state, NOW - 1, log=LogBatch(2, facts=(other, own))))
    assert (found.of_chain, found.per_position, found.per_position_basis) == (False, (0.75, 0.5, 0.25), "lifetime")
    assert (found.acceptance, found.mean_accepted_length, found.steps) == (0.5, 2.5, 40)


def test_against_a_recorded_baseline_the_cost_is_measured() -> None:
    slot = Slot(0, False, 8192, True, speculative_types=("draft-mtp",))
    made = tell(measured(row_of(20), (baseline(),)), NOW - 1, slots=Slots((slot,)))
    picture = counted(made, (70, 50, 30), steps=100, drafted=300).picture(NOW, WALL, 300.0)
    found, paying = picture.views.drafter, picture.speedup
    assert found.break_even_basis == "measured" == paying.basis
    assert found.break_even_length == paying.break_even_length
    assert found.break_even_acceptance == paying.break_even_acceptance
    assert found.best_length is not None
    assert "about" not in found.verdict


def test_the_verdict_is_one_sentence_whatever_is_known() -> None:
    nothing = DrafterPicture(type="draft-mtp")
    assert verdict_of(nothing) == "No draft was verified yet."
    assert "does not fit" in verdict_of(replace(nothing, acceptance=0.0, steps=50))
    assert verdict_of(replace(nothing, acceptance=0.5, mean_accepted_length=2.0)) == "50 % accepted."


drafts = st.lists(st.integers(0, 1000), min_size=1, max_size=12).map(lambda found: tuple(sorted(found, reverse=True)))


@given(drafts, st.integers(1, 1000), st.sampled_from(["draft-simple", "draft-mtp", "draft-dflash", "ngram-mod"]))
def test_whatever_was_accepted_the_figures_hold_together(accepted: tuple[int, ...], steps: int, kind: str) -> None:
    accepted = tuple(min(number, steps) for number in accepted)
    state = counted(speculating(kind, model=MAMBA), accepted, steps=steps, drafted=steps * len(accepted), plain=steps)
    found = seen(state)
    assert found.acceptance is not None
    assert 0 <= found.acceptance <= 1
    assert found.best_length is None or 1 <= found.best_length <= len(accepted)
    assert found.best_gain is None or found.best_gain >= -1e-9
    assert found.break_even_acceptance is None or 0 <= found.break_even_acceptance <= 1
    assert found.verdict
    assert "\n" not in found.verdict


# Another draft length


curves = st.lists(st.floats(0, 1), min_size=1, max_size=24).map(lambda shares: survival(shares, len(shares)))


@given(curves, st.floats(1, 40), st.floats(0, 1), st.booleans(), st.booleans())
def test_the_costs_of_a_step_add_up_to_what_it_takes(
    shares: tuple[float, ...], step: float, part: float, is_block: bool, replays: bool
) -> None:
    done = replayed(shares, len(shares))
    assert (done.tokens, done.rejecting) == pytest.approx((1 + sum(shares), 1 - shares[-1])), "nothing is guessed"
    drafted = float(len(shares))
    costs = fitted(step, drafted, done, part * step, is_block=is_block, replays=replays)
    least = 1 + (done.rejecting if replays else 0)
    assert costs.of(drafted, done) == pytest.approx(max(step, least))


OFF = {600: 74.8, 500: 74.5, 400: 71.2}
SWEEP = {
    600: (115.7, 144.4, 156.0, 162.1, 159.7, 153.2),
    500: (114.9, 139.8, 152.9, 153.6, 148.8, 142.7),
    400: (108.4, 129.3, 133.8, 132.8, 127.5, 123.3),
}


@pytest.mark.parametrize("watts", OFF)
def test_a_published_sweep_is_foreseen_from_its_longest_draft_alone(watts: int) -> None:
    # RTX 5090 at three power caps, 6 tokens drafted, 53.7 % accepted; how they spread over positions was not published.
    curves = (tuple((share / 1000) ** place for place in range(1, 7)) for share in range(1000))
    shares = min(curves, key=lambda curve: abs(sum(curve) - 6 * 0.537))
    done = replayed(shares, 6)
    step = done.tokens / (SWEEP[watts][-1] / OFF[watts])
    found = speeds(shares, 6.0, fitted(step, 6.0, done, 0.0, is_block=False, replays=False))
    errors = [speed * OFF[watts] / published - 1 for speed, published in zip(found, SWEEP[watts], strict=True)]
    assert max(map(abs, errors)) < 0.085
    best = max(range(6), key=lambda place: found[place])
    assert SWEEP[watts][best] >= SWEEP[watts][-1]


def test_replays_make_a_draft_that_is_rejected_dearer() -> None:
    shares = (0.9, 0.8, 0.1, 0.0)
    plain, again = (speeds(shares, 4.0, StepCosts(verify_token=0.2, replays=replays)) for replays in (False, True))
    assert again[3] < plain[3]
    assert max(range(4), key=lambda place: again[place]) <= 1
