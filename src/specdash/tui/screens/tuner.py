"""The tuner's screen: what a run would do, what it does, and what came of it. Imported when it is opened first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.tui.actions import Place
from specdash.tui.layout import Rect
from specdash.tui.screens.board import FoldingScreen
from specdash.tui.tuner_model import Scene
from specdash.tui.widgets.part import TextPart
from specdash.tui.widgets.placed import FoldingBoard
from specdash.tui.widgets.tuner_bar import BAR, TunerBar
from specdash.tui.widgets.tuner_boots import BOOTS, DETAIL, BootsTable, DetailPanel, boot_rows
from specdash.tui.widgets.tuner_chart import CHART, SpeedChart
from specdash.tui.widgets.tuner_plan import CARD, PLAN, OutcomeCard, PlanPanel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdash.tui.tuner_model import TunerModel
    from specdash.tui.view import View
    from specdash.tui.widgets.panel import LinesWidget, Movable, TitledPanel

_SIDE_BY_SIDE, _WIDE = 110, 160
_TALL = 30
_GAP = 3
_HEADS = 2
"""Lines of the table above its rows."""
_LEAST_TABLE, _LEAST_CHART, _MOST_CHART = 5, 6, 16
PANELS = {
    Scene.PLAN: (PLAN,),
    Scene.RUN: (BOOTS, CHART, DETAIL, PLAN),
    Scene.ENDED: (CARD, BOOTS, CHART, DETAIL, PLAN),
}
"""The panels that have something to say, in the order in which `tab` goes through them."""
FIRST_SIDE = {Scene.RUN: CHART, Scene.ENDED: BOOTS}
"""What stands in the lower part of a narrow screen."""


def arrange(
    width: int,
    height: int,
    scene: Scene,
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
    if scene is Scene.PLAN:
        return places | {PLAN: room}
    if zoomed is not None:
        return places | {zoomed: room}
    if width < _SIDE_BY_SIDE:
        return places | _narrow(room, scene, rows, wanted, side)
    if width < _WIDE or height < _TALL:
        return places | _medium(room, scene, rows, wanted, side)
    return places | _wide(room, scene, rows, wanted)


def _narrow(room: Rect, scene: Scene, rows: int, wanted: Mapping[str, int], side: str | None) -> dict[str, Rect]:
    """Two panels, one below the other."""
    upper = CARD if scene is Scene.ENDED else BOOTS
    lower = side if side is not None and side != upper else FIRST_SIDE[scene]
    if scene is Scene.ENDED:
        tall = min(wanted.get(CARD, 1), room.height - _LEAST_TABLE)
    else:
        least = min(max(wanted.get(lower, 0), _LEAST_CHART), room.height // 2)
        tall = room.height - (min(room.height // 2, _MOST_CHART) if lower == CHART else least)
        tall = min(tall, max(rows + _HEADS, _LEAST_TABLE))
    return _below(room, upper, lower, tall)


def _medium(room: Rect, scene: Scene, rows: int, wanted: Mapping[str, int], side: str | None) -> dict[str, Rect]:
    """A row of two panels, and the table in full width."""
    if scene is Scene.ENDED:
        other = side if side in (DETAIL, PLAN) else CHART
        most = max(room.height - _LEAST_TABLE, 1)
        tall = min(max(wanted.get(CARD, 1), _LEAST_CHART + 2), most)
        upper, lower = _split_rows(room, tall)
        return {**_beside(upper, CARD, other, 0.55), BOOTS: lower}
    other = PLAN if side == PLAN else DETAIL
    tall = min(max(rows + _HEADS, _LEAST_TABLE), room.height - min(_MOST_CHART, room.height // 2))
    upper, lower = _split_rows(room, tall)
    return {BOOTS: upper, **_beside(lower, CHART, other, 0.5)}


def _wide(room: Rect, scene: Scene, rows: int, wanted: Mapping[str, int]) -> dict[str, Rect]:
    """Everything, in two columns."""
    left, right = _columns(room, 0.56)
    table = max(rows + _HEADS, _LEAST_TABLE)
    if scene is Scene.ENDED:
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
        self._scene: Scene | None = None

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
        by_id: dict[str | None, TitledPanel] = {one.id: one for one in self.panels}
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
    """Above the overview, or another screen, while it is open."""

    def __init__(self, model: TunerModel) -> None:
        super().__init__(TunerBoard(model), Place.TUNER)

    def on_mount(self) -> None:
        """A first look at the runs may have been shown before the panels were there to take the focus."""
        self.board.focus_first()

    @property
    def moving(self) -> Movable:
        """What keys of movement move: the text of the focused panel, else the selection."""
        focused = self.focused
        return focused if isinstance(focused, TextPart) else self.board.boots

    def open_boot(self) -> None:
        """The selected boot in full, and back to the table."""
        board = self.board
        if board.zoomed is not None:
            self.leave()
        elif board.detail in board.present():
            board.zoomed = board.detail.id
            board.bring(board.detail)

    def leave(self) -> bool:
        """Leave zoom; False when there is nothing to leave but the screen."""
        left = super().leave()
        if left and not self.panel.display:
            self.board.boots.focus()
        return left
