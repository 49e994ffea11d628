"""The state of a server, and why nothing comes: the right word for what its endpoints did, and the next step.

The servers are played from what users reported: a real one does not wedge or loop when it is asked to.
"""

import json
import re
from typing import Any

import pytest
from msgspec.structs import replace

from insight.scenes import DATA, LOADING, NOW, OK, Watch, counters, process, read_log, server, tell, working
from specdash.core.readings import Counters, FailureKind, Props, Slots, Source
from specdash.core.records import AlertSeverity
from specdash.insight.derive import judge
from specdash.insight.picture import BackendState
from specdash.insight.progress import ServerSigns, SlotSigns, Standstill, of_server, of_slot
from specdash.llama.log.parser import LogParser
from specdash.llama.server_answers import parse_health, parse_metrics, parse_models, parse_props, parse_slots

CASES = DATA / "no_progress"
PARSERS: dict[Source, Any] = {
    Source.PROPS: parse_props,
    Source.ROUTER: parse_models,
    Source.METRICS: parse_metrics,
    Source.SLOTS: parse_slots,
}
PATHS = {Source.ROUTER: "GET /models"}
LIMITS = {"silent_s": 5, "starved_s": 30, "busy_s": 60, "no_token_s": 30, "while_others_s": 180, "prefill_s": 180}
TIMEOUT, DENIED, GARBAGE = FailureKind.TIMEOUT, FailureKind.UNAUTHORIZED, FailureKind.GARBAGE
S = BackendState


# The state, from the latest look at each endpoint


ALL: dict[str, Any] = {"health": OK, "metrics": Counters(), "slots": Slots()}


def judged(
    starved: bool = False,
    ago: float = 0.0,
    restarted_at: float | None = None,
    recovered_at: float | None = None,
    last_good: float | None = None,
    **looks: Any,
) -> tuple[BackendState, str]:
    """The judgement on a state whose latest looks, by source, are these, those at /health so long `ago`."""
    state = server()
    if last_good is not None:
        tell(state, last_good, props=Props())
    for name, value in looks.items():
        tell(state, NOW - (ago if name == "health" else 4.0 if recovered_at else 0.0), **{name: value})
    state.counters.restarted_at, state.recovered_at = restarted_at, recovered_at
    return judge(state, NOW, ServerSigns(starved=starved))


@pytest.mark.parametrize(
    ("evidence", "expected", "words"),
    [
        ({}, S.UNKNOWN, ""),
        ({**ALL, "last_good": NOW}, S.LIVE, None),
        # /health answers and /metrics does not: an older build at work, and not down.
        ({**ALL, "metrics": TIMEOUT}, S.BUSY, "/metrics"),
        ({"health": FailureKind.REFUSED, "last_good": NOW - 1}, S.DOWN, ""),
        ({"health": TIMEOUT, "last_good": NOW - 12}, S.STALE, "12 s ago"),
        ({"health": TIMEOUT}, S.DOWN, ""),
        # A collector that stopped, though all was well; and why, where it gets no CPU.
        ({"health": OK, "ago": 60}, S.STALE, ""),
        ({"health": OK, "ago": 60, "starved": True}, S.STALE, "too busy"),
        ({"health": LOADING}, S.LOADING, ""),
        ({**ALL, "restarted_at": NOW - 5}, S.RESTARTED, ""),
        ({**ALL, "restarted_at": NOW - 80}, S.LIVE, ""),
        ({**ALL, "metrics": (FailureKind.DISABLED, "--metrics")}, S.LIVE, "--metrics"),
        # Something that is no llama-server.
        ({"health": GARBAGE}, S.UNKNOWN, ""),
        ({"health": OK, "metrics": FailureKind.TOO_LARGE, "slots": GARBAGE}, S.UNKNOWN, ""),
        # A refused key, unless another endpoint takes it.
        ({**ALL, "health": DENIED}, S.UNAUTHORIZED, ""),
        ({"health": OK, "metrics": DENIED, "slots": DENIED}, S.UNAUTHORIZED, ""),
        ({**ALL, "slots": DENIED}, S.LIVE, ""),
        # What endpoints gave before the server was healthy is of another time.
        ({"health": OK, "metrics": GARBAGE, "slots": GARBAGE, "recovered_at": NOW - 1}, S.LIVE, ""),
        ({"health": OK, "metrics": GARBAGE, "slots": GARBAGE, "recovered_at": NOW - 9}, S.UNKNOWN, ""),
    ],
)
def test_the_state_is_the_right_word_for_the_evidence_and_says_why(
    evidence: dict[str, Any], expected: BackendState, words: str | None
) -> None:
    state, reason = judged(**evidence)
    assert state is expected
    assert words in reason if words is not None else reason == ""


# One judgement of no progress, from all signs


WEDGE = ServerSigns(late_s=40, hang_s=40, build=11012)


@pytest.mark.parametrize(
    ("signs", "expected"),
    [
        (WEDGE, Standstill.WEDGED),
        (replace(WEDGE, build=0), Standstill.WEDGED),
        # One endpoint answers, lines come, the build waits there, the machine is busy: it may go on.
        (replace(WEDGE, hang_s=None), Standstill.NONE),
        (replace(WEDGE, log_silent_s=3), Standstill.NONE),
        (replace(WEDGE, build=10419), Standstill.NONE),
        (replace(WEDGE, build=None), Standstill.NONE),
        (replace(WEDGE, cpu_starved=True), Standstill.NONE),
        (replace(WEDGE, starved=True), Standstill.STARVED),
        (ServerSigns(late_s=70, hang_s=70, build=10419), Standstill.LATE),
    ],
)
def test_a_silent_server_is_judged_by_all_its_signs(signs: ServerSigns, expected: Standstill) -> None:
    assert of_server(signs, LIMITS) is expected


STANDS = SlotSigns(prefill=False, unmoved_s=31, calls=120, speculative=True)


@pytest.mark.parametrize(
    ("signs", "expected"),
    [
        (STANDS, Standstill.REPEATS),
        (SlotSigns(prefill=False, unmoved_s=6, restored=20), Standstill.REPEATS),
        (replace(STANDS, calls=3), Standstill.STUCK),
        (replace(STANDS, calls=None), Standstill.STUCK),
        # The calls may be of others, for a while.
        (replace(STANDS, alone=False), Standstill.NONE),
        (replace(STANDS, alone=False, unmoved_s=181), Standstill.REPEATS),
        (replace(STANDS, speculative=False, unmoved_s=181), Standstill.STUCK),
    ],
)
def test_a_slot_that_stands_is_judged_by_tokens_decode_calls_and_trace(signs: SlotSigns, expected: Standstill) -> None:
    assert of_slot(signs, LIMITS) is expected


# Servers as users met them


def play(name: str, seconds: float, **more: Any) -> Watch:
    """A server that answers as in the scenario, looked at once a second."""
    frames = json.loads((CASES / f"{name}.json").read_text())["frames"]
    watch = Watch()
    for second in range(1, round(seconds) + 1):
        now = {key: answer for frame in frames if frame["at"] <= second for key, answer in frame.items()}
        readings: dict[str, Any] = dict(more)
        for source, parse in PARSERS.items():
            answer = now.get(PATHS.get(source, f"GET /{source}"))
            if source is not Source.ROUTER or now["GET /props"]["json"].get("role") == "router":
                readings[str(source)] = read(answer, parse, second)
        watch.look(1, health=parse_health(200, json.dumps(now["GET /health"]["json"])), **readings)
    return watch


def read(answer: Any, parse: Any, second: float) -> Any:
    if answer == "hang":
        return TIMEOUT
    if answer.get("status", 200) != 200:
        return FailureKind.NO_MODEL
    body = answer["text"] if "text" in answer else json.dumps(answer["json"])
    body = re.sub(r'"<<(.*?)>>"|<<(.*?)>>', lambda found: str(eval(found[1] or found[2], {"t": second})), body)  # noqa: S307 - our own data
    return parse(body)


def test_endpoints_that_hang_on_a_build_that_never_waits_are_a_wedge_within_half_a_minute() -> None:
    watch = play("01_wedge_slots_hang", 38)
    assert "server_hung" not in watch.raised()
    assert watch.picture.backend.state is S.BUSY
    watch = play("01_wedge_slots_hang", 44)
    found, backend = watch.found("server_hung"), watch.picture.backend
    assert found.severity is AlertSeverity.CRITICAL
    assert all(words in found.summary for words in ("the inference loop is stuck", "b11012"))
    assert dict(found.evidence)["open request"] == "slot 0, task 20475"
    assert "ignores SIGTERM" in found.remedy
    assert (backend.state, "restart it" in backend.reason) == (S.WEDGED, True)


def test_a_verification_step_that_repeats_is_the_requests_fault_and_not_the_gpus() -> None:
    watch = play("03_ngram_verify_loop", 40, process=process())
    assert watch.raised() == {"slot_hung"}
    found = watch.found("slot_hung")
    assert "slot 0 repeats one verification step" in found.summary
    assert found.fix == (("LLAMA_SPEC_TYPE", "none"),)
    assert "the proxy then closes it at the server" in found.remedy
    watch.look(70, slots=watch.state.value(Source.SLOTS), metrics=watch.state.value(Source.METRICS))
    assert watch.state.alerts.picture().cause_key == ("slot_hung", "slot 0")


def test_the_trace_shows_a_repeating_step_before_the_slots_do() -> None:
    watch = play("03_ngram_verify_loop", 1)
    parser, lines = LogParser(), (CASES / "03_ngram_verify_loop.log").read_bytes().splitlines(keepends=True)
    slots = watch.state.value(Source.SLOTS)
    of_the_log = replace(slots, slots=(replace(slots.slots[0], id=7),))
    tell(watch.state, watch.at, log=parser.feed(lines[0]))
    watch.look(1, slots=of_the_log)
    tell(watch.state, watch.at, log=parser.feed(b"".join(lines[1:] * 2)))
    watch.look(6, slots=of_the_log, health=OK)
    assert dict(watch.found("slot_hung").evidence)["steps that went back to a checkpoint"] == "22"


@pytest.mark.parametrize(
    ("case", "seconds", "rule", "words"),
    [
        ("04_long_prefill", 240, "requests_waiting", "behind a long prompt: 43008 tokens of it are read"),
        ("05_mtp_nearly_zero", 90, "zero_acceptance", "of the last"),
        ("09_router_child_is_router", 40, "loading_too_long", "its preset names no model"),
        # A router with nothing in memory lacks nothing.
        ("09b_router_nothing_loaded", 120, "", ""),
        ("10_router_never_loaded_failed", 120, "", ""),
    ],
)
def test_what_is_healthy_and_what_is_not_gets_its_words(case: str, seconds: float, rule: str, words: str) -> None:
    watch = play(case, seconds, process=process())
    assert watch.raised() - {"speculation_hurting"} == ({rule} if rule else set())
    assert not rule or words in watch.found(rule).summary
    assert watch.picture.speedup.baseline is None, "none is needed"


@pytest.mark.parametrize(("cores", "severity"), [(15.5, AlertSeverity.WARNING), (0.1, AlertSeverity.CRITICAL)])
def test_a_batch_that_takes_minutes_is_critical_only_where_nothing_works(cores: float, severity: AlertSeverity) -> None:
    watch = Watch()
    watch.look(200, health=OK, slots=working(0), metrics=counters(100), process=process(cpu_cores=cores))
    found = watch.found("slot_hung")
    assert (found.severity, "reads a long prompt" in found.summary) == (severity, cores > 1)


def test_a_prompt_over_the_caches_limit_is_read_from_the_log() -> None:
    state = read_log(server(), (CASES / "16_prompt_cache_over_limit.log").read_bytes())
    cache = state.picture(NOW, 0.0).views.prefix_cache
    assert (cache.entries, cache.size_mib, cache.limit_mib) == (1, 2460.007, 1200.0)
