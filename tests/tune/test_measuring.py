"""One boot measured on servers: what counts, who disturbs, and what a run would cost."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from specdash.backend import demo
from specdash.bench.load.samples import EngineAddress, MeasureOptions, WorkloadPrompt
from specdash.collect.gpu import GpuLooks
from specdash.core.errors import InputError
from specdash.tune.model.problem import plain_results
from specdash.tune.run.measuring import Measurer
from specdash.tune.run.planning import TuneOptions, prepare
from support.fault_upstream import FaultUpstream
from support.faulty_nvml import FaultyNvml
from support.scripted_llama import Behaviour, ScriptedLlama
from support.transcripts import Shape, write_session
from support.tuning import samples
from support.upstream_script import error, timed

PROMPTS = tuple(
    WorkloadPrompt(f"p{number}", "prose", ({"role": "user", "content": f"tell {number}"},)) for number in range(3)
)
MODEL = str(demo.bundled_model(demo.TARGET_MODEL))
VALUES = {"LLAMA_MODEL": MODEL, "LLAMA_SPEC_TYPE": "ngram-mod", "LLAMA_CTX_SIZE": "4096", "LLAMA_PARALLEL": "2"}


def test_every_prompt_is_asked_once_uncached_and_at_full_length() -> None:
    with FaultUpstream(timed()) as server:
        done: list[int] = []
        found = Measurer(PROMPTS, MeasureOptions(runs=1, max_tokens=32))(
            EngineAddress(server.url), lambda number, _: done.append(number)
        )
    assert done == [1, 2, 3]
    assert found.problem == ""
    assert {sample.prompt for sample in found.samples} == {"p0", "p1", "p2"}
    assert all(body["ignore_eos"] and body["cache_prompt"] is False for body in server.bodies)


def test_a_request_that_fails_makes_the_boot_unusable_and_says_why() -> None:
    with FaultUpstream(timed(), [timed(), timed(), error(500, "no", "server_error")]) as server:
        found = Measurer(PROMPTS, MeasureOptions(runs=1, max_tokens=32))(EngineAddress(server.url), lambda *_: None)
    assert found.problem.startswith("1 of 3 requests failed: HTTP 500")


def test_tokens_for_somebody_else_are_noticed() -> None:
    with ScriptedLlama(Behaviour()) as server:
        place = EngineAddress(server.url)

        def meanwhile(done: int, _: int) -> None:
            server.predicted += 40 if done == 1 else 0

        measurer = Measurer(PROMPTS, MeasureOptions(max_tokens=32))
        assert measurer(place, lambda *_: None).disturbed == ""
        assert "generated 40 tokens for other clients" in measurer(place, meanwhile).disturbed


def test_the_gpus_are_looked_at_before_and_after() -> None:
    nvml = FaultyNvml(gpus=2)
    measurer = Measurer(PROMPTS, MeasureOptions(max_tokens=32), GpuLooks(nvml=nvml))

    def measured(done: int, _: int) -> None:
        nvml.values["nvmlDeviceGetUtilizationRates"] = SimpleNamespace(gpu=0, memory=0)

    with FaultUpstream(timed()) as server:
        seen = measurer(EngineAddress(server.url), measured)
    assert seen.disturbed == "the GPU was 75 % busy before anything was asked"
    assert seen.memory_free_bytes == 69 << 30


def test_the_first_token_is_the_prompts() -> None:
    found = plain_results([*samples(50.0), replace(samples(50.0)[0], error="broke off")])
    assert [result.tokens for result in found] == [100] * 4
    assert sum(result.tokens for result in found) / sum(result.seconds for result in found) == pytest.approx(50.0)


def test_a_plan_says_what_is_tuned_and_what_it_costs() -> None:
    found = prepare(TuneOptions(each=2, tokens=64), VALUES, "the test", env={"HOME": "/none"})
    plan = found.plan
    assert plan.start == found.task.points[0]
    assert plan.points == len(found.task.points)
    assert plan.prompts == len(found.prompts) == 8
    assert [knob.key for knob in plan.knobs][:2] == ["LLAMA_SPEC_TYPE", "LLAMA_DRAFT_MAX"]
    assert plan.downtime_s is None, "nothing was applied yet"
    assert sum(share for _, share in plan.workload.shares) == pytest.approx(1.0)


def test_prompts_of_a_file_are_thinned_to_what_a_boot_can_take_with_the_files_shares(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    rows = [{"kind": "sql" if number % 4 else "mail", "prompt": f"text {number}"} for number in range(40)]
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    options = TuneOptions(prompts=str(path), each=5)
    found = prepare(options, VALUES, "the test", env={"HOME": "/none"})
    assert len(found.prompts) == 10
    assert dict(found.task.workload.shares) == {"mail": pytest.approx(0.25), "sql": pytest.approx(0.75)}
    assert "10 of 40 prompts, 5 of a class" in found.plan.notes


def test_calls_of_a_transcript_that_fit_into_a_slot_are_asked(tmp_path: Path) -> None:
    path = write_session(tmp_path / "session.jsonl", Shape(turns=8, last_chars=9000))
    found = prepare(TuneOptions(transcript=str(path)), VALUES, "the test", env={"HOME": "/none"})
    assert found.prompts
    assert {prompt.kind for prompt in found.prompts} == {"agentic"}
    small = {**VALUES, "LLAMA_CTX_SIZE": "520"}
    with pytest.raises(InputError, match="no call fits"):
        prepare(TuneOptions(transcript=str(path)), small, "the test", env={"HOME": "/none"})
