"""The models behind a router: which are in memory, which was used last, with what they speculate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.router import ModelStatus
from specdash.insight.drafter_picture import RouterModelPicture
from specdash.tui.formatting import UNKNOWN, age, clean, middle
from specdash.tui.widgets.rows import RowsPanel
from specdash.tui.widgets.table import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.tui.spans import Line, Span
    from specdash.tui.view import View

_ROLES = {
    ModelStatus.LOADED: "good bold",
    ModelStatus.SLEEPING: "accent",
    ModelStatus.LOADING: "warn",
    ModelStatus.UNLOADED: "dim",
    ModelStatus.FAILED: "bad bold",
}
_NAMES = ((110, 40), (70, 26), (0, 20))
"""Cells of a model's name, by the least width of the table."""


class RouterTable(RowsPanel[RouterModelPicture]):
    """One row a model; the watched one is marked."""

    def __init__(self) -> None:
        super().__init__("Router", id="router")

    def key_figure(self, view: View) -> Line:
        """What `any` means."""
        router = view.picture.views.router
        if not router.models:
            return ((UNKNOWN, "dim"), (f"  {clean(router.reason, 200)}", "dim"))
        arrow: Span = ("any = ", "dim")
        if router.any_means is None:
            return (arrow, ("no model is resident", "warn"))
        return (arrow, (clean(router.any_means, 60), "accent bold"))

    def aside(self, view: View) -> Line:
        """How many, and how many of them are in memory."""
        models = view.picture.views.router.models
        resident = sum(_status(one) in (ModelStatus.LOADED, ModelStatus.SLEEPING) for one in models)
        return ((f"{resident} of {len(models)} resident", "dim"),) if models else ()

    def wanted(self, view: View, width: int) -> int:
        """See `Part`."""
        del width
        router = view.picture.views.router
        return 2 + len(router.models) if router.models else int(bool(router.reason))

    def least(self, view: View) -> int:
        """See `Part`."""
        del view
        return 4

    def rows(self, view: View) -> Sequence[RouterModelPicture]:
        """All, the most recently used first, then by status."""
        order = list(ModelStatus)
        return sorted(
            view.picture.views.router.models,
            key=lambda one: (
                one.last_used_age_s is None,
                one.last_used_age_s or 0.0,
                order.index(_status(one)),
                one.id,
            ),
        )

    def key(self, row: RouterModelPicture) -> str:
        """Its id."""
        return row.id

    def mark(self, row: RouterModelPicture) -> str:
        """The one that is watched."""
        return "*" if row.watched else " "

    def nothing(self, view: View) -> str:
        """Why the models are not known."""
        return clean(view.picture.views.router.reason, 300)

    def columns(self, view: View) -> Sequence[Column[RouterModelPicture]]:
        """What each model shows."""
        glyphs = view.glyphs
        shapes = {
            ModelStatus.LOADED: glyphs.live,
            ModelStatus.SLEEPING: glyphs.stale,
            ModelStatus.LOADING: glyphs.loading,
            ModelStatus.FAILED: glyphs.down,
            ModelStatus.UNKNOWN: glyphs.unknown,
        }

        def status(one: RouterModelPicture) -> Span:
            known = _status(one)
            return (f"{shapes.get(known, ' ')} {clean(one.status, 12)}", _ROLES.get(known, "dim"))

        def types(one: RouterModelPicture) -> Span:
            if one.failure:
                return (clean(one.failure, 200), "bad")
            if one.spec_types is None:
                return (UNKNOWN, "dim")
            return (
                (", ".join(clean(name, 24) for name in one.spec_types), "text") if one.spec_types else ("none", "dim")
            )

        name = next((cells for least, cells in _NAMES if self.size.width >= least), _NAMES[-1][1])
        return (
            Column("model", name, lambda m: (middle(m.id, name), "text bold" if m.watched else "text"), 0, right=False),
            Column("status", 10, status, rank=0, right=False),
            Column("used", 5, lambda m: _used(m.last_used_age_s), rank=2),
            Column("speculates with", 15, types, rank=1, right=False, stretch=True),
        )


def _used(seconds: float | None) -> Span:
    return (age(seconds), "dim" if seconds is None else "text")


def _status(one: RouterModelPicture) -> ModelStatus:
    return ModelStatus(one.status) if one.status in ModelStatus.__members__.values() else ModelStatus.UNKNOWN
