"""The snapshot keeps its contract: the documented fields are there, JSON-clean, and the same truth as on the screen."""

import json
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from export.test_check_report import down
from insight.scenes import MAMBA, NOW, WALL, counted, read_log, record, requests, speculating
from specdash.core.changes import ApplyOutcome
from specdash.core.readings import Reading, Source
from specdash.core.records import Drafting
from specdash.core.speculation import MemoryKind, PublishedAcceptance, Rollback
from specdash.core.target import Target
from specdash.export.snapshot import drafting_rows, to_json, to_text, views_json, views_rows
from specdash.insight.picture import (
    BackendPicture,
    CheckpointCounts,
    CheckpointsPicture,
    DrafterPicture,
    DraftingPicture,
    Picture,
    PrefixCachePicture,
    PrefixSlot,
    ReplayFigures,
    SpeculationViews,
)
from specdash.insight.request import ServedRequest
from specdash.insight.router import RouterModelPicture, RouterPicture
from specdash.insight.state import TargetState
from tui.fake_state import busy_picture

DOCS = Path(__file__).parents[2] / "docs" / "snapshot.md"
VIEWS: tuple[Any, ...] = (
    DraftingPicture, DrafterPicture, PublishedAcceptance, CheckpointsPicture, CheckpointCounts,
    ReplayFigures, PrefixCachePicture, PrefixSlot, RouterPicture, RouterModelPicture,
)  # fmt: skip


def document(picture: Picture) -> dict[str, Any]:
    written: dict[str, Any] = json.loads(json.dumps(to_json(picture), allow_nan=False))
    return written


def empty() -> dict[str, Any]:
    return document(TargetState(Target("http://127.0.0.1:1")).picture(1.0, 1_790_000_000.0))


def busy() -> Picture:
    """Of a server of which everything is known."""
    return busy_picture(10_000.0, 1_790_000_000.0, 300.0)


def applied(after: int = 30) -> Picture:
    """Of a server with an apply between requests, and one that was rolled back later."""
    rng = random.Random(1)
    state = TargetState(Target("http://127.0.0.1:8080"))
    told = [*requests(rng, WALL - 300, 40, noise=0.05), *requests(rng, WALL + 20, after, speed=80.0, noise=0.05)]
    state.experiments.samples.logged.extend(told)
    applies = record(1), record(2, WALL + 1000, outcome=ApplyOutcome.ROLLED_BACK)
    state.apply(Reading.known(Source.APPLIES, 100.0, applies))
    return state.picture(5000.0, WALL + 2000)


def field_names(part: str) -> set[str]:
    if part == "views":
        return {name for kind in VIEWS for name in kind.__struct_fields__} | {*prefix_cache()["requests"][0]}
    if part == "backend":
        return {*empty()["backend"], *empty()["backend"]["speculation"]}
    if part == "experiment":
        card = document(applied())["experiment"]
        decode = card["measures"]["decode"]
        return {*card, *card["apply"], *card["measures"], *decode, *decode["before"]}
    if part == "alerts":
        told = document(down())
        return {*told["alerts"], *told["alerts"]["active"][0], *told["timeline"][0]}
    told = document(busy())["proxy"]
    lists = (told[name][0] for name in ("sessions", "running", "finished"))
    return {*told, *told["window"], *told["events"], *(name for row in lists for name in row)}


@pytest.mark.parametrize("part", ["backend", "proxy", "experiment", "views", "alerts"])
def test_every_field_is_documented(part: str) -> None:
    text = DOCS.read_text(encoding="utf-8")
    # Those of alerts are words that any page has.
    pattern = r"[`.]{}[\[\]]*`" if part == "alerts" else r"\b{}\b"
    assert {name for name in field_names(part) if not re.search(pattern.format(name), text)} == set()


def test_the_api_key_is_in_no_form_of_it() -> None:
    target = Target("http://127.0.0.1:1", api_key="sk-very-secret")
    picture = TargetState(target).picture(1.0, 0.0)
    assert "sk-very-secret" not in repr((to_json(picture), to_text(picture), target, picture))


def test_without_a_proxy_there_is_none_and_a_named_one_is_unknown_and_not_zero() -> None:
    assert empty()["proxy"] is None
    target = Target("http://127.0.0.1:1", proxy_url="http://127.0.0.1:4000", proxy_key="sk-very-secret")
    state = TargetState(target)
    told = to_json(state.picture(1.0, 0.0))["proxy"]
    assert told is not None
    assert told["status"] == "unknown"
    assert set(told["window"].values()) == {None}
    assert told["sessions"] is None
    assert told["guardrails"] is None
    assert "sk-very-secret" not in repr(to_json(state.picture(1.0, 0.0)))
    assert "proxy        -- no answer yet" in to_text(state.picture(1.0, 0.0))


def test_the_text_has_the_sessions_and_requests_of_the_proxy() -> None:
    text = to_text(busy())
    assert "upstream ok  5 sessions  2 running  errors 2.4 %" in text
    assert "fullest context 88.3 % HIGH" in text


def test_applies_and_the_experiment_are_told() -> None:
    told = document(applied())
    assert [(apply["number"], apply["outcome"]) for apply in told["applies"]] == [(1, "applied"), (2, "rolled back")]
    assert told["applies"][0] == {
        "number": 1,
        "at": WALL + 4,
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
    decode = document(applied(after=5))["experiment"]["measures"]["decode"]
    assert decode["words"] == "not enough data (4 of 12 requests)", "the first one was cold"
    assert (decode["change_low"], decode["change_high"]) == (None, None)


def test_without_an_apply_there_is_nothing_to_tell() -> None:
    shown = TargetState(Target("http://127.0.0.1:8080")).picture(1.0, WALL)
    assert (document(shown)["applies"], document(shown)["experiment"]) == ([], None)
    assert "experiment" not in to_text(shown)


def test_the_text_has_a_line_for_each_measure() -> None:
    lines = to_text(applied()).splitlines()
    (newest,) = [line for line in lines if line.startswith("applies")]
    assert newest == "applies      apply 2  DRAFT_MAX 4→12  rolled back  16 min 36 s ago  (2 in all)"
    (decode,) = [line for line in lines if line.startswith("  decode")]
    assert re.fullmatch(
        r"  decode +\d\d\.\d -> \d\d\.\d tok/s  \+\d\d\.\d % \[\+\d\d\.\d, \+\d\d\.\d\]  better  \(n 40, 29; log\)",
        decode,
    )


def picture_of(**views: Any) -> Picture:
    return Picture(NOW, WALL, 300.0, BackendPicture("http://127.0.0.1:1"), views=SpeculationViews(**views))


def rows(**views: Any) -> dict[str, str]:
    picture = picture_of(**views)
    return dict([*drafting_rows(picture), *views_rows(picture)])


def test_what_is_not_known_is_null_and_every_view_is_there() -> None:
    nothing = empty()
    assert nothing["drafting"]["state"] == "unknown"
    assert nothing["drafter"]["type"] is None
    assert nothing["drafter"]["verdict"] is None
    assert nothing["checkpoints"]["rollback"] is None
    assert nothing["checkpoints"]["lifetime"]["effective_length"] is None
    assert nothing["prefix_cache"]["requests"] == []
    assert nothing["router"]["models"] == []


def leaves(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        for entry in value.values():
            yield from leaves(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from leaves(entry)
    else:
        yield value


def test_what_is_known_can_be_written_as_json() -> None:
    state = counted(speculating("draft-simple", model=MAMBA), (16, 16), steps=18, drafted=144, plain=22)
    read_log(state, "mamba_draft75_lv3_trace1")
    told = document(state.picture(NOW, WALL))
    assert told["checkpoints"]["memory"] == "recurrent"
    assert told["checkpoints"]["rollback"] == "checkpoint + replay"
    assert told["checkpoints"]["effective_length"] < told["checkpoints"]["mean_accepted_length"]
    assert "" not in set(map(str, leaves(told["checkpoints"])))


def prefix_cache() -> Any:
    prefix = PrefixCachePicture(requests=(ServedRequest(prompt_total_tokens=100, prompt_cached=75),))
    return views_json(SpeculationViews(prefix_cache=prefix))["prefix_cache"]


def test_requests_have_their_cached_share_and_the_sessions_of_0_1_are_empty() -> None:
    found = prefix_cache()
    assert (found["requests"][0]["cached_share"], found["sessions"]) == (0.75, [])


def test_running_without_speculation_is_said_first_with_its_cause_and_fix() -> None:
    failed = DraftingPicture(Drafting.FAILED, "the vocabularies differ", "use a draft of the same family")
    found = rows(drafting=failed)
    assert found["drafting"] == "RUNNING WITHOUT SPECULATION because the vocabularies differ"
    assert found["  fix"] == "use a draft of the same family"
    text = to_text(picture_of(drafting=failed))
    assert text.index("drafting") < text.index("speculation  ")
    assert rows() == {}
    assert rows(drafting=DraftingPicture(Drafting.YES))["drafting"] == "SPECULATING"


def test_the_drafter_is_a_few_rows() -> None:
    found = rows(
        drafter=DrafterPicture(
            type="draft-dflash",
            block_size=8,
            effective_length=7,
            clamps=("15 asked, 7 drafted: the draft's block has 8 tokens",),
            references=(
                PublishedAcceptance("draft-mtp", "mean alone", "x#1", (), 4.4),
                PublishedAcceptance("draft-mtp", "DFlash", "x#2", (0.6, 0.385)),
            ),
            break_even_length=2.5,
            break_even_acceptance=0.21,
            break_even_basis="measured",
            verdict="12 % accepted.",
        )
    )
    assert found == {
        "drafter": "draft-dflash  draft length 7 of a block of 8  12 % accepted.",
        "  clamped": "15 asked, 7 drafted: the draft's block has 8 tokens",
        "  needs": "2.50 tokens a decode call, acceptance 21 %  (measured)",
        "  published": "60 38 %  DFlash (x#2)",
    }


def test_replays_checkpoints_cache_and_router_have_theirs() -> None:
    checkpoints = CheckpointsPicture(
        memory=MemoryKind.RECURRENT,
        rollback=Rollback.CHECKPOINT,
        because="mamba is recurrent",
        context=CheckpointCounts(2, 1, 1, 0.096),
        full_reprocessed=3,
        held=True,
        effective_length=3.1,
        verdict="3.1 tokens a decode call.",
    )
    router = RouterPicture((RouterModelPicture("a", "loaded", watched=True), RouterModelPicture("b", "unloaded")), "a")
    prefix = PrefixCachePicture(cached_share=0.82, entries=4, size_mib=120.25, limit_mib=8192.0, verdict="Warm.")
    picture = picture_of(checkpoints=checkpoints, router=router, prefix_cache=prefix)
    assert views_rows(picture) == [
        ("rollback", "checkpoint + replay  mamba is recurrent"),
        ("  replays", "since the start: 3.1 tokens a decode call."),
        ("checkpoints", "context: 2 made, 1 restored, 1 erased, 98.3 KiB the latest"),
        ("checkpoints", "3 prompts read again from their start"),
        ("prefix cache", "Warm."),
        ("  kept", "4 prompts in the host's memory, 120 MiB of 8.0 GiB"),
        ("router", ">a loaded, b unloaded  any: a"),
    ]


def test_an_alert_is_told_with_its_moments_and_evidence() -> None:
    told = document(down())
    (entry,) = told["alerts"]["active"]
    assert (entry["rule"], entry["severity"], entry["ended"]) == ("backend_down", "critical", None)
    assert WALL + 20 < entry["since"] <= entry["raised"] <= entry["last"]
    assert {"label": "process", "value": "10 has ended"} in entry["evidence"]
    assert told["alerts"]["cause"].startswith("Server is down: ")
    assert told["alerts"]["unjudged"]["slot_hung"] == "the server is idle"
    assert [event["kind"] for event in told["timeline"]] == ["state", "alert"]
    assert told["timeline"][1]["ref"] == "backend_down"
