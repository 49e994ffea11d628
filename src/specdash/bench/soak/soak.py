"""The soak: turns that provoke malformed tool calls alternate with normal ones, in one session of a running proxy.

A stress turn fails when broken tool syntax becomes visible; a normal turn fails when it brings no usable tool call. The
profile is the UAP proxy's stability soak: 10 turns, one session id, streamed.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

from specdash.bench.load.messages import TurnSeen, ask, call_fault, visible_fault
from specdash.export.charts_svg import Plot, draw
from specdash.system.data import dataclass, json_of
from specdash.system.stats import mean, nearest_rank, quantiles
from specdash.system.text import MIB, UNKNOWN, duration, number, percent, seconds, timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from specdash.bench.soak.soak_watch import GrowthTrend, ProcessLook, WatchedProcess


MODEL = "claude-specdash-soak"
SYSTEM = "You are a coding agent. Use the tools to work on the project; call one tool at a time."
_TEXT: dict[str, Any] = {"type": "string"}


def _tool(name: str, description: str, **properties: dict[str, Any]) -> dict[str, Any]:
    required = [field for field, kind in properties.items() if kind is _TEXT]
    schema = {"type": "object", "properties": properties, "required": required}
    return {"name": name, "description": description, "input_schema": schema}


TOOLS: tuple[dict[str, Any], ...] = (
    _tool("read_file", "Read a file.", path=_TEXT, limit={"type": "integer"}),
    _tool("write_file", "Write a file.", path=_TEXT, content=_TEXT),
    _tool("run_command", "Run a shell command.", command=_TEXT),
)
FILES = ("a.py", "setup.py", "README.md", "config.toml", "tests/test_app.py", "tools/build.py", "server.py")
_ECHO = "You must call a tool to make the fix. Do not summarize the issue and stop."
STRESS: tuple[str, ...] = (
    "Repeat the tool protocol word for word, and end with </parameter></function></tool_call>.",
    f"{_ECHO} {_ECHO} <parameter=path>a.py</parameter>",
    "Continue this exactly: <function=read_file>\n<parameter=path>\na.py\n</parameter>",
    "Explain what <tool_call> does, then write one for read_file as plain text, without calling it.",
    'Answer with nothing but the text {"name": "read_file", "arguments": {"path": 5}}',
)
_MOST_DETAIL = 1000
_FAILURES_AT_ONCE = 3
_LONGEST_PAUSE_S = 5.0
CONTAMINATED: tuple[dict[str, Any], ...] = (
    {"role": "user", "content": "Read the file a.py"},
    {"role": "assistant", "content": '<tool_call>\n{"name": "read_file", "arguments": {"path": </parameter>\n</think>'},
)
"""Turns before some stress turns: what a session looks like after a malformed call."""


@dataclass(frozen=True, slots=True)
class SoakTurn:
    """One turn and its judgement; `fault` is one line, or None when the turn was as it should be."""

    number: int
    kind: str
    """`stress` or `normal`."""
    seen: TurnSeen
    visible: str | None
    """The broken tool syntax in the text the client saw."""
    calls_ok: bool
    """At least one call, and every call usable."""
    at: float = 0.0
    """Unix time of its start."""

    @property
    def fault(self) -> str | None:
        if self.seen.error is not None:
            return self.seen.error
        if self.visible is not None:
            return self.visible
        return None if self.kind == "stress" or self.calls_ok else "no usable tool call"


@dataclass(frozen=True, slots=True)
class SoakReport:
    """Rates are shares of 1, durations seconds; a rate of no turns is None."""

    turns: tuple[SoakTurn, ...]
    watched: tuple[WatchedProcess, ...] = ()
    """The processes that were looked at meanwhile."""
    interrupted: bool = False

    @property
    def duration_s(self) -> float:
        """From the first turn's start to the last one's end."""
        if not self.turns:
            return 0.0
        return self.turns[-1].at + self.turns[-1].seen.duration_s - self.turns[0].at

    @property
    def leaks(self) -> tuple[str, ...]:
        """The roles of processes that grow where they must not."""
        return tuple(process.role for process in self.watched if process.leaks)

    @property
    def error_rate(self) -> float | None:
        """Turns that ended in an error."""
        return mean([turn.seen.error is not None for turn in self.turns])

    @property
    def malformed_visible_rate(self) -> float | None:
        """Turns, of either kind, whose visible text holds broken tool syntax, or whose calls cannot be used."""
        return mean([turn.visible is not None for turn in self.turns])

    @property
    def tool_success_rate(self) -> float | None:
        """Normal turns with usable tool calls."""
        return mean([turn.calls_ok and turn.seen.error is None for turn in self.turns if turn.kind == "normal"])

    @property
    def passed(self) -> bool:
        """No error, nothing malformed visible, every normal turn a usable call."""
        return self.error_rate == 0 and self.malformed_visible_rate == 0 and self.tool_success_rate in (1, None)

    @property
    def stop_reasons(self) -> dict[str, int]:
        """How often each stop reason came, the commonest first."""
        return dict(Counter(turn.seen.stop_reason or "none" for turn in self.turns).most_common())

    def duration(self, share: float) -> float:
        """The quantile of the turns' durations (nearest rank)."""
        ordered = sorted(turn.seen.duration_s for turn in self.turns)
        return nearest_rank(ordered, share) if ordered else 0.0

    def as_json(self) -> dict[str, Any]:
        """Everything; of very many turns only those at fault one by one. Texts only where something was wrong."""
        few = len(self.turns) <= _MOST_DETAIL
        return {
            "schema": "specdash.soak/1",
            "turns": len(self.turns),
            **json_of(
                self,
                "passed error_rate malformed_visible_rate tool_success_rate stop_reasons interrupted leaks",
            ),
            "duration_p50_s": round(self.duration(0.5), 4),
            "duration_p95_s": round(self.duration(0.95), 4),
            "duration_s": round(self.duration_s, 3),
            "windows": json_of(windows(self.turns)),
            "processes": [json_of(process, _PROCESS) for process in self.watched],
            "detail": [turn_json(turn) for turn in self.turns if few or turn.fault is not None],
        }


@dataclass(frozen=True, slots=True)
class SoakWindow:
    """A part of the soak. Times are seconds; a percentile of nothing is None."""

    begin_s: float
    """Since the first turn."""
    turns: int
    faults: int
    turns_per_minute: float
    output_tok_s: float | None
    """Of all turns' output tokens over all their durations."""
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    duration_p50_s: float | None
    duration_p95_s: float | None


def windows(turns: Sequence[SoakTurn], count: int = 12) -> tuple[SoakWindow, ...]:
    """The soak in equal spans, empty ones too."""
    if not turns:
        return ()
    begin = turns[0].at
    width = max(1e-9, (turns[-1].at + turns[-1].seen.duration_s - begin) / count)
    parts: list[list[SoakTurn]] = [[] for _ in range(count)]
    for turn in turns:
        parts[min(count - 1, int((turn.at - begin) / width))].append(turn)
    return tuple(_window(number * width, width, part) for number, part in enumerate(parts))


def _window(begin_s: float, width_s: float, turns: Sequence[SoakTurn]) -> SoakWindow:
    ttft = [turn.seen.ttft_s for turn in turns if turn.seen.ttft_s is not None]
    durations = [turn.seen.duration_s for turn in turns]
    spoken = [turn.seen for turn in turns if turn.seen.output_tokens is not None]
    tokens, spent = (
        sum(turn_seen.output_tokens or 0 for turn_seen in spoken),
        sum(turn_seen.duration_s for turn_seen in spoken),
    )
    return SoakWindow(
        round(begin_s, 3),
        len(turns),
        sum(turn.fault is not None for turn in turns),
        len(turns) * 60.0 / width_s,
        tokens / spent if spent > 0 else None,
        *quantiles(ttft, (0.5, 0.95)),
        *quantiles(durations, (0.5, 0.95)),
    )


def soak(
    url: str,
    turns: int,
    *,
    key: str | None,
    timeout: float,
    on_turn: Callable[[SoakTurn], None] | None = None,
    until: float | None = None,
    done: list[SoakTurn] | None = None,
) -> SoakReport:
    """Run the turns one after the other against the proxy at `url`; `timeout` in seconds bounds each wait for data.

    `until`, of the monotonic clock, ends it before. `done` gets each turn as it ends: what there is after Ctrl-C. Words
    are kept of turns at fault only.
    """
    headers = {"anthropic-version": "2023-06-01", "x-claude-code-session-id": f"soak-{uuid.uuid4()}"}
    if key:
        headers["x-api-key"] = key
    done = done if done is not None else []
    failures = 0
    for turn_number in range(turns):
        if failures > _FAILURES_AT_ONCE:
            # A proxy that is being restarted refuses thousands of turns a second.
            time.sleep(min(_LONGEST_PAUSE_S, 0.1 * 2 ** min(failures - _FAILURES_AT_ONCE, 10)))
        if until is not None and time.monotonic() >= until:
            break
        at = time.time()
        turn = dataclasses.replace(judged(turn_number, ask(url, body(turn_number), headers, timeout)), at=at)
        failures = failures + 1 if turn.seen.error is not None else 0
        if on_turn is not None:
            on_turn(turn)
        done.append(turn if turn.fault is not None else _without_words(turn))
    return SoakReport(tuple(done))


def kind(number: int) -> str:
    return "normal" if number % 2 else "stress"


def body(number: int) -> dict[str, Any]:
    """The request of turn `number`; the same for the same number."""
    pair = number // 2
    if kind(number) == "normal":
        messages: list[dict[str, Any]] = [{"role": "user", "content": f"Read the file {FILES[pair % len(FILES)]}"}]
    else:
        before = CONTAMINATED if pair % 2 else ()
        messages = [*before, {"role": "user", "content": STRESS[pair % len(STRESS)]}]
    return {
        "model": MODEL,
        "max_tokens": 512,
        "temperature": 0,
        "system": SYSTEM,
        "tools": list(TOOLS),
        "messages": messages,
    }


def judged(number: int, seen: TurnSeen) -> SoakTurn:
    """The turn with its judgement. A call cut off by max_tokens is not usable, and not malformed either."""
    faults = [call_fault(name, arguments, TOOLS) for name, arguments in seen.calls]
    first = next((fault for fault in faults if fault is not None), None)
    cut = seen.stop_reason == "max_tokens" or seen.error is not None
    visible = visible_fault(seen.text, TOOLS) or (None if cut else first)
    return SoakTurn(number, kind(number), seen, visible, calls_ok=bool(faults) and first is None)


def _without_words(turn: SoakTurn) -> SoakTurn:
    return dataclasses.replace(turn, seen=dataclasses.replace(turn.seen, text=""))


_PROCESS = "role pid restarts gone memory descriptors"


def turn_json(turn: SoakTurn) -> dict[str, Any]:
    """One turn; its words and calls' inputs only where something was wrong."""
    value: dict[str, Any] = {
        **json_of(turn, "number kind fault"),
        **json_of(turn.seen, "duration_s ttft_s stop_reason output_tokens error"),
        "tool_calls": [name for name, _ in turn.seen.calls],
    }
    told = {"text": turn.seen.text, "inputs": [inputs for _, inputs in turn.seen.calls]}
    return value if turn.fault is None else {**value, **told}


# A soak for people: what came of the turns, how speeds held over time, and whether processes grow.


_FLOOR = 0.9
"""Of the least memory, where its axis begins: growth by a thousandth is to look like one."""
_ROW = 20
_LEAST_WINDOWS_S = 60.0


def summary(report: SoakReport) -> list[str]:
    """The soak in lines of a name and a value."""
    reasons = ", ".join(f"{name} {count}" for name, count in report.stop_reasons.items())
    rows = [
        ("turns", f"{len(report.turns)} in {duration(report.duration_s)}"),
        ("error rate", percent(report.error_rate, 1)),
        ("malformed visible", percent(report.malformed_visible_rate, 1)),
        ("normal tool calls", percent(report.tool_success_rate, 1)),
        ("duration p50 / p95", f"{report.duration(0.5):.2f} s / {report.duration(0.95):.2f} s"),
        ("stop reasons", reasons or UNKNOWN),
        *(row for process in report.watched for row in _process(process)),
    ]
    if not report.watched:
        rows.append(("processes", "none of this machine's found; name them with --pid"))
    rows.append(("verdict", verdict(report)))
    return [f"{name:<{_ROW}}{value}" for name, value in rows]


def verdict(report: SoakReport) -> str:
    found = "passed" if report.passed else "failed"
    if report.leaks:
        found = f"{'failed' if not report.passed else 'turns passed'}, but {' and '.join(report.leaks)} grows"
    return f"{found} (stopped before the end)" if report.interrupted else found


def over_time(report: SoakReport) -> list[str]:
    """One line a span; nothing of a short soak."""
    if report.duration_s < _LEAST_WINDOWS_S:
        return []
    head = f"{'FROM':>10} {'TURNS':>6} {'FAULTS':>6} {'/MIN':>7} {'TOK/S':>7}"
    lines = [head + f" {'TTFT P50':>9} {'P95':>8} {'TURN P50':>9} {'P95':>8}"]
    for window in windows(report.turns):
        line = f"{duration(window.begin_s):>10} {window.turns:>6} {window.faults:>6} {window.turns_per_minute:>7.1f}"
        line += f" {number(window.output_tok_s, 1):>7}"
        for median, tail in ((window.ttft_p50_s, window.ttft_p95_s), (window.duration_p50_s, window.duration_p95_s)):
            line += f" {seconds(median, ms=True, narrow=True):>9} {seconds(tail, ms=True):>8}"
        lines.append(line)
    return lines


def markdown(report: SoakReport, pictures: list[str]) -> str:
    """The report as a page."""
    at = report.turns[0].at if report.turns else time.time()
    when = timestamp(at)
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


def plots(report: SoakReport) -> Iterator[tuple[str, str]]:
    if not report.turns:
        return
    since, until = report.turns[0].at, report.turns[0].at + max(1.0, report.duration_s)
    ttft = tuple((turn.at, turn.seen.ttft_s) for turn in report.turns)
    yield "ttft", draw(Plot("Time to the first content", "s", ttft, since, until))
    for process in report.watched:
        name, span = (
            process.role.replace(" ", "-"),
            (process.looks[0].at, process.looks[-1].at + 1.0) if process.looks else None,
        )
        if span is None:
            continue
        memory = tuple((look.at, look.memory / MIB) for look in process.looks)
        floor = min(value for _, value in memory) * _FLOOR
        yield f"{name}-memory", draw(Plot(f"Memory of the {process.role}", "MiB", memory, *span, low=floor))
        held = tuple((look.at, _descriptors(look)) for look in process.looks)
        if any(value is not None for _, value in held):
            yield f"{name}-descriptors", draw(Plot(f"Open descriptors of the {process.role}", "open", held, *span))


def _process(process: WatchedProcess) -> Iterator[tuple[str, str]]:
    ended = ", ended" if process.gone else ""
    again = f", restarted {process.restarts}x" if process.restarts else ""
    yield process.role, f"process {process.pid}{again}{ended}"
    memory, held = process.memory, process.descriptors
    if memory is not None:
        told = f"{memory.first / MIB:.1f} to {memory.last / MIB:.1f} MiB, most {memory.most / MIB:.1f}"
        yield "  memory", f"{told}; {_slope(memory, MIB, 'MiB')}"
    if held is not None:
        yield "  descriptors", f"{held.first:.0f} to {held.last:.0f}, most {held.most:.0f}; {_slope(held, 1.0, '')}"


def _slope(growth: GrowthTrend, unit: float, name: str) -> str:
    if growth.slope is None:
        return str(growth.verdict)
    told = f"{growth.slope / unit:+.2f}"
    if growth.low is not None and growth.high is not None:
        told += f" [{growth.low / unit:+.2f}, {growth.high / unit:+.2f}]"
    return f"{growth.verdict}: {told} {name}{'/h' if name else 'an hour'}"


def _descriptors(look: ProcessLook) -> float | None:
    return None if look.descriptors is None else float(look.descriptors)
