"""Which panels there are and where they go: declared as data, arranged by one pure function."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MINIMUM_WIDTH = 80
MINIMUM_HEIGHT = 24
_MEDIUM_WIDTH = 110
_WIDE_WIDTH = 160
GAP = 1


class PanelId(StrEnum):
    """Identity of one panel of the overview."""

    ACCEPTANCE = "acceptance"
    PREFILL = "prefill"
    DECODE = "decode"
    SLOTS = "slots"
    REQUESTS = "requests"
    WARNINGS = "warnings"
    MACHINE = "machine"
    LOG = "log"
    GAIN = "gain"
    PROXY = "proxy"


class PanelSpec(Struct, frozen=True):
    """A panel's digit or letter, title, and what it shows in one sentence (the help page and docs/keys.md print it)."""

    id: PanelId
    digit: str
    title: str
    about: str


PANELS: dict[PanelId, PanelSpec] = {
    spec.id: spec
    for spec in (
        PanelSpec(
            PanelId.ACCEPTANCE,
            "1",
            "Acceptance",
            "Share of drafted tokens that the target accepted: over the window, since the server's start, live from "
            "trace lines, and per draft position.",
        ),
        PanelSpec(PanelId.PREFILL, "2", "Prefill", "Prompt tokens processed per second."),
        PanelSpec(PanelId.DECODE, "3", "Decode", "Generated tokens per second, over all slots."),
        PanelSpec(
            PanelId.SLOTS, "4", "Slots", "What each slot does: phase, progress, speed, context used, live acceptance."
        ),
        PanelSpec(PanelId.REQUESTS, "5", "Requests", "The last finished requests, newest first, from the log."),
        PanelSpec(
            PanelId.WARNINGS,
            "6",
            "Warnings",
            "Warning lines of the log by class: total, per minute, age of the last one, and a sample.",
        ),
        PanelSpec(PanelId.MACHINE, "7", "Machine", "GPU, host and backend process; or why there is no GPU to show."),
        PanelSpec(PanelId.LOG, "8", "Log", "The tail of the server's log, with find and filter."),
        PanelSpec(
            PanelId.GAIN,
            "9",
            "Tokens per decode",
            "Generated tokens per target decode call: the honest gain of speculation, replays included. 1.00 is none.",
        ),
        PanelSpec(
            PanelId.PROXY,
            "P",
            "Proxy",
            "The proxy in front of the server: its upstream, whether it is held, the fullest session, running requests "
            "and what the guardrails did in the window. It has a screen of its own.",
        ),
    )
}


class Rect(Struct, frozen=True):
    """A place on the board, in cells."""

    x: int
    y: int
    width: int
    height: int


class PanelRow(Struct, frozen=True):
    """One row of panels: the least height it can be read at, its share of what is left, and (panel, share of the
    width)."""

    least: int
    weight: int
    cells: tuple[tuple[PanelId, int], ...]


# Rows stand in order of importance: where the height does not suffice for all, the last ones are left out.
_NARROW = (
    PanelRow(6, 3, ((PanelId.ACCEPTANCE, 1),)),
    PanelRow(4, 2, ((PanelId.PREFILL, 1), (PanelId.DECODE, 1))),
    PanelRow(4, 2, ((PanelId.SLOTS, 43), (PanelId.WARNINGS, 36))),
    PanelRow(4, 2, ((PanelId.LOG, 1),)),
    PanelRow(5, 2, ((PanelId.REQUESTS, 1),)),
    PanelRow(6, 2, ((PanelId.GAIN, 1), (PanelId.MACHINE, 1))),
    PanelRow(4, 0, ((PanelId.PROXY, 1),)),
)
_MEDIUM = (
    PanelRow(8, 4, ((PanelId.ACCEPTANCE, 2), (PanelId.GAIN, 1))),
    PanelRow(7, 3, ((PanelId.PREFILL, 1), (PanelId.DECODE, 1), (PanelId.MACHINE, 1))),
    PanelRow(5, 2, ((PanelId.SLOTS, 1), (PanelId.REQUESTS, 1))),
    PanelRow(5, 2, ((PanelId.WARNINGS, 1), (PanelId.LOG, 1))),
    PanelRow(4, 0, ((PanelId.PROXY, 1),)),
)
_WIDE = (
    PanelRow(8, 4, ((PanelId.ACCEPTANCE, 2), (PanelId.GAIN, 1))),
    PanelRow(7, 3, ((PanelId.PREFILL, 1), (PanelId.DECODE, 1), (PanelId.MACHINE, 1))),
    PanelRow(5, 2, ((PanelId.SLOTS, 9), (PanelId.REQUESTS, 11))),
    PanelRow(5, 3, ((PanelId.WARNINGS, 2), (PanelId.LOG, 3))),
    PanelRow(4, 1, ((PanelId.PROXY, 1),)),
)


def arrange(
    width: int,
    height: int,
    choices: Mapping[PanelId, bool],
    zoomed: PanelId | None = None,
    bare: frozenset[PanelId] = frozenset(),
) -> dict[PanelId, Rect]:
    """Where each visible panel goes on a board of `width` x `height` cells.

    `choices` holds what the user switched on or off; a panel that was switched on comes before those that merely fit.
    A zoomed panel takes the whole board. A bare panel has nothing below its title; it has a row of its own.
    """
    if zoomed is not None:
        return {zoomed: Rect(0, 0, width, height)}
    rows: Sequence[PanelRow] = _rows_for(width)
    if width >= _MEDIUM_WIDTH:
        rows = [PanelRow(1, 0, row.cells) if row.cells[0][0] in bare else row for row in rows]
    rows = _chosen(rows, choices, height)
    heights = _shares(height, [(row.least, row.weight) for row in rows])
    places: dict[PanelId, Rect] = {}
    y = 0
    for row, row_height in zip(rows, heights, strict=True):
        x = 0
        widths = _shares(width - GAP * (len(row.cells) - 1), [(0, weight) for _, weight in row.cells])
        for (panel, _), cell_width in zip(row.cells, widths, strict=True):
            places[panel] = Rect(x, y, cell_width, row_height)
            x += cell_width + GAP
        y += row_height
    return places


def _rows_for(width: int) -> tuple[PanelRow, ...]:
    return _WIDE if width >= _WIDE_WIDTH else _MEDIUM if width >= _MEDIUM_WIDTH else _NARROW


def _chosen(rows: Sequence[PanelRow], choices: Mapping[PanelId, bool], height: int) -> Sequence[PanelRow]:
    """The rows that fit, in their order, without the panels that are off."""
    left = height
    kept: dict[int, PanelRow] = {}
    wanted = [
        (index, PanelRow(row.least, row.weight, tuple(cell for cell in row.cells if choices.get(cell[0]))))
        for index, row in enumerate(rows)
    ]
    usual = [
        (index, PanelRow(row.least, row.weight, tuple(cell for cell in row.cells if choices.get(cell[0], True))))
        for index, row in enumerate(rows)
    ]
    for index, row in (*wanted, *usual):
        if not row.cells:
            continue
        if index in kept:
            kept[index] = row
        elif row.least <= left or not kept:
            kept[index] = row
            left -= row.least
    return [kept[index] for index in sorted(kept)]


def _shares(total: int, parts: list[tuple[int, int]]) -> list[int]:
    """`total` split into parts, each at least its least, the rest by weight; the parts add up exactly."""
    if not parts:
        return []
    rest = max(total - sum(least for least, _ in parts), 0)
    weights = [weight for _, weight in parts]
    weights = weights if any(weights) else [1] * len(parts)
    exact = [rest * weight / sum(weights) for weight in weights]
    shares = [least + int(share) for (least, _), share in zip(parts, exact, strict=True)]
    by_remainder = sorted(range(len(parts)), key=lambda i: exact[i] - int(exact[i]), reverse=True)
    for i in by_remainder[: total - sum(shares)] if total > sum(shares) else []:
        shares[i] += 1
    return shares
