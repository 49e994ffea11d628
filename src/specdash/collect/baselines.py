"""The recorded baselines to readings: whatever process measured them, the dashboard hears of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from specdash.collect.json_lines import JsonLines
from specdash.core import paths
from specdash.core.baselines import Baseline
from specdash.core.readings import Reading, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

KEPT = 1000
NOTHING = "no baseline was recorded yet; `specdash baseline record` measures one"


class BaselineCollector(JsonLines[Baseline]):
    """Follows the baselines, of all models, and publishes them whenever there is one more or one less."""

    def __init__(
        self,
        publish: Callable[[Reading[Any]], None],
        env: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        path = paths.baselines_file(env)
        super().__init__(path, Source.BASELINES, Baseline.from_json, publish, nothing=NOTHING, kept=KEPT, clock=clock)
