"""Which of a router's models is watched, and which a request that names none gets."""

from __future__ import annotations

import pytest

from specdash.core.readings import FailureKind, ModelStatus, Reading, RouterModel, RouterModels, Source
from specdash.core.target import Target
from specdash.insight.router import derive
from specdash.insight.state import TargetState

NOW, WALL = 1000.0, 1_800_000_000.0
MODELS = (
    RouterModel("small", ModelStatus.LOADED, ("tiny",), last_used=WALL - 60),
    RouterModel("large", ModelStatus.LOADED, last_used=WALL - 5),
    RouterModel("other", ModelStatus.UNLOADED),
)


def state(model: str | None) -> TargetState:
    told = TargetState(Target("http://x", model=model), wall_offset=lambda: WALL - NOW)
    told.apply(Reading.known(Source.ROUTER, NOW, RouterModels(MODELS)))
    return told


@pytest.mark.parametrize(("named", "watched"), [("large", ["large"]), ("tiny", ["small"]), ("gone", []), (None, [])])
def test_the_model_that_is_watched_is_the_one_named_by_its_id_or_an_alias(
    named: str | None, watched: list[str]
) -> None:
    picture = derive(state(named), NOW, WALL)
    assert [model.id for model in picture.models if model.watched] == watched


def test_a_request_that_names_no_model_gets_the_resident_one_used_last() -> None:
    picture = derive(state(None), NOW, WALL)
    assert picture.any_means == "large"
    assert [model.last_used_age_s for model in picture.models] == [60.0, 5.0, None]


def test_a_list_that_cannot_be_had_says_why() -> None:
    told = state(None)
    told.apply(Reading.unknown(Source.ROUTER, NOW, FailureKind.NOT_FOUND, "no /models"))
    assert derive(told, NOW, WALL).reason == "no /models"
