"""Whether the dashboard may change anything: read-only until armed, and read-only again when no one uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import App

    from specdash.control.console import Console
    from specdash.tui.app import Dashboard


# Work that may block: done in a thread, its answer given back to the event loop.

Answer = TypeVar("Answer")


def in_background(
    app: App[None],
    name: str,
    work: Callable[[], Answer],
    then: Callable[[Answer], None],
    failed: Callable[[str], None] | None = None,
    *,
    again: bool = False,
) -> None:
    """Do `work` in a thread and give its answer to `then` here; an error is shown, or given to `failed`.

    A newer work of the same name takes its place, but not one that is asked `again` and again by the clock.
    """
    from textual.worker import get_current_worker

    from specdash.core.errors import SpecdashError

    if again and any(worker.name == name and not worker.is_finished for worker in app.workers):
        return

    def show(error: str) -> None:
        app.notify(error, severity="error", markup=False)

    def run() -> None:
        worker = get_current_worker()
        try:
            answer = work()
        except (SpecdashError, OSError) as error:
            if not worker.is_cancelled:
                app.call_from_thread(failed or show, str(error))
        else:
            if not worker.is_cancelled:
                app.call_from_thread(then, answer)

    app.run_worker(run, name=name, group=name, exclusive=True, thread=True)


class Arming(Struct):
    """Armed for `idle_s` seconds after the last key. `locked` dashboards are never armed. Times are monotonic."""

    idle_s: float = 60.0
    locked: bool = False
    until: float | None = None

    def armed(self, now: float) -> bool:
        """Whether changes are allowed at this moment."""
        return self.until is not None and now < self.until

    def left_s(self, now: float) -> float | None:
        """Seconds until it disarms itself, None when it is not armed."""
        return self.until - now if self.until is not None and now < self.until else None

    def toggle(self, now: float) -> bool:
        """Arm or disarm; whether it is armed now. A locked one stays as it is."""
        self.until = None if self.armed(now) or self.locked else now + self.idle_s
        return self.until is not None

    def touch(self, now: float) -> None:
        """Someone is there: begin the idle time again."""
        if self.armed(now):
            self.until = now + self.idle_s


class ServiceAccess:
    """The services that a dashboard may change while it is armed; without a `console` it only looks."""

    def __init__(
        self, dashboard: Dashboard, console: Console | None, arming: Arming, clock: Callable[[], float]
    ) -> None:
        self._dashboard = dashboard
        self.console = console
        self.arming = arming
        self._clock = clock

    def armed(self) -> bool:
        """Whether changes are allowed now."""
        return self.arming.armed(self._clock())

    def may_change(self) -> bool:
        """Whether services may be changed now; says why not."""
        if self.armed():
            return True
        self._dashboard.notify(
            f"read-only: press {self._dashboard.keys['arm']} to arm first", severity="warning", markup=False
        )
        return False

    def arm(self, *, in_the_past: bool) -> None:
        """Arm or disarm."""
        notify, arming = self._dashboard.notify, self.arming
        if self.console is None or arming.locked:
            why = "started with --read-only" if arming.locked else "there is no service to change"
            notify(f"this dashboard stays read-only: {why}", severity="warning", markup=False)
        elif in_the_past:
            notify(
                f"the past cannot be changed: {self._dashboard.keys['travel.live']} goes back to live",
                severity="warning",
                markup=False,
            )
        elif arming.toggle(self._clock()):
            notify(f"armed: changes are allowed until {arming.idle_s:g} s pass without a key", severity="warning")
