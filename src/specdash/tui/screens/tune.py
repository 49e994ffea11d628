"""The tune screen: settings now, wanted and last good side by side, checked while they are edited, and applied."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

from msgspec.structs import replace

from specdash.core.changes import ApplyOutcome, Role, is_secret, shown_value
from specdash.core.proxy_parameters import BY_KEY as PROXY_KEYS
from specdash.system.text import clean, counted
from specdash.tui.action_table import FooterScreen, bindings
from specdash.tui.arming import in_background
from specdash.tui.layout import Rect
from specdash.tui.screens.base import BoardScreen
from specdash.tui.widgets.panel import PlacedBoard
from specdash.tui.widgets.speculation.experiment import ExperimentCardView
from specdash.tui.widgets.tuner.tune import ChecksPanel, KeyHelpPanel, KeysTable, TuneModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from textual.binding import BindingType

    from specdash.control.console import Console, RunningApply, ServicesView
    from specdash.control.plan import ApplyPlan
    from specdash.control.profiles import Profile
    from specdash.core.changes import ApplyRecord
    from specdash.tui.app import Dashboard
    from specdash.tui.view import View
    from specdash.tui.widgets.tuner.setting_field import SettingField

PROMPT = "prompt"
KEYS, HELP, CHECKS, CARD = "tune-keys", "tune-help", "tune-checks", "tune-card"
_SIDE_BY_SIDE = 150
_CARD_LINES = 10
_TALL = 32
_MANY = 5
"""Values that a page key passes."""
LOOK_S = 2.0
"""How often the open screen looks at the services."""


def arrange(width: int, height: int, side: str) -> dict[str, Rect]:
    """Where the parts go. Where they do not all fit, `side` (checks or card) is the one below the keys."""
    if width >= _SIDE_BY_SIDE:
        left = width * 3 // 5
        right, lower = width - left - 1, min(_CARD_LINES, height // 3)
        upper = height - lower
        helped = min(8, upper // 3)
        return {
            KEYS: Rect(0, 0, left, upper),
            HELP: Rect(left + 1, 0, right, helped),
            CHECKS: Rect(left + 1, helped, right, upper - helped),
            CARD: Rect(0, upper, width, lower),
        }
    helped = 5 if height < _TALL else 6
    if height >= _TALL:
        checks, card = 6, _CARD_LINES
        keys = height - helped - checks - card
        return {
            KEYS: Rect(0, 0, width, keys),
            HELP: Rect(0, keys, width, helped),
            CHECKS: Rect(0, keys + helped, width, checks),
            CARD: Rect(0, keys + helped + checks, width, card),
        }
    below = 5 if side == CHECKS else min(_CARD_LINES, height // 2)
    keys = height - helped - below
    if side == CARD:
        helped, keys = 0, height - below
    places = {KEYS: Rect(0, 0, width, keys), side: Rect(0, keys + helped, width, below)}
    return places | ({HELP: Rect(0, keys, width, helped)} if helped else {})


class TuneBoard(PlacedBoard):
    """The parts of the screen."""

    def __init__(self, model: TuneModel) -> None:
        super().__init__()
        self.keys = KeysTable(model)
        self.help = KeyHelpPanel(self.keys)
        self.checks = ChecksPanel(model)
        self.card = ExperimentCardView(id=CARD)
        self.side = CHECKS

    @property
    def parts(self) -> tuple[KeysTable, KeyHelpPanel, ChecksPanel, ExperimentCardView]:
        """All of them."""
        return self.keys, self.help, self.checks, self.card

    def places(self, width: int, height: int) -> dict[str, Rect]:
        """See `arrange`. A field that is edited says itself what the help says, and needs the room."""
        places = arrange(width, height, self.side)
        if self.keys.field is not None and self.keys.field.spot is not None:
            keys, helped, spot = places[KEYS], places.get(HELP), self.keys.field.spot
            if helped is not None and helped.y:
                places = {name: place for name, place in places.items() if name != HELP}
                places[KEYS] = replace(keys, height=keys.height + helped.height)
            places[PROMPT] = replace(spot, x=keys.x + spot.x, y=keys.y + spot.y)
        return places

    def show(self, view: View) -> None:
        """Draw this view in all parts; the help follows the table's selection."""
        for part in self.parts:
            part.show(view)

    def next_side(self) -> None:
        """Checks or card, where only one has room."""
        self.side = CARD if self.side == CHECKS else CHECKS
        self.place_again()


class TuneScreen(BoardScreen[TuneBoard]):
    """The screen that may change a service. What may block is asked of the console in a thread."""

    place = FooterScreen.TUNE
    BINDINGS: ClassVar[list[BindingType]] = bindings(place)

    def __init__(self, dashboard: Dashboard) -> None:
        self.model = dashboard.kept(TuneModel)
        self._access = dashboard.access
        super().__init__(dashboard, TuneBoard(self.model))

    @classmethod
    def refusal(cls, dashboard: Dashboard) -> str:
        """There may be nothing to tune."""
        why = "this dashboard has no services to tune"
        return why if dashboard.access.console is None else ""

    def on_mount(self) -> None:
        """The keys are what is worked on."""
        self.board.keys.focus()
        self.set_interval(LOOK_S, self._look_again)

    @property
    def moving(self) -> KeysTable:
        """What keys of movement move."""
        return self.board.keys

    @property
    def copied(self) -> str:
        """The selected setting as a line of the env file; without a service, the command that adopts a server."""
        row = self.board.keys.selected
        if row is None:
            return "specdash services adopt" if self.model.services is not None else ""
        return f"{row.key}={shown_value(row.key, row.after) or ''}"

    @property
    def console(self) -> Console:
        """What looks at the services and changes them; the screen is not opened without."""
        return cast("Console", self._access.console)

    def want(self, settings: Iterable[tuple[str, str | None]]) -> None:
        """Make settings of either service pending, and show them."""
        settings = tuple(settings)
        roles = [Role.PROXY if key in PROXY_KEYS else Role.BACKEND for key, _ in settings]
        for role, (key, value) in zip(roles, settings, strict=True):
            self.model.role = role
            self.model.set(key, value)
        self.model.role = roles[0]
        self.board.keys.chosen = settings[0][0]
        self._check()
        keys = clean(", ".join(key for key, _ in settings), 120)
        arm, apply = (self.dashboard.keys[action] for action in ("arm", "tune.apply"))
        self.notify(f"pending, not applied: {keys}. Look at the checks; {arm} arms, {apply} applies.", markup=False)

    def look(self, *, again: bool = False) -> None:
        """Ask how the services are, without waiting."""
        in_background(self.dashboard, "look", self.console.look, self._looked, again=again)

    def _look_again(self) -> None:
        if self.dashboard.paused_at is None:
            self.look(again=True)

    def _looked(self, services: ServicesView) -> None:
        changed = self.model.services != services
        self.model.looked(services)
        if changed:
            self._check()
        self.redraw()

    def _check(self) -> None:
        """Ask preflight about the pending changes."""
        console, model = self.console, self.model
        if not model.changes:
            model.plan = model.plan_error = None
            model.checking = False
            return
        changes, profile = model.changes, model.profile
        wanted = {role: dict(values) for role, values in model.wanted.items()}
        model.checking = True

        def checked(plan: ApplyPlan | None, error: str | None) -> None:
            if model.changes == changes:
                model.plan, model.plan_error, model.checking = plan, error, False
                self.redraw()

        in_background(
            self.dashboard,
            "check",
            lambda: console.plan(wanted, profile),
            lambda plan: checked(plan, None),
            lambda error: checked(None, error),
        )

    def _changed(self) -> None:
        self._check()
        self.redraw()

    async def action_open(self) -> None:
        """Edit the selected setting in its row."""
        table, model = self.board.keys, self.model
        row = table.selected
        if row is None:
            return
        setting = table.field or table.open_field(row)

        def accepts(text: str) -> bool:
            setting.typed(text)
            setting.problem = model.problem_with(row.key, setting.value) or ""
            table.redraw()
            return not setting.problem

        def answer(text: str | None) -> None:
            table.close_field()
            if text is not None:
                model.set(row.key, setting.value)
                self._changed()

        keys: dict[str, Callable[[], None]] = {}
        if setting.listed:
            steps = {"up": -1, "down": 1, "pageup": -_MANY, "pagedown": _MANY}
            keys = {key: partial(self._pick, step) for key, step in steps.items()}
        if setting.several:
            keys["space"] = self._mark
        secret = is_secret(row.key)
        await self.ask(
            "type to filter" if setting.listed else "not set",
            "" if setting.listed or secret else row.after or "",
            answer,
            secret=secret,
            accepts=accepts,
            inside=self.board,
            keys=keys,
        )

    def _pick(self, step: int) -> None:
        self._typed()
        self.board.keys.move(step)

    def _mark(self) -> None:
        setting = self._typed()
        if self.prompt is not None and setting is not None:
            setting.mark()
            self.prompt.value = ""
            self.board.keys.redraw()

    def _typed(self) -> SettingField | None:
        """The field, with what is typed in it: keys may come faster than Textual says that the text changed."""
        setting = self.board.keys.field
        if setting is not None and self.prompt is not None:
            setting.typed(self.prompt.value)
        return setting

    def on_input_changed(self) -> None:
        """What is typed filters the values."""
        if self._typed() is not None:
            self.board.keys.redraw()

    def on_click(self) -> None:
        """A click on a value leaves the field open."""
        if self.prompt is not None:
            self.set_focus(self.prompt)

    def action_unset_key(self) -> None:
        """Remove the selected setting."""
        row = self.board.keys.selected
        if row is not None:
            self.model.set(row.key, None)
            self._changed()

    def action_drop_change(self) -> None:
        """Forget the selected setting's change."""
        row = self.board.keys.selected
        if row is not None and row.pending:
            self.model.drop(row.key)
            self._changed()

    def action_clear_changes(self) -> None:
        """Forget all changes."""
        self.model.clear()
        self._changed()

    def action_next_service(self) -> None:
        """Backend or proxy."""
        self.model.role = Role.PROXY if self.model.role is Role.BACKEND else Role.BACKEND
        self.board.keys.to_start()
        self.redraw()

    def action_every_key(self) -> None:
        """All settings, or the usual ones."""
        self.model.every_key = not self.model.every_key
        self.redraw()

    def action_next_side(self) -> None:
        """Checks or the before/after card."""
        self.board.next_side()
        self.redraw_soon()

    def action_presets(self) -> None:
        """Choose a preset."""
        from specdash.tui.screens.modal import PresetsScreen

        def choose(profiles: tuple[Profile, ...]) -> None:
            self.app.push_screen(PresetsScreen(self.dashboard, profiles), taken)

        def taken(profile: Profile | None) -> None:
            if profile is not None:
                self.model.take(profile)
                self._check()
            self.redraw()

        in_background(self.dashboard, "presets", self.console.profiles, choose)

    def action_apply(self) -> None:
        """Show what would be applied; enter there applies it."""
        console, model, plan = self.console, self.model, self.model.plan
        if not self._access.may_change():
            return
        if plan is None:
            why = model.plan_error or ("preflight still runs" if model.checking else "nothing is pending")
            self.notify(why, severity="warning", markup=False)
            return
        self._show_apply(f"Apply {counted(len(model.changes), 'change')}", plan, lambda: console.start(plan))

    def action_roll_back(self) -> None:
        """Show what going back would do; enter there does it."""
        console = self.console
        if not self._access.may_change():
            return
        in_background(
            self.dashboard,
            "rollback",
            console.plan_rollback,
            lambda plan: self._show_apply("Roll back the last apply", plan, lambda: console.start(plan)),
        )

    def _show_apply(self, title: str, plan: ApplyPlan | None, start: Callable[[], RunningApply]) -> None:
        from specdash.tui.screens.apply import ApplyScreen

        self.app.push_screen(ApplyScreen(self.dashboard, title, plan, start, self._applied))

    def _applied(self, record: ApplyRecord | None) -> None:
        if record is not None and record.outcome is ApplyOutcome.APPLIED:
            self.model.clear()
        self.look()


def want_in_tune(dashboard: Dashboard, settings: Iterable[tuple[str, str | None]]) -> None:
    """Open the tune screen with settings as pending changes; applying them is another key."""
    if not isinstance(dashboard.shown, TuneScreen):
        dashboard.action_toggle_screen(FooterScreen.TUNE)
    if isinstance(dashboard.shown, TuneScreen):
        dashboard.shown.want(settings)
