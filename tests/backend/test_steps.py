"""What a change asks of a server: sockets that answer as llama-server does, or do not."""

from __future__ import annotations

import json
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from specdash.backend import start_check
from specdash.backend.auto import settings_of
from specdash.backend.engine_change import EngineChange
from specdash.backend.session import EngineRun
from specdash.backend.settings import BackendSettings, settings_from_env
from specdash.backend.steps import StepFailedError, Steps
from specdash.core.errors import InputError
from specdash.core.readings import HealthStatus
from specdash.core.records import Drafting, StartCheck
from support.fault_server import FaultServer, free_port, hangs, resets, says, writes
from support.waiting import until

OK = says(200, '{"status":"ok"}')
LOADING = says(503, '{"error":{"code":503,"message":"Loading model","type":"unavailable_error","progress":0.25}}')


def slots(*drafts: bool) -> Any:
    rows = [{"id": index, "is_processing": index == 0, "speculative": flag} for index, flag in enumerate(drafts)]
    return says(200, json.dumps(rows))


def completion(tokens: int = 16, drafted: int = 8, accepted: int = 4) -> Any:
    timings = {"draft_n": drafted, "draft_n_accepted": accepted}
    return says(200, json.dumps({"content": "x", "tokens_predicted": tokens, "timings": timings}))


def of(server: FaultServer, env: dict[str, str] = {}) -> BackendSettings:  # noqa: B006 - not written to
    """Settings of an engine that answers there."""
    drafts = {"LLAMA_MODEL": "/m", "LLAMA_SPEC_TYPE": "draft-simple", "LLAMA_DRAFT_MODEL": "/d"}
    return settings_from_env({**drafts, "LLAMA_PORT": str(server.port), **env})


def probed(server: FaultServer, *checks: StartCheck | None, limit: float = 5.0, env: Any = ()) -> str:
    """What the probe of a change says of an engine there. Its runner makes these checks one after the other."""

    class Run:
        """The engine as its runner knows it."""

        pid, ended, left = 1, None, list(checks or (None,))
        read_up = staticmethod(lambda _: None)
        tail = SimpleNamespace(errors=lambda: ())
        plan = SimpleNamespace(settings=of(server, dict(env)))

        @property
        def check(self) -> StartCheck | None:
            return self.left.pop(0) if len(self.left) > 1 else self.left[0]

    said: list[str] = []
    change: Any = SimpleNamespace(steps=Steps(lambda _: None), env={}, journal=SimpleNamespace(health_timeout_s=limit))
    change.steps.say = said.append
    runner: Any = SimpleNamespace(engine=Run(), replan=lambda *_: None)
    EngineChange(change, runner, SimpleNamespace(new=b"")).probe()  # type: ignore[arg-type]
    return said[-1]


def test_an_engine_is_not_seen_to_have_ended_before_its_last_words_were_read() -> None:
    plan: Any = SimpleNamespace(argv=("echo", "GGML_ASSERT(x)"), environment=dict)
    engine = EngineRun(plan, lambda _: time.sleep(0.1))
    ending = threading.Thread(target=engine.finish)
    engine.child.exited(30)
    ending.start()
    until(lambda: engine.ended)
    assert engine.tail.errors() == ("GGML_ASSERT(x)",)
    ending.join()


def test_health_tells_loading_with_its_share_and_no_answer_from_a_stranger() -> None:
    with FaultServer({"/health": LOADING}) as server:
        found = start_check.health(server.url)
        assert found is not None
        assert (found.status, found.progress) == (HealthStatus.LOADING, 0.25)
        assert not start_check.healthy(server.url)
        server.routes["/health"] = OK
        assert start_check.healthy(server.url)
        for stranger in (says(200, "<html>"), writes(b"SSH-2.0\r\n"), resets()):
            server.routes["/health"] = stranger
            assert start_check.health(server.url) is None
    assert start_check.health(f"http://127.0.0.1:{free_port()}") is None


def test_a_sleeping_server_is_not_woken_by_looking() -> None:
    with FaultServer({"/slots": slots(True), "/props": says(200, '{"is_sleeping": true}')}) as server:
        assert start_check.check_start(of(server), list).drafting is Drafting.UNKNOWN
        assert start_check.busy(of(server)) is None
        assert server.count("/slots") == 0


def test_running_and_waiting_requests_are_counted_from_metrics_or_slots() -> None:
    text = "llamacpp:requests_processing 2\nllamacpp:requests_deferred 3\n"
    with FaultServer({"/metrics": says(200, text), "/slots": slots(True, True)}) as server:
        assert start_check.busy(of(server)) == 5
        server.routes["/metrics"] = says(501, "{}")
        assert start_check.busy(of(server)) == 1


@pytest.mark.parametrize(("accepted", "asked"), [(4, 1), (8, 2)])
def test_a_second_completion_that_no_draft_can_guess_is_for_a_probe_without_a_rejected_draft(
    accepted: int, asked: int
) -> None:
    with FaultServer({"/completion": completion(accepted=accepted), "/health": OK}) as server:
        assert probed(server).startswith(f"{16 * asked} tokens")
        assert server.count("/completion") == asked


@pytest.mark.parametrize(
    ("route", "reason"),
    [
        (says(500, '{"error":{"message":"speculative batch index 7"}}'), "HTTP 500: speculative batch index 7"),
        (says(401, '{"error":{"message":"Invalid API Key"}}'), "HTTP 401: Invalid API Key"),
        (completion(tokens=0), "gave no tokens"),
        (resets(), "broke off"),
        (hangs(), "did not answer in time"),
        (says(200, "[]"), "HTTP 200"),
    ],
)
def test_a_probe_without_a_proper_answer_fails(route: Any, reason: str) -> None:
    with FaultServer({"/completion": route, "/health": OK}) as server, pytest.raises(StepFailedError, match=reason):
        probed(server, limit=0.5)


def test_a_server_that_is_not_healthy_after_the_probe_fails() -> None:
    with FaultServer({"/completion": completion()}) as server, pytest.raises(StepFailedError, match="not healthy any"):
        probed(server)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"LLAMA_ARG_EMBEDDINGS": "1"}, "embeddings only"),
        ({"LLAMA_ARG_MODELS_DIR": "/models"}, "a router"),
        ({"LLAMA_ARG_RERANKING": "1"}, "reranks only"),
    ],
)
def test_a_server_that_generates_nothing_is_not_asked_to(values: dict[str, str], why: str) -> None:
    with FaultServer({}) as server:
        assert why in probed(server, env=values)
        assert server.count("/completion") == 0


PENDING = StartCheck(Drafting.READY, 1.0, pending=True)
SEEN = StartCheck(Drafting.YES, 1.0, probe_tokens=16, probe_drafted=8, probe_accepted=5)


@pytest.mark.parametrize(
    ("checks", "asked"),
    [
        ((PENDING, PENDING, SEEN), 0),
        ((replace(SEEN, probe_problem="LLAMA_START_PROBE=0", probe_tokens=None),), 1),
        ((replace(SEEN, probe_problem="a first completion did not answer in time"),), 1),
    ],
)
def test_what_the_runner_saw_is_waited_for_and_asked_here_only_where_it_did_not(
    checks: tuple[StartCheck, ...], asked: int
) -> None:
    with FaultServer({"/completion": completion(), "/health": OK}) as server:
        assert probed(server, *checks).startswith("16 tokens")
        assert server.count("/completion") == asked


def test_the_settings_of_an_env_say_where_it_answers_and_with_which_key() -> None:
    values = {"LLAMA_MODEL": "/m", "LLAMA_PORT": "9001", "LLAMA_API_KEY": "hush-1,hush-2"}
    found = settings_of(values, {})
    assert (found.url, start_check.server_key(found)) == ("http://127.0.0.1:9001", "hush-1")
    assert found.log_path({"HOME": "/home/x"}) == "/home/x/.local/state/specdash/logs/backend-9001.log"
    assert "hush" not in repr(found)
    with pytest.raises(InputError, match="LLAMA_MODEL is not set"):
        settings_of({"LLAMA_PORT": "9002"}, {})
