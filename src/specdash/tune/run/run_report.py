"""The report of a run, from its files: report.json, and report.md in words. Holds no text of any prompt or answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from specdash.core.errors import NotWrittenError
from specdash.core.structs import json_of
from specdash.system import files
from specdash.tune.model.gains import boot_noise
from specdash.tune.run.status import by_class, gains_of, read_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from specdash.tune.run.status import TuneRun

SCHEMA = "specdash.tune/1"


def write_report(directory: Path, words: Callable[[TuneRun], str]) -> None:
    """Write both. Raises `NotWrittenError`; does nothing where nothing was begun."""
    run = read_run(directory)
    if run is None:
        return
    texts = {"report.json": json.dumps(as_json(run), indent=1), "report.md": words(run)}
    for name, text in texts.items():
        with files.writing(directory / name, NotWrittenError):
            files.replace(directory / name, text.encode())


def as_json(run: TuneRun) -> dict[str, Any]:
    """Everything that was measured, and what came of it."""
    gained = gains_of(run)
    return {
        "schema": SCHEMA,
        "state": str(run.state),
        "at": run.head.at,
        "plan": json_of(run.plan),
        "boots": [
            {
                **json_of(boot),
                "against_the_start": json_of(gained[boot.number]) if boot.number in gained else None,
                "classes": {kind: json_of(row) for kind, row in by_class(boot.result.prompts).items()},
            }
            for boot in run.boots
        ],
        "boot_noise": boot_noise([boot.result for boot in run.boots], run.plan.workload)[0],
        "end": None if run.end is None else json_of(run.end),
    }
