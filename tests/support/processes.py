"""Tests in several processes, each a fork of the one that collected them: they are collected, and what they import is
imported, once for all (`pytest --processes 4`)."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import signal
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.capture import FDCapture

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SHARE = 16
"""Tests of a file that a process takes at a time, when they share nothing that is made once for their file."""

_NUMBER_BYTES = 4


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=_count, default=1, metavar="N", help="run in N processes, or in `auto`")


def _count(text: str) -> int:
    """For `auto`, more than there are cores: these tests wait nearly as long as they work."""
    return len(os.sched_getaffinity(0)) + 2 if text == "auto" else int(text)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests that were collected, in as many processes as were asked for."""
    config, hook = session.config, session.config.hook
    if config.getoption("processes") < 2 or session.testsfailed or config.option.collectonly:
        return None
    shares = list(shared_out(session.items))
    numbers = _Numbers(len(shares))
    runs = [_Run(session, shares, numbers, place) for place in range(config.getoption("processes"))]
    left = {item.nodeid: item for item in session.items}
    try:
        while running := {run.told: run for run in runs if run.goes_on}:
            for told in wait(running):
                report = running[told].hear()  # type: ignore[index]
                if report is None:
                    continue
                if report.when == "setup":
                    hook.pytest_runtest_logstart(nodeid=report.nodeid, location=report.location)
                hook.pytest_runtest_logreport(report=report)
                if report.when == "teardown":
                    hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)
                    del left[report.nodeid]
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
    finally:
        for run in runs:
            run.end()
    for item in left.values():
        lost = pytest.TestReport(item.nodeid, item.location, {}, "failed", "the process of this test ended", "call")
        hook.pytest_runtest_logreport(report=lost)
    return True


def shared_out(items: Sequence[pytest.Item]) -> Iterator[list[pytest.Item]]:
    """The tests in the parts that a process takes."""
    for _, of_file in itertools.groupby(items, key=lambda item: item.path):
        tests = list(of_file)
        size = len(tests) if any(map(_shares_something, tests)) else SHARE
        for first in range(0, len(tests), size):
            yield tests[first : first + size]


def _shares_something(item: pytest.Item) -> bool:
    made: dict[str, Sequence[pytest.FixtureDef[Any]]] = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
    return any(each[-1].scope in ("module", "package") for each in made.values())


class _Numbers:
    """The numbers up to one, each for the process that takes it first."""

    def __init__(self, end: int) -> None:
        self._readable, filled = os.pipe()
        os.set_blocking(filled, False)
        os.write(filled, b"".join(number.to_bytes(_NUMBER_BYTES, "big") for number in range(end)))
        os.close(filled)

    def take(self) -> int | None:
        """The next, None when there is none."""
        number = os.read(self._readable, _NUMBER_BYTES)
        return int.from_bytes(number, "big") if number else None


class _Run:
    """One of the processes, as the first sees it."""

    def __init__(self, session: pytest.Session, shares: list[list[pytest.Item]], numbers: _Numbers, place: int) -> None:
        self._config = session.config
        self.goes_on = True
        self.told, telling = multiprocessing.Pipe(duplex=False)
        forked = multiprocessing.get_context("fork")
        self._process = forked.Process(target=_run, args=(session, shares, numbers, telling, place))
        self._process.start()
        telling.close()

    def hear(self) -> pytest.TestReport | None:
        """What it reports of a test, None when it has no more tests, or ended."""
        try:
            told = self.told.recv()
        except EOFError:
            told = None
        self.goes_on = told is not None
        if told is None:
            return None
        report: pytest.TestReport = self._config.hook.pytest_report_from_serializable(config=self._config, data=told)
        return report

    def end(self) -> None:
        """Wait for its end; what has tests left is interrupted."""
        if self.goes_on and self._process.pid:
            os.kill(self._process.pid, signal.SIGINT)
        self._process.join(30)
        self._process.kill()


class _Teller:
    """Tells the first process of every report."""

    def __init__(self, config: pytest.Config, telling: Connection) -> None:
        self._config, self._telling = config, telling

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._telling.send(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))


def _run(
    session: pytest.Session, shares: list[list[pytest.Item]], numbers: _Numbers, telling: Connection, place: int
) -> None:
    """Run tests, share after share, in a process with an output to capture, a terminal that nobody sees and a folder
    for its tests' files of its own."""
    config = session.config
    random.seed()
    captured = config.pluginmanager.getplugin("capturemanager")._global_capturing
    for stream in (captured.out, captured.err):
        if isinstance(stream, FDCapture):
            with TemporaryFile(buffering=0) as fresh:
                os.dup2(fresh.fileno(), stream.tmpfile.fileno())
                os.dup2(fresh.fileno(), stream.targetfd)
    config.get_terminal_writer()._file = Path(os.devnull).open("w")  # noqa: SIM115
    files = config._tmp_path_factory  # type: ignore[attr-defined]
    files._basetemp = files.getbasetemp() / f"process-{place}"
    files._basetemp.mkdir()
    config.pluginmanager.register(_Teller(config, telling))
    try:
        share: Sequence[pytest.Item] = _next(shares, numbers)
        while share:
            following = _next(shares, numbers)
            for item, after in zip(share, [*share[1:], *following[:1], None], strict=False):
                config.hook.pytest_runtest_protocol(item=item, nextitem=after)
                if session.shouldfail or session.shouldstop:
                    return
            share = following
    except KeyboardInterrupt:
        pass
    finally:
        session._setupstate.teardown_exact(None)
        telling.send(None)


def _next(shares: list[list[pytest.Item]], numbers: _Numbers) -> list[pytest.Item]:
    """The next tests that no process has taken; none when there are none."""
    number = numbers.take()
    return [] if number is None else shares[number]
