"""Isolation from the developer's machine: a home of its own for every test, and no settings from outside.

Being here also puts this folder on the import path, so that tests can import `support`.
"""

import gc
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from support.deployment import Rig


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector: nothing of the ten thousand tests is garbage, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """What `-n auto` is: more processes than cores, since these tests wait nearly as long as they work."""
    return len(os.sched_getaffinity(0)) + 2


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest come first: where files are shared out among processes, none of them ends alone."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get("/".join(item.path.parts[-2:]), len(places)))


@pytest.fixture(scope="session")
def new_homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folders for the homes of tests, out of the way: pytest would look through them all for the next free number."""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def isolated_home(new_homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home; no SPECDASH_*, LLAMA_* or XDG_* variable of the developer reaches a test."""
    home = next(new_homes)
    home.mkdir()
    return isolate(monkeypatch, home)


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """What a test starts of specdash's threads has ended when it ends, or soon after."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("specdash-"):
            thread.join(5)
            assert not thread.is_alive(), f"left running: {thread.name}"


@pytest.fixture(scope="session", autouse=True)
def isolated_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The same for what many tests share: a module's fixtures begin before its first test has its home."""
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, tmp_path_factory.mktemp("shared-home"))
        yield


def isolate(patch: pytest.MonkeyPatch, home: Path) -> Path:
    """Let this process and those it starts live in that home."""
    for name in list(os.environ):
        if name.startswith(("SPECDASH_", "LLAMA_", "XDG_")) and name not in KEPT:
            patch.delenv(name)
    patch.setenv("HOME", str(home))
    # An aborting llama.cpp would attach gdb to itself, which takes seconds and may dump core where the tests run.
    patch.setenv("GGML_NO_BACKTRACE", "1")
    # Its threads would spin while they wait for each other: on cores that tests share, five times the work.
    patch.setenv("OMP_WAIT_POLICY", "passive")
    return home


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One time zone."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(scope="module")
def running() -> Iterator[Rig]:
    """Both services under `specdash up`, for all tests of a module that change them."""
    from support.deployment import running_deployment

    with running_deployment("daemon") as item:
        yield item


@pytest.fixture
def rig(running: Rig) -> Rig:
    """The services, as they were before the first test whatever the last one left."""
    running.reset()
    return running


KEPT = (
    "SPECDASH_REQUIRE_LLAMA_SERVER",
    "SPECDASH_REQUIRE_NODE",
    "SPECDASH_REQUIRE_SSHD",
    "SPECDASH_REQUIRE_SYSTEMD",
    "LLAMA_BIN",
)
"""Variables by which CI names the engines under test, and says what may not be skipped."""

LONGEST = (
    "control/test_kills.py",
    "control/test_runner.py",
    "cli/test_tune.py",
    "control/test_apply.py",
    "cli/test_bench_ab.py",
    "e2e/test_speculation_matrix.py",
    "cli/test_verify.py",
    "e2e/test_terminal.py",
    "e2e/test_memory_rules.py",
    "e2e/test_stopped.py",
    "e2e/test_demo.py",
    "tools/test_gpu_check.py",
    "cli/test_smoke.py",
    "bench/test_beds.py",
    "cli/test_terminal_app.py",
    "e2e/test_answer_rules.py",
    "cli/test_up.py",
    "judgement/test_start_agreement.py",
    "bench/test_live_on_a_server.py",
    "proxy_outside/test_leaks.py",
    "control/test_apply_settle.py",
)
"""Files of tests that take more than a minute in all, the longest first."""

# Each run draws other examples, so the few of one run add up; `make test-all` draws hypothesis' usual hundred.
for profile, examples in (("few", 25), ("many", 100)):
    settings.register_profile(
        profile,
        deadline=None,
        max_examples=examples,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
settings.load_profile("few")

# Where no bytecode is kept, every process that a test starts would compile the program again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    # A shell starts what it puts in the background deaf to Ctrl-C, and nohup to SIGHUP; every process of every test
    # would inherit that.
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)
