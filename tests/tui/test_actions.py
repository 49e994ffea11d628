"""The action registry and everything that is made from it."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from textual.binding import Binding
from textual.fuzzy import Matcher

from specdash.tui.action_table import ACTIONS, GROUPS, Action, FooterScreen, bindings
from specdash.tui.app import Dashboard
from specdash.tui.layout import PANELS
from specdash.tui.palette import rank
from specdash.tui.screens.apply import ApplyScreen
from specdash.tui.screens.connect import ChooseApp, ConnectApp, TargetsScreen
from specdash.tui.screens.fleet import FleetApp
from specdash.tui.screens.incidents import IncidentsScreen
from specdash.tui.screens.modal import ConfirmScreen, HelpScreen, PresetsScreen, help_lines
from specdash.tui.screens.overview import OverviewScreen
from specdash.tui.screens.proxy import ProxyScreen, RequestScreen
from specdash.tui.screens.speculation import SpeculationScreen
from specdash.tui.screens.tune import TuneScreen
from specdash.tui.screens.tuner import TunerScreen
from specdash.tui.widgets.header import footer_line
from specdash.tui.widgets.prompt import TextPrompt
from tui.drawn import block, text

SCREENS = (OverviewScreen, ProxyScreen, SpeculationScreen, IncidentsScreen, TuneScreen, TunerScreen)


PAGES = (ConfirmScreen, PresetsScreen, HelpScreen, ApplyScreen, RequestScreen, TargetsScreen)


def test_no_key_has_two_meanings_on_whatever_screens_and_no_id_either() -> None:
    keys = [key for action in ACTIONS for key in action.keys]
    assert [key for key in keys if keys.count(key) > 1] == []
    assert len({action.id for action in ACTIONS}) == len(ACTIONS)


def test_pages_above_a_screen_have_no_keys_of_their_own() -> None:
    known = {key: action.id for action in ACTIONS for key in action.keys}
    for owner in (*PAGES, ConnectApp, ChooseApp, FleetApp, TextPrompt):
        bound = [binding for binding in owner.BINDINGS if isinstance(binding, Binding)]
        assert bound, owner
        for binding in bound:
            assert binding.id in (known[binding.key], f"{known[binding.key]}.{binding.key}"), owner
            assert hasattr(owner, "action_" + binding.action.split("(")[0]), owner


def test_every_action_has_a_handler_and_a_known_group() -> None:
    for action in ACTIONS:
        name = "action_" + action.handler.removeprefix("screen.").split("(")[0]
        owners = (
            [Dashboard]
            if not action.handler.startswith("screen.")
            else [screen for screen in SCREENS if not action.places or screen.place in action.places]
        )
        assert owners, action.id
        assert all(hasattr(owner, name) for owner in owners), action.id
        assert action.group in GROUPS


def test_every_action_has_a_key_that_tmux_and_ssh_let_through() -> None:
    for action in ACTIONS:
        # ctrl+l draws anew in every program of a terminal, and so nothing takes it away.
        plain = [
            key
            for key in action.keys
            if not key.startswith(("ctrl+", "alt+", "shift+", "f1")) or key in ("shift+tab", "ctrl+l")
        ]
        assert plain, action.id
        assert not any(key == "ctrl+b" or key.startswith("alt+") for key in action.keys)


def test_every_key_is_bound_where_it_works() -> None:
    assert {screen.place for screen in SCREENS} == set(FooterScreen)
    for owner, place in ((Dashboard, None), *((screen, screen.place) for screen in SCREENS)):
        assert bindings(place) == owner.BINDINGS
        bound = {binding.key: binding.action for binding in owner.BINDINGS if isinstance(binding, Binding)}
        own = [action for action in ACTIONS if (place in action.places if place else not action.places)]
        assert bound == {key: action.handler for action in own for key in action.keys}


def test_help_shows_every_action_and_panel() -> None:
    for width in (76, 116):
        page = block(help_lines(width, None))
        for action in ACTIONS:
            assert action.description in page
        for spec in PANELS.values():
            assert spec.title in page


def test_no_line_about_a_key_is_cut_at_80_columns() -> None:
    lines = [text(line) for line in help_lines(76, None)]
    assert all(any(line.endswith(action.description) and len(line) <= 76 for line in lines) for action in ACTIONS)


def test_help_begins_with_the_keys_of_the_screen_that_is_looked_at() -> None:
    for place in FooterScreen:
        page = block(help_lines(76, None, place)).splitlines()
        own = [action for action in ACTIONS if place in action.places]
        last = max((at for at, line in enumerate(page) for action in own if action.description in line), default=0)
        assert page[2] == f"On this screen: {place}"
        assert last < page.index("", 3)


def test_at_80x24_the_overview_leads_to_every_screen_and_each_screen_to_help() -> None:
    footer = text(footer_line(80, FooterScreen.OVERVIEW))
    assert len(footer) <= 80
    assert "q quit" in footer
    assert all(words in footer for words in ("p proxy", "i incidents", "m method", "e tune", "? help", ": palette"))
    assert all("? help" in text(footer_line(80, place)) for place in FooterScreen)


def best(query: str) -> list[str]:
    """Titles in the palette's order."""
    matcher = Matcher(query)
    found = [
        (rank(action, query, score), action) for action in ACTIONS if (score := matcher.match(action.description)) > 0
    ]
    return [action.title for _, action in sorted(found, key=lambda each: -each[0])]


def test_the_palette_ranks_what_is_named_before_what_only_has_its_letters() -> None:
    assert best("arm")[0].startswith("Arm")
    assert best("find")[0] == "Find in the log"
    assert best("theme")[0] == "Next theme"
    assert best("slot")[:4] == [
        "Show or hide Slots",
        "Save the selected slot to a file",
        "Restore the selected slot from a file",
        "Erase what the selected slot holds",
    ]


@given(st.sampled_from(ACTIONS), st.integers(1, 30))
def test_of_actions_that_fit_alike_those_that_change_something_come_last(action: Action, letters: int) -> None:
    harmless, harmful = replace(action, armed_only=False), replace(action, armed_only=True)
    query = action.title[:letters]
    assert rank(harmless, query, 0.0) > rank(harmful, query, 1e9)
    assert rank(harmful, query, 0.0) > rank(replace(harmless, title="0"), query, 1e9)
