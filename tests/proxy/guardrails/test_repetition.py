"""Endless repetition is cut; long, regular, healthy text is not."""

from __future__ import annotations

import base64
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.proxy.answer.filters import RepetitionWatch

SENTENCE = "I need to check the file again. "


def tripped(text: str, size: int = 5) -> bool:
    watch = RepetitionWatch()
    return any(watch.feed(text[at : at + size]) for at in range(0, len(text), size))


ENDLESS = [
    SENTENCE * 1500,
    "Some healthy words first.\n" + SENTENCE * 400,
    "a" * 20_000 + SENTENCE * 120,
    "".join(f"step {number} is done, " for number in range(25)) * 30,
    "的文件再检查一次。" * 1200,
    "再检查文件。\n" * 1500,
    "</parameter>\n</function>\nyou must call a tool\n" * 300,
    "0, " * 4000,
    "!" * 11_000,
    "\n" * 11_000,
    "Let me check the file `a.py` again (3).\n" * 300,
    "INSERT INTO orders (id, state) VALUES (DEFAULT, 'pending');\n" * 200,
    "```python\nx = 1\n```\n" + "So I will read the file once more.\n" * 400,
]
HEALTHY = [
    "-" * 9_000,
    "=" * 3000 + "\n" + "-" * 3000,
    "0, " * 3000,
    "\n".join("| a | b | c |" for _ in range(400)),
    " " * 9_000,
    base64.b64encode(bytes(6_000)).decode(),
    base64.b64encode(random.Random(1).randbytes(20_000)).decode(),
    SENTENCE * 300,
    "INSERT INTO orders (id, state) VALUES (DEFAULT, 'pending');\n" * 160,
    "2026-11-22,open,alice,Berlin\n" * 300,
    "I will not talk in class.\n" * 300,
    "```text\n" + "All work and no play makes Jack a dull boy.\n" * 200 + "```\n",
    "".join(f"{SENTENCE}({number})\n" for number in range(1000)),
    "\n".join(f"    assert values[{number}] == expected[{number}]" for number in range(1000)),
    ("        self.count += 1\n        self.update()\n" * 30 + "    def other(self):\n") * 2,
    "".join(random.Random(2).choices("abcde ", k=60_000)),
]


@pytest.mark.parametrize("text", ENDLESS, ids=lambda text: text[:20])
def test_endless_repetition_is_noticed(text: str) -> None:
    assert tripped(text)
    assert tripped(text, size=100_000)


@pytest.mark.parametrize("text", HEALTHY, ids=lambda text: text[:20])
def test_regular_text_is_left_alone(text: str) -> None:
    assert not tripped(text)
    assert not tripped(text, size=100_000)


def test_it_is_noticed_soon_after_the_limit() -> None:
    watch = RepetitionWatch()
    fed = 0
    while not watch.feed(SENTENCE):
        fed += len(SENTENCE)
    assert fed + len(SENTENCE) == 10_240, "the first whole block of 256 behind the limit"


def test_a_unit_of_more_than_five_hundred_characters_is_none() -> None:
    assert tripped("".join(random.Random(3).choices("abcdefghij klm", k=500)) * 40)
    assert not tripped("".join(random.Random(3).choices("abcdefghij klm", k=501)) * 40)


@given(st.lists(st.integers(1, 700), min_size=1, max_size=40), st.sampled_from([0, 1, 37, 500]))
def test_fragments_do_not_decide_whether_it_trips(sizes: list[int], offset: int) -> None:
    text = "x" * offset + SENTENCE * 400
    pieces: list[str] = []
    at = 0
    while at < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[at : at + size])
        at += size
    whole, watch = RepetitionWatch(), RepetitionWatch()
    assert whole.feed(text)
    assert any(watch.feed(piece) for piece in pieces)
