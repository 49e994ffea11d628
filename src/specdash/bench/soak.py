"""The soak: turns that provoke malformed tool calls alternate with normal ones, in one session of a running proxy.

A stress turn fails when broken tool syntax becomes visible; a normal turn fails when it brings no usable tool call. The
profile is the UAP proxy's stability soak: 10 turns, one session id, streamed.
"""

from __future__ import annotations

import dataclasses
import math
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdash.bench.messages import TurnSeen, ask
from specdash.bench.statistics import percentiles
from specdash.bench.visible import call_fault, visible_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdash.bench.soak_watch import Watched

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
class Turn:
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
        """What was wrong."""
        if self.seen.error is not None:
            return self.seen.error
        if self.visible is not None:
            return self.visible
        return None if self.kind == "stress" or self.calls_ok else "no usable tool call"


@dataclass(frozen=True, slots=True)
class Report:
    """Rates are shares of 1, durations seconds; a rate of no turns is None."""

    turns: tuple[Turn, ...]
    watched: tuple[Watched, ...] = ()
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
        return tuple(one.role for one in self.watched if one.leaks)

    @property
    def error_rate(self) -> float | None:
        """Turns that ended in an error."""
        return _share([turn.seen.error is not None for turn in self.turns])

    @property
    def malformed_visible_rate(self) -> float | None:
        """Turns, of either kind, whose visible text holds broken tool syntax, or whose calls cannot be used."""
        return _share([turn.visible is not None for turn in self.turns])

    @property
    def tool_success_rate(self) -> float | None:
        """Normal turns with usable tool calls."""
        return _share([turn.calls_ok and turn.seen.error is None for turn in self.turns if turn.kind == "normal"])

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
        values = sorted(turn.seen.duration_s for turn in self.turns)
        return values[max(0, math.ceil(share * len(values)) - 1)] if values else 0.0

    def as_json(self) -> dict[str, Any]:
        """Everything; of very many turns only those at fault one by one. Texts only where something was wrong."""
        few = len(self.turns) <= _MOST_DETAIL
        return {
            "schema": "specdash.soak/1",
            "passed": self.passed,
            "turns": len(self.turns),
            "error_rate": self.error_rate,
            "malformed_visible_rate": self.malformed_visible_rate,
            "tool_success_rate": self.tool_success_rate,
            "duration_p50_s": round(self.duration(0.5), 4),
            "duration_p95_s": round(self.duration(0.95), 4),
            "stop_reasons": self.stop_reasons,
            "interrupted": self.interrupted,
            "duration_s": round(self.duration_s, 3),
            "leaks": list(self.leaks),
            "windows": [dataclasses.asdict(one) for one in windows(self.turns)],
            "processes": [_watched_json(one) for one in self.watched],
            "detail": [turn_json(turn) for turn in self.turns if few or turn.fault is not None],
        }


@dataclass(frozen=True, slots=True)
class Window:
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


def windows(turns: Sequence[Turn], count: int = 12) -> tuple[Window, ...]:
    """The soak in equal spans, empty ones too."""
    if not turns:
        return ()
    begin = turns[0].at
    width = max(1e-9, (turns[-1].at + turns[-1].seen.duration_s - begin) / count)
    parts: list[list[Turn]] = [[] for _ in range(count)]
    for turn in turns:
        parts[min(count - 1, int((turn.at - begin) / width))].append(turn)
    return tuple(_window(number * width, width, part) for number, part in enumerate(parts))


def _window(begin_s: float, width_s: float, turns: Sequence[Turn]) -> Window:
    ttft = [turn.seen.ttft_s for turn in turns if turn.seen.ttft_s is not None]
    durations = [turn.seen.duration_s for turn in turns]
    spoken = [turn.seen for turn in turns if turn.seen.output_tokens is not None]
    tokens, spent = sum(one.output_tokens or 0 for one in spoken), sum(one.duration_s for one in spoken)
    return Window(
        round(begin_s, 3),
        len(turns),
        sum(turn.fault is not None for turn in turns),
        len(turns) * 60.0 / width_s,
        tokens / spent if spent > 0 else None,
        *percentiles(ttft, (0.5, 0.95)),
        *percentiles(durations, (0.5, 0.95)),
    )


def soak(
    url: str,
    turns: int,
    *,
    key: str | None,
    timeout: float,
    on_turn: Callable[[Turn], None] | None = None,
    until: float | None = None,
    done: list[Turn] | None = None,
) -> Report:
    """Run the turns one after the other against the proxy at `url`; `timeout` in seconds bounds each wait for data.

    `until`, of the monotonic clock, ends it before. `done` gets each turn as it ends: what there is after Ctrl-C. Words
    are kept of turns at fault only.
    """
    import httpx

    headers = {"anthropic-version": "2023-06-01", "x-claude-code-session-id": f"soak-{uuid.uuid4()}"}
    if key:
        headers["x-api-key"] = key
    done = done if done is not None else []
    with httpx.Client(base_url=url, timeout=timeout, trust_env=False) as client:
        failures = 0
        for number in range(turns):
            if failures > _FAILURES_AT_ONCE:
                # A proxy that is being restarted refuses thousands of turns a second.
                time.sleep(min(_LONGEST_PAUSE_S, 0.1 * 2 ** min(failures - _FAILURES_AT_ONCE, 10)))
            if until is not None and time.monotonic() >= until:
                break
            at = time.time()
            turn = dataclasses.replace(judged(number, ask(client, body(number), headers)), at=at)
            failures = failures + 1 if turn.seen.error is not None else 0
            if on_turn is not None:
                on_turn(turn)
            done.append(turn if turn.fault is not None else _without_words(turn))
    return Report(tuple(done))


def kind(number: int) -> str:
    """Turns alternate, stress first."""
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


def judged(number: int, seen: TurnSeen) -> Turn:
    """The turn with its judgement. A call cut off by max_tokens is not usable, and not malformed either."""
    faults = [call_fault(name, arguments, TOOLS) for name, arguments in seen.calls]
    first = next((one for one in faults if one is not None), None)
    cut = seen.stop_reason == "max_tokens" or seen.error is not None
    visible = visible_fault(seen.text, TOOLS) or (None if cut else first)
    return Turn(number, kind(number), seen, visible, calls_ok=bool(faults) and first is None)


def _without_words(turn: Turn) -> Turn:
    return dataclasses.replace(turn, seen=dataclasses.replace(turn.seen, text=""))


def _watched_json(one: Watched) -> dict[str, Any]:
    found: dict[str, Any] = {"role": one.role, "pid": one.pid, "restarts": one.restarts, "gone": one.gone}
    for name, growth in (("memory", one.memory), ("descriptors", one.descriptors)):
        found[name] = None if growth is None else dataclasses.asdict(growth)
    return found


def turn_json(turn: Turn) -> dict[str, Any]:
    """One turn; its words and calls' inputs only where something was wrong."""
    seen = dataclasses.asdict(turn.seen)
    text, calls = seen.pop("text"), seen.pop("calls")
    value = {"number": turn.number, "kind": turn.kind, "fault": turn.fault, **seen}
    value["tool_calls"] = [name for name, _ in calls]
    return value if turn.fault is None else {**value, "text": text, "inputs": [inputs for _, inputs in calls]}


def _share(found: Sequence[bool]) -> float | None:
    return sum(found) / len(found) if found else None
