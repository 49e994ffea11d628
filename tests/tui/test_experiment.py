"""The before/after card: everything that matters fits from 76 columns on, and nothing is said by colour alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from specdash.core.changes import ApplyKind, ApplyOutcome, ApplyRecord
from specdash.core.readings import ReadingStatus, Source
from specdash.insight.experiments import (
    ApplyMark,
    ExperimentCard,
    ExperimentSide,
    ExperimentVerdict,
    MeasureComparison,
    MeasureName,
)
from specdash.insight.picture import SourcePicture
from specdash.tui.view import View
from specdash.tui.widgets.speculation.experiment import card_lines, title
from tui.drawn import block, text
from tui.fake_state import FakeState

MARK = ApplyMark(ApplyRecord(7, 0.0, 0.0, ApplyKind.APPLY, ApplyOutcome.APPLIED), 190.0, 1.79e9, "DRAFT_MAX 4→12")
MEASURES = (
    MeasureComparison(
        MeasureName.ACCEPTANCE,
        "log",
        ExperimentSide(148, 0.621, 0.55, 0.703),
        ExperimentSide(200, 0.672, 0.601, 0.741),
        False,
        0.051,
        0.012,
        0.09,
        ExperimentVerdict.BETTER,
    ),
    MeasureComparison(
        MeasureName.DECODE,
        "log",
        ExperimentSide(148, 45.1, 40.2, 52.0),
        ExperimentSide(200, 44.2, 39.9, 51.3),
        True,
        -0.12,
        -0.29,
        0.151,
        ExperimentVerdict.UNCLEAR,
    ),
    MeasureComparison(
        MeasureName.PREFILL,
        "log",
        ExperimentSide(144, 12_300.0, 11_200.0, 14_100.0),
        ExperimentSide(198, 9512.0, 9101.0, 9988.0),
        True,
        -0.22,
        -0.29,
        -0.15,
        ExperimentVerdict.WORSE,
    ),
    MeasureComparison(
        MeasureName.TTFT,
        "proxy events",
        ExperimentSide(30, 0.82, 0.61, 1.2),
        ExperimentSide(7, 0.79, 0.6, 1.1),
        True,
        -0.03,
    ),
)
CARD = ExperimentCard(
    MARK,
    MEASURES,
    ("prompts are 3.1x longer after (410, then 1271 tokens)", "2.8 requests ran at a time before, 1.1 after"),
)


def view(card: ExperimentCard | None = CARD) -> View:
    state = FakeState()
    return View(replace(state.picture(10_000.0, 1.79e9), experiment=card), state)


def test_the_title_says_which_apply_what_it_changed_and_when() -> None:
    assert title(CARD) == "apply 7 · DRAFT_MAX 4 → 12 · 3 min 10 s ago"
    record = replace(MARK.record, kind=ApplyKind.ROLLBACK, profile="max throughput")
    undone = replace(CARD, mark=replace(MARK, record=record, age_s=59.0))
    assert title(undone) == "rollback 7 · max throughput · DRAFT_MAX 4 → 12 · 59 s ago"


def test_at_76_columns_and_eight_lines_below_the_title_everything_is_there() -> None:
    lines = card_lines(view(), 76, 8)
    assert block(lines).splitlines() == [
        "tok/s              before   n            after   n change, 95 %",
        "accept % 62.1 [55.0–70.3] 148 67.2 [60.1–74.1] 200 +5pp [+1, +9]   better",
        "decode   45.1 [40.2–52.0] 148 44.2 [39.9–51.3] 200 -12% [-29, +15] unclear",
        "prefill   12.3k [11k–14k] 144 9512 [9101–9988] 198 -22% [-29, -15] worse",
        "TTFT ms    820 [610–1200]  30   790 [600–1100]   7 not enough (7 of 12)",
        "▲ prompts are 3.1x longer after (410, then 1271 tokens)",
        "▲ 2.8 requests ran at a time before, 1.1 after",
        "acceptance, decode, prefill from log; TTFT from proxy events",
    ]


@pytest.mark.parametrize("wanted", ["no clear difference", "not enough data (7 of 12 requests)"])
def test_with_more_room_verdicts_are_said_in_full(wanted: str) -> None:
    assert wanted in block(card_lines(view(), 104, 8))


@pytest.mark.parametrize("width", [130, 160])
def test_with_most_room_there_are_sources_and_decimals(width: int) -> None:
    drawn = block(card_lines(view(), width, 8))
    assert "+5.1 pp [+1.2, +9.0]" in drawn
    assert "proxy events" in drawn.splitlines()[4]
    assert max(map(len, drawn.splitlines())) > 110


@given(st.integers(1, 200), st.integers(0, 12))
def test_it_never_leaves_its_room(width: int, height: int) -> None:
    lines = card_lines(view(), width, height)
    assert len(lines) <= height
    for line in lines:
        assert cell_len(text(line)) <= max(width, 2)


def test_verdicts_are_words_in_a_colour_and_what_is_not_enough_is_dim() -> None:
    rows = card_lines(view(), 76, 8)[1:5]
    assert [row[-1][1] for row in rows] == ["good", "text", "bad", "dim"]
    assert {role for _, role in rows[3]} == {"dim"}


def test_caveats_come_before_the_sources_and_are_cut_where_there_is_no_room() -> None:
    assert "from log" not in block(card_lines(view(), 76, 7))
    assert len(card_lines(view(), 76, 6)) == 6
    assert "2.8 requests" not in block(card_lines(view(), 76, 6))


def test_without_an_apply_it_says_so_and_why() -> None:
    assert title(None) == "Before/after"
    drawn = block(card_lines(view(None), 76, 8))
    assert drawn.startswith("  nothing was applied yet")
    state = FakeState()
    picture = state.picture(10_000.0, 1.79e9)
    why = SourcePicture(
        Source.APPLIES, ReadingStatus.UNKNOWN, None, "unavailable: /x cannot be read: permission denied"
    )
    picture = replace(picture, backend=replace(picture.backend, sources=(why,)))
    assert "permission denied" in block(card_lines(View(picture, state), 76, 8))


def test_nothing_measured_yet_is_unknown_and_not_zero() -> None:
    empty = tuple(MeasureComparison(name, "log", ExperimentSide(), ExperimentSide(), True) for name in MeasureName)
    drawn = block(card_lines(view(replace(CARD, measures=empty, caveats=())), 76, 8))
    assert drawn.count("--") == 8
    assert drawn.count("not enough (0 of 12)") + drawn.count("not enough data (0 of 12 requests)") == 4
