"""The real llama-server with `LLAMA_ARG_*` variables alone: what llama.cpp itself makes of settings."""

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from specdash.backend.launch import free_port
from support.asking import ask, complete, healthy
from support.engines import llama_server_binary

_START_S = 30.0
_PROMPT = "the speculative decoder drafts several tokens with a"
_BUFFER = re.compile(r"(model|KV|RS|compute) buffer size = +([\d.]+) MiB")


class Outcome(Struct, frozen=True):
    """How a run went. `answered`: a completion came back; `drafted`: tokens it drafted."""

    started: bool
    speculative: bool
    answered: bool
    drafted: int
    log: str

    def buffers(self, kind: str) -> list[float]:
        """Sizes of the buffers of a kind (model, KV, RS, compute) in MiB, in the order of the log."""
        return [float(size) for name, size in _BUFFER.findall(self.log) if name == kind]


def try_out(settings: Mapping[str, str], directory: Path) -> Outcome:
    """Start llama-server with the settings, ask one completion, and stop it."""
    process, url, log = _start(settings, directory)
    try:
        started = wait_up(process, url)
        speculative, drafted, answered = False, 0, False
        if started:
            with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
                speculative = bool(ask(f"{url}/slots")[0]["speculative"])
                timings = complete(url, _PROMPT, 48)["timings"]
                answered, drafted = True, int(timings.get("draft_n") or 0)
    finally:
        process.kill()
        process.wait(10)
    return Outcome(started, speculative, answered, drafted, log.read_text(encoding="utf-8", errors="replace"))


def bodies(settings: Mapping[str, str], directory: Path, paths: Iterable[str]) -> dict[str, Any]:
    """What llama-server with the settings answers at these paths; nothing where it does not start."""
    process, url, _ = _start(settings, directory)
    try:
        return {path: ask(url + path) for path in paths} if wait_up(process, url) else {}
    finally:
        process.kill()
        process.wait(10)


def _start(settings: Mapping[str, str], directory: Path) -> tuple[subprocess.Popen[bytes], str, Path]:
    port = free_port("127.0.0.1")
    log = directory / "native.log"
    env = {**os.environ, "LLAMA_ARG_HOST": "127.0.0.1", "LLAMA_ARG_PORT": str(port), **settings}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [llama_server_binary(), "--no-warmup"], env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    return process, f"http://127.0.0.1:{port}", log


def wait_up(process: subprocess.Popen[bytes], url: str) -> bool:
    """Whether it answers that it is healthy, before it ends."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        if healthy(url):
            return True
        time.sleep(0.02)
    return False
