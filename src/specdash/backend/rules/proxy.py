"""What a change of the proxy's settings must not bring, and what backend and proxy must agree on.

The proxy reads its env forgivingly; here nothing is forgiven that a change brings.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

import psutil

from specdash.backend.auto import cells_asked
from specdash.backend.plan import read
from specdash.backend.rules import error, in_order, warning
from specdash.backend.rules.machine import listeners, place
from specdash.backend.rules.values import env_lines, unknown_keys
from specdash.core.changes import Role
from specdash.core.errors import InputError
from specdash.core.proxy_parameters import BY_KEY, NEEDS_RESTART, PARAMETERS
from specdash.core.target import is_local, is_loopback
from specdash.system.processes import family

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdash.backend.plan import Circumstances
    from specdash.backend.settings import BackendSettings
    from specdash.core.errors import Finding
    from specdash.core.parameters import Scalar

UPSTREAM, UPSTREAM_KEY, WINDOW = "LLAMA_CPP_BASE", "PROXY_UPSTREAM_API_KEY", "PROXY_CONTEXT_WINDOW"
_PLACE = ("PROXY_HOST", "PROXY_PORT")


class _Proxy:
    """The wanted settings, each with its value, or its default where it cannot be read."""

    def __init__(self, values: Mapping[str, str], around: Circumstances) -> None:
        self.around = around
        self.texts = {key: text.strip() for key, text in values.items() if text.strip()}
        self.values: dict[str, Scalar | None] = {parameter.key: parameter.default for parameter in PARAMETERS}
        self.bad: dict[str, Finding] = {}
        for key, text in self.texts.items():
            try:
                self.values |= {key: BY_KEY[key].parse(text, key)} if key in BY_KEY else {}
            except InputError as raised:
                secret = BY_KEY[key].secret
                what = f"{key}: the value cannot be read" if secret else raised.problem.what
                fix = ("" if secret else raised.problem.fix) or f"allowed: {BY_KEY[key].allowed}"
                wrong = key in NEEDS_RESTART or key in around.changed
                held = "" if wrong else f"; the default, {BY_KEY[key].shown_default or 'none'}, is in force"
                self.bad[key] = (error if wrong else warning)("value", f"{what}{held}", key, fix)

    def text(self, key: str) -> str:
        """The value as a text, "" when there is none."""
        value = self.values[key]
        return "" if value is None else str(value)


def proxy_findings(values: Mapping[str, str], around: Circumstances) -> tuple[Finding, ...]:
    """Everything to be known about a proxy's wanted settings, errors first."""
    proxy = _Proxy(values, around)
    rules = (env_lines(values, around), unknown_keys(Role.PROXY, values, around), _listening(proxy), _upstream(proxy))
    return in_order([*proxy.bad.values(), *(row for rule in rules for row in rule)], {**(around.other or {}), **values})


def _listening(proxy: _Proxy) -> Iterator[Finding]:
    around = proxy.around
    host, port = proxy.text("PROXY_HOST"), int(proxy.values["PROXY_PORT"] or 0)
    if not is_loopback(host) and not proxy.text("PROXY_API_KEY") and "PROXY_HOST" not in proxy.bad:
        message = f"PROXY_HOST={host} lets other machines in, and no key is asked of them: the proxy refuses to start"
        yield error("api-key", message, "PROXY_HOST", "set PROXY_API_KEY, or use 127.0.0.1")
    moved = [key for key in _PLACE if key in around.changed]
    if around.keeps_socket:
        # A client that waits in the old socket would be turned away when it is closed, so no apply moves it.
        for key in moved:
            line = f"{key}={proxy.text(key)}"
            message = f"{line}: the proxy's socket stays open while it runs, and no apply moves that"
            steps = "end the proxy, run `specdash services install proxy` where systemd keeps it, and start it again"
            yield error("socket-unit", message, key, f"write {line} into {around.env_file}, then {steps}")
    if proxy.bad.keys().isdisjoint(_PLACE) and (moved or not around.keeps_socket):
        yield from place(host, port, *_PLACE, around.own())


def _split(url: str) -> tuple[SplitResult, int] | None:
    """A URL and its port; None for what is no URL of a server."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return None
    return (parts, port) if parts.scheme in ("http", "https") and parts.hostname else None


def _upstream(proxy: _Proxy) -> Iterator[Finding]:
    around, text = proxy.around, proxy.text(UPSTREAM)
    before, at, after = text.rpartition("@")
    named = f"{UPSTREAM}={before.partition('://')[0]}://***@{after}" if at else f"{UPSTREAM}={text}"
    found = _split(text)
    if found is None:
        yield error("upstream", f"{named}: is no URL of a server", UPSTREAM, "use one such as http://127.0.0.1:8080/v1")
        return
    parts, port = found
    host = parts.hostname or ""
    if "PROXY_PORT" not in proxy.bad and is_loopback(host) and port == proxy.values["PROXY_PORT"]:
        message = f"{named} is the proxy's own address: it would ask itself"
        yield error("upstream", message, UPSTREAM, "name the llama.cpp server")
    elif around.other is not None:
        backend, _ = read(around.other, around)
        yield from pair(backend, proxy.texts, around) if backend is not None else ()


# Port, key and context, both services as they shall be; the request through the proxy that an apply ends with shows the
# rest. A proxy that asks another machine, or another server of this one, is in front of that.


def pair(backend: BackendSettings, wanted: Mapping[str, str], around: Circumstances) -> Iterator[Finding]:
    """What backend and proxy do not agree on; the same findings for whichever of the two `around` is about."""
    proxy = _Proxy(wanted, around)
    found = _split(proxy.text(UPSTREAM))
    here = {row.address.partition("%")[0] for rows in psutil.net_if_addrs().values() for row in rows}
    if found is None or not (is_local(found[0].hostname or "") or found[0].hostname in here):
        return
    port, fix = found[1], f"set {UPSTREAM}={backend.url}/v1"
    if backend.port and backend.port != port:
        own = around.own() | {process.pid for pid in around.other_pids for process in family(pid)}
        message = f"{UPSTREAM} asks port {port}, and the backend listens on {backend.port}"
        if any(pid not in own for pid in listeners(port)):
            yield warning("upstream", f"{message}; another server listens on {port}", UPSTREAM, fix)
        else:
            yield error("upstream", message, UPSTREAM, fix)
        return
    yield from _key(backend, proxy.text(UPSTREAM_KEY))
    window, slot = int(proxy.values[WINDOW] or 0), cells_asked(backend, None)
    if window > slot and int(backend.value("ctx-size") or 0) > 0:
        message = f"{WINDOW}={window}: a slot of the backend has {slot} tokens, so turns fail before they are pruned"
        yield error("upstream-window", message, WINDOW, f"set {WINDOW}=0, which takes what the backend says")


def _key(backend: BackendSettings, sent: str) -> Iterator[Finding]:
    secret, file = backend.secrets.get("api-key"), backend.text("api-key-file")
    keys = secret.split(",") if secret is not None else []
    if file is not None:
        try:
            keys += Path(file).expanduser().read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            # The file has a finding of its own, and what is in it is not known.
            return
    accepted = {key.strip() for key in keys if key.strip()}
    if accepted and sent not in accepted:
        where = "LLAMA_API_KEY" if secret is not None else f"LLAMA_API_KEY_FILE={file}"
        what = "one that it does not know" if sent else "none"
        message = f"the backend asks for a key ({where}), and the proxy sends {what}"
        fix = f"set {UPSTREAM_KEY} to a key of the backend, in the same apply"
        yield error("upstream-key", message, UPSTREAM_KEY, fix)
