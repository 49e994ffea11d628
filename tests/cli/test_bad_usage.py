"""Bad usage: one clear line that names the thing and what to do, the documented exit code, and no traceback."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from specdash.core.errors import ExitCode


def specdash(*argv: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "specdash", *argv],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(env or {})},
        check=False,
    )


def complaint(done: subprocess.CompletedProcess[str], code: ExitCode) -> str:
    """The one line on stderr."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("specdash: ")
    return lines[0]


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (("wach",), "did you mean 'watch'"),
        (("--colour",), "--colour"),
        (("snapshot", "--jsn"), "--jsn"),
        (("snapshot", "--wait", "soon"), "--wait"),
        (("snapshot", "--wait", "-1"), "--wait -1"),
        (("snapshot", "--url", "http://"), "http://"),
        (("snapshot", "--url", "ftp://host"), "ftp"),
        (("demo", "--spec-type", "draft-mtp", "--headless"), "draft-mtp"),
        (("demo", "--seconds", "0", "--headless"), "--seconds 0"),
        (("demo", "--engine", "vllm"), "vllm"),
        (("watch",), "terminal"),
        (("demo",), "terminal"),
        (("backend",), "run,show"),
        (("parse-log",), "FILE"),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_named(argv: tuple[str, ...], named: str) -> None:
    assert named.lower() in complaint(specdash(*argv), ExitCode.USAGE).lower()


def test_an_unreadable_log_is_named(tmp_path: Path) -> None:
    line = complaint(specdash("parse-log", str(tmp_path / "none.log")), ExitCode.BAD_INPUT)
    assert "none.log" in line
    complaint(specdash("parse-log", str(tmp_path)), ExitCode.BAD_INPUT)


def test_a_broken_config_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "specdash").mkdir()
    (tmp_path / "specdash" / "config.toml").write_text("refresh = 9\n")
    line = complaint(specdash("config", "show", env={"XDG_CONFIG_HOME": str(tmp_path)}), ExitCode.BAD_INPUT)
    assert "refresh = 9" in line
    assert "config.toml" in line


def backend_env(tmp_path: Path, **values: str) -> str:
    path = tmp_path / "backend.env"
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return str(path)


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    env_file = backend_env(tmp_path, LLAMA_MODEL=str(tmp_path / "none.gguf"))
    assert "none.gguf" in complaint(specdash("backend", "run", "--env-file", env_file), ExitCode.BAD_INPUT)


def test_a_model_that_is_no_gguf_is_named(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"PK\x03\x04" + b"x" * 5000)
    env_file = backend_env(tmp_path, LLAMA_MODEL=str(model))
    line = complaint(specdash("backend", "run", "--env-file", env_file), ExitCode.BAD_INPUT)
    assert "model.gguf" in line
    assert "GGUF" in line


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    from specdash.backend.demo import TARGET_MODEL, bundled_model

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        env_file = backend_env(tmp_path, LLAMA_MODEL=str(bundled_model(TARGET_MODEL)), LLAMA_PORT=port)
        assert port in complaint(specdash("backend", "run", "--env-file", env_file), ExitCode.PORT_IN_USE)


def test_an_engine_that_is_not_installed_is_named(tmp_path: Path) -> None:
    from specdash.backend.demo import TARGET_MODEL, bundled_model

    env_file = backend_env(tmp_path, LLAMA_MODEL=str(bundled_model(TARGET_MODEL)), LLAMA_ENGINE="llama-server")
    empty = tmp_path / "bin"
    empty.mkdir()
    done = specdash("backend", "run", "--env-file", env_file, env={"PATH": str(empty), "LLAMA_BIN": ""})
    assert "llama-server" in complaint(done, ExitCode.NO_ENGINE)


def test_no_server_anywhere_says_how_to_name_one() -> None:
    done = specdash("snapshot", "--url", "http://127.0.0.1:9")
    assert done.returncode == ExitCode.UNREACHABLE
    assert "DOWN" in done.stdout
    assert "Traceback" not in done.stderr


def test_an_api_key_that_is_not_there_is_named_without_a_secret(tmp_path: Path) -> None:
    argv = ("snapshot", "--url", "http://127.0.0.1:9", "--api-key-env", "NOT_SET_ANYWHERE")
    assert "NOT_SET_ANYWHERE" in complaint(specdash(*argv), ExitCode.BAD_INPUT)
    missing = str(tmp_path / "key")
    argv = ("snapshot", "--url", "http://127.0.0.1:9", "--api-key-file", missing)
    assert missing in complaint(specdash(*argv), ExitCode.BAD_INPUT)


@pytest.mark.parametrize("words", [(), ("bench",), ("bench", "live"), ("proxy", "hold")])
def test_help_is_a_command_too(words: tuple[str, ...]) -> None:
    asked, told = specdash("help", *words), specdash(*words, "--help")
    assert (asked.returncode, asked.stderr) == (ExitCode.OK, "")
    assert asked.stdout == told.stdout


def test_help_on_what_is_no_command_suggests_one() -> None:
    assert "did you mean 'bench'" in complaint(specdash("help", "bnech"), ExitCode.USAGE)
    assert "did you mean 'help'" in complaint(specdash("hlep"), ExitCode.USAGE)


def test_what_an_action_does_not_know_points_to_its_own_help() -> None:
    assert "see `specdash bench live --help`" in complaint(specdash("bench", "live", "--each", "3"), ExitCode.USAGE)


def test_the_options_that_the_readme_names_are_options() -> None:
    """Of the dashboard, whose command needs no name."""
    from specdash.cli import watch
    from specdash.cli.main import Parser

    parser = Parser(prog="specdash")
    watch.configure(parser)
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    dashboards = readme[readme.index("While specdash is open it records") :].partition("\n\n")[0]
    spans = re.findall(r"`(--[^`]+)`", dashboards)
    assert spans
    for span in spans:
        parser.parse_args(span.split())
