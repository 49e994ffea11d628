"""Measures decode without speculation on a running server: per context length and concurrency, one short run each.

A prompt of just that many tokens is put into as many slots first; then all of them generate at the same time, from a
prompt that is cached, so that no one's prefill stands in another's decode. The speed of one request is its own
`timings`: tokens after the first over the time since the first. A server that speculates is measured by
`backend.baseline`.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, wait
from math import sqrt
from typing import TYPE_CHECKING, Any

from specdash.backend.baseline import BaselineReport, BaselineStep
from specdash.core.errors import RefusedError, SpecdashError
from specdash.llama.server_answers import mapping
from specdash.system.stats import MOST, interval, median_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdash.backend.baseline import BaselineCell, BaselineEffort, MeasuredServer
    from specdash.core.records import Baseline

LEAST_VALUES = 3
"""So many requests make a baseline when the run is cut short."""
_WARM_PREFILL_SHARE = 0.15


def measure(
    server: MeasuredServer,
    effort: BaselineEffort,
    keep: Callable[[Baseline], None],
    on_step: Callable[[BaselineStep], None] = lambda _: None,
) -> BaselineReport:
    """Measure every cell, and `keep` each as soon as it is measured. Ctrl-C ends it, keeping what there is by then."""
    report = BaselineReport()
    cells = server.cells(effort, report)
    work = [_work(cell, effort) for cell in cells]
    began = time.monotonic()
    pool = ThreadPoolExecutor(max(cell.concurrency for cell in cells), "baseline")
    try:
        for number, cell in enumerate(cells):
            spent = time.monotonic() - began
            done = sum(work[:number])
            if number and spent + spent / done * work[number] > effort.limit_s:
                report.left_out.append(f"{cell.words}: no time is left of {effort.limit_s:.0f} s")
                continue

            def on_share(share: float, number: int = number, cell: BaselineCell = cell, done: float = done) -> None:
                so_far = done + share * work[number]
                passed = time.monotonic() - began
                left = passed / so_far * (sum(work) - so_far) if so_far > 0 and passed > 1 else None
                on_step(BaselineStep(cell, number + 1, len(cells), so_far / sum(work), left))

            values: list[float] = []
            try:
                _run(server, cell, effort, pool, values, on_share)
            except BaseException:
                # Else the pool would wait for answers that no one wants any more.
                server.close()
                raise
            finally:
                # Also when cut short: what was measured is worth keeping.
                if len(values) >= LEAST_VALUES:
                    baseline = server.baseline(cell, interval(median_of(values[-MOST:])), len(values), effort.tokens)
                    keep(baseline)
                    report.measured.append(baseline)
                    on_step(
                        BaselineStep(cell, number + 1, len(cells), (done + work[number]) / sum(work), None, baseline)
                    )
    finally:
        # Cut short, no one waits for answers that no one wants any more: they end with the connection, or the engine.
        pool.shutdown(wait=False, cancel_futures=True)
    return report


def _work(cell: BaselineCell, effort: BaselineEffort) -> float:
    """How long a cell takes, in units of one token's decode."""
    prefill = cell.concurrency * cell.context * _WARM_PREFILL_SHARE
    return prefill + effort.rounds * effort.tokens * sqrt(cell.concurrency)


def _run(
    server: MeasuredServer,
    cell: BaselineCell,
    effort: BaselineEffort,
    pool: ThreadPoolExecutor,
    values: list[float],
    on_share: Callable[[float], None],
) -> None:
    server.wait_idle()
    prompts = [server.prompt(cell.context, slot) for slot in range(cell.concurrency)]
    on_share(0.0)
    for slot, prompt in enumerate(prompts):
        server.complete({slot: prompt}, 2)
    for number in range(effort.rounds):
        on_share((number + 0.5) / (effort.rounds + 0.5))
        server.wait_idle()
        asked = [pool.submit(server.complete, {slot: prompt}, effort.tokens) for slot, prompt in enumerate(prompts)]
        wait(asked)
        values += [rate_of(mapping(future.result()[0].get("timings"))) for future in asked]


def rate_of(timings: dict[str, Any]) -> float:
    """Tokens a second after the first."""
    tokens, ms = timings.get("predicted_n"), timings.get("predicted_ms")
    if not isinstance(tokens, int) or not isinstance(ms, int | float) or tokens < 2 or ms <= 0:
        raise SpecdashError("the server's answer has no timings; a newer llama.cpp has")
    if timings.get("draft_n"):
        raise RefusedError("the server drafts although /slots says that it does not; nothing was kept of this run")
    return float((tokens - 1) * 1000.0 / ms)
