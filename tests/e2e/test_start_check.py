"""From the start of a server to its verdict in the picture: through the runner, its record and a real hub."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from specdash.collect.discover import target_for_url
from specdash.collect.hub import Hub
from specdash.core.records import Drafting
from specdash.core.target import Target
from specdash.insight.picture import Picture
from specdash.insight.state import TargetState
from support import tiny_models
from support.engines import RunningBackend, engine_env, running_backend
from support.faults import BreakableServer, watched
from support.start_checks import behind_our_back, drafting
from support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.llama_server]
_MOST_S = 60.0


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    other = list(tiny_models.TOKENS)
    other[280] = "▁zebra"
    return {
        **tiny_models.build(folder),
        "other": tiny_models.write_variant(folder / "other.gguf", tokens=other),
    }


def seen(backend: RunningBackend, found: Callable[[Picture], bool]) -> Picture:
    """The picture of a hub that watches the address from now on, once it has what is looked for."""
    target = Target(backend.url)
    state, moved = TargetState(target), threading.Event()

    def on_target(known: Target) -> None:
        state.retarget(known)
        moved.set()

    env = {**os.environ, "XDG_STATE_HOME": str(backend.state)}
    deadline = time.monotonic() + _MOST_S
    with Hub(target, [state.apply, lambda _: moved.set()], on_target=on_target, gpu=False, env=env):
        while True:
            moved.wait(1.0)
            moved.clear()
            picture = state.picture(time.monotonic(), time.time())
            if found(picture):
                return picture
            assert time.monotonic() < deadline, picture.views.drafting


def test_a_server_that_runs_without_is_failed_in_the_picture_with_its_cause(
    models: dict[str, Path], tmp_path: Path
) -> None:
    env = drafting(models, **behind_our_back(tmp_path, "-md", str(models["other"])))
    with running_backend(env, tmp_path / "run") as backend:
        picture = seen(
            backend,
            lambda picture: (
                picture.views.drafting.state is Drafting.FAILED and picture.views.drafting.checked_age_s is not None
            ),
        )
    assert picture.views.drafting.because == "the draft model's vocabulary is not the target's"
    assert picture.views.drafting.fix


def test_a_server_that_drafts_is_yes_and_its_probe_is_no_request_of_anybodys(
    models: dict[str, Path], tmp_path: Path
) -> None:
    with running_backend(drafting(models, **engine_env("llama-server")), tmp_path) as backend:
        backend.wait_checked()
        target = target_for_url(backend.url, {**os.environ, "XDG_STATE_HOME": str(backend.state)})
        assert target.start_check is not None
        with watched(target) as look:
            until(lambda: look.picture().views.drafting.state is Drafting.YES)
            backend.complete("the speculative decoder drafts", 8)
            until(lambda: look.picture().backend.requests_finished == 1)
            (request,) = look.picture().log.requests
            assert request.decode_tokens == 8


def test_an_idle_new_server_has_no_figure_that_no_client_asked_for(models: dict[str, Path], tmp_path: Path) -> None:
    """Its start was checked by completions that drafted, and perhaps a baseline was measured."""

    def shows_nothing(picture: Picture) -> bool:
        backend, acceptance = picture.backend, picture.backend.speculation.acceptance
        figures = (acceptance.window, acceptance.lifetime, backend.prefill, backend.decode)
        return (
            picture.views.drafting.state is Drafting.YES
            and bool(backend.counters)
            and backend.requests_finished == 0
            and all(figure.value is None for figure in figures)
        )

    with running_backend(drafting(models, **engine_env("llama-server")), tmp_path) as backend:
        backend.wait_checked()
        picture = seen(backend, shows_nothing)
    assert dict(picture.backend.counters)["predicted_tokens"] > 0, "the server has counted them"
    assert picture.speedup.value is None


def test_a_server_that_nobody_of_ours_started_is_judged_by_its_command_line(
    models: dict[str, Path], tmp_path: Path
) -> None:
    with BreakableServer(tmp_path, "-np", "1", "-md", str(models["draft"]), model=models["target"]) as server:
        found = target_for_url(server.target.url)
        assert dict(found.parameters) == {"spec-draft-model": str(models["draft"])}
        with watched(found) as look:
            until(lambda: look.picture().views.drafting.state is Drafting.FAILED)
            assert "it is loaded, and does nothing" in look.picture().views.drafting.because
            assert look.until_alert("speculation_off").fix == (("LLAMA_SPEC_TYPE", "draft-simple"),)
