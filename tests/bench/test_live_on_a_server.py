"""What is measured on a real server, beside what its own counters say."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from specdash.bench.load.drive import MeasureOptions, measure
from specdash.bench.load.samples import EngineAddress
from specdash.bench.load.workloads import bundled
from specdash.llama.server_answers import parse_metrics
from support.engines import RunningBackend, engine_env, running_backend
from support.small_server import MODELS

pytestmark = [pytest.mark.slow, pytest.mark.engine]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningBackend]:
    env = {
        "LLAMA_MODEL": str(MODELS / "demo-target.gguf"),
        "LLAMA_DRAFT_MODEL": str(MODELS / "demo-draft.gguf"),
        "LLAMA_SPEC_TYPE": "draft-simple",
        "LLAMA_DRAFT_MAX": "4",
        "LLAMA_CTX_SIZE": "8192",
        "LLAMA_THREADS": "1",
        "LLAMA_ARG_N_PARALLEL": "2",
        "LLAMA_ARG_LOG_VERBOSITY": "4",
    }
    with running_backend({**env, **engine_env("xllamacpp")}, tmp_path) as backend:
        yield backend


def test_steps_and_positions_of_each_request_add_up_and_so_do_the_counters(server: RunningBackend) -> None:
    place, prompts = EngineAddress(server.url), bundled(each=2)
    options = MeasureOptions(runs=1, max_tokens=48, positions=True, log=str(server.log))
    run = measure(place, prompts, options)
    assert run.notes == ()
    for sample in run.samples:
        assert sample.steps is not None
        assert sample.accepted is not None
        assert sample.predicted_tokens is not None
        assert sum(sample.accepted_per_position) == sample.accepted
        assert sample.drafted is not None
        assert sample.drafted <= 4 * sample.steps
        assert all(count <= sample.steps for count in sample.accepted_per_position)
    counted = parse_metrics(place.client(5.0).get("/metrics").body)
    everything = [*run.samples, run.warm_up]
    assert counted.draft_tokens == sum(
        bench_sample.drafted or 0 for bench_sample in everything if bench_sample is not None
    )
    assert counted.accepted_tokens == sum(
        bench_sample.accepted or 0 for bench_sample in everything if bench_sample is not None
    )
    assert counted.predicted_tokens == sum(
        bench_sample.predicted_tokens or 0 for bench_sample in everything if bench_sample is not None
    )
    predicted_ms = sum(bench_sample.predicted_ms or 0.0 for bench_sample in everything if bench_sample is not None)
    assert counted.predicted_seconds == pytest.approx(predicted_ms / 1000, rel=0.01)
    assert run.draft_s is not None
    assert 0 < run.draft_s < sum(sample.predicted_ms or 0.0 for sample in run.samples) / 1000.0


def test_a_cache_is_used_when_it_may_and_not_when_it_may_not(server: RunningBackend) -> None:
    place, prompts = EngineAddress(server.url), bundled(["agentic"], each=1)
    cold = measure(place, prompts, MeasureOptions(runs=2, max_tokens=16))
    assert [sample.cached_tokens for sample in cold.samples] == [0, 0]
    warm = measure(place, prompts, MeasureOptions(runs=2, max_tokens=16, cache=True))
    again = warm.samples[1]
    assert again.cached_tokens is not None
    assert again.prompt_tokens is not None
    assert again.cached_tokens > 0.9 * again.prompt_tokens


def test_forced_length_makes_every_answer_as_long_as_was_asked(server: RunningBackend) -> None:
    run = measure(EngineAddress(server.url), bundled(each=1), MeasureOptions(runs=1, max_tokens=200, force_length=True))
    assert {sample.predicted_tokens for sample in run.samples} == {200}
