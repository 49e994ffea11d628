"""Comparing the texts of a chosen point with those without drafts, on scripted servers."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from specdash.bench.load.samples import BootFailedError, EngineAddress
from specdash.tune.model.problem import Point
from specdash.tune.run.loop import TextCheck
from support.scripted_llama import Behaviour, ScriptedLlama

POINT = Point(("draft-simple",), n_max=4)
PLAIN = Behaviour(speculative=False)


@dataclass
class Servers:
    """A bed of two servers: one without drafts, and one that behaves as a test says."""

    drafting: Behaviour
    fails: bool = False
    boots: list[str] = field(default_factory=list)

    @contextmanager
    def boot(self, configuration: Mapping[str, str]) -> Iterator[EngineAddress]:
        self.boots.append(configuration["point"])
        if self.fails:
            raise BootFailedError("it does not come up")
        with ScriptedLlama(PLAIN if configuration["point"] == "none" else self.drafting) as server:
            yield EngineAddress(server.url)

    def announce(self, number: int | None, planned: int | None = None) -> None:
        """Nobody watches."""

    def restore(self) -> None:
        """Nothing to restore."""


def check(bed: Servers) -> tuple[bool | None, str]:
    found = TextCheck(bed, lambda point: {"point": point.name}, tokens=32)(POINT, lambda _: None)
    return found.same, found.words


def test_the_same_texts_take_two_boots() -> None:
    bed = Servers(Behaviour())
    same, words = check(bed)
    assert same is True
    assert words.endswith("answers compared with those without drafts: identical")
    assert bed.boots == ["none", POINT.name]


def test_near_ties_are_let_pass_and_the_one_without_drafts_is_asked_about_them() -> None:
    bed = Servers(Behaviour(flips=True))
    same, words = check(bed)
    assert same is True
    assert "near ties" in words
    assert bed.boots[:3] == ["none", POINT.name, "none"]


def test_a_token_that_nothing_explains_is_damage() -> None:
    same, words = check(Servers(Behaviour(wrong_at=5)))
    assert same is False
    assert "DAMAGED: " in words


@pytest.mark.parametrize("bed", [Servers(Behaviour(), fails=True), Servers(Behaviour(fails_from=3))])
def test_what_cannot_be_compared_is_unknown_with_the_reason(bed: Servers) -> None:
    same, words = check(bed)
    assert same is None
    assert words.startswith("could not be compared: ")
