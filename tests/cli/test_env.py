"""`specdash env`: what it prints of env files, what it changes in them, and that it tells no secret."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from specdash.cli.main import main
from specdash.control.apply.journal import Edit, Journal, ServiceBefore, journal_file
from specdash.core import paths
from specdash.core.changes import ApplyKind, ApplyStep, Role
from specdash.core.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable

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
TRAP = "the comment ends in a backslash: before systemd 254 it goes on, and hides LLAMA_ALIAS; remove the backslash"
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

    def test_marks_what_is_unknown_ineffective_or_unreadable(self, env: Env, backend: Path) -> None:
        written(backend, "LLAMA_DRAFT_MX=8\nLLAMA_PARALLEL=1\nLLAMA_PARALLEL=2\nnonsense\n# \\\nLLAMA_ALIAS=a\n")
        _, out, _ = env("show")
        assert out.splitlines()[1:] == [
            "  1  LLAMA_DRAFT_MX=8",
            "         unknown: not a known key; did you mean LLAMA_DRAFT_MAX?",
            "  2  LLAMA_PARALLEL=1",
            "         ineffective: line 3 sets it again",
            "  3  LLAMA_PARALLEL=2",
            "  4  ! unreadable: no '=' in 'nonsense'; write KEY=value or start it with '#'",
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


class TestGet:
    def test_prints_the_value_alone(self, env: Env, backend: Path) -> None:
        assert env("get", "LLAMA_DRAFT_MAX") == (ExitCode.OK, "8\n", "")
        assert env("get", "MY_OWN", "--service", "backend") == (ExitCode.OK, "1\n", "")

    def test_finds_a_key_that_neither_service_declares(self, env: Env, backend: Path, proxy: Path) -> None:
        assert env("get", "MY_OWN") == (ExitCode.OK, "1\n", "")

    def test_is_a_failure_for_a_key_that_is_not_set(self, env: Env, backend: Path) -> None:
        code, out, err = env("get", "LLAMA_DRAFT_MIN")
        assert (code, out) == (ExitCode.FAILED, "")
        assert err == f"specdash: LLAMA_DRAFT_MIN is not set in {backend}\n"

    @pytest.mark.parametrize("key", ["LLAMA_API_KEY", "LLAMA_EXTRA_ARGS"])
    def test_tells_a_secret_only_when_told_to(self, key: str, env: Env, backend: Path) -> None:
        code, out, err = env("get", key)
        assert (code, out, "add --reveal" in err) == (ExitCode.USAGE, "", True)
        assert json.loads(env("get", key, "--json")[1])["masked"] is True
        assert "sk-" in env("get", key, "--reveal", reveal=True)[1]


class TestSet:
    def test_changes_the_value_keeps_a_backup_and_shows_both(self, env: Env, backend: Path) -> None:
        code, out, err = env("set", "LLAMA_DRAFT_MAX=12")
        assert (code, err) == (ExitCode.OK, "")
        assert backend.read_text() == BACKEND.replace("MAX=8", "MAX=12")
        assert "-LLAMA_DRAFT_MAX=8\n+LLAMA_DRAFT_MAX=12\n" in out
        assert out.splitlines()[-2:] == [
            f"{backend} is written; the version before is backup 1",
            "the backend keeps the old settings until `specdash apply` or a restart",
        ]
        assert (paths.backups_dir() / "backend" / "0001.env").read_text() == BACKEND

    def test_of_a_secret_shows_that_it_changed_only(self, env: Env, backend: Path) -> None:
        _, out, _ = env("set", "LLAMA_API_KEY=sk-new")
        assert "-LLAMA_API_KEY=***\n+LLAMA_API_KEY=***\n" in out
        assert "LLAMA_API_KEY=sk-new\n" in backend.read_text()

    def test_in_both_files_at_once(self, env: Env, backend: Path, proxy: Path) -> None:
        code, out, _ = env("set", "LLAMA_DRAFT_MAX=12", "PROXY_PORT=4200")
        assert code == ExitCode.OK
        assert "LLAMA_DRAFT_MAX=12" in backend.read_text()
        assert "PROXY_PORT=4200" in proxy.read_text()
        assert "the backend and the proxy keep the old settings" in out

    def test_to_what_it_is_changes_nothing_and_keeps_no_backup(self, env: Env, backend: Path) -> None:
        before = backend.stat()
        assert env("set", "LLAMA_DRAFT_MAX=8") == (ExitCode.OK, "nothing to change: already set\n", "")
        after = backend.stat()
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
        assert not paths.backups_dir().exists()

    def test_dry_run_shows_the_difference_and_changes_nothing(self, env: Env, backend: Path) -> None:
        code, out, _ = env("set", "LLAMA_DRAFT_MAX=12", "--dry-run")
        assert (code, out.splitlines()[-1]) == (ExitCode.OK, "dry run: nothing was written")
        assert "+LLAMA_DRAFT_MAX=12" in out
        assert backend.read_text() == BACKEND
        assert not paths.state_dir().exists()

    def test_makes_a_file_that_is_not_there_for_its_owner_only(self, env: Env) -> None:
        assert env("set", "LLAMA_MODEL=/m/a.gguf")[0] == ExitCode.OK
        file = paths.backend_env_file()
        assert file.read_text() == "LLAMA_MODEL=/m/a.gguf\n"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600

    @pytest.mark.parametrize(
        ("word", "code", "said"),
        [
            ("LLAMA_DRAFT_MAX=lots", ExitCode.BAD_INPUT, "LLAMA_DRAFT_MAX=lots: not a whole number"),
            ("LLAMA_DRAFT_MAX=0", ExitCode.BAD_INPUT, "must be from 1 to 1024 tokens"),
            ("LLAMA_SPEC_TYPE=fast", ExitCode.BAD_INPUT, "unknown speculative type 'fast'"),
            ("LLAMA_ARG_DRAFT_MAX=1", ExitCode.BAD_INPUT, "llama.cpp removed this variable; use LLAMA_DRAFT_MAX"),
            ("LLAMA_ALIAS=a\x07", ExitCode.BAD_INPUT, "control character U+0007 in the value of LLAMA_ALIAS"),
            ("LLAMA_A B=1", ExitCode.BAD_INPUT, "'LLAMA_A B' is not a variable name"),
            ("LLAMA_DRAFT_MAX", ExitCode.USAGE, "write KEY=VALUE"),
            ("SOMETHING=1", ExitCode.USAGE, "neither the backend nor the proxy reads it; add --service"),
        ],
    )
    def test_refuses_what_cannot_be_meant(self, word: str, code: ExitCode, said: str, env: Env, backend: Path) -> None:
        found, out, err = env("set", "LLAMA_PARALLEL=2", word)
        assert (found, out) == (code, "")
        assert said in err
        assert backend.read_text() == BACKEND
        assert not paths.backups_dir().exists()

    def test_of_an_unknown_key_is_done_and_warned_about(self, env: Env, backend: Path) -> None:
        code, _, err = env("set", "LLAMA_DRAFT_MX=1")
        assert code == ExitCode.OK
        assert err == "specdash: warning: LLAMA_DRAFT_MX is not a known key; did you mean LLAMA_DRAFT_MAX?\n"
        assert backend.read_text().endswith("LLAMA_DRAFT_MX=1\n")

    def test_of_somebody_elses_key_goes_where_service_says(self, env: Env, backend: Path) -> None:
        assert env("set", "CUDA_VISIBLE_DEVICES=1", "--service", "backend")[0] == ExitCode.OK
        assert backend.read_text() == BACKEND + "CUDA_VISIBLE_DEVICES=1\n"

    def test_of_somebody_elses_key_goes_where_it_is_already(self, env: Env, backend: Path, proxy: Path) -> None:
        assert env("set", "MY_OWN=2", "PROXY_PORT=4200")[0] == ExitCode.OK
        assert backend.read_text() == BACKEND.replace("MY_OWN=1", "MY_OWN=2")
        assert "PROXY_PORT=4200" in proxy.read_text()

    @pytest.mark.parametrize("words", [("MY_OWN=1", "MY_OWN=2"), ("PROXY_PORT=1", "LLAMA_ALIAS=a", "PROXY_PORT=2")])
    def test_of_a_key_twice_is_refused(self, words: tuple[str, ...], env: Env, backend: Path) -> None:
        code, _, err = env("set", *words)
        assert (code, "given twice" in err) == (ExitCode.USAGE, True)

    def test_of_somebody_elses_key_goes_into_the_named_file(self, env: Env, backend: Path) -> None:
        assert env("set", "CUDA_VISIBLE_DEVICES=1", "--env-file", str(backend))[0] == ExitCode.OK
        assert backend.read_text() == BACKEND + "CUDA_VISIBLE_DEVICES=1\n"

    def test_refuses_a_file_with_a_line_that_systemd_would_drop(self, env: Env, backend: Path) -> None:
        written(backend, "LLAMA_DRAFT_MAX=8\nexport A=1\n")
        code, _, err = env("set", "LLAMA_DRAFT_MAX=9")
        assert code == ExitCode.BAD_INPUT
        assert f"{backend}:2: 'export A': systemd knows no 'export'; write A=value" in err

    def test_waits_for_no_apply(self, env: Env, backend: Path) -> None:
        lock = paths.apply_lock_file()
        lock.parent.mkdir(parents=True)
        with lock.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            code, _, err = env("set", "LLAMA_DRAFT_MAX=9")
        assert (code, "another apply is running" in err) == (ExitCode.CONFLICT, True)
        assert backend.read_text() == BACKEND

    def test_leaves_a_file_alone_that_a_killed_apply_was_changing(self, env: Env, backend: Path, proxy: Path) -> None:
        before = ServiceBefore(running=True)
        edit = Edit(Role.BACKEND, "a.service", "systemd", str(backend), b"", b"", True, (), True, 1, before)
        journal_file().write(Journal(3, ApplyKind.APPLY, 0.0, 1 << 22, 0.0, ApplyStep.WRITE, (edit,)))
        code, _, err = env("set", "LLAMA_DRAFT_MAX=9")
        assert (code, "`specdash recover`" in err) == (ExitCode.UNFINISHED, True)
        assert backend.read_text() == BACKEND
        assert env("set", "PROXY_PORT=4200")[0] == ExitCode.OK

    def test_when_the_second_file_cannot_be_written_the_first_is_as_it_was(
        self, env: Env, backend: Path, proxy: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = os.replace

        def broken(source: Any, target: Any) -> None:
            if Path(target) == proxy:
                raise OSError(5, "Input/output error")
            real(source, target)

        monkeypatch.setattr(os, "replace", broken)
        code, _, err = env("set", "LLAMA_DRAFT_MAX=12", "PROXY_PORT=4200")
        assert (code, f"{proxy} was not written" in err) == (ExitCode.NOT_WRITTEN, True)
        assert (backend.read_text(), proxy.read_text()) == (BACKEND, PROXY)

    def test_as_json(self, env: Env, backend: Path) -> None:
        result = json.loads(env("set", "LLAMA_DRAFT_MAX=12", "LLAMA_API_KEY=sk-new", "--json")[1])
        assert result["changed"] is True
        (only,) = result["services"]
        assert (only["service"], only["env_file"], only["backup"]) == ("backend", str(backend), 1)
        assert only["changes"] == [
            {"key": "LLAMA_DRAFT_MAX", "before": "8", "after": "12"},
            {"key": "LLAMA_API_KEY", "before": "***", "after": "***"},
        ]


class TestUnset:
    def test_removes_the_key_and_keeps_a_backup(self, env: Env, backend: Path) -> None:
        code, out, _ = env("unset", "LLAMA_DRAFT_MAX", "LLAMA_API_KEY")
        assert code == ExitCode.OK
        assert "-LLAMA_DRAFT_MAX=8" in out
        assert backend.read_text() == BACKEND.replace("LLAMA_DRAFT_MAX=8\n", "").replace(
            "LLAMA_API_KEY=sk-backend\n", ""
        )
        assert (paths.backups_dir() / "backend" / "0001.env").read_text() == BACKEND

    def test_of_a_key_that_is_not_set_changes_nothing(self, env: Env, backend: Path) -> None:
        assert env("unset", "LLAMA_DRAFT_MIN") == (ExitCode.OK, "nothing to change: already set\n", "")

    def test_takes_names_only(self, env: Env, backend: Path) -> None:
        assert env("unset", "LLAMA_DRAFT_MAX=8")[0] == ExitCode.USAGE


class TestDiff:
    def test_against_the_last_backup_that_differs(self, env: Env, backend: Path) -> None:
        env("set", "LLAMA_DRAFT_MAX=12")
        env("set", "LLAMA_DRAFT_MAX=16")
        _, out, _ = env("diff")
        assert out.startswith("backend  backup 2 of ")
        assert "-LLAMA_DRAFT_MAX=12\n+LLAMA_DRAFT_MAX=16\n" in out

    def test_against_a_numbered_backup(self, env: Env, backend: Path) -> None:
        env("set", "LLAMA_DRAFT_MAX=12", "LLAMA_API_KEY=sk-new")
        env("set", "LLAMA_DRAFT_MAX=16")
        _, out, _ = env("diff", "1")
        assert "-LLAMA_DRAFT_MAX=8\n" in out
        assert one_service(env("diff", "1", "--json")[1])["changes"][0] == {
            "key": "LLAMA_DRAFT_MAX",
            "before": "8",
            "after": "16",
        }

    def test_against_a_wanted_change_writes_nothing(self, env: Env, backend: Path) -> None:
        _, out, _ = env("diff", "LLAMA_DRAFT_MAX=16", "!MY_OWN")
        assert "-LLAMA_DRAFT_MAX=8\n+LLAMA_DRAFT_MAX=16\n" in out
        assert "-MY_OWN=1" in out
        assert backend.read_text() == BACKEND
        assert env("diff", "LLAMA_DRAFT_MAX=8")[1] == "no difference: already set\n"

    def test_says_so_where_no_backup_differs(self, env: Env, backend: Path) -> None:
        assert env("diff") == (ExitCode.OK, f"backend  {backend}: no backup differs from it\n", "")

    @pytest.mark.parametrize(("word", "code"), [("7", ExitCode.BAD_INPUT), ("last", ExitCode.USAGE)])
    def test_what_is_no_backup_is_said(self, word: str, code: ExitCode, env: Env, backend: Path) -> None:
        found, _, err = env("diff", word)
        assert (found, word in err) == (code, True)

    def test_a_number_that_both_have_needs_a_service(self, env: Env, backend: Path, proxy: Path) -> None:
        env("set", "LLAMA_DRAFT_MAX=12", "PROXY_PORT=4200")
        assert env("diff", "1")[0] == ExitCode.USAGE
        assert "+PROXY_PORT=4200" in env("diff", "1", "--service", "proxy")[1]


class TestHistory:
    def test_lists_the_versions_with_what_was_changed_after_each(self, env: Env, backend: Path) -> None:
        env("set", "LLAMA_DRAFT_MAX=12", "LLAMA_API_KEY=sk-new")
        env("unset", "MY_OWN")
        written(backend, backend.read_text() + "# by hand\n")
        env("set", "LLAMA_PARALLEL=2")
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
        env("set", "LLAMA_MODEL=/m/a.gguf")
        env("set", "LLAMA_DRAFT_MAX=1")
        env("set", "LLAMA_DRAFT_MAX=2")
        file = paths.backend_env_file()
        file.write_text((paths.backups_dir() / "backend/0003.env").read_text() + "# c\n", encoding="utf-8")
        rows = [row.split(maxsplit=3)[3] for row in env("history")[1].splitlines()[1:]]
        assert rows == [
            "no file yet; LLAMA_MODEL unset -> /m/a.gguf",
            "LLAMA_DRAFT_MAX unset -> 1",
            "comments or layout",
        ]

    def test_of_another_file_is_another_history(self, env: Env, backend: Path, tmp_path: Path) -> None:
        other = written(tmp_path / "other.env", BACKEND)
        env("set", "LLAMA_DRAFT_MAX=12")
        env("set", "LLAMA_DRAFT_MAX=13", "--env-file", str(other))
        rows = env("history", "--env-file", str(other))[1].splitlines()[1:]
        assert [row.split()[0] for row in rows] == ["2"]

    def test_is_empty_at_first(self, env: Env, backend: Path) -> None:
        assert "no backups yet" in env("history")[1]

    def test_a_damaged_version_is_said(self, env: Env, backend: Path) -> None:
        env("set", "LLAMA_DRAFT_MAX=12")
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
