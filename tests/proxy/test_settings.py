"""PROXY_* texts to settings, where they come from, and what reading them again may change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.errors import InputError
from specdash.core.paths import proxy_env_file
from specdash.core.proxy_parameters import BY_KEY, NEEDS_RESTART, PARAMETERS
from specdash.proxy.settings import Configuration, ProxySettings, load, reread, settings_from_env

if TYPE_CHECKING:
    from pathlib import Path

GUARDED = sorted(set(BY_KEY) - NEEDS_RESTART)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)


def test_every_parameter_is_a_field_and_its_default_a_good_value_of_it() -> None:
    fields = set(ProxySettings.model_fields) - {"problems"}
    assert fields == {parameter.name for parameter in PARAMETERS}
    for parameter in PARAMETERS:
        if parameter.default is not None:
            assert parameter.parse(parameter.text(parameter.default), parameter.key) == parameter.default


@pytest.mark.parametrize("key", GUARDED)
@given(text=TEXTS)
def test_no_value_of_a_guardrail_key_takes_the_proxy_down(key: str, text: str) -> None:
    settings = settings_from_env({key: text})
    assert all("PROXY_" in problem for problem in settings.problems)


def test_a_bad_value_leaves_the_default_and_names_key_value_and_way_out_and_an_empty_one_counts_as_unset() -> None:
    settings = settings_from_env({"PROXY_LOOP_WINDOW": "six"}, "proxy.env")
    assert settings.loop_window == 6
    assert settings.problems == ("proxy.env: PROXY_LOOP_WINDOW=six: not a whole number; using the default, 6",)
    assert settings_from_env({"PROXY_LOOP_WINDOW": "", "PROXY_LOOP_BREAKER": " "}) == settings_from_env({})


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"PROXY_PORT": "99999"}, "PROXY_PORT=99999"),
        ({"PROXY_HOST": "0.0.0.0"}, "PROXY_API_KEY"),
        ({"LLAMA_CPP_BASE": "localhost:8080"}, "LLAMA_CPP_BASE=localhost:8080"),
        ({"PROXY_TLS_CERT_FILE": "/x.pem"}, "PROXY_TLS_CERT_FILE is set, but the proxy serves TLS no longer"),
        ({"PROXY_TLS_KEY_FILE": "/x.key"}, "PROXY_TLS_KEY_FILE is set, but the proxy serves TLS no longer"),
    ],
)
def test_a_listening_value_that_cannot_be_meant_refuses_the_start(env: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        settings_from_env(env)


def test_the_prune_target_stays_below_the_threshold() -> None:
    settings = settings_from_env({"PROXY_CONTEXT_PRUNE_THRESHOLD": "0.5"})
    assert settings.context_prune_target_fraction < 0.5
    assert settings.problems


def configuration(path: Path, **texts: str) -> Configuration:
    return Configuration(settings_from_env(texts, str(path)), texts, path)


def reloaded(before: Configuration, texts: dict[str, str]) -> tuple[Configuration, list[str], list[str]]:
    assert before.env_file is not None
    before.env_file.write_text("".join(f"{key}={text}\n" for key, text in texts.items()))
    return reread(before, before.env_file)


class TestLoad:
    def test_a_named_file_alone_counts(self, tmp_path: Path) -> None:
        file = tmp_path / "proxy.env"
        file.write_text("PROXY_PORT=4100\n")
        found = load(str(file), base={"PROXY_LOG_LEVEL": "DEBUG", "LLAMA_CPP_BASE": "http://elsewhere:1/v1"})
        assert (found.settings.port, found.settings.log_level) == (4100, "INFO")
        assert (found.source_of("PROXY_PORT"), found.source_of("PROXY_LOG_LEVEL")) == (str(file), "default")

    def test_without_one_the_installed_file_counts(self, isolated_home: Path) -> None:
        base = {"HOME": str(isolated_home), "PROXY_PORT": "4200"}
        file = proxy_env_file(base)
        file.parent.mkdir(parents=True)
        file.write_text("PROXY_PORT=4300\n")
        assert load(None, base=base).settings.port == 4300

    def test_without_any_file_the_environment_counts(self, isolated_home: Path) -> None:
        base = {"HOME": str(isolated_home), "PROXY_PORT": "4200", "LLAMA_CPP_BASE": "http://127.0.0.1:9/v1"}
        found = load(None, base=base)
        assert (found.settings.port, found.settings.upstream) == (4200, "http://127.0.0.1:9")
        assert (found.env_file, found.source_of("PROXY_PORT")) == (None, "environment")

    @pytest.mark.parametrize("data", [b"PROXY_PORT=\xff\n", b"what is this\n", b"PROXY_PORT='4\n"])
    def test_an_unreadable_file_is_named(self, tmp_path: Path, data: bytes) -> None:
        file = tmp_path / "proxy.env"
        file.write_bytes(data)
        with pytest.raises(InputError, match=r"proxy\.env:1"):
            load(str(file))


class TestReload:
    def test_a_changed_value_is_in_force_and_told(self, tmp_path: Path) -> None:
        before = configuration(tmp_path / "f", PROXY_LOG_LEVEL="INFO", PROXY_READ_TIMEOUT="60")
        found, changed, restart = reloaded(before, {"PROXY_LOG_LEVEL": "DEBUG", "PROXY_READ_TIMEOUT": "60"})
        assert found.settings.log_level == "DEBUG"
        assert changed == ["PROXY_LOG_LEVEL: INFO -> DEBUG"]
        assert restart == []

    def test_a_bad_value_leaves_the_default(self, tmp_path: Path) -> None:
        before = configuration(tmp_path / "f", PROXY_READ_TIMEOUT="60")
        found, changed, _ = reloaded(before, {"PROXY_READ_TIMEOUT": "soon"})
        after = found.settings
        assert (after.read_timeout, changed) == (600, ["PROXY_READ_TIMEOUT: 60 -> 600"])
        assert "PROXY_READ_TIMEOUT=soon" in after.problems[0]
        assert after.problems[0].endswith("using the default, 600")

    @pytest.mark.parametrize(
        ("key", "text"),
        [("PROXY_PORT", "4999"), ("LLAMA_CPP_BASE", "http://127.0.0.1:9/v1"), ("PROXY_MAX_CONNECTIONS", "3")],
    )
    def test_what_needs_a_restart_is_said_and_stays(self, tmp_path: Path, key: str, text: str) -> None:
        before = configuration(tmp_path / "f")
        found, _, restart = reloaded(before, {key: text})
        assert restart == [key]
        assert found.settings == before.settings

    def test_a_bad_value_where_the_proxy_listens_cannot_take_it_down_and_no_secret_is_shown(
        self, tmp_path: Path
    ) -> None:
        before = configuration(tmp_path / "f", PROXY_PORT="4100", PROXY_API_KEY="hush-1")
        with pytest.raises(InputError, match="PROXY_PORT=many"):
            reloaded(before, {"PROXY_PORT": "many", "PROXY_API_KEY": "hush-2"})
        found, changed, restart = reloaded(before, {"PROXY_PORT": "4100", "PROXY_API_KEY": "hush-2"})
        assert restart == ["PROXY_API_KEY"]
        assert "hush" not in repr((found, changed)) + repr(before.settings)

    def test_the_command_line_wins_and_still_does(self, tmp_path: Path) -> None:
        file = tmp_path / "proxy.env"
        file.write_text("PROXY_PORT=4100\nPROXY_READ_TIMEOUT=5\n")
        before = load(str(file), overrides={"PROXY_PORT": "4400"})
        file.write_text("PROXY_PORT=4200\nPROXY_READ_TIMEOUT=6\n")
        found, changed, restart = reread(before, file)
        assert before.source_of("PROXY_PORT") == "command line"
        assert (found.settings.port, restart) == (4400, [])
        assert changed == ["PROXY_READ_TIMEOUT: 5 -> 6"]
