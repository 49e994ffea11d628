"""The proxy screen: its state, sessions, guardrails over time, and requests. Imported when it is opened first."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from specdash.core.proxy_events import RequestEvent
from specdash.core.readings import ReadingStatus
from specdash.insight.picture import NAME_PROXY
from specdash.insight.proxy.read_again import read_again
from specdash.insight.request import acceptance, cache_share, ended_how, is_error, of_event, prefill_progress
from specdash.system.stats import share
from specdash.system.text import (
    UNKNOWN,
    age,
    clean,
    clock,
    context,
    duration,
    number,
    percent,
    plain,
    rate,
    seconds,
    timestamp,
)
from specdash.tui.action_table import FooterScreen, bindings, page_bindings
from specdash.tui.layout import Rect
from specdash.tui.screens.base import BoardScreen
from specdash.tui.screens.modal import CLOSING, SCROLLING, PageScreen
from specdash.tui.spans import BLANK, GLYPHS, Line, fit, spread, wrap
from specdash.tui.widgets.panel import LinesWidget, PlacedBoard, RowsPanel, TitledPanel
from specdash.tui.widgets.services.proxy import guardrail_words, joined, marks, phase_text, state_spans
from specdash.tui.widgets.services.proxy_tables import GuardrailsTable, ProxyRequestsTable, ProxySessionsTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from textual.binding import BindingType

    from specdash.core.proxy_events import ActiveView
    from specdash.insight.picture import ProxyPicture
    from specdash.tui.app import Dashboard
    from specdash.tui.view import View
    from specdash.tui.widgets.header import HeaderSituation

    Request = ActiveView | RequestEvent


# One request of the proxy in words: everything that is known of it. Imported when it is opened first.

_LABEL = 15


class RequestScreen(PageScreen[None]):
    """Opened by enter on a request, closed by escape; it follows the request until its end."""

    BINDINGS: ClassVar[list[BindingType]] = page_bindings({"open": "leave"} | CLOSING | SCROLLING)

    def __init__(self, dashboard: Dashboard, view: View, request: Request) -> None:
        super().__init__(dashboard)
        self._view, self._request = view, request

    def lines(self, width: int, height: int) -> list[Line]:
        """See `request_lines`."""
        return request_lines(self._request, self._view, width)

    def show(self, view: View) -> None:
        """Draw what is known of the request now."""
        self._view, self._request = view, now_known(view.picture.proxy, self._request)
        self.page.redraw()


def now_known(proxy: ProxyPicture, request: Request) -> Request:
    """The request as the picture has it, ended rather than running; as it was when the picture has it no more."""
    if isinstance(request, RequestEvent):
        return request
    several: tuple[Request, ...] = (*proxy.finished, *proxy.running)
    return next((active_view for active_view in several if active_view.request_id == request.request_id), request)


def request_lines(request: Request, view: View, width: int) -> list[Line]:
    """The page."""
    lines: list[Line] = [(("Request", "accent bold"), (f"  all details; {view.keys['back']} closes", "dim")), BLANK]
    details = _ended(request) if isinstance(request, RequestEvent) else _running(request, view)
    for label, text in (*_whose(request, view), *details, *_read_again(request, view)):
        role = "dim" if text == UNKNOWN else "bad bold" if label == "error" else "text"
        for index, part in enumerate(wrap(text, max(width - _LABEL, 20), 4)):
            lines.append(((("" if index else label).ljust(_LABEL), "dim"), (part, role)))
    return [*lines, *_guardrail_lines(request, view, width)]


def _whose(request: Request, view: View) -> Iterator[tuple[str, str]]:
    started = request.at if isinstance(request, RequestEvent) else request.started
    when = f"{timestamp(started)}, {age(view.picture.wall - started)} ago" if started > 0 else UNKNOWN
    yield "ended" if isinstance(request, RequestEvent) and request.duration_s is None else "arrived", when
    yield "request", clean(request.request_id, 300) or UNKNOWN
    yield "session", clean(request.session, 300) or UNKNOWN
    how = [clean(request.path, 200)] if request.path else []
    if request.stream is not None:
        how.append("streamed" if request.stream else "in one piece")
    if request.strict:
        how.append("checked whole before it is sent")
    yield "endpoint", ", ".join(how) or UNKNOWN
    yield "model", clean(request.model, 200) or UNKNOWN


def _read_again(request: Request, view: View) -> Iterator[tuple[str, str]]:
    """Why its prompt was read again, with what the log adds."""
    if not isinstance(request, RequestEvent):
        return
    cache = view.picture.views.prefix_cache
    known = (one for one in cache.requests if one.session == request.session and one.began == request.at)
    found = read_again(next(known, of_event(request)), dropped=bool(cache.evicted))
    if found is not None:
        yield "read again", found.words


def _running(request: ActiveView, view: View) -> Iterator[tuple[str, str]]:
    yield "phase", f"{phase_text(request)}, for {seconds(view.picture.wall - request.started)} so far"
    yield "first content", f"after {seconds(request.ttft_s)}" if request.ttft_s is not None else "none yet"
    done = prefill_progress(request)
    processed = f"{percent(done)} processed, at {rate(request.prefill_rate)} tok/s"
    yield "prompt", f"{_tokens(request.prompt_tokens)}, {_cached(request)}; {processed}"
    yield "answer", f"{_tokens(request.completion_tokens)} so far, at {rate(request.decode_rate)} tok/s"
    yield "speculation", _speculation(request)
    yield "tools", f"{request.tools} offered"
    yield "attempt", f"{request.attempt}" if request.attempt == 1 else f"{request.attempt}: it was sent again"


def _ended(request: RequestEvent) -> Iterator[tuple[str, str]]:
    status = f", HTTP {request.status}" if request.status is not None else ""
    yield "error" if is_error(request) else "end", f"{clean(ended_how(request), 200)}{status}"
    held = f"held {seconds(request.held_s)}, " if request.held_s else ""
    parts = f"{held}prefill {seconds(request.prefill_s)}, decode {seconds(request.decode_s)}"
    yield "time", f"{seconds(request.duration_s)} in all: {parts}"
    yield "first content", f"after {seconds(request.ttft_s)}" if request.ttft_s is not None else UNKNOWN
    yield (
        "prompt",
        f"{_tokens(request.prompt_tokens)}, {_cached(request)}; prefill at {rate(request.prefill_rate)} tok/s",
    )
    yield "answer", f"{_tokens(request.completion_tokens)}, at {rate(request.decode_rate)} tok/s"
    yield "speculation", _speculation(request)
    yield "context", _context(request)
    yield "messages", f"{number(request.messages)} messages, {number(request.tools)} tools offered"
    called = request.tool_calls
    yield "tools called", UNKNOWN if called is None else ", ".join(clean(name, 60) for name in called) or "none"
    yield "retries", plain(request.retries)


def _guardrail_lines(request: Request, view: View, width: int) -> Iterator[Line]:
    names = marks(request.guardrails or ())
    nothing = UNKNOWN if request.guardrails is None else "none"
    for index, part in enumerate(wrap(names or nothing, max(width - _LABEL, 20), 4)):
        yield ((("" if index else "guardrails").ljust(_LABEL), "dim"), (part, "warn bold" if names else "dim"))
    for action in view.picture.proxy.actions:
        if action.request_id != request.request_id or not request.request_id:
            continue
        facts = ", ".join(f"{clean(name, 30)} {clean(str(value), 60)}" for name, value in action.facts.items())
        when = clock(action.at) if action.at > 0 else UNKNOWN
        words = f"{when} {guardrail_words(action.guardrail)} {action.action}{f': {facts}' if facts else ''}"
        for part in wrap(words, max(width - _LABEL, 20), 3):
            yield ((" " * _LABEL, "dim"), (part, "warn"))


def _tokens(tokens: int | None) -> str:
    return f"{number(tokens)} tokens"


def _cached(request: Request) -> str:
    return f"{number(request.cached_tokens)} of them from the cache ({percent(cache_share(request))})"


def _speculation(request: Request) -> str:
    if request.draft_tokens is None:
        return UNKNOWN
    if not request.draft_tokens:
        return "nothing was drafted"
    accepted = f"{number(request.accepted_tokens)} of {number(request.draft_tokens)} drafted tokens accepted"
    return f"{accepted} ({percent(acceptance(request))})"


def _context(request: RequestEvent) -> str:
    # Counts are summed over retries, and so is more than one try had in the window.
    if request.prompt_tokens is None or request.context_window is None or request.retries:
        return UNKNOWN
    used = request.prompt_tokens + (request.completion_tokens or 0)
    return f"{number(used)} of {number(request.context_window)} tokens ({percent(share(used, request.context_window))})"


_SIDE_BY_SIDE = 110
_NONE_WATCHED: Line = (("none is watched", "warn bold"),)
_UNSEEN = (
    ("do", NAME_PROXY, "text bold"),
    ("none yet", "`specdash proxy run` starts one: Claude Code and other Anthropic clients talk to it", "text"),
    ("shows", "which session is stuck, what runs now, how full each context is, what the guardrails did", "dim"),
)
"""What the screen says while no proxy is watched: what to do, and what there would be to see."""
_NAME = 11
_LEAST_UPPER = 7
_MOST_UPPER = 40
_PROBLEMS = 2
SUMMARY, SESSIONS, GUARDRAILS, REQUESTS = "proxy-summary", "proxy-sessions", "proxy-guardrails", "proxy-requests"


def arrange(width: int, height: int, summary: int, rows: int | None, zoomed: str | None = None) -> dict[str, Rect]:
    """Where the parts go on `width` x `height` cells: the summary's lines, and `rows` of sessions or guardrails;
    None for no proxy, of which the summary says all there is to say.

    Where there is room the guardrails stand beside the sessions, else below everything. A zoomed part has the screen to
    itself, but for the summary.
    """
    if rows is None:
        return {SUMMARY: Rect(0, 0, width, height)}
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
        self.set_lines(summary_lines(view, self.size.width or self.app.size.width))


def summary_lines(view: View, width: int) -> list[Line]:
    """Two lines, and one for each of the first problems."""
    proxy = view.picture.proxy
    live = proxy.live
    title: Line = (("Proxy ", "accent bold"),)
    if not proxy.configured:
        lines: list[Line] = [(*title, *_NONE_WATCHED), BLANK]
        for label, sentence, role in _UNSEEN:
            parts = wrap(sentence, width - _NAME, 2)
            lines += [((fit(label if not i else "", _NAME), "accent"), (part, role)) for i, part in enumerate(parts)]
        return lines
    title = (*title, *state_spans(proxy, view.picture.wall))
    figures = proxy.window
    known: list[Line] = [
        ((f"last {duration(view.picture.window_s, short=True)}  ", "dim"),),
        _pair("requests", number(figures.requests)),
        _pair("errors", percent(figures.error_rate, 1), "bad bold" if figures.errors else "text bold"),
        _pair("ttft", seconds(figures.ttft_p50_s)),
        _pair("decode", f"{rate(figures.decode_p50)} tok/s"),
        _pair("accepted", percent(figures.acceptance)),
        _pair("cached", percent(figures.cache_share)),
        _pair("clients left", number(figures.clients_left)),
    ]
    lines = [spread(title, _what_runs(view, wide=width >= 100), width), joined(known, width)]
    for problem in (live.problems if live is not None else ())[:_PROBLEMS]:
        texts = wrap(clean(problem, 400), width - 2, 2)
        lines += [((f"{' ' if i else GLYPHS.alert} {text}", "warn"),) for i, text in enumerate(texts)]
    return lines


def _pair(label: str, value: str, role: str = "text bold") -> Line:
    return (f"{label} ", "dim"), (f"{value}  ", "dim" if value.startswith(UNKNOWN) else role)


def _what_runs(view: View, *, wide: bool) -> Line:
    """Address and version; window and uptime where there is room."""
    proxy = view.picture.proxy
    parts = [clean(proxy.url or "", 60)]
    if (live := proxy.live) is not None:
        version = clean(live.version, 20)
        parts.append(f"v{version}" if version[:1].isdigit() else f"{version} proxy" if version else "")
        if wide and live.context_window:
            parts.append(f"ctx {context(live.context_window)}")
        if wide and live.started is not None and proxy.status is ReadingStatus.KNOWN:
            parts.append(f"up {duration(view.picture.wall - live.started, short=True)}")
    return (("  ".join(part for part in parts if part) + " ", "dim"),)


class ProxyBoard(PlacedBoard):
    """The parts of the screen."""

    def __init__(self) -> None:
        super().__init__()
        self.summary = Summary(id=SUMMARY)
        self.sessions = ProxySessionsTable()
        self.requests = ProxyRequestsTable()
        self.guardrails = GuardrailsTable()
        self.wants: tuple[int, int | None] = (2, 0)
        """Lines of the summary, and rows of the longer of the tables above the requests."""
        self.zoomed: str | None = None

    @property
    def tables(self) -> tuple[ProxySessionsTable, ProxyRequestsTable, GuardrailsTable]:
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
        rows = min(max(sessions, len(proxy.guardrails)), _MOST_UPPER) if proxy.configured else None
        wants = len(self.summary.lines), rows
        if wants != self.wants:
            self.wants = wants
            self.place_again()
        for table in self.tables:
            if table.display:
                table.show(view)

    def zoom(self, table: TitledPanel | None) -> None:
        """Give one table the room of all, or with None all their places."""
        self.zoomed = table.id if table is not None else None
        for proxy_sessions_table in self.tables:
            proxy_sessions_table.display = table is None or proxy_sessions_table is table
        self.place_again()


class ProxyScreen(BoardScreen[ProxyBoard]):
    """Above the overview while it is open."""

    place = FooterScreen.PROXY
    BINDINGS: ClassVar[list[BindingType]] = bindings(place)

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard, ProxyBoard())

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
    def copied(self) -> str:
        """The id of the selected session or request, or the name of the guardrail."""
        row = self.table.selected
        if self.table is self.board.requests:
            return getattr(row, "request_id", None) or ""
        return self.table.key(row) if row is not None else ""

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

    def show(self, view: View, situation: HeaderSituation) -> None:
        """Draw this view, also in the page of one request above it."""
        super().show(view, situation)
        if isinstance(detail := self.app.screen, RequestScreen):
            detail.show(view)

    async def action_open(self) -> None:
        """Show the selected request in detail; a selected session becomes, or ceases to be, the filter."""
        board = self.board
        if self.table is board.sessions and (session := board.sessions.selected) is not None:
            self.only(None if session.id == board.requests.only else session.id)
        elif self.table is board.requests and self.view is not None and (request := board.requests.selected):
            self.app.push_screen(RequestScreen(self.dashboard, self.view, request))

    def only(self, session: str | None) -> None:
        """Show the requests of one session, or of all."""
        self.board.requests.only = self.board.sessions.only = session
        self.board.requests.redraw()
        self.board.sessions.redraw()
