"""A real llama.cpp server, asked directly and through the proxy: the client must not be able to tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import msgspec
import pytest

from specdash.backend.demo import DRAFT_MODEL, TARGET_MODEL, bundled_model
from support.engines import RunningBackend, engine_env, running_backend
from support.proxy_app import running_proxy, settings_for
from support.waiting import until_async

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATH = "/v1/chat/completions"
ENGINES = [pytest.param("xllamacpp", marks=pytest.mark.engine)]
THINKS = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.role == 'assistant' and m.reasoning_content %}"
    "{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}"
    "{{ m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
    "{%- endif %}"
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Read",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
]


def asks(prompt: str, **more: Any) -> dict[str, Any]:
    # Without its cache a server counts the same tokens each time.
    fixed = {"temperature": 0, "seed": 1, "cache_prompt": False, "max_tokens": 40}
    return {"messages": [{"role": "user", "content": prompt}], **fixed, **more}


THOUGHT = r'root ::= "<think>\nabc\n</think>\n\nhello \"ü"'
TOOL = asks("Open the file main.py.", tools=TOOLS, max_tokens=200)
ANSWERED = {
    "text": asks("Write a function that reads a file"),
    "text to its end": asks("Say", grammar=r'root ::= "a \"\\ \t\n<é😀"'),
    "nothing": asks("Say", grammar='root ::= ""'),
    "one token": asks("Write a function", max_tokens=1),
    "stop word": asks("Write a function", stop=["def"]),
    "stop word at once": asks("Write a function", stop=["`"]),
    "prefill": asks("hi", messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Sure, "}]),
    "tool call": TOOL,
    "tool call cut in its arguments": {**TOOL, "max_tokens": 24},
    "tool call not made": asks("Please list the files", tools=TOOLS, max_tokens=60),
    "thought": asks("Write a function", grammar=THOUGHT, max_tokens=60),
    "thought cut": asks("Write a function", grammar=THOUGHT, max_tokens=12),
    "two choices": asks("Write a function", n=2, max_tokens=4),
    "log probabilities": asks("Write a function", logprobs=True, top_logprobs=2, max_tokens=4),
    "asked for by the client": asks("Write a function", timings_per_token=True, return_progress=True, max_tokens=4),
    "timings asked for": asks("Write a function", timings_per_token=True, max_tokens=4),
    "progress asked for": asks("Write a function", return_progress=True, timings_per_token=False, max_tokens=4),
    "usage asked for": asks("Write a function", stream_options={"include_usage": True}, max_tokens=4),
}
REFUSED = {
    "no array": asks("x", messages="x"),
    "wrong type": asks("x", temperature="warm"),
    "wrong type of ours": asks("x", timings_per_token="x"),
    "bad grammar": asks("x", grammar="root ::= ("),
    "too long": asks("word and word " * 6000),
    "grammar and tools": asks("x", tools=TOOLS, grammar='root ::= "a"'),
}


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def served(engine: str, directory: Path, **more: str) -> Iterator[RunningBackend]:
    env = {
        "LLAMA_MODEL": str(bundled_model(TARGET_MODEL)),
        "LLAMA_DRAFT_MODEL": str(bundled_model(DRAFT_MODEL)),
        "LLAMA_SPEC_TYPE": "draft-simple",
        "LLAMA_DRAFT_MAX": "4",
        "LLAMA_CTX_SIZE": "8192",
        "LLAMA_PARALLEL": "2",
        "LLAMA_THREADS": "1",
        **engine_env(engine),
        **more,
    }
    with running_backend(env, directory / "run") as running:
        yield running


@pytest.fixture(scope="module")
def backend(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBackend]:
    yield from served(engine, tmp_path_factory.mktemp("backend"))


@pytest.fixture(scope="module")
def thinker(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBackend]:
    directory = tmp_path_factory.mktemp("thinker")
    template = directory / "thinks.jinja"
    template.write_text(THINKS, encoding="utf-8")
    yield from served(engine, directory, LLAMA_EXTRA_ARGS=f"--jinja --chat-template-file {template}")


def timeless(value: Any) -> Any:
    """A JSON value, keys in order, without what differs between any two answers."""
    if isinstance(value, list):
        return [timeless(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    differs = ("id", "created", "prompt_ms", "time_ms", "predicted_ms")
    return [
        (key, ... if key in differs or key.endswith(("_per_token_ms", "_per_second")) else timeless(entry))
        for key, entry in value.items()
    ]


def events(data: bytes) -> list[Any]:
    assert data.endswith(b"\n\n")
    parts = data[:-2].split(b"\n\n")
    return [timeless(msgspec.json.decode(part[6:])) if part.startswith(b"data: {") else part for part in parts]


async def both(backend: RunningBackend, body: dict[str, Any]) -> tuple[httpx.Response, httpx.Response]:
    """The same request, directly and through the proxy."""
    async with running_proxy(settings_for(backend.url)) as proxy, httpx.AsyncClient(trust_env=False, timeout=60) as raw:
        direct = await raw.post(backend.url + PATH, json=body)
        through = await proxy.post(PATH, body)
        assert proxy.proxy.upstream.is_llama_cpp
        assert proxy.proxy.telemetry.active == []
    assert through.headers["content-type"] == direct.headers["content-type"]
    assert through.status_code == direct.status_code
    return direct, through


def server_for(request: pytest.FixtureRequest, name: str) -> RunningBackend:
    found: RunningBackend = request.getfixturevalue("thinker" if "thought" in name else "backend")
    return found


@pytest.mark.parametrize("name", list(ANSWERED))
class TestTheSameAnswer:
    async def test_whole(self, request: pytest.FixtureRequest, engine: str, name: str) -> None:
        direct, through = await both(server_for(request, name), ANSWERED[name])
        assert timeless(through.json()) == timeless(direct.json())

    async def test_as_a_stream(self, request: pytest.FixtureRequest, engine: str, name: str) -> None:
        direct, through = await both(server_for(request, name), {**ANSWERED[name], "stream": True})
        assert events(through.content) == events(direct.content)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", list(REFUSED))
async def test_a_refusal_is_the_servers_own(backend: RunningBackend, name: str, *, stream: bool) -> None:
    direct, through = await both(backend, {**REFUSED[name], "stream": stream})
    assert direct.status_code >= 400
    assert through.content == direct.content


async def test_a_running_whole_answer_has_its_prompt_and_its_acceptance_and_leaving_frees_the_slot(
    backend: RunningBackend,
) -> None:
    body = asks("Write a function", temperature=1, max_tokens=7000, ignore_eos=True)
    async with running_proxy(settings_for(backend.url)) as proxy:
        _, writer = await proxy.send_post(PATH, msgspec.json.encode(body))
        await until_async(lambda: any(active.view().draft_tokens for active in proxy.proxy.telemetry.active))
        view = proxy.proxy.telemetry.active[0].view()
        assert view.prompt_tokens
        assert view.accepted_tokens is not None
        writer.close()
        await until_async(lambda: not any(slot["is_processing"] for slot in backend.get("/slots")))
        await until_async(lambda: proxy.proxy.telemetry.active == [])
