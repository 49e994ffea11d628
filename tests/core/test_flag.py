"""A flag wakes all that wait for it, and a handler of a signal may set it."""

import subprocess
import sys
import threading
import time

from specdash.core.flag import Flag

STORM = """
import signal, time
from specdash.core.flag import Flag
flags = [Flag()]
signal.signal(signal.SIGALRM, lambda *_: flags[0].set())
signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
ends = time.monotonic() + 2.0
met = 0
while time.monotonic() < ends:
    flags[0] = Flag()
    while not flags[0].wait(1e-5):
        pass
    met += 1
signal.setitimer(signal.ITIMER_REAL, 0)
print(met)
"""


def test_a_wait_is_as_long_as_it_may_be_and_ends_for_all_when_the_flag_is_set() -> None:
    flag, seen = Flag(), []
    began = time.monotonic()
    assert not flag.wait(0.05)
    assert time.monotonic() - began >= 0.04
    assert not flag.wait(-1.0)
    waiting = [threading.Thread(target=lambda: seen.append(flag.wait(30.0))) for _ in range(5)]
    for thread in waiting:
        thread.start()
    flag.set()
    flag.set()
    for thread in waiting:
        thread.join(10.0)
    assert seen == [True] * 5
    assert flag.wait(30.0)
    flag.clear()
    assert not flag.is_set()
    assert not flag.wait(0.01)


def test_a_handler_of_a_signal_may_set_it_wherever_it_interrupts_a_wait() -> None:
    """A `threading.Event` in its place stops for ever after a few."""
    done = subprocess.run([sys.executable, "-c", STORM], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


def test_nothing_that_is_asked_for_between_two_waits_is_lost() -> None:
    flag, asked, seen = Flag(), 0, 0

    def ask() -> None:
        nonlocal asked
        for _ in range(20_000):
            asked += 1
            flag.set()

    asking = threading.Thread(target=ask)
    asking.start()
    while seen < 20_000:
        assert flag.wait(10.0)
        flag.clear()
        seen = asked
    asking.join()
