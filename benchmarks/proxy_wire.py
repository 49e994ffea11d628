"""The proxy's wire over a large corpus: what it sends upstream and what its clients get, for two versions side by side.

    python -m benchmarks.proxy_wire record FILE     records this tree's proxy (PYTHONPATH chooses the tree)
    python -m benchmarks.proxy_wire compare OLD NEW lists what differs between two records

Each request of the corpus meets each answer of an upstream; the answer's bytes are read whole, and cut at every place,
which must make no difference.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import logging
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from specdash.proxy.http.app import Proxy, asgi
from specdash.proxy.settings import settings_from_env
from specdash.proxy.upstream.upstream import api_error

if TYPE_CHECKING:
    from collections.abc import Iterator

CORPUS = Path(__file__).parents[1] / "tests" / "data" / "proxy_corpus"
REQUEST_ID = re.compile(r"req_[0-9a-f]{24}|(?<=msg_)[0-9a-f]{24}|(?<=toolu_)[0-9a-f]{24}|(?<=toolu_added_)[0-9a-f]{24}")
_CUTS = 60
"""Cuts of a stream in two that are tried, beside the one at every byte."""


def tool(name: str, required: list[str], **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": required}
    return {"name": name, "description": f"{name} a file.", "input_schema": schema}


TEXT = {"type": "string"}
TOOLS = [
    tool("Read", ["file_path"], file_path=TEXT, limit={"type": "integer"}),
    tool("Write", ["file_path", "content"], file_path=TEXT, content=TEXT),
    tool("Grep", ["pattern"], pattern=TEXT, multiline={"type": "boolean"}, options={"type": "object"}, anything={}),
    tool("Ping", []),
]
LOOP = [
    {"role": "user", "content": "Fix it."},
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"file_path": "a"}}],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "ok"}]},
]


def turn(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 512, "messages": LOOP, "tools": TOOLS, **fields}


THINK = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
REQUESTS: dict[str, dict[str, Any]] = {
    "stream": turn(stream=True),
    "whole": turn(),
    "thinking": turn(stream=True, **THINK),
    "prefill": turn(stream=True, messages=[*LOOP, {"role": "assistant", "content": "I will"}]),
    "stops": turn(stream=True, stop_sequences=["STOP", "</tool"]),
    "none": turn(stream=True, tool_choice={"type": "none"}),
    "any": turn(tool_choice={"type": "any"}),
    "one": turn(stream=True, tool_choice={"type": "auto", "disable_parallel_tool_use": True}),
    "plain": {"model": "m", "max_tokens": 9, "stream": True, "messages": LOOP[:1], "system": "Be brief."},
}
SETTINGS: dict[str, dict[str, str]] = {
    "": {},
    "strict ": {"PROXY_MALFORMED_TOOL_STREAM_STRICT": "on", "PROXY_MALFORMED_TOOL_RETRY_MAX": "2"},
    "visible ": {"PROXY_STREAM_REASONING_FALLBACK": "visible", "PROXY_MALFORMED_TOOL_RETRY_MAX": "0"},
}


def delta(**fields: Any) -> dict[str, Any]:
    return {"id": "chatcmpl-abc", "choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def call(index: int, arguments: str = "", **more: Any) -> dict[str, Any]:
    name = more.pop("name", None)
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return delta(tool_calls=[{"index": index, "function": function, **more}])


def sse(*chunks: Any, finish: str | None = "stop", done: bool = True) -> bytes:
    end = [{"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}] if finish else []
    usage = [{"choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": 7}, "timings": {"cache_n": 3}}]
    events = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in (*chunks, *end, *usage)]
    return b"".join(events) + (b"data: [DONE]\n\n" if done else b"")


def said(text: str, size: int = 9) -> list[dict[str, Any]]:
    return [delta(content=text[at : at + size]) for at in range(0, len(text), size)]


READ = [call(0, id="a", name="Read"), call(0, '{"file_'), call(0, 'path":"b"}')]
BROKEN = [call(0, id="a", name="Read"), call(0, '{"file_path":')]
SHAPES: dict[str, bytes] = {
    "text": sse(*said("Hello naïve 日本語 🙂!")),
    "empty": sse(),
    "blank": sse(*said("  \n")),
    "thought": sse(delta(reasoning_content="Let me "), delta(reasoning_content="see."), *said("Done.")),
    "only thought": sse(delta(reasoning_content="Let me "), delta(reasoning="see.")),
    "call": sse(*said("Look."), *READ, finish="tool_calls"),
    "two calls": sse(*READ, call(1, "{}", id="b", name="Ping"), finish="tool_calls"),
    "between": sse(
        call(0, id="a", name="Read"),
        call(1, '{"pattern"', id="b", name="Grep"),
        call(0, '{"file_path":"x"}'),
        call(1, ':"y"}'),
        *said("so"),
        finish="tool_calls",
    ),
    "text in a call": sse(call(0, '{"file', id="a", name="Read"), *said("hm"), call(0, '_path":"x"}'), call(0, "more")),
    "late name": sse(call(0, '{"file_path":'), call(1, "{}", id="b", name="Ping"), call(0, '"x"}', name="Read")),
    "broken call": sse(*BROKEN, finish="tool_calls"),
    "broken second": sse(*READ, call(1, '{"file', id="b", name="Read"), finish="tool_calls"),
    "cut call": sse(*BROKEN, finish="length"),
    "unknown tool": sse(*said("So."), call(0, "{}", id="a", name="Nope"), finish="tool_calls"),
    "no schema": sse(call(0, '{"limit":"x"}', id="a", name="Read"), finish="tool_calls"),
    "list": sse(call(0, "[1]", id="a", name="Read"), finish="tool_calls"),
    "nothing in it": sse(call(0, id="a", name="Ping"), finish="tool_calls"),
    "same id": sse(call(0, "{}", id="a", name="Ping"), call(1, "{}", id="a", name="Ping"), finish="tool_calls"),
    "length": sse(*said("Hello"), finish="length"),
    "filter": sse(*said("Hello"), finish="content_filter"),
    "stop": sse(*said("Hello ST"), *said("OP more"), *READ),
    "echo": sse(*said("I will do it. STO")),
    "repeated": sse(*said("I need to check the file again. " * 700, 40)),
    "error": sse(*said("Hel"), {"error": {"code": 500, "message": "boom"}}, finish=None, done=False),
    "named error": sse(*said("Hel"), finish=None, done=False) + b'event: error\ndata: {"code":400,"message":"x"}\n\n',
    "broken off": sse(*said("Hel"), finish=None, done=False),
    "no done": sse(*said("Hel"), done=False),
    "no end": sse(*said("Hel"), finish=None)[:-2],
    "no JSON": b"data: {oops}\n\n" + sse(*said("Hel")),
    "crlf": sse(*said("Hello"), *READ).replace(b"\n", b"\r\n"),
    "comments": b": hi\n\nid: 4\nretry: 5\n\n" + sse(*said("Hello")),
    "odd": sse(
        {},
        {"choices": None},
        {"choices": [None]},
        delta(content=5),
        delta(content="", tool_calls=[None, "x"]),
        *said("a"),
    ),
    "two lines": b'data: {"choices":\ndata: [{"delta":{"content":"x"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
}
WHOLE = json.dumps({
    "id": "chatcmpl-w", "usage": {"prompt_tokens": 4, "completion_tokens": 2},
    "choices": [{"finish_reason": "stop", "message": {"content": "x", "reasoning_content": "y"}}],
}).encode()  # fmt: skip
AGAIN: dict[str, bytes] = {
    "call": sse(call(0, '{"file_path":"r"}', id="r", name="Read"), finish="tool_calls"),
    "text": sse(*said("Sorry.")),
    "written": sse(*said('<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>')),
    "bad": sse(*BROKEN),
    "error": b"",
}


def written() -> Iterator[tuple[str, str]]:
    cases = json.loads((CORPUS / "written.json").read_text("utf-8"))
    yield from ((f"family {name}", text) for name, text in cases["families"].items())
    yield from ((f"call {text}", text) for text, *_ in cases["calls"])
    yield from ((f"broken {row[2]}", row[2]) for row in cases["broken"])
    yield from ((f"text {text}", text) for text in (*cases["text"], *cases["not_calls"]))
    for kind, rows in json.loads((CORPUS / "endings.json").read_text("utf-8")).items():
        texts = rows if isinstance(rows, list) else itertools.chain(*rows.values())
        yield from ((f"ending {kind} {text}", text) for text in texts if isinstance(text, str))


def asked() -> Iterator[tuple[str, str, dict[str, Any], list[bytes], bool]]:
    """Name, settings, request, the upstream's answers in turn, and whether to cut the first at every place."""
    for how, (name, body) in itertools.product(SETTINGS, REQUESTS.items()):
        for (shape, stream), (again, second) in itertools.product(SHAPES.items(), AGAIN.items()):
            yield f"{how}{name} | {shape} | {again}", how, body, [stream, second], again == "call" and not how
        yield f"{how}{name} | a whole one", how, body, [WHOLE], False
    for name, text in written():
        for how, request, again in itertools.product(SETTINGS, ("stream", "whole"), ("call", "bad")):
            answers = [sse(*said(text)), AGAIN[again]]
            yield f"{how}{request} | {name} | {again}", how, REQUESTS[request], answers, False


class Reply:
    """An answer of the upstream, in the form that the proxy reads."""

    def __init__(self, reads: list[bytes]) -> None:
        data = b"".join(reads)
        self.status = 200 if data else 500
        self.content_type = "application/json" if data[:1] in (b"{", b"") else "text/event-stream"
        self.headers = {"content-type": self.content_type}
        self._reads = [read for read in reads if read]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def read(self) -> bytes:
        return self._reads.pop(0) if self._reads else b""

    async def body(self, _limit: int) -> bytes:
        return b"".join(self._reads)

    async def read_to_the_end(self) -> None:
        return None

    async def error(self) -> Any:
        return api_error(self.status, b'{"error":{"message":"boom"}}')

    def abort(self) -> None:
        return None


class Exchanges:
    """One proxy, whose upstream is a list of answers."""

    def __init__(self, texts: dict[str, str]) -> None:
        env = {"PROXY_EVENTS_FILE": "off", "PROXY_CONTEXT_WINDOW": "65536", "LLAMA_CPP_BASE": "http://127.0.0.1:9/v1"}
        self.proxy = Proxy(settings_from_env(env | texts))
        self.app = asgi(self.proxy)
        self.sent: list[Any] = []
        self.left: list[list[bytes]] = []
        self.count = 0
        upstream: Any = self.proxy.upstream
        upstream.open, upstream.get_json = self.opened, self.asked_for

    def opened(self, data: bytes, _path: str = "") -> Reply:
        self.sent.append(json.loads(data))
        return Reply(self.left.pop(0) if self.left else [b""])

    async def asked_for(self, path: str, _limit_s: float) -> Any:
        return {"data": [{"id": "m"}]} if path == "/v1/models" else {}

    async def of(self, body: dict[str, Any], answers: list[list[bytes]]) -> list[Any]:
        """What the upstream was sent, what the client got, and what the guardrails counted."""
        self.sent, self.left, self.count = [], list(answers), self.count + 1
        self.proxy.telemetry.counters.clear()
        gone = asyncio.Event()
        requests = iter([{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}])
        status, got = 0, b""

        async def receive() -> Any:
            if (request := next(requests, None)) is None:
                await gone.wait()
            return request or {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal status, got
            status, got = message.get("status", status), got + message.get("body", b"")

        headers = [(b"host", b"localhost"), (b"x-session-id", b"%d" % self.count)]
        scope = {"type": "http", "method": "POST", "path": "/v1/messages", "headers": headers, "query_string": b""}
        await self.app({**scope, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}, receive, send)
        counts = dict(sorted(self.proxy.telemetry.counters.items()))
        return [self.sent, f"{status}\n{REQUEST_ID.sub('ID', got.decode())}", counts]


async def recorded() -> dict[str, Any]:
    """Every exchange by its name."""
    found: dict[str, Any] = {}
    bodies: dict[str, str] = {}
    proxies = {how: Exchanges(texts) for how, texts in SETTINGS.items()}
    for name, how, body, answers, is_cut in asked():
        exchanges, whole = proxies[how], [[answer] for answer in answers]
        found[name] = await exchanges.of(body, whole)
        found[name][0] = [_named(bodies, sent) for sent in found[name][0]]
        if not is_cut:
            continue
        stream = answers[0]
        step = max(1, len(stream) // _CUTS)
        cuts = [[stream[:at], stream[at:]] for at in range(1, len(stream), step)]
        for reads in ([stream[at : at + 1] for at in range(len(stream))], *cuts):
            _, got, counts = await exchanges.of(body, [reads, *whole[1:]])
            if [got, counts] != found[name][1:]:
                found[f"{name} | CUT {len(reads[0])}"] = [got, counts]
    return found | {"bodies": bodies}


def _named(bodies: dict[str, str], sent: Any) -> str:
    text = json.dumps(sent)
    name = hashlib.sha256(text.encode()).hexdigest()[:12]
    bodies[name] = text
    return name


def main(arguments: list[str]) -> int:
    """Record or compare; 1 when something differs."""
    if arguments[0] == "record":
        logging.disable()
        found = asyncio.run(recorded())
        Path(arguments[1]).write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
        cut = [name for name in found if "| CUT" in name]
        print(f"{len(found)} exchanges recorded; {len(cut)} cuts made a difference (what was known at the start)")
        return 0
    old, new = (json.loads(Path(name).read_text(encoding="utf-8")) for name in arguments[1:3])
    differ = [name for name in old | new if name != "bodies" and old.get(name) != new.get(name)]
    for name in differ:
        print("==", name, old.get(name), new.get(name), sep="\n   ")
    if old["bodies"] != new["bodies"]:
        print("== what is sent upstream differs:", set(old["bodies"]) ^ set(new["bodies"]))
    print(f"{len(differ)} of {len(old)} exchanges differ")
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
