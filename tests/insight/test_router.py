"""Which of a router's models is watched, and which a request that names none gets."""

import pytest
from msgspec.structs import replace

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


def state(*models: RouterModel, watched: str | None = None) -> TargetState:
    router = TargetState(Target("http://x", model=watched), wall_offset=lambda: WALL - NOW)
    router.apply(Reading.known(Source.PROPS, NOW, Props(role="router", build_info="b11434")))
    router.apply(Reading.known(Source.ROUTER, NOW, RouterModels(models or MODELS)))
    return router


@pytest.mark.parametrize(("named", "watched"), [("large", ["large"]), ("tiny", ["small"]), ("gone", []), (None, [])])
def test_the_model_that_is_watched_is_the_one_named_by_its_id_or_an_alias(
    named: str | None, watched: list[str]
) -> None:
    picture = derive(state(watched=named), NOW, WALL)
    assert [model.id for model in picture.models if model.watched] == watched


def test_a_request_that_names_no_model_gets_the_resident_one_used_last() -> None:
    router = state()
    picture = derive(router, NOW, WALL)
    assert picture.any_means == "large"
    assert [model.last_used_age_s for model in picture.models] == [60.0, 5.0, None]
    router.apply(Reading.unknown(Source.ROUTER, NOW, FailureKind.NOT_FOUND, "no /models"))
    assert derive(router, NOW, WALL).reason == "no /models"


A = RouterModel("a", ModelStatus.UNLOADED, spec_types=())


@pytest.mark.parametrize(
    ("models", "reason", "words"),
    [
        ((A,), "the first request for one loads it", ["unloaded"]),
        (
            (replace(A, status=ModelStatus.LOADING), RouterModel("b", ModelStatus.FAILED, exit_code=139)),
            "a: loading; b: failed (exit code 139)",
            ["loading", "failed (exit code 139)"],
        ),
        ((replace(A, status=ModelStatus.DOWNLOADING),), "a: downloading", ["downloading"]),
        ((replace(A, never_loaded=True),), "the first request for one loads it", ["never loaded"]),
    ],
)
def test_a_router_that_holds_no_model_is_live_and_names_which_one_comes_or_failed(
    models: tuple[RouterModel, ...], reason: str, words: list[str]
) -> None:
    router = state(*models)
    router.retarget(Target("http://x", engine="llama.cpp", pid=7))
    for source in (Source.METRICS, Source.SLOTS):
        router.apply(Reading.unknown(source, NOW, FailureKind.NO_MODEL, "model name is missing from the request"))
    router.apply(Reading.known(Source.HEALTH, NOW, Health(HealthStatus.OK)))
    picture = router.picture(NOW, WALL)
    assert picture.backend.state == "live"
    assert picture.backend.reason == f"a router without a model in memory; {reason}"
    assert [model.words for model in picture.views.router.models] == words
    assert picture.views.drafting.state == "unknown"
