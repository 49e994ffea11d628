"""`specdash profile`: what an operator types, and what comes back."""

import json
from typing import Any

import pytest

from specdash.cli.main import main
from specdash.core.errors import ExitCode
from specdash.core.paths import user_profiles_dir


class Said:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *words: str, code: int = ExitCode.OK) -> str:
        assert main(["profile", *words]) == code
        said = self.capsys.readouterr()
        return said.out if code == ExitCode.OK else said.err

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Said:
    return Said(capsys)


def test_list_names_all_and_what_is_broken(say: Said) -> None:
    user_profiles_dir().mkdir(parents=True)
    (user_profiles_dir() / "loop-incident.env").write_text("# mine\nPROXY_LOOP_WINDOW=4\n", encoding="utf-8")
    (user_profiles_dir() / "bad.env").write_text("[", encoding="utf-8")
    rows = [[part.strip() for part in line.split("  ") if part] for line in say("list").splitlines()]
    assert [row[:2] for row in rows] == [
        ["agentic-continuity", "built in"],
        ["claude-code-qwen", "built in"],
        ["loop-incident", "yours, in place of the built-in one"],
        ["max-throughput", "built in"],
        ["production", "built in"],
        ["bad", "broken"],
    ]
    found = say.json("list")
    assert [(profile["name"], profile["own"], profile["replaces_built_in"]) for profile in found["profiles"]] == [
        ("agentic-continuity", False, False),
        ("claude-code-qwen", False, False),
        ("loop-incident", True, True),
        ("max-throughput", False, False),
        ("production", False, False),
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
