"""The tuner's screen: what a run would do, what it does, and what came of it. Imported when it is opened first."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

from specdash.system.text import clean, duration, number
from specdash.tui.action_table import FooterScreen, bindings
from specdash.tui.arming import in_background
from specdash.tui.layout import Rect
from specdash.tui.screens.base import FoldingScreen
from specdash.tui.tuner_model import TunerModel, TunerSituation, chosen_settings
from specdash.tui.widgets.panel import FoldingBoard, TextPart
from specdash.tui.widgets.tuner.tuner_boots import BOOTS, CHART, DETAIL, BootsTable, DetailPanel, SpeedChart, boot_rows
from specdash.tui.widgets.tuner.tuner_plan import BAR, CARD, PLAN, OutcomeCard, PlanPanel, TunerBar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from textual.binding import BindingType

    from specdash.tui.app import Dashboard
    from specdash.tui.view import View
    from specdash.tui.widgets.panel import LinesWidget, Movable, TitledPanel
    from specdash.tune.run.console import NewestRun, TunerConsole
    from specdash.tune.run.status import RunPlan, TuneRun

LOOK_S = 1.0
"""How often the open screen looks at the run."""
_WORK = "tuner-work"
_SIDE_BY_SIDE, _WIDE = 110, 160
_TALL = 30
_GAP = 3
_HEADS = 2
"""Lines of the table above its rows."""
_LEAST_TABLE, _LEAST_CHART, _MOST_CHART = 5, 6, 16
PANELS = {
    TunerSituation.PLAN: (PLAN,),
    TunerSituation.RUN: (BOOTS, CHART, DETAIL, PLAN),
    TunerSituation.ENDED: (CARD, BOOTS, CHART, DETAIL, PLAN),
}
"""The panels that have something to say, in the order in which `tab` goes through them."""
FIRST_SIDE = {TunerSituation.RUN: CHART, TunerSituation.ENDED: BOOTS}
"""What stands in the lower part of a narrow screen."""


def arrange(
    width: int,
    height: int,
    scene: TunerSituation,
    bar: int,
    rows: int,
    wanted: Mapping[str, int],
    side: str | None = None,
    zoomed: str | None = None,
) -> dict[str, Rect]:
    """Where the parts go: the bar on top, then what the scene is about. `rows` are the boots, `wanted` the lines that
    texts would take. Where not all panels fit, `side` is the one in the lower part. A zoomed one has all the room."""
    bar = min(bar, height)
    places = {BAR: Rect(0, 0, width, bar)}
    room = Rect(0, bar, width, height - bar)
    if room.height < 1:
        return places
    if scene is TunerSituation.PLAN:
        return places | {PLAN: room}
    if zoomed is not None:
        return places | {zoomed: room}
    if width < _SIDE_BY_SIDE:
        return places | _narrow(room, scene, rows, wanted, side)
    if width < _WIDE or height < _TALL:
        return places | _medium(room, scene, rows, wanted, side)
    return places | _wide(room, scene, rows, wanted)


def _narrow(
    room: Rect, scene: TunerSituation, rows: int, wanted: Mapping[str, int], side: str | None
) -> dict[str, Rect]:
    """Two panels, one below the other."""
    upper = CARD if scene is TunerSituation.ENDED else BOOTS
    lower = side if side is not None and side != upper else FIRST_SIDE[scene]
    if scene is TunerSituation.ENDED:
        tall = min(wanted.get(CARD, 1), room.height - _LEAST_TABLE)
    else:
        least = min(max(wanted.get(lower, 0), _LEAST_CHART), room.height // 2)
        tall = room.height - (min(room.height // 2, _MOST_CHART) if lower == CHART else least)
        tall = min(tall, max(rows + _HEADS, _LEAST_TABLE))
    return _below(room, upper, lower, tall)


def _medium(
    room: Rect, scene: TunerSituation, rows: int, wanted: Mapping[str, int], side: str | None
) -> dict[str, Rect]:
    """A row of two panels, and the table in full width."""
    if scene is TunerSituation.ENDED:
        other = side if side in (DETAIL, PLAN) else CHART
        most = max(room.height - _LEAST_TABLE, 1)
        tall = min(max(wanted.get(CARD, 1), _LEAST_CHART + 2), most)
        upper, lower = _split_rows(room, tall)
        return {**_beside(upper, CARD, other, 0.55), BOOTS: lower}
    other = PLAN if side == PLAN else DETAIL
    tall = min(max(rows + _HEADS, _LEAST_TABLE), room.height - min(_MOST_CHART, room.height // 2))
    upper, lower = _split_rows(room, tall)
    return {BOOTS: upper, **_beside(lower, CHART, other, 0.5)}


def _wide(room: Rect, scene: TunerSituation, rows: int, wanted: Mapping[str, int]) -> dict[str, Rect]:
    """Everything, in two columns."""
    left, right = _columns(room, 0.56)
    table = max(rows + _HEADS, _LEAST_TABLE)
    if scene is TunerSituation.ENDED:
        tall = min(wanted.get(CARD, 1) + 1, left.height - _LEAST_TABLE)
        upper, lower = _split_rows(left, tall)
        plan = min(wanted.get(PLAN, 1), right.height // 3)
        chart = min(max(right.height - plan - wanted.get(DETAIL, 1), _LEAST_CHART), _MOST_CHART)
        return {CARD: upper, BOOTS: lower, **_stack(right, ((CHART, chart), (DETAIL, right.height)), PLAN, plan)}
    upper, lower = _split_rows(left, min(table, left.height - _MOST_CHART))
    plan = min(wanted.get(PLAN, 1) + 1, right.height // 2)
    return {BOOTS: upper, CHART: lower, **_stack(right, ((PLAN, plan), (DETAIL, right.height)))}


def _stack(room: Rect, parts: Sequence[tuple[str, int]], last: str | None = None, least: int = 0) -> dict[str, Rect]:
    """One below the other, each as high as it may be; `last` has its `least` lines at the bottom."""
    places: dict[str, Rect] = {}
    y, end = room.y, room.y + room.height - least
    for name, height in parts:
        tall = min(height, end - y)
        places[name] = Rect(room.x, y, room.width, max(tall, 0))
        y += max(tall, 0)
    return places | ({last: Rect(room.x, end, room.width, least)} if last is not None else {})


def _below(room: Rect, upper: str, lower: str, tall: int) -> dict[str, Rect]:
    first, second = _split_rows(room, tall)
    return {upper: first, lower: second}


def _beside(room: Rect, left: str, right: str, share: float) -> dict[str, Rect]:
    first, second = _columns(room, share)
    return {left: first, right: second}


def _split_rows(room: Rect, tall: int) -> tuple[Rect, Rect]:
    tall = min(max(tall, 0), room.height)
    lower = Rect(room.x, room.y + tall, room.width, room.height - tall)
    return Rect(room.x, room.y, room.width, tall), lower


def _columns(room: Rect, share: float) -> tuple[Rect, Rect]:
    left = round((room.width - _GAP) * share)
    right = Rect(room.x + left + _GAP, room.y, room.width - left - _GAP, room.height)
    return Rect(room.x, room.y, left, room.height), right


class TunerBoard(FoldingBoard):
    """The parts of the screen. Those without a place are not displayed and do no work."""

    def __init__(self, model: TunerModel) -> None:
        super().__init__()
        self.model = model
        self.bar = TunerBar(model)
        self.boots = BootsTable(model)
        self.chart = SpeedChart(model)
        self.detail = DetailPanel(model, self.boots)
        self.boots.follow = self._selected
        self.plan = PlanPanel(model)
        self.card = OutcomeCard(model)
        self.panels: tuple[BootsTable | SpeedChart | DetailPanel | PlanPanel | OutcomeCard, ...] = (
            self.boots,
            self.chart,
            self.detail,
            self.plan,
            self.card,
        )
        self.side: str | None = None
        self._scene: TunerSituation | None = None

    @property
    def parts(self) -> tuple[LinesWidget, ...]:
        """All of them."""
        return self.bar, *self.panels

    def places(self, width: int, height: int) -> dict[str, Rect]:
        """Where the parts go now."""
        view = self._view
        if view is None:
            return {}
        column = width if width < _SIDE_BY_SIDE else round(width * 0.42)
        wanted = {
            CARD: self.card.wanted(view, width if width < _SIDE_BY_SIDE else round((width - _GAP) * 0.55)),
            PLAN: self.plan.wanted(view, column),
            DETAIL: self.detail.wanted(view, column),
        }
        rows = len(boot_rows(self.model.run))
        scene = self.model.scene
        return arrange(width, height, scene, len(self.bar.lines), rows, wanted, self.side, self.zoomed)

    def show(self, view: View) -> None:
        """Draw this view in all parts that are seen; the detail follows the table's selection."""
        self._view = view
        if self.model.scene is not self._scene:
            self._scene, self.side, self.zoomed = self.model.scene, None, None
            self.focus_first()
        self.bar.tall = self.size.height >= _TALL
        self.bar.show(view)
        self.boots.show(view)
        self.sync()
        for panel in self.panels:
            if panel.display:
                panel.show(view)

    def present(self) -> list[TitledPanel]:
        """The panels that have something to say."""
        by_id: dict[str | None, TitledPanel] = {panel.id: panel for panel in self.panels}
        return [by_id[name] for name in PANELS[self.model.scene]]

    def bring(self, panel: TitledPanel) -> None:
        """Give a panel a place and the focus."""
        if self.zoomed is None and not self.seen(panel):
            self.side = panel.id
        super().bring(panel)

    def _selected(self) -> None:
        self.detail.top = 0
        self.detail.redraw()

    def focus_first(self) -> None:
        """Give the focus to the panel that says most, once the panels are there."""
        first = self.present()[0]
        first.display = True
        if not first.is_attached:
            return
        if self.screen.focused in self.panels or self.screen.focused is None:
            first.focus()


class TunerScreen(FoldingScreen[TunerBoard]):
    """Watches a run, from here or elsewhere, and, when armed, starts and stops one. Runs are looked at, planned,
    started and stopped in a thread."""

    place = FooterScreen.TUNER
    BINDINGS: ClassVar[list[BindingType]] = bindings(place)

    def __init__(self, dashboard: Dashboard) -> None:
        self.model = dashboard.kept(TunerModel)
        super().__init__(dashboard, TunerBoard(self.model))

    @classmethod
    def refusal(cls, dashboard: Dashboard) -> str:
        """There may be no tuner."""
        why = "this dashboard has no tuner: use `specdash tune`"
        return why if dashboard.tuner_console is None else ""

    def on_mount(self) -> None:
        """A first look at the runs may have been shown before the panels were there to take the focus."""
        self.board.focus_first()
        self.set_interval(LOOK_S, partial(self.look, again=True))

    @property
    def moving(self) -> Movable:
        """What keys of movement move: the text of the focused panel, else the selection."""
        focused = self.focused
        return focused if isinstance(focused, TextPart) else self.board.boots

    @property
    def tunes(self) -> bool:
        """Whether a run goes on."""
        return self.model.under_way

    @property
    def console(self) -> TunerConsole:
        """What looks at runs, starts and stops them; the screen is not opened without."""
        return cast("TunerConsole", self.dashboard.tuner_console)

    def leave(self) -> bool:
        """Leave zoom; False when there is nothing to leave but the screen."""
        left = super().leave()
        if left and not self.panel.display:
            self.board.boots.focus()
        return left

    async def action_open(self) -> None:
        """The selected boot in full, and back to the table."""
        board = self.board
        if board.zoomed is not None:
            self.leave()
        elif board.detail in board.present():
            board.zoomed = board.detail.id
            board.bring(board.detail)
        self.redraw_soon()

    def look(self, *, again: bool = False) -> None:
        """Ask how the run stands."""
        in_background(self.dashboard, "tuner-look", self.console.look, self._looked, again=again)

    def _looked(self, look: NewestRun) -> None:
        model = self.model
        first = not model.looked
        changed = model.take(look.run, look.gains)
        if model.scene is TunerSituation.PLAN and (first or (changed and model.plan is None)):
            self._plan()
        self.redraw()

    def _plan(self) -> None:
        """Ask what a run would do."""
        model = self.model
        model.planning, budget = True, model.budget

        def planned(plan: RunPlan | None, error: str) -> None:
            if model.budget == budget:
                model.plan, model.plan_error, model.planning = plan, error, False
                self.redraw()

        in_background(
            self.dashboard,
            "tuner-plan",
            partial(self.console.plan, budget),
            lambda plan: planned(plan, ""),
            lambda error: planned(None, error),
        )

    def action_next_side(self) -> None:
        """What a new run would do; back to the outcome of the last one."""
        model = self.model
        if model.under_way or model.run is None:
            self.notify("a run goes on" if model.under_way else "no result yet: this is what a run would do")
            return
        model.wants_plan = not model.wants_plan
        if model.wants_plan:
            model.plan, model.plan_error = None, ""
            self._plan()
        self.redraw()

    async def action_budget(self) -> None:
        """Ask for restarts and minutes."""
        model = self.model
        if model.under_way:
            self.notify("the budget of a run in progress cannot be changed", severity="warning")
            return
        minutes = f" {model.budget.minutes:g}" if model.budget.minutes is not None else ""

        def answer(text: str | None) -> None:
            problem = model.read_budget(text) if text is not None else ""
            if problem:
                self.notify(problem, severity="error", markup=False)
            elif text is not None:
                self._plan()
                self.redraw()

        await self.ask("restarts, and optionally minutes", f"{model.budget.restarts}{minutes}", answer)

    def action_start_run(self) -> None:
        """Say what a run does to the service; enter there starts it."""
        model, plan = self.model, self.model.plan
        if model.under_way or model.starting:
            stop = self.dashboard.keys["stop"]
            self.notify(f"a run is already in progress: {stop} stops it", severity="warning", markup=False)
        elif model.scene is not TunerSituation.PLAN:
            self.action_next_side()
            self.notify(
                f"this is what a new run would do; {self.dashboard.keys['tuner.start']} again starts it",
                timeout=6,
                markup=False,
            )
        elif model.planning or (plan is None and not model.plan_error):
            self.notify("still finding out what can be tuned", severity="warning")
        elif plan is None or plan.problem:
            problem = clean(model.plan_error or (plan.problem if plan else ""), 300)
            self.notify(f"nothing to tune: {problem}", severity="warning", markup=False)
        elif self.dashboard.access.may_change():
            self.confirm(
                f"Tune {clean(plan.service, 100)} with {number(plan.budget.restarts)} restarts?",
                _what_a_run_means(plan, self.dashboard.keys["stop"], demo=self.dashboard.demo),
                lambda: self._begin(partial(self.console.start, model.budget)),
            )

    def action_stop_run(self) -> None:
        """Say what stopping means; enter there stops the run."""
        run, may_change = self.model.run, self.dashboard.access.may_change
        if run is None or not self.model.under_way:
            self.notify("no run is in progress", severity="warning")
        elif may_change():
            spent = number(run.restarts)
            title = f"Stop the tuner on {clean(run.plan.service, 100)} after {spent} of its boots?"
            notes = (
                "The boot that is under way is broken off, and the original settings are put back by one more restart.",
                "What was measured stays on the disk. Without a confirmation nothing is recommended.",
            )
            self.confirm(title, notes, self._stop)

    def action_take(self) -> None:
        """Open the tune screen with the chosen settings as pending changes."""
        from specdash.tui.screens.tune import want_in_tune

        chosen = chosen_settings(self.model.run)
        if not chosen or self.model.under_way:
            self.notify("no run has found better settings yet", severity="warning")
        else:
            want_in_tune(self.dashboard, [(key, value or None) for key, value in chosen])

    def _begin(self, work: Callable[[], TuneRun]) -> None:
        self.model.starting = True
        in_background(self.dashboard, _WORK, work, self._started, self._not_started)

    def _started(self, run: TuneRun) -> None:
        self.model.starting = False
        self.model.stopping = ""
        self.look()

    def _not_started(self, error: str) -> None:
        self.model.starting = False
        self.notify(clean(error, 600), severity="error", timeout=20, markup=False)
        self.redraw()

    def _stop(self) -> None:
        run = self.model.run
        if run is None:
            return

        def stopped(_: None) -> None:
            self.model.stopping = run.directory
            self.notify("stopping the tuner; it puts your settings back", timeout=6)
            self.redraw()

        in_background(self.dashboard, _WORK, partial(self.console.stop, run), stopped)


def _what_a_run_means(plan: RunPlan, stop: str, *, demo: bool) -> tuple[str, ...]:
    """For the users of the service."""
    waits = f"; clients wait about {duration(plan.downtime_s)} in all" if plan.downtime_s is not None else ""
    starts = f"The engine restarts {number(plan.budget.restarts)} times, and once more at the end"
    return (
        f"{starts}{waits}. Requests that come through the proxy are held meanwhile; others fail.",
        "When the run ends, is stopped or fails, the settings from before are put back. Better ones are only shown.",
        f"It ends with this demo; {stop} on this screen ends it before."
        if demo
        else f"It goes on when this dashboard ends; {stop} on this screen ends it, from any dashboard.",
    )
