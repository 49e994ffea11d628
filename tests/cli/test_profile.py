"""`specdash profile`: what an operator types, and what comes back."""

import json

from specdash.core.errors import ExitCode
from specdash.core.paths import user_profiles_dir
from support.outside import say


def test_list_names_all_and_what_is_broken() -> None:
    user_profiles_dir().mkdir(parents=True)
    (user_profiles_dir() / "loop-incident.env").write_text("# mine\nPROXY_LOOP_WINDOW=4\n", encoding="utf-8")
    (user_profiles_dir() / "bad.env").write_text("[", encoding="utf-8")
    code, out, _ = say("profile", "list")
    rows = [[part.strip() for part in line.split("  ") if part] for line in out.splitlines()]
    assert code == ExitCode.OK
    assert [row[:2] for row in rows] == [
        ["agentic-continuity", "built in"],
        ["claude-code-qwen", "built in"],
        ["loop-incident", "yours, in place of the built-in one"],
        ["max-throughput", "built in"],
        ["production", "built in"],
        ["bad", "broken"],
    ]
    found = json.loads(say("profile", "list", "--json")[1])
    own = [profile["name"] for profile in found["profiles"] if profile["own"] and profile["replaces_built_in"]]
    assert own == ["loop-incident"]
    assert [entry["name"] for entry in found["broken"]] == ["bad"]


def test_show_tells_values_meanings_source_and_notes() -> None:
    text = say("profile", "show", "agentic-continuity")[1]
    assert "LLAMA_DRAFT_P_MIN=0.80 " in text
    assert "longest draft" in text
    assert "March 2026" in text
    assert "ngram-cache" in text
    values = json.loads(say("profile", "show", "loop-incident", "--json")[1])["values"]
    assert values.keys() == {"proxy"}
    assert values["proxy"]["PROXY_FORCED_THRESHOLD"] == "14"


def test_a_profile_that_is_not_there_is_bad_input() -> None:
    code, _, err = say("profile", "show", "nope")
    assert (code, "no profile 'nope'" in err) == (ExitCode.BAD_INPUT, True)
