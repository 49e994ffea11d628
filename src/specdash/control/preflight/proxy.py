"""Every rule about the proxy. The proxy reads its env forgivingly; here nothing is forgiven that a change brings."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psutil

from specdash.backend.auto import cells_asked
from specdash.control.deployment import BY_SYSTEMD
from specdash.control.preflight.context import Findings, unread
from specdash.control.preflight.machine import (
    OwnProcesses,
    ancestors,
    check_disk,
    check_place,
    listeners,
    records,
)
from specdash.control.preflight.settings import check_env_lines, check_restart, read_values, say_empty
from specdash.core.changes import Role
from specdash.core.env_edit import close_key
from specdash.core.errors import InputError, Problem
from specdash.core.parameter_catalogue import BY_KEY as BACKEND_KEYS
from specdash.core.proxy_parameters import BY_KEY, MUST_BE_RIGHT, NEEDS_RESTART, NO_TLS, PARAMETERS, no_tls
from specdash.core.records import RunRecord
from specdash.core.removed import REMOVED_SETTINGS
from specdash.core.target import is_local, is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdash.backend.settings import BackendSettings
    from specdash.control.deployment import Service
    from specdash.control.preflight.context import PreflightContext
    from specdash.core.errors import Finding
    from specdash.core.parameters import Scalar


# What a backend and the proxy in front of it must agree on: address, key, context. One of them alone cannot tell.
#
# Both are judged as they shall be. A proxy that asks another machine, or another server of this one, is in front of
# that.

UPSTREAM, UPSTREAM_KEY, WINDOW = "LLAMA_CPP_BASE", "PROXY_UPSTREAM_API_KEY", "PROXY_CONTEXT_WINDOW"
_ANY = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound


def check_pair(backend: Mapping[str, str], proxy: Mapping[str, str], context: PreflightContext, out: Findings) -> None:
    """Add what they do not agree on; the same findings whichever of the two services `context` is about."""
    settings = read_values(backend, context, Findings(backend)).settings
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
    listening = [part.strip() for part in (settings.text("host") or "127.0.0.1").split(",")]
    tls = settings.certificate is not None
    fix = f"set {UPSTREAM}={settings.url}/v1"
    if all(name.endswith(".sock") for name in listening):
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
    if not any(_reaches(host, name) for name in listening):
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
    own = OwnProcesses(context)
    pids = [listener.pid for listener in listeners(port)]
    known = context.other_pids
    return any(pid is None or (pid not in own and not known.intersection((pid, *ancestors(pid)))) for pid in pids)


_PLACE = ("PROXY_HOST", "PROXY_PORT")
_NOWHERE = ("off", "none", "0", "false", "no")


class _Checked:
    """The wanted settings, each with its value, or its default where it cannot be read."""

    def __init__(self, values: Mapping[str, str], context: PreflightContext, out: Findings) -> None:
        self.texts = {key: text.strip() for key, text in values.items() if text.strip()}
        self.bad: set[str] = set()
        self.values: dict[str, Scalar | None] = {}
        for parameter in PARAMETERS:
            text = self.texts.get(parameter.key)
            self.values[parameter.key] = parameter.default
            if text is None:
                continue
            try:
                self.values[parameter.key] = parameter.parse(text, parameter.key)
            except InputError as error:
                problem = Problem(f"{parameter.key}: the value cannot be read") if parameter.secret else error.problem
                self.bad.add(parameter.key)
                said, fix = problem.what, problem.fix or f"allowed: {parameter.allowed}"
                if parameter.key in MUST_BE_RIGHT or parameter.key in context.changed:
                    out.error("value", said, key=parameter.key, fix=fix)
                else:
                    held = f"the default, {parameter.shown_default or 'none'}, is in force"
                    out.warning("value", f"{said}; {held}", key=parameter.key, fix=fix)

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


def proxy_findings(values: Mapping[str, str], context: PreflightContext) -> tuple[Finding, ...]:
    """The findings about a proxy's wanted settings, errors first."""
    out = Findings({**(context.other or {}), **values})
    check_env_lines(values, context, out)
    say_empty(values, BY_KEY, out)
    _unknown(values, context, out)
    checked = _Checked(values, context, out)
    _listening(checked, context, out)
    _upstream(checked, context, out)
    _relations(checked, context, out)
    _files(checked, out)
    log = checked.text("PROXY_LOG_FILE") or None
    check_disk(context, out, log=log, key="PROXY_LOG_FILE" if log else None)
    check_restart(Role.PROXY, context, out)
    return out.sorted()


def _unknown(values: Mapping[str, str], context: PreflightContext, out: Findings) -> None:
    for key in values:
        if key in BY_KEY:
            continue
        if key in NO_TLS:
            if values[key].strip():
                out.error("tls", no_tls(key), key=key, fix="remove it")
            continue
        if key in BACKEND_KEYS and key.startswith("LLAMA_"):
            said = f"{key} is the backend's: the proxy does not read it"
            out.warning("unknown-key", said, key=key, fix=unread(Role.PROXY, key))
            continue
        if key in REMOVED_SETTINGS:
            out.warning("removed-key", f"{key} was removed and is ignored", key=key, fix=REMOVED_SETTINGS[key])
            continue
        close = close_key(Role.PROXY, key)
        if close is not None or key.startswith("PROXY_"):
            fix = f"did you mean {close}?" if close else "remove it"
            say = out.error if key in context.changed and not context.back else out.warning
            say("unknown-key", f"{key} is not a setting of this proxy: it is ignored", key=key, fix=fix)


def _listening(checked: _Checked, context: PreflightContext, out: Findings) -> None:
    service = context.service
    host, port = checked.text("PROXY_HOST"), int(checked.number("PROXY_PORT"))
    if not is_loopback(host) and not checked.text("PROXY_API_KEY") and checked.good("PROXY_HOST"):
        said = f"PROXY_HOST={host} lets other machines in, and no key is asked of them: the proxy refuses to start"
        out.error("api-key", said, key="PROXY_HOST", fix="set PROXY_API_KEY, or use 127.0.0.1")
    if service is not None and service.status().alive:
        # Who waits in the old socket would be turned away when it is closed, so no apply moves it.
        moved = [key for key in _PLACE if key in context.changed]
        for key in moved:
            said = f"{key}={checked.text(key)}: the proxy's socket stays open while it runs, and no apply moves that"
            out.error("socket-unit", said, key=key, fix=_moving(f"{key}={checked.text(key)}", service))
        if not moved:
            return
    if checked.good(*_PLACE):
        check_place(host, port, *_PLACE, context, out)


def _moving(line: str, service: Service) -> str:
    if service.manager() != BY_SYSTEMD:
        return f"write {line} into {service.env_file}, then end the proxy and start it again"
    steps = ", ".join(f"`specdash services {step}`" for step in ("stop proxy", "install proxy", "start proxy"))
    return f"write {line} into {service.env_file}, then run {steps}"


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
        check_pair(context.other, checked.texts, context, out)
        return
    urls = [urlsplit(record.url) for record in records(context) if isinstance(record, RunRecord)]
    if urls and is_loopback(parts.hostname) and not any(url.port == port for url in urls):
        running = ", ".join(sorted(url.geturl() for url in urls))
        said = f"{key}={_without_user(text)}: no backend of specdash listens there; {running} does"
        out.warning("upstream", said, key=key, fix="name its address, or start one there")


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
