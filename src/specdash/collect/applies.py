"""The records of applies to readings: whatever process applied, the dashboard hears of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from specdash.collect.discover import concerns, place
from specdash.collect.json_lines import KEPT, MAX_LINE_BYTES, PERIOD_S, JsonLines
from specdash.core import paths
from specdash.core.applies import ApplyRecord
from specdash.core.readings import Reading, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["KEPT", "MAX_LINE_BYTES", "NOTHING", "PERIOD_S", "ApplyCollector"]

_LATEST = 1e11
"""No time of a record is later, in seconds; nor is NaN a time."""
NOTHING = "nothing was applied yet"


class ApplyCollector(JsonLines[ApplyRecord]):
    """Follows the records, and publishes all that concern one server whenever there is one more."""

    def __init__(
        self,
        url: str,
        publish: Callable[[Reading[Any]], None],
        env: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`url` is the server's base address; records without an address concern every server."""
        self._place = place(url)
        super().__init__(
            paths.applies_file(env), Source.APPLIES, self._concerning, publish, nothing=NOTHING, clock=clock
        )

    def _concerning(self, line: str) -> ApplyRecord | None:
        record = ApplyRecord.from_json(line)
        if record is None:
            return None
        times = (record.at, record.ended_at, *record.step_seconds.values())
        return record if all(0 <= one < _LATEST for one in times) and concerns(record.url, self._place) else None
