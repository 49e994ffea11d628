"""`specdash smoke` as an operator and a CI job use it: on scripted faults, and on real servers."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from specdash.cli.main import main
from specdash.core.errors import ExitCode
from support import tiny_models
from support.engines import engine_env, running_backend
from support.fault_server import FaultServer, hangs, says
from support.scripted_llama import Behaviour, ScriptedLlama
from support.waiting import until


def smoke(server: ScriptedLlama, *words: str) -> int:
    return main(["smoke", "--url", server.url, *words])


def verdicts(text: str) -> dict[str, str]:
    """Status by check, of the text that is printed."""
    rows = [line for line in text.splitlines() if line[:4] in ("PASS", "FAIL", "WARN", "SKIP") and len(line) > 4]
    return {row[4:17].strip(): row[:4] for row in rows}


def test_a_healthy_server_passes_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedLlama() as server:
        assert smoke(server) == ExitCode.OK
    printed = capsys.readouterr().out
    assert set(verdicts(printed).values()) == {"PASS"}, printed
    assert printed.splitlines()[-1] == "PASS"
    sent = [body for body in server.bodies if "messages" in body]
    assert {body["stream"] for body in sent} == {True, False}
    first = sent[0]["messages"]
    assert sum(body["messages"] == first for body in sent) == 5
    longest = max(len(body["messages"][0]["content"]) for body in sent)
    assert longest > 1.3 * 512, "a token a letter here"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_that_is_stopped_before_an_answer_has_passed_nothing(number: int) -> None:
    routes = {"/health": says(200, '{"status":"ok"}'), "/v1/chat/completions": hangs()}
    with FaultServer(routes) as server:
        command = [sys.executable, "-m", "specdash", "smoke", "--url", server.url]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        until(lambda: server.count("/v1/chat/completions"), 60)
        process.send_signal(number)
        printed, _ = process.communicate(timeout=30)
    assert process.returncode == ExitCode.INTERRUPTED
    assert "PASS" not in printed
    assert verdicts(printed)["answers"] == "SKIP"
    assert printed.splitlines()[-1].startswith("STOPPED")


@pytest.mark.parametrize(
    ("behaviour", "failing"),
    [
        (Behaviour(accepted=0), {"acceptance", "cache path", "long prompt"}),
        (Behaviour(restarts_at=4), {"instance"}),
    ],
)
def test_each_fault_fails_its_check_and_only_what_it_touches(
    behaviour: Behaviour, failing: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with ScriptedLlama(behaviour) as server:
        assert smoke(server) == ExitCode.FAILED
    printed = capsys.readouterr().out
    assert {name for name, status in verdicts(printed).items() if status == "FAIL"} == failing, printed
    assert printed.splitlines()[-1] == "FAIL"


@pytest.mark.slow
def test_a_hanging_server_is_left_after_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedLlama(Behaviour(hangs_from=12)) as server:
        assert smoke(server, "--timeout", "1") == ExitCode.FAILED
    assert "no answer within 1.0 s" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("speculative", "words", "code"),
    [
        (False, ("--expect-speculation",), ExitCode.FAILED),
        (True, ("--no-expect-speculation",), ExitCode.FAILED),
        (None, (), ExitCode.OK),
    ],
)
def test_speculation_is_expected_where_that_is_said(
    speculative: bool | None, words: tuple[str, ...], code: ExitCode
) -> None:
    with ScriptedLlama(Behaviour(speculative=speculative)) as server:
        assert smoke(server, *words) == code


@pytest.mark.slow
def test_zero_accepted_in_few_drafts_is_asked_about_again_until_it_tells(capsys: pytest.CaptureFixture[str]) -> None:
    behaviour = Behaviour(accepted=0, drafted=4, n_ctx=400)
    with ScriptedLlama(behaviour) as server:
        assert smoke(server, "-n", "1") == ExitCode.FAILED
    printed = capsys.readouterr().out
    assert verdicts(printed)["acceptance"] == "FAIL"
    assert verdicts(printed)["long prompt"] == "SKIP"
    assert any(body["messages"][0]["content"].startswith("1. ") for body in server.bodies if "messages" in body)


def test_json_has_figures_and_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedLlama(Behaviour(accepted=0)) as server:
        assert smoke(server, "--json", "--max-tokens", "32") == ExitCode.FAILED
    printed = capsys.readouterr().out
    told = json.loads(printed)
    assert told["passed"] is False
    checks = {check["name"]: check for check in told["checks"]}
    assert checks["acceptance"]["figures"]["accepted"] == 0
    assert checks["acceptance"]["figures"]["drafted"] == sum(
        completion["drafted"] for completion in told["completions"]
    )
    assert "flour" not in printed


def backend_env(directory: Path, **values: str) -> dict[str, str]:
    target = tiny_models.write_llama(directory / "target.gguf", layers=2)
    common = {"LLAMA_MODEL": str(target), "LLAMA_CTX_SIZE": "8192", "LLAMA_THREADS": "1", "LLAMA_ARG_N_PARALLEL": "2"}
    return {**common, **engine_env("xllamacpp"), **values}


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize(("wrong_every", "code"), [(1, ExitCode.FAILED), (8, ExitCode.OK)])
def test_real_drafters_pass_and_a_useless_one_fails(
    wrong_every: int, code: ExitCode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = tiny_models.write_llama(tmp_path / "draft.gguf", wrong_every=wrong_every)
    values = {"LLAMA_SPEC_TYPE": "draft-simple", "LLAMA_DRAFT_MAX": "4", "LLAMA_DRAFT_MODEL": str(draft)}
    with running_backend(backend_env(tmp_path, **values), tmp_path / "run") as running:
        assert main(["smoke", "--url", running.url]) == code
    found = verdicts(capsys.readouterr().out)
    assert found["acceptance"] == ("FAIL" if wrong_every == 1 else "PASS")
    assert found["instance"] == found["answers"] == found["output"] == "PASS"


@pytest.mark.engine
@pytest.mark.slow
def test_recurrent_targets_and_n_gram_drafts_pass(tmp_path: Path) -> None:
    draft = tiny_models.write_llama(tmp_path / "draft.gguf", wrong_every=8)
    mamba = {
        "LLAMA_MODEL": str(tiny_models.write_mamba(tmp_path / "mamba.gguf")),
        "LLAMA_SPEC_TYPE": "draft-simple",
        "LLAMA_DRAFT_MODEL": str(draft),
    }
    for name, values in (("mamba", mamba), ("ngram", {"LLAMA_SPEC_TYPE": "ngram-mod"})):
        with running_backend(backend_env(tmp_path, **values), tmp_path / name) as running:
            assert main(["smoke", "--url", running.url]) == ExitCode.OK


@pytest.mark.engine
@pytest.mark.slow
def test_a_server_that_is_started_anew_in_the_middle_is_another_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is back soon, so that requests meet another server and not a closed port.
    env = backend_env(tmp_path, LLAMA_SPEC_TYPE="ngram-mod")
    result: list[int] = []
    with running_backend(env, tmp_path / "run") as running:
        monkeypatch.setenv("XDG_STATE_HOME", str(running.state))
        swapped = threading.Thread(target=swap_when_busy, args=(running,), daemon=True)
        swapped.start()
        result.append(main(["smoke", "--url", running.url, "-n", "60", "--max-tokens", "200"]))
        swapped.join(30)
    printed = capsys.readouterr().out
    assert result == [ExitCode.FAILED], printed
    assert verdicts(printed)["instance"] == "FAIL", printed


def swap_when_busy(running: Any) -> None:
    """The runner starts its engine anew once it has served a few requests."""
    until(lambda: not (max((slot.get("id_task", 0) for slot in running.get("/slots")), default=0) < 400), 20)
    running.process.send_signal(signal.SIGUSR1)
