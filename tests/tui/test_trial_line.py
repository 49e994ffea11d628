"""While settings are tried on the server, every screen says so in one line, and nothing of it looks like an outage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from specdash.core.records import TrialNote
from specdash.insight.picture import BackendState
from specdash.tui.spans import Line
from specdash.tui.widgets.header import HeaderSituation, header_lines, small_lines
from tui.drawn import block
from tui.driven import WALL, view

NOTE = TrialNote("tune", "specdash-backend", WALL - 95.0, boot=4, planned=12)
LEFT = replace(NOTE, alive=False)


def lines(scene: str, note: TrialNote | None, width: int = 120, **more: object) -> list[Line]:
    """The header of a scene while this is tried."""
    return header_lines(view(scene, trial=note), HeaderSituation(WALL, **more), width)  # type: ignore[arg-type]


def header(scene: str, note: TrialNote | None, width: int = 120, **more: object) -> str:
    """Likewise, as text."""
    return block(lines(scene, note, width, **more))


def test_one_line_says_who_tries_how_far_that_is_and_where_to_see_it() -> None:
    found = header("busy", NOTE).splitlines()
    assert len(found) == 3
    assert "On trial by `specdash tune`, boot 4 of 12: restarts and failed starts are its own" in found[2]
    assert "T shows it" in found[2]
    assert "On trial" not in header("busy", None)


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_screen_keeps_who_and_how_far(width: int) -> None:
    line = header("busy", NOTE, width).splitlines()[2]
    assert "On trial by `specdash tune`, boot 4 of 12" in line


def test_a_benchmark_has_no_screen_to_point_to() -> None:
    assert "T shows it" not in header("busy", replace(NOTE, what="bench ab"))


def test_a_server_that_is_away_during_a_trial_is_no_alarm() -> None:
    alone, tried = lines("down", None), lines("down", NOTE)
    assert any("bad" in role for line in alone for _, role in line)
    assert not any("banner.bad" in role for line in tried for _, role in line)
    assert "DOWN" in block(tried)


def test_the_key_that_is_refused_is_told_all_the_same() -> None:
    assert len(lines("unauthorized", NOTE)) == len(lines("unauthorized", None)) + 1


def test_alerts_of_real_faults_stand_below() -> None:
    assert len(header("alerts", NOTE).splitlines()) == len(header("alerts", None).splitlines()) + 1


def test_what_was_left_on_trial_is_yellow_and_says_what_to_do() -> None:
    found = lines("busy", LEFT)
    assert found[2][0][1] == "banner.warn"
    assert "next start of the backend" in block(found)


def test_the_tuners_screen_says_it_itself() -> None:
    assert "On trial" not in header("busy", NOTE, tuning=True)
    assert "Left on trial" in header("busy", LEFT, tuning=True)


@given(
    st.sampled_from(["busy", "down", "alerts", "loading", "storm", "hostile"]),
    st.integers(20, 260),
    st.builds(
        TrialNote, st.sampled_from(["tune", "bench ab"]), st.just("s"), st.floats(0, 2e9), st.booleans(),
        st.none() | st.integers(1, 99_999), st.none() | st.integers(1, 99_999)),
)  # fmt: skip
def test_no_line_is_wider_than_the_screen(scene: str, width: int, note: TrialNote) -> None:
    line = lines(scene, note, width)[2]
    assert sum(cell_len(part) for part, _ in line) <= width


def test_a_terminal_too_small_for_the_screens_says_it_too() -> None:
    found = small_lines(view("down", trial=NOTE), HeaderSituation(WALL), 60, 20)
    assert "on trial by `specdash tune`, boot 4 of 12" in block(found)
    assert not any("bad" in role for line in found for _, role in line)


def test_every_state_has_a_line() -> None:
    for state in BackendState:
        shown = view(trial=NOTE, backend=replace(view().picture.backend, state=state))
        assert "On trial" in block(header_lines(shown, HeaderSituation(WALL), 100))
