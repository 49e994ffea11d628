"""The real program in a real terminal on the real server: what an operator sees, types, and leaves behind."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from support.terminal import Terminal

pytestmark = [pytest.mark.tmux, pytest.mark.engine]
SPECDASH = [sys.executable, "-m", "specdash"]


def demo(tmp_path: Path) -> Terminal:
    env = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    return Terminal([*SPECDASH, "demo"], env=env)


def percent(screen: str, label: str) -> float | None:
    found = re.search(rf"{label}\s+([\d.]+)\s*%", screen)
    return float(found[1]) if found else None


def family(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def assert_nothing_left(tmp_path: Path, processes: list[psutil.Process]) -> None:
    until = time.monotonic() + 25
    while time.monotonic() < until:
        alive = [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        left = list(tmp_path.glob("specdash-demo-*"))
        if not alive and not left:
            return
        time.sleep(0.1)
    pytest.fail(f"left behind: {alive} {left}")


def test_the_demo_shows_live_acceptance_prefill_and_decode_and_goes_back_in_time(tmp_path: Path) -> None:
    with demo(tmp_path) as terminal:
        screen = terminal.wait_for("LIVE", "Acceptance", "Prefill", "Decode", within_s=40)
        until = time.monotonic() + 60
        # A step back leads to where the server was there already.
        shown = (r"Decode\s+[\d,.]+k? tok/s", r"up (?:[2-5]\ds|\dm)")
        while not ((percent(screen, "Acceptance") or 0) > 0 and all(re.search(part, screen) for part in shown)):
            assert time.monotonic() < until, screen
            time.sleep(0.3)
            screen = terminal.screen
        acceptance = percent(screen, "Acceptance")
        assert acceptance is not None
        assert 5 < acceptance <= 100
        assert re.search(r"Prefill\s+[\d,.]+k? tok/s", screen)
        processes = family(terminal.pid)
        assert len(processes) >= 4, "dashboard, backend, server and traffic run"
        terminal.press(",")
        terminal.wait_for("REPLAY", "(-1", "was live", within_s=60)
        terminal.press("Space")
        terminal.wait_for("▶")
        terminal.press("L")
        terminal.wait_gone("REPLAY")
        terminal.wait_for("LIVE")
        terminal.press("q")
        assert terminal.wait_exit() == 0
        assert_nothing_left(tmp_path, processes)


def test_keys_an_operator_needs_work_and_the_essentials_are_on_screen_at_every_size(tmp_path: Path) -> None:
    essentials = ("LIVE", "Acceptance", "Prefill", "Decode", "Warnings")
    with demo(tmp_path) as terminal:
        terminal.wait_for("LIVE", within_s=40)
        terminal.press("Space")
        terminal.wait_for("PAUSED")
        terminal.press("Space")
        terminal.wait_gone("PAUSED")
        terminal.press("w")
        terminal.wait_for("5m window")
        terminal.press("?")
        terminal.wait_for("Pause the display")
        terminal.press("Escape")
        terminal.wait_gone("Pause the display")
        terminal.press("8")
        terminal.wait_gone("8 Log")
        terminal.press("8")
        terminal.wait_for("8 Log")
        terminal.press("/")
        terminal.press("-l", "idle")
        terminal.press("Enter")
        terminal.wait_for("find “idle”")
        terminal.resize(200, 50)
        terminal.wait_for(*essentials, "Requests", "Log")
        terminal.resize(80, 24)
        terminal.wait_gone("Requests")
        screen = terminal.wait_for(*essentials)
        assert max(len(line) for line in screen.splitlines()) <= 80
        terminal.press("q")
        assert terminal.wait_exit() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_behind_however_it_ends(tmp_path: Path, number: signal.Signals) -> None:
    with demo(tmp_path) as terminal:
        terminal.wait_for("LIVE", within_s=40)
        processes = family(terminal.pid)
        (directory,) = tmp_path.glob("specdash-demo-*")
        assert directory.stat().st_mode & 0o077 == 0, "private"
        os.kill(terminal.pid, number)
        terminal.wait_exit()
        assert_nothing_left(tmp_path, processes)


def test_it_ends_when_its_terminal_vanishes_even_under_nohup(tmp_path: Path) -> None:
    command = ["/bin/sh", "-c", 'trap "" HUP; exec "$@"', "sh", *SPECDASH, "demo"]
    env = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    with Terminal(command, env=env) as terminal:
        terminal.wait_for("LIVE", within_s=40)
        processes = family(terminal.pid)
        terminal.vanish()
        assert_nothing_left(tmp_path, processes)


def test_the_demos_own_services_are_tuned_and_a_run_ends_with_a_demo_that_is_killed(tmp_path: Path) -> None:
    with demo(tmp_path) as terminal:
        terminal.wait_for("LIVE", within_s=40)
        terminal.press("T")
        terminal.wait_for("READY", "draft-simple", within_s=60)
        terminal.press("A")
        terminal.wait_for("ARMED")
        terminal.press("r")
        terminal.wait_for("It ends with this demo")
        terminal.press("Enter")
        terminal.wait_for("TUNING", "boot 1", within_s=60)
        processes = family(terminal.pid)
        assert any("tune" in process.cmdline() for process in processes)
        os.kill(terminal.pid, signal.SIGKILL)
        terminal.wait_exit(within_s=40)
        assert_nothing_left(tmp_path, processes)


def test_a_server_found_by_itself_is_watched_through_its_restart(tmp_path: Path) -> None:
    from e2e.test_fidelity import backend

    with backend(tmp_path):
        env = {"HOME": str(tmp_path)}
        with Terminal(SPECDASH, env=env) as terminal:
            # Servers of other tests may be there, too; this one is the first, by its run record.
            terminal.wait_until(lambda screen: "LIVE" in screen or "which one to watch" in screen, within_s=20)
            if "which one to watch" in terminal.screen:
                terminal.press("1")
            terminal.wait_for("LIVE", "demo-target", within_s=20)
            server = next(p for p in psutil.process_iter(["cmdline"]) if is_server_of(p, tmp_path))
            server.terminate()
            terminal.wait_for("DOWN", within_s=20)
            terminal.press("q")
            assert terminal.wait_exit() == 0


def is_server_of(process: psutil.Process, home: Path) -> bool:
    with contextlib.suppress(psutil.Error):
        command = process.info["cmdline"] or []
        return "run" in command and any(str(home) in word for word in command)
    return False


def seeing_no_other_process() -> list[str]:
    """Words before a command that hide every other process from it: other tests run servers at the same time."""
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    words = ["unshare", *as_root, "--pid", "--fork", "--kill-child", "--mount-proc"]
    works = (
        shutil.which("unshare") and subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0
    )
    return words if works else []


def test_without_a_server_the_page_says_how_to_connect(tmp_path: Path) -> None:
    with Terminal([*seeing_no_other_process(), *SPECDASH], env={"HOME": str(tmp_path)}) as terminal:
        screen = terminal.wait_for("No llama-server found", within_s=20)
        assert "specdash --url" in screen
        assert "specdash demo" in screen
        terminal.press("q")
        assert terminal.wait_exit() == 0


def test_what_another_program_wrote_on_the_screen_is_drawn_over_when_asked(tmp_path: Path) -> None:
    with Terminal([*SPECDASH, "--url", "http://127.0.0.1:9"], env={"HOME": str(tmp_path)}) as terminal:
        terminal.wait_for("✖ DOWN", "Server is down", "no proxy", within_s=20)
        terminal.overwrite("Broadcast")
        terminal.wait_for("Broadcast")
        terminal.press("C-l")
        terminal.wait_gone("Broadcast")
        terminal.wait_for("✖ DOWN")
