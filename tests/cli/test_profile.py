"""`specdash profile`: what an operator types, and what comes back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from specdash.cli.main import main
from specdash.core.errors import ExitCode
from specdash.core.paths import backend_env_file, config_file, proxy_env_file, user_profiles_dir

if TYPE_CHECKING:
    from pathlib import Path

BACKEND = """\
# ours
LLAMA_MODEL=/models/m.gguf
LLAMA_PORT=8080
LLAMA_DRAFT_MAX=12
LLAMA_DRAFT_P_MIN=0.8
LLAMA_API_KEY=hush-hush
CUDA_VISIBLE_DEVICES=0
"""
PROXY = "PROXY_LOOP_WINDOW=6\nPROXY_API_KEY=hush-hush\nLLAMA_CPP_BASE=http://127.0.0.1:8080/v1\n"


@pytest.fixture(autouse=True)
def files(isolated_home: Path) -> Path:
    """The env files of both services, without a manager to ask."""
    config_file().parent.mkdir(parents=True)
    config_file().write_text('manager = "supervisor"\n', encoding="utf-8")
    backend_env_file().write_text(BACKEND, encoding="utf-8")
    proxy_env_file().write_text(PROXY, encoding="utf-8")
    return isolated_home


class Said:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *words: str, code: int = ExitCode.OK) -> str:
        assert main(["profile", *words]) == code
        said = self.capsys.readouterr()
        assert "hush" not in said.out + said.err
        return said.out if code == ExitCode.OK else said.err

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Said:
    return Said(capsys)


def saved(name: str) -> str:
    return (user_profiles_dir() / f"{name}.toml").read_text(encoding="utf-8")


def test_list_names_all_and_what_is_broken(say: Said) -> None:
    user_profiles_dir().mkdir()
    (user_profiles_dir() / "loop-incident.toml").write_text(
        'name = "loop-incident"\nsummary = "mine"\n[proxy]\nPROXY_LOOP_WINDOW = 4\n', encoding="utf-8"
    )
    (user_profiles_dir() / "bad.toml").write_text("[", encoding="utf-8")
    rows = [[part.strip() for part in line.split("  ") if part] for line in say("list").splitlines()]
    assert [row[:2] for row in rows] == [
        ["agentic-continuity", "built in"],
        ["loop-incident", "yours, in place of the built-in one"],
        ["max-throughput", "built in"],
        ["bad", "broken"],
    ]
    found = say.json("list")
    assert [(profile["name"], profile["own"], profile["replaces_built_in"]) for profile in found["profiles"]] == [
        ("agentic-continuity", False, False),
        ("loop-incident", True, True),
        ("max-throughput", False, False),
    ]
    assert [entry["name"] for entry in found["broken"]] == ["bad"]


def test_show_tells_values_meanings_source_and_notes(say: Said) -> None:
    text = say("show", "agentic-continuity")
    assert "LLAMA_DRAFT_P_MIN=0.80 " in text
    assert "longest draft" in text
    assert "March 2026" in text
    assert "ngram-cache" in text
    assert say.json("show", "loop-incident")["values"] == {
        "proxy": {
            "PROXY_LOOP_WINDOW": "6",
            "PROXY_LOOP_REPEAT_THRESHOLD": "8",
            "PROXY_FORCED_THRESHOLD": "14",
            "PROXY_NO_PROGRESS_THRESHOLD": "4",
            "PROXY_CONTEXT_RELEASE_THRESHOLD": "0.90",
        }
    }


def test_a_profile_that_is_not_there_is_bad_input(say: Said) -> None:
    assert "no profile 'nope'" in say("show", "nope", code=ExitCode.BAD_INPUT)


class TestSave:
    def test_it_takes_what_is_set_but_secrets_and_the_machines_own(self, say: Said) -> None:
        said = say.json("save", "mine", "--summary", "for me")
        assert said["profile"]["values"] == {
            "backend": {"LLAMA_DRAFT_MAX": "12", "LLAMA_DRAFT_P_MIN": "0.8"},
            "proxy": {"PROXY_LOOP_WINDOW": "6"},
        }
        assert set(said["left_out"]) == {
            "LLAMA_MODEL", "LLAMA_PORT", "LLAMA_API_KEY", "CUDA_VISIBLE_DEVICES", "PROXY_API_KEY", "LLAMA_CPP_BASE",
        }  # fmt: skip
        assert 'summary = "for me"' in saved("mine")
        assert "hush" not in saved("mine")
        assert (user_profiles_dir() / "mine.toml").stat().st_mode & 0o777 == 0o600

    def test_what_is_left_out_is_said(self, say: Said) -> None:
        text = say("save", "mine")
        assert "mine.toml: 3 keys" in text
        assert "left out (secrets, and what belongs to this machine): LLAMA_MODEL" in text

    @pytest.mark.parametrize(
        "words",
        [
            ["mine", "LLAMA_PORT", "LLAMA_DRAFT_MAX", "--service", "backend"],
            ["mine", "--service", "backend", "LLAMA_PORT", "LLAMA_DRAFT_MAX"],
            ["mine", "LLAMA_PORT", "--service", "backend", "LLAMA_DRAFT_MAX"],
            ["--service", "backend", "mine", "LLAMA_PORT", "LLAMA_DRAFT_MAX"],
        ],
    )
    def test_named_keys_are_taken_alone_wherever_they_stand(self, say: Said, words: list[str]) -> None:
        assert say.json("save", *words)["profile"]["values"] == {
            "backend": {"LLAMA_PORT": "8080", "LLAMA_DRAFT_MAX": "12"}
        }

    def test_one_service_alone(self, say: Said) -> None:
        assert list(say.json("save", "mine", "--service", "proxy")["profile"]["values"]) == ["proxy"]

    def test_any_env_file(self, say: Said, tmp_path: Path) -> None:
        other = tmp_path / "other.env"
        other.write_text("LLAMA_DRAFT_MAX=3\nLLAMA_DRAFT_MIN='1'\n", encoding="utf-8")
        assert say.json("save", "mine", "--from-file", str(other))["profile"]["values"] == {
            "backend": {"LLAMA_DRAFT_MAX": "3", "LLAMA_DRAFT_MIN": "1"}
        }

    def test_a_profile_is_replaced_only_by_force(self, say: Said) -> None:
        say("save", "mine", "--summary", "one")
        assert "add --force" in say("save", "mine", code=ExitCode.USAGE)
        say("save", "mine", "--force", "--summary", "two", "LLAMA_DRAFT_MAX")
        assert 'summary = "two"' in saved("mine")

    def test_standing_in_for_a_built_in_one_is_said(self, say: Said) -> None:
        assert "stands in for the built-in profile" in say("save", "loop-incident")

    @pytest.mark.parametrize(
        ("words", "code", "reason"),
        [
            (["mine", "LLAMA_API_KEY"], ExitCode.BAD_INPUT, "LLAMA_API_KEY: profiles hold no secrets"),
            (["mine", "LLAMA_DRAFT_MIN"], ExitCode.BAD_INPUT, "LLAMA_DRAFT_MIN: is not set in"),
            (["mine", "CUDA_VISIBLE_DEVICES"], ExitCode.USAGE, "neither the backend nor the proxy reads it"),
            (["mine", "LLAMA_DRAFT_MAX", "--service", "proxy"], ExitCode.USAGE, "belongs to the backend"),
            (["Mine"], ExitCode.USAGE, "profile name 'Mine'"),
            (["mine", "--from-file", "/nowhere.env"], ExitCode.BAD_INPUT, "/nowhere.env"),
        ],
    )
    def test_what_cannot_be_saved_is_told_and_leaves_nothing(
        self, say: Said, words: list[str], code: ExitCode, reason: str
    ) -> None:
        assert reason in say("save", *words, code=code)
        assert not user_profiles_dir().exists()

    def test_a_bad_value_is_not_saved(self, say: Said) -> None:
        backend_env_file().write_text("LLAMA_DRAFT_MAX=many\n", encoding="utf-8")
        said = say("save", "mine", code=ExitCode.BAD_INPUT)
        assert f"{backend_env_file()}: LLAMA_DRAFT_MAX=many: not a whole number" in said

    def test_nothing_but_the_machines_own_is_nothing(self, say: Said) -> None:
        backend_env_file().write_text("LLAMA_MODEL=/m\n", encoding="utf-8")
        proxy_env_file().unlink()
        assert "nothing to save" in say("save", "mine", code=ExitCode.BAD_INPUT)


class TestDiff:
    def test_each_key_is_compared_by_meaning(self, say: Said) -> None:
        found = {service["service"]: service["keys"] for service in say.json("diff", "agentic-continuity")["services"]}
        assert [(row["key"], row["present"], row["profile"], row["same"]) for row in found["backend"]] == [
            ("LLAMA_DRAFT_MAX", "12", "12", True),
            ("LLAMA_DRAFT_MIN", None, "2", False),
            ("LLAMA_DRAFT_P_MIN", "0.8", "0.80", True),
            ("LLAMA_HYBRID_ROLLBACK_MODE", None, "strict", False),
        ]
        assert [row["same"] for row in found["proxy"] if row["key"] == "PROXY_LOOP_BREAKER"] == [True]

    def test_the_differing_lines_are_marked_and_counted(self, say: Said) -> None:
        lines = say("diff", "agentic-continuity").splitlines()
        assert [line.split()[1] for line in lines if line.startswith("*")] == [
            "LLAMA_DRAFT_MIN",
            "LLAMA_HYBRID_ROLLBACK_MODE",
            "PROXY_LOOP_REPEAT_THRESHOLD",
            "PROXY_FORCED_THRESHOLD",
            "PROXY_NO_PROGRESS_THRESHOLD",
            "PROXY_CONTEXT_RELEASE_THRESHOLD",
        ]
        assert lines[-1] == "6 to change; specdash apply --profile agentic-continuity"

    def test_what_was_saved_differs_in_nothing(self, say: Said) -> None:
        say("save", "mine")
        assert say("diff", "mine").splitlines()[-1] == "all settings match the profile"

    def test_a_service_the_profile_does_not_touch_is_refused(self, say: Said) -> None:
        assert "sets nothing of the backend" in say(
            "diff", "loop-incident", "--service", "backend", code=ExitCode.USAGE
        )
