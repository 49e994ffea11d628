"""However a program on a terminal is ended, it ends soon: every app and screen, every signal, and no terminal left."""

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.test_replay import record
from support.pseudo_terminal import PseudoTerminal

SPECDASH = [sys.executable, "-m", "specdash"]
NOWHERE = "http://127.0.0.1:9"
CONNECT = "from specdash.cli import main, watch; watch.find_targets = lambda _: []; main.entry()"
"""`specdash` where no server is found, whatever else runs on this machine."""
UNDER_NOHUP = (
    "import os, signal, sys; [signal.signal(n, signal.SIG_IGN) for n in (1, 15)]; os.execvp(sys.argv[1], sys.argv[1:])"
)
"""As under nohup, or as the first process of a container, whose signals the kernel ignores."""


def connect(_: Path) -> tuple[list[str], str]:
    return [sys.executable, "-c", CONNECT], "No llama-server found"


def watch(_: Path) -> tuple[list[str], str]:
    return [*SPECDASH, "--url", NOWHERE], "read-only"


def replay(tmp_path: Path) -> tuple[list[str], str]:
    return [*SPECDASH, "replay", str(record(tmp_path / "history.db"))], "REPLAY"


def hang_up(terminal: PseudoTerminal) -> None:
    terminal.vanish()


def signalled(number: signal.Signals) -> Callable[[PseudoTerminal], None]:
    return lambda terminal: terminal.process.send_signal(number)


def twice(terminal: PseudoTerminal) -> None:
    for _ in range(3):
        terminal.process.send_signal(signal.SIGTERM)
        time.sleep(0.01)


def gone_and_continued(terminal: PseudoTerminal) -> None:
    terminal.process.send_signal(signal.SIGCONT)
    terminal.vanish()


ENDS = {
    "SIGTERM": signalled(signal.SIGTERM),
    "SIGHUP": signalled(signal.SIGHUP),
    "SIGINT": signalled(signal.SIGINT),
    "SIGTERM again and again": twice,
    "the terminal goes away": hang_up,
    "the terminal goes away, and a SIGCONT comes": gone_and_continued,
}


APPS_AND_ENDS = [
    *(pytest.param(watch, end, id=f"watch, {name}") for name, end in ENDS.items()),
    *(
        pytest.param(app, ENDS[name], id=f"{app.__name__}, {name}")
        for app in (connect, replay)
        for name in list(ENDS)[-1:]
    ),
]
"""Every end of one app, and the last of the others: all apps share what ends them."""


@pytest.mark.slow
@pytest.mark.parametrize(("app", "end"), APPS_AND_ENDS)
def test_every_app_ends_whatever_ends_it(
    tmp_path: Path, app: Callable[[Path], tuple[list[str], str]], end: Callable[[PseudoTerminal], None]
) -> None:
    argv, shown = app(tmp_path)
    with PseudoTerminal([sys.executable, "-c", UNDER_NOHUP, *argv], controlling=False) as terminal:
        terminal.wait_for(shown)
        end(terminal)
        assert terminal.wait_exit() == 130


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "end"),
    [(key, hang_up if number % 2 else signalled(signal.SIGTERM)) for number, key in enumerate("peT:")],
    ids=list("peT:"),
)
def test_every_screen_ends_whatever_ends_it(key: str, end: Callable[[PseudoTerminal], None]) -> None:
    with PseudoTerminal([*SPECDASH, "--url", NOWHERE], controlling=False, size=(120, 36)) as terminal:
        terminal.wait_for("read-only")
        terminal.press(key.encode())
        terminal.read(0.3)
        end(terminal)
        assert terminal.wait_exit() == 130


@pytest.mark.slow
def test_a_terminal_that_nobody_reads_does_not_keep_it_from_ending() -> None:
    with PseudoTerminal([*SPECDASH, "--url", NOWHERE], size=(200, 50)) as terminal:
        terminal.wait_for("read-only")
        until = time.monotonic() + 3.0
        while time.monotonic() < until:
            # Each key draws the whole screen anew; nobody takes it off the line.
            terminal.press(b"t")
            time.sleep(0.05)
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.process.wait(15) == 130


def test_a_terminal_that_places_no_text_is_refused_with_what_to_do() -> None:
    with PseudoTerminal(SPECDASH, env={"TERM": "dumb"}) as terminal:
        assert terminal.wait_exit() == 2
        terminal.read(0.1)
        assert "specdash: watch needs a terminal that can place text; TERM=dumb says" in terminal.text
        assert "`specdash snapshot`" in terminal.text
        assert "\x1b" not in terminal.written.decode()
