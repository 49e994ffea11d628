"""How long a run takes: before it by what is known of the machine (`tune.pace`), from the first boot on by its boots.

A boot costs its start, one warm-up, and every prompt; before it, other programs are waited for; where they do not leave
the machine alone, it is made again. Comparing texts comes on top where something better is found, and putting the
original back always does.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from statistics import median
from typing import TYPE_CHECKING

from specdash.bench.drive import WARM_UP_TOKENS
from specdash.tune.status import Forecast
from specdash.tune.surroundings import allowed_cores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.tune.status import Boot

LOOK_S = 1.0
"""The least time that the wait for an idle machine takes."""
LONGEST_WAIT_S = 120.0
"""The longest; the boot is judged afterwards anyway."""
REQUEST_S = 0.02
"""What a request costs beside its tokens: connecting, and reading the counters after it."""
_QUIET_S = 5.0
"""How long a busy machine is left alone at a time, as far as anybody knows before."""
_CHECK_TOKENS = 4 * 128
_CHECK_BOOTS = 2.5
"""Starts that comparing the texts takes, on average: two, and one or two more where they differ."""
_FOUND = 0.5
"""How likely there will be texts to compare, before anything was measured."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What is known of a machine before a run: seconds of a start, tokens a second of decode and of prompts, and, where
    that is not known, seconds until the first token."""

    start_s: float
    decode: float
    prefill: float | None = None
    first_s: float = 0.0


def before(
    pace: Pace, requests: int, tokens: int, prompt_tokens: float, *, load: float | None, repeats: int, checks: bool
) -> Forecast:
    """Of boots with so many requests, tokens to generate and to read. `load` is how many other processes want a core,
    on average; None where nobody is waited for. `repeats` is how often a disturbed boot is made again, `checks` whether
    texts will be compared."""
    asking = tokens + WARM_UP_TOKENS
    once = pace.start_s + asking / pace.decode + requests * REQUEST_S
    once += prompt_tokens / pace.prefill if pace.prefill else requests * pace.first_s
    check_s = _CHECK_BOOTS * (pace.start_s + _CHECK_TOKENS / pace.decode) if checks else 0.0
    if load is None:
        return Forecast(once, 0.0, check_s, pace.start_s)
    busy = busy_share(load)
    turns = sum(busy**turn for turn in range(repeats + 1))
    waited = turns * (LOOK_S + min(LONGEST_WAIT_S, _QUIET_S * busy**2 / max(1 - busy, 1e-9)))
    return Forecast(once, waited + (turns - 1) * once, check_s, pace.start_s)


def busy_share(load: float) -> float:
    """The share of the time in which others use more of the machine than they may, if they come independently."""
    return 1 - exp(-load) if load > allowed_cores() else 0.0


def total_s(forecast: Forecast, restarts: int) -> float:
    """All of it, before anything is known of the outcome."""
    return restarts * (forecast.boot_s + forecast.wait_s) + _FOUND * forecast.check_s + forecast.restore_s


def boot_seconds(boots: Sequence[Boot], forecast: Forecast | None = None) -> float | None:
    """What one boot more will take, by those that were made, else as foretold; None where neither tells.

    Starts and measurements are alike, but for one that hung: their median. Waits and discarded boots come now and then:
    their mean, the foretold one among them. A boot that did not come up tells nothing of one that does.
    """
    told = [one.seconds for one in boots if one.seconds is not None and one.result.prompts]
    waited = [one.waited_s for one in boots if one.waited_s is not None]
    if forecast is not None:
        waited.append(forecast.wait_s)
        told = told or [forecast.boot_s]
    return median(told) + (sum(waited) / len(waited) if waited else 0.0) if told else None


def left_s(
    boots: Sequence[Boot],
    restarts: int,
    forecast: Forecast | None,
    *,
    elapsed_s: float,
    better: bool,
    comparing: bool = False,
) -> float | None:
    """Seconds until the run has ended; None where nobody knows yet.

    `elapsed_s` is how long the present boot, or comparing the texts, has been under way; `better` whether something
    better than the start is seen now, so that there will be texts to compare.
    """
    each = boot_seconds(boots, forecast)
    if each is None:
        return None
    check_s = forecast.check_s if forecast is not None else 0.0
    restore_s = forecast.restore_s if forecast is not None else 0.0
    if comparing:
        return max(0.0, check_s - elapsed_s) + restore_s
    more = max(0, restarts - len(boots))
    # A boot that takes longer than usual ends soon, as far as anybody knows; those after it are not shorter for that.
    own = max(0.0, each - elapsed_s) + (more - 1) * each if more else 0.0
    return own + (check_s if better else 0.0 if boots else _FOUND * check_s) + restore_s
