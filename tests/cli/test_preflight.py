"""`specdash preflight`: text, JSON, exit codes, and which services it looks at."""

import json
from pathlib import Path
from typing import Any

import pytest

from specdash.backend.demo import DRAFT_MODEL, TARGET_MODEL, bundled_model
from specdash.backend.launch import free_port
from specdash.cli.main import main
from specdash.core.paths import backend_env_file, proxy_env_file
from support.engines import write_env
from support.outside import say


@pytest.fixture
def good() -> dict[str, str]:
    pytest.importorskip("xllamacpp")
    return {
        "LLAMA_ENGINE": "xllamacpp",
        "LLAMA_MODEL": str(bundled_model(TARGET_MODEL)),
        "LLAMA_DRAFT_MODEL": str(bundled_model(DRAFT_MODEL)),
        "LLAMA_SPEC_TYPE": "draft-simple",
        "LLAMA_DRAFT_MAX": "8",
        "LLAMA_PORT": str(free_port("127.0.0.1")),
    }


def _json(*words: str) -> tuple[int, Any]:
    code, out, _ = say("preflight", "--json", *words)
    return code, json.loads(out)


def test_good_settings_exit_0(good: dict[str, str], tmp_path: Path) -> None:
    file = write_env(tmp_path / "b.env", good)
    code, said = _json("--env-file", str(file))
    assert (code, said["ok"]) == (0, True)
    assert said["services"] == {"backend": {"name": None, "env_file": str(file), "changed": [], "ok": True}}
    assert {row["severity"] for row in said["findings"]} <= {"info"}


def test_changes_are_checked_and_not_written(good: dict[str, str], tmp_path: Path) -> None:
    file = write_env(tmp_path / "b.env", good)
    before = file.read_bytes()
    code, said = _json("--env-file", str(file), "LLAMA_DRAFT_MAX=0", "LLAMA_CTX_SIZE=9999")
    assert (code, said["ok"]) == (7, False)
    assert said["services"]["backend"]["changed"] == ["LLAMA_CTX_SIZE", "LLAMA_DRAFT_MAX"]
    first = said["findings"][0]
    assert (first["service"], first["rule"], first["severity"]) == ("backend", "value", "error")
    assert set(first) == {"service", "rule", "severity", "key", "message", "fix"}
    assert file.read_bytes() == before


@pytest.mark.parametrize("removal", ["!LLAMA_DRAFT_MODEL", "-LLAMA_DRAFT_MODEL"])
def test_a_key_can_be_removed(removal: str, good: dict[str, str], tmp_path: Path) -> None:
    file = write_env(tmp_path / "b.env", good)
    code, said = _json("--env-file", str(file), removal)
    assert code == 7
    assert "needs a draft model" in said["findings"][0]["message"]


def test_text_groups_by_severity_with_fixes(good: dict[str, str], tmp_path: Path) -> None:
    file = write_env(tmp_path / "b.env", {**good, "LLAMA_DRFT_MAX": "1", "LLAMA_CTX_SIZE": "x"})
    code, out, _ = say("preflight", "--env-file", str(file))
    assert code == 7
    assert out.index("\nerrors\n") < out.index("LLAMA_CTX_SIZE=x") < out.index("\nwarnings\n")
    assert "fix: did you mean LLAMA_DRAFT_MAX?" in out
    assert out.rstrip().endswith("would be refused: 1 error, 1 warning, 0 notes")


def test_both_services_are_checked_when_nothing_says_which(good: dict[str, str]) -> None:
    for make, values in ((backend_env_file, good), (proxy_env_file, {"PROXY_PORT": str(free_port("127.0.0.1"))})):
        make().parent.mkdir(parents=True, exist_ok=True)
        write_env(make(), values)
    code, said = _json()
    assert (code, set(said["services"])) == (7, {"backend", "proxy"})
    assert len([row for row in said["findings"] if "LLAMA_CPP_BASE asks port 8080" in row["message"]]) == 1
    assert set(_json("PROXY_LOOP_BREAKER=off")[1]["services"]) == {"proxy"}
    assert set(_json("--service", "backend")[1]["services"]) == {"backend"}


@pytest.mark.parametrize(
    ("keys", "role"),
    [({"LLAMA_MODEL": "x"}, "backend"), ({"PROXY_PORT": "1"}, "proxy"), ({"LLAMA_CPP_BASE": "x"}, "proxy")],
)
def test_the_keys_of_a_file_tell_whose_it_is(keys: dict[str, str], role: str, tmp_path: Path) -> None:
    file = write_env(tmp_path / "x.env", keys)
    assert set(_json("--env-file", str(file))[1]["services"]) == {role}


def test_bad_usage_and_missing_files_have_their_own_codes(tmp_path: Path) -> None:
    assert main(["preflight"]) == 3
    assert main(["preflight", "--env-file", str(tmp_path / "absent.env")]) == 3
    assert main(["preflight", "--env-file", str(tmp_path)]) == 3
    file = write_env(tmp_path / "x.env", {"FOO": "1"})
    assert main(["preflight", "--env-file", str(file)]) == 2
    code, _, err = say("preflight", "NOBODYS_KEY=1")
    assert code == 2
    assert "--service backend or proxy" in err


def test_a_file_with_an_unreadable_line_is_still_checked(good: dict[str, str], tmp_path: Path) -> None:
    file = write_env(tmp_path / "b.env", good)
    file.write_text(f"{file.read_text(encoding='utf-8')}export X=1\n", encoding="utf-8")
    code, said = _json("--env-file", str(file))
    assert code == 7
    assert [row["rule"] for row in said["findings"] if row["severity"] == "error"] == ["env-line"]


def test_a_profile_is_checked_and_the_words_win_over_it(good: dict[str, str], tmp_path: Path) -> None:
    file = write_env(tmp_path / "b.env", good)
    code, said = _json("--env-file", str(file), "--profile", "agentic-continuity", "LLAMA_DRAFT_MAX=1x")
    assert code == 7
    assert "LLAMA_DRAFT_MIN" in said["services"]["backend"]["changed"]
    assert [row["message"] for row in said["findings"] if row["severity"] == "error"] == [
        "LLAMA_DRAFT_MAX=1x: not a whole number"
    ]
