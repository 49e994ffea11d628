"""Who answers, before anything is measured."""

import json

import pytest

from specdash.bench.load.contact import look
from specdash.bench.load.samples import EngineAddress
from specdash.core.errors import InputError, SpecdashError, UnreachableError
from support.fault_server import FaultServer, says, writes
from support.fault_upstream import FaultUpstream
from support.scripted_server import Behaviour

MODELS = "/v1/models"


def routed(**states: str) -> Behaviour:
    data = [{"id": name, "status": {"value": state}} for name, state in states.items()]
    return says(200, json.dumps({"data": data}))


def test_a_server_is_described_by_itself() -> None:
    with FaultUpstream(slots=3, n_ctx=4096) as server:
        place, engine = look(EngineAddress(server.url))
    assert place == EngineAddress(server.url)
    assert (engine.model, engine.build) == ("scripted.gguf", "b11549-scripted")
    assert (engine.slots, engine.slot_context) == (3, 4096)
    assert engine.speculative is True
    assert engine.models == ("scripted",)


@pytest.mark.parametrize("name", ["/models/scripted.gguf", "scripted.gguf"])
def test_a_model_may_be_named_by_its_id_or_its_file(name: str) -> None:
    with FaultUpstream(models=("/models/scripted.gguf",)) as server:
        assert look(EngineAddress(server.url, model=name))[0].model == name


def test_a_model_that_is_not_there_is_named_with_those_that_are() -> None:
    with FaultUpstream(models=("/models/a.gguf", "b")) as s, pytest.raises(InputError, match=r"there are a\.gguf, b"):
        look(EngineAddress(s.url, model="c"))


def test_of_a_router_the_one_model_in_memory_is_asked() -> None:
    with FaultServer({MODELS: routed(a="unloaded", b="loaded", c="unloaded")}) as server:
        assert look(EngineAddress(server.url))[0].model == "b"


def test_a_router_with_none_or_several_in_memory_wants_a_name() -> None:
    for states in ({"a": "unloaded", "b": "unloaded"}, {"a": "loaded", "b": "loaded"}):
        with FaultServer({MODELS: routed(**states)}) as server:
            with pytest.raises(InputError, match=r"is a router: name one .* there are a, b"):
                look(EngineAddress(server.url))
            assert look(EngineAddress(server.url, model="a"))[0].model == "a"


def test_a_server_that_tells_nothing_of_itself_is_measured_all_the_same() -> None:
    with FaultServer({MODELS: says(200, '{"data":[{"id":"gpt"}]}')}) as server:
        _, engine = look(EngineAddress(server.url))
    assert (engine.model, engine.build, engine.slots, engine.speculative) == ("gpt", None, None, None)


@pytest.mark.parametrize(
    ("behaviour", "error", "said"),
    [
        (says(401, "{}"), InputError, "refuses this API key"),
        (says(503, '{"error":{"message":"Loading model"}}'), UnreachableError, "still loading"),
        (says(404, "{}"), SpecdashError, "HTTP 404; is this llama-server"),
        (says(200, "<html>"), SpecdashError, "not JSON"),
        (writes(b"junk\r\n\r\n"), UnreachableError, "the answer is not HTTP"),
    ],
)
def test_what_is_no_server_to_measure_is_said(behaviour: Behaviour, error: type[SpecdashError], said: str) -> None:
    with FaultServer({MODELS: behaviour}) as server, pytest.raises(error, match=said):
        look(EngineAddress(server.url))
