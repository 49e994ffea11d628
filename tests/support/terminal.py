"""A real terminal for tests: a tmux server of its own, with keys in and the screen out."""

import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import psutil

POLL_S = 0.1
_REPORTING = 'status=$1; shift; "$@"; echo $? > "$status"'
CONFIGURATION = Path(__file__).with_name("tmux.conf")


class Terminal:
    """One program in one tmux window, which stays when the program has ended, so that its last words can be read."""

    def __init__(
        self, argv: Sequence[str], *, columns: int = 120, rows: int = 36, env: Mapping[str, str] | None = None
    ) -> None:
        assert shutil.which("tmux"), "tmux is not installed"
        self._tmux = ["tmux", "-L", f"specdash-{uuid.uuid4().hex[:12]}", "-f", str(CONFIGURATION)]
        self._status = Path(tempfile.mkdtemp(prefix="terminal-")) / "status"
        variables = [part for key, value in (env or {}).items() for part in ("-e", f"{key}={value}")]
        wrapped = ["/bin/sh", "-c", _REPORTING, "sh", str(self._status), *argv]
        self._run("new-session", "-d", "-x", str(columns), "-y", str(rows), *variables, *wrapped)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._run("kill-server", check=False)
        shutil.rmtree(self._status.parent, ignore_errors=True)

    @property
    def screen(self) -> str:
        """What is on the screen now."""
        return self._run("capture-pane", "-p")

    @property
    def pid(self) -> int:
        """Process id of the program."""
        shell = psutil.Process(int(self._run("display-message", "-p", "#{pane_pid}")))
        return shell.children()[0].pid

    @property
    def exit_code(self) -> int | None:
        """The program's exit code as a shell reports it; None while it runs."""
        text = self._status.read_text() if self._status.exists() else ""
        return int(text) if text.endswith("\n") else None

    def press(self, *keys: str) -> None:
        """Type keys, by tmux's names."""
        self._run("send-keys", *keys)

    def overwrite(self, text: str) -> None:
        """Write on the screen as another program does, in a line that changes seldom."""
        device = Path(self._run("display-message", "-p", "#{pane_tty}").strip())
        device.write_text(f"\x1b7\x1b[33;5H{text}\x1b8", encoding="utf-8")

    def vanish(self) -> None:
        """End the terminal under the program, as a closed window or a lost ssh connection does."""
        self._run("kill-server")

    def resize(self, columns: int, rows: int) -> None:
        """Change the window's size."""
        self._run("resize-window", "-x", str(columns), "-y", str(rows))

    def wait_for(self, *texts: str, within_s: float = 30.0) -> str:
        """The screen, once all the texts are on it."""
        return self._wait(lambda screen: all(text in screen for text in texts), f"{texts} not seen", within_s)

    def wait_until(self, done: Callable[[str], bool], within_s: float = 30.0) -> str:
        """The screen, once this is true of it."""
        return self._wait(done, "not seen", within_s)

    def wait_gone(self, *texts: str, within_s: float = 10.0) -> str:
        """The screen, once none of the texts is on it."""
        return self._wait(lambda screen: not any(text in screen for text in texts), f"{texts} still there", within_s)

    def wait_exit(self, within_s: float = 20.0) -> int:
        """The exit code, once the program has ended."""
        until = time.monotonic() + within_s
        while (code := self.exit_code) is None:
            assert time.monotonic() < until, f"still running after {within_s} s:\n{self.screen}"
            time.sleep(POLL_S)
        return code

    def _wait(self, done: Callable[[str], bool], complaint: str, within_s: float) -> str:
        until = time.monotonic() + within_s
        while not done(screen := self.screen):
            assert time.monotonic() < until, f"{complaint} within {within_s} s:\n{screen}"
            time.sleep(POLL_S)
        return screen

    def _run(self, *words: str, check: bool = True) -> str:
        # pytest pins COLUMNS and LINES, which programs believe more than their terminal.
        env = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "TMUX")}
        done = subprocess.run([*self._tmux, *words], env=env, capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout
