"""GET /models: a router's models and their states."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.readings import ModelStatus, RouterModel, most_recent_resident
from specdash.llama.server_answers import parse_models
from support.any_value import json_values

ARGS = ["llama-server", "--port", "37271", "--spec-type", "ngram-mod,draft-simple", "--model-draft", "/m/draft.gguf"]


def row(**status: Any) -> dict[str, Any]:
    return {
        "id": "alpha",
        "aliases": ["first"],
        "source": "preset",
        "status": {"value": "loaded", "args": ARGS, **status},
    }


def only(entry: dict[str, Any]) -> RouterModel:
    (found,) = parse_models(json.dumps({"data": [entry]})).models
    return found


def test_a_model_with_its_state_port_and_drafting() -> None:
    found = only(row())
    assert (found.id, found.aliases, found.status, found.port) == ("alpha", ("first",), ModelStatus.LOADED, 37271)
    assert (found.spec_types, found.draft_model) == (("ngram-mod", "draft-simple"), "/m/draft.gguf")


def test_a_port_is_known_only_while_a_child_has_it() -> None:
    assert only(row(value="unloaded")).port is None
    assert only(row(value="sleeping")).port == 37271


def test_a_model_that_failed_to_load_says_so() -> None:
    found = only(row(value="unloaded", failed=True, exit_code=1))
    assert (found.status, found.resident) == (ModelStatus.FAILED, False)
    assert found.failure == "its server ended with exit code 1"


def old_row(code: int) -> dict[str, Any]:
    """A model that is not in memory, as builds describe it whose rows have no `source` yet (llama.cpp #23257)."""
    return {"id": "a", "status": {"value": "unloaded", "args": ["llama-server"], "failed": True, "exit_code": code}}


@pytest.mark.parametrize(
    ("entry", "status", "words"),
    [
        (row(), "loaded", "loaded"),
        (row(value="sleeping"), "sleeping", "sleeping"),
        (row(value="loading"), "loading", "loading"),
        (
            row(value="downloading", progress={"https://x/m.gguf": {"done": 1, "total": 9}}),
            "downloading",
            "downloading",
        ),
        (row(value="downloaded"), "downloaded", "downloaded"),
        # Its port is chosen when its server is started, and stays in the arguments.
        (row(value="unloaded", args=["llama-server", "--port", "0"]), "unloaded", "never loaded"),
        (row(value="unloaded"), "unloaded", "unloaded"),
        (row(value="unloaded", args=["llama-server"]), "unloaded", "unloaded"),
        (row(value="unloaded", failed=True, exit_code=1), "failed", "failed (exit code 1)"),
        (row(value="unloaded", failed=True, exit_code=10), "failed", "failed (exit code 10)"),
        (row(value="unloaded", failed=True), "failed", "failed"),
        (old_row(10), "unloaded", "never loaded"),
        (old_row(1), "unloaded", "unloaded"),
        (old_row(-6), "failed", "failed (exit code -6)"),
        (old_row(139), "failed", "failed (exit code 139)"),
    ],
)
def test_each_way_of_being_there_or_not_has_a_word_of_its_own(entry: dict[str, Any], status: str, words: str) -> None:
    found = only(entry)
    assert (found.status, found.words) == (status, words)
    assert bool(found.failure) is (status == "failed")


def test_a_state_of_a_newer_build_is_unknown_and_not_an_error() -> None:
    assert only(row(value="hibernating")).status is ModelStatus.UNKNOWN


def test_without_arguments_the_drafting_is_not_known() -> None:
    found = only({"id": "a", "status": {"value": "loaded"}})
    assert (found.spec_types, found.port) == (None, None)


def test_builds_that_tell_when_a_model_was_used_are_believed() -> None:
    assert only({**row(), "last_used_ms": 1795292775500}).last_used == 1795292775.5
    assert only({**row(), "last_used_ms": 0}).last_used is None


def test_a_server_that_is_no_router_has_none() -> None:
    assert parse_models('{"data":[{"id":"m","object":"model","meta":{"n_ctx":512}}]}').models == ()


@given(json_values)
def test_whatever_the_entries_are_nothing_breaks(value: Any) -> None:
    parse_models(
        json.dumps({"data": [value, {"id": "x", "status": {"value": value, "args": value}, "aliases": value}]})
    )


STATES = st.sampled_from(ModelStatus)
MODELS = st.lists(
    st.builds(RouterModel, st.text("ab", min_size=1), STATES, last_used=st.none() | st.floats(1, 9)), max_size=6
)


@given(MODELS)
def test_any_is_awake_before_asleep_and_the_last_used_of_those(models: list[RouterModel]) -> None:
    found = most_recent_resident(tuple(models))
    resident = [model for model in models if model.resident]
    if not resident:
        assert found is None
        return
    assert found in resident
    awake = [model for model in models if model.status is ModelStatus.LOADED]
    assert found in (awake or resident)
    assert all((router_model.last_used or 0) <= (found.last_used or 0) for router_model in awake or resident)
