"""A rebuilt log line has what llama-server says of itself, and never what others wrote."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.llama.log import TABLE
from specdash.llama.log.forms import FIELD, SLOT, split_port
from specdash.llama.log.safe import (
    ELLIPSIS,
    bare,
    recognise,
    safe_error,
    safe_line,
    safe_sample,
    safe_text,
    safe_word,
)

LOGS = sorted((Path(__file__).parents[1] / "data" / "logs").glob("*.log"))
CANARY = "aardvark"
TEXTS = {"d": "7", "f": "1.5", "list": "0.5, 0.25"}


def filled(pattern: str) -> str:
    """A line of a pattern whose texts are all canaries."""
    message = FIELD.sub(
        lambda field: field[2][1:] if field[2].startswith("=") else TEXTS.get(field[2], CANARY),
        pattern.removeprefix(SLOT).removeprefix("^"),
    )
    head = f"slot {CANARY}: id  0 | task 3 | " if pattern.startswith(SLOT) else f"{CANARY}: "
    return message if pattern.startswith("^") else head + message


@pytest.mark.parametrize("prefix", ["", "0.12.345.678 W ", "W ", '{"type":"log","time":5,"level":"warn","msg":"'])
def test_no_pattern_lets_a_text_field_through(prefix: str) -> None:
    end = '"}' if prefix.startswith("{") else ""
    for line_class in TABLE:
        for pattern in line_class.patterns:
            made = safe_line(f"{prefix}{filled(pattern)}{end}".encode())
            assert CANARY not in made, line_class.id


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\n")), st.binary(max_size=300))
def test_a_line_that_no_table_has_is_left_out_whole(text: str, junk: bytes) -> None:
    assert CANARY not in safe_line(f"{CANARY} {text}".encode())
    safe_line(junk)


@given(st.integers(0, len(LOGS) - 1), st.text(alphabet="abcxyz", min_size=12, max_size=20), st.data())
def test_a_word_slipped_into_a_real_line_does_not_come_out(index: int, word: str, data: st.DataObject) -> None:
    lines = LOGS[index].read_bytes().splitlines() or [b""]
    line = data.draw(st.sampled_from(lines[:400])).decode("utf-8", "replace")
    place = data.draw(st.integers(0, len(line)))
    made = safe_line((line[:place] + word + line[place:]).encode())
    assert word not in made


@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.stem)
def test_lines_whose_fields_are_all_numbers_keep_every_number(log: Path) -> None:
    for line in log.read_bytes().splitlines():
        _, own = split_port(bare(line))
        known = recognise(own)
        pattern = known.pattern
        if pattern is None or b'"type"' in line or known.seconds(own) is None or re.search(r":(?:w|s|rest)\}", pattern):
            continue
        made = safe_line(line)
        printed = re.findall(r"\d+", line.decode("utf-8", "replace"))
        kept = re.findall(r"\d+", made.partition(" s ")[2])
        assert printed[len(printed) - len(kept) :] == kept
        assert len(kept) >= len(re.findall(r":(?:d|f)\}", pattern))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("--draft-max", "--draft-max"),
        ("set --spec-draft-n-max of aardvark to 5", f"{ELLIPSIS} --spec-draft-n-max {ELLIPSIS}"),
        ("draft-mtp", "draft-mtp"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://intranet.example:8080", ELLIPSIS),
        ("aardvark", ELLIPSIS),
    ],
)
def test_words_and_flags_of_llama_cpp_are_kept_and_others_are_not(value: str, shown: str) -> None:
    assert safe_word(value) == shown


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("W slot x: id  3 | task 41 | n_past was set to 121", "W slot: id 3 | task 41 | n_past was set to 121"),
        ("I srv  init: adding speculative implementation 'x y'", f"I adding speculative implementation '{ELLIPSIS}'"),
        ("I srv  init: chat template, example_format: '<|im_start|>aardvark'", "I (another line: left out)"),
    ],
)  # fmt: skip
def test_a_line_keeps_its_numbers_level_and_time(line: str, shown: str) -> None:
    assert safe_text(f"0.01.205.300 {line}") == f"1.205 s {shown}"


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        ("the request exceeds the available context size, try increasing it", "the request exceeds the available"),
        ('parse error: last read: "aardvark"', ELLIPSIS),
    ],
)
def test_an_error_of_the_server_is_shown_only_where_it_quotes_nothing(error: str, shown: str) -> None:
    assert safe_error(error).startswith(shown)
    assert CANARY not in safe_error(error)


def test_a_warning_of_no_class_is_shown_without_its_text() -> None:
    line = "0.00.041.000 W srv  x: cannot parse 'aardvark'"
    assert safe_sample("other_warning", line) == "0.041 s W (a warning that specdash does not know: left out)"
    assert safe_sample("context_shift", line) == line
