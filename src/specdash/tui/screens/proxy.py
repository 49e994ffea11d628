"""The proxy screen: its state, sessions, guardrails over time, and requests. Imported when it is opened first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.readings import Status
from specdash.tui.actions import Place
from specdash.tui.formatting import clean, context, count, duration, percent, rate, seconds, window
from specdash.tui.layout import Rect
from specdash.tui.screens.board import BoardScreen
from specdash.tui.spans import Line, spread, wrap
from specdash.tui.widgets.panel import LinesWidget, TitledPanel
from specdash.tui.widgets.placed import PlacedBoard
from specdash.tui.widgets.proxy import joined, state_spans
from specdash.tui.widgets.proxy_tables import GuardrailsTable, RequestsTable, SessionsTable
from specdash.tui.widgets.rows import RowsPanel

if TYPE_CHECKING:
    from specdash.core.proxy_events import RequestEvent
    from specdash.core.proxy_status import ActiveView
    from specdash.tui.view import View

_SIDE_BY_SIDE = 110
_UNCONFIGURED: Line = (("not configured", "dim"),)
_LEAST_UPPER = 7
_MOST_UPPER = 40
_PROBLEMS = 2
SUMMARY, SESSIONS, GUARDRAILS, REQUESTS = "proxy-summary", "proxy-sessions", "proxy-guardrails", "proxy-requests"


def arrange(width: int, height: int, summary: int, rows: int, zoomed: str | None = None) -> dict[str, Rect]:
    """Where the parts go on `width` x `height` cells: the summary's lines, and `rows` of sessions or guardrails.

    Where there is room the guardrails stand beside the sessions, else below everything. A zoomed part has the screen to
    itself, but for the summary.
    """
    rest = max(height - summary, 0)
    places = {SUMMARY: Rect(0, 0, width, summary)}
    if zoomed is not None:
        return places | {zoomed: Rect(0, summary, width, rest)}
    if width >= _SIDE_BY_SIDE:
        upper = min(max(rows + 2, _LEAST_UPPER), max(rest * 2 // 5, _LEAST_UPPER), rest)
        left = (width - 1) * 3 // 5
        return places | {
            SESSIONS: Rect(0, summary, left, upper),
            GUARDRAILS: Rect(left + 1, summary, width - left - 1, upper),
            REQUESTS: Rect(0, summary + upper, width, rest - upper),
        }
    upper, lower = rest * 6 // 19, rest * 5 // 19
    return places | {
        SESSIONS: Rect(0, summary, width, upper),
        REQUESTS: Rect(0, summary + upper, width, rest - upper - lower),
        GUARDRAILS: Rect(0, height - lower, width, lower),
    }


class Summary(LinesWidget):
    """State of the proxy and figures of the window; below, what is wrong with its settings."""

    def show(self, view: View) -> None:
        """Draw this view."""
        self.glyphs = view.glyphs
        self.set_lines(summary_lines(view, self.size.width or self.app.size.width))


def summary_lines(view: View, width: int) -> list[Line]:
    """Two lines, and one for each of the first problems."""
    proxy, glyphs = view.picture.proxy, view.glyphs
    live = proxy.live
    title: Line = (
        ("Proxy ", "accent bold"),
        *(state_spans(proxy, view.picture.wall, glyphs) if proxy.configured else _UNCONFIGURED),
    )
    figures = proxy.window
    known: list[Line] = [
        ((f"last {window(view.picture.window_s)}  ", "dim"),),
        _pair("requests", count(figures.requests)),
        _pair("errors", percent(figures.error_rate, 1), "bad bold" if figures.errors else "text bold"),
        _pair("ttft", seconds(figures.ttft_p50_s)),
        _pair("decode", f"{rate(figures.decode_p50)} tok/s"),
        _pair("accepted", percent(figures.acceptance)),
        _pair("cached", percent(figures.cache_share)),
        _pair("clients left", count(figures.clients_left)),
    ]
    lines = [spread(title, _what_runs(view, wide=width >= 100), width), joined(known, width)]
    for problem in (live.problems if live is not None else ())[:_PROBLEMS]:
        lines += [((f"{glyphs.alert} {text}", "warn"),) for text in wrap(clean(problem, 400), width - 2, 1)]
    return lines


def _pair(label: str, value: str, role: str = "text bold") -> Line:
    return (f"{label} ", "dim"), (f"{value}  ", "dim" if value.startswith("--") else role)


def _what_runs(view: View, *, wide: bool) -> Line:
    """Address and version; window and uptime where there is room."""
    proxy = view.picture.proxy
    parts = [clean(proxy.url or "", 60)]
    if (live := proxy.live) is not None:
        version = clean(live.version, 20)
        parts.append(f"v{version}" if version[:1].isdigit() else f"{version} proxy" if version else "")
        if wide and live.context_window:
            parts.append(f"ctx {context(live.context_window)}")
        if wide and live.started is not None and proxy.status is Status.KNOWN:
            parts.append(f"up {duration(view.picture.wall - live.started)}")
    return (("  ".join(part for part in parts if part) + " ", "dim"),)


class ProxyBoard(PlacedBoard):
    """The parts of the screen."""

    def __init__(self) -> None:
        super().__init__()
        self.summary = Summary(id=SUMMARY)
        self.sessions = SessionsTable()
        self.requests = RequestsTable()
        self.guardrails = GuardrailsTable()
        self.wants = (2, 0)
        """Lines of the summary, and rows of the longer of the tables above the requests."""
        self.zoomed: str | None = None

    @property
    def tables(self) -> tuple[SessionsTable, RequestsTable, GuardrailsTable]:
        """In the order of the focus."""
        return self.sessions, self.requests, self.guardrails

    @property
    def parts(self) -> tuple[LinesWidget, ...]:
        """Summary and tables."""
        return self.summary, *self.tables

    def places(self, width: int, height: int) -> dict[str, Rect]:
        """See `arrange`."""
        return arrange(width, height, *self.wants, self.zoomed)

    def show(self, view: View) -> None:
        """Draw this view in all parts that are seen."""
        self.summary.show(view)
        proxy = view.picture.proxy
        sessions = len(proxy.live.sessions) if proxy.live is not None else 0
        wants = len(self.summary.lines), min(max(sessions, len(proxy.guardrails)), _MOST_UPPER)
        if wants != self.wants:
            self.wants = wants
            self.place_again()
        for table in self.tables:
            if table.display:
                table.show(view)

    def zoom(self, table: TitledPanel | None) -> None:
        """Give one table the room of all, or with None all their places."""
        self.zoomed = table.id if table is not None else None
        for one in self.tables:
            one.display = table is None or one is table
        self.place_again()


class ProxyScreen(BoardScreen[ProxyBoard]):
    """Above the overview while it is open."""

    def __init__(self) -> None:
        super().__init__(ProxyBoard(), Place.PROXY)

    def on_mount(self) -> None:
        """The requests are what most want to look at."""
        self.board.requests.focus()

    @property
    def table(self) -> RowsPanel[object]:
        """The focused table."""
        focused = self.focused
        table: RowsPanel[object] = focused if isinstance(focused, RowsPanel) else self.board.requests  # type: ignore[assignment]
        return table

    @property
    def moving(self) -> RowsPanel[object]:
        """What keys of movement move."""
        return self.table

    def toggle_zoom(self) -> None:
        """The focused table alone, or all."""
        self.board.zoom(None if self.board.zoomed is not None else self.table)

    def leave(self) -> bool:
        """Leave zoom, else the filter; False when there is nothing to leave but the screen."""
        if self.board.zoomed is not None:
            self.board.zoom(None)
        elif self.board.requests.only is not None:
            self.only(None)
        else:
            return False
        return True

    def open_selected(self) -> ActiveView | RequestEvent | None:
        """The request to show in detail; a session instead becomes, or ceases to be, the filter."""
        if self.table is self.board.sessions:
            session = self.board.sessions.selected
            if session is not None:
                self.only(None if session.id == self.board.requests.only else session.id)
            return None
        return self.board.requests.selected if self.table is self.board.requests else None

    def only(self, session: str | None) -> None:
        """Show the requests of one session, or of all."""
        self.board.requests.only = self.board.sessions.only = session
        self.board.requests.redraw()
        self.board.sessions.redraw()
