"""The proxies that the bundled one is measured beside: where they come from, and how each is started.

They are fetched once into `.cache/peers`, with the clients of their registries; without a network they are missing, and
the figures say so.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from specdash.backend.launch import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "peers"
UAP = "1.13.15"
LITELLM = "1.106.2"
FETCH_S = 600
START_S = 90.0


class MissingError(Exception):
    """A peer cannot be had here; says why."""


@dataclass(frozen=True, slots=True)
class Running:
    """A proxy that answers."""

    url: str
    pid: int

    def rss_mb(self) -> float:
        """Resident memory of the process and its children, in MB."""
        process = psutil.Process(self.pid)
        return sum(child.memory_info().rss for child in (process, *process.children(recursive=True))) / 1e6


def _python(name: str, *packages: str) -> str:
    folder = CACHE / name
    python = folder / "bin" / "python"
    if not python.exists():
        _fetch([sys.executable, "-m", "venv", str(folder)])
    if not (folder / "ready").exists():
        _fetch([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages])
        (folder / "ready").touch()
    return str(python)


def _fetch(command: list[str], cwd: Path | None = None) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=FETCH_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"{command[0]}: {error}") from None
    if done.returncode != 0:
        said = [line for line in (done.stderr or done.stdout).splitlines() if "rror" in line] or [
            f"{command[0]} failed"
        ]
        raise MissingError(said[0][:200])


def _uap(upstream: str, port: int, folder: Path) -> tuple[list[str], dict[str, str]]:
    CACHE.mkdir(parents=True, exist_ok=True)
    package = CACHE / "package"
    script = package / "tools" / "agents" / "scripts" / "anthropic_proxy.py"
    if not script.exists():
        _fetch(["npm", "pack", f"@miller-tech/uap@{UAP}"], cwd=CACHE)
        _fetch(["tar", "xzf", next(str(path) for path in CACHE.glob("*.tgz"))], cwd=CACHE)
    python = _python("uap-venv", "fastapi", "httpx", "uvicorn")
    env = {"LLAMA_CPP_BASE": f"{upstream}/v1", "PROXY_HOST": "127.0.0.1", "PROXY_PORT": str(port)}
    del folder
    return [python, str(script)], {**env, "PROXY_LOG_LEVEL": "WARNING"}


def _litellm(upstream: str, port: int, folder: Path) -> tuple[list[str], dict[str, str]]:
    python = _python("litellm-venv", f"litellm[proxy]=={LITELLM}")
    config = folder / "litellm.yaml"
    config.write_text(
        "model_list:\n  - model_name: m\n    litellm_params:\n"
        f"      model: hosted_vllm/m\n      api_base: {upstream}/v1\n      api_key: none\n"
        "general_settings:\n  dangerously_permit_weak_or_unset_master_key: true\n",
        encoding="utf-8",
    )
    program = str(Path(python).parent / "litellm")
    command = [program, "--config", str(config), "--port", str(port), "--host", "127.0.0.1"]
    return command, {"LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION", "LITELLM_TELEMETRY": "False"}


def _specdash(upstream: str, port: int, folder: Path) -> tuple[list[str], dict[str, str]]:
    env_file = folder / f"proxy-{port}.env"
    env_file.write_text(
        f"LLAMA_CPP_BASE={upstream}/v1\nPROXY_PORT={port}\nPROXY_EVENTS_FILE={folder}/events.jsonl\n", encoding="utf-8"
    )
    command = [sys.executable, "-m", "specdash", "proxy", "run", "--env-file", str(env_file)]
    return command, {"XDG_STATE_HOME": str(folder)}


STARTS = {"specdash": _specdash, f"UAP proxy {UAP}": _uap, f"litellm {LITELLM}": _litellm}
"""Name of each proxy: what gives its command and the environment it needs besides ours."""


@contextlib.contextmanager
def running(name: str, upstream: str, folder: Path) -> Iterator[Running]:
    """Start a proxy in front of `upstream` and end it afterwards. Raises `MissingError` when it cannot be had."""
    port = free_port("127.0.0.1")
    command, env = STARTS[name](upstream, port, folder)
    with started(command, env, folder / f"{name.split(maxsplit=1)[0]}.log", port) as process:
        yield Running(f"http://127.0.0.1:{port}", process.pid)


@contextlib.contextmanager
def started(command: list[str], env: dict[str, str], log: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that listens on `port`; ended afterwards."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **env})
    try:
        deadline = time.monotonic() + START_S
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
                raise MissingError(f"did not start: {' '.join(tail)[:200]}")
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
