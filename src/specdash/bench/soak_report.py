"""A soak for people: what came of the turns, how speeds held over time, and whether processes grow."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from specdash.bench.figures import percent
from specdash.bench.progress import duration
from specdash.bench.soak import windows
from specdash.export.plots_svg import Plot, draw

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdash.bench.growth import Growth
    from specdash.bench.soak import Report
    from specdash.bench.soak_watch import Look, Watched

_MIB = 1024.0 * 1024.0
_FLOOR = 0.9
"""Of the least memory, where its axis begins: growth by a thousandth is to look like one."""
_ROW = 20
_LEAST_WINDOWS_S = 60.0


def summary(report: Report) -> list[str]:
    """The soak in lines of a name and a value."""
    reasons = ", ".join(f"{name} {count}" for name, count in report.stop_reasons.items())
    rows = [
        ("turns", f"{len(report.turns)} in {duration(report.duration_s)}"),
        ("error rate", percent(report.error_rate)),
        ("malformed visible", percent(report.malformed_visible_rate)),
        ("normal tool calls", percent(report.tool_success_rate)),
        ("duration p50 / p95", f"{report.duration(0.5):.2f} s / {report.duration(0.95):.2f} s"),
        ("stop reasons", reasons or "--"),
        *(row for one in report.watched for row in _process(one)),
    ]
    if not report.watched:
        rows.append(("processes", "none of this machine's found; name them with --pid"))
    rows.append(("verdict", verdict(report)))
    return [f"{name:<{_ROW}}{value}" for name, value in rows]


def verdict(report: Report) -> str:
    """In words."""
    found = "passed" if report.passed else "failed"
    if report.leaks:
        found = f"{'failed' if not report.passed else 'turns passed'}, but {' and '.join(report.leaks)} grows"
    return f"{found} (stopped before the end)" if report.interrupted else found


def over_time(report: Report) -> list[str]:
    """One line a span; nothing of a short soak."""
    if report.duration_s < _LEAST_WINDOWS_S:
        return []
    head = f"{'FROM':>10} {'TURNS':>6} {'FAULTS':>6} {'/MIN':>7} {'TOK/S':>7}"
    lines = [head + f" {'TTFT P50':>9} {'P95':>8} {'TURN P50':>9} {'P95':>8}"]
    for one in windows(report.turns):
        line = f"{duration(one.begin_s):>10} {one.turns:>6} {one.faults:>6} {one.turns_per_minute:>7.1f}"
        line += f" {_number(one.output_tok_s):>7} {_seconds(one.ttft_p50_s):>9} {_seconds(one.ttft_p95_s):>8}"
        lines.append(line + f" {_seconds(one.duration_p50_s):>9} {_seconds(one.duration_p95_s):>8}")
    return lines


def markdown(report: Report, pictures: list[str]) -> str:
    """The report as a page."""
    at = report.turns[0].at if report.turns else time.time()
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    faults = [f"- turn {turn.number + 1}, {turn.kind}: {turn.fault}" for turn in report.turns if turn.fault is not None]
    parts = [f"# Soak, {when}", "```text\n" + "\n".join(summary(report)) + "\n```"]
    lines = over_time(report)
    if lines:
        parts.append("## Over time\n\n```text\n" + "\n".join(lines) + "\n```")
    parts += [f"![{name}]({name}.svg)" for name in pictures]
    if faults:
        more = f"\n- and {len(faults) - 50} more" if len(faults) > 50 else ""
        parts.append("## Turns at fault\n\n" + "\n".join(faults[:50]) + more)
    return "\n\n".join(parts) + "\n"


def plots(report: Report) -> Iterator[tuple[str, str]]:
    """Names and SVG documents."""
    if not report.turns:
        return
    since, until = report.turns[0].at, report.turns[0].at + max(1.0, report.duration_s)
    ttft = tuple((turn.at, turn.seen.ttft_s) for turn in report.turns)
    yield "ttft", draw(Plot("Time to the first content", "s", ttft, since, until))
    for one in report.watched:
        name, span = one.role.replace(" ", "-"), (one.looks[0].at, one.looks[-1].at + 1.0) if one.looks else None
        if span is None:
            continue
        memory = tuple((look.at, look.memory / _MIB) for look in one.looks)
        floor = min(value for _, value in memory) * _FLOOR
        yield f"{name}-memory", draw(Plot(f"Memory of the {one.role}", "MiB", memory, *span, low=floor))
        held = tuple((look.at, _descriptors(look)) for look in one.looks)
        if any(value is not None for _, value in held):
            yield f"{name}-descriptors", draw(Plot(f"Open descriptors of the {one.role}", "open", held, *span))


def _process(one: Watched) -> Iterator[tuple[str, str]]:
    ended = ", ended" if one.gone else ""
    again = f", restarted {one.restarts}x" if one.restarts else ""
    yield one.role, f"process {one.pid}{again}{ended}"
    memory, held = one.memory, one.descriptors
    if memory is not None:
        told = f"{memory.first / _MIB:.1f} to {memory.last / _MIB:.1f} MiB, most {memory.most / _MIB:.1f}"
        yield "  memory", f"{told}; {_slope(memory, _MIB, 'MiB')}"
    if held is not None:
        yield "  descriptors", f"{held.first:.0f} to {held.last:.0f}, most {held.most:.0f}; {_slope(held, 1.0, '')}"


def _slope(growth: Growth, unit: float, name: str) -> str:
    if growth.slope is None:
        return str(growth.verdict)
    told = f"{growth.slope / unit:+.2f}"
    if growth.low is not None and growth.high is not None:
        told += f" [{growth.low / unit:+.2f}, {growth.high / unit:+.2f}]"
    return f"{growth.verdict}: {told} {name}{'/h' if name else 'an hour'}"


def _descriptors(look: Look) -> float | None:
    return None if look.descriptors is None else float(look.descriptors)


def _number(value: float | None) -> str:
    return "--" if value is None else f"{value:.1f}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "--"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"
