"""PROXY_* texts to settings: defaults, bad values, and the one table they all come from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.errors import InputError
from specdash.core.proxy_parameters import BY_KEY, MUST_BE_RIGHT, PARAMETERS
from specdash.proxy.settings import ProxySettings, settings_from_env

GUARDED = sorted(set(BY_KEY) - MUST_BE_RIGHT)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)


def test_every_parameter_is_a_field_and_every_field_a_parameter() -> None:
    fields = set(ProxySettings.model_fields) - {"problems"}
    assert fields == {parameter.name for parameter in PARAMETERS}


def test_the_defaults_are_good_values_of_their_own_parameter() -> None:
    for parameter in PARAMETERS:
        if parameter.default is not None:
            assert parameter.parse(parameter.text(parameter.default), parameter.key) == parameter.default


def test_an_empty_text_counts_as_unset() -> None:
    assert settings_from_env({"PROXY_LOOP_WINDOW": "", "PROXY_LOOP_BREAKER": " "}) == settings_from_env({})


@pytest.mark.parametrize("key", GUARDED)
@given(text=TEXTS)
def test_no_value_of_a_guardrail_key_takes_the_proxy_down(key: str, text: str) -> None:
    settings = settings_from_env({key: text})
    assert all("PROXY_" in problem for problem in settings.problems)


def test_a_bad_value_leaves_the_default_and_names_key_value_and_way_out() -> None:
    settings = settings_from_env({"PROXY_LOOP_WINDOW": "six"}, "proxy.env")
    assert settings.loop_window == 6
    assert settings.problems == ("proxy.env: PROXY_LOOP_WINDOW=six: not a whole number; using the default, 6",)


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


def test_secrets_are_not_in_the_representation() -> None:
    settings = settings_from_env({"PROXY_API_KEY": "tiger", "PROXY_UPSTREAM_API_KEY": "lion"})
    assert "tiger" not in repr(settings)
    assert "lion" not in repr(settings)


def test_the_prune_target_stays_below_the_threshold() -> None:
    settings = settings_from_env({"PROXY_CONTEXT_PRUNE_THRESHOLD": "0.5"})
    assert settings.context_prune_target_fraction < 0.5
    assert settings.problems
