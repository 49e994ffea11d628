"""systemd's user manager in our hands: what it says, and what is said when it will not, cannot, or is not there."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
import pytest

from specdash.control.services import systemd
from specdash.control.services import systemd as systemctl
from specdash.control.services.services import ServiceState
from specdash.control.services.systemd import SystemdManager, available, parse_show, seconds, status_of
from specdash.core.errors import ServiceError
from specdash.system.processes import is_alive
from support.systemd_user import running_user_manager

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from support.systemd_user import UserManager

SLEEP = f"ExecStart={shutil.which('sleep')} 1000\n"
STUBBORN = f"""ExecStart={sys.executable} -I -S -c "import signal,time;signal.signal(15,lambda*_:0);\
print('up',flush=True);[time.sleep(9) for _ in range(99)]"\n"""


@dataclass(frozen=True, slots=True)
class Rig:
    user: UserManager
    directory: Path

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, **self.user.environment}

    @property
    def manager(self) -> SystemdManager:
        return SystemdManager(self.env)

    def unit(self, name: str, service: str, unit: str = "") -> str:
        """Make a unit known that writes to the file `log`; its name."""
        log = self.directory / "log"
        output = f"StandardOutput=append:{log}\nStandardError=inherit\n"
        text = f"[Unit]\n{unit}\n[Service]\n{output}{service}"
        (self.user.units / name).write_text(text, encoding="utf-8")
        self.user.systemctl("daemon-reload")
        return name

    def until(self, name: str, state: ServiceState) -> None:
        deadline = time.monotonic() + 20
        while (status := self.manager.status(name)).state is not state:
            assert time.monotonic() < deadline, status
            time.sleep(0.01)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with running_user_manager(tmp_path / "home") as user:
        yield Rig(user, tmp_path)


def facts(**more: str) -> Mapping[str, str]:
    return {"LoadState": "loaded", "ActiveState": "inactive", "SubState": "dead", "Result": "success", **more}


class TestStatus:
    @pytest.mark.parametrize(
        ("active", "sub", "state"),
        [
            ("active", "running", ServiceState.RUNNING),
            ("reloading", "reload", ServiceState.RUNNING),
            ("activating", "start", ServiceState.STARTING),
            ("activating", "auto-restart", ServiceState.WAITING),
            ("activating", "auto-restart-queued", ServiceState.WAITING),
            ("deactivating", "stop-sigterm", ServiceState.STOPPING),
            ("inactive", "dead", ServiceState.STOPPED),
            ("failed", "failed", ServiceState.FAILED),
            ("maintenance", "dead", ServiceState.STOPPED),
        ],
    )
    def test_every_state_of_systemd_has_one_of_ours(self, active: str, sub: str, state: ServiceState) -> None:
        assert status_of("a", facts(ActiveState=active, SubState=sub)).state is state

    @pytest.mark.parametrize(
        ("more", "detail", "code"),
        [
            ({"Result": "exit-code", "ExecMainCode": "1", "ExecMainStatus": "7"}, "exit code 7", 7),
            ({"Result": "signal", "ExecMainCode": "2", "ExecMainStatus": "9"}, "signal SIGKILL", -9),
            ({"Result": "core-dump", "ExecMainCode": "3", "ExecMainStatus": "6"}, "signal SIGABRT", -6),
            ({"Result": "oom-kill", "ExecMainCode": "2", "ExecMainStatus": "9"}, "was killed: out of memory", -9),
            (
                {"Result": "exit-code", "ExecMainCode": "1", "ExecMainStatus": "203"},
                "exit code 203 (its program cannot be run)",
                203,
            ),
            ({"Result": "start-limit-hit", "ExecMainCode": "1", "ExecMainStatus": "3"}, "exit code 3", 3),
            ({"Result": "timeout", "ExecMainCode": "2", "ExecMainStatus": "15"}, "did not start or stop in time", -15),
            ({"Result": "resources"}, "systemd could not start it (a file or limit is missing)", None),
        ],
    )
    def test_a_failure_is_said_in_words(self, more: dict[str, str], detail: str, code: int | None) -> None:
        status = status_of("a", facts(ActiveState="failed", **more))
        assert (status.state, status.detail, status.exit_code) == (ServiceState.FAILED, detail, code)

    def test_a_running_service_has_no_exit_code_even_when_an_earlier_run_failed(self) -> None:
        more = {"ExecMainCode": "1", "ExecMainStatus": "7", "Result": "success", "MainPID": "12", "NRestarts": "2"}
        status = status_of("a", facts(ActiveState="active", SubState="running", **more))
        assert (status.pid, status.exit_code, status.restarts, status.detail) == (12, None, 2, "")

    def test_a_unit_whose_file_was_removed_while_it_runs_is_no_missing_one(self) -> None:
        more = {"LoadState": "not-found", "ActiveState": "active", "SubState": "running"}
        assert status_of("a", facts(**more)).state is ServiceState.RUNNING

    def test_a_unit_that_cannot_be_loaded_says_why(self) -> None:
        said = 'org.freedesktop.systemd1.BadUnitSetting "Unit a.service has a bad unit file setting."'
        status = status_of("a.service", facts(LoadState="bad-setting", LoadError=said))
        assert status.state is ServiceState.FAILED
        assert status.detail == "Unit a.service has a bad unit file setting."

    @pytest.mark.parametrize(
        ("span", "expected"),
        [
            ("1min 30s", 90),
            ("500ms", 0.5),
            ("2s", 2),
            ("1h", 3600),
            ("1min 2.5s", 62.5),
            ("infinity", None),
            ("", None),
        ],
    )
    def test_time_spans(self, span: str, expected: float | None) -> None:
        assert seconds(span) == expected

    def test_an_answer_about_several_units(self) -> None:
        text = "Id=a\nX=1\nX=2=3\n\nId=b\nX=\n"
        assert parse_show(text) == [{"Id": "a", "X": "1\n2=3"}, {"Id": "b", "X": ""}]


class TestNotThere:
    def test_no_systemctl(self, tmp_path: Path) -> None:
        env = {"PATH": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
        assert available(env) == "systemd's user manager cannot be used: no systemctl is installed"
        with pytest.raises(ServiceError, match="no systemctl"):
            SystemdManager(env).status("a.service")

    def test_no_runtime_directory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "getuid", lambda: 12_345_678)
        said = available({"PATH": os.environ["PATH"]})
        assert said is not None
        assert "XDG_RUNTIME_DIR is not set" in said
        assert "loginctl enable-linger" in said

    def test_nobody_answers(self, tmp_path: Path) -> None:
        env = {"PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": str(tmp_path)}
        said = available(env)
        assert said is not None
        assert "does not answer" in said
        manager = SystemdManager(env)
        for order in (manager.status, manager.start, manager.stop, manager.restart, manager.reload, manager.log_tail):
            with pytest.raises(ServiceError) as error:
                order("a.service")
            assert "\n" not in str(error.value)

    @pytest.mark.systemd
    def test_it_answers(self, rig: Rig) -> None:
        assert available(rig.env) is None

    @pytest.mark.systemd
    def test_it_dies_in_the_middle_of_a_restart(self, rig: Rig) -> None:
        name = rig.unit("a.service", STUBBORN + "TimeoutStopSec=30\n")
        rig.manager.start(name)
        self.wait_up(rig)
        pid = rig.manager.status(name).pid
        errors: list[ServiceError] = []

        def restart() -> None:
            try:
                rig.manager.restart(name)
            except ServiceError as error:
                errors.append(error)

        thread = threading.Thread(target=restart)
        thread.start()
        rig.until(name, ServiceState.STOPPING)
        # Its children end with it only when it is asked to; so the service is ours to end.
        for process in psutil.Process(rig.user.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                process.kill()
        os.kill(rig.user.pid, signal.SIGKILL)
        thread.join(20)
        assert not thread.is_alive()
        assert len(errors) == 1
        assert "\n" not in str(errors[0])
        assert pid is None or not is_alive(pid)

    @staticmethod
    def wait_up(rig: Rig) -> None:
        deadline = time.monotonic() + 20
        log = rig.directory / "log"
        while not log.exists() or "up" not in log.read_text(encoding="utf-8"):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    @pytest.mark.systemd
    def test_a_manager_that_hangs_is_not_waited_for_for_ever(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(systemctl, "ASK_S", 0.5)
        os.kill(rig.user.pid, signal.SIGSTOP)
        try:
            with pytest.raises(ServiceError, match="does not answer"):
                rig.manager.status("a.service")
            assert available(rig.env) is not None
        finally:
            os.kill(rig.user.pid, signal.SIGCONT)


@pytest.mark.systemd
class TestRefusals:
    def test_a_masked_unit(self, rig: Rig) -> None:
        (rig.user.units / "m.service").symlink_to("/dev/null")
        rig.user.systemctl("daemon-reload")
        status = rig.manager.status("m.service")
        assert status.state is ServiceState.STOPPED
        assert "masked" in status.detail
        with pytest.raises(ServiceError, match=r"m\.service: is masked; `systemctl --user unmask m\.service`"):
            rig.manager.start("m.service")

    def test_a_bad_unit_file(self, rig: Rig) -> None:
        name = rig.unit("bad.service", "ExecStart=not/absolute\n")
        assert rig.manager.status(name).state is ServiceState.FAILED
        with pytest.raises(ServiceError, match=r"bad\.service: its unit file is wrong"):
            rig.manager.restart(name)

    def test_a_missing_unit_says_what_to_do(self, rig: Rig) -> None:
        with pytest.raises(ServiceError, match=r"no\.service: .*specdash services install"):
            rig.manager.start("no.service")

    def test_a_service_without_a_reload(self, rig: Rig) -> None:
        name = rig.unit("a.service", SLEEP)
        rig.manager.start(name)
        with pytest.raises(ServiceError, match="knows no reload"):
            rig.manager.reload(name)

    def test_a_start_that_fails_tells_code_and_last_words(self, rig: Rig) -> None:
        failing = f"Type=oneshot\nExecStart={shutil.which('sh')} -c 'echo broken; exit 3'\n"
        with pytest.raises(ServiceError, match=r"a\.service: did not start: exit code 3: broken$"):
            rig.manager.start(rig.unit("a.service", failing))

    def test_an_output_that_cannot_be_opened(self, rig: Rig) -> None:
        name = rig.unit("a.service", SLEEP + "StandardOutput=append:/nowhere/log\nType=exec\n")
        with pytest.raises(ServiceError, match="exit code 209"):
            rig.manager.start(name)

    def test_the_start_limit_is_forgotten_by_an_order(self, rig: Rig) -> None:
        limit = "StartLimitIntervalSec=600\nStartLimitBurst=2\n"
        name = rig.unit("a.service", SLEEP, limit)
        for _ in range(5):
            rig.manager.restart(name)
        assert rig.manager.status(name).state is ServiceState.RUNNING

    def test_the_start_limit_that_others_hit_is_seen_as_failed(self, rig: Rig) -> None:
        limit = "StartLimitIntervalSec=600\nStartLimitBurst=2\n"
        name = rig.unit("a.service", f"ExecStart={shutil.which('false')}\nRestart=on-failure\nRestartSec=10ms\n", limit)
        rig.user.systemctl("start", name, check=False)
        rig.until(name, ServiceState.FAILED)
        assert "exit code 1" in rig.manager.status(name).detail


@pytest.mark.systemd
class TestBounds:
    def test_a_stop_that_takes_too_long_says_how_to_force_it(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(systemd, "_STOP_UNBOUNDED_S", 0.5)
        name = rig.unit("a.service", STUBBORN + "TimeoutStopSec=infinity\n")
        rig.manager.start(name)
        TestNotThere.wait_up(rig)
        with pytest.raises(ServiceError, match=r"still stopping after 0\.5 s .*systemctl --user kill -s KILL"):
            rig.manager.stop(name)
        rig.user.systemctl("kill", "-s", "KILL", name)
        rig.until(name, ServiceState.FAILED)

    def test_a_start_returns_though_the_service_is_never_ready(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(systemd, "_START_S", 0.5)
        name = rig.unit("a.service", SLEEP + "Type=notify\n")
        rig.manager.start(name)
        status = rig.manager.status(name)
        assert status.state is ServiceState.STARTING
        assert status.pid is not None

    def test_a_process_that_a_reload_would_end_is_left_alone(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(systemd, "_CATCH_S", 0.2)
        name = rig.unit("a.service", SLEEP + f"ExecReload={shutil.which('kill')} -USR1 $MAINPID\n")
        rig.manager.start(name)
        pid = rig.manager.status(name).pid
        with pytest.raises(ServiceError, match="would end by SIGUSR1"):
            rig.manager.reload(name)
        assert rig.manager.status(name).pid == pid


@pytest.mark.systemd
class TestSockets:
    PORT_UNIT = "[Socket]\nListenStream={path}\nService=a.service\n"

    @pytest.fixture
    def name(self, rig: Rig) -> str:
        text = self.PORT_UNIT.format(path=rig.directory / "s.sock")
        (rig.user.units / "a.socket").write_text(text, encoding="utf-8")
        return rig.unit("a.service", SLEEP, "After=a.socket\n")

    def active(self, rig: Rig) -> str:
        return rig.user.systemctl("is-active", "a.socket", check=False).strip()

    def test_start_opens_the_socket_and_restart_leaves_it_open(self, rig: Rig, name: str) -> None:
        rig.manager.start(name)
        assert self.active(rig) == "active"
        inode = (rig.directory / "s.sock").stat().st_ino
        rig.manager.restart(name)
        assert (self.active(rig), (rig.directory / "s.sock").stat().st_ino) == ("active", inode)

    def test_stop_closes_the_socket_for_it_would_start_the_service_again(self, rig: Rig, name: str) -> None:
        rig.manager.start(name)
        rig.manager.stop(name)
        assert self.active(rig) == "inactive"

    def test_restart_opens_a_socket_that_was_closed(self, rig: Rig, name: str) -> None:
        rig.manager.start(name)
        rig.user.systemctl("stop", "a.socket")
        rig.manager.restart(name)
        assert self.active(rig) == "active"
        assert rig.manager.status(name).state is ServiceState.RUNNING

    def test_an_address_that_is_taken_is_said(self, rig: Rig, name: str) -> None:
        (rig.directory / "s.sock").mkdir()
        with pytest.raises(ServiceError, match=r"a\.service: a\.socket cannot listen on .*s\.sock"):
            rig.manager.start(name)


@pytest.mark.systemd
def test_a_unit_without_a_file_is_read_from_the_users_journal(rig: Rig) -> None:
    """No journald runs here: its reader is a stand-in that says what it was asked."""
    reader = rig.directory / "bin" / "journalctl"
    reader.parent.mkdir()
    reader.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    reader.chmod(0o755)
    (rig.user.units / "a.service").write_text(f"[Service]\n{SLEEP}", encoding="utf-8")
    rig.user.systemctl("daemon-reload")
    manager = SystemdManager({**rig.env, "PATH": f"{reader.parent}:{os.environ['PATH']}"})
    asked = ("--user", "-u", "a.service", "-n", "20", "-o", "cat", "-q", "--no-pager")
    assert manager.log_tail("a.service") == asked
    assert manager.log_tail("a.service", 2) == ("-q", "--no-pager")
    assert manager.log_file("a.service") is None


def test_a_journal_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    assert systemctl.Systemctl({"PATH": str(tmp_path)}).journal("a.service", 5) == []
