"""Isolation from the developer's machine: a home of its own for every test, and no settings from outside.

Being here also puts this folder on the import path, so that tests can import `support`.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.deployment import Rig


@pytest.fixture(autouse=True)
def isolated_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home; no SPECDASH_*, LLAMA_* or XDG_* variable of the developer reaches a test."""
    return isolate(monkeypatch, tmp_path_factory.mktemp("home"))


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
    return home


@pytest.fixture(scope="module")
def running() -> Iterator[Rig]:
    """Both services under the built-in supervisor, for all tests of a module that change them."""
    from support.deployment import running_deployment

    with running_deployment("daemon") as one:
        yield one


@pytest.fixture
def rig(running: Rig) -> Rig:
    """The services, as they were before the first test whatever the last one left."""
    running.reset()
    return running


KEPT = ("SPECDASH_REQUIRE_LLAMA_SERVER", "SPECDASH_REQUIRE_NODE", "SPECDASH_REQUIRE_SYSTEMD", "LLAMA_BIN")
"""Variables by which CI names the engines under test."""

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    # A shell starts what it puts in the background deaf to Ctrl-C, and nohup to SIGHUP; every process of every test
    # would inherit that.
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)
