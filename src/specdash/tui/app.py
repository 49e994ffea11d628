"""The dashboard: asks a state for its picture at every refresh and hands it to the screen. It does no I/O of its
own, except for the screenshot that the user asks for."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding

from specdash.core.config import REFRESH_S
from specdash.tui import plot
from specdash.tui.actions import ACTIONS, Place, works_in
from specdash.tui.arming import Arming
from specdash.tui.layout import PanelId
from specdash.tui.log_actions import LogActions
from specdash.tui.screens.overview import OverviewScreen
from specdash.tui.spans import ASCII, UNICODE
from specdash.tui.themes import PALETTES, default_theme, textual_theme
from specdash.tui.travel import TravelActions
from specdash.tui.tune_actions import LOOK_S
from specdash.tui.tuner_actions import TunerActions
from specdash.tui.view import View
from specdash.tui.view_actions import ViewActions
from specdash.tui.widgets.header import Situation
from specdash.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from textual import events
    from textual.binding import BindingType
    from textual.command import Provider
    from textual.timer import Timer

    from specdash.control.console import Console
    from specdash.control.slot_console import SlotConsole
    from specdash.history.player import Player
    from specdash.history.replay import ReplaySession
    from specdash.tui.screens.base import DashboardScreen
    from specdash.tui.screens.proxy import ProxyScreen
    from specdash.tui.screens.request import RequestScreen
    from specdash.tui.screens.tune import TuneScreen
    from specdash.tui.spans import Glyphs
    from specdash.tui.view import State
    from specdash.tui.widgets.panel import Movable
    from specdash.tune.console import TunerConsole

UNFINISHED_S = 1.0
"""After the start, when the first paint is long done, the dashboard looks for an apply that was cut short."""
_PRIORITY_KEYS = ("ctrl+c", "ctrl+q", "ctrl+p")


def _action_provider() -> type[Provider]:
    from specdash.tui.palette import ActionProvider

    return ActionProvider


class Dashboard(TravelActions, TunerActions, LogActions, ViewActions):
    """The overview of one target.

    `state` is asked once per refresh, from the event loop, and must answer at once. `on_interval` hears a new refresh
    interval in seconds, so that collectors can follow it; `on_ready` is called once, after the first paint. `clock` is
    monotonic, `wall` Unix time. With a `console` the dashboard may be armed (see `arming`) to change the services;
    without one it only looks. `incident` writes an incident bundle and says where, `record` opens what was recorded at
    a moment (None: its end); both raise `SpecdashError`, in a thread. A dashboard with a `replay` shows nothing else.
    `recording` says at once what is wrong with the recording, "" when nothing is. `slots` saves, restores
    and erases what the server's slots hold, `tuner` looks at, starts and stops runs of the tuner; both are asked in a
    thread, and change something only while armed.
    """

    TITLE = "specdash"
    AUTO_FOCUS = None
    CSS = "Toast { width: auto; max-width: 100%; }"
    """A path stays in one piece, to be copied."""
    ENABLE_COMMAND_PALETTE = True
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {_action_provider}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            key, action.handler, action.description, show=False, priority=key in _PRIORITY_KEYS, id=f"{action.id}:{key}"
        )
        for action in ACTIONS
        for key in action.keys
    ]

    def __init__(
        self,
        state: State,
        *,
        on_interval: Callable[[float], None] | None = None,
        demo: bool = False,
        theme: str | None = None,
        ascii_only: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        screenshots: Path | None = None,
        on_ready: Callable[[], None] | None = None,
        console: Console | None = None,
        arming: Arming | None = None,
        incident: Callable[[], Path] | None = None,
        recording: Callable[[], str] | None = None,
        record: Callable[[float | None], ReplaySession] | None = None,
        replay: Player | None = None,
        slots: SlotConsole | None = None,
        tuner: TunerConsole | None = None,
    ) -> None:
        # Textual takes NO_COLOR out of the environment, so it has to be read before. Told that colours are the
        # terminal's own, it then drops them all; otherwise it would draw shades of grey, and the terminal's default
        # colours black.
        chosen = theme if theme in PALETTES else default_theme(os.environ)
        super().__init__(ansi_color=True if "NO_COLOR" in os.environ else None)
        self.animation_level = "none"
        self.state = state
        self.demo = demo
        self.overview = OverviewScreen()
        self.proxy: ProxyScreen | None = None
        """The proxy screen while it is open."""
        self.tune: TuneScreen | None = None
        """The tune screen while it is open."""
        self.incidents = self.speculation = self.tuner = None
        self.incident, self.slot_console, self.tuner_console = incident, slots, tuner
        self._recording = recording
        self.open_record, self.player, self.only_replay = record, replay, replay is not None
        self.services = console
        self.arming = arming or Arming()
        self._looked_at = 0.0
        self._detail: RequestScreen | None = None
        self.window_s = 300.0
        self.interval_s = 1.0
        self.paused_at: float | None = None
        self.glyphs: Glyphs = ASCII if ascii_only else UNICODE
        self._clock, self._wall = clock, wall
        self._on_interval = on_interval
        self._when_ready = on_ready
        self.screenshots = screenshots
        self._timer: Timer | None = None
        self._last_panel = PanelId.ACCEPTANCE
        for palette in PALETTES.values():
            self.register_theme(textual_theme(palette))
        self.theme = chosen

    @property
    def shown(self) -> DashboardScreen:
        """The screen that is looked at."""
        return self.tune or self.tuner or self.incidents or self.speculation or self.proxy or self.overview

    @property
    def moving(self) -> Movable | None:
        """What keys of movement move."""
        return self.shown.moving

    def monotonic(self) -> float:
        """Seconds."""
        return self._clock()

    def wall_time(self) -> float:
        """Unix time."""
        return self._wall()

    def on_key(self, event: events.Key) -> None:
        """Whoever presses keys is there: an armed dashboard stays so. Keys typed right behind the one that opens a
        prompt belong to the prompt."""
        self.arming.touch(self._clock())
        prompt = self.shown.prompt
        if prompt is not None and prompt is self.focused and prompt.pass_on(event):
            event.prevent_default()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether an action makes sense now."""
        del parameters
        return works_in(action, self.shown.place)

    def get_default_screen(self) -> OverviewScreen:
        """The overview is the bottom of the screen stack."""
        return self.overview

    def on_mount(self) -> None:
        """Paint, then load what the first paint does not need."""
        self.overview.paint(PALETTES[self.theme])
        if plot.import_is_done():
            plot.load()
        else:
            self.call_after_refresh(self.set_timer, 0.05, self._load_charts)
        self._start_timer()
        self.overview.prime(self._view(), self._situation())
        if self.player is not None:
            self.follow(self.player)
        if self._when_ready is not None:
            self.call_after_refresh(self._when_ready)
        if self.services is not None:
            self.set_timer(UNFINISHED_S, self.look_for_unfinished)

    def _fatal_error(self) -> None:
        """Textual's own report prints local variables, which may hold what must not be shown in a shared pane."""
        from rich.segment import Segments
        from rich.traceback import Traceback

        report = Traceback(show_locals=False, width=None)
        self._exit_renderables.append(Segments(self.console.render(report, self.console.options)))
        self._close_messages_no_wait()

    def _load_charts(self) -> None:
        plot.load()
        self.refresh_view()

    def _start_timer(self) -> None:
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_interval(self.interval_s, self.refresh_view)

    def refresh_view(self) -> None:
        """One refresh: the picture of this moment, unless the display is frozen."""
        if self.paused_at is not None and self.shown.view is not None:
            self.shown.show_situation(self._situation())
            return
        if self.tune is not None and self._clock() - self._looked_at >= LOOK_S:
            self._looked_at = self._clock()
            self.look_at_services(again=True)
        self._draw(self._view())

    def _draw(self, view: View) -> None:
        if self.shown is not self.overview:
            # What the log gains meanwhile shall not be missed.
            self.overview.board.log_panel.take_new_lines(view)
        self.shown.show(view, self._situation())
        if self._detail is not None and self.screen is self._detail:
            self._detail.show(view)

    def _view(self) -> View:
        state = self.looked_at
        picture = state.picture(self._clock(), self._wall(), self.window_s)
        return View(picture, state, self.glyphs, self.interval_s)

    def _situation(self) -> Situation:
        paused = None if self.paused_at is None else self._clock() - self.paused_at
        now = self._clock()
        return Situation(
            self._wall(),
            paused,
            self.demo,
            self.arming.left_s(now),
            self.arming.locked,
            self.cut_short,
            self._recording() if self._recording is not None else "",
            self.shown is self.incidents,
            self.shown is self.speculation,
            self.travelling(),
            self.opening(),
            self.shown is self.tuner and self.tuner_model.under_way,
        )

    def _focused_panel(self) -> PanelId:
        if isinstance(self.overview.focused, Panel):
            self._last_panel = self.overview.focused.panel
        return self._last_panel

    def action_toggle_panel(self, panel: str) -> None:
        """Show or hide one panel."""
        chosen = PanelId(panel)
        board = self.overview.board
        board.toggle(chosen)
        if board.choices[chosen]:
            self._last_panel = chosen
        self.call_after_refresh(self.show_now)

    def action_zoom(self) -> None:
        """Zoom in on the focused or last panel or table, or out."""
        if self.shown is self.overview:
            board = self.overview.board
            board.zoom(None if board.zoomed is not None else self._focused_panel())
        else:
            self.shown.toggle_zoom()
        self.call_after_refresh(self.show_now)

    def action_reset_panels(self) -> None:
        """Back to the panels of this screen size."""
        self.overview.board.reset()
        self.call_after_refresh(self.show_now)

    def action_next_panel(self, step: int) -> None:
        """Move the focus."""
        self.shown.next_panel(step)
        self._focused_panel()

    def show_now(self) -> None:
        """Draw what just became visible; a frozen display shows the frozen moment."""
        view = self.shown.view or self.overview.view
        if self.paused_at is not None and view is not None:
            self._draw(view)
        else:
            self.refresh_view()

    def action_pause(self) -> None:
        """Freeze or thaw the display."""
        if not self.play_or_stop():
            self.paused_at = None if self.paused_at is not None else self._clock()
            self.refresh_view()

    def action_refresh_rate(self, step: int) -> None:
        """A longer (1) or shorter (-1) refresh interval; of a replay, the speed."""
        others = [
            seconds for seconds in REFRESH_S if (seconds > self.interval_s if step > 0 else seconds < self.interval_s)
        ]
        if self.change_speed(-step) or not others:
            return
        self.interval_s = min(others) if step > 0 else max(others)
        self._start_timer()
        if self._on_interval is not None:
            self._on_interval(self.interval_s)
        self.refresh_view()

    def action_leave(self) -> None:
        """Leave one thing: zoom first, then find, then filter, then the screen."""
        toggles = {
            Place.TUNE: self.action_toggle_tune,
            Place.TUNER: self.action_toggle_tuner,
            Place.INCIDENTS: self.action_toggle_incidents,
            Place.SPECULATION: self.action_toggle_speculation,
            Place.PROXY: self.action_toggle_proxy,
        }
        if self.shown is not self.overview:
            if self.shown.leave():
                self.call_after_refresh(self.show_now)
            else:
                toggles[self.shown.place]()
            return
        log = self.overview.board.log_panel
        if self.overview.board.zoomed is not None:
            self.action_zoom()
        elif log.buffer.needle:
            log.find("")
        elif log.buffer.filter:
            log.filter_by("")

    def action_toggle_proxy(self) -> None:
        """Open the proxy screen, or leave it."""
        from specdash.tui.screens.proxy import ProxyScreen

        if self.tune is not None or not self.leave_tuner():
            return
        if self.incidents is not None:
            self.action_toggle_incidents()
        if self.speculation is not None:
            self.action_toggle_speculation()
            if self.proxy is not None:
                return
        if self.proxy is not None:
            if self.screen is self.proxy:
                frozen, self.proxy = self.proxy.view, None
                self.pop_screen()
                self.overview.view = frozen or self.overview.view
                self.call_after_refresh(self.show_now)
            return
        self.proxy = ProxyScreen()
        self.proxy.footer.glyphs = self.glyphs
        self.proxy.paint(PALETTES[self.theme])
        self.push_screen(self.proxy)
        self.call_after_refresh(self.show_now)

    async def action_open(self) -> None:
        """On the tune screen: edit the selected setting. On the incidents screen: go to the time of the alert. On the
        proxy screen: filter by the selected session, or show the selected request in detail."""
        if self.tune is not None:
            await self.edit_setting()
            return
        if self.tuner is not None:
            self.open_boot()
            return
        if self.incidents is not None:
            self.go_to_alert()
            return
        if self.proxy is None or self.proxy.view is None or self.speculation is not None:
            return
        request = self.proxy.open_selected()
        if request is not None:
            from specdash.tui.screens.request import RequestScreen

            self._detail = RequestScreen(PALETTES[self.theme], self.proxy.view, request)
            self.push_screen(self._detail)

    def reveal_log(self) -> None:
        """Show the log panel."""
        board = self.overview.board
        self._last_panel = PanelId.LOG
        if all(panel.panel is not PanelId.LOG for panel in board.visible_panels()):
            board.toggle(PanelId.LOG)
