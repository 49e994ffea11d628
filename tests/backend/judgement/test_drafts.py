"""Model files, drafts and sizes. test_agreement asks the real server about the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from backend.judgement.conftest import Check


def _draft(models: dict[str, str], name: str, kind: str, **more: str) -> dict[str, str]:
    return {"LLAMA_DRAFT_MODEL": models[name], "LLAMA_SPEC_TYPE": kind, **more}


@pytest.mark.parametrize("content", [b"", b"not a model", b"GGUF", None])
@pytest.mark.parametrize("key", ["LLAMA_MODEL", "LLAMA_DRAFT_MODEL", "LLAMA_ARG_MMPROJ"])
def test_a_file_that_is_no_model_is_one_error(
    key: str, content: bytes | None, backend: Check, models: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "x.gguf"
    if content is not None:
        path.write_bytes(content)
    wanted = _draft(models, "draft", "draft-simple")
    found = backend({**wanted, key: str(path)})
    assert [(row.rule, row.key) for row in found.errors] == [("file", key)]
    assert str(path) in found.errors[0].message


def test_a_truncated_model_says_so(backend: Check, models: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "half.gguf"
    data = Path(models["llama"]).read_bytes()
    path.write_bytes(data[: len(data) // 2])
    row = backend({"LLAMA_MODEL": str(path)}).one("file")
    assert "truncated" in row.message
    assert row.fix == "download it again"


@pytest.mark.parametrize(("name", "key"), [("model", "LLAMA_MODEL"), ("spec-draft-model", "LLAMA_DRAFT_MODEL")])
@pytest.mark.parametrize("missing", ["general.architecture", "llama.block_count"])
def test_a_model_without_what_llama_cpp_requires_of_its_header_is_refused(
    name: str, key: str, missing: str, backend: Check, models: dict[str, str], tmp_path: Path
) -> None:
    """The key is renamed in the file, so that every offset stays what it was."""
    path = tmp_path / "m.gguf"
    path.write_bytes(
        Path(models["draft"]).read_bytes().replace(missing.encode(), missing.replace("l", "x").encode(), 1)
    )
    wanted = {"LLAMA_DRAFT_MODEL": models["draft"], "LLAMA_SPEC_TYPE": "draft-simple", key: str(path)}
    found = backend(wanted)
    assert [(row.rule, row.key) for row in found.errors] == [("file-kind", key)], name
    assert f"no {missing}" in found.errors[0].message or "no None.block_count" in found.errors[0].message


def test_a_file_that_is_mended_is_seen_at_once(backend: Check, models: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"x")
    assert backend({"LLAMA_MODEL": str(path)}).errors
    path.write_bytes(Path(models["llama"]).read_bytes())
    assert not backend({"LLAMA_MODEL": str(path)}).errors
