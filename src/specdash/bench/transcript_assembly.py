"""Makes turns and calls of a transcript's lines, one after the other."""

from __future__ import annotations

import hashlib
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specdash.bench.transcript_lines import BrokenLineError
from specdash.bench.transcript_parts import Block, Contents, Result, Use, chars_of, fields_of
from specdash.bench.transcript_turns import Call, Turn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdash.bench.transcript_lines import Line

    Message = dict[str, Any]

CLAUDE, OPENAI = "Claude Code", "OpenAI messages"
_MOST_TOLD = 20
_SYNTHETIC = "<synthetic>"
"""The model of messages that Claude Code made itself."""


class BrokenFileError(ValueError):
    """A line is broken, and broken lines are not to be skipped."""


@dataclass(slots=True)
class Assembly:
    """Makes turns of lines."""

    contents: Contents
    wanted: int | None
    skip_broken: bool = False
    calls: list[Call] = field(default_factory=list)
    used: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    format: str | None = None
    chars: int = 0
    full: bool = False
    """As many calls as were wanted."""
    skipped: int = 0
    told: list[str] = field(default_factory=list)
    loose: bool = False
    """Messages come one a line."""
    tip: Turn | None = None
    sidechain: bool | None = None
    """Whether the session is that of a subagent; None until the first message."""
    places: dict[str, Turn | None] = field(default_factory=dict)
    """The tip right after each record, by its uuid."""
    ids: set[str] = field(default_factory=set)
    """Of all tool calls."""
    placed: set[tuple[int, bool, str]] = field(default_factory=set)
    """Calls and results by the turn they are in."""
    seen: dict[bytes, Turn] = field(default_factory=dict)
    asked: set[Turn] = field(default_factory=set)

    def take(self, line: Line) -> None:
        """Add one line. Raises `BrokenFileError`."""
        number, value = line.number, line.value
        if line.broken:
            self._broken(f"line {number}", line.broken)
        elif isinstance(value, list):
            self._conversation(value, None, number)
        elif isinstance(value, dict) and isinstance(value.get("messages"), list):
            tools = value.get("tools")
            given = tuple(one for one in tools if isinstance(one, dict)) if isinstance(tools, list) else ()
            self._conversation(value["messages"], given or None, number)
        else:
            with self._one(f"line {number}"):
                self._single(value, number)

    def finish(self, number: int) -> None:
        """What messages, one a line, end with is asked, too, when that is no answer."""
        if self.loose and not self.full:
            self._ask_last(number, None)

    @contextmanager
    def _one(self, where: str) -> Iterator[None]:
        try:
            yield
        except BrokenLineError as error:
            self._broken(where, str(error))
        except RecursionError:
            self._broken(where, "nested too deeply")

    def _broken(self, where: str, why: str) -> None:
        if not self.skip_broken:
            raise BrokenFileError(f"{where}: {why}")
        self.skipped += 1
        if self.skipped <= _MOST_TOLD:
            self.told.append(f"{where}: {why}")

    def _single(self, value: Any, number: int) -> None:
        if not isinstance(value, dict):
            raise BrokenLineError("no JSON object")
        if isinstance(value.get("role"), str) and value.get("type") in (None, "message"):
            self._is(OPENAI)
            self.loose = True
            self._spoken(value, number)
        elif isinstance(value.get("type"), str):
            self._is(CLAUDE)
            self._record(value, number)
        else:
            raise BrokenLineError("neither a record of Claude Code nor an OpenAI message")

    def _is(self, kind: str) -> None:
        if self.format is None:
            self.format = kind
        elif self.format != kind:
            raise BrokenLineError(f"{kind} among {self.format}")

    def _record(self, value: dict[str, Any], number: int) -> None:
        kind, uuid = value["type"], value.get("uuid")
        if isinstance(uuid, str) and uuid in self.places:
            self.left_out["repeated record"] += 1
            return
        if kind in ("user", "assistant"):
            side = value.get("isSidechain") is True
            self.sidechain = side if self.sidechain is None else self.sidechain
            if side != self.sidechain:
                self.left_out["record of a subagent" if side else "record of the main session"] += 1
                return
            self._told(value, kind, number)
        elif kind == "system" and value.get("subtype") == "compact_boundary":
            self.tip = None
        if isinstance(uuid, str):
            self.places[uuid] = self.tip

    def _told(self, value: dict[str, Any], role: str, number: int) -> None:
        message = value.get("message")
        if not isinstance(message, dict):
            raise BrokenLineError(f"a record of the {role} without a message")
        if message.get("role", role) != role:
            raise BrokenLineError(f"a record of the {role} whose message is of another role")
        if value.get("isApiErrorMessage") is True:
            self.left_out["API error"] += 1
            return
        blocks = self.contents.blocks(message.get("content"), role)
        self._check_results(blocks)
        if role == "user":
            self._user(value, blocks, number)
        else:
            self._assistant(value, message, blocks, number)

    def _check_results(self, blocks: list[Block]) -> None:
        for one in blocks:
            if isinstance(one, Result) and one.id not in self.ids:
                raise BrokenLineError("a tool result without the tool use before it")

    def _user(self, value: dict[str, Any], blocks: list[Block], number: int) -> None:
        if not any(isinstance(one, Result) for one in blocks):
            anew = "parentUuid" in value and value["parentUuid"] is None
            if value.get("isCompactSummary") is True or (anew and self._has_assistant()):
                self.tip = None
            else:
                self._branch(value)
        if self.tip is None or self.tip.role != "user" or self.tip.has_children:
            self._new("user", number)
        self._add(blocks)

    def _assistant(self, value: dict[str, Any], message: dict[str, Any], blocks: list[Block], number: int) -> None:
        told = message.get("id")
        name = told if isinstance(told, str) else None
        open_turn = self._open_assistant()
        if open_turn is not None and name is not None and open_turn.id == name:
            self._add(blocks, open_turn)
            return
        self._branch(value)
        if self.tip is not None and self.tip.role == "assistant" and not self.tip.has_children:
            self._add(blocks)
            self.tip.id = name
            return
        made_up = message.get("model") == _SYNTHETIC
        if not made_up and not self._call(number):
            return
        self._new("assistant", number, name)
        self._add(blocks)

    def _open_assistant(self) -> Turn | None:
        """The turn that further records of the same message belong to, also after results of its first calls."""
        tip = self.tip
        if tip is not None and tip.role == "user" and tip.parent is not None and not tip.has_children:
            tip = tip.parent if all(isinstance(one, Result) for one in tip.blocks) else None
        return tip if tip is not None and tip.role == "assistant" else None

    def _branch(self, value: dict[str, Any]) -> None:
        """Go back to the turn that the record follows, when a turn of the assistant has come since."""
        parent = value.get("parentUuid")
        if not isinstance(parent, str) or parent not in self.places:
            return
        target = self.places[parent]
        turn, passed = self.tip, False
        while turn is not None and turn is not target:
            passed = passed or turn.role == "assistant"
            turn = turn.parent
        if passed:
            self.tip = target
            self.left_out["branch"] += 1

    def _has_assistant(self) -> bool:
        return self.tip is not None and any(turn.role == "assistant" for turn in self.tip.up())

    def _conversation(self, messages: list[Any], tools: tuple[Message, ...] | None, number: int) -> None:
        """One list of messages, which begins anew."""
        with self._one(f"line {number}"):
            self._is(OPENAI)
        if self.format != OPENAI:
            return
        self.tip, self.loose = None, False
        for index, one in enumerate(messages, 1):
            with self._one(f"line {number}, message {index}"):
                if not isinstance(one, dict):
                    raise BrokenLineError("no JSON object")
                self._spoken(one, number, tools)
            if self.full:
                return
        self._ask_last(number, tools)

    def _ask_last(self, number: int, tools: tuple[Message, ...] | None) -> None:
        if self.tip is not None and self.tip.role in ("user", "tool"):
            self._call(number, tools)

    def _spoken(self, value: dict[str, Any], number: int, tools: tuple[Message, ...] | None = None) -> None:
        role, blocks, more = self.contents.message(value)
        self._check_results(blocks)
        if role == "assistant" and (self.tip is None or self.tip.role != role) and not self._call(number, tools):
            return
        before = b"" if self.tip is None else self._key(self.tip)
        key = hashlib.blake2b(before + repr((role, blocks, more)).encode(), digest_size=16).digest()
        known = self.seen.get(key)
        if known is not None:
            self.tip = known
            return
        self._new(role, number, key.hex(), more)
        self._add(blocks)
        if self.tip is not None:
            self.seen[key] = self.tip

    def _key(self, turn: Turn) -> bytes:
        return (turn.id or "").encode()

    def _call(self, number: int, tools: tuple[Message, ...] | None = None) -> bool:
        """Note a request with everything so far; False when there are as many as were wanted."""
        if self.tip is None or not any(turn.asks for turn in self.tip.up()):
            self.left_out["answer without a prompt"] += 1
            return True
        if self.tip in self.asked and self.format == OPENAI:
            self.left_out["request that was there already"] += 1
            return True
        if self.wanted is not None and len(self.calls) >= self.wanted:
            self.full = True
            return False
        self.asked.add(self.tip)
        self.calls.append(Call(len(self.calls) + 1, number, self.tip, tools))
        return True

    def _new(self, role: str, number: int, name: str | None = None, more: Mapping[str, str] | None = None) -> None:
        if self.tip is not None:
            self.tip.has_children = True
        self.tip = Turn(role, number, self.tip, name, more=more or {})

    def _add(self, blocks: list[Block], turn: Turn | None = None) -> None:
        """Add blocks to a turn, else to the last; calls and results that are there already are not added again."""
        turn = turn or self.tip
        if turn is None:
            return
        fresh = []
        for one in blocks:
            if isinstance(one, Use | Result):
                mark = (id(turn), isinstance(one, Use), one.id)
                if mark in self.placed:
                    continue
                self.placed.add(mark)
            fresh.append(one)
        turn.blocks.extend(fresh)
        self.chars += chars_of(fresh)
        for one in fresh:
            if isinstance(one, Use):
                self.ids.add(one.id)
                fields = self.used.setdefault(one.name, {})
                for key, kind in fields_of(one.arguments).items():
                    fields.setdefault(key, set()).add(kind)
