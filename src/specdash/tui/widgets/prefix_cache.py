"""The prefix cache: how much of the prompts was there already, by session, request and slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.insight.drafter_picture import PrefixRequest, PrefixSession, PrefixSlot
from specdash.tui.formatting import UNKNOWN, age, bar, clean, compact, count, middle, percent, seconds, size
from specdash.tui.formatting import window as window_words
from specdash.tui.spans import Line, Span, line_width
from specdash.tui.widgets.part import TextPart, marked_bar, sentences
from specdash.tui.widgets.rows import RowsPanel
from specdash.tui.widgets.table import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.insight.drafter_picture import PrefixCachePicture
    from specdash.tui.view import View

_MIB = 1024**2
_LABEL = 13
_BAR, _BAR_MOST = 12, 40
_OTHERS = 140
"""Cells that the other columns of the requests take."""


class PrefixCachePanel(TextPart):
    """What the cache saves."""

    def __init__(self) -> None:
        super().__init__("Prefix cache", id="prefix")

    def key_figure(self, view: View) -> Line:
        """Share of the prompt tokens that were there already."""
        one = view.picture.views.prefix_cache
        if one.cached_share is None:
            return ((UNKNOWN, "dim"), ("  no prompt in this window", "dim") if _known(one) else ("", "dim"))
        return ((percent(one.cached_share, 1), "prefill bold"), (" cached", "dim"))

    def aside(self, view: View) -> Line:
        """The same since the start."""
        share = view.picture.views.prefix_cache.lifetime_share
        return (("lifetime ", "dim"), (percent(share, 1), "text")) if share is not None else ()

    def least(self, view: View) -> int:
        """See `Part`."""
        del view
        return 4

    def content(self, view: View, width: int, height: int) -> list[Line]:
        """Tokens, time to the first token, the prompt cache; what to make of it."""
        del height
        one = view.picture.views.prefix_cache
        if not _known(one):
            return []
        ascii_only = view.glyphs.ascii_only
        lines: list[Line] = []
        if one.cached is not None or one.processed is not None:
            lines.append(_tokens(one, width, ascii_only=ascii_only))
        if one.warm or one.cold:
            lines.append(_first_token(one, view.picture.window_s, width))
        lines.append(_prompt_cache(one, width, ascii_only=ascii_only))
        lines += sentences(clean(one.verdict, 400), width, 2, "text bold")
        return lines + sentences(clean(one.unknown, 400), width, 2)


def _known(one: PrefixCachePicture) -> bool:
    return any(value is not None for value in (one.cached, one.processed, one.lifetime_share, one.entries)) or bool(
        one.requests
    )


def _tokens(one: PrefixCachePicture, width: int, *, ascii_only: bool) -> Line:
    tail: Line = (
        ("  cached ", "dim"),
        (compact(one.cached), "prefill bold"),
        ("  processed ", "dim"),
        (compact(one.processed), "text"),
    )
    room = max(width - _LABEL - line_width(tail), 8)
    drawn = marked_bar(one.cached_share, None, room, "prefill", ascii_only=ascii_only)
    return ((f"{'prompts':<{_LABEL}}", "dim"), *drawn, *tail)


def _first_token(one: PrefixCachePicture, window_s: float, width: int) -> Line:
    """Warm against cold, and what that came to."""
    spans: Line = (
        # Without the proxy nobody saw the first token arrive: it is the time that the server took for the prompt.
        (f"{'prompt time' if one.ttft_basis == 'prompt' else 'first token':<{_LABEL}}", "dim"),
        ("warm ", "dim"),
        (seconds(one.ttft_warm_s), "text bold" if one.ttft_warm_s is not None else "dim"),
        (f" of {count(one.warm)}", "dim"),
        ("  cold ", "dim"),
        (seconds(one.ttft_cold_s), "text bold" if one.ttft_cold_s is not None else "dim"),
        (f" of {count(one.cold)}", "dim"),
    )
    if one.saved_s is not None:
        saved: Line = (
            ("  saved ", "dim"),
            (seconds(one.saved_s), "good bold"),
            (f" in {window_words(window_s)}", "dim"),
        )
        spans = (*spans, *saved) if line_width(spans) + line_width(saved) <= width else spans
    return spans


def _prompt_cache(one: PrefixCachePicture, width: int, *, ascii_only: bool) -> Line:
    label: Span = (f"{'prompt cache':<{_LABEL}}", "dim")
    if one.entries is None and one.size_mib is None:
        return (label, (UNKNOWN, "dim"), ("" if one.unknown else "  log verbosity 4 tells of it", "dim"))
    limit = f" of {size(one.limit_mib * _MIB)}" if one.limit_mib else ""
    parts: list[Line] = [
        (("" if one.entries is None else f"{count(one.entries)} prompts  ", "text bold"),),
        ((size(one.size_mib * _MIB if one.size_mib is not None else None), "text"), (limit, "dim")),
        (("  hits ", "dim"), (count(one.hits), "text"), ("  saves ", "dim"), (count(one.saves), "text")),
        (("  dropped ", "dim"), (count(one.evicted), "warn")) if one.evicted else (),
    ]
    spans: Line = (label,)
    for part in parts:
        if line_width(spans) + line_width(part) > width:
            break
        spans = (*spans, *part)
    left = width - line_width(spans) - 2
    if one.limit_mib and one.size_mib is not None and left >= _BAR:
        filled, rest = bar(one.size_mib / one.limit_mib, min(left, _BAR * 2), ascii_only=ascii_only)
        spans = (*spans, ("  ", "text"), (filled, "machine track"), (rest, "faint track"))
    return spans


def _text(text: str, role: str = "text") -> Span:
    return (text, "dim" if text in (UNKNOWN, "") else role)


def _share_bar(share: float | None, width: int, *, ascii_only: bool) -> Span:
    filled, rest = bar(share, width, ascii_only=ascii_only)
    return (filled + rest, "prefill track")


class SlotsTable(RowsPanel[PrefixSlot]):
    """What each slot holds; the selected one can be saved, restored and erased."""

    def __init__(self) -> None:
        super().__init__("Slots", id="prefix-slots")

    def key_figure(self, view: View) -> Line:
        """How many, and how many tokens they hold."""
        slots = view.picture.views.prefix_cache.slots
        known = [one.tokens for one in slots if one.tokens is not None]
        held = (f"  {compact(sum(known))} tokens held", "dim") if known else ("", "dim")
        return ((str(len(slots)), "text bold"), held)

    def aside(self, view: View) -> Line:
        """The keys."""
        del view
        return (("S save  R restore  X erase", "dim"),)

    def wanted(self, view: View, width: int) -> int:
        """See `Part`."""
        del width
        slots = view.picture.views.prefix_cache.slots
        return 2 + len(slots) if slots else 0

    def least(self, view: View) -> int:
        """See `Part`."""
        del view
        return 3

    def rows(self, view: View) -> Sequence[PrefixSlot]:
        """All."""
        return view.picture.views.prefix_cache.slots

    def key(self, row: PrefixSlot) -> str:
        """Its number."""
        return str(row.id)

    def nothing(self, view: View) -> str:
        """None told."""
        del view
        return "no slots seen yet"

    def columns(self, view: View) -> Sequence[Column[PrefixSlot]]:
        """What each slot shows."""
        most = max((one.tokens or 0 for one in self.rows(view)), default=0)
        ascii_only = view.glyphs.ascii_only

        def held(one: PrefixSlot) -> Span:
            return _share_bar(one.tokens / most if one.tokens is not None and most else None, 16, ascii_only=ascii_only)

        def state(one: PrefixSlot) -> Span:
            return (f"{view.glyphs.live} busy", "decode bold") if one.busy else ("  idle", "dim")

        return (
            Column("slot", 4, lambda s: (str(s.id), "text bold"), rank=0),
            Column("state", 6, state, rank=1, right=False),
            Column("tokens", 8, lambda s: _text(count(s.tokens)), rank=0),
            Column("held", 16, held, rank=3, right=False),
            Column("similarity", 10, lambda s: _text(percent(s.similarity)), rank=2),
        )


class SessionsTable(RowsPanel[PrefixSession]):
    """Cached against processed, by session of the proxy's clients."""

    def __init__(self) -> None:
        super().__init__("Sessions", id="prefix-sessions")

    def key_figure(self, view: View) -> Line:
        """How many."""
        return ((str(len(view.picture.views.prefix_cache.sessions)), "text bold"),)

    def wanted(self, view: View, width: int) -> int:
        """See `Part`."""
        del width
        sessions = view.picture.views.prefix_cache.sessions
        return 2 + min(len(sessions), 8) if sessions else 0

    def least(self, view: View) -> int:
        """See `Part`."""
        del view
        return 4

    def rows(self, view: View) -> Sequence[PrefixSession]:
        """All kept."""
        return view.picture.views.prefix_cache.sessions

    def key(self, row: PrefixSession) -> str:
        """Its id."""
        return row.id

    def nothing(self, view: View) -> str:
        """None told."""
        del view
        return "no session seen; the proxy tells of them"

    def columns(self, view: View) -> Sequence[Column[PrefixSession]]:
        """What each session shows."""
        ascii_only = view.glyphs.ascii_only
        name = 22 if self.size.width >= 90 else 12
        return (
            Column("session", name, lambda s: _text(middle(s.id, name) or UNKNOWN), rank=0, right=False),
            Column("", _BAR, lambda s: _share_bar(s.cached_share, _BAR, ascii_only=ascii_only), 4, right=False),
            Column("cached", 6, lambda s: _text(percent(s.cached_share), "prefill bold"), rank=0),
            Column("reqs", 5, lambda s: _text(compact(s.requests)), rank=5),
            Column("processed", 9, lambda s: _text(compact(s.processed)), rank=3),
            Column("warm", 7, lambda s: _text(seconds(s.ttft_warm_s)), rank=1),
            Column("cold", 7, lambda s: _text(seconds(s.ttft_cold_s)), rank=1),
        )


class RequestsTable(RowsPanel[PrefixRequest]):
    """Cached against processed, by finished request."""

    def __init__(self) -> None:
        super().__init__("Requests", id="prefix-requests")

    def key_figure(self, view: View) -> Line:
        """How many."""
        return ((str(len(view.picture.views.prefix_cache.requests)), "text bold"), (" finished", "dim"))

    def wanted(self, view: View, width: int) -> int:
        """See `Part`."""
        del width
        requests = view.picture.views.prefix_cache.requests
        return 2 + len(requests) if requests else 0

    def least(self, view: View) -> int:
        """See `Part`."""
        del view
        return 5

    def rows(self, view: View) -> Sequence[PrefixRequest]:
        """Newest first."""
        return view.picture.views.prefix_cache.requests

    def key(self, row: PrefixRequest) -> str:
        """Slot and task, and what it was: the children of a router number theirs alike."""
        return f"{row.slot} {row.task} {row.session} {row.prompt_tokens} {row.cached} {row.ttft_s}"

    def nothing(self, view: View) -> str:
        """None ended."""
        del view
        return "no finished request is known yet"

    def columns(self, view: View) -> Sequence[Column[PrefixRequest]]:
        """What each request shows."""
        ascii_only = view.glyphs.ascii_only
        has_sessions = any(one.session for one in self.rows(view))
        # Without the proxy nobody saw the first token arrive.
        first = "read in" if view.picture.views.prefix_cache.ttft_basis == "prompt" else "ttft"
        wide = min(max(self.size.width - _OTHERS, _BAR), _BAR_MOST)
        slowest = max((one.ttft_s or 0.0 for one in self.rows(view)), default=0.0)

        def took(one: PrefixRequest) -> Span:
            share = one.ttft_s / slowest if one.ttft_s is not None and slowest else None
            filled, rest = bar(share, wide, ascii_only=ascii_only)
            return (filled + rest, "machine track")

        columns: tuple[Column[PrefixRequest], ...] = (
            Column("ended", 5, lambda r: (age(r.ended_age_s), "dim"), rank=1),
            Column("slot", 4, lambda r: _text(UNKNOWN if r.slot is None else str(r.slot)), rank=5),
            Column("task", 7, lambda r: _text(UNKNOWN if r.task is None else str(r.task)), rank=6),
            Column("session", 13, lambda r: _text(middle(r.session or "", 13) or UNKNOWN), rank=4, right=False),
            Column("prompt", 6, lambda r: _text(compact(r.prompt_tokens)), rank=2),
            Column("", wide, lambda r: _share_bar(r.cached_share, wide, ascii_only=ascii_only), 3, right=False),
            Column("cached", 6, lambda r: _text(percent(r.cached_share), "prefill bold"), rank=0),
            Column("tokens", 6, lambda r: _text(compact(r.cached)), rank=7),
            Column("processed", 9, lambda r: _text(compact(r.processed)), rank=2),
            Column(first, 8, lambda r: _text(seconds(r.ttft_s)), rank=0),
            Column("", wide, took, rank=8, right=False),
            Column("similarity", 10, lambda r: _text(percent(r.similarity)), rank=5),
        )
        return columns if has_sessions else [one for one in columns if one.heading != "session"]
