"""The catalogue of proxy parameters: every env key the proxy reads, its meaning, range and default, declared once.

The names and meanings are those of the UAP Anthropic proxy 1.13; where a default differs, docs/proxy.md says why.
"""

from __future__ import annotations

from typing import Any

from specdash.core.parameters import Parameter, ValueKind, declared

_SECRETS = frozenset({"PROXY_API_KEY", "PROXY_UPSTREAM_API_KEY", "PROXY_ADMIN_TOKEN"})


def _row(key: str, kind: ValueKind, meaning: str, *rest: Any, **more: Any) -> Parameter:
    name = key.removeprefix("PROXY_").lower()
    return declared(name, kind, meaning, key, "", *rest, secret=key in _SECRETS, ours=True, **more)


_I, _N, _T, _P, _S = ValueKind.INTEGER, ValueKind.NUMBER, ValueKind.TEXT, ValueKind.PATH, ValueKind.SWITCH
_SECONDS = (0, 86400)
_FRACTION = (0, 1)
_COUNT = (1, 1_000_000)
_COUNT0 = (0, 1_000_000)
_HOSTS = (r"[^\s,/@]+(\s*,\s*[^\s,/@]+)*", "host names, comma-separated")

# fmt: off
LISTENING: tuple[Parameter, ...] = (
    _row("LLAMA_CPP_BASE", _T, "the llama.cpp server's OpenAI base URL", "http://127.0.0.1:8080/v1"),
    _row("PROXY_HOST", _T, "address to listen on; anything but loopback needs PROXY_API_KEY", "127.0.0.1"),
    _row("PROXY_PORT", _I, "port to listen on", 4000, (1, 65535)),
    _row("PROXY_API_KEY", _T, "key that clients must send, as x-api-key or Bearer; unset: none asked"),
    _row("PROXY_ADMIN_TOKEN", _T, "token that the admin endpoints ask for, as x-admin-token; unset: one made at each "
         "start, in a file beside the run record"),
    _row("PROXY_UPSTREAM_API_KEY", _T, "key sent to the upstream; unset: none"),
    _row("PROXY_MAX_CONNECTIONS", _I, "most concurrent connections to the upstream; more requests wait their turn", 64,
         (1, 4096)),
    _row("PROXY_EVENTS_FILE", _P, "where events are written, one JSON object a line; 'off': nowhere; "
         "unset: proxy-events.jsonl in the state directory"),
)
"""Read at start-up only: a change needs a restart of the proxy."""

CLIENTS: tuple[Parameter, ...] = (
    _row("PROXY_ALLOWED_HOSTS", _T, "further names of this proxy, besides this machine's own and PROXY_HOST; a request "
         "that names another host gets 403", looks=_HOSTS),
    _row("PROXY_MAX_BODY_MIB", _I, "largest request body, unpacked; a larger one gets 413", 32, (1, 1024), "MiB"),
)

LIMITS: tuple[Parameter, ...] = (
    _row("PROXY_LOG_LEVEL", _T, "least severe level of the human log", "INFO", choices={
        "DEBUG": "everything", "INFO": "what happens", "WARNING": "what may be wrong", "ERROR": "what went wrong"}),
    _row("PROXY_READ_TIMEOUT", _N, "longest silence of the upstream before a request fails with 504", 600.0,
         (0.05, 86400), "s"),
    _row("PROXY_GENERATION_TIMEOUT", _N, "longest time for a whole turn, retries included; 0: no limit", 0.0, _SECONDS,
         "s"),
    _row("PROXY_PING_INTERVAL", _N, "time between pings on a stream that is waiting", 5.0, (0.05, 600), "s"),
    _row("PROXY_COMMIT_DELAY", _N, "how long a stream waits for the upstream's first answer before it sends "
         "message_start and pings; until then errors keep their HTTP status", 2.0, (0, 600), "s"),
    _row("PROXY_HOLD_LIMIT", _N, "longest time a request waits while the proxy is held", 120.0, _SECONDS, "s"),
    _row("PROXY_DRAIN_TIMEOUT", _N, "how long SIGTERM lets running requests finish", 30.0, _SECONDS, "s"),
)

CONTEXT: tuple[Parameter, ...] = (
    _row("PROXY_CONTEXT_WINDOW", _I, "the context window; 0: what the upstream says", 0, (0, 100_000_000), "tokens"),
    _row("PROXY_CONTEXT_PRUNE_THRESHOLD", _N, "share of the window from which old messages are pruned; 1: never", 0.75,
         (0.05, 1)),
    _row("PROXY_CONTEXT_PRUNE_TARGET_FRACTION", _N, "share of the window that pruning aims at", 0.65, (0.01, 0.99)),
    _row("PROXY_MAX_TOKENS_FLOOR", _I, "least max_tokens sent upstream, tiny probes excepted; 0: off", 0, _COUNT0,
         "tokens"),
)

LOOPS: tuple[Parameter, ...] = (
    _row("PROXY_LOOP_BREAKER", _S, "break loops of identical tool calls with identical results", True),
    _row("PROXY_LOOP_WINDOW", _I, "last tool turns that must all belong to the cycle", 6, (2, 1000)),
    _row("PROXY_LOOP_REPEAT_THRESHOLD", _I, "length of the cycle's run, in tool turns, that is a loop", 8, (2, 1000)),
    _row("PROXY_FORCED_THRESHOLD", _I, "consecutive requests with a forced tool_choice before it is released", 15,
         _COUNT),
    _row("PROXY_NO_PROGRESS_THRESHOLD", _I, "tool turns in a row without anything new that both rules also need", 4,
         _COUNT0),
    _row("PROXY_CONTEXT_RELEASE_THRESHOLD", _N, "share of the window from which a forced tool_choice is released", 0.90,
         _FRACTION),
    _row("PROXY_GUARDRAIL_RETRY", _S, "retry once a turn that announces a tool call and ends without it", True),
)

TOOLS: tuple[Parameter, ...] = (
    _row("PROXY_MALFORMED_TOOL_GUARDRAIL", _S, "detect tool calls that arrive malformed or as text, and retry", True),
    _row("PROXY_MALFORMED_TOOL_RETRY_MAX", _I, "retries of a malformed tool turn", 1, (0, 10)),
    _row("PROXY_MALFORMED_TOOL_RETRY_MAX_TOKENS", _I, "max_tokens of such a retry; 0: unchanged", 2048, _COUNT0,
         "tokens"),
    _row("PROXY_MALFORMED_TOOL_RETRY_TEMPERATURE", _N, "temperature of such a retry", 0.0, (0, 2)),
    _row("PROXY_MALFORMED_TOOL_STREAM_STRICT", _S, "hold a streamed tool turn back until it is checked, then replay it",
         False),
    _row("PROXY_SESSION_CONTAMINATION_BREAKER", _S, "cut a session back to recent turns after malformed ones", True),
    _row("PROXY_SESSION_CONTAMINATION_THRESHOLD", _I, "malformed turns in a row before that", 3, (1, 1000)),
    _row("PROXY_SESSION_CONTAMINATION_KEEP_LAST", _I, "latest messages kept by it", 8, (2, 10_000)),
    _row("PROXY_TOOL_NARROWING", _S, "offer only the relevant ones of many tools", False),
    _row("PROXY_TOOL_NARROWING_KEEP", _I, "tools kept, besides those in use", 8, (1, 10_000)),
    _row("PROXY_TOOL_NARROWING_MIN_TOOLS", _I, "number of tools from which narrowing acts", 12, (1, 10_000)),
    _row("PROXY_DISABLE_THINKING_ON_TOOL_TURNS", _S, "ask for no thinking when tools are offered", False),
)

ANSWERS: tuple[Parameter, ...] = (
    _row("PROXY_STREAM_REASONING_FALLBACK", _T, "what a turn of nothing but reasoning shows", "off", choices={
        "off": "nothing", "sanitized": "one line of it, shortened", "visible": "the reasoning itself"}),
    _row("PROXY_STREAM_REASONING_MAX_CHARS", _I, "longest sanitized fallback", 240, (1, 1_000_000), "characters"),
    _row("PROXY_REPETITION_CUT", _S, "end a turn that repeats itself without end", True),
    _row("PROXY_AGENTIC_SUPPLEMENT_MODE", _T, "rules for tool use added to the system prompt of tool turns", "off",
         choices={
             "clean": "how a call is made",
             "legacy": "that calls have to be made, as in earlier proxies",
             "off": "none",
         }),
)
# fmt: on

GROUPS: tuple[tuple[str, tuple[Parameter, ...]], ...] = (
    ("Listening", LISTENING),
    ("Clients", CLIENTS),
    ("Limits", LIMITS),
    ("Context window", CONTEXT),
    ("Loops", LOOPS),
    ("Tools", TOOLS),
    ("Answers", ANSWERS),
)
"""Every parameter, by what it is about."""
PARAMETERS: tuple[Parameter, ...] = tuple(row for _, rows in GROUPS for row in rows)
BY_KEY: dict[str, Parameter] = {parameter.key: parameter for parameter in PARAMETERS}
NEEDS_RESTART: frozenset[str] = frozenset(parameter.key for parameter in LISTENING)
"""Keys that SIGHUP cannot apply, and whose bad value refuses the start; of any other key it is reported."""


NO_TLS: frozenset[str] = frozenset({"PROXY_TLS_CERT_FILE", "PROXY_TLS_KEY_FILE"})
"""Keys that refuse the start where they are set: a proxy that encrypted must not answer in clear text unnoticed."""


def no_tls(key: str) -> str:
    """Why such a key refuses the start, and what to do."""
    return f"{key} is set, but the proxy serves TLS no longer: remove it, and let Caddy, nginx or ssh do that in front"
