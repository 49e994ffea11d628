"""Every action of the dashboard, declared once: bindings, footer, palette, help page and docs/keys.md read this table.

An action's `handler` names a method `action_<handler>` of `Dashboard`, with arguments in Textual's syntax. Keys are
Textual key names; none needs alt, a function key, or ctrl-b, so that all work inside tmux over ssh.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from specdash.tui.layout import PANELS


class Place(StrEnum):
    """The screens that have a footer of their own."""

    OVERVIEW = "overview"
    PROXY = "proxy"
    TUNE = "tune"
    INCIDENTS = "incidents"
    SPECULATION = "speculation"


@dataclass(frozen=True, slots=True)
class Label:
    """An action in the footer of one screen: a short word, and its rank: a narrow terminal's footer leaves out those of
    the highest rank first."""

    place: Place
    text: str
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do. `labels` are its words in footers, `places` where it makes sense (empty: everywhere)."""

    id: str
    keys: tuple[str, ...]
    description: str
    group: str
    handler: str
    labels: tuple[Label, ...] = ()
    places: tuple[Place, ...] = ()

    def label(self, place: Place) -> Label | None:
        """Its word in the footer of a screen, None when that footer does not show it."""
        return next((one for one in self.labels if one.place is place), None)

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
    "comma": ",",
    "full_stop": ".",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
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

_VIEW, _PANELS, _LOG, _PROXY, _TUNE, _APP = "View", "Panels", "Log", "Proxy", "Tune", "Program"
_INCIDENTS, _TRAVEL, _SPECULATION = "Incidents", "Time travel", "Speculation"
_OVERVIEW_ONLY, _TUNE_ONLY = (Place.OVERVIEW,), (Place.TUNE,)
_INCIDENTS_ONLY, _SPECULATION_ONLY = (Place.INCIDENTS,), (Place.SPECULATION,)


def _on(overview: str = "", rank: int = 0, proxy: str = "", proxy_rank: int = 0) -> tuple[Label, ...]:
    """Labels on the overview and on the proxy screen."""
    rows = (Label(Place.OVERVIEW, overview, rank), Label(Place.PROXY, proxy, proxy_rank))
    return tuple(one for one in rows if one.text)


def _in(place: Place, text: str, rank: int = 0) -> tuple[Label, ...]:
    return (Label(place, text, rank),)


_in_tune, _in_incidents, _in_speculation = (
    partial(_in, place) for place in (Place.TUNE, Place.INCIDENTS, Place.SPECULATION)
)

ACTIONS: tuple[Action, ...] = (
    *(
        Action(
            f"panel.{spec.id}",
            (spec.digit,),
            f"Show or hide {spec.title}",
            _PANELS,
            f"toggle_panel('{spec.id}')",
            places=_OVERVIEW_ONLY,
        )
        for spec in PANELS.values()
    ),
    Action(
        "zoom",
        ("z",),
        "Zoom the focused or last panel, and back",
        _PANELS,
        "zoom",
        (*_on("zoom", 0, "zoom", 2), *_in_incidents("details", 1), *_in_speculation("zoom")),
    ),
    Action(
        "focus.next",
        ("tab",),
        "Focus the next panel",
        _PANELS,
        "next_panel(1)",
        (*_on("", 0, "table"), *_in_incidents("scroll", 3), *_in_speculation("panel")),
    ),
    Action("focus.previous", ("shift+tab",), "Focus the previous panel", _PANELS, "next_panel(-1)"),
    Action(
        "panels.reset",
        ("0",),
        "Show the panels of this screen size again",
        _PANELS,
        "reset_panels",
        places=_OVERVIEW_ONLY,
    ),
    Action(
        "pause", ("space",), "Freeze the display; of a replay: play, stop", _VIEW, "pause", _on("pause", 0, "pause", 1)
    ),
    Action("window", ("w",), "Next window: 1m, 5m, 15m, 1h", _VIEW, "next_window", _on("window", 0, "window", 3)),
    Action(
        "faster",
        ("plus", "equals_sign"),
        "Refresh more often; a replay: faster",
        _VIEW,
        "refresh_rate(-1)",
        _on("rate", 3),
    ),
    Action("slower", ("minus",), "Refresh less often; a replay: slower", _VIEW, "refresh_rate(1)"),
    Action("theme", ("t",), "Next theme", _VIEW, "next_theme"),
    Action("screenshot", ("s",), "Save this screen as SVG in the state directory", _VIEW, "save_screen"),
    Action("log.find", ("slash",), "Find in the log", _LOG, "log_find", _on("find"), places=_OVERVIEW_ONLY),
    Action("log.next", ("n",), "Next match (newer)", _LOG, "log_match(1)", places=_OVERVIEW_ONLY),
    Action("log.previous", ("N",), "Previous match (older)", _LOG, "log_match(-1)", places=_OVERVIEW_ONLY),
    Action(
        "log.filter",
        ("f",),
        "Show only log lines that contain a text",
        _LOG,
        "log_filter",
        _on("filter", 3),
        places=_OVERVIEW_ONLY,
    ),
    Action("log.invert", ("exclamation_mark",), "Invert the filter", _LOG, "log_invert", places=_OVERVIEW_ONLY),
    Action("log.unfilter", ("F",), "Switch the filter off and on", _LOG, "log_toggle_filter", places=_OVERVIEW_ONLY),
    Action("log.follow", ("G", "end"), "Follow the log's end", _LOG, "log_follow"),
    Action("log.top", ("g", "home"), "Go to the oldest line kept", _LOG, "log_top"),
    Action("log.up", ("k", "up"), "One line up", _LOG, "log_scroll(-1)"),
    Action("log.down", ("j", "down"), "One line down", _LOG, "log_scroll(1)"),
    Action("log.page_up", ("pageup",), "One page up", _LOG, "log_page(-1)"),
    Action("log.page_down", ("pagedown",), "One page down", _LOG, "log_page(1)"),
    Action("log.left", ("left",), "Scroll long lines left", _LOG, "log_shift(-20)", places=_OVERVIEW_ONLY),
    Action("log.right", ("right",), "Scroll long lines right", _LOG, "log_shift(20)", places=_OVERVIEW_ONLY),
    Action(
        "back",
        ("escape",),
        "Leave zoom, find, filter, screen",
        _VIEW,
        "leave",
        (*_on("", 0, "back"), *_in_tune("back", 5), *_in_incidents("back", 2), *_in_speculation("back", 3)),
    ),
    Action("proxy", ("p",), "Open the proxy screen, and leave it", _PROXY, "toggle_proxy", _on("proxy", 0, "overview")),
    Action(
        "open",
        ("enter",),
        "Open the row: filter, detail, edit, go to its time",
        _PROXY,
        "open",
        (*_on("", 0, "open"), *_in_tune("edit"), *_in_incidents("go there")),
    ),
    Action(
        "incidents",
        ("i",),
        "Open the incidents screen, and leave it",
        _INCIDENTS,
        "toggle_incidents",
        (*_on("incidents", 2, "incidents", 3), *_in_incidents("overview", 3)),
    ),
    Action(
        "incidents.fix",
        ("f",),
        "Take the fix to the tune screen, pending only",
        _INCIDENTS,
        "take_fix",
        _in_incidents("fix"),
        _INCIDENTS_ONLY,
    ),
    Action(
        "incidents.bundle",
        ("I",),
        "Write an incident bundle: one file for the ticket",
        _INCIDENTS,
        "write_incident",
        _in_incidents("bundle"),
    ),
    Action(
        "speculation",
        ("m",),
        "Open the speculation screen (its method), and leave it",
        _SPECULATION,
        "toggle_speculation",
        (*_on("method", 2), *_in_speculation("overview", 2)),
    ),
    *(
        Action(
            f"slot.{name}",
            (key,),
            f"{does}; armed only",
            _SPECULATION,
            f"slot_{name}",
            _in_speculation(name, 1),
            _SPECULATION_ONLY,
        )
        for name, key, does in (
            ("save", "S", "Save the selected slot to a file"),
            ("restore", "R", "Restore the selected slot from a file"),
            ("erase", "X", "Erase what the selected slot holds"),
        )
    ),
    Action("travel.back", ("comma",), "Back in the record, 10 s", _TRAVEL, "travel(-10)"),
    Action("travel.on", ("full_stop",), "On in the record, 10 s", _TRAVEL, "travel(10)"),
    Action("travel.window_back", ("left_square_bracket",), "Back by one window", _TRAVEL, "travel_window(-1)"),
    Action("travel.window_on", ("right_square_bracket",), "On by one window", _TRAVEL, "travel_window(1)"),
    Action("travel.event_before", ("less_than_sign",), "To the event before", _TRAVEL, "travel_event(-1)"),
    Action("travel.event_next", ("greater_than_sign",), "To the next event", _TRAVEL, "travel_event(1)"),
    Action("travel.ask", ("J",), "Jump to a moment: 02:00, -3h", _TRAVEL, "travel_ask"),
    Action("travel.live", ("L",), "Back to live", _TRAVEL, "travel_live"),
    Action(
        "tune",
        ("e",),
        "Open the tune screen, and leave it",
        _TUNE,
        "toggle_tune",
        (*_on("tune", 1), *_in_tune("overview", 4)),
    ),
    Action(
        "arm",
        ("A",),
        "Arm: allow changes; disarms itself when idle",
        _TUNE,
        "arm",
        (*_on("arm", 4), *_in_tune("arm"), *_in_speculation("arm")),
    ),
    Action(
        "tune.apply",
        ("a",),
        "Apply what is pending, step by step; armed only",
        _TUNE,
        "apply",
        _in_tune("apply"),
        _TUNE_ONLY,
    ),
    Action(
        "tune.rollback",
        ("R",),
        "Roll back the last apply; armed only",
        _TUNE,
        "roll_back",
        _in_tune("roll back", 1),
        _TUNE_ONLY,
    ),
    Action(
        "tune.presets",
        ("o",),
        "Take a preset: a profile's values become pending",
        _TUNE,
        "presets",
        _in_tune("presets", 1),
        _TUNE_ONLY,
    ),
    Action(
        "tune.drop",
        ("u",),
        "Drop the pending change of the setting",
        _TUNE,
        "drop_change",
        _in_tune("undo", 2),
        _TUNE_ONLY,
    ),
    Action("tune.clear", ("U",), "Drop all pending changes", _TUNE, "clear_changes", (), _TUNE_ONLY),
    Action(
        "tune.unset",
        ("x",),
        "Remove the setting from the env file (pending)",
        _TUNE,
        "unset_key",
        _in_tune("unset", 3),
        _TUNE_ONLY,
    ),
    Action(
        "tune.service",
        ("b",),
        "The other service: backend or proxy",
        _TUNE,
        "next_service",
        _in_tune("service", 3),
        _TUNE_ONLY,
    ),
    Action(
        "tune.every",
        ("v",),
        "Every setting there is, or those set and most tuned",
        _TUNE,
        "every_key",
        _in_tune("all", 4),
        _TUNE_ONLY,
    ),
    Action(
        "tune.side",
        ("d",),
        "Preflight's findings, then the before/after card",
        _TUNE,
        "next_side",
        _in_tune("details", 3),
        _TUNE_ONLY,
    ),
    Action(
        "tune.finish", ("y",), "Finish an apply that was cut short (R rolls it back)", _TUNE, "finish", (), _TUNE_ONLY
    ),
    Action(
        "help",
        ("question_mark", "h"),
        "Show this help",
        _APP,
        "show_help",
        (*_on("help", 0, "help"), *_in_tune("help"), *_in_incidents("help"), *_in_speculation("help")),
    ),
    Action("palette", ("colon", "ctrl+p"), "Open the command palette", _APP, "command_palette", _on("palette", 2)),
    Action(
        "quit",
        ("q", "ctrl+q", "ctrl+c"),
        "Quit",
        _APP,
        "quit",
        (*_on("quit", 0, "quit"), *_in_tune("quit"), *_in_incidents("quit"), *_in_speculation("quit")),
    ),
)

GROUPS = (_PANELS, _VIEW, _LOG, _PROXY, _TUNE, _SPECULATION, _INCIDENTS, _TRAVEL, _APP)


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
