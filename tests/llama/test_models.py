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
BARE = {"args": ["llama-server"]}


def row(value: str = "loaded", **status: Any) -> dict[str, Any]:
    return {"id": "alpha", "source": "preset", "status": {"value": value, "args": ARGS, **status}}


def old_row(code: int) -> dict[str, Any]:
    """A model that is not in memory, as builds describe it whose rows have no `source` yet (llama.cpp #23257)."""
    return {"id": "a", "status": {"value": "unloaded", **BARE, "failed": True, "exit_code": code}}


def only(entry: dict[str, Any]) -> RouterModel:
    (found,) = parse_models(json.dumps({"data": [entry]})).models
    return found


def test_a_model_has_its_state_port_and_drafting() -> None:
    entry = {**row(), "aliases": ["first"], "last_used_ms": 1795292775500}
    assert only(entry) == RouterModel(
        "alpha",
        ModelStatus.LOADED,
        aliases=("first",),
        last_used=1795292775.5,
        spec_types=("ngram-mod", "draft-simple"),
        draft_model="/m/draft.gguf",
        port=37271,
        has_source=False,
    )
    unsaid = RouterModel("a", ModelStatus.LOADED)
    assert only({"id": "a", "status": {"value": "loaded"}, "last_used_ms": 0}) == unsaid


@pytest.mark.parametrize(
    ("entry", "status", "words", "port"),
    [
        (row("sleeping"), "sleeping", "sleeping", 37271),
        (row("loading"), "loading", "loading", None),
        (row("downloading", progress={"https://x": {"done": 1, "total": 9}}), "downloading", "downloading", None),
        (row("downloaded"), "downloaded", "downloaded", None),
        (row("hibernating"), "unknown", "unknown", None),
        # Its port is chosen when its server is started, and stays in the arguments.
        (row("unloaded", args=["llama-server", "--port", "0"]), "unloaded", "never loaded", None),
        (row("unloaded"), "unloaded", "unloaded", None),
        (row("unloaded", **BARE), "unloaded", "unloaded", None),
        (row("unloaded", failed=True, exit_code=1), "failed", "failed (exit code 1)", None),
        (row("unloaded", failed=True, exit_code=10), "failed", "failed (exit code 10)", None),
        (row("unloaded", failed=True), "failed", "failed", None),
        (old_row(10), "unloaded", "never loaded", None),
        (old_row(1), "unloaded", "unloaded", None),
        (old_row(-6), "failed", "failed (exit code -6)", None),
    ],
)  # fmt: skip
def test_each_way_of_being_there_or_not_has_a_word_of_its_own(
    entry: dict[str, Any], status: str, words: str, port: int | None
) -> None:
    found = only(entry)
    assert (found.status, found.words, found.port) == (status, words, port)
    assert bool(found.failure) is (status == "failed")


@given(json_values)
def test_entries_of_any_shape_break_nothing_and_without_a_state_are_of_no_router(value: Any) -> None:
    entry = {"id": "x", "status": {"value": value, "args": value}, "aliases": value}
    parse_models(json.dumps({"data": [value, entry]}))
    assert parse_models(json.dumps({"data": [{"id": "m", "object": "model", "meta": value}]})).models == ()


USED = st.none() | st.floats(1, 9)
MODELS = st.lists(st.builds(RouterModel, st.text("ab", min_size=1), st.sampled_from(ModelStatus), last_used=USED))


@given(MODELS)
def test_any_is_awake_before_asleep_and_the_last_used_of_those(models: list[RouterModel]) -> None:
    found = most_recent_resident(tuple(models))
    resident = [model for model in models if model.resident]
    of_those = [model for model in resident if model.status is ModelStatus.LOADED] or resident
    assert (found is None) is (not resident)
    if found is not None:
        assert found in of_those
        assert all((model.last_used or 0) <= (found.last_used or 0) for model in of_those)
