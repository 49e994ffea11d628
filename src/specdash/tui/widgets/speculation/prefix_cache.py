"""The prefix cache: how much of the prompts was there already, by session, request and slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdash.core.readings import ModelStatus
from specdash.insight.picture import PrefixSlot
from specdash.insight.request import ServedRequest
from specdash.insight.router import RouterModelPicture
from specdash.system.stats import share
from specdash.system.text import (
    MIB,
    UNKNOWN,
    age,
    clean,
    compact,
    counted,
    duration,
    number,
    percent,
    plain,
    seconds,
    size,
)
from specdash.tui.spans import GLYPHS, Line, Span, bar, line_width, middle, session_name, value_span
from specdash.tui.widgets.panel import Column, RowsPanel, TextPart, marked_bar, sentences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdash.insight.picture import PrefixCachePicture
    from specdash.insight.proxy.read_again import ReadAgainSum
    from specdash.tui.spans import Line, Span
    from specdash.tui.view import View


_REASONS = 3
"""So many reasons why prompts were read again are named."""
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
        prefix_cache = view.picture.views.prefix_cache
        if prefix_cache.cached_share is None:
            return ((UNKNOWN, "dim"), ("  no prompt in this window", "dim") if _known(prefix_cache) else ("", "dim"))
        return ((percent(prefix_cache.cached_share, 1), "prefill bold"), (" cached", "dim"))

    def aside(self, view: View) -> Line:
        """The same since the start."""
        share = view.picture.views.prefix_cache.lifetime_share
        return (("lifetime ", "dim"), (percent(share, 1), "text")) if share is not None else ()

    def least(self, view: View) -> int:
        """See `Part`."""
        return 4

    def content(self, view: View, width: int, height: int) -> list[Line]:
        """Tokens, time to the first token, the prompt cache; what to make of it."""
        prefix_cache = view.picture.views.prefix_cache
        if not _known(prefix_cache):
            return []
        lines: list[Line] = []
        if prefix_cache.cached is not None or prefix_cache.processed is not None:
            lines.append(_tokens(prefix_cache, width))
        if prefix_cache.warm or prefix_cache.cold:
            lines.append(_first_token(prefix_cache, view.picture.window_s, width))
        lines.append(_prompt_cache(prefix_cache, width))
        lines += [_read_again(one) for one in prefix_cache.read_again[:_REASONS]]
        lines += sentences(clean(prefix_cache.verdict, 400), width, 2, "text bold")
        return lines + sentences(clean(prefix_cache.unknown, 400), width, 2)


def _known(picture: PrefixCachePicture) -> bool:
    return any(
        value is not None for value in (picture.cached, picture.processed, picture.lifetime_share, picture.entries)
    ) or bool(picture.requests)


def _tokens(picture: PrefixCachePicture, width: int) -> Line:
    tail: Line = (
        ("  cached ", "dim"),
        (compact(picture.cached), "prefill bold"),
        ("  processed ", "dim"),
        (compact(picture.processed), "text"),
    )
    room = max(width - _LABEL - line_width(tail), 8)
    drawn = marked_bar(picture.cached_share, None, room, "prefill")
    return ((f"{'prompts':<{_LABEL}}", "dim"), *drawn, *tail)


def _first_token(picture: PrefixCachePicture, window_s: float, width: int) -> Line:
    """Warm against cold, and what that came to."""
    spans: Line = (
        # Without the proxy no one saw the first token arrive: it is the time that the server took for the prompt.
        (f"{'prompt time' if picture.ttft_basis == 'prompt' else 'first token':<{_LABEL}}", "dim"),
        ("warm ", "dim"),
        (seconds(picture.ttft_warm_s), "text bold" if picture.ttft_warm_s is not None else "dim"),
        (f" of {number(picture.warm)}", "dim"),
        ("  cold ", "dim"),
        (seconds(picture.ttft_cold_s), "text bold" if picture.ttft_cold_s is not None else "dim"),
        (f" of {number(picture.cold)}", "dim"),
    )
    if picture.saved_s is not None:
        saved: Line = (
            ("  saved ", "dim"),
            (seconds(picture.saved_s), "good bold"),
            (f" in {duration(window_s, short=True)}", "dim"),
        )
        spans = (*spans, *saved) if line_width(spans) + line_width(saved) <= width else spans
    return spans


def _read_again(found: ReadAgainSum) -> Line:
    cost = f"  {seconds(found.seconds)}" if found.seconds is not None else ""
    return (
        (f"{'read again':<{_LABEL}}", "dim"),
        (counted(found.requests, "prompt"), "warn bold"),
        (f"  {compact(found.tokens)} tokens{cost}  ", "text"),
        (str(found.reason), "warn"),
    )


def _prompt_cache(picture: PrefixCachePicture, width: int) -> Line:
    label: Span = (f"{'prompt cache':<{_LABEL}}", "dim")
    if picture.entries is None and picture.size_mib is None:
        return (label, (UNKNOWN, "dim"), ("" if picture.unknown else "  needs log verbosity 4", "dim"))
    limit = f" of {size(picture.limit_mib * MIB)}" if picture.limit_mib else ""
    parts: list[Line] = [
        (("" if picture.entries is None else f"{counted(picture.entries, 'prompt')}  ", "text bold"),),
        ((size(picture.size_mib * MIB if picture.size_mib is not None else None), "text"), (limit, "dim")),
        (("  hits ", "dim"), (number(picture.hits), "text"), ("  saves ", "dim"), (number(picture.saves), "text")),
        (("  dropped ", "dim"), (number(picture.evicted), "warn")) if picture.evicted else (),
    ]
    spans: Line = (label,)
    for part in parts:
        if line_width(spans) + line_width(part) > width:
            break
        spans = (*spans, *part)
    left = width - line_width(spans) - 2
    if picture.limit_mib and picture.size_mib is not None and left >= _BAR:
        filled, rest = bar(picture.size_mib / picture.limit_mib, min(left, _BAR * 2))
        spans = (*spans, ("  ", "text"), (filled, "machine track"), (rest, "faint track"))
    return spans


def _share_bar(share: float | None, width: int) -> Span:
    filled, rest = bar(share, width)
    return (filled + rest, "prefill track")


class SlotsTable(RowsPanel[PrefixSlot]):
    """What each slot holds; the selected one can be saved, restored and erased."""

    def __init__(self) -> None:
        super().__init__("Slots", id="prefix-slots")

    def key_figure(self, view: View) -> Line:
        """How many, and how many tokens they hold."""
        slots = view.picture.views.prefix_cache.slots
        known = [slot.tokens for slot in slots if slot.tokens is not None]
        held = (f"  {compact(sum(known))} tokens held", "dim") if known else ("", "dim")
        return ((str(len(slots)), "text bold"), held)

    def aside(self, view: View) -> Line:
        """The keys."""
        return (("  ".join(f"{view.keys[f'slot.{word}']} {word}" for word in ("save", "restore", "erase")), "dim"),)

    def wanted(self, view: View, width: int) -> int:
        """See `Part`."""
        slots = view.picture.views.prefix_cache.slots
        return 2 + len(slots) if slots else 0

    def least(self, view: View) -> int:
        """See `Part`."""
        return 3

    def rows(self, view: View) -> Sequence[PrefixSlot]:
        """All."""
        return view.picture.views.prefix_cache.slots

    def key(self, row: PrefixSlot) -> str:
        """Its number."""
        return str(row.id)

    def nothing(self, view: View) -> str:
        """Nothing known."""
        return "no slot data yet"

    def columns(self, view: View) -> Sequence[Column[PrefixSlot]]:
        """What each slot shows."""
        most = max((row.tokens or 0 for row in self.rows(view)), default=0)

        def held(prefix_slot: PrefixSlot) -> Span:
            return _share_bar(share(prefix_slot.tokens, most), 16)

        def state(prefix_slot: PrefixSlot) -> Span:
            return (f"{GLYPHS.live} busy", "decode bold") if prefix_slot.busy else ("  idle", "dim")

        return (
            Column("slot", 4, lambda s: (str(s.id), "text bold"), rank=0),
            Column("state", 6, state, rank=1, right=False),
            Column("tokens", 8, lambda s: value_span(number(s.tokens)), rank=0),
            Column("held", 16, held, rank=3, right=False),
            Column("similarity", 10, lambda s: value_span(percent(s.similarity)), rank=2),
        )


class CachedRequestsTable(RowsPanel[ServedRequest]):
    """Cached against processed, by finished request."""

    def __init__(self) -> None:
        super().__init__("Requests", id="prefix-requests")

    def key_figure(self, view: View) -> Line:
        """How many."""
        return ((str(len(view.picture.views.prefix_cache.requests)), "text bold"), (" finished", "dim"))

    def wanted(self, view: View, width: int) -> int:
        """See `Part`."""
        requests = view.picture.views.prefix_cache.requests
        return 2 + len(requests) if requests else 0

    def least(self, view: View) -> int:
        """See `Part`."""
        return 5

    def rows(self, view: View) -> Sequence[ServedRequest]:
        """Newest first."""
        return view.picture.views.prefix_cache.requests

    def key(self, row: ServedRequest) -> str:
        """Slot and task, and what it was: the children of a router number theirs alike."""
        return f"{row.slot} {row.task} {row.session} {row.prompt_tokens} {row.cached_tokens} {row.ttft_s}"

    def nothing(self, view: View) -> str:
        """None ended."""
        return "no finished requests yet"

    def columns(self, view: View) -> Sequence[Column[ServedRequest]]:
        """What each request shows."""
        has_sessions = any(row.session for row in self.rows(view))
        # Without the proxy no one saw the first token arrive.
        first = "read in" if view.picture.views.prefix_cache.ttft_basis == "prompt" else "ttft"
        wide = min(max(self.size.width - _OTHERS, _BAR), _BAR_MOST)
        slowest = max((row.ttft_s or 0.0 for row in self.rows(view)), default=0.0)

        def took(prefix_request: ServedRequest) -> Span:
            filled, rest = bar(share(prefix_request.ttft_s, slowest), wide)
            return (filled + rest, "machine track")

        columns: tuple[Column[ServedRequest], ...] = (
            Column("ended", 5, lambda r: (age(r.ended_age_s), "dim"), rank=1),
            Column("slot", 4, lambda r: value_span(plain(r.slot)), rank=5),
            Column("task", 7, lambda r: value_span(plain(r.task)), rank=6),
            Column("session", 13, lambda r: value_span(session_name(r.session, 13)), rank=4, right=False),
            Column("prompt", 6, lambda r: value_span(compact(r.prompt_tokens)), rank=2),
            Column("", wide, lambda r: _share_bar(r.cached_share, wide), 3, right=False),
            Column("cached", 6, lambda r: value_span(percent(r.cached_share), "prefill bold"), rank=0),
            Column("tokens", 6, lambda r: value_span(compact(r.cached_tokens)), rank=7),
            Column("processed", 9, lambda r: value_span(compact(r.processed_tokens)), rank=2),
            Column(first, 8, lambda r: value_span(seconds(r.ttft_s)), rank=0),
            Column("", wide, took, rank=8, right=False),
            Column("similarity", 10, lambda r: value_span(percent(r.similarity)), rank=5),
        )
        return columns if has_sessions else [column for column in columns if column.heading != "session"]


# The models behind a router: which are in memory, which was used last, with what they speculate.

_ROLES = {
    ModelStatus.LOADED: "good bold",
    ModelStatus.SLEEPING: "accent",
    ModelStatus.LOADING: "warn",
    ModelStatus.DOWNLOADING: "warn",
    ModelStatus.UNLOADED: "dim",
    ModelStatus.FAILED: "bad bold",
}
_NAMES = ((110, 40), (70, 26), (0, 20))
"""Cells of a model's name, by the least width of the table."""


class RouterTable(RowsPanel[RouterModelPicture]):
    """One row a model; the watched one is marked."""

    def __init__(self) -> None:
        super().__init__("Router", id="router")

    def key_figure(self, view: View) -> Line:
        """What `any` means."""
        router = view.picture.views.router
        if not router.models:
            return ((UNKNOWN, "dim"), (f"  {clean(router.reason, 200)}", "dim"))
        arrow: Span = ("any = ", "dim")
        if router.any_means is None:
            return (arrow, ("no model is resident", "warn"))
        return (arrow, (clean(router.any_means, 60), "accent bold"))

    def aside(self, view: View) -> Line:
        """How many, and how many of them are in memory."""
        models = view.picture.views.router.models
        resident = sum(_status(model) in (ModelStatus.LOADED, ModelStatus.SLEEPING) for model in models)
        return ((f"{resident} of {len(models)} resident", "dim"),) if models else ()

    def wanted(self, view: View, width: int) -> int:
        """See `Part`."""
        router = view.picture.views.router
        return 2 + len(router.models) if router.models else int(bool(router.reason))

    def least(self, view: View) -> int:
        """See `Part`."""
        return 4

    def rows(self, view: View) -> Sequence[RouterModelPicture]:
        """All, the most recently used first, then by status."""
        order = list(ModelStatus)
        return sorted(
            view.picture.views.router.models,
            key=lambda picture: (
                picture.last_used_age_s is None,
                picture.last_used_age_s or 0.0,
                order.index(_status(picture)),
                picture.id,
            ),
        )

    def key(self, row: RouterModelPicture) -> str:
        """Its id."""
        return row.id

    def mark(self, row: RouterModelPicture) -> str:
        """The one that is watched."""
        return "*" if row.watched else " "

    def nothing(self, view: View) -> str:
        """Why the models are not known."""
        return clean(view.picture.views.router.reason, 300)

    def columns(self, view: View) -> Sequence[Column[RouterModelPicture]]:
        """What each model shows."""
        shapes = {
            ModelStatus.LOADED: GLYPHS.live,
            ModelStatus.SLEEPING: GLYPHS.stale,
            ModelStatus.LOADING: GLYPHS.loading,
            ModelStatus.DOWNLOADING: GLYPHS.loading,
            ModelStatus.FAILED: GLYPHS.down,
            ModelStatus.UNKNOWN: GLYPHS.unknown,
        }

        def status(picture: RouterModelPicture) -> Span:
            known = _status(picture)
            return (f"{shapes.get(known, ' ')} {clean(_shown(picture), 12)}", _ROLES.get(known, "dim"))

        def types(picture: RouterModelPicture) -> Span:
            if picture.failure:
                return (clean(picture.failure, 200), "bad")
            if picture.spec_types is None:
                return (UNKNOWN, "dim")
            return (
                (", ".join(clean(name, 24) for name in picture.spec_types), "text")
                if picture.spec_types
                else ("none", "dim")
            )

        name = next((cells for least, cells in _NAMES if self.size.width >= least), _NAMES[-1][1])
        return (
            Column("model", name, lambda m: (middle(m.id, name), "text bold" if m.watched else "text"), 0, right=False),
            Column("status", 14, status, rank=0, right=False),
            Column("used", 5, lambda m: _used(m.last_used_age_s), rank=2),
            Column("speculates with", 15, types, rank=1, right=False, stretch=True),
        )


def _used(seconds: float | None) -> Span:
    return (age(seconds), "dim" if seconds is None else "text")


def _shown(picture: RouterModelPicture) -> str:
    """The exit code stands in the failure."""
    return picture.words.partition(" (")[0] or picture.status


def _status(picture: RouterModelPicture) -> ModelStatus:
    return ModelStatus(picture.status) if picture.status in ModelStatus.__members__.values() else ModelStatus.UNKNOWN
