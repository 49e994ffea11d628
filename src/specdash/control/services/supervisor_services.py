"""Which services the built-in supervisor runs: `services.json`, and how each of its entries is run.

```json
{"version": 1, "services": [
  {"name": "backend", "role": "backend", "env_file": "/home/me/.config/specdash/llama-server.env"},
  {"name": "proxy", "role": "proxy", "env_file": "/home/me/.config/specdash/proxy.env", "listen": "env"}]}
```

`listen` is HOST:PORT, or `env` for what PROXY_HOST and PROXY_PORT say; without it the service opens its own sockets.
`argv` runs another command than specdash's own, and `stop_timeout` (seconds) goes with it. A service of the role
`record` is none that specdash changes: it has an `argv`, and no env file that is read.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.collect.run_records import live_backends
from specdash.control.services.supervisor import Restart, Service
from specdash.core.changes import Role
from specdash.core.envfile import read_values
from specdash.core.errors import ExitCode, InputError, NotWrittenError, SpecdashError
from specdash.core.parameter_catalogue import BY_KEY as BACKEND_KEYS
from specdash.core.paths import state_dir
from specdash.core.proxy_parameters import BY_KEY as PROXY_KEYS
from specdash.core.target import host_and_port
from specdash.system import files
from specdash.system.data import dataclass
from specdash.system.processes import family, start_ticks
from specdash.system.text import size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import psutil

    from specdash.control.services.services import ServiceStatus
    from specdash.core.parameters import Parameter


VERSION = 1
FROM_ENV = "env"
"""What `listen` says where the env file decides."""
OTHER_ROLE = "record"
"""The role of a service that is neither the backend nor the proxy."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_FILE_LIMIT_BYTES = 1024 * 1024
_FIELDS = frozenset({"name", "role", "env_file", "listen", "argv", "stop_timeout"})
_RELOAD_SIGNALS = {Role.BACKEND: signal.SIGUSR1, Role.PROXY: signal.SIGHUP}
_PATIENCE = {Role.BACKEND: BACKEND_KEYS["LLAMA_STOP_TIMEOUT"], Role.PROXY: PROXY_KEYS["PROXY_DRAIN_TIMEOUT"]}
"""How long each gives its requests, or its engine, to end by themselves."""
_STOP_SLACK_S = 8.0
"""On top of that: the runner's second SIGTERM (1 s), its SIGKILL and the reaping (5 s) are its own to do."""
_CRASH_WINDOW_S = 600.0
"""Loading a model may take a minute: five failures must fit in."""
_FINAL_CODES = frozenset({int(ExitCode.USAGE), int(ExitCode.BAD_INPUT), int(ExitCode.NO_ENGINE)})
_OF_ANOTHER_SERVICE = frozenset({"NOTIFY_SOCKET", "INVOCATION_ID", "JOURNAL_STREAM", "MAINPID", "WATCHDOG_USEC"})


@dataclass(frozen=True, slots=True)
class ServiceEntry:
    """One service of the file; see the module."""

    name: str
    role: Role | None
    """None for the recorder."""
    env_file: Path
    listen: str | None = None
    argv: tuple[str, ...] | None = None
    stop_timeout: float | None = None


def read_services(path: Path) -> tuple[ServiceEntry, ...]:
    """The services of the file, none where there is no file. Raises `InputError` naming what is wrong with it."""
    try:
        content: Any = json.loads(files.read_bounded(path, _FILE_LIMIT_BYTES))
    except FileNotFoundError:
        return ()
    except OSError as error:
        if error.errno == errno.EFBIG:
            words = f"is larger than {size(_FILE_LIMIT_BYTES)}; it cannot be a list of services"
            raise InputError(f"{path} {words}") from None
        raise InputError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("services"), list):
        raise InputError(f'{path}: must be {{"version": {VERSION}, "services": [...]}}')
    if content.get("version") != VERSION:
        raise InputError(f"{path}: version {content.get('version')!r} is not one this specdash reads ({VERSION})")
    return _entries(content["services"], path)


def write_services(path: Path, entries: Sequence[ServiceEntry]) -> None:
    """Replace the file, whole or not at all, mode 0600. Raises `InputError` for entries that `read_services` would
    not read, and `NotWrittenError`."""
    items = []
    for entry in entries:
        item: dict[str, object] = {
            "name": entry.name,
            "role": str(entry.role or OTHER_ROLE),
            "env_file": str(entry.env_file),
        }
        item |= {"listen": entry.listen} if entry.listen is not None else {}
        item |= {"argv": list(entry.argv)} if entry.argv is not None else {}
        item |= {"stop_timeout": entry.stop_timeout} if entry.stop_timeout is not None else {}
        items.append(item)
    _entries(items, path)
    write_private(path, json.dumps({"version": VERSION, "services": items}, indent=1) + "\n")


def write_private(path: Path, text: str) -> None:
    """Replace a file, mode 0600, on the disk when we return. Raises `NotWrittenError`; the old file is then there."""
    with files.writing(path, NotWrittenError):
        files.save(path, text.encode())


def describe(entry: ServiceEntry, env: Mapping[str, str], before: Service | None = None) -> Service:
    """How to run a service, with what its env file says now.

    Where the env file cannot be read, what it said `before` holds: its own process will name the mistake, and the
    socket that clients wait at must not be lost to it.
    """
    values = _env_values(entry.env_file) if entry.role is not None else None
    patience = _number(_PATIENCE[entry.role], values) if entry.role is not None else 0.0
    stop_timeout = _STOP_SLACK_S + patience if entry.stop_timeout is None else entry.stop_timeout
    if values is None and entry.stop_timeout is None and before is not None:
        stop_timeout = before.stop_timeout
    own = (sys.executable, "-m", "specdash", str(entry.role), "run", "--env-file", str(entry.env_file))
    home = env.get("HOME", "")
    return Service(
        entry.name,
        entry.argv if entry.argv is not None else own,
        {
            # Without PYTHONSAFEPATH, a stray json.py in the working directory would be imported.
            "PYTHONSAFEPATH": "1",
            **{key: value for key, value in env.items() if key not in _OF_ANOTHER_SERVICE},
        },
        cwd=home if home and Path(home).is_dir() else "/",
        log=str(log_file(entry.name, env)),
        restart=Restart.ON_FAILURE,
        stop_timeout=stop_timeout,
        crash_window=_CRASH_WINDOW_S,
        final_codes=_FINAL_CODES if entry.argv is None else frozenset(),
        reload_signal=_RELOAD_SIGNALS[entry.role] if entry.role is not None else None,
        listen=_listen(entry, values, before),
    )


def log_file(name: str, env: Mapping[str, str]) -> Path:
    """Where the output of the service goes."""
    return state_dir(env) / "logs" / f"service-{name}.log"


def _entries(items: Sequence[object], path: Path) -> tuple[ServiceEntry, ...]:
    entries = tuple(_entry(item, f"{path}: service {number}") for number, item in enumerate(items, 1))
    names = [entry.name for entry in entries]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{path}: service {name!r} is there twice")
    return entries


def _entry(item: object, where: str) -> ServiceEntry:
    if not isinstance(item, dict):
        raise InputError(f"{where}: must be an object with name, role and env_file")
    unknown = ", ".join(sorted(set(map(str, item)) - _FIELDS))
    if unknown:
        raise InputError(f"{where}: unknown field {unknown}; known: {', '.join(sorted(_FIELDS))}")
    name, role, env_file = item.get("name"), item.get("role"), item.get("env_file")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(f"{where}: name {name!r}: must be up to 64 letters, digits and any of _ . @ -")
    if role not in (*Role, OTHER_ROLE):
        raise InputError(f"{where}: role {role!r}: must be one of {', '.join((*Role, OTHER_ROLE))}")
    if not isinstance(env_file, str) or not env_file.startswith("/") or "\0" in env_file:
        raise InputError(f"{where}: env_file {env_file!r}: must be an absolute path")
    argv = _argv(item.get("argv"), where)
    known = None if role == OTHER_ROLE else Role(str(role))
    if known is None and (argv is None or item.get("listen") is not None):
        raise InputError(f"{where}: role {role!r}: must have an argv and no listen")
    listen = _checked_listen(item.get("listen"), known, where, own=argv is None)
    stop_timeout = item.get("stop_timeout")
    if stop_timeout is not None and (
        isinstance(stop_timeout, bool) or not isinstance(stop_timeout, (int, float)) or not 0 <= stop_timeout <= 3600
    ):
        raise InputError(f"{where}: stop_timeout {stop_timeout!r}: must be seconds, from 0 to 3600")
    return ServiceEntry(name, known, Path(env_file), listen, argv, stop_timeout)


def _argv(value: object, where: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(entry, str) and "\0" not in entry for entry in value)
    ):
        raise InputError(f"{where}: argv: must be a list of texts, the program first")
    return tuple(value)


def _checked_listen(value: object, role: Role | None, where: str, *, own: bool) -> str | None:
    if value is None:
        return None
    if own and role is Role.BACKEND:
        raise InputError(f"{where}: listen: llama-server opens its own socket; only a proxy can be handed one")
    if not isinstance(value, str) or (value == FROM_ENV and role is not Role.PROXY):
        raise InputError(f"{where}: listen {value!r}: must be HOST:PORT")
    if value != FROM_ENV:
        try:
            host_and_port(value, 1)
        except ValueError:
            raise InputError(f"{where}: listen {value!r}: must be HOST:PORT, or {FROM_ENV}") from None
    return value


def _env_values(path: Path) -> dict[str, str] | None:
    try:
        return read_values(path.read_bytes(), str(path))
    except (OSError, InputError):
        return None


def _listen(entry: ServiceEntry, values: Mapping[str, str] | None, before: Service | None) -> tuple[str, int] | None:
    if entry.listen is None:
        return None
    if entry.listen != FROM_ENV:
        return host_and_port(entry.listen, 1)
    if values is None:
        return before.listen if before is not None else None
    try:
        host, port = (_value(PROXY_KEYS[key], values) for key in ("PROXY_HOST", "PROXY_PORT"))
        return str(host), int(str(port))
    except InputError:
        return before.listen if before is not None else None


def _number(parameter: Parameter, values: Mapping[str, str] | None) -> float:
    try:
        return float(str(_value(parameter, values or {})))
    except (InputError, ValueError):
        return float(str(parameter.default))


def _value(parameter: Parameter, values: Mapping[str, str]) -> object:
    text = values.get(parameter.key, "").strip()
    return parameter.parse(text, parameter.key) if text else parameter.default


# The processes of the supervisor's services on the disk, so that none of a killed supervisor outlives the next one.
#
# The kernel kills them with the supervisor; but a large engine may take a while to end, and holds its port and memory
# until then, and what a service started itself may not be tied to it. Each is known by its pid and its start time.


GONE_S = 30.0
"""How long the next supervisor waits for what was killed before it starts anything all the same."""


def children_file(env: Mapping[str, str]) -> Path:
    """Which processes run for which service."""
    return state_dir(env) / "supervisor-children.json"


class Children:
    """The children of this supervisor, and before that of the one before it. Never fails: whatever cannot be written or
    read is said."""

    def __init__(self, env: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._env = env
        self._say = say
        self._lock = threading.Lock()
        self._known: dict[str, tuple[int, int]] = {}

    def note(self, status: ServiceStatus) -> None:
        """Keep which process a service has now, on the disk, too."""
        began = start_ticks(status.pid) if status.pid is not None else None
        with self._lock:
            before = self._known.pop(status.name, None)
            if status.pid is not None and began is not None:
                self._known[status.name] = status.pid, began
            if self._known.get(status.name) == before:
                return
            text = json.dumps({"version": 1, "boot": _boot_id(), "children": self._known}) + "\n"
            try:
                write_private(children_file(self._env), text)
            except SpecdashError as error:
                self._say(f"{error}; the next supervisor will not know what this one has left")

    def end_left(self) -> None:
        """End what a supervisor before this one has left running, and wait for it."""
        left: list[psutil.Process] = []
        for name, pid, began in self._read():
            found = [process for root in self._roots(pid, began) for process in family(root)]
            if found:
                pids = ", ".join(str(process.pid) for process in found)
                self._say(f"{name}: ending what the supervisor before this one has left, pid {pids}")
            left += found
        if not left:
            return
        import psutil

        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        still = psutil.wait_procs(left, timeout=GONE_S)[1]
        if still:
            self._say(
                f"pid {', '.join(str(process.pid) for process in still)} of the supervisor before has not ended yet"
            )

    def _roots(self, pid: int, began: int) -> list[int]:
        """The service itself and its engine, where they are still there."""
        # An engine has a session of its own, and another parent once its runner is gone.
        engines = [
            backend.pid for backend in live_backends(self._env) if backend.runner_pid == pid and backend.pid != pid
        ]
        return [*([pid] if start_ticks(pid) == began else []), *engines]

    def _read(self) -> list[tuple[str, int, int]]:
        path = children_file(self._env)
        try:
            content = json.loads(path.read_bytes())
            if content["boot"] != _boot_id():
                return []
            return [(str(name), int(pid), int(began)) for name, (pid, began) in content["children"].items()]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self._say(f"{path} cannot be read ({error}); what the supervisor before has left is not known")
            return []


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
