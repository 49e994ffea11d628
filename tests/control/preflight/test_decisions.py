"""What `auto` becomes is said before anything is stopped, and what it cannot become is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdash.core.observations import Gpu, Gpus

if TYPE_CHECKING:
    from control.preflight.conftest import Check

MIB = 1024**2


def gpu(free: int) -> dict[str, Any]:
    seen = Gpus((Gpu(0, "H200", "GPU-0", None, None, 0, free, processes=()),))
    return {"gpus": lambda: seen}


def test_the_type_and_the_reason_are_a_note(backend: Check, models: dict[str, str]) -> None:
    found = backend({"LLAMA_SPEC_TYPE": "auto", "LLAMA_DRAFT_MODEL": models["draft"]})
    row = found.one("auto")
    assert (row.severity, row.key) == ("info", "LLAMA_SPEC_TYPE")
    assert row.message.startswith("LLAMA_SPEC_TYPE=auto is draft-simple here: the draft model is an ordinary one")
    assert not found.errors


def test_small_models_with_prediction_layers_draft_by_n_grams(backend: Check, models: dict[str, str]) -> None:
    found = backend({"LLAMA_MODEL": models["qwen35-mtp"], "LLAMA_SPEC_TYPE": "auto"})
    assert "auto is ngram-mod here" in found.one("auto").message
    named = backend({"LLAMA_MODEL": models["qwen35-mtp"], "LLAMA_SPEC_TYPE": "draft-mtp"}).one("small-mtp")
    assert (named.severity, named.key) == ("warning", "LLAMA_SPEC_TYPE")


def test_the_context_is_a_note_with_its_arithmetic(backend: Check) -> None:
    row = backend({"LLAMA_CTX_SIZE": "auto"}, **gpu(520 * MIB)).one("auto")
    assert row.key == "LLAMA_CTX_SIZE"
    assert "GPU 0 (H200): 520.0 MiB free, x 0.90, less 400.0 MiB for CUDA itself = 68.0 MiB may be used" in row.message
    assert "model KV cache" in row.message


def test_a_context_that_cannot_be_is_refused(backend: Check) -> None:
    row = backend({"LLAMA_CTX_SIZE": "auto"}, **gpu(100 * MIB)).one("context")
    assert (row.severity, row.key) == ("error", "LLAMA_CTX_SIZE")
    assert "not even the smallest context fits" in row.message


def test_in_main_memory_the_context_is_what_fits_there(backend: Check) -> None:
    found = backend({"LLAMA_CTX_SIZE": "auto"})
    assert "main memory" in found.one("auto").message
    assert not found.errors


def test_a_missing_model_has_one_finding_and_no_guess_at_its_context(backend: Check) -> None:
    found = backend({"LLAMA_MODEL": "/nowhere.gguf", "LLAMA_CTX_SIZE": "auto", "LLAMA_SPEC_TYPE": "auto"})
    assert [row.rule for row in found.errors] == ["file"]
