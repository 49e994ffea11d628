"""The tables of the proxy screen: sessions, requests, and guardrails over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.proxy_events import RequestEvent, RequestOutcome, SessionView, warning_level
from specdash.core.readings import ReadingStatus
from specdash.insight.picture import GuardrailCount
from specdash.insight.request import acceptance, cache_share, ended_how, is_error
from specdash.system.text import (
    UNKNOWN,
    age,
    clean,
    clock,
    compact,
    context,
    duration,
    number,
    percent,
    plain,
    rate,
    seconds,
)
from specdash.tui.spans import GLYPHS, add_up, bar, session_name, sparkline, value_span
from specdash.tui.widgets.panel import Column, RowsPanel
from specdash.tui.widgets.services.proxy import LEVEL_ROLES, PHASE_ROLES, guardrail_words, loop_text, marks, phase_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.core.proxy_events import ActiveView
    from specdash.insight.picture import ProxyPicture
    from specdash.tui.spans import Line, Span
    from specdash.tui.view import View

    Request = ActiveView | RequestEvent


RUNNING = "run"
"""Heading of the sessions' column of running requests."""


def _zero(value: int, role: str) -> Span:
    return (str(value), role if value else "dim")


class ProxySessionsTable(RowsPanel[SessionView]):
    """Sessions, the latest first. `only` is the session whose requests alone are shown, if any."""

    def __init__(self) -> None:
        super().__init__("Sessions", id="proxy-sessions")
        self.only: str | None = None

    def key_figure(self, view: View) -> Line:
        """How many, and how many of them loop."""
        live = view.picture.proxy.live
        if live is None:
            return ((UNKNOWN, "dim"),)
        looping = sum(session.is_looping and _is_recent(session, view.picture.wall) for session in live.sessions)
        spans: list[Span] = [(number(live.session_count), "text bold")]
        if looping:
            spans.append((f"  {looping} in a loop", "bad bold"))
        return tuple(spans)

    def rows(self, view: View) -> Sequence[SessionView]:
        """All that the proxy reports."""
        live = view.picture.proxy.live
        return live.sessions if live is not None else ()

    def key(self, row: SessionView) -> str:
        """Its id."""
        return row.id

    def mark(self, row: SessionView) -> str:
        """The one that the requests are filtered by."""
        return "*" if row.id == self.only else " "

    def nothing(self, view: View) -> str:
        """Why there are none."""
        proxy = view.picture.proxy
        return "no session yet" if proxy.live is not None else clean(proxy.reason, 300)

    def columns(self, view: View) -> Sequence[Column[SessionView]]:
        """What each session shows."""
        columns = session_columns(view.picture.wall, self.size.width)
        # No one reports running requests: the column would show zeros that no one counted.
        shown = view.picture.proxy.tells_running
        return columns if shown else [column for column in columns if column.heading != RUNNING]


def _is_recent(session: SessionView, wall: float) -> bool:
    """True while its last turn may still be going on; an agent that gave up leaves its loop behind."""
    return wall - session.last_seen <= RECENT_S


def session_columns(wall: float, width: int) -> tuple[Column[SessionView], ...]:
    """The columns of the sessions' table; in a wide one more is seen of the ids."""
    name = 26 if width >= 110 else 13

    def used(session_view: SessionView) -> Span:
        filled, rest = bar(session_view.utilisation, _BAR)
        return (filled + rest, f"{LEVEL_ROLES[warning_level(session_view.utilisation)]} track")

    def level(session_view: SessionView) -> Span:
        word = warning_level(session_view.utilisation)
        return (word or "", LEVEL_ROLES[word])

    def turns(session_view: SessionView) -> str:
        return plain(session_view.turns_remaining)

    def loop(session_view: SessionView) -> Span:
        if not session_view.is_looping:
            return ("none", "dim")
        return (loop_text(session_view), "bad bold" if _is_recent(session_view, wall) else "dim")

    return (
        Column("session", name, lambda s: value_span(session_name(s.id, name)), rank=0, right=False),
        Column("context", _BAR, used, rank=4, right=False),
        Column("use", 5, lambda s: value_span(percent(s.utilisation)), rank=0),
        Column("level", 8, level, rank=2, right=False),
        Column("turns", 5, lambda s: value_span(turns(s)), rank=1),
        Column("loop", 14, loop, rank=1, right=False),
        Column("bad calls", 9, lambda s: _zero(s.malformed_streak, "warn bold"), rank=3),
        Column("reqs", 5, lambda s: value_span(compact(s.requests)), rank=5),
        Column(RUNNING, 3, lambda s: _zero(s.active, "decode bold"), rank=7),
        Column("seen", 5, lambda s: value_span(age(wall - s.last_seen) if s.last_seen > 0 else UNKNOWN), rank=3),
        Column("tokens", 12, lambda s: value_span(f"{context(s.context_tokens)}/{context(s.context_window)}"), rank=8),
        Column("peak", 6, lambda s: value_span(context(s.peak_tokens)), rank=10),
        Column("pruned", 6, lambda s: _zero(s.prunes, "warn"), rank=9),
        Column("resets", 6, lambda s: _zero(s.contamination_resets, "warn"), rank=11),
    )


class ProxyRequestsTable(RowsPanel["Request"]):
    """Running requests, then finished ones, newest first; of one session where it is chosen."""

    def __init__(self) -> None:
        super().__init__("Requests", id="proxy-requests")
        self.only: str | None = None

    def key_figure(self, view: View) -> Line:
        """How many run, how many ended in the window, and the filter."""
        proxy = view.picture.proxy
        shown = value_span(number(len(proxy.running)) if proxy.tells_running else UNKNOWN, "text bold")
        spans: list[Span] = [shown, (" running", "dim")]
        if self.only is not None:
            spans += [
                ("  only session ", "accent"),
                (session_name(self.only, 26), "accent bold"),
                (f" ({view.keys['back']}: all)", "dim"),
            ]
        return tuple(spans)

    def aside(self, view: View) -> Line:
        """What was lost of the events."""
        proxy = view.picture.proxy
        if proxy.events_lost or proxy.events_unread:
            return ((f"{proxy.events_lost} events lost, {proxy.events_unread} not understood", "warn"),)
        return (
            ((f"{number(None if proxy.is_loading else len(proxy.finished))} finished", "dim"),)
            if proxy.finished
            else ()
        )

    def rows(self, view: View) -> Sequence[Request]:
        """All, or the chosen session's."""
        return requests_of(view.picture.proxy, self.only)

    def key(self, row: Request) -> str:
        """Its request id, which a request keeps when it ends; where it is unknown, itself."""
        return row.request_id or str(id(row))

    def nothing(self, view: View) -> str:
        """Why there are none."""
        proxy = view.picture.proxy
        if self.only is not None:
            return f"no requests of this session; {view.keys['back']} shows all"
        if proxy.events_status is not ReadingStatus.KNOWN and proxy.events_reason:
            return f"{clean(proxy.events_reason, 300)}. Finished requests come from there."
        return "no finished requests yet; they come from the proxy's events or log" if proxy.configured else ""

    def columns(self, view: View) -> Sequence[Column[Request]]:
        """What each request shows."""
        return request_columns(self.size.width)


def requests_of(proxy: ProxyPicture, session: str | None) -> list[Request]:
    """Running requests, then finished ones, newest first; all of them or one session's."""
    both: list[Request] = [*proxy.running, *proxy.finished]
    # The events of a request that just ended may be here before the picture without it.
    ended = {request_event.request_id for request_event in proxy.finished[:64]} & {
        active_view.request_id for active_view in proxy.running
    }
    kept = [
        active_view
        for active_view in both
        if isinstance(active_view, RequestEvent) or active_view.request_id not in ended
    ]
    return kept if session is None else [active_view for active_view in kept if active_view.session == session]


def state_of(request: Request) -> Span:
    """Phase of a running request; stop reason, error or departure of a finished one: shape, word, and role."""
    if not isinstance(request, RequestEvent):
        return (f"{GLYPHS.live} {phase_text(request)}", f"{PHASE_ROLES[request.phase]} bold")
    words = clean(ended_how(request), 40)
    if is_error(request):
        return (f"{GLYPHS.down} {words}", "bad")
    if request.outcome is RequestOutcome.CLIENT_LEFT:
        return (f"{GLYPHS.stale} {words}", "warn")
    return (f"  {words}", "text")


def _started(request: Request) -> float:
    return request.at if isinstance(request, RequestEvent) else request.started


def _retries(request: Request) -> Span:
    retries = request.retries if isinstance(request, RequestEvent) else request.attempt - 1
    return value_span(UNKNOWN) if retries is None else _zero(retries, "warn bold")


def _arrived(request: Request) -> str:
    return clock(_started(request)) if _started(request) > 0 else UNKNOWN


def _marks(request: Request, width: int) -> str:
    """Which guardrails, and where there is room what they did; enter shows it."""
    if request.guardrails is None:
        return UNKNOWN
    names = dict.fromkeys(mark.partition(":")[0] for mark in request.guardrails)
    return marks(request.guardrails if width >= _WORDY else tuple(names))


def _total(request: Request) -> str:
    return seconds(request.duration_s) if isinstance(request, RequestEvent) else ""


def request_columns(width: int) -> tuple[Column[Request], ...]:
    """The columns of the requests' table; in a wide one more is seen of the sessions' ids."""
    name = 26 if width >= 150 else 11
    return (
        Column("time", 8, lambda r: (_arrived(r), "dim"), rank=0),
        Column("session", name, lambda r: value_span(session_name(r.session, name)), rank=3, right=False),
        Column("phase or end", 18, lambda r: state_of(r), rank=0, right=False),
        Column("ttft", 7, lambda r: value_span(seconds(r.ttft_s)), rank=2),
        Column("pre/s", 6, lambda r: value_span(rate(r.prefill_rate), "prefill"), rank=5),
        Column("dec/s", 6, lambda r: value_span(rate(r.decode_rate), "decode"), rank=1),
        Column("prompt", 6, lambda r: value_span(compact(r.prompt_tokens)), rank=6),
        Column("cache", 5, lambda r: value_span(percent(cache_share(r))), rank=8),
        Column("out", 5, lambda r: value_span(compact(r.completion_tokens)), rank=7),
        Column("acc", 5, lambda r: value_span(percent(acceptance(r)), "acceptance"), rank=2),
        Column("retry", 5, _retries, rank=9),
        Column("total", 7, lambda r: value_span(_total(r)), rank=10),
        Column("guardrails", 13, lambda r: value_span(_marks(r, width), "warn"), rank=4, right=False, stretch=True),
    )


_BAR = 10
_WORDY = 150
"""Cells of a table from which actions are reported in full."""
RECENT_S = 60.0
"""Age of a session's last turn up to which its state is news."""
_SPARKS = ((112, 60), (82, 30), (54, 20), (42, 12), (0, 10))
"""Columns of a sparkline, by the least width of the table."""
_OTHERS = 31
"""Cells of the columns beside a sparkline and the actions, with what is between them."""


class GuardrailsTable(RowsPanel[GuardrailCount]):
    """One row a guardrail: its actions over the window as columns, their count, and the total by action."""

    def __init__(self) -> None:
        super().__init__("Guardrails", id="proxy-guardrails")

    def key_figure(self, view: View) -> Line:
        """Actions in the window."""
        proxy = view.picture.proxy
        known = [guardrail.window for guardrail in proxy.guardrails if guardrail.window is not None]
        if not known and not proxy.counts_guardrails:
            return ((UNKNOWN, "dim"),)
        total = sum(known)
        return (
            (number(total), "warn bold" if total else "text bold"),
            (f" in {duration(view.picture.window_s, short=True)}", "dim"),
        )

    def rows(self, view: View) -> Sequence[GuardrailCount]:
        """Those that ever acted."""
        return view.picture.proxy.guardrails

    def key(self, row: GuardrailCount) -> str:
        """Its name."""
        return row.guardrail

    def nothing(self, view: View) -> str:
        """None acted, or it is unknown."""
        proxy = view.picture.proxy
        if proxy.counts_guardrails:
            return "none triggered"
        return f"{clean(proxy.events_reason, 300)}. They come from there." if proxy.configured else ""

    def columns(self, view: View) -> Sequence[Column[GuardrailCount]]:
        """The columns, with sparklines as wide as there is room."""
        room = self.size.width - 2
        wide = next((columns for least, columns in _SPARKS if room >= least), _SPARKS[-1][1])
        sums = {
            guardrail.guardrail: add_up(guardrail.series or (), wide) for guardrail in view.picture.proxy.guardrails
        }
        highest = max((max(several, default=0) for several in sums.values()), default=0)

        def line(count: GuardrailCount) -> Span:
            if count.series is None:
                return (UNKNOWN, "dim")
            return (sparkline(sums[count.guardrail], highest), "warn track")

        def by_action(count: GuardrailCount) -> str:
            parts = [f"{clean(action, 20)} {compact(n)}" for action, n in count.actions]
            while len(parts) > 1 and len(", ".join(parts)) > room - wide - _OTHERS:
                parts.pop()
            return ", ".join(parts)

        return (
            Column("guardrail", 18, lambda g: value_span(guardrail_words(g.guardrail)), rank=0, right=False),
            Column(f"last {duration(view.picture.window_s, short=True)}", wide, line, rank=1, right=False),
            Column(
                "sum", 4, lambda g: _zero(g.window, "warn bold") if g.window is not None else value_span(UNKNOWN), 0
            ),
            Column("total", 5, lambda g: value_span(compact(g.total)), rank=0),
            Column("of which", 20, lambda g: value_span(by_action(g), "dim"), rank=2, right=False, stretch=True),
        )
