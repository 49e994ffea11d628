"""LLAMA_DRAFT_MAX, _MIN and _P_MIN really reach what each spec type drafts with, on both engines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from specdash.core.speculation import KNOBS, SPEC_TYPES
from support import tiny_models
from support.engines import engine_env, running_backend

if TYPE_CHECKING:
    from pathlib import Path

ENGINES = [pytest.param("xllamacpp", marks=pytest.mark.engine)]
VALUES = dict(zip(KNOBS, ("6", "2", "0.25"), strict=True))
SAID = {
    "draft-simple": "n_max=6, n_min=2, p_min=0.25",
    "draft-eagle3": "n_max=6, n_min=2, p_min=0.25",
    "draft-mtp": "n_max=6, n_min=2, p_min=0.25",
    "draft-dflash": "n_max=6, n_min=2, p_min=0.25",
    "draft-dspark": "n_max=6, n_min=2, p_min=0.25",
    "ngram-simple": "size_n=6, size_m=6, min_hits=1",
    "ngram-map-k": "size_value=6, key_only=1",
    "ngram-map-k4v": "size_value=6, key_only=0",
    "ngram-mod": "n_match=24, n_max=6, n_min=2",
    "ngram-cache": "n_draft=8, cache_static=none",
}
"""What the engine says at -lv 4 of the parameters it drafts with."""
_DRAFTED = re.compile(r"accepted +\d+/ *(\d+) draft tokens")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Models by spec type, as env keys."""
    folder = tmp_path_factory.mktemp("knobs")
    target = str(tiny_models.write_llama(folder / "target.gguf", layers=2))
    found = {spec_kind.name: {"LLAMA_MODEL": target} for spec_kind in SPEC_TYPES if spec_kind.name.startswith("ngram-")}
    draft = tiny_models.write_llama(folder / "draft.gguf")
    found["draft-simple"] = {"LLAMA_MODEL": target, "LLAMA_DRAFT_MODEL": str(draft)}
    deeper = tiny_models.write_llama(folder / "deeper.gguf", layers=3)
    head = tiny_models.write_eagle3(folder / "eagle3.gguf")
    found["draft-eagle3"] = {"LLAMA_MODEL": str(deeper), "LLAMA_DRAFT_MODEL": str(head)}
    block = tiny_models.write_dflash(folder / "dflash.gguf")
    found["draft-dflash"] = {"LLAMA_MODEL": target, "LLAMA_DRAFT_MODEL": str(block)}
    markov = tiny_models.write_dspark(folder / "dspark.gguf")
    found["draft-dspark"] = {"LLAMA_MODEL": target, "LLAMA_DRAFT_MODEL": str(markov)}
    found["draft-mtp"] = {"LLAMA_MODEL": str(tiny_models.write_qwen35(folder / "mtp.gguf", heads_too=True))}
    return found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", [spec_kind.name for spec_kind in SPEC_TYPES])
def test_the_knobs_reach_the_drafter(pairs: dict[str, dict[str, str]], name: str, engine: str, tmp_path: Path) -> None:
    more = {"LLAMA_SPEC_TYPE": name, "LLAMA_CTX_SIZE": "1024", "LLAMA_THREADS": "1", "LLAMA_LOG_VERBOSITY": "4"}
    # n-gram maps are blind where a slot held another text before, such as the runner's.
    more["LLAMA_START_PROBE"] = "0"
    with running_backend({**pairs[name], **VALUES, **more, **engine_env(engine)}, tmp_path) as backend:
        assert backend.get("/slots")[0]["speculative"] is True
        backend.complete("the speculative decoder drafts several tokens", 240)
    # Once it has ended: until then the engine's own log thread may lag behind.
    log = backend.log.read_text(encoding="utf-8", errors="replace")
    assert f"adding speculative implementation '{name}'" in log
    assert SAID[name] in log
    drafted = [int(number) for number in _DRAFTED.findall(log)]
    if name != "ngram-cache":  # it learns from prompts alone
        assert max(drafted) == int(VALUES["LLAMA_DRAFT_MAX"])
