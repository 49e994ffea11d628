"""Boots against the start: paired by prompt, and no surer than prompts and boots allow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.tune.model.gains import boot_noise, gains
from specdash.tune.model.problem import BootResult, Point, PromptResult, TuneOutcome, WorkloadShares

START, OTHER = Point(("draft-simple",), n_max=4), Point(("draft-simple",), n_max=8)
WORKLOAD = WorkloadShares((("coding", 0.5), ("prose", 0.5)))


def boot(point: Point, factor: float = 1.0, spread: float = 0.0, failure: str = "") -> BootResult:
    """Six prompts of two classes; `factor` is its speed, `spread` how differently the prompts take to it."""
    prompts = tuple(
        PromptResult(f"{kind}{i}", kind, 100, base / (factor * (1 + spread * (i - 1))))
        for kind, base in (("coding", 1.0), ("prose", 2.0))
        for i in range(3)
    )
    return BootResult(point, () if failure else prompts, failure=failure)


@given(st.floats(0.2, 5.0))
def test_the_gain_is_the_ratio_of_speeds(factor: float) -> None:
    start, other = gains([boot(START), boot(OTHER, factor)], START, WORKLOAD)
    assert start is None
    assert other is not None
    assert other.gain == pytest.approx(factor - 1, abs=1e-9)
    assert other.low == pytest.approx(other.gain, abs=1e-6)


def test_prompts_that_gain_differently_make_it_less_sure() -> None:
    even, uneven = (gains([boot(START), boot(OTHER, 1.1, spread)], START, WORKLOAD)[1] for spread in (0.0, 0.2))
    assert even is not None
    assert uneven is not None
    assert uneven.low is not None
    assert uneven.high is not None
    assert uneven.low < uneven.gain < uneven.high
    assert uneven.high - uneven.low > 0.05


def test_noise_from_boot_to_boot_makes_it_less_sure() -> None:
    boots = [boot(START, 0.97), boot(START, 1.03), boot(OTHER, 1.05)]
    assert boot_noise(boots[1:], WORKLOAD) == (None, 0)
    assert boot_noise(boots, WORKLOAD)[0] == pytest.approx(0.0424, abs=0.001)
    found = gains(boots, START, WORKLOAD)[2]
    assert found is not None
    assert found.low is not None
    assert found.low < 0.0 < found.gain


def test_what_cannot_be_compared_has_no_gain() -> None:
    assert gains([boot(OTHER)], START, WORKLOAD) == [None]
    assert gains([boot(START), boot(OTHER, failure="out of memory")], START, WORKLOAD) == [None, None]
    assert gains([boot(START), BootResult(OTHER, boot(OTHER).prompts[:3])], START, WORKLOAD) == [None, None]


def test_a_class_with_one_prompt_has_a_gain_without_an_interval() -> None:
    few = [
        BootResult(boot_result.point, (*boot_result.prompts[:3], boot_result.prompts[5]))
        for boot_result in (boot(START), boot(OTHER, 1.2))
    ]
    found = gains(few, START, WORKLOAD)[1]
    assert found is not None
    assert found.gain == pytest.approx(0.2)
    assert found.low is None


def test_noise_that_is_not_known_is_not_0() -> None:
    assert TuneOutcome(Point(), False, noise=0.0123).noise_words == "1.2 %"
    assert TuneOutcome(Point(), False).noise_words == "--"
