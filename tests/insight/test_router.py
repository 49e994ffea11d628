"""Which of a router's models is watched, and which a request that names none gets."""

import pytest

from specdash.core.readings import (
    FailureKind,
    Health,
    HealthStatus,
    ModelStatus,
    Props,
    Reading,
    RouterModel,
    RouterModels,
    Source,
)
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


def without_a_model(*models: RouterModel) -> TargetState:
    """A router that holds none of these, which answers for itself and for no model."""
    told = TargetState(Target("http://x"), wall_offset=lambda: WALL - NOW)
    told.apply(Reading.known(Source.PROPS, NOW, Props(role="router", build_info="b11434")))
    told.apply(Reading.known(Source.ROUTER, NOW, RouterModels(models)))
    for source in (Source.METRICS, Source.SLOTS):
        told.apply(Reading.unknown(source, NOW, FailureKind.NO_MODEL, "model name is missing from the request"))
    told.apply(Reading.known(Source.HEALTH, NOW, Health(HealthStatus.OK)))
    return told


@pytest.mark.parametrize(
    ("models", "reason"),
    [
        ((RouterModel("a", ModelStatus.UNLOADED),), "the first request for one loads it"),
        (
            (RouterModel("a", ModelStatus.LOADING), RouterModel("b", ModelStatus.FAILED, exit_code=139)),
            "a: loading; b: failed (exit code 139)",
        ),
        ((RouterModel("a", ModelStatus.DOWNLOADING),), "a: downloading"),
    ],
)
def test_a_router_that_holds_no_model_is_live_and_says_which_one_comes_or_failed(
    models: tuple[RouterModel, ...], reason: str
) -> None:
    backend = without_a_model(*models).picture(NOW, WALL).backend
    assert backend.state == "live"
    assert backend.reason == f"a router without a model in memory; {reason}"


def test_whether_a_router_drafts_is_not_known_while_it_holds_no_model() -> None:
    told = without_a_model(RouterModel("a", ModelStatus.UNLOADED, spec_types=()))
    told.retarget(Target("http://x", engine="llama.cpp", pid=7))
    assert told.picture(NOW, WALL).views.drafting.state == "unknown"


def test_the_picture_of_a_model_has_its_state_in_full() -> None:
    told = without_a_model(
        RouterModel("a", ModelStatus.UNLOADED, never_loaded=True), RouterModel("b", ModelStatus.FAILED)
    )
    assert [(model.status, model.words) for model in derive(told, NOW, WALL).models] == [
        ("unloaded", "never loaded"),
        ("failed", "failed"),
    ]
