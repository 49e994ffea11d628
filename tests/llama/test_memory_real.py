"""The memory estimate against what the real llama-server says it allocates."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from specdash.backend.auto import loads
from specdash.backend.settings import settings_from_env
from specdash.llama.gguf import read_facts
from specdash.llama.memory import together
from support import tiny_models as tiny
from support.gguf_files import write_gemma3, write_wide
from support.native_server import try_out
from support.tiny_models.automaton import TOKEN_KINDS, TOKENS

pytestmark = [pytest.mark.llama_server, pytest.mark.slow]
MIB = 1024**2
ROUNDING = 0.006
"""The log has two decimals."""

CASES: dict[str, tuple[str, str | None, str, str]] = {
    "three slots, rounded up": ("llama", None, "none", "N_PARALLEL=3 CTX_SIZE=5000"),
    "automatic slots": ("llama", None, "none", "N_PARALLEL=-1 CTX_SIZE=8192"),
    "context as trained, for each slot": ("llama", None, "none", "N_PARALLEL=2 CTX_SIZE=0 FIT=on"),
    "context as trained, shared out": ("llama", None, "none", "N_PARALLEL=2 CTX_SIZE=0"),
    "one cache for all": ("llama", None, "none", "N_PARALLEL=2 KV_UNIFIED=1"),
    "quantised caches": ("llama", "draft", "draft-simple", "N_PARALLEL=2 CACHE_TYPE_K=q8_0 CACHE_TYPE_V=q4_0"),
    "recurrent": ("mamba", None, "ngram-mod", "N_PARALLEL=2"),
    "hybrid with rollback": ("lfm2", "eagle3", "draft-eagle3", "N_PARALLEL=2"),
    "prediction layers": ("qwen35", None, "draft-mtp", "N_PARALLEL=2"),
    "block draft": ("llama", "dflash", "draft-dflash", ""),
    "without flash attention": ("llama", None, "none", "CTX_SIZE=16384 FLASH_ATTN=off"),
    "caches of 32-bit floats": ("wide", None, "none", "CTX_SIZE=8192 CACHE_TYPE_K=f32 CACHE_TYPE_V=f32"),
    "queries wider than the embedding": (
        *("wide", None, "none"), "N_PARALLEL=4 CTX_SIZE=8192 CACHE_TYPE_K=q8_0 CACHE_TYPE_V=q8_0"),
    "sliding windows": ("gemma3", None, "none", "N_PARALLEL=4 CTX_SIZE=16384"),
    "sliding windows at full length": ("gemma3", None, "none", "N_PARALLEL=2 CTX_SIZE=8192 SWA_FULL=1"),
    "logits of a draft that is verified": (
        *("words", "words-draft", "draft-simple"), "N_PARALLEL=2 SPEC_DRAFT_N_MAX=16"),
    "logits of a whole batch": ("words", "words-dflash", "draft-dflash", "N_PARALLEL=2 SPEC_DRAFT_N_MAX=7"),
    "logits of a whole batch, sampled by the processor": (
        *("words", "words-eagle3", "draft-eagle3"), "N_PARALLEL=2 SPEC_DRAFT_BACKEND_SAMPLING=0"),
    "a wide step, and a large batch": ("words", None, "none", "UBATCH=2048"),
}  # fmt: skip
"""Model, draft, spec type, and what differs from one slot with a context of 4096."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    made = {
        "llama": tiny.write_llama(folder / "llama.gguf", layers=3),
        "draft": tiny.write_llama(folder / "draft.gguf"),
        "mamba": tiny.write_mamba(folder / "mamba.gguf", layers=2),
        "lfm2": tiny.write_lfm2(folder / "lfm2.gguf"),
        "qwen35": tiny.write_qwen35(folder / "qwen35.gguf", heads_too=True),
        "dflash": tiny.write_dflash(folder / "dflash.gguf"),
        "eagle3": tiny.write_eagle3(folder / "eagle3.gguf"),
        "gemma3": write_gemma3(folder / "gemma3.gguf"),
        "wide": write_wide(folder / "wide.gguf"),
    }
    # Models whose vocabulary is as large, against their width, as that of real ones.
    with _padded(20_000):
        return made | {
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


@pytest.mark.parametrize("case", CASES)
def test_the_estimate_is_what_llama_server_allocates(case: str, files: dict[str, Path], tmp_path: Path) -> None:
    model, draft, kind, differs = CASES[case]
    settings = {"FIT": "off", "N_PARALLEL": "1", "CTX_SIZE": "4096", "SPEC_TYPE": kind, "LOG_VERBOSITY": "4"}
    settings |= {"MODEL": str(files[model]), **dict(word.split("=") for word in differs.split())}
    asked = {f"LLAMA_ARG_{name}": text for name, text in settings.items()}
    if draft is not None:
        asked["LLAMA_ARG_SPEC_DRAFT_MODEL"] = str(files[draft])
    outcome = try_out(asked, tmp_path)
    assert outcome.started, outcome.log[-2000:]
    # --fit measures first, in a context of its own, and ends with a table.
    outcome = replace(outcome, log=outcome.log.rpartition("memory breakdown")[2])
    # As `specdash gguf` and the plan estimate with these settings.
    facts = read_facts(files[model])
    load, draft_load = loads(settings_from_env(asked), facts, on_gpu=False)
    wanted = together(facts, load, read_facts(files[draft]) if draft is not None else None, draft_load)
    assert wanted is not None
    assert wanted.exact
    for what, name in (("weights", "model"), ("KV cache", "KV"), ("recurrent state", "RS")):
        real = outcome.buffers(name)
        ours = sum(part.host + part.gpu for part in wanted.parts if part.what == what) / MIB
        assert abs(ours - sum(real)) <= ROUNDING * max(1, len(real)), (what, ours, real)
    compute = sum(part.host for part in wanted.parts if part.what == "compute") / MIB
    # A draft's context is reserved twice, and the log has both; the larger one stays.
    first, *others = outcome.buffers("compute")
    assert 0.9 <= compute / (first + max(others, default=0.0)) <= 1.5, (compute, first, others)
