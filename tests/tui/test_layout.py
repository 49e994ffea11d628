"""Where panels go."""

from hypothesis import given
from hypothesis import strategies as st

from specdash.tui.layout import PanelId, arrange
from tui.driven import cells

CHOICES = st.dictionaries(st.sampled_from(PanelId), st.booleans())


@given(st.integers(80, 300), st.integers(18, 120), CHOICES)
def test_panels_stay_on_the_board_and_never_overlap(width: int, height: int, choices: dict[PanelId, bool]) -> None:
    cells(arrange(width, height, choices).values(), width, height)


@given(st.integers(80, 300), st.integers(18, 120), CHOICES)
def test_no_row_of_the_board_is_left_empty(width: int, height: int, choices: dict[PanelId, bool]) -> None:
    places = arrange(width, height, choices)
    if places:
        assert max(place.y + place.height for place in places.values()) == height


def test_80x24_shows_acceptance_speeds_slots_warnings_and_log() -> None:
    shown = set(arrange(80, 21, {}))
    assert shown == {
        PanelId.ACCEPTANCE,
        PanelId.PREFILL,
        PanelId.DECODE,
        PanelId.SLOTS,
        PanelId.WARNINGS,
        PanelId.LOG,
    }


def test_a_three_line_banner_at_80x24_costs_no_panel() -> None:
    assert set(arrange(80, 18, {})) == set(arrange(80, 21, {}))


def test_120x36_and_200x50_show_every_panel() -> None:
    assert set(arrange(120, 33, {})) == set(PanelId)
    assert set(arrange(200, 47, {})) == set(PanelId)


@given(st.sampled_from(PanelId), st.sampled_from([(80, 21), (120, 33), (200, 47)]))
def test_a_panel_that_is_switched_on_is_shown_and_off_is_not(panel: PanelId, size: tuple[int, int]) -> None:
    assert panel in arrange(*size, {panel: True})
    assert panel not in arrange(*size, {panel: False})
