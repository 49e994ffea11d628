"""What is asked for is seen, by whoever waits for it, and whoever asks: a thread, or a handler of a signal."""

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
LATE = """
import signal, time
from specdash.core.flag import Flag
signal.signal(signal.SIGALRM, lambda *_: time.sleep(0.02))
began = time.monotonic()
for delay in (0.001, 0.005, 0.009, 0.0099, 0.01, 0.011) * 5:
    signal.setitimer(signal.ITIMER_REAL, delay)
    assert not Flag().wait(0.01)
signal.setitimer(signal.ITIMER_REAL, 0)
print(time.monotonic() - began)
"""


def test_a_flag_waits_as_long_as_it_is_told_and_no_longer() -> None:
    flag = Flag()
    began = time.monotonic()
    assert not flag.wait(0.05)
    assert time.monotonic() - began >= 0.04
    assert not flag.wait(0.0)
    assert not flag.wait(-1.0)
    assert not flag.is_set()


def test_all_that_wait_are_woken_and_whoever_comes_later_need_not_wait() -> None:
    flag, told = Flag(), []
    waiting = [threading.Thread(target=lambda: told.append(flag.wait(30.0))) for _ in range(5)]
    for thread in waiting:
        thread.start()
    flag.set()
    flag.set()
    for thread in waiting:
        thread.join(10.0)
    assert told == [True] * 5
    assert flag.is_set()
    assert flag.wait(30.0)


def test_a_handler_of_a_signal_may_set_it_whatever_the_thread_it_interrupts_is_at() -> None:
    """A `threading.Event` in its place stops for ever after a few."""
    done = subprocess.run([sys.executable, "-c", STORM], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


def test_signals_make_a_wait_no_longer_whenever_their_handlers_end() -> None:
    """A timed `SimpleQueue.get` in its place never ends."""
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 30.0


def test_nothing_that_is_asked_for_between_two_waits_is_lost() -> None:
    flag, asked = Flag(), 0

    def ask() -> None:
        nonlocal asked
        for _ in range(20_000):
            asked += 1
            flag.set()

    asking = threading.Thread(target=ask)
    seen, waits = 0, 0
    asking.start()
    while seen < 20_000:
        assert flag.wait(10.0)
        flag.clear()
        waits += 1
        seen = asked
    asking.join()
    flag.clear()
    assert waits <= 60_000
    assert not flag.wait(0.01)
