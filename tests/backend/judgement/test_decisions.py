"""What `auto` becomes is said before anything is stopped, and what it cannot become is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdash.core.readings import Gpu, Gpus

if TYPE_CHECKING:
    from backend.judgement.conftest import Check

MIB = 1024**2


def gpu(free: int) -> dict[str, Any]:
    seen = Gpus((Gpu(0, "H200", "GPU-0", None, None, 0, free, free, processes=()),))
    return {"gpus": lambda: seen}


def test_the_context_is_a_note_with_its_arithmetic(backend: Check) -> None:
    row = backend({"LLAMA_CTX_SIZE": "auto"}, **gpu(520 * MIB)).one("auto")
    assert row.key == "LLAMA_CTX_SIZE"
    assert "CUDA0 (H200): 520 MiB free, x 0.90, less 400 MiB for CUDA itself = 68.0 MiB may be used" in row.message
    assert "model KV cache" in row.message


def test_a_context_that_cannot_be_is_refused(backend: Check) -> None:
    row = backend({"LLAMA_CTX_SIZE": "auto"}, **gpu(100 * MIB)).one("context")
    assert (row.severity, row.key) == ("error", "LLAMA_CTX_SIZE")
    assert "not even the smallest context fits" in row.message
