"""The proxy as a service: a real process, real signals, real sockets."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec.structs
import psutil
import pytest

from specdash.core.records import ProxyRecord
from support.engines import write_env
from support.fault_server import FaultServer, free_port, says
from support.proxy_process import ProxyProcess, running_proxy
from support.waiting import until, until_async

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.scripted_server import Call

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"
SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
WAIT_S = 10.0


class Generation:
    """An upstream's answer that begins, and ends when it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()

    async def __call__(self, call: Call) -> None:
        await call.write(SSE_HEAD + b"data: 1\n\n")
        self.begun.set()
        await until_async(self.go_on.is_set, 60)
        await call.write(b"data: 2\n\n")
        call.hang_up()


@pytest.fixture
def generation() -> Generation:
    return Generation()


@pytest.fixture
def upstream(generation: Generation) -> Iterator[FaultServer]:
    props = '{"default_generation_settings":{"n_ctx":4096}}'
    with FaultServer({"/props": says(200, props), "/v1/models": says(200, '{"data":[]}'), CHAT: generation}) as server:
        yield server
        generation.go_on.set()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    until(lambda: condition(), WAIT_S, why=lambda: what)


def stream_in_background(proxy: ProxyProcess) -> tuple[threading.Thread, list[bytes]]:
    """Read a stream to its end in a thread; its bytes are in the list once it ended."""
    found: list[bytes] = []

    def read() -> None:
        try:
            found.append(proxy.request("POST", CHAT, b'{"stream":true}').body)
        except (OSError, http.client.HTTPException) as error:
            found.append(repr(error).encode())

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread, found


class TestStart:
    def test_it_says_what_holds(self, upstream: FaultServer, tmp_path: Path) -> None:
        with running_proxy(upstream.url, tmp_path, {"PROXY_READ_TIMEOUT": "soon"}) as proxy:
            assert proxy.request("GET", "/health").status == 200
            lines = proxy.stderr.splitlines()
            assert lines[0].endswith(
                f" [INFO] specdash.proxy: Proxy started: listening on 127.0.0.1:{proxy.port} -> upstream {upstream.url}"
            )
            assert "[WARNING] specdash.proxy: " in proxy.stderr
            assert "PROXY_READ_TIMEOUT=soon" in proxy.stderr

    def test_it_leaves_a_record_and_takes_it_away(self, upstream: FaultServer, tmp_path: Path) -> None:
        with running_proxy(upstream.url, tmp_path, {"PROXY_API_KEY": "hush"}) as proxy:
            directory = tmp_path / "state" / "specdash" / "run" / "proxy"
            file, token = sorted(directory.iterdir(), key=lambda path: path.suffix)
            assert token.suffix == ".token"
            text = file.read_text()
            record = ProxyRecord.from_json(text)
            assert record is not None
            assert (record.url, record.upstream) == (proxy.url, upstream.url)
            assert (record.events, record.env_file) == (str(proxy.events_file), str(proxy.env_file))
            assert record.api_key_env == "PROXY_API_KEY"
            assert "hush" not in text
            assert {stat.S_IMODE(path.stat().st_mode) for path in (file, token)} == {0o600}
            process = psutil.Process(record.pid)
            assert abs(process.create_time() - record.pid_started) < 1
            assert proxy.stop() == 0
            assert list(directory.iterdir()) == []

    def test_a_log_that_cannot_be_written_ends_nothing(self, upstream: FaultServer, tmp_path: Path) -> None:
        (tmp_path / "proxy.stderr").symlink_to("/dev/full")
        with running_proxy(upstream.url, tmp_path) as proxy:
            assert proxy.request("GET", "/health").status == 200
            assert proxy.stop() == 0

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_an_idle_proxy_ends_at_once_with_success(
        self, upstream: FaultServer, tmp_path: Path, number: signal.Signals
    ) -> None:
        with running_proxy(upstream.url, tmp_path) as proxy, socket.create_connection(("127.0.0.1", proxy.port)):
            assert proxy.stop(number) == 0
            assert "Traceback" not in proxy.stderr


class TestDrain:
    def test_a_running_request_may_finish(self, upstream: FaultServer, generation: Generation, tmp_path: Path) -> None:
        with running_proxy(upstream.url, tmp_path) as proxy:
            thread, found = stream_in_background(proxy)
            assert generation.begun.wait(WAIT_S)
            proxy.send(signal.SIGTERM)
            wait_for(lambda: not accepts(proxy.port), "it still accepts connections")
            assert proxy.process.is_alive()
            generation.go_on.set()
            assert proxy.ended(WAIT_S) == 0
            thread.join(WAIT_S)
            assert found == [b"data: 1\n\ndata: 2\n\n"]

    def test_a_request_without_an_answer_is_told_to_come_back(self, upstream: FaultServer, tmp_path: Path) -> None:
        with running_proxy(upstream.url, tmp_path, {"PROXY_DRAIN_TIMEOUT": "0.3"}) as proxy:
            proxy.hold()
            thread, found = stream_in_background(proxy)
            proxy.wait_waiting(1)
            assert proxy.stop() == 0
            thread.join(WAIT_S)
            assert b"the proxy is stopping; try again" in found[0]

    def test_a_second_signal_ends_it_at_once(
        self, upstream: FaultServer, generation: Generation, tmp_path: Path
    ) -> None:
        with running_proxy(upstream.url, tmp_path, {"PROXY_DRAIN_TIMEOUT": "600"}) as proxy:
            stream_in_background(proxy)
            assert generation.begun.wait(WAIT_S)
            proxy.send(signal.SIGTERM)
            wait_for(lambda: "stopping: 1 running requests" in proxy.stderr, proxy.stderr)
            proxy.send(signal.SIGTERM)
            assert proxy.ended(WAIT_S) == 0
            upstream.asked(CHAT)[0].wait_left(WAIT_S)


class TestReload:
    def test_settings_change_without_dropping_a_stream(
        self, upstream: FaultServer, generation: Generation, tmp_path: Path
    ) -> None:
        with running_proxy(upstream.url, tmp_path) as proxy:
            thread, found = stream_in_background(proxy)
            assert generation.begun.wait(WAIT_S)
            rewrite(proxy, PROXY_LOG_LEVEL="DEBUG", PROXY_PORT=str(proxy.port + 1), PROXY_READ_TIMEOUT="soon")
            proxy.send(signal.SIGHUP)
            wait_for(lambda: "reload: " in proxy.stderr and "soon" in proxy.stderr, proxy.stderr)
            assert "reload: PROXY_LOG_LEVEL: INFO -> DEBUG" in proxy.stderr
            assert "reload: PROXY_PORT was changed: it counts after a restart" in proxy.stderr
            assert "PROXY_READ_TIMEOUT=soon" in proxy.request("GET", "/health").json["problems"][0]
            generation.go_on.set()
            thread.join(WAIT_S)
            assert found == [b"data: 1\n\ndata: 2\n\n"]


class TestSockets:
    def test_it_takes_the_sockets_systemd_passes(self, upstream: FaultServer, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
            ports = [item.getsockname()[1] for item in (first, second)]
            early = socket.create_connection(("127.0.0.1", ports[0]))
            early.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            process = activated([first, second], upstream, tmp_path)
            try:
                early.settimeout(WAIT_S * 2)
                assert b" 200 " in early.recv(100)
                early.close()
                for port in ports:
                    assert get_json(f"http://127.0.0.1:{port}/health")["proxy"] == "ok"
            finally:
                process.terminate()
                assert process.wait(WAIT_S) == 0
        assert f"listening on 127.0.0.1:{ports[0]}, 127.0.0.1:{ports[1]}" in (tmp_path / "err").read_text()

    def test_a_port_in_use_ends_the_command_with_its_own_code(self, upstream: FaultServer, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            process = start(["--port", str(port), "--upstream", upstream.url], tmp_path)
            assert process.wait(30) == 6
        assert (tmp_path / "err").read_text().startswith(f"specdash: port {port} of 127.0.0.1 is in use")


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def get_json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        return json.load(answer)


def rewrite(proxy: ProxyProcess, **values: str) -> None:
    lines = [f"{key}={value}\n" for key, value in {**proxy.values, **values}.items()]
    proxy.env_file.write_text("".join(lines))


def environment(directory: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(directory), "XDG_STATE_HOME": str(directory / "state")}


def start(arguments: list[str], directory: Path) -> subprocess.Popen[bytes]:
    with (directory / "err").open("wb") as stderr:
        command = [sys.executable, "-m", "specdash", "proxy", "run", *arguments]
        return subprocess.Popen(command, stderr=stderr, env=environment(directory))


def activated(sockets: list[socket.socket], upstream: FaultServer, directory: Path) -> subprocess.Popen[bytes]:
    """The proxy, with the sockets as its descriptors 3, 4 …, as systemd starts it."""
    program = (
        "import os, sys\n"
        "moved = [os.dup(int(one)) for one in sys.argv[1].split(',')]\n"
        "moved = [os.dup2(one, 60 + index) for index, one in enumerate(moved)]\n"
        "[os.dup2(one, 3 + index, inheritable=True) for index, one in enumerate(moved)]\n"
        "os.environ |= {'LISTEN_PID': str(os.getpid()), 'LISTEN_FDS': str(len(moved))}\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'specdash', 'proxy', 'run', *sys.argv[2:]])\n"
    )
    numbers = [item.fileno() for item in sockets]
    command = [sys.executable, "-c", program, ",".join(map(str, numbers)), "--upstream", upstream.url]
    with (directory / "err").open("wb") as stderr:
        return subprocess.Popen(command, stderr=stderr, env=environment(directory), pass_fds=numbers)


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ProxyProcess]:
    with running_proxy(f"http://127.0.0.1:{free_port()}", tmp_path) as proxy_process:
        yield proxy_process


def record(proxy: ProxyProcess) -> ProxyRecord:
    (file,) = (proxy.env_file.parent / "state" / "specdash" / "run" / "proxy").glob("*.json")
    assert file.stat().st_mode & 0o777 == 0o600
    found = ProxyRecord.from_json(file.read_text(encoding="utf-8"))
    assert found is not None
    return found


def digest(proxy: ProxyProcess) -> str:
    return hashlib.sha256(proxy.env_file.read_bytes()).hexdigest()


def test_the_digest_follows_each_reload(proxy: ProxyProcess) -> None:
    first = record(proxy)
    assert first.env_digest == digest(proxy)
    for threshold in ("9", "10"):
        write_env(proxy.env_file, {**proxy.values, "PROXY_LOOP_REPEAT_THRESHOLD": threshold})
        assert record(proxy).env_digest != digest(proxy)
        proxy.send(signal.SIGHUP)
        until(lambda: record(proxy).env_digest == digest(proxy))
    assert (record(proxy).pid, record(proxy).url) == (first.pid, first.url)


def test_a_refused_reload_leaves_the_digest_and_names_the_refused_version(proxy: ProxyProcess) -> None:
    before = record(proxy)
    proxy.env_file.write_text(proxy.env_file.read_text(encoding="utf-8") + "no assignment\n", encoding="utf-8")
    proxy.send(signal.SIGHUP)
    until(lambda: record(proxy).refused_digest == digest(proxy))
    after = record(proxy)
    assert "no '=' in the line" in (after.refused or "")
    assert msgspec.structs.replace(after, refused=None, refused_digest=None) == before
    assert "nothing was changed" in proxy.stderr
    assert proxy.request("GET", "/health").status == 200


def test_a_reload_that_is_asked_for_during_the_start_is_not_lost_and_ends_nothing(tmp_path: Path) -> None:
    proxy_process = ProxyProcess(f"http://127.0.0.1:{free_port()}", tmp_path)
    try:
        # Blocked once the command runs; a process that is only Python yet could not tell it from a kill.
        status = Path(f"/proc/{proxy_process.process.pid}/status")
        until(lambda: int(status.read_text().partition("SigBlk:")[2].split()[0], 16) >> (signal.SIGHUP - 1) & 1)
        proxy_process.send(signal.SIGHUP)
        proxy_process.wait_ready()
        until(lambda: "reload:" in proxy_process.stderr)
        assert proxy_process.stop() == 0
    finally:
        proxy_process.close()
