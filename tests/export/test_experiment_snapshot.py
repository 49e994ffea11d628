"""Applies and the card in the snapshot: documented, JSON-clean, and the same truth as on the screen."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from insight.experiment_data import T, record, requests
from specdash.core.changes import ApplyOutcome
from specdash.core.readings import Reading, Source
from specdash.core.target import Target
from specdash.export.snapshot import to_json, to_text
from specdash.insight.state import TargetState

if TYPE_CHECKING:
    from specdash.insight.picture import Picture

DOCS = Path(__file__).parents[2] / "docs" / "snapshot.md"


def picture(after: int = 30) -> Picture:
    """A server with an apply between requests, and one that was rolled back later."""
    rng = random.Random(1)
    state = TargetState(Target("http://127.0.0.1:8080"))
    told = [*requests(rng, T - 300, 40, noise=0.05), *requests(rng, T + 20, after, speed=80.0, noise=0.05)]
    state.experiments.samples.logged.extend(told)
    applies = record(1), record(2, T + 1000, outcome=ApplyOutcome.ROLLED_BACK)
    state.apply(Reading.known(Source.APPLIES, 100.0, applies))
    return state.picture(5000.0, T + 2000)


def document(shown: Picture) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(json.dumps(to_json(shown), allow_nan=False))
    return told


def test_applies_and_the_experiment_are_told() -> None:
    told = document(picture())
    assert [(apply["number"], apply["outcome"]) for apply in told["applies"]] == [(1, "applied"), (2, "rolled back")]
    assert told["applies"][0] == {
        "number": 1,
        "at": T + 4,
        "age_seconds": 1996.0,
        "kind": "apply",
        "outcome": "applied",
        "text": "DRAFT_MAX 4→12",
    }
    assert told["experiment"]["apply"]["number"] == 1
    decode = told["experiment"]["measures"]["decode"]
    assert (decode["verdict"], decode["source"], decode["before"]["count"]) == ("better", "log", 40)
    assert decode["change_low"] < decode["change"] < decode["change_high"]
    assert decode["change_is_relative"]


def test_too_few_requests_have_no_interval() -> None:
    decode = document(picture(after=5))["experiment"]["measures"]["decode"]
    assert decode["words"] == "not enough data (4 of 12 requests)", "the first one was cold"
    assert (decode["change_low"], decode["change_high"]) == (None, None)


def test_without_an_apply_there_is_nothing_to_tell() -> None:
    shown = TargetState(Target("http://127.0.0.1:8080")).picture(1.0, T)
    assert (document(shown)["applies"], document(shown)["experiment"]) == ([], None)
    assert "experiment" not in to_text(shown)


def test_the_text_has_a_line_for_each_measure() -> None:
    lines = to_text(picture()).splitlines()
    (newest,) = [line for line in lines if line.startswith("applies")]
    assert newest == "applies      apply 2  DRAFT_MAX 4→12  rolled back  16 min ago  (2 in all)"
    (decode,) = [line for line in lines if line.startswith("  decode")]
    assert re.fullmatch(
        r"  decode +\d\d\.\d -> \d\d\.\d tok/s  \+\d\d\.\d % \[\+\d\d\.\d, \+\d\d\.\d\]  better  \(n 40, 29; log\)",
        decode,
    )


def test_every_field_is_documented() -> None:
    text = DOCS.read_text(encoding="utf-8")
    card = document(picture())["experiment"]
    names = {
        *card,
        *card["apply"],
        *card["measures"],
        *card["measures"]["decode"],
        *card["measures"]["decode"]["before"],
    }
    assert {name for name in names if not re.search(rf"\b{name}\b", text)} == set()
