"""One request of the proxy in words: everything that is known of it. Imported when it is opened first."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.screen import ModalScreen

from specdash.core.proxy_events import RequestEvent
from specdash.insight.proxy_picture import acceptance, cache_share, ended_how, is_error, prefill_progress, share
from specdash.tui.formatting import UNKNOWN, age, clean, clock, count, percent, rate, seconds
from specdash.tui.spans import BLANK, Line, wrap
from specdash.tui.widgets.panel import LinesWidget
from specdash.tui.widgets.proxy import guardrail_words, marks, phase_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from specdash.core.proxy_status import ActiveView
    from specdash.insight.proxy_picture import ProxyPicture
    from specdash.tui.themes import Palette
    from specdash.tui.view import View

    Request = ActiveView | RequestEvent

_LABEL = 15


class RequestPage(LinesWidget):
    """The page's text, scrolled by whole lines."""

    def __init__(self, palette: Palette, view: View, request: Request) -> None:
        super().__init__(id="request-page")
        self.palette, self.glyphs = palette, view.glyphs
        self.view, self.request = view, request
        self.top = 0

    def redraw(self) -> None:
        """Lay out for the present size and moment."""
        width, height = self.size
        lines = request_lines(self.request, self.view, width)
        self.top = max(min(self.top, len(lines) - height), 0)
        self.set_lines(lines[self.top : self.top + height])


class RequestScreen(ModalScreen[None]):
    """Opened by enter on a request, closed by escape; it follows the request until its end."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,p", "dismiss", "Close", show=False),
        Binding("down,j", "scroll(1)", "Down", show=False),
        Binding("up,k", "scroll(-1)", "Up", show=False),
        Binding("pagedown,space", "scroll(15)", "Page down", show=False),
        Binding("pageup", "scroll(-15)", "Page up", show=False),
    ]
    CSS = "RequestScreen { background: $background; } #request-page { width: 1fr; height: 1fr; margin: 1 2; }"

    def __init__(self, palette: Palette, view: View, request: Request) -> None:
        super().__init__()
        self.page = RequestPage(palette, view, request)

    def compose(self) -> ComposeResult:
        """One page."""
        yield self.page

    def show(self, view: View) -> None:
        """Draw what is known of the request now."""
        self.page.view = view
        self.page.request = now_known(view.picture.proxy, self.page.request)
        self.page.redraw()

    def action_scroll(self, lines: int) -> None:
        """Scroll by lines."""
        self.page.top = max(self.page.top + lines, 0)
        self.page.redraw()

    async def action_dismiss(self, result: None = None) -> None:
        """Close."""
        self.dismiss(result)


def now_known(proxy: ProxyPicture, request: Request) -> Request:
    """The request as the picture has it, ended rather than running; as it was when the picture has it no more."""
    if isinstance(request, RequestEvent):
        return request
    several: tuple[Request, ...] = (*proxy.finished, *proxy.running)
    return next((one for one in several if one.request_id == request.request_id), request)


def request_lines(request: Request, view: View, width: int) -> list[Line]:
    """The page."""
    lines: list[Line] = [(("Request", "accent bold"), ("  everything known of it; esc closes", "dim")), BLANK]
    told = _ended(request) if isinstance(request, RequestEvent) else _running(request, view)
    for label, text in (*_whose(request, view), *told):
        role = "dim" if text == "--" else "bad bold" if label == "error" else "text"
        for index, part in enumerate(wrap(text, max(width - _LABEL, 20), 4)):
            lines.append(((("" if index else label).ljust(_LABEL), "dim"), (part, role)))
    return [*lines, *_guardrail_lines(request, view, width)]


def _whose(request: Request, view: View) -> Iterator[tuple[str, str]]:
    started = request.at if isinstance(request, RequestEvent) else request.started
    day = time.strftime("%Y-%m-%d", time.localtime(started))
    when = f"{day} {clock(started)}, {age(view.picture.wall - started)} ago" if started > 0 else UNKNOWN
    yield "ended" if isinstance(request, RequestEvent) and request.duration_s is None else "arrived", when
    yield "request", clean(request.request_id, 300) or "--"
    yield "session", clean(request.session, 300) or "--"
    how = [clean(request.path, 200)] if request.path else []
    if request.stream is not None:
        how.append("streamed" if request.stream else "in one piece")
    if request.strict:
        how.append("checked whole before it is sent")
    yield "endpoint", ", ".join(how) or UNKNOWN
    yield "model", clean(request.model, 200) or "--"


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
    yield "first content", f"after {seconds(request.ttft_s)}" if request.ttft_s is not None else "--"
    yield (
        "prompt",
        f"{_tokens(request.prompt_tokens)}, {_cached(request)}; prefill at {rate(request.prefill_rate)} tok/s",
    )
    yield "answer", f"{_tokens(request.completion_tokens)}, at {rate(request.decode_rate)} tok/s"
    yield "speculation", _speculation(request)
    yield "context", _context(request)
    yield "messages", f"{count(request.messages)} messages, {count(request.tools)} tools offered"
    called = request.tool_calls
    yield "tools called", UNKNOWN if called is None else ", ".join(clean(one, 60) for one in called) or "none"
    yield "retries", UNKNOWN if request.retries is None else str(request.retries)


def _guardrail_lines(request: Request, view: View, width: int) -> Iterator[Line]:
    told = marks(request.guardrails or ())
    nothing = UNKNOWN if request.guardrails is None else "none"
    for index, part in enumerate(wrap(told or nothing, max(width - _LABEL, 20), 4)):
        yield ((("" if index else "guardrails").ljust(_LABEL), "dim"), (part, "warn bold" if told else "dim"))
    for action in view.picture.proxy.actions:
        if action.request_id != request.request_id or not request.request_id:
            continue
        facts = ", ".join(f"{clean(name, 30)} {clean(str(value), 60)}" for name, value in action.facts.items())
        when = clock(action.at) if action.at > 0 else "--"
        words = f"{when} {guardrail_words(action.guardrail)} {action.action}{f': {facts}' if facts else ''}"
        for part in wrap(words, max(width - _LABEL, 20), 3):
            yield ((" " * _LABEL, "dim"), (part, "warn"))


def _tokens(tokens: int | None) -> str:
    return f"{count(tokens)} tokens"


def _cached(request: Request) -> str:
    return f"{count(request.cached_tokens)} of them from the cache ({percent(cache_share(request))})"


def _speculation(request: Request) -> str:
    if request.draft_tokens is None:
        return "--"
    if not request.draft_tokens:
        return "nothing was drafted"
    accepted = f"{count(request.accepted_tokens)} of {count(request.draft_tokens)} drafted tokens accepted"
    return f"{accepted} ({percent(acceptance(request))})"


def _context(request: RequestEvent) -> str:
    # Counts are summed over retries, and so is more than one try had in the window.
    if request.prompt_tokens is None or request.context_window is None or request.retries:
        return "--"
    used = request.prompt_tokens + (request.completion_tokens or 0)
    return f"{count(used)} of {count(request.context_window)} tokens ({percent(share(used, request.context_window))})"
