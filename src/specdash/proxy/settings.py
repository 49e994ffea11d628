"""PROXY_* texts to one typed, frozen value. The catalogue (`core.proxy_parameters`) holds keys, ranges and defaults."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from specdash.core.envfile import read_values
from specdash.core.errors import InputError
from specdash.core.paths import proxy_env_file
from specdash.core.proxy_parameters import BY_KEY, MUST_BE_RIGHT, NEEDS_RESTART, NO_TLS, PARAMETERS, no_tls
from specdash.core.removed import removed_setting
from specdash.core.target import is_loopback
from specdash.system.data import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.core.parameters import Parameter


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """One field per parameter of the catalogue, by its `name`; units and meanings are there.

    `problems` says what was wrong with the texts, one clear line each, for values replaced by their defaults.
    """

    llama_cpp_base: str
    host: str
    port: int
    api_key: str | None = field(repr=False)
    admin_token: str | None = field(repr=False)
    upstream_api_key: str | None = field(repr=False)
    max_connections: int
    events_file: str | None
    log_file: str | None
    log_max_mib: int
    allowed_hosts: str | None
    allowed_origins: str | None
    max_body_mib: int
    log_level: str
    read_timeout: float
    generation_timeout: float
    ping_interval: float
    commit_delay: float
    hold_limit: float
    drain_timeout: float
    context_window: int
    context_prune_threshold: float
    context_prune_target_fraction: float
    max_tokens_floor: int
    max_tokens_cap: bool
    loop_breaker: bool
    loop_window: int
    loop_repeat_threshold: int
    forced_threshold: int
    no_progress_threshold: int
    context_release_threshold: float
    guardrail_retry: bool
    malformed_tool_guardrail: bool
    malformed_tool_retry_max: int
    malformed_tool_retry_max_tokens: int
    malformed_tool_retry_temperature: float
    malformed_tool_stream_strict: bool
    force_non_stream: bool
    session_contamination_breaker: bool
    session_contamination_threshold: int
    session_contamination_keep_last: int
    tool_narrowing: bool
    tool_narrowing_keep: int
    tool_narrowing_min_tools: int
    disable_thinking_on_tool_turns: bool
    stream_reasoning_fallback: str
    stream_reasoning_max_chars: int
    empty_response_retry_max: int
    repetition_cut: bool
    repetition_chars: int
    agentic_supplement_mode: str
    problems: tuple[str, ...] = ()

    @property
    def upstream(self) -> str:
        """The upstream's root URL: `LLAMA_CPP_BASE` without its trailing `/v1`."""
        return self.llama_cpp_base.rstrip("/").removesuffix("/v1").rstrip("/")

    @property
    def loopback(self) -> bool:
        """True when only this machine can connect."""
        return is_loopback(self.host)


def read_value(parameter: Parameter, text: str) -> tuple[Any, str | None]:
    """The value a text stands for, the default where it is empty or cannot be read; and why it cannot."""
    text = text.strip()
    try:
        return parameter.parse(text, parameter.key) if text else parameter.default, None
    except InputError as error:
        return parameter.default, f"{parameter.key}: value cannot be read" if parameter.secret else str(error)


def settings_from_env(env: Mapping[str, str], source: str = "environment") -> ProxySettings:
    """Read every known key of `env`; an empty text counts as unset.

    A bad value of a key that decides where the proxy listens raises `InputError` naming key, value and way out. Any
    other bad value leaves the default in force and is listed in `problems`, so that a typo never takes the proxy down.
    """
    for key in sorted(NO_TLS):
        if env.get(key, "").strip():
            raise InputError(f"{source}: {no_tls(key)}")
    values: dict[str, Any] = {}
    problems: list[str] = []
    for parameter in PARAMETERS:
        values[parameter.name], problem = read_value(parameter, env.get(parameter.key, ""))
        if problem is None:
            continue
        if parameter.key in MUST_BE_RIGHT:
            raise InputError(f"{source}: {problem}")
        default = parameter.text(parameter.default) if parameter.default is not None else ""
        problems.append(f"{source}: {problem}; using the default, {default}")
    problems += [
        f"{source}: {removed_setting(key) or f'{key} is not a setting of this proxy; it is ignored'}"
        for key in sorted(env)
        if key.startswith("PROXY_") and key not in BY_KEY
    ]
    settings = ProxySettings(**values, problems=tuple(problems))
    _check_listening(settings, source)
    return _consistent(settings, source)


def _check_listening(settings: ProxySettings, source: str) -> None:
    parts = urlsplit(settings.llama_cpp_base)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InputError(
            f"{source}: LLAMA_CPP_BASE={settings.llama_cpp_base}: must be a URL such as http://127.0.0.1:8080/v1"
        )
    if not settings.loopback and not settings.api_key:
        raise InputError(
            f"{source}: PROXY_HOST={settings.host} lets other machines in: set PROXY_API_KEY, or use 127.0.0.1"
        )


def _consistent(settings: ProxySettings, source: str) -> ProxySettings:
    threshold, target = settings.context_prune_threshold, settings.context_prune_target_fraction
    if target < threshold:
        return settings
    lowered = round(threshold * 0.85, 4)
    problem = (
        f"{source}: PROXY_CONTEXT_PRUNE_TARGET_FRACTION={target:g} is not below "
        f"PROXY_CONTEXT_PRUNE_THRESHOLD={threshold:g}; using {lowered:g}"
    )
    return dataclasses.replace(settings, context_prune_target_fraction=lowered, problems=(*settings.problems, problem))


# Where the proxy's settings come from, and what a reload may change of them.


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
    for parameter in PARAMETERS:
        old, new = current.texts.get(parameter.key, "").strip(), texts.get(parameter.key, "").strip()
        value, problem = read_value(parameter, new)
        if problem is not None:
            kept_text = shown(parameter, current.settings) or "it unset"
            problems.append(f"{current.source}: {problem}; keeping {kept_text}")
        elif parameter.key in NEEDS_RESTART and value != read_value(parameter, old)[0]:
            restart.append(parameter.key)
        else:
            old = new
        if old:
            kept[parameter.key] = old
    settings = settings_from_env(kept, current.source)
    settings = dataclasses.replace(settings, problems=(*problems, *settings.problems))
    changed = tuple(
        f"{parameter.key}: {shown(parameter, current.settings)} -> {shown(parameter, settings)}"
        for parameter in PARAMETERS
        if getattr(settings, parameter.name) != getattr(current.settings, parameter.name)
    )
    fresh = dataclasses.replace(current, settings=settings, texts=kept)
    return Reload(fresh, changed, tuple(restart))


def shown(parameter: Parameter, settings: ProxySettings) -> str:
    """The value of a parameter as env files write it; secrets masked, "" when unset."""
    value: Any = getattr(settings, parameter.name)
    if value is None:
        return ""
    return MASK if parameter.secret else parameter.text(value)
