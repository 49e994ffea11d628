"""Every rule about the proxy. The proxy reads its env forgivingly; here nothing is forgiven that a change brings."""

from __future__ import annotations

import difflib
import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from specdash.control.preflight import disk, env_lines, pair, restart
from specdash.control.preflight.context import Findings, parted, unread
from specdash.control.preflight.listening import check_place, is_loopback
from specdash.control.preflight.processes import records
from specdash.control.preflight.values import say_empty
from specdash.core.changes import Role
from specdash.core.errors import InputError
from specdash.core.parameter_catalogue import BY_KEY as BACKEND_KEYS
from specdash.core.proxy_parameters import BY_KEY, MUST_BE_RIGHT, NEEDS_RESTART, PARAMETERS
from specdash.core.run_record import RunRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.control.preflight.context import PreflightContext
    from specdash.core.findings import Finding
    from specdash.core.parameters import Scalar

_ALIKE = 0.85
_PLACE = ("PROXY_HOST", "PROXY_PORT")
_NOWHERE = ("off", "none", "0", "false", "no")
_TLS = ("PROXY_TLS_CERT_FILE", "PROXY_TLS_KEY_FILE")


class _Checked:
    """The wanted settings, each with its value, or its default where it cannot be read."""

    def __init__(self, values: Mapping[str, str], context: PreflightContext, out: Findings) -> None:
        self.texts = {key: text.strip() for key, text in values.items() if text.strip()}
        self.bad: set[str] = set()
        self.values: dict[str, Scalar | None] = {}
        for one in PARAMETERS:
            text = self.texts.get(one.key)
            self.values[one.key] = one.default
            if text is None:
                continue
            try:
                self.values[one.key] = one.parse(text, one.key)
            except InputError as error:
                said, fix = (f"{one.key}: the value cannot be read", "") if one.secret else parted(str(error))
                self.bad.add(one.key)
                if one.key in MUST_BE_RIGHT or one.key in context.changed:
                    out.error("value", said, key=one.key, fix=fix or f"allowed: {one.allowed}")
                else:
                    held = one.shown_default or "none"
                    said = f"{said}; the default, {held}, is in force"
                    out.warning("value", said, key=one.key, fix=fix or f"allowed: {one.allowed}")

    def text(self, key: str) -> str:
        """The value as a text, "" when there is none."""
        value = self.values[key]
        return "" if value is None else str(value)

    def number(self, key: str) -> float:
        """The value of a number."""
        value: Any = self.values[key]
        return float(value)

    def good(self, *keys: str) -> bool:
        """Whether none of the keys has a bad value."""
        return not self.bad.intersection(keys)


def check(values: Mapping[str, str], context: PreflightContext) -> tuple[Finding, ...]:
    """The findings about a proxy's wanted settings, errors first."""
    out = Findings({**(context.other or {}), **values})
    env_lines.check(values, context, out)
    say_empty(values, BY_KEY, out)
    _unknown(values, out)
    checked = _Checked(values, context, out)
    _listening(checked, context, out)
    _upstream(checked, context, out)
    _tls(checked, out)
    _relations(checked, context, out)
    _files(checked, out)
    log = checked.text("PROXY_LOG_FILE") or None
    disk.check(context, out, log=log, key="PROXY_LOG_FILE" if log else None)
    restart.check(Role.PROXY, context, out)
    return out.sorted()


def _unknown(values: Mapping[str, str], out: Findings) -> None:
    for key in values:
        if key in BY_KEY:
            continue
        if key in BACKEND_KEYS and key.startswith("LLAMA_"):
            said = f"{key} is the backend's: the proxy does not read it"
            out.warning("unknown-key", said, key=key, fix=unread(Role.PROXY, key))
            continue
        ours = key.startswith("PROXY_")
        close = difflib.get_close_matches(key, BY_KEY, n=1, cutoff=0.6 if ours else _ALIKE)
        if ours or close:
            fix = f"did you mean {close[0]}?" if close else "remove it"
            out.warning("unknown-key", f"{key} is not a setting of this proxy: it is ignored", key=key, fix=fix)


def _listening(checked: _Checked, context: PreflightContext, out: Findings) -> None:
    service = context.service
    host, port = checked.text("PROXY_HOST"), int(checked.number("PROXY_PORT"))
    if not is_loopback(host) and not checked.text("PROXY_API_KEY") and checked.good("PROXY_HOST"):
        said = f"PROXY_HOST={host} lets other machines in, and no key is asked of them: the proxy refuses to start"
        out.error("api-key", said, key="PROXY_HOST", fix="set PROXY_API_KEY, or use 127.0.0.1")
    if service is not None and service.socket:
        # Whoever waits in the old socket would be turned away when it is closed, so no apply moves it.
        moved = [key for key in _PLACE if key in context.changed]
        for key in moved:
            said = f"{key}={checked.text(key)}: the service's manager keeps its socket open, and no apply moves that"
            out.error("socket-unit", said, key=key, fix=_moving(key, checked.text(key), service.manager.kind))
        if not moved:
            return
    if checked.good(*_PLACE):
        check_place(host, port, *_PLACE, context, out)


def _moving(key: str, value: str, manager: str) -> str:
    """How the operator moves the socket, with the clients' knowledge."""
    install = ("services install",) if manager == "systemd" else ()
    steps = (f"env set {key}={value}", *install, "services stop proxy", "services start proxy")
    return f"run {', '.join(f'`specdash {step}`' for step in steps)}"


def _upstream(checked: _Checked, context: PreflightContext, out: Findings) -> None:
    key, text = "LLAMA_CPP_BASE", checked.text("LLAMA_CPP_BASE")
    try:
        parts = urlsplit(text)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme not in ("http", "https") or not parts.hostname:
        said = f"{key}={_without_user(text)}: is no URL of a server"
        out.error("upstream", said, key=key, fix="use one such as http://127.0.0.1:8080/v1")
        return
    if checked.good("PROXY_PORT") and is_loopback(parts.hostname) and port == int(checked.number("PROXY_PORT")):
        said = f"{key}={_without_user(text)} is the proxy's own address: it would ask itself"
        out.error("upstream", said, key=key, fix="name the llama.cpp server")
        return
    if context.other is not None:
        pair.check(context.other, checked.texts, context, out)
        return
    urls = [urlsplit(one.url) for one in records(context) if isinstance(one, RunRecord)]
    if urls and is_loopback(parts.hostname) and not any(one.port == port for one in urls):
        running = ", ".join(sorted(one.geturl() for one in urls))
        said = f"{key}={_without_user(text)}: no backend of specdash listens there; {running} does"
        out.warning("upstream", said, key=key, fix="name its address, or start one there")


def _tls(checked: _Checked, out: Findings) -> None:
    paths = [checked.text(key) for key in _TLS]
    if not any(paths):
        return
    for key, path, other in zip(_TLS, paths, reversed(_TLS), strict=True):
        if not path:
            said = f"{key} is missing: TLS needs both the certificate and its key"
            out.error("tls", said, key=key, fix=f"set it, or remove {other}")
    missing = [_pem_trouble(key, path, out) for key, path in zip(_TLS, paths, strict=True) if path]
    if all(paths) and not any(missing):
        _pair(paths[0], paths[1], out)


def _pem_trouble(key: str, path: str, out: Findings) -> bool:
    try:
        text = Path(os.path.expanduser(path)).read_bytes()  # noqa: PTH111 - a name alone is no error here
        reason = None if b"-----BEGIN" in text else "is not a PEM file"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    if reason is not None:
        out.error("tls", f"{key}={path}: {reason}", key=key, fix="name a readable PEM file")
    return reason is not None


def _pair(certificate: str, key: str, out: Findings) -> None:
    chain, private = (os.path.expanduser(one) for one in (certificate, key))  # noqa: PTH111 - see above
    try:
        # An empty password, so that an encrypted key fails instead of asking the terminal.
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(chain, private, password="")
    except (ssl.SSLError, ValueError, OSError) as error:
        if "MISMATCH" in (getattr(error, "reason", None) or ""):
            said, fix = f"is not the key of PROXY_TLS_CERT_FILE={certificate}", "name the key it was made with"
        else:
            said, fix = "is encrypted or damaged, or the certificate is", "use an unencrypted PEM key"
        out.error("tls", f"PROXY_TLS_KEY_FILE={key}: {said}", key="PROXY_TLS_KEY_FILE", fix=fix)


def _relations(checked: _Checked, context: PreflightContext, out: Findings) -> None:
    def add(keys: tuple[str, str], said: str, fix: str) -> None:
        if checked.good(*keys):
            ours = next((key for key in keys if key in context.changed), None)
            (out.error if ours else out.warning)("relation", said, key=ours or keys[0], fix=fix)

    target, threshold = "PROXY_CONTEXT_PRUNE_TARGET_FRACTION", "PROXY_CONTEXT_PRUNE_THRESHOLD"
    low, high = checked.number(target), checked.number(threshold)
    if low >= high:
        said = f"{target}={low:g} is not below {threshold}={high:g}: {round(high * 0.85, 4):g} would be used"
        add((target, threshold), said, f"lower {target}, or raise {threshold}")
    keep, least = "PROXY_TOOL_NARROWING_KEEP", "PROXY_TOOL_NARROWING_MIN_TOOLS"
    if checked.values["PROXY_TOOL_NARROWING"] and checked.number(keep) >= checked.number(least):
        said = f"{keep}={checked.text(keep)} is not below {least}={checked.text(least)}: little would be narrowed"
        out.warning("relation", said, key=keep, fix=f"lower {keep}, or raise {least}")
    whole, silence = "PROXY_GENERATION_TIMEOUT", "PROXY_READ_TIMEOUT"
    if 0 < checked.number(whole) < checked.number("PROXY_CONNECT_TIMEOUT"):
        said = f"{whole}={checked.text(whole)} is below PROXY_CONNECT_TIMEOUT={checked.text('PROXY_CONNECT_TIMEOUT')}"
        out.warning("relation", f"{said}: the latter cannot run out", key=whole, fix=f"raise {whole}")
    if checked.number("PROXY_PING_INTERVAL") >= checked.number(silence):
        said = f"PROXY_PING_INTERVAL={checked.text('PROXY_PING_INTERVAL')} is not below {silence}"
        said = f"{said}={checked.text(silence)}: no ping would be sent before a stream is given up"
        out.warning("relation", said, key="PROXY_PING_INTERVAL", fix="use some seconds")
    if checked.number("PROXY_HOLD_LIMIT") == 0 and checked.good("PROXY_HOLD_LIMIT"):
        said = "PROXY_HOLD_LIMIT=0: while settings are applied, requests would fail at once instead of waiting"
        out.warning("relation", said, key="PROXY_HOLD_LIMIT", fix="use 120")


def _files(checked: _Checked, out: Findings) -> None:
    for key in ("PROXY_EVENTS_FILE", "PROXY_LOG_FILE"):
        path = checked.text(key)
        if not path or (key == "PROXY_EVENTS_FILE" and path.lower() in _NOWHERE):
            continue
        try:
            file = Path(os.path.expanduser(path)).absolute()  # noqa: PTH111 - see above
            reason = _cannot_write(file, create=key == "PROXY_EVENTS_FILE")
        except (OSError, ValueError) as error:
            reason = str(error)
        if reason is not None:
            add = out.error if key in NEEDS_RESTART else out.warning
            add("file", f"{key}={path}: {reason}", key=key, fix="name a file that can be written")


def _cannot_write(file: Path, *, create: bool) -> str | None:
    if file.is_dir():
        return "is a directory"
    if file.exists():
        return None if os.access(file, os.W_OK) else "cannot be written by this user"
    folder = file.parent
    while create and not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        return f"{folder} is no directory"
    return None if os.access(folder, os.W_OK | os.X_OK) else f"{folder} cannot be written by this user"


def _without_user(url: str) -> str:
    before, at, after = url.rpartition("@")
    return f"{before.partition('://')[0]}://***@{after}" if at else url
