"""The dashboard: asks a state for its picture at every refresh and hands it to the screen. It does no I/O of its
own, except for the screenshot that the user asks for."""

from __future__ import annotations

import os
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from textual.app import App

from specdash.core.config import REFRESH_S, WINDOWS_S
from specdash.system.text import clean
from specdash.tui.action_table import DEFAULT_KEYS, LEVELS, FooterScreen, KeyTable, bindings
from specdash.tui.arming import Arming, ServiceAccess, in_background
from specdash.tui.screens.base import DashboardScreen
from specdash.tui.screens.overview import OverviewScreen
from specdash.tui.spans import PALETTES, THEME_NAMES, default_theme, textual_theme, theme_after
from specdash.tui.travel import TimeTravel
from specdash.tui.view import View, chart_span
from specdash.tui.widgets.header import HeaderSituation

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from textual import events
    from textual.binding import BindingType
    from textual.command import Provider
    from textual.timer import Timer

    from specdash.collect.targets import TargetLook
    from specdash.control.console import Console, SlotConsole
    from specdash.core.target import Target
    from specdash.history.player import Player
    from specdash.history.replay import ReplaySession
    from specdash.tui.spans import Palette
    from specdash.tui.view import DashboardState
    from specdash.tune.run.console import TunerConsole

Model = TypeVar("Model")


def _action_provider() -> type[Provider]:
    from specdash.tui.palette import ActionProvider

    return ActionProvider


def _screen_class(place: FooterScreen) -> type[Any]:
    return cast("type[Any]", getattr(import_module(f"specdash.tui.screens.{place}"), f"{place.capitalize()}Screen"))


class Dashboard(App[None]):
    """The screens of one target, and what is common to them: the pause, window, theme, arming and help.

    `state` is asked once per refresh, from the event loop, and must answer at once. `on_interval` hears a new refresh
    interval in seconds, so that collectors can follow it; `on_ready` is called once, after the first paint. `clock` is
    monotonic, `wall` Unix time. With a `console` the dashboard may be armed (see `arming`) to change the services;
    without one it only looks. `incident` writes an incident bundle and says where, `record` opens what was recorded at
    a moment (None: its end); both raise `SpecdashError`, in a thread. A dashboard with a `replay` shows nothing else.
    `recording` says at once what is wrong with the recording, "" when nothing is. `slots` saves, restores
    and erases what the server's slots hold, `tuner` looks at, starts and stops runs of the tuner; both are asked in a
    thread, and change something only while armed. `look_around` looks at the servers there are, in a thread: with it
    the user may take another one, which is `chosen_target` when the dashboard has ended for it. One `of_fleet` is left
    by escape, too, for the rows of all servers. `keys` are the user's.
    """

    TITLE = "specdash"
    AUTO_FOCUS = None
    CSS = "Toast { width: auto; max-width: 100%; }"
    """A path stays in one piece, to be copied."""
    ENABLE_COMMAND_PALETTE = True
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {_action_provider}
    BINDINGS: ClassVar[list[BindingType]] = bindings(None)

    def __init__(
        self,
        state: DashboardState,
        *,
        on_interval: Callable[[float], None] | None = None,
        demo: bool = False,
        theme: str | None = None,
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
        look_around: Callable[[], list[TargetLook]] | None = None,
        of_fleet: bool = False,
        keys: KeyTable = DEFAULT_KEYS,
    ) -> None:
        # Textual takes NO_COLOR out of the environment, so it has to be read before. If colours are the
        # terminal's own, it then drops them all; otherwise it would draw shades of grey, and the terminal's default
        # colours black.
        chosen = theme if theme in PALETTES else default_theme(os.environ)
        super().__init__(ansi_color=True if "NO_COLOR" in os.environ else None)
        self.animation_level = "none"
        self.state = state
        self.demo = demo
        self.keys = keys
        self.set_keymap(keys.keymap)
        self.slot_console, self.tuner_console = slots, tuner
        self.of_fleet = of_fleet
        self.incident, self._recording = incident, recording
        self._look_around, self.chosen_target = look_around, cast("Target | None", None)
        self.access = ServiceAccess(self, console, arming or Arming(), clock)
        self.travel = TimeTravel(self, record, replay)
        self.window_s = 300.0
        self.interval_s = 1.0
        self.paused_at: float | None = None
        self._clock, self.wall_time = clock, wall
        self._on_interval, self._when_ready = on_interval, on_ready
        self.screenshots = screenshots
        self._timer: Timer | None = None
        self._kept: dict[type, object] = {}
        self.overview = OverviewScreen(self)
        for name in THEME_NAMES:
            self.register_theme(textual_theme(PALETTES[name]))
        self.theme = chosen

    def kept(self, model: type[Model]) -> Model:
        """What a screen knows and shall still know when it is opened again: one model of each kind."""
        return cast("Model", self._kept.setdefault(model, model()))

    @property
    def shown(self) -> DashboardScreen:
        """The screen below any question."""
        screens = (screen for screen in reversed(self.screen_stack) if isinstance(screen, DashboardScreen))
        return next(screens, self.overview)

    @property
    def palette(self) -> Palette:
        """The colours of the theme."""
        return PALETTES[self.theme]

    def on_key(self, event: events.Key) -> None:
        """Anyone who presses keys is there: an armed dashboard stays so. Keys typed right behind the one that opens a
        prompt belong to the prompt."""
        self.access.arming.touch(self._clock())
        prompt = self.shown.prompt
        if prompt is not None and prompt is self.focused and prompt.pass_on(event):
            event.prevent_default()

    def on_click(self) -> None:
        """Anyone who clicks is there, too."""
        self.access.arming.touch(self._clock())

    def get_default_screen(self) -> OverviewScreen:
        """The overview is the bottom of the screen stack."""
        return self.overview

    def on_unmount(self) -> None:
        """Leave no thread and no open record behind: a fleet's screen goes on after this."""
        self.travel.end()

    def on_mount(self) -> None:
        """Paint, and begin what comes after the first paint."""
        self.overview.paint(self.palette)
        self._start_timer()
        self.overview.prime(self._view(), self._situation())
        if self.travel.player is not None:
            self.travel.follow(self.travel.player)
        if self._when_ready is not None:
            self.call_after_refresh(self._when_ready)

    def _fatal_error(self) -> None:
        """Textual's own report prints local variables, which may hold what must not be shown in a shared pane. There is
        no public name for this."""
        from rich.traceback import Traceback

        self.panic(Traceback(show_locals=False, width=None))

    def _start_timer(self) -> None:
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_interval(self.interval_s, self.refresh_view)

    def refresh_view(self) -> None:
        """One refresh: the picture of this moment, unless the display is frozen."""
        if self.paused_at is not None and self.shown.view is not None:
            self.shown.show_situation(self._situation())
        else:
            self._draw(self._view())

    def show_now(self) -> None:
        """Draw what just became visible; a frozen display shows the frozen moment."""
        view = self.shown.view or self.overview.view
        if self.paused_at is not None and view is not None:
            self._draw(view)
        else:
            self.refresh_view()

    def _draw(self, view: View) -> None:
        if self.shown is not self.overview:
            # What the log gains meanwhile shall not be missed.
            self.overview.log_panel.take_new_lines(view)
        self.shown.show(view, self._situation())

    def _view(self) -> View:
        state = self.travel.looked_at
        picture = state.picture(self._clock(), self.wall_time(), self.window_s)
        span = chart_span(state, picture.at, self.window_s)
        return View(picture, state, self.interval_s, self.keys, span)

    def _situation(self) -> HeaderSituation:
        now, shown = self._clock(), self.shown
        return HeaderSituation(
            self.wall_time(),
            None if self.paused_at is None else now - self.paused_at,
            self.demo,
            self.access.arming.left_s(now),
            self.access.arming.locked,
            self._recording() if self._recording is not None else "",
            shown.place is FooterScreen.INCIDENTS,
            shown.place is FooterScreen.SPECULATION,
            self.travel.header(),
            self.travel.opening(),
            shown.tunes,
            shown.place is FooterScreen.OVERVIEW,
        )

    def take_verdict(self) -> None:
        """Make what the verdict says would be faster pending on the tune screen."""
        from specdash.insight.speedup.verdict import VerdictKind, verdict
        from specdash.tui.screens.tune import want_in_tune

        judged = verdict(self._view().picture)
        if judged.fix:
            want_in_tune(self, judged.fix)
        else:
            why = f": {judged.detail}" if judged.kind is VerdictKind.UNCLEAR and judged.detail else ""
            self.notify(f"no faster setting is known right now{why}", markup=False)

    def action_toggle_screen(self, name: str) -> None:
        """Open a screen, or leave it. Those that stand above it give way; where it was under them, it is shown."""
        place, closed = FooterScreen(name), False
        screen_class = _screen_class(place)
        if self.screen is not self.shown or (place is FooterScreen.PROXY and self.shown.place is FooterScreen.TUNE):
            return
        if refusal := screen_class.refusal(self):
            self.notify(refusal, severity="warning", markup=False)
            return
        while self.shown.place is not place and LEVELS[self.shown.place] >= LEVELS[place]:
            closed = True
            self._close()
        if self.shown.place is not place:
            screen = screen_class(self)
            screen.paint(self.palette)
            self.push_screen(screen)
            screen.look()
        elif not closed:
            self._close()
        self.call_after_refresh(self.show_now)

    def _close(self) -> None:
        """Leave the screen that is looked at; a frozen moment stays the one that is shown."""
        frozen = self.shown.view
        self.pop_screen()
        self.overview.view = frozen or self.overview.view

    def action_redraw(self) -> None:
        """Write every cell of the terminal again."""
        self.screen.refresh(layout=True)

    def action_arm(self) -> None:
        """Arm or disarm."""
        self.access.arm(in_the_past=self.travel.player is not None)
        self.show_now()

    def action_measure_baseline(self) -> None:
        """Measure decode without speculation in idle slots, in a thread: what speculation gains is known then."""
        console = self.slot_console
        if console is None:
            why = "this dashboard cannot measure; use `specdash baseline record`"
            self.notify(why, severity="warning", markup=False)
        elif self.access.may_change():
            self.notify("measuring decode without speculation, for some seconds", timeout=4)
            in_background(self, "baseline", console.measure_baseline, self._measured, again=True)

    def _measured(self, sentence: str) -> None:
        self.notify(clean(sentence, 400), timeout=10, markup=False)
        self.show_now()

    def action_pause(self) -> None:
        """Freeze or thaw the display; of a replay: play or stop."""
        if not self.travel.play_or_stop():
            self.paused_at = None if self.paused_at is not None else self._clock()
            self.refresh_view()

    def action_refresh_rate(self, step: int) -> None:
        """A longer (1) or shorter (-1) refresh interval; of a replay, the speed."""
        rates = [rate for rate in REFRESH_S if (rate > self.interval_s if step > 0 else rate < self.interval_s)]
        if self.travel.change_speed(-step) or not rates:
            return
        self.interval_s = min(rates) if step > 0 else max(rates)
        self._start_timer()
        if self._on_interval is not None:
            self._on_interval(self.interval_s)
        self.refresh_view()

    def action_next_window(self) -> None:
        """The next longer window, from the longest back to the shortest."""
        windows = tuple(WINDOWS_S.values())
        self.window_s = next((window for window in windows if window > self.window_s), windows[0])
        self.refresh_view()

    def action_next_theme(self) -> None:
        """The next theme of specdash."""
        self.action_take_theme(theme_after(self.theme))

    def action_take_theme(self, name: str) -> None:
        """This theme, ours or one of Textual's."""
        self.theme = name
        for screen in self.screen_stack:
            if isinstance(screen, DashboardScreen):
                screen.paint(self.palette)

    def action_save_screen(self) -> None:
        """Save the screen as SVG and say where."""
        from specdash.tui.export import save_screen

        save_screen(self, self.screenshots, self.wall_time())

    def leave_for_fleet(self) -> None:
        """End, for the rows of all servers; not while that would roll back an apply."""
        if self.access.console is not None and self.access.console.busy:
            self.notify("an apply is running; leaving would roll it back", severity="warning")
        else:
            self.exit()

    def action_choose_target(self) -> None:
        """Look around for servers and show them; the dashboard ends where another one is taken."""
        from specdash.collect.discover import place
        from specdash.tui.screens.connect import TargetsScreen

        if self._look_around is None:
            self.notify("this dashboard watches one server only", severity="warning")
            return
        if self.access.console is not None and self.access.console.busy:
            self.notify("an apply is running; leaving would roll it back", severity="warning")
            return
        if self.screen is not self.shown:
            return
        watched = self.shown.view.picture.backend.url if self.shown.view is not None else None

        def show(looks: list[TargetLook]) -> None:
            if self.screen is self.shown:
                self.push_screen(TargetsScreen(self, looks, watched), taken)

        def taken(target: Target | None) -> None:
            if target is not None and (watched is None or place(target.url) != place(watched)):
                self.chosen_target = target
                self.exit()

        in_background(self, "look around", self._look_around, show)

    def action_show_help(self) -> None:
        """Open the help page."""
        from specdash.tui.screens.modal import HelpScreen

        self.push_screen(HelpScreen(self))
