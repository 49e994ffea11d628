"""`specdash verify` as an operator uses it: on servers that differ by script, and on real engines."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from specdash.cli.main import main
from specdash.core.errors import ExitCode
from support import tiny_models
from support.engines import llama_server_binary, with_draft, write_env
from support.outside import say
from support.scripted_llama import Behaviour, ScriptedLlama, alternative, is_tied, successor
from support.sensitive_models import remembering, write_tied

PLAIN = Behaviour(speculative=False)
FEW = ("--tokens", "48")


def compared(candidate: Behaviour, *words: str, baseline: Behaviour = PLAIN) -> int:
    with ScriptedLlama(baseline) as scripted_llama, ScriptedLlama(candidate) as other:
        return main(["verify", "--url", other.url, "--baseline-url", scripted_llama.url, *FEW, *words])


def prompts_file(directory: Path, *texts: str) -> str:
    file = directory / "prompts.json"
    file.write_text(json.dumps(list(texts)), encoding="utf-8")
    return str(file)


def told(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_the_same_answers_are_identical(capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(Behaviour(), "--strict") == ExitCode.OK
    printed = capsys.readouterr().out
    assert "candidate, in parallel: 4 of 4 MATCH, 48 tokens each" in printed
    assert printed.splitlines()[-1].startswith("IDENTICAL: all 12 answers")


def test_near_ties_that_fall_the_other_way_are_followed_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(Behaviour(flips=True), "--json") == ExitCode.OK
    found = told(capsys)
    assert found["verdict"] == "batch-shape effect"
    differing = [result for result in found["results"] if result["differences"]]
    assert differing
    for entry in differing:
        assert entry["judged"] == 48
        for each in entry["differences"]:
            assert each["near_tie"]
            assert abs(each["gap"]) == pytest.approx(0.02)
            before = int(each["before"].split(" t")[-1])
            assert is_tied(before)
            assert (each["expected"], each["got"]) == (successor(before), alternative(before))
    assert compared(Behaviour(flips=True), "--strict") == ExitCode.FAILED
    assert compared(Behaviour(flips=True), "--epsilon", "0.01") == ExitCode.FAILED


@pytest.mark.parametrize("flips", [False, True])
def test_a_wrong_token_is_damage_and_named(flips: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = prompts_file(tmp_path, "a prompt of our own, which is secret")
    assert compared(Behaviour(wrong_at=31, flips=flips), "--prompts", file, "--json") == ExitCode.FAILED
    found = told(capsys)
    assert (found["verdict"], found["failed"]) == ("DAMAGED", True)
    [run] = [
        result for result in found["results"] if result["side"] == "candidate" and result["way"] == "one after another"
    ]
    last = run["differences"][-1]
    assert last["token"] == 32
    assert last["got"] == (successor(int(last["before"].split(" t")[-1])) + 50) % 500
    assert "its drafting is at fault" in run["cause"]
    assert [difference["near_tie"] for difference in run["differences"]] == [True] * (len(run["differences"]) - 1) + [
        False
    ]


def test_another_model_is_told_from_bad_drafting(capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(Behaviour(wrong_at=5, own_mind=True)) == ExitCode.FAILED
    printed = capsys.readouterr().out
    assert "DIFFERS at token 6 of 48: DAMAGED" in printed
    assert "another model, or other settings" in printed


@pytest.mark.slow
def test_a_baseline_that_differs_from_itself_decides_nothing() -> None:
    with ScriptedLlama(Behaviour(speculative=False)) as scripted_llama, ScriptedLlama(Behaviour(wrong_at=9)) as other:
        answers = scripted_llama.generated

        def unsteady(prompt: list[int], count: int) -> list[int]:
            scripted_llama.behaviour.wrong_at = 3 if scripted_llama.requests % 2 else None
            return answers(prompt, count)

        scripted_llama.generated = unsteady  # type: ignore[method-assign]
        code, printed, _ = say("verify", "--url", other.url, "--baseline-url", scripted_llama.url, *FEW)
    assert code == ExitCode.FAILED
    assert "the baseline differs from itself" in printed


@pytest.mark.slow
def test_text_is_shown_around_a_difference_unless_that_is_unwanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = prompts_file(tmp_path, "nobody must see this prompt")
    for words, shown in (((), True), (("--no-context",), False), (("--json", "--no-context"), False)):
        compared(Behaviour(wrong_at=5), "--prompts", file, *words)
        printed = capsys.readouterr()
        assert "nobody must see" not in printed.out + printed.err
        assert (" t" in printed.out.replace(" to", "").replace(" the", "").replace(" ta", "")) is shown or not shown
        assert ("after: " in printed.out) is (shown and "--json" not in words)


@pytest.mark.slow
def test_speculation_that_was_not_used_is_said_and_fails_when_strict(capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(Behaviour(drafted=0)) == ExitCode.OK
    assert "nothing of speculation was put to the test" in capsys.readouterr().out
    assert compared(Behaviour(drafted=0), "--strict") == ExitCode.FAILED
    capsys.readouterr()
    assert compared(PLAIN) == ExitCode.OK
    assert "compares the engine with itself" in capsys.readouterr().out


def test_what_fails_in_between_ends_it_with_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(Behaviour(fails_from=6)) == ExitCode.FAILED
    printed = capsys.readouterr()
    assert re.search("the candidate: .*/completion answers HTTP 500: Compute error", printed.err)
    assert "STOPPED: 4 of 12 answers" in printed.out


def test_a_baseline_that_speculates_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(Behaviour(), baseline=Behaviour()) == ExitCode.BAD_INPUT
    assert "it is no baseline" in capsys.readouterr().err
    assert compared(Behaviour(n_ctx=256), baseline=Behaviour(speculative=False, n_ctx=256)) == ExitCode.BAD_INPUT
    assert "do not fit" in capsys.readouterr().err


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("verify-models")
    found = tiny_models.build(directory)
    found["other"] = tiny_models.write_llama(directory / "other.gguf", layers=2, wrong_every=16)
    found["memory-mamba"] = remembering(tiny_models.write_mamba(directory / "memory-mamba.gguf", layers=2))
    found["memory-mtp"] = remembering(tiny_models.write_qwen35(directory / "memory-mtp.gguf", heads_too=True))
    found["tied"] = write_tied(directory / "tied.gguf")
    return found


@pytest.fixture
def env_file(tmp_path: Path, models: dict[str, Path]) -> Iterator[str]:
    more = {"LLAMA_BIN": llama_server_binary(), "LLAMA_CTX_SIZE": "8192", "LLAMA_ARG_N_PARALLEL": "2"}
    values = with_draft(models, **more)
    yield str(write_env(tmp_path / "backend.env", values))
    assert not [child for child in psutil.Process().children(recursive=True) if "llama-server" in child.name()]


def both(models: dict[str, Path], name: str) -> list[str]:
    return [f"LLAMA_MODEL={models[name]}", "--baseline", f"LLAMA_MODEL={models[name]}"]


@pytest.mark.llama_server
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_real_engines_give_the_same_text_whatever_drafts(
    env_file: str, models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    cases = {
        "draft-simple": ["LLAMA_DRAFT_MAX=5"],
        "ngram-mod": ["LLAMA_SPEC_TYPE=ngram-mod", "!LLAMA_DRAFT_MODEL", "!LLAMA_DRAFT_MAX"],
    }
    for name, changes in cases.items():
        assert main(["verify", "--env-file", env_file, "--json", "--tokens", "96", "--set", *changes]) == 0, name
        found = told(capsys)
        assert found["verdict"] == "identical", name
        assert found["drafted"] > 0, name
        assert {result["way"] for result in found["results"]} == {
            "one after another",
            "again, prompt cached",
            "in parallel",
        }


@pytest.mark.llama_server
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ["memory-mamba", "memory-mtp"])
def test_states_are_taken_back_rightly_where_the_text_depends_on_them(
    name: str, env_file: str, models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    heads = ["LLAMA_SPEC_TYPE=draft-mtp", "!LLAMA_DRAFT_MODEL", "LLAMA_DRAFT_MAX=3"] if name == "memory-mtp" else []
    words = ["verify", "--env-file", env_file, "--json", *FEW, "--set", *heads, *both(models, name)]
    assert main(words) == ExitCode.OK
    found = told(capsys)
    assert found["verdict"] in ("identical", "batch-shape effect")
    assert found["drafted"] > found["accepted"] + 100, "many drafts were taken back"


@pytest.mark.llama_server
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_real_damage_is_found_with_its_first_token(
    env_file: str, models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    text = tiny_models.SENTENCE
    rates = ",".join(str(round(0.8 - 0.1 * at, 1)) for at in range(8))
    for changes, cause in (
        ([f"LLAMA_MODEL={models['other']}"], "another model, or other settings"),
        ([f"LLAMA_EXTRA_ARGS=--spec-synth-rates {rates}"], "its drafting is at fault"),
    ):
        assert main(["verify", "--env-file", env_file, "--json", *FEW, "--set", *changes]) == ExitCode.FAILED
        found = told(capsys)
        assert found["verdict"] == "DAMAGED"
        entry = next(run for run in found["results"] if run["side"] == "candidate")
        first = entry["differences"][0]
        assert cause in entry["cause"]
        assert first["gap"] is None or first["gap"] > 5
        before, right = first["before"].split()[-1], first["expected_text"].strip()
        assert text[(text.index(before) + 1) % len(text)] == right, "the baseline goes on with the sentence"
        assert first["got_text"].strip() != right
        if "LLAMA_MODEL" in changes[0]:
            assert text.index(before) % 16 == 0
            assert first["got_text"].strip() == text[(text.index(before) + 7) % len(text)]


@pytest.mark.llama_server
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_real_batch_shape_effect_is_known_for_one(
    env_file: str, models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["verify", "--env-file", env_file, "--json", *FEW, "--set", *both(models, "tied")]
    assert main(words) == ExitCode.OK
    found = told(capsys)
    assert found["verdict"] == "batch-shape effect"
    gaps = [each["gap"] for result in found["results"] for each in result["differences"]]
    assert gaps
    assert max(map(abs, gaps)) < 0.001


@pytest.mark.llama_server
@pytest.mark.slow
def test_settings_that_are_refused_start_nothing(env_file: str, tmp_path: Path) -> None:
    words = ["verify", "--env-file", env_file, *FEW, "--set"]
    code, _, err = say(*words, "LLAMA_EXTRA_ARGS=--no-such-flag")
    assert code == ExitCode.BAD_INPUT
    assert "--no-such-flag" in err
    recurrent = tiny_models.write_mamba(tmp_path / "draft-mamba.gguf", wrong_every=8)
    code, _, err = say(*words, f"LLAMA_DRAFT_MODEL={recurrent}")
    assert code == ExitCode.BAD_INPUT
    assert "aborts the server at the first rejected token" in err


def begun(env_file: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A verification of long answers whose first engine runs, and that engine."""
    argv = [sys.executable, "-m", "specdash", "verify", "--env-file", env_file, "--tokens", "3000"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "candidate: " not in process.stderr.readline():
        assert process.poll() is None
    me = psutil.Process(process.pid)
    while not (engines := [child for child in me.children(recursive=True) if "llama-server" in child.name()]):
        assert process.poll() is None
    return process, engines


@pytest.mark.llama_server
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_an_engine_that_dies_is_told_from_one_that_differs(env_file: str) -> None:
    process, [engine] = begun(env_file)
    with process:
        engine.kill()
        _, said = process.communicate(timeout=60)
    assert process.returncode == ExitCode.FAILED
    assert "the baseline ended with signal SIGKILL" in said


@pytest.mark.llama_server
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_ctrl_c_stops_every_engine_and_prints_what_there_is(env_file: str) -> None:
    process, engines = begun(env_file)
    with process:
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=60)
    # Interrupted inside an import, Python may end by the signal, however it was handled; to a shell that is 130 too.
    assert process.returncode in (ExitCode.INTERRUPTED, -signal.SIGINT), said
    assert "stopped; this is what was found so far" in said
    assert "STOPPED: " in out
    assert not any(engine.is_running() for engine in engines)
