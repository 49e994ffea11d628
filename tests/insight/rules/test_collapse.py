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


def some(
    count: int, rate: float, dice: random.Random, *, prompt: int = 500, work: RequestPurpose | None = None
) -> list[ServedRequest]:
    """Requests whose acceptance scatters about `rate`, more than a coin's would, as real ones do."""
    found = []
    for _ in range(count):
        drafted, own = dice.randint(20, 400), min(1.0, max(0.0, dice.gauss(rate, 0.1)))
        found.append(of(prompt, drafted, sum(dice.random() < own for _ in range(drafted)), work))
    return found


def is_collapse(recent: list[ServedRequest], before: list[ServedRequest]) -> bool:
    found = compare(recent, before)
    return found is not None and found.sigma >= SIGMA and found.acceptance <= SHARE * found.expected


def test_acceptance_that_falls_to_a_third_is_a_collapse_nearly_always() -> None:
    dice = random.Random(1)
    assert sum(is_collapse(some(12, 0.2, dice), some(40, 0.65, dice)) for _ in range(100)) >= 99


@pytest.mark.parametrize("rate", [0.15, 0.4, 0.7, 0.95])
def test_acceptance_that_only_scatters_is_none(rate: float) -> None:
    dice = random.Random(2)
    assert not any(is_collapse(some(12, rate, dice), some(24, rate, dice)) for _ in range(300))


def test_another_mix_of_work_is_none() -> None:
    dice, tools, chat = random.Random(3), RequestPurpose.TOOL_CALL, RequestPurpose.CHAT
    before = some(60, 0.9, dice, work=tools) + some(6, 0.35, dice, work=chat)
    assert not is_collapse(some(12, 0.35, dice, work=chat), before), "prose after tool calls"
    assert is_collapse(some(12, 0.1, dice, work=tools), before)
    before = some(60, 0.9, dice) + some(8, 0.3, dice, prompt=30_000)
    assert not is_collapse(some(12, 0.3, dice, prompt=30_000), before), "long contexts after short ones"
    assert compare(some(12, 0.1, dice, prompt=90_000), before) is None, "work never seen before"


def test_what_all_is_alike_has_no_spread_and_is_none() -> None:
    found = compare([of(500, 100, 60)] * 12, [of(500, 100, 60)] * 24)
    assert found is not None
    assert (found.sigma, found.acceptance, found.expected) == (0.0, 0.6, 0.6)
