"""The project's goals for its own cost, each read out of what a benchmark printed, and the table of them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

OURS, PLAIN_LOOP = "specdash parse-log", "plain Python loop"


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure of a benchmark, what it should be at most (`at_least`: at least), and its peer in the same run."""

    what: str
    benchmark: str
    figure: Callable[[Any], float]
    goal: float
    unit: str
    peer_name: str = ""
    peer: Callable[[Any], float] | None = None
    at_least: bool = False

    def row(self, printed: Any) -> tuple[str, ...]:
        """What was measured, the peer, the goal, and whether it is met."""
        figure = self.figure(printed)
        met = figure >= self.goal if self.at_least else figure <= self.goal
        peer = f"{self.peer_name} {_figure(self.peer(printed), self.unit)}" if self.peer else ""
        bound = "≥" if self.at_least else "≤"
        measured, goal = _figure(figure, self.unit), _figure(self.goal, self.unit)
        return (self.what, measured, peer, f"{bound} {goal}", "met" if met else "**missed**")


def _figure(value: float, unit: str) -> str:
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}"


def _row(rows: list[dict[str, Any]], **fields: str) -> dict[str, Any]:
    return next(row for row in rows if all(row[name] == value for name, value in fields.items()))


def _proxy(name: str, figure: str) -> Callable[[Any], float]:
    return lambda rows: float(_row(rows, name=name)[figure])


def _added(figure: str) -> Callable[[Any], float]:
    return lambda rows: _proxy("specdash", figure)(rows) - _proxy("direct", figure)(rows)


def _lines(log: str, tool: str) -> Callable[[Any], float]:
    return lambda rows: float(_row(rows, log=log, tool=tool)["lines_per_second"]) / 1000


def _soak(worst: Callable[[Any], float]) -> Callable[[Any], float]:
    return lambda samples: worst([sample["rss_mb"] for sample in samples])


GOALS = (
    Goal("`specdash --version`", "status_start", lambda t: t["specdash --version"]["median_ms"], 60, "ms",
         "bare interpreter", lambda t: t["a bare interpreter"]["median_ms"]),
    Goal("`status`, nobody watches", "status_start", lambda t: t["status, nobody watches"]["median_ms"], 220, "ms",
         "bare interpreter", lambda t: t["a bare interpreter"]["median_ms"]),
    Goal("`snapshot --json`", "live", lambda t: t["snapshot_s"] * 1000, 220, "ms"),
    Goal("first paint, more than bare Textual", "live",
         lambda t: (t["first_paint_specdash_s"] - t["first_paint_bare_s"]) * 1000, 100, "ms",
         "bare Textual", lambda t: t["first_paint_bare_s"] * 1000),
    Goal("LIVE with figures, more than bare Textual's first paint", "live",
         lambda t: (t["first_live_specdash_s"] - t["first_paint_bare_s"]) * 1000, 350, "ms",
         "bare Textual", lambda t: t["first_paint_bare_s"] * 1000),
    Goal("idle, 1 Hz, 120x36, recording: CPU of one core", "live", lambda t: t["idle_server"]["cpu_percent"], 0.6, "%",
         "bare Textual", lambda t: t["bare"]["cpu_percent"]),
    Goal("… memory", "live", lambda t: t["idle_server"]["rss_mb"], 60, "MB",
         "bare Textual", lambda t: t["bare"]["rss_mb"]),
    Goal("live, demo's load, six charts: CPU of one core", "live", lambda t: t["busy_server"]["cpu_percent"], 1.8, "%",
         "bare Textual", lambda t: t["bare"]["cpu_percent"]),
    Goal("key press to changed screen, p95, 200x50, live", "keys", lambda t: t["specdash"]["p95_ms"], 50, "ms",
         "bare Textual", lambda t: t["bare"]["p95_ms"]),
    Goal("to the terminal, live, a second", "keys", lambda t: t["bytes_per_second_live"] / 1000, 2, "kB"),
    Goal("memory at 5,000 log lines/s, at most", "log_soak", _soak(max), 90, "MB"),
    Goal("… its growth over the second half", "log_soak", _soak(lambda mb: mb[-1] - mb[len(mb) // 2]), 2, "MB"),
    Goal("proxy: added TTFT p50, one stream at a time", "proxy_cost", _added("ttft_p50_ms"), 1.0, "ms",
         "direct", _proxy("direct", "ttft_p50_ms")),
    Goal("proxy: added TTFT p50, 64 streams at the same instant", "proxy_cost", _added("together_ttft_p50_ms"), 20,
         "ms", "direct", _proxy("direct", "together_ttft_p50_ms")),
    Goal("proxy: memory after 500 clients and bodies of 30 MB", "proxy_cost", _proxy("specdash", "crowd_mb"), 60, "MB"),
    Goal("… at most", "proxy_cost", _proxy("specdash", "peak_mb"), 120, "MB"),
    Goal("`parse-log`, requests only, thousand lines/s", "parse_log", _lines("verbosity 3, requests only", OURS), 500,
         "k", PLAIN_LOOP, _lines("verbosity 3, requests only", PLAIN_LOOP), at_least=True),
    Goal("`parse-log`, every step traced, thousand lines/s", "parse_log", _lines("every step traced", OURS), 500,
         "k", PLAIN_LOOP, _lines("every step traced", PLAIN_LOOP), at_least=True),
)  # fmt: skip
"""In the order of the table."""

HEADINGS = ("what", "measured", "peer in the same run", "goal", "")


def table(printed: Mapping[str, Any]) -> str:
    """The goals whose benchmark was run, as a Markdown table."""
    rows = [goal.row(printed[goal.benchmark]) for goal in GOALS if goal.benchmark in printed]
    lines = [HEADINGS, ("---",) * len(HEADINGS), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
