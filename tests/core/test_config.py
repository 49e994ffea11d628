"""Settings: the nearest source wins, every value knows its origin, and nonsense is named."""

from __future__ import annotations

import pytest

from specdash.core.config import SETTINGS, resolve
from specdash.core.errors import InputError

FILE = 'url = "http://file:1"\nrefresh = 2\nascii = true\n'


def test_the_command_line_beats_the_environment_which_beats_the_file_which_beats_the_default() -> None:
    env = {"SPECDASH_URL": "http://env:1"}
    assert resolve({"url": "http://cli:1"}, env, FILE)["url"].value == "http://cli:1"
    assert resolve({}, env, FILE)["url"].value == "http://env:1"
    assert resolve({}, {}, FILE)["url"].value == "http://file:1"
    assert resolve({}, {}, None)["url"].value is None


def test_every_value_says_where_it_came_from() -> None:
    resolved = resolve({"window": "1h"}, {"SPECDASH_URL": "http://env:1"}, FILE, "/c/config.toml")
    assert resolved["window"].origin == "command line --window"
    assert resolved["url"].origin == "environment SPECDASH_URL"
    assert resolved["refresh"].origin == "/c/config.toml"
    assert resolved["log"].origin == "default"


def test_values_are_typed() -> None:
    resolved = resolve({}, {"SPECDASH_ASCII": "off"}, FILE)
    assert resolved["refresh"].value == 2.0
    assert resolved["ascii"].value is False


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("refresh = 3", "refresh = 3"),
        ('window = "2h"', "wants one of 1m, 5m, 15m, 1h"),
        ("utl = 1", "did you mean 'url'"),
        ("url = ", "not valid TOML"),
        ("url = 7", "wants a text"),
        ('proxy_log = "journal:--all"', "wants a file, or journal:UNIT"),
    ],
)
def test_a_bad_file_names_the_setting_and_what_is_wanted(text: str, named: str) -> None:
    with pytest.raises(InputError, match=named.replace("(", r"\(")):
        resolve({}, {}, text)


def test_defaults_are_values_that_could_be_given() -> None:
    for setting in SETTINGS:
        if setting.default is not None:
            assert setting.read(setting.default) == setting.default
