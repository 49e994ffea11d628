"""The speculation screen: whether it speculates, with what, how well, and what it costs. Imported when it is opened
first."""

from __future__ import annotations

from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from specdash.core.speculation import Rollback
from specdash.system.text import clean
from specdash.tui.action_table import DEFAULT_KEYS, FooterScreen, bindings
from specdash.tui.arming import in_background
from specdash.tui.layout import Rect
from specdash.tui.screens.base import FoldingScreen
from specdash.tui.widgets.panel import FoldingBoard, LinesWidget, TextPart, TitledPanel
from specdash.tui.widgets.speculation.drafting import CheckpointsPanel, DrafterPanel, DraftingBar
from specdash.tui.widgets.speculation.prefix_cache import (
    CachedRequestsTable,
    PrefixCachePanel,
    RouterTable,
    SlotsTable,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.binding import BindingType

    from specdash.control.slots import SlotChange, SlotPlan
    from specdash.insight.picture import PrefixSlot
    from specdash.tui.app import Dashboard
    from specdash.tui.spans import Line
    from specdash.tui.view import View
    from specdash.tui.widgets.panel import Movable

_SIDE_BY_SIDE = 110
_GAP = 3
_TALL = 30
_NARROW_MOST = 2
"""Panels of more than one line that one below the other leave each other room at 80x24."""
DRAFTING, DRAFTER, CHECKPOINTS, ROUTER = "drafting", "drafter", "checkpoints", "router"
PREFIX, SLOTS, REQUESTS = "prefix", "prefix-slots", "prefix-requests"
MORE = "more"
_WORKER = "slots"
_MEANS = {
    "save": "What the slot holds stays as it is.",
    "restore": "What the slot holds now is lost; the next prompt that begins like the saved one is not read again.",
    "erase": "The next request of its session reads its whole prompt again.",
}
_ABOUT_DRAFTS = frozenset((DRAFTER, CHECKPOINTS, ROUTER))


class PanelDemand(Struct, frozen=True):
    """What one panel asks for: the lines below which it is not worth showing, and those that show everything."""

    id: str
    least: int
    most: int


def arrange(
    width: int,
    height: int,
    drafting: int,
    wants: Sequence[PanelDemand],
    first: str | None = None,
    zoomed: str | None = None,
    left: frozenset[str] = frozenset(),
) -> dict[str, Rect]:
    """Where the parts go: the drafting bar on top, then the panels, the most important of `wants` first.

    Where they do not all fit, those that do: `first` in any case; a last line then names the others. A zoomed panel has
    all the room below the bar. `left` are those that stood in the left column before: they shall not jump about.
    """
    bar = {DRAFTING: Rect(0, 0, width, min(drafting, height))}
    rest = height - drafting
    if rest < 1 or not wants:
        return bar
    if zoomed is not None:
        return bar | {zoomed: Rect(0, drafting, width, rest)}
    places = _panels(wants, Rect(0, drafting, width, rest), first, left)
    if len(places) < len(wants):
        places = _panels(wants, Rect(0, drafting, width, rest - 1), first, left)
        places[MORE] = Rect(0, height - 1, width, 1)
    return bar | places


def _panels(wants: Sequence[PanelDemand], room: Rect, first: str | None, left: frozenset[str]) -> dict[str, Rect]:
    if room.width < _SIDE_BY_SIDE:
        return _stacked(wants, room, first, most=_NARROW_MOST)
    return _side_by_side(wants, room, first, left)


def _side_by_side(wants: Sequence[PanelDemand], room: Rect, first: str | None, left: frozenset[str]) -> dict[str, Rect]:
    """Two columns; below them in full width those of one line, and the requests."""
    quiet = [want for want in wants if want.most == 1]
    lower = [want for want in wants if want.id == REQUESTS and want.most > 1]
    upper = [want for want in wants if want not in quiet and want not in lower]
    below = len(quiet) + sum(min(want.least, want.most) for want in lower)
    places: dict[str, Rect] = {}
    y = room.y
    if upper:
        columns = _columns(upper, room.height - below, left)
        height = min(max(map(_total, columns)), room.height - below)
        cells = (room.width - _GAP * (len(columns) - 1)) // len(columns)
        for index, column in enumerate(columns):
            places |= _stacked(column, Rect(room.x + index * (cells + _GAP), y, cells, height), first)
        y += height
    for want in quiet:
        places[want.id] = Rect(room.x, y, room.width, 1)
        y += 1
    return places | {want.id: Rect(room.x, y, room.width, room.y + room.height - y) for want in lower}


def _columns(wants: Sequence[PanelDemand], height: int, left: frozenset[str]) -> list[list[PanelDemand]]:
    """One column of one, else two in which the least is cut off: as they stood before, else drafts beside prompts, else
    as alike as can be."""
    if len(wants) == 1:
        return [list(wants)]

    def cost(chosen: tuple[PanelDemand, ...]) -> tuple[int, bool, bool, int]:
        ids = frozenset(want.id for want in chosen)
        totals = _total(chosen), _total(wants) - _total(chosen)
        lost = sum(max(total - height, 0) for total in totals)
        about_drafts = ids == _ABOUT_DRAFTS & frozenset(want.id for want in wants)
        return lost - (lost > 0 and ids == left), ids != left, not about_drafts, max(totals)

    sides = [(wants[0], *more) for n in range(len(wants) - 1) for more in combinations(wants[1:], n)]
    best = min(sides, key=cost)
    return [list(best), [want for want in wants if want not in best]]


def _total(wants: Sequence[PanelDemand]) -> int:
    return sum(want.most for want in wants)


def _stacked(
    wants: Sequence[PanelDemand], room: Rect, first: str | None, *, most: int | None = None
) -> dict[str, Rect]:
    """One below the other: the most important that fit, `first` among them; at most `most` of more than one line."""
    kept: set[str] = set()
    left = room.height
    for want in sorted(wants, key=lambda panel_demand: panel_demand.id != first):
        large = sum(want.id in kept and want.most > 1 for want in wants)
        least = min(want.least, want.most)
        if (least <= left and (want.most == 1 or most is None or large < most)) or not kept:
            kept.add(want.id)
            left -= least
    shown = [want for want in wants if want.id in kept]
    heights = [min(want.least, want.most) for want in shown]
    while left > 0 and any(tall < want.most for tall, want in zip(heights, shown, strict=True)):
        needy = min(range(len(shown)), key=lambda i: heights[i] / shown[i].most)
        heights[needy] += 1
        left -= 1
    places: dict[str, Rect] = {}
    y = room.y
    for want, tall in zip(shown, heights, strict=True):
        places[want.id] = Rect(room.x, y, room.width, min(tall, room.y + room.height - y))
        y += tall
    return places


class MoreLine(LinesWidget):
    """The panels that have no place now."""

    async def on_click(self) -> None:
        """As its key: the next panel."""
        await self.screen.run_action("next_panel(1)")

    def name_them(self, hidden: Sequence[TitledPanel], key: str) -> None:
        """Draw their titles, and the key that brings them."""
        line: Line = (
            (" more: ", "dim"),
            ("  ".join(titled_panel.panel_title for titled_panel in hidden), "text"),
            (f"  {key}", "accent"),
        )
        self.set_lines([line])


class SpeculationBoard(FoldingBoard):
    """The parts of the screen. Those without a place are not displayed and do no work."""

    def __init__(self) -> None:
        super().__init__()
        self.drafting = DraftingBar()
        self.slots = SlotsTable()
        self.panels: tuple[
            DrafterPanel | CheckpointsPanel | PrefixCachePanel | RouterTable | SlotsTable | CachedRequestsTable,
            ...,
        ] = (
            DrafterPanel(),
            CheckpointsPanel(),
            PrefixCachePanel(),
            RouterTable(),
            self.slots,
            CachedRequestsTable(),
        )
        self.more = MoreLine(id=MORE)
        self.first: str | None = None
        """The panel that shall have a place."""

    @property
    def parts(self) -> tuple[LinesWidget, ...]:
        """All of them."""
        return self.drafting, *self.panels, self.more

    def present(self) -> list[TitledPanel]:
        """The panels that have something to say, the most important first."""
        if self._view is None:
            return list(self.panels[:1])
        wanted = {want.id for want in self._wants(self._view, self.size.width)}
        order = _importance(self._view)
        return sorted(
            (panel for panel in self.panels if panel.id in wanted),
            key=lambda titled_panel: order.index(titled_panel.id or ""),
        )

    def places(self, width: int, height: int) -> dict[str, Rect]:
        """Where the parts go now."""
        if self._view is None:
            return {}
        wants = self._wants(self._view, width)
        zoomed = self.zoomed if any(want.id == self.zoomed for want in wants) else None
        return arrange(width, height, len(self.drafting.lines), wants, self.first, zoomed, self._left())

    def _left(self) -> frozenset[str]:
        """The panels that stand in the left one of two columns now."""
        columns = {name: place for name, place in self._shown.items() if place.width < self.size.width}
        return frozenset(name for name, place in columns.items() if place.x == 0)

    def _wants(self, view: View, width: int) -> list[PanelDemand]:
        half = (width - _GAP) // 2 if width >= _SIDE_BY_SIDE else width
        by_id = {panel.id: panel for panel in self.panels}
        wants: list[PanelDemand] = []
        for name in _importance(view):
            panel = by_id[name]
            if most := panel.wanted(view, half if name != REQUESTS else width):
                wants.append(PanelDemand(name, panel.least(view), most))
        return wants

    def show(self, view: View) -> None:
        """Draw this view in all parts that are seen."""
        self._view = view
        self.drafting.tall = self.size.height >= _TALL
        self.drafting.show(view)
        self.sync()
        for panel in self.panels:
            if panel.display:
                panel.show(view)

    def sync(self) -> None:
        """See `FoldingBoard`; the panels without a place are named."""
        places = self.places(*self.size)
        hidden = [titled_panel for titled_panel in self.present() if titled_panel.id not in places]
        self.more.name_them(hidden, (self._view.keys if self._view is not None else DEFAULT_KEYS)["focus.next"])
        super().sync()

    def bring(self, panel: TitledPanel) -> None:
        """Give a panel a place and the focus."""
        self.first = panel.id
        super().bring(panel)


def _importance(view: View) -> tuple[str, ...]:
    """The panels, those first that tell most of this server."""
    views = view.picture.views
    replays = views.checkpoints.rollback is Rollback.CHECKPOINT
    lead = (ROUTER, DRAFTER) if views.router.models else (DRAFTER,)
    rest = (CHECKPOINTS, PREFIX) if replays else (PREFIX, CHECKPOINTS)
    ranked = (*lead, *rest, SLOTS, REQUESTS)
    return ranked if ROUTER in ranked else (*ranked, ROUTER)


class SpeculationScreen(FoldingScreen[SpeculationBoard]):
    """Shows how it speculates, and, when armed, saves, restores and erases a slot. Slots are looked at and changed in a
    thread."""

    place = FooterScreen.SPECULATION
    BINDINGS: ClassVar[list[BindingType]] = bindings(place)

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard, SpeculationBoard())

    def on_mount(self) -> None:
        """The drafter is always there."""
        self.board.panels[0].focus()

    @property
    def panel(self) -> TitledPanel:
        """The focused panel."""
        focused = self.focused
        return focused if isinstance(focused, TitledPanel) else self.board.panels[0]

    @property
    def moving(self) -> Movable:
        """What keys of movement move: the text or the selection of the focused panel."""
        focused = self.focused
        return (
            focused
            if isinstance(focused, TextPart | RouterTable | SlotsTable | CachedRequestsTable)
            else self.board.slots
        )

    async def action_slot_save(self) -> None:
        """Ask for a file, then save what the selected slot holds to it."""
        slot = self._slot_to_change()
        if slot is not None:
            await self._ask_file("save", slot, f"slot-{slot.id}.bin")

    async def action_slot_restore(self) -> None:
        """Ask for a file, then let the selected slot hold what it holds."""
        slot = self._slot_to_change()
        if slot is not None:
            await self._ask_file("restore", slot, f"slot-{slot.id}.bin")

    def action_slot_erase(self) -> None:
        """Let the selected slot forget what it holds."""
        slot = self._slot_to_change()
        if slot is not None:
            self._plan("erase", slot, None)

    async def _ask_file(self, action: str, slot: PrefixSlot, name: str) -> None:
        def answer(text: str | None) -> None:
            if text and text.strip():
                self._plan(action, slot, text.strip())

        if self.is_current:
            await self.ask(f"{action} slot {slot.id}: name of the file", name, answer)

    def _slot_to_change(self) -> PrefixSlot | None:
        """The selected slot; None, with a message, when it may not be changed now."""
        slots = self.board.slots
        if self.dashboard.slot_console is None:
            self.notify("this dashboard cannot change slots; use `specdash slots`", severity="warning")
        elif not self.dashboard.access.may_change():
            pass
        elif slots not in self.board.present():
            self.notify("no slots are known yet", severity="warning")
        elif not self.board.seen(slots):
            self.board.bring(slots)
            self.notify(f"choose the slot with {self.dashboard.keys.arrows}, then press the key again", timeout=4)
        else:
            return slots.selected
        return None

    def _plan(self, action: str, slot: PrefixSlot, filename: str | None) -> None:
        console = self.dashboard.slot_console
        if console is None:
            return

        def confirm(plan: SlotPlan) -> None:
            self.confirm(plan.question, (_MEANS[plan.action], *plan.warnings), lambda: carry_out(plan))

        def carry_out(plan: SlotPlan) -> None:
            in_background(self.dashboard, _WORKER, partial(console.carry_out, plan), self._changed)

        in_background(self.dashboard, _WORKER, partial(console.plan, action, slot.id, filename), confirm)

    def _changed(self, change: SlotChange) -> None:
        self.notify(clean(change.sentence, 400), timeout=10, markup=False)
        self.dashboard.show_now()
