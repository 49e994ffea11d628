"""The soak: turns that provoke malformed tool calls alternate with normal ones, in one session of a running proxy.

A stress turn fails when broken tool syntax becomes visible; a normal turn fails when it brings no usable tool call. The
profile is the UAP proxy's stability soak: 10 turns, one session id, streamed.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

import psutil
from msgspec import Struct, field
from msgspec.structs import replace

from specdash.bench.load.messages import TurnSeen, ask, call_fault, visible_fault
from specdash.bench.report import page, section
from specdash.collect.discover import place, recorded_target, running_proxies
from specdash.core.errors import SpecdashError
from specdash.core.structs import json_of
from specdash.core.target import local_port
from specdash.system.processes import began, listening_pid, same_process
from specdash.system.stats import mean, nearest_rank, quantiles, ratio
from specdash.system.text import MIB, UNKNOWN, duration, number, percent, seconds, timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


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


class SoakTurn(Struct, frozen=True):
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


class SoakReport(Struct, frozen=True):
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
            **json_of(self, "passed error_rate malformed_visible_rate tool_success_rate stop_reasons interrupted"),
            "duration_p50_s": round(self.duration(0.5), 4),
            "duration_p95_s": round(self.duration(0.95), 4),
            "duration_s": round(self.duration_s, 3),
            "windows": json_of(windows(self.turns)),
            "processes": [json_of(process, _PROCESS) for process in self.watched],
            "detail": [turn_json(turn) for turn in self.turns if few or turn.fault is not None],
        }


class SoakWindow(Struct, frozen=True):
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
    every = [turn.seen for turn in turns]
    ttft = [seen.ttft_s for seen in every if seen.ttft_s is not None]
    spoken = [(float(seen.output_tokens), seen.duration_s) for seen in every if seen.output_tokens is not None]
    return SoakWindow(
        round(begin_s, 3),
        len(turns),
        sum(turn.fault is not None for turn in turns),
        len(turns) * 60.0 / width_s,
        ratio(spoken),
        *quantiles(ttft, (0.5, 0.95)),
        *quantiles([seen.duration_s for seen in every], (0.5, 0.95)),
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
        turn = replace(judged(turn_number, ask(url, body(turn_number), headers, timeout)), at=at)
        failures = failures + 1 if turn.seen.error is not None else 0
        # First of all, so that a Ctrl-C while it is shown does not lose it.
        done.append(turn if turn.fault is not None else replace(turn, seen=replace(turn.seen, text="")))
        if on_turn is not None:
            on_turn(turn)
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


_PROCESS = "role pid restarts gone memory descriptors"


def turn_json(turn: SoakTurn) -> dict[str, Any]:
    """One turn; its words and calls' inputs only where something was wrong."""
    value: dict[str, Any] = {
        **json_of(turn, "number kind fault"),
        **json_of(turn.seen, "duration_s ttft_s stop_reason output_tokens error"),
        "tool_calls": [name for name, _ in turn.seen.calls],
    }
    answer = {"text": turn.seen.text, "inputs": [inputs for _, inputs in turn.seen.calls]}
    return value if turn.fault is None else {**value, **answer}


# A soak for people: what came of the turns, how speeds held over time, and what processes held.


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
            line += f" {seconds(median):>9} {seconds(tail):>8}"
        lines.append(line)
    return lines


def markdown(report: SoakReport) -> str:
    """The report as a page."""
    at = report.turns[0].at if report.turns else time.time()
    faults = [f"turn {turn.number + 1}, {turn.kind}: {turn.fault}" for turn in report.turns if turn.fault is not None]
    more = [f"and {len(faults) - 50} more"] if len(faults) > 50 else []
    lines = over_time(report)
    return page(
        f"Soak, {timestamp(at)}",
        _verbatim(summary(report)),
        section("Over time", _verbatim(lines)) if lines else "",
        section("Turns at fault", [*faults[:50], *more]) if faults else "",
    )


def _verbatim(lines: list[str]) -> str:
    return "```text\n" + "\n".join(lines) + "\n```"


def _process(process: WatchedProcess) -> Iterator[tuple[str, str]]:
    ended = ", ended" if process.gone else ""
    again = f", restarted {process.restarts}x" if process.restarts else ""
    yield process.role, f"process {process.pid}{again}{ended}"
    memory, held = process.memory, process.descriptors
    if memory is not None:
        yield "  memory", f"{memory.first / MIB:.1f} to {memory.last / MIB:.1f} MiB, most {memory.most / MIB:.1f}"
    if held is not None:
        yield "  descriptors", f"{held.first:.0f} to {held.last:.0f}, most {held.most:.0f}"


# Memory and descriptors of the processes under a soak, looked at in a thread of its own while it runs.


INTERVAL_S = 2.0
_MOST_LOOKS = 8000
PROXY, BACKEND = "proxy", "backend"


class ProcessLook(Struct, frozen=True):
    """One look. Times are Unix seconds, memory is resident bytes; descriptors are None where they may not be seen."""

    at: float
    memory: int
    descriptors: int | None
    threads: int


class Range(Struct, frozen=True):
    """A quantity over the soak."""

    looks: int
    first: float
    last: float
    most: float


class WatchedProcess(Struct):
    """One process and what was seen of it. After a restart only the new process counts."""

    role: str
    pid: int
    started: float
    looks: list[ProcessLook] = field(default_factory=list)
    restarts: int = 0
    gone: bool = False

    @property
    def memory(self) -> Range | None:
        """Resident memory, bytes; None without a look."""
        return _range([float(look.memory) for look in self.looks])

    @property
    def descriptors(self) -> Range | None:
        """Open descriptors; None where they may not be seen."""
        return _range([float(look.descriptors) for look in self.looks if look.descriptors is not None])


def _range(values: Sequence[float]) -> Range | None:
    return Range(len(values), values[0], values[-1], max(values)) if values else None


class SoakWatch:
    """Looks at processes every few seconds while it is a context. `find` names them by role, again when one ended."""

    def __init__(self, find: Callable[[], Mapping[str, int]], interval_s: float = INTERVAL_S) -> None:
        self._find = find
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="soak watch", daemon=True)
        self._watched: dict[str, WatchedProcess] = {}

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(10)

    @property
    def watched(self) -> tuple[WatchedProcess, ...]:
        """What was seen so far."""
        return tuple(self._watched.values())

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            self._look()

    def _look(self) -> None:
        if not self._watched or any(process.gone for process in self._watched.values()):
            self._find_them()
        for process in self._watched.values():
            seen = None if process.gone else _seen(process)
            if seen is None:
                process.gone = True
                continue
            process.looks.append(seen)
            if len(process.looks) > _MOST_LOOKS:
                del process.looks[1::2]
                self._interval_s *= 2

    def _find_them(self) -> None:
        try:
            found = self._find()
        except (SpecdashError, OSError, psutil.Error):
            return
        for role, pid in found.items():
            before = self._watched.get(role)
            if before is not None and not before.gone:
                continue
            if (started := began(pid)) is None:
                continue
            if before is None or (pid, started) != (before.pid, before.started):
                self._watched[role] = WatchedProcess(role, pid, started, restarts=before.restarts + 1 if before else 0)


def _seen(watched_process: WatchedProcess) -> ProcessLook | None:
    if not same_process(watched_process.pid, watched_process.started):
        return None
    try:
        process = psutil.Process(watched_process.pid)
        with process.oneshot():
            return ProcessLook(time.time(), process.memory_info().rss, _descriptors(process), process.num_threads())
    except psutil.Error:
        return None


def _descriptors(process: psutil.Process) -> int | None:
    try:
        return process.num_fds()
    except (psutil.Error, OSError, AttributeError):
        return None


def processes_of(proxy_url: str, env: Mapping[str, str]) -> dict[str, int]:
    """The pids of the proxy at an address and of the backend behind it, by run records, else by who listens there.

    A process on another machine, or of another user, is not among them.
    """

    def listening(url: str) -> int | None:
        port = local_port(url)
        return listening_pid(port) if port is not None else None

    record = next((record for record in running_proxies(env) if place(record.url) == place(proxy_url)), None)
    found = {PROXY: record.pid if record is not None else listening(proxy_url)}
    if record is not None and record.upstream is not None:
        target = recorded_target(record.upstream, env)
        found[BACKEND] = (target.pid if target is not None else None) or listening(record.upstream)
    return {role: pid for role, pid in found.items() if pid is not None}
