"""Where the proxy's settings come from, and what a reload may change of them."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.core.envfile import read_values
from specdash.core.errors import InputError
from specdash.core.paths import proxy_env_file
from specdash.core.proxy_parameters import BY_KEY, NEEDS_RESTART, PARAMETERS
from specdash.proxy.settings import ProxySettings, settings_from_env

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.core.parameters import Parameter

MASK = "***"
_ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True)
class Configuration:
    """Settings with the texts they were read from. `env_file` is None when the environment itself was read."""

    settings: ProxySettings
    texts: Mapping[str, str] = field(repr=False)
    env_file: Path | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Keys given on the command line: they win over the file, also when it is read again."""
    digest: str | None = None
    """SHA-256 in hex of the bytes of `env_file` that were read last."""

    @property
    def source(self) -> str:
        """What messages call the place the settings come from."""
        return str(self.env_file) if self.env_file is not None else _ENVIRONMENT

    def source_of(self, key: str) -> str:
        """Where the value of `key` comes from: command line, env file, environment, or default."""
        if key in self.overrides:
            return "command line"
        return self.source if self.texts.get(key, "").strip() else "default"


@dataclass(frozen=True, slots=True)
class Reload:
    """What reading the env file again did. The texts are for the log, one line each, without secrets."""

    configuration: Configuration
    changed: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()
    """Keys whose new value counts from the next start on."""


def load(
    env_file: str | None, *, overrides: Mapping[str, str] | None = None, base: Mapping[str, str] = os.environ
) -> Configuration:
    """Read the named env file, else the installed one, else the environment. Raises `InputError`."""
    given = dict(overrides or {})
    installed = proxy_env_file(base)
    if env_file is None and not installed.is_file():
        texts = {key: value for key, value in base.items() if key.startswith("PROXY_") or key in BY_KEY}
        return Configuration(settings_from_env({**texts, **given}, _ENVIRONMENT), {**texts, **given}, None, given)
    path = Path(env_file).expanduser().absolute() if env_file is not None else installed
    values, digest = read_env_file(path)
    texts = {**values, **given}
    return Configuration(settings_from_env(texts, str(path)), texts, path, given, digest)


def read_env_file(path: Path) -> tuple[dict[str, str], str]:
    """The values of an env file, and its digest. Raises `InputError` naming the file, and the line that is wrong."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"env file {path}: {error.strerror or error}") from None
    return read_values(data, str(path)), hashlib.sha256(data).hexdigest()


def reread(current: Configuration) -> Reload:
    """Read the env file of `current` again. Raises `InputError` when it cannot be read; nothing changes then."""
    if current.env_file is None:
        return Reload(current)
    values, digest = read_env_file(current.env_file)
    result = reloaded(current, {**values, **current.overrides})
    return dataclasses.replace(result, configuration=dataclasses.replace(result.configuration, digest=digest))


def reloaded(current: Configuration, texts: Mapping[str, str]) -> Reload:
    """`current` with `texts` in force where a running proxy can take them over.

    A value that cannot be read leaves the old one in force and is one of the new settings' `problems`.
    """
    kept: dict[str, str] = {key: text for key, text in texts.items() if key not in BY_KEY}
    problems: list[str] = []
    restart: list[str] = []
    for one in PARAMETERS:
        old, new = current.texts.get(one.key, "").strip(), texts.get(one.key, "").strip()
        problem = _problem(one, new, current)
        if problem is not None:
            problems.append(problem)
        elif one.key in NEEDS_RESTART and _value(one, new) != _value(one, old):
            restart.append(one.key)
        else:
            old = new
        if old:
            kept[one.key] = old
    settings = settings_from_env(kept, current.source)
    settings = dataclasses.replace(settings, problems=(*problems, *settings.problems))
    changed = tuple(
        f"{one.key}: {shown(one, current.settings)} -> {shown(one, settings)}"
        for one in PARAMETERS
        if getattr(settings, one.name) != getattr(current.settings, one.name)
    )
    fresh = dataclasses.replace(current, settings=settings, texts=kept)
    return Reload(fresh, changed, tuple(restart))


def shown(one: Parameter, settings: ProxySettings) -> str:
    """The value of a parameter as env files write it; secrets masked, "" when unset."""
    value: Any = getattr(settings, one.name)
    if value is None:
        return ""
    return MASK if one.secret else one.text(value)


def _problem(one: Parameter, text: str, current: Configuration) -> str | None:
    if not text:
        return None
    try:
        one.parse(text, one.key)
    except InputError as error:
        said = f"{one.key}: value cannot be read" if one.secret else str(error)
        return f"{current.source}: {said}; keeping {shown(one, current.settings) or 'it unset'}"
    return None


def _value(one: Parameter, text: str) -> Any:
    try:
        return one.parse(text, one.key) if text else one.default
    except InputError:
        return None
