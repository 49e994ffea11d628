"""A real llama-server in router mode, with small models of its own."""

import contextlib
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from specdash.backend.launch import free_port
from support.asking import ask
from support.engines import llama_server_binary
from support.tiny_models import write_llama
from support.waiting import until

_START_S = 30.0


class Router:
    """A router that listens."""

    def __init__(self, port: int, log: Path, pid: int) -> None:
        self.port = port
        self.pid = pid
        self.url = f"http://127.0.0.1:{port}"
        self.log = log

    def get(self, path: str) -> Any:
        """The JSON at `path`."""
        return ask(self.url + path, timeout=20)

    def states(self) -> dict[str, str]:
        """State by model."""
        return {row["id"]: row["status"]["value"] for row in self.get("/models")["data"]}

    def use(self, model: str) -> None:
        """Have a model generate a few tokens; the router loads it for that. A model that fails to load is no error."""
        body = {"model": model, "messages": [{"role": "user", "content": "the"}], "max_tokens": 4}
        with contextlib.suppress(urllib.error.HTTPError):
            ask(f"{self.url}/v1/chat/completions", body)

    def unload(self, model: str) -> None:
        """Have the router end a model's server, and wait until it has."""
        ask(f"{self.url}/models/unload", {"model": model})
        until(lambda: self.states()[model] == "unloaded")

    def kill(self, model: str) -> None:
        """Kill a model's server from outside, and wait until the router has seen it."""
        (row,) = (row for row in self.get("/models")["data"] if row["id"] == model)
        port = row["status"]["args"][row["status"]["args"].index("--port") + 1]
        (child,) = (
            child for child in psutil.Process(self.pid).children() if f"--port {port}" in " ".join(child.cmdline())
        )
        child.kill()
        until(lambda: self.states()[model] == "unloaded")


@contextlib.contextmanager
def running_router(directory: Path, *, sleep_s: int = -1) -> Iterator[Router]:
    """Models `alpha` (draft-simple; falls asleep when idle for `sleep_s` seconds), `beta` (ngram-mod) and `broken`."""
    target, draft = write_llama(directory / "target.gguf"), write_llama(directory / "draft.gguf", wrong_every=8)
    presets = directory / "presets.ini"
    presets.write_text(
        f"[alpha]\nmodel = {target}\nctx-size = 2048\nalias = first\nspec-type = draft-simple\nmodel-draft = {draft}\n"
        f"sleep-idle-seconds = {sleep_s}\n\n[beta]\nmodel = {target}\nctx-size = 2048\nspec-type = ngram-mod\n\n"
        f"[broken]\nmodel = {directory / 'none.gguf'}\n",
        encoding="utf-8",
    )
    port, log = free_port("127.0.0.1"), directory / "router.log"
    command = [llama_server_binary(), "--models-preset", str(presets), "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--metrics"], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    router = Router(port, log, process.pid)
    try:
        _wait(process, router)
        yield router
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


def _wait(process: subprocess.Popen[bytes], router: Router) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, router.log.read_text(encoding="utf-8", errors="replace")
        with contextlib.suppress(OSError, ValueError):
            router.get("/models")
            return
        time.sleep(0.02)
    raise AssertionError(router.log.read_text(encoding="utf-8", errors="replace"))
