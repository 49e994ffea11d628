"""Many servers at once: a row each, the worst first; one of them opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

from specdash.core.readings import ReadingStatus
from specdash.core.records import AlertSeverity
from specdash.insight.fleet import FleetRow, worst_first
from specdash.insight.picture import BackendState
from specdash.insight.speedup.verdict import VerdictKind
from specdash.system.text import UNKNOWN, clean, counted, number, percent, rate
from specdash.tui.action_table import DEFAULT_KEYS, KeyTable, page_bindings
from specdash.tui.screens.connect import SmallApp
from specdash.tui.spans import BLANK, PALETTES, Line, Span, fit, line_width, middle, theme_after, value_span
from specdash.tui.widgets.header import ROLES, STATE_ROLES, state_glyph
from specdash.tui.widgets.header import glyph as severity_glyph
from specdash.tui.widgets.panel import Column, LinesWidget, columns_that_fit, table
from specdash.tui.widgets.speculation.verdict import VERDICT_ROLES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from textual import events
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from specdash.insight.picture import MeasuredFigure
    from specdash.tui.widgets.prompt import TextPrompt

    Rows = Callable[[Collection[str]], list[FleetRow]]

REFRESH_S = 1.0
WORST_FIRST = ""
"""The order that begins: no column's."""
_SHORT = {
    VerdictKind.UNCLEAR: "can't tell",
    VerdictKind.NO_DIFFERENCE: "no differ.",
    VerdictKind.OFF: "not spec.",
}
_HEAD = 3
"""Lines above the first row."""
_FOOT = 3
_WIDE_NAME = 108
"""Columns of the terminal from which a name has twice the room."""


class FleetChoice(Struct):
    """How the rows are looked at; kept while one of them is opened."""

    order: str = WORST_FIRST
    """The heading of the column that they are sorted by."""
    is_reversed: bool = False
    words: str = ""
    """The filter."""
    selected: str | None = None
    """The name of a row."""


def columns(width: int, rows: Sequence[FleetRow] = ()) -> list[Column[FleetRow]]:
    """The columns, of which a narrow terminal shows the first ranks; those of GPUs where anything is known of one."""
    name = 28 if width >= _WIDE_NAME else 14
    every: list[Column[FleetRow]] = [
        Column("server", name, lambda row: (middle(row.name.removeprefix("http://"), name), "text"), 0, right=False),
        Column("state", 9, lambda row: _state(row), 1, right=False),
        Column("verdict", 11, _verdict, 2, right=False),
        Column(
            "acc", 5, lambda row: _measured(row.acceptance, percent(row.acceptance.value, unit="%"), "acceptance"), 3
        ),
        Column("dec/s", 6, lambda row: _measured(row.decode, rate(row.decode.value), "decode"), 4),
        Column("pre/s", 6, lambda row: _measured(row.prefill, rate(row.prefill.value), "prefill"), 5),
        Column("ctx", 4, lambda row: value_span(percent(row.context, unit="%")), 6),
        Column("gpu", 4, lambda row: value_span(percent(row.gpu, unit="%"), "machine"), 7),
        Column("vram", 4, lambda row: value_span(percent(row.vram, unit="%"), "machine"), 10),
        Column("wait", 4, lambda row: value_span(number(row.queue), "warn" if row.queue else "dim"), 8),
        Column("alerts", 6, lambda row: _alerts(row), 9, right=False),
        Column("busy", 5, lambda row: value_span(busy(row)), 11),
        Column("model", 18, lambda row: value_span(middle(row.model or UNKNOWN, 18), "dim"), 12, right=False),
        Column("what is wrong", 24, _wrong, 13, right=False, stretch=True),
    ]
    known = {"gpu": any(row.gpu is not None for row in rows), "vram": any(row.vram is not None for row in rows)}
    return [column for column in every if known.get(column.heading, True)]


def busy(row: FleetRow) -> str:
    """Slots at work of all: `1/4`."""
    return f"{row.busy}/{row.slots}" if row.slots is not None else UNKNOWN


def _wrong(row: FleetRow) -> Span:
    return clean(row.cause or row.reason, 300), "dim"


def _state(row: FleetRow) -> Span:
    if row.state not in set(BackendState):
        return clean(row.state, 9), "dim"
    state = BackendState(row.state)
    return f"{state_glyph(state)} {state}", STATE_ROLES[state]


def _verdict(row: FleetRow) -> Span:
    if row.verdict is None:
        return UNKNOWN, "dim"
    kind = row.verdict.kind
    return _SHORT.get(kind, row.verdict.headline), VERDICT_ROLES[kind] + " bold" * row.verdict.is_clear


def _measured(figure: MeasuredFigure, text: str, role: str) -> Span:
    return value_span(text, role if figure.status is ReadingStatus.KNOWN else "dim")


def _alerts(row: FleetRow) -> Span:
    counts = {
        AlertSeverity.CRITICAL: row.critical,
        AlertSeverity.WARNING: row.warnings,
        AlertSeverity.NOTICE: row.notices,
    }
    shown = [(severity, count) for severity, count in counts.items() if count]
    if not shown:
        return "", "dim"
    return " ".join(f"{severity_glyph(severity)}{count}" for severity, count in shown[:2]), ROLES[shown[0][0]]


VALUES: dict[str, Callable[[FleetRow], float | str | None]] = {
    "server": lambda row: row.name,
    "state": lambda row: row.state,
    "verdict": lambda row: row.verdict.headline if row.verdict is not None else None,
    "acc": lambda row: row.acceptance.value,
    "dec/s": lambda row: row.decode.value,
    "pre/s": lambda row: row.prefill.value,
    "ctx": lambda row: row.context,
    "gpu": lambda row: row.gpu,
    "vram": lambda row: row.vram,
    "wait": lambda row: row.queue,
    "alerts": lambda row: row.alerts,
    "busy": lambda row: row.busy,
    "model": lambda row: row.model,
    "what is wrong": lambda row: row.cause or row.reason or None,
}
"""What the rows are sorted by, by the heading: texts from A on, numbers from the greatest; unknown ones last."""


def passing(rows: Sequence[FleetRow], choice: FleetChoice) -> list[FleetRow]:
    """The rows that the filter lets through."""
    words = choice.words.lower()
    return [
        row for row in rows if words in f"{row.name} {row.url} {row.model} {row.state} {row.group} {row.cause}".lower()
    ]


def arranged(rows: Sequence[FleetRow], choice: FleetChoice) -> list[FleetRow]:
    """The rows that the filter lets through, in the order chosen."""
    passed = worst_first(passing(rows, choice))
    if choice.order == WORST_FIRST:
        return passed[::-1] if choice.is_reversed else passed
    value = VALUES[choice.order]
    known = [row for row in passed if value(row) is not None]
    is_text = any(isinstance(value(row), str) for row in known)
    known.sort(key=lambda row: _shown(value(row)), reverse=is_text is choice.is_reversed)
    return known + [row for row in passed if value(row) is None]


def _shown(value: float | str | None) -> Any:
    """As far as it is drawn: rows that look the same shall not change places every second."""
    return value if isinstance(value, str) else float(f"{value:.2g}")


def summary(rows: Sequence[FleetRow], shown: int, choice: FleetChoice) -> Line:
    """How many there are, what is the matter with them, and how they are looked at."""
    down = sum(row.is_away for row in rows)
    costs = sum(row.verdict is not None and row.verdict.kind is VerdictKind.COSTS for row in rows)
    pays = sum(row.verdict is not None and row.verdict.kind is VerdictKind.PAYS for row in rows)
    alerts = sum(row.alerts for row in rows)
    parts: list[Span] = [(f" {counted(len(rows), 'server')}", "accent bold")]
    counts = (
        (down, "away", "bad bold"),
        (costs, "costs" if costs == 1 else "cost", "bad"),
        (pays, "pays" if pays == 1 else "pay", "good"),
    )
    parts += [(f"  {count} {word}", role) for count, word, role in counts if count]
    parts += [(f"  {counted(alerts, 'alert')}", "warn")] if alerts else []
    order = f"by {choice.order}" if choice.order else "worst first"
    parts.append((f"  {order}{', reversed' if choice.is_reversed else ''}", "dim"))
    if choice.words:
        parts.append((f"  filter: {clean(choice.words, 30)} ({shown} of {len(rows)})", "accent"))
    return tuple(parts)


class FleetPage(LinesWidget):
    """The rows, or the history of one."""

    def __init__(self, keys: KeyTable, choice: FleetChoice) -> None:
        super().__init__(id="fleet")
        self.keys, self.choice = keys, choice
        self.rows: list[FleetRow] = []
        self.shown: list[FleetRow] = []
        self._top = 0

    @property
    def index(self) -> int:
        """Of the selected row among those shown; the first where it is not among them."""
        return next((at for at, row in enumerate(self.shown) if row.name == self.choice.selected), 0)

    @property
    def selected(self) -> FleetRow | None:
        """The selected row."""
        return self.shown[self.index] if self.shown else None

    @property
    def columns(self) -> list[Column[FleetRow]]:
        """Those of the present rows and width."""
        return columns(self.size.width, self.rows)

    @property
    def names_drawn(self) -> list[str]:
        """The names of the rows that are drawn."""
        return [row.name for row in self.shown[self._top : self._top + self._room]]

    @property
    def _room(self) -> int:
        return max(self.size.height - _HEAD - _FOOT, 1)

    def take(self, rows: list[FleetRow]) -> None:
        """Draw these rows."""
        self.rows = rows
        self.redraw()

    def redraw(self) -> None:
        """Lay out for the present size and choice."""
        width, height = self.size
        if not width:
            return
        self.shown = arranged(self.rows, self.choice)
        lines = self._table(width)[: height - 1]
        lines += [BLANK] * (height - 1 - len(lines))
        self.set_lines([*lines, self._ways()])

    def _table(self, width: int) -> list[Line]:
        index, room = self.index, self._room
        self._top = max(min(self._top, index, len(self.shown) - room), index - room + 1, 0)
        drawn = self.shown[self._top : self._top + room]
        heading, *rows = table(self.columns, drawn, width - 2)
        cells = (
            (text, "accent bold" if text.strip() == self.choice.order and self.choice.order else "dim")
            for text, _ in heading
        )
        lines: list[Line] = [
            summary(self.rows, len(passing(self.rows, self.choice)), self.choice),
            BLANK,
            (("  ", "dim"), *cells),
        ]
        for row, line in zip(drawn, rows, strict=True):
            is_selected = row is self.shown[index]
            mark = ">" if is_selected else " "
            name, *rest = line
            lines.append(((f"{mark} ", "accent bold"), (name[0], "text bold" if is_selected else name[1]), *rest))
        if not drawn:
            lines.append((("  no server passes the filter" if self.choice.words else "  no server", "dim"),))
        lines += [BLANK] * (_HEAD + room - len(lines) + 1)
        chosen = self.selected
        if chosen is not None:
            lines.append(((f" {fit(_about(chosen), width - 2)}", "text"),))
        return lines

    def _ways(self) -> Line:
        keys = self.keys
        ways = (
            (keys["open"], "dashboard"),
            (keys.arrows, "select"),
            (f"{keys['log.left']}{keys['log.right']}", "sort"),
            (keys["log.invert"], "reverse"),
            (keys["log.find"], "filter"),
            (keys["quit"], "quit"),
            (keys["theme"], "theme"),
        )
        spans = [((f" {key}", "accent"), (f" {word} ", "dim")) for key, word in ways]
        while sum(map(line_width, spans)) > self.size.width and len(spans) > 1:
            spans.pop()
        return tuple(span for pair in spans for span in pair)

    def on_click(self, event: events.Click) -> None:
        """A heading sorts by its column; a row is selected, and opened where it was already."""
        line = event.y - _HEAD
        if line == -1:
            at = 2
            for column, cells in columns_that_fit(self.columns, self.size.width - 2):
                at += cells + 1
                if event.x < at:
                    self.sort_by(column.heading)
                    return
        elif 0 <= line < len(self.names_drawn):
            row = self.shown[self._top + line]
            is_selected = row.name == self.choice.selected
            self.choice.selected = row.name
            if is_selected or event.chain > 1:
                self.app.exit(row)
            self.redraw()

    def sort_by(self, heading: str) -> None:
        """Sort by this column; once more: the other way round."""
        choice = self.choice
        choice.is_reversed = heading == choice.order and not choice.is_reversed
        choice.order = heading
        self.redraw()


def _about(row: FleetRow) -> str:
    words = row.cause or row.reason or (row.verdict.words if row.verdict is not None else "")
    return clean(f"{row.name}: {words}" if words else row.name, 400)


class FleetApp(SmallApp[FleetRow]):
    """The fleet as a program of its own. `run()` returns the row that was opened, None when the user quit.

    `rows` gives those of now, and gets the names of those that are looked at: they must be fresh.
    """

    CSS = "#fleet { width: 1fr; height: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = page_bindings(
        {
            "open": "open",
            "back": "leave",
            "quit": "quit",
            "theme": "next_theme",
            "move.up": "move(-1)",
            "move.down": "move(1)",
            "move.page_up": "page(-1)",
            "move.page_down": "page(1)",
            "move.start": "move(-100000)",
            "move.end": "move(100000)",
            "log.left": "sort(-1)",
            "log.right": "sort(1)",
            "log.invert": "reverse",
            "log.find": "ask_filter",
            "log.filter": "ask_filter",
        }
    )

    def __init__(
        self,
        rows: Rows,
        choice: FleetChoice | None = None,
        *,
        theme: str | None = None,
        keys: KeyTable = DEFAULT_KEYS,
    ) -> None:
        super().__init__(theme=theme, keys=keys)
        self._rows = rows
        self._page = FleetPage(keys, choice or FleetChoice())
        self._prompt: TextPrompt | None = None

    def compose(self) -> ComposeResult:
        """One page."""
        yield self._page

    def on_mount(self) -> None:
        """Draw, again and again."""
        self._page.repaint(self.palette)
        self.call_after_refresh(self._tick)
        self.set_interval(REFRESH_S, self._tick)

    def on_resize(self) -> None:
        """Lay out again."""
        self.call_after_refresh(self._page.redraw)

    def on_key(self, event: events.Key) -> None:
        """Keys typed right behind the one that opens the filter belong to the filter."""
        if self._prompt is not None and self._prompt is self.focused and self._prompt.pass_on(event):
            event.prevent_default()

    def _tick(self) -> None:
        self._page.take(self._rows(frozenset(self._page.names_drawn)))

    def action_open(self) -> None:
        """End with the selected row."""
        if self._page.selected is not None:
            self.exit(self._page.selected)

    def action_leave(self) -> None:
        """Leave one thing: the filter, the order; then the program."""
        page, choice = self._page, self._page.choice
        if choice.words:
            choice.words = ""
        elif choice.order or choice.is_reversed:
            choice.order, choice.is_reversed = WORST_FIRST, False
        else:
            self.exit()
        page.redraw()

    def action_move(self, lines: int) -> None:
        """Select another row."""
        page = self._page
        if page.shown:
            page.choice.selected = page.shown[min(max(page.index + lines, 0), len(page.shown) - 1)].name
            page.redraw()

    def action_page(self, pages: int) -> None:
        """Select a row as far away as the page is high."""
        self.action_move(pages * max(len(self._page.names_drawn) - 1, 1))

    def action_sort(self, step: int) -> None:
        """Sort by the next column (1), or by the one before (-1); before the first stands the worst first."""
        fitting = columns_that_fit(self._page.columns, self._page.size.width - 2)
        orders = [WORST_FIRST, *(column.heading for column, _ in fitting)]
        choice = self._page.choice
        at = orders.index(choice.order) if choice.order in orders else 0
        choice.order, choice.is_reversed = orders[(at + step) % len(orders)], False
        self._page.redraw()

    def action_reverse(self) -> None:
        """The other way round."""
        self._page.choice.is_reversed = not self._page.choice.is_reversed
        self._page.redraw()

    def action_next_theme(self) -> None:
        """The next theme of specdash."""
        self.theme = theme_after(self.theme)
        self.palette = PALETTES[self.theme]
        self._page.repaint(self.palette)

    async def action_ask_filter(self) -> None:
        """Ask for the words that a row must have."""
        from specdash.tui.widgets.prompt import TextPrompt

        if self._prompt is not None:
            return

        def done(words: str | None) -> None:
            prompt, self._prompt = self._prompt, None
            if prompt is not None:
                prompt.remove()
            if words is not None:
                self._page.choice.words = words.strip()
            self._page.redraw()

        self._prompt = TextPrompt("name, address, model, state or cause", self._page.choice.words, done)
        await self.mount(self._prompt)
        self.set_focus(self._prompt)
