"""`specdash repro-empty` on servers that lose their answers once the cache is used, and on real ones that do not."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specdash.cli.main import main
from specdash.core.errors import ExitCode
from support.engines import engine_env, running_backend
from support.fault_upstream import FaultUpstream
from support.tiny_models import build
from support.upstream_script import Delta, Drop, Script, answers, error, error_event, loading

EMPTY = Script((Delta({}, "stop"),))


@pytest.fixture
def upstream() -> Iterator[FaultUpstream]:
    with FaultUpstream() as server:
        server.decide = once_cached(answers("fine"))
        yield server


def once_cached(then: Script, *, control: Script | None = None) -> Callable[[Any], Script]:
    """The control's answer with the cache off, nothing cached; with it on, `then` from the second turn on."""

    def decide(body: Any) -> Script:
        warm = body["cache_prompt"] and len(body["messages"]) > 2
        if not warm:
            chosen = control if control is not None and not body["cache_prompt"] else answers("fine")
            return Script(chosen.acts, cached_tokens=0)
        return then

    return decide


def repro(upstream: FaultUpstream, *words: str) -> int:
    return main(["repro-empty", "--url", upstream.url, "--turns", "3", "--tool-chars", "200", *words])


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


WHOLE = {"choices": [{"finish_reason": "stop", "message": {"content": ""}}], "usage": {"completion_tokens": 0}}
CALLED = {"tool_calls": [{"index": 0, "function": {"name": "run_linter", "arguments": "{}"}}]}
OUTCOMES: dict[str, tuple[Script, Script | None, ExitCode, str]] = {
    "empty": (EMPTY, None, ExitCode.OK, "REPRODUCED: calls 2 and 3 are empty with the cache on"),
    "healthy": (answers("fine"), None, ExitCode.FAILED, "DID NOT REPRODUCE"),
    "control": (EMPTY, EMPTY, ExitCode.INCONCLUSIVE, "CONTROL EMPTY"),
    "not streamed": (Script(body=json.dumps(WHOLE).encode()), None, ExitCode.OK, "EMPTY"),
    "white space": (Script((Delta({"content": " \n"}, "stop"),)), None, ExitCode.OK, "EMPTY stop"),
    "cut": (Script((Delta({"content": ""}, "length"),)), None, ExitCode.OK, "EMPTY leng"),
    "reasoning": (Script((Delta({"reasoning_content": "hm"}, "length"),)), None, ExitCode.FAILED, "DID NOT"),
    "tool call": (Script((Delta(CALLED, "stop"),)), None, ExitCode.FAILED, "DID NOT"),
    **{
        f"fails {number}": (script, None, ExitCode.INCONCLUSIVE, "call 2 failed with the cache on")
        for number, script in enumerate(
            [
                error(500, "Compute error.", "server_error"),
                Script((error_event(),)),
                Script((Delta({"content": "x"}), Drop())),
            ]
        )
    },
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_only_answers_that_say_nothing_with_the_cache_alone_are_reproduced(
    name: str, upstream: FaultUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    then, control, code, words = OUTCOMES[name]
    upstream.decide = once_cached(then, control=control)
    assert repro(upstream) == code
    out = capsys.readouterr().out
    assert words in out
    assert max(len(line) for line in out.splitlines() if "|" in line) <= 80


def test_the_control_is_cold_whatever_the_server_makes_of_cache_prompt(upstream: FaultUpstream) -> None:
    repro(upstream)
    _warm_up, *rest = [chat.body for chat in upstream.chats]
    control, cached = rest[:3], rest[3:]
    assert not any(body["cache_prompt"] for body in control)
    assert all(body["cache_prompt"] for body in cached)
    assert len({body["messages"][0]["content"] for body in control}) == 3
    assert len({body["messages"][0]["content"] for body in cached}) == 1
    assert cached[2]["messages"][: len(cached[1]["messages"])] == cached[1]["messages"]


def test_json_has_both_sides_of_every_call(upstream: FaultUpstream, capsys: pytest.CaptureFixture[str]) -> None:
    upstream.decide = once_cached(EMPTY)
    assert repro(upstream, "--json") == ExitCode.OK
    found = told(capsys)
    assert found["outcome"] == "reproduced"
    assert [call["reproduces"] for call in found["calls"]] == [False, True, True]
    assert found["calls"][1]["cache_off"]["content_chars"] == 4
    assert found["calls"][1]["cache_on"]["empty"] is True
    assert found["calls"][1]["cache_on"]["completion_tokens"] == 0
    assert found["calls"][1]["cache_on"]["cached_tokens"] == 100


def test_calls_that_do_not_fit_are_left_out_and_said(
    upstream: FaultUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.n_ctx = 400
    assert repro(upstream, "--tool-chars", "500", "--json") == ExitCode.FAILED
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert [call["number"] for call in found["calls"]] == [1, 2]
    assert "call 3 left out" in captured.err
    assert "400 of a slot" in found["left_out"]


def test_a_context_without_room_for_two_calls_is_bad_input_with_the_size_that_fits(
    upstream: FaultUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.n_ctx = 200
    assert repro(upstream, "--tool-chars", "5000") == ExitCode.BAD_INPUT
    assert "--tool-chars " in capsys.readouterr().err


def test_a_template_that_knows_no_tools_gets_them_as_text(
    upstream: FaultUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.routes["/apply-template"] = Script(body=b'{"prompt": "tool results are left out here"}')
    assert repro(upstream, "--json") == ExitCode.FAILED
    assert told(capsys)["flat"] is True
    assert all("tools" not in chat.body for chat in upstream.chats)
    assert {message["role"] for message in upstream.chats[-1].body["messages"]} == {"system", "user", "assistant"}


def test_a_server_that_tells_nothing_of_itself_is_measured_all_the_same(upstream: FaultUpstream) -> None:
    for path in ("/props", "/apply-template", "/tokenize"):
        upstream.routes[path] = error(404, "File Not Found", "not_found_error")
    upstream.decide = once_cached(EMPTY)
    assert repro(upstream) == ExitCode.OK
    assert upstream.chats[-1].body["messages"][-1]["role"] == "tool"


def test_a_server_that_ends_at_a_call_is_unreachable_and_the_table_is_printed(
    upstream: FaultUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    healthy = once_cached(answers("fine"))

    def decide(body: Any) -> Script:
        if body["cache_prompt"]:
            upstream._loop.call_soon_threadsafe(upstream._server.close)
            return Script(drops=True)
        return healthy(body)

    upstream.decide = decide
    assert repro(upstream) == ExitCode.UNREACHABLE
    out = capsys.readouterr().out
    assert "UNREACHABLE" in out
    assert "cache off" in out


def test_a_server_that_loads_is_refused(upstream: FaultUpstream, capsys: pytest.CaptureFixture[str]) -> None:
    upstream.routes["/props"] = loading()
    assert repro(upstream) == ExitCode.REFUSED
    assert "Loading model" in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_prints_what_was_measured(upstream: FaultUpstream) -> None:
    healthy = once_cached(answers("fine"))
    upstream.decide = lambda body: Script(hangs=True) if body["cache_prompt"] else healthy(body)
    command = [sys.executable, "-m", "specdash", "repro-empty", "--url", upstream.url, "--turns", "2", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ.copy())
    try:
        upstream.wait_chats(4)
        process.send_signal(signal.SIGINT)
        out, complaint = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == ExitCode.INTERRUPTED
    assert b"Traceback" not in complaint
    found = json.loads(out)
    assert found["outcome"] == "interrupted"
    assert [call["cache_on"] for call in found["calls"]] == [None, None]
    assert all(call["cache_off"]["content_chars"] for call in found["calls"])


@pytest.mark.engine
def test_a_real_server_uses_its_cache_and_answers_every_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = build(tmp_path)
    env = {
        **engine_env("xllamacpp"),
        "LLAMA_MODEL": str(models["target"]),
        "LLAMA_CTX_SIZE": "8192",
        "LLAMA_PARALLEL": "2",
    }
    with running_backend(env, tmp_path / "run") as backend:
        code = main(["repro-empty", "--url", backend.url, "--tool-chars", "300", "--max-tokens", "8", "--json"])
    found = told(capsys)
    assert (code, found["outcome"]) == (ExitCode.FAILED, "not_reproduced")
    assert [call["cache_off"]["cached_tokens"] for call in found["calls"]] == [0] * 6
    cached = [call["cache_on"]["cached_tokens"] for call in found["calls"]]
    assert cached == sorted(set(cached))
    counted = [call["prompt_tokens"] for call in found["calls"]]
    assert counted == [call["cache_off"]["prompt_tokens"] for call in found["calls"]]
