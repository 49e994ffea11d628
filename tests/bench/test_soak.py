"""`specdash bench soak`: its judgement of turns, its figures, and its verdict on real proxies."""

import io
import json
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from specdash.bench.load.messages import TurnSeen, call_fault, visible_fault
from specdash.bench.soak import (
    TOOLS,
    ProcessLook,
    SoakReport,
    SoakWatch,
    WatchedProcess,
    body,
    judged,
    kind,
    markdown,
    over_time,
    windows,
)
from specdash.bench.soak import soak as run_soak
from specdash.cli.main import main
from specdash.core.errors import ExitCode
from support.fault_server import free_port
from support.fault_upstream import FaultUpstream
from support.proxy_process import running_proxy
from support.upstream_script import Script, answers, error, tool_turn
from support.waiting import until

GOOD = (("read_file", {"path": "a"}),)


def report(*seen: TurnSeen) -> SoakReport:
    return SoakReport(tuple(judged(number, turn_seen) for number, turn_seen in enumerate(seen)))


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
    """The command, in this process: starting a new one takes longer than most of these tests."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(["bench", "soak", "--timeout", "20", *options])
    return subprocess.CompletedProcess(options, code, out.getvalue(), err.getvalue())


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


class Leaky:
    """A process that opens descriptors and takes memory, or does not."""

    def __init__(self, *, leaks: bool) -> None:
        body = "held.append((open('/dev/null'), bytearray(65536)))" if leaks else "pass"
        code = f"import time\nheld = []\nprint('up', flush=True)\nwhile True:\n    {body}\n    time.sleep(0.005)"
        self.process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)

    def __enter__(self) -> int:
        assert self.process.stdout is not None
        self.process.stdout.readline()
        return self.process.pid

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=10)


def test_a_process_is_looked_at_and_its_restart_noticed() -> None:
    with Leaky(leaks=False) as second:
        pids: dict[str, int] = {}
        with Leaky(leaks=True) as first:
            pids["proxy"] = first
            with SoakWatch(lambda: pids, 0.02) as watch:
                until(lambda: len(watch.watched[0].looks) >= 20)
                looks = list(watch.watched[0].looks)
                pids["proxy"] = second
                watch.watched[0].gone = True
                until(lambda: watch.watched[0].pid == second and bool(watch.watched[0].looks))
    assert looks[-1].descriptors is not None
    assert looks[0].descriptors is not None
    assert looks[-1].descriptors > looks[0].descriptors
    assert looks[-1].memory > 0
    assert (watch.watched[0].restarts, watch.watched[0].pid) == (1, second)


def test_a_process_that_ends_is_said_to_have_ended() -> None:
    with Leaky(leaks=False) as pid:
        watch = SoakWatch(lambda: {"proxy": pid}, 0.02)
        watch.__enter__()
    until(lambda: watch.watched[0].gone)
    watch.__exit__()


def test_what_processes_held_is_in_the_report() -> None:
    looks = [ProcessLook(at * 10.0, 2**20 * memory, 20 + at, 4) for at, memory in enumerate((100, 130, 120))]
    turns = report(TurnSeen(1.0, text="Fine.", stop_reason="end_turn")).turns
    made = SoakReport(turns, (WatchedProcess("proxy", 1, 0.0, looks),))
    process = json.loads(json.dumps(made.as_json(), allow_nan=False))["processes"][0]
    assert process["memory"] == {"looks": 3, "first": 100 * 2**20, "last": 120 * 2**20, "most": 130 * 2**20}
    assert (process["descriptors"]["first"], process["descriptors"]["most"]) == (20, 22)
    assert "100.0 to 120.0 MiB, most 130.0" in markdown(made)


def test_a_proxy_that_is_gone_is_not_asked_thousands_of_times() -> None:
    found = run_soak(f"http://127.0.0.1:{free_port()}", 10_000, key=None, timeout=5, until=time.monotonic() + 1.5)
    assert 4 < len(found.turns) < 10
    assert found.error_rate == 1


def test_speeds_are_told_over_time() -> None:
    turns = [
        replace(judged(1, TurnSeen(1.0, ttft_s=number / 100, calls=GOOD, output_tokens=10)), at=1e9 + number * 10)
        for number in range(120)
    ]
    found = windows(turns)
    assert [soak_window.turns for soak_window in found] == [10] * 12
    assert found[0].ttft_p50_s == pytest.approx(0.045)
    assert found[-1].ttft_p95_s == pytest.approx(1.1855)
    assert all(soak_window.output_tok_s == 10 for soak_window in found)
    assert len(over_time(SoakReport(tuple(turns)))) == 13


def test_of_very_many_turns_only_those_at_fault_are_told_one_by_one() -> None:
    turns = [judged(1, TurnSeen(1.0, calls=GOOD)) for _ in range(1500)]
    bad = judged(1, TurnSeen(1.0, error="HTTP 500: boom"))
    assert len(SoakReport((*turns, bad)).as_json()["detail"]) == 1
    assert SoakReport(()).as_json()["turns"] == 0


@pytest.mark.slow
def test_a_soak_by_the_clock_watches_its_proxy_and_leaves_a_report(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with FaultUpstream() as upstream:
        upstream.decide = answer
        with running_proxy(upstream.url, tmp_path, {"PROXY_MALFORMED_TOOL_STREAM_STRICT": "on"}) as proxy:
            done = soak("--url", proxy.url, "--for", "4s", "--out", str(out), "--pid", str(proxy.process.pid))
    assert done.returncode == ExitCode.OK, done.stderr
    told = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert 3 < told["duration_s"] < 15
    assert {process["role"] for process in told["processes"]} == {"proxy", f"process {proxy.process.pid}"}
    assert told["processes"][0]["memory"]["most"] > 0
    assert {"report.md", "proxy.csv"} <= {path.name for path in out.iterdir()}
    lines = (out / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == told["turns"]
    assert "verdict             passed" in done.stdout


@pytest.mark.slow
def test_ctrl_c_keeps_what_the_soak_has(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with FaultUpstream() as upstream:
        upstream.decide = answer
        with running_proxy(upstream.url, tmp_path) as proxy:
            command = [sys.executable, "-m", "specdash", "bench", "soak", "--url", proxy.url, "--for", "1h"]
            process = subprocess.Popen([*command, "--out", str(out), "--json"], stdout=subprocess.PIPE, text=True)
            until(lambda: (out / "samples.jsonl").exists())
            process.send_signal(signal.SIGINT)
            stdout, _ = process.communicate(timeout=30)
    assert process.returncode == ExitCode.INTERRUPTED
    told = json.loads(stdout)
    assert told["interrupted"]
    assert told["turns"] >= 1
    assert "stopped before the end" in (out / "report.md").read_text(encoding="utf-8")


@pytest.mark.engine
def test_the_demo_soaks_the_real_engine() -> None:
    done = soak("--demo", "--json")
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    seen = json.loads(done.stdout)
    assert seen["turns"] == 10
    assert seen["stop_reasons"]["tool_use"] >= 5


# What counts as broken tool syntax in visible text, and what makes a call unusable.


BROKEN = [
    '<tool_call>\n{"name": "read_file"',
    "I will read it.\n<function=read_file>\n<parameter=path>a.py",
    "<parameter=path>\na.py",
    '<invoke name="read_file">',
    "text of the file\n</parameter>",
    "and so on</parameter>\n</function>",
    "done </tool_call>",
    "</think>\nNow the answer",
    '{"name": "read_file", "arguments": {"path": "a"}}',
    "[TOOL_CALLS] read_file",
]
SOUND = [
    "",
    "The file is empty.",
    "Use the `<tool_call>` tag, and close it with `</tool_call>`.",
    "The tags <tool_call> and </tool_call> stand around a call.",
    "```xml\n<tool_call>\n</tool_call>\n```",
    "~~~\n</parameter>\n~~~\nThat is all.",
    "```\n</parameter>",
    "if a < b and c > d: pass",
    '{"name": "Ada", "age": 36}',
    '{"name": "read_file"}',
    "The HTML has a <parameter> element inside.",
]


@pytest.mark.parametrize("text", BROKEN)
def test_broken_tool_syntax_is_seen(text: str) -> None:
    assert visible_fault(text, TOOLS) is not None


@pytest.mark.parametrize("text", SOUND)
def test_prose_and_code_about_tags_is_no_fault(text: str) -> None:
    assert visible_fault(text, TOOLS) is None


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("read_file", {"path": "a"}, None),
        ("read_file", {"path": "a", "limit": 3}, None),
        ("read_file", {"path": "a", "more": [1]}, None),
        ("read_file", {"path": "has </parameter> in it"}, None),
        ("read_file", {}, "path is missing"),
        ("read_file", {"path": 5}, "path is of the wrong type"),
        ("read_file", {"path": "a", "limit": "3"}, "limit is of the wrong type"),
        ("read_file", {"path": "a", "limit": True}, "limit is of the wrong type"),
        ("read_file", None, "no object"),
        ("nope", {}, "unknown tool"),
    ],
)
def test_a_call_is_judged_by_its_schema(name: str, arguments: Any, said: str | None) -> None:
    fault = call_fault(name, arguments, TOOLS)
    assert fault is None if said is None else fault is not None and said in fault
