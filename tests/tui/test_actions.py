"""The action registry and everything that is made from it."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from textual.fuzzy import Matcher

from specdash.tui.actions import ACTIONS, GROUPS, Action, Place, keys_page
from specdash.tui.app import Dashboard
from specdash.tui.layout import PANELS
from specdash.tui.palette import rank
from specdash.tui.screens.help import help_lines
from specdash.tui.widgets.footer import footer_line
from tui.drawn import block, text
from tui.fake_state import FakeState


def test_no_key_is_used_twice_on_one_screen_and_no_id_at_all() -> None:
    for place in Place:
        keys = [key for action in ACTIONS if not action.places or place in action.places for key in action.keys]
        assert len(keys) == len(set(keys))
    assert len({action.id for action in ACTIONS}) == len(ACTIONS)


def test_every_action_has_a_handler_and_a_known_group() -> None:
    for action in ACTIONS:
        assert hasattr(Dashboard, "action_" + action.handler.split("(")[0]), action.id
        assert action.group in GROUPS


def test_every_action_has_a_key_that_tmux_and_ssh_let_through() -> None:
    for action in ACTIONS:
        plain = [
            key for key in action.keys if not key.startswith(("ctrl+", "alt+", "shift+", "f1")) or key == "shift+tab"
        ]
        assert plain, action.id
        assert not any(key == "ctrl+b" or key.startswith("alt+") for key in action.keys)


def test_every_key_is_bound_in_the_program() -> None:
    app = Dashboard(FakeState())
    bound = app._bindings.key_to_bindings
    for action in ACTIONS:
        for key in action.keys:
            assert action.handler in {binding.action for binding in bound[key]}


def test_help_shows_every_action_and_panel() -> None:
    for width in (76, 116):
        page = block(help_lines(width, None))
        for action in ACTIONS:
            assert action.description in page
        for spec in PANELS.values():
            assert spec.title in page


def test_the_footer_keeps_help_and_quit_however_narrow_it_gets() -> None:
    assert "? help" in text(footer_line(80))
    assert "q quit" in text(footer_line(80))
    assert len(text(footer_line(80))) <= 80
    assert ": palette" in text(footer_line(120))


def test_the_keys_page_in_docs_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "keys.md"
    assert page.read_text(encoding="utf-8") == keys_page(), "run: python -m specdash.tui.actions > docs/keys.md"


def test_no_part_of_the_program_hides_another_behind_a_method_that_it_only_names() -> None:
    for name in dir(Dashboard):
        found = inspect.getattr_static(Dashboard, name)
        method = found.fget if isinstance(found, property) else found
        if inspect.isfunction(method) and method.__module__.startswith("specdash"):
            assert "raise NotImplementedError" not in inspect.getsource(method), name


def best(query: str) -> list[str]:
    """Titles in the palette's order."""
    matcher = Matcher(query)
    found = [(rank(one, query, score), one) for one in ACTIONS if (score := matcher.match(one.description)) > 0]
    return [one.title for _, one in sorted(found, key=lambda each: -each[0])]


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
