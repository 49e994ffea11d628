"""`specdash baseline` as an operator uses it, on real engines."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from insight.scenes import baseline
from specdash.backend import demo
from specdash.backend.baseline import add_baseline, read_baselines
from specdash.backend.launch import read_env_file
from specdash.bench.engines import check_memory, plan_beside
from specdash.cli.main import main
from specdash.collect.hub import Hub
from specdash.core.errors import ExitCode, RefusedError
from specdash.core.records import BaselineMethod
from specdash.core.target import Target
from specdash.insight.picture import Basis, Picture
from specdash.insight.state import TargetState
from support.asking import ask
from support.engines import engine_env, running_backend
from support.outside import say
from support.waiting import until

QUICK = ("--context", "64", "--concurrency", "1", "--requests", "3", "--tokens", "32")


def env_file(directory: Path, **more: str) -> Path:
    file = directory / "backend.env"
    text = demo.env_text(port=1, log=directory / "server.log", spec_types=("draft-simple",), engine="xllamacpp")
    file.write_text(text + "".join(f"{key}={value}\n" for key, value in more.items()), encoding="utf-8")
    return file


def test_a_server_that_is_not_there_is_unreachable() -> None:
    code, _, err = say("baseline", "record", "--url", "http://127.0.0.1:1")
    assert code == ExitCode.UNREACHABLE
    assert "does not answer" in err


def test_recorded_ones_are_listed() -> None:
    add_baseline(baseline())
    code, out, _ = say("baseline", "list")
    assert code == ExitCode.OK
    assert "m.gguf" in out


def test_a_second_server_that_does_not_fit_is_refused_and_the_running_one_is_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psutil

    file = str(env_file(tmp_path))
    values = read_env_file(file)
    plan_beside(values, file, tmp_path / "log", "baseline", speculates=False)
    check_memory(values)
    little = psutil.virtual_memory()._replace(available=1024)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: little)
    with pytest.raises(RefusedError, match="--url URL"):
        check_memory(values)


def test_the_server_it_would_start_has_the_same_settings_but_for_drafts(tmp_path: Path) -> None:
    file = env_file(tmp_path, LLAMA_ARG_SPEC_SYNTH_LEN="2", LLAMA_EXTRA_ARGS="'--spec-draft-p-min 0.5 --threads 1'")
    plan = plan_beside(read_env_file(file), str(file), tmp_path / "log", "baseline", speculates=False)
    told = " ".join((*plan.argv, *plan.rendered, *plan.environment({}))).lower()
    # The checkout itself may lie in a directory of such a name.
    told = told.replace(str(demo.bundled_model(demo.TARGET_MODEL).parent).lower(), "")
    assert "spec" not in told.replace("specdash", "")
    assert plan.settings.value("ctx-size") == demo.CONTEXT
    assert plan.settings.value("threads") == 1
    assert plan.settings.port not in (0, 1)


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_it_measures_on_an_engine_of_its_own_and_the_dashboard_compares_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = env_file(tmp_path)
    assert main(["baseline", "record", "--env-file", str(file), *QUICK, "--json"]) == ExitCode.OK
    (found,) = json.loads(capsys.readouterr().out)
    assert found["model"] == demo.TARGET_MODEL
    assert found["requests"] == 3
    assert found["low"] <= found["decode_rate"] <= found["high"]
    assert (found["context"], found["concurrency"], found["decode_tokens"]) == (64, 1, 32)
    known = read_env_file(tmp_path / "backend.env")
    values = {key: value for key, value in known.items() if key not in ("LLAMA_PORT", "LLAMA_LOG_FILE")}
    with running_backend(values, tmp_path) as running:
        target = Target(running.url, log=str(running.log))
        state = TargetState(target, rules=())
        with Hub(target, [state.apply], gpu=False, host=False):
            for _ in range(7):
                running.complete("def add(a, b):", 48)
            until(lambda: now_of(state).speedup.requests >= 7)
            picture = now_of(state)
    assert picture.speedup.basis is Basis.MEASURED
    assert picture.speedup.requests >= 7
    assert picture.speedup.low is not None
    assert [entry.type for entry in picture.speedup.by_type] == ["draft-simple"]


def now_of(state: TargetState) -> Picture:
    return state.picture(time.monotonic(), time.time(), 300.0)


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_running_server_is_measured_as_it_is_and_the_record_names_the_method(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = {"LLAMA_MODEL": str(demo.bundled_model(demo.TARGET_MODEL)), "LLAMA_THREADS": "1"}
    for types in ("ngram-simple", "none"):
        settings = {**common, **engine_env("xllamacpp"), "LLAMA_SPEC_TYPE": types}
        with running_backend(settings, tmp_path / types) as running:
            code = main(["baseline", "record", "--url", running.url, *QUICK[:4]])
        said = capsys.readouterr().err
        assert ("completions of two tokens" in said) is (types != "none")
        kept = [entry.method for entry in read_baselines()]
        if types == "none":
            assert BaselineMethod.WITHOUT in kept
        else:
            # Steps of a quarter of a millisecond, beside others' tests, may be too uneven to tell anything.
            assert kept == [BaselineMethod.TWO_TOKENS] or (code == ExitCode.BAD_INPUT and "steps without" in said)


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_ctrl_c_keeps_what_was_measured_and_leaves_no_engine(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "specdash", "baseline", "record", "--env-file", str(env_file(tmp_path))]
    with subprocess.Popen(
        [*argv, "--context", "32,64", "--concurrency", "1", "--tokens", "256", "--requests", "8"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stderr is not None
        url = process.stderr.readline().split(" on ")[1].strip()
        for line in process.stderr:
            if "1/2" in line:
                break
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(20) == ExitCode.INTERRUPTED, said
    assert "kept" in said
    assert {read_baseline.context for read_baseline in read_baselines()} >= {32}
    with pytest.raises(OSError, match="refused"):
        ask(url + "/health")
