"""The memory estimate against what the real llama-server says it allocates."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from specdash.backend.auto import loads
from specdash.backend.settings import settings_from_env
from specdash.llama.gguf import read_facts
from specdash.llama.memory import MemoryEstimate, together
from support import tiny_models as tiny
from support.gguf_files import write_gemma3, write_wide
from support.native_server import try_out
from support.tiny_models.automaton import TOKEN_KINDS, TOKENS

pytestmark = [pytest.mark.llama_server, pytest.mark.slow]
MIB = 1024**2
ROUNDING = 0.006
"""The log has two decimals."""

CASES: dict[str, tuple[str, str | None, str, dict[str, str]]] = {
    "three slots, rounded up": ("llama", None, "none", {"N_PARALLEL": "3", "CTX_SIZE": "5000"}),
    "automatic slots": ("llama", None, "none", {"N_PARALLEL": "-1", "CTX_SIZE": "8192"}),
    "context as trained, for each slot": ("llama", None, "none", {"N_PARALLEL": "2", "CTX_SIZE": "0", "FIT": "on"}),
    "context as trained, shared out": ("llama", None, "none", {"N_PARALLEL": "2", "CTX_SIZE": "0"}),
    "one cache for all": ("llama", None, "none", {"N_PARALLEL": "2", "CTX_SIZE": "4096", "KV_UNIFIED": "1"}),
    "quantised caches": (
        *("llama", "draft", "draft-simple"),
        {"N_PARALLEL": "2", "CTX_SIZE": "4096", "CACHE_TYPE_K": "q8_0", "CACHE_TYPE_V": "q4_0"},
    ),
    "recurrent": ("mamba", None, "ngram-mod", {"N_PARALLEL": "2", "CTX_SIZE": "4096"}),
    "hybrid with rollback": ("lfm2", "eagle3", "draft-eagle3", {"N_PARALLEL": "2", "CTX_SIZE": "4096"}),
    "prediction layers": ("qwen35", None, "draft-mtp", {"N_PARALLEL": "2", "CTX_SIZE": "4096"}),
    "block draft": ("llama", "dflash", "draft-dflash", {"N_PARALLEL": "1", "CTX_SIZE": "4096"}),
    "without flash attention": (
        *("llama", None, "none"),
        {"N_PARALLEL": "1", "CTX_SIZE": "16384", "FLASH_ATTN": "off"},
    ),
    "caches of 32-bit floats": (
        *("wide", None, "none"),
        {"N_PARALLEL": "1", "CTX_SIZE": "8192", "CACHE_TYPE_K": "f32", "CACHE_TYPE_V": "f32"},
    ),
    "queries wider than the embedding": (
        *("wide", None, "none"),
        {"N_PARALLEL": "4", "CTX_SIZE": "8192", "CACHE_TYPE_K": "q8_0", "CACHE_TYPE_V": "q8_0"},
    ),
    "sliding windows": ("gemma3", None, "none", {"N_PARALLEL": "4", "CTX_SIZE": "16384"}),
    "sliding windows at full length": (
        "gemma3",
        None,
        "none",
        {"N_PARALLEL": "2", "CTX_SIZE": "8192", "SWA_FULL": "1"},
    ),
    "logits of a draft that is verified": (
        *("words", "words-draft", "draft-simple"),
        {"N_PARALLEL": "2", "CTX_SIZE": "4096", "SPEC_DRAFT_N_MAX": "16"},
    ),
    "logits of a whole batch": (
        *("words", "words-dflash", "draft-dflash"),
        {"N_PARALLEL": "2", "CTX_SIZE": "4096", "SPEC_DRAFT_N_MAX": "7"},
    ),
    "logits of a whole batch, sampled by the processor": (
        *("words", "words-eagle3", "draft-eagle3"),
        {"N_PARALLEL": "2", "CTX_SIZE": "4096", "SPEC_DRAFT_BACKEND_SAMPLING": "0"},
    ),
    "a wide step, and a large batch": (
        "words",
        None,
        "none",
        {"N_PARALLEL": "1", "CTX_SIZE": "4096", "UBATCH": "2048"},
    ),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "llama": tiny.write_llama(folder / "llama.gguf", layers=3),
        "draft": tiny.write_llama(folder / "draft.gguf"),
        "mamba": tiny.write_mamba(folder / "mamba.gguf", layers=2),
        "lfm2": tiny.write_lfm2(folder / "lfm2.gguf"),
        "qwen35": tiny.write_qwen35(folder / "qwen35.gguf", heads_too=True),
        "dflash": tiny.write_dflash(folder / "dflash.gguf"),
        "eagle3": tiny.write_eagle3(folder / "eagle3.gguf"),
        "gemma3": write_gemma3(folder / "gemma3.gguf"),
        "wide": write_wide(folder / "wide.gguf"),
        **_of_many_words(folder),
    }


def _of_many_words(folder: Path) -> dict[str, Path]:
    """Models whose vocabulary is as large, against their width, as that of real ones."""
    with _padded(20_000):
        return {
            "words": tiny.write_llama(folder / "words.gguf", layers=3),
            "words-draft": tiny.write_llama(folder / "words-draft.gguf"),
            "words-dflash": tiny.write_dflash(folder / "words-dflash.gguf"),
            "words-eagle3": tiny.write_eagle3(folder / "words-eagle3.gguf"),
        }


@contextlib.contextmanager
def _padded(words: int) -> Iterator[None]:
    known = len(TOKENS)
    TOKENS.extend(f"<pad{number}>" for number in range(known, words))
    TOKEN_KINDS.extend([5] * (words - known))
    try:
        yield
    finally:
        del TOKENS[known:], TOKEN_KINDS[known:]


def _estimate(model: Path, draft: Path | None, asked: dict[str, str]) -> MemoryEstimate:
    """As `specdash gguf` and preflight reckon with these settings."""
    settings = settings_from_env(asked)
    facts = read_facts(model)
    load, draft_load = loads(settings, facts, on_gpu=False)
    found = together(facts, load, read_facts(draft) if draft is not None else None, draft_load)
    assert found is not None
    return found


@pytest.mark.parametrize("case", CASES)
def test_what_is_reckoned_is_what_llama_server_allocates(case: str, files: dict[str, Path], tmp_path: Path) -> None:
    model, draft, kind, settings = CASES[case]
    asked = {"LLAMA_ARG_MODEL": str(files[model]), "LLAMA_ARG_SPEC_TYPE": kind, "LLAMA_ARG_LOG_VERBOSITY": "4"}
    asked |= {f"LLAMA_ARG_{name}": text for name, text in {"FIT": "off", **settings}.items()}
    if draft is not None:
        asked["LLAMA_ARG_SPEC_DRAFT_MODEL"] = str(files[draft])
    outcome = try_out(asked, tmp_path)
    assert outcome.started, outcome.log[-2000:]
    # --fit measures first, in a context of its own, and ends with a table.
    loaded = outcome.log.rpartition("memory breakdown")[2]
    outcome = replace(outcome, log=loaded)
    wanted = _estimate(files[model], files[draft] if draft is not None else None, asked)
    assert wanted.exact
    for what, name in (("weights", "model"), ("KV cache", "KV"), ("recurrent state", "RS")):
        told = outcome.buffers(name)
        ours = sum(part.host + part.gpu for part in wanted.parts if part.what == what) / MIB
        assert abs(ours - sum(told)) <= ROUNDING * max(1, len(told)), (what, ours, told)
    compute = sum(part.host for part in wanted.parts if part.what == "compute") / MIB
    # A draft's context is reserved twice, and the log tells of both; the larger one stays.
    told = outcome.buffers("compute")
    real = told[0] + (max(told[1:]) if len(told) > 1 else 0.0)
    assert 0.9 * real <= compute <= 1.5 * real, (compute, told)
