"""What the keys of time travel do: the same screens on the record, moved in a thread, and back to live."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import App

from specdash.tui.widgets.travel import Travelling, moment, travelling

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.timer import Timer

    from specdash.history.player import Player
    from specdash.history.replay import ReplaySession
    from specdash.tui.arming import Arming
    from specdash.tui.screens.base import DashboardScreen
    from specdash.tui.screens.overview import OverviewScreen
    from specdash.tui.view import State

STEP_S = 10.0
FOLLOW_S = 0.1
"""So often does the screen look whether the replay moved."""
NO_RECORD = "this dashboard has no record to go back in"


class TravelActions(App[None]):
    """Mixed into the dashboard, which knows the rest of these names."""

    arming: Arming
    overview: OverviewScreen
    state: State
    window_s: float
    paused_at: float | None
    player: Player | None = None
    """The replay that is looked at; None is live."""
    open_record: Callable[[float | None], ReplaySession] | None
    """Opens the record at a moment, in a thread; raises `SpecdashError`."""
    only_replay: bool = False
    """There is no live server to go back to."""
    _opening: object | None = None
    """What stands for the record that is being opened."""
    _wanted: float | None = None
    _seen: tuple[int, int] = (-1, -1)
    _follow: Timer | None = None

    @property
    def shown(self) -> DashboardScreen:
        """The screen that is looked at."""
        raise NotImplementedError

    def wall_time(self) -> float:
        """Unix time."""
        raise NotImplementedError

    def refresh_view(self) -> None:
        """Draw what there is now."""
        raise NotImplementedError

    @property
    def looked_at(self) -> State:
        """The state whose pictures are shown: live's, or the replay's."""
        return self.player.session if self.player is not None else self.state

    def travelling(self) -> Travelling | None:
        """Where in time the screen is, None when it is live."""
        if self.player is None:
            return None
        return travelling(self.player, self.wall_time(), can_return=not self.only_replay)

    def opening(self) -> str | None:
        """The moment of the record that is being opened, in words; None when none is."""
        if self._opening is None:
            return None
        return moment(self._wanted, self.wall_time()) if self._wanted is not None else ""

    def action_travel(self, seconds: float) -> None:
        """Step back (negative) or forward."""
        if self.player is not None:
            self.player.step(seconds)
            self.refresh_view()
        elif seconds < 0:
            self.action_travel_to((self._wanted or self.wall_time()) + seconds)
        else:
            self.notify("this is live; , goes back in time")

    def action_travel_window(self, windows: int) -> None:
        """Step by whole windows."""
        self.action_travel(windows * self.window_s)

    def action_travel_to(self, wall: float) -> None:
        """Show the moment `wall` (Unix time)."""
        if self.player is not None:
            self.player.seek(wall)
            self.refresh_view()
            return
        self._open(wall)

    def action_travel_event(self, step: int) -> None:
        """Go to the event before (-1) or the next one (1)."""
        player = self.player
        if player is None:
            if step < 0:
                self._open(None)
            else:
                self.notify("this is live; < goes back to the event before")
            return
        event = player.to_event(step)
        if event is None:
            self.notify("nothing is recorded " + ("before" if step < 0 else "after") + " this moment", timeout=3)
        else:
            what = f"{moment(event.at, self.wall_time())}  {event.title}"
            self.notify(what + (f": {event.detail}" if event.detail else ""), timeout=5, markup=False)
        self.refresh_view()

    async def action_travel_ask(self) -> None:
        """Ask for a moment."""
        if self.player is None and self.open_record is None:
            self.notify(NO_RECORD, severity="warning")
            return
        await self.shown.ask("go to: 02:00, -3h, 2026-03-01T02:00", "", self._asked)

    def _asked(self, text: str | None) -> None:
        from specdash.core.errors import UsageError
        from specdash.core.moments import parse_moment

        if not text:
            return
        try:
            self.action_travel_to(parse_moment(text, self.wall_time()))
        except UsageError as error:
            self.notify(str(error), severity="error", markup=False)

    def action_travel_live(self) -> None:
        """Back to live."""
        called_off = self._opening is not None
        self._wanted = self._opening = None
        if called_off:
            self.refresh_view()
        if self.only_replay:
            self.notify("there is no live server here; > and . go towards the record's end, q leaves")
        elif self.player is not None:
            self.player.close()
            self.player = None
            if self._follow is not None:
                self._follow.stop()
            self._anew()
            self.refresh_view()

    def play_or_stop(self) -> bool:
        """Play the replay, or stop it; False when there is none."""
        if self.player is None:
            return False
        if self.player.at_end and not self.player.playing:
            self.notify("this is the record's end", timeout=3)
        else:
            self.player.toggle()
        self.refresh_view()
        return True

    def change_speed(self, step: int) -> bool:
        """Play faster (1) or slower (-1); False when there is no replay."""
        if self.player is None:
            return False
        self.player.faster(step)
        self.refresh_view()
        return True

    def follow(self, player: Player) -> None:
        """Show this replay from now on."""
        self.player = player
        self.paused_at = None
        # What is armed belongs to the present.
        self.arming.until = None
        self._seen = (-1, -1)
        self._follow = self.set_interval(FOLLOW_S, self._look)
        self._look()

    def _look(self) -> None:
        """Draw when the replay moved; whatever was gathered line by line belongs to one past."""
        player = self.player
        if player is None:
            return
        seen = (player.version, player.session.generation)
        if seen != self._seen:
            if seen[1] != self._seen[1]:
                self._anew()
            self._seen = seen
            self.refresh_view()

    def _anew(self) -> None:
        self.overview.board.log_panel.forget()

    def _open(self, wall: float | None) -> None:
        """Open the record in a thread; None is the event before the record's end. Keys pressed meanwhile add up."""
        opener = self.open_record
        if opener is None:
            self.notify(NO_RECORD, severity="warning")
            return
        self._wanted = wall
        if self._opening is None:
            opening = self._opening = object()
            self.run_worker(lambda: self._work(opening, opener, wall), name="record", group="record", thread=True)
        self.refresh_view()

    def _work(self, opening: object, opener: Callable[[float | None], ReplaySession], wall: float | None) -> None:
        from specdash.core.errors import SpecdashError

        try:
            session = opener(wall)
        except (SpecdashError, OSError) as error:
            self.call_from_thread(self._failed, opening, str(error))
        else:
            self.call_from_thread(self._opened, opening, session, wall)

    def _failed(self, opening: object, why: str) -> None:
        if self._opening is opening:
            self._opening = self._wanted = None
            self.notify(why, severity="warning", markup=False)
            self.refresh_view()

    def _opened(self, opening: object, session: ReplaySession, asked: float | None) -> None:
        from specdash.history.player import Player

        if self._opening is not opening:
            session.close()
            return
        wanted, self._wanted, self._opening = self._wanted, None, None
        player = Player(session)
        self.follow(player)
        if asked is None:
            self.action_travel_event(-1)
        elif wanted is not None and wanted != asked:
            player.seek(wanted)
