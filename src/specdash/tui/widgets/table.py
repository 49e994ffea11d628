"""Aligned columns that give way in order of importance as the room shrinks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from specdash.tui.formatting import fit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdash.tui.spans import Line, Span

RowT = TypeVar("RowT")


@dataclass(frozen=True, slots=True)
class Column(Generic[RowT]):
    """One column: its heading, width, what it shows of a row as (text, role), and its rank (0 stays longest).

    A column with `stretch` takes the cells that are left over.
    """

    heading: str
    width: int
    cell: Callable[[RowT], Span]
    rank: int = 0
    right: bool = True
    stretch: bool = False


def columns_that_fit(columns: Sequence[Column[RowT]], width: int) -> list[tuple[Column[RowT], int]]:
    """The most important columns that fit side by side with one cell between, and the width of each."""
    kept: set[int] = set()
    left = width + 1
    for index in sorted(range(len(columns)), key=lambda i: columns[i].rank):
        if columns[index].width + 1 > left:
            break
        kept.add(index)
        left -= columns[index].width + 1
    chosen = [column for index, column in enumerate(columns) if index in kept]
    grow = next((column for column in chosen if column.stretch), None)
    return [(column, column.width + (left if column is grow else 0)) for column in chosen]


def table(columns: Sequence[Column[RowT]], rows: Sequence[RowT], width: int, *, heading: bool = True) -> list[Line]:
    """The rows as lines, under one dim heading line."""
    fitting = columns_that_fit(columns, width)
    lines: list[Line] = []
    if heading:
        lines.append(tuple((fit(c.heading, w, right=c.right) + " ", "dim") for c, w in fitting))
    for row in rows:
        spans: list[Span] = []
        for column, cells in fitting:
            text, role = column.cell(row)
            spans.append((fit(text, cells, right=column.right) + " ", role))
        lines.append(tuple(spans))
    return lines
