"""The past that rules look at: an hour, finer where it is young, small where nothing changes, and true about growth."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from specdash.insight.picture import BackendState
from specdash.insight.rules.scene import COARSE_S, FINE_S, KEEP_S, PictureHistory, PictureSample

LIVE, DOWN, LOADING = BackendState.LIVE, BackendState.DOWN, BackendState.LOADING


def past(seconds: int, every: float = 1.0) -> PictureHistory:
    kept = PictureHistory()
    for step in range(int(seconds / every)):
        kept.add(PictureSample(step * every, LIVE, totals={"decode_calls": float(step)}))
    return kept


def test_an_hour_is_kept_every_second_of_the_last_quarter() -> None:
    kept = past(3 * 3600)
    assert kept.last is not None
    samples = kept.since(float("-inf"))
    assert kept.last.at - samples[0].at <= KEEP_S + 70
    gaps = [later.at - earlier.at for earlier, later in pairwise(samples)]
    young = [gap for gap, sample in zip(gaps, samples[1:], strict=False) if sample.at >= kept.last.at - FINE_S + 70]
    assert set(young) == {1.0}
    assert max(gaps) == COARSE_S
    assert len(kept) < 1300


def test_looks_closer_than_a_second_share_a_sample() -> None:
    assert len(past(100, every=0.1)) <= 125


def test_growth_is_what_the_totals_say_thinned_or_not() -> None:
    kept = past(3600)
    assert kept.growth("decode_calls", 60.0) == 60.0
    thinned = kept.growth("decode_calls", 3000.0)
    assert thinned is not None
    assert 3000.0 - COARSE_S < thinned <= 3000.0
    assert kept.growth("unheard_of", 60.0) is None


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
    samples = kept.since(float("-inf"))
    assert [sample.at for sample in samples] == sorted({sample.at for sample in samples})
    seen = [
        sample.state
        for index, sample in enumerate(samples)
        if not index or samples[index - 1].state is not sample.state
    ]
    assert changes[len(changes) - len(seen) :] == seen
