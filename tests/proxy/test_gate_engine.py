"""A real engine swapped again and again behind a real proxy under load: no client ever sees it."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from specdash.core.records import RunRecord
from support import tiny_models
from support.engines import RunningBackend, engine_env, running_backend, with_draft, write_env
from support.proxy_process import ProxyProcess, running_proxy
from support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

ENGINES = [pytest.param("xllamacpp", marks=pytest.mark.engine)]
SWAPS = 10
ASKED = [{"role": "user", "content": "the speculative decoder drafts"}]
WAYS: list[tuple[str, dict[str, Any], bytes]] = [
    ("/v1/messages", {"max_tokens": 24, "stream": True}, b"event: message_stop"),
    ("/v1/messages", {"max_tokens": 24}, b'"stop_reason"'),
    ("/v1/chat/completions", {"max_tokens": 24, "stream": True}, b"data: [DONE]"),
    ("/v1/chat/completions", {"max_tokens": 24}, b'"finish_reason"'),
]


class Clients:
    """Four that ask without pause, one each way, over connections of their own that they keep."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.wrong: list[str] = []
        self.answered = [0] * len(WAYS)
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(len(WAYS))]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def _ask(self, number: int) -> None:
        path, body, end = WAYS[number]
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = json.dumps({"model": "m", "messages": ASKED, **body})
        while not self._over.is_set():
            try:
                connection.request("POST", path, sent, {"content-type": "application/json"})
                answer = connection.getresponse()
                said = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self.wrong.append(f"{path} {body}: {error!r}")
                connection.close()
                continue
            if answer.status != 200 or end not in said or b'"error"' in said:
                self.wrong.append(f"{path} {body}: {answer.status} {said[-300:]!r}")
            self.answered[number] += 1
        connection.close()


def wait_swapped(backend: RunningBackend, old: int) -> int:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for file in backend.records():
            with contextlib.suppress(FileNotFoundError):  # the old one goes with its engine
                record = RunRecord.from_json(file.read_text(encoding="utf-8"))
                if record is not None and record.pid != old:
                    return record.pid
        time.sleep(0.01)
    pytest.fail("the engine was not swapped")


def swap(backend: RunningBackend, proxy: ProxyProcess, old: int, *, wait_health: bool) -> int:
    held = proxy.request("POST", "/admin/hold", {"reason": "swap", "wait_s": 60, "drain_s": 30}, timeout=40).json
    assert (held["held"], held["drained"], held["active"], held["streams"]) == (True, True, 0, 0)
    backend.process.send_signal(signal.SIGUSR1)
    pid = wait_swapped(backend, old)
    if wait_health:
        backend.wait_ready()
    proxy.resume()
    return pid


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("wait_health", [True, False], ids=["healthy", "loading"])
def test_ten_swaps_under_load_break_nothing(tmp_path: Path, engine: str, wait_health: bool) -> None:
    """Also when the proxy is resumed while the new engine only listens, and still loads its model."""
    models = tiny_models.build(tmp_path)
    values = with_draft(models, LLAMA_CTX_SIZE="8192", LLAMA_PARALLEL="4", **engine_env(engine))
    directory = tmp_path / "backend"
    with running_backend(values, directory) as backend, running_proxy(backend.url, tmp_path / "proxy") as proxy:
        record = RunRecord.from_json(backend.wait_record().read_text(encoding="utf-8"))
        assert record is not None
        pid = record.pid
        clients = Clients(proxy.port)
        try:
            for number in range(SWAPS):
                time.sleep(0.2)
                before = sum(clients.answered)
                changed = {**values, "LLAMA_PORT": str(backend.port), "LLAMA_DRAFT_MAX": str(2 + number)}
                write_env(directory / "backend.env", changed)
                pid = swap(backend, proxy, pid, wait_health=wait_health)
                wanted = before + 2 * len(WAYS)
                until(lambda wanted=wanted: sum(clients.answered) >= wanted)  # type: ignore[misc]
        finally:
            clients.close()
        assert clients.wrong == []
        assert min(clients.answered) >= SWAPS
        assert {event["outcome"] for event in proxy.events("request")} == {"ok"}
