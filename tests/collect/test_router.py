"""A server in router mode, looked at without changing it: the real one."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from specdash.collect.hub import Hub
from specdash.core.readings import Source
from specdash.core.target import Target
from specdash.insight.picture import Picture
from specdash.insight.state import TargetState
from support.outside import ran
from support.router import Router, running_router
from support.waiting import until

pytestmark = pytest.mark.llama_server


class Watched:
    """The picture of a router, kept up to date."""

    def __init__(self, router: Router, model: str | None = None) -> None:
        target = Target(router.url, log=str(router.log), model=model)
        self.state = TargetState(target)
        self.hub = Hub(target, [self.state.apply], interval_s=0.25, gpu=False, host=False)

    @property
    def picture(self) -> Picture:
        return self.state.picture(time.monotonic(), time.time())

    def until(self, holds: Callable[[Picture], object]) -> Picture:
        until(lambda: holds(self.picture), why=lambda: str(self.picture.views.router))
        return self.picture


def statuses(picture: Picture) -> dict[str, str]:
    return {model.id: model.status for model in picture.views.router.models}


def test_nothing_is_loaded_by_looking_which_has_a_reason_and_raises_no_alert(tmp_path: Path) -> None:
    with running_router(tmp_path) as router:
        watched = Watched(router)
        with watched.hub:
            picture = watched.until(lambda picture: picture.views.router.models and picture.backend.reason)
            assert "router without a model in memory" in picture.backend.reason
            assert picture.views.router.any_means is None
            assert statuses(picture) == dict.fromkeys(("alpha", "beta", "broken"), "unloaded")
            assert {model.words for model in picture.views.router.models} == {"never loaded"}
            looks = watched.state.latest[Source.METRICS].at
            watched.until(lambda _: watched.state.latest[Source.METRICS].at > looks)
        done = ran("check", "--url", router.url, "--for", "12", "--json")
        assert (done.returncode, json.loads(done.stdout)["alerts"]) == (0, []), done.stdout
        assert set(router.states().values()) == {"unloaded"}


def test_the_model_in_memory_is_looked_at_and_the_last_used_is_what_any_means(tmp_path: Path) -> None:
    with running_router(tmp_path) as router:
        router.use("alpha")
        watched = Watched(router)
        with watched.hub:
            picture = watched.until(lambda picture: picture.backend.speculation.types)
            assert picture.backend.model == "alpha"
            assert picture.backend.speculation.types == ("draft-simple",)
            assert [model.id for model in picture.views.router.models if model.watched] == ["alpha"]
            router.use("beta")
            picture = watched.until(lambda picture: picture.views.router.any_means == "beta")
            assert statuses(picture)["beta"] == "loaded"
            router.use("alpha")
            watched.until(lambda picture: picture.views.router.any_means == "alpha")
            assert watched.picture.backend.model == "alpha"
            router.use("broken")
            picture = watched.until(lambda picture: statuses(picture)["broken"] == "failed")
            failure = next(model.failure for model in picture.views.router.models if model.id == "broken")
            assert failure == "its server ended with exit code 1"
            router.unload("alpha")
            router.kill("beta")
            # A model that was unloaded by hand and one that crashed are not the same.
            picture = watched.until(lambda picture: statuses(picture).get("beta") == "failed")
            words = {model.id: model.words for model in picture.views.router.models}
            assert (words["alpha"], words["beta"]) == ("unloaded", "failed (exit code 1)")
            router.use("beta")
        named = Watched(router, model="beta")
        with named.hub:
            picture = named.until(lambda picture: picture.backend.speculation.active and picture.views.router.models)
            assert picture.backend.model == "beta"


def test_a_model_that_fell_asleep_is_not_woken(tmp_path: Path) -> None:
    with running_router(tmp_path, sleep_s=1) as router:
        router.use("alpha")
        watched = Watched(router)
        with watched.hub:
            picture = watched.until(lambda picture: statuses(picture).get("alpha") == "sleeping")
            assert picture.views.router.any_means == "alpha"
            looks = watched.state.latest[Source.METRICS].at
            watched.until(lambda _: watched.state.latest[Source.METRICS].at > looks + 2)
            assert router.states()["alpha"] == "sleeping"
