"""A real llama-server that tests may break in every way that happens at night, and the state that watches it."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self

import pytest

from specdash.backend.demo import DRAFT_MODEL, TARGET_MODEL, bundled_model
from specdash.collect.hub import Hub
from specdash.core.records import Alert
from specdash.core.target import Target
from specdash.insight.picture import Picture
from specdash.insight.rules.catalogue import Rule
from specdash.insight.state import TargetState
from support.asking import ask, complete, healthy, read
from support.engines import llama_server_binary
from support.fault_server import FaultServer, free_port
from support.scripted_server import Behaviour
from support.waiting import until

START_S = 30.0
PATIENCE_S = 30.0
PROMPT = "import os\n\ndef walk(path):\n    for name in os.listdir(path):\n"
DRAFTING = ("--spec-type", "draft-simple", "-md", str(bundled_model(DRAFT_MODEL)), "--spec-draft-n-max", "4")
"""Flags that make the demo model speculate with its draft model."""


class BreakableServer:
    """The llama-server binary on the demo model, with flags of your choice; its log goes to `log`.

    The port stays the same over restarts. Flags that come later win, so `-c 256` makes a tiny context. `environ` adds
    variables, such as `LLAMA_TRACE=1`.
    """

    def __init__(self, directory: Path, *flags: str, model: Path | None = None, **environ: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = directory / "server.log"
        target = str(model or bundled_model(TARGET_MODEL))
        standard = ("--host", "127.0.0.1", "--port", str(self.port), "-c", "4096", "-np", "2", "-t", "1", "--metrics")
        self.command = [llama_server_binary(), "-m", target, *standard, "--no-warmup", "-lv", "4", *flags]
        self._environ = {**os.environ, **environ}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process that was started last."""
        assert self._process is not None, "start it first"
        return self._process

    @property
    def target(self) -> Target:
        """How specdash would watch it."""
        return Target(self.url, log=str(self.log), pid=self._process.pid if self._process is not None else None)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self, *, wait: bool = True) -> None:
        """Start a process, and by default wait until it answers. The log grows on over restarts."""
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self.command, env=self._environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        if wait:
            until(self.is_ready, START_S, lambda: self.log.read_text(errors="replace")[-2000:])

    def is_ready(self) -> bool:
        """Whether /health says ok."""
        return healthy(self.url)

    def kill(self) -> None:
        """`kill -9`, also of a stopped one; nothing listens when this returns."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)

    def terminate(self) -> None:
        """SIGTERM, and wait for the end."""
        self.process.terminate()
        self.process.wait(20)

    def restart(self, *, wait: bool = True) -> None:
        """`kill -9` and start again at once."""
        self.kill()
        self.start(wait=wait)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """`kill -STOP`: the port stays open and nothing is answered; `kill -CONT` at the end."""
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            if self.process.poll() is None:
                os.kill(self.process.pid, signal.SIGCONT)

    @contextlib.contextmanager
    def stuck(self) -> Iterator[None]:
        """Hold the inference thread alone, as a hanging GPU does: the HTTP threads still answer.

        Not at a moment at which it holds a lock that they need, of the log or the memory perhaps, which shows only
        after some answers.
        """
        for _ in range(50):
            with frozen_thread(self.process.pid):
                if all(self._answers(path) for path in ("/health", "/slots", "/metrics") * 10):
                    yield
                    return
            time.sleep(0.01)
        pytest.fail("the inference thread always holds what the HTTP threads need")

    @contextlib.contextmanager
    def stuck_loading(self) -> Iterator[None]:
        """Start a process and hold its main thread while it loads, as a dead disk does: /health says 503, loading."""
        for _ in range(20):
            self.kill()
            self.start(wait=False)
            until(self._listens, START_S)
            with frozen_thread(self.process.pid):
                if self._says_loading():
                    yield
                    return
        pytest.fail("it loads too fast to be held while it does")

    def _answers(self, path: str) -> bool:
        try:
            return bool(read(self.url + path, timeout=1.0))
        except OSError:
            return False

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.5):
            return True
        return False

    def _says_loading(self) -> bool:
        try:
            self.get("/health", timeout_s=2.0)
        except urllib.error.HTTPError as error:
            return error.code == HTTPStatus.SERVICE_UNAVAILABLE
        except OSError:
            return False
        return False

    @contextlib.contextmanager
    def port_stolen(self, routes: dict[str, Behaviour] | None = None) -> Iterator[FaultServer]:
        """Kill it and let something else answer at its port: by default HTTP 404 to everything."""
        self.kill()
        with FaultServer(routes, port=self.port) as thief:
            yield thief

    def get(self, path: str, body: dict[str, Any] | None = None, timeout_s: float = 60.0) -> Any:
        """The JSON at `path`, posting `body` where there is one."""
        return ask(self.url + path, body, timeout=timeout_s)

    def complete(self, prompt: str = PROMPT, tokens: int = 64, **more: Any) -> dict[str, Any]:
        """One greedy completion; its answer, with `timings`."""
        result: dict[str, Any] = complete(self.url, prompt, tokens, **{"cache_prompt": False, **more})
        return result

    @contextlib.contextmanager
    def working(self, clients: int = 1, tokens: int = 400, prompt: str = PROMPT, **more: Any) -> Iterator[None]:
        """Clients that ask one completion after the other, whatever happens to the server."""
        end = threading.Event()

        def work() -> None:
            while not end.is_set():
                try:
                    self.complete(prompt, tokens, ignore_eos=True, **more)
                except (OSError, ValueError):
                    end.wait(0.05)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            end.set()


class Watched:
    """A `TargetState` fed by a real hub; `host` says whether that watches the machine too."""

    def __init__(self, state: TargetState, *, host: bool = True) -> None:
        self.state = state
        self._host = host

    def picture(self) -> Picture:
        """The picture of now."""
        return self.state.picture(time.monotonic(), time.time(), 60.0)

    def alert(self, rule: str) -> Alert | None:
        """The rule's active alert."""
        return next((alert for alert in self.picture().alerts.active if alert.rule == rule), None)

    def until_alert(self, rule: str, patience_s: float = PATIENCE_S, *, subject: str | None = None) -> Alert:
        """Wait for the rule's alert."""
        found: list[Alert] = []

        def look() -> bool:
            active = self.picture().alerts.active
            found.extend(one for one in active if one.rule == rule and subject in (None, one.subject))
            return bool(found)

        until(look, patience_s, lambda: f"no {rule}; {self.said()}")
        return found[0]

    def until_over(self, rule: str, patience_s: float = PATIENCE_S) -> None:
        """Wait until the rule has no active alert."""
        until(lambda: self.alert(rule) is None, patience_s, lambda: f"{rule} stays; {self.said()}")

    def until_live(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until the server is seen to be live, with every endpoint answered and its process known."""

        def is_live() -> bool:
            backend = self.picture().backend
            known = not self._host or self.state.alerts.past.starts.owner is not None
            return backend.state == "live" and backend.slots is not None and known

        until(is_live, patience_s, self.said)

    def said(self) -> str:
        """State and alerts in short."""
        picture = self.picture()
        alerts = [f"{alert.rule}: {alert.summary}" for alert in picture.alerts.active]
        return f"{picture.backend.state} ({picture.backend.reason}); active {alerts}; {picture.alerts.unjudged}"

    def rules_raised(self) -> set[str]:
        """Rules that have or had an alert."""
        alerts = self.picture().alerts
        return {alert.rule for alert in (*alerts.active, *alerts.past)}


@contextlib.contextmanager
def watched(
    target: Target, rules: Sequence[Rule] | None = None, *, interval_s: float = 0.25, gpu: bool = False
) -> Iterator[Watched]:
    """Watch a server as the dashboard does."""
    state = TargetState(target, rules=rules)
    with Hub(target, [state.apply], interval_s=interval_s, gpu=gpu, on_target=state.retarget):
        yield Watched(state)


_PTRACE_SEIZE, _PTRACE_INTERRUPT, _PTRACE_DETACH = 0x4206, 0x4207, 17
_WALL = 0x40000000


@contextlib.contextmanager
def frozen_thread(tid: int) -> Iterator[None]:
    """Hold one thread of a child process by ptrace; its other threads go on. Raises OSError where that is forbidden."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    libc.ptrace.restype = ctypes.c_long

    def call(request: int) -> None:
        if libc.ptrace(request, tid, None, None) < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"ptrace({request:#x}): {os.strerror(number)}")

    call(_PTRACE_SEIZE)
    call(_PTRACE_INTERRUPT)
    os.waitpid(tid, _WALL)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            call(_PTRACE_DETACH)
