"""The views of speculation are in the snapshot, documented, and short for people."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from insight.views_data import MAMBA, NOW, WALL, counted, read_log, state_of
from specdash.core.records import Drafting
from specdash.core.speculation import MemoryKind, Rollback
from specdash.core.target import Target
from specdash.export.snapshot import drafting_rows, to_json, to_text, views_json, views_rows
from specdash.insight.picture import (
    BackendPicture,
    CheckpointCounts,
    CheckpointsPicture,
    DrafterPicture,
    DraftingPicture,
    Picture,
    PositionBin,
    PrefixCachePicture,
    PrefixSession,
    PrefixSlot,
    ReferenceCurve,
    ReplayFigures,
    RouterModelPicture,
    RouterPicture,
    SpeculationViews,
)
from specdash.insight.request import ServedRequest
from specdash.insight.state import TargetState

if TYPE_CHECKING:
    from collections.abc import Iterable

DOCS = Path(__file__).parents[2] / "docs" / "snapshot.md"
TYPES: tuple[Any, ...] = (
    DraftingPicture, DrafterPicture, ReferenceCurve, PositionBin, CheckpointsPicture, CheckpointCounts, ReplayFigures,
    PrefixCachePicture, PrefixSession, PrefixSlot, RouterPicture, RouterModelPicture,
)  # fmt: skip


def picture_of(**views: Any) -> Picture:
    return Picture(NOW, WALL, 300.0, BackendPicture("http://127.0.0.1:1"), views=SpeculationViews(**views))


def rows(**views: Any) -> dict[str, str]:
    picture = picture_of(**views)
    return dict([*drafting_rows(picture), *views_rows(picture)])


@pytest.mark.parametrize("kind", TYPES)
def test_every_field_of_a_view_is_documented(kind: Any) -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert [
        dataclass_field.name for dataclass_field in fields(kind) if not re.search(rf"\b{dataclass_field.name}\b", text)
    ] == []


def test_what_is_not_known_is_null_and_every_view_is_there() -> None:
    document = to_json(TargetState(Target("http://127.0.0.1:1")).picture(NOW, WALL))
    assert document["drafting"]["state"] == "unknown"
    assert document["drafter"]["type"] is None
    assert document["drafter"]["verdict"] is None
    assert document["checkpoints"]["rollback"] is None
    assert document["checkpoints"]["lifetime"]["effective_length"] is None
    assert document["prefix_cache"]["requests"] == []
    assert document["router"]["models"] == []


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
    state = counted(state_of("draft-simple", model=MAMBA), (16, 16), steps=18, drafted=144, plain=22)
    read_log(state, "mamba_draft75_lv3_trace1")
    document = json.loads(json.dumps(to_json(state.picture(NOW, WALL)), allow_nan=False))
    assert document["checkpoints"]["memory"] == "recurrent"
    assert document["checkpoints"]["rollback"] == "checkpoint + replay"
    assert document["checkpoints"]["effective_length"] < document["checkpoints"]["mean_accepted_length"]
    assert "" not in set(map(str, leaves(document["checkpoints"])))


def test_requests_and_sessions_tell_their_cached_share() -> None:
    prefix = PrefixCachePicture(
        requests=(ServedRequest(prompt_total_tokens=100, prompt_cached=75),), sessions=(PrefixSession("s", 2, 30, 70),)
    )
    told = views_json(SpeculationViews(prefix_cache=prefix))["prefix_cache"]
    assert (told["requests"][0]["cached_share"], told["sessions"][0]["cached_share"]) == (0.75, 0.3)
    assert [key for key in told["requests"][0] if not re.search(rf"\b{key}\b", DOCS.read_text("utf-8"))] == []


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
                ReferenceCurve("mean alone", "x#1", (), 4.4),
                ReferenceCurve("DFlash", "x#2", (0.6, 0.385), distance=0.1),
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
