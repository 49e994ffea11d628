"""Which of a router's models is watched, and which a request that names none gets."""

import pytest
from msgspec.structs import replace

from insight.scenes import NOW, OK, WALL, server, tell
from specdash.core.readings import FailureKind, ModelStatus, Props, RouterModel, RouterModels
from specdash.core.target import Target
from specdash.insight.router import derive
from specdash.insight.state import TargetState

MODELS = (
    RouterModel("small", ModelStatus.LOADED, ("tiny",), last_used=WALL - 60),
    RouterModel("large", ModelStatus.LOADED, last_used=WALL - 5),
    RouterModel("other", ModelStatus.UNLOADED),
)


def state(*models: RouterModel, watched: str | None = None) -> TargetState:
    props = Props(role="router", build_info="b11434")
    return tell(server(model=watched), NOW, props=props, router=RouterModels(models or MODELS))


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
    tell(router, NOW, router=(FailureKind.NOT_FOUND, "no /models"))
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
    tell(router, NOW, metrics=FailureKind.NO_MODEL, slots=FailureKind.NO_MODEL, health=OK)
    picture = router.picture(NOW, WALL)
    assert picture.backend.state == "live"
    assert picture.backend.reason == f"a router without a model in memory; {reason}"
    assert [model.words for model in picture.views.router.models] == words
    assert picture.views.drafting.state == "unknown"
