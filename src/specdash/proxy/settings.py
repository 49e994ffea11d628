"""PROXY_* texts to one typed, frozen value. The catalogue (`core.proxy_parameters`) holds keys, ranges and defaults."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec.structs
from msgspec import Struct, field
from pydantic import BaseModel, ConfigDict, Field

from specdash.core.envfile import read_values
from specdash.core.errors import InputError
from specdash.core.masking import MASK
from specdash.core.paths import proxy_env_file
from specdash.core.proxy_parameters import BY_KEY, LISTENING, NEEDS_RESTART, NO_TLS, PARAMETERS, no_tls
from specdash.core.removed import removed_setting
from specdash.core.structs import Masked
from specdash.core.target import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.core.parameters import Parameter


class ProxySettings(BaseModel):
    """One field per parameter of the catalogue, by its `name`, made of the text that an env file has for it.

    Units and meanings are in the catalogue. `problems` says what was wrong with the texts, one clear line each, for
    values replaced by their defaults.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    llama_cpp_base: str
    host: str
    port: int
    api_key: str | None = Field(repr=False)
    admin_token: str | None = Field(repr=False)
    upstream_api_key: str | None = Field(repr=False)
    max_connections: int
    events_file: str | None
    allowed_hosts: str | None
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
    session_contamination_breaker: bool
    session_contamination_threshold: int
    session_contamination_keep_last: int
    tool_narrowing: bool
    tool_narrowing_keep: int
    tool_narrowing_min_tools: int
    disable_thinking_on_tool_turns: bool
    stream_reasoning_fallback: str
    stream_reasoning_max_chars: int
    repetition_cut: bool
    agentic_supplement_mode: str
    problems: tuple[str, ...] = ()

    @property
    def upstream(self) -> str:
        """The upstream's root URL: `LLAMA_CPP_BASE` without its trailing `/v1`."""
        return self.llama_cpp_base.rstrip("/").removesuffix("/v1").rstrip("/")


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
    for key, parameter in BY_KEY.items():
        text = env.get(key, "").strip()
        try:
            values[parameter.name] = parameter.parse(text, key) if text else parameter.default
        except InputError as error:
            problem = f"{key}: value cannot be read" if parameter.secret else str(error)
            if key in NEEDS_RESTART:
                raise InputError(f"{source}: {problem}") from None
            values[parameter.name] = parameter.default
            problems.append(f"{problem}; using the default, {parameter.shown_default or ''}")
    settings = ProxySettings(**values)
    parts = urlsplit(settings.llama_cpp_base)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InputError(
            f"{source}: LLAMA_CPP_BASE={settings.llama_cpp_base}: must be a URL such as http://127.0.0.1:8080/v1"
        )
    if not is_loopback(settings.host) and not settings.api_key:
        raise InputError(
            f"{source}: PROXY_HOST={settings.host} lets other machines in: set PROXY_API_KEY, or use 127.0.0.1"
        )
    problems += [
        removed_setting(key) or f"{key} is not a setting of this proxy; it is ignored"
        for key in sorted(env)
        if key.startswith("PROXY_") and key not in BY_KEY
    ]
    threshold, target = settings.context_prune_threshold, settings.context_prune_target_fraction
    if target >= threshold:
        lowered = round(threshold * 0.85, 4)
        problems.append(
            f"PROXY_CONTEXT_PRUNE_TARGET_FRACTION={target:g} is not below "
            f"PROXY_CONTEXT_PRUNE_THRESHOLD={threshold:g}; using {lowered:g}"
        )
        settings = settings.model_copy(update={"context_prune_target_fraction": lowered})
    return settings.model_copy(update={"problems": tuple(f"{source}: {problem}" for problem in problems)})


# Where the proxy's settings come from, and what a reload may change of them.


_ENVIRONMENT = "environment"


class Configuration(Masked, Struct, frozen=True):
    """Settings with the texts they were read from. `env_file` is None when the environment itself was read."""

    hidden = ("texts",)

    settings: ProxySettings
    texts: Mapping[str, str]
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


def reread(current: Configuration, env_file: Path) -> tuple[Configuration, list[str], list[str]]:
    """`current` with what its env file holds now in force where a running proxy can take it over; what that changed,
    in a line each without secrets; and the keys whose new value counts from the next start on.

    Raises `InputError` for a file that cannot be started with; nothing changes then.
    """
    values, digest = read_env_file(env_file)
    texts = {**values, **current.overrides}
    after = settings_from_env(texts, current.source)
    restart = [
        parameter.key
        for parameter in LISTENING
        if getattr(after, parameter.name) != getattr(current.settings, parameter.name)
    ]
    kept = {**texts, **{key: current.texts.get(key, "") for key in restart}}
    settings = settings_from_env(kept, current.source)
    changed = [
        f"{parameter.key}: {shown(parameter, current.settings)} -> {shown(parameter, settings)}"
        for parameter in PARAMETERS
        if getattr(settings, parameter.name) != getattr(current.settings, parameter.name)
    ]
    return msgspec.structs.replace(current, settings=settings, texts=kept, digest=digest), changed, restart


def shown(parameter: Parameter, settings: ProxySettings) -> str:
    """The value of a parameter as env files write it; secrets masked, "" when unset."""
    value: Any = getattr(settings, parameter.name)
    if value is None:
        return ""
    return MASK if parameter.secret else parameter.text(value)
