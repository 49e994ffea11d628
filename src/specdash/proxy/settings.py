"""PROXY_* texts to one typed, frozen value. The catalogue (`core.proxy_parameters`) holds keys, ranges and defaults."""

from __future__ import annotations

import dataclasses
import ipaddress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from specdash.core.errors import InputError
from specdash.core.proxy_parameters import BY_KEY, MUST_BE_RIGHT, PARAMETERS

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """One field per parameter of the catalogue, by its `name`; units and meanings are there.

    `problems` says what was wrong with the texts, one clear line each, for values replaced by their defaults.
    """

    llama_cpp_base: str
    host: str
    port: int
    api_key: str | None = field(repr=False)
    upstream_api_key: str | None = field(repr=False)
    tls_cert_file: str | None
    tls_key_file: str | None
    max_connections: int
    events_file: str | None
    events_max_mib: int
    log_file: str | None
    log_max_mib: int
    allowed_hosts: str | None
    allowed_origins: str | None
    max_clients: int
    max_header_kib: int
    header_timeout: float
    body_timeout: float
    max_body_mib: int
    max_blocks: int
    log_level: str
    read_timeout: float
    connect_timeout: float
    generation_timeout: float
    ping_interval: float
    commit_delay: float
    hold_limit: float
    drain_timeout: float
    session_ttl_secs: float
    max_sessions: int
    context_window: int
    context_refresh: float
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


def is_loopback(host: str) -> bool:
    """True for `localhost` and every loopback address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def settings_from_env(env: Mapping[str, str], source: str = "environment") -> ProxySettings:
    """Read every known key of `env`; an empty text counts as unset.

    A bad value of a key that decides where the proxy listens raises `InputError` naming key, value and way out. Any
    other bad value leaves the default in force and is listed in `problems`, so that a typo never takes the proxy down.
    """
    values: dict[str, Any] = {}
    problems: list[str] = []
    for one in PARAMETERS:
        text = env.get(one.key, "").strip()
        values[one.name] = one.default
        if not text:
            continue
        try:
            values[one.name] = one.parse(text, one.key)
        except InputError as error:
            message = f"{source}: {error}" if not one.secret else f"{source}: {one.key}: value cannot be read"
            if one.key in MUST_BE_RIGHT:
                raise InputError(message) from None
            problems.append(f"{message}; using the default, {one.text(one.default) if one.default is not None else ''}")
    problems += [
        f"{source}: {key} is not a setting of this proxy; it is ignored"
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
            f"{source}: LLAMA_CPP_BASE={settings.llama_cpp_base}: wants a URL such as http://127.0.0.1:8080/v1"
        )
    if not settings.loopback and not settings.api_key:
        raise InputError(
            f"{source}: PROXY_HOST={settings.host} lets other machines in: set PROXY_API_KEY, or use 127.0.0.1"
        )
    if bool(settings.tls_cert_file) != bool(settings.tls_key_file):
        missing = "PROXY_TLS_KEY_FILE" if settings.tls_cert_file else "PROXY_TLS_CERT_FILE"
        raise InputError(f"{source}: {missing} is missing: TLS needs both the certificate and its key")


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
