"""`specdash bench live` as an operator uses it: on a scripted server, and on the real one."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdash.cli.main import main
from specdash.core.errors import ExitCode
from support.fault_server import free_port
from support.fault_upstream import FaultUpstream
from support.outside import say
from support.upstream_script import error, queued, timed
from support.waiting import until

SECRET = "nobody must see this text"
QUICK = ("--runs", "2", "--max-tokens", "32")


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    file = tmp_path / "prompts.jsonl"
    rows = [{"id": f"a{n}", "kind": "first" if n % 2 else "second", "prompt": f"{SECRET} {n}"} for n in range(4)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


def live(server: FaultUpstream, prompts: str, out: Path, *words: str) -> int:
    return main(["bench", "live", "--url", server.url, "--prompts", prompts, "--out", str(out), *QUICK, *words])


def report(out: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return told


def test_it_prints_a_table_and_leaves_report_and_samples(
    prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with FaultUpstream(timed()) as server:
        assert live(server, prompts, out) == ExitCode.OK
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert "scripted.gguf, build b11549-scripted" in lines[0]
    assert "4 prompts (a file) × 2 runs, 1 at a time, at most 32 tokens, temperature 0, seed 1" in lines[1]
    assert [line.split()[:2] for line in lines if line.startswith(("first", "second", "all"))] == [
        ["first", "4"],
        ["second", "4"],
        ["all", "8"],
    ]
    assert "cache off: every request began differently" in printed
    assert lines[-1] == f"results: {out}"
    told = report(out)
    assert told["schema"] == "specdash.bench.live/1"
    assert (told["complete"], told["interrupted"], told["planned"]) == (True, False, 8)
    overall = told["figures"]["all"]
    assert (overall["accepted"], overall["drafted"], overall["tokens"]) == (160, 320, 256)
    assert overall["acceptance"]["value"] == 0.5
    assert overall["decode_tokens_per_s"]["value"] == pytest.approx(31 / 0.02)
    samples = [json.loads(line) for line in (out / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(samples) == 8
    assert {(sample["prompt"], sample["run"]) for sample in samples} == {
        (f"a{n}", run) for n in range(4) for run in range(2)
    }
    assert "| first | 4 |" in (out / "report.md").read_text(encoding="utf-8")


def test_results_hold_no_text_of_prompts_and_answers_and_are_for_the_owner_alone(
    prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    monkeypatch.setenv("BENCH_KEY", "sk-secret-key")
    with FaultUpstream(timed(), key="sk-secret-key") as server:
        assert live(server, prompts, out, "--api-key-env", "BENCH_KEY") == ExitCode.OK
    for file in out.iterdir():
        content = file.read_text(encoding="utf-8")
        assert SECRET not in content, file
        assert "sk-secret" not in content, file
        assert file.stat().st_mode & 0o077 == 0, file


def test_json_is_the_report_and_the_folder(prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FaultUpstream(timed()) as server:
        assert live(server, prompts, tmp_path / "out", "--json") == ExitCode.OK
    told = json.loads(capsys.readouterr().out)
    assert told.pop("folder") == str(tmp_path / "out")
    assert told == report(tmp_path / "out")


def test_nobody_there_is_exit_4_and_leaves_nothing(prompts: str, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    out = tmp_path / "out"
    code, _, err = say("bench", "live", "--url", url, "--prompts", prompts, "--out", str(out))
    assert code == ExitCode.UNREACHABLE
    assert f"{url} does not answer (nothing listens there)" in err
    assert not out.exists()


def test_a_wrong_model_is_exit_3_and_names_those_there_are(
    prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FaultUpstream(timed(), models=("/models/scripted.gguf",)) as server:
        assert live(server, prompts, tmp_path / "out", "--model", "other") == ExitCode.BAD_INPUT
    assert "no model 'other' at" in (said := capsys.readouterr().err)
    assert "there is scripted.gguf" in said


def test_an_empty_prompt_file_is_exit_3(tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.touch()
    code, _, err = say("bench", "live", "--url", "http://127.0.0.1:1", "--prompts", str(empty))
    assert code == ExitCode.BAD_INPUT
    assert "has no prompt; write one a line" in err


def test_when_all_runs_fail_it_is_exit_1_and_there_are_no_figures(
    prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with FaultUpstream(error(500, "no", "server_error"), [timed()]) as server:
        assert live(server, prompts, out) == ExitCode.FAILED
    caught = capsys.readouterr()
    assert "every request failed: HTTP 500: no" in caught.err
    assert "tok/s" not in caught.out
    told = report(out)
    assert told["figures"] == {}
    assert told["faults"] == {"server error": 5}


ODD: dict[str, tuple[Callable[[], FaultUpstream], tuple[str, ...], tuple[str, ...]]] = {
    "failures": (
        lambda: FaultUpstream(timed(), [*[timed()] * 3, error(503, "no", "unavailable_error")]),
        (),
        ("1 request failed (1 busy): HTTP 503: no", "8 (1 failed)"),
    ),
    "cached": (lambda: FaultUpstream(timed(cached=64)), (), ("cache off was asked for, but 8 requests used one",)),
    "learnt": (
        lambda: FaultUpstream(timed(drafted=30, accepted=24), [timed(drafted=10, accepted=8)] * 5),
        (),
        ("25.0 % of the tokens came from drafts in the first run and 75.0 % later",),
    ),
    "too slow": (
        lambda: FaultUpstream(queued(timed(decode_s=0.1))),
        ("--rate", "100", "--constant"),
        ("offered 100 requests a second", "the server cannot keep up", "latency p50 / p95"),
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_what_makes_figures_odd_is_said_beside_them(
    name: str, prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, words, said = ODD[name]
    with made() as server:
        assert live(server, prompts, tmp_path / "out", *words) == ExitCode.OK
    printed = capsys.readouterr().out
    assert all(line in printed for line in said)
    decode = report(tmp_path / "out")["figures"]["all"]["decode_tokens_per_s"]
    assert (decode is None) is (name == "cached"), "speeds of what was cached are left out"


def test_a_folder_with_something_in_it_is_not_written_into(
    prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FaultUpstream(timed()) as server:
        assert live(server, prompts, tmp_path) == ExitCode.BAD_INPUT
        assert "is not empty; name a new folder" in capsys.readouterr().err
        assert live(server, prompts, Path(prompts)) == ExitCode.BAD_INPUT
        assert "is a file; name a folder" in capsys.readouterr().err
        assert not server.bodies


def _stopped_after(answers: int, url: str, prompts: str, out: Path, number: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specdash", "bench", "live", "--url", url, "--prompts", prompts, "--out", str(out)]
    process = subprocess.Popen([*command, "--runs", "50"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    samples = out / "samples.jsonl"
    until(lambda: samples.exists() and len(samples.read_bytes().splitlines()) >= answers, 60)
    process.send_signal(number)
    printed, said = process.communicate(timeout=60)
    return subprocess.CompletedProcess(command, process.returncode, printed, said)


@pytest.mark.slow
def test_ctrl_c_keeps_and_reports_what_was_measured(prompts: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with FaultUpstream(timed()) as server:
        ended = _stopped_after(5, server.url, prompts, out, signal.SIGINT)
    assert ended.returncode == ExitCode.INTERRUPTED, ended.stderr
    told = report(out)
    measured = told["figures"]["all"]["requests"]
    assert (told["interrupted"], told["complete"]) == (True, False)
    assert 5 <= measured < told["planned"] == 200
    assert len((out / "samples.jsonl").read_bytes().splitlines()) == measured
    assert f"{measured} of 200 requests were made" in ended.stdout
    assert "Traceback" not in ended.stderr
