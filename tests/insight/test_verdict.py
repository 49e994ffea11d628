"""Whether speculation pays, in words."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from insight.speedup_data import NOW, WALL
from specdash.core.readings import FailureKind, Health, HealthStatus, Reading, ReadingStatus, Slot, Slots, Source
from specdash.core.records import Drafting
from specdash.core.target import Target
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
from specdash.insight.state import TargetState

URL = "http://127.0.0.1:8080"
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


def told(
    speedup: SpeedUpPicture = MEASURED,
    drafter: DrafterPicture | None = None,
    drafting: DraftingPicture | None = None,
    active: bool | None = True,
    **backend: Any,
) -> Picture:
    """A picture of a live server with this speed-up."""
    shown = BackendPicture(URL, **{"state": BackendState.LIVE, **backend})
    shown = replace(shown, speculation=replace(SpeculationPicture(), active=active))
    views = SpeculationViews(
        drafting=drafting or DraftingPicture(Drafting.YES), drafter=drafter or DrafterPicture(effective_length=4)
    )
    return Picture(NOW, WALL, 300.0, shown, speedup=speedup, views=views)


def measured(value: float, low: float, high: float, **fields: Any) -> SpeedUpPicture:
    """With the verdict that the interval has."""
    paying = {VerdictKind.PAYS: Paying.PAYING, VerdictKind.COSTS: Paying.HURTING}.get(judged(low, high), Paying.EVEN)
    return replace(MEASURED, **{"value": value, "low": low, "high": high, "verdict": paying, **fields})


@pytest.mark.parametrize(
    ("speedup", "headline"),
    [
        (MEASURED, "PAYS 1.6×"),
        (measured(1.064, 1.03, 1.1), "PAYS 1.06×"),
        (measured(0.77, 0.7, 0.85), "COSTS 23 %"),
        (measured(1.01, 0.97, 1.04), "NO DIFFERENCE"),
        (measured(0.975, 0.955, 0.99), "NO DIFFERENCE"),
        (measured(1.03, 1.01, 1.05), "NO DIFFERENCE"),
        (measured(1.1, 0.9, 1.3), "CAN'T TELL YET (needs more requests)"),
        (measured(1.1, 0.9, 1.3, needs_baseline=True), "CAN'T TELL YET (needs a new baseline)"),
        (SpeedUpPicture(), "CAN'T TELL YET (needs a finished request)"),
        (
            measured(1.5, 1.2, 1.9, requests=5, verdict=Paying.UNKNOWN),
            "CAN'T TELL YET (needs 1 more request)",
        ),
        (
            replace(MEASURED, low=None, high=None, requests=2, verdict=Paying.UNKNOWN),
            "CAN'T TELL YET (needs 4 more requests)",
        ),
        (
            measured(0.77, 0.33, 2.26, basis=Basis.ESTIMATED, verdict=Paying.UNKNOWN),
            "CAN'T TELL YET (needs a baseline)",
        ),
        (
            measured(0.77, 0.33, 2.26, basis=Basis.ESTIMATED, verdict=Paying.UNKNOWN, requests=0),
            "CAN'T TELL YET (needs the server's log)",
        ),
        (measured(0.8, 0.6, 0.95, basis=Basis.ESTIMATED), "COSTS 20 %"),
    ],
)
def test_the_interval_gives_the_headline(speedup: SpeedUpPicture, headline: str) -> None:
    assert verdict(told(speedup)).headline == headline


def test_it_says_why_with_and_without_speculation() -> None:
    found = verdict(told())
    assert found.because == "71 % of draft tokens are accepted; 30 % would break even."
    assert found.rates == "57.6 tok/s, 36.0 without speculation"
    assert (found.better, found.command) == ("", "")


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
def test_it_says_what_would_be_better_and_the_command_for_it(
    value: float, length: int | None, gain: float | None, better: str, command: str
) -> None:
    drafter = DrafterPicture(effective_length=4, best_length=length, best_gain=gain)
    found = verdict(told(measured(value, value - 0.05, value + 0.05), drafter))
    assert (found.better, found.command) == (better, command)


def test_an_estimate_too_wide_asks_for_a_baseline() -> None:
    found = verdict(told(measured(0.77, 0.33, 2.26, basis=Basis.ESTIMATED, verdict=Paying.UNKNOWN)))
    assert found.step is VerdictStep.BASELINE
    assert found.command == "specdash baseline record"
    assert found.because == "So far 0.33 to 2.26×, an estimate."


def test_a_server_that_does_not_speculate_has_no_verdict_but_the_reason() -> None:
    off = verdict(
        told(SpeedUpPicture(), drafting=DraftingPicture(Drafting.OFF, "no speculation type is set"), active=False)
    )
    assert (off.kind, off.headline, off.because) == (
        VerdictKind.OFF,
        "NOT SPECULATING",
        "No speculation type is set.",
    )
    failed = DraftingPicture(Drafting.FAILED, "the draft model did not load", "name another draft model")
    broken = verdict(told(SpeedUpPicture(), drafting=failed))
    assert (broken.because, broken.better) == ("The draft model did not load.", "name another draft model")


@pytest.mark.parametrize(
    ("away", "headline"),
    [
        (BackendState.DOWN, "CAN'T TELL YET (needs the server)"),
        (BackendState.UNAUTHORIZED, "CAN'T TELL YET (needs the API key)"),
        (BackendState.LOADING, "CAN'T TELL YET (needs the model, which is loading)"),
    ],
)
def test_a_server_that_is_away_is_what_it_needs(away: BackendState, headline: str) -> None:
    assert verdict(told(SpeedUpPicture(), state=away)).headline == headline


@given(st.floats(0.2, 3.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.sampled_from(Paying))
def test_every_reader_has_the_same_verdict(value: float, below: float, above: float, kept: Paying) -> None:
    known = kept is not Paying.UNKNOWN
    made = measured(value, value * (1 - below), value * (1 + above), **({} if known else {"verdict": kept}))
    picture = told(made)
    words, named = verdict(picture).headline, speedup_json(picture)["verdict"]
    assert words.startswith("PAYS") is (named == "paying")
    assert words.startswith("COSTS") is (named == "hurting")
    assert words != "NO DIFFERENCE" or named == "no clear gain"
    assert kind_of(picture.speedup) is verdict(picture).kind


@pytest.mark.parametrize(("log", "needs"), [(ReadingStatus.KNOWN, "a finished request"), (None, "the server's log")])
def test_a_log_that_is_read_is_not_asked_for(log: ReadingStatus | None, needs: str) -> None:
    unclear = measured(0.77, 0.33, 2.26, basis=Basis.ESTIMATED, verdict=Paying.UNKNOWN, requests=0)
    picture = told(unclear)
    if log is not None:
        picture = replace(picture, log=replace(picture.log, status=log))
    assert verdict(picture).headline == f"CAN'T TELL YET (needs {needs})"


def test_without_metrics_and_log_it_says_what_is_missing() -> None:
    made = TargetState(Target("http://127.0.0.1:8080"))
    made.apply(Reading.known(Source.HEALTH, NOW - 1, Health(HealthStatus.OK)))
    made.apply(
        Reading.known(Source.SLOTS, NOW - 1, Slots((Slot(0, False, 4096, True, speculative_types=("draft-mtp",)),)))
    )
    made.apply(Reading.unknown(Source.METRICS, NOW - 1, FailureKind.DISABLED, "this server does not support metrics"))
    picture = made.picture(NOW, WALL, 300.0)
    assert verdict(picture).headline == "CAN'T TELL YET (needs --metrics or the server's log)"
    assert picture.views.drafter.verdict == "Drafts cannot be seen: it needs --metrics or the server's log."
    assert "cannot be seen without --metrics or the server's log" in picture.views.drafting.because
