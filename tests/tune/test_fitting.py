"""Prompts that do not fit into a slot are known before anything is restarted."""

import json
from pathlib import Path

import pytest

from specdash.backend import demo
from specdash.bench.load.samples import WorkloadPrompt
from specdash.core.errors import UsageError
from specdash.tune.run.planning import TuneOptions, fitting, prepare

TARGET, DRAFT = (str(demo.bundled_model(name)) for name in (demo.TARGET_MODEL, demo.DRAFT_MODEL))
VALUES = {"LLAMA_MODEL": TARGET, "LLAMA_DRAFT_MODEL": DRAFT, "LLAMA_SPEC_TYPE": "draft-simple"}
NOWHERE = {"HOME": "/none"}


def prompt(name: str, words: int, kind: str = "coding") -> WorkloadPrompt:
    return WorkloadPrompt(name, kind, ({"role": "user", "content": "word " * words},))


def test_without_a_server_the_settings_tell_and_a_class_that_is_lost_ends_it() -> None:
    small = {**VALUES, "LLAMA_CTX_SIZE": "512", "LLAMA_PARALLEL": "2"}
    with pytest.raises(UsageError, match=r"fits into a slot of 256 tokens; .*--tokens.*LLAMA_CTX_SIZE"):
        prepare(TuneOptions(each=1), small, "the test", env=NOWHERE)
    found = prepare(TuneOptions(each=1, tokens=16), {**small, "LLAMA_CTX_SIZE": "65536"}, "t", env=NOWHERE)
    assert len(found.prompts) == found.plan.prompts == 4


def test_a_prompt_that_does_not_fit_is_left_out_and_named(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    rows = [{"id": f"p{count}", "kind": "coding", "prompt": "word " * count} for count in (10, 4000)]
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    options = TuneOptions(prompts=str(path), tokens=32)
    found = prepare(options, {**VALUES, "LLAMA_CTX_SIZE": "1024", "LLAMA_PARALLEL": "1"}, "t", env=NOWHERE)
    assert [workload_prompt.id for workload_prompt in found.prompts] == ["p10"]
    assert any("p4000" in note and "slot of 1024 tokens" in note for note in found.plan.notes)


def test_where_nobody_tells_the_context_nothing_is_left_out() -> None:
    prompts = (prompt("a", 10), prompt("b", 100_000))
    assert fitting(prompts, 32, None) == (prompts, ())
