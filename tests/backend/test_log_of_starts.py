"""The log of a service whose engine was swapped: read afterwards, its requests are on the side on which they ran."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from backend.test_reload import ENGINES, swapping
from specdash.collect.logs import LogCollector
from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyRecord, Change, Role
from specdash.core.readings import Reading, Source
from specdash.core.target import Target
from specdash.insight.picture import MeasureName
from specdash.insight.state import TargetState
from support.engines import engine_env

if TYPE_CHECKING:
    from pathlib import Path

CHANGE = (Change(Role.BACKEND, "LLAMA_DRAFT_MAX", "8", "4"),)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_requests_before_and_after_applies_are_told_apart(models: dict[str, Path], tmp_path: Path, engine: str) -> None:
    applies: list[ApplyRecord] = []
    with swapping(models, tmp_path, engine_env(engine)) as service:
        for number, requests in enumerate((3, 6, 4)):
            if number:
                time.sleep(3.0)
                began = time.time()
                service.swap(LLAMA_DRAFT_MAX=str(8 - 2 * number))
                steps = {"restart": time.time() - began}
                applies.append(
                    ApplyRecord(
                        number, began, time.time(), ApplyKind.APPLY, ApplyOutcome.APPLIED, CHANGE, step_seconds=steps
                    )
                )
            # What begins as an apply ends may have been touched by it.
            time.sleep(1.0)
            for _ in range(requests):
                service.backend.complete("Once upon a time", 40)
        time.sleep(0.5)
        state = TargetState(Target(service.backend.url, log=str(service.backend.log)))
        state.apply(Reading.known(Source.APPLIES, time.monotonic(), tuple(applies)))
        collector = LogCollector(str(service.backend.log), state.apply)
        collector.step()
        collector.close()
        card = state.picture(time.monotonic(), time.time()).experiment
    assert card is not None
    decode = next(measure for measure in card.measures if measure.name is MeasureName.DECODE)
    # The first request after each restart is cold.
    assert (decode.before.count, decode.after.count) == (5, 3)
    assert card.caveats == ()
