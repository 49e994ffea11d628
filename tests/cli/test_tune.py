"""`specdash tune` as an operator uses it: on engines of its own, and on a service under the supervisor."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from specdash.backend import demo
from specdash.control.change import await_trial_end
from specdash.core.changes import ApplyKind, ApplyOutcome
from specdash.core.errors import ExitCode
from specdash.core.paths import tune_runs_dir
from specdash.system import files
from specdash.tune.run.status import Ending, RunState, TuneRun, newest_run
from support.deployment import Rig
from support.engines import llama_server_binary, write_env
from support.outside import say
from support.waiting import until

SMALL = ("--yes", "--busy-ok", "--each", "2", "--tokens", "32", "--ttft", "100")
BESIDE = [pytest.mark.llama_server, pytest.mark.slow, pytest.mark.timeout(300)]
SERVICE = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(300)]


def beside(test: Any) -> Any:
    for mark in BESIDE:
        test = mark(test)
    return test


def on_service(test: Any) -> Any:
    for mark in SERVICE:
        test = mark(test)
    return test


def own_env(directory: Path, **more: str) -> Path:
    """An env file of a real llama-server on the bundled models."""
    values = {
        "LLAMA_ENGINE": "llama-server",
        "LLAMA_BIN": llama_server_binary(),
        "LLAMA_MODEL": str(demo.bundled_model(demo.TARGET_MODEL)),
        "LLAMA_DRAFT_MODEL": str(demo.bundled_model(demo.DRAFT_MODEL)),
        "LLAMA_SPEC_TYPE": "draft-simple",
        "LLAMA_DRAFT_MAX": "4",
        "LLAMA_CTX_SIZE": "8192",
        "LLAMA_PARALLEL": "1",
        "LLAMA_THREADS": "1",
        "LLAMA_LOG_VERBOSITY": "4",
        **more,
    }
    return write_env(directory / "backend.env", values)


def own_engine(directory: Path, spec_type: str) -> tuple[str, ...]:
    """Options of a run beside the service, on an env file of the bundled model."""
    values = {"LLAMA_MODEL": str(demo.bundled_model(demo.TARGET_MODEL)), "LLAMA_SPEC_TYPE": spec_type}
    return "--beside", "--env-file", str(write_env(directory / "e.env", values))


def tune(*words: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "specdash", "tune", *words],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def run_of(env: dict[str, str] | None = None) -> TuneRun:
    found = newest_run(env or os.environ)
    assert found is not None
    return found


def test_without_a_service_nothing_can_be_tuned() -> None:
    code, _, err = say("tune", "--yes")
    assert code == ExitCode.SERVICE
    assert "no backend to change" in err


def test_before_the_first_run_there_is_nothing_to_tell() -> None:
    assert say("tune", "--status") == (ExitCode.OK, "nothing was tuned yet\n", "")
    assert say("tune", "--status", "--json") == (ExitCode.OK, "null\n", "")
    for option in ("--resume", "--abort", "--no-check", "--allow-warnings"):
        code, _, err = say("tune", option)
        assert (code, f"{option} was removed: " in err) == (ExitCode.USAGE, True)


@pytest.mark.parametrize(
    ("spec", "said"),
    [("none", "speculation is off"), ("ngram-cache", "its drafts have 8 tokens, always")],
)
def test_where_there_is_no_knob_the_plan_says_what_to_allow(spec: str, said: str, tmp_path: Path) -> None:
    own = own_engine(tmp_path, spec)
    code, _, told = say("tune", *own, "--dry-run")
    assert code == ExitCode.USAGE
    assert said in told
    assert "--allow-types all, or some of: ngram-simple" in told
    code, out, _ = say("tune", *own, "--dry-run", "--json")
    assert code == ExitCode.USAGE
    assert said in json.loads(out)["problem"]
    code, out, _ = say("tune", *own, "--dry-run", "--allow-types", "all")
    assert code == ExitCode.OK
    assert "LLAMA_SPEC_TYPE: " in out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--prompts", "empty.jsonl"), ExitCode.BAD_INPUT, "has no prompt"),
        (("--prompts", "missing.jsonl"), ExitCode.BAD_INPUT, "missing.jsonl"),
        (("--transcript", "missing.jsonl"), ExitCode.BAD_INPUT, "missing.jsonl"),
        (("--allow-types", "draft-mtp"), ExitCode.USAGE, "prediction (nextn) layers"),
        (("--prompts", "a", "--transcript", "b"), ExitCode.USAGE, "give one of them"),
    ],
)
def test_bad_input_ends_before_anything_is_touched(
    words: tuple[str, ...], code: ExitCode, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.jsonl").touch()
    own = own_engine(tmp_path, "ngram-mod")
    ended, _, err = say("tune", *own, "--yes", *words)
    assert ended == code
    assert said in err
    assert not tune_runs_dir(os.environ).exists()


def test_nobody_is_asked_where_there_is_no_terminal(tmp_path: Path) -> None:
    own = own_engine(tmp_path, "ngram-mod")
    code, _, told = say("tune", *own)
    assert code == ExitCode.USAGE
    assert "tune needs --yes" in told
    assert "points" in told


@beside
def test_a_small_tune_ends_with_a_report(tmp_path: Path) -> None:
    env = own_env(tmp_path, LLAMA_DRAFT_MAX="12")
    done = tune("--beside", "--env-file", str(env), *SMALL, "--restarts", "3")
    assert done.returncode in (ExitCode.OK, ExitCode.INCONCLUSIVE), done.stderr
    run = run_of()
    assert run.state is RunState.FINISHED
    assert [boot.result.failure for boot in run.boots] == [""] * len(run.boots)
    assert f"{len(run.boots)} of 3" in done.stderr
    told = json.loads((Path(run.directory) / "report.json").read_text())
    assert len(told["boots"]) == len(run.boots)
    outcome = run.end.outcome if run.end is not None else None
    assert outcome is not None
    assert outcome.improved is (done.returncode == ExitCode.OK)


@beside
def test_an_engine_that_never_comes_up_ends_without_a_recommendation(tmp_path: Path) -> None:
    env = own_env(tmp_path, LLAMA_EXTRA_ARGS="--no-such-flag-at-all")
    done = tune("--beside", "--env-file", str(env), *SMALL)
    assert done.returncode == ExitCode.FAILED
    assert "the settings in force cannot be measured" in done.stderr
    assert "apply it" not in done.stderr
    run = run_of()
    assert run.end is not None
    assert run.end.outcome is None


@beside
def test_nothing_of_engines_beside_outlives_a_run_that_is_killed(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "specdash", "tune", "--beside", "--env-file", str(own_env(tmp_path)), *SMALL],
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )
    until(lambda: measured_boots() >= 1, 120)
    ours = psutil.Process(process.pid).children(recursive=True)
    assert list(temporary.glob("specdash-tune-*"))
    process.kill()
    process.wait(10)
    until(lambda: not any(our.is_running() and our.status() != psutil.STATUS_ZOMBIE for our in ours), 20)
    until(lambda: not list(temporary.glob("specdash-tune-*")))
    assert run_of().state is RunState.CUT_SHORT


@beside
def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    words = ("--beside", "--env-file", str(own_env(tmp_path)), *SMALL, "--restarts", "3")
    process = subprocess.Popen(
        [sys.executable, "-m", "specdash", "tune", *words], stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    )
    until(lambda: measured_boots() >= 1, 120)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED
    assert "what was measured is kept" in told
    first = run_of()
    assert first.end is not None
    assert first.end.ending is Ending.STOPPED
    assert "stopped: nothing is recommended" in (Path(first.directory) / "report.md").read_text()


def measured_boots(env: dict[str, str] | None = None) -> int:
    found = newest_run(env or os.environ)
    return len(found.boots) if found is not None else 0


@on_service
def test_the_service_ends_as_it_was_and_every_boot_was_an_ordinary_apply(rig: Rig) -> None:
    before = rig.file().read_bytes()
    done = rig.command("tune", *SMALL, "--restarts", "3", timeout=240)
    assert done.returncode in (ExitCode.OK, ExitCode.INCONCLUSIVE), done.stderr
    rig.assert_settled(version=before)
    run = run_of(rig.env)
    records = rig.records()[-len(run.boots) - 1 :]
    assert [record.outcome for record in records] == [ApplyOutcome.APPLIED] * (len(run.boots) + 1)
    assert records[-1].kind is ApplyKind.ROLLBACK
    assert all(boot.downtime_s is not None for boot in run.boots)
    assert "secret-of-the-rig" not in "".join(
        path.read_text() for path in Path(run.directory).iterdir() if path.is_file()
    )
    told = rig.command("tune", "--status")
    assert told.stdout.startswith("finished: the service backend of specdash-backend.env")


@on_service
def test_what_is_better_is_applied_where_that_was_wanted(rig: Rig) -> None:
    """Drafts that are far too long for what is accepted of them."""
    assert rig.command("apply", "--yes", "LLAMA_DRAFT_MAX=16").returncode == ExitCode.OK
    done = rig.command("tune", *SMALL, "--restarts", "6", "--apply", timeout=280)
    assert done.returncode == ExitCode.OK, done.stderr
    run = run_of(rig.env)
    assert run.end is not None
    assert run.end.in_force == "the chosen settings"
    values = rig.values()
    assert all(values.get(key, "") == value for key, value in run.end.settings)
    assert int(values.get("LLAMA_DRAFT_MAX") or 0) < 16
    assert rig.records()[-1].kind is ApplyKind.APPLY


@on_service
def test_after_a_killed_run_the_settings_are_as_they_were(rig: Rig) -> None:
    """The runner puts the settings back by itself: `test_bench_ab.py`, as for any trial."""
    before = rig.file().read_bytes()
    process = rig.start_command("tune", *SMALL, "--restarts", "3")
    until(lambda: run_is_of(rig, process.pid) and measured_boots(rig.env) >= 2, 120)
    process.kill()
    process.communicate(timeout=10)
    assert run_of(rig.env).state is RunState.CUT_SHORT
    await_trial_end(rig.env)
    # It may have been killed while it wrote down what goes on.
    files.sweep(Path(run_of(rig.env).directory))
    rig.assert_settled(version=before)
    assert rig.command("tune", "--status").stdout.startswith("cut short: ")


def run_is_of(rig: Rig, pid: int) -> bool:
    found = newest_run(rig.env)
    return found is not None and found.head.pid == pid
