"""Recorders for tests: quick ones in this process, and real processes that are killed."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import specdash.history.recorder as module
from specdash.core import paths
from specdash.core.readings import Counters, Health, HealthStatus, Reading, Source
from specdash.core.target import Target
from specdash.history.recorder import Recorder

TARGET = Target("http://127.0.0.1:8080")
URL = TARGET.url


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorders write fifty times a second, and try again as soon."""
    monkeypatch.setattr(module, "COMMIT_S", 0.02)
    monkeypatch.setattr(module, "RETRY_S", 0.05)


def env_of(directory: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(directory), "XDG_CONFIG_HOME": str(directory), "HOME": str(directory)}


def file_of(directory: Path) -> Path:
    return paths.history_file(env_of(directory))


@contextmanager
def recording(directory: Path, **options: Any) -> Iterator[Recorder]:
    recorder = Recorder(TARGET, env=env_of(directory), **options)
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.close()


def counters(number: float, at: float | None = None) -> Reading[Counters]:
    return Reading.known(Source.METRICS, time.monotonic() if at is None else at, Counters(prompt_tokens=number))


def health(at: float | None = None) -> Reading[Health]:
    return Reading.known(Source.HEALTH, time.monotonic() if at is None else at, Health(HealthStatus.OK))


def value(reading: Reading[Any]) -> Any:
    """The value of a reading that has one."""
    assert reading.value is not None
    return reading.value


LOAD = """
import itertools, sys, time
from specdash.core.readings import Counters, Health, HealthStatus, Reading, Source
from specdash.core.log_facts import LogBatch, VerificationSteps
from specdash.history.recorder import Recorder
from specdash.core.target import Target
from specdash.insight.charts import Metric

recorder = Recorder(Target(sys.argv[1]))
recorder.start()
for number in itertools.count():
    now = time.monotonic()
    recorder.on_reading(Reading.known(Source.METRICS, now, Counters(prompt_tokens=float(number))))
    recorder.on_reading(Reading.known(Source.HEALTH, now, Health(HealthStatus.OK, latency_s=number / 1e6)))
    facts = tuple(VerificationSteps(slot, number, 1, 2, 3, at_s=now) for slot in range(8))
    recorder.on_reading(Reading.known(Source.LOG, now, LogBatch(lines=8, facts=facts)))
    recorder.on_point(Metric.DECODE, now, float(number))
    if number % 20 == 0:
        print(number, time.time(), recorder.is_recording, recorder.problem, flush=True)
    time.sleep(float(sys.argv[2]))
"""


def loaded_recorder(directory: Path, pause_s: float = 0.002, url: str = URL) -> subprocess.Popen[str]:
    """A process that records some five hundred rounds a second, and says how far it is."""
    return subprocess.Popen(
        [sys.executable, "-c", LOAD, url, str(pause_s)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **env_of(directory)},
    )
