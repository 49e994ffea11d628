"""What logs and counters are worth over time: sums, rates, dates, storms of warnings, and the steps of each slot."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from insight.scenes import WALL, server, tell
from specdash.collect.logs import LogCollector
from specdash.core.log_facts import LogBatch, ServerEvent, TaskLaunched, VerificationSteps, WarningTally
from specdash.core.readings import Counters, Slot, Slots
from specdash.insight.log.counter_log import CounterLog, Scrape, between, exact_accepted, resolution
from specdash.insight.log.log_summary import LogSummary
from specdash.insight.log.log_view import LogView, SlotSteps, StormBook
from specdash.insight.rates import SlotRates, counter_rates, mean_busy_slots, tokens_per_decode
from specdash.insight.request import DraftTally
from specdash.llama.log.parser import LogParser

# Sums: nothing drafted is unknown, and rounding above a million is not believed


@pytest.mark.parametrize(
    ("tally", "acceptance", "length", "positions"),
    [
        (DraftTally(), None, None, None),
        (DraftTally(100, 0, None), 0.0, None, None),
        (DraftTally(141, 101, 18), pytest.approx(101 / 141), pytest.approx(6.61, abs=0.005), None),
        (DraftTally(80, 65, 20, (43, 25, 1)) - DraftTally(0, 0, 0, (33, 20, 1)), 0.8125, 4.25, (0.5, 0.25)),
        (DraftTally(8, 8, None) + DraftTally(8, 0, 1), 0.5, None, None),
    ],
)
def test_a_tally_gives_what_its_sums_give(
    tally: DraftTally, acceptance: float | None, length: float | None, positions: tuple[float, ...] | None
) -> None:
    assert (tally.acceptance, tally.mean_accepted_length) == (acceptance, length)
    assert tally.acceptance_per_position == positions
    assert tally + tally - tally == tally


def test_six_significant_digits_bound_what_a_counter_can_show_and_positions_give_the_exact_number() -> None:
    assert [resolution(total) for total in (999_999.0, 1_010_380.0, 12_345_600.0)] == [1.0, 10.0, 100.0]
    counters = Counters(accepted_tokens=1_234_570.0, accepted_per_position=(700_000, 534_567))
    assert exact_accepted(counters) == 1_234_567


def test_a_window_of_counters_lies_between_two_scrapes_and_totals_that_went_back_count_from_zero() -> None:
    log = CounterLog()
    for second in range(100):
        assert not log.add(float(second), Counters(draft_tokens=second * 10, accepted_tokens=second * 5))
    bounds = log.window(99.0, 30.0)
    assert bounds is not None
    assert (bounds[0].at, bounds[1].at) == (69.0, 99.0)
    assert log.add(100.0, Counters(draft_tokens=40, accepted_tokens=10))
    assert log.restarted_at == 100.0
    bounds = log.window(100.0, 60.0)
    assert bounds is not None
    assert between(*bounds) == DraftTally(40, 10, None)


@given(
    st.lists(st.tuples(st.floats(0.1, 10.0), st.integers(0, 50), st.integers(0, 50)), min_size=2, max_size=80),
    st.floats(1.0, 200.0),
)
def test_no_window_ever_shows_more_accepted_than_generated_or_a_negative_number(
    steps: list[tuple[float, int, int]], window_s: float
) -> None:
    log, at, drafted, accepted = CounterLog(), 0.0, 0, 0
    for step, generated, kept in steps:
        at, drafted, accepted = at + step, drafted + generated, accepted + min(generated, kept)
        log.add(at, Counters(draft_tokens=drafted, accepted_tokens=accepted))
    bounds = log.window(at, window_s)
    assert bounds is not None
    found = between(*bounds)
    assert found is not None
    assert 0 <= found.accepted <= found.drafted
    assert found.acceptance is None or 0 <= found.acceptance <= 1


def test_what_a_summary_keeps_is_of_the_last_server_and_bounded() -> None:
    summary = LogSummary()
    old, new = (ServerEvent("model_loading", (("path", name),)) for name in ("old.gguf", "new.gguf"))
    summary.add(LogBatch(facts=(old, ServerEvent("restarted"), ServerEvent("server_starting"), new)))
    assert summary.restarts == 1
    assert [event.get("path") for _, event in summary.events] == [None, "new.gguf"]
    for index in range(1000):
        events = tuple(ServerEvent("listening", (("url", str(index)),)) for _ in range(3))
        summary.add(LogBatch(3, 3, facts=events, unrecognised_samples=("a", "b")))
    assert (len(summary.events), len(summary.unrecognised_samples)) == (200, 10)


# Dates: requests of a log are dated by the file's own time, those of an idle server too


START = b"%s I srv  llama_server: initializing ...\n"
REQUEST = b"""%(at)s I slot launch_slot_: id  0 | task %(task)d | processing task, is_child = 0
%(end)s I slot print_timing: id  0 | task %(task)d |        eval time =     900.00 ms /   120 tokens (    7.50 ms per token,   133.33 tokens per second)
%(end)s I slot      release: id  0 | task %(task)d | stop processing: n_tokens = 241, truncated = 0
"""  # noqa: E501  as the server prints them


def stamp(seconds: float) -> bytes:
    whole, micro = divmod(round(seconds * 1e6), 1_000_000)
    return b"%d.%02d.%03d.%03d" % (whole // 60, whole % 60, micro // 1000, micro % 1000)


def request(start: float, task: int) -> bytes:
    return REQUEST % {b"at": stamp(start), b"end": stamp(start + 1), b"task": task}


class Watched:
    """A log file, its collector and the state, on clocks of this test."""

    def __init__(self, path: Path) -> None:
        self.path, self.now, self.state = path, 5000.0, server(log=str(path))
        self.collector = LogCollector(str(path), self.state.apply, clock=lambda: self.now, wall=lambda: self.wall)

    @property
    def wall(self) -> float:
        return WALL - 5000.0 + self.now

    def look(self, data: bytes, ago: float = 0.0) -> list[float]:
        """Append what was written so long ago; when the requests ended, as seconds before now, oldest first."""
        with self.path.open("ab") as file:
            file.write(data)
        os.utime(self.path, (self.wall - ago, self.wall - ago))
        self.collector.step()
        self.state.picture(self.now, self.wall)
        return [round(self.wall - one.ended, 2) for one in self.state.experiments.samples.logged]


def bare(task: int) -> bytes:
    return b"\n".join(line.partition(b" I ")[2] for line in request(0, task).splitlines()) + b"\n"


SILENT = stamp(311) + b" I srv  log_server_r: done request: GET /health\n"
BEGUN = START % stamp(0.1)


@pytest.mark.parametrize(
    ("log", "ago", "ages"),
    [
        (BEGUN + request(10, 1) + request(100, 2), 600, [690, 600]),
        # Other lines at the end make the requests older.
        (BEGUN + request(10, 1) + SILENT, 0, [300]),
        # Requests of a server that ended before the first look are not dated.
        (BEGUN + request(10, 1) + request(500, 2) + BEGUN + request(20, 1) + request(29, 2), 5, [14, 5]),
        # Of several reads each is dated once.
        (BEGUN + b"".join(request(10 + 2 * task, task) for task in range(800)), 0, [*map(float, range(1598, -1, -2))]),
        # Without time stamps only what comes while it is watched.
        (bare(1), 300, []),
    ],
    ids=["idle", "other lines", "another server before", "long", "bare"],
)  # fmt: skip
def test_requests_are_as_old_as_the_file_makes_them(log: bytes, ago: float, ages: list[float], tmp_path: Path) -> None:
    watched = Watched(tmp_path / "server.log")
    assert watched.look(log, ago) == ages
    if not ages:
        watched.now += 60
        assert watched.look(bare(2)) == [0]


def test_a_router_child_that_began_later_is_dated_by_its_own_clock() -> None:
    lines = b"500.00.000.000 I srv  x: y\n" + b"".join(b"[8090] " + line + b"\n" for line in request(5, 1).splitlines())
    state = tell(server(), 100.0, log=replace(LogParser().feed(lines), age_s=2.0))
    state.picture(100.0, WALL)
    (sample,) = state.experiments.samples.logged
    assert WALL - sample.ended == pytest.approx(2.0)


# Storms: warning classes are counted, rated per minute and dated, however many lines come


def warned(count: int, first: float | None = None, last: float | None = None, **more: Any) -> WarningTally:
    return replace(WarningTally("find_slot_non_consecutive", count, first, last, "find_slot: ..."), **more)


def test_counts_add_up_and_the_rate_is_that_of_the_last_minute_and_the_busiest_is_remembered() -> None:
    book = StormBook()
    for at, count in ((100.0, 1_000_000), (190.0, 30), (200.0, 12)):
        book.add(at, warned(count))
    (view,) = book.newest_first
    assert (view.seen.count, view.seen.peak_per_minute) == (1_000_042, 1_000_000)
    assert (view.first_at, view.last_at) == (100.0, 200.0)
    assert (view.per_minute(201.0), view.per_minute(400.0)) == (42, 0)


def test_an_old_log_read_now_is_not_a_storm_of_this_minute() -> None:
    book = StormBook()
    book.add(1000.0, warned(5000, first=10.0, last=20.0), uptime_s=620.0)
    (view,) = book.newest_first
    assert (view.seen.count, view.per_minute(1000.0)) == (5000, 0)
    assert (view.first_at, view.last_at) == (390.0, 400.0)


def test_a_class_is_a_former_servers_until_the_one_that_writes_now_prints_it() -> None:
    book, former = StormBook(), []
    for at, tally in ((1.0, warned(1)), (None, None), (4.0, warned(1, lives_ago=1)), (5.0, warned(1))):
        book.new_server() if at is None or tally is None else book.add(at, tally)
        former.append(book.newest_first[0].seen.is_former)
    assert former == [False, True, True, False]


def test_a_warning_of_a_server_that_is_gone_is_dated_by_its_own_clock() -> None:
    view = LogView()
    facts = (TaskLaunched(0, 1, at_s=500.0), ServerEvent("restarted", (), at_s=0.0), TaskLaunched(0, 1, at_s=60.0))
    view.add(1000.0, LogBatch(3, facts=facts, warnings=(warned(1, 0.2, 0.2, lives_ago=1),), restarted=True))
    assert view.storms.newest_first[0].last_at <= 1000.0 - 60.0 - 499.0


# Verification steps of each slot's current task


stepped = partial(VerificationSteps, 0)


def steps(drafted: int, accepted: int, count: int, replays: int = 0, span: tuple[float, int] = (0.0, 0)) -> DraftTally:
    return DraftTally(drafted, accepted, count, replays=replays, span_s=span[0], span_calls=span[1])


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ([stepped(7, 2, 9, 16, 1, 1, 1.0, at_s=1.5), stepped(7, 3, 10, 24, 0, 0, 2.0, at_s=2.5)],
         SlotSteps(7, steps(40, 19, 5, 1, (2.5 - 1.0, 5)), 2.5, restored=1)),
        # A replay moves the time but not the sums.
        ([stepped(7, 1, 6, 8, 0, 1, 1.0, at_s=1.0), stepped(7, 0, 0, 0, 1, 0, 2.0, at_s=2.0)],
         SlotSteps(7, steps(8, 6, 1, 1, (1.0, 1)), 2.0, restored=1)),
        # Another task of the slot begins again.
        ([stepped(7, 2, 9, 16, 0, 0, 1.0, at_s=1.5), stepped(8, 1, 4, 8, 0, 0, 1.8, at_s=1.8)],
         SlotSteps(8, steps(8, 4, 1), 1.8)),
    ],
)  # fmt: skip
def test_steps_of_a_slots_task_add_up_over_batches(facts: list[VerificationSteps], expected: SlotSteps) -> None:
    view = LogView()
    for at, fact in enumerate(facts):
        fresh = view.add(100.0 + at, LogBatch(facts=(fact,)))
        assert (fresh.drafts.drafted, fresh.drafts.accepted) == (fact.generated, fact.accepted)
    assert view.slot_steps == {0: expected}
    assert view.live_steps(101.0, 10.0).drafted == sum(fact.generated for fact in facts)


def test_what_the_log_has_of_the_past_is_not_counted_as_happening_now() -> None:
    old, now = VerificationSteps(0, 1, 100, 0, 800, at_s=10.0), VerificationSteps(0, 2, 3, 4, 24, at_s=99.9)
    view = LogView()
    view.add(1.0, LogBatch(2, facts=(old, now)))
    assert (view.live["steps"], view.live["drafted"], view.live["accepted"]) == (3, 24, 4)


# Rates: speeds of running requests from slots, of ended ones from counters; idle is unknown


def busy(slot: int, task: int, decoded: int, processed: int = 100) -> Slot:
    return Slot(slot, is_processing=True, task=task, n_decoded=decoded, n_prompt_tokens_processed=processed)


IDLE = Slot(0, is_processing=False, n_decoded=0)


@pytest.mark.parametrize(
    ("looks", "rates"),
    [
        # The growth of the same tasks, summed over slots.
        ([(10, busy(0, 7, 100), busy(1, 8, 40)), (12, busy(0, 7, 160), busy(1, 8, 60))], (None, 40.0)),
        # A new task in the slot is never a negative rate, and an idle slot has none.
        ([(10, busy(0, 7, 500)), (11, busy(0, 9, 20))], (None, None)),
        ([(10, busy(0, 7, 500)), (11, IDLE)], (None, None)),
        # Prefill is the growth of processed tokens before the first token; the tail of a prompt is none.
        ([(10, busy(0, 7, 0, 2048)), (12, busy(0, 7, 0, 6144))], (2048.0, None)),
        ([(10, busy(0, 7, 0, 2048)), (11, busy(0, 7, 0, 2049))], (None, None)),
        # Two looks that follow at once, because one came late, say nothing; the one after them does.
        ([(10, busy(0, 7, 100)), (10.01, busy(0, 7, 220))], (None, None)),
        ([(10, busy(0, 7, 100)), (10.01, busy(0, 7, 220)), (11, busy(0, 7, 220))], (None, 120.0)),
    ],
)
def test_running_requests_are_rated_by_their_growth_from_look_to_look(
    looks: list[tuple[Any, ...]], rates: tuple[float | None, float | None]
) -> None:
    slots = SlotRates()
    found = [slots.add(at, Slots(tuple(seen))) for at, *seen in looks]
    assert (found[0], found[-1]) == ((None, None), rates)
    if rates == (None, 40.0):
        assert slots.decode_by_slot == {0: 30.0, 1: 10.0}


@pytest.mark.parametrize(
    ("before", "after", "rates"),
    [
        # By their own seconds, times the two slots that were at work.
        ((0, 0, 0, 0), (500, 0.25, 400, 8), (2000.0, 100.0)),
        # No request ended; one token after a cache hit, and the first token of an answer; seconds printed too coarsely.
        ((5, 1, 5, 1), (5, 1, 5, 1), (None, None)),
        ((500, 1, 50, 1), (501, 2.02, 51, 1.000001), (None, None)),
        ((0, 0, 900_000, 12345.6), (0, 0, 900_100, 12345.7), (None, None)),
        ((0, 0, 900_000, 12345.6), (0, 0, 901_000, 12355.6), (None, pytest.approx(200.0))),
    ],
)
def test_ended_requests_are_rated_unless_counters_grew_too_little(
    before: tuple[float, ...], after: tuple[float, ...], rates: tuple[float | None, float | None]
) -> None:
    names = ("prompt_tokens", "prompt_seconds", "predicted_tokens", "predicted_seconds")
    first, last = (Counters(**dict(zip(names, totals, strict=True))) for totals in (before, after))  # type: ignore[arg-type]
    assert counter_rates(Scrape(0, first), Scrape(1, last), 2) == rates


@pytest.mark.parametrize(
    ("tokens", "accepted", "steps", "gain"),
    [
        # A step yields 3.0, and 30 of 100 calls are replays.
        (240, 140, 70, pytest.approx(2.4)),
        (100, 0, 0, 1.0),
        # Too few decode calls, more than a draft holds, one total that moved before the other, no request.
        *((*totals, None) for totals in ((27, 18, 9), (720, 650, 65), (50, 100, 40), (0, 0, 0))),
    ],
)
def test_tokens_per_decode_counts_replays_against_the_gain(
    tokens: float, accepted: float, steps: float, gain: float | None
) -> None:
    totals: dict[str, Any] = {"predicted_tokens": tokens, "draft_tokens": 4 * steps, "accepted_tokens": accepted}
    after = Counters(**totals, verification_steps=steps, accepted_per_position=(0, 0, 0, 0))
    assert tokens_per_decode(Scrape(0, Counters()), Scrape(10, after)) == gain


@pytest.mark.parametrize(
    ("before", "after", "slots", "busy_slots"),
    [
        # Between the scrapes and not since the start; no more than there are; unknown where rounding hides them.
        ((100, 1.0), (200, 2.5), None, 4.0),
        ((100, 1.0), (110, 2.5), 3, 3),
        ((2e6, 1.23456), (2.00001e6, 1.23456), None, None),
    ],
)
def test_busy_slots_are_a_mean_over_the_calls_between_two_scrapes(
    before: tuple[float, float], after: tuple[float, float], slots: int | None, busy_slots: float | None
) -> None:
    first, last = (Counters(decode_calls=calls, busy_slots_per_decode=mean) for calls, mean in (before, after))
    assert mean_busy_slots(first, last, slots) == busy_slots
