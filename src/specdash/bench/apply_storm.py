"""The apply storm: one apply after the other, good, bad and crashing ones mixed, while clients never stop asking.

It passes when no client saw an error, every apply ended as it must, and the env files are, byte for byte, those of the
last good apply.
"""

from __future__ import annotations

import os
import random
import stat
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from specdash.bench.load.messages import Clients, RequestSeen
from specdash.core.changes import ApplyOutcome, Role
from specdash.core.errors import RefusedError, ServiceError, SpecdashError
from specdash.system.data import dataclass, json_of
from specdash.system.http import status_of
from specdash.system.stats import median

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from specdash.control.apply.apply import ApplyOptions
    from specdash.control.services.services import Deployment, ServiceManager
    from specdash.core.changes import WantedValues


# What an apply storm applies: changes that work, that preflight must refuse, and that only an engine betrays.

HEALTH_TIMEOUT_S = 30.0
_BROKEN_TEMPLATE = "{% for message in messages %}{{ message.content "

_ENDS_AT_ONCE = """#!/bin/sh
# A llama-server whose library is missing: it tells its version and its flags, and cannot serve.
case "$1" in
  --version) echo 'version: 11434 (storm)'; exit 0 ;;
  --help) cat <<'HELP'
%s
HELP
  exit 0 ;;
esac
echo '0.00.001.000 E srv  llama_server: error while loading shared libraries: libcuda.so.1' >&2
exit 127
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One apply: what it is, what it changes, and how it must end."""

    name: str
    changes: WantedValues
    outcome: ApplyOutcome


def broken_binary(directory: Path, flags: list[str]) -> Path:
    """A llama-server that ends as soon as it is started; preflight cannot know."""
    path = directory / "llama-server-without-libraries"
    listed = "\n".join(f"{flag} VALUE   {flag.strip('-')}" for flag in flags)
    path.write_text(_ENDS_AT_ONCE % listed, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def cases(seed: int, broken: Path, foreign_port: int) -> Iterator[Case]:
    """Cases without end: of each four in a row two work, one is refused, and one fails once the engine runs."""
    random_ = random.Random(seed)  # noqa: S311 - a reproducible mix, not a secret
    good, refused, crashing = _good(random_), _refused(foreign_port), _crashing(broken)
    while True:
        four = [next(good), next(good), next(refused), next(crashing)]
        random_.shuffle(four)
        yield from four


def _backend(**values: str | None) -> WantedValues:
    return {Role.BACKEND: values}


def _good(random_: random.Random) -> Iterator[Case]:
    while True:
        longest = str(random_.randint(2, 16))
        yield Case(
            "another draft length", _backend(LLAMA_DRAFT_MAX=longest, LLAMA_DRAFT_MIN=None), ApplyOutcome.APPLIED
        )
        least = f"{random_.uniform(0.1, 0.9):.3f}"
        yield Case("another threshold", _backend(LLAMA_DRAFT_P_MIN=least), ApplyOutcome.APPLIED)
        chain = random_.choice(["draft-simple,ngram-mod", "draft-simple,ngram-simple", "draft-simple"])
        yield Case("another chain", _backend(LLAMA_SPEC_TYPE=chain, LLAMA_DRAFT_MAX=longest), ApplyOutcome.APPLIED)
        window = str(random_.randint(4, 60))
        yield Case("a proxy setting", {Role.PROXY: {"PROXY_LOOP_WINDOW": window}}, ApplyOutcome.APPLIED)
        connections = str(random_.randint(32, 128))
        both = {Role.BACKEND: {"LLAMA_DRAFT_MAX": longest}, Role.PROXY: {"PROXY_MAX_CONNECTIONS": connections}}
        yield Case("both services", both, ApplyOutcome.APPLIED)


def _refused(foreign_port: int) -> Iterator[Case]:
    while True:
        for changes in (
            _backend(LLAMA_DRAFT_MAX="0"),
            _backend(LLAMA_DRAFT_MAX="4", LLAMA_DRAFT_MIN="9"),
            _backend(LLAMA_MODEL="/no/such/model.gguf"),
            _backend(LLAMA_SPEC_TYPE="draft-simpel"),
            _backend(LLAMA_PORT=str(foreign_port)),
        ):
            yield Case("refused by preflight", changes, ApplyOutcome.REFUSED)


def _crashing(broken: Path) -> Iterator[Case]:
    while True:
        yield Case("a chat template that does not parse", _backend(LLAMA_ARG_CHAT_TEMPLATE=_BROKEN_TEMPLATE),
                   ApplyOutcome.ROLLED_BACK)  # fmt: skip
        yield Case("a binary that ends at once", _backend(LLAMA_BIN=str(broken), LLAMA_ENGINE="llama-server"),
                   ApplyOutcome.ROLLED_BACK)  # fmt: skip


# A backend on the bundled models and a proxy in front of it, in a directory of their own, under either manager.

START_S = 60.0
_PREFIX = "specdash-storm"


@dataclass(frozen=True, slots=True)
class StormServices:
    """What a storm needs: the services, the proxy's address, and the environment that says where their state is."""

    deployment: Deployment
    proxy_url: str
    env: dict[str, str]


@contextmanager
def storm_services(manager: str, directory: Path, engine: str) -> Iterator[StormServices]:
    """Start both services under `systemd` or `supervisor`; they are gone afterwards. Raises `SpecdashError`."""
    from specdash.backend import demo
    from specdash.backend.launch import free_port

    backend_port, proxy_port = free_port("127.0.0.1"), free_port("127.0.0.1")
    files = {Role.BACKEND: directory / "backend.env", Role.PROXY: directory / "proxy.env"}
    files[Role.BACKEND].write_text(
        demo.env_text(port=backend_port, log=directory / "server.log", spec_types=(demo.DRAFT_TYPE,), engine=engine),
        encoding="utf-8",
    )
    files[Role.PROXY].write_text(
        demo.proxy_env_text(
            port=proxy_port, upstream=f"http://127.0.0.1:{backend_port}", events=directory / "events.jsonl"
        ),
        encoding="utf-8",
    )
    for file in files.values():
        file.chmod(0o600)
    env = {"XDG_STATE_HOME": str(directory), "XDG_CONFIG_HOME": str(directory), "XDG_CACHE_HOME": str(directory)}
    under = _under_systemd if manager == "systemd" else _under_supervisor
    with under(files, env, proxy_port) as (running, names):
        proxy_url = f"http://127.0.0.1:{proxy_port}"
        _wait(
            lambda: status_of(f"http://127.0.0.1:{backend_port}", "/health", 2.0) == 200,
            "backend",
            running,
            names[Role.BACKEND],
        )
        _wait(lambda: status_of(proxy_url, "/health", 2.0) == 200, "proxy", running, names[Role.PROXY])
        yield StormServices(_deployment(running, names, files), proxy_url, {**os.environ, **env})


@contextmanager
def _under_supervisor(
    files: Mapping[Role, Path], env: Mapping[str, str], proxy_port: int
) -> Iterator[tuple[ServiceManager, dict[Role, str]]]:
    import signal

    from specdash.control.services.supervisor import Service, SupervisedManager, Supervisor

    names = {role: f"{_PREFIX}-{role}" for role in Role}
    with Supervisor() as supervisor:
        for role, file in files.items():
            supervisor.add(
                Service(
                    names[role],
                    _command(role, file),
                    {**os.environ, **env},
                    log=str(file.with_suffix(".out")),
                    reload_signal=signal.SIGUSR1 if role is Role.BACKEND else signal.SIGHUP,
                    listen=None if role is Role.BACKEND else ("127.0.0.1", proxy_port),
                    stop_timeout=40.0,
                )
            )
            supervisor.start(names[role])
        yield SupervisedManager(supervisor), names


@contextmanager
def _under_systemd(
    files: Mapping[Role, Path], env: Mapping[str, str], proxy_port: int
) -> Iterator[tuple[ServiceManager, dict[Role, str]]]:
    """Units in the runtime directory, which a reboot empties, under names of their own."""
    from pathlib import Path

    from specdash.control.services.systemd import Systemctl, SystemdManager, available
    from specdash.control.services.units import UnitFacts, unit_texts

    reason = available(os.environ)
    if reason is not None:
        raise ServiceError(f"systemd's user manager cannot be used: {reason}; try --manager supervisor")
    facts = UnitFacts(
        python=sys.executable,
        backend_env=str(files[Role.BACKEND]),
        proxy_env=str(files[Role.PROXY]),
        listen=(f"127.0.0.1:{proxy_port}",),
        environment=env,
        log_dir=str(files[Role.BACKEND].parent),
    )
    folder = Path(os.environ["XDG_RUNTIME_DIR"]) / "systemd" / "user"
    folder.mkdir(parents=True, exist_ok=True)
    manager = SystemdManager(os.environ)
    texts = {_renamed(name): _renamed(text) for name, text in unit_texts(facts).items()}
    names = {role: f"{_PREFIX}-{role}.service" for role in Role}
    socket = f"{_PREFIX}-proxy.socket"
    try:
        for name, text in texts.items():
            # Ten restarts a minute are an incident anywhere else; here they are the point.
            (folder / name).write_text(text.replace("StartLimitBurst=5", "StartLimitBurst=1000"), encoding="utf-8")
        Systemctl(os.environ).run("daemon-reload")
        for name in (names[Role.BACKEND], socket, names[Role.PROXY]):
            manager.start(name)
        yield manager, names
    finally:
        for name in (socket, names[Role.PROXY], names[Role.BACKEND]):
            manager.stop(name)
        for name in texts:
            (folder / name).unlink(missing_ok=True)
        Systemctl(os.environ).run("daemon-reload")


def _renamed(text: str) -> str:
    for role in Role:
        text = text.replace(f"specdash-{role}", f"{_PREFIX}-{role}")
    return text


def _command(role: Role, file: Path) -> tuple[str, ...]:
    return (sys.executable, "-m", "specdash", str(role), "run", "--env-file", str(file))


def _deployment(manager: ServiceManager, names: Mapping[Role, str], files: Mapping[Role, Path]) -> Deployment:
    from specdash.control.services.services import Deployment, ManagedService

    backend, proxy = (
        ManagedService(role, names[role], manager, files[role], reloads=True, origin="storm", socket=role is Role.PROXY)
        for role in Role
    )
    return Deployment(backend, proxy)


def _wait(done: Callable[[], bool], what: str, manager: ServiceManager, name: str) -> None:
    deadline = time.monotonic() + START_S
    while not done():
        if time.monotonic() > deadline:
            said = "; ".join(manager.log_tail(name, 3)) or manager.status(name).detail
            raise SpecdashError(f"the {what} did not start within {START_S:g} s: {said}")
        time.sleep(0.05)


WARM_UP_S = 1.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One apply. `fault` says in one line how it differs from what it must be, None when it does not; times are
    seconds."""

    number: int
    name: str
    outcome: ApplyOutcome | None
    duration_s: float
    downtime_s: float | None = None
    engine_load_s: float | None = None
    failed_step: str | None = None
    fault: str | None = None

    @property
    def overhead_s(self) -> float | None:
        """Downtime beyond what the engine itself needed to load."""
        if self.downtime_s is None or self.engine_load_s is None:
            return None
        return self.downtime_s - self.engine_load_s


@dataclass(frozen=True, slots=True)
class StormReport:
    manager: str
    engine: str
    attempts: tuple[Attempt, ...]
    requests: tuple[RequestSeen, ...]

    @property
    def errors(self) -> tuple[RequestSeen, ...]:
        return tuple(request for request in self.requests if request.error is not None)

    @property
    def passed(self) -> bool:
        """Whether nothing at all went wrong."""
        return bool(self.requests) and not self.errors and all(attempt.fault is None for attempt in self.attempts)

    def of(self, outcome: ApplyOutcome) -> tuple[Attempt, ...]:
        """The attempts that ended so."""
        return tuple(attempt for attempt in self.attempts if attempt.outcome is outcome)

    def as_json(self) -> dict[str, Any]:
        applied = self.of(ApplyOutcome.APPLIED)
        swaps = [attempt for attempt in applied if attempt.downtime_s is not None]
        return {
            **json_of(self, "passed manager engine"),
            "applies": len(self.attempts),
            "outcomes": {str(kind): len(self.of(kind)) for kind in ApplyOutcome},
            "requests": len(self.requests),
            "errors": [json_of(error, "way at error") for error in self.errors],
            **{name: _middle_and_most(swaps, name) for name in ("downtime_s", "engine_load_s", "overhead_s")},
            "longest_request_s": max((request.duration_s for request in self.requests), default=None),
            "attempts": [json_of(attempt, _ATTEMPT) for attempt in self.attempts],
        }


def _middle_and_most(swaps: Sequence[Attempt], name: str) -> dict[str, float | None]:
    known = [value for swap in swaps if (value := getattr(swap, name)) is not None]
    return {"p50": median(known), "max": max(known, default=None)}


_ATTEMPT = "number case=name outcome failed_step duration_s downtime_s engine_load_s fault"


def storm(
    deployment: Deployment,
    proxy_url: str,
    cases: Iterator[Case],
    applies: int,
    clients: int,
    options: ApplyOptions,
    env: Mapping[str, str],
    *,
    engine: str = "",
    on_attempt: Callable[[Attempt], None] | None = None,
) -> StormReport:
    """Apply `applies` cases in a row while `clients` clients ask through the proxy at `proxy_url`."""
    attempts: list[Attempt] = []
    with Clients(proxy_url, clients) as load:
        time.sleep(WARM_UP_S)
        for number in range(1, applies + 1):
            attempts.append(_attempt(number, next(cases), deployment, options, env))
            if on_attempt is not None:
                on_attempt(attempts[-1])
        time.sleep(WARM_UP_S)
    manager = deployment.backend.manager.kind if deployment.backend is not None else ""
    return StormReport(manager, engine, tuple(attempts), tuple(load.seen))


def _attempt(number: int, case: Case, deployment: Deployment, options: ApplyOptions, env: Mapping[str, str]) -> Attempt:
    from specdash.control.apply.apply import Apply, plan_apply

    before, began = _files(deployment), time.perf_counter()
    expected, reason = before, ""
    outcome, more = ApplyOutcome.REFUSED, dict[str, Any]()
    try:
        plan = plan_apply(deployment, case.changes, env=env)
        if plan.empty:
            return Attempt(number, f"{case.name} (as it is)", case.outcome, time.perf_counter() - began)
        record = Apply(plan, options, lambda _: None, env).run()
    except RefusedError:
        pass
    except SpecdashError as error:
        return Attempt(number, case.name, None, time.perf_counter() - began, fault=str(error))
    else:
        outcome, reason = record.outcome, record.reason
        if outcome is ApplyOutcome.APPLIED:
            expected = before | {edit.role: edit.new for edit in plan.edits}
        failed_step = str(record.failed_step) if record.failed_step else None
        load_s = record.step_seconds.get("engine load")
        more = {"downtime_s": record.downtime_s, "engine_load_s": load_s, "failed_step": failed_step}
    took = time.perf_counter() - began
    fault = None
    if outcome is not case.outcome:
        fault = f"ended {outcome}, must be {case.outcome}: {reason}"
    elif _files(deployment) != expected:
        fault = f"{outcome}, and the env file is not what it must be"
    return Attempt(number, case.name, outcome, took, **more, fault=fault)


def _files(deployment: Deployment) -> dict[Role, bytes]:
    services = ((role, deployment.service(role)) for role in Role)
    return {role: service.env_file.read_bytes() for role, service in services if service is not None}
