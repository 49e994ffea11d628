"""What was composed runs on both engines, and what must be refused is refused before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support import tiny_models
from support.engines import engine_env, running_backend

if TYPE_CHECKING:
    from pathlib import Path

ENGINES = [pytest.param("xllamacpp", marks=pytest.mark.engine)]
PROMPT = "the speculative"


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
