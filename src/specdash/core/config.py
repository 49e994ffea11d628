"""The settings of specdash itself, declared once, and how their values are found.

Precedence: command line, then `SPECDASH_*` environment variables, then config.toml, then the default. Every resolved
value
knows which of them it came from.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdash.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

WINDOWS_S: dict[str, float] = {"1m": 60.0, "5m": 300.0, "15m": 900.0, "1h": 3600.0}
"""The windows that charts and windowed figures can have."""
REFRESH_S: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0)
"""The refresh intervals, in seconds."""
JOURNAL = "journal:"
"""What a log setting begins with that names a unit of the user's journal instead of a file."""
_UNIT = re.compile(r"[A-Za-z0-9_@][A-Za-z0-9:_.@\\-]*")
_TRUE, _FALSE = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off", ""})


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("wants a text")
    return value


def _file_or_journal(value: object) -> str:
    text = _text(value)
    if text.startswith(JOURNAL) and not _UNIT.fullmatch(text.removeprefix(JOURNAL)):
        raise ValueError("wants a file, or journal:UNIT such as journal:uap-anthropic-proxy.service")
    return text


def _window(value: object) -> str:
    if value not in WINDOWS_S:
        raise ValueError(f"wants one of {', '.join(WINDOWS_S)}")
    return str(value)


def _refresh(value: object) -> float:
    try:
        seconds = float(str(value))
    except ValueError:
        seconds = -1.0
    if seconds not in REFRESH_S:
        raise ValueError(f"wants one of {', '.join(f'{choice:g}' for choice in REFRESH_S)} (seconds)")
    return seconds


def _manager(value: object) -> str:
    if value not in ("auto", "systemd", "supervisor"):
        raise ValueError("wants auto, systemd or supervisor")
    return str(value)


def _number(value: object, least: float, most: float, unit: str) -> float:
    try:
        number = float(str(value))
    except ValueError:
        number = -1.0
    if isinstance(value, bool) or not least <= number <= most:
        raise ValueError(f"wants {unit}, from {least:g} to {most:g}")
    return number


def _seconds(value: object) -> float:
    return _number(value, 1, 86400, "seconds")


def _settle(value: object) -> float:
    return _number(value, 0, 3600, "seconds")


def _days(value: object) -> float:
    return _number(value, 0.01, 3650, "days")


def _megabytes(value: object) -> float:
    return _number(value, 1, 1_000_000, "MB")


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError("wants true or false")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: name in config.toml, how it is read, its default, and its help.

    The command line option is `--NAME` and the environment variable `SPECDASH_NAME`, with dashes or underscores.
    """

    name: str
    read: Callable[[object], Any]
    default: Any
    help: str
    metavar: str = ""

    @property
    def option(self) -> str:
        """The command line option. A flag that is on unless it is switched off has the option that does so."""
        return ("--no-" if self.default is True else "--") + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return "SPECDASH_" + self.name.upper()


SETTINGS: tuple[Setting, ...] = (
    Setting("url", _text, None, "address of the llama-server, such as http://127.0.0.1:8080", "URL"),
    Setting("log", _text, None, "the server's log file", "FILE"),
    Setting("api_key_env", _text, None, "name of the environment variable that holds the server's API key", "NAME"),
    Setting("api_key_file", _text, None, "file that holds the server's API key", "FILE"),
    Setting("model", _text, None, "model to watch when the server is a router", "NAME"),
    Setting(
        "proxy_url",
        _text,
        None,
        "address of the Anthropic proxy, such as http://127.0.0.1:4000 (default: found)",
        "URL",
    ),
    Setting("proxy_key_env", _text, None, "name of the environment variable that holds the proxy's API key", "NAME"),
    Setting("proxy_log", _file_or_journal, None, "the proxy's events or log: a file, or journal:UNIT", "FILE"),
    Setting("window", _window, "5m", "window of charts and windowed figures: 1m, 5m, 15m or 1h", "WINDOW"),
    Setting("refresh", _refresh, 1.0, "refresh interval: 0.5, 1, 2 or 5 seconds", "SECONDS"),
    Setting("theme", _text, None, "colour theme: night, day, contrast or terminal", "NAME"),
    Setting("manager", _manager, "auto", "what runs the services: auto, systemd or supervisor", "NAME"),
    Setting("backend_service", _text, None, "the backend's systemd unit (default: found)", "UNIT"),
    Setting("backend_env_file", _text, None, "the env file that it reads (default: the unit's)", "FILE"),
    Setting("proxy_service", _text, None, "the proxy's systemd unit (default: found)", "UNIT"),
    Setting("proxy_env_file", _text, None, "the env file that it reads (default: the unit's)", "FILE"),
    Setting("drain_timeout", _seconds, 120.0, "how long an apply waits for running requests to end", "SECONDS"),
    Setting("health_timeout", _seconds, 600.0, "how long an apply waits for a restarted service", "SECONDS"),
    Setting("settle_time", _settle, 15.0, "how long a changed service must stand before its apply is done", "SECONDS"),
    Setting("disarm_after", _seconds, 60.0, "idle time after which an armed dashboard disarms itself", "SECONDS"),
    Setting("read_only", _flag, False, "never let this dashboard be armed"),
    Setting("record", _flag, True, "keep a record of what is seen, for replay and incidents"),
    Setting("history_days", _days, 7.0, "how many days the record keeps every second", "DAYS"),
    Setting("history_mb", _megabytes, 500.0, "how large the record may become, in MB", "MB"),
    Setting("rules", _text, None, "thresholds of alert rules (default: rules.toml beside config.toml)", "FILE"),
    Setting("ascii", _flag, False, "draw with ASCII characters only"),
)
PROXY_SETTINGS = ("proxy_url", "proxy_key_env", "proxy_log")
"""What says where the proxy is."""
TARGET_SETTINGS = ("url", "log", "api_key_env", "api_key_file", "model", *PROXY_SETTINGS)
"""What says where the server is, and the proxy in front of it."""
SERVICE_SETTINGS = ("manager", "backend_service", "backend_env_file", "proxy_service", "proxy_env_file")
"""What says which services may be changed, and their env files."""
APPLY_SETTINGS = ("drain_timeout", "health_timeout", "settle_time")
"""How patient an apply is."""
ARM_SETTINGS = ("read_only", "disarm_after")
"""What says whether and how long the dashboard may change anything."""
RULE_SETTINGS = ("rules",)
"""What says when an alert is raised."""
RECORD_SETTINGS = ("record", "history_days", "history_mb")
"""What says whether and how much is recorded."""
SCREEN_SETTINGS = ("window", "refresh", "theme", "ascii")
"""What says how the dashboard looks."""
BY_NAME: dict[str, Setting] = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class Resolved:
    """A setting's value and where it came from, in words."""

    value: Any
    origin: str


def resolve(
    command_line: Mapping[str, object], env: Mapping[str, str], file_text: str | None, file_name: str = "config.toml"
) -> dict[str, Resolved]:
    """The value of every setting with its origin. `command_line` holds only options that were given.

    Raises `InputError` for a malformed file, an unknown key in it, and any value that cannot be read.
    """
    from_file = _parse_file(file_text, file_name)
    resolved: dict[str, Resolved] = {}
    for setting in SETTINGS:
        if command_line.get(setting.name) is not None:
            origin, raw = f"command line {setting.option}", command_line[setting.name]
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
            raise InputError(f"{setting.name} = {raw!r} ({origin}): {error}") from None
    return resolved


def _parse_file(text: str | None, name: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name} is not valid TOML: {error}") from None
    for key in data:
        if key not in BY_NAME:
            close = difflib.get_close_matches(key, BY_NAME, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(BY_NAME)}"
            raise InputError(f"{name}: unknown setting {key!r}; {hint}")
    return data
