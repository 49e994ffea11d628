"""Models and engines for the backend's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support import tiny_models

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny GGUF models by name; see `support.tiny_models`."""
    return tiny_models.build(tmp_path_factory.mktemp("models"))


@pytest.fixture
def no_engine_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither LLAMA_BIN nor a llama-server on PATH."""
    monkeypatch.delenv("LLAMA_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
