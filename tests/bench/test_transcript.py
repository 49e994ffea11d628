"""Recorded sessions of agents: every request is read with the prefix it had, and broken files say what is wrong."""

import io
import json
import tracemalloc
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.bench.replay import transcript
from specdash.bench.replay.transcript import (
    NO_RESULT,
    Transcript,
    TranscriptCall,
    TranscriptError,
    read_lines,
    read_transcript,
)
from support.transcripts import Shape, records


def read(*values: Any, **options: Any) -> Transcript:
    """The session of values, one a line; bytes and text are lines as they are."""
    texts = [value if isinstance(value, bytes | str) else json.dumps(value) for value in values]
    lines = [text if isinstance(text, bytes) else text.encode() for text in texts]
    return read_transcript(io.BytesIO(b"".join(line + b"\n" for line in lines)), "s.jsonl", **options)


class Session:
    """Writes records that follow each other."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def add(self, kind: str, content: Any, **more: Any) -> dict[str, Any]:
        after = self.records[-1]["uuid"] if self.records else None
        record: dict[str, Any] = {"type": kind, "uuid": f"u{len(self.records)}", "parentUuid": after,
                                  "isSidechain": False, "message": {"role": kind, "content": content}}  # fmt: skip
        message_id = more.pop("message_id", None)
        if message_id is not None:
            record["message"]["id"] = message_id
        record.update(more)
        self.records.append(record)
        return record

    def user(self, content: Any, **more: Any) -> dict[str, Any]:
        return self.add("user", content, **more)

    def result(self, of: str, content: Any = "done", **more: Any) -> dict[str, Any]:
        return self.user([{"type": "tool_result", "tool_use_id": of, "content": content}], **more)

    def says(self, message_id: str, *blocks: dict[str, Any] | str, **more: Any) -> dict[str, Any]:
        content = [{"type": "text", "text": block} if isinstance(block, str) else block for block in blocks]
        return self.add("assistant", content, message_id=message_id, **more)

    def read(self, **options: Any) -> Transcript:
        return read(*self.records, **options)


def talk(*steps: str | tuple[Any, ...]) -> Session:
    """A session: a text is the user's, ("m1", block, ...) a message of the model, ("=", call, ...) a result."""
    session = Session()
    for step in steps:
        if isinstance(step, str):
            session.user(step)
            continue
        name, *blocks = step
        more = blocks.pop() if isinstance(blocks[-1], dict) and "type" not in blocks[-1] else {}
        if name == "user":
            session.user(*blocks, **more)
        elif name == "=":
            session.result(*blocks, **more)
        else:
            session.says(name, *blocks, **more)
    return session


def use(name: str, tool: str = "Read", **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": tool, "input": given}


def sent(call: TranscriptCall) -> list[tuple[str, Any]]:
    return [(message["role"], message["content"]) for message in call.messages()]


def test_each_turn_of_the_model_is_a_call_with_everything_before_it() -> None:
    texts = [{"type": "text", "text": "line 1"}, {"type": "text", "text": "line 2"}]
    session = talk("fix it", ("m1", "I look.", use("t1", path="a.py")), ("=", "t1", texts), ("m2", "Done."))
    first, second = session.read().calls
    assert sent(first) == [("user", "fix it")]
    made = {"id": "t1", "type": "function", "function": {"name": "Read", "arguments": '{"path": "a.py"}'}}
    assert second.messages() == [
        {"role": "user", "content": "fix it"},
        {"role": "assistant", "content": "I look.", "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "t1", "content": "line 1\n\nline 2"},
    ]
    assert (first.chars, second.chars) == (6, 6 + 7 + len("Read") + len('{"path": "a.py"}') + 12)


def test_records_of_one_message_are_one_turn_and_thinking_is_dropped() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    one_turn: list[Any] = [("m1", thought), ("m1", "I look."), ("m1", use("t1")), ("=", "t1")]
    found = talk("go", *one_turn, "and hurry", ("m2", "Done.")).read()
    assert len(found.calls) == 2
    last = found.calls[1].messages()
    assert [entry["role"] for entry in last] == ["user", "assistant", "tool", "user"]
    assert (last[1]["content"], len(last[1]["tool_calls"]), last[3]["content"]) == ("I look.", 1, "and hurry")
    assert found.left_out["thinking"] == 1


AFTER_CALL = {"parentUuid": "u1"}


@pytest.mark.parametrize(
    ("steps", "ends"),
    [
        ([("m1", use("t1")), ("=", "t1", "one"), ("m1", use("t2"), AFTER_CALL), ("=", "t2", "two")],
         [("tool", "one"), ("tool", "two")]),
        ([("m1", use("t1"), use("t2")), ("=", "t2", "two"), "stop that"],
         [("tool", NO_RESULT), ("tool", "two"), ("user", "stop that")]),
        ([("m1", use("t1")), ("=", "t1", "one"), ("user", "faster", AFTER_CALL)],
         [("tool", "one"), ("user", "faster")]),
    ],
    ids=["results between the calls of one message", "no result", "words that follow the call itself"],
)  # fmt: skip
def test_calls_have_their_results_after_them(steps: list[Any], ends: list[tuple[str, str]]) -> None:
    calls = talk("go", *steps, ("m2", "Done.")).read().calls
    assert len(calls) == 2
    assert sent(calls[1])[2:] == ends
    made = [len(message.get("tool_calls", ())) for message in calls[1].messages()]
    assert made == [0, sum(role == "tool" for role, _ in ends), *[0] * len(ends)]


def test_an_edited_prompt_begins_a_branch_and_both_branches_were_asked() -> None:
    first: list[Any] = ["hello", ("m1", "Hello."), "this way", ("m2", "Done this way.")]
    calls = talk(*first, ("user", "that way", AFTER_CALL), ("m3", "Done that way.")).read().calls
    assert [sent(call)[-1] for call in calls] == [("user", "hello"), ("user", "this way"), ("user", "that way")]
    assert len(sent(calls[2])) == 3


def test_an_answer_asked_for_again_has_the_same_prefix() -> None:
    first, second = talk("hello", ("m1", "Hello."), ("m2", "Good day.", {"parentUuid": "u0"})).read().calls
    assert first.messages() == second.messages()


@pytest.mark.parametrize("way", ["boundary", "summary", "no parent"])
def test_a_compaction_begins_anew(way: str) -> None:
    session = Session()
    session.user("a long story")
    session.says("m1", "Yes.")
    if way == "boundary":
        session.add("system", "", subtype="compact_boundary", parentUuid=None)
    marks: dict[str, dict[str, Any]] = {"summary": {"isCompactSummary": True}, "no parent": {"parentUuid": None}}
    session.user("what was said", **marks.get(way, {}))
    session.user("go on")
    session.says("m2", "I go on.")
    assert sent(session.read().calls[1]) == [("user", "what was said\n\ngo on")]


def test_subagents_are_not_part_of_the_session_unless_it_is_theirs() -> None:
    aside = {"isSidechain": True}
    sub: list[Any] = [("user", "you are a subagent", aside), ("s1", "I was here.", aside)]
    session = talk("go", ("m1", use("t1", "Task")), *sub, ("=", "t1"), ("m2", "Done."))
    found = session.read()
    assert len(found.calls) == 2
    assert "subagent" not in str(found.calls[1].messages())
    assert found.left_out["record of a subagent"] == 2
    alone = read(*(record for record in session.records if record["isSidechain"]))
    assert [sent(call) for call in alone.calls] == [[("user", "you are a subagent")]]


def test_what_claude_code_says_itself_is_no_call() -> None:
    session = Session()
    session.user("go")
    session.says("e1", "API Error: 529", isApiErrorMessage=True)
    record = session.says("x1", "No response requested.")
    record["message"]["model"] = "<synthetic>"
    session.user("again")
    session.says("m1", "Yes.")
    calls = session.read().calls
    assert [sent(call) for call in calls] == [
        [("user", "go"), ("assistant", "No response requested."), ("user", "again")]
    ]


def test_repeated_records_and_calls_count_once() -> None:
    session = talk("go", ("m1", use("t1")), ("m1", use("t1")), ("=", "t1"), ("m2", "Done."))
    found = read(*session.records[:2], *session.records)
    assert len(found.calls) == 2
    assert len(found.calls[1].messages()) == 3
    assert len(found.calls[1].messages()[1]["tool_calls"]) == 1


def test_tools_are_declared_from_what_was_used() -> None:
    calls = use("t1", "Read", path="a", limit=5), use("t2", "Read", path="b", limit=True), use("t3", "Bash")
    found = talk("go", ("m1", *calls)).read()
    assert [tool["function"]["name"] for tool in found.tools] == ["Read", "Bash"]
    assert found.tools[0]["function"]["parameters"]["properties"] == {"path": {"type": "string"}, "limit": {}}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}


def test_a_note_stands_for_an_image_unless_images_are_kept() -> None:
    session = Session()
    session.user([{"type": "text", "text": "see"}, IMAGE])
    session.says("m1", "A.")
    found = session.read()
    assert sent(found.calls[0]) == [("user", "see\n\n[an image was here, 3 bytes]")]
    assert found.left_out["image"] == 1
    kept = session.read(images=True).calls[0].messages()[0]["content"]
    assert kept[1] == {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}


def test_reading_stops_after_the_turns_that_are_wanted() -> None:
    found = read(*records(Shape(turns=10, last_chars=20_000)), turns=3)
    assert (len(found.calls), found.more) == (3, True)
    assert found.lines < 20


LIST = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    {"role": "assistant", "content": None, "reasoning_content": "hm",
     "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "a.py"},
]  # fmt: skip


@pytest.mark.parametrize(
    "lines",
    [[json.dumps(LIST)], [json.dumps(LIST, indent=1)], [json.dumps({"messages": LIST})], [*map(json.dumps, LIST)],
     [json.dumps({"messages": LIST}, indent=1)]],
    ids=["list", "indented list", "object", "lines", "indented object"],
)  # fmt: skip
def test_openai_messages_are_read_in_every_form(lines: list[str]) -> None:
    found = read(*lines)
    assert [[message["role"] for message in call.messages()] for call in found.calls] == [
        ["system", "user"], ["system", "user", "assistant", "tool"],
    ]  # fmt: skip
    assert "hm" not in str(found.calls[1].messages())


def test_a_log_of_growing_requests_is_asked_once_each() -> None:
    tools = [{"type": "function", "function": {"name": "ls"}}]
    found = read(*({"messages": LIST[:count], "tools": tools} for count in (2, 4)))
    assert [len(call.messages()) for call in found.calls] == [2, 4]
    assert found.tools_of(found.calls[0]) == tuple(tools)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"type": "user", "mess', "not JSON"),
        (b"\xff\xfe{}", "not UTF-8"),
        ("[" * 100_000, "nested too deeply"),
        ("5", "no JSON object"),
        ('{"a": 1}', "neither a record of Claude Code nor an OpenAI message"),
        ('{"type": "user"}', "a record of the user without a message"),
        ('{"type": "user", "message": {"role": "user", "content": 5}}', "neither text nor a list"),
        ('{"type": "user", "message": {"role": "assistant", "content": ""}}', "of another role"),
        ('{"type": "user", "message": {"content": [{"no": 1}]}}', "a content block without a type"),
        ('{"type": "user", "message": {"content": [{"type": "text"}]}}', "a text block without text"),
        ('{"type": "user", "message": {"content": [{"type": "tool_use", "id": "a", "name": "b"}]}}', "of the user"),
        ('{"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "none"}]}}',
         "without the tool"),
        ('{"type": "assistant", "message": {"content": [{"type": "tool_use", "id": "a", "name": "b", "input": 5}]}}',
         "whose input is no object"),
        ('{"role": "user", "content": "x"}', "OpenAI messages among Claude Code"),
        ('{"type": "user", "message": {"content": NaN}}', "not JSON"),
    ],
)  # fmt: skip
def test_a_broken_line_is_named_or_skipped(line: str | bytes, why: str) -> None:
    session = Session()
    session.user("private words")
    session.says("m1", "Yes.")
    with pytest.raises(TranscriptError, match=r"^s\.jsonl line 3: .*--skip-broken$") as raised:
        read(*session.records, line)
    assert why in str(raised.value)
    assert "private" not in str(raised.value)
    found = read(*session.records, line, skip_broken=True)
    assert (len(found.calls), found.skipped) == (1, 1)
    assert why in found.broken[0]


def test_a_line_that_is_cut_off_says_so() -> None:
    whole = "\n".join(json.dumps(record) for record in records(Shape(turns=2, last_chars=9_000)))
    with pytest.raises(TranscriptError, match="line 11: not whole JSON; it seems to be cut off"):
        read_transcript(io.BytesIO(whole.encode()[:-10]), "s.jsonl")


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "is empty"),
        (["", ""], "is empty"),
        ([{"type": "summary"}], "no turn of an assistant after a prompt in 1 lines"),
        ([{"type": "user", "message": {"content": "x"}}], "no turn of an assistant"),
        ([{"type": "assistant", "message": {"content": "x"}}], "no turn of an assistant"),
        (["[]"], "no turn of an assistant"),
    ],
)  # fmt: skip
def test_a_file_with_nothing_to_ask_is_an_error(lines: list[Any], why: str) -> None:
    with pytest.raises(TranscriptError, match=why):
        read(*lines)


def test_a_file_of_something_else_is_an_error_also_when_skipping() -> None:
    with pytest.raises(TranscriptError, match="none of its 3 lines is a record of Claude Code or an OpenAI message"):
        read("a,b", "1,2", "3,4", skip_broken=True)


@pytest.mark.slow
def test_a_line_of_two_gigabytes_is_skipped_in_bounded_memory(tmp_path: Path) -> None:
    session = "".join(json.dumps(record) + "\n" for record in records(Shape(turns=2, last_chars=9_000)))
    with (tmp_path / "s.jsonl").open("w+b", buffering=1024 * 1024) as file:
        # A hole, which is read as zeros.
        file.seek(2 * 1024**3)
        file.write(b"\n" + session.encode())
        file.seek(0)
        tracemalloc.start()
        found = read_transcript(file, "s.jsonl", skip_broken=True)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(found.calls), found.broken) == (2, ("line 1: longer than 64 MiB",))
    assert most < 3 * transcript.LONGEST_LINE


def test_a_line_that_is_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = list(read_lines(io.BytesIO(b"x" * 300 + b"\n5\n"), longest=100))
    assert [(line.number, bool(line.broken)) for line in lines] == [(1, True), (2, False)]
    assert "longer than" in lines[0].broken


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def blocks() -> st.SearchStrategy[Any]:
    ids = st.sampled_from(["a", "b", "c"])
    return st.one_of(
        st.builds(lambda text: {"type": "text", "text": text}, st.text(max_size=5)),
        st.builds(lambda entry: {"type": "tool_use", "id": entry, "name": "T", "input": {}}, ids),
        st.builds(lambda entry: {"type": "tool_result", "tool_use_id": entry, "content": "r"}, ids),
        st.just({"type": "thinking", "thinking": "x"}),
        JSON_VALUES,
    )


def lines() -> st.SearchStrategy[Any]:
    uuids = st.none() | st.sampled_from([f"u{index}" for index in range(6)])
    record = st.fixed_dictionaries(
        {
            "type": st.sampled_from(["user", "assistant", "system", "summary"]),
            "message": st.fixed_dictionaries(
                {"content": st.text(max_size=5) | st.lists(blocks(), max_size=3)},
                optional={"id": st.sampled_from(["m1", "m2"]), "role": st.sampled_from(["user", "assistant"])},
            ),
        },
        optional={"uuid": uuids, "parentUuid": uuids, "isSidechain": st.booleans(), "isCompactSummary": st.booleans()},
    )
    message = st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool", "system", "x"]), "content": st.text(max_size=4)},
        optional={"tool_call_id": st.sampled_from(["a", "b"]), "tool_calls": JSON_VALUES},
    )
    return st.one_of(record, message, st.lists(message, max_size=4), JSON_VALUES, st.binary(max_size=20))


@given(st.lists(lines(), max_size=8), st.booleans(), st.none() | st.integers(1, 3))
def test_whatever_comes_there_are_calls_or_a_documented_error(told: list[Any], skip: bool, turns: int | None) -> None:
    try:
        found = read(*told, skip_broken=skip, turns=turns)
    except TranscriptError:
        return
    assert found.calls
    assert turns is None or len(found.calls) <= turns
    for call in found.calls:
        messages = call.messages()
        assert messages
        assert json.dumps(messages).encode()
        assert all(message["role"] in ("system", "developer", "user", "assistant", "tool") for message in messages)


def is_prefix(short: Sequence[Any], long: Sequence[Any]) -> bool:
    return list(long[: len(short)]) == list(short)


def linear(draw_turns: Iterable[tuple[int, int]]) -> Session:
    """A session that only appends: per turn, how many records its message comes in, and how many tools it calls."""
    session = Session()
    session.user("begin")
    for number, (pieces, tools) in enumerate(draw_turns):
        for piece in range(pieces):
            session.says(f"m{number}", f"piece {piece}")
        for tool in range(tools):
            session.says(f"m{number}", use(f"t{number}.{tool}"))
        for tool in range(tools):
            session.result(f"t{number}.{tool}")
        if not tools:
            session.user(f"on {number}")
    session.says("last", "Done.")
    return session


SHAPES = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), min_size=1, max_size=8)


@given(SHAPES)
def test_where_a_session_only_appends_prefixes_are_prefixes_of_each_other(shape: list[tuple[int, int]]) -> None:
    calls = linear(shape).read().calls
    assert len(calls) == len(shape) + 1
    told = [call.messages() for call in calls]
    assert all(is_prefix(before, after) for before, after in pairwise(told))
    assert [call.chars for call in calls] == sorted(call.chars for call in calls)


@given(SHAPES)
def test_coalescing_is_idempotent(shape: list[tuple[int, int]]) -> None:
    """What was coalesced, written down and read again, stays as it is, in either format."""
    found = linear(shape).read()
    again = read(found.calls[-1].messages())
    assert [call.messages() for call in again.calls] == [call.messages() for call in found.calls]
    third = read(*again.calls[-1].messages())
    assert [call.messages() for call in third.calls] == [call.messages() for call in again.calls]
