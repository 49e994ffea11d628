"""`specdash env`: what it prints of env files, and never a secret."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdash.backend.env_store import Backups, read_env
from specdash.cli.main import main
from specdash.core import paths
from specdash.core.changes import Role
from specdash.core.errors import ExitCode

Env = Callable[..., tuple[int, str, str]]

BACKEND = """\
# The machine under the desk.
LLAMA_MODEL=/m/a.gguf
LLAMA_SPEC_TYPE=ngram-mod
LLAMA_DRAFT_MAX=8

LLAMA_API_KEY=sk-backend
LLAMA_EXTRA_ARGS='--metrics --api-key sk-flag'
MY_OWN=1
"""
PROXY = "PROXY_PORT=4100\nPROXY_API_KEY=sk-proxy\nLLAMA_CPP_BASE=http://me:sk-url@127.0.0.1:1/v1\n"
TRAP = "the comment ends in a backslash: before systemd 254 the next line is part of it; remove the backslash"
SECRETS = ("sk-backend", "sk-flag", "sk-proxy", "sk-url", "sk-new")


@pytest.fixture
def backend() -> Path:
    return written(paths.backend_env_file(), BACKEND)


@pytest.fixture
def proxy() -> Path:
    return written(paths.proxy_env_file(), PROXY)


@pytest.fixture
def env(capsys: pytest.CaptureFixture[str]) -> Env:
    """Runs `specdash env ...`; exit code, stdout and stderr. No output ever has a secret."""

    def run(*words: str, reveal: bool = False) -> tuple[int, str, str]:
        code = main(["env", *words])
        out, err = capsys.readouterr()
        assert reveal or not any(secret in out + err for secret in SECRETS)
        return code, out, err

    return run


def written(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def changed(file: Path, old: str, new: str, role: Role = Role.BACKEND) -> None:
    """What an apply does to the file: a backup, then another line."""
    Backups(paths.backups_dir()).save(role, read_env(file))
    text = file.read_text("utf-8") if file.exists() else ""
    written(file, text.replace(old, new) if old else text + new)


def one_service(out: str) -> dict[str, Any]:
    (only,) = json.loads(out)["services"]
    return dict(only)


class TestShow:
    def test_both_files_in_their_order_with_lines_and_masked_secrets(
        self, env: Env, backend: Path, proxy: Path
    ) -> None:
        code, out, _ = env("show")
        assert code == ExitCode.OK
        assert out.splitlines() == [
            f"backend  {backend}",
            "  2  LLAMA_MODEL=/m/a.gguf",
            "  3  LLAMA_SPEC_TYPE=ngram-mod",
            "  4  LLAMA_DRAFT_MAX=8",
            "  6  LLAMA_API_KEY=***",
            "  7  LLAMA_EXTRA_ARGS='--metrics --api-key ***'",
            "  8  MY_OWN=1",
            "",
            f"proxy  {proxy}",
            "  1  PROXY_PORT=4100",
            "  2  PROXY_API_KEY=***",
            "  3  LLAMA_CPP_BASE='http://me:***@127.0.0.1:1/v1'",
        ]

    def test_one_file_with_service(self, env: Env, backend: Path, proxy: Path) -> None:
        _, out, _ = env("show", "--service", "proxy")
        assert "PROXY_PORT" in out
        assert "LLAMA_MODEL" not in out

    def test_any_file_with_env_file_whose_keys_tell_whose_it_is(self, env: Env, tmp_path: Path) -> None:
        file = written(tmp_path / "x.env", "LLAMA_CPP_BASE=http://127.0.0.1:1\nPROXY_PORT=1\n")
        assert env("show", "--env-file", str(file))[1].startswith(f"proxy  {file}\n")
        written(file, "A=1\n")
        code, _, err = env("show", "--env-file", str(file))
        assert (code, "do not tell whose it is; add --service" in err) == (ExitCode.USAGE, True)

    def test_marks_what_is_ineffective_or_unreadable(self, env: Env, backend: Path) -> None:
        written(backend, "LLAMA_DRAFT_MX=8\nLLAMA_PARALLEL=1\nLLAMA_PARALLEL=2\nnonsense\n# \\\nLLAMA_ALIAS=a\n")
        _, out, _ = env("show")
        assert out.splitlines()[1:] == [
            "  1  LLAMA_DRAFT_MX=8",
            "  2  LLAMA_PARALLEL=1",
            "         ineffective: line 3 sets it again",
            "  3  LLAMA_PARALLEL=2",
            "  4  ! unreadable: no '=' in the line; write KEY=value or start it with '#'",
            f"  5  ! {TRAP}",
            "  6  LLAMA_ALIAS=a",
        ]

    def test_as_json(self, env: Env, backend: Path) -> None:
        shown = one_service(env("show", "--json")[1])
        assert (shown["service"], shown["env_file"], shown["exists"]) == ("backend", str(backend), True)
        assert shown["assignments"][3] == {"line": 6, "key": "LLAMA_API_KEY", "value": "***", "notes": []}
        assert shown["problems"] == []

    def test_no_file_at_all_says_where_one_would_be(self, env: Env) -> None:
        code, _, err = env("show")
        assert code == ExitCode.BAD_INPUT
        assert str(paths.backend_env_file()) in err

    def test_lets_no_control_character_reach_the_terminal(self, env: Env, backend: Path) -> None:
        written(backend, "LLAMA_ALIAS='a\x1b[2Jb'\n")
        assert r"LLAMA_ALIAS='a\x1b[2Jb'" in env("show")[1]

    def test_the_configured_file_is_the_one(
        self, env: Env, backend: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = written(tmp_path / "other.env", "LLAMA_ALIAS=b\n")
        monkeypatch.setenv("SPECDASH_BACKEND_ENV_FILE", str(other))
        assert "LLAMA_ALIAS=b" in env("show", "--service", "backend")[1]


class TestHistory:
    def test_lists_the_versions_with_what_was_changed_after_each(self, env: Env, backend: Path) -> None:
        changed(backend, "MAX=8", "MAX=12")
        written(backend, backend.read_text("utf-8").replace("sk-backend", "sk-new"))
        changed(backend, "MY_OWN=1\n", "")
        written(backend, backend.read_text() + "# by hand\n")
        changed(backend, "", "LLAMA_PARALLEL=2\n")
        _, out, _ = env("history")
        head, *rows = out.splitlines()
        assert head == f"backend  {backend}"
        assert [row.split(maxsplit=3)[::3] for row in rows] == [
            ["1", "LLAMA_DRAFT_MAX 8 -> 12, LLAMA_API_KEY *** -> ***"],
            ["2", "MY_OWN 1 -> unset"],
            ["3", "LLAMA_PARALLEL unset -> 2"],
        ]
        third = one_service(env("history", "--json")[1])["backups"][2]
        assert third["changes_after"] == [{"key": "LLAMA_PARALLEL", "before": None, "after": "2"}]

    def test_tells_an_edit_of_comments_and_a_file_that_was_new(self, env: Env) -> None:
        file = paths.backend_env_file()
        changed(file, "", "LLAMA_MODEL=/m/a.gguf\n")
        changed(file, "", "LLAMA_DRAFT_MAX=1\n")
        changed(file, "MAX=1", "MAX=2")
        file.write_text((paths.backups_dir() / "backend/0003.env").read_text() + "# c\n", encoding="utf-8")
        rows = [row.split(maxsplit=3)[3] for row in env("history")[1].splitlines()[1:]]
        assert rows == [
            "no file yet; LLAMA_MODEL unset -> /m/a.gguf",
            "LLAMA_DRAFT_MAX unset -> 1",
            "comments or layout",
        ]

    def test_of_another_file_is_another_history(self, env: Env, backend: Path, tmp_path: Path) -> None:
        other = written(tmp_path / "other.env", BACKEND)
        changed(backend, "MAX=8", "MAX=12")
        changed(other, "MAX=8", "MAX=13")
        rows = env("history", "--env-file", str(other))[1].splitlines()[1:]
        assert [row.split()[0] for row in rows] == ["2"]

    def test_is_empty_at_first(self, env: Env, backend: Path) -> None:
        assert "no backups yet" in env("history")[1]

    def test_a_damaged_version_is_said(self, env: Env, backend: Path) -> None:
        changed(backend, "MAX=8", "MAX=12")
        (paths.backups_dir() / "backend/0001.env").write_text("half", encoding="utf-8")
        assert "damaged" in env("history")[1]


class TestExplain:
    def test_says_what_a_key_means_and_may_be(self, env: Env) -> None:
        code, out, _ = env("explain", "LLAMA_DRAFT_MAX")
        assert code == ExitCode.OK
        for words in ("longest draft", "whole number, 1 to 1024 tokens", "--spec-draft-n-max", "after a restart"):
            assert words in out
        assert json.loads(env("explain", "PROXY_API_KEY", "--json")[1])["secret"] is True

    @pytest.mark.parametrize(
        ("key", "said"),
        [
            ("LLAMA_DRAFT_MX", "did you mean LLAMA_DRAFT_MAX"),
            ("LLAMA_ARG_DRAFT_MAX", "use LLAMA_DRAFT_MAX"),
            ("X", "docs"),
        ],
    )
    def test_of_a_key_that_there_is_not_says_which_may_be_meant(self, key: str, said: str, env: Env) -> None:
        code, _, err = env("explain", key)
        assert (code, said in err) == (ExitCode.BAD_INPUT, True)
