"""What taking rejected tokens back costs is known from what the server did, and it is shown from what."""

import pytest

from insight.scenes import LLAMA, MAMBA, NOW, QWEN, WALL, counted, read_log, speculating, tell
from specdash.core.log_facts import LogBatch, ServerEvent
from specdash.core.readings import ModelOutline, Slot, Slots
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
def test_the_models_memory_and_the_type_decide_how_tokens_are_taken_back(
    types: str, model: ModelOutline, way: Rollback, because: str
) -> None:
    found = seen(speculating(types, model=model))
    assert (found.memory, found.rollback, found.because) == (model.memory, way, because)


def test_what_the_server_does_overrules_both() -> None:
    found = seen(read_log(speculating("draft-simple", model=LLAMA), "mamba_draft75_lv3_trace1"))
    assert (found.rollback, found.because) == (Rollback.CHECKPOINT, "the log shows restores and replays")
    off = Slots((Slot(0, False, 4096, False),))
    found = seen(tell(speculating("draft-simple", model=MAMBA), NOW - 1, slots=off))
    assert (found.rollback, found.because) == (None, "it does not speculate")
    assert found.memory is MemoryKind.RECURRENT


def test_a_trace_shows_what_each_decode_call_brought_and_what_replays_cost() -> None:
    """18 steps and 18 replays for two requests of 60 tokens: n_decode_total counted 19 decode calls each."""
    found = seen(read_log(speculating("draft-simple", model=MAMBA), "mamba_draft75_lv3_trace1"))
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
    found = seen(state)
    assert (found.held, found.steps, found.replays) == (True, 18, 18)
    assert (found.lifetime.steps, found.lifetime.replays) == (18, 18)
    assert not seen(state, window_s=2000).held


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
    found = seen(state)
    assert (found.basis, found.replays, found.lost_share) == ("counters", replays, lost_share)
    assert found.effective_length == pytest.approx(length)
    assert words in found.verdict


def test_the_log_counts_checkpoints_at_verbosity_5_and_those_of_a_new_server_from_zero() -> None:
    state = read_log(speculating("draft-simple", model=MAMBA), "mamba_draft75_lv5")
    found = seen(state)
    assert (found.speculative.created, found.speculative.restored) == (18, 18)
    assert (found.context.created, found.context.restored, found.context.erased) == (2, 1, 1)
    assert (found.speculative.size_mib, found.context.size_mib) == pytest.approx((0.037, 0.096), rel=0.02)
    tell(state, NOW, log=LogBatch(1, facts=(ServerEvent("server_starting"),), restarted=True))
    found = seen(state, NOW + 1)
    assert (found.context.created, found.speculative.created, found.steps) == (0, 0, 0)
