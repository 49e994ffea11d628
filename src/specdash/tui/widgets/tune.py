"""The parts of the tune screen: the keys side by side, what the selected key means, and what the checks say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.changes import Role
from specdash.core.findings import Finding, Severity
from specdash.core.speculation import spec_type
from specdash.tui.formatting import UNKNOWN, clean, count
from specdash.tui.spans import Line, Span, wrap
from specdash.tui.tune_model import TuneModel, TuneRow
from specdash.tui.widgets.panel import TitledPanel
from specdash.tui.widgets.rows import RowsPanel
from specdash.tui.widgets.table import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.tui.view import View

NOT_SET = "·"
REMOVED = "(removed)"
SEVERITY_ROLES = {Severity.ERROR: "bad", Severity.WARNING: "warn", Severity.INFO: "dim"}
_LOOKING = "looking at the services…"


class KeysTable(RowsPanel[TuneRow]):
    """Every key with its value now, the wanted one and the last good one."""

    def __init__(self, model: TuneModel) -> None:
        super().__init__("Settings", id="tune-keys")
        self.model = model

    def key_figure(self, view: View) -> Line:
        """The service and its state."""
        del view
        other = Role.PROXY if self.model.role is Role.BACKEND else Role.BACKEND
        spans: list[Span] = [(str(self.model.role), "text bold")]
        service = self.model.services.of(self.model.role) if self.model.services is not None else None
        if service is not None:
            role = "good" if service.status.alive else "bad"
            spans += [("  ", "text"), (str(service.status.state), f"{role} bold"), (f"  {service.manager}", "dim")]
        return (*spans, (f"  (b: {other})", "dim"))

    def aside(self, view: View) -> Line:
        """How much is pending."""
        del view
        pending = self.model.count
        if not pending:
            return (("nothing pending", "dim"),)
        what = f" from {clean(self.model.profile, 30)}" if self.model.profile else ""
        return ((f"{count(pending)} pending{what}", "accent bold"),)

    def rows(self, view: View) -> Sequence[TuneRow]:
        """All rows of the service."""
        del view
        known = self.model.services is not None and self.model.services.of(self.model.role) is not None
        return self.model.rows(self.size.height - 2) if known else ()

    def key(self, row: TuneRow) -> str:
        """Its name."""
        return row.key

    def mark(self, row: TuneRow) -> str:
        """A pending change is marked by more than its colour."""
        return "*" if row.pending else " "

    def nothing(self, view: View) -> str:
        """Why there is nothing to tune."""
        del view
        services = self.model.services
        if services is None:
            return _LOOKING
        return "\n".join(services.problems) or f"no {self.model.role} service is known: `specdash services install`"

    def columns(self, view: View) -> Sequence[Column[TuneRow]]:
        """Key, now, pending, last good, and how a change comes into force."""
        del view
        width = self.size.width
        value = max(12, min(26, (width - 55) // 3))
        return (
            Column("key", 30, lambda row: (row.key, "accent bold" if row.pending else "text"), right=False),
            Column("now", value, lambda row: _value(row.now, width=value), right=False),
            Column("pending", value, lambda row: _pending(row, value), right=False),
            Column("last good", value, lambda row: _last_good(row, value), rank=1, right=False),
            Column("unit", 8, lambda row: (row.help.unit if row.help else "", "dim"), rank=2, right=False),
            Column("takes", 8, _takes, rank=3, right=False, stretch=True),
        )


def _value(text: str | None, role: str = "text", *, width: int) -> Span:
    if text is None:
        return (NOT_SET, "dim")
    shown = clean(text, 4096) or "''"
    # What tells one file from another is its name, at the end.
    too_long = len(shown) > width and shown.startswith(("/", "~"))
    return ("…" + shown[1 - width :] if too_long else shown, role)


def _pending(row: TuneRow, width: int) -> Span:
    if not row.pending:
        return ("", "dim")
    return (REMOVED, "warn bold") if row.wanted is None else _value(row.wanted, "warn bold", width=width)


def _last_good(row: TuneRow, width: int) -> Span:
    if not row.has_last_good:
        return (UNKNOWN, "dim")
    return _value(row.last_good, "text" if row.last_good != row.now else "dim", width=width)


def _takes(row: TuneRow) -> Span:
    if row.help is None:
        return ("", "dim")
    return ("restart", "dim") if row.help.restart else ("reload", "good")


class KeyHelpPanel(TitledPanel):
    """What the selected key means."""

    def __init__(self, table: KeysTable) -> None:
        super().__init__("Help", id="tune-help")
        self.can_focus = False
        self._table = table

    def key_figure(self, view: View) -> Line:
        """Which key."""
        del view
        row = self._table.selected
        return ((row.key, "text bold"),) if row is not None else ()

    def body(self, view: View, width: int, height: int) -> list[Line]:
        """Meaning, values, default, flags, readers, notes."""
        del view
        row = self._table.selected
        if row is None:
            return []
        return help_lines(row, self._table.model.spec_types, width, height)


def help_lines(row: TuneRow, spec_types: Sequence[str], width: int, height: int) -> list[Line]:
    """The most important first, as much as fits. Of what differs by spec type, only what is said of those in force."""
    told = row.help
    if told is None:
        return [(("  not in the catalogue: handed on as it is", "warn"),)]
    default = told.default if told.default not in (None, "") else "engine's own"
    facts = [told.values, f"default {default}", told.unit if told.unit and told.unit not in told.values else ""]
    lines: list[Line] = [((f"  {part}", "text"),) for part in wrap(clean(told.meaning, 300), width - 3, 2)]
    notes = [f"flags {' '.join(told.flags)}"] if told.flags else []
    if told.readers:
        notes.append(f"read by {', '.join(told.readers)}")
    for text, role in [
        (" · ".join(clean(fact, 120) for fact in facts if fact), "dim"),
        *((clean(note, 300), "warn") for note in told.notes if _concerns(note, spec_types)),
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
        del view
        plan = self.model.plan
        if self.model.checking:
            return (("checking…", "dim"),)
        if self.model.plan_error is not None:
            return (("cannot be applied", "bad bold"),)
        if plan is None or not self.model.count:
            return (("nothing to check", "dim"),)
        errors = sum(one.severity is Severity.ERROR for one in plan.findings)
        warnings = sum(one.severity is Severity.WARNING for one in plan.findings)
        if errors:
            return ((f"refused: {count(errors)} error{'s' * (errors > 1)}", "bad bold"),)
        said = f", {count(warnings)} warning{'s' * (warnings > 1)}" if warnings else ""
        return ((f"may be applied{said}", "good bold"),)

    def body(self, view: View, width: int, height: int) -> list[Line]:
        """The findings, worst first; without any, how to go on."""
        if self.model.services is not None and self.model.services.unfinished is not None:
            text = (
                f"An apply was cut short: {self.model.services.unfinished}. Armed, f finishes it and R rolls it back."
            )
            return [((f"  {part}", "bad bold"),) for part in wrap(text, width - 3, height)]
        if self.model.plan_error is not None:
            return [((f"  {part}", "bad"),) for part in wrap(clean(self.model.plan_error, 600), width - 3, height)]
        plan = self.model.plan
        if plan is None or not self.model.count:
            text = "enter changes the selected key, o takes a preset; nothing happens before a applies it"
            return [((f"  {part}", "dim"),) for part in wrap(text, width - 3, height)]
        return finding_lines(plan.findings, width, height, view.glyphs.alert)


def finding_lines(findings: Sequence[Finding], width: int, height: int, alert: str) -> list[Line]:
    """As many as fit, worst first, each with its fix."""
    lines: list[Line] = []
    order = list(Severity)
    for one in sorted(findings, key=lambda finding: order.index(finding.severity)):
        role = SEVERITY_ROLES[one.severity]
        sign = alert if one.severity is not Severity.INFO else " "
        for index, part in enumerate(wrap(clean(one.line, 600), width - 4, 3)):
            lines.append(((f" {sign if index == 0 else ' '} ", f"{role} bold"), (part, role)))
    if len(lines) > height > 0:
        hidden = len(lines) - height + 1
        lines = [*lines[: height - 1], ((f"   {hidden} more lines: d", "accent"),)]
    return lines
