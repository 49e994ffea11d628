"""Finished requests, newest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.tui.formatting import UNKNOWN, age, compact, count, percent, rate
from specdash.tui.layout import PanelId
from specdash.tui.widgets.panel import Panel, message
from specdash.tui.widgets.table import Column, table

if TYPE_CHECKING:
    from specdash.insight.picture import RequestPicture
    from specdash.tui.spans import Line, Span
    from specdash.tui.view import View


def _text(text: str, role: str = "text") -> Span:
    return (text, "dim" if text == UNKNOWN else role)


def _number(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


def _seconds(milliseconds: float | None) -> str:
    return UNKNOWN if milliseconds is None else f"{milliseconds / 1000:.2f} s"


def _accepted(request: RequestPicture) -> str:
    if request.draft_generated is None or request.draft_accepted is None:
        return UNKNOWN
    return f"{compact(request.draft_accepted)}/{compact(request.draft_generated)}"


def _decoded(request: RequestPicture) -> Span:
    return ("cancelled", "warn") if request.cancelled else _text(compact(request.decode_tokens))


COLUMNS: tuple[Column[RequestPicture], ...] = (
    Column("ago", 4, lambda r: (age(r.ended_age_s), "dim"), rank=0),
    Column("slot", 4, lambda r: _text(_number(r.slot)), rank=6),
    Column("task", 6, lambda r: _text(_number(r.task)), rank=5),
    Column("prompt", 6, lambda r: _text(compact(r.prompt_tokens)), rank=1),
    Column("cached", 6, lambda r: _text(compact(r.prompt_cached)), rank=7),
    Column("prefill", 7, lambda r: _text(_seconds(r.prompt_ms)), rank=9),
    Column("pre/s", 6, lambda r: _text(rate(r.prefill_rate), "prefill"), rank=4),
    Column("decoded", 9, _decoded, rank=0),
    Column("decode", 7, lambda r: _text(_seconds(r.decode_ms)), rank=8),
    Column("dec/s", 6, lambda r: _text(rate(r.decode_rate), "decode"), rank=2),
    Column("accepted", 11, lambda r: _text(_accepted(r)), rank=10),
    Column("acc", 5, lambda r: _text(percent(r.acceptance), "acceptance"), rank=3),
)


class RequestsPanel(Panel):
    """The last finished requests."""

    def __init__(self) -> None:
        super().__init__(PanelId.REQUESTS)

    def key_figure(self, view: View) -> Line:
        """Finished so far."""
        finished = view.picture.backend.requests_finished
        return ((count(finished), "dim" if finished is None else "text bold"), (" finished", "dim"))

    def aside(self, view: View) -> Line:
        """Cancelled so far, when there were any."""
        cancelled = view.picture.backend.requests_cancelled
        return ((f"{cancelled:,} cancelled", "warn"),) if cancelled else ()

    def body(self, view: View, width: int, height: int) -> list[Line]:
        """The table."""
        requests = view.picture.log.requests
        if not requests:
            reason = view.picture.log.reason or "no request has finished yet"
            return message(reason, height)
        return table(COLUMNS, requests[: max(height - 1, 0)], width)
