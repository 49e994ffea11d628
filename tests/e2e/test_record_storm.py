"""A dashboard that records on a real server; beside it every other command that knows the record, killed at random."""

import itertools
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from specdash.core.readings import Source
from specdash.history.store import Store
from support.asking import complete
from support.fault_server import free_port
from support.recording import env_of, file_of
from support.small_server import small_server
from support.terminal import Terminal
from support.waiting import until

pytestmark = [pytest.mark.tmux, pytest.mark.engine, pytest.mark.slow]
SPECDASH = [sys.executable, "-m", "specdash"]
STORM_S = 14.0
AT_ONCE = 2
GAP_S = 6.0
"""A killed leader's place is taken within seconds, on a machine that is busy with the storm."""


def commands(url: str, directory: Path) -> Iterator[list[str]]:
    """All that reads or writes the record, over and over."""
    named = ["--url", url]
    for number in itertools.count():
        yield ["record", *named, "--for", "5s"]
        yield ["snapshot", *named, "--json"]
        yield ["check", *named]
        yield ["history", "query", "decode", "--since", "-1m", "--json"]
        yield ["history", "events", "--since", "-1m"]
        yield ["history", "stats", "--check"]
        yield ["incident", *named, "--last", "90s", "--output", str(directory / f"bundle-{number}.tar.gz")]
        yield ["replay", "--headless", "--json"]


@pytest.mark.timeout(240)
def test_the_record_is_sound_after_a_storm_of_killed_commands_beside_a_dashboard(tmp_path: Path) -> None:
    chance, port = random.Random(7), free_port()
    url, env = f"http://127.0.0.1:{port}", {**os.environ, **env_of(tmp_path)}
    wanted, lock = commands(url, tmp_path), threading.Lock()
    failed: list[str] = []
    killed = []

    def run_one() -> None:
        """One command, killed at a moment that is anywhere in its life, or left to its end."""
        with lock:
            argv, patience = next(wanted), chance.choice([0.3, 0.6, 1.0, 2.0, 20.0])
        process = subprocess.Popen(
            [*SPECDASH, *argv], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        try:
            _, said = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            killed.append(argv[0])
            return
        if b"Traceback" in said or process.returncode < 0:
            failed.append(f"{argv}: {process.returncode} {said.decode()}")

    def storm(ends: float) -> None:
        while time.monotonic() < ends:
            run_one()

    with ExitStack() as stack:
        stack.enter_context(small_server(port, tmp_path / "server.log"))
        argv = [*SPECDASH, "watch", *("--url", url)]
        screen = stack.enter_context(Terminal(argv, env=env_of(tmp_path)))
        screen.wait_for("LIVE", within_s=40)
        until(file_of(tmp_path).exists, 20)
        began, ends = time.time(), time.monotonic() + STORM_S
        threads = [threading.Thread(target=storm, args=(ends,)) for _ in range(AT_ONCE)]
        for thread in threads:
            thread.start()
        while time.monotonic() < ends:
            complete(f"http://127.0.0.1:{port}", "The quick brown fox", 24)
            time.sleep(0.3)
        for thread in threads:
            thread.join(60)
        ended = time.time()
        time.sleep(1.5)
        assert "not recording" not in screen.screen
        assert "recording has a fault" not in screen.screen
        screen.press("q")
        assert screen.wait_exit() == 0
    assert not failed
    assert len(killed) > 5
    assert not list(file_of(tmp_path).parent.glob("*.corrupt-*"))
    with Store(file_of(tmp_path)) as store:
        assert not store.check()
        moments = [at for at, reading in store.readings(url, began, ended) if reading.source is Source.HEALTH]
        assert not store.damaged
    edges = [began, *moments, ended]
    assert max(after - before for before, after in itertools.pairwise(edges)) < GAP_S
