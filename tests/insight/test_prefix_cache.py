"""How much of the prompts came from the cache, from whatever tells it, and the sentence on it."""

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
    WarningTally,
)
from specdash.core.proxy_events import ProxyEvents, RequestEvent
from specdash.core.readings import Counters, FailureKind, Reading, Slot, Slots, Source
from specdash.core.target import Target
from specdash.insight.picture import PrefixCachePicture
from specdash.insight.proxy.prefix_cache import KEPT, KEPT_SESSIONS, NO_COUNTERS, derive, verdict_on
from specdash.insight.state import TargetState

NOW, WALL, WINDOW_S = 1000.0, 1_800_000_000.0, 300.0


def state() -> TargetState:
    return TargetState(Target("http://x"), wall_offset=lambda: WALL - NOW)


def look(of: TargetState) -> PrefixCachePicture:
    return derive(of, NOW, WALL, WINDOW_S)


def request(
    task: int, total: int, cached: int, *, answer: int = 10, similarity: float | None = None, verbosity: int = 4
) -> tuple[LogFact, ...]:
    """What the log says of one request; at verbosity 3 neither the prompt's length nor what was cached."""
    told: list[LogFact] = [
        SlotSelected(0, "lcp" if similarity is not None else "lru", similarity),
        TaskLaunched(0, task),
    ]
    if verbosity >= 4:
        told += [PromptStarted(0, task, 4096, total), PromptReused(0, task, cached)]
    read = total - cached
    told += [PromptTiming(0, task, read / 2.0, read), DecodeTiming(0, task, 50.0, answer)]
    return (*told, TaskReleased(0, task, total + answer - 1, truncated=False))


def log(of: TargetState, *facts: LogFact, at: float = NOW - 10, warnings: tuple[WarningTally, ...] = ()) -> None:
    of.apply(Reading.known(Source.LOG, at, LogBatch(len(facts), facts=facts, warnings=warnings)))


def scrape(of: TargetState, at: float, cached: float, processed: float, seconds: float = 0.0) -> None:
    counters = Counters(prompt_tokens=processed, prompt_tokens_cached=cached, prompt_seconds=seconds)
    of.apply(Reading.known(Source.METRICS, at, counters))


def turn(session: str, ended_ago_s: float, prompt: int, cached: int, ttft_s: float | None = None) -> RequestEvent:
    at = WALL - ended_ago_s - 1.0
    return RequestEvent(
        at, session, f"r{at}", duration_s=1.0, prompt_tokens=prompt, cached_tokens=cached, ttft_s=ttft_s
    )


def events(of: TargetState, *told: RequestEvent) -> None:
    of.apply(Reading.known(Source.PROXY_EVENTS, NOW, ProxyEvents(told)))


class TestSums:
    def test_counters_of_the_window_and_of_the_life(self) -> None:
        server = state()
        scrape(server, NOW - 400, 100, 1000)
        scrape(server, NOW - 300, 200, 1100)
        scrape(server, NOW, 1000, 1300)
        found = look(server)
        assert (found.cached, found.processed, found.cached_share) == (800, 200, 0.8)
        assert found.lifetime_share == pytest.approx(1000 / 2300)
        assert found.basis == "counters"

    def test_above_a_million_the_requests_are_added_up_instead_of_the_rounded_counters(self) -> None:
        server = state()
        scrape(server, NOW - 300, 4_000_000, 1_230_000)
        scrape(server, NOW, 4_000_000, 1_230_000)
        log(server, *request(1, 100, 0), *request(2, 120, 90))
        found = look(server)
        assert (found.cached, found.processed, found.basis) == (90, 130, "log")

    def test_a_log_of_the_default_verbosity_tells_it_by_what_the_slot_held(self) -> None:
        server = state()
        log(server, *request(1, 100, 0, verbosity=3), *request(2, 120, 90, verbosity=3))
        found = look(server)
        assert (found.cached, found.processed) == (90, 130)
        assert [prefix_request.prompt_tokens for prefix_request in found.requests] == [120, 100]

    def test_requests_before_the_window_are_listed_and_not_counted(self) -> None:
        server = state()
        log(server, *request(1, 100, 80), at=NOW - WINDOW_S - 1)
        found = look(server)
        assert (len(found.requests), found.cached, found.cached_share) == (1, 0, None)
        assert found.verdict.startswith("no prompt seen in the last 5 min")

    def test_where_nothing_tells_it_is_unknown_and_says_what_would_tell(self) -> None:
        server = state()
        server.apply(Reading.known(Source.METRICS, NOW, Counters(prompt_tokens=100.0)))
        found = look(server)
        assert (found.cached, found.cached_share, found.lifetime_share) == (None, None, None)
        assert NO_COUNTERS in found.verdict
        assert "--log" in found.verdict

    def test_a_server_whose_metrics_fail_is_not_said_to_count_nothing(self) -> None:
        server = state()
        server.apply(Reading[Counters].unknown(Source.METRICS, NOW, FailureKind.DISABLED, "start it with --metrics"))
        assert "/metrics: " in look(server).verdict
        assert "start it with --metrics" in look(server).verdict

    @given(st.lists(st.tuples(st.integers(1, 9999), st.floats(0, 1)), min_size=1, max_size=KEPT))
    def test_log_and_truth_agree_whatever_came(self, prompts: list[tuple[int, float]]) -> None:
        server = state()
        facts: list[LogFact] = []
        cached = []
        for task, (total, share) in enumerate(prompts):
            cached.append(min(total - 1, int(total * share)))
            facts += request(task, total, cached[-1], verbosity=3 + task % 2)
        log(server, *facts)
        found = look(server)
        assert found.cached == sum(cached)
        assert found.processed == sum(total for total, _ in prompts) - sum(cached)


class TestRequestsAndSessions:
    def test_a_request_of_the_proxy_has_slot_and_task_of_the_same_one_in_the_log(self) -> None:
        server = state()
        log(server, *request(7, 100, 60, similarity=0.6), at=NOW - 10)
        events(server, turn("s1", 10, 100, 60, 0.3))
        (requests,) = look(server).requests
        assert (requests.session, requests.slot, requests.task, requests.similarity, requests.ttft_s) == (
            "s1",
            0,
            7,
            0.6,
            0.3,
        )

    def test_what_did_not_go_through_the_proxy_is_listed_too(self) -> None:
        server = state()
        log(server, *request(7, 100, 60), *request(8, 50, 0), at=NOW - 10)
        events(server, turn("s1", 10, 100, 60, 0.3))
        assert [(prefix_request.session, prefix_request.task) for prefix_request in look(server).requests] == [
            ("s1", 7),
            (None, 8),
        ]

    def test_sessions_the_most_recent_first_with_their_own_shares(self) -> None:
        server = state()
        events(server, turn("a", 50, 100, 0, 2.0), turn("b", 40, 10, 0, 0.2), turn("a", 30, 150, 100, 0.4))
        first, second = look(server).sessions
        assert (first.id, first.requests, first.cached, first.processed) == ("a", 2, 100, 150)
        assert (first.ttft_warm_s, first.ttft_cold_s, first.cached_share) == (0.4, 2.0, 0.4)
        assert (second.id, second.cached_share) == ("b", 0.0)

    def test_both_are_bounded(self) -> None:
        server = state()
        events(server, *(turn(f"s{number}", 100, 100, 50) for number in range(200)))
        log(server, *(fact for task in range(200) for fact in request(task, 90, 10)))
        found = look(server)
        assert (len(found.requests), len(found.sessions)) == (KEPT, KEPT_SESSIONS)

    def test_a_slot_has_what_it_holds_and_the_likeness_of_its_last_prompt(self) -> None:
        server = state()
        server.apply(
            Reading.known(Source.SLOTS, NOW, Slots((Slot(0, is_processing=True, n_prompt_tokens=77), Slot(1, False))))
        )
        log(server, *request(1, 100, 12, similarity=0.12), *request(2, 100, 93, similarity=0.93))
        first, second = look(server).slots
        assert (first.tokens, first.similarity, first.busy) == (77, 0.93, True)
        assert (second.tokens, second.similarity, second.busy) == (None, None, False)


class TestTimeToFirstToken:
    def test_warm_against_cold_is_what_the_clients_had(self) -> None:
        server = state()
        events(server, turn("a", 50, 1000, 0, 2.1), turn("a", 40, 1100, 1000, 0.4), turn("a", 30, 1200, 1100, 0.4))
        log(server, *request(1, 900, 0))
        found = look(server)
        assert (found.ttft_warm_s, found.ttft_cold_s, found.warm, found.cold) == (0.4, 2.1, 2, 1)
        assert found.ttft_basis == "proxy"
        assert found.verdict.endswith("warm TTFT 400 ms against 2.10 s cold")

    def test_without_a_proxy_it_is_the_time_that_the_prompt_took(self) -> None:
        server = state()
        log(server, *request(1, 1000, 0), *request(2, 1100, 1000))
        found = look(server)
        assert (found.ttft_cold_s, found.ttft_warm_s, found.ttft_basis) == (0.5, 0.05, "prompt")

    def test_a_short_cold_prompt_is_no_measure_for_long_warm_ones(self) -> None:
        server = state()
        events(server, turn("title", 50, 50, 0, 0.1), turn("a", 45, 1000, 0, 2.0), turn("a", 40, 1100, 1000, 0.4))
        found = look(server)
        assert (found.ttft_cold_s, found.cold) == (2.0, 1)

    def test_time_saved_is_cached_tokens_at_the_rate_of_long_prompts(self) -> None:
        server = state()
        log(server, *request(1, 1000, 0), *request(2, 1010, 1000))
        found = look(server)
        assert found.prefill_rate == pytest.approx(2000.0)
        assert found.saved_s == pytest.approx(0.5)


class TestPromptCache:
    def test_entries_size_hits_and_saves_are_of_the_server_that_runs(self) -> None:
        server = state()
        log(server, PromptCacheState(9, 100.0, 8192.0), ServerEvent("prompt_cache_hit"), at=NOW - 50)
        server.apply(
            Reading.known(Source.LOG, NOW - 20, LogBatch(1, facts=(ServerEvent("restarted"),), restarted=True))
        )
        log(
            server,
            PromptCacheState(3, 14.5, 8192.0),
            ServerEvent("prompt_cache_saved"),
            ServerEvent("prompt_cache_hit"),
        )
        found = look(server)
        assert (found.entries, found.size_mib, found.limit_mib, found.hits, found.saves) == (3, 14.5, 8192.0, 1, 1)
        assert found.unknown == ""

    def test_a_log_that_is_too_quiet_is_named(self) -> None:
        server = state()
        log(server, ServerEvent("verbosity", (("verbosity", "3"),)), *request(1, 100, 0, verbosity=3))
        found = look(server)
        assert found.entries is None
        assert "LLAMA_LOG_VERBOSITY=4" in found.unknown

    def test_prompts_read_again_are_those_of_the_window(self) -> None:
        server = state()
        again = CheckpointEvent("full_reprocess", "context", 0, 1)
        log(server, again, at=NOW - WINDOW_S - 50)
        log(server, again, *request(1, 900, 0))
        found = look(server)
        assert found.full_reprocessed == 1
        assert "read from the start because no checkpoint was available" in found.verdict


class TestVerdict:
    GOOD = PrefixCachePicture(cached=830, processed=170, cached_share=0.83, ttft_basis="proxy")
    LITTLE = PrefixCachePicture(cached=100, processed=900, cached_share=0.1)

    @pytest.mark.parametrize(
        ("found", "words"),
        [
            (replace(GOOD, ttft_warm_s=0.4, ttft_cold_s=2.1), "83 % of prompt tokens came from the cache; warm TTFT"),
            (replace(GOOD, saved_s=12.0), "83 % of prompt tokens came from the cache, which saved 12.0 s of prefill"),
            (
                replace(GOOD, ttft_warm_s=3.0, ttft_cold_s=2.1, saved_s=12.0),
                "83 % of prompt tokens came from the cache, wh",
            ),
            (replace(LITTLE, similarity=0.12), "prompts change near their beginning: similarity 0.12; only 10 %"),
            (replace(LITTLE, size_mib=8190.0, limit_mib=8192.0, evicted=3), "cache full: 8190 of 8192 MiB, 3 prompts"),
            (replace(LITTLE, evicted=1), "cache too small: 1 prompt was dropped"),
            (
                replace(LITTLE, full_reprocessed=2, similarity=0.1),
                "10 % of prompt tokens came from the cache; 2 prompts",
            ),
            (LITTLE, "10 % of prompt tokens came from the cache"),
            (PrefixCachePicture(lifetime_share=0.5), "no prompt seen in the last 5 min; since the start 50 %"),
        ],
    )
    def test_the_most_telling_cause_is_said(self, found: PrefixCachePicture, words: str) -> None:
        assert verdict_on(found, WINDOW_S).startswith(words)
