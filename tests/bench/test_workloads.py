"""What benchmarks ask: our own prompts, and those of a file."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.bench.load import workloads
from specdash.bench.load.workloads import CLASSES, UNCLASSED, bundled, read_prompts
from specdash.core.errors import InputError, UsageError

MESSAGES = [{"role": "user", "content": "hello"}]
SECRET = "nobody must see this"


def written(directory: Path, content: str | bytes) -> str:
    file = directory / "prompts.jsonl"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(file)


@pytest.mark.parametrize("kind", CLASSES)
def test_there_are_at_least_six_prompts_of_each_class(kind: str) -> None:
    found = bundled([kind])
    assert len(found) >= 6
    assert {prompt.kind for prompt in found} == {kind}


def test_ids_tell_our_prompts_apart_and_no_two_begin_alike() -> None:
    found = bundled()
    assert len({prompt.id for prompt in found}) == len(found)
    assert len({str(prompt.messages[-1]) for prompt in found}) == len(found)


def test_agentic_prompts_are_sessions_whose_every_result_answers_a_call_of_an_offered_tool() -> None:
    for prompt in bundled(["agentic"]):
        offered = {tool["function"]["name"] for tool in prompt.tools}  # type: ignore[index]
        asked: dict[str, str] = {}
        answered = []
        for message in prompt.messages:
            for call in message.get("tool_calls", ()):  # type: ignore[attr-defined]
                assert call["function"]["name"] in offered
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
                asked[call["id"]] = call["function"]["name"]
            if message["role"] == "tool":
                answered.append(message["tool_call_id"])
        assert answered == list(asked), prompt.id
        assert prompt.messages[-1]["role"] == "tool", "the model's turn is next"


def test_a_class_that_is_none_is_named_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="'poetry'; there are coding, pattern, prose, agentic"):
        bundled(["poetry"])


def test_the_first_of_every_class_can_be_had() -> None:
    assert [prompt.kind for prompt in bundled(("prose", "coding"), each=2)] == ["prose", "prose", "coding", "coding"]


@pytest.mark.parametrize(
    "text",
    [
        "first\n\n  second  \n",
        "first\n---\nsecond\n",
        json.dumps(["first", "second"]),
        json.dumps("first") + "\n" + json.dumps({"prompt": "second"}) + "\n",
        json.dumps([{"messages": [{"role": "user", "content": "first"}]}, {"prompt": "second"}], indent=1),
    ],
)
def test_a_file_is_lines_blocks_json_or_json_lines(text: str, tmp_path: Path) -> None:
    found = read_prompts(written(tmp_path, text))
    assert [prompt.messages[0]["content"] for prompt in found] == ["first", "second"]
    assert [prompt.kind for prompt in found] == [UNCLASSED, UNCLASSED]
    assert len({prompt.id for prompt in found}) == 2


def test_blocks_keep_their_lines(tmp_path: Path) -> None:
    [prompt, _] = read_prompts(written(tmp_path, "a\n\nb\n---\nc"))
    assert prompt.messages[0]["content"] == "a\n\nb"


def test_id_class_tools_and_length_are_taken_over(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    row = {"id": "a1", "kind": "mine", "messages": MESSAGES, "tools": tools, "max_tokens": 64}
    [prompt] = read_prompts(written(tmp_path, json.dumps(row)))
    assert (prompt.id, prompt.kind, prompt.messages, prompt.tools, prompt.max_tokens) == (
        "a1",
        "mine",
        tuple(MESSAGES),
        tuple(tools),
        64,
    )


def test_only_the_classes_asked_for_are_taken(tmp_path: Path) -> None:
    file = written(tmp_path, json.dumps([{"prompt": "a", "kind": "x"}, {"prompt": "b", "kind": "y"}]))
    assert [read_prompt.kind for read_prompt in read_prompts(file, ["y"])] == ["y"]
    with pytest.raises(InputError, match="none of class z; there are x, y"):
        read_prompts(file, ["z"])


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "has no prompt; write one a line"),
        (" \n\n", "has no prompt"),
        ("[]", "has no prompt"),
        (b"\xff\xfe\x00", r"is not UTF-8 text \(line 1\)"),
        (b"ok\nok\n\xff", r"is not UTF-8 text \(line 3\)"),
        ('{"prompt": "a"}\n{"prompt": "b"\n', r"line 2: is not JSON \(column"),
        ('{"prompt": "a",\n', r"line 2: is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"prompt": "a"}\n3\n', "line 2: must be a text, or an object"),
        ('{"prompt": "a"}\n{"text": "b"}\n', "line 2: needs either messages or prompt"),
        ('{"prompt": " "}', "prompt must be a text that is not empty"),
        ('{"messages": []}', "messages must be a list that is not empty"),
        ('{"messages": [{"role": "wizard", "content": "x"}]}', "message 1 must be an object with a role"),
        ('{"messages": [{"role": "user"}]}', "message 1 has no content"),
        ('{"prompt": "a", "tools": [{"name": "x"}]}', "tools must be a list of OpenAI function tools"),
        ('{"prompt": "a", "max_tokens": 1}', "max_tokens must be a whole number from 2 on"),
        ('{"prompt": "a", "id": ""}', "name must be a printable text"),
        ('{"prompt": "a", "id": "x"}\n{"prompt": "b", "id": "x"}', "line 2: the id 'x' is taken"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_broken_file_is_named_with_the_place(content: str | bytes, named: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=named) as caught:
        read_prompts(written(tmp_path, content))
    assert str(tmp_path) in str(caught.value)


def test_what_a_file_says_is_not_repeated_in_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_prompts(written(tmp_path, json.dumps({"prompt": SECRET, "messages": MESSAGES})))
    assert SECRET not in str(caught.value)


def test_a_file_that_is_missing_a_directory_or_a_device_is_said_to_be_that(tmp_path: Path) -> None:
    for path, named in ((tmp_path / "no", "No such file"), (tmp_path, "Is a directory"), ("/dev/zero", "is a device")):
        with pytest.raises(InputError, match=named):
            read_prompts(str(path))


def test_a_huge_file_is_refused_without_being_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "LARGEST", 1 << 20)
    with pytest.raises(InputError, match="larger than 1 MiB; name a part of it"):
        read_prompts(written(tmp_path, "word " * (1 << 20)))


def test_more_prompts_than_anybody_asks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="10001 prompts; 10000 are the most"):
        read_prompts(written(tmp_path, "a\n" * 10_001))


_KEYS = ("prompt", "messages", "role", "content", "tools", "function", "name", "kind", "id", "max_tokens")
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(_JSON, max_size=4))
def test_any_json_is_prompts_or_one_clear_error(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    file = tmp_path_factory.mktemp("any") / "prompts.json"
    file.write_text(json.dumps(rows), encoding="utf-8")
    try:
        found = read_prompts(str(file))
    except InputError:
        return
    assert len(found) == len(rows)
    assert all(prompt.messages for prompt in found)
