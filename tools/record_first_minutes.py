"""Records docs/first-minutes.md: what a newcomer types, and what the terminal then shows, from real runs in tmux.

`python tools/record_first_minutes.py` runs the demo, its tour, and the dashboard on a server of its own, in a home of
their own, at 80x24, and writes the page. Needs tmux. Some four minutes.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from specdash.backend.demo import DRAFT_MODEL, TARGET_MODEL, bundled_model
from specdash.tui.tour import STEPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "first-minutes.md"
TMUX = "specdash-first-minutes"
WAIT_S = 90.0
STEP = f"TOUR %d/{len(STEPS)}"
PICTURED = (2, 7)
"""The steps of the tour whose whole screen is in the page: what hurts, and what the change did."""

INTRO = """# The first minutes

Recorded by `python tools/record_first_minutes.py` from real runs in an 80x24 terminal; nothing below is made up.

```
git clone … && cd specdash
make demo
```

`make demo` installs into `.venv` (once, under a minute) and opens the dashboard on a real llama.cpp server:
"""


class Terminal:
    """A tmux session of 80x24 with a home of its own."""

    def __init__(self, home: Path) -> None:
        inside = {"HOME": str(home), "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}", "PS1": "$ "}
        settings = " ".join(shlex.quote(f"{name}={value}") for name, value in inside.items())
        self.run("new-session", "-d", "-x", "80", "-y", "24", f"env {settings} bash --norc --noprofile")

    def run(self, *words: str) -> str:
        """A tmux command on this session's server."""
        command = ["tmux", "-L", TMUX, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout

    def type(self, *keys: str) -> None:
        """Press keys, as tmux names them."""
        self.run("send-keys", *keys)

    def shown(self) -> str:
        """What is on the screen now."""
        return "\n".join(line.rstrip() for line in self.run("capture-pane", "-p").splitlines()).rstrip()

    def wait(self, true: Callable[[str], bool], what: str, still_s: float = 1.0) -> str:
        """The screen once that has been true of it for this long; ends the program where it never is."""
        deadline = time.monotonic() + WAIT_S
        while not true(shown := self.shown()):
            if time.monotonic() > deadline:
                sys.exit(f"never seen: {what}; the screen:\n{shown}")
            time.sleep(0.2)
        if still_s:
            time.sleep(still_s)
            return self.shown()
        return shown

    def tour(self) -> Iterator[tuple[int, str]]:
        """Each step of the tour with the last that the screen showed in it."""
        for number in range(1, len(STEPS) + 1):
            shown = last = self.wait(lambda text, step=STEP % number: step in text, STEP % number, still_s=0)  # type: ignore[misc]
            while STEP % number in shown:
                last = shown
                time.sleep(0.2)
                shown = self.shown()
            yield number, last


def block(text: str) -> str:
    """A screen in the page."""
    return f"\n```text\n{text}\n```\n"


def main() -> int:
    """Record, and write the page."""
    parts = [INTRO]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        terminal = Terminal(home)
        try:
            terminal.type("specdash demo", "Enter")
            parts.append(block(terminal.wait(lambda text: "PAYS" in text, "a verdict that pays")))
            terminal.type("q")
            terminal.wait(lambda text: text.endswith("$"), "the end of the demo")
            terminal.type("clear", "Enter")
            parts.append("\n`q` ends everything. The tour: `specdash demo --tour`, `n` goes on.\n")
            terminal.type("specdash demo --tour", "Enter")
            for number, shown in terminal.tour():
                parts.append(f"\n- {' '.join(shown[shown.index(STEP % number) :].split('─')[0].split())}")
                if number in PICTURED:
                    parts.append(f"\n{block(shown)}")
            terminal.type("q")
            terminal.wait(lambda text: text.endswith("$"), "the end of the tour")
            terminal.type("clear", "Enter")
            env = home / "backend.env"
            env.write_text(
                f"LLAMA_MODEL={bundled_model(TARGET_MODEL)}\nLLAMA_DRAFT_MODEL={bundled_model(DRAFT_MODEL)}\n"
                "LLAMA_SPEC_TYPE=draft-simple\nLLAMA_PORT=18080\n",
                encoding="utf-8",
            )
            parts.append(
                "\n\nYour own server: `specdash` finds what runs on this machine. Here it is one that `specdash "
                "backend run --env-file backend.env` has started with the bundled models, and that nobody has asked "
                "anything yet:\n"
            )
            terminal.type(f"specdash backend run --env-file {env} >/dev/null 2>&1 &", "Enter")
            time.sleep(8.0)
            terminal.type("clear; specdash", "Enter")
            parts.append(block(terminal.wait(lambda text: "LIVE" in text, "the server")))
            terminal.type("?")
            time.sleep(1.5)
            parts.append(f"\n`?` begins with the keys of the screen that is open:\n{block(terminal.shown())}")
            terminal.type("Escape")
            time.sleep(1.0)  # or a terminal takes the two for Alt+q
            terminal.type("q")
            terminal.wait(lambda text: text.endswith("$"), "the end")
            terminal.type("kill %1", "Enter")
            time.sleep(3.0)
        finally:
            terminal.run("kill-server")
    PAGE.write_text("".join(parts), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
