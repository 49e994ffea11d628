"""No progress, distinguished: servers played from what users reported, and the words that each gets.

The scripted server is right here: a real one does not wedge or loop when it is asked to.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from insight.rules.judging import Watch, process
from specdash.core.readings import FailureKind, Source
from specdash.core.records import AlertSeverity
from specdash.insight.picture import BackendState
from specdash.insight.progress import ServerSigns, SlotSigns, Standstill, of_server, of_slot
from specdash.llama.log.parser import LogParser
from specdash.llama.server_answers import parse_health, parse_metrics, parse_models, parse_props, parse_slots

DATA = Path(__file__).parents[1] / "data" / "no_progress"
PARSERS: dict[Source, Any] = {
    Source.PROPS: parse_props,
    Source.ROUTER: parse_models,
    Source.METRICS: parse_metrics,
    Source.SLOTS: parse_slots,
}
PATHS = {Source.ROUTER: "GET /models"}
LIMITS = {"silent_s": 5, "starved_s": 30, "busy_s": 60, "no_token_s": 30, "while_others_s": 180, "prefill_s": 180}


def play(name: str, seconds: float, **more: Any) -> Watch:
    """A server that answers as the scenario says, looked at once a second."""
    frames = json.loads((DATA / f"{name}.json").read_text())["frames"]
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
        return FailureKind.TIMEOUT
    if answer.get("status", 200) != 200:
        return FailureKind.NO_MODEL
    body = answer["text"] if "text" in answer else json.dumps(answer["json"])
    body = re.sub(r'"<<(.*?)>>"|<<(.*?)>>', lambda found: str(eval(found[1] or found[2], {"t": second})), body)  # noqa: S307 - our own data
    return parse(body)


def state(watch: Watch) -> tuple[BackendState, str]:
    backend = watch.state.picture(watch.at, watch.offset + watch.at).backend
    return backend.state, backend.reason


def test_endpoints_that_hang_on_a_build_that_never_waits_are_a_wedge_within_half_a_minute() -> None:
    watch = play("01_wedge_slots_hang", 38)
    assert "server_hung" not in watch.raised()
    assert state(watch)[0] is BackendState.BUSY
    watch = play("01_wedge_slots_hang", 44)
    found = watch.found("server_hung")
    assert found.severity is AlertSeverity.CRITICAL
    for words in ("the inference loop is stuck", "b11012"):
        assert words in found.summary
    assert dict(found.evidence)["open request"] == "slot 0, task 20475"
    assert "ignores SIGTERM" in found.remedy
    assert state(watch)[0] is BackendState.WEDGED
    assert "restart it" in state(watch)[1]


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
        (ServerSigns(FailureKind.TIMEOUT, unheard_s=6), Standstill.SILENT),
        (ServerSigns(FailureKind.TIMEOUT, unheard_s=6, cpu_starved=True), Standstill.NONE),
        (ServerSigns(FailureKind.REFUSED, ended=True), Standstill.DEAD),
        (ServerSigns(FailureKind.TIMEOUT, stopped=True), Standstill.STOPPED),
        (ServerSigns(), Standstill.NONE),
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
        (replace(STANDS, unmoved_s=29, calls=0), Standstill.NONE),
        # The calls may be of others, for a while.
        (replace(STANDS, alone=False), Standstill.NONE),
        (replace(STANDS, alone=False, unmoved_s=181), Standstill.REPEATS),
        (replace(STANDS, speculative=False, unmoved_s=181), Standstill.STUCK),
        (SlotSigns(prefill=True, unmoved_s=179, calls=0), Standstill.PREFILL),
        (SlotSigns(prefill=True, unmoved_s=181, calls=0), Standstill.STUCK),
    ],
)
def test_a_slot_that_stands_is_judged_by_tokens_decode_calls_and_trace(signs: SlotSigns, expected: Standstill) -> None:
    assert of_slot(signs, LIMITS) is expected


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
    parser, lines = LogParser(), (DATA / "03_ngram_verify_loop.log").read_bytes().splitlines(keepends=True)
    slots = watch.state.value(Source.SLOTS)
    of_the_log = replace(slots, slots=(replace(slots.slots[0], id=7),))
    watch.read(Source.LOG, parser.feed(lines[0]))
    watch.look(1, slots=of_the_log)
    watch.read(Source.LOG, parser.feed(b"".join(lines[1:] * 2)))
    watch.look(6, slots=of_the_log, health=parse_health(200, '{"status":"ok"}'))
    assert dict(watch.found("slot_hung").evidence)["steps that went back to a checkpoint"] == "22"


def test_a_long_prompt_is_healthy_and_explains_who_waits_for_it() -> None:
    watch = play("04_long_prefill", 240, process=process())
    assert watch.raised() == {"requests_waiting"}
    found = watch.found("requests_waiting")
    assert "behind a long prompt: 43008 tokens of it are read" in found.summary
    assert "compact" in found.remedy


def test_an_acceptance_near_zero_needs_no_baseline() -> None:
    watch = play("05_mtp_nearly_zero", 90, process=process())
    assert "of the last" in watch.found("zero_acceptance").summary
    assert watch.state.picture(watch.at, watch.offset + watch.at).speedup.baseline is None


def test_a_model_that_loads_without_a_file_to_load_is_named() -> None:
    watch = play("09_router_child_is_router", 40)
    assert watch.raised() == {"loading_too_long"}
    found = watch.found("loading_too_long")
    assert found.subject == "acme/broken-9B:Q5_K_M"
    assert "its preset names no model" in found.summary


@pytest.mark.parametrize("name", ["09b_router_nothing_loaded", "10_router_never_loaded_failed"])
def test_a_router_with_nothing_in_memory_lacks_nothing(name: str) -> None:
    assert play(name, 120).raised() == set()


def test_a_models_state_says_whether_it_was_ever_loaded_and_how_its_server_ended() -> None:
    watch = play("10_router_never_loaded_failed", 3)
    words = {model.id: model.words for model in watch.state.picture(watch.at, 0.0).views.router.models}
    assert words == {
        "never-loaded": "never loaded",
        "unloaded-by-hand": "unloaded",
        "crashed": "failed (exit code -6)",
        "decider-1b": "sleeping",
        "fetching": "downloading",
    }


def test_a_prompt_that_alone_is_over_the_caches_limit_does_not_ask_for_more_memory_blindly() -> None:
    watch = Watch()
    watch.read(Source.LOG, LogParser().feed((DATA / "16_prompt_cache_over_limit.log").read_bytes()))
    found = watch.state.picture(watch.at, 0.0).views.prefix_cache
    assert (found.entries, found.size_mib, found.limit_mib) == (1, 2460.007, 1200.0)


def test_each_request_knows_the_build_that_answered_it() -> None:
    watch = Watch()
    watch.read(Source.LOG, LogParser().feed((DATA / "08_build_changed_acceptance.log").read_bytes()))
    builds = {request.build for request in watch.state.picture(watch.at, 0.0).log.requests}
    assert builds == {"9234", "9235"}
