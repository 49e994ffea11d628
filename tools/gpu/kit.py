"""What every check works with: the engine that was built, models of any size, and the specdash command beside them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

GB = 1_000_000_000
START_S = 120.0
"""A 30 GB model is read from a disk that is not in memory yet."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Its output as JSON. Raises ValueError, with what it said, where it is none."""
        try:
            return json.loads(self.out)
        except ValueError as error:
            raise ValueError(f"exit code {self.code}, no JSON: {self.out[-500:]} {self.err[-1500:]}") from error


@dataclass(frozen=True, slots=True)
class Server:
    """A running llama-server."""

    url: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path

    def ask(self, path: str, body: Mapping[str, Any] | None = None, timeout: float = 120.0) -> Any:
        """Its answer to a GET, or to a POST of `body`, as JSON (or text, where it is none). Raises OSError."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})  # noqa: S310
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310 - our own server
            text = answer.read().decode()
        try:
            return json.loads(text)
        except ValueError:
            return text

    def complete(self, prompt: str | list[int], tokens: int = 64, **more: Any) -> Any:
        """A greedy completion, with `timings`."""
        asked = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "cache_prompt": False, **more}
        return self.ask("/completion", asked)


@dataclass(frozen=True, slots=True)
class Kit:
    """`scale` multiplies the sizes of models: 1 on a GPU, 0.02 in a dry run."""

    kit: Path
    work: Path
    out: Path
    llama_server: Path
    cpu: bool = False
    scale: float = 1.0

    def home(self, name: str) -> Path:
        """A folder of the check's own, in which specdash finds its configuration and keeps its state."""
        path = self.work / "homes" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def environment(self, home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a specdash command that keeps to `home`."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("LLAMA_", "SPECDASH_"))}
        folders = {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("CONFIG", "STATE", "CACHE")}
        return {**kept, **folders, "HOME": str(home), "TERM": "xterm-256color", **(more or {})}

    def specdash(
        self, home: Path, *words: str, timeout: float = 120.0, env: Mapping[str, str] | None = None, stdin: str = ""
    ) -> Answer:
        """Run `specdash WORDS`. Raises subprocess.TimeoutExpired; it and what it started are gone then."""
        process = subprocess.Popen(
            [sys.executable, "-m", "specdash", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(home, env),
            cwd=home,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(stdin, timeout)
        except subprocess.TimeoutExpired:
            _end_group(process)
            process.communicate()
            raise
        return Answer(process.returncode, out, err)

    def env_file(self, home: Path, name: str = "backend.env", **keys: object) -> Path:
        """A backend env file on the engine of the kit: `keys` are LLAMA_… keys; a free port unless one is given."""
        values = {
            "LLAMA_ENGINE": "llama-server",
            "LLAMA_BIN": str(self.llama_server),
            "LLAMA_HOST": "127.0.0.1",
            "LLAMA_PORT": str(free_port()),
            **{key: str(value) for key, value in keys.items()},
        }
        file = home / name
        file.write_text("".join(f'{key}="{value}"\n' for key, value in values.items()), encoding="utf-8")
        file.chmod(0o600)
        return file

    def model(self, name: str, gigabytes: float | None = None) -> Path:
        """A model of the kit by name; with a size, widened to it with zeros (`gpu.models`), written once."""
        source = self.kit.absolute() / "models" / f"{name}.gguf"
        if gigabytes is None:
            return source
        from specdash.llama.widening import widen

        target = self.work / "models" / f"{name}-{gigabytes:g}gb.gguf"
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            widen(source, target, int(gigabytes * GB * self.scale))
        return target

    @contextlib.contextmanager
    def server(
        self, model: Path, *flags: str, env: Mapping[str, str] | None = None, name: str = "server"
    ) -> Iterator[Server]:
        """llama-server itself, healthy. Raises RuntimeError with the end of its log where it does not get so."""
        port = free_port()
        log = self.work / "logs" / f"{name}-{port}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        words = [str(self.llama_server), "-m", str(model), "--host", "127.0.0.1", "--port", str(port), *flags]
        yield from self._running(words, {**os.environ, **(env or {})}, port, log, log)

    @contextlib.contextmanager
    def backend(self, home: Path, name: str = "backend", **keys: object) -> Iterator[Server]:
        """`specdash backend run` of an env file with these keys, healthy: its own process, and the engine's log.

        Raises RuntimeError as `server` does.
        """
        port = free_port()
        log = home / f"{name}-{port}.log"
        log.touch()
        file = self.env_file(home, f"{name}.env", LLAMA_PORT=port, **keys)
        words = [sys.executable, "-m", "specdash", "backend", "run", "--env-file", str(file), "--log-file", str(log)]
        yield from self._running(words, self.environment(home), port, log, home / f"{name}-{port}.said")

    def _running(
        self, words: list[str], environment: Mapping[str, str], port: int, log: Path, output: Path
    ) -> Iterator[Server]:
        with output.open("wb") as sink:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=environment, start_new_session=True
            )
        server = Server(f"http://127.0.0.1:{port}", port, process, log)
        try:
            _wait_healthy(server, output)
            yield server
        finally:
            _end_group(process)


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_healthy(server: Server, output: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if server.process.poll() is not None:
            break
        try:
            server.ask("/health", timeout=2.0)
        except (OSError, urllib.error.HTTPError):
            time.sleep(0.1)
        else:
            return
    code = server.process.poll()
    said = "did not get healthy" if code is None else f"ended with {code}"
    told = "".join(file.read_text("utf-8", "replace")[-3000:] for file in {server.log, output})
    raise RuntimeError(f"llama-server {said}:\n{told}")


def _end_group(process: subprocess.Popen[Any]) -> None:
    """SIGTERM, and SIGKILL after 10 s, to the process and what it started."""
    for number, wait in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait)
            break
