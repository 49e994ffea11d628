"""Requests that are measured: what is sent when, and what is made of what comes back."""

import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from specdash.bench.load import drive
from specdash.bench.load.drive import DraftTime, Interrupted, MeasureOptions, measure
from specdash.bench.load.samples import (
    CACHED,
    IMPOSSIBLE,
    MISSING,
    NO_TIMINGS,
    SHORT,
    TOO_FAST,
    TOO_LONG,
    BenchSample,
    EngineAddress,
    WorkloadPrompt,
    flags_of,
    jobs,
    marked,
)
from specdash.core.errors import InputError, SpecdashError, UnreachableError
from specdash.core.flag import Flag
from specdash.llama.chat import ChatFault
from support.fault_server import FaultServer, floods, free_port, hangs, resets, writes
from support.fault_server import says as responds
from support.fault_upstream import FaultUpstream
from support.scripted_server import Call
from support.upstream_script import Script, error, error_event, queued, says, stops, timed
from support.waiting import until, until_async

CHAT = "/v1/chat/completions"
BROKEN = error(500, "no", "server_error")
PROMPTS = tuple(WorkloadPrompt(f"p{n}", "coding", ({"role": "user", "content": f"task {n}"},)) for n in range(4))
QUICK = MeasureOptions(runs=1, max_tokens=32, warm_up=False)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
TOKEN = b'data: {"choices":[{"index":0,"finish_reason":null,"delta":{"content":"a"}}]}\n\n'


def one(
    server: FaultUpstream | FaultServer, options: MeasureOptions = QUICK, prompts: int = 1, **place: Any
) -> BenchSample:
    return measure(EngineAddress(server.url, **place), PROMPTS[:prompts], options).samples[0]


def test_a_sample_holds_what_the_server_says_and_what_the_client_saw() -> None:
    with FaultUpstream(timed(0.03, 0.06, tokens=31, prompt_tokens=120)) as server:
        found = one(server)
    assert (found.prompt, found.kind, found.run, found.error) == ("p0", "coding", 0, "")
    assert (found.prompt_tokens, found.cached_tokens, found.predicted_tokens) == (120, 0, 31)
    assert (found.drafted, found.accepted, found.finish, found.chunks) == (40, 20, "length", 2)
    assert found.prefill_rate == pytest.approx(120 / 0.03)
    assert found.decode_rate == pytest.approx(30 / 0.06), "the first token is the prompt's"
    assert found.ttft_s is not None
    assert found.latency_s is not None
    assert 0.03 <= found.ttft_s < found.latency_s
    assert found.latency_s >= 0.09


def test_every_prompt_is_asked_in_every_run_in_an_order_of_its_own_that_the_seed_gives() -> None:
    options = MeasureOptions(runs=6)
    order = [job.prompt.id for job in jobs(PROMPTS, options)]
    rounds = [tuple(order[start : start + 4]) for start in range(0, 24, 4)]
    assert all(sorted(found) == ["p0", "p1", "p2", "p3"] for found in rounds)
    assert len(set(rounds)) > 1
    assert order == [job.prompt.id for job in jobs(PROMPTS, options)]
    assert order != [job.prompt.id for job in jobs(PROMPTS, MeasureOptions(runs=6, seed=2))]


def test_the_warm_up_is_another_text_and_no_sample() -> None:
    with FaultUpstream(timed()) as server:
        run = measure(EngineAddress(server.url), PROMPTS, MeasureOptions(runs=1, max_tokens=32))
    assert len(server.bodies) == 5
    assert len(run.samples) == 4
    assert run.warm_up is not None
    assert "task" not in str(server.bodies[0]["messages"])
    assert all("task" in str(body["messages"]) for body in server.bodies[1:])


def test_without_a_cache_no_two_requests_begin_alike_and_another_boot_is_asked_the_same() -> None:
    sent = []
    for _ in range(2):
        with FaultUpstream(timed()) as server:
            measure(EngineAddress(server.url), PROMPTS, MeasureOptions(runs=3, max_tokens=32, warm_up=False))
        sent.append(server.bodies)
    beginnings = [body["messages"][0]["content"][:8] for body in sent[0]]
    assert len(set(beginnings)) == 12
    assert all(body["cache_prompt"] is False for body in sent[0])
    assert sent[0] == sent[1]


def test_with_a_cache_prompts_are_sent_as_they_are() -> None:
    with FaultUpstream(timed()) as server:
        run = measure(
            EngineAddress(server.url), PROMPTS, MeasureOptions(runs=2, max_tokens=32, cache=True, warm_up=False)
        )
    assert {body["messages"][0]["content"] for body in server.bodies} == {f"task {n}" for n in range(4)}
    assert all(body["cache_prompt"] is True for body in server.bodies)
    assert not any(CACHED in sample.flags for sample in run.samples)


def test_a_mark_goes_before_the_first_text_whatever_form_it_has() -> None:
    call: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": []}
    parts: dict[str, Any] = {"role": "user", "content": [{"type": "text", "text": "x"}]}
    changed = marked([call, parts], "a")
    assert changed[0] == call
    assert changed[1]["content"][0]["text"].startswith("[")
    assert changed[1]["content"][1:] == parts["content"]
    assert parts["content"] == [{"type": "text", "text": "x"}], "the prompt itself is not touched"


def test_tools_length_sampling_and_model_are_sent() -> None:
    tools = ({"type": "function", "function": {"name": "look"}},)
    prompt = WorkloadPrompt("a", "agentic", PROMPTS[0].messages, tools, max_tokens=16)
    options = MeasureOptions(runs=1, max_tokens=64, temperature=0.7, force_length=True, warm_up=False)
    with FaultUpstream(timed()) as server:
        measure(EngineAddress(server.url, model="m"), [prompt], options)
    body = server.bodies[0]
    assert (body["tools"], body["max_tokens"], body["temperature"]) == (list(tools), 16, 0.7)
    assert (body["ignore_eos"], body["model"], body["stream"]) == (True, "m", True)


def test_at_a_rate_latency_counts_from_when_a_request_was_due() -> None:
    with FaultUpstream(queued(timed(0.0, 0.05))) as server:
        options = MeasureOptions(runs=3, max_tokens=32, rate=200.0, constant=True, warm_up=False)
        run = measure(EngineAddress(server.url), PROMPTS, options)
    due = sorted(sample.intended_s for sample in run.samples)
    assert [round(later - due[0], 4) for later in due] == [round(0.005 * n, 4) for n in range(12)]
    latencies = sorted(sample.latency_s or 0.0 for sample in run.samples)
    assert latencies[-1] >= 12 * 0.05 - 0.06, "the last one waited for all the others"
    assert all((sample.done_s or 0.0) - sample.intended_s == sample.latency_s for sample in run.samples)


def test_arrivals_at_a_rate_are_a_poisson_process_of_that_rate() -> None:
    due = [job.due_s or 0.0 for job in jobs(PROMPTS, MeasureOptions(runs=500, rate=10.0))]
    gaps = [later - earlier for earlier, later in pairwise(due)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.1, rel=0.07)
    assert sum(gap > 0.1 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.04), "exponential gaps"


def test_with_concurrency_that_many_are_under_way() -> None:
    async def when_all_are_there(call: Call) -> None:
        number = server.chats.index(call)
        await until_async(lambda: len(server.chats) >= min(8, number + 3), 20)
        await timed()(call)

    with FaultUpstream(when_all_are_there) as server:
        run = measure(
            EngineAddress(server.url), PROMPTS, MeasureOptions(runs=2, max_tokens=32, concurrency=3, warm_up=False)
        )
    assert len(run.answered) == 8


@pytest.mark.parametrize(
    ("answer", "flag"),
    [
        (timed(tokens=5), SHORT),
        (timed(cached=60), CACHED),
        (timed(timings=False), NO_TIMINGS),
        (timed(claims={"prompt_ms": 90_000.0}), TOO_LONG),
        (timed(claims={"predicted_ms": 0.0003}), TOO_FAST),
        (timed(drafted=10, accepted=11), IMPOSSIBLE),
        (timed(decode_s=0.6, claims={"predicted_ms": 10.0}), MISSING),
    ],
)
def test_what_is_odd_is_flagged(answer: Script, flag: str) -> None:
    with FaultUpstream(answer) as server:
        assert flag in one(server).flags


def test_time_that_is_missing_is_only_odd_where_no_other_request_of_ours_could_take_it() -> None:
    late = BenchSample("p", "x", 0, 0.0, 0.0, 0.5, 1.0, 100, 0, 50.0, 32, 100.0)
    assert flags_of(late, wanted=32, alone=True, cache=False) == (MISSING,)
    assert flags_of(late, wanted=32, alone=False, cache=False) == ()


def test_a_request_in_order_has_no_flags() -> None:
    good = BenchSample("p", "x", 0, 0.0, 0.0, 0.05, 0.151, 100, 0, 50.0, 32, 100.0, 20, 10)
    assert flags_of(good, wanted=32, alone=True, cache=False) == ()


def test_an_empty_answer_is_seen_and_no_error() -> None:
    with FaultUpstream(Script(stops("length"))) as server:
        found = one(server)
    assert (found.empty, found.error, found.ttft_s) == (True, "", None)


@pytest.mark.parametrize(
    ("answer", "fault", "said"),
    [
        (error(400, "no", "any"), ChatFault.REFUSED, "HTTP 400: no"),
        (error(429, "no", "any"), ChatFault.BUSY, "HTTP 429: no"),
        (error(503, "no", "any"), ChatFault.BUSY, "HTTP 503: no"),
        (error(500, "no", "any"), ChatFault.SERVER, "HTTP 500: no"),
        (Script((*says("a"), error_event()), usage=False, done=False), ChatFault.SERVER, "Compute error."),
        (Script(says("a"), usage=False, done=False), ChatFault.BROKEN, "stopped before its end"),
        (Script(body=b"<html>hello</html>"), ChatFault.GARBAGE, "is this llama-server?"),
        (Script(body=b'{"ok":true}'), ChatFault.GARBAGE, "is this llama-server?"),
    ],
)
def test_failures_are_told_apart(answer: Script, fault: ChatFault, said: str) -> None:
    with FaultUpstream(answer) as server:
        found = one(server)
    assert (found.failed, found.fault) == (True, fault)
    assert said in found.error


@pytest.mark.parametrize(
    ("behaviour", "fault"),
    [
        (writes(b""), ChatFault.BROKEN),
        (writes(b"nonsense\r\n\r\n"), ChatFault.GARBAGE),
        (resets(HEAD + TOKEN), ChatFault.BROKEN),
        (writes(HEAD + TOKEN), ChatFault.BROKEN),
        (writes(HEAD + TOKEN + b"data: {not json\n\n"), ChatFault.BROKEN),
        (writes(HEAD + b"data: {not json\n\n"), ChatFault.GARBAGE),
        (hangs(HEAD + TOKEN), ChatFault.TIMEOUT),
        (hangs(), ChatFault.TIMEOUT),
        (responds(200, "x" * 100), ChatFault.GARBAGE),
    ],
)
def test_broken_connections_end_in_time_in_a_sample(behaviour: Any, fault: ChatFault) -> None:
    with FaultServer({CHAT: behaviour}) as server:
        silence_s = 0.3 if fault == ChatFault.TIMEOUT else 10.0
        found = one(server, MeasureOptions(runs=1, max_tokens=32, warm_up=False, silence_s=silence_s))
    assert found.fault == fault


def test_a_stream_without_end_is_cut_off_by_time() -> None:
    with FaultServer({CHAT: floods(HEAD, TOKEN * 100, 10_000_000)}) as server:
        found = one(server, MeasureOptions(runs=1, max_tokens=32, warm_up=False, limit_s=0.3))
    assert found.fault == ChatFault.TIMEOUT
    assert "not complete within" in found.error


def test_a_server_that_does_not_stream_is_measured_without_a_first_token() -> None:
    body = (
        b'{"choices":[{"index":0,"finish_reason":"stop","message":{"content":"hi"}}],"usage":{"completion_tokens":9}}'
    )
    with FaultUpstream(Script(body=body)) as server:
        found = one(server)
    assert (found.empty, found.error, found.ttft_s, found.predicted_tokens) == (False, "", None, 9)


def test_nobody_there_is_said_before_anything_is_measured() -> None:
    with pytest.raises(UnreachableError, match="nothing listens there; start the server"):
        measure(EngineAddress(f"http://127.0.0.1:{free_port()}"), PROMPTS)


def test_a_failed_warm_up_ends_it_as_nothing_could_be_measured() -> None:
    with FaultUpstream(BROKEN) as server, pytest.raises(SpecdashError, match="HTTP 500: no"):
        measure(EngineAddress(server.url), PROMPTS)


def test_no_prompts_are_refused() -> None:
    with pytest.raises(InputError, match="no prompts"):
        measure(EngineAddress("http://127.0.0.1:1"), [])


def test_some_failures_are_samples_among_the_others() -> None:
    with FaultUpstream(scripts=[timed(), BROKEN] * 4) as server:
        run = measure(EngineAddress(server.url), PROMPTS, MeasureOptions(runs=2, max_tokens=32, warm_up=False))
    assert (len(run.samples), len(run.answered), run.complete) == (8, 4, True)


def test_it_gives_up_on_a_server_that_only_fails() -> None:
    with FaultUpstream(BROKEN, [timed()] * 3) as server:
        run = measure(
            EngineAddress(server.url), PROMPTS, MeasureOptions(runs=9, max_tokens=32, warm_up=False, give_up=3)
        )
    assert (len(run.samples), len(run.answered), run.complete) == (6, 3, False)
    assert run.notes == ("given up after 3 failures in a row: HTTP 500: no",)


def test_requests_that_the_server_will_not_have_are_no_reason_to_give_up() -> None:
    with FaultUpstream(timed(), [error(400, "no", "any")] * 7) as server:
        run = measure(
            EngineAddress(server.url), PROMPTS, MeasureOptions(runs=2, max_tokens=32, warm_up=False, give_up=3)
        )
    assert (len(run.samples), len(run.answered), run.complete) == (8, 1, True)


def test_stopping_keeps_what_was_measured_and_ends_what_is_under_way() -> None:
    stop = Flag()
    seen: list[BenchSample] = []

    def noted(sample: BenchSample) -> None:
        seen.append(sample)
        if len(seen) == 3:
            threading.Timer(0.05, stop.set).start()

    with FaultUpstream(Script(hangs=True), [timed()] * 3) as server:
        with pytest.raises(Interrupted) as stopped:
            measure(
                EngineAddress(server.url),
                PROMPTS,
                MeasureOptions(runs=2, max_tokens=32, warm_up=False),
                noted,
                stop=stop,
            )
        until(lambda: sum(call.left is not None for call in server.chats) == 1, 5)
    assert list(stopped.value.run.samples) == seen
    assert len(seen) == 3
    assert not stopped.value.run.complete


def test_stopping_during_the_warm_up_is_no_failure() -> None:
    stop = Flag()
    with FaultUpstream(Script(hangs=True)) as server:
        threading.Timer(0.1, stop.set).start()
        with pytest.raises(Interrupted) as stopped:
            measure(EngineAddress(server.url), PROMPTS, stop=stop)
    assert stopped.value.run.samples == ()


def test_the_key_is_sent_and_never_told() -> None:
    secret = "sk-very-secret"
    with FaultUpstream(timed(), key=secret) as server:
        assert not one(server, key=secret).failed
    with FaultUpstream(error(400, f"{secret} is bad", "any")) as server:
        found = one(server, key=secret)
    assert found.error == "HTTP 400: *** is bad"


def test_acceptance_per_position_is_said_to_be_unknown_where_there_are_no_metrics() -> None:
    with FaultUpstream(timed()) as server:
        run = measure(EngineAddress(server.url), PROMPTS[:1], MeasureOptions(runs=1, max_tokens=32, positions=True))
    assert run.notes == ("no acceptance per position: /metrics answers HTTP 404",)
    assert run.samples[0].steps is None


# What drafting cost, from a real server's log.


LOG = (Path(__file__).parents[1] / "data" / "logs" / "draft_simple_same_lv4.log").read_bytes()
FIRST, SECOND, _ = [at for at in range(len(LOG)) if LOG.startswith(b"statistics     draft-simple", at)]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "_DRAFT_TIME_PATIENCE_S", 0.0)


def written(directory: Path, data: bytes) -> Path:
    file = directory / "server.log"
    file.write_bytes(data)
    return file


def test_what_the_totals_grew_by_is_what_it_cost(tmp_path: Path) -> None:
    upto = LOG.index(b"\n", FIRST) + 1
    file = written(tmp_path, LOG[:upto])
    watch = DraftTime(str(file))
    with file.open("ab") as opened:
        opened.write(LOG[upto : LOG.index(b"\n", SECOND) + 1])
    assert watch.seconds(176) == pytest.approx(((0.035 + 466.605 + 0.039) - (0.021 + 241.856 + 0.023)) / 1000)


def test_a_warm_up_is_left_out(tmp_path: Path) -> None:
    file = written(tmp_path, b"")
    watch = DraftTime(str(file))
    file.write_bytes(LOG[: LOG.index(b"\n", FIRST) + 1])
    watch.begin_again(176)
    file.write_bytes(LOG[: LOG.index(b"\n", SECOND) + 1])
    assert watch.seconds(176) == pytest.approx((466.679 - 241.9) / 1000)


def test_a_log_that_counts_other_requests_too_tells_nothing(tmp_path: Path) -> None:
    file = written(tmp_path, b"")
    watch = DraftTime(str(file))
    file.write_bytes(LOG)
    assert watch.seconds(176) is None
    assert "360 drafted tokens where 176 were measured" in watch.why


def test_a_log_without_the_lines_says_what_would_bring_them(tmp_path: Path) -> None:
    watch = DraftTime(str(written(tmp_path, b"nothing\n")))
    assert watch.seconds(10) is None
    assert "--log-verbosity 4" in watch.why


def test_without_drafts_nothing_was_spent(tmp_path: Path) -> None:
    assert DraftTime(str(written(tmp_path, b""))).seconds(0) == 0.0


def test_a_log_that_cannot_be_read_is_no_failure(tmp_path: Path) -> None:
    watch = DraftTime(str(tmp_path / "none"))
    assert watch.seconds(5) is None
    assert "No such file" in watch.why
