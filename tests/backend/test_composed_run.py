"""What was composed runs on both engines, and what must be refused is refused before anything starts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from specdash.cli.main import main
from support import tiny_models
from support.engines import engine_env, running_backend, write_env

if TYPE_CHECKING:
    from pathlib import Path

ENGINES = [pytest.param("xllamacpp", marks=pytest.mark.engine)]
PROMPT = "the speculative"


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("more")
    return {"heads": tiny_models.write_qwen35(folder / "heads.gguf", heads_too=True)}


def env(models: dict[str, Path], engine: str, **changes: str) -> dict[str, str]:
    plain = {"LLAMA_MODEL": str(models["target"]), "LLAMA_CTX_SIZE": "1024", "LLAMA_THREADS": "1"}
    return {**plain, **engine_env(engine), **changes}


@pytest.mark.parametrize("engine", ENGINES)
def test_auto_takes_the_draft_and_it_drafts(models: dict[str, Path], tmp_path: Path, engine: str) -> None:
    wanted = env(models, engine, LLAMA_SPEC_TYPE="auto", LLAMA_DRAFT_MODEL=str(models["draft"]), LLAMA_CTX_SIZE="0")
    with running_backend(wanted, tmp_path) as backend:
        (slot,) = backend.get("/slots")
        assert (slot["speculative"], slot["n_ctx"]) == (True, tiny_models.CONTEXT)
        assert backend.complete(PROMPT, 40)["timings"]["draft_n"] > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_prediction_layers_of_a_small_model_are_obeyed_with_a_warning_and_not_chosen(
    models: dict[str, Path], more: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    wanted = env(models, engine, LLAMA_MODEL=str(more["heads"]), LLAMA_SPEC_TYPE="draft-mtp")
    with running_backend(wanted, tmp_path) as backend:
        assert backend.get("/slots")[0]["speculative"] is True
        assert "under 2B its prediction layers slow it down" in backend.stderr.read_text()
    file = write_env(tmp_path / "b.env", {**wanted, "LLAMA_SPEC_TYPE": "auto", "LLAMA_PORT": "0"})
    assert main(["backend", "show", "--json", "--env-file", str(file)]) == 0
    (decided,) = json.loads(capsys.readouterr().out)["decided"]
    assert decided["value"] == "ngram-mod"
    assert "under 2B its layers slow it down" in decided["because"]
