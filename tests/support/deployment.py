"""A backend on the bundled models and a proxy in front of it, in a home of their own, under a real service manager.

The engine is the real one; `misbehaving` chooses one that fails in ways a real one rarely can be made to.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import Struct, field
from msgspec.structs import replace

from specdash.backend import demo
from specdash.backend.env_store import Backups
from specdash.backend.journal import apply_lock, read_records, remove_note
from specdash.backend.launch import free_port
from specdash.collect.discover import admin_token
from specdash.collect.run_records import live_proxies
from specdash.control.change import Apply
from specdash.control.connection import RunnerConnection, runner_of, runners
from specdash.control.deployment import Deployment, Service
from specdash.control.plan import ApplyOptions, plan_apply
from specdash.control.services import systemd, units
from specdash.core.changes import (
    ApplyOutcome,
    ApplyProgress,
    ApplyRecord,
    ApplyStep,
    Role,
    parse_assignments,
)
from specdash.core.env_edit import with_changes
from specdash.core.envfile import parse
from specdash.core.errors import ConflictError, ExitCode, SpecdashError
from specdash.core.paths import applies_file, apply_journal_file, backups_dir, trial_file
from specdash.core.records import RunRecord
from support.asking import ask, healthy
from support.help_engine import SIGN, scripted_engine
from support.points import WITH_POINTS, Points
from support.systemd_user import running_user_manager
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Order = Callable[[str, Role], None]
    Starter = Callable[
        [Path, Mapping[Role, Path], int], contextlib.AbstractContextManager[tuple[dict[str, str], Order]]
    ]

DRAFTS = ".*.specdash-new"
DRAFT_S = 5.0
"""What a writer leaves that is killed before its new version is in place (`system.files`)."""
START_S = 60.0
TESTS = Path(__file__).parents[1]
SOURCES = TESTS.parent / "src"
MANAGER_PARAMETERS = [
    pytest.param("daemon", marks=pytest.mark.engine),
    pytest.param("systemd", marks=[pytest.mark.engine, pytest.mark.systemd]),
]
UNDER_THE_DAEMON = pytest.mark.parametrize("running", MANAGER_PARAMETERS[:1], indirect=True)
SCRIPTED = pytest.param("scripted")
ON_A_SCRIPTED_ENGINE = pytest.mark.parametrize("running", [SCRIPTED], indirect=True)
"""Under the daemon, with a server that starts in a tenth of the time: for what no manager and no engine has part in."""


def sweep(name: str, values: Sequence[Any], *of_each: Any) -> pytest.MarkDecorator:
    """Every value of a parameter on a scripted engine, and on a real one under each manager those that matter to it."""
    return pytest.mark.parametrize(
        ("running", name),
        [
            pytest.param(*manager.values, value, marks=manager.marks)
            for manager, chosen in ((SCRIPTED, values), *((each, of_each) for each in MANAGER_PARAMETERS))
            for value in chosen
        ],
        indirect=["running"],
    )


_NAMES = {Role.BACKEND: "specdash-backend", Role.PROXY: "specdash-proxy"}
_UNIT = re.compile(r"specdash-(\w+\.(?:service|socket))")


class Command(subprocess.Popen[str]):
    """A command that fails the test where it hangs, saying where it stands."""

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:  # noqa: A002
        """As `subprocess` has it."""
        try:
            return super().communicate(input, timeout)
        except subprocess.TimeoutExpired:
            self.send_signal(signal.SIGABRT)
            _, said = super().communicate(timeout=10)
            pytest.fail(f"{self.args!r} hangs after {timeout} s:\n{said}")


class Rig(Struct):
    """A running deployment. `env` leads to it, for functions and for `specdash` as a command."""

    home: Path
    env: dict[str, str]
    deployment: Deployment
    backend_url: str
    proxy_url: str
    order: Order
    """Starts, stops or restarts a service."""
    reports: list[ApplyProgress] = field(default_factory=list)
    good: dict[Role, bytes] = field(default_factory=dict)
    options: ApplyOptions = field(default_factory=ApplyOptions)
    """Those of the apply that was prepared last."""

    def service(self, role: Role) -> Service:
        """The service of a role."""
        found = self.deployment.service(role)
        assert found is not None
        return found

    def file(self, role: Role = Role.BACKEND) -> Path:
        """Its env file."""
        return self.service(role).env_file

    def values(self, role: Role = Role.BACKEND) -> dict[str, str]:
        """What the file says now."""
        return parse(self.file(role).read_text(encoding="utf-8")).values

    @property
    def good_backend(self) -> bytes:
        """The backend's env as the rig began."""
        return self.good[Role.BACKEND]

    def digest(self, role: Role = Role.BACKEND) -> str:
        """The version that the file holds."""
        return hashlib.sha256(self.file(role).read_bytes()).hexdigest()

    def engine(self) -> RunRecord | None:
        """The engine that runs now, without the verdict on its start, which comes later."""
        found = self.service(Role.BACKEND).record()
        return replace(found, start_check=None) if isinstance(found, RunRecord) else None

    def prepare(self, *words: str, **options: Any) -> Apply:
        """An apply that was planned and not begun."""
        plan = plan_apply(self.deployment, parse_assignments(list(words)), env=self.env)
        chosen: dict[str, Any] = {"drain_timeout_s": 10, "health_timeout_s": 30, "settle_s": 0, **options}
        self.reports = []
        self.options = ApplyOptions(**chosen)
        return Apply(plan, self.options, self.reports.append, self.env)

    def apply(self, *words: str, **options: Any) -> ApplyRecord:
        """Apply KEY=VALUE words."""
        return self.prepare(*words, **options).run()

    @property
    def points(self) -> Points:
        """Where the runner waits or dies."""
        return Points(self.home)

    def during(self, point: str, do: Callable[[], object], *words: str, **options: Any) -> ApplyRecord:
        """Apply, and `do` something while the runner waits at a point (`support.points`)."""
        apply = self.prepare(*words, **options)
        return self.run_during(apply, point, do)

    def run_during(self, apply: Apply, point: str, do: Callable[[], object]) -> ApplyRecord:
        """The same with an apply that was prepared."""
        ended: list[ApplyRecord] = []
        thread = threading.Thread(target=lambda: ended.append(apply.run()))
        self.points.pause_at(point)
        thread.start()
        try:
            self.points.wait()
            do()
        finally:
            self.points.go_on()
            thread.join(120)
        return ended[0]

    def cancel(self) -> bool:
        """Ask the runner to cancel what is under way."""
        runner = runner_of(self.file(), self.env)
        assert runner is not None
        with contextlib.closing(RunnerConnection(runner[0])) as connection:
            return bool(connection.ask("cancel")["cancelled"])

    def cancelled_at(self, step: ApplyStep, *words: str) -> ApplyRecord:
        """Apply, and cancel when `step` begins."""
        return self.during(f"{step}:before", self.cancel, *words)

    def status(self) -> dict[str, Any]:
        """What the runner says of itself."""
        return next(status for _, status in runners(self.env))

    def command(self, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """`specdash WORDS` in a process of its own."""
        return subprocess.run(
            [sys.executable, "-m", "specdash", *words],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def start_command(self, *words: str) -> Command:
        """The same, not waited for."""
        return Command(
            [sys.executable, "-m", "specdash", *words],
            env={**self.env, "PYTHONFAULTHANDLER": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            stdin=subprocess.DEVNULL,
        )

    def records(self) -> tuple[ApplyRecord, ...]:
        """Every apply so far."""
        return read_records(applies_file(self.env))

    def backups(self, role: Role = Role.BACKEND) -> list[bytes]:
        """Every kept version."""
        kept = Backups(backups_dir(self.env))
        return [kept.read(role, backup.number) for backup in kept.list(role)]

    def proxy(self, path: str, body: Any = None) -> Any:
        """Ask the proxy."""
        records = live_proxies(self.env) if path.startswith("/admin/") else []
        return ask(self.proxy_url + path, body, key=next(map(admin_token, records), None), timeout=30)

    def ask(self) -> str:
        """One turn through the proxy; its text."""
        body = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "the speculative decoder"}]}
        answer = self.proxy("/v1/messages", body)
        return "".join(block.get("text", "") for block in answer["content"])

    def assert_settled(self, *, version: bytes | None = None) -> None:
        """Nothing of an apply is left: the file is whole and in force, everybody passes, the next apply may come."""
        if version is not None:
            assert self.file().read_bytes() == version
        assert not apply_journal_file(self.env).exists()

        def drafts() -> list[Path]:
            return [*self.home.rglob(DRAFTS), *self.home.rglob(".apply.journal*")]

        # A runner may just be replacing its note, whole, as everything is.
        until(lambda: not drafts(), DRAFT_S, lambda: str(drafts()))
        # The note of a trial goes before the lock does.
        until(self._can_lock, DRAFT_S)
        engine = self.engine()
        assert engine is not None
        assert engine.env_digest == self.digest()
        assert healthy(self.backend_url)
        # A runner that has repaired something holds them until its engine answers.
        until(lambda: self.proxy("/admin/state")["held"] is False, DRAFT_S)
        assert [live_proxy.env_digest for live_proxy in live_proxies(self.env)] == [self.digest(Role.PROXY)]
        assert self.ask()

    def _can_lock(self) -> bool:
        try:
            with apply_lock("test", self.env):
                return True
        except ConflictError:
            return False

    def reset(self) -> None:
        """Back to the settings it began with, whatever a test has left."""
        self.points.go_on()
        remove_note(apply_journal_file(self.env))
        for left in (trial_file(self.env), self.home / SIGN):
            left.unlink(missing_ok=True)
        for draft in self.home.rglob(DRAFTS):
            draft.unlink(missing_ok=True)
        for role, data in self.good.items():
            service = self.service(role)
            current = service.env_file.read_bytes() if service.env_file.exists() else None
            status = service.status()
            if current != data:
                service.env_file.write_bytes(data)
            engine = self.engine()
            backends = [engine.env_digest] if engine is not None else []
            proxies = [live_proxy.env_digest for live_proxy in live_proxies(self.env)]
            running = backends if role is Role.BACKEND else proxies
            if running != [self.digest(role)] or not status.alive:
                self.order("restart", role)
        self.wait_ready()
        with contextlib.suppress(OSError):
            self.proxy("/admin/resume", {})

    def wait_ready(self) -> None:
        """Wait until both answer."""
        deadline = time.monotonic() + START_S
        while not (healthy(self.backend_url) and healthy(self.proxy_url) and self.engine() is not None):
            if time.monotonic() > deadline:
                said = [file.read_text(encoding="utf-8", errors="replace") for file in self.home.glob("*.log")]
                pytest.fail(f"the services did not start: {said}")
            time.sleep(0.02)


@contextlib.contextmanager
def running_deployment(manager: str) -> Iterator[Rig]:
    """Both services under `daemon` or `systemd`, or `scripted`; nothing of them is left afterwards."""
    with tempfile.TemporaryDirectory(prefix="sd-rig-") as name, contextlib.ExitStack() as stack:
        home = Path(name)
        ports = {role: free_port("127.0.0.1") for role in Role}
        files = _env_files(home, ports, small=manager == "scripted")
        starters: dict[str, Starter] = {"scripted": _under_up, "daemon": _under_up, "systemd": _under_systemd}
        start = starters[manager]
        env, order = stack.enter_context(start(home, files, ports[Role.PROXY]))
        env["SPECDASH_SETTLE_TIME"] = "0"
        rig = Rig(
            home,
            env,
            Deployment(Service(Role.BACKEND, files[Role.BACKEND], env), Service(Role.PROXY, files[Role.PROXY], env)),
            f"http://127.0.0.1:{ports[Role.BACKEND]}",
            f"http://127.0.0.1:{ports[Role.PROXY]}",
            order,
        )
        rig.wait_ready()
        rig.good = {role: files[role].read_bytes() for role in Role}
        yield rig


def _env_files(home: Path, ports: Mapping[Role, int], *, small: bool) -> dict[Role, Path]:
    files = {role: home / f"{_NAMES[role]}.env" for role in Role}
    upstream = f"http://127.0.0.1:{ports[Role.BACKEND]}"
    text = (
        demo.env_text(
            port=ports[Role.BACKEND], log=home / "server.log", spec_types=("draft-simple",), engine="xllamacpp"
        )
        # Counters and logs are those of the test's own requests.
        + "# kept by every apply\nLLAMA_API_KEY=secret-of-the-rig\nLLAMA_START_BASELINE=0\n"
    )
    if small:
        text = with_changes(parse(text), scripted_engine(home))
    files[Role.BACKEND].write_text(text, encoding="utf-8")
    files[Role.PROXY].write_text(
        demo.proxy_env_text(port=ports[Role.PROXY], upstream=upstream, events=home / "events.jsonl")
        + "PROXY_UPSTREAM_API_KEY=secret-of-the-rig\n",
        encoding="utf-8",
    )
    for file in files.values():
        file.chmod(0o600)
    return files


def _clean(home: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "SPECDASH_", "LLAMA_", "PROXY_"))}
    return {**kept, "HOME": str(home)}


@contextlib.contextmanager
def _under_up(home: Path, files: Mapping[Role, Path], proxy_port: int) -> Iterator[tuple[dict[str, str], Order]]:
    """A `specdash up` for each, so that one can be stopped."""
    env = {**_clean(home), "PYTHONPATH": WITH_POINTS}
    running: dict[Role, subprocess.Popen[bytes]] = {}

    def order(action: str, role: Role) -> None:
        if action != "start" and (process := running.pop(role, None)) is not None:
            process.terminate()
            process.wait(60)
        if action != "stop" and role not in running:
            command = [sys.executable, "-m", "specdash", "up", str(role), f"--{role}-env", str(files[role])]
            with (home / f"up-{role}.log").open("ab") as log:
                running[role] = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    try:
        for role in Role:
            order("start", role)
        yield env, order
    finally:
        for role in reversed(Role):
            order("stop", role)


@contextlib.contextmanager
def _under_systemd(home: Path, files: Mapping[Role, Path], proxy_port: int) -> Iterator[tuple[dict[str, str], Order]]:
    with running_user_manager(home) as user:
        env = {**_clean(home), **user.environment}
        passed = {key: value for key, value in user.environment.items() if key != "XDG_RUNTIME_DIR"}
        passed["PYTHONPATH"] = WITH_POINTS
        # All managers of this machine share one tree of cgroups: units of one name would be killed with each other.
        mark = f"sd-{os.getpid()}-{proxy_port}"
        values = {Role.PROXY: parse(files[Role.PROXY].read_text(encoding="utf-8")).values}
        for name, text in units.unit_texts(env, files, values).items():
            # A suite restarts more often than an operator would be allowed to.
            own = _UNIT.sub(rf"{mark}-\1", text.replace("StartLimitBurst=5", "StartLimitBurst=1000"))
            extra = "".join(f'Environment="{key}={value}"\n' for key, value in passed.items())
            own = own.replace("UMask=0077\n", f"UMask=0077\n{extra}")
            (user.units / name.replace("specdash-", f"{mark}-")).write_text(own, encoding="utf-8")
        (home / ".local/state/specdash/logs").mkdir(parents=True, exist_ok=True)
        user.systemctl("daemon-reload")
        does = {"start": systemd.start, "stop": systemd.stop, "restart": systemd.restart}

        def order(action: str, role: Role) -> None:
            does[action](f"{mark}-{role}.service", env)

        try:
            for role in Role:
                order("start", role)
            yield env, order
        finally:
            for role in reversed(Role):
                with contextlib.suppress(SpecdashError):
                    order("stop", role)


def misbehaving(directory: Path, way: str) -> list[str]:
    """KEY=VALUE words that choose the scripted engine, and its way."""
    return [f"{key}={value}" for key, value in scripted_engine(directory, way).items()]


def outcomes(records: tuple[ApplyRecord, ...]) -> list[ApplyOutcome]:
    """How they ended."""
    return [record.outcome for record in records]


def assert_each_end_has_its_code_and_json(rig: Rig, command: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Applied, unchanged, refused and rolled back, by `command`: `Rig.command`, or the same from another machine."""
    cases: list[tuple[list[str], ExitCode, str]] = [
        (["LLAMA_DRAFT_MAX=8"], ExitCode.OK, "applied"),
        (["LLAMA_DRAFT_MAX=8"], ExitCode.OK, "unchanged"),
        (["LLAMA_DRAFT_MAX=0"], ExitCode.REFUSED, "refused"),
        (misbehaving(rig.home, "exits"), ExitCode.ROLLED_BACK, "rolled back"),
    ]
    for words, code, outcome in cases:
        done = command("apply", "--yes", "--json", *words)
        assert done.returncode == code, done.stderr
        assert json.loads(done.stdout)["outcome"] == outcome
        assert done.stdout.count("\n") == 1
    rig.assert_settled()
