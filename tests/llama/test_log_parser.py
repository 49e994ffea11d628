"""Bytes in, facts out: behind any prefix, in any pieces, with any junk between the lines."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

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
    TaskCancelled,
    TaskLaunched,
    TaskReleased,
    TotalTiming,
    VerificationSteps,
)
from specdash.llama.log import GRAMMAR
from specdash.llama.log.forms import MAX_FRAMES
from specdash.llama.log.parser import MAX_LINE, LogParser

LOGS = Path(__file__).parents[1] / "data" / "logs"
TIMING = "prompt eval time =   19.23 ms /   122 tokens (    0.16 ms per token,  6345.90 tokens per second)"
STORM = "0.57.309.308 W find_slot: non-consecutive token position 323 after 323 for sequence 0 with 376 new tokens"


def parse(*lines: str) -> LogBatch:
    return LogParser().feed("".join(f"{line}\n" for line in lines).encode())


def counts(batch: LogBatch) -> dict[str, int]:
    return {tally.warning: tally.count for tally in batch.warnings}


def steps(*lines: str) -> list[VerificationSteps]:
    """The steps of these lines one by one, since a batch adds them up."""
    parser = LogParser()
    batches = [parser.feed(f"{line}\n".encode()) for line in lines]
    return [fact for batch in batches for fact in batch.facts if isinstance(fact, VerificationSteps)]


def step(accepted: int, generated: int, *, slot: int = 0, restored: bool = False) -> str:
    tail = " (restore checkpoint)" if restored else ""
    return (
        f"0.00.001.001 I slot   operator(): id  {slot} | task 0 | accepted  {accepted}/ {generated} draft tokens{tail}"
    )


class TestTheClock:
    def test_is_minutes_without_bound(self) -> None:
        (fact,) = parse("63.17.951.477 I slot launch_slot_: id  0 | task 15927 | processing task, is_child = 0").facts
        assert fact == TaskLaunched(0, 15927, at_s=63 * 60 + 17.951477)

    def test_of_a_json_line_is_microseconds(self) -> None:
        line = r'{"type":"log","time":1893,"level":"info","msg":"slot x: id  0 | task 1 | processing task\n"}'
        assert parse(line).facts == (TaskLaunched(0, 1, at_s=0.001893),)

    def test_is_unknown_without_time_stamps(self) -> None:
        assert parse("slot launch_slot_: id  0 | task 1 | processing task").facts == (TaskLaunched(0, 1, at_s=None),)

    def test_that_goes_back_means_a_new_server(self) -> None:
        batch = parse(
            "9.00.000.000 I slot x: id  0 | task 5 | processing task",
            "0.00.100.000 I slot x: id  0 | task 0 | processing task",
        )
        assert batch.restarted
        assert batch.facts == (
            TaskLaunched(0, 5, at_s=540.0),
            ServerEvent("restarted", (), at_s=0.1),
            TaskLaunched(0, 0, at_s=0.1),
        )

    def test_may_be_out_of_order_by_milliseconds(self) -> None:
        assert not parse(
            "0.00.105.000 I slot x: id  0 | task 5 | processing task",
            "0.00.100.000 I slot x: id  1 | task 6 | processing task",
        ).restarted

    def test_of_a_routers_child_is_its_own(self) -> None:
        batch = parse(
            "9.00.000.000 I slot x: id  0 | task 5 | processing task",
            "[45995] 0.00.083.442 I slot launch_slot_: id  0 | task 1 | processing task, is_child = 0",
        )
        assert not batch.restarted
        assert batch.facts == (TaskLaunched(0, 5, at_s=540.0),)
        assert batch.children == (ChildFacts(45995, (TaskLaunched(0, 1, at_s=0.083442),)),)


class TestARestart:
    START = "0.00.005.000 I srv  llama_server: initializing ..."

    def test_is_the_first_line_of_a_server_after_another_wrote(self) -> None:
        assert parse("0.00.400.000 I srv  llama_server: model loaded", self.START).restarted

    def test_is_seen_after_nothing_but_a_storm(self) -> None:
        parser = LogParser()
        parser.feed(f"{STORM}\n".encode())
        assert parser.feed(f"{self.START}\n".encode()).restarted

    def test_is_not_the_first_line_of_a_file(self) -> None:
        early = (
            "warn: LLAMA_ARG_SPEC_TYPE environment variable is set, but will be overwritten by command line argument"
        )
        assert not parse("# CMD: llama-server", early, self.START).restarted

    def test_forgets_what_the_old_server_was_doing(self) -> None:
        lines = (step(0, 8, restored=True), self.START, step(3, 8))
        assert [fact.replays for fact in steps(*lines)] == [0, 0]
        batch = parse(*lines)
        assert [fact.replays for fact in batch.facts if isinstance(fact, VerificationSteps)] == [0, 0]


class TestOldTimingBlocks:
    def test_belong_to_the_header_before_them(self) -> None:
        batch = parse(
            "slot print_timing: id  3 | task 1366 |",
            "prompt eval time =   31945.70 ms /   325 tokens (   98.29 ms per token,    10.17 tokens per second)",
            "       eval time =   23513.62 ms /   128 tokens (  183.70 ms per token,     5.44 tokens per second)",
            "      total time =   55459.32 ms /   453 tokens",
            "slot print_timing: id  3 | task 1366 |",
            "draft acceptance rate = 0.23026 (   70 accepted /   304 generated)",
        )
        assert batch.facts == (
            PromptTiming(3, 1366, 31945.70, 325),
            DecodeTiming(3, 1366, 23513.62, 128),
            TotalTiming(3, 1366, 55459.32, 453),
            RequestAcceptance(3, 1366, 70, 304),
        )

    def test_without_a_header_belong_to_nobody(self) -> None:
        (fact,) = parse(TIMING).facts
        assert fact == PromptTiming(None, None, 19.23, 122)

    def test_do_not_take_the_header_of_the_block_before(self) -> None:
        batch = parse("slot print_timing: id  3 | task 1366 |", TIMING, TIMING)
        assert [fact.slot for fact in batch.facts if isinstance(fact, PromptTiming)] == [3, None]

    def test_follow_each_other_each_with_its_header(self) -> None:
        batch = parse("slot print_timing: id  3 | task 7 |", TIMING, "slot print_timing: id  0 | task 8 |", TIMING)
        assert [fact.slot for fact in batch.facts if isinstance(fact, PromptTiming)] == [3, 0]

    def test_end_when_the_slot_is_released(self) -> None:
        batch = parse(
            "slot print_timing: id  3 | task 7 |",
            "slot      release: id  3 | task 7 | stop processing: n_past = 452, truncated = 1",
            "draft acceptance rate = 0.5 (    1 accepted /     2 generated)",
        )
        assert batch.facts == (TaskReleased(3, 7, 452, True), RequestAcceptance(None, None, 1, 2))


class TestVerificationSteps:
    def test_after_a_restore_is_a_replay(self) -> None:
        lines = (step(6, 8, restored=True), step(7, 7), step(5, 8))
        assert [(s.steps, s.accepted, s.generated, s.restored, s.replays) for s in steps(*lines)] == [
            (1, 6, 8, 1, 0),
            (0, 0, 0, 0, 1),
            (1, 5, 8, 0, 0),
        ]

    def test_replay_per_slot(self) -> None:
        lines = (step(6, 8, slot=0, restored=True), step(2, 8, slot=1), step(7, 7, slot=0))
        assert [fact.replays for fact in steps(*lines)] == [0, 0, 1]

    def test_of_the_next_request_are_no_replay(self) -> None:
        lines = (step(6, 8, restored=True), "slot x: id  0 | task 1 | processing task", step(7, 8))
        assert [fact.replays for fact in steps(*lines)] == [0, 0]
        batch = parse(*lines)
        assert [fact.replays for fact in batch.facts if isinstance(fact, VerificationSteps)] == [0, 0]

    def test_of_a_slot_are_added_up(self) -> None:
        batch = parse(
            step(6, 8, restored=True),
            step(7, 7).replace("0.00.001", "0.00.301"),
            step(5, 8).replace("0.00.001", "0.00.601"),
        )
        assert batch.facts == (VerificationSteps(0, 0, 2, 11, 16, 1, 1, 0.001001, 7, 0.3, at_s=0.601001),)

    def test_a_replay_is_timed_from_its_restore_also_when_something_else_came_between(self) -> None:
        release = "0.00.101.001 I slot x: id  1 | task 3 | stop processing: n_tokens = 5, truncated = 0"
        restore = step(6, 8, restored=True)
        _, _, replay = parse(restore, release, step(7, 7).replace("0.00.001", "0.00.301")).facts
        assert isinstance(replay, VerificationSteps)
        assert (replay.steps, replay.replays, replay.replayed, replay.replay_s) == (0, 1, 7, 0.3)

    def test_of_several_slots_are_added_up_apart_in_the_order_of_their_last(self) -> None:
        batch = parse(step(6, 8, slot=0), step(2, 8, slot=1), step(3, 8, slot=1), step(1, 7, slot=0))
        assert batch.facts == (
            VerificationSteps(1, 0, 2, 5, 16, 0, 0, 0.001001, at_s=0.001001),
            VerificationSteps(0, 0, 2, 7, 15, 0, 0, 0.001001, at_s=0.001001),
        )

    def test_with_something_else_between_them_are_not_added_up(self) -> None:
        release = "0.00.001.001 I slot x: id  1 | task 3 | stop processing: n_tokens = 5, truncated = 0"
        before, between, after = parse(step(6, 8), step(1, 8), release, step(3, 8)).facts
        assert (before, after) == (
            VerificationSteps(0, 0, 2, 7, 16, 0, 0, 0.001001, at_s=0.001001),
            VerificationSteps(0, 0, 1, 3, 8, 0, 0, 0.001001, at_s=0.001001),
        )
        assert between == TaskReleased(1, 3, 5, False, at_s=0.001001)

    def test_of_another_task_of_the_slot_are_not_added_up(self) -> None:
        batch = parse(step(6, 8), step(1, 8).replace("task 0", "task 9"))
        assert [(fact.task, fact.accepted) for fact in batch.facts if isinstance(fact, VerificationSteps)] == [
            (0, 6),
            (9, 1),
        ]

    def test_are_added_up_over_a_second_at_most(self) -> None:
        lines = [step(1, 8).replace("0.00.001", f"0.{half // 2:02}.{half % 2 * 500:03}") for half in range(10)]
        runs = [fact for fact in parse(*lines).facts if isinstance(fact, VerificationSteps)]
        assert [(run.steps, run.first_s, run.at_s) for run in runs] == [
            (3, 0.000001, 1.000001),
            (3, 1.500001, 2.500001),
            (3, 3.000001, 4.000001),
            (1, 4.500001, 4.500001),
        ]

    def test_are_not_the_debug_lines_that_look_like_them(self) -> None:
        line = "0.00.066.798 D slot   operator(): id  0 | task 0 | accepted 6/8 draft tokens, new n_tokens = 129"
        batch = parse(line)
        assert batch.facts == ()
        assert batch.unrecognised == 0


class TestWarnings:
    def test_are_counted_with_first_last_and_one_sample(self) -> None:
        (tally,) = parse(STORM, STORM.replace("0.57.309", "1.02.000"), STORM.replace("0.57", "2.57")).warnings
        assert (tally.warning, tally.count, tally.first_s, tally.last_s, tally.sample) == (
            "find_slot_non_consecutive",
            3,
            57.309308,
            177.309308,
            STORM,
        )

    def test_count_whatever_the_prefix(self) -> None:
        bare = STORM.removeprefix("0.57.309.308 W ")
        batch = parse(
            STORM, bare, f"May 22 01:30:52 host start.sh[1]: {STORM}", f"[4000] {STORM}", f"\x1b[33m{STORM}\x1b[0m"
        )
        assert counts(batch) == {"find_slot_non_consecutive": 5}

    def test_of_mixed_prefixes_have_the_first_and_last_of_all(self) -> None:
        (tally,) = parse(STORM, f"[4000] {STORM}", STORM.replace("0.57", "0.59")).warnings
        assert (tally.count, tally.first_s, tally.last_s) == (3, 57.309308, 59.309308)

    def test_that_are_facts_too_are_both(self) -> None:
        batch = parse("0.01.958.684 W srv          stop: cancel task, id_task = 35")
        assert counts(batch) == {"request_cancelled": 1}
        assert batch.facts == (TaskCancelled(35, at_s=1.958684),)

    def test_count_every_way_of_erasing_a_checkpoint(self) -> None:
        size = "(pos_min = 57, pos_max = 57, n_tokens = 58, n_swa = 0, pos_next = 0, size = 0.060 MiB)"
        batch = parse(
            f"0.00.001.001 W slot x: id  0 | task 3 | erasing old context checkpoint {size}",
            f"0.00.001.001 I slot x: id  0 | task 3 | erased invalidated context checkpoint {size}",
            f"0.00.001.001 I slot x: id  0 | task 3 | erasing context checkpoint too close to an earlier one {size}",
        )
        assert counts(batch) == {"checkpoint_erased": 3}

    @pytest.mark.parametrize(("level", "warning"), [("W", "other_warning"), ("E", "other_error")])
    def test_that_are_unknown_are_counted_and_not_understood(self, level: str, warning: str) -> None:
        batch = parse(f"0.00.041.000 {level} srv  some_thing: the flux capacitor is empty")
        assert counts(batch) == {warning: 1}
        assert batch.unrecognised == 1
        assert batch.unrecognised_samples == (f"0.00.041.000 {level} srv  some_thing: the flux capacitor is empty",)

    def test_samples_hold_no_control_characters_and_are_cut(self) -> None:
        (tally,) = parse("0.00.041.000 E srv  x: \x1b[31m\x07\x00\u202eevil" + "y" * 1000).warnings
        assert tally.sample.startswith("0.00.041.000 E srv  x: evilyyy")
        assert len(tally.sample) == 300


class TestJsonLines:
    def test_have_their_texts_unescaped(self) -> None:
        line = r'{"type":"log","time":5,"level":"info","msg":"srv  load_model: loading model \u0027a\\b \"c\".gguf'
        batch = parse(line.replace(r"\u0027", "'") + r"""'\n"}""")
        assert batch.facts == (ServerEvent("model_loading", (("path", 'a\\b "c".gguf'),), at_s=5e-6),)

    def test_unknown_ones_count_by_their_level(self) -> None:
        assert counts(parse(r'{"type":"log","time":5,"level":"error","msg":"srv  x: no idea\n"}')) == {"other_error": 1}


class TestPieces:
    def test_a_line_without_its_end_waits(self) -> None:
        parser = LogParser()
        assert parser.feed(b"0.00.001.001 I slot x: id 0 | task 4 | proc") == LogBatch()
        assert parser.feed(b"essing task\n").facts == (TaskLaunched(0, 4, at_s=0.001001),)

    def test_close_takes_the_last_line_as_it_is(self) -> None:
        parser = LogParser()
        parser.feed(b"slot x: id 0 | task 4 | processing task")
        assert parser.close().facts == (TaskLaunched(0, 4),)
        assert parser.close() == LogBatch()

    def test_the_tail_marks_detail_and_keeps_what_tells_something_longer(self) -> None:
        begun = b"0.00.001.001 I slot launch_slot_: id  0 | task 7 | processing task, is_child = 0\n"
        step = b"0.00.001.002 I slot   operator(): id  0 | task 7 | accepted  2/ 4 draft tokens\n"
        batch = LogParser(tail_lines=3).feed(begun + step * 5 + b"0.00.001.003 E srv  main: who knows\n")
        assert [line.encode() + b"\n" for line in batch.tail[:3]] == [begun, step, step]
        assert batch.tail_kinds == NOTABLE + DETAIL + DETAIL + NOTABLE

    def test_what_follows_on_a_line_of_its_own_is_detail(self) -> None:
        begun = b"0.00.001.001 I slot launch_slot_: id  0 | task 7 | processing task, is_child = 0\n"
        batch = LogParser(tail_lines=2).feed(begun + b"\tmirostat = 0, mirostat_lr = 0.100\n")
        assert batch.tail_kinds == NOTABLE + DETAIL

    def test_the_tail_is_the_last_lines_cleaned(self) -> None:
        batch = LogParser(tail_lines=2).feed(b"one\n\x1b[1mtwo\x1b[0m\tx\r\n\xffthree\x00" + b"z" * 600 + b"\n")
        assert batch.tail == ("two x", "\N{REPLACEMENT CHARACTER}three" + "z" * 494)


def joined(first: VerificationSteps, then: VerificationSteps) -> VerificationSteps:
    """One run of steps that two batches have a part of each."""
    return replace(
        then,
        steps=first.steps + then.steps,
        accepted=first.accepted + then.accepted,
        generated=first.generated + then.generated,
        replays=first.replays + then.replays,
        restored=first.restored + then.restored,
        replayed=first.replayed + then.replayed,
        replay_s=round(first.replay_s + then.replay_s, 6),
        first_s=first.first_s,
    )


def outcome(batches: list[LogBatch]) -> tuple[object, ...]:
    """All that batches say, however the log was cut into them."""
    facts: dict[int | None, list[LogFact]] = {}
    steps: dict[tuple[int | None, int, int], VerificationSteps] = {}
    warnings: dict[str, tuple[int, float | None, float | None, str]] = {}
    for batch in batches:
        for port, fact in ((port, fact) for port, facts_of in batch.by_server for fact in facts_of):
            if not isinstance(fact, VerificationSteps):
                before = [steps.pop(key) for key in list(steps) if key[0] == port]
                facts.setdefault(port, []).extend([*before, fact])
                continue
            key = (port, fact.slot, fact.task)
            known = steps.pop(key, None)
            steps[key] = fact if known is None else joined(known, fact)
        for tally in batch.warnings:
            count, first, _, sample = warnings.get(tally.warning, (0, tally.first_s, None, tally.sample))
            warnings[tally.warning] = (count + tally.count, first, tally.last_s, sample)
    for (port, _, _), fact in steps.items():
        facts.setdefault(port, []).append(fact)
    return (
        sum(batch.lines for batch in batches),
        sum(batch.unrecognised for batch in batches),
        facts,
        warnings,
        any(batch.restarted for batch in batches),
    )


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


class TestHostileInput:
    @pytest.mark.parametrize(
        "line",
        [
            b"x" * 10_000_000,
            b"\0" * 200_000,
            b"\xff\xfe" * 50_000,
            b" " * 65_000,
            b"slot" + b":" * 65_000,
            b"slot x: id 0 | task 1 | " + b" " * 64_000 + b"accepted",
            b"srv a:" * 10_000,
            b"'" * 65_000,
            b"0.00.001.001 I srv x: proxying request to model " + b" x" * 30_000 + b" on port x",
            b"May 22 01:30:52 " + b": " * 30_000 + b"h[1]: x",
            b"[" * 65_000,
            b'{"type":"log","time":1,"level":"info","msg":"' + b"\\n" * 30_000,
            b"\x1b[" + b"1;" * 30_000,
            b"prompt eval time = " + b"9" * 60_000 + b".1 ms / 1 tokens (",
            b"slot x: id 0 | task 1 | acc per pos = (" + b"1.1.1, " * 9000 + b")",
        ],
        ids=range(15),
    )
    def test_is_one_line_like_any_other(self, line: bytes) -> None:
        parser = LogParser()
        batch = parser.feed(line + b"\n" + STORM.encode() + b"\n")
        assert batch.lines == 2
        assert counts(batch)["find_slot_non_consecutive"] == 1
        assert batch.facts == ()
        assert all(len(text) <= 500 for text in (*batch.tail, *batch.unrecognised_samples))

    def test_a_long_line_is_cut_alike_in_one_piece_and_in_many(self) -> None:
        log = b"slot x: id 0 | task 1 | processing task" + b" " * MAX_LINE + b"junk\n" + STORM.encode() + b"\n"
        whole, pieces = LogParser(), LogParser()
        expected = outcome([whole.feed(log)])
        assert outcome([pieces.feed(log[i : i + 1000]) for i in range(0, len(log), 1000)]) == expected
        assert expected[2] == {None: [TaskLaunched(0, 1)]}

    @pytest.mark.parametrize("number", ["9" * 30, "x", "", "1.2.3", "-"])
    def test_numbers_that_are_none_make_no_fact(self, number: str) -> None:
        batch = parse(f"slot x: id 0 | task 1 | stop processing: n_tokens = {number}, truncated = 0")
        assert batch.facts == ()

    def test_many_children_of_a_router_are_not_kept(self) -> None:
        parser = LogParser()
        slot = "0.00.001.001 I slot x: id  0 | task 1 |"
        for port in range(1000):
            parser.feed(f"[{port}] {slot} processing task\n".encode())
        assert len(parser._servers) <= 257

    def test_many_frames_are_not_kept(self) -> None:
        letters = [chr(97 + i % 26) * (1 + i // 26) for i in range(MAX_FRAMES + 800)]
        LogParser().feed("\n".join(letters).encode() + b"\n")
        assert len(GRAMMAR.known) <= MAX_FRAMES
