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

UPSTREAM, UPSTREAM_KEY, WINDOW = "LLAMA_CPP_BASE", "PROXY_UPSTREAM_API_KEY", "PROXY_CONTEXT_WINDOW"
_PLACE = ("PROXY_HOST", "PROXY_PORT")


def proxy_findings(values: Mapping[str, str], around: Circumstances) -> tuple[Finding, ...]:
    """Everything to be known about a proxy's wanted settings, errors first."""
    held, bad = _read(values, around)
    rules = (env_lines(values, around), unknown_keys(Role.PROXY, values, around), _listening(held, bad, around))
    found = [*bad.values(), *(row for rule in rules for row in rule), *_upstream(values, held, bad, around)]
    return in_order(found, {**(around.other or {}), **values})


def _read(values: Mapping[str, str], around: Circumstances) -> tuple[dict[str, str], dict[str, Finding]]:
    """Each setting as a text, its default where it cannot be read, and what is wrong with those that cannot."""
    held = {parameter.key: parameter.default for parameter in PARAMETERS}
    bad: dict[str, Finding] = {}
    for key in [key for key, text in values.items() if text.strip() and key in BY_KEY]:
        parameter = BY_KEY[key]
        try:
            held[key] = parameter.parse(values[key].strip(), key)
        except InputError as raised:
            what = f"{key}: the value cannot be read" if parameter.secret else raised.problem.what
            fix = ("" if parameter.secret else raised.problem.fix) or f"allowed: {parameter.allowed}"
            wrong = key in NEEDS_RESTART or key in around.changed
            in_force = "" if wrong else f"; the default, {parameter.shown_default or 'none'}, is in force"
            bad[key] = (error if wrong else warning)("value", f"{what}{in_force}", key, fix)
    return {key: "" if value is None else str(value) for key, value in held.items()}, bad


def _listening(held: Mapping[str, str], bad: Mapping[str, Finding], around: Circumstances) -> Iterator[Finding]:
    host = held["PROXY_HOST"]
    if not is_loopback(host) and not held["PROXY_API_KEY"] and "PROXY_HOST" not in bad:
        message = f"PROXY_HOST={host} lets other machines in, and no key is asked of them: the proxy refuses to start"
        yield error("api-key", message, "PROXY_HOST", "set PROXY_API_KEY, or use 127.0.0.1")
    moved = [key for key in _PLACE if key in around.changed]
    for key in moved if around.keeps_socket else ():
        # A client that waits in the old socket would be turned away when it is closed, so no apply moves it.
        message = f"{key}={held[key]}: the proxy's socket stays open while it runs, and no apply moves that"
        steps = "end the proxy, run `specdash services install proxy` where systemd keeps it, and start it again"
        yield error("socket-unit", message, key, f"write {key}={held[key]} into {around.env_file}, then {steps}")
    if bad.keys().isdisjoint(_PLACE) and (moved or not around.keeps_socket):
        yield from place(host, int(held["PROXY_PORT"]), *_PLACE, around.own())


def _split(url: str) -> tuple[SplitResult, int] | None:
    """A URL and its port; None for what is no URL of a server."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return None
    return (parts, port) if parts.scheme in ("http", "https") and parts.hostname else None


def _upstream(
    values: Mapping[str, str], held: Mapping[str, str], bad: Mapping[str, Finding], around: Circumstances
) -> Iterator[Finding]:
    before, at, after = held[UPSTREAM].rpartition("@")
    named = f"{UPSTREAM}={before.partition('://')[0]}://***@{after}" if at else f"{UPSTREAM}={after}"
    found = _split(held[UPSTREAM])
    if found is None:
        yield error("upstream", f"{named}: is no URL of a server", UPSTREAM, "use one such as http://127.0.0.1:8080/v1")
        return
    if "PROXY_PORT" not in bad and is_loopback(found[0].hostname or "") and str(found[1]) == held["PROXY_PORT"]:
        message = f"{named} is the proxy's own address: it would ask itself"
        yield error("upstream", message, UPSTREAM, "name the llama.cpp server")
    elif around.other is not None:
        backend, _ = read(around.other, around)
        yield from pair(backend, values, around) if backend is not None else ()


# Port, key and context, both services as they shall be; the request through the proxy that an apply ends with shows the
# rest. A proxy that asks another machine, or another server of this one, is in front of that.


def pair(backend: BackendSettings, wanted: Mapping[str, str], around: Circumstances) -> Iterator[Finding]:
    """What backend and proxy do not agree on; the same findings for whichever of the two `around` is about."""
    held, _ = _read(wanted, around)
    found = _split(held[UPSTREAM])
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
    yield from _key(backend, held[UPSTREAM_KEY])
    window, slot = int(held[WINDOW] or 0), cells_asked(backend, None)
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
