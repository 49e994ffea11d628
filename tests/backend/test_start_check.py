"""The check of a start: the verdict of what was seen, and what is asked of a server to see it."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from specdash.backend.settings import BackendSettings, ParameterValue
from specdash.backend.start_check import StartWatch, check_start, judge, line
from specdash.core.records import Drafting, RunRecord, StartCheck
from specdash.llama.start_failures import explain
from support.fault_server import FaultServer, hangs, says
from support.waiting import until

OK = says(200, '{"status":"ok"}')
MISMATCH = "0.00.030.070 E spec common_specu: the target and draft vocabs are not compatible"
HIDDEN = "/slots answers HTTP 501"


def asked(port: int = 1, types: tuple[str, ...] = ("draft-simple",), **more: Any) -> BackendSettings:
    return BackendSettings(parameters={"port": ParameterValue(value=port, source="test")}, spec_types=types, **more)


def slots(*told: bool, busy: int = 0) -> Any:
    rows = [
        {"id": index, "is_processing": index < busy, "speculative": flag, "id_task": 7 + index}
        for index, flag in enumerate(told)
    ]
    return says(200, json.dumps(rows))


def completion(drafted: int, accepted: int, tokens: int = 16) -> Any:
    answer: dict[str, Any] = {"content": "x", "tokens_predicted": tokens, "id_slot": 0, "tokens": [5, 6]}
    if drafted:
        answer["timings"] = {"draft_n": drafted, "draft_n_accepted": accepted}
    return says(200, json.dumps(answer))


def probe(tokens: int, drafted: int = 0, accepted: int = 0) -> StartCheck:
    return StartCheck(Drafting.UNKNOWN, 1.0, probe_tokens=tokens, probe_drafted=drafted, probe_accepted=accepted)


def checked(server: FaultServer, settings: BackendSettings | None = None, **more: Any) -> StartCheck:
    return check_start(settings or asked(server.port), list, **more)


@pytest.mark.parametrize(
    ("slots", "probed", "wanted"),
    [
        ((2, 2), probe(16, 8, 5), Drafting.YES),
        ((2, 2), probe(16), Drafting.READY),
        ((2, 2), None, Drafting.READY),
        ((2, 0), None, Drafting.FAILED),
        ((2, 1), None, Drafting.FAILED),
        ((None, None), probe(16, 8, 8), Drafting.YES),
        ((None, None), probe(16), Drafting.UNKNOWN),
    ],
)
def test_slots_and_drafts_give_the_verdict(
    slots: tuple[int | None, int | None], probed: StartCheck | None, wanted: Drafting
) -> None:
    found = judge(asked(), slots, HIDDEN if slots[1] is None else "", None, probed)
    assert found.drafting is wanted
    assert found.because
    assert bool(found.fix) is (wanted is Drafting.FAILED)


def test_the_line_says_the_figures_or_the_cause_and_what_to_do() -> None:
    assert line(judge(asked(), (1, 1), "", None, probe(16, 8, 5))) == (
        "speculating: draft-simple, 5 of 8 drafted tokens accepted"
    )
    failed = judge(asked(), (1, 0), "", explain([MISMATCH], None))
    assert failed.cause == "vocab_mismatch"
    assert line(failed) == f"running without speculation because {failed.because}; {failed.fix}"
    repeats = judge(asked(types=("ngram-mod",)), (1, 1), "", None, probe(32))
    assert "n-gram types draft only where text repeats" in line(repeats)


def test_a_probe_that_was_answered_says_what_was_drafted_and_under_which_tasks() -> None:
    with FaultServer({"/slots": slots(True), "/completion": completion(8, 5)}) as server:
        found = checked(server)
        assert (found.drafting, found.probe_tokens, found.probe_drafted, found.probe_accepted) == (
            Drafting.YES,
            16,
            8,
            5,
        )
        assert (found.slots, found.slots_drafting, found.probe_tasks) == (1, 1, (7,))


def test_n_gram_types_get_their_own_answer_to_repeat() -> None:
    with FaultServer({"/slots": slots(True), "/completion": completion(0, 0)}) as server:
        found = checked(server, asked(server.port, ("ngram-mod",)))
        assert (found.drafting, found.probe_tokens) == (Drafting.READY, 32)
        assert server.count("/completion") == 2


@pytest.mark.parametrize(
    ("more", "routes", "reason"),
    [
        ({"types": ()}, {"/slots": slots(False)}, "no speculation type is set"),
        ({"native": {"LLAMA_ARG_RERANKING": "1"}}, {"/slots": slots(True)}, "it reranks only"),
        ({}, {"/slots": slots(True, True, busy=2)}, "requests run in all slots"),
        ({}, {"/slots": slots(False)}, "its slots do not draft"),
        ({}, {"/slots": slots(True), "/props": says(200, '{"is_sleeping": true}')}, "it sleeps"),
        ({"native": {"LLAMA_ARG_MODELS_DIR": "/m"}}, {}, "a router serves models by name"),
    ],
)
def test_nothing_is_generated_where_that_would_be_wrong(
    more: dict[str, Any], routes: dict[str, Any], reason: str
) -> None:
    with FaultServer(routes) as server:
        found = checked(server, asked(server.port, **more))
        assert found.probe_problem == reason
        assert server.count("/completion") == 0
        if "sleep" in reason or "router" in reason:
            assert server.count("/slots") == 0


def test_the_log_names_the_cause_even_late_and_the_first_verdict_comes_before_the_probe() -> None:
    seen: list[StartCheck] = []
    lines: list[list[str]] = [[], [MISMATCH]]
    with FaultServer({"/slots": slots(True), "/completion": completion(8, 5)}) as server:
        checked(server, asked(server.port, secrets={"api-key": "sesame"}), publish=seen.append)
        assert [(check.drafting, check.pending) for check in seen] == [(Drafting.READY, True)]
        assert all("bearer sesame" in call.head.lower() for call in server.asked("/completion"))
        server.routes["/slots"] = slots(False)
        found = check_start(asked(server.port), lambda: lines.pop(0))
    assert (found.drafting, found.cause) == (Drafting.FAILED, "vocab_mismatch")


@pytest.mark.parametrize("answer", [says(500, '{"error":{"message":"failed to process batch"}}'), says(200, "{}")])
def test_a_server_that_fails_its_first_completion_has_failed(answer: Any) -> None:
    with FaultServer({"/slots": slots(True), "/completion": answer}) as server:
        found = checked(server)
    assert (found.drafting, found.cause) == (Drafting.FAILED, "completion_failed")
    assert found.because.startswith("a first completion ")
    assert line(found).startswith("it runs, and fails what it is asked: a first completion ")


@pytest.mark.parametrize("status", [401, 503])
def test_a_refusal_of_this_client_is_no_verdict_on_drafting(status: int) -> None:
    with FaultServer({"/slots": slots(True), "/completion": says(status, "{}")}) as server:
        found = checked(server)
    assert found.drafting is Drafting.READY
    assert f"HTTP {status}" in found.because


def test_the_end_of_the_server_ends_the_probe_with_its_connection() -> None:
    with FaultServer({"/health": OK, "/slots": slots(True), "/completion": hangs()}) as server:
        found: list[StartCheck] = []
        watch = StartWatch(asked(server.port), list, found.append, probe=True)
        until(lambda: server.count("/completion"), 20)
        watch.cancel()
        (thread,) = [thread for thread in threading.enumerate() if thread.name == "start-check"]
        thread.join(20)
        assert not thread.is_alive()
        assert [check.pending for check in found] == [True]


def test_the_record_keeps_the_verdict_and_one_of_another_version_has_none() -> None:
    check = StartCheck(Drafting.YES, 5.0, "x", probe_tasks=(1, 18))
    record = RunRecord(1, 2.0, "u", "e", start_check=check)
    again = RunRecord.from_json(record.to_json())
    assert again == record
    future = record.to_json().replace('"speculating"', '"gliding"')
    assert (RunRecord.from_json(future) or record).start_check is None
