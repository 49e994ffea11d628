"""The parts of the tune screen: the keys side by side, what the selected key means, and what the checks say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from specdash.core.changes import Change, Role, changed_values, changes_to, shown_value
from specdash.core.env_edit import all_keys, check_value, key_help
from specdash.core.errors import Finding, InputError, Severity
from specdash.core.speculation import spec_type
from specdash.system.text import UNKNOWN, clean, counted, number
from specdash.tui.spans import GLYPHS, Line, Span, fit, wrap
from specdash.tui.widgets.panel import Column, PlacedBoard, RowsPanel, TitledPanel
from specdash.tui.widgets.tuner.setting_field import SettingField

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from textual import events

    from specdash.control.console import ServicesView
    from specdash.control.plan import ApplyPlan
    from specdash.control.profiles import Profile
    from specdash.tui.layout import Rect
    from specdash.tui.view import View


# What the tune screen knows: present values, pending changes, and what the checks say. No I/O, no drawing.

FIRST_KEYS: dict[Role, tuple[str, ...]] = {
    Role.BACKEND: (
        "LLAMA_SPEC_TYPE",
        "LLAMA_DRAFT_MAX",
        "LLAMA_DRAFT_MIN",
        "LLAMA_DRAFT_P_MIN",
        "LLAMA_DRAFT_MODEL",
        "LLAMA_HYBRID_ROLLBACK_MODE",
        "LLAMA_CTX_SIZE",
        "LLAMA_PARALLEL",
        "LLAMA_EXTRA_ARGS",
    ),
    Role.PROXY: (
        "PROXY_LOOP_BREAKER",
        "PROXY_LOOP_WINDOW",
        "PROXY_LOOP_REPEAT_THRESHOLD",
        "PROXY_NO_PROGRESS_THRESHOLD",
        "PROXY_FORCED_THRESHOLD",
        "PROXY_CONTEXT_RELEASE_THRESHOLD",
        "PROXY_MALFORMED_TOOL_GUARDRAIL",
        "PROXY_MALFORMED_TOOL_STREAM_STRICT",
        "PROXY_GUARDRAIL_RETRY",
    ),
}
"""What is tuned most comes first, set or not."""


class TuneModel(Struct):
    """Everything the screen shows. Changed by the event loop alone."""

    role: Role = Role.BACKEND
    every_key: bool = False
    services: ServicesView | None = None
    """None until the first look at them."""
    wanted: dict[Role, dict[str, str | None]] = field(default_factory=dict)
    """What shall be set, as `WantedValues`."""
    profile: str | None = None
    """The preset that `wanted` came from, while it is unchanged."""
    plan: ApplyPlan | None = None
    plan_error: str | None = None
    checking: bool = False

    @property
    def changes(self) -> tuple[Change, ...]:
        """The pending changes: what is wanted and not so yet. Secrets are not masked."""
        return tuple(
            change for role, wanted in self.wanted.items() for change in changes_to(role, self.values(role), wanted)
        )

    def values(self, role: Role) -> Mapping[str, str]:
        """The env of a service as it is now; empty when it is not known."""
        service = self.services.of(role) if self.services is not None else None
        return service.values if service is not None else {}

    @property
    def last_good(self) -> Mapping[str, str] | None:
        """The env that a rollback of the shown service goes back to; None when there is none."""
        service = self.services.of(self.role) if self.services is not None else None
        return service.last_good if service is not None else None

    def set(self, key: str, value: str | None) -> None:
        """Want `value` (None: no such key)."""
        self.wanted.setdefault(self.role, {})[key] = value
        self._touched()

    def drop(self, key: str) -> None:
        """Forget the pending change of one key."""
        self.wanted.get(self.role, {}).pop(key, None)
        self._touched()

    def clear(self) -> None:
        """Forget all pending changes."""
        self.wanted.clear()
        self._touched()

    def take(self, profile: Profile) -> None:
        """Want what the profile says, in place of everything pending."""
        from specdash.control.profiles import means_the_same

        self.wanted = {
            role: {
                key: value
                for key, value in values.items()
                if (present := self.values(role).get(key)) is None or not means_the_same(role, key, present, value)
            }
            for role, values in profile.values.items()
        }
        self._touched()
        self.profile = profile.name
        if not self.wanted.get(self.role):
            self.role = next((role for role in Role if self.wanted.get(role)), self.role)

    def looked(self, services: ServicesView) -> None:
        """Take what a look at the services showed; what has come true is no longer wanted."""
        self.services = services
        self.wanted = {
            role: {change.key: change.after for change in changes_to(role, self.values(role), wanted)}
            for role, wanted in self.wanted.items()
        }

    @property
    def spec_types(self) -> tuple[str, ...]:
        """The spec types that the backend would have with what is pending; empty when its env does not name them."""
        values = changed_values(self.values(Role.BACKEND), self.wanted.get(Role.BACKEND, {}))
        known = map(spec_type, values.get("LLAMA_SPEC_TYPE", "").split(","))
        return tuple(item.name for item in known if item is not None)

    def rows(self, room: int = 0) -> list[Change]:
        """The keys of the shown service with the value now and the wanted one, which are the same where nothing is
        pending: those most tuned, those set, those pending; then others while there is `room`, or with `every_key` all
        there are. Secrets are not masked."""
        values, wanted = self.values(self.role), self.wanted.get(self.role, {})
        keys = list(dict.fromkeys([*FIRST_KEYS[self.role], *values, *wanted]))
        others = [key.key for key in all_keys(self.role) if key.key not in keys]
        keys += others if self.every_key else others[: max(room - len(keys), 0)]
        return [Change(self.role, key, values.get(key), wanted.get(key, values.get(key))) for key in keys]

    def problem_with(self, key: str, text: str) -> str | None:
        """Why `text` cannot be the value of `key`, None when it can."""
        try:
            # Whether the engine has a type that the catalogue lacks is for preflight, which asks it.
            check_value(self.role, key, text)
        except InputError as error:
            return str(error)
        return None

    def _touched(self) -> None:
        self.profile = self.plan = self.plan_error = None


NOT_SET = "·"
REMOVED = "(removed)"
SEVERITY_ROLES = {Severity.ERROR: "bad", Severity.WARNING: "warn", Severity.INFO: "dim"}
_KEY_WIDTH = 30
_LOOKING = "looking at the services…"


class KeysTable(RowsPanel[Change]):
    """Every key with its value now, the wanted one and the last good one."""

    def __init__(self, model: TuneModel) -> None:
        super().__init__("Settings", id="tune-keys")
        self.model = model
        self.field: SettingField | None = None
        """The setting that is edited now."""
        self._at = 0
        self._placed: Rect | None = None

    def redraw(self) -> None:
        """The input moves with its row."""
        super().redraw()
        spot = self.field.spot if self.field is not None else None
        if spot != self._placed and isinstance(self.parent, PlacedBoard):
            self._placed = spot
            self.parent.place_again()

    def open_field(self, row: Change) -> SettingField:
        """Edit a setting in its row."""
        self.field, self.chosen = SettingField(row), row.key
        self.redraw()
        return self.field

    def close_field(self) -> None:
        """Draw the row as any other again."""
        self.field = None
        self.redraw()

    def body(self, view: View, width: int, height: int) -> list[Line]:
        """The rows; below the one that is edited what may stand there, in place of as many rows as that takes."""
        lines = super().body(view, width, height)
        if self.field is None or not self._rows:
            return lines
        edited = self.field.row
        now, _ = _value(edited.masked.before, width=self._value_width)
        arrow = "→"
        block = self.field.lines(
            width, height - 1, f"{fit(edited.key, _KEY_WIDTH)} {now[: self._value_width]} {arrow} "
        )
        row = 1 + self._index() - self._top
        self._at = max(min(row, height - len(block)), 1)
        if self.field.spot is not None:
            self.field.spot = replace(self.field.spot, y=1 + self._at)
        above = lines[1:row]
        return [lines[0], *above[len(above) - self._at + 1 :], *block, *lines[row + 1 :]]

    def move(self, lines: int) -> None:
        """Select another row, or another value of the one that is edited."""
        if self.field is None:
            super().move(lines)
        else:
            self.field.move(lines)
            self.redraw()

    def key_figure(self, view: View) -> Line:
        """The service and its state."""
        other = Role.PROXY if self.model.role is Role.BACKEND else Role.BACKEND
        spans: list[Span] = [(str(self.model.role), "text bold")]
        service = self.model.services.of(self.model.role) if self.model.services is not None else None
        if service is not None:
            role = "good" if service.status.alive else "bad"
            spans += [("  ", "text"), (str(service.status.state), f"{role} bold"), (f"  {service.manager}", "dim")]
        keys = f"  ({view.keys['tune.service']}: {other})"
        return (*spans, (keys if self.field is None else "", "dim"))

    async def on_click(self, event: events.Click) -> None:
        """A click on the title takes the other service; while a value is edited, a click takes one of those listed."""
        if self.field is not None:
            # Else the row below it would be selected, too.
            event.prevent_default()
            if self.field.select(event.y - 1 - self._at):
                self.redraw()
        elif event.y == 0:
            await self.screen.run_action("next_service")

    def aside(self, view: View) -> Line:
        """How much is pending; the keys of the field that is edited."""
        if self.field is not None:
            return ((f"{'space marks · ' if self.field.several else ''}enter takes · esc leaves", "accent"),)
        pending = len(self.model.changes)
        if not pending:
            return (("nothing pending", "dim"),)
        what = f" from {clean(self.model.profile, 30)}" if self.model.profile else ""
        return ((f"{number(pending)} pending{what}", "accent bold"),)

    def rows(self, view: View) -> Sequence[Change]:
        """All rows of the service."""
        known = self.model.services is not None and self.model.services.of(self.model.role) is not None
        return self.model.rows(self.size.height - 2) if known else ()

    def key(self, row: Change) -> str:
        """Its name."""
        return row.key

    def mark(self, row: Change) -> str:
        """A pending change is marked by more than its colour."""
        return "*" if row.pending else " "

    def nothing(self, view: View) -> str:
        """Why there is nothing to tune."""
        services = self.model.services
        if services is None:
            return _LOOKING
        return "\n".join(services.problems) or f"no {self.model.role} service is known: `specdash services install`"

    def columns(self, view: View) -> Sequence[Column[Change]]:
        """Key, now, pending, last good, and how a change comes into force."""
        value = self._value_width
        return (
            Column("key", _KEY_WIDTH, lambda row: (row.key, "accent bold" if row.pending else "text"), right=False),
            Column("now", value, lambda row: _value(row.masked.before, width=value), right=False),
            Column("pending", value, lambda row: _pending(row, value), right=False),
            Column("last good", value, lambda row: self._last_good(row, value), rank=1, right=False),
            Column("unit", 8, _unit, rank=2, right=False),
            Column("takes", 8, _takes, rank=3, right=False, stretch=True),
        )

    @property
    def _value_width(self) -> int:
        return max(12, min(26, (self.size.width - 55) // 3))

    def _last_good(self, row: Change, width: int) -> Span:
        good = self.model.last_good
        if good is None:
            return (UNKNOWN, "dim")
        value = good.get(row.key)
        return _value(shown_value(row.key, value), "text" if value != row.before else "dim", width=width)


def _value(text: str | None, role: str = "text", *, width: int) -> Span:
    if text is None:
        return (NOT_SET, "dim")
    shown = clean(text, 4096) or "''"
    # What distinguishes one file from another is its name, at the end.
    too_long = len(shown) > width and shown.startswith(("/", "~"))
    return ("…" + shown[1 - width :] if too_long else shown, role)


def _pending(row: Change, width: int) -> Span:
    if not row.pending:
        return ("", "dim")
    return (REMOVED, "warn bold") if row.after is None else _value(row.masked.after, "warn bold", width=width)


def _unit(row: Change) -> Span:
    described = key_help(row.key)
    return (described.unit if described is not None else "", "dim")


def _takes(row: Change) -> Span:
    described = key_help(row.key)
    if described is None:
        return ("", "dim")
    return ("restart", "dim") if described.restart else ("reload", "good")


class KeyHelpPanel(TitledPanel):
    """What the selected key means."""

    def __init__(self, table: KeysTable) -> None:
        super().__init__("Help", id="tune-help")
        self.can_focus = False
        self._table = table
        table.follow = self.redraw

    def key_figure(self, view: View) -> Line:
        """Which key."""
        row = self._table.selected
        return ((row.key, "text bold"),) if row is not None else ()

    def body(self, view: View, width: int, height: int) -> list[Line]:
        """Meaning, values, default, flags, readers, notes."""
        row = self._table.selected
        if row is None:
            return []
        return help_lines(row, self._table.model.spec_types, width, height)


def help_lines(row: Change, spec_types: Sequence[str], width: int, height: int) -> list[Line]:
    """The most important first, as much as fits. Of what differs by spec type, only what is about those in force."""
    described = key_help(row.key)
    if described is None:
        return [(("  not in the catalogue: handed on as it is", "warn"),)]
    default = described.default if described.default not in (None, "") else "engine's own"
    unit = described.unit if described.unit not in described.values else ""
    facts = [described.values, f"default {default}", unit]
    lines: list[Line] = [((f"  {part}", "text"),) for part in wrap(clean(described.meaning, 300), width - 3, 2)]
    notes = [f"flags {' '.join(described.flags)}"] if described.flags else []
    if described.readers:
        notes.append(f"read by {', '.join(described.readers)}")
    for text, role in [
        (" · ".join(clean(fact, 120) for fact in facts if fact), "dim"),
        *((clean(note, 300), "warn") for note in described.notes if _concerns(note, spec_types)),
        *((clean(note, 300), "dim") for note in notes),
    ]:
        lines += [((f"  {part}", role),) for part in wrap(text, width - 3, 2)]
    return lines[:height]


def _concerns(note: str, spec_types: Sequence[str]) -> bool:
    about = note.partition(":")[0]
    return spec_type(about) is None or about in spec_types


class ChecksPanel(TitledPanel):
    """What preflight says of the pending changes."""

    def __init__(self, model: TuneModel) -> None:
        super().__init__("Preflight", id="tune-checks")
        self.can_focus = False
        self.model = model

    def key_figure(self, view: View) -> Line:
        """The verdict."""
        plan = self.model.plan
        if self.model.checking:
            return (("checking…", "dim"),)
        if self.model.plan_error is not None:
            return (("cannot be applied", "bad bold"),)
        if plan is None or not self.model.changes:
            return (("nothing to check", "dim"),)
        errors = sum(finding.severity is Severity.ERROR for finding in plan.findings)
        warnings = sum(finding.severity is Severity.WARNING for finding in plan.findings)
        if errors:
            return ((f"refused: {counted(errors, 'error')}", "bad bold"),)
        caveat = f", {counted(warnings, 'warning')}" if warnings else ""
        return ((f"may be applied{caveat}", "good bold"),)

    def body(self, view: View, width: int, height: int) -> list[Line]:
        """The findings, worst first; without any, how to go on."""
        keys = view.keys
        if self.model.plan_error is not None:
            return [((f"  {part}", "bad"),) for part in wrap(clean(self.model.plan_error, 600), width - 3, height)]
        plan = self.model.plan
        if plan is None or not self.model.changes:
            text = (
                f"{keys['open']} changes the selected key, {keys['tune.presets']} takes a preset; "
                f"nothing happens before {keys['tune.apply']} applies it"
            )
            return [((f"  {part}", "dim"),) for part in wrap(text, width - 3, height)]
        return finding_lines(plan.findings, width, height, GLYPHS.alert, f": {keys['side']}")


def finding_lines(findings: Sequence[Finding], width: int, height: int, alert: str, more: str = "") -> list[Line]:
    """As many as fit, worst first, each with its fix; `more` is the way to the others."""
    lines: list[Line] = []
    order = list(Severity)
    for item in sorted(findings, key=lambda finding: order.index(finding.severity)):
        role = SEVERITY_ROLES[item.severity]
        sign = alert if item.severity is not Severity.INFO else " "
        for index, part in enumerate(wrap(clean(item.line, 600), width - 4, 3)):
            lines.append(((f" {sign if index == 0 else ' '} ", f"{role} bold"), (part, role)))
    if len(lines) > height > 0:
        hidden = len(lines) - height + 1
        lines = [*lines[: height - 1], ((f"   {hidden} more lines{more}", "accent"),)]
    return lines
