"""The board of the overview: places the panels where `layout.arrange` says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len

from specdash.core.readings import ReadingStatus, Source
from specdash.insight.charts import Metric
from specdash.insight.picture import SlotPhase, SlotPicture
from specdash.system.stats import share
from specdash.system.text import (
    UNKNOWN,
    age,
    clean,
    clock,
    compact,
    context,
    number,
    percent,
    plain,
    rate,
    size,
    size_pair,
)
from specdash.tui.layout import PanelId, arrange
from specdash.tui.spans import BLANK, GLYPHS, Line, Span, bar, fit, line_width, value_span, wrap
from specdash.tui.widgets.chart import Chart, decode_panel, gain_panel, prefill_panel
from specdash.tui.widgets.logs import LogPanel
from specdash.tui.widgets.panel import Column, Panel, PlacedBoard, message, table
from specdash.tui.widgets.services.proxy import ProxyPanel
from specdash.tui.widgets.speculation.acceptance import AcceptancePanel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from textual import events

    from specdash.core.readings import Gpu, Host, ProcessTree
    from specdash.insight.picture import GpuPicture, LogPicture, WarningPicture
    from specdash.insight.request import ServedRequest
    from specdash.tui.layout import Rect
    from specdash.tui.spans import Line, Span
    from specdash.tui.view import View


# Slots: phase, progress, speed, context used and live acceptance of each.

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
        """The slots that fit; a last line says how many do not."""
        slots = view.picture.backend.slots
        if slots is None:
            return message(view.why(Source.SLOTS, "no slot data yet"), width, height)
        heading = height > len(slots) or height >= 6
        ordered = sorted(slots, key=lambda slot: (slot.phase is SlotPhase.IDLE, slot.id))
        room = height - heading
        shown = ordered if len(ordered) <= room else ordered[: max(room - 1, 1)]
        lines = [_heading(width)] if heading else []
        lines += [_slot_line(slot, width) for slot in shown]
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


def _slot_line(slot: SlotPicture, width: int) -> Line:
    acceptance, task, room = _parts(width)
    role = _PHASE_ROLES[slot.phase]
    filled, rest = bar(slot.progress, room)
    idle = slot.phase is SlotPhase.IDLE
    plain = "dim" if idle else "text"
    line: list[Span] = [(f"{slot.id:>2} ", "dim"), (fit(slot.phase.value, 8), role)]
    if task:
        line.append((fit(UNKNOWN if slot.task is None else f"{slot.task}", 9), plain))
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


# Finished requests, newest first.


def _accepted(request: ServedRequest) -> str:
    if request.draft_generated is None or request.draft_accepted is None:
        return UNKNOWN
    return f"{compact(request.draft_accepted)}/{compact(request.draft_generated)}"


def _decoded(request: ServedRequest) -> Span:
    return ("cancelled", "warn") if request.cancelled else value_span(compact(request.decode_tokens))


COLUMNS: tuple[Column[ServedRequest], ...] = (
    Column("ago", 4, lambda r: (age(r.ended_age_s), "dim"), rank=0),
    Column("slot", 4, lambda r: value_span(plain(r.slot)), rank=6),
    Column("task", 6, lambda r: value_span(plain(r.task)), rank=5),
    Column("prompt", 6, lambda r: value_span(compact(r.processed_tokens)), rank=1),
    Column("cached", 6, lambda r: value_span(compact(r.prompt_cached)), rank=7),
    Column("prefill", 7, lambda r: value_span(number(r.prompt_ms and r.prompt_ms / 1000, 2, "s")), rank=9),
    Column("pre/s", 6, lambda r: value_span(rate(r.prefill_rate), "prefill"), rank=4),
    Column("decoded", 9, _decoded, rank=0),
    Column("decode", 7, lambda r: value_span(number(r.decode_ms and r.decode_ms / 1000, 2, "s")), rank=8),
    Column("dec/s", 6, lambda r: value_span(rate(r.decode_rate), "decode"), rank=2),
    Column("accepted", 11, lambda r: value_span(_accepted(r)), rank=10),
    Column("acc", 5, lambda r: value_span(percent(r.acceptance), "acceptance"), rank=3),
)


class RequestsPanel(Panel):
    """The last finished requests."""

    def __init__(self) -> None:
        super().__init__(PanelId.REQUESTS)

    def key_figure(self, view: View) -> Line:
        """Finished so far."""
        finished = view.picture.backend.requests_finished
        return ((number(finished), "dim" if finished is None else "text bold"), (" finished", "dim"))

    def aside(self, view: View) -> Line:
        """Cancelled so far, when there were any."""
        cancelled = view.picture.backend.requests_cancelled
        return ((f"{number(cancelled)} cancelled", "warn"),) if cancelled else ()

    def body(self, view: View, width: int, height: int) -> list[Line]:
        """The table."""
        requests = view.picture.log.requests
        if not requests:
            reason = view.picture.log.reason or "no request has finished yet"
            return message(reason, width, height)
        return table(COLUMNS, requests[: max(height - 1, 0)], width)


# Warning classes of the log: how many, how fast, how long ago, and one sample.

SEVERITY_ROLES = {"error": "bad", "warning": "warn", "notice": "dim"}
_ORDER = {"error": 0, "warning": 1, "notice": 2}
_ALWAYS = "find_slot"
_RECENT_S = 60.0
_STORM_PER_MINUTE = 600.0
_ROOMY = 46
"""Cells of the panel from which totals are written out."""


class WarningsPanel(Panel):
    """One line a class, the gravest first; find_slot never falls off the list."""

    def __init__(self) -> None:
        super().__init__(PanelId.WARNINGS)

    def key_figure(self, view: View) -> Line:
        """All warnings, coloured by the gravest class of the last minute."""
        warnings, total = view.picture.log.warnings, all_warnings(view.picture.log)
        if not total:
            return ((number(total), "dim" if total is None else "text bold"),)
        recent = [warning for warning in warnings if warning.last_age_s <= _RECENT_S]
        role = SEVERITY_ROLES.get(min(recent, key=_severity).severity, "text") if recent else "text"
        return ((number(total), f"{role} bold"),)

    def aside(self, view: View) -> Line:
        """All classes together, per minute."""
        current = [warning for warning in view.picture.log.warnings if warning.per_minute]
        if not current:
            return ()
        role = SEVERITY_ROLES.get(min(current, key=_severity).severity, "text")
        return ((rate(sum(warning.per_minute for warning in current)), f"{role} bold"), ("/min", "dim"))

    def body(self, view: View, width: int, height: int) -> list[Line]:
        """The classes; where there is room, samples below the first ones."""
        log = view.picture.log
        if not log.warnings:
            if log.since_wall is not None:
                return message(f"no warnings since {clock(log.since_wall)}", width, height)
            return message("no warnings" if log.lines else log.reason or "no log lines yet", width, height)
        shown = in_order(log.warnings, height)
        spare = height - len(shown) - (len(shown) < len(log.warnings))
        lines: list[Line] = []
        for warning, figures in zip(shown, _figures(shown, width), strict=True):
            lines.append(_class_line(warning, figures, width))
            for text in wrap(clean(warning.sample), width - 4, 1 if spare > 0 else 0):
                lines.append((("    ", "text"), (text, "dim")))
                spare -= 1
        if len(shown) < len(log.warnings):
            lines.append(((f"  {len(log.warnings) - len(shown)} more classes", "dim"),))
        return lines


def all_warnings(log: LogPicture) -> int | None:
    """Lines of all classes together; None where no log is known, or not all of it."""
    totals = [warning.total for warning in log.warnings]
    return sum(total for total in totals if total is not None) if log.lines and None not in totals else None


def _severity(warning: WarningPicture) -> tuple[int, float]:
    return _ORDER.get(warning.severity, 3), warning.last_age_s


def in_order(warnings: Sequence[WarningPicture], room: int) -> list[WarningPicture]:
    """The classes that fit into `room` lines, gravest and latest first, find_slot always among them."""
    ordered = sorted(warnings, key=_severity)
    if len(ordered) <= room:
        return ordered
    shown = ordered[: max(room - 1, 1)]
    pinned = next((warning for warning in ordered if warning.warning.startswith(_ALWAYS)), None)
    if pinned is not None and pinned not in shown:
        shown[-1] = pinned
    return shown


def alarming(warnings: Sequence[WarningPicture]) -> WarningPicture | None:
    """The class that the header should shout about: a recent error, or a storm of anything."""
    loud = [
        warning
        for warning in warnings
        if warning.last_age_s <= _RECENT_S and (warning.severity == "error" or warning.per_minute >= _STORM_PER_MINUTE)
    ]
    return min(loud, key=_severity, default=None)


def short_title(warning: WarningPicture) -> str:
    """The class in two or three words, for a panel without room for its title."""
    return clean(warning.warning.replace("_", " "))


def _figures(shown: Sequence[WarningPicture], width: int) -> list[list[Span]]:
    """Total, speed and age of each class, aligned; the speed and then the age give way to what the class is."""
    counts = [number(warning.total) if width >= _ROOMY else compact(warning.total) for warning in shown]
    speeds = [f"{rate(warning.per_minute)}/m" if warning.per_minute else "" for warning in shown]
    columns = [(counts, "text bold"), (speeds, ""), ([age(warning.last_age_s) for warning in shown], "dim")]
    room = width - 2 - max((len(short_title(warning)) for warning in shown), default=0)
    for column in (columns[1], columns[2]):
        if sum(1 + max(map(len, texts), default=0) for texts, _ in columns) > room:
            columns.remove(column)
    return [
        [
            (
                fit(texts[row], 1 + max(map(len, texts)), right=True),
                role or SEVERITY_ROLES.get(warning.severity, "text"),
            )
            for texts, role in columns
        ]
        for row, warning in enumerate(shown)
    ]


def _class_line(warning: WarningPicture, figures: Sequence[Span], width: int) -> Line:
    role = SEVERITY_ROLES.get(warning.severity, "text")
    mark = GLYPHS.note if warning.severity == "notice" else GLYPHS.alert
    room = width - 2 - line_width(figures)
    title = clean(warning.title)
    fresh = warning.last_age_s <= _RECENT_S and warning.severity != "notice"
    text = fit(title if cell_len(title) <= room else short_title(warning), room)
    return ((f"{mark} ", role), (text, role if fresh else "text"), *figures)


# GPUs as lines: use, memory, power, temperature, and what throttles them; or why there are none.

_HOT_CELSIUS = 85.0
_LEFT = 0.03
"""Of a GPU's memory; less is shown as full."""
BAR_REST = 30
"""Cells of a line beside its bar: label, percentage and words."""


def gpu_lines(picture: GpuPicture, width: int) -> list[Line]:
    """Two lines a GPU; the second one says what limits it."""
    if not picture.gpus:
        reason = clean(picture.unavailable or "none found", 160).removeprefix("unavailable: ")
        texts = wrap(reason, max(width - 5, 10), 2)
        return [((("GPU  " if index == 0 else "     "), "dim"), (text, "dim")) for index, text in enumerate(texts)]
    stale = picture.status is ReadingStatus.STALE
    lines: list[Line] = []
    for gpu in picture.gpus:
        lines += _one(gpu, width, stale=stale)
    return lines


def _one(gpu: Gpu, width: int, *, stale: bool) -> list[Line]:
    role = "dim" if stale else "text"
    watts = f"{number(gpu.power_watts)} W"
    if gpu.power_limit_watts is not None and width >= 44:
        watts = watts.replace(" W", f"/{gpu.power_limit_watts:.0f} W")
    celsius = f"{number(gpu.temperature_celsius)} °C"
    hot = gpu.temperature_celsius is not None and gpu.temperature_celsius >= _HOT_CELSIUS
    room = max(min(width - BAR_REST, 16), 0)
    filled, rest = bar(gpu.utilisation, room)
    first: list[Span] = [
        (f"GPU{gpu.index} ", "dim"),
        (filled, "machine track"),
        (rest, "faint track"),
        (f"{percent(gpu.utilisation):>6} ", role),
        (f" {watts}  ", role),
        (celsius, "warn bold" if hot else role),
    ]
    left, total = gpu.memory_left_bytes, gpu.memory_total_bytes
    full = left is not None and total is not None and left <= _LEFT * total
    second: list[Span] = [
        ("VRAM ", "dim"),
        (size_pair(gpu.memory_used_bytes, gpu.memory_total_bytes), "warn bold" if full else role),
    ]
    if gpu.throttle_reasons:
        second.append(("  " + clean(", ".join(gpu.throttle_reasons), 60), "warn"))
    elif gpu.name:
        second.append(("  " + clean(gpu.name, 40), "dim"))
    return [tuple(first), tuple(second)]


# Host and backend process as lines, and the panel that shows them under the GPUs.


_CHART_LEAST = 4


class MachinePanel(Panel):
    """GPUs, host, backend process; a chart of the GPU's (or else the CPU's) use where there is room."""

    def __init__(self) -> None:
        super().__init__(PanelId.MACHINE)
        self.gpu_chart = Chart(Metric.GPU_UTILISATION, "machine")
        self.cpu_chart = Chart(Metric.CPU, "machine")

    def key_figure(self, view: View) -> Line:
        """GPU use where there is a GPU, else CPU use."""
        gpus = view.picture.gpu.gpus
        used = [gpu.utilisation for gpu in gpus if gpu.utilisation is not None]
        if used:
            return (("GPU ", "dim"), (percent(sum(used) / len(used)), "text bold"))
        host = view.picture.host
        value = percent(host.cpu_utilisation) if host is not None else UNKNOWN
        return (("CPU ", "dim"), (value, "text bold" if value != UNKNOWN else "dim"))

    def body(self, view: View, width: int, height: int) -> list[Line]:
        """Text first; what height is left goes to the chart."""
        lines = gpu_lines(view.picture.gpu, width)
        lines += process_lines(view, width)
        lines += host_lines(view.picture.host, width)
        left = height - len(lines)
        chart = self.gpu_chart if view.picture.gpu.gpus else self.cpu_chart
        gap = [BLANK] if left > _CHART_LEAST else []
        return [*lines, *gap, *chart.lines(view, width, left - len(gap))]


def labelled_bar(label: str, fraction: float | None, text: str, width: int) -> Line:
    """`CPU  ███░░░  34 %  8 cores`: a label, a short bar, and words."""
    room = max(min(width - BAR_REST, 16), 0)
    filled, rest = bar(fraction, room)
    value: Span = (f"{percent(fraction):>6} ", "text" if fraction is not None else "dim")
    return ((f"{label:<5}", "dim"), (filled, "machine track"), (rest, "faint track"), value, (" " + text, "dim"))


def host_lines(host: Host | None, width: int) -> list[Line]:
    """CPU, memory, and disk and swap in one line."""
    if host is None:
        return [(("no data of this machine yet", "dim"),)]
    cores = f"{host.cpu_count} cores" if host.cpu_count else ""
    load = f"load {number(host.load_1m, 1)}" if host.load_1m is not None else ""
    memory = share(host.memory_used_bytes, host.memory_total_bytes)
    lines = [
        labelled_bar("CPU", host.cpu_utilisation, " ".join(filter(None, (load, cores))), width),
        labelled_bar("RAM", memory, size_pair(host.memory_used_bytes, host.memory_total_bytes), width),
    ]
    rest: list[Span] = [("disk ", "dim"), (size(host.disk_free_bytes), "text"), (" free", "dim")]
    if host.swap_total_bytes:
        swapping = (share(host.swap_used_bytes, host.swap_total_bytes) or 0.0) > 0.1
        rest += [
            ("  swap ", "dim"),
            (size_pair(host.swap_used_bytes, host.swap_total_bytes), "warn" if swapping else "text"),
        ]
    return [*lines, tuple(rest)]


def process_lines(view: View, width: int) -> list[Line]:
    """The backend's process and its children, or why they are not seen."""
    process: ProcessTree | None = view.picture.backend.process
    if process is None:
        return [(("proc ", "dim"), (view.why(Source.PROCESS, "the server's process is not known"), "dim"))]
    spans: list[Span] = [
        ("proc ", "dim"),
        (clean(process.name or "server", 18), "text"),
        (f" {process.pid}  " if width >= 48 else "  ", "dim"),
        (number(process.cpu_cores, 2), "text"),
        (" cores  ", "dim"),
        (size(process.memory_bytes), "text"),
    ]
    if width >= 60 and process.threads is not None:
        spans.append((f"  {process.threads} threads", "dim"))
    return [tuple(spans)]


class Board(PlacedBoard):
    """All panels. Those without a place are not displayed and do no work."""

    def __init__(self) -> None:
        super().__init__()
        self.choices: dict[PanelId, bool] = {}
        self.zoomed: PanelId | None = None
        self.bare: frozenset[PanelId] = frozenset()
        """Panels that have nothing but their title now."""
        self.log_panel = LogPanel()
        panels: tuple[Panel, ...] = (
            AcceptancePanel(),
            prefill_panel(),
            decode_panel(),
            SlotsPanel(),
            RequestsPanel(),
            WarningsPanel(),
            MachinePanel(),
            self.log_panel,
            gain_panel(),
            ProxyPanel(),
        )
        self.panels: dict[PanelId, Panel] = {panel.panel: panel for panel in panels}

    @property
    def parts(self) -> tuple[Panel, ...]:
        """The panels."""
        return tuple(self.panels.values())

    def places(self, width: int, height: int) -> dict[str, Rect]:
        """See `layout.arrange`."""
        return {self.panels[key].id or "": place for key, place in self._arranged(width, height).items()}

    def _arranged(self, width: int, height: int) -> dict[PanelId, Rect]:
        return arrange(width, height, self.choices, self.zoomed, self.bare)

    def visible_panels(self) -> Iterator[Panel]:
        """Panels that have a place now."""
        places = self._arranged(*self.size)
        return (panel for panel_id, panel in self.panels.items() if panel_id in places)

    def prime(self, view: View) -> None:
        """Give every panel a view to draw once it has a size."""
        self.log_panel.take_new_lines(view)
        self.bare = _bare(view)
        for panel in self.panels.values():
            panel.show(view)

    def show(self, view: View) -> None:
        """Draw this view in every visible panel."""
        self.log_panel.take_new_lines(view)
        bare = _bare(view)
        if bare != self.bare:
            self.bare = bare
            self.sync()
            self.place_again()
        for panel in self.visible_panels():
            panel.show(view)

    def on_resize(self, event: events.Resize) -> None:
        """Another size has room for other panels."""
        self._display()

    def toggle(self, panel: PanelId) -> None:
        """Hide a visible panel, show a hidden one."""
        visible = self.zoomed == panel or (self.zoomed is None and panel in self._arranged(*self.size))
        self.zoomed = None
        self.choices[panel] = not visible
        self.sync()

    def reset(self) -> None:
        """Forget what the user switched on and off."""
        self.choices.clear()
        self.zoomed = None
        self.sync()

    def zoom(self, panel: PanelId | None) -> None:
        """Give one panel the whole board, or with None all panels their places."""
        self.zoomed = panel
        self.sync()

    def sync(self) -> None:
        """Lay out again, displaying exactly the panels that have a place."""
        self._display()
        self.refresh(layout=True)

    def _display(self) -> None:
        places = self._arranged(*self.size)
        for panel_id, panel in self.panels.items():
            panel.display = panel_id in places


def _bare(view: View) -> frozenset[PanelId]:
    return frozenset() if view.picture.proxy.configured else frozenset({PanelId.PROXY})
