"""Where a backend is and how to look at it."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec import Struct

from specdash.core.errors import UsageError
from specdash.core.structs import Masked

if TYPE_CHECKING:
    from specdash.core.records import StartCheck


LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost", "::1", "0.0.0.0", "::"})  # noqa: S104 - named, not bound


def is_loopback(host: str | None) -> bool:
    """Whether a host is `localhost` or a loopback address."""
    try:
        return host is not None and ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def is_local(host: str | None) -> bool:
    """Whether the host of an address is this machine, as far as its name says so."""
    return host in LOCAL_HOSTS or is_loopback(host)


def local_port(url: str) -> int | None:
    """The port of an address on this machine, None for another machine."""
    parts = urlsplit(url)
    if not is_local(parts.hostname):
        return None
    return parts.port or (443 if parts.scheme == "https" else 80)


SSH = "ssh://"


def is_over_ssh(url: str) -> bool:
    """Whether the address is that of a machine on which commands are run through ssh (docs/servers.md)."""
    return url[: len(SSH)].lower() == SSH


_MACHINE = re.compile(r"((?:\w[\w.+-]*@)?(?:\w[\w.-]*|\[[0-9A-Fa-f:.]+(?:%\w+)?\])(?::[0-9]{1,5})?)(?:/(.*))?")
"""None begins with a dash, which ssh would take for an option."""


def machine_and_server(url: str) -> tuple[str, str]:
    """Of `ssh://[USER@]HOST[:PORT][/SERVER]` what ssh takes, and the server's address there, "" for the one that is
    found. Raises UsageError."""
    found = _MACHINE.fullmatch(url[len(SSH) :])
    if found is None:
        raise UsageError("write a machine as USER@HOST or ssh://USER@HOST[:PORT][/127.0.0.1:8081], without a password")
    return SSH + found[1], found[2] or ""


def on_words(url: str) -> str:
    """What to do with such an address: it is no server that is asked from here."""
    return f"`specdash --on {url[len(SSH) :]}` opens its dashboard, and runs any other command there"


def host_and_port(text: str, least: int = 0) -> tuple[str, int]:
    """An address to listen on, written HOST:PORT with a port of `least` or more. Raises ValueError for what is none."""
    host, _, port = text.rpartition(":")
    if not host or not re.fullmatch(r"[0-9]{1,5}", port) or not least <= int(port) <= 65535:
        raise ValueError(text)
    return host, int(port)


class Target(Masked, Struct, frozen=True):
    """One llama-server to watch.

    `url` is its base address without a trailing slash. `api_key` is the secret itself, already read from where the user
    named it, and is in no representation. `log` is the path of its log file and `pid` its process, where known.
    `model` names one model behind a router.
    """

    hidden = ("api_key", "proxy_key")

    url: str
    api_key: str | None = None
    key_is_recorded: bool = False
    """The key is that of a run record: it is sent only to a listener of our own user."""
    log: str | None = None
    log_named: bool = False
    """The user named the log: it stays the one, whichever the server writes."""
    pid: int | None = None
    model: str | None = None
    engine: str | None = None
    """Engine and version in words as the run record has it; /props does not always name it."""
    parameters: tuple[tuple[str, str], ...] = ()
    """Speculation parameters the server was started with, (flag without dashes, value), where known."""
    start_check: StartCheck | None = None
    """Whether it really speculates, as its runner saw it after the start; None where there is no such check."""
    refused: str = ""
    """Why its env file, as it was edited, is not what it runs; empty where it is."""
    origin: str = "--url"
    """How this target was found, in words, for the doctor and the header."""
    proxy_url: str | None = None
    """Base address of the Anthropic proxy in front of the server, normalised like `url`."""
    proxy_key: str | None = None
    """The proxy's own API key, the secret itself."""
    proxy_log: str | None = None
    """Where the proxy's events are: a file of JSON events or of a UAP proxy's log lines, or `journal:UNIT`."""
    proxy_origin: str = ""
    """How the proxy was found, in words."""
    proxy_found: tuple[str, ...] = ()
    """Which of these come from the run record of a proxy, by name; empty for a proxy that the user named."""
    name: str = ""
    """Its name in config.toml, "" for one that is not there."""
    group: str = ""
    """The group that it is in there."""

    @property
    def label(self) -> str:
        """What people call it: its name, else its address."""
        return self.name or self.url


_UNPRINTABLE = re.compile(r"[\s\x00-\x1f\x7f]")


def normalise_url(written: str, key_option: str = "--api-key-env") -> str:
    """`scheme://host[:port][/prefix]` without a trailing slash or `/v1`; http where no scheme is given. `key_option` is
    the option that names its key.

    Raises UsageError for what cannot be the base address of a server, also when it holds a user name or password.
    """
    address = written.strip()
    if is_over_ssh(address):
        raise UsageError(f"{address} is another machine: {on_words(address)}")
    if "@" in address.split("://")[-1].split("/")[0]:
        raise UsageError(f"the server address holds a user name or password; give a key with {key_option} NAME")
    if "://" not in address:
        address = f"http://{address}"
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"server address: {error}; write one like http://127.0.0.1:8080") from None
    if parts.scheme.lower() not in ("http", "https"):
        raise UsageError(f"{written!r}: the scheme must be http or https, not {parts.scheme!r}")
    if not host or re.search(r"[^\w.:%\-]", host) or _UNPRINTABLE.search(address):
        raise UsageError(f"{written!r} names no host; write an address like http://127.0.0.1:8080")
    if parts.query or parts.fragment:
        # Without the part itself: it may hold a key.
        raise UsageError(f"{re.split('[?#]', written)[0]!r}: a base address has no ? or # part; leave it off")
    shown_host = f"[{host}]" if ":" in host else host
    authority = shown_host if port is None else f"{shown_host}:{port}"
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme.lower()}://{authority}{path}"
