"""Watches the run record of one server: after an engine was swapped, another process runs with other parameters, and
the record is written again when its start was checked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from specdash.collect import discover
from specdash.core import paths

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from specdash.core.target import Target

LOOK_S = 1.0
"""Seconds between two looks at the directory of the run records."""


class RecordWatch:
    """Tells `on_target` of the target as its newest run record has it. A look costs one stat while nothing changes."""

    def __init__(self, target: Target, on_target: Callable[[Target], None], env: Mapping[str, str]) -> None:
        self._target = target
        self._on_target = on_target
        self._env = env
        self._directory: Path = paths.run_records_dir(env)
        self._seen: int | None = None

    def step(self) -> float:
        """One look; the seconds until the next."""
        try:
            changed = self._directory.stat().st_mtime_ns
        except OSError:
            return LOOK_S
        check = self._target.start_check
        if changed == self._seen and not (check is not None and check.pending):
            return LOOK_S
        found = discover.recorded_target(self._target.url, self._env)
        if found is None:
            # Between two engines there is none; the next one's comes with another change.
            return LOOK_S
        self._seen = changed
        known = replace(
            self._target,
            pid=found.pid,
            engine=found.engine,
            parameters=found.parameters,
            start_check=found.start_check,
        )
        if known != self._target:
            self._target = known
            self._on_target(known)
        return LOOK_S
