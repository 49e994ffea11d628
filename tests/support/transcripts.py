"""Synthetic sessions in Claude Code's format, of as many turns and as long prefixes as a test wants.

The words are those of the tiny models' sentence. `write_reader` writes a model that has each of them as one token, so
that a prefix of 100 KB is some 17,000 tokens: two processor cores can replay that.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from support.tiny_models.automaton import SENTENCE, TOKENS
from support.tiny_models.variants import write_variant

Record = dict[str, Any]

TOOLS = ("Read", "Grep", "Bash")


@dataclass(frozen=True)
class Shape:
    """Calls of a session, and characters of the first and the last one's prefix."""

    turns: int = 60
    first_chars: int = 5_000
    last_chars: int = 100_000
    seed: int = 1
    parallel_every: int = 7
    """Every so many turns, two tools are called at once."""
    prompt_every: int = 12
    """Every so many turns, the model answers in words and the user asks on."""


def words(random: Random, chars: int) -> str:
    """Text of so many characters, in indented lines."""
    lines, length = [], 0
    while length < chars:
        start = random.randrange(len(SENTENCE))
        line = " " + " ".join(SENTENCE[(start + index) % len(SENTENCE)] for index in range(random.randrange(6, 16)))
        lines.append(line)
        length += len(line) + 1
    return "\n".join(lines)[:chars]


def records(shape: Shape) -> Iterator[Record]:
    """The session's records, as Claude Code writes them."""
    random = Random(shape.seed)
    parent: str | None = None
    number = 0

    def record(kind: str, message: Record, **more: Any) -> Record:
        nonlocal parent, number
        number += 1
        uuid = f"00000000-0000-4000-8000-{number:012d}"
        made = {
            "parentUuid": parent, "isSidechain": False, "userType": "external", "cwd": "/home/user/project",
            "sessionId": "synthetic", "version": "2.0.0", "type": kind, "message": message, "uuid": uuid,
            "timestamp": f"2026-01-01T00:{number // 60 % 60:02d}:{number % 60:02d}.000Z", **more,
        }  # fmt: skip
        parent = uuid
        return made

    def said(turn: int, block: Record) -> Record:
        message = {
            "id": f"msg_{turn:04d}", "type": "message", "role": "assistant", "model": "claude-opus-4",
            "content": [block], "stop_reason": None, "usage": {"input_tokens": 4, "output_tokens": 9},
        }  # fmt: skip
        return record("assistant", message, requestId=f"req_{turn:04d}")

    yield {"type": "summary", "summary": "A synthetic session", "leafUuid": "none"}
    yield record("user", {"role": "user", "content": words(random, shape.first_chars)})
    step = (shape.last_chars - shape.first_chars) / max(1, shape.turns - 1)
    for turn in range(shape.turns):
        yield said(turn, {"type": "thinking", "thinking": words(random, 200), "signature": "c2ln"})
        if shape.prompt_every and turn % shape.prompt_every == shape.prompt_every - 1:
            yield said(turn, {"type": "text", "text": words(random, int(step / 2))})
            yield record("user", {"role": "user", "content": words(random, int(step / 2))})
            continue
        yield said(turn, {"type": "text", "text": words(random, 60)})
        count = 2 if shape.parallel_every and turn % shape.parallel_every == shape.parallel_every - 1 else 1
        share = max(1, int((step - 60) / count) - 40)
        for call in range(count):
            name = f"toolu_{turn:04d}_{call}"
            tool = TOOLS[(turn + call) % len(TOOLS)]
            given = {"path": f"src/part_{turn}.py", "limit": 40 + turn}
            yield said(turn, {"type": "tool_use", "id": name, "name": tool, "input": given})
            result = {"type": "tool_result", "tool_use_id": name, "content": words(random, share)}
            yield record("user", {"role": "user", "content": [result]}, toolUseResult={"stdout": "x" * 50})
    yield {"type": "file-history-snapshot", "messageId": "none", "snapshot": {}}


def write_reader(path: Path, context: int = 65536) -> Path:
    """A model of one layer whose vocabulary holds the words whole; what it says means nothing."""
    tokens = [token for token in TOKENS if not token.startswith("<pad")]
    pieces = {f"▁{word[:length]}" for word in SENTENCE for length in range(1, len(word))}
    tokens += sorted(pieces - set(tokens), key=len)
    while len(tokens) % 32:
        tokens.append(f"<pad{len(tokens)}>")
    return write_variant(path, tokens=tokens, context=context)


def write_session(path: Path, shape: Shape | None = None) -> Path:
    """The session as a file."""
    with path.open("w", encoding="utf-8") as file:
        for record in records(shape or Shape()):
            file.write(json.dumps(record) + "\n")
    return path
