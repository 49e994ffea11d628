"""Every action of the dashboard, declared once: bindings, footer, palette, help page and docs/keys.md read it.

Keys are Textual key names; none needs alt, a function key, or ctrl-b, so that all work inside tmux over ssh. A key
stands in one row alone: it means the same on every screen and page.
"""

from __future__ import annotations

import sys
from difflib import get_close_matches
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace
from textual.binding import Binding

from specdash.core.errors import InputError
from specdash.tui.layout import PANELS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from textual.binding import BindingType

    from specdash.core.config import Resolved


# What an action of the dashboard is, and the screens it may belong to.


class FooterScreen(StrEnum):
    """The screens that have a footer of their own."""

    OVERVIEW = "overview"
    PROXY = "proxy"
    SPECULATION = "speculation"
    INCIDENTS = "incidents"
    TUNE = "tune"
    TUNER = "tuner"


LEVELS = {place: min(level, 4) for level, place in enumerate(FooterScreen)}
"""Which screen stands above which where several are open; tune and tuner give way to each other."""


class Label(Struct, frozen=True):
    """An action in the footer of one screen: a short word, and its rank: a narrow terminal's footer leaves out those of
    the highest rank first."""

    place: FooterScreen
    text: str
    rank: int = 0


class Action(Struct, frozen=True):
    """One thing to do. `handler` names a method `action_<handler>` of `Dashboard`, or with `screen.` before it of the
    screen that is looked at, with arguments in Textual's syntax. `labels` are its words in footers. With `places` it
    belongs to those screens alone."""

    id: str
    keys: tuple[str, ...]
    title: str
    group: str
    handler: str
    labels: tuple[Label, ...] = ()
    places: tuple[FooterScreen, ...] = ()
    armed_only: bool = False
    """It changes a service or what the server holds."""

    @property
    def description(self) -> str:
        """What it does, and whether only while the dashboard is armed."""
        return self.title + ("; armed only" if self.armed_only else "")

    def label(self, place: FooterScreen) -> Label | None:
        """Its word in the footer of a screen, None when that footer does not show it."""
        return next((label for label in self.labels if label.place is place), None)

    @property
    def shown_keys(self) -> str:
        """The keys as a person reads them: `+ / =`."""
        return "  ".join(SHOWN.get(key, key) for key in self.keys)


SHOWN = {
    "space": "space",
    "slash": "/",
    "colon": ":",
    "question_mark": "?",
    "plus": "+",
    "equals_sign": "=",
    "minus": "-",
    "comma": ",",
    "apostrophe": "'",
    "full_stop": ".",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "exclamation_mark": "!",
    "dollar_sign": "$",
    "escape": "esc",
    "pageup": "pgup",
    "pagedown": "pgdn",
    "shift+tab": "shift+tab",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
}
"""Textual's names of keys, as people write them."""


_VIEW, _PANELS, _LOG, _PROXY, _APP = "View", "Panels", "Log", "Proxy", "Program"
_INCIDENTS, _TRAVEL, _SPECULATION, _TUNE, _TUNER = "Incidents", "Time travel", "Speculation", "Tune", "Tuner"
GROUPS = (_PANELS, _VIEW, _LOG, _PROXY, _TUNE, _TUNER, _SPECULATION, _INCIDENTS, _TRAVEL, _APP)
ALWAYS = ("ctrl+c", "ctrl+q", "ctrl+p")
"""Keys that work before all others, with any focus."""


def _action(
    id: str,  # noqa: A002 as in `Action`
    keys: str,
    title: str,
    group: str,
    handler: str,
    *places: FooterScreen,
    armed_only: bool = False,
    **labels: str | tuple[str, int],
) -> Action:
    """`labels` by screen: the word in its footer, with its rank where that is not 0."""
    words = {FooterScreen(name): (label, 0) if isinstance(label, str) else label for name, label in labels.items()}
    return Action(
        id,
        tuple(keys.split()),
        title,
        group,
        f"screen.{handler}" if places else handler,
        tuple(Label(screen, *word) for screen, word in words.items()),
        places,
        armed_only,
    )


_ON_OVERVIEW, _ON_INCIDENTS, _ON_SPECULATION, _ON_TUNE, _ON_TUNER = (
    FooterScreen.OVERVIEW,
    FooterScreen.INCIDENTS,
    FooterScreen.SPECULATION,
    FooterScreen.TUNE,
    FooterScreen.TUNER,
)

# fmt: off
ACTIONS: tuple[Action, ...] = (
    *(
        _action(f"panel.{spec.id}", spec.digit, f"Show or hide {spec.title}", _PANELS, f"toggle_panel('{spec.id}')",
                _ON_OVERVIEW)
        for spec in PANELS.values()
    ),
    _action("zoom", "z", "Zoom the focused or last panel, and back", _PANELS, "screen.zoom",
            overview=("zoom", 1), proxy=("zoom", 2), incidents=("details", 1), speculation="zoom", tuner=("zoom", 3)),
    _action("focus.next", "tab", "Focus the next panel", _PANELS, "screen.next_panel(1)",
            proxy="table", incidents=("scroll", 3), speculation="panel", tuner=("panel", 2)),
    _action("focus.previous", "shift+tab", "Focus the previous panel", _PANELS, "screen.next_panel(-1)"),
    _action("panels.reset", "0", "Reset the layout of the panels", _PANELS, "reset_panels", _ON_OVERVIEW),
    _action("pause", "space", "Pause the display; in a replay: play or pause", _VIEW, "pause",
            overview=("pause", 2), proxy=("pause", 1)),
    _action("window", "w", "Next window: 1m, 5m, 15m, 1h", _VIEW, "next_window", overview=("window", 2),
            proxy=("window", 3)),
    _action("faster", "plus equals_sign", "Refresh more often; a replay: faster", _VIEW, "refresh_rate(-1)",
            overview=("rate", 3)),
    _action("slower", "minus", "Refresh less often; a replay: slower", _VIEW, "refresh_rate(1)"),
    _action("theme", "t", "Next theme", _VIEW, "next_theme"),
    _action("screenshot", "s", "Save this screen as SVG in the state directory", _VIEW, "save_screen"),
    _action("yank", "y", "Copy what the cursor is on to the clipboard", _VIEW, "screen.yank"),
    _action("log.find", "slash", "Find in the log", _LOG, "log_find", _ON_OVERVIEW, overview=("find", 1)),
    _action("log.next", "n", "Next match (newer)", _LOG, "log_match(1)", _ON_OVERVIEW),
    _action("log.previous", "N", "Previous match (older)", _LOG, "log_match(-1)", _ON_OVERVIEW),
    _action("log.filter", "f", "Show only log lines that contain a text", _LOG, "log_filter", _ON_OVERVIEW,
            overview=("filter", 3)),
    _action("log.invert", "exclamation_mark", "Invert the filter", _LOG, "log_invert", _ON_OVERVIEW),
    _action("log.unfilter", "F", "Filter, or without one the detail, off or on", _LOG,
            "log_toggle_filter", _ON_OVERVIEW),
    _action("log.left", "left", "Scroll long lines left", _LOG, "log_shift(-20)", _ON_OVERVIEW),
    _action("log.right", "right", "Scroll long lines right", _LOG, "log_shift(20)", _ON_OVERVIEW),
    _action("move.up", "k up", "One line or row up", _PANELS, "screen.move(-1)"),
    _action("move.down", "j down", "One line or row down", _PANELS, "screen.move(1)"),
    _action("move.page_up", "pageup ctrl+u", "One page up", _PANELS, "screen.page(-1)"),
    _action("move.page_down", "pagedown ctrl+d", "One page down", _PANELS, "screen.page(1)"),
    _action("move.start", "g home", "To the first row, or the oldest line kept", _PANELS, "screen.to_start"),
    _action("move.end", "G end", "To the last row; of the log: follow its end", _PANELS, "screen.to_end"),
    _action("back", "escape", "Leave zoom, find, filter, screen", _VIEW, "screen.leave",
            proxy="back", tune=("back", 5), incidents=("back", 2), speculation=("back", 3), tuner=("back", 5)),
    _action("proxy", "p", "Open the proxy screen, and leave it", _PROXY, "toggle_screen('proxy')",
            overview="proxy", proxy="overview"),
    _action("open", "enter", "Open the row: filter, detail, edit, go to its time", _PROXY, "screen.open",
            proxy="open", tune="edit", incidents="go there", tuner=("details", 1)),
    _action("incidents", "i", "Open the incidents screen, and leave it", _INCIDENTS, "toggle_screen('incidents')",
            overview="incidents", proxy=("incidents", 3), incidents=("overview", 3)),
    _action("incidents.bundle", "I", "Write an incident bundle: one file for the ticket", _INCIDENTS,
            "screen.write_incident", incidents="bundle"),
    _action("speculation", "m", "Open the speculation screen (its method), and leave it", _SPECULATION,
            "toggle_screen('speculation')",
            overview="method", speculation=("overview", 2)),
    _action("slot.save", "S", "Save the selected slot to a file", _SPECULATION, "slot_save", _ON_SPECULATION,
            armed_only=True, speculation=("save", 1)),
    _action("slot.restore", "O", "Restore the selected slot from a file", _SPECULATION, "slot_restore",
            _ON_SPECULATION, armed_only=True, speculation=("restore", 1)),
    _action("slot.erase", "X", "Erase what the selected slot holds", _SPECULATION, "slot_erase", _ON_SPECULATION,
            armed_only=True, speculation=("erase", 1)),
    _action("baseline", "B", "Measure decode without speculation now", _SPECULATION,
            "measure_baseline", armed_only=True),
    _action("travel.back", "comma", "Back in the record, 10 s", _TRAVEL, "screen.travel(-10)"),
    _action("travel.on", "full_stop", "On in the record, 10 s", _TRAVEL, "screen.travel(10)"),
    _action("travel.window_back", "left_square_bracket", "Back by one window", _TRAVEL, "screen.travel_window(-1)"),
    _action("travel.window_on", "right_square_bracket", "On by one window", _TRAVEL, "screen.travel_window(1)"),
    _action("travel.event_before", "less_than_sign", "To the event before", _TRAVEL, "screen.travel_event(-1)"),
    _action("travel.event_next", "greater_than_sign", "To the next event", _TRAVEL, "screen.travel_event(1)"),
    _action("travel.ask", "J", "Jump to a moment: 02:00, -3h", _TRAVEL, "screen.travel_ask"),
    _action("travel.live", "L", "Back to live", _TRAVEL, "screen.travel_live"),
    _action("tune", "e", "Open the tune screen, and leave it", _TUNE, "toggle_screen('tune')",
            overview="tune", tune=("overview", 4)),
    _action("arm", "A", "Arm: allow changes; disarms itself when idle", _TUNE, "arm",
            overview=("arm", 4), tune="arm", speculation="arm", tuner="arm"),
    _action("take", "V", "Take what is better to the tune screen, pending only", _TUNE,
            "screen.take", incidents="fix", tuner=("take", 1)),
    _action("tune.apply", "a", "Apply what is pending, step by step", _TUNE, "apply", _ON_TUNE, armed_only=True,
            tune="apply"),
    _action("tune.rollback", "R", "Roll back the last apply", _TUNE, "roll_back", _ON_TUNE, armed_only=True,
            tune=("roll back", 1)),
    _action("tune.presets", "o", "Take a preset: a profile's values become pending", _TUNE, "presets", _ON_TUNE,
            tune=("presets", 1)),
    _action("tune.drop", "u", "Drop the pending change of the setting", _TUNE, "drop_change", _ON_TUNE,
            tune=("undo", 2)),
    _action("tune.clear", "U", "Drop all pending changes", _TUNE, "clear_changes", _ON_TUNE),
    _action("tune.unset", "x", "Remove the setting from the env file (pending)", _TUNE, "unset_key", _ON_TUNE,
            tune=("unset", 3)),
    _action("tune.service", "b", "The other service: backend or proxy", _TUNE, "next_service", _ON_TUNE,
            tune=("service", 3)),
    _action("tune.every", "v", "All settings, or the common ones", _TUNE, "every_key", _ON_TUNE,
            tune=("all", 4)),
    _action("side", "d", "Change sides: findings or card, outcome or plan", _TUNE, "next_side",
            _ON_TUNE, _ON_TUNER, tune=("details", 3), tuner=("new run", 2)),
    _action("tuner", "T", "Open the tuner's screen, and leave it", _TUNER, "toggle_screen('tuner')",
            overview=("tuner", 1), tune=("tuner", 3), tuner=("overview", 4)),
    _action("tuner.start", "r", "Start the tuner on the service", _TUNER, "start_run", _ON_TUNER, armed_only=True,
            tuner="run"),
    _action("stop", "E", "End the apply or run, put the original back", _TUNER, "stop_run",
            _ON_TUNER, armed_only=True, tuner="end"),
    _action("tuner.budget", "dollar_sign", "Change the budget: restarts, and minutes", _TUNER, "budget", _ON_TUNER,
            tuner=("budget", 2)),
    _action("help", "question_mark h", "Show this help", _APP, "show_help",
            overview="help", proxy="help", tune="help", incidents="help", speculation="help", tuner="help"),
    _action("target", "c", "Choose among the servers of this machine", _APP, "choose_target", overview=("server", 4)),
    _action("palette", "colon ctrl+p", "Open the command palette", _APP, "command_palette", overview="palette",
            proxy=("palette", 1), tune=("palette", 2), incidents=("palette", 1), speculation=("palette", 1),
            tuner=("palette", 1)),
    _action("redraw", "ctrl+l", "Redraw the screen, after another program wrote on it", _APP, "redraw"),
    _action("quit", "q ctrl+q ctrl+c", "Quit", _APP, "quit",
            overview="quit", proxy="quit", tune="quit", incidents="quit", speculation="quit", tuner="quit"),
)
# fmt: on
PANEL_ACTIONS: dict[str, tuple[str, ...]] = {
    "panel-log": (*(action.id for action in ACTIONS if action.group == _LOG), "yank"),
    "prefix-slots": ("slot.save", "slot.restore", "slot.erase"),
    "proxy-sessions": ("open", "yank"),
    "proxy-requests": ("open", "yank"),
    "proxy-guardrails": ("yank",),
    "incidents-alerts": ("open", "take", "yank"),
    "tune-keys": ("open", "tune.drop", "tune.unset", "yank"),
    "tuner-boots": ("open",),
    "tuner-plan": ("tuner.start", "tuner.budget"),
    "tuner-card": ("take",),
}
"""What works on the content of a panel that has the focus, by the panel's id."""


REMOVED = {
    "jump": "tab moves the focus from panel to panel",
    "resume": "a run of the tuner that was cut short has left the original in force; tuner.start begins a new one",
}
"""Actions of earlier versions, each with what to use instead."""


class KeyTable:
    """Every action with its keys: those of the table, or the user's (`read_keys`)."""

    def __init__(self, actions: Sequence[Action] = ACTIONS) -> None:
        self.actions = tuple(actions)
        self._by_id = {action.id: action for action in self.actions}

    def __getitem__(self, action: str) -> str:
        """The first key of an action, as a person reads it."""
        return SHOWN.get(key := self._by_id[action].keys[0], key)

    @property
    def arrows(self) -> str:
        """The last key of up and of down: the arrows."""
        return "".join(SHOWN.get(key, key) for key in (action.keys[-1] for action in self.of(("move.up", "move.down"))))

    def of(self, ids: Iterable[str]) -> tuple[Action, ...]:
        """The actions of these ids."""
        return tuple(self._by_id[action] for action in ids)

    def in_group(self, group: str) -> tuple[Action, ...]:
        """The actions of one group, in the table's order."""
        return tuple(action for action in self.actions if action.group == group)

    def on_screen(self, place: FooterScreen) -> list[Action]:
        """What a screen is for: the actions of its footer, those that stay longest first, then its other ones."""
        labelled = [(label.rank, action) for action in self.actions if (label := action.label(place)) is not None]
        own = [action for action in self.actions if place in action.places and action.label(place) is None]
        return [action for _, action in sorted(labelled, key=lambda pair: pair[0])] + own

    @property
    def keymap(self) -> dict[str, str]:
        """What differs from the table, as Textual's `App.set_keymap` wants it."""
        pairs = zip(self.actions, ACTIONS, strict=True)
        return {
            action.id: ",".join(key for key in action.keys if key not in ALWAYS)
            for action, shipped in pairs
            if action.keys != shipped.keys
        }


DEFAULT_KEYS = KeyTable()


def read_keys(keys: Resolved) -> KeyTable:
    """The table with the user's keys, by the ids of actions: `{"pause": "space,p"}`.

    An action of an earlier version is ignored, with a line on stderr. Raises `InputError` for an unknown id, a key that
    no terminal sends, and a key that two actions of one screen would have.
    """
    chosen: Mapping[str, object] = {name: written for name, written in keys.value.items() if name not in REMOVED}
    for name in sorted(keys.value.keys() & REMOVED.keys()):
        print(f"specdash: {keys.origin}: keys: {name} was removed and is ignored: {REMOVED[name]}", file=sys.stderr)
    taken = {
        name: _read_line(name, written, f"{keys.origin}: keys: {name} = {written!r}")
        for name, written in chosen.items()
    }
    table = KeyTable([replace(action, keys=taken.get(action.id, action.keys)) for action in ACTIONS])
    for place in FooterScreen:
        owners: dict[str, Action] = {}
        here = [action for action in table.actions if not action.places or place in action.places]
        for action in here:
            for key in action.keys:
                rival = owners.setdefault(key, action)
                if rival is not action:
                    mine, theirs = (action, rival) if action.id in taken else (rival, action)
                    raise InputError(
                        f"{keys.origin}: keys: {mine.id} = {chosen[mine.id]!r}: {SHOWN.get(key, key)} on the {place} "
                        f"screen is the key of {theirs.id} ({theirs.title}); give one of the two another key"
                    )
    return table


def _read_line(name: str, written: object, line: str) -> tuple[str, ...]:
    known = {action.id: action for action in ACTIONS}
    if name not in known:
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "docs/keys.md lists them all"
        raise InputError(f"{line}: there is no action {name!r}; {hint}")
    if not isinstance(written, str):
        raise InputError(f'{line}: must be keys in one text, such as "space,p"')
    always = tuple(key for key in known[name].keys if key in ALWAYS)
    try:
        named = tuple(dict.fromkeys(map(_key_name, written.split(","))))
    except ValueError as error:
        raise InputError(f"{line}: {error}") from None
    if fixed := [key for key in named if key in ALWAYS and key not in always]:
        raise InputError(f"{line}: {fixed[0]} does the same everywhere and cannot be given away; take another key")
    own = tuple(key for key in named if key not in always)
    if not own:
        raise InputError(f"{line}: {', '.join(always)} work anyway; name another key, or take the line out")
    return own + always


_WRITTEN = {shown: key for key, shown in SHOWN.items()}
_SENT_AS = {"ctrl+i": "tab", "ctrl+m": "enter", "ctrl+h": "backspace", "return": "enter"}
"""What a terminal sends for keys that it cannot tell from others."""


def _key_name(written: str) -> str:
    """Textual's name of a key that a person wrote; raises `ValueError` where terminals send no such key."""
    from textual.keys import Keys, key_to_character

    text = written.strip()
    if not text:
        raise ValueError('a key is missing; the comma itself is written "comma"')
    # A binding of one character takes Textual's name for it.
    name = _WRITTEN.get(text) or next(iter(Binding.make_bindings([Binding(text, "")]))).key
    if name in _SENT_AS:
        raise ValueError(f"terminals send {text} as {_SENT_AS[name]}; write that, or take another key")
    base = name.removeprefix("alt+")
    if key_to_character(base) is None and (base.startswith("<") or base not in {key.value for key in Keys}):
        capital = f": a capital is written {base[-1].upper()!r}" if base.startswith("shift+") else ""
        raise ValueError(f"{text!r} is no key{capital}; keys are written as in p, P, ?, space, ctrl+o, f5, pageup")
    return name


def bindings(place: FooterScreen | None) -> list[BindingType]:
    """The keys of one screen alone; None: those that every screen has."""
    own = (action for action in ACTIONS if (place in action.places if place is not None else not action.places))
    return [binding for action in own for binding in _bindings(action, action.handler)]


def page_bindings(handlers: Mapping[str, str]) -> list[BindingType]:
    """The keys of a page above a screen: what an action, by its id, does there."""
    return [
        binding for action in ACTIONS if action.id in handlers for binding in _bindings(action, handlers[action.id])
    ]


def _bindings(action: Action, handler: str) -> Iterator[Binding]:
    for key in action.keys:
        always = key in ALWAYS
        yield Binding(
            key,
            handler,
            action.description,
            show=False,
            priority=always,
            id=f"{action.id}.{key}" if always else action.id,
        )
