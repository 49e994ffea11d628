"""Model names: for Claude Code, for OpenAI's SDK, and back to the upstream's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from specdash.proxy.upstream.upstream import Upstream
from specdash.proxy.upstream.window import ContextWindow, display_name, upstream_model
from support.proxy_app import proxied, settings_for
from support.scripted_server import tells

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from support.proxy_app import RunningProxy
    from support.scripted_server import ScriptedServer

IDS = ["/models/Qwen3 8B.gguf", "claude-local", "org/Gemma:12b"]


def serving(*ids: str) -> AbstractAsyncContextManager[tuple[RunningProxy, ScriptedServer]]:
    return proxied(tells({}), {"/v1/models": tells({"data": [{"id": name} for name in ids]})})


def known(*models: str) -> ContextWindow:
    settings = settings_for("http://127.0.0.1:9")
    window = ContextWindow(Upstream(settings), settings)
    window.models = models
    window.model_id = models[0] if models else None
    return window


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        ("/models/Qwen3 8B-Q4_K_M.gguf", "Qwen3 8B-Q4_K_M"),
        ("C:\\models\\X.GGUF", "X"),
        ("org/Gemma:12b", "org/Gemma:12b"),
        ("模型", "模型"),
    ],
)
def test_a_file_is_shown_by_its_name(model: str, shown: str) -> None:
    assert display_name(model) == shown


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        ("/models/Qwen3 8B.gguf", "/models/Qwen3 8B.gguf"),
        ("org/Gemma:12b", "org/Gemma:12b"),
        ("org/Gemma:12b[1m]", "org/Gemma:12b"),
        ("claude-local", "claude-local"),
        ("claude-sonnet-4-5-20250929", "/models/Qwen3 8B.gguf"),
        ("claude-org-gemma-12b", "/models/Qwen3 8B.gguf"),
        ("", "/models/Qwen3 8B.gguf"),
    ],
)
def test_an_id_of_the_upstream_means_that_model_and_any_other_name_the_loaded_one(
    requested: str, expected: str
) -> None:
    assert upstream_model(requested, known(*IDS)) == expected


async def test_the_list_is_one_for_both_apis() -> None:
    async with serving(*IDS) as (proxy, _):
        answer = (await proxy.get("/v1/models?limit=1000")).json()
        assert [entry["id"] for entry in answer["data"]] == IDS
        assert (answer["object"], answer["has_more"]) == ("list", False)
        assert (answer["first_id"], answer["last_id"]) == (IDS[0], IDS[2])
        first = answer["data"][0]
        assert (first["type"], first["object"], first["owned_by"]) == ("model", "model", "llama.cpp")
        assert first["display_name"] == "Qwen3 8B"
        assert first["created_at"].endswith("Z")
        assert isinstance(first["created"], int)
