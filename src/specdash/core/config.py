"""The settings of specdash itself, declared once, and how their values are found.

Precedence: command line, then `SPECDASH_*` environment variables, then config.toml, then the default. Every resolved
value knows which of them it came from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from specdash.core.errors import InputError, UsageError
from specdash.core.log_places import PLACES
from specdash.core.removed import REMOVED_SETTINGS, removed_setting
from specdash.core.target import is_over_ssh, machine_and_server, normalise_url
from specdash.system.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

WINDOWS_S: dict[str, float] = {"1m": 60.0, "5m": 300.0, "15m": 900.0, "1h": 3600.0}
"""The windows that charts and windowed figures can have."""
REFRESH_S: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0)
"""The refresh intervals, in seconds."""
_PREFIX = "SPECDASH_"


class Setting(Struct, frozen=True):
    """One setting: its name in config.toml, default and help; `core.config_model` makes the model of these rows.

    The command line option is `--NAME` and the environment variable `SPECDASH_NAME`, with dashes or underscores.
    """

    name: str
    default: Any
    help: str
    metavar: str = ""
    choices: tuple[str | float, ...] = ()
    bounds: tuple[float, float] | None = None
    """Least and most of a number."""
    unit: str = "seconds"

    @property
    def option(self) -> str:
        """The command line option. A flag that is on unless it is switched off has the option that does so."""
        return ("--no-" if self.default is True else "--") + self.name.replace("_", "-")

    @property
    def has_option(self) -> bool:
        """Whether the command line may have it: a table is for a file."""
        return not isinstance(self.default, dict | tuple)

    @property
    def variable(self) -> str:
        """The environment variable."""
        return _PREFIX + self.name.upper()


SETTINGS: tuple[Setting, ...] = (
    Setting("url", None, "address of the llama-server, such as http://127.0.0.1:8080 or ssh://user@host", "URL"),
    Setting("log", None, f"the server's log: {PLACES}", "PLACE"),
    Setting("api_key_env", None, "name of the environment variable that holds the server's API key", "NAME"),
    Setting("api_key_file", None, "file that holds the server's API key", "FILE"),
    Setting("model", None, "model to watch when the server is a router", "NAME"),
    Setting(
        "proxy_url",
        None,
        "address of the Anthropic proxy, such as http://127.0.0.1:4000 (default: detected)",
        "URL",
    ),
    Setting("proxy_key_env", None, "name of the environment variable that holds the proxy's API key", "NAME"),
    Setting("proxy_log", None, f"the proxy's events or log: {PLACES}", "PLACE"),
    Setting("window", "5m", "time span of charts and averages: 1m, 5m, 15m or 1h", "WINDOW", (*WINDOWS_S,)),
    Setting("refresh", 1.0, "refresh interval: 0.5, 1, 2 or 5 seconds", choices=REFRESH_S),
    Setting("theme", None, "theme: night, day, contrast, terminal, or one of Textual's (nord)", "NAME"),
    Setting("backend_env_file", None, "the backend's env file (default: that of the one that runs)", "FILE"),
    Setting("proxy_env_file", None, "the proxy's env file (default: that of the one that runs)", "FILE"),
    Setting("drain_timeout", 120.0, "how long an apply waits for running requests to finish", bounds=(1, 86400)),
    Setting("health_timeout", 600.0, "how long an apply waits for a restarted service", bounds=(1, 86400)),
    Setting("settle_time", 15.0, "how long a changed service must stay healthy", bounds=(0, 3600)),
    Setting("disarm_after", 60.0, "idle time after which an armed dashboard disarms itself", bounds=(1, 86400)),
    Setting("read_only", False, "never let this dashboard change anything"),
    Setting("record", True, "record what is seen, for replay and incidents"),
    Setting("history_days", 7.0, "for how many days the record keeps full detail", bounds=(0.01, 3650), unit="days"),
    Setting("history_mb", 500.0, "maximum size of the record, in MB", bounds=(1, 1_000_000), unit="MB"),
    Setting("rules", None, "your alert thresholds (default: rules.toml beside config.toml)", "FILE"),
    Setting("keys", {}, 'keys of the dashboard\'s actions: a table [keys] of ID = "KEYS" (docs/keys.md)'),
    Setting("target", (), "servers by name: a [[target]] table each (docs/servers.md)"),
)
TARGET_SETTINGS = ("url", "log", "api_key_env", "api_key_file", "model", "proxy_url", "proxy_key_env", "proxy_log")
"""What says where the server is, and the proxy in front of it."""
SERVICE_SETTINGS = ("backend_env_file", "proxy_env_file")
"""What says which services may be changed."""
TARGET_KEYS = (*TARGET_SETTINGS, *SERVICE_SETTINGS)
"""What a table [[target]] may say beside its name."""
APPLY_SETTINGS = ("drain_timeout", "health_timeout", "settle_time")
"""How patient an apply is."""
ARM_SETTINGS = ("read_only", "disarm_after")
"""What says whether and how long the dashboard may change anything."""
RULE_SETTINGS = ("rules",)
"""What says when an alert is raised."""
RECORD_SETTINGS = ("record", "history_days", "history_mb")
"""What says whether and how much is recorded."""
SCREEN_SETTINGS = ("window", "refresh", "theme")
"""What says how the dashboard looks."""
BY_NAME: dict[str, Setting] = {setting.name: setting for setting in SETTINGS}
PLAIN_TEXTS = ("url", "api_key_env", "api_key_file", "model", "proxy_url", "proxy_key_env", *SERVICE_SETTINGS)
"""Texts are right for these: where only they are given, pydantic is not imported, which takes 80 ms."""


COMMAND_LINE = "command line"
"""How the origin of a value begins that was given there."""
MOST_SHOWN = 80
"""Characters of a wrong key or value that its error repeats."""


class Resolved(Struct, frozen=True):
    """A setting's value and where it came from, in words."""

    value: Any
    origin: str


def resolve(
    command_line: Mapping[str, object],
    env: Mapping[str, str],
    file_text: str | None,
    file_name: str = "config.toml",
    warn: Callable[[str], None] = lambda _: None,
) -> dict[str, Resolved]:
    """The value of every setting with its origin. `command_line` holds only options that were given. `warn` hears of
    each removed setting in the file and the environment, and of each misspelt one there; they are ignored.

    Raises `InputError` for a malformed file, an unknown key in it, and any value that cannot be read, `UsageError` for
    a removed value on the command line.
    """
    from_file = _without_removed(_parse_file(file_text, file_name), file_name, warn)
    for variable in filter(env.get, env):
        name = variable.removeprefix(_PREFIX).lower()
        is_none = variable.startswith(_PREFIX) and name not in BY_NAME
        # What resembles no setting may be another program's.
        if is_none and (name in REMOVED_SETTINGS or _closest(name, BY_NAME)):
            meant = removed_setting(name) or f"no setting, and ignored; {near(name, BY_NAME)}"
            warn(f"environment {clean(variable, MOST_SHOWN)}: {meant}")
    given: dict[str, Resolved] = {}
    for setting in SETTINGS:
        if command_line.get(setting.name) is not None:
            given[setting.name] = Resolved(command_line[setting.name], f"{COMMAND_LINE} {setting.option}")
        elif env.get(setting.variable):
            given[setting.name] = Resolved(env[setting.variable], f"environment {setting.variable}")
        elif setting.name in from_file:
            given[setting.name] = Resolved(from_file[setting.name], file_name)
    if any(not isinstance(raw.value, str) or not raw.value or name not in PLAIN_TEXTS for name, raw in given.items()):
        from specdash.core.config_model import checked

        given = checked(given)
    _check_plain_texts(given)
    return {setting.name: given.get(setting.name, Resolved(setting.default, "default")) for setting in SETTINGS}


def _check_plain_texts(given: Mapping[str, Resolved]) -> None:
    """Raises `InputError`. What the command line has wrong is an error of usage, which its command raises."""
    for name, raw in given.items():
        try:
            if name in PLAIN_TEXTS and not raw.origin.startswith(COMMAND_LINE):
                check_plain(name, raw.value)
        except ValueError as error:
            raise InputError(f"{raw.origin}: {name}: {error}") from None


def check_plain(name: str, value: str) -> str:
    """The value of a setting of `PLAIN_TEXTS`. Raises ValueError for one that cannot be meant, in words that repeat
    nothing secret."""
    if name.endswith("_env") and not value.isidentifier():
        raise ValueError("must be the name of an environment variable that holds the key, never the key itself")
    if name in ("url", "proxy_url"):
        try:
            (machine_and_server if name == "url" and is_over_ssh(value) else normalise_url)(value)
        except UsageError as error:
            raise ValueError(str(error)) from None
    return value


def of_target(settings: Mapping[str, Resolved], name: str, *, alone: bool = False) -> dict[str, Resolved]:
    """The settings as the table [[target]] of that name has them: where it is silent about the server or its proxy
    nothing is known, even where the settings name another one; only what the command line says goes before, and with
    `alone` not even that. Raises `UsageError` where there is no such table."""
    tables = settings["target"].value
    table = next((table for table in tables if table["name"] == name), None)
    if table is None:
        known = near(name, [table["name"] for table in tables]) if tables else "config.toml has none"
        raise UsageError(f"--target {name}: no [[target]] of that name; {known}")
    origin = f'{settings["target"].origin} [[target]] "{name}"'
    chosen = dict(settings)
    for key in TARGET_KEYS:
        if not alone and settings[key].origin.startswith(COMMAND_LINE):
            continue
        if key in table:
            chosen[key] = Resolved(table[key], origin)
        elif key in TARGET_SETTINGS:
            chosen[key] = Resolved(BY_NAME[key].default, "default")
    return chosen | {key: Resolved(table.get(key, ""), origin) for key in ("name", "group")}


def _without_removed(data: Mapping[str, Any], name: str, warn: Callable[[str], None]) -> dict[str, Any]:
    """What a file says, its [[target]] tables included, but for removed settings."""
    kept: dict[str, Any] = {}
    for key, value in data.items():
        instead = removed_setting(key)
        if instead is not None:
            warn(f"{name}: {instead}")
        elif key == "target" and isinstance(value, list):
            kept[key] = [
                _without_removed(table, f"{name} [[target]]", warn) if isinstance(table, dict) else table
                for table in value
            ]
        else:
            kept[key] = value
    return kept


def _parse_file(text: str | None, name: str) -> dict[str, Any]:
    data = read_toml(text, name) if text else {}
    for key in data:
        if key not in BY_NAME and key not in REMOVED_SETTINGS:
            raise InputError(f"{name}: unknown setting {clean(key, MOST_SHOWN)!r}; {near(key, BY_NAME)}")
    return data


def read_toml(text: str, name: str) -> dict[str, Any]:
    """The tables of a file that a user wrote. Raises `InputError`."""
    import tomllib

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        why = error if isinstance(error, tomllib.TOMLDecodeError) else "a number is too long, or tables are too deep"
        raise InputError(f"{name} is not valid TOML: {why}") from None


def near(written: str, known: Collection[str]) -> str:
    """The known word that was probably meant, else all of them."""
    close = _closest(written, known)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"


def _closest(written: str, known: Collection[str]) -> list[str]:
    import difflib

    return difflib.get_close_matches(written[:MOST_SHOWN], known, n=1)
