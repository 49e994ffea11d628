"""The table of line classes: complete, unambiguous, and found again behind every prefix."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from specdash.core.log_facts import LogBatch, TaskReleased
from specdash.llama.log import GRAMMAR, LINE_CLASSES, TABLE, WARNING_CLASSES, warning_class
from specdash.llama.log.forms import FIELD, SLOT
from specdash.llama.log.parser import ANSI, LogParser
from specdash.llama.log.safe import recognise

LOGS = Path(__file__).parents[1] / "data" / "logs"
PATTERNS = [(line_class, pattern) for line_class in TABLE for pattern in line_class.patterns]
PREFIXES: dict[str, Callable[[str], str]] = {
    "none": lambda line: line,
    "level": lambda line: f"I {line}",
    "stamp": lambda line: f"63.17.951.405 I {line}",
    "stamp, two blanks": lambda line: f"6.33.268.728  I {line}",
    "router": lambda line: f"[42027] 2.46.193.190 W {line}",
    "journald": lambda line: f"May  2 01:30:52 corrm-pc start_llama_server.sh[37450]: 63.17.951.405 I {line}",
    "journald, no stamp": lambda line: f"May 22 01:30:52 box llama-server[37450]: {line}",
    "journald iso": lambda line: f"2026-05-22T01:30:52+0200 box llama-server[37450]: 0.00.001.405 I {line}",
    "docker": lambda line: f"2026-05-22T01:30:52.123456789Z 0.00.001.405 I {line}",
    "kubernetes": lambda line: f"2026-05-22T01:30:52.123456789Z stderr F 0.00.001.405 I {line}",
    "compose": lambda line: f"llama-server-1  | 0.00.001.405 I {line}",
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


def test_has_the_classes_that_the_json_contract_names() -> None:
    assert {
        "find_slot_non_consecutive",
        "kv_no_free_space",
        "context_shift",
        "checkpoint_erased",
        "spec_init_failed",
        "draft_clamped",
        "alloc_failed",
        "cuda_error",
        "request_cancelled",
    } <= set(WARNING_CLASSES)


def test_ids_are_unique() -> None:
    assert len(LINE_CLASSES) == len(TABLE) + 3


def test_a_warning_class_says_what_it_means() -> None:
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


@pytest.mark.parametrize("name", ["print_timing", "operator()", "a_new_name_o", "~destructor", ""])
def test_the_function_name_in_the_slot_prefix_does_not_matter(name: str) -> None:
    batch = LogParser().feed(
        f"slot {name:>12}: id  0 | task 7 | stop processing: n_tokens = 5, truncated = 0\n".encode()
    )
    assert batch.unrecognised == 0
    assert len(batch.facts) == 1


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


UNSEEN_PREFIXES = {
    "loguru": "2026-05-17 11:04:29.397 | ",
    "loguru with a level": "2026-05-17 11:04:29.397 | INFO     | llama:run:42 - ",
    "the model's name": "[model-7b.Q4_K_M.gguf] ",
    "python logging": "2026-05-17 11:04:29,397 INFO llama: ",
    "stern": "llama-server-7d9f container-2 ",
    "kubectl": "[pod/llama-0/llama-server] ",
    "heroku": "2026-05-17T11:04:29.397321+00:00 app[web.1]: ",
    "a time of day": "11:04:29 ",
    "a priority": "<6>",
    "arrows": "worker7 >>> ",
    "two of them": "[2026-05-17T11:04:29] [stderr] ",
    "other letters": "сервер → ",
}
"""What programs put in front of a line that no table here knows."""


def parsed(text: str) -> LogBatch:
    return LogParser().feed(text.encode())


STAMPED = re.compile(r"(\[\d+\] *)?\d+\.\d\d\.\d{3}\.\d{3} ")


@pytest.mark.parametrize(
    ("prefix", "log"),
    [
        *((prefix, "draft_simple_lv4") for prefix in UNSEEN_PREFIXES.values()),
        *(("svc => ", log) for log in ("qwen35_mtp_np2_lv4", "router", "jsonl_draft75_lv4")),
    ],
)
def test_an_unknown_prefix_hides_no_message_with_the_servers_clock(prefix: str, log: str) -> None:
    lines = [
        line
        for line in (LOGS / f"{log}.log").read_text().splitlines()
        if STAMPED.match(line) or line.startswith('{"type":"log"')
    ]
    plain = parsed("".join(f"{line}\n" for line in lines))
    behind = parsed("".join(f"{prefix}{line}\n" for line in lines))
    assert len(plain.every_fact) > 10
    assert behind.by_server == plain.by_server
    assert [(tally.warning, tally.count, tally.first_s) for tally in behind.warnings] == [
        (tally.warning, tally.count, tally.first_s) for tally in plain.warnings
    ]
    assert behind.unrecognised == plain.unrecognised


def test_an_unknown_warning_has_its_level_and_time_behind_a_prefix() -> None:
    batch = parsed("svc-1 => 0.57.400.000 W xyzzy\n")
    assert [(tally.warning, tally.first_s) for tally in batch.warnings] == [("other_warning", 57.4)]


def test_what_only_looks_like_a_clock_is_none() -> None:
    batch = parsed("loading 0...Warnings ahead\nsvc-1 => 0.57.400.000 I xyzzy\nloading 1...Warnings ahead\n")
    assert batch == replace(LogBatch(lines=3), tail=batch.tail, tail_kinds="+-+")


APPENDED = [" (cell 5)", ", n_swa = 3", " in ubatch 3", ' | tid="3" timestamp=17', "; retrying", " [trace 8f]"]


@pytest.mark.parametrize("more", APPENDED)
def test_a_known_message_with_something_appended_is_of_its_class(more: str) -> None:
    find_slot = "find_slot: non-consecutive token position 323 after 322 for sequence 0 with 376 new tokens"
    release = "slot release: id  3 | task 1366 | stop processing: n_tokens = 1476, truncated = 0"
    batch = parsed(f"0.57.309.308 W {find_slot}{more}\n0.57.309.309 I {release}{more}\n")
    assert batch.unrecognised == 0
    assert [(tally.warning, tally.count, tally.slots.ids) for tally in batch.warnings] == [
        ("find_slot_non_consecutive", 1, (0,))
    ]
    assert [(fact.slot, fact.task) for fact in batch.facts if isinstance(fact, TaskReleased)] == [(3, 1366)]


def test_a_warning_that_begins_like_a_harmless_message_stays_unknown() -> None:
    batch = parsed("0.57.309.308 W srv  init: model loaded, but its draft context is gone\n")
    assert [tally.warning for tally in batch.warnings] == ["other_warning"]


@pytest.mark.parametrize(
    "line",
    [
        'user wrote "slot release: id  3 | task 5 | stop processing: n_tokens = 5, truncated = 0" yesterday',
        "0.57.309.308 I srv  x: prompt 'slot release: id  3 | task 5 | stop processing: n_tokens = 5, truncated = 0'",
        "I read that stop processing: n_tokens = 5, truncated = 0 is normal",
    ],
)
def test_a_log_line_in_quotes_is_no_message(line: str) -> None:
    assert parsed(f"{line}\n").facts == ()


def test_a_warning_that_a_former_version_counted_by_a_class_of_its_own_is_another_warning() -> None:
    assert warning_class("launch_failed").id == "other_warning"
    assert warning_class("task_launched").id == "other_warning"
