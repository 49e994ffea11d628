"""Bytes in, facts out: behind any prefix, in any pieces, with any junk between the lines."""

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.core.log_facts import (
    DETAIL,
    NOTABLE,
    ChildFacts,
    DecodeTiming,
    LogBatch,
    LogFact,
    PromptTiming,
    RequestAcceptance,
    ServerEvent,
    TaskLaunched,
    TaskReleased,
    TotalTiming,
    Touched,
    VerificationSteps,
)
from specdash.llama.log import GRAMMAR
from specdash.llama.log.forms import MAX_FRAMES
from specdash.llama.log.parser import LOOKED_AT, MAX_LINE, LogParser

LOGS = Path(__file__).parents[1] / "data" / "logs"
STORM = "0.57.309.308 W find_slot: non-consecutive token position 323 after 323 for sequence 0 with 376 new tokens"
START = "0.00.005.000 I srv  llama_server: initializing ..."
HEADER = "slot print_timing: id  3 | task 7 |"
TIMING = "prompt eval time =   19.23 ms /   122 tokens (    0.16 ms per token,  6345.90 tokens per second)"
EVAL = "       eval time =   23513.62 ms /   128 tokens (  183.70 ms per token,     5.44 tokens per second)"
ACCEPTANCE = "draft acceptance rate = 0.23026 (   70 accepted /   304 generated)"


def parse(*lines: str) -> LogBatch:
    return LogParser().feed("".join(f"{line}\n" for line in lines).encode())


def counts(batch: LogBatch) -> dict[str, int]:
    return {tally.warning: tally.count for tally in batch.warnings}


def launched(task: int, *, slot: int = 0, at: str = "0.00.100.000") -> str:
    return f"{at} I slot launch_slot_: id  {slot} | task {task} | processing task, is_child = 0"


def released(slot: int = 1) -> str:
    return f"0.00.100.000 I slot x: id  {slot} | task 3 | stop processing: n_tokens = 5, truncated = 0"


def step(accepted: int, generated: int, *, slot: int = 0, task: int = 0, at: str = "0.00.001", tail: str = "") -> str:
    return f"{at}.001 I slot operator(): id  {slot} | task {task} | accepted {accepted}/ {generated} draft tokens{tail}"


SYSLOG = "<30>1 2026-05-17T11:04:29.397Z host llama-server 1234 "
RESTORED = " (restore checkpoint)"
MADE: dict[str, tuple[list[str], tuple[LogFact, ...]]] = {
    "a clock of minutes without bound": ([launched(7, at="63.17.951.477")], (TaskLaunched(0, 7, at_s=3797.951477),)),
    "a clock and a text of a JSON line": (
        [r"""{"type":"log","time":5,"level":"info","msg":"srv  load_model: loading model 'a\\b \"c\".gguf'\n"}"""],
        (ServerEvent("model_loading", (("path", 'a\\b "c".gguf'),), at_s=5e-6),)),
    "a line behind one whose newline is missing": (
        [f"D x: assuming pure content parser.{line}" for line in (launched(1), "slot: id 1 | task 2 | processing task")]
        + [f"0.00.100.000 I slot opera{launched(3)}"],
        (TaskLaunched(0, 1, at_s=0.1), TaskLaunched(1, 2), TaskLaunched(0, 3, at_s=0.1))),
    "a line behind what programs put in front": (
        [before + released() for before in ("\ufeff", f"{SYSLOG}- - ", f'{SYSLOG}1 [x@1 a="b"] \ufeff', "<30>May 17 ")]
        + [f"{before}{released()[15:]}" for before in (f"{SYSLOG}- - ", "x-abcd llama ", "+ x-abcd › llama › ")],
        (*[TaskReleased(1, 3, 5, False, at_s=0.1)] * 4, *[TaskReleased(1, 3, 5, False)] * 3)),
    "a clock that goes back means a new server": (
        [launched(5, at="9.00.000.000"), launched(0)],
        (TaskLaunched(0, 5, at_s=540.0), ServerEvent("restarted", (), at_s=0.1), TaskLaunched(0, 0, at_s=0.1))),
    "a clock that goes back by milliseconds does not": (
        [launched(5, at="0.00.105.000"), launched(6, slot=1)],
        (TaskLaunched(0, 5, at_s=0.105), TaskLaunched(1, 6, at_s=0.1))),
    "old timing lines belong to the header before them": (
        [HEADER, TIMING, EVAL, "      total time =   55459.32 ms /   453 tokens", HEADER, ACCEPTANCE],
        (PromptTiming(3, 7, 19.23, 122), DecodeTiming(3, 7, 23513.62, 128), TotalTiming(3, 7, 55459.32, 453),
         RequestAcceptance(3, 7, 70, 304))),
    "a header is of one block": (
        [HEADER, TIMING, TIMING], (PromptTiming(3, 7, 19.23, 122), PromptTiming(None, None, 19.23, 122))),
    "a header ends at the release": (
        [HEADER, "slot      release: id  3 | task 7 | stop processing: n_past = 452, truncated = 1", ACCEPTANCE],
        (TaskReleased(3, 7, 452, True), RequestAcceptance(None, None, 70, 304))),
    "steps of a slot are added up, and the one after a restore is a replay": (
        [step(6, 8, tail=RESTORED), step(7, 7, at="0.00.301"), step(5, 8, at="0.00.601")],
        (VerificationSteps(0, 0, 2, 11, 16, 1, 1, 0.001001, 7, 0.3, at_s=0.601001),)),
    "a replay is timed from its restore, whatever came between": (
        [step(6, 8, tail=RESTORED), released(), step(7, 7, at="0.00.301")],
        (VerificationSteps(0, 0, 1, 6, 8, 0, 1, 0.001001, at_s=0.001001), TaskReleased(1, 3, 5, False, at_s=0.1),
         VerificationSteps(0, 0, 0, 0, 0, 1, 0, 0.301001, 7, 0.3, at_s=0.301001))),
    "steps of the next request are no replay": (
        [step(6, 8, tail=RESTORED), "slot x: id  0 | task 1 | processing task", step(7, 8, task=1)],
        (VerificationSteps(0, 0, 1, 6, 8, 0, 1, 0.001001, at_s=0.001001), TaskLaunched(0, 1),
         VerificationSteps(0, 1, 1, 7, 8, 0, 0, 0.001001, at_s=0.001001))),
    "steps of several slots are added up apart, in the order of their last": (
        [step(6, 8), step(2, 8, slot=1, tail=RESTORED), step(3, 8, slot=1), step(1, 7)],
        (VerificationSteps(1, 0, 1, 2, 8, 1, 1, 0.001001, 8, at_s=0.001001),
         VerificationSteps(0, 0, 2, 7, 15, 0, 0, 0.001001, at_s=0.001001))),
    "steps are added up over a second at most": (
        [step(1, 8, at=f"0.{half // 2:02}.{half % 2 * 500:03}") for half in range(4)],
        (VerificationSteps(0, 0, 3, 3, 24, 0, 0, 0.000001, at_s=1.000001),
         VerificationSteps(0, 0, 1, 1, 8, 0, 0, 1.500001, at_s=1.500001))),
}  # fmt: skip
MADE |= {
    f"a number that is none: {number}": (
        [f"slot x: id 0 | task 1 | stop processing: n_tokens = {number}, truncated = 0"], ())
    for number in ("9" * 30, "x", "", "1.2.3", "-")
}  # fmt: skip


@pytest.mark.parametrize("case", MADE)
def test_lines_become_facts(case: str) -> None:
    lines, facts = MADE[case]
    batch = parse(*lines)
    assert batch.facts == facts
    assert batch.restarted == any(isinstance(fact, ServerEvent) and fact.name == "restarted" for fact in facts)


def test_a_routers_child_has_its_own_clock() -> None:
    batch = parse(launched(5, at="9.00.000.000"), f"[45995] {launched(1)}")
    assert (batch.restarted, batch.facts) == (False, (TaskLaunched(0, 5, at_s=540.0),))
    assert batch.children == (ChildFacts(45995, (TaskLaunched(0, 1, at_s=0.1),)),)


@pytest.mark.parametrize(
    ("lines", "restarted"),
    [
        (["0.00.400.000 I srv  llama_server: model loaded", START], True),
        ([STORM, START], True),
        ([step(0, 8, tail=RESTORED), START, step(3, 8)], True),
        (["# CMD: llama-server", "warn: LLAMA_ARG_SPEC_TYPE environment variable is set, but will be ignored", START],
         False),
    ],
)  # fmt: skip
def test_the_first_line_of_a_server_after_another_wrote_is_a_restart(lines: list[str], restarted: bool) -> None:
    parser = LogParser()
    batches = [parser.feed(f"{line}\n".encode()) for line in lines]
    for found in (batches, [parse(*lines)]):
        assert any(batch.restarted for batch in found) is restarted
        # What the old server was doing is forgotten.
        steps = [fact for batch in found for fact in batch.facts if isinstance(fact, VerificationSteps)]
        assert not any(fact.replays for fact in steps)


OF_SLOT = "0.00.001.001 I slot x: id  0 | task 3 |"


@pytest.mark.parametrize(
    ("lines", "counted"),
    [
        ([STORM, STORM.removeprefix("0.57.309.308 W "), f"May 22 01:30:52 host start.sh[1]: {STORM}",
          f"[4000] {STORM}", f"\x1b[33m{STORM}\x1b[0m"], {"find_slot_non_consecutive": 5}),
        (["0.01.958.684 W srv          stop: cancel task, id_task = 35"], {"request_cancelled": 1}),
        (["0.00.041.000 W srv  x: the flux capacitor is empty"], {"other_warning": 1}),
        (["0.00.041.000 E srv  x: the flux capacitor is empty"], {"other_error": 1}),
        ([r'{"type":"log","time":5,"level":"error","msg":"srv  x: no idea\n"}'], {"other_error": 1}),
    ],
)  # fmt: skip
def test_warnings_are_counted(lines: list[str], counted: dict[str, int]) -> None:
    batch = parse(*lines)
    assert counts(batch) == counted
    unknown = "other" in "".join(counted)
    assert (batch.unrecognised, batch.unrecognised_samples) == (int(unknown), tuple(lines) if unknown else ())


def test_a_warning_is_counted_with_first_last_and_one_sample() -> None:
    (tally,) = parse(STORM, f"[4000] {STORM}", STORM.replace("0.57", "2.57")).warnings
    found = (tally.warning, tally.count, tally.first_s, tally.last_s, tally.sample)
    assert found == ("find_slot_non_consecutive", 3, 57.309308, 177.309308, STORM)


def test_samples_hold_no_control_characters_and_are_cut() -> None:
    (tally,) = parse("0.00.041.000 E srv  x: \x1b[31m\x07\x00\u202eevil" + "y" * 1000).warnings
    assert tally.sample.startswith("0.00.041.000 E srv  x: evilyyy")
    assert len(tally.sample) == 300


@pytest.mark.parametrize(
    ("line", "slots", "tasks"),
    [
        (f"{OF_SLOT} slot context shift, n_keep = 0, n_left = 9, n_discard = 4", (0,), (3,)),
        (STORM, (0,), ()),
        ("srv          stop: cancel task, id_task = 31", (), (31,)),
        ("srv    send_error: task id = 5, error: Context size has been exceeded.", (), (5,)),
        ("srv  try_clear_id: purging slot 1 with 1024 tokens", (1,), ()),
        ("0.01.002.003 E slot get_availabl: id  0 | task -1 | failed to restore context checkpoint (x)", (0,), ()),
        ("ggml_abort: failed to allocate compute buffers", (), ()),
    ],
)
def test_a_warning_names_its_slot_and_task_in_its_own_way(
    line: str, slots: tuple[int, ...], tasks: tuple[int, ...]
) -> None:
    (tally,) = parse(line).warnings
    assert (tally.slots, tally.tasks) == (Touched(slots), Touched(tasks))


def shift(i: int) -> str:
    words = "slot context shift, n_keep = 0, n_left = 1, n_discard = 3"
    return f"0.{i // 1000:02}.{i % 1000:03}.000 W slot update_slots: id  {i % 4} | task {i // 100} | {words}"


def test_of_a_few_lines_all_slots_and_tasks_are_read_and_of_a_storm_some() -> None:
    (few,) = parse(*map(shift, range(LOOKED_AT))).warnings
    assert (sorted(few.slots.ids), few.slots.more, few.tasks.ids) == ([0, 1, 2, 3], False, (0,))
    (storm,) = parse(*map(shift, range(2000))).warnings
    assert set(storm.slots.ids) <= {0, 1, 2, 3}
    assert (storm.tasks.ids[0], storm.tasks.ids[-1], storm.slots.more, storm.tasks.more) == (0, 19, True, True)


def test_warnings_of_servers_that_are_gone_are_tallied_apart() -> None:
    log = [START, *[shift(9000)] * 3, START, *[shift(9000)] * 2, START, shift(9000)]
    assert [(tally.count, tally.lives_ago) for tally in parse(*log).warnings] == [(3, 2), (2, 1), (1, 0)]


class TestPieces:
    def test_the_tail_marks_detail_and_keeps_other_lines_longer(self) -> None:
        lines = [launched(7), "\tmirostat = 0, mirostat_lr = 0.100", *[step(2, 4)] * 5, "0.00.1.003 E srv  main: ?"]
        batch = LogParser(tail_lines=3).feed("".join(f"{line}\n" for line in lines).encode())
        assert batch.tail == (lines[0], *lines[-3:])
        assert batch.tail_kinds == NOTABLE + DETAIL + DETAIL + NOTABLE
        assert parse(*lines[:2]).tail_kinds == NOTABLE + DETAIL

    def test_the_tail_is_the_last_lines_cleaned(self) -> None:
        batch = LogParser(tail_lines=2).feed(b"one\n\x1b[1mtwo\x1b[0m\tx\r\n\xffthree\x00" + b"z" * 600 + b"\n")
        assert batch.tail == ("two x", "\N{REPLACEMENT CHARACTER}three" + "z" * 494)


ADDED_UP = ("steps", "accepted", "generated", "replays", "restored", "replayed")


def outcome(batches: list[LogBatch]) -> tuple[object, ...]:
    """All that batches say, however the log was cut into them: steps are added up between two other facts."""
    facts: dict[int | None, list[LogFact]] = {}
    steps: Counter[tuple[object, ...]] = Counter()
    warnings: dict[str, tuple[int, float | None, float | None, str]] = {}
    for batch in batches:
        for port, fact in ((port, fact) for port, of_server in batch.by_server for fact in of_server):
            others = facts.setdefault(port, [])
            if not isinstance(fact, VerificationSteps):
                others.append(fact)
                continue
            for name in ADDED_UP:
                steps[port, fact.slot, fact.task, len(others), name] += getattr(fact, name)
        for tally in batch.warnings:
            count, first, _, sample = warnings.get(tally.warning, (0, tally.first_s, None, tally.sample))
            warnings[tally.warning] = (count + tally.count, first, tally.last_s, sample)
    totals = [sum(batch.lines for batch in batches), sum(batch.unrecognised for batch in batches)]
    return totals, steps, facts, warnings, any(batch.restarted for batch in batches)


REAL_LINES = [line for path in sorted(LOGS.glob("*.log")) for line in set(path.read_bytes().split(b"\n"))]
DIGIT = re.compile(rb"\d")
OTHER_NUMBERS = st.builds(
    lambda line, digits: b"\n".join(DIGIT.sub(lambda _: b"%d" % digits.randrange(10), line) for _ in range(3)),
    st.sampled_from(REAL_LINES),
    st.randoms(use_true_random=False),
)
JUNK = st.one_of(
    st.binary(max_size=40),
    st.text(alphabet="slot id task|:(){}[]'\"=/.-0123456789 IWED\t\r\0\x1b", max_size=60).map(str.encode),
)
PASSAGES = st.builds(
    lambda path, start, count: b"\n".join(path.read_bytes().split(b"\n")[start : start + count]),
    st.sampled_from(sorted(LOGS.glob("*.log"))),
    st.integers(0, 400),
    st.integers(1, 12),
)
LOG_TEXT = st.lists(st.one_of(st.sampled_from(REAL_LINES), PASSAGES, OTHER_NUMBERS, JUNK), max_size=40).map(b"\n".join)


@given(LOG_TEXT, st.lists(st.integers(0, 4000), max_size=8))
def test_how_the_bytes_are_cut_makes_no_difference(log: bytes, cuts: list[int]) -> None:
    whole, pieces = LogParser(), LogParser()
    edges = [0, *sorted(min(cut, len(log)) for cut in cuts), len(log)]
    split = [log[start:end] for start, end in pairwise(edges)]
    expected = outcome([whole.feed(log), whole.close()])
    assert outcome([*(pieces.feed(piece) for piece in split), pieces.close()]) == expected


@given(LOG_TEXT)
def test_remembering_lines_makes_no_difference(log: bytes) -> None:
    GRAMMAR.known.clear()
    first = outcome([LogParser().feed(log + b"\n")])
    assert outcome([LogParser().feed(log + b"\n")]) == first


@pytest.mark.parametrize(
    "line",
    [
        b"x" * 10_000_000,
        b"slot" + b":" * 65_000,
        b"slot x: id 0 | task 1 | " + b" " * 64_000 + b"accepted",
        b"0.00.001.001 I srv x: proxying request to model " + b" x" * 30_000 + b" on port x",
        b"May 22 01:30:52 " + b": " * 30_000 + b"h[1]: x",
        b"[" * 65_000,
        b'{"type":"log","time":1,"level":"info","msg":"' + b"\\n" * 30_000,
        b"\x1b[" + b"1;" * 30_000,
        b"prompt eval time = " + b"9" * 60_000 + b".1 ms / 1 tokens (",
        b"slot x: id 0 | task 1 | acc per pos = (" + b"1.1.1, " * 9000 + b")",
    ],
    ids=lambda line: repr(line[:20]),
)
def test_a_hostile_line_is_one_like_any_other(line: bytes) -> None:
    batch = LogParser().feed(line + b"\n" + STORM.encode() + b"\n")
    assert (batch.lines, batch.facts, counts(batch)["find_slot_non_consecutive"]) == (2, (), 1)
    assert all(len(text) <= 500 for text in (*batch.tail, *batch.unrecognised_samples))


def test_a_long_line_is_cut_alike_in_one_piece_and_in_many() -> None:
    log = b"slot x: id 0 | task 1 | processing task" + b" " * MAX_LINE + b"junk\n" + STORM.encode() + b"\n"
    pieces = LogParser()
    expected = outcome([LogParser().feed(log)])
    assert outcome([pieces.feed(log[i : i + 1000]) for i in range(0, len(log), 1000)]) == expected
    assert expected[2] == {None: [TaskLaunched(0, 1)]}


def test_what_is_remembered_of_children_and_of_lines_is_bounded() -> None:
    parser = LogParser()
    for port in range(1000):
        parser.feed(f"[{port}] {launched(1)}\n".encode())
    assert len(parser._servers) <= 257
    letters = [chr(97 + i % 26) * (1 + i // 26) for i in range(MAX_FRAMES + 800)]
    parser.feed("\n".join(letters).encode() + b"\n")
    assert len(GRAMMAR.known) <= MAX_FRAMES
