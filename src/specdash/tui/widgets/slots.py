"""Slots: phase, progress, speed, context used and live acceptance of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.readings import Source
from specdash.insight.picture import SlotPhase, SlotPicture
from specdash.tui.formatting import UNKNOWN, bar, compact, context, fit, percent, rate
from specdash.tui.layout import PanelId
from specdash.tui.spans import BLANK, Line, Span
from specdash.tui.widgets.panel import Panel, message

if TYPE_CHECKING:
    from specdash.tui.view import View

_PHASE_ROLES = {SlotPhase.IDLE: "dim", SlotPhase.PREFILL: "prefill", SlotPhase.DECODE: "decode"}


class SlotsPanel(Panel):
    """One line a slot, the busy ones first."""

    def __init__(self) -> None:
        super().__init__(PanelId.SLOTS)

    def key_figure(self, view: View) -> Line:
        """Busy and all."""
        slots = view.picture.backend.slots
        if slots is None:
            return ((UNKNOWN, "dim"),)
        busy = sum(slot.phase is not SlotPhase.IDLE for slot in slots)
        return ((str(busy), "text bold"), (f" of {len(slots)} busy", "dim"))

    def aside(self, view: View) -> Line:
        """Requests that wait for a slot."""
        waiting = view.picture.backend.requests_deferred if view.picture.backend.slots is not None else None
        return ((f"{waiting:.0f} waiting", "warn bold"),) if waiting else ()

    def body(self, view: View, width: int, height: int) -> list[Line]:
        """The slots that fit; a last line tells how many do not."""
        slots = view.picture.backend.slots
        if slots is None:
            return message(view.why(Source.SLOTS, "no slots seen yet"), height)
        heading = height > len(slots) or height >= 6
        ordered = sorted(slots, key=lambda slot: (slot.phase is SlotPhase.IDLE, slot.id))
        room = height - heading
        shown = ordered if len(ordered) <= room else ordered[: max(room - 1, 1)]
        lines = [_heading(width)] if heading else []
        lines += [_slot_line(slot, width, ascii_only=view.glyphs.ascii_only) for slot in shown]
        if len(shown) < len(ordered):
            idle = sum(slot.phase is SlotPhase.IDLE for slot in ordered[len(shown) :])
            rest = len(ordered) - len(shown)
            lines.append(((f"{rest} more, {idle} of them idle", "dim"),))
        return lines


def _parts(width: int) -> tuple[bool, bool, int]:
    """Whether acceptance and task fit, and how wide the progress bar may be."""
    acceptance, task = width >= 38, width >= 58
    fixed = 3 + 8 + 6 + 8 + 12 + (6 if acceptance else 0) + (9 if task else 0)
    return acceptance, task, max(min(width - fixed, 24), 0)


def _heading(width: int) -> Line:
    acceptance, task, room = _parts(width)
    text = (
        " # phase   "
        + (fit("task", 9) if task else "")
        + (fit("progress", room + 6) if room else fit("done", 6, right=True))
    )
    text += (
        fit("tok/s ", 8, right=True)
        + fit("context ", 12, right=True)
        + (fit("acc ", 6, right=True) if acceptance else "")
    )
    return ((text, "dim"),)


def _slot_line(slot: SlotPicture, width: int, *, ascii_only: bool) -> Line:
    acceptance, task, room = _parts(width)
    role = _PHASE_ROLES[slot.phase]
    filled, rest = bar(slot.progress, room, ascii_only=ascii_only)
    idle = slot.phase is SlotPhase.IDLE
    plain = "dim" if idle else "text"
    line: list[Span] = [(f"{slot.id:>2} ", "dim"), (fit(slot.phase.value, 8), role)]
    if task:
        line.append((fit(str(slot.task) if slot.task is not None else UNKNOWN, 9), plain))
    done = "" if idle else _progress_text(slot)
    track = "" if idle or slot.progress is None else " track"
    line += [(filled, role + track), (rest, "faint" + track), (fit(done, 6, right=True), plain)]
    line += [
        (fit("" if idle else rate(slot.tokens_per_second) + " ", 8, right=True), plain),
        (fit(f"{context(slot.context_used)}/{context(slot.n_ctx)} ", 12, right=True), plain),
    ]
    if acceptance:
        line.append((fit("" if idle else percent(slot.acceptance) + " ", 6, right=True), plain))
    return tuple(line) if line else BLANK


def _progress_text(slot: SlotPicture) -> str:
    if slot.progress is not None:
        return percent(slot.progress)
    return compact(slot.decoded) if slot.phase is SlotPhase.DECODE else UNKNOWN
