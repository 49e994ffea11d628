"""A synthetic agent's conversation whose prefix grows with every tool result, as UAP's reproducer has it.

Call N sends the exact prefix of call N+1: the user's task, then per turn an assistant's tool call and the linter's long
answer. The text is made of the turn's number alone, so that every run and both sides send the same.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

NONCE_LENGTH = 12
_TASK = "Fix what the linter finds."
_PROBLEMS = (
    ("W0612", "Unused variable 'tmp_{n}'", "unused-variable"),
    ("C0116", "Missing function or method docstring", "missing-function-docstring"),
    ("R0913", "Too many arguments ({n}/5)", "too-many-arguments"),
    ("E1101", "Instance of 'Node{n}' has no 'parent' member", "no-member"),
    ("W0611", "Unused import part_{n}", "unused-import"),
    ("C0301", "Line too long ({n}/100)", "line-too-long"),
)
TOOLS: tuple[dict[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "run_linter",
            "description": "Run pylint on one file and return its report.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string", "description": "file to check"}},
                "required": ["path"],
            },
        },
    },
)


@dataclass(frozen=True, slots=True)
class Call:
    """One call: its number from 1, the turns before it, and the length of all its texts."""

    number: int
    turns: int
    chars: int


def calls(count: int, tool_chars: int) -> tuple[Call, ...]:
    """The calls of a run, the prefix growing by one tool result each."""
    nonce = "0" * NONCE_LENGTH
    return tuple(
        Call(number + 1, number, sum(len(_text(one)) for one in messages(number, tool_chars, nonce)))
        for number in range(count)
    )


def messages(turns: int, tool_chars: int, nonce: str, *, flat: bool = False) -> list[dict[str, Any]]:
    """The messages of a call. What differs between conversations, the `nonce`, stands at the very beginning, so that
    no cache can mix them up. `flat` writes tool calls and results as text, for templates that know no tools."""
    told: list[dict[str, Any]] = [
        {"role": "system", "content": f"[{nonce}] You are a precise coding assistant. Use the tools, then answer."},
        {"role": "user", "content": _TASK},
    ]
    for turn in range(turns):
        path, result = f"src/app/module_{turn}.py", tool_result(turn, tool_chars)
        arguments = json.dumps({"path": path})
        if flat:
            told.append({"role": "assistant", "content": f"<tool_call name=run_linter>{arguments}</tool_call>"})
            told.append({"role": "user", "content": f"<tool_response>{result}</tool_response>"})
            continue
        call = {"id": f"call_{turn}", "type": "function", "function": {"name": "run_linter", "arguments": arguments}}
        told.append({"role": "assistant", "content": "", "tool_calls": [call]})
        told.append({"role": "tool", "tool_call_id": f"call_{turn}", "name": "run_linter", "content": result})
    return told


def tool_result(turn: int, chars: int) -> str:
    """The linter's report of one turn, of just that many characters."""
    lines, length, number = [f"************* Module app.module_{turn}"], 0, 0
    while length < chars:
        code, words, name = _PROBLEMS[(number + turn) % len(_PROBLEMS)]
        line = f"src/app/module_{turn}.py:{7 * number + turn + 1}:{number % 40}: {code}: "
        lines.append(line + f"{words.format(n=number + 6)} ({name})")
        length += len(lines[-1])
        number += 1
    return "\n".join(lines)[:chars]


def _text(message: dict[str, Any]) -> str:
    return str(message.get("content") or "")
