"""The prompts of a verification, our own and the operator's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from specdash.bench.verify import BUILT_IN, read_prompts
from specdash.core.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "nobody must see this"
MESSAGES = [{"role": "user", "content": "hello"}]


def written(directory: Path, text: str) -> str:
    file = directory / "prompts"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_our_own_prompts_are_long_enough_that_kernels_are_not_switched() -> None:
    assert len({verify_prompt.name for verify_prompt in BUILT_IN}) == len(BUILT_IN) == 4
    for verify_prompt in BUILT_IN:
        words = str(verify_prompt.messages[0]["content"]).split()
        assert len(words) > 80, "every word is a token at least"


@pytest.mark.parametrize(
    "text",
    [
        "first text\nof two lines\n---\nsecond text\n---\n",
        json.dumps(["first text\nof two lines", "second text"]),
        json.dumps("first text\nof two lines") + "\n\n" + json.dumps({"prompt": "second text"}) + "\n",
        json.dumps([{"prompt": "first text\nof two lines"}, {"prompt": "second text", "name": "prompt 2"}]),
    ],
)
def test_prompts_are_read_as_json_json_lines_and_plain_texts(text: str, tmp_path: Path) -> None:
    found = read_prompts(written(tmp_path, text))
    assert [verify_prompt.text for verify_prompt in found] == ["first text\nof two lines", "second text"]
    assert [verify_prompt.name for verify_prompt in found] == ["prompt 1", "prompt 2"]


def test_messages_are_kept_for_the_chat_template(tmp_path: Path) -> None:
    [verify_prompt] = read_prompts(written(tmp_path, json.dumps({"messages": MESSAGES, "name": "greeting"})))
    assert (verify_prompt.name, verify_prompt.messages, verify_prompt.text) == ("greeting", tuple(MESSAGES), "")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "has no prompt"),
        ("---\n---\n", "has no prompt"),
        ("[1]", "prompt 1: must be a text"),
        ('["a", {}]', "prompt 2: needs either"),
        (json.dumps({"prompt": SECRET, "messages": MESSAGES}), "needs either"),
        ('{"prompt": " "}', "not empty"),
        ('{"messages": []}', "messages must be"),
        ('{"messages": [{"role": "user"}]}', "messages must be"),
        (json.dumps({"prompt": SECRET, "name": "a\x1bb"}), "name must be"),
        (f'"{SECRET}"\n{{"prompt": {SECRET}}}', "line 2: is not JSON"),
        (json.dumps(["x"] * 65), "64 are the most"),
    ],
)
def test_what_is_no_prompts_file_is_named_without_quoting_it(text: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="prompts ") as caught:
        read_prompts(written(tmp_path, text))
    assert named in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_prompts(str(tmp_path / "none"))
    with pytest.raises(InputError, match="directory"):
        read_prompts(str(tmp_path))
    file = tmp_path / "binary"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        read_prompts(str(file))
