"""The settings of specdash itself, declared once, and how their values are found.

Precedence: command line, then `SPECDASH_*` environment variables, then config.toml, then the default. Every resolved
value
knows which of them it came from.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from specdash.core.errors import InputError, UsageError
from specdash.core.log_places import PATTERN, PLACES, check_place
from specdash.core.removed import REMOVED_SETTINGS, removed_setting
from specdash.core.target import is_over_ssh, machine_and_server, normalise_url
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

WINDOWS_S: dict[str, float] = {"1m": 60.0, "5m": 300.0, "15m": 900.0, "1h": 3600.0}
"""The windows that charts and windowed figures can have."""
REFRESH_S: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0)
"""The refresh intervals, in seconds."""
NAME_OF_TARGET = re.compile(r"[\w.@-]{1,40}")
NAMES_OF_TARGET = ("name", "group")
"""What a table [[target]] calls its server, and the group that it is in: names, no settings."""
_EXAMPLE = {"name": "gpu1", "url": "http://gpu1:8080"}
_TRUE, _FALSE = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off", ""})


class ValueReader:
    """How a value is read (ValueError says what it must be), and the JSON Schema of it in config.toml."""

    def __init__(self, read: Callable[[object], Any], schema: Mapping[str, Any]) -> None:
        self.read = read
        self.schema = schema

    def __call__(self, value: object) -> Any:
        return self.read(value)


def _schema(**schema: Any) -> Callable[[Callable[[object], Any]], ValueReader]:
    return lambda read: ValueReader(read, schema)


@_schema(type="string", minLength=1)
def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a text")
    return value


@_schema(type="string", minLength=1, pattern=PATTERN)
def _log_place(value: object) -> str:
    return check_place(_text(value))


@_schema(enum=[*WINDOWS_S])
def _window(value: object) -> str:
    if value not in WINDOWS_S:
        raise ValueError(f"must be one of {', '.join(WINDOWS_S)}")
    return str(value)


@_schema(enum=[*REFRESH_S])
def _refresh(value: object) -> float:
    try:
        seconds = float(str(value))
    except ValueError:
        seconds = -1.0
    if seconds not in REFRESH_S:
        raise ValueError(f"must be one of {', '.join(f'{choice:g}' for choice in REFRESH_S)} (seconds)")
    return seconds


def _number(least: float, most: float, unit: str = "seconds") -> ValueReader:
    @_schema(type="number", minimum=least, maximum=most)
    def read(value: object) -> float:
        try:
            number = float(str(value))
        except ValueError:
            number = -1.0
        if isinstance(value, bool) or not least <= number <= most:
            raise ValueError(f"must be {unit}, from {least:g} to {most:g}")
        return number

    return read


@_schema(type="object", additionalProperties={"type": ["string", "object"]})
def _keys(value: object) -> dict[str, object]:
    """Keys by the ids of actions; `move.up = "k"` without quotes is a table in a table. From a text: `pause=space,p
    arm=ctrl+a`."""
    if isinstance(value, str):
        return {name: keys for name, _, keys in (part.partition("=") for part in value.split())}
    if not isinstance(value, dict):
        raise ValueError('must be a table: [keys], and below it lines such as pause = "space,p"')  # noqa: TRY004 as all
    chosen: dict[str, object] = {}
    for name, keys in value.items():
        inner = _keys(keys) if isinstance(keys, dict) else None
        chosen |= {name: keys} if inner is None else {f"{name}.{rest}": written for rest, written in inner.items()}
    return chosen


@_schema(type="array")
def _target_tables(value: object) -> tuple[dict[str, Any], ...]:
    """The tables with their values read. An unknown key's value is not repeated: it may be a key that was written
    where only its place belongs."""
    if not isinstance(value, list | tuple) or not all(isinstance(entry, dict) for entry in value):
        raise ValueError('must be tables: [[target]], and below each name = "gpu1", url = "http://gpu1:8080"')
    tables: list[dict[str, Any]] = []
    for number, entry in enumerate(value, 1):
        name = entry.get("name")
        where = f"[[target]] {number}" + (
            f' ("{name}")' if isinstance(name, str) and NAME_OF_TARGET.fullmatch(name) else ""
        )
        try:
            tables.append(_target_table(entry))
        except (ValueError, UsageError) as error:
            raise ValueError(f"{where}: {error}") from None
        if any(name == known["name"] for known in tables[:-1]):
            raise ValueError(f"{where}: name = {name!r}: another one is called so; give each a name of its own")
    return tuple(tables)


def _target_table(entry: Mapping[str, object]) -> dict[str, Any]:
    """The values of one table, by key."""
    for key in entry:
        if key in ("api_key", "proxy_key"):
            raise ValueError(f"{key}: keys are no part of this file; name the variable that holds it with {key}_env")
        if key not in (*NAMES_OF_TARGET, *TARGET_KEYS):
            raise ValueError(f"{key}: no setting of a target; {_near(key, (*NAMES_OF_TARGET, *TARGET_KEYS))}")
    missing = [key for key in ("name", "url") if key not in entry]
    if missing:
        raise ValueError(f'{missing[0]} is missing; write {missing[0]} = "{_EXAMPLE[missing[0]]}"')
    read: dict[str, Any] = {key: entry[key] for key in NAMES_OF_TARGET if key in entry}
    for key, name in read.items():
        if not isinstance(name, str) or not NAME_OF_TARGET.fullmatch(name):
            raise ValueError(f"{key} = {name!r}: must be letters, digits and . _ - @, at most 40")
    for key in (key for key in entry if key not in read):
        try:
            read[key] = BY_NAME[key].read(entry[key])
        except ValueError as error:
            raise ValueError(f"{key} = {entry[key]!r}: {error}") from None
    (machine_and_server if is_over_ssh(read["url"]) else normalise_url)(read["url"])
    return read


@_schema(type="boolean")
def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError("must be true or false")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: name in config.toml, how it is read, its default, and its help.

    The command line option is `--NAME` and the environment variable `SPECDASH_NAME`, with dashes or underscores.
    """

    name: str
    read: ValueReader
    default: Any
    help: str
    metavar: str = ""

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
        return _variable(self.name)


def _variable(name: str) -> str:
    return "SPECDASH_" + name.upper()


SETTINGS: tuple[Setting, ...] = (
    Setting("url", _text, None, "address of the llama-server, such as http://127.0.0.1:8080 or ssh://user@host", "URL"),
    Setting("log", _log_place, None, f"the server's log: {PLACES}", "PLACE"),
    Setting("api_key_env", _text, None, "name of the environment variable that holds the server's API key", "NAME"),
    Setting("api_key_file", _text, None, "file that holds the server's API key", "FILE"),
    Setting("model", _text, None, "model to watch when the server is a router", "NAME"),
    Setting(
        "proxy_url",
        _text,
        None,
        "address of the Anthropic proxy, such as http://127.0.0.1:4000 (default: detected)",
        "URL",
    ),
    Setting("proxy_key_env", _text, None, "name of the environment variable that holds the proxy's API key", "NAME"),
    Setting("proxy_log", _log_place, None, f"the proxy's events or log: {PLACES}", "PLACE"),
    Setting("window", _window, "5m", "time span of charts and averages: 1m, 5m, 15m or 1h", "WINDOW"),
    Setting("refresh", _refresh, 1.0, "refresh interval: 0.5, 1, 2 or 5 seconds", "SECONDS"),
    Setting("theme", _text, None, "theme: night, day, contrast, terminal, or one of Textual's (nord)", "NAME"),
    Setting("backend_env_file", _text, None, "the backend's env file (default: that of the one that runs)", "FILE"),
    Setting("proxy_env_file", _text, None, "the proxy's env file (default: that of the one that runs)", "FILE"),
    Setting(
        "drain_timeout", _number(1, 86400), 120.0, "how long an apply waits for running requests to finish", "SECONDS"
    ),
    Setting("health_timeout", _number(1, 86400), 600.0, "how long an apply waits for a restarted service", "SECONDS"),
    Setting("settle_time", _number(0, 3600), 15.0, "how long a changed service must stay healthy", "SECONDS"),
    Setting(
        "disarm_after", _number(1, 86400), 60.0, "idle time after which an armed dashboard disarms itself", "SECONDS"
    ),
    Setting("read_only", _flag, False, "never let this dashboard change anything"),
    Setting("record", _flag, True, "record what is seen, for replay and incidents"),
    Setting("history_days", _number(0.01, 3650, "days"), 7.0, "for how many days the record keeps full detail", "DAYS"),
    Setting("history_mb", _number(1, 1_000_000, "MB"), 500.0, "maximum size of the record, in MB", "MB"),
    Setting("rules", _text, None, "your alert thresholds (default: rules.toml beside config.toml)", "FILE"),
    Setting("keys", _keys, {}, 'keys of the dashboard\'s actions: a table [keys] of ID = "KEYS" (`specdash keys`)'),
    Setting("target", _target_tables, (), "servers by name: a [[target]] table each (docs/servers.md)"),
)
PROXY_SETTINGS = ("proxy_url", "proxy_key_env", "proxy_log")
"""What says where the proxy is."""
TARGET_SETTINGS = ("url", "log", "api_key_env", "api_key_file", "model", *PROXY_SETTINGS)
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


COMMAND_LINE = "command line"
"""How the origin of a value begins that was given there."""


@dataclass(frozen=True, slots=True)
class Resolved:
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
    each removed setting in the file and the environment, which is ignored.

    Raises `InputError` for a malformed file, an unknown key in it, and any value that cannot be read, `UsageError` for
    a removed value on the command line.
    """
    from_file = _without_removed(_parse_file(file_text, file_name), file_name, warn)
    resolved: dict[str, Resolved] = {}
    for name in REMOVED_SETTINGS:
        if env.get(_variable(name)):
            warn(f"environment {_variable(name)}: {removed_setting(name)}")
    for setting in SETTINGS:
        if command_line.get(setting.name) is not None:
            origin, raw = f"{COMMAND_LINE} {setting.option}", command_line[setting.name]
        elif env.get(setting.variable):
            origin, raw = f"environment {setting.variable}", env[setting.variable]
        elif setting.name in from_file:
            origin, raw = file_name, from_file[setting.name]
        else:
            resolved[setting.name] = Resolved(setting.default, "default")
            continue
        try:
            resolved[setting.name] = Resolved(setting.read(raw), origin)
        except ValueError as error:
            if setting.default == ():
                raise InputError(f"{origin}: {error}") from None
            raise InputError(f"{setting.name} = {raw!r} ({origin}): {error}") from None
    return resolved


def of_target(settings: Mapping[str, Resolved], name: str, *, alone: bool = False) -> dict[str, Resolved]:
    """The settings as the table [[target]] of that name has them: where it is silent about the server or its proxy
    nothing is known, whatever the settings say of another one; only what the command line says goes before, and with
    `alone` not even that. Raises `UsageError` where there is no such table."""
    tables = settings["target"].value
    table = next((table for table in tables if table["name"] == name), None)
    if table is None:
        known = _near(name, [table["name"] for table in tables]) if tables else "config.toml has none"
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
    return chosen | {key: Resolved(table.get(key, ""), origin) for key in NAMES_OF_TARGET}


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
    if not text:
        return {}
    import tomllib

    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name} is not valid TOML: {error}") from None
    for key in data:
        if key not in BY_NAME and key not in REMOVED_SETTINGS:
            raise InputError(f"{name}: unknown setting {key!r}; {_near(key, BY_NAME)}")
    return data


def _near(written: str, known: Collection[str]) -> str:
    import difflib

    close = difflib.get_close_matches(written, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
