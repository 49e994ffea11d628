"""Joules a token, with and without speculation: from the driver's energy counter, and from its power beside it."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from gpu.report import Check
from specdash.bench.compare.machine import MachineWatch
from specdash.bench.load.workloads import bundled
from specdash.collect.gpu import GpuLooks
from specdash.system.http import ask

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpu.kit import Kit
    from gpu.report import Report
    from specdash.bench.compare.machine import MachineState

SIZE_GB = 8
WINDOW_S = 20.0
WARM_S = 2.0
"""The driver tells power as a mean of the last second: what it tells first shall be of work already."""
SAMPLE_S = 0.1
APART = 0.05
"""As far may the counter and the sampled power be apart."""
TOKENS = 256


@dataclass(frozen=True, slots=True)
class Spent:
    """What some seconds of generating took, of all GPUs together. What no driver tells is None."""

    tokens: int
    seconds: float
    counted_joules: float | None
    """By the energy counter."""
    sampled_joules: float | None
    """By the power, every `SAMPLE_S`."""

    @property
    def joules_per_token(self) -> float | None:
        """By the counter."""
        return self.counted_joules / self.tokens if self.counted_joules is not None and self.tokens else None

    @property
    def apart(self) -> float | None:
        """The sampled energy over the counted, less 1."""
        if not self.counted_joules or self.sampled_joules is None:
            return None
        return self.sampled_joules / self.counted_joules - 1


def run(kit: Kit, report: Report) -> None:
    """See the module."""
    measure(kit, report)


def measure(kit: Kit, report: Report, nvml: Any = None, window_s: float = WINDOW_S) -> None:
    """With `nvml` as in `collect.gpu`."""
    looks = GpuLooks(nvml=nvml)
    seen = looks.look()
    if not report.judge("the driver tells the energy", seen.energy_joules is not None, note=seen.absent):
        return
    model, draft = kit.model("target", SIZE_GB), kit.model("draft")
    ways: dict[str, tuple[str, ...]] = {
        "without speculation": (),
        "with draft-simple": ("--spec-type", "draft-simple", "--spec-draft-model", str(draft)),
    }
    # Threads that wait for each other by spinning take one another's cores where others work, too.
    shape = ("--ctx-size", "8192", "--parallel", "1", *(("--threads", "1") if kit.cpu else ()))
    found: dict[str, float] = {}
    for way, flags in ways.items():
        with kit.server(model, *shape, *flags, name="energy") as server:
            request = asker(server.url)
            generate(request, WARM_S)
            spent = spend(request, window_s, nvml)
        joules = _tell(report, way, spent)
        if joules is not None:
            found[way] = joules
    if len(found) == len(ways):
        plain, drafting = found.values()
        report.figure("joules a token with draft-simple, of those without", round(drafting / plain, 3))


def spend(request: Callable[[], int], seconds: float, nvml: Any = None) -> Spent:
    """Generate for so long, and see what it takes."""
    looks = GpuLooks(nvml=nvml)
    with MachineWatch(SAMPLE_S, nvml=nvml) as watch:
        before, began = looks.look(), time.monotonic()
        tokens = generate(request, seconds)
        after, took = looks.look(), time.monotonic() - began
    counted = (
        after.energy_joules - before.energy_joules
        if before.energy_joules is not None and after.energy_joules is not None
        else None
    )
    watts = mean_watts(watch.states)
    return Spent(tokens, took, counted, None if watts is None else watts * took)


def generate(request: Callable[[], int], seconds: float) -> int:
    """Ask until so much time has gone; the tokens of all answers."""
    until, tokens = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        tokens += request()
    return tokens


def mean_watts(states: Sequence[MachineState]) -> float | None:
    """Over time, not over looks, which come when they can."""
    told = [(state.at, state.watts) for state in states if state.watts is not None]
    if len(told) < 2 or told[-1][0] <= told[0][0]:
        return None
    pairs = itertools.pairwise(told)
    joules = sum((later - earlier) * (first + second) / 2 for (earlier, first), (later, second) in pairs)
    return joules / (told[-1][0] - told[0][0])


def asker(url: str) -> Callable[[], int]:
    """Asks a server one bundled prompt after the other, one a call; a call's answer is how many tokens it generated."""
    prompts = itertools.cycle(bundled(("coding", "pattern"), 4))

    def generated() -> int:
        body = {
            "messages": [dict(message) for message in next(prompts).messages],
            "max_tokens": TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        reply = ask(url, "/v1/chat/completions", body=body, timeout=60.0)
        if reply.status != HTTPStatus.OK:
            raise OSError(f"{url} answered {reply.status}: {reply.body[:500]!r}")
        return int(reply.json["usage"]["completion_tokens"])

    return generated


def _tell(report: Report, way: str, spent: Spent) -> float | None:
    joules, apart = spent.joules_per_token, spent.apart
    report.judge(f"the energy counter moves while it generates {way}", bool(spent.counted_joules), spent.counted_joules)
    if joules is None or apart is None:
        report.failed(f"the driver tells energy and power {way}", [spent.counted_joules, spent.sampled_joules])
        return None
    report.figure(f"energy {way}, {SIZE_GB} GB model", round(joules, 4), "J/token")
    report.figure(
        f"decode {way}, {SIZE_GB} GB model, prompts included", round(spent.tokens / spent.seconds, 1), "tok/s"
    )
    report.figure(f"mean power {way}", round((spent.counted_joules or 0.0) / spent.seconds, 1), "W")
    report.judge(
        f"energy counter and sampled power agree {way}, over {spent.seconds:.0f} s",
        abs(apart) <= APART,
        round(100 * apart, 2),
        f"at most {APART:.0%} apart",
        "%",
    )
    return joules


CHECK = Check("energy", "Energy a token: NVML's counter against sampled power", run, limit_s=75.0, needs_gpu=True)
