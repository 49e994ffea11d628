"""What is done to services is done under each manager."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.deployment import MANAGER_PARAMETERS, Rig, running_deployment

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", params=MANAGER_PARAMETERS)
def running(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """Both services under one manager, for all tests of a module that change them."""
    with running_deployment(request.param) as rig:
        yield rig
