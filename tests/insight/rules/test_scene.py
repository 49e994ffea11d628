"""The past that rules look at: a quarter of an hour, one sample a second, and true about growth."""

from hypothesis import given
from hypothesis import strategies as st

from specdash.insight.picture import BackendState
from specdash.insight.rules.scene import KEEP_S, PictureHistory, PictureSample

LIVE, DOWN, LOADING = BackendState.LIVE, BackendState.DOWN, BackendState.LOADING


def past(seconds: int, every: float = 1.0) -> PictureHistory:
    kept = PictureHistory()
    for step in range(int(seconds / every)):
        kept.add(PictureSample(step * every, LIVE, live={"steps": int(step * every)}))
    return kept


def test_a_quarter_of_an_hour_is_kept_and_a_state_lasts_longer() -> None:
    kept = past(3600)
    samples = kept.since(0.0)
    assert samples[-1].at - samples[0].at == KEEP_S
    assert len(kept) == KEEP_S + 1
    assert kept.lasting(LIVE) == 3599.0
    assert kept.lasting(DOWN) is None


def test_looks_closer_than_a_second_share_a_sample() -> None:
    assert len(past(100, every=0.1)) <= 125


def test_growth_is_what_the_totals_say() -> None:
    kept = past(3600)
    assert kept.grown("live", "steps", 60.0) == 60.0
    assert kept.grown("live", "unheard_of", 60.0) == 0.0


@given(st.lists(st.tuples(st.sampled_from((0.1, 0.5, 1.0, 5.0, 400.0)), st.sampled_from((LIVE, DOWN, LOADING)))))
def test_times_rise_the_last_is_the_last_and_no_change_of_state_is_lost(
    steps: list[tuple[float, BackendState]],
) -> None:
    kept, at = PictureHistory(), 0.0
    changes: list[BackendState] = []
    for pause, state in steps:
        at += pause
        kept.add(PictureSample(at, state))
        assert kept.last is not None
        assert (kept.last.at, kept.last.state) == (at, state)
        if not changes or changes[-1] is not state:
            changes.append(state)
    samples = kept.since(0.0)
    assert [sample.at for sample in samples] == sorted({sample.at for sample in samples})
    seen = [
        sample.state
        for index, sample in enumerate(samples)
        if not index or samples[index - 1].state is not sample.state
    ]
    assert changes[len(changes) - len(seen) :] == seen
