"""The drafter is judged position by position, against what was published and what it costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from insight.speedup_data import baseline, row_of
from insight.speedup_data import state as measured_state
from insight.views_data import LLAMA, MAMBA, NOW, QWEN, WALL, counted, idle_since, read_log, state_of
from specdash.core.log_facts import LogBatch, SpeculativeStatistics
from specdash.core.readings import Gpu, Gpus, ModelOutline, Reading, Slot, Slots, Source
from specdash.insight.picture import DrafterPicture
from specdash.insight.speculation.drafter import verdict_of
from specdash.insight.state import TargetState

FALLING = (90, 75, 60, 20, 10, 4)
"""Accepted in 100 steps at each position."""


def seen(state: TargetState, now: float = NOW) -> DrafterPicture:
    return state.picture(now, WALL, 300.0).views.drafter


def with_a_gpu(state: TargetState) -> TargetState:
    state.apply(Reading.known(Source.GPU, NOW - 600, Gpus((Gpu(0, "H100"),))))
    return state


def test_positions_are_of_the_window_and_held_from_the_start_when_it_is_empty() -> None:
    state = counted(state_of("draft-mtp", model=QWEN, draft_n_max="6"), FALLING, steps=100, drafted=600)
    found = seen(state)
    assert found.per_position == pytest.approx([number / 100 for number in FALLING])
    assert (found.per_position_basis, found.steps) == ("window", 100)
    assert (found.asked_length, found.effective_length, found.block_size) == (6, 6, None)
    assert found.acceptance == pytest.approx(259 / 600)
    assert found.mean_accepted_length == pytest.approx(3.59)
    idle_since(state, 2000.0)
    assert seen(state, NOW + 2000.0).per_position_basis == "lifetime"
    assert seen(state, NOW + 2000.0).per_position == pytest.approx(found.per_position)


def test_a_shorter_draft_is_named_with_what_it_would_gain() -> None:
    state = counted(state_of("draft-mtp", model=QWEN, draft_n_max="6"), FALLING, steps=100, drafted=600)
    found = seen(with_a_gpu(state))
    assert found.best_length == 3
    assert found.best_gain is not None
    assert 0.1 < found.best_gain < 0.3
    assert "; draft length 3 would be" in found.verdict
    assert found.verdict.endswith("% faster (estimate).")


def test_a_block_of_16_breaks_even_at_about_a_quarter() -> None:
    # marksverdhei/llama.cpp#53: "break-even point (~25 % accept at block_size=16)"; DFlash drafts one token less.
    draft = ModelOutline("dflash", LLAMA.memory, block_size=16)
    state = with_a_gpu(state_of("draft-dflash", model=LLAMA, draft=draft, draft_n_max="15"))
    found = seen(state)
    assert (found.asked_length, found.block_size, found.effective_length) == (15, 16, 15)
    assert found.break_even_acceptance == pytest.approx(0.25, abs=0.01)
    assert found.break_even_length == pytest.approx(4.75)
    assert "drafting a block 0.75" in found.break_even_basis
    # The published acceptance of that draft on conversations does not reach it.
    accepted = counted(state, (60, 38, 21, 11, 5, 1), steps=100, drafted=1500)
    assert "9 % accepted, about 25 % needed to pay" in seen(accepted).verdict


def test_what_the_engine_cut_off_is_told() -> None:
    state = state_of()
    read_log(state, "llama_dflash_lv4")
    found = seen(state)
    assert (found.type, found.asked_length, found.block_size, found.effective_length) == ("draft-dflash", 15, 8, 7)
    assert found.clamps == ("15 asked, 7 drafted: the draft's block has 8 tokens",)
    assert found.acceptance == pytest.approx(8 / 1558)
    assert "draft length 1 would be" in found.verdict


def test_in_a_chain_the_log_tells_the_types_apart() -> None:
    state = counted(state_of("draft-mtp,ngram-mod", model=QWEN), (50, *(30,) * 63), steps=60, drafted=3000)
    own = SpeculativeStatistics("draft-mtp", 40, 30, 120, 60, acceptance_per_position=(0.75, 0.5, 0.25))
    other = SpeculativeStatistics("ngram-mod", 20, 15, 1280, 900)
    state.apply(Reading.known(Source.LOG, NOW - 1, LogBatch(2, facts=(other, own))))
    found = seen(state)
    assert (found.of_chain, found.per_position, found.per_position_basis) == (False, (0.75, 0.5, 0.25), "lifetime")
    assert (found.acceptance, found.mean_accepted_length, found.steps) == (0.5, 2.5, 40)


@pytest.mark.parametrize(
    ("log", "kind", "length", "accepted"),
    [
        ("qwen35_mtp_noisy_lv4", "draft-mtp", 3, 64 / 510),
        ("llama_eagle3_lv4", "draft-eagle3", 4, 4 / 916),
        ("mamba_draft75_lv4", "draft-simple", 8, 168 / 280),
        ("ngram_mod_lv4", "ngram-mod", 16, 164 / 164),
    ],
)
def test_a_log_alone_tells_type_length_and_acceptance(log: str, kind: str, length: int, accepted: float) -> None:
    state = state_of()
    read_log(state, log)
    found = seen(state)
    assert (found.type, found.effective_length) == (kind, length)
    assert found.acceptance == pytest.approx(accepted)


def test_nor_from_a_chain_whose_types_nobody_tells_apart() -> None:
    state = counted(state_of("draft-mtp,ngram-mod", model=QWEN), (50, *(30,) * 63), steps=60, drafted=3000)
    found = seen(state)
    assert (found.type, found.of_chain, found.best_length) == ("draft-mtp", True, None)


def test_against_a_recorded_baseline_the_cost_is_measured() -> None:
    made = measured_state(row_of(20), (baseline(),))
    slot = Slot(0, False, 8192, True, speculative_types=("draft-mtp",))
    made.apply(Reading.known(Source.SLOTS, NOW - 1, Slots((slot,))))
    picture = counted(made, (70, 50, 30), steps=100, drafted=300).picture(NOW, WALL, 300.0)
    found, paying = picture.views.drafter, picture.speedup
    assert found.break_even_basis == "measured" == paying.basis
    assert (found.break_even_length, found.break_even_acceptance) == (
        paying.break_even_length,
        paying.break_even_acceptance,
    )
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
    state = counted(state_of(kind, model=MAMBA), accepted, steps=steps, drafted=steps * len(accepted), plain=steps)
    found = seen(state)
    assert found.acceptance is not None
    assert 0 <= found.acceptance <= 1
    assert found.best_length is None or 1 <= found.best_length <= len(accepted)
    assert found.best_gain is None or found.best_gain >= -1e-9
    assert found.break_even_acceptance is None or 0 <= found.break_even_acceptance <= 1
    assert found.verdict
    assert "\n" not in found.verdict
