"""`specdash mcp`: an agent asks about a real server, with the official SDK's client."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession, StdioServerParameters, stdio_client

from specdash.backend.demo import DRAFT_MODEL, TARGET_MODEL, bundled_model
from support.engines import engine_env, running_backend

KEY = "sk-canary-0123456789"


def ask(url: str, *questions: tuple[str, dict[str, Any]]) -> tuple[dict[str, Any], list[tuple[bool, Any]]]:
    """The tools by name, and of each question whether it failed and its answer."""

    async def run() -> tuple[dict[str, Any], list[tuple[bool, Any]]]:
        how = StdioServerParameters(
            command=sys.executable,
            args=["-m", "specdash", "mcp", "--url", url, "--api-key-env", "CANARY"],
            env={**os.environ, "CANARY": KEY},
        )
        async with stdio_client(how) as pipes, ClientSession(*pipes) as session:
            await session.initialize()
            tools = {tool.name: tool for tool in (await session.list_tools()).tools}
            answers = []
            for name, values in questions:
                result = await session.call_tool(name, values)
                words = getattr(result.content[0], "text", "")
                assert KEY not in words
                answers.append((bool(result.is_error), words if result.is_error else json.loads(words)))
            return tools, answers

    return asyncio.run(asyncio.wait_for(run(), 90))


@pytest.mark.engine
def test_an_agent_learns_whether_speculation_pays_and_what_may_be_set(tmp_path: Path) -> None:
    env = {
        "LLAMA_MODEL": str(bundled_model(TARGET_MODEL)), "LLAMA_DRAFT_MODEL": str(bundled_model(DRAFT_MODEL)),
        "LLAMA_SPEC_TYPE": "draft-simple", "LLAMA_THREADS": "1", "LLAMA_START_BASELINE": "0",
        **engine_env("xllamacpp"),
    }  # fmt: skip
    with running_backend(env, tmp_path) as backend:
        backend.complete("Once upon a time", 32)
        tools, answers = ask(
            backend.url, ("does_speculation_pay", {}), ("why_slow", {}), ("snapshot", {}), ("what_may_be_set", {})
        )
    assert all(tool.annotations.read_only_hint and tool.description for tool in tools.values())
    assert not any(failed for failed, _ in answers)
    pays, slow, snapshot, settings = (answer for _, answer in answers)
    assert pays["verdict_text"].startswith("CAN'T TELL YET")
    assert pays["types"] == ["draft-simple"]
    assert slow["state"] == "live"
    assert slow["requests"]["processing"] == 0
    assert snapshot["backend"]["speculation"]["draft_tokens_total"] > 0
    keys = {row["key"]: row for row in settings["settings"]}
    assert keys["LLAMA_DRAFT_MAX"]["values"]


def test_a_server_that_is_away_is_what_is_wrong_and_a_service_that_is_none_an_error() -> None:
    _, answers = ask("http://127.0.0.1:9", ("what_is_wrong", {}), ("what_may_be_set", {"service": "x"}))
    (_, wrong), (failed, reason) = answers
    assert wrong["active"][0]["rule"] == "backend_down"
    assert wrong["active"][0]["remedy"]
    assert failed
    assert "'backend' or 'proxy'" in reason
