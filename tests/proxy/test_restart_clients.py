"""A proxy that is restarted under clients who keep their connections: none of them may lose a request."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING

import httpx
import pytest

from specdash.backend.launch import free_port
from specdash.control.keeper import Keeper
from specdash.system.sockets import open_listening
from support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

RESTARTS = 8
CLIENTS = 4


@pytest.mark.slow
def test_no_client_loses_a_request_whether_it_keeps_its_connection_or_not(tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    env_file = tmp_path / "proxy.env"
    env_file.write_text(f"PROXY_PORT={port}\nPROXY_EVENTS_FILE=off\nLLAMA_CPP_BASE=http://127.0.0.1:9/v1\n", "utf-8")
    argv = (sys.executable, "-m", "specdash", "proxy", "run", "--env-file", str(env_file))
    url = f"http://127.0.0.1:{port}/health"
    ended = threading.Event()
    answers: list[int] = []
    failures: list[str] = []

    def ask(*, keeps: bool) -> None:
        client = httpx.Client(timeout=30, trust_env=False)
        while not ended.is_set():
            try:
                answer = client.get(url) if keeps else httpx.get(url, timeout=30, trust_env=False)
                answers.append(answer.status_code)
            except httpx.HTTPError as error:
                failures.append(f"{type(error).__name__}: {error}")
        client.close()

    def wait_for_answers(count: int) -> None:
        until(lambda: not (len(answers) < count and not failures), 30, why=lambda: "the proxy does not answer")

    sockets = tuple(open_listening("127.0.0.1", port))
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    with Keeper() as keeper:

        def start() -> None:
            keeper.stop("proxy")
            keeper.start("proxy", argv, env, tmp_path / "out", stop_s=40.0, sockets=sockets)

        start()
        threads = [threading.Thread(target=ask, kwargs={"keeps": n % 2 == 0}) for n in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            for number in range(RESTARTS):
                wait_for_answers(5 * CLIENTS * (number + 1))
                start()
            wait_for_answers(5 * CLIENTS * (RESTARTS + 1))
        finally:
            ended.set()
            for thread in threads:
                thread.join(60)
    for item in sockets:
        item.close()
    assert failures == []
    assert set(answers) <= {200, 503}
