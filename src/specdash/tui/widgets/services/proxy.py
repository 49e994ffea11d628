"""The proxy on the overview: upstream, hold, fullest session, running requests, guardrails in the window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.proxy_events import RequestPhase, UpstreamStatus, warning_level
from specdash.core.readings import ReadingStatus
from specdash.insight.request import acceptance, prefill_progress
from specdash.system.text import UNKNOWN, age, clean, compact, context, duration, number, percent, rate, seconds
from specdash.tui.layout import PanelId
from specdash.tui.spans import GLYPHS, Line, Span, bar, line_width, session_name
from specdash.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.core.proxy_events import ActiveView, SessionView
    from specdash.insight.picture import ProxyPicture
    from specdash.tui.view import View

LEVEL_ROLES: dict[str | None, str] = {"CRITICAL": "bad", "HIGH": "warn", "ELEVATED": "accent", None: "good"}
PHASE_ROLES = {
    RequestPhase.HELD: "warn",
    RequestPhase.WAITING: "accent",
    RequestPhase.PREFILL: "prefill",
    RequestPhase.DECODE: "decode",
    RequestPhase.DONE: "dim",
}
_UPSTREAM_ROLES = {
    UpstreamStatus.OK: "good",
    UpstreamStatus.LOADING: "accent",
    UpstreamStatus.UNREACHABLE: "bad",
    UpstreamStatus.UNKNOWN: "dim",
}
_BAR = 16
_LABEL = 11


class ProxyPanel(Panel):
    """The proxy in three lines; more running requests where there is room."""

    def __init__(self) -> None:
        super().__init__(PanelId.PROXY)

    def key_figure(self, view: View) -> Line:
        """The state of the proxy and of its upstream; or how to name a proxy."""
        return state_spans(view.picture.proxy, view.picture.wall)

    def aside(self, view: View) -> Line:
        """Sessions and requests."""
        live = view.picture.proxy.live
        if live is None:
            return ()
        return ((f"{number(live.session_count)} sessions  {number(live.requests)} requests", "dim"),)

    def body(self, view: View, width: int, height: int) -> list[Line]:
        """Fullest session, running requests, guardrails."""
        proxy = view.picture.proxy
        if not proxy.configured:
            return []
        running = proxy.running
        shown = max(height - 2, 1)
        lines = [session_line(proxy.fullest, width)]
        if proxy.tells_running:
            lines += running_lines(running, width, shown)
        else:
            lines.append((("running".ljust(_LABEL), "dim"), (UNKNOWN, "dim")))
        lines.append(guardrail_line(proxy, view.picture.window_s, width))
        return lines


def state_spans(proxy: ProxyPicture, wall: float) -> Line:
    """`● upstream ok`, `▲ HELD 12s restart, 3 wait`, `✖ connection refused: …`, or how to name a proxy."""
    if not proxy.configured:
        return ((proxy.reason, "dim"),)
    live = proxy.live
    if live is None:
        role = "dim" if proxy.url is None else "bad"
        return ((f"{GLYPHS.unknown if proxy.url is None else GLYPHS.down} {clean(proxy.reason, 200)}", role),)
    spans: list[Span] = []
    if proxy.status is not ReadingStatus.KNOWN:
        spans.append((f"{GLYPHS.stale} STALE {age(proxy.age_s)} {clean(proxy.reason, 120)}  ", "warn bold"))
    if live.held:
        reason = f" {clean(live.hold_reason, 60)}" if live.hold_reason else ""
        held = age(wall - live.held_since) if live.held_since is not None else ""
        spans.append((f" {GLYPHS.alert} HELD {held}{reason}, {live.waiting} waiting ", "banner.warn"))
        spans.append(("  ", "text"))
    shape = {
        UpstreamStatus.OK: GLYPHS.live,
        UpstreamStatus.LOADING: GLYPHS.loading,
        UpstreamStatus.UNREACHABLE: GLYPHS.down,
        UpstreamStatus.UNKNOWN: GLYPHS.unknown,
    }[live.upstream]
    word = UNKNOWN if live.upstream is UpstreamStatus.UNKNOWN else live.upstream.value
    role = "dim" if proxy.status is not ReadingStatus.KNOWN else _UPSTREAM_ROLES[live.upstream]
    return (*spans, (f"{shape} upstream {word}", role))


def session_line(session: SessionView | None, width: int) -> Line:
    """The session that is nearest to its window: bar, level, turns remaining, and what is wrong with it."""
    if session is None:
        return (("context".ljust(_LABEL), "dim"), (UNKNOWN, "dim"))
    used = session.utilisation
    level = warning_level(used)
    role = LEVEL_ROLES[level]
    filled, rest = bar(used, _BAR)
    turns = UNKNOWN if session.turns_remaining is None else f"~{session.turns_remaining}"
    parts: list[Line] = [
        (("context".ljust(_LABEL), "dim"), (filled, f"{role} track"), (rest, "faint track")),
        ((f" {percent(used)}{f' {level}' if level else ''}", f"{role} bold"),),
        ((f"  {session_name(session.id, 13)}", "text"),),
        ((f"  {turns} turns left", "text"),),
        *(((f"  {text}", tone),) for text, tone in troubles(session)),
        ((f"  {context(session.context_tokens)}/{context(session.context_window)}", "dim"),),
    ]
    return joined(parts, width)


def troubles(session: SessionView) -> list[Span]:
    """`2-turn LOOP x9`, `malformed x3`."""
    found: list[Span] = []
    if session.is_looping:
        found.append((loop_text(session), "bad bold"))
    if session.malformed_streak:
        found.append((f"malformed x{session.malformed_streak}", "warn"))
    return found


def loop_text(session: SessionView) -> str:
    """How often the cycle was run, and how many turns it is long where it is more than one."""
    cycle = f"{session.loop_period}-turn " if (session.loop_period or 0) > 1 else ""
    return f"{cycle}LOOP x{session.loop_repeats}"


def running_lines(running: Sequence[ActiveView], width: int, most: int) -> list[Line]:
    """Running requests: one a line where there is room for all, else all in one line."""
    label = ("running".ljust(_LABEL), "dim")
    if not running:
        return [(label, ("none", "dim"))]
    if len(running) <= most and most > 1:
        blank = (" " * _LABEL, "text")
        return [
            (label if i == 0 else blank, *_running(active_view, bar_width=10)) for i, active_view in enumerate(running)
        ]
    parts: list[Line] = [(label, (f"{len(running)}", "text bold"))]
    parts += [
        (("   " if i else "  ", "text"), *_running(active_view, bar_width=0)) for i, active_view in enumerate(running)
    ]
    return [joined(parts, width)]


def _running(request: ActiveView, *, bar_width: int) -> list[Span]:
    role = PHASE_ROLES[request.phase]
    spans: list[Span] = [
        (session_name(request.session, 9 if bar_width == 0 else 13), "dim"),
        (f" {phase_text(request)}", f"{role} bold"),
    ]
    done = prefill_progress(request) if request.phase is RequestPhase.PREFILL else None
    if bar_width and done is not None:
        filled, rest = bar(done, bar_width)
        spans += [(" ", "text"), (filled, f"{role} track"), (rest, "faint track")]
    if request.phase is RequestPhase.DECODE:
        spans.append((f" {rate(request.decode_rate)} tok/s", "text"))
        spans.append((f" acc {percent(acceptance(request))}", "text"))
        if bar_width:
            spans.append(
                (f"  {compact(request.completion_tokens)} tokens  first after {seconds(request.ttft_s)}", "dim")
            )
    return spans


def phase_text(request: ActiveView) -> str:
    """`PREFILL 40 %`, `DECODE`, `RETRY 2 WAITING`."""
    word = request.phase.value.upper()
    if request.phase is RequestPhase.PREFILL:
        word = f"{word} {percent(prefill_progress(request))}"
    return f"{word} try {request.attempt}" if request.attempt > 1 else word


def guardrail_words(name: str) -> str:
    """`malformed_tool` and `malformed_tool:recovered` as words."""
    return clean(name, 60).translate({ord(sign): " " for sign in "_:"})


def marks(guardrails: Sequence[str]) -> str:
    """`malformed_tool:retried`, `malformed_tool:recovered` as `malformed tool retried recovered`."""
    by_name: dict[str, list[str]] = {}
    for mark in guardrails:
        name, _, action = mark.partition(":")
        by_name.setdefault(name, []).append(action)
    return ", ".join(guardrail_words(f"{name} {' '.join(actions)}".strip()) for name, actions in by_name.items())


def guardrail_line(proxy: ProxyPicture, window_s: float, width: int) -> Line:
    """What the guardrails did in the window, the busiest first."""
    parts: list[Line] = [((f"{'guards ' + duration(window_s, short=True):<{_LABEL}}", "dim"),)]
    known = [guardrail for guardrail in proxy.guardrails if guardrail.window is not None]
    acted = sorted((count for count in known if count.window), key=lambda count: -(count.window or 0))
    if not acted:
        nothing = "none triggered" if proxy.counts_guardrails else UNKNOWN
        return (*parts[0], (nothing, "dim"))
    parts += [((f"{guardrail_words(count.guardrail)} ", "text"), (f"{count.window}  ", "warn bold")) for count in acted]
    return joined(parts, width)


def joined(parts: Sequence[Line], width: int) -> Line:
    """As many of the parts, from the first on, as fit."""
    line: Line = ()
    for part in parts:
        if line_width(line) + line_width(part) > width:
            break
        line = (*line, *part)
    return line
