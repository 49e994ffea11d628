"""Every action of the dashboard, declared once: bindings, footer, palette, help page and docs/keys.md read this table.

An action's `handler` names a method `action_<handler>` of `Dashboard`, with arguments in Textual's syntax. Keys are
Textual key names; none needs alt, a function key, or ctrl-b, so that all work inside tmux over ssh.
"""

from __future__ import annotations

from dataclasses import dataclass

from specdash.tui.layout import PANELS


@dataclass(frozen=True, slots=True)
class Action:
    """One thing the user can do. `footer` is its short label there, empty when the footer does not show it;
    the footer of a narrow terminal leaves out those of the highest rank first."""

    id: str
    keys: tuple[str, ...]
    description: str
    group: str
    handler: str
    footer: str = ""
    rank: int = 0
    proxy_footer: str = ""
    """Its short label in the footer of the proxy screen."""
    proxy_rank: int = 0

    @property
    def shown_keys(self) -> str:
        """The keys as a person reads them: `+ / =`."""
        return "  ".join(_SHOWN.get(key, key) for key in self.keys)


_SHOWN = {
    "space": "space",
    "slash": "/",
    "colon": ":",
    "question_mark": "?",
    "plus": "+",
    "equals_sign": "=",
    "minus": "-",
    "exclamation_mark": "!",
    "escape": "esc",
    "pageup": "pgup",
    "pagedown": "pgdn",
    "shift+tab": "shift+tab",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
}

_VIEW, _PANELS, _LOG, _PROXY, _APP = "View", "Panels", "Log", "Proxy", "Program"

ACTIONS: tuple[Action, ...] = (
    *(
        Action(f"panel.{spec.id}", (spec.digit,), f"Show or hide {spec.title}", _PANELS, f"toggle_panel('{spec.id}')")
        for spec in PANELS.values()
    ),
    Action("zoom", ("z",), "Zoom the focused or last panel, and back", _PANELS, "zoom", "zoom", 0, "zoom", 2),
    Action("focus.next", ("tab",), "Focus the next panel", _PANELS, "next_panel(1)", "", 0, "table"),
    Action("focus.previous", ("shift+tab",), "Focus the previous panel", _PANELS, "next_panel(-1)"),
    Action("panels.reset", ("0",), "Show the panels of this screen size again", _PANELS, "reset_panels"),
    Action("pause", ("space",), "Freeze the display; collection goes on", _VIEW, "pause", "pause", 0, "pause", 1),
    Action("window", ("w",), "Next window: 1m, 5m, 15m, 1h", _VIEW, "next_window", "window", 0, "window", 3),
    Action("faster", ("plus", "equals_sign"), "Refresh more often", _VIEW, "refresh_rate(-1)", "rate", 3),
    Action("slower", ("minus",), "Refresh less often", _VIEW, "refresh_rate(1)"),
    Action("theme", ("t",), "Next theme", _VIEW, "next_theme"),
    Action("screenshot", ("s",), "Save this screen as SVG in the state directory", _VIEW, "save_screen"),
    Action("log.find", ("slash",), "Find in the log", _LOG, "log_find", "find"),
    Action("log.next", ("n",), "Next match (newer)", _LOG, "log_match(1)"),
    Action("log.previous", ("N",), "Previous match (older)", _LOG, "log_match(-1)"),
    Action("log.filter", ("f",), "Show only log lines that contain a text", _LOG, "log_filter", "filter", 1),
    Action("log.invert", ("exclamation_mark",), "Invert the filter", _LOG, "log_invert"),
    Action("log.unfilter", ("F",), "Switch the filter off and on", _LOG, "log_toggle_filter"),
    Action("log.follow", ("G", "end"), "Follow the log's end", _LOG, "log_follow"),
    Action("log.top", ("g", "home"), "Go to the oldest line kept", _LOG, "log_top"),
    Action("log.up", ("k", "up"), "One line up", _LOG, "log_scroll(-1)"),
    Action("log.down", ("j", "down"), "One line down", _LOG, "log_scroll(1)"),
    Action("log.page_up", ("pageup",), "One page up", _LOG, "log_page(-1)"),
    Action("log.page_down", ("pagedown",), "One page down", _LOG, "log_page(1)"),
    Action("log.left", ("left",), "Scroll long lines left", _LOG, "log_shift(-20)"),
    Action("log.right", ("right",), "Scroll long lines right", _LOG, "log_shift(20)"),
    Action("back", ("escape",), "Leave zoom, find, filter, screen", _VIEW, "leave", "", 0, "back"),
    Action("proxy", ("p",), "Open the proxy screen, and leave it", _PROXY, "toggle_proxy", "proxy", 0, "overview"),
    Action("proxy.open", ("enter",), "Filter by session; request's detail", _PROXY, "open", "", 0, "open"),
    Action("help", ("question_mark", "h"), "Show this help", _APP, "show_help", "help", 0, "help"),
    Action("palette", ("colon", "ctrl+p"), "Open the command palette", _APP, "command_palette", "palette", 2),
    Action("quit", ("q", "ctrl+q", "ctrl+c"), "Quit", _APP, "quit", "quit", 0, "quit"),
)

GROUPS = (_PANELS, _VIEW, _LOG, _PROXY, _APP)


def in_group(group: str) -> tuple[Action, ...]:
    """The actions of one group, in the table's order."""
    return tuple(action for action in ACTIONS if action.group == group)


def keys_page() -> str:
    """docs/keys.md, generated."""
    parts = [
        "# Keys",
        "",
        "Generated from `src/specdash/tui/actions.py` by `python -m specdash.tui.actions`; do not edit.",
        "No key needs alt, a function key or ctrl-b, so all of them work inside tmux over ssh.",
    ]
    for group in GROUPS:
        rows = [(" or ".join(f"`{_SHOWN.get(k, k)}`" for k in a.keys), a.description) for a in in_group(group)]
        parts += ["", f"## {group}", "", "| key | what it does |", "|---|---|", *(f"| {k} | {d} |" for k, d in rows)]
    parts += ["", "## What the panels show", "", "| key | panel | what it shows |", "|---|---|---|"]
    parts += [f"| `{spec.digit}` | {spec.title} | {spec.about} |" for spec in PANELS.values()]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(keys_page())
