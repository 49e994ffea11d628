"""The soak: turns that provoke malformed tool calls alternate with normal ones, in one session of a running proxy.

A stress turn fails when broken tool syntax becomes visible; a normal turn fails when it brings no usable tool call. The
profile is the UAP proxy's stability soak: 10 turns, one session id, streamed.
"""

from __future__ import annotations

import dataclasses
import math
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdash.bench.messages import TurnSeen, ask
from specdash.bench.visible import call_fault, visible_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
        return values[max(0, math.ceil(share * len(values)) - 1)]

    def as_json(self) -> dict[str, Any]:
        """Everything, with each turn; texts of turns only where something was wrong."""
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
            "detail": [_turn_json(turn) for turn in self.turns],
        }


def soak(
    url: str, turns: int, *, key: str | None, timeout: float, on_turn: Callable[[Turn], None] | None = None
) -> Report:
    """Run the turns one after the other against the proxy at `url`; `timeout` in seconds bounds each wait for data."""
    import httpx

    headers = {"anthropic-version": "2023-06-01", "x-claude-code-session-id": f"soak-{uuid.uuid4()}"}
    if key:
        headers["x-api-key"] = key
    done: list[Turn] = []
    with httpx.Client(base_url=url, timeout=timeout, trust_env=False) as client:
        for number in range(turns):
            turn = judged(number, ask(client, body(number), headers))
            done.append(turn)
            if on_turn is not None:
                on_turn(turn)
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


def _turn_json(turn: Turn) -> dict[str, Any]:
    seen = dataclasses.asdict(turn.seen)
    text, calls = seen.pop("text"), seen.pop("calls")
    value = {"number": turn.number, "kind": turn.kind, "fault": turn.fault, **seen}
    value["tool_calls"] = [name for name, _ in calls]
    return value if turn.fault is None else {**value, "text": text, "inputs": [inputs for _, inputs in calls]}


def _share(found: Sequence[bool]) -> float | None:
    return sum(found) / len(found) if found else None
