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
