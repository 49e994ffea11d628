"""Servers on this machine are found by their run records and their processes, in this order; proxies by records."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from collect.seen import leave
from specdash.collect.discover import (
    discover,
    ended_run,
    is_llama_server,
    server_arguments,
    target_for_url,
    with_proxy,
    with_record,
)
from specdash.core.readings import Failure, FailureKind, Props
from specdash.core.records import Drafting, ProxyRecord, RunRecord, StartCheck
from specdash.core.target import Target
from specdash.llama.client import LlamaClient
from specdash.system.processes import began
from support.ended import zombie
from support.fault_server import FaultServer, free_port, says
from support.waiting import until

NOBODY = 65534
SERVER = Target("http://127.0.0.1:8080")
PROXY = "http://127.0.0.1:4000"
ME = {"pid": os.getpid(), "pid_started": psutil.Process().create_time()}


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}


def recorded(env: dict[str, str], name: str = "1", **changes: Any) -> Path:
    """Leave the run record of a backend, this process unless `changes` name another one."""
    fields: dict[str, Any] = {
        **ME,
        "url": "http://127.0.0.1:18199",
        "engine": "xllamacpp 1",
        "log": "/var/log/llama.log",
        "parameters": (("spec-type", "ngram-mod"),),
    }
    return leave(env, RunRecord(**{**fields, **changes}), name)


def recorded_proxy(env: dict[str, str], name: str = "1", **changes: Any) -> Path:
    """Leave the run record of a proxy of `SERVER`."""
    fields: dict[str, Any] = {
        **ME,
        "url": PROXY,
        "upstream": "http://localhost:8080",
        "events": "/state/proxy-events.jsonl",
    }
    return leave(env, ProxyRecord(**{**fields, **changes}), name)


def recorded_with_key(env: dict[str, str], url: str, **changes: Any) -> None:
    file = Path(env["HOME"]) / "llama.env"
    file.write_text("LLAMA_API_KEY=K4\n")
    recorded(env, url=url, api_key_env="LLAMA_API_KEY", env_file=str(file), **changes)


def looked_at(target: Target) -> Props | Failure:
    async def look() -> Props | Failure:
        async with contextlib.aclosing(LlamaClient(target)) as client:
            return await client.props()

    return asyncio.run(look())


@contextlib.contextmanager
def server_of_another_user(port: int = 0) -> Iterator[FaultServer]:
    """A server that belongs to the user nobody."""
    if os.geteuid() != 0:
        pytest.skip("only root can listen as another user")
    os.seteuid(NOBODY)
    try:
        server = FaultServer(port=port)
    finally:
        os.seteuid(0)
    with server:
        yield server


class TestRunRecords:
    def test_a_live_record_gives_an_address_what_the_server_does_not(self, env: dict[str, str]) -> None:
        recorded(env).with_name("0.json").write_bytes(b"\xff{")
        target = discover(env)[0]
        assert (target.url, target.engine, target.pid) == ("http://127.0.0.1:18199", "xllamacpp 1", os.getpid())
        assert (target.log, target.parameters) == ("/var/log/llama.log", (("spec-type", "ngram-mod"),))
        named = target_for_url("http://localhost:18199", env, origin="--url")
        assert named == replace(target, url="http://localhost:18199", origin=f"--url; {target.origin}")
        for url in ("http://127.0.0.1:18198", "http://box:18199"):
            assert target_for_url(url, env) == Target(url)

    def test_the_key_is_the_first_of_the_variable_the_env_file_or_the_key_file(self, env: dict[str, str]) -> None:
        """`LLAMA_API_KEY=old,new` is how keys are changed without an outage (docs/apply.md)."""
        recorded(env, api_key_env="LLAMA_API_KEY")
        assert discover(env)[0].api_key is None
        assert discover({**env, "LLAMA_API_KEY": "K1,K2"})[0].api_key == "K1"
        recorded_with_key(env, "http://127.0.0.1:18199")
        assert discover(env)[0].api_key == "K4"
        keys = Path(env["HOME"]) / "keys"
        recorded(env, api_key_file=str(keys))
        assert discover(env)[0].api_key is None
        keys.write_text("# of the clients\n\nK5\nK6\n")
        assert discover(env)[0].api_key == "K5"

    @pytest.mark.parametrize("is_alive", [True, False])
    def test_a_listener_of_another_user_or_of_one_that_is_not_known_gets_no_key(
        self, env: dict[str, str], is_alive: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with server_of_another_user() as server, zombie() as pid:
            recorded_with_key(env, server.url, **({} if is_alive else {"pid": pid, "pid_started": began(pid)}))
            assert target_for_url(server.url, env).api_key is None
            assert not any(target.api_key for target in discover(env))
            assert server.connections == 0
            monkeypatch.setattr("specdash.collect.discover.listener_owners", lambda _port: None)
            assert target_for_url(server.url, env).api_key is None

    def test_one_that_listens_there_only_later_gets_none_either(self, env: dict[str, str]) -> None:
        port = free_port()
        with zombie() as pid:
            recorded_with_key(env, f"http://127.0.0.1:{port}", pid=pid, pid_started=began(pid))
            target = target_for_url(f"http://127.0.0.1:{port}", env)
        assert target.api_key == "K4"
        with server_of_another_user(port) as server:
            refused = looked_at(target)
        assert server.calls == []
        assert refused == Failure(FailureKind.UNREACHABLE, "another user's program listens there, and gets no key")

    def test_a_listener_of_our_own_user_gets_the_key_of_what_ran_there_last(self, env: dict[str, str]) -> None:
        with FaultServer({"/props": says(200, "{}")}) as server, zombie() as pid:
            recorded_with_key(env, server.url, pid=pid, pid_started=began(pid))
            looked_at(target_for_url(server.url, env))
            assert "Bearer K4" in server.asked("/props")[0].head

    def test_a_record_of_another_life_and_of_a_zombie_is_void(self, env: dict[str, str]) -> None:
        with zombie() as pid:
            recorded(env, "1", pid=pid, pid_started=began(pid))
            recorded(env, "2", pid=2**22 + 5)
            recorded(env, "3", pid_started=1.0)
            recorded(env, "4", url="no address")
            assert not [target for target in discover(env) if "run record" in target.origin]
            assert ended_run(env=env) is not None

    def test_a_target_has_what_its_newest_record_says_and_keeps_it_between_two_engines(
        self, env: dict[str, str]
    ) -> None:
        target = Target("http://127.0.0.1:18199", log="/mine.log", log_named=True)
        assert with_record(target, env) == target
        recorded(env, "other", url="http://127.0.0.1:9999", engine="another")
        file = recorded(env, start_check=StartCheck(Drafting.FAILED, 1.0, "because", "do that", pending=False))
        known = with_record(target, env)
        assert (known.engine, known.parameters) == ("xllamacpp 1", (("spec-type", "ngram-mod"),))
        assert (known.log, known.start_check is not None) == ("/mine.log", True)
        assert with_record(replace(target, log_named=False), env).log == "/var/log/llama.log"
        file.unlink()
        assert with_record(known, env) == known


def test_a_process_is_found_with_all_that_its_command_line_tells_unless_its_record_goes_first(
    env: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "stderr.log"
    arguments = ["60", "--port", "18197", "--spec-type", "ngram-mod", "--api-key", "hunter2"]
    # sh ignores further arguments of -c, so the process lives and shows them.
    command = [str(tmp_path / "llama-server"), "-c", "read x", *arguments]
    with (
        log.open("wb") as stderr,
        subprocess.Popen(command, executable="/bin/sh", stderr=stderr, stdin=subprocess.PIPE) as process,
    ):
        until(lambda: any(target.pid == process.pid for target in discover(env)))
        (target,) = (target for target in discover(env) if target.pid == process.pid)
        recorded(env, url="http://localhost:18197")
        assert [target.origin.split()[0] for target in discover(env) if "18197" in target.url] == ["run"]
        process.communicate(b"\n", timeout=10)
    assert target.url == "http://127.0.0.1:18197"
    assert (target.parameters, target.log, target.api_key) == ((("spec-type", "ngram-mod"),), str(log), None)
    assert "wants an API key" in target.origin
    assert "hunter2" not in repr(target)


class TestCommandLines:
    def test_what_is_a_llama_server(self) -> None:
        ours, others = (
            ("/opt/llama-server-cuda -m x.gguf", "python -m specdash.backend.embedded"),
            ("", "vim llama-server"),
        )
        assert [is_llama_server(command.split()) for command in (*ours, *others)] == [True, True, False, False]

    def test_flags_in_all_their_spellings(self) -> None:
        arguments = server_arguments(
            ["llama-server", "--host", "0.0.0.0", "--port=81", "--log_file", "a.log", "-md", "d.gguf", "--api-key-file",
             "k", "--spec-draft-n-max", "8", "--no-spec-draft-backend-sampling", "-ngl", "-1", "--unknown", "7"],
            cwd="/srv",
        )  # fmt: skip
        assert (arguments.url(), arguments.log, arguments.needs_key) == ("http://127.0.0.1:81", "/srv/a.log", True)
        assert arguments.speculation == (
            ("spec-draft-model", "d.gguf"),
            ("spec-draft-n-max", "8"),
            ("spec-draft-backend-sampling", "off"),
        )

    @pytest.mark.parametrize(
        ("words", "url"),
        [
            ("", "http://[::1]:82"),
            ("--port 83", "http://[::1]:83"),
            ("--host box --port x", "http://box:8080"),
            ("--host box --port 0", "http://box:8080"),
            ("--port", "http://[::1]:82"),
            ("--host /run/llama.sock", None),
        ],
    )
    def test_the_command_line_goes_before_the_environment(self, words: str, url: str | None) -> None:
        environment = {"LLAMA_ARG_PORT": "82", "LLAMA_ARG_HOST": "::", "X": "1"}
        assert server_arguments(["llama-server", *words.split()], environment).url() == url

    @pytest.mark.parametrize(
        ("words", "environment", "chain"),
        [
            ("--spec-type ngram-mod --spec_type none", {"LLAMA_ARG_SPEC_TYPE": "draft-mtp"}, "draft-mtp,ngram-mod"),
            ("--spec-type ngram-mod,none", {"LLAMA_ARG_SPEC_TYPE": "draft-mtp"}, "draft-mtp"),
            ("--spec-type ngram-mod,none", {}, "ngram-mod,none"),
        ],
    )
    def test_chains_of_types_add_up_as_llama_server_adds_them(
        self, words: str, environment: dict[str, str], chain: str
    ) -> None:
        found = server_arguments(["llama-server", *words.split()], environment)
        assert found.speculation == (("spec-type", chain),)


class TestProxies:
    def test_a_server_gets_the_proxy_whose_upstream_it_is_with_its_key(self, env: dict[str, str]) -> None:
        recorded_proxy(env, "other", upstream="http://127.0.0.1:9999", url="http://127.0.0.1:5000")
        recorded_proxy(env)
        found = with_proxy(SERVER, env)
        assert (found.proxy_url, found.proxy_log) == (PROXY, "/state/proxy-events.jsonl")
        assert found.proxy_origin == f"run record of process {os.getpid()}"
        file = Path(env["HOME"]) / "proxy.env"
        file.write_text("PROXY_API_KEY=sk-file\n")
        recorded_proxy(env, api_key_env="PROXY_API_KEY", env_file=str(file), events=None, log="/var/log/proxy.log")
        found = with_proxy(SERVER, env)
        assert (found.proxy_key, found.proxy_log) == ("sk-file", None), "its text log is not read for events"
        assert with_proxy(SERVER, {**env, "PROXY_API_KEY": "sk-env"}).proxy_key == "sk-env"

    def test_a_record_of_a_dead_or_another_proxy_is_void(self, env: dict[str, str]) -> None:
        recorded_proxy(env, "1", pid_started=1.0).with_name("broken.json").write_text('{"pid": 1')
        recorded_proxy(env, "2", upstream="http://127.0.0.1:8081")
        recorded_proxy(env, "3", url="ftp://x")
        assert with_proxy(SERVER, env) == SERVER

    def test_what_the_user_named_of_a_proxy_stays(self, env: dict[str, str]) -> None:
        recorded_proxy(env)
        named = replace(SERVER, proxy_url="http://127.0.0.1:9", proxy_origin="--proxy-url")
        assert with_proxy(named, env) == named
        found = with_proxy(replace(SERVER, proxy_log="/mine.log", proxy_key="sk-mine"), env)
        assert (found.proxy_url, found.proxy_log, found.proxy_key) == (PROXY, "/mine.log", "sk-mine")
        assert found.proxy_found == ("proxy_url", "proxy_origin")

    def test_one_that_was_found_stays_while_it_runs_and_until_another_is_found(self, env: dict[str, str]) -> None:
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
            recorded_proxy(env, pid=other.pid, pid_started=psutil.Process(other.pid).create_time())
            found = with_proxy(replace(SERVER, proxy_log="/mine.log"), env)
            younger = recorded_proxy(env, "younger", url="http://127.0.0.1:4444")
            assert with_proxy(found, env) == found
            younger.unlink()
            other.communicate(b"\n", timeout=10)
        assert with_proxy(found, env) == found
        recorded_proxy(env, "2", url="http://127.0.0.1:4001")
        found = with_proxy(found, env)
        assert (found.proxy_url, found.proxy_log) == ("http://127.0.0.1:4001", "/mine.log")
