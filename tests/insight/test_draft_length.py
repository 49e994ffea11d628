"""Another draft length is judged by replaying what was accepted, within what can be known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.insight.speculation.drafter import StepCosts, fitted, replayed, speeds, survival

VLLM = (0.762, 0.616, 0.513, 0.424, 0.364, 0.309, 0.272, 0.237)
"""vllm-project/vllm#48892: MTP, GSM8K, drafts of 8 tokens."""
curves = st.lists(st.floats(0, 1), min_size=1, max_size=24).map(lambda shares: survival(shares, len(shares)))


@given(curves)
def test_at_the_present_length_nothing_is_guessed(shares: tuple[float, ...]) -> None:
    now = replayed(shares, len(shares))
    assert now.tokens == pytest.approx(1 + sum(shares))
    assert now.rejecting == pytest.approx(1 - shares[-1])


@given(st.floats(0.05, 0.95), st.integers(1, 12), st.data())
def test_where_every_token_is_as_likely_shorter_drafts_follow_the_published_formula(
    alpha: float, longest: int, data: st.DataObject
) -> None:
    # Leviathan et al. 2023: (1 - a^(n+1)) / (1 - a) tokens a step.
    length = data.draw(st.integers(1, longest))
    shares = tuple(alpha**place for place in range(1, longest + 1))
    assert replayed(shares, length).tokens == pytest.approx((1 - alpha ** (length + 1)) / (1 - alpha), rel=0.05)


def test_what_a_published_curve_says_of_one_token_is_nearer_than_its_first_position() -> None:
    # vllm#48892: with 8 tokens the first is accepted 0.762 of the time, drafted alone 0.834.
    assert replayed(VLLM, 1).tokens == pytest.approx(1.834, rel=0.015)
    assert VLLM[0] + 1 < 1.834 * 0.965


@given(curves, st.floats(1, 40), st.floats(0, 1), st.booleans(), st.booleans())
def test_the_costs_of_a_step_add_up_to_what_it_takes(
    shares: tuple[float, ...], step: float, part: float, is_block: bool, replays: bool
) -> None:
    done = replayed(shares, len(shares))
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
def test_a_published_sweep_is_foretold_from_its_longest_draft_alone(watts: int) -> None:
    # RTX 5090 at three power caps, 6 tokens drafted, 53.7 % accepted; how they spread over positions was not published.
    alpha = _alpha(6 * 0.537, 6)
    shares = tuple(alpha**place for place in range(1, 7))
    done = replayed(shares, 6)
    step = done.tokens / (SWEEP[watts][-1] / OFF[watts])
    found = speeds(shares, 6.0, fitted(step, 6.0, done, 0.0, is_block=False, replays=False))
    errors = [speed * OFF[watts] / told - 1 for speed, told in zip(found, SWEEP[watts], strict=True)]
    assert max(map(abs, errors)) < 0.085
    best = max(range(6), key=lambda place: found[place])
    assert SWEEP[watts][best] >= SWEEP[watts][-1]


def _alpha(accepted: float, length: int) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**n for n in range(1, length + 1)) < accepted else (low, middle)
    return low


def test_replays_make_a_draft_that_is_rejected_dearer() -> None:
    shares = (0.9, 0.8, 0.1, 0.0)
    plain = speeds(shares, 4.0, StepCosts(verify_token=0.2))
    again = speeds(shares, 4.0, StepCosts(verify_token=0.2, replays=True))
    assert again[3] < plain[3]
    assert max(range(4), key=lambda place: again[place]) <= 1
