"""Measures one boot: the same prompts every time, with forced length and no cache; and what limits say of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from specdash.bench.engines import last_said
from specdash.bench.load.contact import counters_told
from specdash.bench.load.drive import MeasureOptions, measure
from specdash.bench.load.figures import usable
from specdash.llama.chat import ChatFault
from specdash.system.stats import mean, median
from specdash.system.text import MIB, percent, size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdash.bench.load.drive import MeasuredRun
    from specdash.bench.load.samples import BenchSample, EngineAddress, WorkloadPrompt
    from specdash.collect.gpu import GpuLooks
    from specdash.core.flag import Flag
    from specdash.core.readings import Counters
    from specdash.tune.model.problem import BootResult, Point
    from specdash.tune.run.status import Boot

_ANSWER_S = 5.0
_EXACT_BELOW = 1e6
"""Tokens up to which /metrics counts exactly."""
BUSY_GPU = 0.2
"""Utilisation of a GPU on which our engine does nothing, from which someone else does."""


def boot_seconds(boots: Sequence[Boot]) -> float | None:
    """What one boot more will take, by those that were made; None before the first.

    Starts and measurements are alike, but for one that hung: their median. Discarded boots come now and then: their
    mean. A boot that did not come up says nothing of one that does.
    """
    usual = median(boot.seconds for boot in boots if boot.seconds is not None and boot.result.prompts)
    waited = mean([boot.waited_s for boot in boots if boot.waited_s is not None])
    return None if usual is None else usual + (waited or 0.0)


class MeasuredBoot(Struct, frozen=True):
    """One boot, as it was measured."""

    samples: tuple[BenchSample, ...]
    problem: str = ""
    """Why it is not complete; empty when it is."""
    disturbed: str = ""
    """Who else used the engine or the GPU meanwhile, in words; empty when no one is known to have."""
    memory_free_bytes: int | None = None
    """Of the GPU with the least room, with the engine loaded and used."""

    @property
    def ttft_s(self) -> float | None:
        """The median."""
        return median(sample.ttft_s for sample in self.samples if not sample.failed)


class Measurer:
    """The measurement of every boot of a run, a `loop.PromptRunner`."""

    def __init__(
        self,
        prompts: Sequence[WorkloadPrompt],
        options: MeasureOptions,
        gpus: GpuLooks | None = None,
        stop: Flag | None = None,
    ) -> None:
        self.prompts = tuple(prompts)
        self._options = replace(options, runs=1, cache=False, force_length=True)
        self._gpus = gpus
        self._stop = stop

    def __call__(self, place: EngineAddress, on_done: Callable[[int, int], None]) -> MeasuredBoot:
        """Raises `SpecdashError`, and `bench.drive.Interrupted`."""
        before = counters_told(place.client(_ANSWER_S))
        gpus = self._gpus.look() if self._gpus is not None else None
        done = 0

        def count(_: BenchSample) -> None:
            nonlocal done
            done += 1
            on_done(done, len(self.prompts))

        run = measure(place, self.prompts, replace(self._options, log=place.log), count, stop=self._stop)
        after = self._gpus.look() if self._gpus is not None else None
        disturbed = ""
        if others := foreign_tokens(run, before, counters_told(place.client(_ANSWER_S))):
            disturbed = f"the engine generated {others} tokens for other clients"
        elif gpus is not None and (gpus.utilisation or 0.0) > BUSY_GPU:
            disturbed = f"the GPU was {percent(gpus.utilisation)} busy before anything was asked"
        # Requests whose figures cannot be are left out.
        good, failed = usable(run.samples), [sample for sample in run.samples if sample.failed]
        problem = ""
        if failed:
            broke = any(sample.fault in (ChatFault.BROKEN, ChatFault.UNREACHABLE) for sample in failed)
            gone = last_said(place.log) if broke else ""
            problem = f"{len(failed)} of {len(run.samples)} requests failed: {failed[0].error}{gone}"
        elif not good:
            problem = "no request gave figures that can be"
        elif not run.complete:
            problem = "not all requests were asked"
        free = after.free_bytes if after is not None else None
        return MeasuredBoot((*good, *failed), problem, disturbed, free)


def foreign_tokens(run: MeasuredRun, before: Counters | None, after: Counters | None) -> int | None:
    """What the engine generated for others meanwhile; None where a counter, or an answer that broke off, does not
    tell."""
    asked = [*run.samples, *([run.warm_up] if run.warm_up is not None else [])]
    own = [None if sample.failed else sample.predicted_tokens for sample in asked]
    first = before.predicted_tokens if before is not None else None
    last = after.predicted_tokens if after is not None else None
    if first is None or last is None or last >= _EXACT_BELOW or None in own:
        return None
    return max(0, round(last - first) - sum(tokens or 0 for tokens in own))


class Limits(Struct, frozen=True):
    """What a faster configuration must keep, beside the start as it was measured in the same run. None: not a limit."""

    ttft: float | None = 0.05
    """By which share the median time to first token may grow."""
    ttft_slack_s: float = 0.05
    """And this much besides, as short times vary by more than a share of them."""
    free_mib: int | None = 256
    """GPU memory that must stay free, where it is known."""

    @property
    def words(self) -> tuple[str, ...]:
        """One line each."""
        found = []
        if self.ttft is not None:
            slack = f" and {self.ttft_slack_s * 1000:.0f} ms"
            found.append(f"median time to first token at most {percent(self.ttft)}{slack} above the start's")
        if self.free_mib is not None:
            found.append(f"{self.free_mib} MiB of GPU memory free, where there is a GPU")
        return tuple(found)

    @staticmethod
    def drafts(result: BootResult) -> str:
        """Which way to speculate drafted nothing, in words; empty when all did."""
        drafting = [name for name in result.point.types if not name.startswith("ngram")]
        if drafting and not sum(prompt.drafted for prompt in result.prompts):
            return f"it runs, and {drafting[0]} drafted nothing"
        return ""

    def memory(self, measured: MeasuredBoot) -> str:
        """By how much too little memory a boot leaves free, in words; empty when it leaves enough."""
        free = measured.memory_free_bytes
        if self.free_mib is not None and free is not None and free < self.free_mib * MIB:
            return f"only {size(free)} of GPU memory are free ({size(self.free_mib * MIB)} wanted)"
        return ""

    def ttft_of(self, result: BootResult, start: Point, boots: Sequence[Boot]) -> str:
        """How far the first token comes too late, by the medians over the boots of its point and of the start, in
        words; empty when it does not."""

        def usual(*results: BootResult) -> float | None:
            return median(row.ttft_s for row in results if row.prompts)

        seen = usual(*(boot.result for boot in boots if boot.result.point == result.point), result)
        at_start = usual(*(boot.result for boot in boots if boot.result.point == start and not boot.result.failure))
        if self.ttft is None or at_start is None or seen is None:
            return ""
        most = at_start * (1 + self.ttft) + self.ttft_slack_s
        return f"time to first token {seen:.2f} s, at most {most:.2f} s are allowed" if seen > most else ""
