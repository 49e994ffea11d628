"""The command palette's entries, from the registry. Imported when the palette is opened first."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from textual.command import DiscoveryHit, Hit, Provider

from specdash.system.text import clean
from specdash.tui.action_table import Action
from specdash.tui.spans import PALETTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from textual.command import Hits

    from specdash.tui.app import Dashboard


class ActionProvider(Provider):
    """Every action, found by its description, group or key."""

    async def discover(self) -> Hits:
        """All of them, before anything is typed."""
        for action in self._actions:
            yield DiscoveryHit(_title(action), self._run(action))

    async def search(self, query: str) -> Hits:
        """Those that match, every theme by its name, and the saved layouts."""
        matcher = self.matcher(query)
        themes = (Action(f"theme.{name}", (), name, "Theme", f"take_theme('{name}')") for name in PALETTES)
        for action in (*self._actions, *themes):
            score = matcher.match(_title(action))
            if score > 0:
                yield Hit(rank(action, query, score), matcher.highlight(_title(action)), self._run(action))
        for title, run in self._others():
            if (score := matcher.match(title)) > 0:
                yield Hit(0.4 * score / (1.0 + score), matcher.highlight(title), run)

    @property
    def _actions(self) -> tuple[Action, ...]:
        return cast("Dashboard", self.app).keys.actions

    def _others(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """What has no key."""
        store = cast("Dashboard", self.app).layouts
        if store is not None:
            yield "Layout: save as it is now", partial(self.app.run_action, "save_layout")
            for name, layout in store.saved.named.items():
                yield f"Layout: {clean(name, 60)}", partial(cast("Dashboard", self.app).take_layout, layout)

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
