"""Servers on this machine are found by their run records and their processes, in this order."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from specdash.collect.discover import (
    discover,
    ended_run,
    is_llama_server,
    server_arguments,
    target_for_url,
    with_record,
)
from specdash.core.paths import run_records_dir
from specdash.core.readings import Failure, FailureKind, Props
from specdash.core.records import Drafting, RunRecord, StartCheck
from specdash.core.target import Target
from specdash.llama.client import LlamaClient
from specdash.system.processes import began
from support.ended import zombie
from support.fault_server import FaultServer, free_port, says

OK = '{"status":"ok"}'
NOBODY = 65534


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}


def record(env: dict[str, str], name: str = "1", **changes: Any) -> RunRecord:
    fields: dict[str, Any] = {
        "pid": os.getpid(),
        "pid_started": psutil.Process().create_time(),
        "url": "http://127.0.0.1:18199",
        "engine": "xllamacpp 1",
        "log": "/var/log/llama.log",
        "parameters": (("spec-type", "ngram-mod"),),
    }
    written = RunRecord(**{**fields, **changes})
    folder = run_records_dir(env)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(written.to_json())
    return written


def leave_key(env: dict[str, str], tmp_path: Path, url: str, **changes: Any) -> None:
    """A record of a backend with a key."""
    file = tmp_path / "llama.env"
    file.write_text("LLAMA_API_KEY=K4\n")
    record(env, url=url, api_key_env="LLAMA_API_KEY", env_file=str(file), **changes)


async def looked_at(target: Target) -> Props | Failure:
    async with contextlib.aclosing(LlamaClient(target)) as client:
        return await client.props()


@contextlib.contextmanager
def listening_as_another_user(port: int = 0) -> Iterator[tuple[str, list[bytes]]]:
    """The address of a listener that belongs to the user nobody, and all that it hears."""
    if os.geteuid() != 0:
        pytest.skip("only root can listen as another user")
    os.seteuid(NOBODY)
    try:
        listener = socket.create_server(("127.0.0.1", port))
    finally:
        os.seteuid(0)
    heard: list[bytes] = []

    def answer() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    heard.append(connection.recv(65536))
                    connection.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", heard
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


class TestRunRecords:
    def test_a_live_record_gives_an_address_what_the_server_does_not(self, env: dict[str, str]) -> None:
        record(env)
        (run_records_dir(env) / "0.json").write_bytes(b"\xff{")
        (run_records_dir(env) / "2.json").write_text('{"pid": 1')
        target = discover(env)[0]
        assert (target.url, target.engine, target.pid) == ("http://127.0.0.1:18199", "xllamacpp 1", os.getpid())
        assert (target.log, target.parameters) == ("/var/log/llama.log", (("spec-type", "ngram-mod"),))
        named = target_for_url("http://localhost:18199", env, origin="--url")
        assert named == replace(target, url="http://localhost:18199", origin=f"--url; {target.origin}")
        for url in ("http://127.0.0.1:18198", "http://box:18199"):
            target = target_for_url(url, env)
            assert (target.url, target.log, target.origin) == (url, None, "--url")

    def test_the_key_is_the_first_of_the_variable_the_env_file_or_the_key_file(
        self, env: dict[str, str], tmp_path: Path
    ) -> None:
        """`LLAMA_API_KEY=old,new` is how keys are changed without an outage (docs/apply.md)."""
        record(env, api_key_env="LLAMA_API_KEY")
        assert discover(env)[0].api_key is None
        assert discover({**env, "LLAMA_API_KEY": "K1,K2"})[0].api_key == "K1"
        file, keys = tmp_path / "llama.env", tmp_path / "keys"
        file.write_text("LLAMA_API_KEY=old, new\n")
        record(env, api_key_env="LLAMA_API_KEY", env_file=str(file))
        assert discover(env)[0].api_key == "old"
        record(env, api_key_file=str(keys))
        assert discover(env)[0].api_key is None
        keys.write_text("# of the clients\n\nK4\nK5\n")
        assert discover(env)[0].api_key == "K4"

    @pytest.mark.parametrize("is_alive", [True, False])
    def test_a_listener_of_another_user_or_of_one_that_is_not_known_gets_no_key(
        self, env: dict[str, str], tmp_path: Path, is_alive: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with listening_as_another_user() as (url, heard), zombie() as pid:
            leave_key(env, tmp_path, url, **({} if is_alive else {"pid": pid, "pid_started": began(pid)}))
            assert target_for_url(url, env).api_key is None
            assert not any(target.api_key for target in discover(env))
            assert heard == []
            monkeypatch.setattr("specdash.collect.discover.listener_owners", lambda _port: None)
            assert target_for_url(url, env).api_key is None

    def test_one_that_listens_there_only_later_gets_none_either(self, env: dict[str, str], tmp_path: Path) -> None:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        with zombie() as pid:
            leave_key(env, tmp_path, url, pid=pid, pid_started=began(pid))
            target = target_for_url(url, env)
        assert target.api_key == "K4"
        with listening_as_another_user(port) as (_, heard):
            refused = asyncio.run(looked_at(target))
        assert b"".join(heard) == b""
        assert refused == Failure(FailureKind.UNREACHABLE, "another user's program listens there, and gets no key")

    @pytest.mark.parametrize("changes", [{"pid": 2**22 + 5}, {"pid_started": 1.0}, {"url": "no address"}])
    def test_a_record_of_another_life_is_void(self, env: dict[str, str], changes: dict[str, Any]) -> None:
        record(env, **changes)
        assert not [target for target in discover(env) if "run record" in target.origin]

    def test_the_record_of_a_backend_that_ended_and_was_not_reaped_is_void(self, env: dict[str, str]) -> None:
        with zombie() as pid:
            record(env, pid=pid, pid_started=began(pid))
            assert not [target for target in discover(env) if "run record" in target.origin]
            assert ended_run(env=env) is not None

    def test_a_listener_of_our_own_user_gets_the_key_of_what_ran_there_last(
        self, env: dict[str, str], tmp_path: Path
    ) -> None:
        with FaultServer({"/props": says(200, "{}")}) as server, zombie() as pid:
            leave_key(env, tmp_path, server.url, pid=pid, pid_started=began(pid))
            target = target_for_url(server.url, env)
            assert target.api_key == "K4"
            asyncio.run(looked_at(target))
            assert "Bearer K4" in server.asked("/props")[0].head


def test_a_target_has_what_its_newest_run_record_says_and_keeps_it_between_two_engines(env: dict[str, str]) -> None:
    target = Target("http://127.0.0.1:18199", log="/mine.log", log_named=True)
    assert with_record(target, env) == target
    record(env)
    record(env, "other", url="http://127.0.0.1:9999", engine="another")
    known = with_record(target, env)
    assert (known.engine, known.log, known.parameters) == ("xllamacpp 1", "/mine.log", (("spec-type", "ngram-mod"),))
    assert with_record(replace(target, log_named=False), env).log == "/var/log/llama.log"
    record(env, start_check=StartCheck(Drafting.FAILED, 1.0, "because", "do that", pending=False))
    later = with_record(known, env)
    assert later.start_check is not None, "a verdict is written into the same file"
    (run_records_dir(env) / "1.json").unlink()
    assert with_record(later, env) == later


@pytest.fixture
def llama_process(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A process named llama-server with a command line and a standard error file like a real one."""
    log = tmp_path / "stderr.log"
    arguments = ["60", "--port", "18197", "--spec-type", "ngram-mod", "--api-key", "hunter2"]
    with log.open("wb") as stderr:
        # sh ignores further arguments of -c, so the process lives and shows them.
        command = [str(tmp_path / "llama-server"), "-c", "read x", *arguments]
        process = subprocess.Popen(command, executable="/bin/sh", stderr=stderr, stdin=subprocess.PIPE)
    try:
        yield process, log
    finally:
        process.kill()
        process.communicate(timeout=10)


class TestProcesses:
    def test_a_running_server_is_found_with_all_that_its_command_line_tells(
        self, env: dict[str, str], llama_process: tuple[subprocess.Popen[bytes], Path]
    ) -> None:
        process, log = llama_process
        deadline = time.monotonic() + 10
        while not (found := [t for t in discover(env) if t.pid == process.pid]):
            assert time.monotonic() < deadline
        (target,) = found
        assert target.url == "http://127.0.0.1:18197"
        assert target.parameters == (("spec-type", "ngram-mod"),)
        assert target.log == str(log)
        assert target.api_key is None
        assert "wants an API key" in target.origin
        assert "hunter2" not in repr(target)

    def test_run_records_go_first_and_a_server_is_named_once(
        self, env: dict[str, str], llama_process: tuple[subprocess.Popen[bytes], Path]
    ) -> None:
        record(env, url="http://localhost:18197")
        found = [target for target in discover(env) if "18197" in target.url]
        assert [target.origin.split()[0] for target in found] == ["run"]


class TestCommandLines:
    @pytest.mark.parametrize(
        ("command", "is_one"),
        [
            (["/opt/llama-server", "-m", "x.gguf"], True),
            (["llama-server-cuda"], True),
            (["python", "-m", "specdash.backend.embedded"], True),
            (["python", "llama-server.py"], False),
            (["vim", "llama-server"], False),
            ([], False),
        ],
    )
    def test_what_is_a_llama_server(self, command: list[str], is_one: bool) -> None:
        assert is_llama_server(command) is is_one

    def test_flags_in_all_their_spellings(self) -> None:
        arguments = server_arguments(
            ["llama-server", "--host", "0.0.0.0", "--port=81", "--log_file", "a.log", "-md", "d.gguf", "--api-key-file",
             "k", "--spec-draft-n-max", "8", "--no-spec-draft-backend-sampling", "-ngl", "-1", "--unknown", "7"],
            cwd="/srv",
        )  # fmt: skip
        assert arguments.url() == "http://127.0.0.1:81"
        assert arguments.log == "/srv/a.log"
        assert arguments.needs_key
        assert arguments.speculation == (
            ("spec-draft-model", "d.gguf"),
            ("spec-draft-n-max", "8"),
            ("spec-draft-backend-sampling", "off"),
        )

    def test_the_command_line_goes_before_the_environment(self) -> None:
        environment = {"LLAMA_ARG_PORT": "82", "LLAMA_ARG_HOST": "::", "LLAMA_ARG_SPEC_TYPE": "draft-mtp", "X": "1"}
        assert server_arguments(["llama-server"], environment).url() == "http://[::1]:82"
        arguments = server_arguments(["llama-server", "--port", "83", "--spec-type", "none"], environment)
        assert arguments.port == 83

    def test_chains_of_types_add_up_as_llama_server_adds_them(self) -> None:
        environment = {"LLAMA_ARG_SPEC_TYPE": "draft-mtp"}
        command = ["llama-server", "--spec-type", "ngram-mod", "--spec_type", "none"]
        assert server_arguments(command, environment).speculation == (("spec-type", "draft-mtp,ngram-mod"),)
        disabled = ["llama-server", "--spec-type", "ngram-mod,none"]
        assert server_arguments(disabled).speculation == (("spec-type", "ngram-mod,none"),)
        assert server_arguments(disabled, environment).speculation == (("spec-type", "draft-mtp"),)


@pytest.mark.parametrize("words", [["--port", "x"], ["--port", ""], ["--port", "0"], ["--port", "123456"], ["--port"]])
def test_a_port_that_is_none_is_unknown_and_a_socket_file_has_no_address(words: list[str]) -> None:
    assert server_arguments(["llama-server", *words]).port is None
    assert server_arguments(["llama-server", "--host", "/run/llama.sock", *words]).url() is None


def test_discovery_is_light_enough_for_every_command() -> None:
    heavy = {"httpx", "asyncio", "pydantic"}
    code = f"import sys; import specdash.collect.discover; print(sorted({heavy} & set(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert output.strip() == "[]"
