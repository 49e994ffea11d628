"""Prompts that do not fit into a slot are known before anything is restarted, counted by the server that runs."""

import json
from pathlib import Path

import pytest

from specdash.backend import demo
from specdash.backend.launch import free_port
from specdash.bench.load.samples import EngineAddress, Job, MeasureOptions, WorkloadPrompt, body_of
from specdash.bench.verify_run import VerifyServer
from specdash.core.errors import UsageError
from specdash.tune.run.planning import TuneOptions, fitting, prepare
from support.small_server import small_server

TARGET, DRAFT = (str(demo.bundled_model(name)) for name in (demo.TARGET_MODEL, demo.DRAFT_MODEL))
VALUES = {"LLAMA_MODEL": TARGET, "LLAMA_DRAFT_MODEL": DRAFT, "LLAMA_SPEC_TYPE": "draft-simple"}
NOWHERE = {"HOME": "/none"}


def prompt(name: str, words: int, kind: str = "coding") -> WorkloadPrompt:
    return WorkloadPrompt(name, kind, ({"role": "user", "content": "word " * words},))


def test_without_a_server_the_settings_tell_and_a_class_that_is_lost_ends_it() -> None:
    small = {**VALUES, "LLAMA_CTX_SIZE": "512", "LLAMA_PARALLEL": "2"}
    with pytest.raises(UsageError, match=r"fits into a slot of 256 tokens, .*--tokens.*LLAMA_CTX_SIZE"):
        prepare(TuneOptions(each=1), small, "the test", None, None, NOWHERE)
    found = prepare(TuneOptions(each=1, tokens=16), {**small, "LLAMA_CTX_SIZE": "65536"}, "t", None, None, NOWHERE)
    assert len(found.prompts) == found.plan.prompts == 4


def test_a_prompt_that_does_not_fit_is_left_out_and_named(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    rows = [{"id": f"p{count}", "kind": "coding", "prompt": "word " * count} for count in (10, 4000)]
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    options = TuneOptions(prompts=str(path), tokens=32)
    found = prepare(options, {**VALUES, "LLAMA_CTX_SIZE": "1024", "LLAMA_PARALLEL": "1"}, "t", None, None, NOWHERE)
    assert [workload_prompt.id for workload_prompt in found.prompts] == ["p10"]
    assert any("p4000" in note and "slot of 1024 tokens" in note for note in found.plan.notes)


def test_where_nobody_tells_the_context_nothing_is_left_out() -> None:
    prompts = (prompt("a", 10), prompt("b", 100_000))
    assert fitting(prompts, MeasureOptions(), None, None) == (prompts, ())
    assert fitting(prompts, MeasureOptions(), EngineAddress("http://127.0.0.1:9"), None) == (prompts, ())


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(60)
def test_the_server_itself_counts_with_its_template_and_its_slots(tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    options = MeasureOptions(max_tokens=40)
    prompts = tuple(prompt(f"p{count}", count) for count in (1, 20, 60, 100, 120, 160, 200, 240))
    with small_server(port, tmp_path / "log", n_ctx=512, n_parallel=2):
        place = EngineAddress(f"http://127.0.0.1:{port}")
        with VerifyServer(place.url) as server:
            room = server.slot_context
            assert room is not None
            assert room <= 512
            counted = {
                workload_prompt.id: len(
                    server.tokenised(server.templated(body_of(Job(0, workload_prompt, 0), options, place)["messages"]))
                )
                for workload_prompt in prompts
            }
        # What the settings would say is not asked for: 100,000 tokens.
        kept, (note,) = fitting(prompts, options, place, 100_000)
    assert [workload_prompt.id for workload_prompt in kept] == [
        name for name, tokens in counted.items() if tokens + 40 <= room
    ]
    assert 0 < len(kept) < len(prompts)
    assert f"{prompts[len(kept)].id} ({counted[prompts[len(kept)].id]} tokens and 40 of answer)" in note
