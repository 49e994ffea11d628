"""Where a backend is and how to look at it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdash.core.start_check import StartCheck

LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost", "::1", "0.0.0.0", "::"})  # noqa: S104 - named, not bound


def is_local(host: str | None) -> bool:
    """Whether the host of an address is this machine, as far as its name says so."""
    return host is not None and (host in LOCAL_HOSTS or host.startswith("127."))


@dataclass(frozen=True, slots=True)
class Target:
    """One llama-server to watch.

    `url` is its base address without a trailing slash. `api_key` is the secret itself, already read from the
    environment
    variable or file that the user named; it is kept out of every representation. `log` is the path of its log file and
    `pid` its process, where known. `model` names one model behind a router.
    """

    url: str
    api_key: str | None = field(default=None, repr=False)
    log: str | None = None
    pid: int | None = None
    model: str | None = None
    engine: str | None = None
    """Engine and version in words when whoever started the server wrote it down; /props cannot always tell."""
    parameters: tuple[tuple[str, str], ...] = ()
    """Speculation parameters the server was started with, (flag without dashes, value), where known."""
    start_check: StartCheck | None = None
    """Whether it really speculates, as its runner saw it after the start; None where there is no such check."""
    origin: str = "--url"
    """How this target was found, in words, for the doctor and the header."""
    proxy_url: str | None = None
    """Base address of the Anthropic proxy in front of the server, normalised like `url`."""
    proxy_key: str | None = field(default=None, repr=False)
    """The proxy's own API key, the secret itself."""
    proxy_log: str | None = None
    """Where the proxy's events are: a file of JSON events or log lines, or `journal:UNIT`."""
    proxy_origin: str = ""
    """How the proxy was found, in words."""
    proxy_found: tuple[str, ...] = ()
    """Which of these come from the run record of a proxy, by name; empty for a proxy that the user named."""
