"""Time travel: the same screens on the record, moved in a thread, and back to live."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.system.text import moment
from specdash.tui.arming import in_background
from specdash.tui.widgets.header import ReplayHeader, travelling

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.timer import Timer

    from specdash.history.player import Player
    from specdash.history.replay import ReplaySession
    from specdash.tui.app import Dashboard
    from specdash.tui.view import DashboardState

FOLLOW_S = 0.1
"""So often does the screen look whether the replay moved."""
NO_RECORD = "this dashboard has no record to go back in"


class TimeTravel:
    """Where in time a dashboard is, and how it gets elsewhere.

    `open_record` opens what was recorded at a moment (None: its end), in a thread; it raises `SpecdashError`. A
    dashboard that begins with a `replay` has no live server to go back to.
    """

    def __init__(
        self,
        dashboard: Dashboard,
        open_record: Callable[[float | None], ReplaySession] | None,
        replay: Player | None,
    ) -> None:
        self._dashboard = dashboard
        self._open_record = open_record
        self.player = replay
        """The replay that is looked at; None is live."""
        self._only_replay = replay is not None
        self._opening: object | None = None
        """What stands for the record that is being opened."""
        self._wanted: float | None = None
        self._seen = (-1, -1)
        self._timer: Timer | None = None

    @property
    def looked_at(self) -> DashboardState:
        """The state whose pictures are shown: live's, or the replay's."""
        return self.player.session if self.player is not None else self._dashboard.state

    def header(self) -> ReplayHeader | None:
        """Where in time the screen is, None when it is live."""
        if self.player is None:
            return None
        return travelling(self.player, self._dashboard.wall_time(), can_return=not self._only_replay)

    def opening(self) -> str | None:
        """The moment of the record that is being opened, in words; None when none is."""
        if self._opening is None:
            return None
        return moment(self._wanted, self._dashboard.wall_time()) if self._wanted is not None else ""

    def step(self, seconds: float) -> None:
        """Step back (negative) or forward."""
        if self.player is not None:
            self.player.step(seconds)
            self._dashboard.refresh_view()
        elif seconds < 0:
            self.to((self._wanted or self._dashboard.wall_time()) + seconds)
        else:
            self._dashboard.notify("this is live; , goes back in time")

    def to(self, wall: float) -> None:
        """Show the moment `wall` (Unix time)."""
        if self.player is not None:
            self.player.seek(wall)
            self._dashboard.refresh_view()
            return
        self._open(wall)

    def to_event(self, step: int) -> None:
        """Go to the event before (-1) or the next one (1)."""
        dashboard, player = self._dashboard, self.player
        if player is None:
            if step < 0:
                self._open(None)
            else:
                dashboard.notify("this is live; < goes back to the event before")
            return
        event = player.to_event(step)
        if event is None:
            dashboard.notify("nothing is recorded " + ("before" if step < 0 else "after") + " this moment", timeout=3)
        else:
            what = f"{moment(event.at, dashboard.wall_time())}  {event.title}"
            dashboard.notify(what + (f": {event.detail}" if event.detail else ""), timeout=5, markup=False)
        dashboard.refresh_view()

    def may_ask(self) -> bool:
        """Whether there is a record to travel in; says so when there is none."""
        if self.player is None and self._open_record is None:
            self._dashboard.notify(NO_RECORD, severity="warning")
            return False
        return True

    def to_text(self, text: str | None) -> None:
        """Go to a moment as a person writes it."""
        from specdash.core.errors import UsageError
        from specdash.core.moments import parse_moment

        if not text:
            return
        try:
            self.to(parse_moment(text, self._dashboard.wall_time()))
        except UsageError as error:
            self._dashboard.notify(str(error), severity="error", markup=False)

    def to_live(self) -> None:
        """Back to live."""
        dashboard = self._dashboard
        called_off = self._opening is not None
        self._wanted = self._opening = None
        if called_off:
            dashboard.refresh_view()
        if self._only_replay:
            keys = dashboard.keys
            forward = f"{keys['travel.event_next']} and {keys['travel.on']}"
            dashboard.notify(
                f"there is no live server here; {forward} go towards the record's end, {keys['quit']} leaves",
                markup=False,
            )
        elif self.player is not None:
            self.player.close()
            self.player = None
            if self._timer is not None:
                self._timer.stop()
            dashboard.overview.log_panel.forget()
            dashboard.refresh_view()

    def end(self) -> None:
        """Let go of the record, if one is open: the dashboard closes."""
        self._wanted = self._opening = None
        if self.player is not None:
            self.player.close()

    def play_or_stop(self) -> bool:
        """Play the replay, or stop it; False when there is none."""
        if self.player is None:
            return False
        if self.player.at_end and not self.player.playing:
            self._dashboard.notify("this is the record's end", timeout=3)
        else:
            self.player.toggle()
        self._dashboard.refresh_view()
        return True

    def change_speed(self, step: int) -> bool:
        """Play faster (1) or slower (-1); False when there is no replay."""
        if self.player is None:
            return False
        self.player.faster(step)
        self._dashboard.refresh_view()
        return True

    def follow(self, player: Player) -> None:
        """Show this replay from now on."""
        self.player = player
        self._dashboard.paused_at = None
        # What is armed belongs to the present.
        self._dashboard.access.arming.until = None
        self._seen = (-1, -1)
        self._timer = self._dashboard.set_interval(FOLLOW_S, self._look)
        self._look()

    def _look(self) -> None:
        """Draw when the replay moved; what was gathered line by line belongs to one past."""
        player = self.player
        if player is None:
            return
        seen = (player.version, player.session.generation)
        if seen != self._seen:
            if seen[1] != self._seen[1]:
                self._dashboard.overview.log_panel.forget()
            self._seen = seen
            self._dashboard.refresh_view()

    def _open(self, wall: float | None) -> None:
        """Open the record in a thread; None is the event before the record's end. Keys pressed meanwhile add up."""
        opener = self._open_record
        if opener is None:
            self._dashboard.notify(NO_RECORD, severity="warning")
            return
        self._wanted = wall
        if self._opening is None:
            opening = self._opening = object()
            # A name of its own: one that was called off is still opened to its end, and then closed.
            in_background(
                self._dashboard,
                f"record {id(opening)}",
                lambda: opener(wall),
                lambda session: self._opened(opening, session, wall),
                lambda error: self._failed(opening, error),
            )
        self._dashboard.refresh_view()

    def _failed(self, opening: object, why: str) -> None:
        if self._opening is opening:
            self._opening = self._wanted = None
            self._dashboard.notify(why, severity="warning", markup=False)
            self._dashboard.refresh_view()

    def _opened(self, opening: object, session: ReplaySession, asked: float | None) -> None:
        from specdash.history.player import Player

        if self._opening is not opening:
            session.close()
            return
        wanted, self._wanted, self._opening = self._wanted, None, None
        player = Player(session)
        self.follow(player)
        if asked is None:
            self.to_event(-1)
        elif wanted is not None and wanted != asked:
            player.seek(wanted)
