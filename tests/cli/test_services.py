"""`specdash services` where systemd is absent: what it says and what it writes."""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from specdash.backend.demo import DRAFT_MODEL, TARGET_MODEL, bundled_model
from specdash.backend.launch import free_port, plan_from_file
from specdash.cli.main import main
from specdash.control.services import systemd
from specdash.control.services.adopt import adopt_unit, adopted_values
from specdash.control.services.setup import backend_text
from specdash.control.services.units import PROXY_UNIT, unit_directory
from specdash.core.envfile import read_values
from specdash.core.errors import ExitCode, RefusedError
from specdash.core.paths import backend_env_file, proxy_env_file, state_dir
from specdash.core.target import Target
from specdash.llama.gguf import read_facts
from specdash.system.processes import listening_pid
from support.engines import llama_server_binary
from support.waiting import until

PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def no_systemd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "nowhere"))


def services(*arguments: str) -> int:
    return main(["services", *arguments])


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


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
        # Without systemd, `specdash up` takes over.
        assert "  specdash up backend\n" in out
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

    def test_of_a_unit_has_what_the_script_adds_and_what_only_the_env_file_has(
        self, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file, pid = tmp_path / "uap.env", listening_pid(int(url.rpartition(":")[2]))
        write(file, "LLAMA_CTX_SIZE=4096\nLLAMA_HYBRID_ROLLBACK_MODE=strict\nLLAMA_EXTRA_ARGS=--seed 7\n")
        facts = {"LoadState": "loaded", "MainPID": str(pid), "EnvironmentFiles": f"{file} (ignore_errors=no)"}
        monkeypatch.setattr(systemd, "show", lambda *_: [facts])
        values = adopt_unit("uap-llama-server", os.environ).values
        assert (values["LLAMA_HYBRID_ROLLBACK_MODE"], values["LLAMA_CTX_SIZE"]) == ("strict", "1024")
        assert (values["LLAMA_PARALLEL"], values["LLAMA_EXTRA_ARGS"]) == ("2", "--seed 7")


def test_a_command_line_is_adopted_with_its_own_defaults_and_whole_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tmp_path / "bin/llama-server"
    for file in (engine, tmp_path / "my lora.gguf"):
        write(file, "")
        file.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    argv = ["llama-server", "-m", "./m.gguf", "--lora", "my lora.gguf", "--chat-template-kwargs", "x" * 300]
    variables = {"PATH": str(engine.parent), "HF_HOME": "/data/hf", "LLAMA_MODEL": "/a script's own"}
    values = adopted_values(argv, variables, Target("http://[::1]:1", pid=os.getpid()))
    assert values is not None
    assert (values["LLAMA_BIN"], values["HF_HOME"]) == (str(engine), "/data/hf")
    assert (values["LLAMA_MODEL"], values["LLAMA_PARALLEL"]) == (f"{tmp_path}/m.gguf", "-1")
    assert f"--lora '{tmp_path}/my lora.gguf'" in values["LLAMA_EXTRA_ARGS"]
    with pytest.raises(RefusedError, match="removed --draft-max"):
        adopted_values([*argv, "--draft-max", "8"], {}, Target("http://[::1]:1"))


def test_what_is_not_a_llama_server_is_not_adopted(capsys: pytest.CaptureFixture[str]) -> None:
    assert services("adopt", "--url", "http://127.0.0.1:9") == ExitCode.REFUSED
    assert "nothing listens there; `specdash targets` lists the servers that run" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert services("adopt", "--url", f"http://127.0.0.1:{server.getsockname()[1]}") == ExitCode.REFUSED
    assert f"process {os.getpid()}, which listens at" in capsys.readouterr().err
    assert adopted_values(["/usr/bin/python", "-m", "specdash.backend.embedded"], {}, Target("http://[::1]:1")) is None


def test_the_env_file_for_a_model_has_the_context_that_fits_as_a_number() -> None:
    model = bundled_model(TARGET_MODEL)
    values = read_values(backend_text(str(model)).encode(), "backend.env")
    assert values["LLAMA_SPEC_TYPE"] == "auto"
    assert int(values["LLAMA_CTX_SIZE"]) == read_facts(str(model)).context_length


class TestNothingThere:
    def test_status_says_so_with_the_way_out(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert services("status") == ExitCode.SERVICE
        out = capsys.readouterr().out
        assert [line.partition(" ")[0] for line in out.splitlines()] == ["backend:", "proxy:"]
        assert "`specdash up --model MODEL.gguf`" in out
        assert "`specdash services adopt`" in out

    def test_status_as_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert services("status", "--json") == ExitCode.SERVICE
        shown = json.loads(capsys.readouterr().out)
        assert (shown["services"], len(shown["problems"])) == ([], 2)

    @pytest.mark.parametrize("action", ["start", "stop", "restart", "logs"])
    def test_every_order_is_refused_in_one_line(self, action: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert services(action, "proxy") == ExitCode.SERVICE
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("specdash: proxy: none runs")

    def test_a_unit_that_systemd_does_not_show_is_named_with_its_words(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write(unit_directory(os.environ) / PROXY_UNIT, "# specdash unit, version 2.\n")
        write(proxy_env_file(), "PROXY_PORT=4000\n")
        assert services("status") == ExitCode.SERVICE
        (line,) = [row for row in capsys.readouterr().out.splitlines() if row.startswith("proxy: ")]
        assert line.startswith(("proxy: systemctl --user show: ", "proxy: systemd's user manager cannot be used: "))
        assert line.endswith("; `specdash up proxy` starts it")

    def test_uninstall_has_nothing_to_do(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert services("uninstall") == ExitCode.SERVICE
        assert "specdash has not installed anything" in capsys.readouterr().err

    @pytest.mark.parametrize("arguments", [(), ("begin",), ("start", "both"), ("status", "backend"), ("reload",)])
    def test_what_cannot_be_meant(self, arguments: tuple[str, ...]) -> None:
        assert services(*arguments) == ExitCode.USAGE

    def test_a_supervisor_of_0_1_that_still_runs_is_named(self, capsys: pytest.CaptureFixture[str]) -> None:
        path = state_dir(os.environ) / "run" / "supervisor.sock"
        path.parent.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen()
            # As 0.1 does, which then goes into the background.
            behind = subprocess.Popen(["/bin/sleep", "60"], pass_fds=[listening.fileno()])
        services("status")
        behind.kill()
        behind.wait()
        assert f"`kill {behind.pid}` stops them all" in capsys.readouterr().err
        services("status")
        assert capsys.readouterr().err == ""


class TestInstall:
    def test_a_mask_is_named_with_what_lifts_it(self, capsys: pytest.CaptureFixture[str]) -> None:
        write(proxy_env_file(), "PROXY_PORT=4000\n")
        path = unit_directory(os.environ) / PROXY_UNIT
        path.parent.mkdir(parents=True)
        path.symlink_to(os.devnull)
        assert services("install", "proxy") == ExitCode.SERVICE
        assert f"`systemctl --user unmask {PROXY_UNIT}` lifts its mask" in capsys.readouterr().err

    def test_the_units_can_be_looked_at_without_systemd(self, capsys: pytest.CaptureFixture[str]) -> None:
        write(backend_env_file(), "LLAMA_STOP_TIMEOUT=100\n")
        write(proxy_env_file(), "PROXY_PORT=4000\n")
        assert services("install", "--dry-run") == ExitCode.OK
        out = capsys.readouterr().out
        assert out.count("ExecStart=") == 2
        assert "TimeoutStopSec=116" in out
        assert services("install") == ExitCode.SERVICE
        assert "`specdash up` runs both without it" in capsys.readouterr().err

    def test_an_env_file_that_cannot_be_read_is_named(self, capsys: pytest.CaptureFixture[str]) -> None:
        write(proxy_env_file(), "PROXY_PORT=many\n")
        assert services("install", "--dry-run") == ExitCode.BAD_INPUT
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
        assert services("install", "proxy", "--dry-run") == ExitCode.OK
        assert listens in capsys.readouterr().out

    def test_places_and_engine_of_the_caller_reach_the_services(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        engine = tmp_path / "bin" / "llama-server"
        write(engine, "#!/bin/sh\n")
        engine.chmod(0o755)
        monkeypatch.delenv("LLAMA_BIN", raising=False)
        monkeypatch.setenv("PATH", f"{engine.parent}:{os.environ['PATH']}")
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "st ate"))
        write(backend_env_file(), "LLAMA_MODEL=/m.gguf\n")
        assert services("install", "backend", "--dry-run") == ExitCode.OK
        out = capsys.readouterr().out
        assert f'Environment="XDG_STATE_HOME={tmp_path}/st ate"' in out
        assert f"Environment=LLAMA_BIN={engine}" in out
        write(backend_env_file(), "LLAMA_BIN=/opt/llama-server\n")
        services("install", "backend", "--dry-run")
        assert "Environment=LLAMA_BIN" not in capsys.readouterr().out

    def test_a_model_gives_both_env_files_with_a_reason_for_each_line(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        pytest.importorskip("xllamacpp")
        words = ["--model", str(bundled_model(TARGET_MODEL)), "--draft", str(bundled_model(DRAFT_MODEL))]
        words += ["--profile", "agentic-continuity"]
        assert services("install", *words, "--dry-run") == ExitCode.OK
        assert not backend_env_file().exists()
        out = capsys.readouterr().out
        assert "# chosen at each start, today draft-simple: " in out
        assert "# profile agentic-continuity\nPROXY_LOOP_BREAKER=on\n" in out
        # What is there is not touched, and the proxy goes in front of it, with its key.
        write(backend_env_file(), "LLAMA_PORT=9321\nLLAMA_API_KEY=sesame,old\n")
        assert services("install", *words) == ExitCode.SERVICE
        values = read_values(proxy_env_file().read_bytes(), "proxy.env")
        assert values["LLAMA_CPP_BASE"] == "http://127.0.0.1:9321/v1"
        assert values["PROXY_UPSTREAM_API_KEY"] == "sesame"
        assert backend_env_file().read_text(encoding="utf-8").startswith("LLAMA_PORT=9321")
        assert f"{backend_env_file()} is there, and stays as it is" in capsys.readouterr().err
