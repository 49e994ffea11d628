"""Every action of the dashboard, declared once: bindings, footer, palette, help page and docs/keys.md read
`action_table`.

An action's `handler` names a method `action_<handler>` of `Dashboard`, with arguments in Textual's syntax. Keys are
Textual key names; none needs alt, a function key, or ctrl-b, so that all work inside tmux over ssh.
"""

from __future__ import annotations

from specdash.tui.action import SHOWN, Action, Label, Place
from specdash.tui.action_table import ACTIONS, GROUPS
from specdash.tui.layout import PANELS

__all__ = ["ACTIONS", "GROUPS", "Action", "Label", "Place", "in_group", "keys_page", "works_in"]


def works_in(handler: str, place: Place) -> bool:
    """Whether the method `action_<handler>` has something to act on in a screen."""
    places = _PLACES.get(handler)
    return places is None or place in places


_PLACES: dict[str, tuple[Place, ...]] = {
    action.handler.split("(")[0]: action.places for action in ACTIONS if action.places
}


def in_group(group: str) -> tuple[Action, ...]:
    """The actions of one group, in the table's order."""
    return tuple(action for action in ACTIONS if action.group == group)


def keys_page() -> str:
    """docs/keys.md, generated."""
    parts = [
        "# Keys",
        "",
        "Generated from `src/specdash/tui/action_table.py` by `python -m specdash.tui.actions`; do not edit.",
        "No key needs alt, a function key or ctrl-b, so all of them work inside tmux over ssh.",
    ]
    for group in GROUPS:
        rows = [(" or ".join(f"`{SHOWN.get(k, k)}`" for k in a.keys), a.description) for a in in_group(group)]
        parts += ["", f"## {group}", "", "| key | what it does |", "|---|---|", *(f"| {k} | {d} |" for k, d in rows)]
    parts += ["", "## What the panels show", "", "| key | panel | what it shows |", "|---|---|---|"]
    parts += [f"| `{spec.digit}` | {spec.title} | {spec.about} |" for spec in PANELS.values()]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(keys_page())
