"""The demo's tour: what pays, what hurts, the alert, the change and what came of it, on the real dashboard.

Its steps are data (`STEPS`): what is said at the bottom, what the traffic does, what the tour does on the screen, and
what it waits for. Everything it shows is real; it works on the demo's own services, and on nothing else.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from specdash.insight.picture import ExperimentVerdict, MeasureName, Paying
from specdash.insight.speedup.verdict import paying_of
from specdash.system.data import dataclass
from specdash.tui.action_table import TOUR_ACTIONS, FooterScreen
from specdash.tui.arming import in_background
from specdash.tui.screens.apply import ApplyScreen
from specdash.tui.screens.tune import CARD, TuneScreen, want_in_tune
from specdash.tui.spans import line_width, wrap
from specdash.tui.widgets.panel import LinesWidget

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.screen import Screen

    from specdash.core.records import Alert
    from specdash.tui.app import Dashboard
    from specdash.tui.spans import Line

_LOOK_S = 0.25
_MOST_LINES = 2
_ALERT = "speculation_hurting"
_SHORTER = (("LLAMA_DRAFT_MAX", "1"),)
"""What is changed when the tour is hurried past its alert."""


@dataclass(frozen=True, slots=True)
class TourStep:
    """One step: it stays for `stays_s` seconds once what it is about is `seen`, and for `most_s` at most.

    `traffic` names the phases of traffic from its beginning on, empty: as before. `begin` is what the tour does then.
    """

    text: str
    begin: Callable[[Tour], None]
    seen: Callable[[Tour], bool]
    stays_s: float
    most_s: float
    traffic: tuple[str, ...] = ()


class TourLine(LinesWidget):
    """What the tour says, below everything else."""

    DEFAULT_CSS = "TourLine { dock: bottom; height: 1; }"

    def __init__(self, dashboard: Dashboard, number: int, text: str) -> None:
        super().__init__()
        self.number = number
        self.palette = dashboard.palette
        self._head, self._text = f" TOUR {number}/{len(STEPS)} ", text.format(keys=dashboard.keys)
        self._keys = "  ".join(f"{dashboard.keys[action]} {word}" for action, (word, _) in TOUR_ACTIONS.items())

    def redraw(self) -> None:
        """Lay the text out for the present width; the height follows it."""
        room = self.size.width - len(self._head) - len(self._keys) - 4
        parts = wrap(self._text, room, _MOST_LINES)
        lines: list[Line] = []
        for at, part in enumerate(parts):
            head = (self._head, "banner.accent") if at == 0 else (" " * len(self._head), "text")
            spans: Line = (head, (f" {part}", "text bold"))
            if at == len(parts) - 1:
                gap = max(self.size.width - line_width(spans) - len(self._keys) - 1, 1)
                spans = (*spans, (" " * gap + self._keys, "accent"))
            lines.append(spans)
        self.styles.height = max(len(lines), 1)
        self.set_lines(lines)


class Tour:
    """Walks through the steps on one dashboard. `traffic` changes what the demo's clients do, by the names of phases
    (none: all of them); it may block."""

    def __init__(self, traffic: Callable[[tuple[str, ...]], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._traffic = traffic
        self._clock = clock
        self._number = -1
        self._since = 0.0
        self._seen_at: float | None = None
        self._line: TourLine | None = None
        self._on: Screen[Any] | None = None
        self.dashboard: Dashboard

    @property
    def step(self) -> TourStep | None:
        """The present step, None before the tour and after it."""
        return STEPS[self._number] if 0 <= self._number < len(STEPS) else None

    @property
    def apply_page(self) -> ApplyScreen | None:
        """The page of the apply, where it is open."""
        screen = self.dashboard.screen
        return screen if isinstance(screen, ApplyScreen) else None

    def begin(self, dashboard: Dashboard) -> None:
        """Begin with the first step."""
        self.dashboard = dashboard
        dashboard.set_interval(_LOOK_S, self.look)
        self.next()

    def take_key(self, key: str) -> bool:
        """Do what a key of the tour asks for; whether it is one."""
        if self.step is None:
            return False
        action = next((action for action in self.dashboard.keys.of(TOUR_ACTIONS) if key in action.keys), None)
        if action is None:
            return False
        getattr(self, TOUR_ACTIONS[action.id][1])()
        return True

    def look(self) -> None:
        """Go on when the present step has shown what it is about."""
        step = self.step
        if step is None:
            return
        now = self._clock()
        if self._seen_at is None and step.seen(self):
            self._seen_at = now
        if now - self._since >= step.most_s or (self._seen_at is not None and now - self._seen_at >= step.stays_s):
            self.next()
        else:
            self._draw()

    def next(self) -> None:
        """The next step; not while an apply runs, which has to be seen to its end."""
        page = self.apply_page
        if page is not None and page.busy:
            return
        self._number += 1
        self._since, self._seen_at = self._clock(), None
        step = self.step
        if step is None:
            self.end()
            return
        if step.traffic:
            self._change_traffic(step.traffic)
        step.begin(self)
        self._draw()

    def end(self) -> None:
        """End the tour where it is; the demo goes on, with the traffic that it has without a tour."""
        self._number = len(STEPS)
        keys = self.dashboard.keys
        self._draw()
        self._change_traffic(())
        if self.dashboard.access.armed():
            self.dashboard.action_arm()
        self.dashboard.notify(
            f"The tour is over. {keys['tune']}, then {keys['tune.rollback']} undoes the change; "
            f"{keys['help']} lists the keys.",
            timeout=10,
            markup=False,
        )

    def show(self, place: FooterScreen) -> None:
        """Have this screen looked at, with nothing above it."""
        dashboard = self.dashboard
        while dashboard.screen is not dashboard.shown:
            dashboard.pop_screen()
        if dashboard.shown.place is not place:
            # The overview is what is left of the others.
            dashboard.action_toggle_screen(dashboard.shown.place if place is FooterScreen.OVERVIEW else place)

    def _change_traffic(self, phases: tuple[str, ...]) -> None:
        in_background(self.dashboard, "tour", lambda: self._traffic(phases), lambda _: None)

    def _draw(self) -> None:
        """Have the line on the screen on top, and nowhere else."""
        screen, step, number = self.dashboard.screen, self.step, self._number + 1
        line = self._line
        if line is not None and (step is None or line.number != number or self._on is not screen):
            line.remove()
            self._line = line = None
        if line is None and step is not None:
            self._line, self._on = TourLine(self.dashboard, number, step.text), screen
            screen.mount(self._line)


def _is(*verdicts: Paying) -> Callable[[Tour], bool]:
    def seen(tour: Tour) -> bool:
        view = tour.dashboard.shown.view
        return view is not None and paying_of(view.picture.speedup) in verdicts

    return seen


def _alert(tour: Tour) -> Alert | None:
    view = tour.dashboard.shown.view
    active = view.picture.alerts.active if view is not None else ()
    return next((alert for alert in active if alert.rule == _ALERT), None)


def _take_fix(tour: Tour) -> None:
    alert = _alert(tour)
    tour.show(FooterScreen.OVERVIEW)
    want_in_tune(tour.dashboard, (alert.fix if alert is not None else ()) or _SHORTER)


def _tune_screen(tour: Tour) -> TuneScreen | None:
    return tour.dashboard.shown if isinstance(tour.dashboard.shown, TuneScreen) else None


def _is_checked(tour: Tour) -> bool:
    tune = _tune_screen(tour)
    return tune is not None and tune.model.plan is not None


def _open_apply(tour: Tour) -> None:
    if not tour.dashboard.access.armed():
        tour.dashboard.action_arm()
    tune = _tune_screen(tour)
    if tune is not None and tour.apply_page is None:
        tune.action_apply()


def _apply(tour: Tour) -> None:
    _open_apply(tour)
    if tour.apply_page is not None:
        tour.apply_page.action_begin()


def _has_ended(tour: Tour) -> bool:
    page = tour.apply_page
    return page is None or (page.running is not None and not page.busy)


def _show_card(tour: Tour) -> None:
    tour.show(FooterScreen.TUNE)
    tune = _tune_screen(tour)
    if tune is not None and tune.board.side != CARD:
        tune.action_next_side()


def _is_compared(tour: Tour) -> bool:
    view = tour.dashboard.shown.view
    card = view.picture.experiment if view is not None else None
    measures = card.measures if card is not None else ()
    return any(item.name is MeasureName.DECODE and item.verdict is not ExperimentVerdict.TOO_FEW for item in measures)


STEPS = (
    TourStep(
        "One client, predictable text: most drafts hold. Speculation PAYS.",
        lambda tour: tour.show(FooterScreen.OVERVIEW), _is(Paying.PAYING), 8.0, 30.0, ("pattern",),
    ),
    TourStep(
        "Four clients, hot sampling: drafts miss and cost. The verdict will turn to COSTS.",
        lambda tour: tour.show(FooterScreen.OVERVIEW), _is(Paying.HURTING), 6.0, 45.0, ("hot",),
    ),
    TourStep(
        "The alert: what is wrong, since when, and the fix to take.",
        lambda tour: tour.show(FooterScreen.INCIDENTS), lambda tour: _alert(tour) is not None, 8.0, 30.0,
    ),
    TourStep(
        "Its fix (key {keys[take]}) is pending here, and checked. Nothing has changed yet.",
        _take_fix, _is_checked, 8.0, 20.0,
    ),
    TourStep(
        "Armed ({keys[arm]}), then {keys[tune.apply]}: the last look. Every change can be undone.",
        _open_apply, lambda _: True, 6.0, 10.0,
    ),
    TourStep(
        "Requests are held, the engine restarts with the change and is checked.",
        _apply, _has_ended, 4.0, 90.0,
    ),
    TourStep(
        "Before and after, from the requests themselves: what the change did.",
        _show_card, _is_compared, 10.0, 45.0,
    ),
)  # fmt: skip
"""All steps, in order: about two minutes."""
