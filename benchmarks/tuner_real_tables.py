"""What `tuner_real.py` found, as tables in Markdown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.tuner_lab.harness import Figure
    from benchmarks.tuner_real_judge import Judged


@dataclass(frozen=True, slots=True)
class Row:
    """One way to choose in one cell."""

    cell: str
    way: str
    judged: Judged
    restarts: float | None
    seconds: float | None
    chose: str


def short_table(rows: Sequence[Row]) -> list[str]:
    """A row a cell: what the ways lose, with restarts and seconds of those that boot."""
    ways = list(dict.fromkeys(_short(row.way) for row in rows if "drafts only" not in row.way))
    lines = ["| type, workload | " + " | ".join(ways) + " |", "| --- |" + " --- |" * len(ways)]
    for cell in dict.fromkeys(row.cell for row in rows):
        told = {_short(row.way): row for row in rows if row.cell == cell}
        texts = [_loses(told[way]) if way in told else "" for way in ways]
        lines.append(f"| {cell} | " + " | ".join(texts) + " |")
    return lines


def _short(way: str) -> str:
    """Without how often it ran."""
    return ", ".join(part for part in way.split(", ") if not part.endswith(" runs"))


def _loses(row: Row) -> str:
    cost = "" if row.seconds is None else f"; {row.restarts or 0:.0f} boots, {row.seconds:.0f} s"
    return percent(row.judged.regret) + cost


def cells_table(cells: dict[str, dict[str, Any]]) -> list[str]:
    """The cells, and how far apart their points are."""
    lines = [
        "| type, workload | points | boots differ by (sd) | fastest | slowest | start | disturbed boots |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, cell in cells.items():
        noise = "--" if cell["noise"] is None else f"{100 * cell['noise']:.1f} %"
        speeds = list(cell["speeds"].items())
        ends = [f"{point} {speed:.0f} tok/s" for point, speed in (speeds[0], speeds[-1])]
        lines.append(
            f"| {name} | {cell['points']} | {noise} | {ends[0]} | {ends[1]} | {cell['start']} | {cell['disturbed']} |"
        )
    return lines


def table(rows: Sequence[Row]) -> list[str]:
    """A row a way to choose."""
    lines = [
        "| type, workload | way | regret | against the largest | gain over the start | restarts | seconds | chose |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        restarts = "0" if row.restarts is None else f"{row.restarts:.1f}".removesuffix(".0")
        seconds = "--" if row.seconds is None else f"{row.seconds:.0f}"
        regret, gain = percent(row.judged.regret), percent(row.judged.gain)
        lines.append(
            f"| {row.cell} | {row.way} | {regret} | {100 * row.judged.naive:.1f} % | {gain} | {restarts} | {seconds} "
            f"| {row.chose} |"
        )
    return lines


def percent(figure: Figure) -> str:
    """With its interval."""
    return f"{100 * figure.value:.1f} % [{100 * figure.low:.1f}, {100 * figure.high:.1f}]"
