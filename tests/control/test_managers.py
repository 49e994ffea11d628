"""What every service manager promises, held against systemd and the built-in supervisor, asked through its daemon."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from specdash.control.services.services import ServiceState
from specdash.control.services.systemd import SystemdManager
from specdash.core.errors import ServiceError
from support.supervised import gone, running_daemon
from support.systemd_user import running_user_manager

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from specdash.control.services.services import ServiceManager, ServiceStatus

    Adder = Callable[[str, Path], None]

PATIENCE_S = 20.0
NUMBERS = itertools.count(1)
STOP_TIMEOUT_S = 0.4
PROGRAM = """
import signal, sys, time
how = open(sys.argv[1]).read()
def reloaded(*_): print("reloaded", flush=True)
if "stubborn" in how:
    signal.signal(signal.SIGTERM, lambda *_: print("no", flush=True))
if "crash" in how:
    print("first line", flush=True)
    print("no such model", flush=True)
    sys.exit(7)
if "end" in how:
    sys.exit(0)
time.sleep(0.2)
signal.signal(signal.SIGUSR1, reloaded)
print("up", flush=True)
while True:
    time.sleep(60)
"""


@dataclass(frozen=True, slots=True)
class Rig:
    """A service of a manager, and a file that says how the service behaves when it is started next."""

    manager: ServiceManager
    name: str
    how: Path

    def behave(self, how: str) -> None:
        """From the next start on: `run`, `crash`, `end` or `stubborn`."""
        self.how.write_text(how, encoding="utf-8")

    def until(self, true: Callable[[ServiceStatus], bool]) -> ServiceStatus:
        """The first status of which that is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not true(status := self.manager.status(self.name)):
            assert time.monotonic() < deadline, f"waited too long: {status}"
            time.sleep(0.01)
        return status

    def running(self) -> int:
        """Start it; its pid once it says that it is up."""
        before = self.said("up")
        self.manager.start(self.name)
        self.until(lambda _: self.said("up") > before)
        pid = self.until(lambda status: status.state is ServiceState.RUNNING).pid
        assert pid is not None
        return pid

    def said(self, line: str) -> int:
        """How often the service wrote that line."""
        return self.manager.log_tail(self.name, 200).count(line)


def command(directory: Path) -> list[str]:
    (directory / "how").write_text("run", encoding="utf-8")
    (directory / "program.py").write_text(PROGRAM, encoding="utf-8")
    return [sys.executable, "-I", "-S", str(directory / "program.py"), str(directory / "how")]


@contextlib.contextmanager
def on_systemd(home: Path) -> Iterator[tuple[ServiceManager, Adder]]:
    with running_user_manager(home) as manager:

        def add(name: str, directory: Path) -> None:
            unit = (
                "[Unit]\nStartLimitIntervalSec=60\nStartLimitBurst=4\n[Service]\n"
                f"ExecStart={' '.join(command(directory))}\nExecReload=/bin/kill -USR1 $MAINPID\n"
                f"Restart=on-failure\nRestartSec=0.2\nTimeoutStopSec={STOP_TIMEOUT_S}\nKillMode=mixed\n"
                f"StandardOutput=append:{directory}/log\nStandardError=append:{directory}/log\n"
            )
            (manager.units / name).write_text(unit, encoding="utf-8")
            manager.systemctl("daemon-reload")

        yield SystemdManager({**os.environ, **manager.environment}), add


@contextlib.contextmanager
def in_a_daemon(home: Path) -> Iterator[tuple[ServiceManager, Adder]]:
    with running_daemon() as daemon:

        def add(name: str, directory: Path) -> None:
            daemon.add(name, command(directory), stop_timeout=STOP_TIMEOUT_S)

        yield daemon.client, add


MANAGERS = {"systemd": on_systemd, "daemon": in_a_daemon}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("systemd", marks=pytest.mark.systemd),
        pytest.param("daemon", marks=pytest.mark.slow),
    ],
)
def managing(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServiceManager, Adder]]:
    with MANAGERS[request.param](tmp_path_factory.mktemp("home")) as manager:
        yield manager


@pytest.fixture
def rig(managing: tuple[ServiceManager, Adder], tmp_path: Path) -> Iterator[Rig]:
    """A service that nobody has started yet."""
    manager, add = managing
    # All managers of this machine share one tree of cgroups: units of one name would be killed with each other.
    name = f"sd-{os.getpid()}-{next(NUMBERS)}.service"
    add(name, tmp_path)
    yield Rig(manager, name, tmp_path / "how")
    manager.stop(name)


def test_a_service_that_was_never_started_is_stopped_and_has_said_nothing(rig: Rig) -> None:
    status = rig.manager.status(rig.name)
    assert (status.name, status.state, status.pid, status.restarts) == (rig.name, ServiceState.STOPPED, None, 0)
    assert (status.exit_code, status.detail) == (None, "")
    assert rig.manager.log_tail(rig.name) == ()


def test_a_service_nobody_knows_is_missing_and_every_order_for_it_refused(rig: Rig) -> None:
    name = "nobody.service"
    status = rig.manager.status(name)
    assert (status.state, status.pid, status.alive) == (ServiceState.MISSING, None, False)
    for order in (rig.manager.start, rig.manager.stop, rig.manager.restart, rig.manager.reload):
        with pytest.raises(ServiceError, match=name) as error:
            order(name)
        assert "\n" not in str(error.value)


def test_start_returns_with_a_process_that_runs(rig: Rig) -> None:
    rig.manager.start(rig.name)
    status = rig.manager.status(rig.name)
    assert status.alive
    assert status.pid is not None
    assert not gone(status.pid)
    status = rig.until(lambda status: status.state is ServiceState.RUNNING)
    assert status.since is not None
    assert abs(status.since - time.time()) < PATIENCE_S
    assert (status.restarts, status.exit_code) == (0, None)


def test_starting_a_running_service_leaves_it_alone(rig: Rig) -> None:
    pid = rig.running()
    rig.manager.start(rig.name)
    assert rig.manager.status(rig.name).pid == pid


def test_stop_returns_when_the_process_is_gone(rig: Rig) -> None:
    pid = rig.running()
    rig.manager.stop(rig.name)
    assert gone(pid)
    status = rig.manager.status(rig.name)
    assert (status.state, status.pid) == (ServiceState.STOPPED, None)
    rig.manager.stop(rig.name)
    assert rig.manager.status(rig.name).state is ServiceState.STOPPED


def test_restart_returns_when_the_old_process_is_gone_and_a_new_one_runs(rig: Rig) -> None:
    pid = rig.running()
    rig.manager.restart(rig.name)
    status = rig.manager.status(rig.name)
    assert gone(pid)
    assert status.alive
    assert status.pid not in (None, pid)
    assert status.restarts == 0


def test_restart_of_a_stopped_service_starts_it(rig: Rig) -> None:
    rig.manager.restart(rig.name)
    assert rig.manager.status(rig.name).alive


def test_a_process_that_was_killed_comes_back_and_is_counted(rig: Rig) -> None:
    pid = rig.running()
    os.kill(pid, signal.SIGKILL)
    status = rig.until(lambda status: status.state is ServiceState.RUNNING and status.pid != pid)
    assert status.restarts == 1
    rig.manager.restart(rig.name)
    assert rig.manager.status(rig.name).restarts == 0


@pytest.mark.parametrize("order", ["start", "restart"])
def test_a_crash_loop_waits_with_the_reason_fails_with_its_last_words_and_ends_once_it_is_mended(
    rig: Rig, order: str
) -> None:
    rig.behave("crash")
    with contextlib.suppress(ServiceError):
        rig.manager.start(rig.name)
    status = rig.until(lambda status: status.state is ServiceState.WAITING)
    assert (status.alive, status.exit_code) == (True, 7)
    assert "exit code 7" in status.detail
    status = rig.until(lambda status: status.state is ServiceState.FAILED)
    assert (status.exit_code, status.pid, status.alive) == (7, None, False)
    assert "exit code 7" in status.detail
    assert status.restarts >= 3
    assert rig.manager.log_tail(rig.name, 2) == ("first line", "no such model")
    assert rig.manager.log_tail(rig.name, 1) == ("no such model",)
    rig.behave("run")
    getattr(rig.manager, order)(rig.name)
    status = rig.until(lambda status: status.state is ServiceState.RUNNING)
    assert (status.restarts, status.detail) == (0, "")


def test_a_failed_service_that_is_stopped_counts_as_stopped(rig: Rig) -> None:
    rig.behave("crash")
    with contextlib.suppress(ServiceError):
        rig.manager.start(rig.name)
    rig.until(lambda status: status.state in (ServiceState.FAILED, ServiceState.WAITING))
    rig.manager.stop(rig.name)
    assert rig.manager.status(rig.name).state is ServiceState.STOPPED


def test_a_service_that_ended_well_is_stopped_and_not_started_again(rig: Rig) -> None:
    rig.behave("end")
    rig.manager.start(rig.name)
    status = rig.until(lambda status: status.state is ServiceState.STOPPED)
    assert (status.detail, status.restarts) == ("", 0)


def test_reload_reaches_the_process(rig: Rig) -> None:
    pid = rig.running()
    rig.manager.reload(rig.name)
    rig.until(lambda _: rig.said("reloaded") == 1)
    assert rig.manager.status(rig.name).pid == pid


def test_reload_right_after_a_start_does_not_kill_the_process(rig: Rig) -> None:
    rig.manager.start(rig.name)
    pid = rig.manager.status(rig.name).pid
    rig.manager.reload(rig.name)
    rig.until(lambda _: rig.said("reloaded") == 1)
    assert rig.manager.status(rig.name).pid == pid


def test_reload_of_a_service_that_does_not_run_is_refused(rig: Rig) -> None:
    with pytest.raises(ServiceError, match=rig.name):
        rig.manager.reload(rig.name)
    assert rig.manager.status(rig.name).state is ServiceState.STOPPED


@pytest.mark.parametrize("order", ["stop", "restart"])
def test_a_process_that_ignores_sigterm_is_killed(rig: Rig, order: str) -> None:
    rig.behave("stubborn")
    pid = rig.running()
    rig.behave("run")
    getattr(rig.manager, order)(rig.name)
    assert gone(pid)
    status = rig.manager.status(rig.name)
    assert status.state is ServiceState.STOPPED if order == "stop" else status.alive


def test_it_may_be_asked_from_any_thread(rig: Rig) -> None:
    rig.running()
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            for _ in range(5):
                rig.manager.status(rig.name)
                rig.manager.log_tail(rig.name)
        except BaseException as error:  # noqa: BLE001 - a thread's error must reach the test
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    rig.manager.restart(rig.name)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert errors == []
    assert rig.manager.status(rig.name).alive
