"""The command palette's entries, from the registry. Imported when the palette is opened first."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, cast

from textual.command import DiscoveryHit, Hit, Provider

from specdash.tui.action_table import Action
from specdash.tui.spans import PALETTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from textual.command import Hits

    from specdash.tui.app import Dashboard


class ActionProvider(Provider):
    """Every action, found by its description, group or key."""

    async def discover(self) -> Hits:
        """All of them, before anything is typed."""
        for action in self._actions:
            yield DiscoveryHit(_title(action), self._run(action))

    async def search(self, query: str) -> Hits:
        """Those that match, and every theme by its name."""
        matcher = self.matcher(query)
        themes = (Action(f"theme.{name}", (), name, "Theme", f"take_theme('{name}')") for name in PALETTES)
        for action in (*self._actions, *themes):
            score = matcher.match(_title(action))
            if score > 0:
                yield Hit(rank(action, query, score), matcher.highlight(_title(action)), self._run(action))

    @property
    def _actions(self) -> tuple[Action, ...]:
        return cast("Dashboard", self.app).keys.actions

    def _run(self, action: Action) -> Callable[[], Awaitable[bool]]:
        return partial(self.app.run_action, action.handler)


def rank(action: Action, query: str, score: float) -> float:
    """How well an action fits, better ones higher: its title begins with the query; a word of it does; letters of it
    come in that order, by Textual's `score`. Of equal ones, those that change a service or a slot come last."""
    title, wanted = action.title.casefold(), query.strip().casefold()
    words = re.split(r"\W+", title)
    tier = 3 if wanted in words[:1] else 2 if title.startswith(wanted) else 1 if f" {wanted}" in f" {title}" else 0
    return tier + (0.5 if not action.armed_only else 0.0) + 0.4 * score / (1.0 + score)


def _title(action: Action) -> str:
    return f"{action.group}: {action.description}" + (f"  ({action.shown_keys})" if action.keys else "")
