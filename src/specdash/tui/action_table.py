"""Every action of the dashboard, as data. See `tui.actions`, which reads it."""

from __future__ import annotations

from functools import partial

from specdash.tui.action import Action, Label, Place, in_place
from specdash.tui.action_table_services import SERVICE_ACTIONS, TUNE, TUNER
from specdash.tui.layout import PANELS

_VIEW, _PANELS, _LOG, _PROXY, _APP = "View", "Panels", "Log", "Proxy", "Program"
_INCIDENTS, _TRAVEL, _SPECULATION = "Incidents", "Time travel", "Speculation"
_OVERVIEW_ONLY = (Place.OVERVIEW,)
_INCIDENTS_ONLY, _SPECULATION_ONLY = (Place.INCIDENTS,), (Place.SPECULATION,)


def _on(overview: str = "", rank: int = 0, proxy: str = "", proxy_rank: int = 0) -> tuple[Label, ...]:
    """Labels on the overview and on the proxy screen."""
    rows = (Label(Place.OVERVIEW, overview, rank), Label(Place.PROXY, proxy, proxy_rank))
    return tuple(one for one in rows if one.text)


_in_tune, _in_incidents, _in_speculation, _in_tuner = (
    partial(in_place, place) for place in (Place.TUNE, Place.INCIDENTS, Place.SPECULATION, Place.TUNER)
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
        (*_on("zoom", 0, "zoom", 2), *_in_incidents("details", 1), *_in_speculation("zoom"), *_in_tuner("zoom", 3)),
    ),
    Action(
        "focus.next",
        ("tab",),
        "Focus the next panel",
        _PANELS,
        "next_panel(1)",
        (*_on("", 0, "table"), *_in_incidents("scroll", 3), *_in_speculation("panel"), *_in_tuner("panel", 2)),
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
        (
            *_on("", 0, "back"),
            *_in_tune("back", 5),
            *_in_incidents("back", 2),
            *_in_speculation("back", 3),
            *_in_tuner("back", 5),
        ),
    ),
    Action("proxy", ("p",), "Open the proxy screen, and leave it", _PROXY, "toggle_proxy", _on("proxy", 0, "overview")),
    Action(
        "open",
        ("enter",),
        "Open the row: filter, detail, edit, go to its time",
        _PROXY,
        "open",
        (*_on("", 0, "open"), *_in_tune("edit"), *_in_incidents("go there"), *_in_tuner("details", 1)),
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
            does,
            _SPECULATION,
            f"slot_{name}",
            _in_speculation(name, 1),
            _SPECULATION_ONLY,
            armed_only=True,
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
    *SERVICE_ACTIONS,
    Action(
        "help",
        ("question_mark", "h"),
        "Show this help",
        _APP,
        "show_help",
        (
            *_on("help", 0, "help"),
            *_in_tune("help"),
            *_in_incidents("help"),
            *_in_speculation("help"),
            *_in_tuner("help"),
        ),
    ),
    Action("palette", ("colon", "ctrl+p"), "Open the command palette", _APP, "command_palette", _on("palette", 2)),
    Action(
        "quit",
        ("q", "ctrl+q", "ctrl+c"),
        "Quit",
        _APP,
        "quit",
        (
            *_on("quit", 0, "quit"),
            *_in_tune("quit"),
            *_in_incidents("quit"),
            *_in_speculation("quit"),
            *_in_tuner("quit"),
        ),
    ),
)

GROUPS = (_PANELS, _VIEW, _LOG, _PROXY, TUNE, TUNER, _SPECULATION, _INCIDENTS, _TRAVEL, _APP)
