"""What taking rejected tokens back costs is told from what the server did, and says from what."""

import pytest

from insight.views_data import LLAMA, MAMBA, NOW, QWEN, WALL, counted, read_log, state_of
from specdash.core.log_facts import LogBatch, ServerEvent
from specdash.core.readings import ModelOutline, Reading, Slot, Slots, Source
from specdash.core.speculation import MemoryKind, Rollback
from specdash.insight.picture import CheckpointsPicture
from specdash.insight.state import TargetState


def seen(state: TargetState, now: float = NOW, window_s: float = 300.0) -> CheckpointsPicture:
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
def test_the_models_memory_and_the_type_say_how_tokens_are_taken_back(
    types: str, model: ModelOutline, way: Rollback, because: str
) -> None:
    found = seen(state_of(types, model=model))
    assert (found.memory, found.rollback, found.because) == (model.memory, way, because)


def test_what_the_server_does_overrules_what_its_model_is_taken_for() -> None:
    state = state_of("draft-simple", model=LLAMA)
    read_log(state, "mamba_draft75_lv3_trace1")
    assert (seen(state).rollback, seen(state).because) == (Rollback.CHECKPOINT, "the log shows restores and replays")


def test_a_server_that_does_not_speculate_takes_nothing_back() -> None:
    state = state_of("draft-simple", model=MAMBA)
    state.apply(Reading.known(Source.SLOTS, NOW - 1, Slots((Slot(0, False, 4096, False),))))
    assert (seen(state).rollback, seen(state).because) == (None, "it does not speculate")
    assert seen(state).memory is MemoryKind.RECURRENT


class TestATracedServer:
    """18 steps and 18 replays for two requests of 60 tokens: n_decode_total counted 19 decode calls each."""

    def test_tells_what_each_decode_call_brought(self) -> None:
        state = state_of("draft-simple", model=MAMBA)
        read_log(state, "mamba_draft75_lv3_trace1")
        found = seen(state)
        assert (found.basis, found.steps, found.replays, found.replayed_tokens) == ("trace", 18, 18, 98)
        assert found.mean_accepted_length == pytest.approx(5.44, abs=0.005)
        # Two calls brought one token each without a draft, and left no trace.
        assert found.effective_length == pytest.approx((2 * 59 - 2) / (2 * 19 - 2))
        assert "not the 5.4 that the server prints" in found.verdict

    def test_times_its_replays_by_the_time_stamps(self) -> None:
        state = state_of("draft-simple", model=MAMBA)
        read_log(state, "mamba_draft75_lv3_trace1")
        found = seen(state)
        assert found.lost_s == pytest.approx(0.0547, abs=0.0005)
        assert found.lost_share == pytest.approx(0.334, abs=0.002)
        # The server timed 169.2 ms of decode; the trace leaves out the two calls without a draft.
        assert found.lost_s is not None
        assert found.lost_share is not None
        assert found.lost_s / found.lost_share == pytest.approx(0.1692, rel=0.05)

    def test_of_which_the_window_has_nothing_shows_what_was_since_the_start(self) -> None:
        state = state_of("draft-simple", model=MAMBA)
        read_log(state, "mamba_draft75_lv3_trace1", at=NOW - 1000)
        found = seen(state)
        assert found.held
        assert (found.steps, found.replays) == (18, 18) == (found.lifetime.steps, found.lifetime.replays)
        assert not seen(state, window_s=2000).held


def test_the_counters_tell_nearly_the_same_without_a_trace() -> None:
    state = counted(state_of("draft-simple", model=MAMBA), (16, 16, 12, 12, 12, 12), steps=18, drafted=144, plain=22)
    found = seen(state)
    assert (found.basis, found.steps, found.replays, found.replayed_tokens) == ("counters", 18, 18, None)
    assert found.effective_length == pytest.approx(120 / 40)
    assert found.lost_share == pytest.approx(18 / 40)
    assert "at most 45 %" in found.verdict


def test_the_log_counts_checkpoints_at_verbosity_5() -> None:
    state = state_of(model=MAMBA)
    read_log(state, "mamba_draft75_lv5")
    found = seen(state)
    assert (found.speculative.created, found.speculative.restored) == (18, 18)
    assert found.speculative.size_mib == pytest.approx(0.037)
    assert (found.context.created, found.context.restored, found.context.erased) == (2, 1, 1)
    assert found.context.size_mib == pytest.approx(0.096)


def test_a_model_that_cuts_its_cache_loses_nothing() -> None:
    found = seen(counted(state_of("draft-simple", model=LLAMA), (9, 5, 1), steps=10, drafted=30, plain=1))
    assert (found.replays, found.replayed_tokens, found.lost_s, found.lost_share) == (0, 0, 0.0, 0.0)
    assert found.verdict == "Rejected tokens are cut from the KV cache, which costs nothing."


def test_of_an_n_gram_type_the_counters_cannot_tell_replays_from_steps_without_a_draft() -> None:
    found = seen(counted(state_of("ngram-mod", model=MAMBA), (3, 3), steps=3, drafted=48, plain=60))
    assert (found.replays, found.lost_share) == (0, None)
    assert found.effective_length == pytest.approx(69 / 63)
    assert "LLAMA_TRACE=1" in found.verdict


def test_a_new_server_counts_anew() -> None:
    state = state_of("draft-simple", model=MAMBA)
    read_log(state, "mamba_draft75_lv5")
    state.apply(Reading.known(Source.LOG, NOW, LogBatch(1, facts=(ServerEvent("server_starting"),), restarted=True)))
    found = seen(state, NOW + 1)
    assert (found.context.created, found.speculative.created, found.steps) == (0, 0, 0)
