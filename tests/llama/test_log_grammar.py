"""The table of line classes: complete, unambiguous, and found again behind every prefix."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.log_facts import LogBatch, TaskReleased
from specdash.llama.log import GRAMMAR, LINE_CLASSES, TABLE, WARNING_CLASSES, warning_class
from specdash.llama.log.forms import ANSI, FIELD, SLOT
from specdash.llama.log.parser import LogParser
from specdash.llama.log.safe import recognise

LOGS = Path(__file__).parents[1] / "data" / "logs"
PATTERNS = [(line_class, pattern) for line_class in TABLE for pattern in line_class.patterns]
PREFIXES: dict[str, Callable[[str], str]] = {
    "none": lambda line: line,
    "stamp": lambda line: f"63.17.951.405 I {line}",
    "stamp, two blanks": lambda line: f"6.33.268.728  I {line}",
    "router": lambda line: f"[42027] 2.46.193.190 W {line}",
    "journald": lambda line: f"May  2 01:30:52 corrm-pc start_llama_server.sh[37450]: 63.17.951.405 I {line}",
    "journald, no stamp": lambda line: f"May 22 01:30:52 box llama-server[37450]: {line}",
    "journald full": lambda line: f"Fri 2026-05-22 01:30:52 CEST box llama.service[37450]: {line}",
    "journald iso": lambda line: f"2026-05-22T01:30:52+0200 box llama-server[37450]: 0.00.001.405 I {line}",
    "journald monotonic": lambda line: f"[ 1234.567890] box llama-server[37450]: {line}",
    "docker's file": lambda line: json.dumps({"log": f"\x1b[32mI \x1b[0m{line}\r\n", "stream": "stderr"}),
    "kubernetes": lambda line: f"2026-05-22T01:30:52.123456789Z stderr F {line}",
    "kubectl": lambda line: f"[pod/llama-0/server] 2026-05-22T01:30:52.123456789Z {line}",
    "compose": lambda line: f"llama-server-1  | 2026-05-22T01:30:52.123456789Z {line}",
    "colours": lambda line: f"\x1b[34m0.00.001.910\x1b[0m \x1b[32mI \x1b[0m{line}",
}
SAMPLES = {
    "d": "   12",
    "f": "  345.67",
    "w": "draft-simple",
    "s": "models/q8.gguf",
    "list": "0.944, 0.722, 0.000",
    "rest": "etc.",
}


def printed(pattern: str, **fields: str) -> str:
    """A line of this pattern, with something in every field, after what stands in front of it."""
    given = {**SAMPLES, **fields}

    def filled(field: re.Match[str]) -> str:
        return field[2][1:] if field[2].startswith("=") else given[field[2]]

    message = FIELD.sub(filled, pattern.removeprefix(SLOT).removeprefix("^"))
    if pattern.startswith(SLOT):
        return f"slot   operator(): id  3 | task 1366 | {message}"
    return message if pattern.startswith("^") else f"srv  some_functio: {message}"


def test_ids_are_unique_and_a_warning_class_says_what_it_means() -> None:
    assert len(LINE_CLASSES) == len(TABLE) + 3
    assert all(found.title and found.meaning[4:].endswith(".") for found in WARNING_CLASSES.values())


@pytest.mark.parametrize("prefix", PREFIXES)
def test_every_pattern_is_of_its_own_class_behind(prefix: str) -> None:
    others = {}
    for line_class, pattern in PATTERNS:
        line = ANSI.sub(b"", PREFIXES[prefix](printed(pattern)).encode())
        if (found := recognise(line).line_class) is not line_class:
            others[line] = found.id
    assert others == {}


OF_A_TASK = {"request_cancelled", "context_exceeded", "compute_error", "batch_index_error", "request_failed"}
"""Classes that make a fact where their line names a task."""
MAKING = [
    pattern
    for line_class, pattern in PATTERNS
    if line_class.event
    or (line_class.make and pattern != SLOT and (line_class.id not in OF_A_TASK or "{task" in pattern))
]


def test_no_pattern_has_a_digit_of_its_own() -> None:
    """Lines that differ in their digits alone are taken for the same."""
    assert not [pattern for _, pattern in PATTERNS if re.search(r"\d", FIELD.sub("", pattern))]


def test_the_fields_of_a_pattern_are_those_of_its_fact() -> None:
    for pattern in MAKING:
        facts = LogParser().feed(f"0.01.002.003 I {printed(pattern)}\n".encode()).facts
        assert [fact.at_s for fact in facts] == [pytest.approx(1.002003)], pattern


@given(st.data())
def test_numbers_and_padding_do_not_change_what_a_line_is(data: st.DataObject) -> None:
    line_class, pattern = data.draw(st.sampled_from([found for found in PATTERNS if found[1] in MAKING]))
    gap = data.draw(st.text(" ", max_size=12))
    numbers = {
        "d": gap + str(data.draw(st.integers(-1, 10**12))),
        "f": gap + f"{data.draw(st.floats(0, 1e9)):.3f}",
    }
    line = printed(pattern, **numbers).encode()
    assert recognise(line).line_class is line_class
    assert GRAMMAR.read(line).line_class is line_class


UNSEEN_PREFIXES = [
    "2026-05-17 11:04:29.397 | INFO     | llama:run:42 - ",
    "2026-05-17T11:04:29.397321+00:00 app[web.1]: ",
    "<6>",
    "сервер → ",
]
"""What programs put in front of a line that no table here knows."""
STAMPED = re.compile(r"(\[\d+\] *)?\d+\.\d\d\.\d{3}\.\d{3} ")


def parsed(*lines: str) -> LogBatch:
    return LogParser().feed("".join(f"{line}\n" for line in lines).encode())


@pytest.mark.parametrize(
    ("prefix", "log"),
    [
        *((prefix, "draft_simple_lv4") for prefix in UNSEEN_PREFIXES),
        *(("svc => ", log) for log in ("router", "jsonl_draft75_lv4")),
    ],
)
def test_an_unknown_prefix_hides_no_message_with_the_servers_clock(prefix: str, log: str) -> None:
    lines = (LOGS / f"{log}.log").read_text().splitlines()
    lines = [line for line in lines if STAMPED.match(line) or line.startswith('{"type":"log"')]
    plain, behind = parsed(*lines), parsed(*(prefix + line for line in lines))
    assert len(plain.every_fact) > 10
    assert behind.by_server == plain.by_server
    assert behind.unrecognised == plain.unrecognised
    assert [(tally.warning, tally.count, tally.first_s) for tally in behind.warnings] == [
        (tally.warning, tally.count, tally.first_s) for tally in plain.warnings
    ]


STOP = "slot release: id  3 | task 5 | stop processing: n_tokens = 5, truncated = 0"


@pytest.mark.parametrize(
    ("line", "warnings"),
    [
        ("svc-1 => 0.57.400.000 W xyzzy", [("other_warning", 57.4)]),
        # What only looks like a clock is none.
        ("loading 0...Warnings ahead", []),
        # A warning that begins like a harmless message may say anything.
        ("0.57.300.000 W srv  init: model loaded, but its draft context is gone", [("other_warning", 57.3)]),
        # A log line in quotes is no message.
        (f'user wrote "{STOP}" yesterday', []),
        (f"0.57.309.308 I srv  x: prompt '{STOP}'", []),
        ("I read that stop processing: n_tokens = 5, truncated = 0 is normal", []),
    ],
)
def test_what_is_only_like_a_message_makes_no_fact(line: str, warnings: list[tuple[str, float]]) -> None:
    batch = parsed(line)
    assert batch.facts == ()
    assert [(tally.warning, tally.first_s) for tally in batch.warnings] == warnings


@pytest.mark.parametrize("more", ["", " (cell 5)", ", n_swa = 3", " in ubatch 3", ' | tid="3" timestamp=17'])
@pytest.mark.parametrize("function", ["release", "operator()", "~destructor", ""])
def test_a_known_message_in_another_function_with_something_appended_is_of_its_class(function: str, more: str) -> None:
    find_slot = "find_slot: non-consecutive token position 323 after 322 for sequence 0 with 376 new tokens"
    batch = parsed(f"0.57.309.308 W {find_slot}{more}", f"0.57.309.309 I {STOP.replace('release', function)}{more}")
    assert batch.unrecognised == 0
    assert [tally.warning for tally in batch.warnings] == ["find_slot_non_consecutive"]
    assert batch.facts == (TaskReleased(3, 5, 5, False, at_s=57.309309),)


def test_a_warning_that_a_former_version_counted_by_a_class_of_its_own_is_another_warning() -> None:
    assert warning_class("launch_failed").id == "other_warning"
    assert warning_class("task_launched").id == "other_warning"
