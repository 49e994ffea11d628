"""`specdash services` where systemd is absent: the built-in supervisor takes the services, by the same commands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from specdash.backend.demo import TARGET_MODEL, bundled_model, proxy_env_text
from specdash.backend.launch import free_port, plan_from_file
from specdash.cli.main import main
from specdash.control.services.service_command import adopted_values
from specdash.control.services.supervisor_client import SupervisorClient
from specdash.core.envfile import read_values
from specdash.core.errors import ExitCode
from specdash.core.paths import backend_env_file, proxy_env_file, services_file, supervisor_socket
from specdash.core.target import Target
from specdash.system.processes import listening_pid
from support.engines import llama_server_binary
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def no_systemd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "nowhere"))


@pytest.fixture
def daemon_ends() -> Iterator[None]:
    yield
    client = SupervisorClient(supervisor_socket(os.environ))
    if client.available():
        client.shutdown()


def services(*arguments: str) -> int:
    return main(["services", *arguments])


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def listed() -> list[dict[str, Any]]:
    content: dict[str, list[dict[str, Any]]] = json.loads(services_file(os.environ).read_text(encoding="utf-8"))
    return content["services"]


@pytest.mark.llama_server
class TestAServerStartedByHand:
    """A real one, with a key, an argument that has no key of ours, and a relative path."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> Iterator[str]:
        model, port = bundled_model(TARGET_MODEL), free_port("127.0.0.1")
        shutil.copy(model, tmp_path / "m.gguf")
        words = f"-m m.gguf -c 1024 --port {port} --api-key s3cret-key --seed 7 -np 2"
        with (tmp_path / "by-hand.log").open("wb") as log:
            process = subprocess.Popen([llama_server_binary(), *words.split()], cwd=tmp_path, stdout=log, stderr=log)
        try:
            until(lambda: listening_pid(port) == process.pid, PATIENCE_S)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)

    def test_is_adopted_as_an_env_file_that_a_service_starts_the_same_server_from(
        self, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert services("adopt", "--url", url, "--dry-run") == ExitCode.OK
        assert not backend_env_file(os.environ).exists()
        assert services("adopt", "--url", url) == ExitCode.OK
        out, err = capsys.readouterr()
        assert "s3cret-key" not in out + err
        assert "specdash services install backend --start" in out
        file = backend_env_file(os.environ)
        assert file.stat().st_mode & 0o777 == 0o600
        values = read_values(file.read_bytes(), str(file))
        assert values["LLAMA_MODEL"] == str(tmp_path / "m.gguf")
        assert (values["LLAMA_CTX_SIZE"], values["LLAMA_PARALLEL"]) == ("1024", "2")
        assert values["LLAMA_API_KEY"] == "s3cret-key"
        assert values["LLAMA_EXTRA_ARGS"] == "--seed 7"
        assert f"127.0.0.1:{values['LLAMA_PORT']}" in url
        plan = plan_from_file(str(file))
        assert {"-c", "--ctx-size"} & set(plan.argv)
        assert services("adopt", "--url", url) == ExitCode.CONFLICT


def test_what_is_not_seen_or_was_not_started_by_hand_is_not_adopted(capsys: pytest.CaptureFixture[str]) -> None:
    assert services("adopt", "--url", "http://127.0.0.1:9") == ExitCode.REFUSED
    assert "its process cannot be seen" in capsys.readouterr().err
    assert adopted_values(["/usr/bin/python", "-m", "specdash.backend.embedded"], {}, Target("http://[::1]:1")) is None


class TestNothingThere:
    def test_status_says_so_with_the_way_out(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert services("status") == ExitCode.SERVICE
        out = capsys.readouterr().out
        assert [line.partition(" ")[0] for line in out.splitlines()] == ["backend:", "proxy:", "systemd's"]
        assert out.count("systemd's user manager does not answer") == 1
        assert "started by hand" in out
        assert "`specdash services install`" in out

    def test_status_as_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert services("status", "--json") == ExitCode.SERVICE
        shown = json.loads(capsys.readouterr().out)
        assert shown["services"] == []
        assert len(shown["problems"]) == 3

    @pytest.mark.parametrize("action", ["start", "stop", "restart", "reload", "logs"])
    def test_every_order_is_refused_in_one_line(self, action: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert services(action, "proxy") == ExitCode.SERVICE
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("specdash: proxy: no service found")

    def test_uninstall_has_nothing_to_do(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert services("uninstall") == ExitCode.SERVICE
        assert "specdash has not installed anything" in capsys.readouterr().err

    @pytest.mark.parametrize("arguments", [(), ("begin",), ("start", "both"), ("status", "backend")])
    def test_what_cannot_be_meant(self, arguments: tuple[str, ...]) -> None:
        assert services(*arguments) == ExitCode.USAGE

    def test_systemd_alone_is_refused_and_nothing_written(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert services("install", "--manager", "systemd") == ExitCode.SERVICE
        assert "--manager supervisor" in capsys.readouterr().err
        assert not services_file(os.environ).exists()

    def test_systemd_units_can_be_looked_at_without_systemd(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert services("install", "--manager", "systemd", "--dry-run") == ExitCode.OK
        assert "ExecStart=" in capsys.readouterr().out

    def test_an_env_file_that_cannot_be_read_is_named(self, capsys: pytest.CaptureFixture[str]) -> None:
        write(proxy_env_file(), "PROXY_PORT=many\n")
        assert services("install", "--manager", "systemd", "--dry-run") == ExitCode.BAD_INPUT
        assert "PROXY_PORT=many" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("text", "listens"),
        [
            ("PROXY_HOST=::1\nPROXY_PORT=5000\n", "ListenStream=[::1]:5000\n"),
            ("PROXY_HOST=0.0.0.0\n", "ListenStream=0.0.0.0:4000\n"),
            ("PROXY_HOST=localhost\n", "ListenStream=127.0.0.1:4000\n"),
            ("", "ListenStream=127.0.0.1:4000\n"),
        ],
    )
    def test_the_socket_listens_where_the_env_file_says(
        self, text: str, listens: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write(proxy_env_file(), text)
        assert services("install", "--manager", "systemd", "--dry-run") == ExitCode.OK
        assert listens in capsys.readouterr().out

    def test_places_and_engine_of_the_caller_reach_the_services(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        engine = tmp_path / "bin" / "llama-server"
        engine.parent.mkdir()
        engine.write_text("#!/bin/sh\n", encoding="utf-8")
        engine.chmod(0o755)
        monkeypatch.delenv("LLAMA_BIN", raising=False)
        monkeypatch.setenv("PATH", f"{engine.parent}:{os.environ['PATH']}")
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "st ate"))
        assert services("install", "--manager", "systemd", "--dry-run") == ExitCode.OK
        out = capsys.readouterr().out
        assert f'Environment="XDG_STATE_HOME={tmp_path}/st ate"' in out
        assert f"Environment=LLAMA_BIN={engine}" in out
        write(backend_env_file(), "LLAMA_BIN=/opt/llama-server\nLLAMA_STOP_TIMEOUT=100\n")
        services("install", "--manager", "systemd", "--dry-run")
        out = capsys.readouterr().out
        assert "Environment=LLAMA_BIN" not in out
        assert "TimeoutStopSec=116" in out


class TestSupervisor:
    def test_dry_run_writes_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert services("install", "--dry-run") == ExitCode.OK
        out = capsys.readouterr().out
        assert f"# would write {services_file(os.environ)}" in out
        assert "specdash-backend: the backend of" in out
        assert not services_file(os.environ).exists()

    def test_install_keeps_what_others_wrote(self, tmp_path: Path) -> None:
        sleep = shutil.which("sleep")
        theirs = {"name": "mine", "role": "backend", "env_file": "/m.env", "argv": [sleep, "1"]}
        write(services_file(os.environ), json.dumps({"version": 1, "services": [theirs]}))
        write(proxy_env_file(), "PROXY_PORT=4000\n")
        assert services("install", "proxy") == ExitCode.OK
        assert [entry["name"] for entry in listed()] == ["mine", "specdash-proxy"]
        assert listed()[1] == {
            "name": "specdash-proxy",
            "role": "proxy",
            "env_file": str(proxy_env_file()),
            "listen": "env",
        }
        assert services("uninstall") == ExitCode.OK
        assert listed() == [theirs]
        assert proxy_env_file().exists()

    def test_a_missing_env_file_is_named_with_an_example(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert services("install") == ExitCode.FAILED
        captured = capsys.readouterr()
        assert "the built-in supervisor takes the services: systemd's user manager does not answer" in captured.err
        assert f"backend: not enabled, there is no env file {backend_env_file()}" in captured.err
        assert not backend_env_file().exists()

    def test_known_but_not_running_is_a_supervisor_that_does_not_answer(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write(proxy_env_file(), "PROXY_PORT=4000\n")
        services("install", "proxy")
        capsys.readouterr()
        assert services("status") == ExitCode.SERVICE
        assert "specdash-proxy: the built-in supervisor is not running" in capsys.readouterr().out

    @pytest.mark.slow
    @pytest.mark.usefixtures("daemon_ends")
    def test_the_proxy_is_installed_started_restarted_stopped_and_removed(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        port = free_port("127.0.0.1")
        text = proxy_env_text(port=port, upstream="http://127.0.0.1:9", events=tmp_path / "events.jsonl")
        write(proxy_env_file(), text)
        assert services("install", "proxy", "--start") == ExitCode.OK
        assert "specdash-proxy: started" in capsys.readouterr().out
        assert services("status", "--json") == ExitCode.OK
        (row,) = json.loads(capsys.readouterr().out)["services"]
        assert (row["manager"], row["state"], row["reloads"], row["socket"]) == ("supervisor", "running", True, True)
        assert services("restart", "proxy") == ExitCode.OK
        self.until_said("Proxy started", capsys)
        assert services("stop") == ExitCode.OK
        assert services("status") == ExitCode.FAILED
        assert services("uninstall") == ExitCode.OK
        assert not services_file(os.environ).exists()
        assert not SupervisorClient(supervisor_socket(os.environ)).available()

    @pytest.mark.slow
    @pytest.mark.usefixtures("daemon_ends")
    @pytest.mark.parametrize("late_s", [0, 1.5], ids=["at once", "late, on a busy machine"])
    def test_a_service_that_ends_before_its_engine_runs_is_a_failure_with_its_last_words(
        self, late_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write(tmp_path / "late" / "sitecustomize.py", f"import time\ntime.sleep({late_s})\n")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path / "late"), os.environ.get("PYTHONPATH", ""))))
        write(backend_env_file(), "LLAMA_MODEL=/nowhere.gguf\n")
        assert services("install", "backend", "--start") == ExitCode.FAILED
        err = capsys.readouterr().err
        assert "specdash-backend: failed: exit code 3" in err
        assert "LLAMA_MODEL" in err

    @pytest.mark.slow
    @pytest.mark.usefixtures("daemon_ends")
    def test_the_log_is_followed_until_ctrl_c(self, tmp_path: Path) -> None:
        port = free_port("127.0.0.1")
        text = proxy_env_text(port=port, upstream="http://127.0.0.1:9", events=tmp_path / "events.jsonl")
        write(proxy_env_file(), text)
        services("install", "proxy", "--start")
        command = [sys.executable, "-m", "specdash", "services", "logs", "proxy", "--follow"]
        out = tmp_path / "out"
        with out.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, env=os.environ.copy())
        try:
            until(lambda: "Proxy started" in out.read_text(encoding="utf-8"), PATIENCE_S)
            services("reload")
            until(lambda: "reload: no setting changed" in out.read_text(encoding="utf-8"), PATIENCE_S)
            process.send_signal(2)
            assert process.wait(20) == ExitCode.INTERRUPTED
        finally:
            process.kill()
            process.wait(5)

    @staticmethod
    def until_said(text: str, capsys: pytest.CaptureFixture[str]) -> None:
        def is_said() -> bool:
            capsys.readouterr()
            services("logs", "proxy", "-n", "200")
            return text in capsys.readouterr().out

        until(is_said, PATIENCE_S)
