"""How much of the prompts came from the cache, from the best source, and the sentence on it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from specdash.core.log_facts import (
    CheckpointEvent,
    DecodeTiming,
    LogBatch,
    LogFact,
    PromptCacheState,
    PromptReused,
    PromptStarted,
    PromptTiming,
    ServerEvent,
    SlotSelected,
    TaskLaunched,
    TaskReleased,
)
from specdash.core.proxy_events import ProxyEvents, RequestEvent
from specdash.core.readings import Counters, FailureKind, Reading, Slot, Slots, Source
from specdash.core.target import Target
from specdash.insight.picture import PrefixCachePicture
from specdash.insight.proxy.prefix_cache import KEPT, NO_COUNTERS, derive, verdict_on
from specdash.insight.state import TargetState

NOW, WALL, WINDOW_S = 1000.0, 1_800_000_000.0, 300.0


def request(
    task: int, total: int, cached: int, *, answer: int = 10, similarity: float | None = None, verbosity: int = 4
) -> tuple[LogFact, ...]:
    """What the log has of one request; at verbosity 3 neither the prompt's length nor what was cached."""
    lines: list[LogFact] = [
        SlotSelected(0, "lcp" if similarity is not None else "lru", similarity),
        TaskLaunched(0, task),
    ]
    if verbosity >= 4:
        lines += [PromptStarted(0, task, 4096, total), PromptReused(0, task, cached)]
    read = total - cached
    lines += [PromptTiming(0, task, read / 2.0, read), DecodeTiming(0, task, 50.0, answer)]
    return (*lines, TaskReleased(0, task, total + answer - 1, truncated=False))


def log(*facts: LogFact, ago: float = 10.0) -> Reading[object]:
    return Reading.known(Source.LOG, NOW - ago, LogBatch(len(facts), facts=facts))


def scrape(ago: float, cached: float | None, processed: float) -> Reading[object]:
    return Reading.known(Source.METRICS, NOW - ago, Counters(prompt_tokens=processed, prompt_tokens_cached=cached))


def turn(session: str, ended_ago_s: float, prompt: int, cached: int, ttft_s: float | None = None) -> RequestEvent:
    at = WALL - ended_ago_s - 1.0
    return RequestEvent(
        at, session, f"r{at}", duration_s=1.0, prompt_tokens=prompt, cached_tokens=cached, ttft_s=ttft_s
    )


def events(*turns: RequestEvent) -> Reading[object]:
    return Reading.known(Source.PROXY_EVENTS, NOW, ProxyEvents(turns))


def look(*readings: Reading[object]) -> PrefixCachePicture:
    """The picture after these readings."""
    server = TargetState(Target("http://x"), wall_offset=lambda: WALL - NOW)
    for reading in readings:
        server.apply(reading)
    return derive(server, NOW, WALL, WINDOW_S)


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        # Counters of the window; above a million the requests, since printed totals are rounded.
        ([scrape(400, 100, 1000), scrape(300, 200, 1100), scrape(0, 1000, 1300)], (800, 200, "counters")),
        ([scrape(300, 4e6, 1.23e6), scrape(0, 4e6, 1.23e6), log(*request(1, 100, 0), *request(2, 120, 90))],
         (90, 130, "log")),
        # A log of the default verbosity, by what the slot held.
        ([log(*request(1, 100, 0, verbosity=3), *request(2, 120, 90, verbosity=3))], (90, 130, "log")),
        ([events(turn("a", 30, 150, 100))], (100, 50, "proxy")),
        # Before the window; and where nothing has it.
        ([log(*request(1, 100, 80), ago=WINDOW_S + 1)], (0, 0, "log")),
        ([scrape(0, None, 100)], (None, None, "")),
    ],
)  # fmt: skip
def test_what_was_cached_comes_from_the_best_source(readings: list[Reading[object]], expected: object) -> None:
    found = look(*readings)
    assert (found.cached, found.processed, found.basis) == expected


def test_the_share_of_the_life_is_that_of_the_counters() -> None:
    found = look(scrape(400, 100, 1000), scrape(300, 200, 1100), scrape(0, 1000, 1300))
    assert (found.cached_share, found.lifetime_share) == (0.8, 1000 / 2300)


@pytest.mark.parametrize(
    ("reading", "words"),
    [
        (scrape(0, None, 100), (NO_COUNTERS, "--log")),
        (Reading.unknown(Source.METRICS, NOW, FailureKind.DISABLED, "use --metrics"), ("/metrics: ", "use --metrics")),
    ],
)
def test_where_nothing_shows_it_is_unknown_and_says_what_would(
    reading: Reading[object], words: tuple[str, ...]
) -> None:
    found = look(reading)
    assert (found.cached, found.cached_share, found.lifetime_share) == (None, None, None)
    for word in words:
        assert word in found.verdict


@given(st.lists(st.tuples(st.integers(1, 9999), st.floats(0, 1)), min_size=1, max_size=KEPT))
def test_log_and_truth_agree(prompts: list[tuple[int, float]]) -> None:
    facts: list[LogFact] = []
    cached = []
    for task, (total, share) in enumerate(prompts):
        cached.append(min(total - 1, int(total * share)))
        facts += request(task, total, cached[-1], verbosity=3 + task % 2)
    found = look(log(*facts))
    assert found.cached == sum(cached)
    assert found.processed == sum(total for total, _ in prompts) - sum(cached)


def test_a_request_of_the_proxy_has_slot_and_task_of_the_same_one_in_the_log_and_others_are_listed_too() -> None:
    found = look(
        log(*request(7, 100, 60, similarity=0.6), *request(8, 50, 0)), events(turn("s1", 10, 100, 60, 0.3))
    ).requests
    rows = [(one.session, one.slot, one.task, one.similarity, one.ttft_s) for one in found]
    assert rows == [("s1", 0, 7, 0.6, 0.3), (None, 0, 8, None, 0.025)]
    many = [fact for task in range(200) for fact in request(task, 90, 10)]
    assert len(look(events(*(turn("s", 100, 100, 50) for _ in range(200))), log(*many)).requests) == KEPT


def test_a_slot_has_what_it_holds_and_the_likeness_of_its_last_prompt() -> None:
    slots = Slots((Slot(0, is_processing=True, n_prompt_tokens=77), Slot(1, False)))
    lines = log(*request(1, 100, 12, similarity=0.12), *request(2, 100, 93, similarity=0.93))
    found = look(Reading.known(Source.SLOTS, NOW, slots), lines).slots
    assert [(slot.tokens, slot.similarity, slot.busy) for slot in found] == [(77, 0.93, True), (None, None, False)]


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        # As the clients had it; without a proxy the time that the prompt took.
        ([events(turn("a", 50, 1000, 0, 2.1), turn("a", 40, 1100, 1000, 0.4), turn("a", 30, 1200, 1100, 0.4)),
          log(*request(1, 900, 0))], (0.4, 2.1, 2, 1, "proxy")),
        ([log(*request(1, 1000, 0), *request(2, 1100, 1000))], (0.05, 0.5, 1, 1, "prompt")),
        # A short cold prompt is no measure for long warm ones.
        ([events(turn("title", 50, 50, 0, 0.1), turn("a", 45, 1000, 0, 2.0), turn("a", 40, 1100, 1000, 0.4))],
         (0.4, 2.0, 1, 1, "proxy")),
    ],
)  # fmt: skip
def test_time_to_first_token_warm_against_cold(readings: list[Reading[object]], expected: object) -> None:
    found = look(*readings)
    assert (found.ttft_warm_s, found.ttft_cold_s, found.warm, found.cold, found.ttft_basis) == expected


def test_time_saved_is_cached_tokens_at_the_rate_of_long_prompts() -> None:
    found = look(log(*request(1, 1000, 0), *request(2, 1010, 1000)))
    assert (found.prefill_rate, found.saved_s) == (2000.0, 0.5)


def test_entries_size_hits_and_saves_are_of_the_server_that_runs() -> None:
    restarted = LogBatch(1, facts=(ServerEvent("restarted"),), restarted=True)
    found = look(
        log(PromptCacheState(9, 100.0, 8192.0), ServerEvent("prompt_cache_hit"), ago=50),
        Reading.known(Source.LOG, NOW - 20, restarted),
        log(PromptCacheState(3, 14.5, 8192.0), ServerEvent("prompt_cache_saved"), ServerEvent("prompt_cache_hit")),
    )
    assert (found.entries, found.size_mib, found.limit_mib, found.hits, found.saves) == (3, 14.5, 8192.0, 1, 1)
    assert found.unknown == ""
    quiet = look(log(ServerEvent("verbosity", (("verbosity", "3"),)), *request(1, 100, 0, verbosity=3)))
    assert quiet.entries is None
    assert "LLAMA_LOG_VERBOSITY=4" in quiet.unknown


def test_prompts_read_again_are_those_of_the_window() -> None:
    again = CheckpointEvent("full_reprocess", "context", 0, 1)
    found = look(log(again, ago=WINDOW_S + 50), log(again, *request(1, 900, 0)))
    assert found.full_reprocessed == 1
    assert "read from the start because no checkpoint was available" in found.verdict


GOOD = PrefixCachePicture(cached=830, processed=170, cached_share=0.83, ttft_basis="proxy")
LITTLE = PrefixCachePicture(cached=100, processed=900, cached_share=0.1)
OVER = {"entries": 1, "size_mib": 2460.0, "limit_mib": 1200.0}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            replace(GOOD, ttft_warm_s=0.4, ttft_cold_s=2.1),
            "83 % of prompt tokens came from the cache; warm TTFT 400 ms",
        ),
        (replace(GOOD, saved_s=12.0), "83 % of prompt tokens came from the cache, which saved 12.0 s of prefill"),
        (
            replace(GOOD, ttft_warm_s=3.0, ttft_cold_s=2.1, saved_s=12.0),
            "83 % of prompt tokens came from the cache, wh",
        ),
        (replace(LITTLE, similarity=0.12), "prompts change near their beginning: similarity 0.12; only 10 %"),
        (replace(LITTLE, size_mib=8190.0, limit_mib=8192.0, evicted=3), "cache full: 8190 of 8192 MiB, 3 prompts"),
        (replace(LITTLE, **OVER), "one prompt alone is over the cache's limit: 2460 MiB against a limit of 1200"),
        (replace(LITTLE, evicted=1), "cache too small: 1 prompt was dropped"),
        (replace(LITTLE, full_reprocessed=2, similarity=0.1), "10 % of prompt tokens came from the cache; 2 prompts"),
        (LITTLE, "10 % of prompt tokens came from the cache"),
        (PrefixCachePicture(lifetime_share=0.5), "no prompt seen in the last 5 min; since the start 50 %"),
    ],
)
def test_the_most_important_cause_is_named(found: PrefixCachePicture, words: str) -> None:
    assert verdict_on(found, WINDOW_S).startswith(words)
