"""What a backend and the proxy in front of it must agree on: address, key, context. One of them alone cannot tell.

Both are judged as they shall be. A proxy that asks another machine, or another server of this one, is in front of that.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil

from specdash.backend.loads import cells_asked
from specdash.control.preflight import values as backend_values
from specdash.control.preflight.context import Findings
from specdash.control.preflight.processes import Own, ancestors, owner_of
from specdash.control.preflight.sockets import listeners
from specdash.core.errors import InputError
from specdash.core.proxy_parameters import BY_KEY
from specdash.core.target import is_local

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.backend.settings import BackendSettings
    from specdash.control.preflight.context import PreflightContext
    from specdash.core.parameters import Scalar

UPSTREAM, UPSTREAM_KEY, WINDOW = "LLAMA_CPP_BASE", "PROXY_UPSTREAM_API_KEY", "PROXY_CONTEXT_WINDOW"
_ANY = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
_CERTIFICATE = ("LLAMA_ARG_SSL_CERT_FILE", "--ssl-cert-file")


def check(backend: Mapping[str, str], proxy: Mapping[str, str], context: PreflightContext, out: Findings) -> None:
    """Add what they do not agree on; the same findings whichever of the two services `context` is about."""
    settings = backend_values.read(backend, context, Findings(backend)).settings
    base = _read(proxy, UPSTREAM)
    try:
        asked = urlsplit(str(base or ""))
        port = asked.port or (443 if asked.scheme == "https" else 80)
    except ValueError:
        return
    host = asked.hostname or ""
    if settings is None or asked.scheme not in ("http", "https") or not _of_this_machine(host):
        return
    if not _same_place(settings, asked.scheme, host, port, context, out):
        return
    _key(settings, str(_read(proxy, UPSTREAM_KEY) or ""), out)
    _window(settings, int(_read(proxy, WINDOW) or 0), out)


def _read(proxy: Mapping[str, str], key: str) -> Scalar | None:
    """A value as the proxy reads it; its default where it cannot be meant, which has a finding of its own."""
    parameter, text = BY_KEY[key], proxy.get(key, "").strip()
    try:
        return parameter.parse(text, key) if text else parameter.default
    except InputError:
        return parameter.default


def _same_place(
    settings: BackendSettings, scheme: str, host: str, port: int, context: PreflightContext, out: Findings
) -> bool:
    """Whether the proxy asks this backend; added where it asks nobody, or not as the backend wants to be asked."""
    listening = [one.strip() for one in (settings.text("host") or "127.0.0.1").split(",")]
    tls = _CERTIFICATE[0] in settings.native or _CERTIFICATE[1] in settings.extra_args
    url = f"http{'s' if tls else ''}{settings.url.removeprefix('http')}/v1"
    fix = f"set {UPSTREAM}={url}"
    if all(one.endswith(".sock") for one in listening):
        if not _another_listens(port, context):
            said = f"{UPSTREAM} asks {host}:{port}, and the backend listens on a socket file, {listening[0]}"
            out.error("upstream", said, key=UPSTREAM, fix="set LLAMA_HOST=127.0.0.1")
        return False
    if settings.port and settings.port != port:
        said = f"{UPSTREAM} asks port {port}, and the backend listens on {settings.port}"
        if _another_listens(port, context):
            out.warning("upstream", f"{said}; another server listens on {port}", key=UPSTREAM, fix=fix)
        else:
            out.error("upstream", said, key=UPSTREAM, fix=fix)
        return False
    if not any(_reaches(host, one) for one in listening):
        said = f"{UPSTREAM} asks {host}, and the backend listens on {', '.join(listening)}"
        out.error("upstream", said, key=UPSTREAM, fix=fix)
        return False
    if (scheme == "https") is not tls:
        how = ("with TLS", "without") if scheme == "https" else ("without TLS", "with it")
        out.error("upstream", f"{UPSTREAM} asks {how[0]}, and the backend answers {how[1]}", key=UPSTREAM, fix=fix)
        return False
    return True


def _key(settings: BackendSettings, sent: str, out: Findings) -> None:
    secret, file = settings.secrets.get("api-key"), settings.text("api-key-file")
    keys = secret.get_secret_value().split(",") if secret is not None else []
    if file is not None:
        from pathlib import Path

        try:
            keys += [line.strip() for line in Path(file).expanduser().read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError):
            # The file has a finding of its own, and nobody knows what is in it.
            return
    accepted = {key.strip() for key in keys if key.strip()}
    if not accepted or sent in accepted:
        return
    where = "LLAMA_API_KEY" if secret is not None else f"LLAMA_API_KEY_FILE={file}"
    what = "one that it does not know" if sent else "none"
    said = f"the backend asks for a key ({where}), and the proxy sends {what}"
    fix = f"set {UPSTREAM_KEY} to a key of the backend, in the same apply"
    out.error("upstream-key", said, key=UPSTREAM_KEY, fix=fix)


def _window(settings: BackendSettings, window: int, out: Findings) -> None:
    context = int(settings.value("ctx-size") or 0)
    if not window or context <= 0:
        return
    slot = cells_asked(settings, None)
    if window > slot:
        said = f"{WINDOW}={window}: a slot of the backend has {slot} tokens, so turns fail before they are pruned"
        out.error("upstream-window", said, key=WINDOW, fix=f"set {WINDOW}=0, which takes what the backend says")


def _of_this_machine(host: str) -> bool:
    if is_local(host):
        return True
    return any(host == place.address.partition("%")[0] for rows in psutil.net_if_addrs().values() for place in rows)


def _reaches(host: str, listening: str) -> bool:
    """Whether a client that asks `host` reaches a server that listens on `listening`."""
    bare = listening.strip("[]")
    if bare in _ANY or host == bare:
        return bare != _ANY[0] or ":" not in host
    if "localhost" in (host, bare):
        other = bare if host == "localhost" else host
        try:
            return ipaddress.ip_address(other) in (ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1"))
        except ValueError:
            return False
    return False


def _another_listens(port: int, context: PreflightContext) -> bool:
    """Whether a server that is neither of the two has the port."""
    own = Own(context)
    pids = [owner_of(one.inode, own)[0] for one in listeners(port)]
    known = context.other_pids
    return any(pid is None or (pid not in own and not known.intersection((pid, *ancestors(pid)))) for pid in pids)
