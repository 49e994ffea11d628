"""Acceptance is compared with earlier requests of the same kind: a collapse is found, another mix of work is none."""

import random

import pytest

from specdash.insight.request import RequestPurpose, ServedRequest
from specdash.insight.rules.speculation import compare

SIGMA, SHARE = 3.5, 0.6


def of(prompt: int, drafted: int, accepted: int, purpose: RequestPurpose | None = None) -> ServedRequest:
    return ServedRequest(
        prompt_total_tokens=prompt,
        prompt_cached=0,
        decode_tokens=100,
        draft_generated=drafted,
        draft_accepted=accepted,
        purpose=purpose,
    )


def request(
    rate: float, dice: random.Random, *, prompt: int = 500, work: RequestPurpose | None = None
) -> ServedRequest:
    """A request whose acceptance scatters about `rate`, more than a coin's would, as real ones do."""
    drafted = dice.randint(20, 400)
    own = min(1.0, max(0.0, dice.gauss(rate, 0.1)))
    accepted = sum(dice.random() < own for _ in range(drafted))
    return of(prompt, drafted, accepted, work)


def is_collapse(recent: list[ServedRequest], before: list[ServedRequest]) -> bool:
    found = compare(recent, before)
    return found is not None and found.sigma >= SIGMA and found.acceptance <= SHARE * found.expected


def test_acceptance_that_falls_to_a_third_is_a_collapse_nearly_always() -> None:
    dice = random.Random(1)
    found = [
        is_collapse([request(0.2, dice) for _ in range(12)], [request(0.65, dice) for _ in range(40)])
        for _ in range(100)
    ]
    assert sum(found) >= 99


@pytest.mark.parametrize("rate", [0.15, 0.4, 0.7, 0.95])
def test_acceptance_that_only_scatters_is_none(rate: float) -> None:
    dice = random.Random(2)
    found = [
        is_collapse([request(rate, dice) for _ in range(12)], [request(rate, dice) for _ in range(24)])
        for _ in range(300)
    ]
    assert not any(found)


def test_prose_after_tool_calls_is_none_though_less_is_accepted() -> None:
    dice = random.Random(3)
    before = [request(0.9, dice, work=RequestPurpose.TOOL_CALL) for _ in range(60)]
    before += [request(0.35, dice, work=RequestPurpose.CHAT) for _ in range(6)]
    recent = [request(0.35, dice, work=RequestPurpose.CHAT) for _ in range(12)]
    assert not is_collapse(recent, before)
    assert is_collapse([request(0.1, dice, work=RequestPurpose.TOOL_CALL) for _ in range(12)], before)


def test_long_contexts_after_short_ones_are_none() -> None:
    dice = random.Random(4)
    before = [request(0.9, dice) for _ in range(60)] + [request(0.3, dice, prompt=30_000) for _ in range(8)]
    assert not is_collapse([request(0.3, dice, prompt=30_000) for _ in range(12)], before)


def test_work_never_seen_before_cannot_be_compared() -> None:
    dice = random.Random(5)
    before = [request(0.9, dice) for _ in range(60)]
    assert compare([request(0.1, dice, prompt=90_000) for _ in range(12)], before) is None


def test_what_all_is_alike_has_no_spread_and_is_none() -> None:
    same = of(500, 100, 60)
    found = compare([same] * 12, [same] * 24)
    assert found is not None
    assert (found.sigma, found.acceptance, found.expected) == (0.0, 0.6, 0.6)
