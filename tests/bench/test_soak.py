"""`specdash bench soak`: its judgement of turns, its figures, and its verdict on real proxies."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from specdash.bench.messages import TurnSeen
from specdash.bench.soak import Report, body, judged, kind
from specdash.core.errors import ExitCode
from support.fault_server import free_port
from support.fault_upstream import FaultUpstream
from support.proxy_process import running_proxy
from support.upstream_script import Script, answers, error, tool_turn

if TYPE_CHECKING:
    from pathlib import Path

GOOD = (("read_file", {"path": "a"}),)


def report(*seen: TurnSeen) -> Report:
    return Report(tuple(judged(number, one) for number, one in enumerate(seen)))


def test_turns_alternate_and_repeat_exactly() -> None:
    assert [kind(number) for number in range(4)] == ["stress", "normal", "stress", "normal"]
    assert body(7) == body(7)
    assert len({json.dumps(body(number)) for number in range(20)}) >= 10


def test_a_clean_run_passes() -> None:
    seen = report(
        TurnSeen(1.0, text="Fine.", stop_reason="end_turn"), TurnSeen(2.0, calls=GOOD, stop_reason="tool_use")
    )
    assert seen.passed
    assert (seen.error_rate, seen.malformed_visible_rate, seen.tool_success_rate) == (0, 0, 1)
    assert seen.stop_reasons == {"end_turn": 1, "tool_use": 1}


@pytest.mark.parametrize(
    ("number", "seen"),
    [
        (0, TurnSeen(1.0, error="HTTP 500: boom")),
        (0, TurnSeen(1.0, text="oh\n</parameter>", stop_reason="end_turn")),
        (1, TurnSeen(1.0, text="I would read it.", stop_reason="end_turn")),
        (1, TurnSeen(1.0, calls=(("read_file", {}),), stop_reason="tool_use")),
        (1, TurnSeen(1.0, calls=(("read_file", None),), stop_reason="max_tokens")),
        (0, TurnSeen(1.0, calls=(("nope", {}),), stop_reason="tool_use")),
    ],
)
def test_one_bad_turn_fails_the_run(number: int, seen: TurnSeen) -> None:
    turns = [TurnSeen(1.0, calls=GOOD, stop_reason="tool_use") for _ in range(2)]
    turns[number] = seen
    assert not report(*turns).passed


def test_quantiles_are_of_the_nearest_rank() -> None:
    seen = report(*(TurnSeen(float(second), calls=GOOD) for second in range(1, 21)))
    assert (seen.duration(0.5), seen.duration(0.95)) == (10.0, 19.0)


def soak(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specdash", "bench", "soak", "--timeout", "20", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def answer(chat: Any) -> Script:
    """A model that breaks its tool syntax under stress, until it is asked again."""
    if "Read the file" in chat["messages"][-1]["content"]:
        return tool_turn("read_file", {"path": "a.py"})
    if chat.get("tool_choice") == "required":
        return tool_turn("run_command", {"command": "ls"})
    return answers("<function=read_file>\n", "<parameter=pa", "\n</parameter>\n</function>")


def test_a_proxy_with_guardrails_passes(tmp_path: Path) -> None:
    with FaultUpstream() as upstream:
        upstream.decide = answer
        with running_proxy(upstream.url, tmp_path, {"PROXY_MALFORMED_TOOL_STREAM_STRICT": "on"}) as proxy:
            done = soak("--url", proxy.url, "--json")
            seen = json.loads(done.stdout)
            assert done.returncode == ExitCode.OK, seen
            assert (seen["error_rate"], seen["malformed_visible_rate"], seen["tool_success_rate"]) == (0, 0, 1)
            assert proxy.context()["status"]["session_count"] == 1
            assert proxy.context()["status"]["counters"]["malformed_tool:recovered"] == 5


def test_a_proxy_without_them_fails(tmp_path: Path) -> None:
    with FaultUpstream() as upstream:
        upstream.decide = answer
        with running_proxy(upstream.url, tmp_path, {"PROXY_MALFORMED_TOOL_GUARDRAIL": "off"}) as proxy:
            done = soak("--url", proxy.url)
    assert done.returncode == ExitCode.FAILED
    assert "malformed visible   50.0 %" in done.stdout
    assert "failed" in done.stdout


def test_errors_fail_the_run(tmp_path: Path) -> None:
    with FaultUpstream() as upstream:
        upstream.otherwise = error(500, "Compute error.", "server_error")
        with running_proxy(upstream.url, tmp_path) as proxy:
            done = soak("--url", proxy.url, "--turns", "3")
    assert done.returncode == ExitCode.FAILED
    assert "error rate          100.0 %" in done.stdout
    assert "Compute error." in done.stderr


def test_no_proxy_is_one_clear_line() -> None:
    done = soak("--url", f"127.0.0.1:{free_port()}")
    assert done.returncode == ExitCode.UNREACHABLE
    assert "no proxy answers at" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "options", [("--turns", "0"), ("--timeout", "0"), ("--demo", "--url", "x"), ("--key-env", "NO_KEY_X")]
)
def test_what_cannot_be_meant_is_refused(options: tuple[str, ...]) -> None:
    done = soak(*options)
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.count("\n") == 1


@pytest.mark.engine
def test_the_demo_soaks_the_real_engine() -> None:
    done = soak("--demo", "--json")
    seen = json.loads(done.stdout)
    assert done.returncode == ExitCode.OK, seen
    assert seen["turns"] == 10
    assert seen["stop_reasons"]["tool_use"] >= 5
