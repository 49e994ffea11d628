"""`specdash services` on a real systemd user manager: what it writes, and the real backend and proxy run from it."""

import contextlib
import hashlib
import http.client
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from specdash.backend.demo import DRAFT_MODEL, TARGET_MODEL, bundled_model, env_text, proxy_env_text
from specdash.backend.launch import free_port
from specdash.cli.main import main
from specdash.control.services.units import BACKEND_UNIT, PROXY_SOCKET, PROXY_UNIT
from specdash.core.envfile import read_values
from specdash.core.errors import ExitCode
from specdash.core.paths import backend_env_file, proxy_env_file, proxy_records_dir, run_records_dir
from specdash.core.records import ProxyRecord, RunRecord
from support.asking import ask, healthy
from support.systemd_user import UserManager, running_user_manager
from support.waiting import until

pytestmark = pytest.mark.systemd
UNITS = {BACKEND_UNIT, PROXY_SOCKET, PROXY_UNIT}


@dataclass(frozen=True, slots=True)
class Stack:
    """Env files of the demo's backend and of a proxy in front of it, under a running user manager."""

    user: UserManager
    backend_port: int
    proxy_port: int
    backend_env: Path
    proxy_env: Path

    def units(self) -> set[str]:
        return {path.name for path in self.user.units.glob("*specdash*") if path.is_file()}

    def active(self, unit: str) -> str:
        return self.user.systemctl("is-active", unit, check=False).strip()

    def answers(self, port: int) -> None:
        """Wait until it says that it is well."""
        until(lambda: healthy(f"http://127.0.0.1:{port}"))


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    # A home that a careless unit file would trip over.
    home = tmp_path / "ho me 100% $HOME"
    home.mkdir()
    with running_user_manager(home) as user:
        for key, value in user.environment.items():
            monkeypatch.setenv(key, value)
        backend_port, proxy_port = free_port("127.0.0.1"), free_port("127.0.0.1")
        backend, proxy = backend_env_file(), proxy_env_file()
        backend.parent.mkdir(parents=True)
        log = tmp_path / "engine.log"
        text = env_text(port=backend_port, log=log, spec_types=("draft-simple",), engine="xllamacpp")
        backend.write_text(text, encoding="utf-8")
        text = proxy_env_text(
            port=proxy_port, upstream=f"http://127.0.0.1:{backend_port}", events=tmp_path / "events.jsonl"
        )
        proxy.write_text(text, encoding="utf-8")
        yield Stack(user, backend_port, proxy_port, backend, proxy)


def services(*arguments: str) -> int:
    return main(["services", *arguments])


class TestInstall:
    def test_dry_run_prints_the_units_and_writes_nothing(
        self, stack: Stack, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert services("install", "--dry-run") == ExitCode.OK
        out = capsys.readouterr().out
        for unit in UNITS:
            assert f"# would write {stack.user.units / unit}\n# specdash unit" in out
        assert f"ListenStream=127.0.0.1:{stack.proxy_port}" in out
        assert stack.units() == set()

    def test_units_are_written_and_enabled_and_nothing_is_started(
        self, stack: Stack, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert services("install") == ExitCode.OK
        assert stack.units() == UNITS
        assert {stack.active(unit) for unit in UNITS} == {"inactive"}
        for unit in UNITS:
            assert stack.user.systemctl("is-enabled", unit).strip() == "enabled"
        assert "loginctl enable-linger" in capsys.readouterr().out
        assert services("status") == ExitCode.FAILED

    def test_again_changes_nothing_and_a_new_port_moves_the_socket(
        self, stack: Stack, capsys: pytest.CaptureFixture[str]
    ) -> None:
        services("install")
        capsys.readouterr()
        assert services("install") == ExitCode.OK
        assert capsys.readouterr().out.count("unchanged ") == 3
        text = stack.proxy_env.read_text(encoding="utf-8")
        stack.proxy_env.write_text(text.replace(str(stack.proxy_port), "4999"), encoding="utf-8")
        assert services("install") == ExitCode.OK
        assert f"wrote {stack.user.units / PROXY_SOCKET}, enabled" in capsys.readouterr().out
        assert "ListenStream=127.0.0.1:4999" in (stack.user.units / PROXY_SOCKET).read_text(encoding="utf-8")

    def test_a_unit_of_somebody_else_is_not_touched_and_nothing_is_written(
        self, stack: Stack, capsys: pytest.CaptureFixture[str]
    ) -> None:
        theirs = stack.user.units / PROXY_UNIT
        theirs.write_text("[Service]\nExecStart=/bin/true\n", encoding="utf-8")
        assert services("install") == ExitCode.SERVICE
        assert f"{theirs} was not written by specdash" in capsys.readouterr().err
        assert stack.units() == {PROXY_UNIT}
        assert theirs.read_text(encoding="utf-8") == "[Service]\nExecStart=/bin/true\n"
        assert services("uninstall") == ExitCode.SERVICE
        assert theirs.exists()

    def test_a_missing_env_file_is_named_and_its_service_left_out(
        self, stack: Stack, capsys: pytest.CaptureFixture[str]
    ) -> None:
        stack.backend_env.unlink()
        assert services("install") == ExitCode.FAILED
        assert f"backend: there is no env file {stack.backend_env}" in capsys.readouterr().err
        assert stack.units() == {PROXY_SOCKET, PROXY_UNIT}
        assert stack.user.systemctl("is-enabled", PROXY_UNIT).strip() == "enabled"
        assert not stack.backend_env.exists()

    def test_what_systemd_refuses_leaves_everything_as_it_was(
        self, stack: Stack, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (stack.user.units / "default.target.wants").write_text("in the way", encoding="utf-8")
        assert services("install") == ExitCode.SERVICE
        assert "systemctl --user enable: " in capsys.readouterr().err
        assert stack.units() == set()
        assert services("status") == ExitCode.SERVICE

    def test_one_of_both_can_be_installed_with_an_env_file_elsewhere(self, stack: Stack, tmp_path: Path) -> None:
        other = tmp_path / "other 1%.env"
        stack.proxy_env.rename(other)
        assert services("install", "proxy", "--proxy-env", str(other), "--start") == ExitCode.OK
        assert stack.units() == {PROXY_SOCKET, PROXY_UNIT}
        assert services("status") == ExitCode.OK
        until(lambda: _answers_at_all(stack.proxy_port))

    def test_uninstall_stops_and_removes_what_is_ours_and_keeps_the_rest(
        self, stack: Stack, capsys: pytest.CaptureFixture[str]
    ) -> None:
        services("install", "proxy", "--start")
        other = stack.user.units / "other.service"
        other.write_text("[Service]\nExecStart=/bin/true\n", encoding="utf-8")
        capsys.readouterr()
        assert services("uninstall") == ExitCode.OK
        assert "the env files were kept" in capsys.readouterr().out
        assert stack.units() == set()
        assert other.exists()
        assert stack.proxy_env.exists()
        assert stack.active(PROXY_UNIT) == stack.active(PROXY_SOCKET) == "inactive"
        assert not list(stack.user.units.glob("*.wants/*specdash*"))
        assert services("uninstall") == ExitCode.SERVICE

    def test_a_unit_of_0_1_goes_on_working_and_is_replaced(
        self, stack: Stack, capsys: pytest.CaptureFixture[str]
    ) -> None:
        services("install", "proxy")
        path = stack.user.units / PROXY_UNIT
        new = path.read_text(encoding="utf-8")
        old = new.replace("version 2", "version 1").replace("RestartSec=1", "RestartSec=3")
        path.write_text(old, encoding="utf-8")
        stack.user.systemctl("daemon-reload")
        assert services("start", "proxy") == ExitCode.OK
        assert services("install", "proxy", "--start") == ExitCode.OK
        assert "`specdash services stop`, then `start`, takes the new units" in capsys.readouterr().out
        assert path.read_text(encoding="utf-8") == new
        assert services("stop", "proxy") == services("start", "proxy") == ExitCode.OK


def _answers_at_all(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status in (200, 503)
    except OSError:
        return False
    finally:
        connection.close()


@pytest.mark.engine
class TestBackend:
    def digest(self) -> str | None:
        for file in run_records_dir().glob("*.json"):
            with contextlib.suppress(FileNotFoundError):  # the old one goes with its engine
                record = RunRecord.from_json(file.read_text(encoding="utf-8"))
                if record is not None:
                    return record.env_digest
        return None

    def test_it_starts_answers_reloads_and_stops(self, stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
        assert services("install", "backend", "--start") == ExitCode.OK
        stack.answers(stack.backend_port)
        assert services("status", "--json") == ExitCode.OK
        shown = json.loads(capsys.readouterr().out.partition("\n{")[2].join(["{", ""]))
        (row,) = shown["services"]
        assert (row["state"], row["manager"], row["env_file"]) == ("running", "systemd", str(stack.backend_env))

        data = stack.backend_env.read_bytes().replace(b'LLAMA_DRAFT_MAX="4"', b'LLAMA_DRAFT_MAX="6"')
        stack.backend_env.write_bytes(data)
        stack.user.systemctl("reload", BACKEND_UNIT)
        until(lambda: self.digest() == hashlib.sha256(data).hexdigest())
        stack.answers(stack.backend_port)
        assert stack.user.systemctl("show", "-p", "MainPID", "--value", BACKEND_UNIT).strip() == str(row["pid"])

        assert services("logs", "backend", "-n", "200") == ExitCode.OK
        assert "listening on" in capsys.readouterr().out
        assert services("stop") == ExitCode.OK
        assert stack.active(BACKEND_UNIT) == "inactive"

    def test_one_that_was_killed_comes_back_and_the_engine_does_not_outlive_it(self, stack: Stack) -> None:
        services("install", "backend", "--start")
        stack.answers(stack.backend_port)
        pid = int(stack.user.systemctl("show", "-p", "MainPID", "--value", BACKEND_UNIT))
        os.kill(pid, signal.SIGKILL)
        until(lambda: stack.user.systemctl("show", "-p", "NRestarts", "--value", BACKEND_UNIT).strip() == "1")
        stack.answers(stack.backend_port)
        assert services("status") == ExitCode.OK

    def test_bad_input_is_given_up_at_once_and_said(self, stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
        stack.backend_env.write_text("LLAMA_MODEL=/nowhere.gguf\n", encoding="utf-8")
        assert services("install", "backend", "--start") == ExitCode.FAILED
        err = capsys.readouterr().err
        assert f"{BACKEND_UNIT}: failed: exit-code: exit code 3" in err
        assert "LLAMA_MODEL" in err
        assert stack.user.systemctl("show", "-p", "NRestarts", "--value", BACKEND_UNIT).strip() == "0"

    def test_a_model_and_an_empty_home_become_two_services_that_answer(
        self, stack: Stack, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for file in (stack.backend_env, stack.proxy_env):
            file.unlink()
        words = ("--model", str(bundled_model(TARGET_MODEL)), "--draft", str(bundled_model(DRAFT_MODEL)))
        capsys.readouterr()
        assert services("install", *words) == ExitCode.OK
        (ready,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ready: ")]
        assert f"ANTHROPIC_BASE_URL=http://127.0.0.1:{_value(stack.proxy_env, 'PROXY_PORT')} " in ready
        assert services("status") == ExitCode.OK
        assert ready in capsys.readouterr().out.splitlines()
        stack.answers(_value(stack.backend_env, "LLAMA_PORT"))
        body = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "the speculative decoder"}]}
        proxy = f"http://127.0.0.1:{_value(stack.proxy_env, 'PROXY_PORT')}"
        assert ask(f"{proxy}/v1/messages", body, timeout=60)["content"]

    def test_a_unit_of_uap_is_taken_over_by_the_commands_that_adopt_prints(
        self, stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        theirs = tmp_path / "uap.env"
        stack.backend_env.rename(theirs)
        unit = f"[Service]\nEnvironmentFile={theirs}\nExecStart=/bin/sleep 600\n[Install]\nWantedBy=default.target\n"
        (stack.user.units / "uap-llama-server.service").write_text(unit, encoding="utf-8")
        stack.user.systemctl("daemon-reload")
        stack.user.systemctl("enable", "--now", "uap-llama-server.service")
        assert services("adopt", "uap-llama-server.service") == ExitCode.OK
        ends, takes_over = capsys.readouterr().out.splitlines()[-2:]
        assert ends.strip().startswith("systemctl --user disable --now uap-llama-server.service")
        stack.user.systemctl("disable", "--now", "uap-llama-server.service")
        assert stack.active("uap-llama-server.service") in ("inactive", "failed")
        assert main(takes_over.split()[1:]) == ExitCode.OK
        stack.answers(stack.backend_port)
        assert services("adopt", "no-such") == ExitCode.SERVICE


def _value(file: Path, key: str) -> int:
    return int(read_values(file.read_bytes(), str(file))[key])


class TestProxy:
    def test_no_client_sees_an_error_while_it_restarts(self, stack: Stack) -> None:
        assert services("install", "proxy", "--start") == ExitCode.OK
        stop = threading.Event()
        errors: list[str] = []
        counts = [0, 0, 0]

        def ask(index: int) -> None:
            while not stop.is_set():
                connection = http.client.HTTPConnection("127.0.0.1", stack.proxy_port, timeout=20)
                try:
                    connection.request("GET", "/v1/context")
                    assert connection.getresponse().status == 200
                    counts[index] += 1
                except (OSError, http.client.HTTPException, AssertionError) as error:
                    errors.append(repr(error))
                finally:
                    connection.close()

        threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(counts))]
        for thread in threads:
            thread.start()
        try:
            for _ in range(3):
                before = sum(counts)
                assert services("restart", "proxy") == ExitCode.OK
                until(lambda before=before: sum(counts) > before + 10)  # type: ignore[misc]
        finally:
            stop.set()
            for thread in threads:
                thread.join(30)
        assert errors == []

    def test_a_connection_made_while_it_is_down_is_answered_once_it_is_up(self, stack: Stack) -> None:
        services("install", "proxy", "--start")
        stack.user.systemctl("stop", PROXY_UNIT)
        with socket.create_connection(("127.0.0.1", stack.proxy_port), timeout=20) as client:
            client.sendall(b"GET /v1/context HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 200"
        assert services("status") == ExitCode.OK

    def test_a_reload_is_taken_over_without_a_new_process(self, stack: Stack) -> None:
        services("install", "proxy", "--start")
        pid = stack.user.systemctl("show", "-p", "MainPID", "--value", PROXY_UNIT)
        with stack.proxy_env.open("a", encoding="utf-8") as file:
            file.write("PROXY_LOOP_WINDOW=9\n")
        stack.user.systemctl("reload", PROXY_UNIT)
        log = stack.user.home / ".local/state/specdash/logs/specdash-proxy.log"
        until(lambda: "PROXY_LOOP_WINDOW: 6 -> 9" in log.read_text(encoding="utf-8"))
        assert stack.user.systemctl("show", "-p", "MainPID", "--value", PROXY_UNIT) == pid
        assert log.stat().st_mode & 0o077 == 0
        (record,) = [
            ProxyRecord.from_json(file.read_text(encoding="utf-8")) for file in proxy_records_dir().glob("*.json")
        ]
        assert record is not None
        assert record.env_file == str(stack.proxy_env)

    def test_a_port_that_is_taken_is_said(self, stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
        with socket.create_server(("127.0.0.1", stack.proxy_port)):
            assert services("install", "proxy", "--start") == ExitCode.SERVICE
        err = capsys.readouterr().err
        assert f"{PROXY_SOCKET} cannot listen on 127.0.0.1:{stack.proxy_port}" in err

    def test_after_its_socket_gave_up_a_mended_proxy_listens_again(
        self, stack: Stack, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A proxy that cannot start makes systemd give up its socket too, once somebody connects often enough."""
        text = stack.proxy_env.read_text(encoding="utf-8")
        services("install", "proxy")
        stack.proxy_env.write_text(text + "PROXY_TLS_CERT_FILE=/nowhere\n", encoding="utf-8")
        assert services("start", "proxy") == ExitCode.FAILED
        err = capsys.readouterr().err
        assert f"{PROXY_UNIT}: failed: exit-code: exit code 3" in err
        assert "PROXY_TLS_CERT_FILE is set" in err
        stack.user.systemctl("reset-failed", PROXY_UNIT, PROXY_SOCKET)
        stack.user.systemctl("start", PROXY_SOCKET)

        def given_up() -> bool:
            try:
                socket.create_connection(("127.0.0.1", stack.proxy_port), timeout=1).close()
            except OSError:
                return stack.active(PROXY_SOCKET) == "failed"
            return False

        until(given_up)
        stack.proxy_env.write_text(text, encoding="utf-8")
        assert services("restart", "proxy") == ExitCode.OK
        assert stack.active(PROXY_SOCKET) == "active"
        assert _answers_at_all(stack.proxy_port)
