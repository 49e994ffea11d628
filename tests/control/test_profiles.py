"""Named sets of settings: what ships, what users add, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from specdash.backend.settings import settings_from_env
from specdash.control.profiles import BUILT_IN, all_profiles, find_profile, means_the_same
from specdash.core.changes import Role, changed_values
from specdash.core.errors import InputError
from specdash.core.paths import user_profiles_dir
from specdash.proxy.settings import settings_from_env as proxy_settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SHIPPED = ("agentic-continuity", "claude-code-qwen", "loop-incident", "max-throughput", "production")

SOURCES = """
agentic-continuity
LLAMA_DRAFT_MAX=12 LLAMA_DRAFT_MIN=2 LLAMA_DRAFT_P_MIN=0.80 LLAMA_HYBRID_ROLLBACK_MODE=strict
PROXY_LOOP_BREAKER=on PROXY_LOOP_WINDOW=6 PROXY_LOOP_REPEAT_THRESHOLD=10
PROXY_FORCED_THRESHOLD=18 PROXY_NO_PROGRESS_THRESHOLD=5 PROXY_CONTEXT_RELEASE_THRESHOLD=0.95
PROXY_GUARDRAIL_RETRY=on

max-throughput
LLAMA_DRAFT_MAX=16 LLAMA_DRAFT_MIN=3 LLAMA_DRAFT_P_MIN=0.72 LLAMA_HYBRID_ROLLBACK_MODE=hybrid
LLAMA_PARALLEL=1 LLAMA_ARG_FLASH_ATTN=on

loop-incident
PROXY_LOOP_WINDOW=6 PROXY_LOOP_REPEAT_THRESHOLD=8 PROXY_FORCED_THRESHOLD=14
PROXY_NO_PROGRESS_THRESHOLD=4 PROXY_CONTEXT_RELEASE_THRESHOLD=0.90

production
PROXY_MAX_TOKENS_FLOOR=4096 PROXY_STREAM_REASONING_FALLBACK=off
PROXY_MALFORMED_TOOL_GUARDRAIL=on PROXY_MALFORMED_TOOL_STREAM_STRICT=on
PROXY_MALFORMED_TOOL_RETRY_MAX=1 PROXY_MALFORMED_TOOL_RETRY_MAX_TOKENS=512
PROXY_MALFORMED_TOOL_RETRY_TEMPERATURE=0 PROXY_TOOL_NARROWING=off
PROXY_DISABLE_THINKING_ON_TOOL_TURNS=off PROXY_SESSION_CONTAMINATION_BREAKER=off
PROXY_AGENTIC_SUPPLEMENT_MODE=legacy

claude-code-qwen
PROXY_STREAM_REASONING_FALLBACK=off PROXY_MAX_TOKENS_FLOOR=4096
PROXY_MALFORMED_TOOL_GUARDRAIL=on PROXY_TOOL_NARROWING=on
PROXY_DISABLE_THINKING_ON_TOOL_TURNS=on PROXY_SESSION_CONTAMINATION_BREAKER=on
PROXY_AGENTIC_SUPPLEMENT_MODE=clean
"""
"""What the seeds give each of them."""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


def write(env: Mapping[str, str], body: str, name: str = "mine", ending: str = "env") -> Path:
    path = user_profiles_dir(env) / f"{name}.{ending}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(body, encoding="utf-8")
    return path


class TestShipped:
    def test_five_profiles_ship_with_reasons(self, env: dict[str, str]) -> None:
        profiles = all_profiles(env)
        assert tuple(profile.name for profile in profiles) == SHIPPED
        for profile in profiles:
            assert profile.summary
            assert profile.notes
            assert "UAP" in profile.source
            assert (profile.origin, profile.own, profile.replaces) == (BUILT_IN, False, False)

    def test_their_values_are_the_sources(self, env: dict[str, str]) -> None:
        for name, *words in (profile.split() for profile in SOURCES.strip().split("\n\n")):
            values = find_profile(name, env).values
            assert {key: text for keys in values.values() for key, text in keys.items()} == dict(
                word.split("=") for word in words
            ), name
            assert all(key.startswith("PROXY_") == (role is Role.PROXY) for role in values for key in values[role])

    @pytest.mark.parametrize("name", SHIPPED)
    def test_the_services_take_all_of_them(self, env: dict[str, str], name: str) -> None:
        values = find_profile(name, env).values
        model = {"LLAMA_MODEL": "/m.gguf", "LLAMA_SPEC_TYPE": "draft-simple", "LLAMA_DRAFT_MODEL": "/d.gguf"}
        settings_from_env(changed_values(model, values.get(Role.BACKEND, {})))
        assert proxy_settings(changed_values({}, values.get(Role.PROXY, {}))).problems == ()


class TestOwn:
    def test_a_file_of_the_user_is_a_profile_whose_first_comment_is_its_summary(self, env: dict[str, str]) -> None:
        path = write(env, "# after six\n; Source: tried by hand\n# n\nPROXY_LOOP_BREAKER=off\nLLAMA_DRAFT_MAX='6'\n")
        mine = all_profiles(env)[-1]
        assert mine == find_profile("mine", env)
        assert (mine.summary, mine.source, mine.notes) == ("after six", "tried by hand", ("n",))
        assert (mine.origin, mine.own, mine.replaces) == (str(path), True, False)
        assert mine.values == {Role.BACKEND: {"LLAMA_DRAFT_MAX": "6"}, Role.PROXY: {"PROXY_LOOP_BREAKER": "off"}}

    def test_it_stands_in_for_a_built_in_one_of_its_name(self, env: dict[str, str]) -> None:
        write(env, "PROXY_LOOP_WINDOW=4\n", "loop-incident")
        assert tuple(profile.name for profile in all_profiles(env)) == SHIPPED
        profile = find_profile("loop-incident", env)
        assert (profile.own, profile.replaces, profile.values) == (True, True, {Role.PROXY: {"PROXY_LOOP_WINDOW": "4"}})

    def test_a_broken_file_is_listed_and_hides_no_other(self, env: dict[str, str]) -> None:
        write(env, "LLAMA_DRAFT_MAX=6\n")
        path = write(env, "LLAMA_DRAFT_MAX\n", "broken")
        assert [profile.name for profile in all_profiles(env) if not profile.broken] == [*SHIPPED, "mine"]
        (broken,) = (one for one in all_profiles(env) if one.broken)
        assert (broken.name, broken.origin) == ("broken", str(path))
        with pytest.raises(InputError, match=r"broken\.env:1"):
            find_profile("broken", env)

    def test_what_a_broken_file_stands_in_for_is_not_taken_in_its_place(self, env: dict[str, str]) -> None:
        write(env, "", "loop-incident")
        with pytest.raises(InputError, match=r"loop-incident\.env"):
            find_profile("loop-incident", env)

    def test_an_unknown_name_gets_a_likely_one(self, env: dict[str, str]) -> None:
        with pytest.raises(InputError, match="no profile 'max-througput'; did you mean max-throughput"):
            find_profile("max-througput", env)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "sets nothing"),
        ("LLAMA_DRAFT_MAXX=3\n", "LLAMA_DRAFT_MAXX: neither the backend nor the proxy has such a key; did you"),
        ("LLAMA_DRAFT_MAX=0\n", "LLAMA_DRAFT_MAX=0: must be from 1"),
        ("LLAMA_API_KEY=hush\n", "LLAMA_API_KEY: profiles hold no secrets"),
        ("LLAMA_EXTRA_ARGS='--api-key hush'\n", "LLAMA_EXTRA_ARGS: profiles hold no secrets"),
        ("LLAMA_CPP_BASE=http://me:hush@h/v1\n", "LLAMA_CPP_BASE: profiles hold no secrets"),
    ],
)  # fmt: skip
def test_what_no_profile_can_hold_is_refused_by_file_and_key(env: dict[str, str], body: str, reason: str) -> None:
    path = write(env, body)
    with pytest.raises(InputError, match=reason) as caught:
        find_profile("mine", env)
    assert str(caught.value).startswith(f"{path}: ")
    assert "hush" not in str(caught.value)


OLD = """\
#:schema ../profile.schema.json
name = "mine"
summary = "what works after six"
source = "tried by hand"
notes = ["longer drafts only paid\\nwith the small draft model"]

[backend]
LLAMA_DRAFT_MAX = 6
LLAMA_DRAFT_P_MIN = 0.750
LLAMA_CTX_SIZE = 262_144
LLAMA_EXTRA_ARGS = "--alias 'a b'"

[proxy]
PROXY_LOOP_BREAKER = true
"""


class TestConversion:
    """Profiles of specdash 0.1 were TOML files."""

    def test_an_old_profile_becomes_an_env_file_once(
        self, env: dict[str, str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        old = write(env, OLD, ending="toml")
        mine = find_profile("mine", env)
        assert mine.values == {
            Role.BACKEND: {
                "LLAMA_DRAFT_MAX": "6",
                "LLAMA_DRAFT_P_MIN": "0.750",
                "LLAMA_CTX_SIZE": "262144",
                "LLAMA_EXTRA_ARGS": "--alias 'a b'",
            },
            Role.PROXY: {"PROXY_LOOP_BREAKER": "on"},
        }
        assert (mine.summary, mine.source) == ("what works after six", "tried by hand")
        assert mine.notes == ("longer drafts only paid with the small draft model",)
        new = old.with_suffix(".env")
        assert (mine.origin, new.stat().st_mode & 0o777) == (str(new), 0o600)
        assert old.with_name("mine.toml.converted").read_text(encoding="utf-8") == OLD
        assert not old.exists()
        line = f"specdash: profile {old} is now {new}; the old file was kept as mine.toml.converted\n"
        assert capsys.readouterr().err == line
        find_profile("mine", env)
        assert capsys.readouterr().err == ""

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            ("[", "is not valid TOML"),
            ("backend = 3\n", r"backend must be a table: write \[backend\]"),
            ("[backend]\nLLAMA_DRAFT_MAX = [3]\n", "LLAMA_DRAFT_MAX: must be a text, a number"),
        ],
    )
    def test_one_that_cannot_be_converted_stays_and_is_listed_as_broken(
        self, env: dict[str, str], body: str, reason: str
    ) -> None:
        old = write(env, body, ending="toml")
        with pytest.raises(InputError, match=reason):
            find_profile("mine", env)
        assert [one.origin for one in all_profiles(env) if one.broken] == [str(old)]
        assert old.read_text(encoding="utf-8") == body


@pytest.mark.parametrize(
    ("key", "written", "other", "same"),
    [
        ("PROXY_LOOP_BREAKER", "on", "1", True),
        ("PROXY_CONTEXT_RELEASE_THRESHOLD", "0.9", "0.90", True),
        ("PROXY_LOOP_WINDOW", "", None, True),
        ("PROXY_LOOP_WINDOW", "six", "6", False),
        ("PROXY_UNHEARD_OF", "a", "b", False),
    ],
)
def test_values_are_compared_by_what_they_mean(key: str, written: str | None, other: str | None, same: bool) -> None:
    assert means_the_same(Role.PROXY, key, written, other) is same
