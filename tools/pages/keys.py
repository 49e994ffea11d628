"""docs/keys.md, from the dashboard's table of actions."""

from __future__ import annotations

from specdash.system.text import markdown_table
from specdash.tui.action_table import ALWAYS, DEFAULT_KEYS, GROUPS, SHOWN
from specdash.tui.layout import PANELS

_INTRODUCTION = f"""\
# Keys

Generated from `src/specdash/tui/action_table.py` by `python tools/make_docs.py`; do not edit. No key needs alt, a
function key or ctrl-b, so all of them work inside tmux over ssh. A key means the same on every screen. `?` begins
with the keys of the focused panel and of the current screen. A click on an entry of the footer does what its key
does, a click selects a row, and a double click opens it.

## Your own keys

A table `[keys]` in config.toml gives an action, by its id, other keys than those below, separated by commas.
Footers, help, hints and palette show yours.

```toml
[keys]
pause = "space,f5"
"log.filter" = "ctrl+f"
"move.down" = "j,down,ctrl+n"
```

Keys are written as they are
shown (`p`, `P`, `?`, `space`, `esc`, `pgup`) or by Textual's names (`question_mark`, `escape`, `comma`), with
`ctrl+` or `alt+` before them. {", ".join(f"`{key}`" for key in ALWAYS)} cannot be changed, so there is always a way
out. An unknown id, a key that no terminal sends, and a key that two actions of one screen would share are refused
with the line to fix, exit 3. The number of a server in a list is not a binding."""


def page() -> str:
    """The whole page."""
    rows = []
    for group in GROUPS:
        rows.append((f"**{group}**", "", "", ""))
        rows += [
            (
                " or ".join(f"`{SHOWN.get(key, key)}`" for key in action.keys),
                action.description,
                ", ".join(action.places) or "all",
                f"`{action.id}`",
            )
            for action in DEFAULT_KEYS.in_group(group)
        ]
    parts = [_INTRODUCTION, "## All keys", markdown_table([("key", "what it does", "screen", "id"), *rows])]
    shown = ((f"`{spec.digit}`", spec.title, spec.about) for spec in PANELS.values())
    parts += ["## What the panels show", markdown_table([("key", "panel", "what it shows"), *shown])]
    return "\n\n".join(parts) + "\n"
