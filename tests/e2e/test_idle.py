"""What the real program does in a minute of a server that has nothing to do: counted, never timed."""

import re
import sys
import time
from pathlib import Path

import pytest

from support.fault_server import FaultServer, says
from support.terminal import Terminal
from support.waiting import until

pytestmark = pytest.mark.tmux

LOOKS = 6
"""At /metrics, which is asked every second."""
MOST_WAKE_UPS = 40
"""A second, of all threads together: 23 over a client written by hand, 28 to 30 over httpx."""
MOST_QUESTIONS = 2.3
"""A second: /metrics and /health, seldom the rest."""
IDLE = {
    "/health": says(200, '{"status":"ok"}'),
    "/props": says(200, '{"total_slots":1}'),
    "/metrics": says(200, "llamacpp:n_decode_total 5\nllamacpp:requests_processing 0\nllamacpp:requests_deferred 0\n"),
    "/slots": says(200, '[{"id":0,"is_processing":false}]'),
}


_SWITCHES = re.compile(r"^voluntary_ctxt_switches:\s+(\d+)", re.MULTILINE)


def wake_ups(pid: int) -> int:
    """How often the threads of a process have gone to sleep by themselves."""
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return sum(int(found[1]) for text in texts if (found := _SWITCHES.search(text)))


def test_an_idle_dashboard_wakes_up_and_asks_no_more_often_than_its_budget(tmp_path: Path) -> None:
    with FaultServer(IDLE) as server:
        command = [sys.executable, "-m", "specdash", "--url", server.url]
        with Terminal(command, env={"HOME": str(tmp_path)}) as terminal:
            terminal.wait_for("LIVE")
            until(lambda: server.count("/metrics") >= LOOKS, 60.0)
            woken, asked, began = wake_ups(terminal.pid), _asked(server), time.monotonic()
            until(lambda: server.count("/metrics") >= 2 * LOOKS, 60.0)
            elapsed = time.monotonic() - began
            woken, asked = wake_ups(terminal.pid) - woken, _asked(server) - asked
            terminal.press("q")
            assert terminal.wait_exit() == 0
    assert woken / elapsed <= MOST_WAKE_UPS
    assert asked / elapsed <= MOST_QUESTIONS
    assert server.connections <= 8, "connections are kept"


def _asked(server: FaultServer) -> int:
    return sum(server.count(path) for path in IDLE)
