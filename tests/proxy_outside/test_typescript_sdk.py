"""The official TypeScript SDK accumulates the same final message, streamed and not, plain and strict."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.fault_upstream import FaultUpstream
from support.proxy_process import ProxyProcess
from support.proxy_ways import TOOLS, turn
from support.upstream_script import Drop, Script, answers, calls, overflow, says, stops, thinks

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent / "typescript"
INSTALL_S = 100
ASK_S = 60
REQUIRED = "SPECDASH_REQUIRE_NODE"


def missing(reason: str) -> None:
    """Skip; or fail where CI says that it must be there."""
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the client program and the pinned SDK, from npm."""
    npm = shutil.which("npm")
    if shutil.which("node") is None or npm is None:
        missing("node and npm are not installed")
    assert npm is not None
    folder = tmp_path_factory.mktemp("typescript")
    for name in ("package.json", "package-lock.json", "client.mjs"):
        shutil.copy(HERE / name, folder)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--omit=dev"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    if done.returncode != 0:
        missing(f"npm cannot fetch the pinned SDK: {done.stderr.strip()[-300:]}")
    return folder


def ask(sdk: Path, proxy: ProxyProcess, *bodies: dict[str, Any]) -> list[dict[str, Any]]:
    """Each body whole and streamed, in turn."""
    turns = [{"body": body, "stream": stream} for body in bodies for stream in (False, True)]
    node = shutil.which("node")
    assert node is not None
    done = subprocess.run(
        [node, "client.mjs"],
        cwd=sdk,
        input=json.dumps({"url": proxy.url, "turns": turns}),
        capture_output=True,
        text=True,
        timeout=ASK_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results


ARGUMENTS = {"path": "dir/ü 日.py", "limit": 3}
SCRIPTED: dict[str, tuple[Script, dict[str, Any], list[Any]]] = {
    "text": (answers("Hello ", "naïve 日本語 🙂"), {}, [["text", "Hello naïve 日本語 🙂"]]),
    "text and parallel calls": (
        Script((
            *says("Let me ", "look."),
            *calls("read_file", ARGUMENTS, pieces=9),
            *calls("get_weather", {"city": "Köln"}, index=1),
            *stops("tool_calls"),
        )),
        {"tools": TOOLS},
        [["text", "Let me look."], ["tool_use", "read_file", ARGUMENTS], ["tool_use", "get_weather", {"city": "Köln"}]],
    ),
    "thinking": (
        Script((*thinks("Hm ", "hm."), *says("Done."), *stops())),
        {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048},
        [["thinking", "Hm hm."], ["text", "Done."]],
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("proxy", "name"), [*(("plain", name) for name in SCRIPTED), ("strict", "text and parallel calls")]
)
def test_it_accumulates_what_the_upstream_sent(
    sdk: Path, request: pytest.FixtureRequest, upstream: FaultUpstream, proxy: str, name: str
) -> None:
    upstream.otherwise, fields, content = SCRIPTED[name]
    whole, streamed = ask(sdk, request.getfixturevalue(proxy), turn(**fields))
    assert whole["content"] == content
    assert streamed["content"] == content
    assert streamed["blocks"] == [block[0] for block in content]
    assert streamed["stop_reason"] == whole["stop_reason"]
    assert streamed["usage"] == whole["usage"]


def test_it_gets_typed_errors(sdk: Path, plain: ProxyProcess, upstream: FaultUpstream) -> None:
    upstream.otherwise = overflow(9000, 8192)
    for seen in ask(sdk, plain, turn(tools=TOOLS)):
        assert (seen["error"], seen["status"]) == ("BadRequestError", 400)
        assert "prompt is too long: 9000 tokens > 8192 maximum" in seen["message"]
    upstream.otherwise = Script((*says("Hello"), Drop()))
    for seen in ask(sdk, plain, turn(tools=TOOLS)):
        assert "error" in seen
