"""The corpus of answers that guardrails are judged by: healthy ones that look broken, and broken ones.

`tests/data/proxy_corpus/*.jsonl`, one answer a line: `name`, `why` it is hard, `answer` in parts (`text`, `thinking`, a
`call` with `arguments` or their `raw` text; `times` repeats), `finish`. A broken one says what becomes of it `then`:

call        its `calls` are made real ones at once
held        no retry helps: the text as it came; on the strict path a sentence, or nothing, in place of the call
unreadable  a call that no client can take: an error event in a stream, else a sentence in its place
same        the client gets the call, and refuses it
cut         the rest is left out
sentence    a sentence instead of nothing
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.fault_upstream import FaultUpstream
from support.proxy_ways import Told, Way, turn
from support.upstream_script import Act, Script, calls, says, stops, thinks

FOLDER = Path(__file__).parents[1] / "data" / "proxy_corpus"
TOOLS: list[dict[str, Any]] = json.loads((FOLDER / "tools.json").read_text(encoding="utf-8"))
PIECE = 9
"""Characters of a text's chunk; a prime step through every marker would take longer and find no more."""
RETRIED = ("Glob", {"pattern": "**/*.retried"})


@dataclass(frozen=True, slots=True)
class Transcript:
    """One answer, and what the client is to get."""

    name: str
    why: str
    answer: list[dict[str, Any]]
    finish: str
    then: str | None = None
    calls: tuple[tuple[str, Any], ...] = ()
    guardrail: str = "malformed_tool"
    ask: str = "Go on."
    polls: dict[str, Any] | None = None
    thinking: bool = False

    @property
    def acts(self) -> tuple[Act, ...]:
        """The answer as the upstream sends it."""
        found: list[Act] = []
        index = 0
        for part in self.answer:
            if "call" in part:
                written = part["raw"] if "raw" in part else part["arguments"]
                found += calls(part["call"], written, index=index, pieces=7)
                index += 1
            elif "thinking" in part:
                found += thinks(*_pieces(part["thinking"]))
            else:
                found += says(*_pieces(part["text"] * part.get("times", 1)))
        return tuple(found)

    @property
    def script(self) -> Script:
        """The upstream's answer to every question."""
        return Script((*self.acts, *stops(self.finish)))

    @property
    def text(self) -> str:
        """All of its visible text."""
        return "".join(part["text"] * part.get("times", 1) for part in self.answer if "text" in part)

    @property
    def body(self) -> dict[str, Any]:
        """The request it answers."""
        messages: list[dict[str, Any]] = [{"role": "user", "content": self.ask}]
        for at in range(self.polls["times"] if self.polls else 0):
            assert self.polls is not None
            call = {"type": "tool_use", "id": f"toolu_{at}", "name": self.polls["name"], "input": self.polls["input"]}
            result = {"type": "tool_result", "tool_use_id": f"toolu_{at}", "content": self.polls["result"]}
            messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        fields: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": 1024}} if self.thinking else {}
        return turn(messages=messages, tools=TOOLS, max_tokens=8192, **fields)


def transcripts(kind: str) -> list[Transcript]:
    """`healthy` or `broken` ones."""
    lines = (FOLDER / f"{kind}.jsonl").read_text(encoding="utf-8").rstrip("\n").split("\n")
    values = [json.loads(line) for line in lines]
    return [Transcript(**{**value, "calls": tuple((a, b) for a, b in value.get("calls", ()))}) for value in values]


def change(way: Way, upstream: FaultUpstream, transcript: Transcript) -> str | None:
    """What a healthy answer lost or gained on its way, None when nothing."""
    upstream.forget()
    upstream.otherwise = transcript.script
    seen = way.ask(transcript.body)
    if seen.error is not None:
        return f"error: {seen.error}"
    if len(upstream.chats) != 1:
        return f"{len(upstream.chats)} calls of the upstream"
    sent = upstream.chats[0].body
    if sent["tool_choice"] != "auto" or "LOOP BREAKER" in json.dumps(sent["messages"]):
        return "the request was changed"
    if seen.text != transcript.text:
        return f"text: {_difference(transcript.text, seen.text)}"
    wanted = [(part["call"], part["arguments"]) for part in transcript.answer if "arguments" in part]
    if transcript.finish != "length" and seen.calls != wanted:
        return f"calls: {seen.calls!r}"
    return _wrong_end(seen, transcript)


def escape(way: Way, upstream: FaultUpstream, transcript: Transcript) -> str | None:
    """What of a broken answer got past the guardrails, None when nothing."""
    upstream.forget()
    upstream.otherwise = transcript.script
    found = _not_as_said(way, way.ask(transcript.body), transcript)
    if found is not None or transcript.guardrail != "malformed_tool" or transcript.then in {"cut", "unreadable"}:
        return found
    if transcript.then == "call":
        return None if len(upstream.chats) == 1 else "it was asked for again"
    if len(upstream.chats) < 2:
        return "it was not asked for again"
    upstream.forget()
    upstream.scripts = [transcript.script, Script((*calls(*RETRIED), *stops("tool_calls")))]
    again = way.ask(transcript.body)
    return None if again.error is None and again.calls == [RETRIED] else f"a good retry was not used: {again}"


def _not_as_said(way: Way, seen: Told, transcript: Transcript) -> str | None:
    if transcript.then == "unreadable" and way.stream and not way.held_back:
        return None if seen.error is not None and seen.error["type"] == "api_error" else "no error event"
    if seen.error is not None:
        return f"error: {seen.error}"
    if not seen.content:
        return "no content"
    wanted: list[Any] = list(transcript.calls)
    if transcript.then == "same":
        wanted = [(part["call"], part["arguments"]) for part in transcript.answer if "call" in part]
    if seen.calls != wanted:
        return f"calls: {seen.calls!r}"
    if transcript.then == "held" and way.held_back:
        return "a fragment was shown" if re.search(r"<\W?\w+\W?>|```", seen.text) else None
    if transcript.then == "held" and seen.text != transcript.text:
        return f"text: {_difference(transcript.text, seen.text)}"
    if transcript.then == "unreadable" and not (
        seen.text.startswith(transcript.text) and len(seen.text) > len(transcript.text)
    ):
        return f"text: {seen.text!r}"
    if transcript.then == "cut" and not (
        transcript.text.startswith(seen.text) and len(seen.text) < len(transcript.text) / 2
    ):
        return f"{len(seen.text)} characters"
    if transcript.then == "sentence" and not seen.text.strip():
        return "no words"
    return _wrong_end(seen, transcript)


def _wrong_end(seen: Told, transcript: Transcript) -> str | None:
    assert seen.message is not None
    told = seen.message["stop_reason"]
    cut = transcript.then == "cut" or transcript.finish == "length"
    expected = "max_tokens" if cut else "tool_use" if seen.calls else "end_turn"
    return None if told == expected else f"stop reason {told}"


def _difference(wanted: str, found: str) -> str:
    both = min(len(wanted), len(found))
    at = next((at for at in range(both) if wanted[at] != found[at]), both)
    return f"from {at} of {len(wanted)}: {wanted[at : at + 60]!r} became {found[at : at + 60]!r}"


def _pieces(text: str) -> list[str]:
    return [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
