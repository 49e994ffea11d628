"""How much of the prompts came from the cache, from the best source, and why a prompt was read again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from insight.scenes import NOW, WALL, read_log, server, tell
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
from specdash.insight.picture import PrefixCachePicture
from specdash.insight.proxy.prefix_cache import KEPT, NO_COUNTERS, derive, verdict_on
from specdash.insight.proxy.read_again import Reason, read_again

WINDOW_S = 300.0


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
    name = f"r{at}"
    return RequestEvent(at, session, name, duration_s=1.0, prompt_tokens=prompt, cached_tokens=cached, ttft_s=ttft_s)


def events(*turns: RequestEvent) -> Reading[object]:
    return Reading.known(Source.PROXY_EVENTS, NOW, ProxyEvents(turns))


def look(*readings: Reading[object]) -> PrefixCachePicture:
    """The picture after these readings."""
    state = server()
    for reading in readings:
        state.apply(reading)
    return derive(state, NOW, WALL, WINDOW_S)


GROWING = [scrape(400, 100, 1000), scrape(300, 200, 1100), scrape(0, 1000, 1300)]


@pytest.mark.parametrize(
    ("readings", "expected", "lifetime"),
    [
        # Counters of the window; above a million the requests, since printed totals are rounded.
        (GROWING, (800, 200, "counters"), 1000 / 2300),
        ([scrape(300, 4e6, 1.23e6), scrape(0, 4e6, 1.23e6), log(*request(1, 100, 0), *request(2, 120, 90))],
         (90, 130, "log"), 4 / 5.23),
        # A log of the default verbosity, by what the slot held.
        ([log(*request(1, 100, 0, verbosity=3), *request(2, 120, 90, verbosity=3))], (90, 130, "log"), None),
        ([events(turn("a", 30, 150, 100))], (100, 50, "proxy"), None),
        # Before the window; and where nothing has it.
        ([log(*request(1, 100, 80), ago=WINDOW_S + 1)], (0, 0, "log"), None),
        ([scrape(0, None, 100)], (None, None, ""), None),
    ],
)  # fmt: skip
def test_what_was_cached_comes_from_the_best_source(
    readings: list[Reading[object]], expected: object, lifetime: float | None
) -> None:
    found = look(*readings)
    assert (found.cached, found.processed, found.basis) == expected
    assert found.lifetime_share == (None if lifetime is None else pytest.approx(lifetime))
    assert found.cached_share == (found.cached / (found.cached + found.processed) if found.cached else None)  # type: ignore[operator]


def test_where_nothing_shows_it_it_names_what_would() -> None:
    assert all(words in look(scrape(0, None, 100)).verdict for words in (NO_COUNTERS, "--log"))
    disabled = Reading[object].unknown(Source.METRICS, NOW, FailureKind.DISABLED, "use --metrics")
    assert all(words in look(disabled).verdict for words in ("/metrics: ", "use --metrics"))


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


def test_entries_size_hits_and_saves_are_of_the_server_that_runs_and_prompts_read_again_of_the_window() -> None:
    restarted = LogBatch(1, facts=(ServerEvent("restarted"),), restarted=True)
    found = look(
        log(PromptCacheState(9, 100.0, 8192.0), ServerEvent("prompt_cache_hit"), ago=50),
        Reading.known(Source.LOG, NOW - 20, restarted),
        log(PromptCacheState(3, 14.5, 8192.0), ServerEvent("prompt_cache_saved"), ServerEvent("prompt_cache_hit")),
    )
    assert (found.entries, found.size_mib, found.limit_mib, found.hits, found.saves) == (3, 14.5, 8192.0, 1, 1)
    assert found.unknown == ""
    again = CheckpointEvent("full_reprocess", "context", 0, 1)
    found = look(log(again, ago=WINDOW_S + 50), log(again, *request(1, 900, 0)))
    assert found.full_reprocessed == 1, "of the window"
    assert "read from the start because no checkpoint was available" in found.verdict
    quiet = look(log(ServerEvent("verbosity", (("verbosity", "3"),)), *request(1, 100, 0, verbosity=3)))
    assert quiet.entries is None
    assert "LLAMA_LOG_VERBOSITY=4" in quiet.unknown


def test_a_slot_has_what_it_holds_and_the_likeness_of_its_last_prompt() -> None:
    slots = Slots((Slot(0, is_processing=True, n_prompt_tokens=77), Slot(1, False)))
    lines = log(*request(1, 100, 12, similarity=0.12), *request(2, 100, 93, similarity=0.93))
    found = look(Reading.known(Source.SLOTS, NOW, slots), lines).slots
    assert [(slot.tokens, slot.similarity, slot.busy) for slot in found] == [(77, 0.93, True), (None, None, False)]


@pytest.mark.parametrize(
    ("readings", "expected", "saved"),
    [
        # As the clients had it; without a proxy the time that the prompt took. A long prompt gives the rate.
        ([events(turn("a", 50, 1000, 0, 2.1), turn("a", 40, 1100, 1000, 0.4), turn("a", 30, 1200, 1100, 0.4)),
          log(*request(1, 900, 0))], (0.4, 2.1, 2, 1, "proxy"), None),
        ([log(*request(1, 1000, 0), *request(2, 1100, 1000))], (0.05, 0.5, 1, 1, "prompt"), 0.5),
        # A short cold prompt is no measure for long warm ones.
        ([events(turn("title", 50, 50, 0, 0.1), turn("a", 45, 1000, 0, 2.0), turn("a", 40, 1100, 1000, 0.4))],
         (0.4, 2.0, 1, 1, "proxy"), None),
    ],
)  # fmt: skip
def test_time_to_first_token_warm_against_cold(
    readings: list[Reading[object]], expected: object, saved: float | None
) -> None:
    found = look(*readings)
    assert (found.ttft_warm_s, found.ttft_cold_s, found.warm, found.cold, found.ttft_basis) == expected
    assert saved is None or (found.prefill_rate, found.saved_s) == (2000.0, saved)


GOOD = PrefixCachePicture(cached=830, processed=170, cached_share=0.83, ttft_basis="proxy")
LITTLE = PrefixCachePicture(cached=100, processed=900, cached_share=0.1)
FULL = {"size_mib": 8190.0, "limit_mib": 8192.0, "evicted": 3}
OVER = {"entries": 1, "size_mib": 2460.0, "limit_mib": 1200.0}
SHARE = "83 % of prompt tokens came from the cache"
SAVED = f"{SHARE}, which saved 12.0 s of prefill"


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (replace(GOOD, ttft_warm_s=0.4, ttft_cold_s=2.1), f"{SHARE}; warm TTFT 400 ms"),
        (replace(GOOD, saved_s=12.0), SAVED),
        (replace(GOOD, ttft_warm_s=3.0, ttft_cold_s=2.1, saved_s=12.0), SAVED),
        (replace(LITTLE, similarity=0.12), "prompts change near their beginning: similarity 0.12; only 10 %"),
        (replace(LITTLE, **FULL), "cache full: 8190 of 8192 MiB, 3 prompts"),
        (replace(LITTLE, **OVER), "one prompt alone is over the cache's limit: 2460 MiB against a limit of 1200"),
        (replace(LITTLE, evicted=1), "cache too small: 1 prompt was dropped"),
        (replace(LITTLE, full_reprocessed=2, similarity=0.1), "10 % of prompt tokens came from the cache; 2 prompts"),
        (LITTLE, "10 % of prompt tokens came from the cache"),
        (PrefixCachePicture(lifetime_share=0.5), "no prompt seen in the last 5 min; since the start 50 %"),
    ],
)
def test_the_most_important_cause_is_named(found: PrefixCachePicture, words: str) -> None:
    assert verdict_on(found, WINDOW_S).startswith(words)


# Why a prompt was read again, from the server's own lines and the proxy's event


BY_LIKENESS = (
    "0.00.507.060 I slot get_availabl: id  0 | task -1 | selected slot by LCP similarity, "
    "f_sim_best = 0.900 (> 0.100 thold), f_keep = 1.000"
)
LEAST_USED = "0.00.507.060 I slot get_availabl: id  0 | task -1 | selected slot by LRU, t_last = 2953359661"
MAKING_ROOM = (
    "0.00.507.070 I srv   prompt_save:  - making room for prompt cache entry, removing oldest entry (size = 12.5 MiB)"
)
NO_CHECKPOINT = (
    "0.00.507.167 I slot   operator(): id  0 | task 2 | forcing full prompt re-processing due to lack of cache data "
    "(likely due to SWA or hybrid/recurrent memory, see https://github.com/ggml-org/llama.cpp/pull/13194)"
)
LINES = (
    "0.00.507.152 I slot launch_slot_: id  0 | task 2 | processing task, is_child = 0",
    "0.00.507.163 I slot   operator(): id  0 | task 2 | new prompt, n_ctx_slot = 8192, n_keep = 0, task.n_tokens = 3000",  # noqa: E501
    "0.00.507.173 I slot   operator(): id  0 | task 2 | cached n_tokens = 0, memory_seq_rm [0, end)",
    (
        "0.02.737.426 I slot print_timing: id  0 | task 2 | prompt eval time =    2000.00 ms /  3000 tokens "
        "(    0.67 ms per token,  1500.00 tokens per second)"
    ),
    (
        "0.02.737.437 I slot print_timing: id  0 | task 2 |        eval time =     221.19 ms /   200 tokens "
        "(    1.11 ms per token,   899.68 tokens per second)"
    ),
    "0.02.737.547 I slot      release: id  0 | task 2 | stop processing: n_tokens = 3199, truncated = 0",
)
"""3,000 tokens, all of them read."""


def sums(*lines: str, **proxy: object) -> tuple[tuple[Reason, int, float | None], ...]:
    """What the prefix cache makes of these lines; `proxy` is what its event has of the prompt."""
    state = read_log(server(), "\n".join([*lines, ""]).encode())
    if proxy:
        event = RequestEvent(WALL - 4, "s", "r", duration_s=3.0, prompt_tokens=3000, cached_tokens=0, **proxy)  # type: ignore[arg-type]
        tell(state, NOW - 1, proxy_events=ProxyEvents((event,)))
    found = state.picture(NOW, WALL).views.prefix_cache
    assert len(found.requests) == 1, "the proxy's and the log's are one request"
    assert (read_again(found.requests[0]) is None) is not bool(found.read_again)
    return tuple((one.reason, one.tokens, one.seconds) for one in found.read_again)


UNCHANGED = {"changed": "", "known_share": 0.9, "prefill_rate": 1500.0}


@pytest.mark.parametrize(
    ("lines", "proxy", "expected"),
    [
        ((BY_LIKENESS, LINES[0], NO_CHECKPOINT, *LINES[1:]), {}, [(Reason.CHECKPOINT, 2700, 1.8)]),
        # Another one took the slot of an unchanged prompt.
        ((MAKING_ROOM, LEAST_USED, *LINES), UNCHANGED, [(Reason.CACHE_FULL, 2700, 1.8)]),
        ((LEAST_USED, *LINES), UNCHANGED, [(Reason.SLOT, 2700, 1.8)]),
        # What changed, of which nothing was in the cache.
        ((LEAST_USED, *LINES), {**UNCHANGED, "changed": "system"}, [(Reason.SYSTEM, 2700, 1.8)]),
        ((LEAST_USED, *LINES), {**UNCHANGED, "changed": "message 3"}, [(Reason.MESSAGE, 2700, 1.8)]),
        # A first prompt was not read before.
        ((LEAST_USED, *LINES), {}, []),
    ],
)
def test_why_a_prompt_was_read_again(lines: tuple[str, ...], proxy: dict[str, object], expected: list[object]) -> None:
    assert list(sums(*lines, **proxy)) == expected
