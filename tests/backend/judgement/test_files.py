"""Files that are missing, damaged or of the wrong kind, models that cannot answer, and contexts that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from specdash.core.readings import Gpu, Gpus
from specdash.llama.gguf import read_facts
from specdash.llama.memory import ALL_LAYERS, HEADROOM, ModelLoad, fit_context, slots_of
from support import gguf_files as files

if TYPE_CHECKING:
    from collections.abc import Callable

    from backend.judgement.conftest import Check


@pytest.mark.parametrize("content", [b"", b"not a model", b"GGUF"])
@pytest.mark.parametrize("key", ["LLAMA_MODEL", "LLAMA_DRAFT_MODEL", "LLAMA_ARG_MMPROJ"])
def test_a_file_that_is_no_model_is_one_error(
    key: str, content: bytes, backend: Check, models: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    wanted = {"LLAMA_DRAFT_MODEL": models["draft"], "LLAMA_SPEC_TYPE": "draft-simple", key: str(path)}
    found = backend(wanted)
    assert [(row.rule, row.key) for row in found.errors] == [("file", key)]
    assert str(path) in found.errors[0].message


def test_a_model_cut_short_says_so_and_once_it_is_whole_it_is_seen_at_once(
    backend: Check, models: dict[str, str], tmp_path: Path
) -> None:
    path, data = tmp_path / "half.gguf", Path(models["llama"]).read_bytes()
    path.write_bytes(data[: len(data) // 2])
    row = backend({"LLAMA_MODEL": str(path)}).one("file")
    assert "truncated" in row.message
    assert row.fix == "download it again"
    path.write_bytes(data)
    assert not backend({"LLAMA_MODEL": str(path)}).errors


@pytest.mark.parametrize("missing", ["general.architecture", "llama.block_count"])
def test_a_model_without_what_llama_cpp_requires_of_its_header_is_refused(
    missing: str, backend: Check, models: dict[str, str], tmp_path: Path
) -> None:
    """The key is renamed in the file, so that every offset stays what it was."""
    path = tmp_path / "m.gguf"
    renamed = missing.replace("l", "x").encode()
    path.write_bytes(Path(models["draft"]).read_bytes().replace(missing.encode(), renamed, 1))
    row = backend({"LLAMA_MODEL": str(path)}).one("file-kind")
    assert f"no {missing}" in row.message or "no None.block_count" in row.message


@pytest.mark.parametrize(
    ("write", "shown", "fix"),
    [
        (
            files.write_projector,
            "is a multimodal projector, no model",
            "load it beside its model with LLAMA_ARG_MMPROJ",
        ),
        (files.write_adapter, "is a LoRA adapter, no model", "load it beside its model with --lora"),
        (files.write_imatrix, "is an importance matrix, no model", "llama-quantize reads it; name the model itself"),
    ],
)
def test_what_is_no_model_is_refused_by_name(
    write: Callable[[Path], Path], shown: str, fix: str, backend: Check, models: dict[str, str], tmp_path: Path
) -> None:
    path = write(tmp_path / "x.gguf")
    wanted = {"LLAMA_DRAFT_MODEL": str(path), "LLAMA_SPEC_TYPE": "draft-simple"}
    row = backend(wanted).one("file-kind")
    assert (row.severity, row.message) == ("error", f"LLAMA_DRAFT_MODEL={path}: {shown}")
    assert row.fix.startswith(fix)


def test_a_base_model_is_a_warning_only_where_it_serves_chats(backend: Check, tmp_path: Path) -> None:
    base = files.write_model(tmp_path / "b.gguf", values={"general.finetune": "Base"}, template=True)
    wanted = {"LLAMA_MODEL": str(base)}
    assert not backend(wanted).of("base-model")
    row = backend(wanted, other={"LLAMA_CPP_BASE": "http://127.0.0.1:8080"}).one("base-model")
    assert (row.severity, row.key) == ("warning", "LLAMA_MODEL")
    assert "general.finetune is 'Base'" in row.message
    assert backend({**wanted, "LLAMA_ARG_CHAT_TEMPLATE": "chatml"}).of("base-model")
    silent = files.write_model(tmp_path / "s.gguf")
    assert not backend({"LLAMA_MODEL": str(silent)}, other={"LLAMA_CPP_BASE": "x"}).of("base-model")


def test_an_architecture_that_the_engine_does_not_know_is_a_warning(backend: Check, tmp_path: Path) -> None:
    path = files.write_model(tmp_path / "n.gguf", architecture="llama9")
    assert "'llama9' is unknown to b11434" in backend({"LLAMA_MODEL": str(path)}).one("model").message


def _gpu(free: int) -> dict[str, Any]:
    gpus = Gpus((Gpu(0, None, "GPU-0", None, None, 0, free, free, processes=()),))
    return {"gpus": gpus}


def test_a_context_that_does_not_fit_names_the_largest_that_does(backend: Check, models: dict[str, str]) -> None:
    free = 440 * 1024**2 * 10 // 9
    wanted = {"LLAMA_GPU_LAYERS": "all", "LLAMA_CTX_SIZE": "32768"}
    row = backend(wanted, **_gpu(free)).one("gpu-memory")
    load = ModelLoad(256, slots_of(1), gpu_layers=ALL_LAYERS)
    most = fit_context(read_facts(models["llama"]), load, free, headroom=HEADROOM)
    assert 0 < most < 32768
    assert f"set LLAMA_CTX_SIZE={most} or less, which leaves 10 % free" in row.fix
    small = backend({**wanted, "LLAMA_CTX_SIZE": str(most)}, **_gpu(free)).one("gpu-memory")
    assert small.severity == "info"
