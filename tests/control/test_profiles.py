"""Named sets of settings: what ships, what users add, and what is refused."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.backend.settings import settings_from_env
from specdash.control.profiles import (
    BUILT_IN,
    Profile,
    all_profiles,
    broken_profiles,
    find_profile,
    is_machine_key,
    means_the_same,
    parse_profile,
    profile_text,
    save_profile,
)
from specdash.core.changes import Role, changed_values
from specdash.core.errors import InputError, NotWrittenError, UsageError
from specdash.core.paths import user_profiles_dir
from specdash.proxy.settings import settings_from_env as proxy_settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CHARACTERS = st.characters(codec="utf-8")
SHIPPED = ("agentic-continuity", "loop-incident", "max-throughput")
MINE = '{head}name = "mine"\nsummary = "s"\nsource = "x"\nnotes = ["n"]\n{body}'


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


def write(env: Mapping[str, str], body: str, name: str = "mine", head: str = "") -> Path:
    path = user_profiles_dir(env) / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(MINE.format(head=head, body=body), encoding="utf-8")
    return path


class TestShipped:
    def test_three_profiles_ship_with_reasons(self, env: dict[str, str]) -> None:
        profiles = all_profiles(env)
        assert tuple(profile.name for profile in profiles) == SHIPPED
        for profile in profiles:
            assert profile.summary
            assert profile.notes
            assert "UAP" in profile.source
            assert (profile.origin, profile.own, profile.replaces) == (BUILT_IN, False, False)

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            (
                "agentic-continuity",
                {
                    Role.BACKEND: {
                        "LLAMA_DRAFT_MAX": "12",
                        "LLAMA_DRAFT_MIN": "2",
                        "LLAMA_DRAFT_P_MIN": "0.80",
                        "LLAMA_HYBRID_ROLLBACK_MODE": "strict",
                    },
                    Role.PROXY: {
                        "PROXY_LOOP_BREAKER": "on",
                        "PROXY_LOOP_WINDOW": "6",
                        "PROXY_LOOP_REPEAT_THRESHOLD": "10",
                        "PROXY_FORCED_THRESHOLD": "18",
                        "PROXY_NO_PROGRESS_THRESHOLD": "5",
                        "PROXY_CONTEXT_RELEASE_THRESHOLD": "0.95",
                        "PROXY_GUARDRAIL_RETRY": "on",
                    },
                },
            ),
            (
                "max-throughput",
                {
                    Role.BACKEND: {
                        "LLAMA_DRAFT_MAX": "16",
                        "LLAMA_DRAFT_MIN": "3",
                        "LLAMA_DRAFT_P_MIN": "0.72",
                        "LLAMA_HYBRID_ROLLBACK_MODE": "hybrid",
                        "LLAMA_PARALLEL": "1",
                        "LLAMA_ARG_FLASH_ATTN": "on",
                    },
                },
            ),
            (
                "loop-incident",
                {
                    Role.PROXY: {
                        "PROXY_LOOP_WINDOW": "6",
                        "PROXY_LOOP_REPEAT_THRESHOLD": "8",
                        "PROXY_FORCED_THRESHOLD": "14",
                        "PROXY_NO_PROGRESS_THRESHOLD": "4",
                        "PROXY_CONTEXT_RELEASE_THRESHOLD": "0.90",
                    },
                },
            ),
        ],
    )
    def test_their_values_are_the_sources(
        self, env: dict[str, str], name: str, values: dict[Role, dict[str, str]]
    ) -> None:
        assert find_profile(name, env).values == values

    @pytest.mark.parametrize("name", SHIPPED)
    def test_the_services_take_all_of_them(self, env: dict[str, str], name: str) -> None:
        values = find_profile(name, env).values
        model = {"LLAMA_MODEL": "/m.gguf", "LLAMA_SPEC_TYPE": "draft-simple", "LLAMA_DRAFT_MODEL": "/d.gguf"}
        settings_from_env(changed_values(model, values.get(Role.BACKEND, {})))
        assert proxy_settings(changed_values({}, values.get(Role.PROXY, {}))).problems == ()


class TestOwn:
    def test_a_file_of_the_user_is_a_profile(self, env: dict[str, str]) -> None:
        path = write(env, "[backend]\nLLAMA_DRAFT_MAX = 6\n[proxy]\nPROXY_LOOP_BREAKER = false\n")
        mine = all_profiles(env)[-1]
        assert mine == find_profile("mine", env)
        assert (mine.origin, mine.own, mine.replaces, mine.notes) == (str(path), True, False, ("n",))
        assert mine.values == {Role.BACKEND: {"LLAMA_DRAFT_MAX": "6"}, Role.PROXY: {"PROXY_LOOP_BREAKER": "off"}}

    def test_numbers_are_taken_as_they_are_written(self, env: dict[str, str]) -> None:
        write(env, "[backend]\nLLAMA_DRAFT_P_MIN = 0.750\nLLAMA_CTX_SIZE = 262_144\nLLAMA_GPU_LAYERS = 'all'\n")
        assert find_profile("mine", env).values[Role.BACKEND] == {
            "LLAMA_DRAFT_P_MIN": "0.750",
            "LLAMA_CTX_SIZE": "262144",
            "LLAMA_GPU_LAYERS": "all",
        }

    def test_it_stands_in_for_a_built_in_one_of_its_name(self, env: dict[str, str]) -> None:
        path = user_profiles_dir(env) / "loop-incident.toml"
        path.parent.mkdir(parents=True)
        path.write_text('name = "loop-incident"\n[proxy]\nPROXY_LOOP_WINDOW = 4\n', encoding="utf-8")
        assert tuple(profile.name for profile in all_profiles(env)) == SHIPPED
        profile = find_profile("loop-incident", env)
        assert (profile.own, profile.replaces, profile.values) == (True, True, {Role.PROXY: {"PROXY_LOOP_WINDOW": "4"}})

    def test_a_broken_file_is_listed_and_hides_no_other(self, env: dict[str, str]) -> None:
        write(env, "[backend]\nLLAMA_DRAFT_MAX = 6\n")
        path = write(env, "[backend\n", "broken")
        assert [profile.name for profile in all_profiles(env)] == [*SHIPPED, "mine"]
        (broken,) = broken_profiles(env)
        assert (broken.name, broken.path) == ("broken", path)
        with pytest.raises(InputError, match="is not valid TOML"):
            find_profile("broken", env)

    def test_what_a_broken_file_stands_in_for_is_not_taken_in_its_place(self, env: dict[str, str]) -> None:
        write(env, "", "loop-incident")
        assert "loop-incident" not in [profile.name for profile in all_profiles(env)]
        with pytest.raises(InputError, match=r"loop-incident\.toml"):
            find_profile("loop-incident", env)

    def test_an_unknown_name_is_told_with_a_likely_one(self, env: dict[str, str]) -> None:
        with pytest.raises(InputError, match="no profile 'max-througput'; did you mean max-throughput"):
            find_profile("max-througput", env)

    def test_a_directory_that_is_none_is_no_profile(self, env: dict[str, str]) -> None:
        user_profiles_dir(env).parent.mkdir(parents=True)
        user_profiles_dir(env).write_text("", encoding="utf-8")
        assert len(all_profiles(env)) == 3

    @pytest.mark.parametrize("content", [b"\xff", b"x" * (1 << 21)])
    def test_bytes_that_are_no_text_are_no_profile(self, env: dict[str, str], content: bytes) -> None:
        write(env, "").write_bytes(content)
        assert [broken_profile.name for broken_profile in broken_profiles(env)] == ["mine"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "sets nothing"),
        ("[backend]\n", "sets nothing"),
        ("[backend]\nLLAMA_DRAFT_MAXX = 3\n", r"LLAMA_DRAFT_MAXX: the backend has no such key; did you mean LLAMA"),
        ("[backend]\nCUDA_VISIBLE_DEVICES = 0\n", "CUDA_VISIBLE_DEVICES: the backend has no such key"),
        ("[backend]\nPROXY_LOOP_WINDOW = 3\n", r"PROXY_LOOP_WINDOW: belongs under \[proxy\]"),
        ("[proxy]\nLLAMA_DRAFT_MAX = 3\n", r"LLAMA_DRAFT_MAX: belongs under \[backend\]"),
        ("[backend]\nLLAMA_DRAFT_MAX = 0\n", "LLAMA_DRAFT_MAX=0: must be from 1"),
        ("[backend]\nLLAMA_DRAFT_MAX = 'many'\n", "LLAMA_DRAFT_MAX=many: not a whole number"),
        ("[backend]\nLLAMA_DRAFT_P_MIN = nan\n", "LLAMA_DRAFT_P_MIN=nan: not a finite number"),
        ("[backend]\nLLAMA_DRAFT_MAX = [3]\n", "LLAMA_DRAFT_MAX: must be a text, a number"),
        ("[backend]\nLLAMA_DRAFT_MAX = 2026-01-01\n", "LLAMA_DRAFT_MAX: must be a text, a number"),
        ("[backend]\nLLAMA_EXTRA_ARGS = \"a\\nb\"\n", "LLAMA_EXTRA_ARGS: must be a single line"),
        ("[backend]\nLLAMA_API_KEY = 'hush'\n", "LLAMA_API_KEY: profiles hold no secrets"),
        ("[proxy]\nPROXY_UPSTREAM_API_KEY = 'hush'\n", "PROXY_UPSTREAM_API_KEY: profiles hold no secrets"),
        ("[backend]\nHF_TOKEN = ''\n", "HF_TOKEN: profiles hold no secrets"),
        ("[backend]\nLLAMA_EXTRA_ARGS = '--api-key hush'\n", "LLAMA_EXTRA_ARGS: profiles hold no secrets"),
        ("[proxy]\nLLAMA_CPP_BASE = 'http://me:hush@h/v1'\n", "LLAMA_CPP_BASE: profiles hold no secrets"),
        ("[proxie]\n", "unknown field 'proxie'; did you mean proxy"),
        ("backend = 3\n", r"backend must be a table: write \[backend\]"),
    ],
)  # fmt: skip
def test_what_no_profile_can_hold_is_refused_by_file_and_key(env: dict[str, str], body: str, reason: str) -> None:
    path = write(env, body)
    with pytest.raises(InputError, match=reason) as caught:
        find_profile("mine", env)
    assert str(caught.value).startswith(f"{path}: ")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "name = '': must be 'mine'"),
        ('name = "other"', "name = 'other': must be 'mine', as the file is called"),
        ("name = 3", "name must be a text"),
        ('name = "mine"\nsummary = 3', "summary must be a text"),
        ('name = "mine"\nnotes = "n"', "notes must be a list of texts"),
        ('name = "mine"\nnotes = [1]', "notes must be a list of texts"),
    ],
)
def test_a_head_that_is_none_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        parse_profile(f"{text}\n", "mine.toml", "mine")


class TestSaving:
    MINE = Profile("mine", "for me", "by hand", {Role.BACKEND: {"LLAMA_DRAFT_MAX": "7"}, Role.PROXY: {}}, ("so",))

    def test_what_was_saved_is_found_and_private(self, env: dict[str, str]) -> None:
        path = save_profile(self.MINE, env)
        assert path.stat().st_mode & 0o777 == 0o600
        found = find_profile("mine", env)
        assert (found.summary, found.notes, found.values) == (
            "for me",
            ("so",),
            {Role.BACKEND: {"LLAMA_DRAFT_MAX": "7"}},
        )

    def test_a_profile_is_replaced_only_when_that_is_meant(self, env: dict[str, str]) -> None:
        path = save_profile(self.MINE, env)
        other = replace(self.MINE, summary="other")
        with pytest.raises(UsageError, match="add --force"):
            save_profile(other, env)
        assert find_profile("mine", env).summary == "for me"
        save_profile(other, env, replace=True)
        assert find_profile("mine", env).summary == "other"
        assert (path.stat().st_mode & 0o777, list(path.parent.iterdir())) == (0o600, [path])

    @pytest.mark.parametrize("name", ["", "Mine", "../mine", "a b", ".mine", "a" * 65, "a/b", "mine\n"])
    def test_a_name_that_is_no_file_name_is_refused(self, env: dict[str, str], name: str) -> None:
        with pytest.raises(UsageError, match="profile name"):
            save_profile(replace(self.MINE, name=name), env)
        assert not user_profiles_dir(env).exists()

    def test_a_secret_is_refused_and_nothing_is_written(self, env: dict[str, str]) -> None:
        with pytest.raises(InputError, match="no secrets"):
            save_profile(replace(self.MINE, values={Role.BACKEND: {"LLAMA_API_KEY": "hush"}}), env)
        assert not user_profiles_dir(env).exists()

    def test_a_place_that_cannot_be_written_is_told(self, env: dict[str, str], tmp_path: Path) -> None:
        (tmp_path / ".config").write_text("", encoding="utf-8")
        with pytest.raises(NotWrittenError, match=r"mine\.toml was not written"):
            save_profile(self.MINE, env)

    @given(st.text(CHARACTERS), st.lists(st.text(CHARACTERS)))
    def test_any_words_come_back(self, summary: str, notes: list[str]) -> None:
        profile = replace(self.MINE, summary=summary, notes=tuple(notes))
        text = profile_text(profile)
        assert tomllib.loads(text)["summary"] == summary
        assert parse_profile(text, "mine.toml", "mine").notes == tuple(notes)


@pytest.mark.parametrize(
    ("key", "written", "other", "same"),
    [
        ("PROXY_LOOP_BREAKER", "on", "1", True),
        ("PROXY_LOOP_BREAKER", "on", "off", False),
        ("PROXY_CONTEXT_RELEASE_THRESHOLD", "0.9", "0.90", True),
        ("PROXY_LOOP_WINDOW", "6", None, False),
        ("PROXY_LOOP_WINDOW", "", None, True),
        ("PROXY_LOOP_WINDOW", "six", "6", False),
        ("PROXY_UNHEARD_OF", "a", "b", False),
    ],
)
def test_values_are_compared_by_what_they_mean(key: str, written: str | None, other: str | None, same: bool) -> None:
    assert means_the_same(Role.PROXY, key, written, other) is same


def test_paths_addresses_and_models_belong_to_the_machine() -> None:
    machine = ("LLAMA_MODEL", "LLAMA_BIN", "LLAMA_PORT", "LLAMA_HOST", "LLAMA_ARG_DEVICE", "LLAMA_LOG_FILE", "PATH")
    assert all(is_machine_key(Role.BACKEND, key) for key in machine)
    assert not any(
        is_machine_key(Role.BACKEND, key) for key in ("LLAMA_DRAFT_MAX", "LLAMA_CTX_SIZE", "LLAMA_SPEC_TYPE")
    )
    assert all(is_machine_key(Role.PROXY, key) for key in ("LLAMA_CPP_BASE", "PROXY_PORT", "PROXY_LOG_FILE"))
    assert not is_machine_key(Role.PROXY, "PROXY_LOOP_WINDOW")
