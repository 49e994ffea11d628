"""The official SDKs put the same final message together from stream, whole answer, strict replay and pass-through."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from specdash.backend.launch import free_port
from support.fault_upstream import FaultUpstream
from support.proxy_process import ProxyProcess, running_proxy
from support.proxy_ways import OPENAI_TOOLS, TOOLS, RawClient
from support.small_server import small_server
from support.upstream_script import (
    Drop,
    Script,
    answers,
    calls,
    error,
    loading,
    overflow,
    says,
    stops,
    thinks,
)

if TYPE_CHECKING:
    import anthropic
    import openai

Plain = list[tuple[str, Any]]
pytestmark = pytest.mark.slow
# The SDKs take four seconds to import, in every process that collects: only who runs these tests does.


def client(proxy: ProxyProcess) -> anthropic.Anthropic:
    import anthropic

    return anthropic.Anthropic(base_url=proxy.url, api_key="none", max_retries=0, timeout=60)


def openai_client(proxy: ProxyProcess) -> openai.OpenAI:
    import openai

    return openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0, timeout=60)


def ask(prompt: str, **fields: Any) -> dict[str, Any]:
    """What both Anthropic calls take."""
    messages = fields.pop("messages", [{"role": "user", "content": prompt}])
    greedy = {"temperature": 0.0}
    return {"model": "claude-local", "max_tokens": 120, "messages": messages, "extra_body": greedy, **fields}


def plain_content(message: Any) -> Plain:
    """A final message without ids, which differ from call to call on a real server."""
    found: Plain = []
    for block in message.content:
        if block.type == "text":
            found.append(("text", block.text))
        elif block.type == "thinking":
            found.append(("thinking", block.thinking))
        else:
            found.append((f"tool {block.name}", block.input))
    return [*found, ("stop", message.stop_reason)]


def whole(proxy: ProxyProcess, **fields: Any) -> Plain:
    with client(proxy) as sdk:
        return plain_content(sdk.messages.create(**fields))


def streamed(proxy: ProxyProcess, **fields: Any) -> Plain:
    with client(proxy) as sdk, sdk.messages.stream(**fields) as stream:
        events = [event.type for event in stream]
        assert events[-1] == "message_stop"
        return plain_content(stream.get_final_message())


STOPS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


def openai_plain(text: str, tool_calls: list[tuple[str, str]], finish: str) -> Plain:
    found: Plain = [("text", text)] if text else []
    found += [(f"tool {name}", json.loads(arguments)) for name, arguments in tool_calls]
    return [*found, ("stop", STOPS[finish])]


def openai_body(prompt: str, fields: dict[str, Any]) -> dict[str, Any]:
    tools = {"tools": OPENAI_TOOLS} if "tools" in fields else {}
    limit = fields.get("max_tokens", 120)
    return {
        "model": "local",
        "max_tokens": limit,
        "temperature": 0.0,
        "messages": [{"role": "user", "content": prompt}],
        **tools,
    }


def openai_whole(proxy: ProxyProcess, prompt: str, fields: dict[str, Any]) -> Plain:
    with openai_client(proxy) as sdk:
        answer = sdk.chat.completions.create(**openai_body(prompt, fields))
    message = answer.choices[0].message
    made = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    return openai_plain(message.content or "", made, answer.choices[0].finish_reason)


def openai_streamed(proxy: ProxyProcess, prompt: str, fields: dict[str, Any]) -> Plain:
    text, finish = "", ""
    made: dict[int, list[str]] = {}
    body = openai_body(prompt, fields)
    with openai_client(proxy) as sdk, sdk.chat.completions.create(**body, stream=True) as stream:
        for chunk in stream:
            if not chunk.choices:
                continue
            delta = chunk.choices[0].delta
            text += delta.content or ""
            for part in delta.tool_calls or ():
                call = made.setdefault(part.index, ["", ""])
                call[0] += part.function.name or ""
                call[1] += part.function.arguments or ""
            finish = chunk.choices[0].finish_reason or finish
    return openai_plain(text, [(name, arguments) for name, arguments in made.values()], finish)


def everywhere(plain: ProxyProcess, strict: ProxyProcess, prompt: str, fields: dict[str, Any]) -> dict[str, Plain]:
    """The final message of every way to ask."""
    body = ask(prompt, **fields)
    found = {
        "whole": whole(plain, **body),
        "stream": streamed(plain, **body),
        "strict": streamed(strict, **body),
    }
    if "thinking" not in fields:
        found["openai whole"] = openai_whole(plain, prompt, fields)
        found["openai stream"] = openai_streamed(plain, prompt, fields)
    return found


SCRIPTED: dict[str, tuple[Script, dict[str, Any]]] = {
    "text": (answers("Hello ", "naïve 日本語 🙂", "!"), {}),
    "text and tool call": (
        Script((*says("Let me ", "look."), *calls("read_file", {"path": "a"}), *stops("tool_calls"))),
        {"tools": TOOLS},
    ),
    "parallel calls": (
        Script((
            *calls("read_file", {"path": "a"}),
            *calls("get_weather", {"city": "Köln"}, index=1),
            *calls("read_file", {"path": "b"}, index=2),
            *stops("tool_calls"),
        )),
        {"tools": TOOLS},
    ),
    "cut by length": (Script((*says("once upon"), *stops("length"))), {}),
    "thinking": (
        Script((*thinks("Hm ", "hm."), *says("Done."), *stops())),
        {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(SCRIPTED))
def test_every_way_gives_the_same_message_on_a_scripted_upstream(
    name: str, plain: ProxyProcess, strict: ProxyProcess, upstream: FaultUpstream
) -> None:
    upstream.otherwise, fields = SCRIPTED[name]
    found = everywhere(plain, strict, "Go.", fields)
    assert len(found["whole"]) > 1
    assert all(row == found["whole"] for row in found.values()), found


@pytest.mark.parametrize("call", [whole, streamed])
def test_sdk_errors_are_typed(plain: ProxyProcess, upstream: FaultUpstream, call: Callable[..., Plain]) -> None:
    import anthropic

    for script, kind, status, words in [
        (overflow(9000, 8192), anthropic.BadRequestError, 400, "prompt is too long: 9000 tokens > 8192 maximum"),
        (loading(), anthropic.APIStatusError, 529, ""),
        (error(500, "boom", "server_error"), anthropic.InternalServerError, 500, "boom"),
    ]:
        upstream.otherwise = script
        with pytest.raises(kind) as caught:
            call(plain, **ask("x"))
        assert caught.value.status_code == status
        assert words in str(caught.value)
        body: Any = caught.value.body
        assert body["type"] == "error"
        assert caught.value.request_id


def test_an_sdk_that_retries_gets_there_once_the_model_is_loaded(plain: ProxyProcess, upstream: FaultUpstream) -> None:
    import anthropic

    upstream.otherwise = answers("Hello")
    upstream.scripts = [error(500, "boom", "server_error")]
    with anthropic.Anthropic(base_url=plain.url, api_key="none", max_retries=1) as sdk:
        assert plain_content(sdk.messages.create(**ask("x")))[0] == ("text", "Hello")


def test_a_broken_stream_raises_in_the_sdk(plain: ProxyProcess, upstream: FaultUpstream) -> None:
    import anthropic

    upstream.otherwise = Script((*says("Hello "), Drop()))
    for call in (whole, streamed):
        with pytest.raises(anthropic.APIStatusError):
            call(plain, **ask("x"))


def test_the_sdk_counts_tokens_and_lists_models(plain: ProxyProcess, upstream: FaultUpstream) -> None:
    upstream.tokens = lambda _: 99
    with client(plain) as sdk:
        counted = sdk.messages.count_tokens(model="claude-local", messages=[{"role": "user", "content": "x"}])
        assert counted.input_tokens == 99
        models = list(sdk.models.list(limit=1000))
        assert models
    with openai_client(plain) as other:
        assert list(other.models.list())


# The real engine from here on.


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port("127.0.0.1")
    with small_server(port, tmp_path_factory.mktemp("engine") / "server.log", n_ctx=8192):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def real(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    with running_proxy(engine, tmp_path_factory.mktemp("real")) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def real_strict(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    values = {"PROXY_MALFORMED_TOOL_STREAM_STRICT": "on"}
    with running_proxy(engine, tmp_path_factory.mktemp("real-strict"), values) as proxy:
        yield proxy


REAL: dict[str, tuple[str, dict[str, Any]]] = {
    "text": ("Write the function def add(a, b): add two numbers", {}),
    "tool call": ("Read the file a.py", {"tools": TOOLS}),
    "cut by length": ("Write a long story about numbers", {"max_tokens": 20}),
}


@pytest.mark.engine
@pytest.mark.parametrize("name", list(REAL))
def test_every_way_gives_the_same_message_on_the_real_engine(
    name: str, real: ProxyProcess, real_strict: ProxyProcess
) -> None:
    prompt, fields = REAL[name]
    found = everywhere(real, real_strict, prompt, fields)
    assert all(row == found["whole"] for row in found.values()), found
    kinds = {kind for kind, _ in found["whole"]}
    assert any(kind.startswith("tool ") for kind in kinds) == ("tools" in fields)


@pytest.mark.engine
def test_tokens_counted_are_tokens_used(real: ProxyProcess) -> None:
    body: Any = {"model": "claude-local", "tools": TOOLS, "messages": [{"role": "user", "content": "Read a.py"}]}
    with client(real) as sdk:
        counted = sdk.messages.count_tokens(**body)
        used = sdk.messages.create(**body, max_tokens=5).usage
    assert counted.input_tokens == used.input_tokens + used.cache_read_input_tokens


@pytest.mark.engine
def test_a_prompt_over_the_real_window_says_so(real: ProxyProcess) -> None:
    import anthropic

    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > \d+ maximum"):
        whole(real, **ask("word " * 20_000))


@pytest.mark.engine
def test_a_second_turn_with_results_reuses_the_cache(real: ProxyProcess) -> None:
    with client(real) as sdk:
        first = sdk.messages.create(**ask("Read the file a.py", tools=TOOLS))
    call = next(block for block in first.content if block.type == "tool_use")
    messages = [
        {"role": "user", "content": "Read the file a.py"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.input}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "x = 1"}]},
    ]
    with client(real) as sdk:
        second = sdk.messages.create(**ask("", messages=messages, tools=TOOLS))
    assert second.usage.cache_read_input_tokens is not None
    assert second.usage.cache_read_input_tokens > 100


@pytest.mark.engine
def test_a_client_that_leaves_frees_the_real_slot(real: ProxyProcess, engine: str) -> None:
    import time
    import urllib.request

    body = {**ask("Write the function def f(): compute", max_tokens=4000), "stream": True}
    with RawClient(real.port, "/v1/messages", body) as leaver:
        leaver.read_until(b"content_block_delta")
    deadline = time.monotonic() + 1.0
    while True:
        with urllib.request.urlopen(f"{engine}/slots", timeout=5) as answer:
            busy = [slot for slot in json.load(answer) if slot["is_processing"]]
        if not busy:
            return
        assert time.monotonic() < deadline, busy


@pytest.mark.engine
def test_the_event_knows_the_draft_of_the_real_engine(real: ProxyProcess) -> None:
    before = len(real.events("request"))
    streamed(real, **ask("Write the function def add(a, b): add two numbers"))
    event = real.wait_events(before + 1)[-1]
    assert event["draft_tokens"] >= event["accepted_tokens"] > 0
    assert event["decode_rate"] > 0
    assert event["ttft_s"] > 0
    assert event["context_window"] > 0
