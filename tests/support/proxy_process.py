"""`specdash proxy run` in a process of its own, and what can be seen of it from outside."""

import contextlib
import http.client
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from specdash.backend.launch import free_port
from specdash.core.paths import proxy_records_dir
from support import forked
from support.engines import write_env
from support.waiting import until

START_S = 30.0
STOP_S = 40.0
ANSWER_S = 30.0
MESSAGES = "/v1/messages"


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer as it came."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class ProxyProcess:
    """A proxy in front of `upstream` (a root URL), with these PROXY_* values; it answers once `wait_ready` returns."""

    def __init__(self, upstream: str, directory: Path, values: Mapping[str, object] | None = None) -> None:
        self.port = free_port("127.0.0.1")
        self.url = f"http://127.0.0.1:{self.port}"
        directory.mkdir(parents=True, exist_ok=True)
        self.events_file = directory / "events.jsonl"
        self.stderr_file = directory / "proxy.stderr"
        self.env_file = directory / "proxy.env"
        self.values: dict[str, str] = {
            "LLAMA_CPP_BASE": f"{upstream}/v1",
            "PROXY_PORT": str(self.port),
            "PROXY_EVENTS_FILE": str(self.events_file),
            **{key: str(value) for key, value in (values or {}).items()},
        }
        write_env(self.env_file, self.values)
        home = {"HOME": str(directory), "XDG_STATE_HOME": str(directory / "state")}
        words = ["proxy", "run", "--env-file", str(self.env_file)]
        self.process = forked.start(words, {**os.environ, **home}, self.stderr_file)

    @property
    def env(self) -> dict[str, str]:
        """Where programs of the same user find its record."""
        home = self.env_file.parent
        return {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}

    @property
    def admin_token(self) -> str:
        """The token that it has left beside its record."""
        return (proxy_records_dir(self.env) / f"{self.process.pid}.token").read_text(encoding="ascii")

    @property
    def stderr(self) -> str:
        """What the proxy has logged so far."""
        return self.stderr_file.read_text(encoding="utf-8", errors="replace")

    def wait_ready(self) -> None:
        """Wait until /health answers, whatever it says of the upstream; fails with the log when it does not."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.process.is_alive():
            with contextlib.suppress(OSError):
                self.request("GET", "/health")
                return
            time.sleep(0.02)
        pytest.fail(f"the proxy did not start: {self.stderr}")

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = ANSWER_S,
    ) -> Answer:
        """One request on a connection of its own; `body` is bytes as they are, or JSON."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=timeout)
        with contextlib.closing(connection):
            opens = {"x-admin-token": self.admin_token} if path.startswith("/admin/") and headers is None else {}
            connection.request(method, path, data, {"content-type": "application/json", **opens, **(headers or {})})
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())

    def messages(self, body: Any, headers: Mapping[str, str] | None = None, timeout: float = ANSWER_S) -> Answer:
        """POST /v1/messages."""
        return self.request("POST", MESSAGES, body, headers, timeout)

    def context(self, session: str | None = None) -> Any:
        """GET /v1/context."""
        return self.request("GET", "/v1/context" + (f"?session_id={session}" if session else "")).json

    def active(self) -> list[Any]:
        """The requests that run now, as the proxy sees them."""
        found: list[Any] = self.context()["status"]["active"]
        return found

    def wait_idle(self, timeout: float = 10.0) -> None:
        """Wait until no request runs."""
        until(lambda: not self.active(), timeout, why=lambda: f"still active: {self.active()}")

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The events written so far."""
        if not self.events_file.exists():
            return []
        lines = self.events_file.read_text(encoding="utf-8").splitlines()
        values: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [value for value in values if kind is None or value["event"] == kind]

    def hold(self) -> None:
        """Let new requests wait."""
        assert self.request("POST", "/admin/hold", {"reason": "test"}).status == 200

    def resume(self) -> None:
        """Let them go on."""
        assert self.request("POST", "/admin/resume").status == 200

    def wait_waiting(self, count: int, timeout: float = 10.0) -> None:
        """Wait until this many requests wait because of the hold."""
        deadline = time.monotonic() + timeout
        while (seen := self.request("GET", "/admin/state").json["waiting"]) != count:
            assert time.monotonic() < deadline, f"{seen} requests wait, not {count}"
            time.sleep(0.01)

    def wait_events(self, count: int, kind: str = "request", timeout: float = 10.0) -> list[dict[str, Any]]:
        """The events of a kind, once there are that many; they may be written late."""
        deadline = time.monotonic() + timeout
        while len(found := self.events(kind)) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} {kind} events: {found}"
            time.sleep(0.02)
        return found

    def descriptors(self) -> int:
        """Open file descriptors of the process."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def connections_to(self, port: int) -> int:
        """Its open connections to a port of this machine."""
        found = psutil.Process(self.process.pid).net_connections("tcp")
        return sum(bool(pconn.raddr) and pconn.raddr.port == port for pconn in found)

    def rss(self) -> int:
        """Its resident memory in bytes."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def send(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.process.pid or 0, number)

    def ended(self, timeout: float = STOP_S) -> int:
        """Wait for its end; the exit code."""
        self.process.join(timeout)
        assert self.process.exitcode is not None, f"it runs on: {self.stderr}"
        return self.process.exitcode

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; the exit code."""
        self.send(number)
        return self.ended()

    def close(self) -> None:
        """End it if it still runs."""
        for end in (self.process.terminate, self.process.kill):
            if self.process.is_alive():
                end()
                self.process.join(5)


@contextlib.contextmanager
def running_proxy(upstream: str, directory: Path, values: Mapping[str, object] | None = None) -> Iterator[ProxyProcess]:
    """A proxy that answers, ended at the end."""
    proxy = ProxyProcess(upstream, directory, values)
    try:
        proxy.wait_ready()
        yield proxy
    finally:
        proxy.close()
