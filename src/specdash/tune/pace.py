"""What is known of a machine's pace before a run: from earlier runs of the same model, else from the server's counters
and from earlier applies."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from math import log
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from specdash.bench.drive import WARM_UP_TOKENS
from specdash.core.applies import Outcome
from specdash.core.errors import InputError
from specdash.core.paths import applies_file
from specdash.tune.forecast import REQUEST_S, Pace
from specdash.tune.objective import Objective
from specdash.tune.surroundings import counters

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from specdash.bench.samples import Place
    from specdash.core.applies import ApplyRecord
    from specdash.tune.run_setup import Fingerprint

_SAME = ("model", "draft model", "engine", "GPUs", "cores", "setting LLAMA_THREADS", "setting LLAMA_GPU_LAYERS")
"""What must be as it was for an earlier run to tell the pace of another."""
_RUNS = 5
_APPLIES = 20
_BYTES_A_SECOND = 1e9
_START_S = 2.0


def known_pace(
    fingerprint: Fingerprint,
    start_s: float,
    place: Place | None,
    env: Mapping[str, str] = os.environ,
    *,
    tokens: int | None = None,
) -> Pace | None:
    """None where nobody knows how fast the engine is. `start_s` is what a start takes, for want of runs,
    `tokens` the length of an answer."""
    found = earlier_pace(fingerprint, env, tokens)
    told = counters(place) if place is not None else None
    if told is None or not told.predicted_seconds or not told.predicted_tokens:
        return found
    read = told.prompt_tokens / told.prompt_seconds if told.prompt_seconds and told.prompt_tokens else None
    if found is not None:
        return replace(found, prefill=read)
    return Pace(start_s, told.predicted_tokens / told.predicted_seconds, read)


def earlier_pace(
    fingerprint: Fingerprint, env: Mapping[str, str] = os.environ, tokens: int | None = None
) -> Pace | None:
    """As an earlier run of the same model on the same machine measured it: of the newest ones, that with answers of a
    length nearest to `tokens`, as long ones decode slower."""
    from specdash.tune.run_files import run_directories

    found: list[tuple[float, Pace]] = []
    for directory in reversed(run_directories(env)[-_RUNS:]):
        told = _pace_of(directory, fingerprint)
        if told is not None:
            length, pace = told
            found.append((abs(log(length / tokens)) if tokens else 0.0, pace))
    return min(found, key=lambda one: one[0])[1] if found else None


def _pace_of(directory: Path, fingerprint: Fingerprint) -> tuple[float, Pace] | None:
    """Tokens of an answer, and the pace; None for a run of something else."""
    from specdash.tune.run_files import read_run
    from specdash.tune.run_setup import read_setup

    with contextlib.suppress(InputError):
        setup = read_setup(directory)
        if any(setup.fingerprint.get(name) != fingerprint.get(name) for name in _SAME):
            return None
        run = read_run(directory)
        if run is None or setup.options.get("objective") != Objective.DECODE or setup.options.get("while_serving"):
            return None
        paces = []
        for boot in run.boots:
            seconds = sum(one.seconds for one in boot.result.prompts)
            tokens = sum(one.tokens for one in boot.result.prompts)
            if boot.seconds is not None and boot.waited_s is not None and 0 < seconds < boot.seconds:
                count, first_s = len(boot.result.prompts), boot.result.ttft_s or 0.0
                asking = (REQUEST_S + first_s) * count + WARM_UP_TOKENS * seconds / tokens
                start_s = max(0.0, boot.seconds - seconds - asking)
                paces.append((start_s, tokens / seconds, first_s, tokens / count))
        if paces:
            start_s, decode, first_s, length = (median(column) for column in zip(*paces, strict=True))
            return length, Pace(start_s, decode, first_s=first_s)
    return None


def start_seconds(files: Iterable[str | None], env: Mapping[str, str] = os.environ) -> float:
    """A start with all that an apply does around it: as in earlier applies, else by the size of what is loaded."""
    known = [one.ended_at - one.at for one in _applied(env)]
    return median(known) if known else load_seconds(files)


def down_seconds(files: Iterable[str | None], env: Mapping[str, str] = os.environ) -> float:
    """How long the service is away in a restart; likewise."""
    known = [one.downtime_s for one in _applied(env) if one.downtime_s is not None]
    return median(known) if known else load_seconds(files)


def _applied(env: Mapping[str, str]) -> list[ApplyRecord]:
    from specdash.control.records import read_records

    records = read_records(applies_file(env))[-_APPLIES:]
    return [one for one in records if one.outcome is Outcome.APPLIED and one.downtime_s is not None]


def load_seconds(files: Iterable[str | None]) -> float:
    """By the size of what is loaded."""
    size = 0
    for path in files:
        if path is not None:
            with contextlib.suppress(OSError):
                size += Path(path).expanduser().stat().st_size
    return _START_S + size / _BYTES_A_SECOND


def others_load() -> float | None:
    """How many processes want a core, on average over the last minutes; None where the system does not tell."""
    try:
        last, before, _ = os.getloadavg()
    except (OSError, AttributeError):
        return None
    return (last + before) / 2
