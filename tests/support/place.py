"""A home with the env files of a scripted engine and of a real proxy, and `specdash` as a command in it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from specdash.backend.demo import env_text, proxy_env_text
from specdash.backend.launch import free_port
from specdash.collect.run_records import live_backends, live_proxies
from specdash.control.deployment import main_pid
from specdash.core.env_edit import with_changes
from specdash.core.envfile import parse
from specdash.core.paths import backend_env_file, proxy_env_file
from support.asking import healthy
from support.help_engine import scripted_engine
from support.waiting import until

START_S = 60.0


@dataclass
class Place:
    """A home with an env file of each: of a scripted engine, and of a real proxy."""

    home: Path
    env: dict[str, str]
    backend_url: str
    proxy_url: str
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def up(self, *words: str) -> subprocess.Popen[bytes]:
        return self.start("up", *words)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        with (self.home / "said").open("ab") as said:
            command = [sys.executable, "-m", "specdash", *words]
            process = subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        self.started.append(process)
        return process

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "specdash", *words],
            env=self.env, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    @property
    def said(self) -> str:
        return (self.home / "said").read_text(encoding="utf-8")

    def ready(self) -> None:
        until(lambda: healthy(self.backend_url) and healthy(self.proxy_url), START_S, lambda: self.said)
        until(lambda: bool(live_backends(self.env)), START_S)

    def pids(self) -> dict[str, int]:
        """The runner, its engine and the proxy."""
        (backend,), (proxy,) = live_backends(self.env), live_proxies(self.env)
        return {"runner": main_pid(backend), "engine": backend.pid, "proxy": proxy.pid}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "SPECDASH_"))}
    env |= {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    ports = free_port("127.0.0.1"), free_port("127.0.0.1")
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    backend, proxy = backend_env_file(env), proxy_env_file(env)
    backend.parent.mkdir(parents=True)
    text = env_text(port=ports[0], log=tmp_path / "engine.log", spec_types=("draft-simple",), engine="xllamacpp")
    text = with_changes(parse(text + "LLAMA_START_BASELINE=0\n"), scripted_engine(tmp_path))
    backend.write_text(text, encoding="utf-8")
    proxy.write_text(proxy_env_text(port=ports[1], upstream=urls[0], events=tmp_path / "events.jsonl"), "utf-8")
    found = Place(tmp_path, env, urls[0], urls[1])
    try:
        yield found
    finally:
        for process in found.started:
            process.terminate()
            process.wait(60)
