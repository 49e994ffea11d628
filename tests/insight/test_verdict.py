"""Whether speculation pays, in words."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from insight.scenes import NOW, OK, WALL, server, tell
from specdash.core.readings import FailureKind, ReadingStatus, Slot, Slots
from specdash.core.records import Drafting
from specdash.export.snapshot import speedup_json
from specdash.insight.picture import (
    BackendPicture,
    BackendState,
    Basis,
    DrafterPicture,
    DraftingPicture,
    Paying,
    Picture,
    SpeculationPicture,
    SpeculationViews,
    SpeedUpPicture,
)
from specdash.insight.speedup.verdict import VerdictKind, VerdictStep, judged, kind_of, verdict

MEASURED = SpeedUpPicture(
    value=1.6,
    low=1.5,
    high=1.71,
    basis=Basis.MEASURED,
    verdict=Paying.PAYING,
    requests=42,
    why="42 requests against the baseline",
    decode_rate=57.6,
    baseline_rate=36.0,
    mean_accepted_length=2.84,
    break_even_length=1.78,
    break_even_acceptance=0.3,
)


UNKNOWN = Paying.UNKNOWN


def shown(
    speedup: SpeedUpPicture = MEASURED,
    drafter: DrafterPicture | None = None,
    drafting: DraftingPicture | None = None,
    log: ReadingStatus | None = None,
    active: bool | None = True,
    **backend: Any,
) -> Picture:
    """A picture of a live server with this speed-up."""
    made = BackendPicture("http://127.0.0.1:8080", **{"state": BackendState.LIVE, **backend})
    made = replace(made, speculation=replace(SpeculationPicture(), active=active))
    views = SpeculationViews(
        drafting=drafting or DraftingPicture(Drafting.YES), drafter=drafter or DrafterPicture(effective_length=4)
    )
    picture = Picture(NOW, WALL, 300.0, made, speedup=speedup, views=views)
    return replace(picture, log=replace(picture.log, status=log)) if log is not None else picture


def measured(value: float, low: float | None, high: float | None, **fields: Any) -> SpeedUpPicture:
    """With the verdict that the interval has."""
    paying = {VerdictKind.PAYS: Paying.PAYING, VerdictKind.COSTS: Paying.HURTING}.get(judged(low, high), Paying.EVEN)
    return replace(MEASURED, **{"value": value, "low": low, "high": high, "verdict": paying, **fields})


WIDE = measured(0.77, 0.33, 2.26, basis=Basis.ESTIMATED, verdict=UNKNOWN)


@pytest.mark.parametrize(
    ("speedup", "more", "headline"),
    [
        (MEASURED, {}, "PAYS 1.6×"),
        (measured(1.064, 1.03, 1.1), {}, "PAYS 1.06×"),
        (measured(0.77, 0.7, 0.85), {}, "COSTS 23 %"),
        (measured(0.8, 0.6, 0.95, basis=Basis.ESTIMATED), {}, "COSTS 20 %"),
        (measured(1.01, 0.97, 1.04), {}, "NO DIFFERENCE"),
        (measured(0.975, 0.955, 0.99), {}, "NO DIFFERENCE"),
        (measured(1.03, 1.01, 1.05), {}, "NO DIFFERENCE"),
        # What it needs to know more.
        (measured(1.1, 0.9, 1.3), {}, "CAN'T TELL YET (needs more requests)"),
        (measured(1.1, 0.9, 1.3, needs_baseline=True), {}, "CAN'T TELL YET (needs a new baseline)"),
        (measured(1.5, 1.2, 1.9, requests=5, verdict=UNKNOWN), {}, "CAN'T TELL YET (needs 1 more request)"),
        (measured(1.6, None, None, requests=2, verdict=UNKNOWN), {}, "CAN'T TELL YET (needs 4 more requests)"),
        (WIDE, {}, "CAN'T TELL YET (needs a baseline)"),
        (replace(WIDE, requests=0), {}, "CAN'T TELL YET (needs the server's log)"),
        (replace(WIDE, requests=0), {"log": ReadingStatus.KNOWN}, "CAN'T TELL YET (needs a finished request)"),
        (SpeedUpPicture(), {}, "CAN'T TELL YET (needs a finished request)"),
        (SpeedUpPicture(), {"state": BackendState.DOWN}, "CAN'T TELL YET (needs the server)"),
        (SpeedUpPicture(), {"state": BackendState.UNAUTHORIZED}, "CAN'T TELL YET (needs the API key)"),
        (SpeedUpPicture(), {"state": BackendState.LOADING}, "CAN'T TELL YET (needs the model, which is loading)"),
    ],
)
def test_the_interval_gives_the_headline(speedup: SpeedUpPicture, more: dict[str, Any], headline: str) -> None:
    assert verdict(shown(speedup, **more)).headline == headline


FAILED = DraftingPicture(Drafting.FAILED, "the draft model did not load", "name another draft model")
OFF = DraftingPicture(Drafting.OFF, "no speculation type is set")


def test_it_has_its_reason_and_the_next_step() -> None:
    found = verdict(shown())
    assert found.because == "71 % of draft tokens are accepted; 30 % would break even."
    assert found.rates == "57.6 tok/s, 36.0 without speculation"
    assert (found.better, found.command) == ("", "")
    wide = verdict(shown(WIDE))
    assert (wide.step, wide.command) == (VerdictStep.BASELINE, "specdash baseline record")
    assert wide.because == "So far 0.33 to 2.26×, an estimate."
    off = verdict(shown(SpeedUpPicture(), drafting=OFF, active=False))
    assert (off.kind, off.headline) == (VerdictKind.OFF, "NOT SPECULATING")
    assert off.because == "No speculation type is set."
    broken = verdict(shown(SpeedUpPicture(), drafting=FAILED))
    assert (broken.because, broken.better) == ("The draft model did not load.", "name another draft model")


@pytest.mark.parametrize(
    ("value", "length", "gain", "better", "command"),
    [
        (0.9, 1, 0.54, "draft length 1 would be 54 % faster", "specdash apply LLAMA_DRAFT_MAX=1"),
        (1.6, 2, 0.1, "draft length 2 would be 10 % faster", "specdash apply LLAMA_DRAFT_MAX=2"),
        (0.5, 1, 0.2, "without speculation it would be 100 % faster", "specdash apply LLAMA_SPEC_TYPE=none"),
        (0.8, None, None, "without speculation it would be 25 % faster", "specdash apply LLAMA_SPEC_TYPE=none"),
        (1.6, 4, 0.0, "", ""),
        (1.6, 3, 0.01, "", ""),
    ],
)
def test_it_names_what_would_be_better_and_the_command_for_it(
    value: float, length: int | None, gain: float | None, better: str, command: str
) -> None:
    drafter = DrafterPicture(effective_length=4, best_length=length, best_gain=gain)
    found = verdict(shown(measured(value, value - 0.05, value + 0.05), drafter))
    assert (found.better, found.command) == (better, command)


@given(st.floats(0.2, 3.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.sampled_from(Paying))
def test_every_reader_has_the_same_verdict(value: float, below: float, above: float, kept: Paying) -> None:
    made = measured(value, value * (1 - below), value * (1 + above), **({"verdict": kept} if kept is UNKNOWN else {}))
    picture = shown(made)
    words, named = verdict(picture).headline, speedup_json(picture)["verdict"]
    assert words.startswith("PAYS") is (named == "paying")
    assert words.startswith("COSTS") is (named == "hurting")
    assert words != "NO DIFFERENCE" or named == "no clear gain"
    assert kind_of(picture.speedup) is verdict(picture).kind


def test_without_metrics_and_log_it_names_what_is_missing() -> None:
    slots = Slots((Slot(0, False, 4096, True, speculative_types=("draft-mtp",)),))
    made = tell(server(), NOW - 1, health=OK, slots=slots, metrics=(FailureKind.DISABLED, "no metrics here"))
    picture = made.picture(NOW, WALL)
    assert verdict(picture).headline == "CAN'T TELL YET (needs --metrics or the server's log)"
    assert picture.views.drafter.verdict == "Drafts cannot be seen: it needs --metrics or the server's log."
    assert "cannot be seen without --metrics or the server's log" in picture.views.drafting.because
