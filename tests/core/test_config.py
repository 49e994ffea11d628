"""Settings: the nearest source wins, every value knows its origin, and nonsense is named."""

import re

import pytest

from specdash.core.config import SETTINGS, Resolved, Setting, of_target, resolve
from specdash.core.config_model import checked
from specdash.core.errors import InputError, UsageError

A = '[[target]]\nname = "a"\nurl = "gpu1"\n'
FILE = 'url = "http://file:1"\nrefresh = 2\nread_only = true\n'


def test_the_nearest_source_wins_and_every_value_knows_where_it_came_from() -> None:
    env = {"SPECDASH_URL": "http://env:1", "SPECDASH_READ_ONLY": "off"}
    resolved = resolve({"window": "1h"}, env, FILE, "/c/config.toml")
    assert {name: (resolved[name].value, resolved[name].origin) for name in ("window", "url", "refresh", "log")} == {
        "window": ("1h", "command line --window"),
        "url": ("http://env:1", "environment SPECDASH_URL"),
        "refresh": (2.0, "/c/config.toml"),
        "log": (None, "default"),
    }
    assert resolved["read_only"].value is False
    assert resolve({"url": "http://cli:1"}, env, FILE)["url"].value == "http://cli:1"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("refresh = 3", "config.toml: refresh = 3: must be one of 0.5, 1, 2, 5 (seconds)"),
        ("drain_timeout = true", "drain_timeout = True: must be seconds, from 1 to 86400"),
        ("drain_timeout = " + "9" * 400, "9...9"),
        ("drain_timeout = " + "9" * 5000, "not valid TOML: a number is too long"),
        ("keys = " + "[" * 5000, "not valid TOML: a number is too long, or tables are too deep"),
        (f"[keys{'.a' * 5000}]", "its tables are too deep"),
        ("history_mb = 0", "history_mb = 0: must be MB, from 1 to 1000000"),
        ('url = ""', "url = '': must be a text that is not empty"),
        ('proxy_url = "ftp://x"', "config.toml: proxy_url: 'ftp://x': the scheme must be http"),
        ('log = "a\\u0000b"', "must be a file, journal:UNIT"),
        ('"\\u001b[31m\\n" = 1', "unknown setting '·'"),
        ("utl = 1", "did you mean 'url'"),
        ("url = ", "not valid TOML"),
        ("target = 1", r"config.toml: must be tables: \[\[target\]\]"),
        ('[[target]]\nurl = "gpu1"', r'\[\[target\]\] 1: name is missing; write name = "gpu1"'),
        ('[[target]]\nname = "a"', r'\[\[target\]\] 1 \("a"\): url is missing; write url = "http://gpu1:8080"'),
        ('[[target]]\nname = "a b"\nurl = "gpu1"', r"\[\[target\]\] 1: name = 'a b': must be letters, digits"),
        (A + 'modle = "m"', r"\[\[target\]\] 1 \(\"a\"\): modle: no setting of a target; did you mean 'model'\?"),
        (
            '[[target]]\nname = "a"\nurl = "ssh://me:secret@gpu1"',
            r"1 \(\"a\"\): url: write a machine as .* without a password",
        ),
        (A + A, r"\[\[target\]\] 2 \(\"a\"\): name = 'a': another one is called so"),
    ],
)
def test_a_bad_file_names_the_setting_and_what_is_wanted(text: str, named: str) -> None:
    with pytest.raises(InputError, match=named if "target" in text else re.escape(named)):
        resolve({}, {}, text)


@pytest.mark.parametrize(
    "line",
    [
        *('api_key = "sk-canary"', 'proxy_key = "sk-canary"', 'apikey = "sk-canary"', 'api_key_env = "sk-canary"'),
        *(
            'proxy_url = "http://me:sk-canary@gpu1"',
            'proxy_url = "gpu1/?key=sk-canary"',
            'proxy_key_env = ["sk-canary"]',
        ),
    ],
)
@pytest.mark.parametrize("table", ["", '[[target]]\nname = "a"\nurl = "gpu1"\n'])
def test_a_key_in_the_wrong_place_is_not_repeated(line: str, table: str) -> None:
    with pytest.raises(InputError, match=line.split(" ", 1)[0]) as raised:
        resolve({}, {}, table + line)
    assert "sk-canary" not in str(raised.value)


def test_a_misspelt_variable_is_named_and_one_of_another_program_is_not() -> None:
    warned: list[str] = []
    resolve(
        {}, {"SPECDASH_REFERSH": "2", "SPECDASH_REQUIRE_NODE": "1", "SPECDASH_LAYOUT": ""}, None, warn=warned.append
    )
    assert warned == ["environment SPECDASH_REFERSH: no setting, and ignored; did you mean 'refresh'?"]


def test_a_target_has_what_its_own_table_says_and_nothing_of_another_server() -> None:
    text = f'api_key_env = "KEY"\nbackend_env_file = "here.env"\nwindow = "1h"\n{A}log = "a.log"\n'
    settings = resolve({}, {"SPECDASH_PROXY_KEY_ENV": "PROXY"}, text, "config.toml")
    own = of_target(settings, "a")
    assert (own["url"].value, own["log"].value, own["window"].value) == ("gpu1", "a.log", "1h")
    assert (own["api_key_env"].value, own["proxy_key_env"].value) == (None, None)
    assert own["backend_env_file"].value == "here.env"
    assert own["log"].origin == 'config.toml [[target]] "a"'


def test_only_the_command_line_goes_before_a_target_s_table() -> None:
    settings = resolve({"log": "given.log"}, {"SPECDASH_LOG": "env.log"}, f'{A}log = "a.log"\n')
    assert of_target(settings, "a")["log"].value == "given.log"
    assert of_target(settings, "a", alone=True)["log"].value == "a.log"
    with pytest.raises(UsageError, match=r"--target b: no \[\[target\]\] of that name; known: a"):
        of_target(settings, "b")


@pytest.mark.parametrize("setting", [one for one in SETTINGS if one.default is not None], ids=lambda one: one.name)
def test_a_default_is_a_value_that_could_be_given(setting: Setting) -> None:
    given = setting.default if setting.default != () else []
    assert checked({setting.name: Resolved(given, "here")})[setting.name].value == setting.default
