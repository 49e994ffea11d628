"""Keys are waited for no longer than they take, no terminal is painted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from textual.css.stylesheet import Stylesheet
from textual.screen import Screen

from tui.waiting import idle

if TYPE_CHECKING:
    from textual.css.model import RuleSet

parse_rules = Stylesheet._parse_rules
PARSED: dict[tuple[object, ...], list[RuleSet]] = {}


@pytest.fixture(autouse=True)
def quick_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is waited for no longer than it takes."""
    monkeypatch.setattr("textual.app.wait_for_idle", idle)
    monkeypatch.setattr("textual.pilot.wait_for_idle", idle)


@pytest.fixture(autouse=True)
def parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dashboards of one theme share their style sheet: to parse it is an eighth of a dashboard's start."""

    def rules(sheet: Stylesheet, css: str, read_from: tuple[str, str], *rest: Any, **more: Any) -> list[RuleSet]:
        key = (*sheet._variables.items(), css, read_from, *rest, *more.items())
        if key not in PARSED:
            PARSED[key] = parse_rules(sheet, css, read_from, *rest, **more)
        return PARSED[key]

    monkeypatch.setattr(Stylesheet, "_parse_rules", rules)


@pytest.fixture(autouse=True)
def unpainted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at what these tests would paint on a terminal that is not there, a third of their work: they
    look at what widgets hold. Pictures, and what presses every key, paint (they override this).
    """

    def skip(screen: Screen[object]) -> None:
        screen._dirty_widgets.clear()
        screen._compositor._dirty_regions.clear()
        screen.app._update_mouse_over(screen)

    monkeypatch.setattr(Screen, "_compositor_refresh", skip)
