"""What the tests of the kit share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def kit_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the kit's models, as pack.sh has them written."""
    from gpu.models import write_models

    folder: Path = tmp_path_factory.mktemp("kit") / "models"
    write_models(folder)
    return folder
